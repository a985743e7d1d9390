// Q2_0, split: per block of 64 columns 4 words of levels of two bits in their order; after all blocks their scales,
// two a word. d * (q - 1).

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let block = group / 2u;
    let ds = unpack2x16float(weights[row + 2u * params.groups + block / 2u]);
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let bits = weights[row + 2u * group + i / 4u] >> (8u * (i % 4u));
        let q = (vec4(bits) >> vec4(0u, 2u, 4u, 6u)) & vec4(3u);
        w[i] = d * (vec4<f32>(q) - 1.0);
    }
    return w;
}
