//! Embedding lookup: rows of a table of any block type, dequantized.

use realizar_quant::{BlockType, dequantize};

use crate::elementwise::{row_grain, scale_piece};
use crate::{Error, RowsMut, Team, Tier};

/// Writes row `ids[i]` of the table, times `scale`, to row `i` of `out`. Rows whose id is `u32::MAX` are
/// left unchanged.
///
/// # Errors
/// If a row of `out.n_cols()` elements is not a whole number of blocks.
///
/// # Panics
/// If an id is past the end of the table, or the number of ids is not that of the rows.
pub fn embed(
    team: &Team,
    tier: Tier,
    ty: BlockType,
    table: &[u8], // [vocab_size, row_bytes]
    ids: &[u32],  // [n_rows]
    scale: f32,
    out: RowsMut<'_>, // [n_rows, dim]
) -> Result<(), Error> {
    assert_eq!(ids.len(), out.n_rows(), "rows of the embedding");
    let row_bytes = ty.row_bytes(out.n_cols())?;
    let vocab_size = table.len().checked_div(row_bytes).unwrap_or(usize::MAX);
    for &id in ids {
        assert!((id as usize) < vocab_size || id == u32::MAX, "token {id} of {vocab_size}");
    }
    let grain = row_grain(out.n_cols());
    team.for_each_row_mut(out, grain, |i, out, _thread| {
        if ids[i] == u32::MAX {
            return;
        }
        let row = &table[ids[i] as usize * row_bytes..][..row_bytes];
        dequantize(ty, row, out).expect("the row has the bytes of its elements");
        if scale != 1.0 {
            scale_piece(tier, out, scale);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_quant::quantize;

    #[test]
    fn rows_are_dequantized_and_scaled() {
        let (vocab_size, dim) = (5, 256);
        let values: Vec<f32> =
            (0..vocab_size * dim).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        for ty in
            [BlockType::F32, BlockType::F16, BlockType::BF16, BlockType::Q8_0, BlockType::Q6_K]
        {
            let mut table = vec![0; vocab_size * ty.row_bytes(dim).expect("whole blocks")];
            quantize(ty, &values, &mut table).expect("sizes agree");
            let mut expected = vec![0.0; values.len()];
            dequantize(ty, &table, &mut expected).expect("sizes agree");
            for tier in Tier::available() {
                let ids = [4, 0, 4, 2];
                let mut out = vec![0.0; ids.len() * dim];
                let out_rows = RowsMut::new(&mut out, ids.len(), dim);
                embed(&Team::new(2), tier, ty, &table, &ids, 3.0, out_rows).expect("whole blocks");
                for (&id, out) in ids.iter().zip(out.chunks(dim)) {
                    let row = &expected[id as usize * dim..][..dim];
                    assert!(row.iter().zip(out).all(|(e, &out)| e * 3.0 == out), "{ty} {id}");
                }
            }
        }
    }

    #[test]
    fn a_row_of_half_a_block_is_an_error() {
        let mut out = [0.0; 16];
        let out = RowsMut::new(&mut out, 1, 16);
        let result = embed(&Team::new(1), Tier::Scalar, BlockType::Q8_0, &[0; 34], &[0], 1.0, out);
        let expected = realizar_quant::Error::PartialBlock { ty: BlockType::Q8_0, n_elements: 16 };
        assert_eq!(result, Err(Error::Block(expected)));
    }
}
