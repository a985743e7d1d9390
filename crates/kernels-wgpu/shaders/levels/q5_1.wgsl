// Q5_1, as `decode/q5_1.wgsl` has it: d * q + m.

fn levels(row: u32, group: u32) -> Levels {
    let at = row + 6u * group;
    let dm = unpack2x16float(word(at));
    let high = word(at + 1u);
    let q = words(at + 2u);
    return Levels(lower_five(q, high), upper_five(q, high), dm.xx, dm.yy);
}
