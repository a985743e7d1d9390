// Q5_K, as `decode/q5_k.wgsl` has it: d * scale * q - dmin * min.

fn q5_levels(qh: u32, qs: u32, s: u32) -> vec4<u32> {
    let low = (words(qs) >> vec4(4u * (s % 2u))) & vec4(0x0f0f0f0fu);
    return low | (((words(qh) >> vec4(s)) & vec4(0x01010101u)) << vec4(4u));
}

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 44u * (group / 8u);
    let s = group % 8u; // of the block's groups
    let head = words(at);
    let sm = unpack2x16float(head.x) * k_scale(head.yzw, s);
    let qs = at + 12u + 8u * (s / 2u);
    return Levels(q5_levels(at + 4u, qs, s), q5_levels(at + 8u, qs + 4u, s), sm.xx, -sm.yy);
}
