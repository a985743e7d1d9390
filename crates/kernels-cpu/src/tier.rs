//! Which instruction sets the kernels may use, found out at run time.
//!
//! A [`Tier`] above scalar carries a token that only detection can make, so a
//! kernel that holds the token may call code compiled for that instruction set.
//! The tiers above AVX2 contain it: a kernel that has no form for them asks
//! [`Tier::avx2`] and runs its AVX2 form. What a tier with tiles does without them is
//! [`Tier::vectors`].

use std::fmt;
use std::sync::LazyLock;

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;
#[cfg(target_arch = "x86_64")]
pub use x86::{AmxBf16, Avx2, Avx512, Avx512Bf16, AvxVnni};

/// Proof that the processor has AVX2, which here has no values.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Avx2 {}

/// Proof that the processor has AVX512-BF16, which here has no values.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Avx512Bf16 {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::is_x86_feature_detected as has;
    use std::sync::LazyLock;

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

    /// Proof that the processor converts to BF16 in registers of 512 bits, and what
    /// [`Avx512`] proves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Avx512Bf16(Avx512);

    impl Avx512Bf16 {
        /// The token, found as [`Avx2::detect`] finds its own.
        pub fn detect() -> Option<Self> {
            Avx512::detect().filter(|_| has!("avx512bf16")).map(Self)
        }

        /// The token of the set within this one.
        pub const fn avx512(self) -> Avx512 {
            self.0
        }
    }

    /// Proof that the processor has the tiles of AMX and their products of BF16, that the
    /// system keeps them for this process, and what [`Avx512Bf16`] proves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AmxBf16(Avx512Bf16);

    impl AmxBf16 {
        /// The token. The first call asks the processor and then the system, which gives
        /// the permission to the whole process.
        pub fn detect() -> Option<Self> {
            static HAS: LazyLock<bool> = LazyLock::new(|| {
                let [tile, _, bf16] = crate::features::amx();
                tile && bf16 && permit_tiles()
            });
            Avx512Bf16::detect().filter(|_| *HAS).map(Self)
        }

        /// The token of the set within this one.
        pub const fn bf16(self) -> Avx512Bf16 {
            self.0
        }
    }

    /// Asks Linux to keep the contents of tiles for this process, whose threads may use them
    /// from then on (Documentation/arch/x86/xstate.rst in the source of Linux).
    #[cfg(target_os = "linux")]
    fn permit_tiles() -> bool {
        const SYS_ARCH_PRCTL: usize = 158;
        const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
        const XFEATURE_XTILEDATA: usize = 18;
        let result: usize;
        // SAFETY: the call takes two numbers and reads or writes no memory of the process; the
        // kernel changes no other registers than these.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") SYS_ARCH_PRCTL => result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        result == 0
    }

    /// How other systems permit tiles is not known here.
    #[cfg(not(target_os = "linux"))]
    fn permit_tiles() -> bool {
        false
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
    /// Activations and weights rounded to BF16, sums in F32:
    /// [`matmul_bf16`](crate::matmul_bf16).
    Bf16,
}

/// The products of BF16 tiles in plain Rust, with the bits of AMX, for any processor: a tier
/// for tests and proofs. Everything else runs as on the best tier without tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareTiles {
    vectors: &'static Tier,
    bf16: Option<Avx512Bf16>,
}

impl SoftwareTiles {
    fn new() -> Self {
        static VECTORS: LazyLock<Tier> = LazyLock::new(|| Tier::detect().vectors());
        #[cfg(target_arch = "x86_64")]
        let bf16 = Avx512Bf16::detect();
        #[cfg(not(target_arch = "x86_64"))]
        let bf16 = None;
        Self { vectors: &VECTORS, bf16 }
    }

    /// Software tiles on one of the tiers of the processor.
    #[cfg(test)]
    pub(crate) fn on(vectors: &'static Tier) -> Self {
        Self { vectors, bf16: None }
    }

    /// The tier of what has no tiles.
    pub const fn vectors(self) -> Tier {
        *self.vectors
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
    /// AVX2 with the 8-bit dot products of AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// AVX-512 with the 8-bit dot products of VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// AVX-512 with the BF16 tiles of AMX, on which prompts are computed.
    #[cfg(target_arch = "x86_64")]
    AmxBf16(AmxBf16),
    /// NEON with 8-bit dot products. Products with packed weights use them; the other
    /// kernels are plain Rust, for which the compiler uses NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// The arithmetic of [`PackedArithmetic::Bf16`] on any processor, with tiles in plain
    /// Rust. Slow, and never what [`Tier::detect`] gives.
    AmxBf16Software(SoftwareTiles),
}

impl Tier {
    /// The fastest tier of this processor.
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::Scalar)
    }

    /// The tier of software tiles, which every processor runs.
    pub fn software_tiles() -> Self {
        Self::AmxBf16Software(SoftwareTiles::new())
    }

    /// The tiers of this processor's instructions, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let vectors = [
            Avx2::detect().map(Self::Avx2),
            AvxVnni::detect().map(Self::AvxVnni),
            Avx512::detect().map(Self::Avx512),
            AmxBf16::detect().map(Self::AmxBf16),
        ];
        #[cfg(target_arch = "aarch64")]
        let vectors = [Neon::detect().map(Self::Neon)];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let vectors: [Option<Self>; 0] = [];
        std::iter::once(Self::Scalar).chain(vectors.into_iter().flatten())
    }

    /// The tiers that can be requested by name: those of the instructions, slowest first,
    /// then that of software tiles.
    pub fn selectable() -> impl Iterator<Item = Self> {
        Self::available().chain([Self::software_tiles()])
    }

    /// The tier of that name, in any case, if it can be requested here.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::selectable().find(|tier| tier.name().eq_ignore_ascii_case(name))
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
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16(_) => "amx-bf16",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon-dotprod",
            Self::AmxBf16Software(_) => "amx-bf16-software",
        }
    }

    /// In what prefill rows meet packed weights on this tier, and float weights by default.
    /// Decode rows have [`PackedArithmetic::Int8`] on every tier, and so the same bits; so have
    /// rows in [two planes](crate::QuantizedRows::quantize_in_planes).
    pub const fn prompt_arithmetic(self) -> PackedArithmetic {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16(_) => PackedArithmetic::Bf16,
            Self::AmxBf16Software(_) => PackedArithmetic::Bf16,
            _ => PackedArithmetic::Int8,
        }
    }

    /// The tier of the kernels that have no form for tiles: this one, or the one within it.
    pub const fn vectors(self) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16(token) => Self::Avx512(token.bf16().avx512()),
            Self::AmxBf16Software(tiles) => tiles.vectors(),
            tier => tier,
        }
    }

    /// The token of AVX2, which every tier above it holds too.
    pub const fn avx2(self) -> Option<Avx2> {
        match self.vectors() {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(token) => Some(token),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(token) => Some(token.avx2()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(token) => Some(token.avx2()),
            _ => None,
        }
    }

    /// The token of AVX512-BF16, which the tiers with tiles hold where the processor has it.
    pub(crate) const fn avx512_bf16(self) -> Option<Avx512Bf16> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16(token) => Some(token.bf16()),
            Self::AmxBf16Software(tiles) => tiles.bf16,
            _ => None,
        }
    }

    /// The token of AVX-512, which every tier above it holds too.
    #[cfg(target_arch = "x86_64")]
    pub const fn avx512(self) -> Option<Avx512> {
        match self.vectors() {
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
        for tier in Tier::selectable() {
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

    #[test]
    fn software_tiles_run_everywhere_and_are_never_chosen() {
        let software = Tier::from_name("amx-bf16-software").expect("on every processor");
        assert_eq!(software, Tier::software_tiles());
        assert!(Tier::available().all(|tier| tier != software));
        assert_eq!(software.vectors(), Tier::detect().vectors());
        assert_eq!(software.avx2(), Tier::detect().avx2());
        assert_eq!(software.prompt_arithmetic(), PackedArithmetic::Bf16);
        for tier in Tier::available() {
            let has_tiles = tier.name() == "amx-bf16";
            let expected = if has_tiles { PackedArithmetic::Bf16 } else { PackedArithmetic::Int8 };
            assert_eq!(tier.prompt_arithmetic(), expected, "{tier}");
            assert_eq!(tier.vectors() == tier, !has_tiles, "{tier}");
        }
    }
}
