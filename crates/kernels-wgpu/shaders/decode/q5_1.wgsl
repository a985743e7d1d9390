// Q5_1: per block a word of d and m, a word of bits 4 (bit i is column i's), then
// 4 words of bits 0 to 3 (columns 0 to 15 in low nibbles, 16 to 31 in high ones).
// d * q + m.

const NIBBLE_COLS = vec4<u32>(0u, 1u, 2u, 3u);

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 6u * group;
    let dm = unpack2x16float(weights[at]);
    let d = vec4(dm.x);
    let m = vec4(dm.y);
    let high = weights[at + 1u];
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i++) {
        let q = weights[at + 2u + i];
        let h = (vec4(high >> (4u * i)) >> NIBBLE_COLS) & vec4(0x10001u);
        let lo = unpack4xU8(q & 0x0f0f0f0fu) | ((h & vec4(1u)) << vec4(4u));
        let hi = unpack4xU8((q >> 4u) & 0x0f0f0f0fu) | ((h >> vec4(16u)) << vec4(4u));
        w[i] = fma(d, vec4<f32>(lo), m);
        w[i + 4u] = fma(d, vec4<f32>(hi), m);
    }
    return w;
}
