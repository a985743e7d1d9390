// Q5_K: per block of 256 columns a word of d and dmin, 3 words of scales, 8 words
// of bits 4 (column l of group j lies in bit j of byte l), 32 words of bits 0 to 3
// (of 64 columns, the first 32 in low nibbles, the others in high ones).
// d * scale * q - dmin * min.

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 44u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let sm = unpack2x16float(weights[at]) * k_scale(at + 1u, s);
    let scale = vec4(sm.x);
    let least = vec4(sm.y);
    let qs = at + 12u + 8u * (s / 2u);
    let shift = 4u * (s % 2u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let q = ((weights[qs + i] >> shift) & 0x0f0f0f0fu)
            | (((weights[at + 4u + i] >> s) & 0x01010101u) << 4u);
        w[i] = fma(scale, vec4<f32>(unpack4xU8(q)), -least);
    }
    return w;
}
