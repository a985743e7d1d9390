//! The matrices of latent attention, one for each head, returned as those of experts.

use super::{Name, WeightLoader};
use crate::Error;
use crate::architectures::config::Latent;
use crate::graph::weights::{ExpertWeight, WeightData, WeightId};
use realizar_formats::Bytes;
use realizar_quant::BlockType;

impl WeightLoader<'_> {
    /// Of each head, the matrix that takes its query to the latent vector, `[kv_rank, plain_dim]`, and the
    /// one that takes the vector to its values, `[v_dim, kv_rank]`. A file has them apart, or one that
    /// takes the vector to keys and values; that of the keys is turned then.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub(crate) fn latent_heads(
        &mut self,
        layer: usize,
        n_heads: usize,
        latent: &Latent,
    ) -> Result<[ExpertWeight; 2], Error> {
        let &Latent { kv_rank, plain_dim, v_dim, .. } = latent;
        let names = ["k_heads", "v_heads"].map(|leaf| Name { layer: Some(layer), leaf });
        let name = Name { layer: Some(layer), leaf: "kv_heads" };
        let Some(tensor) = self.find(name, "weight") else {
            let keys = self.experts(names[0], n_heads, kv_rank, plain_dim)?;
            return Ok([keys, self.experts(names[1], n_heads, v_dim, kv_rank)?]);
        };
        let rows = plain_dim + v_dim;
        self.check_shape(&tensor, &[n_heads * rows, kv_rank])?;
        let ty = self.unordered_type(&tensor)?;
        let row_bytes =
            ty.row_bytes(kv_rank).map_err(|e| self.type_error(&tensor, &e.to_string()))?;
        let slice =
            |first: usize, n: usize| tensor.data.slice(first * row_bytes..(first + n) * row_bytes);
        let values = (0..n_heads).map(|head| slice(head * rows + plain_dim, v_dim)).collect();
        let keys = (0..n_heads).map(|head| {
            let source = slice(head * rows, plain_dim);
            let n_bytes = plain_dim * kv_rank * turned_type(ty).block_bytes();
            Bytes::made(vec![source.clone()], n_bytes, move || {
                turned(ty, &source.for_once(), [plain_dim, kv_rank])
            })
        });
        let keys = keys.collect();
        let keys = self.add_experts(names[0], turned_type(ty), [kv_rank, plain_dim], keys);
        Ok([keys, self.add_experts(names[1], ty, [v_dim, kv_rank], values)])
    }

    /// A vector of whole numbers that an architecture makes: the columns that [`crate::graph::Op::Reorder`]
    /// takes.
    pub(crate) fn made_order(&mut self, columns: Vec<u32>) -> WeightId {
        if let Some(id) = self.orders.get(&columns) {
            return *id;
        }
        let values = columns.iter().map(|&column| column as f32).collect();
        let name = format!("orders.{}", self.orders.len());
        let id = self.add(name, vec![columns.len()], WeightData::Vector(values));
        self.orders.insert(columns, id);
        id
    }
}

/// The type of a matrix whose columns become rows: blocks along a row become single elements.
fn turned_type(ty: BlockType) -> BlockType {
    if ty.block_len() == 1 { ty } else { BlockType::F32 }
}

/// The elements of `[rows, cols]` as those of `[cols, rows]`, of [`turned_type`].
fn turned(ty: BlockType, data: &[u8], [rows, cols]: [usize; 2]) -> Vec<u8> {
    let mut values = Vec::new();
    let (data, n) = match ty.block_len() {
        1 => (data, ty.block_bytes()),
        _ => {
            let mut floats = vec![0.0; rows * cols];
            realizar_quant::dequantize(ty, data, &mut floats).expect("rows are whole blocks");
            values.extend(floats.into_iter().flat_map(f32::to_le_bytes));
            (&values[..], 4)
        }
    };
    let element = |row: usize, col: usize| &data[(row * cols + col) * n..][..n];
    let column = |col: usize| (0..rows).flat_map(move |row| element(row, col));
    (0..cols).flat_map(column).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        let bytes =
            |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let found = turned(BlockType::F32, &bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), [2, 3]);
        assert_eq!(found, bytes(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
        let found = turned(BlockType::BF16, &[1, 2, 3, 4, 5, 6, 7, 8], [2, 2]);
        assert_eq!(found, [1, 2, 5, 6, 3, 4, 7, 8]);
        // Two rows of a block: numbers of 8 bits with a scale of 1, row by row.
        let row = |first: u8| [vec![0, 0x3c], (first..first + 32).collect()].concat();
        let found = turned(BlockType::Q8_0, &[row(0), row(64)].concat(), [2, 32]);
        let wanted: Vec<f32> = (0..32).flat_map(|i| [i as f32, (64 + i) as f32]).collect();
        assert_eq!(found, bytes(&wanted));
    }
}
