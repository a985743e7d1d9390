// F16: two columns a word, the first in the low half.

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 16u * group;
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let k = at + 2u * i;
        w[i] = vec4(unpack2x16float(weights[k]), unpack2x16float(weights[k + 1u]));
    }
    return w;
}
