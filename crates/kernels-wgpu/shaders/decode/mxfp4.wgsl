// MXFP4, split: per block 4 words of levels (columns 0 to 15 in low nibbles, 16 to
// 31 in high ones); after all blocks their exponents, four a word. half_power(e) * FP4[q].

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let exponents = weights[row + 4u * params.groups + group / 4u];
    let d = half_power((exponents >> (8u * (group % 4u))) & 0xffu);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i++) {
        let q = weights[row + 4u * group + i];
        w[i] = d * vec4<f32>(unpack4xI8(look_up(FP4, q & 0x0f0f0f0fu)));
        w[i + 4u] = d * vec4<f32>(unpack4xI8(look_up(FP4, (q >> 4u) & 0x0f0f0f0fu)));
    }
    return w;
}
