//! The matrices of experts as transformers has them for gpt-oss and Llama 4: `[n_experts, n_in, n_out]`, with the columns
//! of gate and up in turns or one half after the other, or as MXFP4 in two tensors of blocks and scales, `[n_experts, n_out, n_in / 32]`, with rows in turns.
//!
//! They become what other files hold, `[n_experts, n_out, n_in]`, one expert at a time and when they are read. Blocks
//! keep their numbers: only the order of nibbles differs. GGUF files have nothing to turn.

use super::{Name, WeightLoader};
use crate::Error;
use crate::graph::weights::{ExpertWeight, WeightData, WeightId};
use realizar_formats::{Bytes, Tensor, TensorType};
use realizar_quant::BlockType;

const BLOCK_LEN: usize = BlockType::MXFP4.block_len();
/// Bytes of a block's numbers; that of its scale is beside them.
const QUANT_BYTES: usize = BLOCK_LEN / 2;

/// The matrices of all experts of a layer.
enum Source {
    /// `[n_experts, n_in, n_out]`, of a type with blocks of one element.
    Transposed(BlockType, Tensor),
    /// Numbers, `[n_experts, n_out, n_in / 32, 16]`, and scales, `[n_experts, n_out, n_in / 32]`.
    Blocks(Tensor, Tensor),
}

/// Every `step`-th row from row `first` on and before row `end`, of a matrix of `n_all`.
#[derive(Clone, Copy)]
struct Turn {
    first: usize,
    step: usize,
    end: usize,
    n_all: usize,
}

impl Turn {
    fn rows(self) -> impl Iterator<Item = usize> {
        (self.first..self.end).step_by(self.step)
    }
}

impl WeightLoader<'_> {
    /// From now on, the stacked matrices of experts may be `[n_experts, n_in, n_out]`, which their shapes tell; gates
    /// come before what is beside them.
    pub fn experts_may_be_turned(&mut self) {
        self.experts_may_be_turned = true;
    }

    /// Whether the stacked matrices of experts, `[n_experts, n_out, n_in]`, have rows and columns exchanged.
    pub(super) fn has_turned(&self, name: Name, shape: [usize; 3]) -> bool {
        self.experts_may_be_turned
            && self.is_hf()
            && self.look_up(name, "").is_some_and(|tensor| tensor.shape != shape)
    }

    /// The matrices of a layer's gates, and those beside them, whose columns take turns.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn turned_gate_up_experts(
        &mut self,
        layer: usize,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<[ExpertWeight; 2], Error> {
        let (step, end, n_all) = (2, 2 * rows, 2 * rows);
        let turns = [0, 1].map(|first| Turn { first, step, end, n_all });
        self.gate_up_of_turns(layer, n_experts, (rows, cols), turns)
    }

    /// The matrices of a layer's gates, and those beside them, whose columns follow those of the gates.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn halved_gate_up_experts(
        &mut self,
        layer: usize,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<[ExpertWeight; 2], Error> {
        let half = |first| Turn { first, step: 1, end: first + rows, n_all: 2 * rows };
        self.gate_up_of_turns(layer, n_experts, (rows, cols), [half(0), half(rows)])
    }

    fn gate_up_of_turns(
        &mut self,
        layer: usize,
        n_experts: usize,
        (rows, cols): (usize, usize),
        turns: [Turn; 2],
    ) -> Result<[ExpertWeight; 2], Error> {
        let stacked = Name { layer: Some(layer), leaf: "experts.w_gate_up" };
        let Some(source) = self.turned(stacked, [n_experts, 2 * rows, cols])? else {
            return self.gate_up_experts(layer, n_experts, rows, cols);
        };
        let [gate, up] = turns;
        Ok([(gate, "experts.w_gate"), (up, "experts.w_up")].map(|(turn, leaf)| {
            let name = Name { leaf, ..stacked };
            self.add_turned(name, &source, turn, [n_experts, rows, cols])
        }))
    }

    /// The matrices of a layer's experts, `[n_experts, rows, cols]`.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn turned_experts(
        &mut self,
        name: impl Into<Name>,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<ExpertWeight, Error> {
        let name = name.into();
        let Some(source) = self.turned(name, [n_experts, rows, cols])? else {
            return self.experts(name, n_experts, rows, cols);
        };
        let all = Turn { first: 0, step: 1, end: rows, n_all: rows };
        Ok(self.add_turned(name, &source, all, [n_experts, rows, cols]))
    }

    /// The biases of a layer's gates and of those beside them, `[n_experts, n]`, plus an offset each.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn gate_up_expert_biases(
        &mut self,
        layer: usize,
        n_experts: usize,
        n: usize,
        offsets: [f32; 2],
    ) -> Result<[WeightId; 2], Error> {
        let stacked = Name { layer: Some(layer), leaf: "experts.w_gate_up" };
        let leaves = ["experts.w_gate", "experts.w_up"];
        let stacked = match self.is_hf() {
            true => Some(self.expert_biases_of(stacked, n_experts, 2 * n)?),
            false => None,
        };
        let mut one = |half: usize| {
            let name = Name { layer: Some(layer), leaf: leaves[half] };
            let values: Vec<f32> = match &stacked {
                Some(all) => all.iter().skip(half).step_by(2).copied().collect(),
                None => self.expert_biases_of(name, n_experts, n)?,
            };
            let values = values.into_iter().map(|x| x + offsets[half]).collect();
            Ok::<_, Error>(self.add_expert_biases(name, n_experts, values))
        };
        Ok([one(0)?, one(1)?])
    }

    /// The biases of a layer's experts, `[n_experts, n]`.
    ///
    /// # Errors
    /// If the tensor is missing, or of another shape or an unusable type.
    pub fn expert_biases(
        &mut self,
        name: impl Into<Name>,
        n_experts: usize,
        n: usize,
    ) -> Result<WeightId, Error> {
        let name = name.into();
        let values = self.expert_biases_of(name, n_experts, n)?;
        Ok(self.add_expert_biases(name, n_experts, values))
    }

    fn expert_biases_of(
        &mut self,
        name: Name,
        n_experts: usize,
        n: usize,
    ) -> Result<Vec<f32>, Error> {
        let tensor = match self.is_hf() {
            true => self.require_part(name, "_bias")?,
            false => self.require(name, "bias")?,
        };
        self.check_shape(&tensor, &[n_experts, n])?;
        self.vector_of(&tensor, 0.0)
    }

    fn add_expert_biases(&mut self, name: Name, n_experts: usize, values: Vec<f32>) -> WeightId {
        let shape = vec![n_experts, values.len() / n_experts.max(1)];
        self.add(format!("{name}.bias"), shape, WeightData::Vector(values))
    }

    /// The tensor whose name ends in `part` after that of a weight.
    fn require_part(&mut self, name: Name, part: &str) -> Result<Tensor, Error> {
        let file_name = format!("{}{part}", self.file_name(name, ""));
        self.find_file(&file_name).ok_or_else(|| Error::MissingTensor {
            path: self.path().to_owned(),
            tensor: file_name,
            weight: name.to_string(),
        })
    }

    /// The matrices of experts, if the file is transformers' and may have them turned.
    fn turned(
        &mut self,
        name: Name,
        [n_experts, n_out, n_in]: [usize; 3],
    ) -> Result<Option<Source>, Error> {
        if !self.is_hf() {
            return Ok(None);
        }
        if let Some(tensor) = self.find(name, "") {
            self.check_shape(&tensor, &[n_experts, n_in, n_out])?;
            let ty = self.unordered_type(&tensor)?;
            if ty.block_len() != 1 {
                return Err(
                    self.type_error(&tensor, "cannot be transposed, as this tensor must be")
                );
            }
            return Ok(Some(Source::Transposed(ty, tensor)));
        }
        let [blocks, scales] = ["_blocks", "_scales"].map(|part| self.require_part(name, part));
        let (blocks, scales) = (blocks?, scales?);
        if !n_in.is_multiple_of(BLOCK_LEN) {
            let reason = format!("has no whole blocks in rows of {n_in}");
            return Err(self.type_error(&blocks, &reason));
        }
        let n_blocks = n_in / BLOCK_LEN;
        self.check_shape(&blocks, &[n_experts, n_out, n_blocks, QUANT_BYTES])?;
        self.check_shape(&scales, &[n_experts, n_out, n_blocks])?;
        for tensor in [&blocks, &scales] {
            if tensor.ty != TensorType::U8 {
                return Err(self.type_error(tensor, "should be U8"));
            }
        }
        Ok(Some(Source::Blocks(blocks, scales)))
    }

    fn add_turned(
        &mut self,
        name: Name,
        source: &Source,
        turn: Turn,
        [n_experts, rows, cols]: [usize; 3],
    ) -> ExpertWeight {
        let part = |data: &Bytes, expert: usize| {
            let n_bytes = data.len() / n_experts;
            data.slice(expert * n_bytes..(expert + 1) * n_bytes)
        };
        let (ty, data) = match source {
            Source::Transposed(ty, tensor) => {
                let (n, n_bytes) = (ty.block_bytes(), rows * cols * ty.block_bytes());
                let of = |expert| {
                    let all = part(&tensor.data, expert);
                    Bytes::made(vec![all.clone()], n_bytes, move || transposed(&all, turn, n))
                };
                (*ty, (0..n_experts).map(of).collect())
            }
            Source::Blocks(blocks, scales) => {
                let n_bytes = rows * (cols / BLOCK_LEN) * BlockType::MXFP4.block_bytes();
                let of = |expert| {
                    let [quants, scales] = [blocks, scales].map(|it| part(&it.data, expert));
                    let sources = vec![quants.clone(), scales.clone()];
                    Bytes::made(sources, n_bytes, move || mxfp4(&quants, &scales, turn))
                };
                (BlockType::MXFP4, (0..n_experts).map(of).collect())
            }
        };
        self.add_experts(name, ty, [rows, cols], data)
    }
}

/// The columns of a turn of `[n_in, n_all]` elements of `n` bytes, as rows.
fn transposed(data: &[u8], turn: Turn, n: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() / turn.n_all * turn.rows().count());
    for col in turn.rows() {
        for row in data.chunks_exact(turn.n_all * n) {
            out.extend_from_slice(&row[col * n..][..n]);
        }
    }
    out
}

/// The rows of a turn of `n_all` rows of numbers and scales, as blocks of MXFP4.
fn mxfp4(quants: &[u8], scales: &[u8], turn: Turn) -> Vec<u8> {
    let n_blocks = scales.len() / turn.n_all.max(1);
    let mut out = Vec::with_capacity((quants.len() + scales.len()) / turn.step);
    for row in turn.rows() {
        for block in row * n_blocks..(row + 1) * n_blocks {
            // Neighbours share a byte here, in a block elements that are 16 apart do.
            let pairs = &quants[block * QUANT_BYTES..][..QUANT_BYTES];
            let nibble = |i: usize| pairs[i / 2] >> (4 * (i % 2)) & 15;
            out.push(scales[block]);
            out.extend((0..QUANT_BYTES).map(|i| nibble(i) | nibble(i + QUANT_BYTES) << 4));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use realizar_formats::SafeTensorsWriter;

    /// Elements by row.
    fn values(loader: &WeightLoader<'_>, weight: &ExpertWeight) -> Vec<Vec<f32>> {
        let data = &loader.data[weight.id.idx()];
        let (ty, rows, cols) = data.matrix_shape().unwrap();
        let of = |bytes: &Bytes| {
            let mut values = vec![0.0; rows * cols];
            realizar_quant::dequantize(ty, bytes, &mut values).unwrap();
            values
        };
        data.blocks()
            .iter()
            .flat_map(|it| of(it).chunks(cols).map(Vec::from).collect::<Vec<_>>())
            .collect()
    }

    fn open(
        dir: &std::path::Path,
        tensors: &[(&str, TensorType, &[usize], Vec<u8>)],
    ) -> Checkpoint {
        std::fs::write(dir.join("config.json"), r#"{"model_type": "gpt_oss"}"#).unwrap();
        let mut file = SafeTensorsWriter::new();
        for (name, ty, shape, data) in tensors {
            file.tensor(name, *ty, shape, data).unwrap();
        }
        file.write_file(dir.join("model.safetensors")).unwrap();
        Checkpoint::open(dir).unwrap()
    }

    #[test]
    fn columns_in_turns_become_rows_of_two() {
        let dir = tempfile::tempdir().unwrap();
        let floats: Vec<u8> = (0..24).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let biases: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let name = "model.layers.0.mlp.experts.gate_up_proj";
        let bias = format!("{name}_bias");
        let tensors = [
            (name, TensorType::F32, &[2, 3, 4][..], floats),
            (&bias, TensorType::F32, &[2, 4], biases),
        ];
        let checkpoint = open(dir.path(), &tensors);
        let mut loader = WeightLoader::new(&checkpoint, &[]);
        let [gate, up] = loader.turned_gate_up_experts(0, 2, 2, 3).unwrap();
        // Of expert 0 rows 0 to 3, of expert 1 rows 3 to 6 of four columns, which count on.
        let row = |first: usize| [0, 4, 8].map(|step| (first + step) as f32).to_vec();
        assert_eq!(values(&loader, &gate), [row(0), row(2), row(12), row(14)]);
        assert_eq!(values(&loader, &up), [row(1), row(3), row(13), row(15)]);
        let [gate, up] = loader.halved_gate_up_experts(0, 2, 2, 3).unwrap();
        assert_eq!(values(&loader, &gate), [row(0), row(1), row(12), row(13)]);
        assert_eq!(values(&loader, &up), [row(2), row(3), row(14), row(15)]);
        let [gate, up] = loader.gate_up_expert_biases(0, 2, 2, [0.0, 0.5]).unwrap();
        let (infos, weights) = loader.finish("gpt-oss", &[]).unwrap();
        assert_eq!(weights.vector(gate), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(weights.vector(up), [1.5, 3.5, 5.5, 7.5]);
        let last = infos.last().unwrap();
        assert_eq!(
            (last.name.as_str(), &last.shape[..]),
            ("layers.0.experts.w_up.bias", &[2, 2][..])
        );
    }

    #[test]
    fn blocks_and_scales_become_blocks() {
        // Neighbours in a byte, the first in its low nibble: levels 0 to 15 twice, times 2 and 0.5.
        const LEVELS: [f32; 16] = [
            0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
        ];
        let dir = tempfile::tempdir().unwrap();
        let quants: Vec<u8> = (0..32).map(|i| (2 * (i % 8)) | ((2 * (i % 8) + 1) << 4)).collect();
        let name = "model.layers.3.mlp.experts.down_proj";
        let [blocks, scales] = ["_blocks", "_scales"].map(|part| format!("{name}{part}"));
        let tensors = [
            (blocks.as_str(), TensorType::U8, &[1, 2, 1, 16][..], quants),
            (scales.as_str(), TensorType::U8, &[1, 2, 1], vec![128, 126]),
        ];
        let checkpoint = open(dir.path(), &tensors);
        let mut loader = WeightLoader::new(&checkpoint, &[]);
        let down = loader.turned_experts((3, "experts.w_down"), 1, 2, 32).unwrap();
        let row =
            |scale: f32| [LEVELS, LEVELS].concat().iter().map(|x| scale * x).collect::<Vec<_>>();
        assert_eq!(values(&loader, &down), [row(2.0), row(0.5)]);
        let wrong = loader.turned_experts((3, "experts.w_down"), 1, 2, 64).unwrap_err().to_string();
        assert!(wrong.contains(&blocks), "{wrong}");
        let missing =
            loader.turned_experts((4, "experts.w_down"), 1, 2, 32).unwrap_err().to_string();
        assert!(missing.contains("model.layers.4.mlp.experts.down_proj_blocks"), "{missing}");
    }
}
