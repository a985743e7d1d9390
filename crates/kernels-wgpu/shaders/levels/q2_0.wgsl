// Q2_0, as `decode/q2_0.wgsl` has it: d * (q - 1).

// Sixteen levels of two bits in their order as bytes.
fn sixteen(bits: u32) -> vec4<u32> {
    let four = (vec4(bits) >> vec4(0u, 8u, 16u, 24u)) & vec4(0xffu);
    // Copies of the eight bits, 6 apart, put level l in byte l.
    return (four | (four << vec4(6u)) | (four << vec4(12u)) | (four << vec4(18u))) & vec4(0x03030303u);
}

fn levels(row: u32, group: u32) -> Levels {
    let block = group / 2u;
    let ds = unpack2x16float(word(row + 2u * params.groups + block / 2u));
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    let at = row + 2u * group;
    return Levels(sixteen(word(at)), sixteen(word(at + 1u)), vec2(d), vec2(-d));
}
