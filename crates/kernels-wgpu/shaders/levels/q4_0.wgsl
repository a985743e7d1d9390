// Q4_0, as `decode/q4_0.wgsl` has it: d * (q - 8).

fn levels(row: u32, group: u32) -> Levels {
    let ds = unpack2x16float(word(row + 4u * params.groups + group / 2u));
    let d = select(ds.x, ds.y, (group & 1u) == 1u);
    let q = words(row + 4u * group);
    let nibbles = vec4(0x0f0f0f0fu);
    return Levels(q & nibbles, (q >> vec4(4u)) & nibbles, vec2(d), vec2(-8.0 * d));
}
