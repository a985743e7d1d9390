// IQ4_NL, as `decode/iq4_nl.wgsl` has it: d * IQ4[q].

fn levels(row: u32, group: u32) -> Levels {
    let ds = unpack2x16float(word(row + 4u * params.groups + group / 2u));
    let d = select(ds.x, ds.y, (group & 1u) == 1u);
    let q = words(row + 4u * group);
    return Levels(
        look_up4(IQ4, q & vec4(0x0f0f0f0fu)),
        look_up4(IQ4, (q >> vec4(4u)) & vec4(0x0f0f0f0fu)),
        vec2(d),
        vec2(0.0),
    );
}
