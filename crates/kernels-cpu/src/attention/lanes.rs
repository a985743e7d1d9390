//! Eight lanes of f32 as the kernels of attention see them, and their scalar form.
//!
//! A kernel is written once over [`Lanes`]. Every form of the lanes rounds each
//! operation alike (multiply-adds are fused, sums over lanes have one tree), so a
//! kernel gives the same bits on each. The AVX2 form is in `avx2.rs`.

use crate::Tier;

/// Code that is compiled once for each form of the lanes.
pub(super) trait Kernel {
    type Output;

    /// Runs the code. Always inlined into [`Lanes::run`], as is what it calls.
    fn run<L: Lanes>(self, l: L) -> Self::Output;
}

/// Runs a kernel with the instructions of a tier.
#[inline]
pub(super) fn dispatch<K: Kernel>(tier: Tier, kernel: K) -> K::Output {
    match tier.avx2() {
        None => Scalar.run(kernel),
        #[cfg(target_arch = "x86_64")]
        Some(token) => token.run(kernel),
    }
}

/// Operations on vectors of eight f32.
pub(super) trait Lanes: Copy {
    type V: Copy;

    /// Runs a kernel in a function that is compiled for these instructions.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; 8]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; 8]);

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger, or `b` where one is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    fn round(self, v: Self::V) -> Self::V;
    /// `2^n` for integers from -127 to 127, where `2^-127` is zero.
    fn pow2(self, n: Self::V) -> Self::V;
    /// The magnitude of `a` with the sign of `b`.
    fn copysign(self, a: Self::V, b: Self::V) -> Self::V;
    /// Of each lane, `yes` where `a < b` and `no` elsewhere.
    fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;

    /// The sum of the lanes: `((0+1) + (2+3)) + ((4+5) + (6+7))`.
    fn sum(self, v: Self::V) -> f32;
    /// The sums of the lanes of each vector, in the order of [`Self::sum`].
    fn sums(self, v: [Self::V; 4]) -> [f32; 4];
    /// The largest lane.
    fn max_lane(self, v: Self::V) -> f32;
    /// Lane `j` of vector `i` becomes lane `i` of vector `j`.
    fn transpose(self, v: [Self::V; 8]) -> [Self::V; 8];

    /// Eight values from little-endian binary16.
    fn widen_f16(self, bytes: &[u8; 16]) -> Self::V;
    /// Eight values from little-endian bfloat16.
    fn widen_bf16(self, bytes: &[u8; 16]) -> Self::V;
    /// Eight values from signed bytes.
    fn widen_i8(self, bytes: &[u8; 8]) -> Self::V;
    /// The low nibble of each byte less 8.
    fn low_nibbles(self, bytes: &[u8; 8]) -> Self::V;
    /// The high nibble of each byte less 8.
    fn high_nibbles(self, bytes: &[u8; 8]) -> Self::V;
    /// Asks for the cache line of an address.
    fn prefetch(self, at: *const u8);

    /// Of each lane from `first` on, `v` where the lane is in the range, else `other`.
    #[inline(always)]
    fn keep(self, v: Self::V, first: usize, range: &std::ops::Range<usize>, other: f32) -> Self::V {
        let mut lanes = [other; 8];
        let mut kept = [0.0; 8];
        self.store(v, &mut kept);
        for (i, (lane, kept)) in lanes.iter_mut().zip(kept).enumerate() {
            if range.contains(&(first + i)) {
                *lane = kept;
            }
        }
        self.load(&lanes)
    }
}

/// Lanes in plain Rust.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scalar;

/// Applies a function lane by lane.
#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; 8] {
    std::array::from_fn(f)
}

impl Lanes for Scalar {
    type V = [f32; 8];

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

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

    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] - b[i])
    }

    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }

    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] / b[i])
    }

    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(|i| a[i].mul_add(b[i], c[i]))
    }

    fn round(self, v: Self::V) -> Self::V {
        each(|i| v[i].round_ties_even())
    }

    fn pow2(self, n: Self::V) -> Self::V {
        each(|i| f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }

    fn copysign(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i].copysign(b[i]))
    }

    fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        each(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }

    fn sum(self, v: Self::V) -> f32 {
        ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))
    }

    fn sums(self, v: [Self::V; 4]) -> [f32; 4] {
        v.map(|v| self.sum(v))
    }

    fn max_lane(self, v: Self::V) -> f32 {
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        let four: [f32; 4] = std::array::from_fn(|i| larger(v[i], v[i + 4]));
        larger(larger(four[0], four[2]), larger(four[1], four[3]))
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

    fn low_nibbles(self, bytes: &[u8; 8]) -> Self::V {
        each(|i| f32::from(bytes[i] & 15) - 8.0)
    }

    fn high_nibbles(self, bytes: &[u8; 8]) -> Self::V {
        each(|i| f32::from(bytes[i] >> 4) - 8.0)
    }

    fn prefetch(self, _at: *const u8) {}
}
