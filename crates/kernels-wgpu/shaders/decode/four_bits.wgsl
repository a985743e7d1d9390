// Levels of four bits: per block of 256 columns a word of d, a word of factors (a nibble for a group), then 4 words
// of levels for each group (columns 0 to 15 in low nibbles, 16 to 31 in high ones).
// UNIT * d * (2 * factor + 1) * POINTS[q].

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 34u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let factor = (weights[at + 1u] >> (4u * s)) & 15u;
    let d = UNIT * unpack2x16float(weights[at]).x * f32(2u * factor + 1u);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i++) {
        let q = weights[at + 2u + 4u * s + i];
        w[i] = d * vec4<f32>(unpack4xI8(look_up(POINTS, q & 0x0f0f0f0fu)));
        w[i + 4u] = d * vec4<f32>(unpack4xI8(look_up(POINTS, (q >> 4u) & 0x0f0f0f0fu)));
    }
    return w;
}
