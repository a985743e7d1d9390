// F32: a word is a column.

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 32u * group;
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let k = at + 4u * i;
        w[i] = bitcast<vec4<f32>>(
            vec4(weights[k], weights[k + 1u], weights[k + 2u], weights[k + 3u]));
    }
    return w;
}
