// Bits 4 i to 4 i + 3 of component i, to bit 4 of its four bytes.
fn spread(bits: u32, shifts: vec4<u32>) -> vec4<u32> {
    let four = (vec4(bits) >> shifts) & vec4(0xfu);
    // Copies of the four bits, 7 apart, put bit k at bit 8 k.
    return ((four * vec4(0x00204081u)) & vec4(0x01010101u)) << vec4(4u);
}

// Levels of five bits: a nibble of `low`, and a bit of `high`.
fn lower_five(low: vec4<u32>, high: u32) -> vec4<u32> {
    return (low & vec4(0x0f0f0f0fu)) | spread(high, vec4(0u, 4u, 8u, 12u));
}

fn upper_five(low: vec4<u32>, high: u32) -> vec4<u32> {
    return ((low >> vec4(4u)) & vec4(0x0f0f0f0fu)) | spread(high, vec4(16u, 20u, 24u, 28u));
}

