//! The matrices of experts: slices of a tensor of three dimensions, or a tensor each.
//!
//! They are returned as one weight whose matrices lie where the files have them.

use super::{Name, WeightLoader};
use crate::Error;
use crate::graph::weights::{ExpertWeight, WeightData};
use realizar_formats::{Bytes, Tensor};
use realizar_quant::BlockType;

/// What stands for the index of the expert in the names of tensors that are one expert's.
const EXPERT: &str = "{e}";

/// Of a leaf of experts, the leaf of the tensors of single experts.
fn single(leaf: &str) -> Option<&'static str> {
    let leaves = [
        ("streams.begin", "stream.begin"),
        ("streams.end", "stream.end"),
        ("experts.w_gate", "expert.w_gate"),
        ("experts.w_up", "expert.w_up"),
        ("experts.w_down", "expert.w_down"),
    ];
    leaves.into_iter().find(|(experts, _)| *experts == leaf).map(|(_, expert)| expert)
}

impl WeightLoader<'_> {
    /// The matrices of a layer's gates, and those beside them. A file may stack the rows of the two.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn gate_up_experts(
        &mut self,
        layer: usize,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<[ExpertWeight; 2], Error> {
        let stacked = (layer, "experts.w_gate_up").into();
        if self.has_turned(stacked, [n_experts, 2 * rows, cols]) {
            return self.halved_gate_up_experts(layer, n_experts, rows, cols);
        }
        let leaves = ["experts.w_gate", "experts.w_up"];
        let Some(tensor) = self.find_stacked(stacked) else {
            let mut one = |leaf| self.experts((layer, leaf), n_experts, rows, cols);
            return Ok([one(leaves[0])?, one(leaves[1])?]);
        };
        self.check_shape(&tensor, &[n_experts, 2 * rows, cols])?;
        let (ty, row_bytes) = self.rows_of(&tensor, cols)?;
        Ok([0, 1].map(|half| {
            let first = |expert: usize| (2 * expert + half) * rows * row_bytes;
            let data = (0..n_experts).map(first);
            let data = data.map(|first| tensor.data.slice(first..first + rows * row_bytes));
            let name = Name { layer: Some(layer), leaf: leaves[half] };
            self.add_experts(name, ty, [rows, cols], data.collect())
        }))
    }

    /// The matrices of a layer's experts, `[n_experts, rows, cols]`.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type, or types differ.
    pub fn experts(
        &mut self,
        name: impl Into<Name>,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<ExpertWeight, Error> {
        let name = name.into();
        if self.has_turned(name, [n_experts, rows, cols]) {
            return self.turned_experts(name, n_experts, rows, cols);
        }
        if let Some(tensor) = self.find_stacked(name) {
            self.check_shape(&tensor, &[n_experts, rows, cols])?;
            let (ty, row_bytes) = self.rows_of(&tensor, cols)?;
            let n_bytes = rows * row_bytes;
            let data = (0..n_experts).map(|i| tensor.data.slice(i * n_bytes..(i + 1) * n_bytes));
            return Ok(self.add_experts(name, ty, [rows, cols], data.collect()));
        }
        let names =
            single(name.leaf).and_then(|leaf| self.file_name_of(Name { leaf, ..name }, "weight"));
        // Where the first is missing, a file that stacks them is the rule.
        let names = names.filter(|names| self.find_file(&names.replace(EXPERT, "0")).is_some());
        let names = names.ok_or_else(|| self.missing_tensor(name, "weight"))?;
        let mut tensors = Vec::with_capacity(n_experts);
        for expert in 0..n_experts {
            let file_name = names.replace(EXPERT, &expert.to_string());
            let tensor = self.find_file(&file_name).ok_or_else(|| Error::MissingTensor {
                path: self.path().to_owned(),
                tensor: file_name,
                weight: format!("{name} of expert {expert}"),
            })?;
            self.check_shape(&tensor, &[rows, cols])?;
            tensors.push(tensor);
        }
        self.put_in_factors(&mut tensors);
        let mut found = None;
        let mut data = Vec::with_capacity(n_experts);
        for tensor in tensors {
            let (ty, _) = self.rows_of(&tensor, cols)?;
            if *found.get_or_insert(ty) != ty {
                return Err(self.type_error(&tensor, "is another than that of the first expert"));
            }
            data.push(tensor.data);
        }
        let ty = found.ok_or_else(|| self.unsupported("a layer with no experts"))?;
        Ok(self.add_experts(name, ty, [rows, cols], data))
    }

    /// Makes F32 of the matrices of experts that have factors on their products, or are made as several types: experts
    /// are of one type, and share what follows their products.
    fn put_in_factors(&self, tensors: &mut [Tensor]) {
        let is_made = |tensor: &Tensor| !tensor.data.is_made();
        let has_factor = tensors.iter().any(|it| self.checkpoint.factor(&it.name) != 1.0);
        let are_several = tensors.windows(2).any(|pair| pair[0].ty != pair[1].ty);
        if has_factor || are_several && tensors.iter().all(is_made) {
            if let Some(first) = tensors.first() {
                tracing::warn!(
                    "{}: `{}` and similar tensors take 32 bits per weight: no block type fits \
                     their scales",
                    self.path().display(),
                    first.name
                );
            }
            for tensor in tensors {
                *tensor = self.checkpoint.as_f32(tensor);
            }
        }
    }

    /// The tensor of three dimensions, whose name may end in `.weight` or not.
    fn find_stacked(&mut self, name: Name) -> Option<Tensor> {
        self.find(name, "weight").or_else(|| self.find(name, ""))
    }

    /// A tensor by its name in the file, which from now on counts as used.
    pub(super) fn find_file(&mut self, file_name: &str) -> Option<Tensor> {
        let tensor = self.look_up_file(file_name)?;
        self.used.insert(tensor.name.clone());
        Some(tensor)
    }

    /// The type of a tensor's blocks, and the bytes of a row.
    fn rows_of(&self, tensor: &Tensor, cols: usize) -> Result<(BlockType, usize), Error> {
        let ty = self.unordered_type(tensor)?;
        let row_bytes = ty.row_bytes(cols).map_err(|e| self.type_error(tensor, &e.to_string()))?;
        Ok((ty, row_bytes))
    }

    pub(super) fn add_experts(
        &mut self,
        name: Name,
        ty: BlockType,
        [rows, cols]: [usize; 2],
        data: Vec<Bytes>,
    ) -> ExpertWeight {
        let n_experts = data.len();
        let shape = vec![n_experts, rows, cols];
        let id = self.add(name.to_string(), shape, WeightData::Experts { ty, rows, cols, data });
        ExpertWeight { id, n_experts, rows, cols }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use realizar_formats::{SafeTensorsWriter, TensorType};
    use std::path::Path;

    /// A directory with tensors of these names and shapes, whose elements are 0, 1, 2, ….
    fn checkpoint(dir: &Path, tensors: &[(&str, &[usize])]) -> Checkpoint {
        std::fs::write(dir.join("config.json"), r#"{"model_type": "qwen3_moe"}"#).unwrap();
        let data: Vec<Vec<u8>> = tensors
            .iter()
            .map(|(_, shape)| {
                let n: usize = shape.iter().product();
                (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
            })
            .collect();
        let mut file = SafeTensorsWriter::new();
        for ((name, shape), data) in tensors.iter().zip(&data) {
            file.tensor(name, TensorType::F32, shape, data).unwrap();
        }
        file.write_file(dir.join("model.safetensors")).unwrap();
        Checkpoint::open(dir).unwrap()
    }

    fn floats(data: &[Bytes]) -> Vec<Vec<f32>> {
        let of = |data: &Bytes| {
            let (floats, _) = data.as_chunks::<4>();
            floats.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
        };
        data.iter().map(of).collect()
    }

    #[test]
    fn stacked_rows_of_gate_and_up_are_taken_apart() {
        let dir = tempfile::tempdir().unwrap();
        let name = "model.layers.0.mlp.experts.gate_up_proj";
        let checkpoint = checkpoint(dir.path(), &[(name, &[2, 4, 1])]);
        let mut loader = WeightLoader::new(&checkpoint, &[]);
        let both = loader.gate_up_experts(0, 2, 2, 1).unwrap();
        let (infos, weights) = loader.finish("qwen3moe", &[]).unwrap();
        let found = both.map(|weight| floats(weights.get(weight.id).blocks()));
        assert_eq!(
            found,
            [[[0.0, 1.0], [4.0, 5.0]], [[2.0, 3.0], [6.0, 7.0]]]
                .map(|halves| { halves.map(Vec::from).to_vec() })
        );
        let names: Vec<_> =
            infos.iter().map(|info| (info.name.as_str(), &info.shape[..])).collect();
        let shape = &[2, 2, 1][..];
        assert_eq!(names, [("layers.0.experts.w_gate", shape), ("layers.0.experts.w_up", shape)]);
    }

    #[test]
    fn an_expert_that_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let names = [0, 1].map(|e| format!("model.layers.0.mlp.experts.{e}.down_proj.weight"));
        let tensors = [(names[0].as_str(), &[2, 1][..]), (names[1].as_str(), &[2, 1][..])];
        let checkpoint = checkpoint(dir.path(), &tensors);
        let mut loader = WeightLoader::new(&checkpoint, &[]);
        let weight = loader.experts((0, "experts.w_down"), 2, 2, 1).unwrap();
        assert_eq!(floats(loader.data[weight.id.idx()].blocks()), [[0.0, 1.0], [0.0, 1.0]]);
        let check = |found: Result<ExpertWeight, Error>, expected: &str| {
            let text = found.unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        };
        let missing = "model.layers.0.mlp.experts.2.down_proj.weight";
        check(loader.experts((0, "experts.w_down"), 3, 2, 1), missing);
        let missing = "model.layers.1.mlp.experts.down_proj";
        check(loader.experts((1, "experts.w_down"), 2, 2, 1), missing);
    }
}
