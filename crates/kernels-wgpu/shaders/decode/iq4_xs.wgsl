// IQ4_XS: per block the scale d and the high bits of 8 scales of groups, two each, in a word; the
// low nibbles of these scales in another; then 4 words of levels for each group, as in IQ4_NL.
// d * (scale - 32) * IQ4[q].

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 34u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let head = weights[at];
    let low = (weights[at + 1u] >> (4u * s)) & 15u;
    let high = (head >> (16u + 2u * s)) & 3u;
    let d = unpack2x16float(head).x * (f32(low | (high << 4u)) - 32.0);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i++) {
        let q = weights[at + 2u + 4u * s + i];
        w[i] = d * vec4<f32>(unpack4xI8(look_up(IQ4, q & 0x0f0f0f0fu)));
        w[i + 4u] = d * vec4<f32>(unpack4xI8(look_up(IQ4, (q >> 4u) & 0x0f0f0f0fu)));
    }
    return w;
}
