//! Arithmetic of floats, beside Rust's own and `half`'s, and known results.

use half::{bf16, f16};

use crate::common::{Random, check, evaluate};

/// The one NaN of F32.
const NAN: u32 = 0x7fff_ffff;

fn f32_rows(n: usize) -> Vec<Vec<u64>> {
    let special = [
        0x0000_0000,
        0x8000_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x0080_0000,
        0x007f_ffff,
        0x8000_0001,
        0x3f80_0001,
        0x4b80_0000,
        0x3eaa_aaab,
        0x4049_0fdb,
    ];
    let mut random = Random(21);
    let mut rows = Vec::new();
    for a in special {
        for b in special {
            let mut row = vec![a, b];
            row.resize_with(n.max(2), || u64::from(special[(random.bits() % 16) as usize] as u32));
            row.truncate(n);
            rows.push(row);
        }
    }
    rows.extend(
        (0..256).map(|_| (0..n).map(|_| u64::from((random.float() * 100.0).to_bits())).collect()),
    );
    rows
}

fn bits(x: f32) -> u64 {
    u64::from(if x.is_nan() { NAN } else { x.to_bits() })
}

fn float(v: &[u64], i: usize) -> f32 {
    f32::from_bits(v[i] as u32)
}

#[test]
fn arithmetic_of_f32() {
    let rows = f32_rows(3);
    for op in ["add", "add.rn"] {
        check('r', &format!("{op}.f32 %r0, %r1, %r2;"), &rows, |v| bits(float(v, 0) + float(v, 1)));
    }
    check('r', "sub.f32 %r0, %r1, %r2;", &rows, |v| bits(float(v, 0) - float(v, 1)));
    check('r', "mul.f32 %r0, %r1, %r2;", &rows, |v| bits(float(v, 0) * float(v, 1)));
    check('r', "div.rn.f32 %r0, %r1, %r2;", &rows, |v| bits(float(v, 0) / float(v, 1)));
    check('r', "div.full.f32 %r0, %r1, %r2;", &rows, |v| bits(float(v, 0) / float(v, 1)));
    check('r', "sqrt.rn.f32 %r0, %r1;", &rows, |v| bits(float(v, 0).sqrt()));
    check('r', "rcp.rn.f32 %r0, %r1;", &rows, |v| bits(1.0 / float(v, 0)));
    for op in ["fma.rn", "mad.rn"] {
        check('r', &format!("{op}.f32 %r0, %r1, %r2, %r3;"), &rows, |v| {
            bits(float(v, 0).mul_add(float(v, 1), float(v, 2)))
        });
    }
    check('r', "abs.f32 %r0, %r1;", &rows, |v| v[0] & 0x7fff_ffff);
    check('r', "neg.f32 %r0, %r1;", &rows, |v| v[0] ^ 0x8000_0000);
    check('r', "copysign.f32 %r0, %r1, %r2;", &rows, |v| v[0] & 0x8000_0000 | v[1] & 0x7fff_ffff);
    check('r', "add.sat.f32 %r0, %r1, %r2;", &rows, |v| {
        let sum = float(v, 0) + float(v, 1);
        if sum.is_nan() { 0 } else { bits(sum.clamp(0.0, 1.0) + 0.0) }
    });
}

#[test]
fn smaller_and_larger() {
    let rows = f32_rows(2);
    for (op, takes_nan) in [("min", false), ("max", false), ("min.NaN", true), ("max.NaN", true)] {
        check('r', &format!("{op}.f32 %r0, %r1, %r2;"), &rows, |v| {
            let (x, y) = (float(v, 0), float(v, 1));
            match (x.is_nan(), y.is_nan()) {
                (true, true) => u64::from(NAN),
                (true, _) | (_, true) if takes_nan => u64::from(NAN),
                (true, _) => bits(y),
                (_, true) => bits(x),
                // The order of their bits puts -0 before +0.
                _ => {
                    let key = |x: f32| {
                        x.to_bits() as i32 ^ ((x.to_bits() as i32 >> 31) as u32 >> 1) as i32
                    };
                    let less = if key(x) <= key(y) { (x, y) } else { (y, x) };
                    bits(if op.starts_with("min") { less.0 } else { less.1 })
                }
            }
        });
    }
}

#[test]
fn subnormal_numbers_are_flushed() {
    let tiny = |bits: u32| u64::from(bits);
    let rows = vec![
        vec![tiny(0x0000_0001), tiny(0x3f80_0000)],
        vec![tiny(0x807f_ffff), tiny(0x3f80_0000)],
    ];
    check('r', "mul.ftz.f32 %r0, %r1, %r2;", &rows, |v| v[0] & 0x8000_0000);
    check('r', "mul.f32 %r0, %r1, %r2;", &rows, |v| v[0]);
    check('r', "abs.ftz.f32 %r0, %r1;", &rows, |_| 0);
    check('r', "fma.rn.ftz.f32 %r0, %r1, %r2, %r2;", &rows, |v| v[1]);
    // The smallest normal number halved: a result that is flushed.
    check('r', "mul.ftz.f32 %r0, %r1, %r2;", &[vec![0x0080_0000, 0x3f00_0000]], |_| 0);
}

#[test]
fn directions_of_rounding() {
    let one_and_little = [0x3f80_0000u64, 0x2f80_0000, 0x3f80_0000];
    for (code, expected) in [
        ("add.rz.f32 %r0, %r1, %r2;", 0x3f80_0000),
        ("add.rm.f32 %r0, %r1, %r2;", 0x3f80_0000),
        ("add.rp.f32 %r0, %r1, %r2;", 0x3f80_0001),
        ("sub.rz.f32 %r0, %r1, %r2;", 0x3f7f_ffff),
        ("sub.rp.f32 %r0, %r1, %r2;", 0x3f80_0000),
        ("sub.rm.f32 %r0, %r1, %r1;", 0x8000_0000),
        ("sub.rn.f32 %r0, %r1, %r1;", 0x0000_0000),
        ("mul.rz.f32 %r0, %r1, 0f3EAAAAAB;", 0x3eaa_aaab),
        ("fma.rm.f32 %r0, %r1, %r3, %r2;", 0x3f80_0000),
        ("fma.rp.f32 %r0, %r1, %r3, %r2;", 0x3f80_0001),
        ("fma.rz.f32 %r0, %r1, %r3, %r2;", 0x3f80_0000),
        ("div.rz.f32 %r0, %r1, 0f40400000;", 0x3eaa_aaaa),
        ("div.rp.f32 %r0, %r1, 0f40400000;", 0x3eaa_aaab),
        ("rcp.rm.f32 %r0, 0f40400000;", 0x3eaa_aaaa),
        ("rcp.rp.f32 %r0, 0f40400000;", 0x3eaa_aaab),
        ("sqrt.rm.f32 %r0, 0f40000000;", 0x3fb5_04f3),
        ("sqrt.rp.f32 %r0, 0f40000000;", 0x3fb5_04f4),
        ("sqrt.rz.f32 %r0, 0f40000000;", 0x3fb5_04f3),
    ] {
        assert_eq!(evaluate('r', code, &[one_and_little.to_vec()]), [expected], "{code}");
    }
}

#[test]
fn properties() {
    use std::num::FpCategory as Category;
    for (name, of) in [
        ("finite", [Category::Zero, Category::Subnormal, Category::Normal].as_slice()),
        ("infinite", &[Category::Infinite]),
        ("number", &[Category::Zero, Category::Subnormal, Category::Normal, Category::Infinite]),
        ("notanumber", &[Category::Nan]),
        ("normal", &[Category::Zero, Category::Normal]),
        ("subnormal", &[Category::Subnormal]),
    ] {
        check('p', &format!("testp.{name}.f32 %p0, %r1;"), &f32_rows(2), |v| {
            u64::from(of.contains(&float(v, 0).classify()))
        });
        check('p', &format!("testp.{name}.f64 %p0, %d1;"), &[vec![0x7ff0_0000_0000_0000]], |v| {
            u64::from(of.contains(&f64::from_bits(v[0]).classify()))
        });
    }
}

#[test]
fn approximate_functions() {
    // Known values, which the nearest number to the exact result must give.
    for (code, x, expected) in [
        ("ex2.approx", 3.0, 8.0),
        ("ex2.approx.ftz", -1.0, 0.5),
        ("ex2.approx", -149.0, f32::from_bits(1)),
        ("ex2.approx.ftz", -149.0, 0.0),
        ("ex2.approx", f32::NEG_INFINITY, 0.0),
        ("ex2.approx", 128.0, f32::INFINITY),
        ("lg2.approx", 8.0, 3.0),
        ("lg2.approx", 0.0, f32::NEG_INFINITY),
        ("lg2.approx", -1.0, f32::NAN),
        ("lg2.approx", f32::from_bits(1), -149.0),
        ("lg2.approx.ftz", f32::from_bits(1), f32::NEG_INFINITY),
        ("rcp.approx", 4.0, 0.25),
        ("rcp.approx.ftz", -0.0, f32::NEG_INFINITY),
        ("rsqrt.approx", 16.0, 0.25),
        ("rsqrt.approx", -0.0, f32::NEG_INFINITY),
        ("rsqrt.approx", -1.0, f32::NAN),
        ("sqrt.approx", 2.25, 1.5),
        ("sin.approx", 0.0, 0.0),
        ("sin.approx", f32::INFINITY, f32::NAN),
        ("cos.approx", 0.0, 1.0),
        ("tanh.approx", f32::INFINITY, 1.0),
        ("tanh.approx", -0.0, -0.0),
    ] {
        let row = vec![u64::from(x.to_bits())];
        check('r', &format!("{code}.f32 %r0, %r1;"), &[row], |_| bits(expected));
    }
    for (a, b, expected) in [
        (3.0, 2.0, 1.5),
        (1.0, 3e38, 0.0),
        (-1.0, 3e38, -0.0),
        (f32::INFINITY, 3e38, f32::NAN),
        (1.0, 0.0, f32::INFINITY),
    ] {
        let row = [a, b].map(|x: f32| u64::from(x.to_bits())).to_vec();
        check('r', "div.approx.f32 %r0, %r1, %r2;", &[row], |_| bits(expected));
    }
    // Elsewhere within two units of the last place of F64's functions.
    for (name, of) in [
        ("ex2", f64::exp2 as fn(f64) -> f64),
        ("sin", f64::sin),
        ("cos", f64::cos),
        ("tanh", f64::tanh),
    ] {
        let rows: Vec<_> =
            (0..64).map(|i| vec![u64::from((i as f32 * 0.11 - 3.3).to_bits())]).collect();
        let found = evaluate('r', &format!("{name}.approx.f32 %r0, %r1;"), &rows);
        for (row, found) in rows.iter().zip(found) {
            let (found, exact) =
                (f64::from(f32::from_bits(found as u32)), of(f64::from(float(row, 0))));
            assert!((found - exact).abs() <= 2.4e-7 * exact.abs(), "{name}: {found} {exact}");
        }
    }
}

#[test]
fn arithmetic_of_f64() {
    let mut random = Random(22);
    let mut rows: Vec<Vec<u64>> =
        (0..256).map(|_| (0..3).map(|_| f64::from(random.float()).to_bits()).collect()).collect();
    rows.extend(
        (0..64).map(|i| vec![(f64::from(i) - 20.0).to_bits(), 3f64.to_bits(), 0.1f64.to_bits()]),
    );
    let x = |v: &[u64], i: usize| f64::from_bits(v[i]);
    check('d', "add.f64 %d0, %d1, %d2;", &rows, |v| (x(v, 0) + x(v, 1)).to_bits());
    check('d', "sub.rn.f64 %d0, %d1, %d2;", &rows, |v| (x(v, 0) - x(v, 1)).to_bits());
    check('d', "mul.f64 %d0, %d1, %d2;", &rows, |v| (x(v, 0) * x(v, 1)).to_bits());
    check('d', "div.rn.f64 %d0, %d1, %d2;", &rows, |v| (x(v, 0) / x(v, 1)).to_bits());
    check('d', "fma.rn.f64 %d0, %d1, %d2, %d3;", &rows, |v| {
        x(v, 0).mul_add(x(v, 1), x(v, 2)).to_bits()
    });
    check('d', "min.f64 %d0, %d1, %d2;", &rows, |v| x(v, 0).min(x(v, 1)).to_bits());
    check('d', "max.f64 %d0, %d1, %d2;", &rows, |v| x(v, 0).max(x(v, 1)).to_bits());
    check('d', "abs.f64 %d0, %d1;", &rows, |v| x(v, 0).abs().to_bits());
    check('d', "neg.f64 %d0, %d1;", &rows, |v| (-x(v, 0)).to_bits());
    check('d', "copysign.f64 %d0, %d1, %d2;", &rows, |v| x(v, 1).copysign(x(v, 0)).to_bits());
    check('d', "sqrt.rn.f64 %d0, %d2;", &[vec![0, 2f64.to_bits()]], |_| 2f64.sqrt().to_bits());
    check('d', "rcp.rn.f64 %d0, %d2;", &[vec![0, 3f64.to_bits()]], |_| (1f64 / 3.0).to_bits());
    check('d', "rcp.approx.ftz.f64 %d0, %d2;", &[vec![0, 4f64.to_bits()]], |_| 0.25f64.to_bits());
    check('d', "rsqrt.approx.ftz.f64 %d0, %d2;", &[vec![0, 4f64.to_bits()]], |_| 0.5f64.to_bits());
}

#[test]
fn arithmetic_of_f16() {
    let mut random = Random(23);
    let mut rows: Vec<Vec<u64>> =
        (0..960).map(|_| (0..3).map(|_| random.bits() & 0xffff_ffff).collect()).collect();
    rows.extend((0..64).map(|i| vec![0x3c00 + i, 0x0001_3c00 + i, 0x7c00_0400 - i]));
    let canonical = |x: f16| if x.is_nan() { 0x7fff } else { x.to_bits() };
    // A sum, difference or product of F16 is exact in F64 or beyond what F16 tells apart.
    let of = |v: u64| f16::from_bits(v as u16).to_f64();
    let near = |x: f64| u64::from(canonical(nearest_f16(x)));
    let pair = |f: &dyn Fn(usize) -> u64| f(1) << 16 | f(0);
    type Binary = fn(f64, f64) -> f64;
    for (op, f) in [("add", (|x, y| x + y) as Binary), ("sub", |x, y| x - y), ("mul", |x, y| x * y)]
    {
        check('h', &format!("{op}.rn.f16 %h0, %h1, %h2;"), &rows, |v| near(f(of(v[0]), of(v[1]))));
        check('r', &format!("{op}.f16x2 %r0, %r1, %r2;"), &rows, |v| {
            pair(&|i| near(f(of(v[0] >> (16 * i)), of(v[1] >> (16 * i)))))
        });
    }
    check('r', "fma.rn.f16x2 %r0, %r1, %r2, %r3;", &rows, |v| {
        pair(&|i| {
            let [x, y, z] = [0, 1, 2].map(|j| of(v[j] >> (16 * i)));
            near(x * y + z)
        })
    });
    check('h', "fma.rn.relu.f16 %h0, %h1, %h2, %h3;", &rows, |v| {
        let x = of(v[0]) * of(v[1]) + of(v[2]);
        if x <= 0.0 { 0 } else { near(x) }
    });
    check('h', "fma.rn.sat.f16 %h0, %h1, %h2, %h3;", &rows, |v| {
        let x = of(v[0]) * of(v[1]) + of(v[2]);
        if x > 0.0 { near(x.min(1.0)) } else { 0 }
    });
    // PTX leaves open which NaN they give.
    let mut numbers = rows.clone();
    for row in &mut numbers {
        if (0..2).any(|i| of(row[0] >> (16 * i)).is_nan()) {
            row[0] &= 0x83ff_83ff;
        }
    }
    check('r', "abs.f16x2 %r0, %r1;", &numbers, |v| v[0] & 0x7fff_7fff);
    check('r', "neg.f16x2 %r0, %r1;", &numbers, |v| v[0] ^ 0x8000_8000);
    // That of an H100.
    check('r', "abs.f16x2 %r0, %r1;", &[vec![0xfec2_7c43]], |_| 0x7fff_7fff);
    check('h', "max.f16 %h0, %h1, %h2;", &[vec![0x8000, 0x0000], vec![0x7e00, 0xbc00]], |v| v[1]);
    check('h', "min.NaN.f16 %h0, %h1, %h2;", &[vec![0x7e00, 0xbc00]], |_| 0x7fff);
    check('h', "ex2.approx.f16 %h0, %h1;", &[vec![0x4200]], |_| 0x4800);
    check('r', "ex2.approx.f16x2 %r0, %r1;", &[vec![0x4200_bc00]], |_| 0x4800_3800);
    check('h', "tanh.approx.f16 %h0, %h1;", &[vec![0x7c00]], |_| 0x3c00);
    check('h', "add.ftz.f16 %h0, %h1, %h2;", &[vec![0x0001, 0x3c00], vec![0x8001, 0x8000]], |v| {
        if v[1] == 0x3c00 { 0x3c00 } else { 0x8000 }
    });
}

/// The F16 nearest to a number, found among all of them.
fn nearest_f16(x: f64) -> f16 {
    if x.is_nan() {
        return f16::NAN;
    }
    // Truncated by `half` from F32 rounded to odd, so that it rounds once.
    let near = x as f32;
    let odd = if f64::from(near) == x || near.is_infinite() {
        near
    } else {
        let truncated =
            if f64::from(near).abs() > x.abs() { near.to_bits() - 1 } else { near.to_bits() };
        f32::from_bits(truncated | 1)
    };
    f16::from_f32(odd)
}

#[test]
fn arithmetic_of_bf16() {
    let mut random = Random(24);
    let rows: Vec<Vec<u64>> = (0..512)
        .map(|_| {
            (0..3).map(|_| u64::from(bf16::from_f32(random.float()).to_bits()) * 0x1_0001).collect()
        })
        .collect();
    let of = |v: u64| f64::from(bf16::from_bits(v as u16).to_f32());
    let near = |x: f64| {
        let near = x as f32;
        let inexact = f64::from(near) != x;
        let truncated =
            if f64::from(near).abs() > x.abs() { near.to_bits() - 1 } else { near.to_bits() };
        let odd = if inexact { truncated | 1 } else { near.to_bits() };
        u64::from(bf16::from_f32(f32::from_bits(odd)).to_bits())
    };
    check('h', "add.rn.bf16 %h0, %h1, %h2;", &rows, |v| near(of(v[0]) + of(v[1])));
    check('h', "mul.bf16 %h0, %h1, %h2;", &rows, |v| near(of(v[0]) * of(v[1])));
    check('h', "sub.bf16 %h0, %h1, %h2;", &rows, |v| near(of(v[0]) - of(v[1])));
    check('r', "fma.rn.bf16x2 %r0, %r1, %r2, %r3;", &rows, |v| {
        near(of(v[0]) * of(v[1]) + of(v[2])) * 0x1_0001
    });
    check('r', "max.bf16x2 %r0, %r1, %r2;", &rows, |v| near(of(v[0]).max(of(v[1]))) * 0x1_0001);
    check('h', "abs.bf16 %h0, %h1;", &rows, |v| v[0] & 0x7fff);
    check('h', "neg.bf16 %h0, %h1;", &rows, |v| v[0] & 0xffff ^ 0x8000);
    check('h', "ex2.approx.ftz.bf16 %h0, %h1;", &[vec![0x4040]], |_| 0x4100);
    check('h', "tanh.approx.bf16 %h0, %h1;", &[vec![0x7f80]], |_| 0x3f80);
}
