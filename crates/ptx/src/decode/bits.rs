//! Bitwise integer instructions: logic, shifts, bit fields, bit counts and byte permutations.

use crate::program::lanes::{LaneFn, Reg, map1, map2, map3};
use crate::syntax::Operand;

use super::operands::{literal, take};
use super::types::{Integer, Opcode, Type, by_integer};
use super::{Decoded, Decoder, Unsupported};

impl Decoder<'_> {
    pub(super) fn bits(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Option<Decoded> {
        Some(match opcode.base {
            "popc" | "clz" | "brev" | "bfind" => self.bits_of(opcode, args),
            "not" | "cnot" | "and" | "or" | "xor" => self.logic(opcode, args),
            "lop3" => self.lop3(opcode, args),
            "shl" | "shr" => self.shift(opcode, args),
            "shf" => self.funnel(opcode, args),
            "bfe" => self.extract(opcode, args),
            "bfi" => self.insert(opcode, args),
            "bmsk" => self.bit_mask(opcode, args),
            "szext" => self.extend(opcode, args),
            "prmt" => self.permute(opcode, args),
            _ => return None,
        })
    }

    fn bits_of(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let base = opcode.base;
        let shift_amount = opcode.take("shiftamt");
        let ty = opcode.type_of()?;
        let [d, a] = take::<2>(args)?;
        let a = self.src(a, ty)?;
        let d = self.dst(d, if base == "brev" { ty.bits() } else { 32 })?;
        Self::lanes(match (base, ty) {
            ("popc", Type::B32) => map1(d, a, |x: u32| x.count_ones()),
            ("popc", Type::B64) => map1(d, a, |x: u64| x.count_ones()),
            ("clz", Type::B32) => map1(d, a, |x: u32| x.leading_zeros()),
            ("clz", Type::B64) => map1(d, a, |x: u64| x.leading_zeros()),
            ("brev", Type::B32) => map1(d, a, |x: u32| x.reverse_bits()),
            ("brev", Type::B64) => map1(d, a, |x: u64| x.reverse_bits()),
            ("bfind", Type::U32 | Type::S32 | Type::U64 | Type::S64) => {
                return by_integer!(ty, T => Self::lanes(map1(d, a, move |x: T| {
                    // For a negative number, the highest bit that differs from the sign.
                    let bits = x.raw() ^ if ty.is_signed() && x < T::from_raw(0) { (!T::from_raw(0)).raw() } else { 0 };
                    match bits.checked_ilog2() {
                        None => u32::MAX,
                        Some(at) if shift_amount => <T as Integer>::BITS - 1 - at,
                        Some(at) => at,
                    }
                })));
            }
            (_, other) => return Err(Unsupported(format!("the type {other:?} is not known here"))),
        })
    }

    fn logic(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let base = opcode.base;
        let ty = opcode.type_of()?;
        if ty == Type::Pred {
            let base = ["not", "and", "or", "xor"].into_iter().find(|b| *b == base);
            let base = base.ok_or_else(|| Unsupported("not known of predicates".to_owned()))?;
            return self.predicate_logic(base, args);
        }
        if matches!(base, "not" | "cnot") {
            let [d, a] = take::<2>(args)?;
            let (a, d) = (self.src(a, ty)?, self.dst(d, ty.bits())?);
            let is_not = base == "not";
            return by_integer!(ty, T => Self::lanes(map1(d, a, move |x: T| {
                if is_not { !x } else { T::from(x == 0) }
            })));
        }
        let [d, a, b] = self.two(args, ty)?;
        by_integer!(ty, T => Self::lanes(match base {
            "and" => map2(d, a, b, |x: T, y: T| x & y),
            "or" => map2(d, a, b, |x: T, y: T| x | y),
            _ => map2(d, a, b, |x: T, y: T| x ^ y),
        }))
    }

    fn predicate_logic(&mut self, base: &'static str, args: &[Operand]) -> Decoded {
        let [d, from @ ..] = args else { return Err(Unsupported("no operands".to_owned())) };
        let wanted = if base == "not" { 1 } else { 2 };
        if from.len() != wanted {
            return Err(Unsupported(format!("{} operands of predicates", args.len())));
        }
        let from = from.iter().map(|a| self.src_predicate(a)).collect::<Result<Vec<_>, _>>()?;
        let d = self.dst(d, 1)?;
        let value = |r: &crate::program::lanes::Registers, (reg, negated): (Reg, bool)| {
            r.predicate(reg) ^ if negated { u32::MAX } else { 0 }
        };
        Self::lanes(Box::new(move |r, active| {
            let x = value(r, from[0]);
            let out = match base {
                "not" => !x,
                "and" => x & value(r, from[1]),
                "or" => x | value(r, from[1]),
                _ => x ^ value(r, from[1]),
            };
            r.set_predicate(d, active, out);
        }))
    }

    fn lop3(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let ty = opcode.type_of()?;
        let [d, a, b, c, table] = take::<5>(args)?;
        let table = literal(table)? as u32;
        if ty != Type::B32 || table > 0xff {
            return Err(Unsupported("only `.b32` with a table of 8 bits is known".to_owned()));
        }
        let from = [self.src(a, ty)?, self.src(b, ty)?, self.src(c, ty)?];
        let d = self.dst(d, 32)?;
        let known: Option<LaneFn> = match table {
            0x80 => Some(map3(d, from, |x: u32, y: u32, z: u32| x & y & z)),
            0xfe => Some(map3(d, from, |x: u32, y: u32, z: u32| x | y | z)),
            0x96 => Some(map3(d, from, |x: u32, y: u32, z: u32| x ^ y ^ z)),
            0xea => Some(map3(d, from, |x: u32, y: u32, z: u32| x & y | z)),
            0xf8 => Some(map3(d, from, |x: u32, y: u32, z: u32| x | y & z)),
            0x6a => Some(map3(d, from, |x: u32, y: u32, z: u32| x & y ^ z)),
            0xca => Some(map3(d, from, |x: u32, y: u32, z: u32| x & y | !x & z)),
            _ => None,
        };
        if let Some(known) = known {
            return Self::lanes(known);
        }
        let rows: [u32; 8] =
            std::array::from_fn(|i| if table >> i & 1 == 1 { u32::MAX } else { 0 });
        Self::lanes(map3(d, from, move |x: u32, y: u32, z: u32| {
            let pick = |word: u32, i: usize, bit: usize| if i & bit != 0 { word } else { !word };
            let term = |i: usize| rows[i] & pick(x, i, 4) & pick(y, i, 2) & pick(z, i, 1);
            (0..8).fold(0, |sum, i| sum | term(i))
        }))
    }

    fn shift(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let is_left = opcode.base == "shl";
        let ty = opcode.type_of()?;
        let [d, a, by] = take::<3>(args)?;
        let (a, by) = (self.src(a, ty)?, self.src(by, Type::U32)?);
        let d = self.dst(d, ty.bits())?;
        by_integer!(ty, T => Self::lanes(if is_left {
            map2(d, a, by, |x: T, by: u32| if by < T::BITS { x << by } else { 0 })
        } else {
            map2(d, a, by, |x: T, by: u32| x.shifted_right(by))
        }))
    }

    fn funnel(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let side = opcode.take_of(&["l", "r"]);
        let mode = opcode.take_of(&["clamp", "wrap"]);
        let ty = opcode.type_of()?;
        let (Some(side), Some(mode), Type::B32) = (side, mode, ty) else {
            return Err(Unsupported("a side, a mode or `.b32` is missing".to_owned()));
        };
        let [d, a, b, c] = take::<4>(args)?;
        let from = [self.src(a, ty)?, self.src(b, ty)?, self.src(c, Type::U32)?];
        let d = self.dst(d, 32)?;
        let (is_left, clamps) = (side == "l", mode == "clamp");
        Self::lanes(map3(d, from, move |low: u32, high: u32, by: u32| {
            let by = if clamps { by.min(32) } else { by & 31 };
            let both = u64::from(high) << 32 | u64::from(low);
            if is_left { (both << by >> 32) as u32 } else { (both >> by) as u32 }
        }))
    }

    fn extract(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let ty = opcode.type_of()?;
        let [d, a, at, len] = take::<4>(args)?;
        let from = [self.src(a, ty)?, self.src(at, Type::U32)?, self.src(len, Type::U32)?];
        let d = self.dst(d, ty.bits())?;
        let signed = ty.is_signed();
        if ty == Type::U32 {
            return Self::lanes(map3(d, from, field));
        }
        by_integer!(ty, T => Self::lanes(map3(d, from, move |x: T, at: u32, len: u32| {
            let (at, len) = (at & 0xff, len & 0xff);
            let bits = <T as Integer>::BITS;
            let field = if at < 64 { x.raw() >> at } else { 0 };
            let mask = if len < 64 { (1u64 << len) - 1 } else { u64::MAX };
            // The sign is the highest bit of the field, or of the number if the field exceeds it.
            let sign_at = (at + len).saturating_sub(1).min(bits - 1);
            let is_negative = signed && len > 0 && x.raw() >> sign_at & 1 == 1;
            let inside = if len > 0 { (sign_at + 1).saturating_sub(at) } else { 0 };
            let known = if inside < 64 { (1u64 << inside) - 1 } else { u64::MAX };
            T::from_raw(field & mask & known | if is_negative { !(mask & known) } else { 0 })
        })))
    }

    fn insert(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let ty = opcode.type_of()?;
        let [d, a, b, at, len] = take::<5>(args)?;
        let (a, b) = (self.src(a, ty)?, self.src(b, ty)?);
        let (at, len) = (self.src(at, Type::U32)?, self.src(len, Type::U32)?);
        let d = self.dst(d, ty.bits())?;
        Self::lanes(Box::new(move |r, active| {
            for lane in crate::program::lanes::lanes_of(active) {
                let (at, len) = (r.lane(at, lane) & 0xff, r.lane(len, lane) & 0xff);
                let mask = if len < 64 { (1u64 << len) - 1 } else { u64::MAX };
                let mask = if at < 64 { mask << at } else { 0 };
                let field = if at < 64 { r.lane(a, lane) << at } else { 0 };
                r.set_lane(d, lane, r.lane(b, lane) & !mask | field & mask);
            }
        }))
    }

    fn bit_mask(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let mode = opcode.take_of(&["clamp", "wrap"]);
        let ty = opcode.type_of()?;
        let (Some(mode), Type::B32) = (mode, ty) else {
            return Err(Unsupported("a mode or `.b32` is missing".to_owned()));
        };
        let [d, a, b] = self.two(args, ty)?;
        let clamps = mode == "clamp";
        Self::lanes(map2(d, a, b, move |at: u32, len: u32| {
            let fit = |n: u32| if clamps { n.min(32) } else { n & 31 };
            let (at, len) = (fit(at), fit(len));
            (((1u64 << len) - 1) << at) as u32
        }))
    }

    fn extend(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let mode = opcode.take_of(&["clamp", "wrap"]);
        let ty = opcode.type_of()?;
        let (Some(mode), Type::S32 | Type::U32) = (mode, ty) else {
            return Err(Unsupported("a mode or type is missing".to_owned()));
        };
        let [d, a, b] = self.two(args, ty)?;
        let (clamps, signed) = (mode == "clamp", ty == Type::S32);
        Self::lanes(map2(d, a, b, move |x: u32, len: u32| {
            let len = if clamps { len.min(32) } else { len & 31 };
            match 32 - len {
                32 => 0,
                drop if signed => ((x << drop) as i32 >> drop) as u32,
                drop => x << drop >> drop,
            }
        }))
    }

    fn permute(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let ty = opcode.type_of()?;
        let mode = opcode.take_of(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]);
        if ty != Type::B32 {
            return Err(Unsupported("only `.b32` is known".to_owned()));
        }
        let [d, a, b, c] = take::<4>(args)?;
        let from = [self.src(a, ty)?, self.src(b, ty)?, self.src(c, ty)?];
        let d = self.dst(d, 32)?;
        if mode.is_none() {
            return Self::lanes(map3(d, from, permuted));
        }
        Self::lanes(map3(d, from, move |low: u32, high: u32, selector: u32| {
            let both = u64::from(high) << 32 | u64::from(low);
            let s = selector & 3;
            let mut out = 0;
            for i in 0..4 {
                let pick = match mode {
                    Some("f4e") => s + i,
                    Some("b4e") => (s + 8 - i) & 7,
                    Some("rc8") => s,
                    Some("ecl") => s.max(i),
                    Some("ecr") => s.min(i),
                    _ => (s & 1) * 2 + (i & 1),
                };
                let byte = (both >> (8 * (pick & 7))) as u8;
                out |= u32::from(byte) << (8 * i);
            }
            out
        }))
    }
}

/// `prmt.b32`: selects four of eight bytes, each by four bits of `selector`.
#[inline(always)]
fn permuted(low: u32, high: u32, selector: u32) -> u32 {
    let both = u64::from(high) << 32 | u64::from(low);
    (0..4).fold(0, |out, i| {
        let pick = selector >> (4 * i);
        let byte = (both >> (8 * (pick & 7))) as u32 & 0xff;
        // The highest selector bit replicates the byte's sign instead.
        let sign = (byte >> 7) * 0xff;
        let byte = if pick & 8 != 0 { sign } else { byte };
        out | byte << (8 * i)
    })
}

/// `bfe.u32`: extracts `len` bits beginning at bit `at`.
#[inline(always)]
fn field(x: u32, at: u32, len: u32) -> u32 {
    let (at, len) = (at & 0xff, len & 0xff);
    let x = if at < 32 { x >> at } else { 0 };
    if len < 32 { x & ((1 << len) - 1) } else { x }
}
