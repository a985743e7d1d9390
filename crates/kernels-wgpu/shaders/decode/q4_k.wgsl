// Q4_K: per block of 256 columns a word of d and dmin, 3 words of scales, 32 words
// of levels (of 64 columns, the first 32 in low nibbles, the others in high ones).
// d * scale * q - dmin * min.

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 36u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let sm = unpack2x16float(weights[at]) * k_scale(at + 1u, s);
    let scale = vec4(sm.x);
    let least = vec4(sm.y);
    let qs = at + 4u + 8u * (s / 2u);
    let shift = 4u * (s % 2u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let q = unpack4xU8((weights[qs + i] >> shift) & 0x0f0f0f0fu);
        w[i] = fma(scale, vec4<f32>(q), -least);
    }
    return w;
}
