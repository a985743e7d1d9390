// Q4_1, as `decode/q4_1.wgsl` has it: d * q + m.

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 5u * group;
    let dm = unpack2x16float(word(at));
    let q = words(at + 1u);
    let nibbles = vec4(0x0f0f0f0fu);
    return Levels(q & nibbles, (q >> vec4(4u)) & nibbles, dm.xx, dm.yy);
}
