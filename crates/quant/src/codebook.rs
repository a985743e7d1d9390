//! Codebooks: the values of the levels of IQ4 and FP4 types, and the lattice points and signs of the IQ1,
//! IQ2 and IQ3 types.
//!
//! The values are those of ggml's `ggml-common.h`. `grids` has the tables of points.

use crate::grids;

/// The 16 values of IQ4_NL and IQ4_XS, ascending.
pub const IQ4: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values of FP4 (OCP `E2M1`), doubled so that all are integers. Bit 3 of a level is the sign.
pub const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The values of the levels of the IQ2 types: bits 0 and 1 of a level select the magnitude, bit 2 is the
/// sign. The other levels do not occur.
pub const IQ2: [i8; 16] = [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The values of the levels of IQ3_XXS. Bit 3 of a level is the sign.
pub const IQ3_XXS: [i8; 16] =
    [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62];

/// The values of the levels of IQ3_S. Bit 3 of a level is the sign.
pub const IQ3_S: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];

/// The values of the levels of IQ1_S and IQ1_M, times eight. Bits 0 and 1 of a level are one of -1, 0
/// and 1, plus 1; bit 2 is set if the shift of an eighth is negative. The other levels do not occur.
pub const IQ1_EIGHTHS: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The points of IQ2_XXS by index. A point has two bits per magnitude, the first one lowest.
pub static IQ2_XXS_POINTS: [u16; 256] = grids::IQ2_XXS;
/// The points of IQ2_XS, as [`IQ2_XXS_POINTS`].
pub static IQ2_XS_POINTS: [u16; 512] = grids::IQ2_XS;
/// The points of IQ2_S, as [`IQ2_XXS_POINTS`].
pub static IQ2_S_POINTS: [u16; 1024] = grids::IQ2_S;
/// The points of IQ3_XXS by index. A point has four bits per magnitude, the first one lowest.
pub static IQ3_XXS_POINTS: [u16; 256] = grids::IQ3_XXS;
/// The points of IQ3_S, as [`IQ3_XXS_POINTS`].
pub static IQ3_S_POINTS: [u16; 512] = grids::IQ3_S;
/// The points of IQ1_S and IQ1_M by index. A point has two bits per element, the first one lowest: -1, 0
/// or 1, plus 1.
pub static IQ1_POINTS: [u16; 2048] = grids::IQ1;

/// The 8 magnitudes of an IQ2 point.
#[inline]
fn iq2_point(word: u16) -> [u8; 8] {
    const MAGNITUDES: [u8; 4] = [8, 25, 43, 0];
    std::array::from_fn(|i| MAGNITUDES[usize::from(word >> (2 * i) & 3)])
}

/// The 8 magnitudes of point `idx` of IQ2_XXS.
#[inline]
pub fn iq2_xxs(idx: u8) -> [u8; 8] {
    iq2_point(grids::IQ2_XXS[usize::from(idx)])
}

/// The 8 magnitudes of point `idx`, 0 to 511, of IQ2_XS.
///
/// # Panics
/// If the index is larger.
#[inline]
pub fn iq2_xs(idx: u16) -> [u8; 8] {
    iq2_point(grids::IQ2_XS[usize::from(idx)])
}

/// The 8 magnitudes of point `idx`, 0 to 1023, of IQ2_S.
///
/// # Panics
/// If the index is larger.
#[inline]
pub fn iq2_s(idx: u16) -> [u8; 8] {
    iq2_point(grids::IQ2_S[usize::from(idx)])
}

/// The 4 magnitudes of point `idx` of IQ3_XXS.
#[inline]
pub fn iq3_xxs(idx: u8) -> [u8; 4] {
    const MAGNITUDES: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
    let word = grids::IQ3_XXS[usize::from(idx)];
    std::array::from_fn(|i| MAGNITUDES[usize::from(word >> (4 * i) & 7)])
}

/// The 4 magnitudes of point `idx`, 0 to 511, of IQ3_S.
///
/// # Panics
/// If the index is larger.
#[inline]
pub fn iq3_s(idx: u16) -> [u8; 4] {
    let word = grids::IQ3_S[usize::from(idx)];
    std::array::from_fn(|i| 2 * (word >> (4 * i) & 7) as u8 + 1)
}

/// The 8 values, -1 to 1, of point `idx`, 0 to 2047, of IQ1_S and IQ1_M.
///
/// # Panics
/// If the index is larger.
#[inline]
pub fn iq1(idx: u16) -> [i8; 8] {
    let word = grids::IQ1[usize::from(idx)];
    std::array::from_fn(|i| (word >> (2 * i) & 3) as i8 - 1)
}

/// The sign bits of 8 elements. Seven are stored; the eighth makes the number of set bits even.
#[inline]
pub fn even_signs(stored: u8) -> u8 {
    let stored = stored & 0x7f;
    stored | (stored.count_ones() as u8 & 1) << 7
}

/// Writes `scale * magnitude`, negated if the element's bit of `signs` is set.
#[inline]
pub(crate) fn write_signed(out: &mut [f32], scale: f32, magnitudes: &[u8], signs: u8) {
    for (i, (out, m)) in out.iter_mut().zip(magnitudes).enumerate() {
        let value = scale * f32::from(*m);
        *out = if signs >> i & 1 == 1 { -value } else { value };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a of all values of a table, as `tests/fixtures/make.py` computes it.
    fn hash(values: impl Iterator<Item = u8>) -> u64 {
        values.fold(0xcbf2_9ce4_8422_2325, |h, v| (h ^ u64::from(v)).wrapping_mul(0x100_0000_01b3))
    }

    #[test]
    fn points_are_those_of_the_python_package() {
        let hashes = [
            ("IQ2_XXS", hash((0..=255).flat_map(iq2_xxs))),
            ("IQ2_XS", hash((0..512).flat_map(iq2_xs))),
            ("IQ2_S", hash((0..1024).flat_map(iq2_s))),
            ("IQ3_XXS", hash((0..=255).flat_map(iq3_xxs))),
            ("IQ3_S", hash((0..512).flat_map(iq3_s))),
            ("IQ1_S", hash((0..2048).flat_map(iq1).map(|v| v as u8))),
            ("signs", hash((0..128).map(even_signs))),
        ];
        let lines = include_str!("../tests/fixtures/grids.txt").lines();
        assert!(lines.eq(hashes.iter().map(|(name, hash)| format!("{name} {hash:016x}"))));
    }
}
