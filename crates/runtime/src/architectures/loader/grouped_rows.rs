//! Matrices whose rows the file has in groups, such as one of each head, with rows of several linear layers
//! in every group.

use super::{Linear, Name, WeightLoader};
use crate::Error;
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
    /// The linear layers of a tensor of `n_groups` groups with as many rows as the parts have in
    /// one; the rows are copied.
    ///
    /// # Errors
    /// If the tensor is missing, of another shape or an unusable type, or has a bias.
    pub fn grouped_linears<const N: usize>(
        &mut self,
        name: impl Into<Name>,
        n_groups: usize,
        parts: [GroupedPart<'_>; N],
        n_in: usize,
    ) -> Result<[Linear; N], Error> {
        let name = name.into();
        let tensor = self.require(name, "weight")?;
        let n_rows = |part: &GroupedPart<'_>| part.rows.iter().map(|(_, n)| n).sum::<usize>();
        let group_rows: usize = parts.iter().map(n_rows).sum();
        self.check_shape(&tensor, &[n_groups * group_rows, n_in])?;
        let ty = self.block_type(&tensor)?;
        let row_bytes = ty.row_bytes(n_in).map_err(|e| self.type_error(&tensor, &e.to_string()))?;
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
            Linear { weight, bias: None, order }
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
        let linears = loader.grouped_linears((0, "wq"), 2, parts, 1).unwrap();
        let (_, weights) = loader.finish("llama", &[]).unwrap();
        let found = linears.map(|linear| {
            let (rows, _) = weights.get(linear.weight.id).blocks()[0].as_chunks::<4>();
            rows.iter().map(|&row| f32::from_le_bytes(row)).collect::<Vec<_>>()
        });
        assert_eq!(found, [[0.0, 4.0, 3.0, 7.0], [1.0, 2.0, 5.0, 6.0]]);
    }
}
