//! Lane loops, compiled for the widest vectors of the processor.
//!
//! Loops are written once as always-inlined functions. For each, [`wide`] generates a copy that is compiled for 512-bit
//! vectors and called on processors that have them. The results do not depend on the vector width.

use std::sync::LazyLock;

/// Whether the processor has 512-bit vectors and all other features that [`wide`] compiles for.
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

/// `wide!(f in fn name(x: X) -> R)` defines `name`, which calls `f(x)` compiled for the processor's vectors if
/// [`is_wide`] holds. `name<; const N: usize>` adds a const parameter.
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
