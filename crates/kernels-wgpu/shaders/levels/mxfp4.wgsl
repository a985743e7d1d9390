// MXFP4, as `decode/mxfp4.wgsl` has it: half_power(e) * FP4[q].

fn levels(row: u32, group: u32) -> Levels {
    let exponents = word(row + 4u * params.groups + group / 4u);
    let d = half_power((exponents >> (8u * (group % 4u))) & 0xffu);
    let q = words(row + 4u * group);
    return Levels(
        look_up4(FP4, q & vec4(0x0f0f0f0fu)),
        look_up4(FP4, (q >> vec4(4u)) & vec4(0x0f0f0f0fu)),
        vec2(d),
        vec2(0.0),
    );
}
