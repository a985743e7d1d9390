//! Which instruction sets the kernels may use, found out at run time.
//!
//! A [`Tier`] above scalar carries a token that only detection can make, so a
//! kernel that holds the token may call code compiled for that instruction set.
//! The tiers above AVX2 contain it: a kernel that has no form for them asks
//! [`Tier::avx2`] and runs its AVX2 form.

use std::fmt;

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512, AvxVnni};

/// Proof that the processor has AVX2, which here has no values.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Avx2 {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::is_x86_feature_detected as has;

    /// Proof that the processor has AVX2, FMA and F16C.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Avx2(());

    impl Avx2 {
        /// The token, if the processor and the operating system support the
        /// instructions. The answer of the processor is cached by the standard library.
        pub fn detect() -> Option<Self> {
            (has!("avx2") && has!("fma") && has!("f16c")).then_some(Self(()))
        }
    }

    /// Proof that the processor has AVX-VNNI, 8-bit dot products in registers of
    /// 256 bits, and what [`Avx2`] proves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AvxVnni(Avx2);

    impl AvxVnni {
        /// The token, found as [`Avx2::detect`] finds its own.
        pub fn detect() -> Option<Self> {
            Avx2::detect().filter(|_| has!("avxvnni")).map(Self)
        }

        /// The token of the set within this one.
        pub const fn avx2(self) -> Avx2 {
            self.0
        }
    }

    /// Proof that the processor has AVX-512 F, BW, DQ, VL and VNNI, 8-bit dot
    /// products in registers of 512 bits, and what [`Avx2`] proves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Avx512(Avx2);

    impl Avx512 {
        /// The token, found as [`Avx2::detect`] finds its own.
        pub fn detect() -> Option<Self> {
            let has_all = has!("avx512f")
                && has!("avx512bw")
                && has!("avx512dq")
                && has!("avx512vl")
                && has!("avx512vnni");
            Avx2::detect().filter(|_| has_all).map(Self)
        }

        /// The token of the set within this one.
        pub const fn avx2(self) -> Avx2 {
            self.0
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::is_aarch64_feature_detected as has;

    /// Proof that the processor has NEON with its 8-bit dot products.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Neon(());

    impl Neon {
        /// The token, if the processor and the operating system support the
        /// instructions. The answer of the processor is cached by the standard library.
        pub fn detect() -> Option<Self> {
            (has!("neon") && has!("dotprod")).then_some(Self(()))
        }
    }
}

/// In what rows of activations are multiplied with packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedArithmetic {
    /// Activations of 8 bits with a scale per 16, exact sums of 16 columns:
    /// [`matmul_packed`](crate::matmul_packed).
    Int8,
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
    /// AVX2 with the 8-bit dot products of AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// AVX-512 with the 8-bit dot products of VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// NEON with 8-bit dot products. Products with packed weights use them; the other
    /// kernels are plain Rust, for which the compiler uses NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl Tier {
    /// The fastest tier of this processor.
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::Scalar)
    }

    /// The tiers that run here, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let vectors = [
            Avx2::detect().map(Self::Avx2),
            AvxVnni::detect().map(Self::AvxVnni),
            Avx512::detect().map(Self::Avx512),
        ];
        #[cfg(target_arch = "aarch64")]
        let vectors = [Neon::detect().map(Self::Neon)];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let vectors: [Option<Self>; 0] = [];
        std::iter::once(Self::Scalar).chain(vectors.into_iter().flatten())
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
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512-vnni",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon-dotprod",
        }
    }

    /// In what prefill rows meet packed weights on this tier. Decode rows have
    /// [`PackedArithmetic::Int8`] on every tier, and so the same bits.
    pub const fn prompt_arithmetic(self) -> PackedArithmetic {
        PackedArithmetic::Int8
    }

    /// The token of AVX2, which every tier above it holds too.
    pub const fn avx2(self) -> Option<Avx2> {
        match self {
            Self::Scalar => None,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => None,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(token) => Some(token),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(token) => Some(token.avx2()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(token) => Some(token.avx2()),
        }
    }

    /// The token of AVX-512, which every tier above it holds too.
    #[cfg(target_arch = "x86_64")]
    pub const fn avx512(self) -> Option<Avx512> {
        match self {
            Self::Avx512(token) => Some(token),
            _ => None,
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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn tiers_above_avx2_hold_its_token() {
        for tier in Tier::available() {
            assert_eq!(tier.avx2().is_some(), tier != Tier::Scalar, "{tier}");
            assert_eq!(tier.avx2(), Avx2::detect().filter(|_| tier != Tier::Scalar), "{tier}");
        }
    }
}
