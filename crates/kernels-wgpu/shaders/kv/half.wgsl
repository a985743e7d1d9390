// Conversion to half precision.

// The bits of the nearest half, ties to even; infinite beyond its range. WGSL does not specify the rounding
// of pack2x16float.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u {
        return sign | 0x7e00u;
    }
    if size >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    // Below 2^-14 halves are multiples of 2^-24.
    let exponent = size >> 23u;
    let is_small = exponent < 113u;
    let mantissa = (size & 0x7fffffu) | 0x800000u;
    let shift = select(13u, min(126u - min(exponent, 126u), 25u), is_small);
    let from_bits = select(size - 0x38000000u, mantissa, is_small);
    let half_unit = (1u << (shift - 1u)) - 1u;
    return sign | ((from_bits + half_unit + ((from_bits >> shift) & 1u)) >> shift);
}
