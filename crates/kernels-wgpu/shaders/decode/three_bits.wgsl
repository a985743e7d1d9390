// Levels of three bits: per block of 256 columns a word of d, two words of factors (a nibble for 16 columns), then
// for each group two words of bits 0 and 1 (of 16 columns, number 4 k + l lies in bits 2 k of byte l) and a word
// of bits 2 (column 4 k + l lies in bit k of byte l). UNIT * d * (2 * factor + 1) * POINTS[q].

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 27u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let d = UNIT * unpack2x16float(weights[at]).x;
    let factors = weights[at + 1u + s / 4u] >> (8u * (s % 4u));
    let qs = at + 3u + 3u * s;
    let high = weights[qs + 2u];
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let factor = (factors >> (4u * (i / 4u))) & 15u;
        let q = ((weights[qs + i / 4u] >> (2u * (i % 4u))) & 0x03030303u)
            | (((high >> i) & 0x01010101u) << 2u);
        w[i] = (d * f32(2u * factor + 1u)) * vec4<f32>(unpack4xI8(look_up(POINTS, q)));
    }
    return w;
}
