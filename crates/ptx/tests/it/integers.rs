//! Integer and bit instructions, beside the same in wider integers.

use crate::common::{check, edges};

/// The lower bits of a number, by sign or not.
fn wide(x: u64, bits: u32, signed: bool) -> i128 {
    let cut = i128::from(x) & ((1 << bits) - 1);
    if signed && cut >> (bits - 1) != 0 { cut - (1 << bits) } else { cut }
}

fn cut(x: i128, bits: u32) -> u64 {
    (x & ((1 << bits) - 1)) as u64
}

/// Types by name: bits, sign, file.
const TYPES: [(&str, u32, bool, char); 6] = [
    ("u16", 16, false, 'h'),
    ("s16", 16, true, 'h'),
    ("u32", 32, false, 'r'),
    ("s32", 32, true, 'r'),
    ("u64", 64, false, 'd'),
    ("s64", 64, true, 'd'),
];

#[test]
fn divisions_by_zero_give_all_ones_as_on_an_h100() {
    let rows = [vec![7, 0], vec![0, 0], vec![0x8000_0000, 0]];
    for op in ["div", "rem"] {
        check('r', &format!("{op}.s32 %r0, %r1, %r2;"), &rows, |_| 0xffff_ffff);
    }
}

#[test]
fn arithmetic_of_all_types() {
    for (ty, bits, signed, f) in TYPES {
        let two = |op: &str, expected: &dyn Fn(i128, i128) -> i128| {
            let code = format!("{op}.{ty} %{f}0, %{f}1, %{f}2;");
            let mut rows = edges(2);
            for row in &mut rows {
                // PTX leaves open what a division by zero gives.
                if matches!(op, "div" | "rem") && wide(row[1], bits, signed) == 0 {
                    row[1] = 1;
                }
            }
            check(f, &code, &rows, |v| {
                cut(expected(wide(v[0], bits, signed), wide(v[1], bits, signed)), bits)
            });
        };
        two("add", &|x, y| x + y);
        two("sub", &|x, y| x - y);
        two("mul.lo", &|x, y| x.wrapping_mul(y));
        two("min", &|x, y| x.min(y));
        two("max", &|x, y| x.max(y));
        two("div", &|x, y| x / y);
        two("rem", &|x, y| x % y);
        two("mul.hi", &|x, y| {
            // By halves, as the product of 64 bits by 64 needs more than 127.
            let (xl, xh) = (x & 0xffff_ffff, x >> 32);
            let (yl, yh) = (y & 0xffff_ffff, y >> 32);
            let middle = xh * yl + ((xl * yl) >> 32);
            let (low, high) = (middle & 0xffff_ffff, middle >> 32);
            let upper = xh * yh + high + ((xl * yh + low) >> 32);
            if bits == 64 { upper } else { (x * y) >> bits }
        });
        check(f, &format!("mad.lo.{ty} %{f}0, %{f}1, %{f}2, %{f}3;"), &edges(3), |v| {
            let [x, y, z] = [0, 1, 2].map(|i| wide(v[i], bits, signed));
            cut(x.wrapping_mul(y).wrapping_add(z), bits)
        });
        check(f, &format!("sad.{ty} %{f}0, %{f}1, %{f}2, %{f}3;"), &edges(3), |v| {
            let [x, y, z] = [0, 1, 2].map(|i| wide(v[i], bits, signed));
            cut((x - y).abs() + z, bits)
        });
        if signed {
            for (op, negates) in [("abs", false), ("neg", true)] {
                check(f, &format!("{op}.{ty} %{f}0, %{f}1;"), &edges(2), |v| {
                    let x = wide(v[0], bits, true);
                    cut(if negates { -x } else { x.abs() }, bits)
                });
            }
        }
        if bits < 64 {
            let (w, out) = if bits == 16 { (32, 'r') } else { (64, 'd') };
            check(out, &format!("mul.wide.{ty} %{out}0, %{f}1, %{f}2;"), &edges(2), |v| {
                cut(wide(v[0], bits, signed) * wide(v[1], bits, signed), w)
            });
            check(out, &format!("mad.wide.{ty} %{out}0, %{f}1, %{f}2, %{out}3;"), &edges(3), |v| {
                let product = wide(v[0], bits, signed) * wide(v[1], bits, signed);
                cut(product + wide(v[2], w, signed), w)
            });
        }
        if bits == 32 {
            check('r', &format!("mad.hi.{ty} %r0, %r1, %r2, %r3;"), &edges(3), |v| {
                let product = wide(v[0], 32, signed) * wide(v[1], 32, signed);
                cut((product >> 32) + wide(v[2], 32, signed), 32)
            });
            check('r', &format!("mul24.lo.{ty} %r0, %r1, %r2;"), &edges(2), |v| {
                cut(wide(v[0], 24, signed) * wide(v[1], 24, signed), 32)
            });
            check('r', &format!("mad24.hi.{ty} %r0, %r1, %r2, %r3;"), &edges(3), |v| {
                let product = wide(v[0], 24, signed) * wide(v[1], 24, signed);
                cut((product >> 16) + wide(v[2], 32, signed), 32)
            });
        }
        check(f, &format!("shr.{ty} %{f}0, %{f}1, %r2;"), &edges(2), |v| {
            let by = (v[1] as u32).min(64);
            cut(wide(v[0], bits, signed) >> by, bits)
        });
    }
}

#[test]
fn clamped_sums() {
    for (op, sign) in [("add", 1), ("sub", -1)] {
        check('r', &format!("{op}.sat.s32 %r0, %r1, %r2;"), &edges(2), |v| {
            let sum = wide(v[0], 32, true) + sign * wide(v[1], 32, true);
            cut(sum.clamp(i32::MIN.into(), i32::MAX.into()), 32)
        });
    }
    check('r', "mad.hi.sat.s32 %r0, %r1, %r2, %r3;", &edges(3), |v| {
        let sum = ((wide(v[0], 32, true) * wide(v[1], 32, true)) >> 32) + wide(v[2], 32, true);
        cut(sum.clamp(i32::MIN.into(), i32::MAX.into()), 32)
    });
}

#[test]
fn carries_make_128_bits() {
    let add = "add.cc.u64 %d6, %d1, %d3;\naddc.u64 %d0, %d2, %d4;";
    let join = |v: &[u64], i: usize| u128::from(v[i + 1]) << 64 | u128::from(v[i]);
    check('d', add, &edges(4), |v| (join(v, 0).wrapping_add(join(v, 2)) >> 64) as u64);
    let sub = "sub.cc.u64 %d6, %d1, %d3;\nsubc.u64 %d0, %d2, %d4;";
    check('d', sub, &edges(4), |v| (join(v, 0).wrapping_sub(join(v, 2)) >> 64) as u64);
    // Three words of 32 bits, the middle one with carry in and out.
    let three = "add.cc.u32 %r6, %r1, %r1;\naddc.cc.u32 %r6, %r2, %r2;\naddc.u32 %r0, %r3, %r3;";
    check('r', three, &edges(3), |v| {
        let whole = v.iter().rev().fold(0u128, |n, &w| n << 32 | u128::from(w as u32));
        ((whole * 2) >> 64) as u32 as u64
    });
    let product = "mad.lo.cc.u32 %r6, %r1, %r2, %r3;\nmadc.hi.u32 %r0, %r1, %r2, %r4;";
    check('r', product, &edges(4), |v| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| u64::from(v[i] as u32));
        (a.wrapping_mul(b).wrapping_add(d << 32 | c) >> 32) & 0xffff_ffff
    });
}

#[test]
fn logic() {
    for (ty, bits, f) in [("b16", 16, 'h'), ("b32", 32, 'r'), ("b64", 64, 'd')] {
        let mask = cut(-1, bits);
        let two = |op: &str, expected: &dyn Fn(u64, u64) -> u64| {
            check(f, &format!("{op}.{ty} %{f}0, %{f}1, %{f}2;"), &edges(2), |v| {
                expected(v[0] & mask, v[1] & mask)
            });
        };
        two("and", &|x, y| x & y);
        two("or", &|x, y| x | y);
        two("xor", &|x, y| x ^ y);
        check(f, &format!("not.{ty} %{f}0, %{f}1;"), &edges(2), |v| !v[0] & mask);
        check(f, &format!("cnot.{ty} %{f}0, %{f}1;"), &edges(2), |v| u64::from(v[0] & mask == 0));
        check(f, &format!("shl.{ty} %{f}0, %{f}1, %r2;"), &edges(2), |v| {
            let by = v[1] as u32;
            if by < bits { v[0] << by & mask } else { 0 }
        });
    }
    for (op, expected) in [
        ("and.pred %p0, %p1, %p2;", [0, 0, 0, 1]),
        ("or.pred %p0, %p1, !%p2;", [1, 1, 0, 1]),
        ("xor.pred %p0, %p1, %p2;", [0, 1, 1, 0]),
        ("not.pred %p0, %p1;", [1, 0, 1, 0]),
    ] {
        check('p', op, &edges(2), |v| expected[(v[0] & 1 | (v[1] & 1) << 1) as usize]);
    }
    for table in [0x80, 0xfe, 0x96, 0xe8, 0xca, 0x00, 0xff, 0x1b] {
        check('r', &format!("lop3.b32 %r0, %r1, %r2, %r3, {table:#x};"), &edges(3), |v| {
            (0..32).fold(0, |word, i| {
                let row = (v[0] >> i & 1) << 2 | (v[1] >> i & 1) << 1 | v[2] >> i & 1;
                word | (table >> row & 1) << i
            })
        });
    }
}

#[test]
fn counts_of_bits() {
    for (bits, f) in [(32u32, 'r'), (64, 'd')] {
        let bit = |v: &[u64], i: u32| v[0] >> i & 1;
        check('r', &format!("popc.b{bits} %r0, %{f}1;"), &edges(2), |v| {
            (0..bits).map(|i| bit(v, i)).sum()
        });
        check('r', &format!("clz.b{bits} %r0, %{f}1;"), &edges(2), |v| {
            (0..bits).rev().take_while(|&i| bit(v, i) == 0).count() as u64
        });
        check(f, &format!("brev.b{bits} %{f}0, %{f}1;"), &edges(2), |v| {
            (0..bits).fold(0, |x, i| x | bit(v, i) << (bits - 1 - i))
        });
        for signed in [false, true] {
            let ty = format!("{}{bits}", if signed { 's' } else { 'u' });
            let find = |v: &[u64]| {
                let sign = if signed { bit(v, bits - 1) } else { 0 };
                (0..bits).rev().find(|&i| bit(v, i) != sign)
            };
            check('r', &format!("bfind.{ty} %r0, %{f}1;"), &edges(2), |v| {
                find(v).map_or(0xffff_ffff, u64::from)
            });
            check('r', &format!("bfind.shiftamt.{ty} %r0, %{f}1;"), &edges(2), |v| {
                find(v).map_or(0xffff_ffff, |i| u64::from(bits - 1 - i))
            });
        }
    }
}

#[test]
fn fields_of_bits() {
    // Positions and lengths from 0 to 95, so that fields end after the number too.
    let rows: Vec<_> =
        edges(4).into_iter().map(|v| vec![v[0], v[1], v[2] % 96, v[3] % 96]).collect();
    for (bits, f) in [(32u64, 'r'), (64, 'd')] {
        for signed in [false, true] {
            let ty = format!("{}{bits}", if signed { 's' } else { 'u' });
            check(f, &format!("bfe.{ty} %{f}0, %{f}1, %r3, %r4;"), &rows, |v| {
                let (at, len) = (v[2], v[3]);
                let sign = match (signed, len) {
                    (true, 1..) => v[0] >> (at + len - 1).min(bits - 1) & 1,
                    _ => 0,
                };
                (0..bits).fold(0, |x, i| {
                    let is_inside = i < len && at + i < bits;
                    x | (if is_inside { v[0] >> (at + i) & 1 } else { sign }) << i
                })
            });
        }
        check(f, &format!("bfi.b{bits} %{f}0, %{f}1, %{f}2, %r3, %r4;"), &rows, |v| {
            (0..bits).fold(0, |x, i| {
                let is_inside = i >= v[2] && i < v[2] + v[3];
                x | (if is_inside { v[0] >> (i - v[2]) } else { v[1] >> i } & 1) << i
            })
        });
    }
    for mode in ["clamp", "wrap"] {
        let fit = |n: u64| if mode == "clamp" { n.min(32) } else { n % 32 };
        check('r', &format!("bmsk.{mode}.b32 %r0, %r3, %r4;"), &rows, |v| {
            let (at, len) = (fit(v[2]), fit(v[3]));
            (0..32).filter(|i| (at..at + len).contains(i)).fold(0, |x, i| x | 1 << i)
        });
        for signed in [false, true] {
            let ty = if signed { "s32" } else { "u32" };
            check('r', &format!("szext.{mode}.{ty} %r0, %r1, %r3;"), &rows, |v| match fit(v[2]) {
                0 => 0,
                len => cut(wide(v[0], len as u32, signed), 32),
            });
        }
    }
}

#[test]
fn funnel_shifts_and_permutations() {
    let rows: Vec<_> = edges(3).into_iter().map(|v| vec![v[0], v[1], v[2] % 70]).collect();
    for mode in ["clamp", "wrap"] {
        for side in ["l", "r"] {
            check('r', &format!("shf.{side}.{mode}.b32 %r0, %r1, %r2, %r3;"), &rows, |v| {
                let by = if mode == "clamp" { v[2].min(32) } else { v[2] % 32 };
                let both = u128::from(v[1] as u32) << 32 | u128::from(v[0] as u32);
                (if side == "l" { both << by >> 32 } else { both >> by }) as u32 as u64
            });
        }
    }
    let bytes = |v: &[u64]| {
        let both = v[1] << 32 | v[0] & 0xffff_ffff;
        both.to_le_bytes()
    };
    check('r', "prmt.b32 %r0, %r1, %r2, %r3;", &edges(3), |v| {
        let word: [u8; 4] = std::array::from_fn(|i| {
            let pick = v[2] >> (4 * i) & 15;
            let byte = bytes(v)[(pick & 7) as usize];
            if pick < 8 {
                byte
            } else if byte & 0x80 != 0 {
                0xff
            } else {
                0
            }
        });
        u32::from_le_bytes(word).into()
    });
    // The tables of the modes, by the lower two bits of the selector.
    for (mode, table) in [
        ("f4e", [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]),
        ("b4e", [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]]),
        ("rc8", [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]),
        ("ecl", [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]]),
        ("ecr", [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]]),
        ("rc16", [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]]),
    ] {
        check('r', &format!("prmt.b32.{mode} %r0, %r1, %r2, %r3;"), &edges(3), |v| {
            let row = table[(v[2] & 3) as usize];
            u32::from_le_bytes(row.map(|i| bytes(v)[i])).into()
        });
    }
}

#[test]
fn dots_of_bytes() {
    for (a, sa) in [("s32", true), ("u32", false)] {
        for (b, sb) in [("s32", true), ("u32", false)] {
            check('r', &format!("dp4a.{a}.{b} %r0, %r1, %r2, %r3;"), &edges(3), |v| {
                let term = |i: u32| wide(v[0] >> (8 * i), 8, sa) * wide(v[1] >> (8 * i), 8, sb);
                cut((0..4).map(term).sum::<i128>() + i128::from(v[2]), 32)
            });
            for (half, at) in [("lo", 0), ("hi", 2)] {
                check('r', &format!("dp2a.{half}.{a}.{b} %r0, %r1, %r2, %r3;"), &edges(3), |v| {
                    let term = |i: u32| {
                        wide(v[0] >> (16 * i), 16, sa) * wide(v[1] >> (8 * (i + at)), 8, sb)
                    };
                    cut((0..2).map(term).sum::<i128>() + i128::from(v[2]), 32)
                });
            }
        }
    }
}
