// Q1_0, split: per block of 128 columns 4 words of bits in their order; after all blocks their scales, two a word.
// d where the bit is set, else -d.

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let block = group / 4u;
    let ds = unpack2x16float(weights[row + params.groups + block / 2u]);
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    let bits = weights[row + group];
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let q = (vec4(bits >> (4u * i)) >> vec4(0u, 1u, 2u, 3u)) & vec4(1u);
        w[i] = d * (2.0 * vec4<f32>(q) - 1.0);
    }
    return w;
}
