//! Moves, packing, selection and comparison.

use crate::numeric::flush;
use crate::numeric::format::{BF16, F16};
use crate::program::Op;
use crate::program::access::{LOCAL_WINDOW, SHARED_WINDOW, is_local, is_shared};
use crate::program::lanes::{File, LaneFn, Reg, Registers, Value, compare, map1, map2};
use crate::program::wide::wide;
use crate::syntax::Operand;

use super::operands::take;
use super::types::{Opcode, Type, by_integer};
use super::{Decoded, Decoder, Unsupported};

/// An F16 number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Half(pub(super) f64);

/// A BF16 number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Brain(pub(super) f64);

impl Value for Half {
    type Word = u32;

    #[inline]
    fn of(word: u32) -> Self {
        Self(F16.widen(word & 0xffff))
    }

    #[inline]
    fn to(self) -> u32 {
        F16.narrow(self.0, crate::numeric::round::Rounding::Near, false)
    }
}

impl Value for Brain {
    type Word = u32;

    #[inline]
    fn of(word: u32) -> Self {
        Self(BF16.widen(word & 0xffff))
    }

    #[inline]
    fn to(self) -> u32 {
        BF16.narrow(self.0, crate::numeric::round::Rounding::Near, false)
    }
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Num,
    Nan,
}

/// A comparison, and whether it also holds for unordered operands.
#[derive(Debug, Clone, Copy)]
struct Comparison {
    how: Compare,
    unordered: bool,
}

impl Comparison {
    fn parse(word: &str) -> Option<Self> {
        let (how, unordered) = match word {
            "eq" => (Compare::Eq, false),
            "ne" => (Compare::Ne, false),
            "lt" | "lo" => (Compare::Lt, false),
            "le" | "ls" => (Compare::Le, false),
            "gt" | "hi" => (Compare::Gt, false),
            "ge" | "hs" => (Compare::Ge, false),
            "equ" => (Compare::Eq, true),
            "neu" => (Compare::Ne, true),
            "ltu" => (Compare::Lt, true),
            "leu" => (Compare::Le, true),
            "gtu" => (Compare::Gt, true),
            "geu" => (Compare::Ge, true),
            "num" => (Compare::Num, false),
            "nan" => (Compare::Nan, true),
            _ => return None,
        };
        Some(Self { how, unordered })
    }
}

/// A function that returns the lanes for which a condition holds.
type MaskFn = Box<dyn Fn(&Registers) -> u32 + Send + Sync>;

fn integer_mask<T: Value + Ord>(how: Compare, a: Reg, b: Reg) -> MaskFn {
    match how {
        Compare::Eq => Box::new(move |r| compare::<T>(r, a, b, |x, y| x == y)),
        Compare::Ne => Box::new(move |r| compare::<T>(r, a, b, |x, y| x != y)),
        Compare::Lt => Box::new(move |r| compare::<T>(r, a, b, |x, y| x < y)),
        Compare::Le => Box::new(move |r| compare::<T>(r, a, b, |x, y| x <= y)),
        Compare::Gt => Box::new(move |r| compare::<T>(r, a, b, |x, y| x > y)),
        Compare::Ge => Box::new(move |r| compare::<T>(r, a, b, |x, y| x >= y)),
        Compare::Num | Compare::Nan => Box::new(|_| 0),
    }
}

/// Compares floats; `of` converts a lane to a number or NaN.
fn float_mask<T: Value>(
    Comparison { how, unordered }: Comparison,
    a: Reg,
    b: Reg,
    of: impl Fn(T) -> f64 + Send + Sync + Copy + 'static,
) -> MaskFn {
    Box::new(move |r| {
        compare::<T>(r, a, b, |x, y| {
            let (x, y) = (of(x), of(y));
            if x.is_nan() || y.is_nan() {
                return unordered;
            }
            match how {
                Compare::Eq => x == y,
                Compare::Ne => x != y,
                Compare::Lt => x < y,
                Compare::Le => x <= y,
                Compare::Gt => x > y,
                Compare::Ge => x >= y,
                Compare::Num => true,
                Compare::Nan => false,
            }
        })
    })
}

impl Decoder<'_> {
    pub(super) fn moves(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Option<Decoded> {
        Some(match opcode.base {
            "mov" => self.mov(opcode, args),
            "cvta" => self.cvta(opcode, args),
            "isspacep" => self.isspacep(opcode, args),
            "selp" => self.selp(opcode, args),
            "slct" => self.slct(opcode, args),
            "setp" => self.setp(opcode, args),
            "set" => self.set(opcode, args),
            _ => return None,
        })
    }

    fn mov(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let ty = opcode.type_of()?;
        let [to, from] = take::<2>(args)?;
        match (to, from) {
            (Operand::Vector(parts), from) => {
                let from = self.src(from, ty)?;
                let bits = ty.bits() / parts.len().max(1) as u8;
                let parts = parts.iter().map(|p| self.dst(p, bits));
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                part_size(bits)?;
                Self::lanes(unpack(from, parts, bits))
            }
            (to, Operand::Vector(parts)) => {
                let bits = ty.bits() / parts.len().max(1) as u8;
                part_size(bits)?;
                let part = if bits == 16 { Type::B16 } else { Type::B32 };
                let parts = parts.iter().map(|p| self.src(p, part));
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                let to = self.dst(to, ty.bits())?;
                Self::lanes(pack(to, parts, bits))
            }
            (to, from) => {
                let a = self.src(from, ty)?;
                let d = self.dst(to, ty.bits())?;
                self.moves = true;
                if d.file == a.file && d.idx == a.idx {
                    return Ok(Op::Nothing);
                }
                Self::lanes(copy(d, a))
            }
        }
    }

    fn cvta(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let to_space = opcode.take("to");
        let space = opcode.take_of(&["global", "const", "shared", "shared::cta", "local", "param"]);
        let ty = opcode.type_of()?;
        if ty != Type::U64 {
            return Err(Unsupported("addresses of 32 bits are not supported".to_owned()));
        }
        let [to, from] = take::<2>(args)?;
        let (a, d) = (self.src(from, ty)?, self.dst(to, 64)?);
        let window = match space {
            Some("shared" | "shared::cta") => SHARED_WINDOW,
            Some("local") => LOCAL_WINDOW,
            Some("global" | "const") => 0,
            _ => return Err(Unsupported("this space has no generic addresses here".to_owned())),
        };
        Self::lanes(if to_space {
            map1(d, a, move |x: u64| x.wrapping_sub(window))
        } else {
            map1(d, a, move |x: u64| x.wrapping_add(window))
        })
    }

    fn isspacep(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let space = opcode.take_of(&["global", "shared", "shared::cta", "local"]);
        let [to, from] = take::<2>(args)?;
        let (a, d) = (self.src(from, Type::U64)?, self.dst(to, 1)?);
        let holds: fn(u64) -> bool = match space {
            Some("global") => |x| !is_shared(x) && !is_local(x),
            Some("shared" | "shared::cta") => is_shared,
            Some("local") => is_local,
            _ => return Err(Unsupported("a space is missing".to_owned())),
        };
        Self::lanes(Box::new(move |r, active| {
            let mask = compare::<u64>(r, a, a, |x, _| holds(x));
            r.set_predicate(d, active, mask);
        }))
    }

    fn selp(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let ty = opcode.type_of()?;
        let [to, yes, no, which] = take::<4>(args)?;
        let (a, b) = (self.src(yes, ty)?, self.src(no, ty)?);
        let (p, negated) = self.src_predicate(which)?;
        let d = self.dst(to, ty.bits())?;
        Self::lanes(Box::new(move |r, active| {
            let mask = r.predicate(p) ^ if negated { u32::MAX } else { 0 };
            select(r, d, [a, b], mask, active);
        }))
    }

    fn slct(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let ftz = opcode.take("ftz");
        let (ty, by) = (opcode.type_of()?, opcode.type_of()?);
        let [to, yes, no, which] = take::<4>(args)?;
        let (a, b, c) = (self.src(yes, ty)?, self.src(no, ty)?, self.src(which, by)?);
        let d = self.dst(to, ty.bits())?;
        let is_float = match by {
            Type::S32 => false,
            Type::F32 => true,
            _ => return Err(Unsupported("selection by this type".to_owned())),
        };
        Self::lanes(Box::new(move |r, active| {
            let mask = if is_float {
                let of = |x: f32| if ftz { flush(x) } else { x };
                compare::<f32>(r, c, c, |x, _| of(x) >= 0.0)
            } else {
                compare::<i32>(r, c, c, |x, _| x >= 0)
            };
            select(r, d, [a, b], mask, active);
        }))
    }

    /// The lanes for which a comparison of two operands holds.
    fn mask(
        &mut self,
        comparison: Comparison,
        ftz: bool,
        ty: Type,
        [a, b]: [&Operand; 2],
    ) -> Result<MaskFn, Unsupported> {
        let (a, b) = (self.src(a, ty)?, self.src(b, ty)?);
        let Comparison { how, unordered } = comparison;
        Ok(match ty {
            Type::F32 if ftz => float_mask(comparison, a, b, |x: f32| f64::from(flush(x))),
            Type::F32 => float_mask(comparison, a, b, |x: f32| f64::from(x)),
            Type::F64 => float_mask(comparison, a, b, |x: f64| x),
            Type::F16 if !ftz => float_mask(comparison, a, b, |x: Half| x.0),
            Type::BF16 if !ftz => float_mask(comparison, a, b, |x: Brain| x.0),
            ty if ty.is_integer() && matches!(how, Compare::Num | Compare::Nan) => {
                return Err(Unsupported("a comparison of floats".to_owned()));
            }
            ty if !unordered && !ftz => {
                return by_integer!(ty, T => Ok(integer_mask::<T>(how, a, b)));
            }
            other => return Err(Unsupported(format!("comparing {other:?} so is not known"))),
        })
    }

    fn setp(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let comparison = opcode.take_as(Comparison::parse);
        let comparison =
            comparison.ok_or_else(|| Unsupported("a comparison is missing".to_owned()))?;
        let ftz = opcode.take("ftz");
        let boolean = opcode.take_of(&["and", "or", "xor"]);
        let ty = opcode.type_of()?;
        let [to, a, b, rest @ ..] = args else {
            return Err(Unsupported(format!("{} operands", args.len())));
        };
        if matches!(ty, Type::F16x2 | Type::BF16x2) {
            let (Operand::Pair(p, q), None, []) = (to, boolean, rest) else {
                return Err(Unsupported(
                    "two predicates, and no third operand, are expected".to_owned(),
                ));
            };
            let [low, high] = self.pair_masks(comparison, ty, [a, b])?;
            let p = self.dst(&Operand::Name(p.clone()), 1)?;
            let q = self.dst(&Operand::Name(q.clone()), 1)?;
            return Self::lanes(Box::new(move |r, active| {
                let (low, high) = (low(r), high(r));
                r.set_predicate(p, active, low);
                r.set_predicate(q, active, high);
            }));
        }
        let mask = self.mask(comparison, ftz, ty, [a, b])?;
        let with = match (boolean, rest) {
            (None, []) => None,
            (Some(boolean), [c]) => Some((boolean, self.src_predicate(c)?)),
            _ => return Err(Unsupported("operands do not fit the modifiers".to_owned())),
        };
        let (p, q) = match to {
            Operand::Pair(p, q) => (Operand::Name(p.clone()), Some(Operand::Name(q.clone()))),
            single => (single.clone(), None),
        };
        let p = self.dst(&p, 1)?;
        let q = q.map(|q| self.dst(&q, 1)).transpose()?;
        Self::lanes(Box::new(move |r, active| {
            let holds = mask(r);
            let combine = |holds: u32| match with {
                None => holds,
                Some((boolean, (c, negated))) => {
                    let c = r.predicate(c) ^ if negated { u32::MAX } else { 0 };
                    match boolean {
                        "and" => holds & c,
                        "or" => holds | c,
                        _ => holds ^ c,
                    }
                }
            };
            let (yes, no) = (combine(holds), combine(!holds));
            r.set_predicate(p, active, yes);
            if let Some(q) = q {
                r.set_predicate(q, active, no);
            }
        }))
    }

    /// The lanes for which a comparison holds in the lower and in the upper half of packed operands.
    fn pair_masks(
        &mut self,
        comparison: Comparison,
        ty: Type,
        [a, b]: [&Operand; 2],
    ) -> Result<[MaskFn; 2], Unsupported> {
        let (a, b) = (self.src(a, ty)?, self.src(b, ty)?);
        let format = if ty == Type::F16x2 { F16 } else { BF16 };
        let half =
            |by: u32| float_mask(comparison, a, b, move |x: u32| format.widen(x >> by & 0xffff));
        Ok([half(0), half(16)])
    }

    fn set(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let comparison = opcode.take_as(Comparison::parse);
        let comparison =
            comparison.ok_or_else(|| Unsupported("a comparison is missing".to_owned()))?;
        let ftz = opcode.take("ftz");
        let (to_ty, ty) = (opcode.type_of()?, opcode.type_of()?);
        let [to, a, b] = take::<3>(args)?;
        let yes = match to_ty {
            Type::U32 | Type::S32 => u32::MAX,
            Type::U16 | Type::S16 => 0xffff,
            Type::F32 => 1.0f32.to_bits(),
            Type::F16 | Type::F16x2 => 0x3c00,
            Type::BF16 | Type::BF16x2 => 0x3f80,
            _ => return Err(Unsupported(format!("a result of {to_ty:?} is not known"))),
        };
        let is_pair = |ty| matches!(ty, Type::F16x2 | Type::BF16x2);
        if is_pair(to_ty) != is_pair(ty) || is_pair(ty) && ftz {
            return Err(Unsupported(format!("{to_ty:?} of {ty:?} is not known")));
        }
        let masks = if is_pair(ty) {
            self.pair_masks(comparison, ty, [a, b])?
        } else {
            [self.mask(comparison, ftz, ty, [a, b])?, Box::new(|_: &Registers| 0)]
        };
        let d = self.dst(to, to_ty.bits())?;
        Self::lanes(Box::new(move |r, active| {
            let [low, high] = [masks[0](r), masks[1](r)];
            let bit = |mask: u32, lane: usize| if mask >> lane & 1 == 1 { yes } else { 0 };
            let out = std::array::from_fn(|lane| {
                // With a single result, the upper mask is empty.
                bit(low, lane) | bit(high, lane).checked_shl(16).unwrap_or(0)
            });
            r.set_word(d, active, &out);
        }))
    }
}

fn part_size(bits: u8) -> Result<(), Unsupported> {
    match bits {
        16 | 32 => Ok(()),
        _ => Err(Unsupported(format!("parts of {bits} bits are not supported"))),
    }
}

/// A move between registers of one size.
pub(super) fn copy(d: Reg, a: Reg) -> LaneFn {
    match d.file {
        File::W32 => map1(d, a, |x: u32| x),
        File::W64 => map1(d, a, |x: u64| x),
        File::Predicate => Box::new(move |r, active| r.set_predicate(d, active, r.predicate(a))),
    }
}

fn unpack(from: Reg, parts: Vec<Reg>, bits: u8) -> LaneFn {
    if let ([low, high], File::W64) = (&parts[..], from.file) {
        let low = map1(*low, from, |x: u64| x as u32);
        let high = map1(*high, from, |x: u64| (x >> 32) as u32);
        return Box::new(move |r, active| {
            low(r, active);
            high(r, active);
        });
    }
    if let ([low, high], File::W32) = (&parts[..], from.file) {
        let low = map1(*low, from, |x: u32| x & 0xffff);
        let high = map1(*high, from, |x: u32| x >> 16);
        return Box::new(move |r, active| {
            low(r, active);
            high(r, active);
        });
    }
    let mask = (1u64 << bits) - 1;
    Box::new(move |r, active| {
        for (i, part) in parts.iter().enumerate() {
            let out = std::array::from_fn(|lane| {
                (r.lane(from, lane) >> (i * bits as usize) & mask) as u32
            });
            r.set_word(*part, active, &out);
        }
    })
}

fn pack(to: Reg, parts: Vec<Reg>, bits: u8) -> LaneFn {
    match (&parts[..], to.file) {
        ([low, high], File::W64) => {
            return map2(to, *low, *high, |x: u32, y: u32| u64::from(x) | u64::from(y) << 32);
        }
        ([low, high], File::W32) => return map2(to, *low, *high, |x: u32, y: u32| x | y << 16),
        _ => {}
    }
    Box::new(move |r, active| {
        let mut out = [0u64; crate::program::lanes::LANES];
        for (i, part) in parts.iter().enumerate() {
            for (out, part) in out.iter_mut().zip(r.word(*part)) {
                *out |= u64::from(*part) << (i * bits as usize);
            }
        }
        if to.file == File::W64 {
            crate::program::lanes::blend(&mut r.w64[to.idx as usize], active, &out);
        } else {
            r.set_word(to, active, &out.map(|x| x as u32));
        }
    })
}

/// `d = mask ? a : b`.
#[inline(always)]
fn select_all(r: &mut Registers, d: Reg, [a, b]: [Reg; 2], mask: u32, active: u32) {
    let [a, b, to] = [a, b, d].map(|r| r.idx as usize);
    match d.file {
        File::W32 => {
            let mut out = r.w32[b];
            crate::program::lanes::blend(&mut out, mask, &r.w32[a]);
            crate::program::lanes::blend(&mut r.w32[to], active, &out);
        }
        File::W64 => {
            let mut out = r.w64[b];
            crate::program::lanes::blend(&mut out, mask, &r.w64[a]);
            crate::program::lanes::blend(&mut r.w64[to], active, &out);
        }
        File::Predicate => {
            let out = r.predicates[a] & mask | r.predicates[b] & !mask;
            r.set_predicate(d, active, out);
        }
    }
}

wide!(select_all in fn select(r: &mut Registers, d: Reg, from: [Reg; 2], mask: u32, active: u32));
