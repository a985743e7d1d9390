//! `cvt`: conversions between integer and float types.

use crate::numeric::format::{
    BF16, E4M3, E5M2, F16, Format, TF32, f16_to_f32, f32_to_bf16, f32_to_f16,
};
use crate::numeric::round::Rounding;
use crate::numeric::{NAN32, canonical, flush, saturate};
use crate::program::lanes::{LANES, LaneFn, Reg, Registers, lanes_of, map1, map2};
use crate::syntax::Operand;

use super::operands::take;
use super::types::{Opcode, Type};
use super::{Decoded, Decoder, Unsupported};

/// The modifiers of a conversion.
#[derive(Debug, Clone, Copy)]
struct Modifiers {
    rounding: Option<Rounding>,
    integer: Option<Rounding>,
    ftz: bool,
    sat: bool,
    relu: bool,
    satfinite: bool,
}

impl Decoder<'_> {
    pub(super) fn conversions(
        &mut self,
        opcode: &mut Opcode<'_>,
        args: &[Operand],
    ) -> Option<Decoded> {
        (opcode.base == "cvt").then(|| self.cvt(opcode, args))
    }

    fn cvt(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        if opcode.take("pack") {
            return self.pack_integers(opcode, args);
        }
        let modifiers = Modifiers {
            rounding: opcode.take_as(Rounding::parse),
            integer: opcode.take_as(Rounding::parse_integer),
            ftz: opcode.take("ftz"),
            sat: opcode.take("sat"),
            relu: opcode.take("relu"),
            satfinite: opcode.take("satfinite"),
        };
        let (to, from) = (opcode.type_of()?, opcode.type_of()?);
        if let (Some(format), Some(_)) = (pair_format(to), args.get(2)) {
            return self.narrow_pair(format, to, from, modifiers, args);
        }
        if let (Some(wide), Some(narrow)) = (pair_format(to), pair_format(from)) {
            return self.widen_pair(wide, narrow, to, from, modifiers, args);
        }
        let [d, a] = take::<2>(args)?;
        let a = self.any_src(a, from)?;
        let d = self.any_dst(d)?;
        let fits = |reg: Reg, ty: Type| {
            reg.bits >= ty.bits() && (reg.bits == ty.bits() || ty.is_integer())
        };
        if !fits(a, from) || !fits(d, to) {
            return Err(Unsupported("a register of another size".to_owned()));
        }
        if let Some(f) = common(d, a, to, from, modifiers) {
            return Self::lanes(f);
        }
        let extend = to.is_signed();
        let from_signed = from.is_signed();
        let widen = move |x: u64| match (from.bits(), from_signed) {
            (8, true) => i128::from(x as i8),
            (8, false) => i128::from(x as u8),
            (16, true) => i128::from(x as i16),
            (16, false) => i128::from(x as u16),
            (32, true) => i128::from(x as i32),
            (32, false) => i128::from(x as u32),
            (_, true) => i128::from(x as i64),
            (_, false) => i128::from(x),
        };
        let Modifiers { rounding, integer, ftz, sat, relu, satfinite } = modifiers;
        match (to.is_float(), from.is_float()) {
            (false, false) => {
                if rounding.is_some() || integer.is_some() || ftz || relu || satfinite {
                    return Err(Unsupported("modifiers of floats".to_owned()));
                }
                if !sat {
                    return Self::lanes(resize(d, a, to, from));
                }
                let ((least, most), of_source) = (limits(to), limits(from));
                if least <= of_source.0 && of_source.1 <= most {
                    return Err(Unsupported(format!("`.sat` where {to:?} holds all of {from:?}")));
                }
                each(d, a, extend.then_some(to.bits()), move |x| widen(x).clamp(least, most) as u64)
            }
            (true, false) => {
                let mode =
                    rounding.ok_or_else(|| Unsupported("a rounding is missing".to_owned()))?;
                if integer.is_some() || relu || satfinite || ftz {
                    return Err(Unsupported("modifiers of floats".to_owned()));
                }
                let narrow = number(to, mode, false, false)?;
                each(d, a, None, move |x| {
                    let x = narrow(integer_odd(widen(x), to));
                    // Only `.sat` to F32 exists, and its result is at most one.
                    if sat { u64::from(saturate(f32::from_bits(x as u32)).to_bits()) } else { x }
                })
            }
            (false, true) => {
                let mode =
                    integer.ok_or_else(|| Unsupported("a rounding is missing".to_owned()))?;
                if rounding.is_some() || relu || satfinite {
                    return Err(Unsupported("modifiers of floats".to_owned()));
                }
                let widen = value(from, ftz)?;
                let (least, most) = limits(to);
                // NaN becomes zero, or only the highest bit if either type has 64 bits.
                let nan =
                    if from == Type::F64 || to.bits() == 64 { 1 << (to.bits() - 1) } else { 0 };
                each(d, a, extend.then_some(to.bits()), move |x| {
                    let x = widen(x);
                    if x.is_nan() {
                        return nan;
                    }
                    (mode.integer(x) as i128).clamp(least, most) as u64
                })
            }
            (true, true) => {
                let narrows = to.bits() < from.bits() || to == Type::Tf32;
                if narrows && rounding.is_none() && integer.is_none() {
                    return Err(Unsupported("a rounding is missing".to_owned()));
                }
                let widen = value(from, ftz)?;
                let mode = rounding.unwrap_or(Rounding::Near);
                let narrow = number(to, mode, ftz, satfinite)?;
                if sat && to == Type::BF16 {
                    return Err(Unsupported("`.sat` to this type".to_owned()));
                }
                each(d, a, None, move |x| {
                    let x = widen(x);
                    let x = integer.map_or(x, |mode| mode.integer(x));
                    let x = if relu && x <= 0.0 { 0.0 } else { x };
                    let x = match () {
                        () if !sat => x,
                        () if x > 0.0 => x.min(1.0),
                        () => 0.0,
                    };
                    narrow(x)
                })
            }
        }
    }

    /// `cvt.rn.f16x2.f32 d, a, b`: `a` becomes the upper half.
    fn narrow_pair(
        &mut self,
        format: Format,
        to: Type,
        from: Type,
        modifiers: Modifiers,
        args: &[Operand],
    ) -> Decoded {
        let Modifiers { rounding, integer, ftz, sat, relu, satfinite } = modifiers;
        let mode = rounding.filter(|m| matches!(m, Rounding::Near | Rounding::Zero));
        let Some(mode) = mode else { return Err(Unsupported("a rounding is missing".to_owned())) };
        let is_eight = matches!(to, Type::E4m3x2 | Type::E5m2x2);
        if from != Type::F32 || integer.is_some() || ftz || sat || is_eight && !satfinite {
            return Err(Unsupported("a pair from this type, or so rounded".to_owned()));
        }
        let [d, a, b] = take::<3>(args)?;
        let (a, b) = (self.src(a, from)?, self.src(b, from)?);
        let d = self.dst(d, to.bits())?;
        let shift = to.bits() / 2;
        if !relu && !satfinite && mode == Rounding::Near {
            match to {
                Type::F16x2 => return Self::lanes(map2(d, a, b, f32_to_f16x2)),
                Type::BF16x2 => return Self::lanes(map2(d, a, b, f32_to_bf16x2)),
                _ => {}
            }
        }
        Self::lanes(crate::program::lanes::map2(d, a, b, move |high: f32, low: f32| {
            let half = |x: f32| {
                let x = if relu && x <= 0.0 { 0.0 } else { x };
                format.narrow(f64::from(x), mode, satfinite)
            };
            half(high) << shift | half(low)
        }))
    }

    /// `cvt.rn.f16x2.e4m3x2 d, a`.
    fn widen_pair(
        &mut self,
        wide: Format,
        narrow: Format,
        to: Type,
        from: Type,
        modifiers: Modifiers,
        args: &[Operand],
    ) -> Decoded {
        let is_known = to == Type::F16x2 && matches!(from, Type::E4m3x2 | Type::E5m2x2)
            || from == Type::F16x2
                && matches!(to, Type::E4m3x2 | Type::E5m2x2)
                && modifiers.satfinite;
        if !is_known || modifiers.rounding != Some(Rounding::Near) {
            return Err(Unsupported("pairs of these types".to_owned()));
        }
        let [d, a] = take::<2>(args)?;
        let (a, d) = (self.src(a, from)?, self.dst(d, to.bits())?);
        let (shift, out_shift) = (from.bits() / 2, to.bits() / 2);
        let Modifiers { relu, satfinite, .. } = modifiers;
        Self::lanes(crate::program::lanes::map1(d, a, move |x: u32| {
            let half = |bits: u32| {
                let x = narrow.widen(bits & ((1 << shift) - 1));
                let x = if relu && x <= 0.0 { 0.0 } else { x };
                wide.narrow(x, Rounding::Near, satfinite)
            };
            half(x >> shift) << out_shift | half(x)
        }))
    }

    /// `cvt.pack.sat.s8.s32.b32 d, a, b, c`: appends two clamped integers below the lower half of `c`.
    fn pack_integers(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let saturates = opcode.take("sat");
        let (to, from) = (opcode.type_of()?, opcode.type_of()?);
        let has_rest = opcode.take("b32");
        let is_known = match to {
            Type::S8 | Type::U8 => has_rest,
            Type::S16 | Type::U16 => !has_rest,
            _ => false,
        };
        if !saturates || from != Type::S32 || !is_known {
            return Err(Unsupported("packing of these types".to_owned()));
        }
        let [to_reg, a, b, rest @ ..] = args else {
            return Err(Unsupported(format!("{} operands", args.len())));
        };
        let (a, b) = (self.src(a, from)?, self.src(b, from)?);
        let zero = crate::syntax::Number::Integer(0);
        let c = match (has_rest, rest) {
            (true, [c]) => self.src(c, Type::B32)?,
            (false, []) => self.src(&Operand::Number(zero), Type::B32)?,
            _ => return Err(Unsupported(format!("{} operands", args.len()))),
        };
        let d = self.dst(to_reg, 32)?;
        let (least, most) = limits(to);
        let bits = to.bits();
        let mask = (1u32 << bits) - 1;
        Self::lanes(crate::program::lanes::map3(d, [a, b, c], move |x: i32, y: i32, c: u32| {
            let clamp = |x: i32| i128::from(x).clamp(least, most) as u32 & mask;
            // With 8-bit results the lower half of `c` moves up; with 16-bit results nothing of it is left.
            c << 16 | clamp(x) << bits | clamp(y)
        }))
    }
}

/// Specialized functions for the most frequent conversions.
fn common(d: Reg, a: Reg, to: Type, from: Type, modifiers: Modifiers) -> Option<LaneFn> {
    let Modifiers { rounding, integer, ftz, sat, relu, satfinite } = modifiers;
    if integer.is_some() || ftz || sat || relu || satfinite || a.bits != from.bits() {
        return None;
    }
    let plain = (d.bits, rounding) == (to.bits(), None);
    Some(match (to, from, rounding) {
        (Type::S64, Type::S32, _) if plain => map1(d, a, |x: i32| i64::from(x)),
        (Type::U64, Type::U32, _) if plain => map1(d, a, |x: u32| u64::from(x)),
        (Type::U32 | Type::S32, Type::U64 | Type::S64, _) if plain => map1(d, a, |x: u64| x as u32),
        (Type::U32, Type::U16, _) if plain => map1(d, a, |x: u32| x),
        (Type::S32, Type::S16, _) if plain => map1(d, a, |x: i16| i32::from(x)),
        (Type::U16, Type::U32, _) if plain => map1(d, a, |x: u32| x & 0xffff),
        (Type::F32, Type::F16, None) => map1(d, a, |x: u32| canonical(f16_to_f32(x))),
        (Type::F32, Type::BF16, None) => map1(d, a, |x: u32| canonical(f32::from_bits(x << 16))),
        (Type::F32, Type::S32, Some(Rounding::Near)) => map1(d, a, |x: i32| x as f32),
        (Type::F32, Type::U32, Some(Rounding::Near)) => map1(d, a, |x: u32| x as f32),
        (Type::F16, Type::F32, Some(Rounding::Near)) => map1(d, a, f32_to_f16),
        (Type::BF16, Type::F32, Some(Rounding::Near)) => map1(d, a, f32_to_bf16),
        _ => return None,
    })
}

/// The format of each half of a packed type.
fn pair_format(ty: Type) -> Option<Format> {
    match ty {
        Type::F16x2 => Some(F16),
        Type::BF16x2 => Some(BF16),
        Type::E4m3x2 => Some(E4M3),
        Type::E5m2x2 => Some(E5M2),
        _ => None,
    }
}

/// The smallest and the largest value of an integer type.
fn limits(ty: Type) -> (i128, i128) {
    let bits = ty.bits();
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// Converts an integer to F64, rounding to odd if it has too many bits, so that a second rounding is correct. To F64
/// itself, only rounding to nearest is supported.
fn integer_odd(x: i128, to: Type) -> f64 {
    let magnitude = x.unsigned_abs();
    if to == Type::F64 || magnitude < 1 << 53 {
        return x as f64;
    }
    let drop = 128 - magnitude.leading_zeros() - 53;
    let lost = magnitude & ((1 << drop) - 1) != 0;
    let odd = ((magnitude >> drop) | u128::from(lost)) as f64 * 2f64.powi(drop as i32);
    if x < 0 { -odd } else { odd }
}

type Widen = Box<dyn Fn(u64) -> f64 + Send + Sync>;
type Narrow = Box<dyn Fn(f64) -> u64 + Send + Sync>;

/// Converts a register's bits to a number.
fn value(ty: Type, ftz: bool) -> Result<Widen, Unsupported> {
    Ok(match ty {
        Type::F16 => Box::new(|x| F16.widen(x as u32 & 0xffff)),
        Type::BF16 => Box::new(|x| BF16.widen(x as u32 & 0xffff)),
        Type::F32 if ftz => Box::new(|x| f64::from(flush(f32::from_bits(x as u32)))),
        Type::F32 => Box::new(|x| f64::from(f32::from_bits(x as u32))),
        Type::F64 => Box::new(f64::from_bits),
        other => return Err(Unsupported(format!("from {other:?} is not known"))),
    })
}

/// Converts a number to the bits of a type.
fn number(ty: Type, mode: Rounding, ftz: bool, satfinite: bool) -> Result<Narrow, Unsupported> {
    let format = match ty {
        Type::F16 => F16,
        Type::BF16 => BF16,
        Type::Tf32 => {
            // The format's 19 bits are the upper bits of the register.
            return Ok(Box::new(move |x| u64::from(TF32.narrow(x, mode, satfinite)) << 13));
        }
        Type::F32 => {
            return Ok(Box::new(move |x| {
                let x = mode.f32(x);
                let x = if ftz { flush(x) } else { x };
                u64::from(if x.is_nan() { NAN32 } else { x.to_bits() })
            }));
        }
        Type::F64 if mode == Rounding::Near => return Ok(Box::new(f64::to_bits)),
        other => return Err(Unsupported(format!("to {other:?}, so rounded, is not known"))),
    };
    Ok(Box::new(move |x| u64::from(format.narrow(x, mode, satfinite))))
}

/// Applies `f` to every active lane; a result of `extend` bits is sign-extended to the register.
fn each(
    d: Reg,
    a: Reg,
    extend: Option<u8>,
    f: impl Fn(u64) -> u64 + Send + Sync + 'static,
) -> Decoded {
    let bits = extend.filter(|bits| *bits < d.bits);
    Decoder::lanes(Box::new(move |r: &mut Registers, active| {
        for lane in lanes_of(active) {
            let x = f(r.lane(a, lane));
            let x = bits.map_or(x, |bits| sign_extend(x, bits));
            r.set_lane(d, lane, x);
        }
    }))
}

fn sign_extend(x: u64, bits: u8) -> u64 {
    let drop = 64 - u32::from(bits);
    ((x << drop) as i64 >> drop) as u64
}

/// Converts between integer sizes: keeps the common lower bits, and sign-extends if the smaller type is signed.
fn resize(d: Reg, a: Reg, to: Type, from: Type) -> LaneFn {
    let bits = to.bits().min(from.bits());
    // A smaller result is extended by its own sign to fill the register.
    let signed = if to.bits() <= from.bits() { to.is_signed() } else { from.is_signed() };
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    let to_mask = if to.bits() == 64 || to.is_signed() { u64::MAX } else { (1 << to.bits()) - 1 };
    let cut = move |x: u64| if signed { sign_extend(x, bits) & to_mask } else { x & mask };
    use crate::program::lanes::{File, blend};
    match (d.file, a.file) {
        (File::W64, File::W32) => Box::new(move |r, active| {
            let out: [u64; LANES] = r.w32[a.idx as usize].map(|x| cut(u64::from(x)));
            blend(&mut r.w64[d.idx as usize], active, &out);
        }),
        (File::W32, File::W64) => {
            let keep = if d.bits == 16 { 0xffff } else { u32::MAX };
            Box::new(move |r, active| {
                let out: [u32; LANES] = r.w64[a.idx as usize].map(|x| cut(x) as u32 & keep);
                r.set_word(d, active, &out);
            })
        }
        (File::W64, _) => Box::new(move |r, active| {
            let out: [u64; LANES] = r.w64[a.idx as usize].map(cut);
            blend(&mut r.w64[d.idx as usize], active, &out);
        }),
        _ => {
            let keep = if d.bits == 16 { 0xffff } else { u32::MAX };
            Box::new(move |r, active| {
                let out = r.word(a).map(|x| cut(u64::from(x)) as u32 & keep);
                r.set_word(d, active, &out);
            })
        }
    }
}

/// `cvt.rn.f16x2.f32`.
#[inline(always)]
fn f32_to_f16x2(high: f32, low: f32) -> u32 {
    f32_to_f16(high) << 16 | f32_to_f16(low)
}

/// `cvt.rn.bf16x2.f32`.
#[inline(always)]
fn f32_to_bf16x2(high: f32, low: f32) -> u32 {
    f32_to_bf16(high) << 16 | f32_to_bf16(low)
}
