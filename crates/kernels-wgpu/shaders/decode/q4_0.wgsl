// Q4_0, split: per block 4 words of levels (columns 0 to 15 in low nibbles, 16 to
// 31 in high ones); after all blocks their scales, two a word. d * (q - 8).

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 4u * group;
    let ds = unpack2x16float(weights[row + 4u * params.groups + group / 2u]);
    let d = select(ds.x, ds.y, (group & 1u) == 1u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i++) {
        let q = weights[at + i];
        w[i] = d * (vec4<f32>(unpack4xU8(q & 0x0f0f0f0fu)) - 8.0);
        w[i + 4u] = d * (vec4<f32>(unpack4xU8((q >> 4u) & 0x0f0f0f0fu)) - 8.0);
    }
    return w;
}
