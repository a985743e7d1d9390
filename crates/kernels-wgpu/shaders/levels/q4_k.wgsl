// Q4_K, as `decode/q4_k.wgsl` has it: d * scale * q - dmin * min.

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 36u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let head = words(at);
    let sm = unpack2x16float(head.x) * k_scale(head.yzw, s);
    let qs = at + 4u + 8u * (s / 2u);
    let shift = vec4(4u * (s % 2u));
    let nibbles = vec4(0x0f0f0f0fu);
    return Levels(
        (words(qs) >> shift) & nibbles,
        (words(qs + 4u) >> shift) & nibbles,
        sm.xx,
        -sm.yy,
    );
}
