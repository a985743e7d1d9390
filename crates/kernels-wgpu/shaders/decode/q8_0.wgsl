// Q8_0, split: per block 8 words of signed bytes; after all blocks their scales,
// two a word. d * q.

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 8u * group;
    let ds = unpack2x16float(weights[row + 8u * params.groups + group / 2u]);
    let d = select(ds.x, ds.y, (group & 1u) == 1u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        w[i] = d * vec4<f32>(unpack4xI8(weights[at + i]));
    }
    return w;
}
