// Q6_K, split: per block of 256 columns 32 words of bits 0 to 3 (of 128 columns,
// the first 64 in low nibbles, the others in high ones), 16 words of bits 4 and 5
// (of 128 columns, number 32 k + l lies in bits 2 k of byte l), 4 words of signed
// scales, one per 16 columns; after all blocks their d, two a word.
// d * scale * (q - 32).

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let block = group / 8u;
    let at = row + 52u * block;
    let s = group % 8u; // of the block's groups
    let ds = unpack2x16float(weights[row + 52u * (params.groups / 8u) + block / 2u]);
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    let scales = vec4<f32>(unpack4xI8(weights[at + 48u + s / 2u]));
    let pair = d * select(scales.xy, scales.zw, (s & 1u) == 1u);
    let ql = at + 16u * (s / 4u) + 8u * (s % 2u);
    let qh = at + 32u + 8u * (s / 4u);
    let l_shift = 4u * ((s / 2u) % 2u);
    let h_shift = 2u * (s % 4u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let q = ((weights[ql + i] >> l_shift) & 0x0f0f0f0fu)
            | (((weights[qh + i] >> h_shift) & 0x03030303u) << 4u);
        w[i] = select(pair.x, pair.y, i >= 4u) * (vec4<f32>(unpack4xU8(q)) - 32.0);
    }
    return w;
}
