//! `cvt` in its forms, beside Rust's casts, `half`, and tables.

use half::{bf16, f16};

use crate::common::{check, edges, evaluate};

#[test]
fn integers_to_integers() {
    let rows = edges(2);
    let types = [
        ("u8", 8),
        ("s8", 8),
        ("u16", 16),
        ("s16", 16),
        ("u32", 32),
        ("s32", 32),
        ("u64", 64),
        ("s64", 64),
    ];
    let file = |bits| match bits {
        8 | 16 => 'h',
        32 => 'r',
        _ => 'd',
    };
    for (to, to_bits) in types {
        for (from, from_bits) in types {
            let value = |x: u64| {
                let cut = i128::from(x) & ((1 << from_bits) - 1);
                let negative = from.starts_with('s') && cut >> (from_bits - 1) != 0;
                cut - if negative { 1 << from_bits } else { 0 }
            };
            // Results smaller than their register are extended to it.
            let out = file(to_bits);
            let out_bits = if out == 'h' { 16 } else { to_bits };
            let store = |x: i128| {
                let cut = x & ((1 << to_bits) - 1);
                let negative = to.starts_with('s') && cut >> (to_bits - 1) != 0;
                ((cut - if negative { 1 << to_bits } else { 0 }) & ((1 << out_bits) - 1)) as u64
            };
            let code = format!("{to}.{from} %{out}0, %{}1;", file(from_bits));
            check(out, &format!("cvt.{code}"), &rows, |v| store(value(v[0])));
            let (least, most) = match to.as_bytes()[0] {
                b's' => (-(1i128 << (to_bits - 1)), (1i128 << (to_bits - 1)) - 1),
                _ => (0, (1i128 << to_bits) - 1),
            };
            // Where nothing can be out of range there is no such instruction.
            let (least_of_source, most_of_source) = match from.as_bytes()[0] {
                b's' => (-(1i128 << (from_bits - 1)), (1i128 << (from_bits - 1)) - 1),
                _ => (0, (1i128 << from_bits) - 1),
            };
            if least_of_source < least || most_of_source > most {
                check(out, &format!("cvt.sat.{code}"), &rows, |v| {
                    store(value(v[0]).clamp(least, most))
                });
            }
        }
    }
    check('d', "cvt.s64.s8 %d0, %r1;", &rows, |v| v[0] as i8 as u64);
    check('r', "cvt.u8.u64 %r0, %d1;", &rows, |v| v[0] & 0xff);
}

#[test]
fn integers_to_floats() {
    let rows = edges(2);
    check('r', "cvt.rn.f32.s32 %r0, %r1;", &rows, |v| u64::from((v[0] as i32 as f32).to_bits()));
    check('r', "cvt.rn.f32.u32 %r0, %r1;", &rows, |v| u64::from((v[0] as u32 as f32).to_bits()));
    check('r', "cvt.rn.f32.u64 %r0, %d1;", &rows, |v| u64::from((v[0] as f32).to_bits()));
    check('r', "cvt.rn.f32.s64 %r0, %d1;", &rows, |v| u64::from((v[0] as i64 as f32).to_bits()));
    check('r', "cvt.rn.f32.u8 %r0, %h1;", &rows, |v| u64::from(f32::from(v[0] as u8).to_bits()));
    check('d', "cvt.rn.f64.s64 %d0, %d1;", &rows, |v| (v[0] as i64 as f64).to_bits());
    check('d', "cvt.rn.f64.u64 %d0, %d1;", &rows, |v| (v[0] as f64).to_bits());
    check('d', "cvt.rn.f64.u32 %d0, %r1;", &rows, |v| f64::from(v[0] as u32).to_bits());
    check('h', "cvt.rn.f16.s16 %h0, %h1;", &rows, |v| {
        u64::from(f16::from_f32(f32::from(v[0] as i16)).to_bits())
    });
    check('h', "cvt.rn.bf16.u16 %h0, %h1;", &rows, |v| {
        u64::from(bf16::from_f32(f32::from(v[0] as u16)).to_bits())
    });
    for (mode, expected) in
        [("rz", 0x4b80_0000), ("rm", 0x4b80_0000), ("rp", 0x4b80_0001), ("rn", 0x4b80_0000)]
    {
        let found = evaluate('r', &format!("cvt.{mode}.f32.u32 %r0, %r1;"), &[vec![(1 << 24) + 1]]);
        assert_eq!(found, [expected], "{mode}");
    }
}

#[test]
fn floats_to_integers() {
    let numbers: [f32; 16] = [
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        -2.5,
        1e10,
        -1e10,
        3e38,
        255.7,
        -128.9,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let rows: Vec<_> = numbers.iter().map(|x| vec![u64::from(x.to_bits())]).collect();
    type Round = fn(f32) -> f32;
    for (mode, round) in [
        ("rni", f32::round_ties_even as Round),
        ("rzi", f32::trunc),
        ("rmi", f32::floor),
        ("rpi", f32::ceil),
    ] {
        let x = |v: &[u64]| round(f32::from_bits(v[0] as u32));
        // Rust's casts clamp too, and make zero of what is no number.
        check('r', &format!("cvt.{mode}.s32.f32 %r0, %r1;"), &rows, |v| {
            u64::from(x(v) as i32 as u32)
        });
        check('r', &format!("cvt.{mode}.u32.f32 %r0, %r1;"), &rows, |v| u64::from(x(v) as u32));
        check('r', &format!("cvt.{mode}.sat.s8.f32 %r0, %r1;"), &rows, |v| {
            u64::from(x(v) as i8 as u32)
        });
        check('r', &format!("cvt.{mode}.u8.f32 %r0, %r1;"), &rows, |v| u64::from(x(v) as u8));
        check('d', &format!("cvt.{mode}.s64.f32 %d0, %r1;"), &rows, |v| {
            if x(v).is_nan() { 1 << 63 } else { x(v) as i64 as u64 }
        });
        check('r', &format!("cvt.{mode}.f32.f32 %r0, %r1;"), &rows, |v| {
            u64::from(if x(v).is_nan() { 0x7fff_ffff } else { x(v).to_bits() })
        });
    }
    check('r', "cvt.rzi.s32.f64 %r0, %d1;", &[vec![(-7.9f64).to_bits()]], |_| {
        u64::from(-7i32 as u32)
    });
    check('r', "cvt.rni.s32.f16 %r0, %h1;", &[vec![0x4100]], |_| 2);
}

#[test]
fn floats_to_floats() {
    let numbers: [f32; 12] = [
        0.0,
        -1.0,
        1.0 / 3.0,
        65504.0,
        65519.9,
        65520.0,
        1e-7,
        -3e-8,
        3.39e38,
        f32::INFINITY,
        f32::NAN,
        1e-40,
    ];
    let rows: Vec<_> = numbers.iter().map(|x| vec![u64::from(x.to_bits())]).collect();
    let x = |v: &[u64]| f32::from_bits(v[0] as u32);
    let nan = |x: f32, bits: u16| u64::from(if x.is_nan() { 0x7fff } else { bits });
    check('h', "cvt.rn.f16.f32 %h0, %r1;", &rows, |v| nan(x(v), f16::from_f32(x(v)).to_bits()));
    check('h', "cvt.rn.bf16.f32 %h0, %r1;", &rows, |v| nan(x(v), bf16::from_f32(x(v)).to_bits()));
    check('h', "cvt.rn.relu.f16.f32 %h0, %r1;", &rows, |v| {
        if x(v) <= 0.0 { 0 } else { nan(x(v), f16::from_f32(x(v)).to_bits()) }
    });
    check('h', "cvt.rz.bf16.f32 %h0, %r1;", &rows, |v| nan(x(v), (x(v).to_bits() >> 16) as u16));
    check('h', "cvt.rz.f16.f32 %h0, %r1;", &[vec![0x3f80_3fff], vec![0x4780_0000]], |v| {
        if v[0] == 0x3f80_3fff { 0x3c01 } else { 0x7bff }
    });
    check('r', "cvt.sat.f32.f32 %r0, %r1;", &rows, |v| {
        if x(v) > 0.0 { u64::from(x(v).min(1.0).to_bits()) } else { 0 }
    });
    check('r', "cvt.ftz.f32.f32 %r0, %r1;", &[vec![1], vec![0x3f80_0000]], |v| v[0] & 0x3f80_0000);
    check('d', "cvt.f64.f32 %d0, %r1;", &rows[..9], |v| f64::from(x(v)).to_bits());
    check('r', "cvt.rn.f32.f64 %r0, %d1;", &[vec![0.1f64.to_bits()]], |_| {
        u64::from(0.1f32.to_bits())
    });
    check('r', "cvt.rp.f32.f64 %r0, %d1;", &[vec![1e-300f64.to_bits()]], |_| 1);
    check('r', "cvt.rna.tf32.f32 %r0, %r1;", &[vec![0x3f80_1000], vec![0x3f80_0fff]], |v| {
        if v[0] == 0x3f80_1000 { 0x3f80_2000 } else { 0x3f80_0000 }
    });
    let halves: Vec<_> = (0..1024).map(|i| vec![i * 64 + i % 64]).collect();
    check('r', "cvt.f32.f16 %r0, %h1;", &halves, |v| {
        let x = f16::from_bits(v[0] as u16).to_f32();
        u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() })
    });
    check('r', "cvt.f32.bf16 %r0, %h1;", &halves, |v| {
        let x = bf16::from_bits(v[0] as u16).to_f32();
        u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() })
    });
}

#[test]
fn pairs() {
    let rows = [[1.0f32, -2.0], [1.0 / 3.0, 70000.0], [-1e-3, 500.0]]
        .map(|row| row.map(|x| u64::from(x.to_bits())).to_vec());
    let x = |v: &[u64], i: usize| f32::from_bits(v[i] as u32);
    check('r', "cvt.rn.f16x2.f32 %r0, %r1, %r2;", &rows, |v| {
        let [high, low] = [0, 1].map(|i| u64::from(f16::from_f32(x(v, i)).to_bits()));
        high << 16 | low
    });
    check('r', "cvt.rn.bf16x2.f32 %r0, %r1, %r2;", &rows, |v| {
        let [high, low] = [0, 1].map(|i| u64::from(bf16::from_f32(x(v, i)).to_bits()));
        high << 16 | low
    });
    check('r', "cvt.rz.bf16x2.f32 %r0, %r1, %r2;", &rows, |v| v[0] & 0xffff_0000 | v[1] >> 16);
    check('r', "cvt.rn.relu.bf16x2.f32 %r0, %r1, %r2;", &rows[..1], |_| 0x3f80_0000);
    // By the tables of the formats: 1 is 0x38, -2 is 0xc0; 1/3 is 0x2b; 448 is the largest.
    for (code, expected) in [
        ("cvt.rn.satfinite.e4m3x2.f32 %h0, %r1, %r2;", [0x38c0, 0x2b7e, 0x817e]),
        ("cvt.rn.satfinite.e5m2x2.f32 %h0, %r1, %r2;", [0x3cc0, 0x357b, 0x9460]),
    ] {
        assert_eq!(evaluate('h', code, &rows), expected, "{code}");
    }
    check('r', "cvt.rn.f16x2.e4m3x2 %r0, %h1;", &[vec![0x38c0], vec![0x7e81]], |v| {
        if v[0] == 0x38c0 { 0x3c00_c000 } else { 0x5f00_9800 }
    });
    check('h', "cvt.rn.satfinite.e4m3x2.f16x2 %h0, %r1;", &[vec![0x3c00_c000]], |_| 0x38c0);
    check('r', "cvt.pack.sat.s8.s32.b32 %r0, %r1, %r2, %r3;", &edges(3), |v| {
        let byte = |x: u64| u64::from((x as i32).clamp(-128, 127) as u8);
        (v[2] & 0xffff) << 16 | byte(v[0]) << 8 | byte(v[1])
    });
    check('r', "cvt.pack.sat.u16.s32 %r0, %r1, %r2;", &edges(2), |v| {
        let half = |x: u64| (x as i32).clamp(0, 65535) as u64;
        half(v[0]) << 16 | half(v[1])
    });
}
