// Q3_K, as `decode/q3_k.wgsl` has it: d * scale * (q - 4).

fn q3_levels(at: u32, qs: u32, s: u32) -> vec4<u32> {
    let low = (words(qs) >> vec4(2u * (s % 4u))) & vec4(0x03030303u);
    return low | (((words(at) >> vec4(s)) & vec4(0x01010101u)) << vec4(2u));
}

fn levels(row: u32, group: u32) -> Levels {
    let block = group / 8u;
    let at = row + 27u * block;
    let s = group % 8u; // of the block's groups
    let ds = unpack2x16float(word(row + 27u * (params.groups / 8u) + block / 2u));
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    // Of the scales 2 s and 2 s + 1, in bytes 0 and 1.
    let low = word(at + 24u + (s / 2u) % 2u) >> (16u * (s % 2u) + 4u * (s / 4u));
    let high = word(at + 26u) >> (16u * (s % 2u) + 2u * (s / 2u));
    let packed = (low & 0x0f0fu) | ((high & 0x0303u) << 4u);
    let scale = d * (vec2(f32(packed & 63u), f32(packed >> 8u)) - vec2(32.0));
    let qs = at + 8u + 8u * (s / 4u);
    return Levels(q3_levels(at, qs, s), q3_levels(at + 4u, qs + 4u, s), scale, -4.0 * scale);
}
