// Levels of four bits, as `decode/four_bits.wgsl` has them: UNIT * d * (2 * factor + 1) * POINTS[q].

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 34u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let factor = (word(at + 1u) >> (4u * s)) & 15u;
    let d = UNIT * unpack2x16float(word(at)).x * f32(2u * factor + 1u);
    let q = words(at + 2u + 4u * s);
    return Levels(
        look_up4(POINTS, q & vec4(0x0f0f0f0fu)),
        look_up4(POINTS, (q >> vec4(4u)) & vec4(0x0f0f0f0fu)),
        vec2(d),
        vec2(0.0),
    );
}
