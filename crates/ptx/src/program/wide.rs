//! Loops over lanes, compiled for the widest vectors that the processor has.
//!
//! The loops are written once, as functions that are always inlined. [`wide`] makes of such a function one
//! that is compiled for vectors of 512 bits, and calls it where the processor has them. Results are the
//! same: no operation changes with the width.

use std::sync::LazyLock;

/// Does the processor have vectors of 512 bits, with all that [`wide`] compiles for?
#[inline]
pub(crate) fn is_wide() -> bool {
    static IS_WIDE: LazyLock<bool> = LazyLock::new(|| {
        #[cfg(target_arch = "x86_64")]
        {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("bmi2")
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            false
        }
    });
    *IS_WIDE
}

/// `wide!(f in fn name(x: X) -> R)` makes `name`, which calls `f(x)` compiled for the processor where
/// [`is_wide`] holds; `name<; const N: usize>` where there is a number of something.
macro_rules! wide {
    (
        $body:ident in $vis:vis fn $name:ident $(<; const $n:ident: usize>)?
        ($($arg:ident : $ty:ty),* $(,)?) $(-> $out:ty)?
    ) => {
        #[inline]
        $vis fn $name$(<const $n: usize>)?($($arg: $ty),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
                fn on_wide$(<const $n: usize>)?($($arg: $ty),*) $(-> $out)? {
                    $body($($arg),*)
                }
                if $crate::program::wide::is_wide() {
                    // SAFETY: all of these features were detected.
                    return unsafe { on_wide($($arg),*) };
                }
            }
            $body($($arg),*)
        }
    };
}
pub(crate) use wide;
