//! Which instruction sets the kernels may use, found out at run time.
//!
//! A [`Tier`] above scalar carries a token that only detection can make, so a
//! kernel that holds the token may call code compiled for that instruction set.

use std::fmt;

/// Proof that the processor has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The token, if the processor and the operating system support the
    /// instructions. The answer of the processor is cached by the standard library.
    pub fn detect() -> Option<Self> {
        let has = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// A set of instructions that kernels are written for.
///
/// ```
/// use realizar_kernels_cpu::Tier;
///
/// let best = Tier::detect();
/// assert!(Tier::available().any(|tier| tier == best));
/// assert_eq!(Tier::from_name("scalar"), Some(Tier::Scalar));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tier {
    /// Plain Rust, on any processor.
    Scalar,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Tier {
    /// The fastest tier of this processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(token) = Avx2::detect() {
            return Self::Avx2(token);
        }
        Self::Scalar
    }

    /// The tiers that run here, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        std::iter::once(Self::Scalar).chain((best != Self::Scalar).then_some(best))
    }

    /// The available tier of that name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::available().find(|tier| tier.name().eq_ignore_ascii_case(name))
    }

    /// The name people know, such as `avx2`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_the_same_tier() {
        for tier in Tier::available() {
            assert_eq!(Tier::from_name(&tier.to_string()), Some(tier));
            assert_eq!(Tier::from_name(&tier.name().to_uppercase()), Some(tier));
        }
        assert_eq!(Tier::from_name("sse9"), None);
        assert_eq!(Tier::available().next(), Some(Tier::Scalar));
        assert_eq!(Tier::available().last(), Some(Tier::detect()));
    }
}
