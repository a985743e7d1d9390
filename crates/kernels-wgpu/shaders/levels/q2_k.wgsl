// Q2_K, as `decode/q2_k.wgsl` has it: d * scale * q - dmin * min.

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 21u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let d = unpack2x16float(word(at + 20u));
    // Scale and minimum of the two halves, four bits each.
    let packed = word(at + s / 2u) >> (16u * (s & 1u));
    let four = vec4<f32>((vec4(packed) >> vec4(0u, 8u, 4u, 12u)) & vec4(15u));
    let qs = at + 4u + 8u * (s / 4u);
    let shift = vec4(2u * (s % 4u));
    let pairs = vec4(0x03030303u);
    return Levels(
        (words(qs) >> shift) & pairs,
        (words(qs + 4u) >> shift) & pairs,
        d.x * four.xy,
        -d.y * four.zw,
    );
}
