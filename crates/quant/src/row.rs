//! The public functions over rows: they check sizes, then use the type's table row.

use crate::{BlockType, Error};

/// Checks that `n_bytes` hold `n_elements` of `ty`.
fn check(ty: BlockType, n_elements: usize, n_bytes: usize) -> Result<(), Error> {
    let expected = ty.row_bytes(n_elements)?;
    if expected == n_bytes {
        Ok(())
    } else {
        Err(Error::Size { ty, n_elements, expected, found: n_bytes })
    }
}

/// Writes the values of the blocks in `bytes` to `out` (`[n_elements]`).
///
/// The arithmetic is ggml's, in single precision and without fused operations,
/// so that the values are the same bits on every machine.
///
/// # Errors
/// If `out` is not a whole number of blocks, or `bytes` is not the size of that many.
pub fn dequantize(ty: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    check(ty, out.len(), bytes.len())?;
    (ty.row().dequantize)(bytes, out);
    Ok(())
}

/// Writes blocks that stand for `values` (`[n_elements]`) to `out`.
///
/// The types of 32 elements, Q8_1 and Q8_K are rounded as ggml's reference does. The
/// other types of 256 elements search for the scales of least squared error.
/// Scales are stored in half precision, so values past about `65504 * levels`
/// overflow to infinity in the quantized types.
///
/// # Errors
/// If `values` is not a whole number of blocks, `out` is not the size of that
/// many, or a value is not finite and `ty` is quantized.
pub fn quantize(ty: BlockType, values: &[f32], out: &mut [u8]) -> Result<(), Error> {
    check(ty, values.len(), out.len())?;
    if ty.block_len() > 1
        && let Some(idx) = values.iter().position(|v| !v.is_finite())
    {
        return Err(Error::NotFinite { ty, idx });
    }
    (ty.row().quantize)(values, out);
    Ok(())
}

/// The dot product of the blocks in `bytes` with `x` (`[n_elements]`).
///
/// This is the reference for kernels, not a fast path: each weight is
/// dequantized, and products are summed in order in double precision.
///
/// # Errors
/// If `x` is not a whole number of blocks, or `bytes` is not the size of that many.
pub fn dot(ty: BlockType, bytes: &[u8], x: &[f32]) -> Result<f32, Error> {
    check(ty, x.len(), bytes.len())?;
    Ok((ty.row().dot)(bytes, x) as f32)
}
