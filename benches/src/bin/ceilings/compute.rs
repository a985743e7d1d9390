//! How many multiply-adds the processor does per second: in F32, and in 8-bit integers with each
//! instruction that it has. One multiply-add counts as two operations.
//!
//! Every loop keeps twelve accumulators, more than the latency of an instruction times what starts
//! in a cycle. Operands of integer loops come from L1, as a kernel's do.

use std::hint::black_box;

use crate::{Row, timing};

/// Rounds of a loop per sample; a round is twelve instructions of multiply-adds.
const N_ROUNDS: usize = 200_000;
/// Accumulators of a loop.
const N_ACC: usize = 12;

/// A loop over [`N_ROUNDS`] rounds.
struct Loop {
    what: &'static str,
    how: &'static str,
    /// Multiply-adds of one instruction.
    n_macs: usize,
    unit: &'static str,
    run: fn(),
}

/// Rates of `n_threads` threads.
pub(crate) fn measure(n_threads: usize, n_samples: usize) -> Vec<Row> {
    let rate = |l: &Loop| {
        let seconds = timing::seconds(n_threads, n_samples, &|_, _| (l.run)());
        let n_ops = (2 * l.n_macs * N_ACC * N_ROUNDS * n_threads) as f64;
        let value = n_ops / seconds / 1e9;
        Row { what: l.what, how: l.how.to_owned(), threads: n_threads, value, unit: l.unit }
    };
    loops().iter().map(rate).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn loops() -> Vec<Loop> {
    Vec::new()
}

/// The loops that this processor runs.
#[cfg(target_arch = "x86_64")]
fn loops() -> Vec<Loop> {
    use std::arch::is_x86_feature_detected as has;
    let float = |how, n_macs, run| Loop { what: "F32", how, n_macs, unit: "GFLOPS", run };
    let int8 = |how, n_macs, run| Loop { what: "int8", how, n_macs, unit: "GOPS", run };
    let mut loops = Vec::new();
    if has!("avx2") && has!("fma") {
        // SAFETY (of each `unsafe` below): the features of the loop were detected.
        loops.push(float("AVX2, fma", 8, || unsafe { x86::fma_avx2() }));
    }
    if has!("avx512f") {
        loops.push(float("AVX-512, fma", 16, || unsafe { x86::fma_avx512() }));
    }
    if has!("avx2") {
        loops.push(int8("AVX2, maddubs + add16", 32, || unsafe { x86::maddubs_add16() }));
        loops.push(int8("AVX2, maddubs + madd + add32", 32, || unsafe { x86::maddubs_add32() }));
    }
    if has!("avxvnni") {
        loops.push(int8("AVX-VNNI, dpbusd", 32, || unsafe { x86::dpbusd_avx() }));
    }
    if has!("avx512vnni") && has!("avx512f") {
        loops.push(int8("AVX-512 VNNI, dpbusd", 64, || unsafe { x86::dpbusd_avx512() }));
    }
    loops
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{N_ACC, N_ROUNDS, black_box};
    use std::arch::x86_64::*;

    /// Twelve vectors of 64 bytes, in L1.
    #[repr(C, align(64))]
    struct Operands([[i8; 64]; N_ACC]);

    const OPERANDS: Operands = Operands([[3; 64]; N_ACC]);

    /// The loop over rounds: `$acc = $step(accumulator, operand)` for every accumulator. The
    /// operands' address is unknown to the compiler in every round, so nothing is moved out.
    macro_rules! rounds {
        ($zero:expr, $load:expr, $step:expr) => {{
            let operands = OPERANDS;
            let mut acc = [$zero; N_ACC];
            for _ in 0..N_ROUNDS {
                let operands = black_box(&operands);
                for (acc, operand) in acc.iter_mut().zip(&operands.0) {
                    // SAFETY: an operand has 64 bytes, the size of the largest vector.
                    let operand = unsafe { $load(operand.as_ptr().cast()) };
                    *acc = $step(*acc, operand);
                }
            }
            black_box(acc);
        }};
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn fma_avx2() {
        let a = _mm256_set1_ps(black_box(0.5));
        rounds!(_mm256_setzero_ps(), _mm256_load_ps, |acc, b| _mm256_fmadd_ps(a, b, acc));
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn fma_avx512() {
        let a = _mm512_set1_ps(black_box(0.5));
        rounds!(_mm512_setzero_ps(), _mm512_load_ps, |acc, b| _mm512_fmadd_ps(a, b, acc));
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn maddubs_add16() {
        let a = _mm256_set1_epi8(black_box(1));
        rounds!(_mm256_setzero_si256(), _mm256_load_si256, |acc, b| {
            _mm256_add_epi16(acc, _mm256_maddubs_epi16(a, b))
        });
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn maddubs_add32() {
        let a = _mm256_set1_epi8(black_box(1));
        let ones = _mm256_set1_epi16(black_box(1));
        rounds!(_mm256_setzero_si256(), _mm256_load_si256, |acc, b| {
            _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones))
        });
    }

    #[target_feature(enable = "avxvnni")]
    pub(super) fn dpbusd_avx() {
        let a = _mm256_set1_epi8(black_box(1));
        rounds!(_mm256_setzero_si256(), _mm256_load_si256, |acc, b| {
            _mm256_dpbusd_avx_epi32(acc, a, b)
        });
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn dpbusd_avx512() {
        let a = _mm512_set1_epi8(black_box(1));
        rounds!(_mm512_setzero_si512(), _mm512_load_si512, |acc, b| {
            _mm512_dpbusd_epi32(acc, a, b)
        });
    }
}
