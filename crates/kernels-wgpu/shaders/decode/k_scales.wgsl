// The 6-bit scale (x) and minimum (y) of sub-block `s` of 8, from the three words
// of Q4_K and Q5_K at `at`: sub-blocks 0 to 3 in the low 6 bits of the bytes of the
// first word and the second; 4 to 7 have their low nibbles in the third (scale low,
// minimum high) and their upper 2 bits atop the first and the second.

fn k_scale(at: u32, s: u32) -> vec2<f32> {
    let shift = 8u * (s % 4u);
    let a = weights[at] >> shift;
    let b = weights[at + 1u] >> shift;
    let c = weights[at + 2u] >> shift;
    let first = vec2(a & 63u, b & 63u);
    let second = vec2((c & 15u) | ((a >> 2u) & 48u), ((c >> 4u) & 15u) | ((b >> 2u) & 48u));
    return vec2<f32>(select(second, first, s < 4u));
}
