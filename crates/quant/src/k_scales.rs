//! The 6-bit scales and minimums of Q4_K and Q5_K, packed in 12 bytes.
//!
//! Sub-blocks 0 to 3 have their scales in the low 6 bits of bytes 0 to 3, and their minimums in those of
//! bytes 4 to 7. Sub-blocks 4 to 7 have the low nibbles of scale and minimum in the low and high nibbles
//! of bytes 8 to 11, and the upper 2 bits of each in the upper bits of bytes 0 to 3 and 4 to 7.

/// The scales and the minimums of the 8 sub-blocks, each 0 to 63.
#[inline]
pub fn unpack(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word =
        |i: usize| u32::from_le_bytes([packed[i], packed[i + 1], packed[i + 2], packed[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    // Four bytes at a time: 6 low bits of a and b, then nibbles of c below the two
    // high bits of a and b.
    let scales_hi = (c & 0x0f0f_0f0f) | ((a >> 2) & 0x3030_3030);
    let mins_hi = ((c >> 4) & 0x0f0f_0f0f) | ((b >> 2) & 0x3030_3030);
    let join = |lo: u32, hi: u32| (u64::from(lo & 0x3f3f_3f3f) | u64::from(hi) << 32).to_le_bytes();
    (join(a, scales_hi), join(b, mins_hi))
}

/// The inverse of [`unpack`]; only the low 6 bits of each number are kept.
#[inline]
pub fn pack(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0u8; 12];
    for i in 0..4 {
        packed[i] = scales[i] & 0x3f | (scales[i + 4] & 0x30) << 2;
        packed[i + 4] = mins[i] & 0x3f | (mins[i + 4] & 0x30) << 2;
        packed[i + 8] = scales[i + 4] & 0x0f | mins[i + 4] << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_number_survives_packing() {
        for a in 0..64u8 {
            let scales = std::array::from_fn(|i| (a + 7 * i as u8) & 63);
            let mins = std::array::from_fn(|i| (63 - a + 13 * i as u8) & 63);
            assert_eq!(super::unpack(&super::pack(&scales, &mins)), (scales, mins));
        }
    }
}
