//! The public functions over rows, which check sizes and then call the type's functions in the table.

use crate::{BlockType, Error};

/// Checks that `n_elements` elements of `ty` take `n_bytes`.
fn check(ty: BlockType, n_elements: usize, n_bytes: usize) -> Result<(), Error> {
    let expected = ty.row_bytes(n_elements)?;
    if expected == n_bytes {
        Ok(())
    } else {
        Err(Error::Size { ty, n_elements, expected, found: n_bytes })
    }
}

/// Dequantizes the blocks in `bytes` to `out` (`[n_elements]`).
///
/// The arithmetic is that of ggml, in single precision and without fused operations, so the bits are the
/// same on every machine.
///
/// # Errors
/// If `out` is not whole blocks, or `bytes` has another size than these blocks.
pub fn dequantize(ty: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    check(ty, out.len(), bytes.len())?;
    (ty.row().dequantize)(bytes, out);
    Ok(())
}

/// Quantizes `values` (`[n_elements]`) to blocks in `out`.
///
/// Q4_0 to Q8_1, Q8_K and Q1_0 are rounded as by ggml's reference. The other types search for the scales
/// of least squared error. Most scales are stored in half precision, so values beyond about
/// `65504 * levels` overflow to infinity in these types.
///
/// # Errors
/// If `values` is not whole blocks, `out` has another size than these blocks, a value is not finite and
/// `ty` is quantized, or `ty` cannot be quantized to ([`BlockType::can_quantize`]).
pub fn quantize(ty: BlockType, values: &[f32], out: &mut [u8]) -> Result<(), Error> {
    check(ty, values.len(), out.len())?;
    let quantize = ty.row().quantize.ok_or(Error::NoQuantizer { ty })?;
    if ty.block_len() > 1
        && let Some(idx) = values.iter().position(|v| !v.is_finite())
    {
        return Err(Error::NotFinite { ty, idx });
    }
    quantize(values, out);
    Ok(())
}

/// The dot product of the blocks in `bytes` with `x` (`[n_elements]`).
///
/// This is the reference for kernels: each weight is dequantized, and products are summed in order in
/// double precision.
///
/// # Errors
/// If `x` is not whole blocks, or `bytes` has another size than these blocks.
pub fn dot(ty: BlockType, bytes: &[u8], x: &[f32]) -> Result<f32, Error> {
    check(ty, x.len(), bytes.len())?;
    Ok((ty.row().dot)(bytes, x) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i % 7) as f32)).collect()
    }

    fn round_trip(ty: BlockType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let mut bytes = vec![0xaa; ty.row_bytes(values.len()).unwrap()];
        quantize(ty, values, &mut bytes).unwrap();
        let mut back = vec![f32::NAN; values.len()];
        dequantize(ty, &bytes, &mut back).unwrap();
        (bytes, back)
    }

    /// Largest error of a wave of amplitude 7, and that zeros stay zeros.
    fn check(ty: BlockType, tolerance: f32) {
        let values = wave(512);
        let (bytes, back) = round_trip(ty, &values);
        for (i, (a, b)) in values.iter().zip(&back).enumerate() {
            assert!((a - b).abs() <= tolerance, "{ty}[{i}]: {a} became {b}");
        }
        let x: Vec<f32> = values.iter().rev().copied().collect();
        let naive: f64 = back.iter().zip(&x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert_eq!(dot(ty, &bytes, &x).unwrap(), naive as f32, "{ty}");
        // A row is its blocks: what one block holds does not depend on its neighbours.
        let last = 512 - ty.block_len();
        assert_eq!(round_trip(ty, &values[last..]).1, back[last..], "{ty}");
        assert!(round_trip(ty, &[0.0; 256]).1.iter().all(|v| *v == 0.0), "{ty}");
    }

    #[test]
    fn round_trips_stay_within_the_step_of_each_type() {
        use BlockType::*;
        let tolerances = [
            (F32, 0.0),
            (F16, 0.002),
            (BF16, 0.016),
            (Q4_0, 0.9),
            (Q4_1, 0.5),
            (Q5_0, 0.45),
            (Q5_1, 0.23),
            (Q8_0, 0.03),
            (Q8_1, 0.03),
            (Q2_K, 3.0),
            (Q3_K, 1.8),
            (Q4_K, 0.75),
            (Q5_K, 0.35),
            (Q6_K, 0.2),
            (Q8_K, 0.03),
            (IQ4_NL, 0.75),
            (IQ4_XS, 0.75),
            (MXFP4, 1.0),
            (NVFP4, 1.0),
            (TQ1_0, 4.0),
            (TQ2_0, 4.0),
            (Q1_0, 5.0),
            (Q2_0, 4.0),
            (F8_0, 0.3),
            (Q4_Z, 0.5),
            (F8, 0.26),
        ];
        assert!(tolerances.iter().map(|t| t.0).eq(BlockType::all().filter(|ty| ty.can_quantize())));
        for (ty, tolerance) in tolerances {
            check(ty, tolerance);
        }
    }

    #[test]
    fn sums_of_levels_are_kept() {
        let values = wave(256);
        let (bytes, _) = round_trip(BlockType::Q8_K, &values);
        let block: &crate::BlockQ8K = bytemuck::from_bytes(&bytes);
        for j in 0..16 {
            let sum: i16 = block.qs[16 * j..][..16].iter().map(|q| i16::from(*q)).sum();
            assert_eq!(block.bsum(j), sum);
        }
        let (bytes, back) = round_trip(BlockType::Q8_1, &values);
        let block: &crate::BlockQ8_1 = bytemuck::from_bytes(&bytes[..36]);
        let sum: f32 = back[..32].iter().sum();
        assert!((block.s() - sum).abs() <= sum.abs() * 0.002 + 1e-3);
    }

    #[test]
    fn wrong_sizes_are_errors() {
        let ty = BlockType::Q4_K;
        let mut bytes = [0u8; 288];
        let partial = Error::PartialBlock { ty, n_elements: 255 };
        assert_eq!(dequantize(ty, &bytes, &mut [0.0; 255]), Err(partial.clone()));
        assert_eq!(quantize(ty, &[0.0; 255], &mut bytes), Err(partial.clone()));
        assert_eq!(dot(ty, &bytes, &[0.0; 255]), Err(partial));
        let size = Error::Size { ty, n_elements: 256, expected: 144, found: 288 };
        assert_eq!(dequantize(ty, &bytes, &mut [0.0; 256]), Err(size.clone()));
        assert_eq!(quantize(ty, &[0.0; 256], &mut bytes), Err(size.clone()));
        assert_eq!(dot(ty, &bytes, &[0.0; 256]), Err(size));
    }

    #[test]
    fn types_that_cannot_be_made_say_so() {
        for ty in BlockType::all().filter(|ty| !ty.can_quantize()) {
            let mut bytes = vec![0u8; ty.row_bytes(256).unwrap()];
            let error = quantize(ty, &[0.0; 256], &mut bytes).unwrap_err();
            assert_eq!(error, Error::NoQuantizer { ty });
            let named = format!("cannot quantize to {ty}: ");
            assert!(error.to_string().starts_with(&named), "{error}");
            assert!(ty.name().starts_with("IQ"), "{ty}");
        }
    }

    #[test]
    fn values_that_are_not_finite_are_errors_in_quantized_types_alone() {
        for ty in BlockType::all().filter(|ty| ty.can_quantize()) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = wave(256);
                values[77] = bad;
                let mut bytes = vec![0u8; ty.row_bytes(256).unwrap()];
                // The block's own function takes anything without a panic.
                (ty.row().quantize.unwrap())(&values, &mut bytes);
                let result = quantize(ty, &values, &mut bytes);
                if ty.block_len() > 1 {
                    assert_eq!(result, Err(Error::NotFinite { ty, idx: 77 }));
                } else {
                    let mut back = [0.0; 256];
                    dequantize(ty, &bytes, &mut back).unwrap();
                    // FP8 has no infinity.
                    let is_nan = bad.is_nan() || ty == BlockType::F8;
                    assert!(back[77] == bad || back[77].is_nan() && is_nan);
                }
            }
        }
    }

    #[test]
    fn extreme_finite_values_do_not_panic() {
        for ty in BlockType::all().filter(|ty| ty.can_quantize()) {
            for scale in [f32::MIN_POSITIVE, 1e-45, 1e-20, 1e10, f32::MAX] {
                let values: Vec<f32> =
                    (0..256).map(|i| scale * (((i % 5) as f32 - 2.0) / 2.0)).collect();
                round_trip(ty, &values);
            }
        }
    }
}
