//! Kernels of the float types: weights are widened to f32 as they are read, and products are f32.
//!
//! A row is summed in 32 lanes; lane `i` adds the values `i, i + 32, …`. The lanes are added in a
//! fixed order, and the values past the last multiple of 32 are added one by one.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::simd::prefetch_far;
use super::{Dot, Kernels, Widen};
#[cfg(target_arch = "x86_64")]
use crate::lanes;
#[cfg(target_arch = "x86_64")]
use crate::streams::{PREFETCH_FAR_BYTES, prefers_one};

/// A float type with `BYTES` bytes per value.
pub(super) trait Float<const BYTES: usize> {
    /// Converts one value.
    fn widen(bytes: [u8; BYTES]) -> f32;

    /// Converts 8 values.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and `bytes` holds 8 values.
    #[cfg(target_arch = "x86_64")]
    unsafe fn widen8(bytes: &[[u8; BYTES]; 8]) -> __m256;
}

/// The kernels of a type.
pub(super) const fn kernels<T: Float<BYTES>, const BYTES: usize>() -> Kernels {
    let dot = Dot {
        scalar: dot::<T, BYTES>,
        #[cfg(target_arch = "x86_64")]
        avx2: dot_avx2::<T, BYTES>,
    };
    let widen = Widen {
        scalar: widen::<T, BYTES>,
        #[cfg(target_arch = "x86_64")]
        avx2: widen_avx2::<T, BYTES>,
    };
    Kernels { widen, dot: Some(dot) }
}

fn dot<T: Float<BYTES>, const BYTES: usize>(w: &[&[u8]], x: &[&[f32]], out: &mut [f32]) {
    for (w, out) in w.iter().zip(out.chunks_exact_mut(x.len())) {
        let w = w.as_chunks::<BYTES>().0;
        for (x, out) in x.iter().zip(out) {
            let ((w, w_tail), (x, x_tail)) = (w.as_chunks::<32>(), x.as_chunks::<32>());
            let mut lanes = [0.0; 32];
            for (w, x) in w.iter().zip(x) {
                for i in 0..32 {
                    lanes[i] += T::widen(w[i]) * x[i];
                }
            }
            let tail = w_tail.iter().zip(x_tail).map(|(&w, &x)| T::widen(w) * x);
            *out = lanes.iter().sum::<f32>() + tail.sum::<f32>();
        }
    }
}

fn widen<T: Float<BYTES>, const BYTES: usize>(w: &[u8], out: &mut [f32]) {
    for (&w, out) in w.as_chunks::<BYTES>().0.iter().zip(out) {
        *out = T::widen(w);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_avx2<T: Float<BYTES>, const BYTES: usize>(w: &[&[u8]], x: &[&[f32]], out: &mut [f32]) {
    for (w, out) in w.iter().zip(out.chunks_exact_mut(x.len())) {
        let w = w.as_chunks::<BYTES>().0;
        match *x {
            [x0] => dot_row::<T, BYTES, 1>(w, [x0], out),
            [x0, x1] => dot_row::<T, BYTES, 2>(w, [x0, x1], out),
            [x0, x1, x2, x3] => {
                dot_row::<T, BYTES, 2>(w, [x0, x1], &mut out[..2]);
                dot_row::<T, BYTES, 2>(w, [x2, x3], &mut out[2..]);
            }
            _ => panic!("no kernel for {} rows", x.len()),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_row<T: Float<BYTES>, const BYTES: usize, const N: usize>(
    w: &[[u8; BYTES]],
    x: [&[f32]; N],
    out: &mut [f32],
) {
    let (w, w_tail) = w.as_chunks::<32>();
    let (x, x_tail) = chunks(x, w.len());
    let mut acc = [[_mm256_setzero_ps(); 4]; N];
    let is_far = prefers_one();
    for (b, w) in w.iter().enumerate() {
        if is_far {
            for line in 0..size_of_val(w).div_ceil(64) {
                prefetch_far(w.as_ptr().wrapping_byte_add(PREFETCH_FAR_BYTES + 64 * line));
            }
        }
        let w = w.as_chunks::<8>().0;
        for i in 0..4 {
            // SAFETY: this function has the features that `widen8` asks for.
            let w = unsafe { T::widen8(&w[i]) };
            for n in 0..N {
                let x = lanes::load(&x[n][b].as_chunks::<8>().0[i]);
                acc[n][i] = _mm256_fmadd_ps(w, x, acc[n][i]);
            }
        }
    }
    for n in 0..N {
        let [a, b, c, d] = acc[n];
        let sum = lanes::sum(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
        out[n] = sum;
        for (&w, &x) in w_tail.iter().zip(x_tail[n]) {
            out[n] = T::widen(w).mul_add(x, out[n]);
        }
    }
}

/// The first `n_chunks` chunks of each row, and the remainder. A function of its own, because closures
/// in array combinators do not inherit the kernel's target features.
#[cfg(target_arch = "x86_64")]
#[inline]
fn chunks<const N: usize>(x: [&[f32]; N], n_chunks: usize) -> ([&[[f32; 32]]; N], [&[f32]; N]) {
    let x = x.map(<[f32]>::as_chunks::<32>);
    (x.map(|(chunks, _)| &chunks[..n_chunks]), x.map(|(_, tail)| tail))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_avx2<T: Float<BYTES>, const BYTES: usize>(w: &[u8], out: &mut [f32]) {
    let (w, w_tail) = w.as_chunks::<BYTES>().0.as_chunks::<8>();
    let (out, out_tail) = out.as_chunks_mut::<8>();
    for (w, out) in w.iter().zip(out) {
        // SAFETY: this function has the features that `widen8` asks for.
        lanes::store(unsafe { T::widen8(w) }, out);
    }
    for (&w, out) in w_tail.iter().zip(out_tail) {
        *out = T::widen(w);
    }
}
