// Q4_1: per block a word of d and m, then 4 words of levels (columns 0 to 15 in
// low nibbles, 16 to 31 in high ones). d * q + m.

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 5u * group;
    let dm = unpack2x16float(weights[at]);
    let d = vec4(dm.x);
    let m = vec4(dm.y);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i++) {
        let q = weights[at + 1u + i];
        w[i] = fma(d, vec4<f32>(unpack4xU8(q & 0x0f0f0f0fu)), m);
        w[i + 4u] = fma(d, vec4<f32>(unpack4xU8((q >> 4u) & 0x0f0f0f0fu)), m);
    }
    return w;
}
