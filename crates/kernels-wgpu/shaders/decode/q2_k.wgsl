// Q2_K: per block of 256 columns 4 words of scales (a byte per 16 columns: scale
// in the low nibble, minimum in the high one), 16 words of levels (of 128 columns,
// number 32 k + l lies in bits 2 k of byte l), a word of d and dmin.
// d * scale * q - dmin * min.

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 21u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let d = unpack2x16float(weights[at + 20u]);
    let scales = weights[at + s / 2u] >> (16u * (s % 2u));
    let qs = at + 4u + 8u * (s / 4u);
    let shift = 2u * (s % 4u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let sm = scales >> (8u * (i / 4u));
        let scale = d.x * f32(sm & 15u);
        let least = d.y * f32((sm >> 4u) & 15u);
        let q = unpack4xU8((weights[qs + i] >> shift) & 0x03030303u);
        w[i] = fma(vec4(scale), vec4<f32>(q), vec4(-least));
    }
    return w;
}
