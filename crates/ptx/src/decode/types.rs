//! Instruction types, and the parsing of opcodes into modifiers.

use crate::program::lanes::Value;

use super::Unsupported;

/// A type of PTX instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    BF16,
    B32,
    U32,
    S32,
    F32,
    F16x2,
    BF16x2,
    B64,
    U64,
    S64,
    F64,
    Tf32,
    E4m3x2,
    E5m2x2,
}

impl Type {
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "f16" => Self::F16,
            "bf16" => Self::BF16,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "f32" => Self::F32,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::BF16x2,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f64" => Self::F64,
            "tf32" => Self::Tf32,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            _ => return None,
        })
    }

    pub(crate) fn bits(self) -> u8 {
        match self {
            Self::Pred => 1,
            Self::B8 | Self::U8 | Self::S8 => 8,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::BF16 => 16,
            Self::E4m3x2 | Self::E5m2x2 => 16,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::BF16x2 => 32,
            Self::Tf32 => 32,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        !self.is_integer() && self != Self::Pred
    }

    /// Whether it is an integer or untyped bits.
    pub(crate) fn is_integer(self) -> bool {
        self.is_signed()
            || matches!(
                self,
                Self::B8
                    | Self::U8
                    | Self::B16
                    | Self::U16
                    | Self::B32
                    | Self::U32
                    | Self::B64
                    | Self::U64
            )
    }
}

/// An opcode such as `ld.global.nc.v4.f32`. Decoders take the modifiers that they support, and any left over is an
/// error.
#[derive(Debug)]
pub(crate) struct Opcode<'a> {
    pub(crate) base: &'a str,
    mods: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let mut words = text.split('.');
        Self { base: words.next().unwrap_or_default(), mods: words.collect() }
    }

    /// Takes a modifier at any position.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let at = self.mods.iter().position(|m| *m == word);
        at.map(|at| self.mods.remove(at)).is_some()
    }

    /// Takes the first modifier that `parse` accepts.
    pub(crate) fn take_as<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, found) =
            self.mods.iter().enumerate().find_map(|(at, word)| Some((at, parse(word)?)))?;
        self.mods.remove(at);
        Some(found)
    }

    /// Takes one of `words`.
    pub(crate) fn take_of(&mut self, words: &[&'static str]) -> Option<&'static str> {
        self.take_as(|word| words.iter().find(|w| **w == word).copied())
    }

    /// Takes the first type.
    pub(crate) fn type_of(&mut self) -> Result<Type, Unsupported> {
        self.take_as(Type::parse).ok_or_else(|| Unsupported("a type is missing".to_owned()))
    }

    /// Takes the next modifier.
    pub(crate) fn next(&mut self) -> Option<&'a str> {
        (!self.mods.is_empty()).then(|| self.mods.remove(0))
    }

    /// Requires that all modifiers have been taken.
    pub(crate) fn done(&self) -> Result<(), Unsupported> {
        match self.mods.first() {
            None => Ok(()),
            Some(word) => Err(Unsupported(format!("the modifier `.{word}` is not known here"))),
        }
    }
}

impl Opcode<'_> {
    /// The last type, which is that of the operands.
    pub(crate) fn ty(&self) -> Option<Type> {
        self.mods.iter().rev().find_map(|word| Type::parse(word))
    }
}

/// Operations of all integer types.
pub(crate) trait Integer: Value + Ord {
    const BITS: u32;
    /// The upper half of the product.
    fn mul_high(self, other: Self) -> Self;
    fn quotient(self, other: Self) -> Self;
    fn remainder(self, other: Self) -> Self;
    /// The saturated sum.
    fn add_clamped(self, other: Self) -> Self;
    fn sub_clamped(self, other: Self) -> Self;
    /// The bits as an unsigned number.
    fn raw(self) -> u64;
    fn from_raw(bits: u64) -> Self;
    fn shifted_right(self, by: u32) -> Self;
}

macro_rules! integers {
    ($($type:ty, $unsigned:ty, $wide:ty;)*) => {$(
        impl Integer for $type {
            const BITS: u32 = <$type>::BITS;

            #[inline]
            fn mul_high(self, other: Self) -> Self {
                ((<$wide>::from(self) * <$wide>::from(other)) >> Self::BITS) as Self
            }

            #[inline]
            fn quotient(self, other: Self) -> Self {
                // PTX does not specify the result of a division by zero; an H100 returns all ones.
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }

            #[inline]
            fn remainder(self, other: Self) -> Self {
                // As above.
                if other == 0 { !0 } else { self.wrapping_rem(other) }
            }

            #[inline]
            fn add_clamped(self, other: Self) -> Self {
                self.saturating_add(other)
            }

            #[inline]
            fn sub_clamped(self, other: Self) -> Self {
                self.saturating_sub(other)
            }

            #[inline]
            fn raw(self) -> u64 {
                u64::from(self as $unsigned)
            }

            #[inline]
            fn from_raw(bits: u64) -> Self {
                bits as Self
            }

            #[inline]
            fn shifted_right(self, by: u32) -> Self {
                // For signed numbers, all bits are then copies of the sign.
                if by < Self::BITS { self >> by } else { (self >> (Self::BITS - 1)) >> 1 }
            }
        }
    )*};
}

integers! {
    u16, u16, u32;
    i16, u16, i32;
    u32, u32, u64;
    i32, u32, i64;
    u64, u64, u128;
    i64, u64, i128;
}

/// Runs `$body` with `$T` as the Rust type of integer type `$ty`; untyped bits are unsigned.
macro_rules! by_integer {
    ($ty:expr, $T:ident => $body:expr) => {
        match $ty {
            Type::U16 | Type::B16 => {
                type $T = u16;
                $body
            }
            Type::S16 => {
                type $T = i16;
                $body
            }
            Type::U32 | Type::B32 => {
                type $T = u32;
                $body
            }
            Type::S32 => {
                type $T = i32;
                $body
            }
            Type::U64 | Type::B64 => {
                type $T = u64;
                $body
            }
            Type::S64 => {
                type $T = i64;
                $body
            }
            other => Err(Unsupported(format!("the type {other:?} is not known here"))),
        }
    };
}
pub(crate) use by_integer;
