//! Moves, packing, selections, comparisons, special registers and addresses.

use half::{bf16, f16};

use crate::common::{Bench, check, edges};

#[test]
fn moves_and_packing() {
    let rows = edges(4);
    check('d', "mov.b64 %d0, %d1;", &rows, |v| v[0]);
    check('r', "mov.u32 %r0, 0x89abcdef;", &rows, |_| 0x89ab_cdef);
    check('r', "mov.f32 %r0, 0f3F800000;", &rows, |_| 0x3f80_0000);
    check('r', "mov.f32 %r0, 1.5;", &rows, |_| 0x3fc0_0000);
    check('d', "mov.f64 %d0, 0dBFF0000000000000;", &rows, |_| 0xbff0_0000_0000_0000);
    check('h', "mov.b16 %h0, -2;", &rows, |_| 0xfffe);
    check('p', "mov.pred %p0, %p2;", &rows, |v| v[1] & 1);
    check('d', "mov.b64 %d0, {%r1, %r2};", &rows, |v| v[1] << 32 | v[0] & 0xffff_ffff);
    check('r', "mov.b32 %r0, {%h2, %h1};", &rows, |v| (v[0] & 0xffff) << 16 | v[1] & 0xffff);
    check('d', "mov.b64 %d0, {%h1, %h2, %h3, %h4};", &rows, |v| {
        (0..4).fold(0, |x, i| x | (v[i] & 0xffff) << (16 * i))
    });
    check('r', "mov.b64 {%r6, %r0}, %d1;", &rows, |v| v[0] >> 32);
    check('r', "mov.b64 {_, %r0}, %d1;", &rows, |v| v[0] >> 32);
    check('h', "mov.b32 {%h0, %h6}, %r1;", &rows, |v| v[0] & 0xffff);
    check('h', "mov.b64 {%h4, %h5, %h0, %h6}, %d1;", &rows, |v| v[0] >> 32 & 0xffff);
}

#[test]
fn selections() {
    let rows = edges(4);
    check('r', "selp.b32 %r0, %r1, %r2, %p3;", &rows, |v| v[1 - (v[2] & 1) as usize] & 0xffff_ffff);
    check('d', "selp.b64 %d0, %d1, 7, %p3;", &rows, |v| if v[2] & 1 == 1 { v[0] } else { 7 });
    check('h', "selp.b16 %h0, %h1, %h2, %p3;", &rows, |v| v[1 - (v[2] & 1) as usize] & 0xffff);
    check('r', "slct.u32.s32 %r0, %r1, %r2, %r3;", &rows, |v| {
        v[usize::from((v[2] as i32) < 0)] & 0xffff_ffff
    });
    check('r', "slct.f32.f32 %r0, %r1, %r2, %r3;", &rows, |v| {
        let is_first = f32::from_bits(v[2] as u32) >= 0.0;
        v[usize::from(!is_first)] & 0xffff_ffff
    });
}

#[test]
fn comparisons_of_integers() {
    for (ty, f) in
        [("u16", 'h'), ("s16", 'h'), ("u32", 'r'), ("s32", 'r'), ("u64", 'd'), ("s64", 'd')]
    {
        for op in ["eq", "ne", "lt", "le", "gt", "ge"] {
            check('p', &format!("setp.{op}.{ty} %p0, %{f}1, %{f}2;"), &edges(2), |v| {
                let order = match ty {
                    "u16" => (v[0] as u16).cmp(&(v[1] as u16)),
                    "s16" => (v[0] as i16).cmp(&(v[1] as i16)),
                    "u32" => (v[0] as u32).cmp(&(v[1] as u32)),
                    "s32" => (v[0] as i32).cmp(&(v[1] as i32)),
                    "u64" => v[0].cmp(&v[1]),
                    _ => (v[0] as i64).cmp(&(v[1] as i64)),
                };
                u64::from(match op {
                    "eq" => order.is_eq(),
                    "ne" => order.is_ne(),
                    "lt" => order.is_lt(),
                    "le" => order.is_le(),
                    "gt" => order.is_gt(),
                    _ => order.is_ge(),
                })
            });
        }
    }
    check('p', "setp.lo.u32 %p0, %r1, %r2;", &edges(2), |v| u64::from((v[0] as u32) < v[1] as u32));
    check('p', "setp.lt.and.u32 %p0, %r1, %r2, %p3;", &edges(3), |v| {
        u64::from((v[0] as u32) < v[1] as u32 && v[2] & 1 == 1)
    });
    check('p', "setp.lt.or.u32 %p6|%p0, %r1, %r2, !%p3;", &edges(3), |v| {
        u64::from((v[0] as u32) >= v[1] as u32 || v[2] & 1 == 0)
    });
    check('r', "set.gt.u32.s32 %r0, %r1, %r2;", &edges(2), |v| {
        if v[0] as i32 > v[1] as i32 { 0xffff_ffff } else { 0 }
    });
    check('r', "set.gt.f32.s32 %r0, %r1, %r2;", &edges(2), |v| {
        if v[0] as i32 > v[1] as i32 { 0x3f80_0000 } else { 0 }
    });
}

#[test]
fn comparisons_of_floats() {
    let numbers = [0.0, -0.0, 1.0, -1.0, 1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let pairs = || numbers.iter().flat_map(|&x| numbers.map(|y| (x, y)));
    // Without an order there is one answer for the plain forms, the other for those with `u`.
    let truth = |op: &str, x: f32, y: f32| {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let Some(order) = x.partial_cmp(&y) else {
            return u64::from(op == "nan" || op.len() == 3 && op.ends_with('u'));
        };
        u64::from(match &op[..2] {
            "eq" => order == Equal,
            "ne" => order != Equal,
            "lt" => order == Less,
            "le" => order != Greater,
            "gt" => order == Greater,
            "ge" => order != Less,
            // `num` and `nan`.
            _ => op == "num",
        })
    };
    let names = [
        "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
    ];
    for op in names {
        for ty in ["f32", "f64", "f16", "bf16"] {
            let bits = |x: f32| match ty {
                "f32" => u64::from(x.to_bits()),
                "f64" => f64::from(x).to_bits(),
                "f16" => u64::from(f16::from_f32(x).to_bits()),
                _ => u64::from(bf16::from_f32(x).to_bits()),
            };
            let f = match ty {
                "f32" => 'r',
                "f64" => 'd',
                _ => 'h',
            };
            let rows: Vec<_> = pairs().map(|(x, y)| vec![bits(x), bits(y)]).collect();
            let found =
                crate::common::evaluate('p', &format!("setp.{op}.{ty} %p0, %{f}1, %{f}2;"), &rows);
            for ((x, y), found) in pairs().zip(found) {
                assert_eq!(found, truth(op, x, y), "{op}.{ty} of {x} and {y}");
            }
        }
    }
    // Pairs: 1 and 2 below 1.5 in the lower and in the upper half; one of F16 and of BF16.
    let rows = [vec![0x4000_3c00, 0x3e00_3e00], vec![0x3c00_4000, 0x3e00_3e00]];
    check('r', "set.lt.f16x2.f16x2 %r0, %r1, %r2;", &rows, |v| {
        if v[0] == 0x4000_3c00 { 0x3c00 } else { 0x3c00_0000 }
    });
    check('p', "setp.lt.f16x2 %p0|%p6, %r1, %r2;", &rows, |v| u64::from(v[0] == 0x4000_3c00));
    check('p', "setp.lt.f16x2 %p6|%p0, %r1, %r2;", &rows, |v| u64::from(v[0] != 0x4000_3c00));
    let rows = [vec![0x4000_3f80, 0x3fc0_3fc0]];
    check('r', "set.lt.bf16x2.bf16x2 %r0, %r1, %r2;", &rows, |_| 0x3f80);
    check('h', "set.nan.f16.f16 %h0, %h1, %h1;", &[vec![0x7e00], vec![0x3c00]], |v| {
        if v[0] == 0x7e00 { 0x3c00 } else { 0 }
    });
    check('h', "set.ge.bf16.bf16 %h0, %h1, %h1;", &[vec![0x3f80]], |_| 0x3f80);
    check('r', "set.le.f32.f32 %r0, %r1, %r1;", &[vec![0x3f80_0000]], |_| 0x3f80_0000);
    // A subnormal number is zero with `.ftz`.
    check('p', "setp.eq.ftz.f32 %p0, %r1, 0f00000000;", &[vec![1], vec![0x8000_0001]], |_| 1);
}

#[test]
fn what_a_thread_is() {
    let names = [
        "%tid.x",
        "%tid.y",
        "%tid.z",
        "%ntid.x",
        "%ntid.y",
        "%ntid.z",
        "%ctaid.x",
        "%nctaid.x",
        "%laneid",
        "%warpid",
        "%nwarpid",
        "%lanemask_eq",
        "%lanemask_lt",
        "%lanemask_le",
        "%lanemask_gt",
        "%lanemask_ge",
        "%dynamic_smem_size",
        "%total_smem_size",
    ];
    let mut code = String::new();
    for (i, name) in names.iter().enumerate() {
        code += &format!("mov.u32 %r, {name};\nst.global.u32 [%to+{}], %r;\n", 4 * i);
    }
    let ptx = format!(
        ".version 8.0\n.target sm_80\n.visible .entry test(.param .u64 y) {{\n\
         .reg .b32 %r, %n, %i;\n.reg .b64 %to;\n.shared .align 4 .b8 s[20];\n.reg .b32 %t;\n\
         ld.param.u64 %to, [y];\nmov.u32 %t, s;\n\
         mov.u32 %i, %tid.z;\nmov.u32 %n, %ntid.y;\nmad.lo.u32 %i, %i, %n, %tid.y;\n\
         mov.u32 %n, %ntid.x;\nmad.lo.u32 %i, %i, %n, %tid.x;\n\
         mov.u32 %n, %ctaid.x;\nmad.lo.u32 %i, %n, 48, %i;\n\
         mad.wide.u32 %to, %i, {}, %to;\n{code}ret;\n}}",
        4 * names.len()
    );
    let mut bench = Bench::new(&ptx);
    let y = bench.put(&vec![0u32; 2 * 48 * names.len()]);
    bench.try_run("test", 2, [4, 6, 2], 100, &[&y.to_le_bytes()]).unwrap();
    let found: Vec<u32> = bench.get(y, 2 * 48 * names.len());
    for (i, found) in found.chunks(names.len()).enumerate() {
        let (block, thread) = (i as u32 / 48, i as u32 % 48);
        let lane = thread % 32;
        let lower = ((1u64 << lane) - 1) as u32;
        let expected = [
            thread % 4,
            thread / 4 % 6,
            thread / 24,
            4,
            6,
            2,
            block,
            2,
            lane,
            thread / 32,
            2,
            1 << lane,
            lower,
            lower | 1 << lane,
            !(lower | 1 << lane),
            !lower,
            100,
            120,
        ];
        assert_eq!(found, expected, "thread {thread}");
    }
}

#[test]
fn generic_addresses() {
    let ptx = ".version 8.0\n.target sm_80\n\
        .const .align 4 .u32 numbers[3] = {5, 6, 7};\n\
        .global .align 8 .u64 pointers[2] = {generic(numbers)+4, numbers};\n\
        .visible .entry test(.param .u64 y) {\n\
        .reg .b64 %d<8>; .reg .b32 %r<8>; .reg .pred %p<4>;\n\
        .local .align 8 .b8 depot[16]; .shared .align 4 .u32 s;\n\
        ld.param.u64 %d1, [y];\n\
        cvta.to.global.u64 %d1, %d1;\n\
        mov.u64 %d2, s; cvta.shared.u64 %d2, %d2; st.u32 [%d2], 11; ld.shared.u32 %r1, [s];\n\
        st.global.u32 [%d1], %r1;\n\
        mov.u64 %d3, depot; cvta.local.u64 %d3, %d3; st.u32 [%d3+8], 12; ld.local.u32 %r1, [depot+8];\n\
        st.global.u32 [%d1+4], %r1;\n\
        ld.global.u64 %d4, [pointers]; ld.u32 %r1, [%d4]; st.global.u32 [%d1+8], %r1;\n\
        ld.const.u32 %r1, [numbers+8]; st.global.u32 [%d1+12], %r1;\n\
        isspacep.shared %p1, %d2; isspacep.local %p2, %d3; isspacep.global %p3, %d1;\n\
        selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 2, 0, %p2; selp.u32 %r3, 4, 0, %p3;\n\
        add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;\n\
        isspacep.shared %p1, %d1; selp.u32 %r2, 8, 0, %p1; add.u32 %r1, %r1, %r2;\n\
        st.global.u32 [%d1+16], %r1;\n\
        cvta.to.shared.u64 %d5, %d2; cvt.u32.u64 %r2, %d5; ld.shared.u32 %r1, [%r2]; st.global.u32 [%d1+20], %r1;\n\
        ret; }";
    let mut bench = Bench::new(ptx);
    let y = bench.put(&[0u32; 6]);
    bench.run("test", 1, [1, 1, 1], &[&y.to_le_bytes()]);
    assert_eq!(bench.get::<u32>(y, 6), [11, 12, 6, 7, 7, 11]);
}
