// Q8_0, as `decode/q8_0.wgsl` has it: d * q.

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 8u * group;
    let ds = unpack2x16float(word(row + 8u * params.groups + group / 2u));
    let d = select(ds.x, ds.y, (group & 1u) == 1u);
    return Levels(words(at), words(at + 4u), vec2(d), vec2(0.0));
}
