// Q4_Z, as `decode/q4_z.wgsl` has it: d * (q - z).

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 5u * group;
    let dz = unpack2x16float(word(at));
    let q = words(at + 1u);
    let nibbles = vec4(0x0f0f0f0fu);
    let offset = -dz.x * dz.y;
    return Levels(q & nibbles, (q >> vec4(4u)) & nibbles, dz.xx, vec2(offset));
}
