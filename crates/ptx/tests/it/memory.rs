//! Loads, stores, atomics, asynchronous copies, and what only speaks to caches.

use realizar_ptx::Checks;

use crate::common::{Bench, check, edges};

/// A kernel of one parameter `%d1`, with registers and 256 bytes of shared memory `s`.
pub(crate) fn kernel(code: &str) -> String {
    format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n\
         .visible .entry test(.param .u64 x)\n{{\n\
         .reg .b32 %r<16>; .reg .b64 %d<16>; .reg .b16 %h<16>; .reg .pred %p<8>;\n\
         .shared .align 16 .b8 s[256];\n\
         ld.param.u64 %d1, [x];\n{code}\nret;\n}}\n"
    )
}

/// What `code` leaves in 16 words that held 1 to 16, run by one block of `threads`.
fn words(code: &str, threads: u32) -> Vec<u32> {
    let checks = Checks { float_atomics: true, ..Checks::default() };
    let mut bench = Bench::with(&kernel(code), checks).unwrap_or_else(|e| panic!("{code}: {e}"));
    let x = bench.put(&Vec::from_iter(1..=16u32));
    bench.run("test", 1, [threads, 1, 1], &[&x.to_le_bytes()]);
    bench.get(x, 16)
}

#[test]
fn loads_extend_to_their_registers() {
    let load = |ty: &str, reg: &str| {
        format!(
            "mov.u64 %d6, s;\ncvta.shared.u64 %d6, %d6;\n.shared .align 8 .b8 q[1024];\n\
             mov.u32 %r7, %tid.x;\nshl.b32 %r7, %r7, 3;\nmov.u32 %r6, q;\nadd.u32 %r7, %r6, %r7;\n\
             st.shared.u64 [%r7], %d1;\nld.shared.{ty} %{reg}, [%r7];"
        )
    };
    let load = |ty: &str, reg: &str| {
        load(ty, reg).replace("mov.u64 %d6, s;\ncvta.shared.u64 %d6, %d6;\n", "")
    };
    for (ty, reg, out, f) in [
        ("u8", "h0", 'h', (|x| x & 0xff) as fn(u64) -> u64),
        ("s8", "h0", 'h', |x| u64::from(x as i8 as u16)),
        ("s8", "r0", 'r', |x| u64::from(x as i8 as u32)),
        ("u8", "d0", 'd', |x| x & 0xff),
        ("s16", "r0", 'r', |x| u64::from(x as i16 as u32)),
        ("u16", "r0", 'r', |x| x & 0xffff),
        ("b16", "h0", 'h', |x| x & 0xffff),
        ("s32", "d0", 'd', |x| x as i32 as u64),
        ("u32", "d0", 'd', |x| x & 0xffff_ffff),
        ("f32", "r0", 'r', |x| x & 0xffff_ffff),
        ("b64", "d0", 'd', |x| x),
    ] {
        check(out, &load(ty, reg), &edges(2), |v| f(v[0]));
    }
}

#[test]
fn forms_of_loads_and_stores() {
    let unchanged = Vec::from_iter(1..=16u32);
    for (code, at, expected) in [
        (
            "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1+16];\nst.global.v2.u32 [%d1], {%r4, %r1};",
            0,
            &[8u32, 5][..],
        ),
        (
            "ld.global.nc.L1::no_allocate.L2::128B.v2.b64 {%d2, %d3}, [%d1];\nst.global.b64 [%d1+8], %d2;",
            2,
            &[1, 2],
        ),
        ("ld.global.v4.u8 {%h1, %h2, %h3, _}, [%d1];\nst.global.u16 [%d1+2], %h1;", 0, &[0x1_0001]),
        ("ldu.global.u32 %r1, [%d1+4];\nst.global.cs.u32 [%d1], %r1;", 0, &[2]),
        ("ld.volatile.global.u32 %r1, [%d1+4];\nst.volatile.global.u32 [%d1], %r1;", 0, &[2]),
        ("ld.relaxed.gpu.global.u32 %r1, [%d1+4];\nst.release.gpu.global.u32 [%d1], %r1;", 0, &[2]),
        ("ld.global.cg.u32 %r1, [%d1+-0];\nst.wb.global.u32 [%d1+4], 7;", 1, &[7]),
        ("st.global.u8 [%d1+3], 255;", 0, &[0xff00_0001]),
        ("st.global.f32 [%d1], 0f3F800000;", 0, &[0x3f80_0000]),
        ("mov.u64 %d2, 0x1122334455667788;\nst.global.u32 [%d1], %d2;", 0, &[0x5566_7788]),
        (
            "st.shared.v4.u32 [s+32], {1, 2, 3, 9};\nld.shared.u32 %r1, [s+44];\nst.global.u32 [%d1], %r1;",
            0,
            &[9],
        ),
        (
            "mov.u32 %r1, s;\nst.shared::cta.u32 [%r1+4], 6;\nld.shared.u32 %r2, [s+4];\nst.u32 [%d1], %r2;",
            0,
            &[6],
        ),
        ("prefetch.global.L2 [%d1];\nprefetchu.L1 [%d1];\nst.u32 [%d1], 3;", 0, &[3]),
        (
            "createpolicy.fractional.L2::evict_first.b64 %d2, 0f3F800000;\nld.global.L2::cache_hint.u32 %r1, [%d1+4], %d2;\nst.u32 [%d1], %r1;",
            0,
            &[2],
        ),
        (
            ".local .align 4 .b8 l[8];\nst.local.u32 [l+4], 5;\nld.local.u32 %r1, [l+4];\nst.u32 [%d1], %r1;",
            0,
            &[5],
        ),
    ] {
        let mut wanted = unchanged.clone();
        wanted[at..at + expected.len()].copy_from_slice(expected);
        assert_eq!(words(code, 1), wanted, "{code}");
    }
}

#[test]
fn atomics_give_the_old_value_and_leave_the_new_one() {
    for (op, given, old, new) in [
        ("add.u32", 5u32, 16, 21u32),
        ("add.s32", u32::MAX, 16, 15),
        ("min.u32", u32::MAX, 16, 16),
        ("min.s32", u32::MAX, 16, u32::MAX),
        ("max.u32", u32::MAX, 16, u32::MAX),
        ("max.s32", u32::MAX, 16, 16),
        ("inc.u32", 20, 16, 17),
        ("inc.u32", 16, 16, 0),
        ("dec.u32", 20, 16, 15),
        ("dec.u32", 10, 16, 10),
        ("and.b32", 0x11, 16, 0x10),
        ("or.b32", 0x11, 16, 0x11),
        ("xor.b32", 0x11, 16, 0x01),
        ("exch.b32", 7, 16, 7),
    ] {
        for space in [".global", ""] {
            let code =
                format!("atom{space}.{op} %r1, [%d1+60], {given:#x};\nst.global.u32 [%d1], %r1;");
            let found = words(&code, 1);
            assert_eq!((found[0], found[15]), (old, new), "{code}");
            // Only what returns the old value exchanges.
            if !op.starts_with("exch") {
                let code = format!("red{space}.{op} [%d1+60], {given:#x};");
                assert_eq!(words(&code, 1)[15], new, "{code}");
            }
        }
    }
    for (code, expected) in [
        ("atom.global.cas.b32 %r1, [%d1], 1, 77;", [1, 77]),
        ("atom.relaxed.gpu.global.cas.b32 %r1, [%d1], 2, 77;", [1, 1]),
        (
            "st.shared.u32 [s], 4;\natom.shared.add.u32 %r1, [s], 3;\nld.shared.u32 %r2, [s];\nst.global.u32 [%d1], %r2;",
            [4, 7],
        ),
        (
            "atom.global.add.u64 %d2, [%d1], 0x100000000;\ncvt.u32.u64 %r1, %d2;\nld.global.u32 %r2, [%d1+4];\nst.global.u32 [%d1], %r2;",
            [1, 3],
        ),
        (
            "st.global.f32 [%d1], 0f3F800000;\natom.global.add.f32 %r1, [%d1], 0f40000000;",
            [0x3f80_0000, 0x4040_0000],
        ),
        (
            "st.global.u32 [%d1], 0x3c004000;\natom.global.add.noftz.f16x2 %r1, [%d1], %r3;",
            [0x3c00_4000, 0x4000_4200],
        ),
        ("atom.exch.b64 %d2, [%d1], 9;\ncvt.u32.u64 %r1, %d2;", [1, 9]),
        ("atom.global.max.s64 %d2, [%d1], -1;\ncvt.u32.u64 %r1, %d2;", [1, 1]),
    ] {
        let found =
            words(&format!("mov.b32 %r3, 0x3c003c00;\n{code}\nst.global.u32 [%d1+4], %r1;"), 1);
        assert_eq!([found[1], found[0]], expected, "{code}");
    }
}

#[test]
fn atomics_of_many_threads_add_up() {
    let code = "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nred.global.add.u32 [%d1], %r1;";
    let mut bench = Bench::new(&kernel(code));
    let x = bench.put(&[0u32; 1]);
    bench.run("test", 3, [100, 1, 1], &[&x.to_le_bytes()]);
    assert_eq!(bench.get::<u32>(x, 1), [3 * 4950]);
}

#[test]
fn asynchronous_copies() {
    for (code, expected) in [
        (
            "cp.async.cg.shared.global [s], [%d1], 16;\ncp.async.commit_group;\ncp.async.wait_group 0;",
            [1, 2, 3, 4],
        ),
        ("cp.async.ca.shared.global.L2::128B [s], [%d1], 16;\ncp.async.wait_all;", [1, 2, 3, 4]),
        (
            "mov.u32 %r1, 4;\ncp.async.ca.shared.global [s], [%d1], 16, %r1;\ncp.async.wait_all;",
            [1, 0, 0, 0],
        ),
        ("cp.async.ca.shared.global [s], [%d1], 16, 0;\ncp.async.wait_all;", [0, 0, 0, 0]),
        (
            "setp.eq.u32 %p1, 1, 1;\ncp.async.cg.shared.global [s], [%d1], 16, %p1;\ncp.async.wait_all;",
            [0, 0, 0, 0],
        ),
        (
            "cp.async.ca.shared.global [s], [%d1+32], 8;\ncp.async.ca.shared.global [s+8], [%d1+4], 4;\n\
             cp.async.ca.shared.global [s+12], [%d1], 4;\ncp.async.commit_group;\ncp.async.wait_all;",
            [9, 10, 2, 1],
        ),
        // The second group may still be under way, which the first two words do not depend on.
        (
            "st.shared.v2.u32 [s+8], {5, 5};\ncp.async.ca.shared.global [s], [%d1], 8;\n\
             cp.async.commit_group;\ncp.async.ca.shared.global [s+16], [%d1+8], 8;\n\
             cp.async.commit_group;\ncp.async.wait_group 1;",
            [1, 2, 5, 5],
        ),
    ] {
        let code = format!(
            "{code}\nld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [s];\n\
             st.global.v4.u32 [%d1+48], {{%r4, %r5, %r6, %r7}};"
        );
        assert_eq!(words(&code, 1)[12..], expected, "{code}");
    }
}
