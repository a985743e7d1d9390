//! Tiers: the instruction sets that kernels are written for, detected at run time.
//!
//! Every [`Tier`] except scalar carries a token that only detection can create. A kernel that holds
//! the token may therefore call code compiled for its instruction set. A higher x86 tier also holds
//! the tokens of the tiers below: a kernel without a form for it runs its AVX2 form by
//! [`Tier::avx2`]. [`Tier::vectors`] is the tier for kernels that do not use matrix tiles.

use std::fmt;
use std::sync::LazyLock;

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;
#[cfg(target_arch = "x86_64")]
pub use x86::{AmxBf16, Avx2, Avx512, Avx512Bf16, AvxVnni};

/// Uninhabited on this architecture: there is no AVX2.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Avx2 {}

/// Uninhabited on this architecture: there is no AVX512-BF16.
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
        /// The token, if the processor and the operating system support the instructions. The standard library
        /// caches the answer.
        pub fn detect() -> Option<Self> {
            (has!("avx2") && has!("fma") && has!("f16c")).then_some(Self(()))
        }
    }

    /// Proof that the processor has AVX-VNNI (8-bit dot products in 256-bit registers) and everything that
    /// [`Avx2`] proves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AvxVnni(Avx2);

    impl AvxVnni {
        /// The token, if the processor and the operating system support the instructions.
        pub fn detect() -> Option<Self> {
            Avx2::detect().filter(|_| has!("avxvnni")).map(Self)
        }

        /// The token of the instruction set that this one includes.
        pub const fn avx2(self) -> Avx2 {
            self.0
        }
    }

    /// Proof that the processor has AVX-512 F, BW, DQ, VL and VNNI (8-bit dot products in 512-bit
    /// registers) and everything that [`Avx2`] proves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Avx512(Avx2);

    impl Avx512 {
        /// The token, if the processor and the operating system support the instructions.
        pub fn detect() -> Option<Self> {
            let has_all = has!("avx512f")
                && has!("avx512bw")
                && has!("avx512dq")
                && has!("avx512vl")
                && has!("avx512vnni");
            Avx2::detect().filter(|_| has_all).map(Self)
        }

        /// The token of the instruction set that this one includes.
        pub const fn avx2(self) -> Avx2 {
            self.0
        }
    }

    /// Proof that the processor has AVX512-BF16 (conversion to BF16 in 512-bit registers) and everything
    /// that [`Avx512`] proves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Avx512Bf16(Avx512);

    impl Avx512Bf16 {
        /// The token, if the processor and the operating system support the instructions.
        pub fn detect() -> Option<Self> {
            Avx512::detect().filter(|_| has!("avx512bf16")).map(Self)
        }

        /// The token of the instruction set that this one includes.
        pub const fn avx512(self) -> Avx512 {
            self.0
        }
    }

    /// Proof that the processor has AMX-TILE and AMX-BF16, that the operating system permits them to this
    /// process, and of everything that [`Avx512Bf16`] proves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AmxBf16(Avx512Bf16);

    impl AmxBf16 {
        /// The token, if the processor supports the instructions and the operating system permits them. The
        /// first call requests the permission, which holds for the whole process.
        pub fn detect() -> Option<Self> {
            static HAS: LazyLock<bool> = LazyLock::new(|| {
                let [tile, _, bf16] = crate::features::amx();
                tile && bf16 && permit_tiles()
            });
            Avx512Bf16::detect().filter(|_| *HAS).map(Self)
        }

        /// The token of the instruction set that this one includes.
        pub const fn bf16(self) -> Avx512Bf16 {
            self.0
        }
    }

    /// Requests permission for tile data from Linux. Afterwards all threads of the process may use tiles
    /// (Documentation/arch/x86/xstate.rst in the kernel's source).
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

    /// Tiles are used on Linux only.
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
        /// The token, if the processor and the operating system support the instructions. The standard library
        /// caches the answer.
        pub fn detect() -> Option<Self> {
            (has!("neon") && has!("dotprod")).then_some(Self(()))
        }
    }
}

/// The arithmetic in which activation rows are multiplied with packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedArithmetic {
    /// 8-bit activations with one scale per 16 columns, exact integer sums over 16 columns:
    /// [`matmul_packed`](crate::matmul_packed).
    Int8,
    /// Activations and weights rounded to BF16, sums in F32: [`matmul_bf16`](crate::matmul_bf16).
    Bf16,
}

/// BF16 tile products in plain Rust with the bits of AMX, so that tests run on any processor. All other
/// kernels run as on the best tier without tiles.
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

    /// Software tiles, with all other kernels on tier `vectors`.
    #[cfg(test)]
    pub(crate) fn on(vectors: &'static Tier) -> Self {
        Self { vectors, bf16: None }
    }

    /// The tier of the kernels that do not use tiles.
    pub const fn vectors(self) -> Tier {
        *self.vectors
    }
}

/// An instruction set that kernels are written for.
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
    /// AVX-512 with the BF16 tiles of AMX, which multiply prefill rows.
    #[cfg(target_arch = "x86_64")]
    AmxBf16(AmxBf16),
    /// NEON with 8-bit dot products, which products with packed weights use. The other kernels are plain
    /// Rust that the compiler vectorizes.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// [`PackedArithmetic::Bf16`] in plain Rust, on any processor. [`Tier::detect`] never returns it.
    AmxBf16Software(SoftwareTiles),
}

impl Tier {
    /// The fastest tier of this processor.
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::Scalar)
    }

    /// The tier of software tiles.
    pub fn software_tiles() -> Self {
        Self::AmxBf16Software(SoftwareTiles::new())
    }

    /// The tiers that this processor supports in hardware, slowest first.
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

    /// The tiers that can be requested by name: the [available](Self::available) ones, then software
    /// tiles.
    pub fn selectable() -> impl Iterator<Item = Self> {
        Self::available().chain([Self::software_tiles()])
    }

    /// The [selectable](Self::selectable) tier of this name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::selectable().find(|tier| tier.name().eq_ignore_ascii_case(name))
    }

    /// The tier's name, such as `avx2`.
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

    /// The arithmetic of prefill rows with packed weights, and by default with float weights. Decode rows,
    /// and rows in [two planes](crate::QuantizedRows::quantize_in_planes), always take
    /// [`PackedArithmetic::Int8`], and so have the same bits on every tier.
    pub const fn prompt_arithmetic(self) -> PackedArithmetic {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16(_) => PackedArithmetic::Bf16,
            Self::AmxBf16Software(_) => PackedArithmetic::Bf16,
            _ => PackedArithmetic::Int8,
        }
    }

    /// The tier for kernels that do not use tiles: this one, or the one that it includes.
    pub const fn vectors(self) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16(token) => Self::Avx512(token.bf16().avx512()),
            Self::AmxBf16Software(tiles) => tiles.vectors(),
            tier => tier,
        }
    }

    /// The token of AVX2, if the tier includes it.
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

    /// The token of AVX512-BF16, if the tier includes it.
    pub(crate) const fn avx512_bf16(self) -> Option<Avx512Bf16> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16(token) => Some(token.bf16()),
            Self::AmxBf16Software(tiles) => tiles.bf16,
            _ => None,
        }
    }

    /// The token of AVX-512, if the tier includes it.
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
