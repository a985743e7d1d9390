//! What kernels must not do, and what is said about it: kind, thread, line, and text.

use realizar_ptx::{Checks, Error, Fault, FaultKind};

use crate::common::Bench;
use crate::memory::kernel;

/// The fault of `code`, run by blocks of `threads` with 64 bytes at `%d1`.
fn fault_with(code: &str, grid: u32, threads: u32, checks: Checks) -> Option<Fault> {
    let mut bench = Bench::with(&kernel(code), checks).unwrap_or_else(|e| panic!("{code}: {e}"));
    let x = bench.put(&[0u32; 16]);
    match bench.try_run("test", grid, [threads, 1, 1], 0, &[&x.to_le_bytes()]) {
        Ok(()) => None,
        Err(Error::Fault(fault)) => Some(*fault),
        Err(other) => panic!("{other}"),
    }
}

fn fault(code: &str, threads: u32) -> Option<Fault> {
    fault_with(code, 1, threads, Checks::default())
}

/// The thread's address in global memory in `%d2`, in shared memory in `%r3`.
const OWN: &str = "mov.u32 %r1, %tid.x;\nmad.wide.u32 %d2, %r1, 4, %d1;\nmov.u32 %r2, s;\n\
                   mad.lo.u32 %r3, %r1, 4, %r2;\n";

#[test]
fn every_kind_of_fault() {
    use FaultKind as K;
    let cases: [(&str, u32, K, u32, &str); 40] = [
        // Bounds.
        ("st.global.u32 [%d2], 1;", 20, K::OutOfBounds, 16, "a write of 4 bytes at"),
        (
            "ld.global.u32 %r4, [%d2];",
            20,
            K::OutOfBounds,
            16,
            "offset 64 of an allocation of 64 bytes",
        ),
        (
            "ld.global.u32 %r4, [%d1+-4];",
            1,
            K::OutOfBounds,
            0,
            "4 bytes before an allocation of 64 bytes",
        ),
        (
            "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d1+64];",
            1,
            K::OutOfBounds,
            0,
            "a read of 16 bytes",
        ),
        ("mov.u64 %d3, 0;\nld.u32 %r4, [%d3];", 1, K::OutOfBounds, 0, "no allocation is near"),
        (
            "cvt.u32.u64 %r4, %d1;\ncvt.u64.u32 %d3, %r4;\nst.u8 [%d3], 1;",
            1,
            K::OutOfBounds,
            0,
            "no allocation is near",
        ),
        ("atom.global.add.u32 %r4, [%d1+64], 1;", 1, K::OutOfBounds, 0, "an atomic of 4 bytes"),
        (
            "st.shared.u32 [%r3], 1;",
            65,
            K::OutOfBounds,
            64,
            "offset 256 of the block's shared memory, which has 256 bytes",
        ),
        (
            "mov.u32 %r4, 0;\nld.shared.u32 %r5, [%r4];",
            1,
            K::OutOfBounds,
            0,
            "offset -1024 of the block's shared memory",
        ),
        (
            ".local .align 4 .b8 l[8];\nst.local.u32 [l+8], 1;",
            1,
            K::OutOfBounds,
            0,
            "offset 8 of the thread's memory",
        ),
        ("cp.async.ca.shared.global [s], [%d1+64], 4;", 1, K::OutOfBounds, 0, "a read of 4 bytes"),
        (
            "cp.async.cg.shared.global [s+256], [%d1], 16;",
            1,
            K::OutOfBounds,
            0,
            "a write of 16 bytes",
        ),
        (
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [s+256];",
            32,
            K::OutOfBounds,
            0,
            "a read of 16 bytes",
        ),
        // Alignment.
        ("ld.global.u32 %r4, [%d1+2];", 1, K::Misaligned, 0, "which is no multiple"),
        (
            "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d2];",
            2,
            K::Misaligned,
            1,
            "a read of 16 bytes",
        ),
        ("st.shared.b64 [s+4], %d1;", 1, K::Misaligned, 0, "a write of 8 bytes"),
        ("cp.async.cg.shared.global [s], [%d1+8], 16;", 1, K::Misaligned, 0, "a read of 16 bytes"),
        ("atom.shared.exch.b32 %r4, [s+1], 1;", 1, K::Misaligned, 0, "an atomic of 4 bytes"),
        // Values that are not there.
        ("ld.shared.u32 %r4, [s];", 1, K::Uninitialised, 0, "which was not written"),
        ("atom.shared.add.u32 %r4, [s], 1;", 1, K::Uninitialised, 0, "an atomic of 4 bytes"),
        (
            "st.shared.u8 [s], 1;\nld.shared.u16 %h1, [s];",
            1,
            K::Uninitialised,
            0,
            "a read of 2 bytes",
        ),
        (
            "cp.async.ca.shared.global [s], [%d1], 4;\ncp.async.commit_group;\ncp.async.wait_group 1;\nld.shared.u32 %r4, [s];",
            1,
            K::Uninitialised,
            0,
            "not waited for",
        ),
        (
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [s];",
            32,
            K::Uninitialised,
            0,
            "a read of 16 bytes",
        ),
        ("add.u32 %r4, %r5, 1;", 1, K::UndefinedRegister, 0, "the register `%r5` is read"),
        (
            "mov.u32 %r4, %r5;\nst.global.u32 [%d1], %r4;",
            1,
            K::UndefinedRegister,
            0,
            "the register `%r4` is read",
        ),
        ("@%p1 mov.u32 %r4, 1;", 1, K::UndefinedRegister, 0, "`%p1`"),
        (
            "setp.lt.u32 %p1, %r1, 3;\n@%p1 mov.u32 %r4, 1;\nadd.u32 %r5, %r4, 1;",
            32,
            K::UndefinedRegister,
            3,
            "the register `%r4` is read",
        ),
        (
            "shfl.sync.down.b32 %r4, %r1, 1, 31, 0xf;\nadd.u32 %r5, %r4, 1;",
            4,
            K::UndefinedRegister,
            3,
            "`%r4`",
        ),
        // Races.
        ("st.shared.u32 [s], %r1;", 2, K::Race, 1, "which thread 0 of block 0 uses too"),
        (
            "st.shared.u32 [%r3], %r1;\nxor.b32 %r4, %r3, 4;\nld.shared.u32 %r5, [%r4];",
            2,
            K::Race,
            0,
            "thread 1 of block 0",
        ),
        ("st.global.u32 [%d1], %r1;", 33, K::Race, 1, "a write of 4 bytes of global memory"),
        (
            "ld.global.u32 %r4, [%d1];\nst.global.u32 [%d1], %r1;",
            64,
            K::Race,
            1,
            "thread 0 of block 0",
        ),
        (
            "ld.global.u32 %r4, [%d1];\nred.global.add.u32 [%d1], 1;",
            2,
            K::Race,
            0,
            "an atomic of 4 bytes",
        ),
        // Collectives.
        (
            "setp.lt.u32 %p1, %r1, 9;\n@%p1 bra A;\nbra B;\nA:\nbar.warp.sync -1;\nB:\nbar.sync 0;",
            32,
            K::Divergence,
            0,
            "only lanes 0x000001ff arrive at a collective of lanes 0xffffffff",
        ),
        (
            "shfl.sync.idx.b32 %r4, %r1, 0, 31, 1;",
            2,
            K::Divergence,
            1,
            "does not name the lane itself",
        ),
        (
            "setp.lt.u32 %p1, %r1, 40;\n@%p1 bar.sync 0;",
            64,
            K::Divergence,
            0,
            "a barrier that not all threads reach",
        ),
        (
            "setp.lt.u32 %p1, %r1, 32;\n@%p1 bar.sync 0;\n@!%p1 bar.sync 1;",
            64,
            K::Divergence,
            0,
            "64 threads wait, 0 have exited",
        ),
        ("bar.sync 16;", 32, K::Operand, 0, "barrier 16, where a block has 16"),
        // The rest.
        (
            "atom.global.add.f32 %r4, [%d1], 0f3F800000;",
            1,
            K::FloatAtomic,
            0,
            "an atomic addition of floats",
        ),
        ("setp.eq.u32 %p1, %r1, 5;\n@%p1 trap;", 32, K::Trap, 5, "`trap`"),
    ];
    for (code, threads, kind, thread, message) in cases {
        let found = fault(&format!("{OWN}{code}"), threads);
        let found = found.unwrap_or_else(|| panic!("{code}: no fault"));
        assert_eq!((found.kind, found.thread), (kind, [thread, 0, 0]), "{code}: {found}");
        assert!(found.message.contains(message), "{code}: {found}");
        assert_eq!((found.kernel.as_str(), found.block), ("test", [0; 3]));
        assert!(code.contains(&*found.text), "{code}: {found}");
    }
}

#[test]
fn a_report_names_the_line() {
    let code =
        "mov.u32 %r1, %ctaid.x;\nsetp.eq.u32 %p1, %r1, 2;\n@%p1 ld.global.u32 %r2, [%d1+100];";
    let found = fault_with(code, 4, 1, Checks::default()).unwrap();
    // Seven lines before the code; the first of them is line 1.
    let line = kernel(code).lines().position(|l| l.contains("+100")).unwrap() as u32 + 1;
    assert_eq!((found.line, found.block), (line, [2, 0, 0]));
    let text = found.to_string();
    let start = format!(
        "kernel `test`, block (2, 0, 0), thread (0, 0, 0), line {line}: a read of 4 bytes at 0x7"
    );
    assert!(text.starts_with(&start), "{text}");
    assert!(text.ends_with(": `@%p1 ld.global.u32 %r2, [%d1+100];`"), "{text}");
}

#[test]
fn what_is_right_is_not_reported() {
    for (code, threads) in [
        // Each its own byte of one word.
        (
            "mov.u32 %r2, s;\nadd.u32 %r3, %r1, %r2;\nst.shared.u8 [%r3], %r1;\nld.shared.u8 %r4, [%r3];",
            64,
        ),
        ("mov.u32 %r4, 7;\nst.shared.u32 [s], %r4;\nst.global.u32 [%d1], %r4;", 64),
        (
            "st.shared.u32 [%r3], %r1;\nbar.warp.sync -1;\nxor.b32 %r4, %r3, 4;\nld.shared.u32 %r5, [%r4];",
            32,
        ),
        (
            "st.shared.u32 [%r3], %r1;\nbar.sync 0;\nxor.b32 %r4, %r3, 128;\nld.shared.u32 %r5, [%r4];\nbar.sync 0;\nst.shared.u32 [%r3], 1;",
            64,
        ),
        ("red.global.add.u32 [%d1], 1;\nld.volatile.global.u32 %r4, [%d1];", 64),
        ("setp.lt.u32 %p1, %r1, 3;\n@%p1 mov.u32 %r4, 1;\n@%p1 add.u32 %r5, %r4, 1;", 32),
        ("mov.u32 %r4, %r5;", 1),
        ("shfl.sync.down.b32 %r4, %r1, 1, 31, 0xff;", 8),
    ] {
        let found = fault(&format!("{OWN}{code}"), threads);
        assert!(found.is_none(), "{code}: {}", found.unwrap());
    }
}

#[test]
fn races_between_blocks() {
    let write = "mov.u32 %r1, %ctaid.x;\nst.global.u32 [%d1], %r1;";
    let found = fault_with(write, 2, 1, Checks::default()).unwrap();
    assert_eq!((found.kind, found.block), (FaultKind::Race, [1, 0, 0]));
    assert!(found.message.contains("thread 0 of block 0"), "{found}");
    // What the last block reads of the others is ordered by fences around an atomic.
    let last = "mov.u32 %r1, %ctaid.x;\nmad.wide.u32 %d2, %r1, 4, %d1;\nst.global.u32 [%d2+4], %r1;\n\
                membar.gl;\natom.global.add.u32 %r2, [%d1], 1;\nsetp.ne.u32 %p1, %r2, 3;\n@%p1 exit;\n\
                membar.gl;\nld.global.u32 %r3, [%d1+8];\nst.global.u32 [%d1+40], %r3;";
    assert_eq!(fault_with(last, 4, 1, Checks::default()), None);
    let unfenced = last.replace("membar.gl;\n", "");
    assert_eq!(fault_with(&unfenced, 4, 1, Checks::default()).unwrap().kind, FaultKind::Race);
    // Two launches are ordered.
    let mut bench = Bench::new(&kernel(
        "mov.u32 %r1, %clock;\n"
            .replace("mov.u32 %r1, %clock;\n", "st.global.u32 [%d1], 3;")
            .as_str(),
    ));
    let x = bench.put(&[0u32; 1]);
    for _ in 0..2 {
        bench.run("test", 1, [1, 1, 1], &[&x.to_le_bytes()]);
    }
}

#[test]
fn checks_can_be_left_out() {
    let all = Checks::default();
    for (code, grid, threads, checks) in [
        (
            "ld.shared.u32 %r4, [s];\nadd.u32 %r4, %r5, 1;",
            1,
            1,
            Checks { uninitialised: false, ..all.clone() },
        ),
        (
            "mov.u32 %r1, %tid.x;\nst.shared.u32 [s], %r1;",
            1,
            2,
            Checks { shared_races: false, ..all.clone() },
        ),
        (
            "mov.u32 %r1, %ctaid.x;\nst.global.u32 [%d1], %r1;",
            2,
            1,
            Checks { global_races: false, ..all.clone() },
        ),
        (
            "red.global.add.f32 [%d1], 0f3F800000;",
            1,
            2,
            Checks { float_atomics: true, ..all.clone() },
        ),
        (
            "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 40;\n@!%p1 exit;\nbar.sync 0;",
            1,
            64,
            Checks { exited_threads_leave_barriers: true, ..all.clone() },
        ),
    ] {
        assert!(fault_with(code, grid, threads, all.clone()).is_some(), "{code}");
        assert_eq!(fault_with(code, grid, threads, checks), None, "{code}");
    }
}

#[test]
fn loops_without_end_are_ended() {
    let checks = Checks { max_instructions: 100_000, ..Checks::default() };
    let found = fault_with("AGAIN:\nbra AGAIN;", 1, 33, checks).unwrap();
    assert_eq!(found.kind, FaultKind::Limit);
    assert!(found.message.contains("more than 100000 instructions"));
}

#[test]
fn memory_that_was_freed() {
    let mut bench = Bench::new(&kernel("ld.global.u32 %r1, [%d1+8];"));
    let x = bench.put(&[0u32; 4]);
    bench.device.free(x).unwrap();
    let found = bench.try_run("test", 1, [1, 1, 1], 0, &[&x.to_le_bytes()]).unwrap_err();
    let Error::Fault(found) = found else { panic!("{found}") };
    assert_eq!(found.kind, FaultKind::Freed);
    assert!(found.message.contains("offset 8 of freed memory, 16 bytes at"), "{found}");
    // What failed stays failed.
    assert!(matches!(bench.device.synchronize(bench.stream), Err(Error::Fault(_))));
}

#[test]
fn assertions_of_kernels() {
    let ptx = ".version 9.0\n.target sm_80\n\
        .extern .func __assertfail(.param .b64 a, .param .b64 b);\n\
        .visible .entry test()\n{ .reg .pred %p; .reg .b32 %r; mov.u32 %r, %tid.x;\n\
        setp.ne.u32 %p, %r, 4;\n@%p bra FINE;\n{ .param .b64 a; .param .b64 b;\n\
        st.param.b64 [a], 0;\nst.param.b64 [b], 0;\ncall.uni __assertfail, (a, b); }\nFINE: ret; }";
    let found = Bench::new(ptx).try_run("test", 1, [8, 1, 1], 0, &[]).unwrap_err();
    let Error::Fault(found) = found else { panic!("{found}") };
    assert_eq!((found.kind, found.thread), (FaultKind::Trap, [4, 0, 0]));
}

#[test]
fn launches_that_start_early_wait_before_they_use_what_kernels_write() {
    let cases: [(&str, Option<&str>); 7] = [
        ("griddepcontrol.wait;\nst.global.u32 [%d2], 1;\nld.global.u32 %r4, [%d2];", None),
        // Nobody has written what it reads.
        ("ld.global.u32 %r4, [%d2];\ngriddepcontrol.wait;", None),
        (
            "st.global.u32 [%d2], 1;\ngriddepcontrol.wait;",
            Some("a write of memory that kernels write before"),
        ),
        (
            "atom.global.add.u32 %r4, [%d2], 1;\ngriddepcontrol.wait;",
            Some("an atomic of memory that kernels write before"),
        ),
        (
            "mov.u32 %r4, 1;",
            Some("the thread ends before it has waited for the launch in front of this one"),
        ),
        // One thread of several does not wait.
        (
            "setp.eq.u32 %p1, %r1, 3;\n@%p1 bra END;\ngriddepcontrol.wait;\nEND:",
            Some("the thread ends before"),
        ),
        ("griddepcontrol.launch_dependents;", Some("the thread ends before")),
    ];
    for (code, expected) in cases {
        let mut bench = Bench::new(&kernel(&format!("{OWN}{code}")));
        let x = bench.put(&[0u32; 16]).to_le_bytes();
        let found = bench.try_run_early("test", 1, [16, 1, 1], &[&x]);
        match (found, expected) {
            (Ok(()), None) => {}
            (Err(Error::Fault(fault)), Some(expected)) => {
                assert_eq!(fault.kind, FaultKind::Dependence, "{code}");
                assert!(fault.message.starts_with(expected), "{code}: {}", fault.message);
            }
            (found, _) => panic!("{code}: {found:?}"),
        }
    }
    // What it may read before it waits is what no launch has written so far.
    let ptx = kernel(&format!(
        "{OWN}ld.global.u32 %r4, [%d2];\ngriddepcontrol.wait;\nst.global.u32 [%d2], 1;"
    ));
    let mut bench = Bench::new(&ptx);
    let x = bench.put(&[0u32; 16]).to_le_bytes();
    bench.try_run_early("test", 1, [16, 1, 1], &[&x]).unwrap();
    let again = bench.try_run_early("test", 1, [16, 1, 1], &[&x]).unwrap_err().to_string();
    assert!(again.contains("a read of memory that kernels write before"), "{again}");
}
