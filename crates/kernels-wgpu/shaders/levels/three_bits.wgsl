// Levels of three bits, as `decode/three_bits.wgsl` has them: UNIT * d * (2 * factor + 1) * POINTS[q].

fn three_bits(pairs: u32, high: vec4<u32>) -> vec4<u32> {
    let low = (vec4(pairs) >> vec4(0u, 2u, 4u, 6u)) & vec4(0x03030303u);
    return look_up4(POINTS, low | ((high & vec4(0x01010101u)) << vec4(2u)));
}

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 27u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let d = UNIT * unpack2x16float(word(at)).x;
    let factors = (vec2(word(at + 1u + s / 4u)) >> vec2(8u * (s % 4u), 8u * (s % 4u) + 4u)) & vec2(15u);
    let qs = at + 3u + 3u * s;
    let high = vec4(word(qs + 2u));
    return Levels(
        three_bits(word(qs), high >> vec4(0u, 1u, 2u, 3u)),
        three_bits(word(qs + 1u), high >> vec4(4u, 5u, 6u, 7u)),
        d * vec2<f32>(2u * factors + vec2(1u)),
        vec2(0.0),
    );
}
