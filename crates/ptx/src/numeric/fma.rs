//! `fma.rn.f32` of all lanes, by the processor's instruction if it has one.

use super::canonical;
use super::round::{Rounding, fma_odd};

/// `x * y + z` of every lane, rounded once to nearest.
pub(crate) type FmaLanes<const N: usize> = fn(&[u32; N], &[u32; N], &[u32; N]) -> [u32; N];

/// The implementation for this processor.
pub(crate) fn fma_lanes<const N: usize>() -> FmaLanes<N> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2") {
        return |x, y, z| {
            // SAFETY: both features were detected above.
            unsafe { by_instruction(x, y, z) }
        };
    }
    portable
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma,avx2")]
fn by_instruction<const N: usize>(x: &[u32; N], y: &[u32; N], z: &[u32; N]) -> [u32; N] {
    std::array::from_fn(|i| {
        let [x, y, z] = [x[i], y[i], z[i]].map(f32::from_bits);
        canonical(x.mul_add(y, z))
    })
}

fn portable<const N: usize>(x: &[u32; N], y: &[u32; N], z: &[u32; N]) -> [u32; N] {
    std::array::from_fn(|i| {
        let [x, y, z] = [x[i], y[i], z[i]].map(f32::from_bits);
        canonical(Rounding::Near.f32(fma_odd(x, y, z)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANES: usize = 32;

    #[test]
    fn both_ways_agree_with_the_library() {
        let mut seed = 1u64;
        let mut random = || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 32) as u32
        };
        for round in 0..2000 {
            // In every second round the numbers have similar exponents, so that sums cancel.
            let near =
                |bits: u32| if round % 2 == 0 { bits } else { bits & 0x81ff_ffff | 0x3e00_0000 };
            let [x, y, z]: [[u32; LANES]; 3] =
                std::array::from_fn(|_| std::array::from_fn(|_| near(random())));
            let expected: [u32; LANES] = std::array::from_fn(|i| {
                let [x, y, z] = [x[i], y[i], z[i]].map(f32::from_bits);
                canonical(x.mul_add(y, z))
            });
            assert_eq!(portable(&x, &y, &z), expected);
            assert_eq!(fma_lanes()(&x, &y, &z), expected);
        }
    }
}
