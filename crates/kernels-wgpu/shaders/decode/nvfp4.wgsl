// NVFP4: per block of 64 columns a word of scales (FP8 without a sign, a byte for 16 columns), then for each 16
// columns 2 words of levels (the first 8 in low nibbles, the others in high ones). half_e4m3(scale) * FP4[q].

// Half of a number of FP8 (E4M3). 127 is zero, and otherwise the highest bit is not read.
fn half_e4m3(bits: u32) -> f32 {
    let magnitude = bits & 0x7fu;
    let normal = bitcast<f32>((magnitude << 20u) + (119u << 23u));
    let value = select(normal, f32(magnitude) * (0.5 / 512.0), magnitude < 8u);
    return select(value, 0.0, bits == 0x7fu);
}

fn decode(row: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = row + 9u * (group / 2u);
    let h = group % 2u; // of the block's halves
    let scales = weights[at] >> (16u * h);
    var w: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let d = half_e4m3((scales >> (8u * (i / 4u))) & 0xffu);
        let q = weights[at + 1u + 4u * h + 2u * (i / 4u) + i % 2u] >> (4u * (i / 2u % 2u));
        w[i] = d * vec4<f32>(unpack4xI8(look_up(FP4, q & 0x0f0f0f0fu)));
    }
    return w;
}
