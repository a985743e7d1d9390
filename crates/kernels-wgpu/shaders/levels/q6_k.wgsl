// Q6_K, as `decode/q6_k.wgsl` has it: d * scale * (q - 32).

fn q6_levels(ql: u32, qh: u32, s: u32) -> vec4<u32> {
    let low = (words(ql) >> vec4(4u * ((s / 2u) % 2u))) & vec4(0x0f0f0f0fu);
    return low | (((words(qh) >> vec4(2u * (s % 4u))) & vec4(0x03030303u)) << vec4(4u));
}

fn levels(row: u32, group: u32) -> Levels {
    let block = group / 8u;
    let at = row + 52u * block;
    let s = group % 8u; // of the block's groups
    let ds = unpack2x16float(word(row + 52u * (params.groups / 8u) + block / 2u));
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    let pair = word(at + 48u + s / 2u) >> (16u * (s & 1u));
    let scale = d * vec2<f32>((vec2(bitcast<i32>(pair)) << vec2(24u, 16u)) >> vec2(24u));
    let ql = at + 16u * (s / 4u) + 8u * (s % 2u);
    let qh = at + 32u + 8u * (s / 4u);
    return Levels(q6_levels(ql, qh, s), q6_levels(ql + 4u, qh + 4u, s), scale, -32.0 * scale);
}
