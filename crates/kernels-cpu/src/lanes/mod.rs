//! Portable vectors of eight and sixteen f32, and their scalar implementation.
//!
//! A kernel is written once over [`Lanes`]. All implementations round every operation alike:
//! multiply-adds are fused, and sums over lanes have one tree. So a kernel gives the same bits on every
//! tier. `avx2.rs` and `avx512.rs` have the vector implementations; `slices.rs` has helpers for
//! kernels written in AVX2 alone.
//!
//! Sums over lanes are kept in eight lanes. Kernels in which each lane is an element of its own use
//! sixteen: one AVX-512 register, or two AVX2 registers.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod slices;

#[cfg(target_arch = "x86_64")]
pub(crate) use slices::*;

use realizar_quant::small_floats::{e4m3, e4m3_is_nan};

use crate::Tier;

/// Code that is compiled once per implementation of [`Lanes`].
pub(crate) trait Kernel {
    type Output;

    /// Runs the code. It and the functions that it calls must be inlined into [`Lanes::run`].
    fn run<L: Lanes>(self, l: L) -> Self::Output;
}

/// Runs a kernel with the instructions of a tier.
#[inline]
pub(crate) fn dispatch<K: Kernel>(tier: Tier, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(token) = tier.avx512() {
        return token.run(kernel);
    }
    match tier.avx2() {
        None => Scalar.run(kernel),
        #[cfg(target_arch = "x86_64")]
        Some(token) => token.run(kernel),
    }
}

/// Operations on vectors of eight f32.
pub(crate) trait Eight: Copy {
    type V: Copy;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; 8]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; 8]);

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;

    /// The sum of the lanes: `((0+1) + (2+3)) + ((4+5) + (6+7))`.
    fn sum(self, v: Self::V) -> f32;
    /// The sums of the lanes of each vector, in the order of [`Self::sum`].
    fn sums(self, v: [Self::V; 4]) -> [f32; 4];
    /// Lane `j` of vector `i` becomes lane `i` of vector `j`.
    fn transpose(self, v: [Self::V; 8]) -> [Self::V; 8];

    /// Eight values from little-endian binary16.
    fn widen_f16(self, bytes: &[u8; 16]) -> Self::V;
    /// Eight values from little-endian bfloat16.
    fn widen_bf16(self, bytes: &[u8; 16]) -> Self::V;
    /// Eight values from signed bytes.
    fn widen_i8(self, bytes: &[u8; 8]) -> Self::V;
    /// Eight values from FP8 numbers (`E4M3`).
    fn widen_e4m3(self, bytes: &[u8; 8]) -> Self::V;
    /// The low nibble of each byte, minus 8.
    fn low_nibbles(self, bytes: &[u8; 8]) -> Self::V;
    /// The high nibble of each byte, minus 8.
    fn high_nibbles(self, bytes: &[u8; 8]) -> Self::V;
    /// Prefetches the cache line at an address to L1.
    fn prefetch(self, at: *const u8);
    /// Prefetches the cache line at an address to L2.
    fn prefetch_far(self, at: *const u8);
}

/// Operations on vectors of sixteen f32, in addition to those on eight.
pub(crate) trait Lanes: Eight {
    type W: Copy;

    /// Whether sixteen lanes fit one register; then there are 32 registers.
    const IS_WIDE: bool;

    /// Runs a kernel in a function that is compiled for the implementation's instruction set.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat16(self, x: f32) -> Self::W;
    fn load16(self, x: &[f32; 16]) -> Self::W;
    fn store16(self, v: Self::W, out: &mut [f32; 16]);
    /// Lanes 0 to 7, and 8 to 15.
    fn halves(self, v: Self::W) -> [Self::V; 2];
    /// The sixteen lanes with these halves.
    fn join(self, halves: [Self::V; 2]) -> Self::W;
    /// Eight values from little-endian binary16, then eight more.
    fn widen16_f16(self, a: &[u8; 16], b: &[u8; 16]) -> Self::W;

    fn add16(self, a: Self::W, b: Self::W) -> Self::W;
    fn sub16(self, a: Self::W, b: Self::W) -> Self::W;
    fn mul16(self, a: Self::W, b: Self::W) -> Self::W;
    fn div16(self, a: Self::W, b: Self::W) -> Self::W;
    /// The larger one, or `b` if one is NaN.
    fn max16(self, a: Self::W, b: Self::W) -> Self::W;
    /// `a * b + c`, rounded once.
    fn fma16(self, a: Self::W, b: Self::W, c: Self::W) -> Self::W;
    /// Rounds to the nearest integer, ties to even.
    fn round16(self, v: Self::W) -> Self::W;
    /// `2^n` for integers from -127 to 127, where `2^-127` is zero.
    fn pow2_16(self, n: Self::W) -> Self::W;
    /// The magnitude of `a` with the sign of `b`.
    fn copysign16(self, a: Self::W, b: Self::W) -> Self::W;
    /// Per lane, `yes` if `a < b`, otherwise `no`.
    fn select_less16(self, a: Self::W, b: Self::W, yes: Self::W, no: Self::W) -> Self::W;
    /// The largest lane.
    fn max_lane16(self, v: Self::W) -> f32;

    /// Per lane, numbered from `first` on, `v` if its number is in the range, otherwise `other`.
    #[inline(always)]
    fn keep16(
        self,
        v: Self::W,
        first: usize,
        range: &std::ops::Range<usize>,
        other: f32,
    ) -> Self::W {
        let mut lanes = [other; 16];
        let mut kept = [0.0; 16];
        self.store16(v, &mut kept);
        for (i, (lane, kept)) in lanes.iter_mut().zip(kept).enumerate() {
            if range.contains(&(first + i)) {
                *lane = kept;
            }
        }
        self.load16(&lanes)
    }
}

/// Sixteen elements from `at` on, with zeros past the end.
#[inline(always)]
pub(crate) fn load_from<L: Lanes>(l: L, x: &[f32], at: usize) -> L::W {
    let x = &x[at..];
    if let Some(x) = x.first_chunk::<16>() {
        return l.load16(x);
    }
    let mut padded = [0.0; 16];
    padded[..x.len()].copy_from_slice(x);
    l.load16(&padded)
}

/// Stores the sixteen elements from `at` on that are before the slice's end.
#[inline(always)]
pub(crate) fn store_to<L: Lanes>(l: L, v: L::W, out: &mut [f32], at: usize) {
    let out = &mut out[at..];
    if let Some(out) = out.first_chunk_mut::<16>() {
        l.store16(v, out);
        return;
    }
    let mut padded = [0.0; 16];
    l.store16(v, &mut padded);
    let n = out.len();
    out.copy_from_slice(&padded[..n]);
}

/// Lanes in plain Rust.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

/// Applies a function lane by lane.
#[inline(always)]
fn each<const N: usize>(f: impl Fn(usize) -> f32) -> [f32; N] {
    std::array::from_fn(f)
}

impl Eight for Scalar {
    type V = [f32; 8];

    fn splat(self, x: f32) -> Self::V {
        [x; 8]
    }

    fn load(self, x: &[f32; 8]) -> Self::V {
        *x
    }

    fn store(self, v: Self::V, out: &mut [f32; 8]) {
        *out = v;
    }

    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] + b[i])
    }

    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }

    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(|i| a[i].mul_add(b[i], c[i]))
    }

    fn sum(self, v: Self::V) -> f32 {
        ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))
    }

    fn sums(self, v: [Self::V; 4]) -> [f32; 4] {
        v.map(|v| self.sum(v))
    }

    fn transpose(self, v: [Self::V; 8]) -> [Self::V; 8] {
        std::array::from_fn(|j| each(|i| v[i][j]))
    }

    fn widen_f16(self, bytes: &[u8; 16]) -> Self::V {
        each(|i| half::f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32())
    }

    fn widen_bf16(self, bytes: &[u8; 16]) -> Self::V {
        each(|i| half::bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32())
    }

    fn widen_i8(self, bytes: &[u8; 8]) -> Self::V {
        each(|i| f32::from(bytes[i] as i8))
    }

    fn widen_e4m3(self, bytes: &[u8; 8]) -> Self::V {
        each(|i| if e4m3_is_nan(bytes[i]) { f32::NAN } else { e4m3(bytes[i]) })
    }

    fn low_nibbles(self, bytes: &[u8; 8]) -> Self::V {
        each(|i| f32::from(bytes[i] & 15) - 8.0)
    }

    fn high_nibbles(self, bytes: &[u8; 8]) -> Self::V {
        each(|i| f32::from(bytes[i] >> 4) - 8.0)
    }

    fn prefetch(self, _at: *const u8) {}

    fn prefetch_far(self, _at: *const u8) {}
}

impl Lanes for Scalar {
    type W = [f32; 16];

    const IS_WIDE: bool = false;

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    fn splat16(self, x: f32) -> Self::W {
        [x; 16]
    }

    fn load16(self, x: &[f32; 16]) -> Self::W {
        *x
    }

    fn store16(self, v: Self::W, out: &mut [f32; 16]) {
        *out = v;
    }

    fn halves(self, v: Self::W) -> [Self::V; 2] {
        [each(|i| v[i]), each(|i| v[i + 8])]
    }

    fn join(self, halves: [Self::V; 2]) -> Self::W {
        each(|i| halves[i / 8][i % 8])
    }

    fn widen16_f16(self, a: &[u8; 16], b: &[u8; 16]) -> Self::W {
        self.join([self.widen_f16(a), self.widen_f16(b)])
    }

    fn add16(self, a: Self::W, b: Self::W) -> Self::W {
        each(|i| a[i] + b[i])
    }

    fn sub16(self, a: Self::W, b: Self::W) -> Self::W {
        each(|i| a[i] - b[i])
    }

    fn mul16(self, a: Self::W, b: Self::W) -> Self::W {
        each(|i| a[i] * b[i])
    }

    fn div16(self, a: Self::W, b: Self::W) -> Self::W {
        each(|i| a[i] / b[i])
    }

    fn max16(self, a: Self::W, b: Self::W) -> Self::W {
        each(|i| larger(a[i], b[i]))
    }

    fn fma16(self, a: Self::W, b: Self::W, c: Self::W) -> Self::W {
        each(|i| a[i].mul_add(b[i], c[i]))
    }

    fn round16(self, v: Self::W) -> Self::W {
        each(|i| v[i].round_ties_even())
    }

    fn pow2_16(self, n: Self::W) -> Self::W {
        each(|i| f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }

    fn copysign16(self, a: Self::W, b: Self::W) -> Self::W {
        each(|i| a[i].copysign(b[i]))
    }

    fn select_less16(self, a: Self::W, b: Self::W, yes: Self::W, no: Self::W) -> Self::W {
        each(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }

    fn max_lane16(self, v: Self::W) -> f32 {
        let eight: [f32; 8] = each(|i| larger(v[i], v[i + 8]));
        let four: [f32; 4] = each(|i| larger(eight[i], eight[i + 4]));
        larger(larger(four[0], four[2]), larger(four[1], four[3]))
    }
}

/// The larger one, or `b` if one is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
