// IQ4_XS, as `decode/iq4_xs.wgsl` has it: d * (scale - 32) * IQ4[q].

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 34u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let head = word(at);
    let low = (word(at + 1u) >> (4u * s)) & 15u;
    let high = (head >> (16u + 2u * s)) & 3u;
    let d = unpack2x16float(head).x * (f32(low | (high << 4u)) - 32.0);
    let q = words(at + 2u + 4u * s);
    return Levels(
        look_up4(IQ4, q & vec4(0x0f0f0f0fu)),
        look_up4(IQ4, (q >> vec4(4u)) & vec4(0x0f0f0f0fu)),
        vec2(d),
        vec2(0.0),
    );
}
