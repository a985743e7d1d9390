// BF16: two columns a word, the first in the low half; the upper halves of F32.

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 16u * group;
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let k = at + 2u * i;
        let a = weights[k];
        let b = weights[k + 1u];
        w[i] = bitcast<vec4<f32>>(vec4(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
    }
    return w;
}
