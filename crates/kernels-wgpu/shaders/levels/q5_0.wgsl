// Q5_0, as `decode/q5_0.wgsl` has it: d * (q - 16).

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 5u * group;
    let ds = unpack2x16float(word(row + 5u * params.groups + group / 2u));
    let d = select(ds.x, ds.y, (group & 1u) == 1u);
    let high = word(at);
    let q = words(at + 1u);
    return Levels(lower_five(q, high), upper_five(q, high), vec2(d), vec2(-16.0 * d));
}
