//! Matrices in which the file has rows of several linear layers: one after the other, or in groups, such as
//! one of each head.

use super::{Bias, Linear, Name, WeightLoader};
use crate::Error;
use crate::graph::weights::WeightData;
use realizar_formats::Bytes;

/// A linear layer of which a file has rows in every group.
#[derive(Debug, Clone, Copy)]
pub struct GroupedPart<'a> {
    /// Its leaf.
    pub leaf: &'static str,
    /// Its rows within a group, by the first and their number. Those of the first run come first, of all
    /// groups.
    pub rows: &'a [(usize, usize)],
}

impl WeightLoader<'_> {
    /// Linear layers whose matrices and biases the file stacks in one tensor:
    /// the rows of each, by its own name.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn stacked_linears<const N: usize>(
        &mut self,
        name: impl Into<Name>,
        parts: [(&'static str, usize); N],
        n_in: usize,
        bias: Bias,
    ) -> Result<[Linear; N], Error> {
        let name = name.into();
        let n_out = parts.iter().map(|(_, rows)| rows).sum();
        let tensor = self.require(name, "weight")?;
        let data = if self.transposed {
            self.check_shape(&tensor, &[n_in, n_out])?;
            self.transpose(&tensor, n_in, n_out)?
        } else {
            // llama.cpp's quantizer writes a matrix of one row as a vector.
            if (n_out, &tensor.shape[..]) != (1, &[n_in]) {
                self.check_shape(&tensor, &[n_out, n_in])?;
            }
            tensor.data.clone()
        };
        let ty = self.block_type(&tensor)?;
        let row_bytes = ty.row_bytes(n_in).map_err(|e| self.type_error(&tensor, &e.to_string()))?;
        let factor = self.checkpoint.factor(&tensor.name);
        let biases = self.biases(name, bias, n_out, factor)?;
        let order = self.order(&tensor);
        let mut first = 0;
        Ok(parts.map(|(leaf, rows)| {
            let name = Name { leaf, ..name };
            let rows_of = first..first + rows;
            first += rows;
            let data = data.slice(rows_of.start * row_bytes..rows_of.end * row_bytes);
            let weight = self.add_matrix(name.to_string(), ty, [rows, n_in], data);
            let bias = biases.as_ref().map(|values| {
                let values = values[rows_of].to_vec();
                self.add(format!("{name}.bias"), vec![rows], WeightData::Vector(values))
            });
            Linear { weight, bias, order, factor }
        }))
    }

    /// The biases of a linear whose result is multiplied by a factor, which are divided by it.
    fn biases(
        &mut self,
        name: Name,
        bias: Bias,
        len: usize,
        factor: f32,
    ) -> Result<Option<Vec<f32>>, Error> {
        let Some(tensor) = self.bias_tensor(name, bias, len)? else { return Ok(None) };
        let mut values = self.vector_of(&tensor, 0.0)?;
        values.iter_mut().for_each(|x| *x /= factor);
        Ok(Some(values))
    }

    /// Linear layers whose rows the file has interleaved: of each part in order its number of rows, and all
    /// this `n` times.
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
        if n == 1 {
            return self.stacked_linears(name, parts, n_in, bias);
        }
        let mut first = 0;
        let runs = parts.map(|(_, n_rows)| {
            let run = [(first, n_rows)];
            first += n_rows;
            run
        });
        let parts = std::array::from_fn(|i| GroupedPart { leaf: parts[i].0, rows: &runs[i] });
        self.grouped_linears(name, n, parts, n_in, bias)
    }

    /// The linear layers of a tensor of `n_groups` groups with as many rows as the parts have in
    /// one; rows and biases are copied.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn grouped_linears<const N: usize>(
        &mut self,
        name: impl Into<Name>,
        n_groups: usize,
        parts: [GroupedPart<'_>; N],
        n_in: usize,
        bias: Bias,
    ) -> Result<[Linear; N], Error> {
        let name = name.into();
        let tensor = self.require(name, "weight")?;
        let n_rows = |part: &GroupedPart<'_>| part.rows.iter().map(|(_, n)| n).sum::<usize>();
        let group_rows: usize = parts.iter().map(n_rows).sum();
        self.check_shape(&tensor, &[n_groups * group_rows, n_in])?;
        let ty = self.block_type(&tensor)?;
        let row_bytes = ty.row_bytes(n_in).map_err(|e| self.type_error(&tensor, &e.to_string()))?;
        let factor = self.checkpoint.factor(&tensor.name);
        let biases = self.biases(name, bias, n_groups * group_rows, factor)?;
        let order = self.order(&tensor);
        Ok(parts.map(|part| {
            let name = Name { leaf: part.leaf, ..name };
            let (source, rows) = (tensor.data.clone(), part.rows.to_vec());
            let n_out = n_groups * n_rows(&part);
            let data = Bytes::made(vec![source.clone()], n_out * row_bytes, move || {
                let source = source.for_once();
                let mut out = Vec::with_capacity(n_out * row_bytes);
                for &(first, n) in &rows {
                    for group in 0..n_groups {
                        let first = (group * group_rows + first) * row_bytes;
                        out.extend_from_slice(&source[first..first + n * row_bytes]);
                    }
                }
                out
            });
            let weight = self.add_matrix(name.to_string(), ty, [n_out, n_in], data);
            let bias = biases.as_ref().map(|values| {
                let groups = || values.chunks_exact(group_rows.max(1));
                let of_part = |&(first, n): &(usize, usize)| {
                    groups().flat_map(move |group| &group[first..first + n])
                };
                let values: Vec<f32> = part.rows.iter().flat_map(of_part).copied().collect();
                self.add(format!("{name}.bias"), vec![values.len()], WeightData::Vector(values))
            });
            Linear { weight, bias, order, factor }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use realizar_formats::{SafeTensorsWriter, TensorType};

    #[test]
    fn rows_of_groups_are_put_together() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
        let data: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let mut file = SafeTensorsWriter::new();
        let name = "model.layers.0.self_attn.q_proj.weight";
        file.tensor(name, TensorType::F32, &[8, 1], &data).unwrap();
        file.write_file(dir.path().join("model.safetensors")).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let mut loader = WeightLoader::new(&checkpoint, &[]);
        let parts = [
            GroupedPart { leaf: "a", rows: &[(0, 1), (3, 1)] },
            GroupedPart { leaf: "b", rows: &[(1, 2)] },
        ];
        let linears = loader.grouped_linears((0, "wq"), 2, parts, 1, Bias::None).unwrap();
        let (_, weights) = loader.finish("llama", &[]).unwrap();
        let found = linears.map(|linear| {
            let (rows, _) = weights.get(linear.weight.id).blocks()[0].as_chunks::<4>();
            rows.iter().map(|&row| f32::from_le_bytes(row)).collect::<Vec<_>>()
        });
        assert_eq!(found, [[0.0, 4.0, 3.0, 7.0], [1.0, 2.0, 5.0, 6.0]]);
    }

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
