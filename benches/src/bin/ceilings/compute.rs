//! How many multiply-adds the processor does per second: in F32, in 8-bit integers with each
//! instruction that it has, and in BF16 on tiles. One multiply-add counts as two operations.
//!
//! Every loop of vectors keeps twelve accumulators, more than the latency of an instruction times what
//! starts in a cycle. Operands of integer loops come from L1, as a kernel's do, and so do those of tiles,
//! of which there are four accumulators: two tiles of rows by two of columns.

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
        // SAFETY: AVX2 and FMA were just detected.
        loops.push(float("AVX2, fma", 8, || unsafe { x86::fma_avx2() }));
    }
    if has!("avx512f") {
        // SAFETY: AVX-512F was just detected.
        loops.push(float("AVX-512, fma", 16, || unsafe { x86::fma_avx512() }));
    }
    if has!("avx2") {
        // SAFETY: AVX2 was just detected.
        loops.push(int8("AVX2, maddubs + add16", 32, || unsafe { x86::maddubs_add16() }));
        // SAFETY: as above.
        loops.push(int8("AVX2, maddubs + madd + add32", 32, || unsafe { x86::maddubs_add32() }));
    }
    if has!("avxvnni") {
        // SAFETY: AVX-VNNI was just detected.
        loops.push(int8("AVX-VNNI, dpbusd", 32, || unsafe { x86::dpbusd_avx() }));
    }
    if has!("avx512vnni") && has!("avx512f") {
        // SAFETY: AVX-512F and its VNNI were just detected.
        loops.push(int8("AVX-512 VNNI, dpbusd", 64, || unsafe { x86::dpbusd_avx512() }));
    }
    // Also asks the system for the tiles.
    if realizar_kernels_cpu::AmxBf16::detect().is_some() {
        let bf16 = |how, n_macs, run| Loop { what: "BF16", how, n_macs, unit: "GFLOPS", run };
        // SAFETY: the tiles and their products of BF16 were just detected.
        loops.push(bf16("AMX, tdpbf16ps", 16 * 16 * 32, || unsafe { x86::tdpbf16ps() }));
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

    /// Sixteen rows of 64 bytes in each of the tile registers, as LDTILECFG takes it.
    static TILES: Operands = {
        let mut config = [[0; 64]; N_ACC];
        config[0][0] = 1;
        let mut tile = 0;
        while tile < 8 {
            config[0][16 + 2 * tile] = 64;
            config[0][48 + tile] = 16;
            tile += 1;
        }
        Operands(config)
    };

    /// Three blocks of two tiles by two in a round, each with its four loads.
    ///
    /// # Safety
    /// The processor has AMX-BF16, and the system permits its tiles.
    pub(super) unsafe fn tdpbf16ps() {
        let operands = [0_u8; 4 * 1024];
        // SAFETY: the caller's promise; four tiles are read, and registers hold nothing after the loop.
        unsafe {
            std::arch::asm!(
                "ldtilecfg [{config}]",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "2:",
                ".rept 3",
                "tileloadd tmm4, [{a} + {ld}*1]",
                "tileloadd tmm6, [{a} + {ld}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{a} + {ld}*1 + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {ld}*1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                ".endr",
                "sub {n}, 1",
                "jnz 2b",
                "tilerelease",
                config = in(reg) &raw const TILES,
                a = in(reg) operands.as_ptr(),
                ld = in(reg) 64_usize,
                n = inout(reg) N_ROUNDS => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
