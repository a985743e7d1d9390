//! Linear layers whose rows the file has in turns, as where it keeps the queries, keys and values of
//! each head together.

use super::{Bias, Name, WeightLoader};
use crate::Error;
use crate::graph::weights::{Linear, WeightData};
use realizar_formats::Bytes;

impl WeightLoader<'_> {
    /// Linear layers whose rows the file has in turns: of each part in order so many rows, and all
    /// this `n` times. Rows and biases are copied, but where there is one turn.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn linears_in_turns<const N: usize>(
        &mut self,
        name: impl Into<Name>,
        parts: [(&'static str, usize); N], // rows of one turn
        n: usize,
        n_in: usize,
        bias: Bias,
    ) -> Result<[Linear; N], Error> {
        let name = name.into();
        if n == 1 {
            return self.stacked_linears(name, parts, n_in, bias);
        }
        let tensor = self.require(name, "weight")?;
        let turn: usize = parts.iter().map(|(_, rows)| rows).sum();
        self.check_shape(&tensor, &[n * turn, n_in])?;
        let ty = self.block_type(&tensor)?;
        let row_bytes = ty.row_bytes(n_in).map_err(|e| self.type_error(&tensor, &e.to_string()))?;
        let biases = match self.bias_tensor(name, bias, n * turn)? {
            Some(tensor) => Some(self.vector_of(&tensor, 0.0)?),
            None => None,
        };
        let order = self.order(&tensor);
        let mut first = 0;
        Ok(parts.map(|(leaf, rows)| {
            let name = Name { leaf, ..name };
            let rows_of_turn = first..first + rows;
            first += rows;
            let source = tensor.data.clone();
            let turn_bytes = (turn * row_bytes).max(1);
            let bytes_of_turn = rows_of_turn.start * row_bytes..rows_of_turn.end * row_bytes;
            let data = Bytes::made(vec![source.clone()], n * rows * row_bytes, move || {
                let source = source.for_once();
                let turns = source.chunks_exact(turn_bytes);
                turns.flat_map(|turn| &turn[bytes_of_turn.clone()]).copied().collect()
            });
            let weight = self.add_matrix(name.to_string(), ty, [n * rows, n_in], data);
            let bias = biases.as_ref().map(|values| {
                let turns = values.chunks_exact(turn.max(1));
                let values: Vec<f32> =
                    turns.flat_map(|turn| &turn[rows_of_turn.clone()]).copied().collect();
                let shape = vec![values.len()];
                self.add(format!("{name}.bias"), shape, WeightData::Vector(values))
            });
            Linear { weight, bias, order }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use realizar_formats::{SafeTensorsWriter, TensorType};

    #[test]
    fn rows_and_biases_of_each_turn_are_taken_apart() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
        // Two turns of two rows of queries, one of keys and one of values; row `r` holds `r` twice.
        let bytes =
            |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let rows: Vec<f32> = (0..8).flat_map(|r| [r as f32; 2]).collect();
        let biases: Vec<f32> = (0..8).map(|r| 10.0 + r as f32).collect();
        let (rows, biases) = (bytes(&rows), bytes(&biases));
        let mut file = SafeTensorsWriter::new();
        let stem = "model.layers.0.self_attn.qkv_proj";
        file.tensor(&format!("{stem}.weight"), TensorType::F32, &[8, 2], &rows).unwrap();
        file.tensor(&format!("{stem}.bias"), TensorType::F32, &[8], &biases).unwrap();
        file.write_file(dir.path().join("model.safetensors")).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();

        let mut loader = WeightLoader::new(&checkpoint, &[]);
        let parts = [("wq", 2), ("wk", 1), ("wv", 1)];
        let required = Bias::Required;
        let linears = loader.linears_in_turns((0, "wqkv"), parts, 2, 2, required).unwrap();
        let wanted = [&[0.0, 1.0, 4.0, 5.0][..], &[2.0, 6.0], &[3.0, 7.0]];
        for (linear, wanted) in linears.iter().zip(wanted) {
            let WeightData::Matrix { data, .. } = &loader.data[linear.weight.id.idx()] else {
                panic!("a matrix");
            };
            let found: Vec<f32> =
                data.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            assert_eq!(found, wanted.iter().flat_map(|&x| [x; 2]).collect::<Vec<_>>());
            let WeightData::Vector(bias) = &loader.data[linear.bias.unwrap().idx()] else {
                panic!("a vector");
            };
            assert_eq!(bias, &wanted.iter().map(|x| 10.0 + x).collect::<Vec<_>>());
        }
        let names: Vec<_> = loader.infos.iter().map(|info| info.name.as_str()).collect();
        let of = |leaf: &str| [format!("layers.0.{leaf}"), format!("layers.0.{leaf}.bias")];
        assert_eq!(names, ["wq", "wk", "wv"].map(of).concat());

        let error = loader.linears_in_turns((0, "wqkv"), parts, 3, 2, required).unwrap_err();
        assert!(error.to_string().contains("expected shape [12, 2]"), "{error}");
    }
}
