// TQ2_0 and TQ1_0, as `decode/ternary.wgsl` has them: d * (q - 1).

fn levels(row: u32, group: u32) -> Levels {
    let block = group / 8u;
    let s = group % 8u; // of the block's groups
    let ds = unpack2x16float(word(row + 16u * (params.groups / 8u) + block / 2u));
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    let qs = row + 16u * block + 8u * (s / 4u);
    let shift = vec4(2u * (s % 4u));
    let pairs = vec4(0x03030303u);
    return Levels((words(qs) >> shift) & pairs, (words(qs + 4u) >> shift) & pairs, vec2(d), vec2(-d));
}
