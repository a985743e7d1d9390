// Q1_0, as `decode/q1_0.wgsl` has it: d * (q - 1) with q of 0 or 2.

// Bits 4 i to 4 i + 3 of component i, each as bit 1 of a byte.
fn bits_of(bits: vec4<u32>) -> vec4<u32> {
    let four = (bits >> vec4(0u, 4u, 8u, 12u)) & vec4(0xfu);
    return ((four * vec4(0x00204081u)) & vec4(0x01010101u)) << vec4(1u);
}

fn levels(row: u32, group: u32) -> Levels {
    let block = group / 4u;
    let ds = unpack2x16float(word(row + params.groups + block / 2u));
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    let bits = word(row + group);
    return Levels(bits_of(vec4(bits)), bits_of(vec4(bits >> 16u)), vec2(d), vec2(-d));
}
