//! What threads do together: shuffles, votes, matches, reductions, barriers; and where they go.

use crate::common::{Bench, Random, check};
use crate::memory::kernel;

/// What each of `threads` threads leaves in `%r0`, with its own value in `%r1` and its lane in `%r2`.
pub(crate) fn of_threads(code: &str, values: &[u32]) -> Vec<u32> {
    let code = format!(
        "mov.u32 %r2, %tid.x;\nmad.wide.u32 %d2, %r2, 4, %d1;\nld.global.u32 %r1, [%d2];\n\
         and.b32 %r3, %r1, 1;\nsetp.ne.u32 %p1, %r3, 0;\n{code}\nst.global.u32 [%d2], %r0;"
    );
    let mut bench = Bench::new(&kernel(&code));
    let x = bench.put(values);
    bench.run("test", 1, [values.len() as u32, 1, 1], &[&x.to_le_bytes()]);
    bench.get(x, values.len())
}

fn values(n: usize) -> Vec<u32> {
    let mut random = Random(31);
    (0..n).map(|_| random.bits() as u32).collect()
}

#[test]
fn shuffles() {
    let x = values(32);
    let cases: [(&str, &dyn Fn(usize) -> usize); 7] = [
        ("up.b32 %r0|%p2, %r1, 3, 0", &|i| if i >= 3 { i - 3 } else { i }),
        ("down.b32 %r0, %r1, 5, 31", &|i| if i + 5 < 32 { i + 5 } else { i }),
        ("bfly.b32 %r0, %r1, 6, 31", &|i| i ^ 6),
        ("idx.b32 %r0, %r1, 9, 31", &|_| 9),
        // In segments of eight: the mask of the segment in the upper bits of the clamp.
        ("down.b32 %r0, %r1, 2, 0x181f", &|i| if i % 8 + 2 < 8 { i + 2 } else { i }),
        ("idx.b32 %r0, %r1, 3, 0x181f", &|i| i / 8 * 8 + 3),
        ("up.b32 %r0, %r1, 1, 0x1800", &|i| if i % 8 >= 1 { i - 1 } else { i }),
    ];
    for (code, from) in cases {
        let found = of_threads(&format!("shfl.sync.{code}, -1;"), &x);
        let expected: Vec<u32> = (0..32).map(|i| x[from(i)]).collect();
        assert_eq!(found, expected, "{code}");
    }
    let valid =
        of_threads("shfl.sync.down.b32 %r4|%p2, %r1, 5, 31, -1;\nselp.u32 %r0, 1, 0, %p2;", &x);
    assert_eq!(valid, (0..32).map(|i| u32::from(i < 27)).collect::<Vec<_>>());
}

#[test]
fn votes_matches_and_reductions() {
    let x: Vec<u32> = values(32).iter().map(|x| x % 8).collect();
    let ballot = (0..32).fold(0, |b, i| b | (x[i] & 1) << i);
    for (code, expected) in [
        ("vote.sync.ballot.b32 %r0, %p1, -1;", ballot),
        ("vote.sync.ballot.b32 %r0, !%p1, -1;", !ballot),
        ("vote.sync.any.pred %p2, %p1, -1;\nselp.u32 %r0, 1, 0, %p2;", 1),
        ("vote.sync.all.pred %p2, %p1, -1;\nselp.u32 %r0, 1, 0, %p2;", 0),
        ("vote.sync.uni.pred %p2, %p1, -1;\nselp.u32 %r0, 1, 0, %p2;", 0),
        ("activemask.b32 %r0;", u32::MAX),
        ("redux.sync.add.u32 %r0, %r1, -1;", x.iter().sum()),
        ("redux.sync.min.u32 %r0, %r1, -1;", *x.iter().min().unwrap()),
        ("redux.sync.max.s32 %r0, %r1, -1;", *x.iter().max().unwrap()),
        ("redux.sync.and.b32 %r0, %r1, -1;", x.iter().fold(u32::MAX, |a, b| a & b)),
        ("redux.sync.or.b32 %r0, %r1, -1;", x.iter().fold(0, |a, b| a | b)),
        ("redux.sync.xor.b32 %r0, %r1, -1;", x.iter().fold(0, |a, b| a ^ b)),
        ("match.all.sync.b32 %r0|%p2, %r1, -1;", 0),
        ("mov.u32 %r4, 3;\nmatch.all.sync.b32 %r0|%p2, %r4, -1;", u32::MAX),
    ] {
        assert_eq!(of_threads(code, &x), [expected; 32], "{code}");
    }
    let negative: Vec<u32> = (0..32).map(|i| i - 16).map(|i: i32| i as u32).collect();
    for (op, expected) in
        [("min.s32", -16i32 as u32), ("max.s32", 15), ("min.u32", 0), ("max.u32", u32::MAX)]
    {
        assert_eq!(
            of_threads(&format!("redux.sync.{op} %r0, %r1, -1;"), &negative),
            [expected; 32]
        );
    }
    let same = of_threads("match.any.sync.b32 %r0, %r1, -1;", &x);
    for i in 0..32 {
        assert_eq!(same[i], (0..32).fold(0, |m, j| m | u32::from(x[i] == x[j]) << j));
    }
    let wide = of_threads("mov.b64 %d3, {%r1, %r1};\nmatch.any.sync.b64 %r0, %d3, -1;", &x);
    assert_eq!(wide, same);
}

#[test]
fn masks_name_parts_of_a_warp() {
    // Odd and even lanes reduce apart, at one instruction and at two.
    let x = values(32);
    let sum = |odd: usize| (0..16).fold(0u32, |s, i| s.wrapping_add(x[2 * i + odd]));
    let expected: Vec<u32> = (0..32).map(|i| sum(i % 2)).collect();
    let together = "and.b32 %r4, %r2, 1;\nmov.u32 %r5, 0x55555555;\nshl.b32 %r5, %r5, %r4;\n\
                    redux.sync.add.u32 %r0, %r1, %r5;";
    assert_eq!(of_threads(together, &x), expected);
    let apart = "and.b32 %r4, %r2, 1;\nsetp.eq.u32 %p2, %r4, 0;\n@%p2 bra EVEN;\n\
                 redux.sync.add.u32 %r0, %r1, 0xaaaaaaaa;\nbra DONE;\n\
                 EVEN:\nredux.sync.add.u32 %r0, %r1, 0x55555555;\nDONE:";
    assert_eq!(of_threads(apart, &x), expected);
    // All lanes of one mask, half of them at another instruction of the same kind.
    let all = "and.b32 %r4, %r2, 1;\nsetp.eq.u32 %p2, %r4, 0;\n@%p2 bra EVEN;\n\
               shfl.sync.idx.b32 %r0, %r1, 7, 31, -1;\nbra DONE;\n\
               EVEN:\nshfl.sync.idx.b32 %r0, %r1, 9, 31, -1;\nDONE:";
    let expected: Vec<u32> = (0..32).map(|i| x[if i % 2 == 0 { 9 } else { 7 }]).collect();
    assert_eq!(of_threads(all, &x), expected);
}

#[test]
fn branches_and_loops() {
    // Each lane runs as often as its value says: the sum of 1 to n, by a loop of its own length.
    let x: Vec<u32> = (0..70).map(|i| i * 7 % 41).collect();
    let code = "mov.u32 %r0, 0;\nLOOP:\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra END;\n\
                add.u32 %r0, %r0, %r1;\nsub.u32 %r1, %r1, 1;\nbra.uni LOOP;\nEND:";
    let expected: Vec<u32> = x.iter().map(|n| n * (n + 1) / 2).collect();
    assert_eq!(of_threads(code, &x), expected);
    // A table of targets, and labels that belong to their braces.
    let code = "and.b32 %r3, %r1, 3;\nTABLE: .branchtargets A, B, C, A;\nbrx.idx %r3, TABLE;\n\
                A: { bra L; L: mov.u32 %r0, 10; }\nbra DONE;\nB:\n{ bra L; L: mov.u32 %r0, 20; }\n\
                bra DONE;\nC:\nmov.u32 %r0, 30;\nDONE:";
    let expected: Vec<u32> = x.iter().map(|n| [10, 20, 30, 10][(n & 3) as usize]).collect();
    assert_eq!(of_threads(code, &x), expected);
    // Instructions after predicates, and threads that exit early.
    let code = "mov.u32 %r0, 5;\n@!%p1 exit;\n@%p1 add.u32 %r0, %r0, 1;";
    let expected: Vec<u32> = x.iter().map(|n| if n & 1 == 1 { 6 } else { *n }).collect();
    assert_eq!(of_threads(code, &x), expected);
}

#[test]
fn threads_of_a_warp_wait_for_one_another() {
    // Lane 31 sets what the others poll; it stands after them in the code.
    let code = "st.shared.u32 [s], 0;\nbar.warp.sync -1;\nsetp.eq.u32 %p2, %r2, 31;\n@%p2 bra SET;\n\
                POLL:\nld.volatile.shared.u32 %r0, [s];\nsetp.eq.u32 %p3, %r0, 0;\n@%p3 bra POLL;\n\
                bra DONE;\nSET:\nmov.u32 %r0, 7;\nst.volatile.shared.u32 [s], 7;\nDONE:";
    assert_eq!(of_threads(code, &[0; 32]), [7; 32]);
}

#[test]
fn barriers() {
    let x = values(128);
    // Each thread's word is read by the thread opposite.
    let turn = "mov.u32 %r4, w;\nshl.b32 %r5, %r2, 2;\nadd.u32 %r5, %r4, %r5;\nst.shared.u32 [%r5], %r1;\n\
                BARRIER\nsub.u32 %r6, 127, %r2;\nshl.b32 %r6, %r6, 2;\nadd.u32 %r6, %r4, %r6;\n\
                ld.shared.u32 %r0, [%r6];";
    let turned: Vec<u32> = x.iter().rev().copied().collect();
    for barrier in [
        "bar.sync 0;",
        "bar.cta.sync 3, 128;",
        "barrier.sync 1;",
        "barrier.cta.sync.aligned 15, 128;",
        "membar.cta;\nbar.sync 0;",
        "fence.acq_rel.cta;\nbarrier.sync.aligned 0;",
    ] {
        let code = format!(".shared .align 4 .b8 w[512];\n{}", turn.replace("BARRIER", barrier));
        assert_eq!(of_threads(&code, &x), turned, "{barrier}");
    }
    let odd = x.iter().filter(|x| *x & 1 == 1).count() as u32;
    for (code, expected) in [
        ("bar.red.popc.u32 %r0, 0, %p1;", odd),
        ("barrier.cta.red.popc.aligned.u32 %r0, 0, 128, !%p1;", 128 - odd),
        ("bar.red.and.pred %p2, 0, %p1;\nselp.u32 %r0, 1, 0, %p2;", 0),
        ("bar.red.or.pred %p2, 0, %p1;\nselp.u32 %r0, 1, 0, %p2;", 1),
    ] {
        assert_eq!(of_threads(code, &x), [expected; 128], "{code}");
    }
    // One warp makes, another one takes; barriers of two warps that the others do not see.
    let code = ".shared .align 4 .b8 w[128];\nmov.u32 %r0, 1;\nshr.u32 %r4, %r2, 5;\n\
                and.b32 %r5, %r2, 31;\nshl.b32 %r5, %r5, 2;\nmov.u32 %r6, w;\nadd.u32 %r5, %r5, %r6;\n\
                setp.eq.u32 %p2, %r4, 1;\n@%p2 bra MAKE;\nsetp.eq.u32 %p2, %r4, 2;\n@%p2 bra TAKE;\n\
                bra DONE;\nMAKE:\nst.shared.u32 [%r5], %r1;\nbar.arrive 2, 64;\nbra DONE;\n\
                TAKE:\nbar.sync 2, 64;\nld.shared.u32 %r0, [%r5];\nDONE:";
    let found = of_threads(code, &x);
    assert_eq!(found[64..96], x[32..64]);
    assert_eq!(found[96..], [1; 32]);
}

#[test]
fn what_has_nothing_to_do_here() {
    let code = "griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\nnanosleep.u32 20;\nmembar.gl;\n\
                fence.sc.gpu;\nfence.acq_rel.sys;\nmov.u32 %r0, %r1;";
    assert_eq!(of_threads(code, &[3, 4]), [3, 4]);
}

#[test]
fn calls_of_functions() {
    let ptx = ".version 9.0\n.target sm_80\n\
        .func (.param .b32 out) twice(.param .b32 a);\n\
        .func (.param .b32 out) twice(.param .b32 a)\n{ .reg .b32 %r<3>;\nld.param.u32 %r1, [a];\n\
        .reg .pred %p; setp.gt.u32 %p, %r1, 100;\n@%p bra BIG;\n\
        shl.b32 %r2, %r1, 1;\nst.param.b32 [out+0], %r2;\nret;\nBIG:\nst.param.b32 [out], 1;\nret;\n}\n\
        .func bump(.param .b64 p)\n{ .reg .b64 %d; .reg .b32 %r;\nld.param.u64 %d, [p];\n\
        ld.u32 %r, [%d];\nadd.u32 %r, %r, 1;\nst.u32 [%d], %r;\nret; }\n\
        .visible .entry test(.param .u64 x, .param .u32 n)\n{ .reg .b32 %r<5>; .reg .b64 %d<3>;\n\
        ld.param.u64 %d1, [x];\nld.param.u32 %r3, [n];\nmov.u32 %r1, %tid.x;\n\
        mad.wide.u32 %d2, %r1, 4, %d1;\nld.global.u32 %r2, [%d2];\n\
        { .param .b32 a; .param .b32 r;\nst.param.b32 [a], %r2;\ncall.uni (r), twice, (a);\nld.param.b32 %r2, [r]; }\n\
        { .param .b32 a; .param .b32 r;\nst.param.b32 [a], %r2;\ncall (r), twice, (a);\nld.param.b32 %r2, [r]; }\n\
        add.u32 %r2, %r2, %r3;\nst.global.u32 [%d2], %r2;\n\
        { .param .b64 p;\nst.param.b64 [p], %d2;\ncall bump, (p); }\nret; }";
    let mut bench = Bench::new(ptx);
    let x = bench.put(&[3u32, 60, 200]);
    bench.run("test", 1, [3, 1, 1], &[&x.to_le_bytes(), &1000u32.to_le_bytes()]);
    assert_eq!(bench.get::<u32>(x, 3), [1013, 1002, 1003]);
}

#[test]
fn values_of_threads_that_part_keep_apart() {
    // Values that are never alive together share a place: those of both branches, and what is alive across the
    // loop must not.
    let code = "{
        .reg .b32 %x<20>; .reg .b64 %y<4>; .reg .pred %q<6>;
        and.b32 %x1, %r1, 7;
        add.u32 %x2, %r1, 100;
        mov.u32 %x3, 0;
        mov.u32 %x4, 0;
        setp.eq.u32 %q1, %x1, 0;
        @%q1 bra DONE;
    AGAIN:
        and.b32 %x5, %x4, 1;
        setp.eq.u32 %q2, %x5, 1;
        @%q2 bra ODD;
        mul.lo.u32 %x6, %x4, 3;
        mul.wide.u32 %y1, %x6, %x2;
        cvt.u32.u64 %x7, %y1;
        add.u32 %x3, %x3, %x7;
        bra NEXT;
    ODD:
        mul.lo.u32 %x8, %x4, 5;
        xor.b32 %x9, %x8, %x2;
        cvt.u64.u32 %y2, %x9;
        shl.b64 %y3, %y2, 1;
        cvt.u32.u64 %x10, %y3;
        @%q1 mov.u32 %x10, 99;
        sub.u32 %x3, %x3, %x10;
    NEXT:
        add.u32 %x4, %x4, 1;
        setp.lt.u32 %q3, %x4, %x1;
        @%q3 bra AGAIN;
    DONE:
        add.u32 %r0, %x3, %x2;
    }";
    let rows: Vec<Vec<u64>> = (0..64).map(|i| vec![i * 7 % 64]).collect();
    check('r', code, &rows, |v| {
        let (x, n) = (v[0] as u32 + 100, v[0] as u32 & 7);
        let sum = (0..n).fold(0u32, |sum, i| match i % 2 {
            0 => sum.wrapping_add((i * 3).wrapping_mul(x)),
            _ => sum.wrapping_sub(((i * 5) ^ x) << 1),
        });
        u64::from(sum.wrapping_add(x))
    });
}
