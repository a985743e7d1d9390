// NVFP4, as `decode/nvfp4.wgsl` has it: half_e4m3(scale) * FP4[q].

fn half_e4m3(bits: u32) -> f32 {
    let magnitude = bits & 0x7fu;
    let normal = bitcast<f32>((magnitude << 20u) + (119u << 23u));
    let value = select(normal, f32(magnitude) * (0.5 / 512.0), magnitude < 8u);
    return select(value, 0.0, bits == 0x7fu);
}

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 9u * (group / 2u);
    let h = group % 2u; // of the block's halves
    let scales = word(at) >> (16u * h);
    let q = words(at + 1u + 4u * h);
    let nibbles = vec4(0x0f0f0f0fu);
    return Levels(
        look_up4(FP4, (q.xyxy >> vec4(0u, 0u, 4u, 4u)) & nibbles),
        look_up4(FP4, (q.zwzw >> vec4(0u, 0u, 4u, 4u)) & nibbles),
        vec2(half_e4m3(scales & 0xffu), half_e4m3((scales >> 8u) & 0xffu)),
        vec2(0.0),
    );
}
