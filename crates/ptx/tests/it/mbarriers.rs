//! Barriers in shared memory and bulk copies: rings of stages, phases, and what kernels must not do with them.

use realizar_ptx::{Checks, Error, Fault, FaultKind};

use crate::common::Bench;
use crate::memory::kernel;

/// Runs `code` with 64 words at `%d1` that hold 0 to 63.
fn run(code: &str, threads: u32) -> Result<Vec<u32>, Fault> {
    let text = kernel(code);
    let mut bench = Bench::with(&text, Checks::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
    let x = bench.put(&Vec::from_iter(0..64u32));
    match bench.try_run("test", 1, [threads, 1, 1], 0, &[&x.to_le_bytes()]) {
        Ok(()) => Ok(bench.get(x, 64)),
        Err(Error::Fault(fault)) => Err(*fault),
        Err(other) => panic!("{code}: {other}"),
    }
}

/// A barrier of `n` arrivals at `s`, which thread 0 makes; the thread is `%r1`, its word `%d2`.
fn made(n: u32, rest: &str) -> String {
    format!(
        "mov.u32 %r1, %tid.x;\nmad.wide.u32 %d2, %r1, 4, %d1;\nsetp.ne.u32 %p7, %r1, 0;\n\
         @%p7 bra MADE;\nmbarrier.init.shared.b64 [s], {n};\nfence.mbarrier_init.release.cluster;\n\
         MADE:\nbar.sync 0;\n{rest}"
    )
}

const WAIT: &str = "AGAIN:\nmbarrier.try_wait.parity.shared.b64 %p1, [s], 0;\n@!%p1 bra AGAIN;\n";

#[test]
fn threads_wait_for_the_phases_of_others() {
    // The second warp writes, the first one reads after the phase.
    let code = made(
        32,
        &format!(
            "setp.lt.u32 %p2, %r1, 32;\n@%p2 bra READ;\nmov.u32 %r2, s;\nmad.lo.u32 %r2, %r1, 4, %r2;\n\
             mul.lo.u32 %r3, %r1, 3;\nst.shared.u32 [%r2+-112], %r3;\n\
             mbarrier.arrive.release.cta.shared::cta.b64 %d3, [s];\nret;\n\
             READ:\n{WAIT}\
             mov.u32 %r2, s;\nmad.lo.u32 %r2, %r1, 4, %r2;\nld.shared.u32 %r3, [%r2+16];\n\
             st.global.u32 [%d2], %r3;"
        ),
    );
    let found = run(&code, 64).unwrap();
    let expected: Vec<u32> = (32..64).map(|i| 3 * i).chain(32..64).collect();
    assert_eq!(found, expected);
}

#[test]
fn phases_end_by_arrivals_and_bytes() {
    // Each test of one thread's barrier of three arrivals, with what has ended before it.
    let code = "mbarrier.init.shared::cta.b64 [s], 3;\n\
         mbarrier.arrive.shared.b64 %d3, [s];\n\
         mbarrier.test_wait.shared.b64 %p1, [s], %d3;\nselp.u32 %r1, 1, 0, %p1;\n\
         mbarrier.arrive.shared.b64 _, [s], 2;\n\
         mbarrier.test_wait.acquire.cta.shared.b64 %p1, [s], %d3;\nselp.u32 %r2, 1, 0, %p1;\n\
         mbarrier.test_wait.parity.shared.b64 %p1, [s], 0;\nselp.u32 %r3, 1, 0, %p1;\n\
         mbarrier.test_wait.parity.shared.b64 %p1, [s], 1;\nselp.u32 %r4, 1, 0, %p1;\n\
         mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s], 16;\n\
         mbarrier.arrive.shared.b64 %d4, [s], 3;\n\
         mbarrier.test_wait.shared.b64 %p1, [s], %d4;\nselp.u32 %r5, 1, 0, %p1;\n\
         fence.proxy.async;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s+16], [%d1+16], 16, [s];\n\
         mbarrier.try_wait.shared.b64 %p1, [s], %d4, 1000;\nselp.u32 %r6, 1, 0, %p1;\n\
         ld.shared.u32 %r7, [s+20];\nmbarrier.inval.shared.b64 [s];\n\
         mbarrier.init.b64 [s], 1;\n\
         mov.u64 %d5, s;\ncvta.shared.u64 %d5, %d5;\nmbarrier.arrive.b64 %d6, [%d5];\n\
         mbarrier.test_wait.parity.shared.b64 %p1, [s], 0;\nselp.u32 %r8, 1, 0, %p1;\n\
         st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r4};\nst.global.v4.u32 [%d1+16], {%r5, %r6, %r7, %r8};";
    assert_eq!(run(code, 1).unwrap()[..8], [0, 1, 1, 0, 0, 1, 5, 1]);
}

/// A ring of two stages of 64 bytes: the second warp copies `x` in four steps, the first one adds up. `full` is at 0 and 8,
/// `empty` at 16 and 24, the stages are at 128.
fn ring(release: &str, expected: u32) -> String {
    format!(
        "mov.u32 %r1, %tid.x;\nmov.u32 %r10, s;\nsetp.ne.u32 %p7, %r1, 0;\n@%p7 bra MADE;\n\
         mbarrier.init.shared.b64 [s], 1;\nmbarrier.init.shared.b64 [s+8], 1;\n\
         mbarrier.init.shared.b64 [s+16], 1;\nmbarrier.init.shared.b64 [s+24], 1;\n\
         fence.mbarrier_init.release.cluster;\nMADE:\nbar.sync 0;\nmov.u32 %r2, 0;\n\
         setp.lt.u32 %p1, %r1, 32;\n@%p1 bra READ;\nsetp.ne.u32 %p1, %r1, 32;\n@%p1 bra END;\n\
         COPY:\nand.b32 %r3, %r2, 1;\nmad.lo.u32 %r4, %r3, 8, %r10;\nmad.lo.u32 %r5, %r3, 64, %r10;\n\
         shr.u32 %r6, %r2, 1;\nsetp.eq.u32 %p2, %r6, 0;\n@%p2 bra FREE;\nxor.b32 %r6, %r6, 1;\n\
         WAIT:\nmbarrier.try_wait.parity.shared.b64 %p2, [%r4+16], %r6;\n@!%p2 bra WAIT;\nFREE:\n\
         mbarrier.arrive.expect_tx.shared.b64 _, [%r4], {expected};\nmad.wide.u32 %d2, %r2, 64, %d1;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5+128], [%d2], 32, [%r4];\n\
         cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r5+160], \
         [%d2+32], 32, [%r4], %d3;\n\
         add.u32 %r2, %r2, 1;\nsetp.lt.u32 %p2, %r2, 4;\n@%p2 bra COPY;\nbra END;\n\
         READ:\nmov.u32 %r9, 0;\nTAKE:\nand.b32 %r3, %r2, 1;\nmad.lo.u32 %r4, %r3, 8, %r10;\n\
         mad.lo.u32 %r5, %r3, 64, %r10;\nshr.u32 %r6, %r2, 1;\n\
         FULL:\nmbarrier.try_wait.parity.shared.b64 %p2, [%r4], %r6;\n@!%p2 bra FULL;\n\
         and.b32 %r7, %r1, 15;\nmad.lo.u32 %r5, %r7, 4, %r5;\nld.shared.u32 %r7, [%r5+128];\n\
         add.u32 %r9, %r9, %r7;\nbar.warp.sync -1;\nsetp.ne.u32 %p3, %r1, 0;\n{release}\n\
         add.u32 %r2, %r2, 1;\nsetp.lt.u32 %p2, %r2, 4;\n@%p2 bra TAKE;\n\
         setp.ge.u32 %p2, %r1, 16;\n@%p2 bra END;\nmad.wide.u32 %d2, %r1, 4, %d1;\nbar.warp.sync 0xffff;\n\
         st.global.u32 [%d2], %r9;\nEND:"
    )
    .replace("mov.u32 %r2, 0;\n", "mov.u32 %r2, 0;\nmov.u64 %d3, 0;\n")
}

const RELEASE: &str = "@!%p3 mbarrier.arrive.shared.b64 _, [%r4+16];";

#[test]
fn stages_are_filled_as_they_become_free() {
    let checks = Checks { global_races: false, ..Checks::default() };
    let mut bench = Bench::with(&kernel(&ring(RELEASE, 64)), checks).unwrap();
    let x = bench.put(&Vec::from_iter(0..64u32));
    bench.run("test", 1, [64, 1, 1], &[&x.to_le_bytes()]);
    // Of four steps of 16 words, the sum of each place.
    let expected: Vec<u32> = (0..16).map(|i| (0..4).map(|step| 16 * step + i).sum()).collect();
    assert_eq!(bench.get::<u32>(x, 16), expected);
}

#[test]
fn rules_that_are_broken_are_reported() {
    use FaultKind as K;
    let copy =
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s+16], [%d1], 32, [s];";
    let one = |code: &str| (made(1, code), 1);
    let early = format!("setp.ne.u32 %p3, %r1, 0;\n{RELEASE}\nand.b32 %r7, %r1, 15;");
    let wait = "WAIT:\nmbarrier.try_wait.parity.shared.b64 %p2, [%r4+16], %r6;\n@!%p2 bra WAIT;\n";
    for ((code, threads), kind, message) in [
        (
            one(WAIT),
            K::Divergence,
            "a phase that never ends of the barrier at offset 0 of shared memory: 1 of 1 arrivals and 0 \
             bytes are missing",
        ),
        (
            one(&format!("mbarrier.arrive.expect_tx.shared.b64 _, [s], 48;\n{copy}\n{WAIT}")),
            K::Divergence,
            "0 of 1 arrivals and 16 bytes are missing",
        ),
        (
            one("mbarrier.arrive.shared.b64 _, [s], 2;"),
            K::Operand,
            "2 arrivals at a barrier of 1 that misses 1",
        ),
        (one("mbarrier.arrive.shared.b64 _, [s+8];"), K::Uninitialised, "which was not written"),
        (
            one("st.shared.u64 [s+8], 0;\nmbarrier.arrive.shared.b64 _, [s+8];"),
            K::Uninitialised,
            "no barrier was made at offset 8",
        ),
        (
            one("mbarrier.inval.shared.b64 [s];\nmbarrier.arrive.shared.b64 _, [s];"),
            K::Uninitialised,
            "which was not written",
        ),
        (one("mbarrier.init.shared.b64 [s], 1;"), K::Operand, "has a barrier already"),
        (one("mbarrier.init.shared.b64 [s+16], 0;"), K::Operand, "of 0 arrivals"),
        (one("mbarrier.init.shared.b64 [s+4], 1;"), K::Misaligned, "which is no multiple"),
        (one("mbarrier.expect_tx.shared.b64 [s], 0x100000;"), K::Operand, "1048576 more bytes"),
        (one(&copy.replace("s+16", "s+8")), K::Misaligned, "which are not both multiples of 16"),
        (one(&copy.replace("32", "24")), K::Operand, "a bulk copy of 24 bytes"),
        (one(&copy.replace("s+16", "s+240")), K::OutOfBounds, "a write of 32 bytes at offset 240"),
        (
            one(&copy.replace("[%d1]", "[%d1+240]")),
            K::OutOfBounds,
            "offset 240 of an allocation of 256 bytes",
        ),
        (
            (format!("mbarrier.init.shared.b64 [s], 1;\n{copy}"), 1),
            K::Race,
            "a copy to a barrier that was not made visible to copies",
        ),
        // A copy that nobody waits for, and one whose bytes are read too early.
        (one(copy), K::Uninitialised, "the block ends before anybody has waited for this copy"),
        (
            one(&format!("{copy}\nld.shared.u32 %r2, [s+16];")),
            K::Uninitialised,
            "by an asynchronous copy that was not waited for",
        ),
        // A barrier that others use before they know that it was made.
        (
            (
                "mov.u32 %r1, %tid.x;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra USE;\n\
                 mbarrier.init.shared.b64 [s], 64;\nUSE:\nmbarrier.arrive.shared.b64 _, [s];"
                    .to_owned(),
                64,
            ),
            K::Race,
            "with nothing that orders the two",
        ),
        // What was written before an arrival, read by a thread that has not waited.
        (
            (
                made(
                    1,
                    "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra READ;\nst.shared.u32 [s+16], 1;\n\
                     mbarrier.arrive.shared.b64 _, [s];\nret;\nREAD:\nld.shared.u32 %r2, [s+16];",
                ),
                33,
            ),
            K::Race,
            "with nothing that orders the two",
        ),
        // Stages that are released before they are read, that are announced for the next phase too early, that never are released.
        (
            (ring("", 64).replace("and.b32 %r7, %r1, 15;", &early), 64),
            K::Race,
            "with nothing that orders the two",
        ),
        (
            (ring(RELEASE, 64).replace(wait, ""), 64),
            K::Operand,
            "1 arrivals at a barrier of 1 that misses 0",
        ),
        ((ring("", 64), 64), K::Divergence, "1 of 1 arrivals and 0 bytes are missing"),
        ((ring(RELEASE, 80), 64), K::Divergence, "0 of 1 arrivals and 16 bytes are missing"),
    ] {
        let fault = run(&code, threads).expect_err(&code);
        assert_eq!(fault.kind, kind, "{code}: {fault}");
        assert!(fault.message.contains(message), "{code}: {fault}");
    }
}
