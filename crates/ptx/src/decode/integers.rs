//! Integer arithmetic. Bitwise instructions are in `bits`.

use crate::program::lanes::{LaneFn, Reg, map1, map2, map3};
use crate::syntax::Operand;

use super::operands::take;
use super::types::{Integer, Opcode, Type, by_integer};
use super::{Decoded, Decoder, Unsupported};

impl Decoder<'_> {
    pub(super) fn integers(
        &mut self,
        opcode: &mut Opcode<'_>,
        args: &[Operand],
    ) -> Option<Decoded> {
        let ty = opcode.ty();
        let is_integer = ty.is_some_and(Type::is_integer);
        Some(match opcode.base {
            "add" | "sub" if is_integer => self.sum(opcode, args),
            "addc" | "subc" => self.sum(opcode, args),
            "mul" | "mad" | "mul24" | "mad24" if is_integer => self.product(opcode, args),
            "madc" => self.product(opcode, args),
            "div" | "rem" | "min" | "max" if is_integer => self.pairwise(opcode, args),
            "abs" | "neg" if is_integer => self.single(opcode, args),
            "sad" => self.sad(opcode, args),
            "dp4a" | "dp2a" => self.dot(opcode, args),
            _ => return None,
        })
    }

    pub(super) fn two(&mut self, args: &[Operand], ty: Type) -> Result<[Reg; 3], Unsupported> {
        let [d, a, b] = take::<3>(args)?;
        let (a, b) = (self.src(a, ty)?, self.src(b, ty)?);
        Ok([self.dst(d, ty.bits())?, a, b])
    }

    /// The register of the carry bit.
    fn carry(&mut self) -> Reg {
        if let Some(reg) = self.carry {
            return reg;
        }
        let reg = self.register(1, || "the carry bit".to_owned());
        self.carry = Some(reg);
        reg
    }

    /// `add` and `sub`, with and without carry.
    fn sum(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let takes_carry = matches!(opcode.base, "addc" | "subc");
        let subtracts = matches!(opcode.base, "sub" | "subc");
        let (sets_carry, clamps) = (opcode.take("cc"), opcode.take("sat"));
        let ty = opcode.type_of()?;
        let [d, a, b] = self.two(args, ty)?;
        if takes_carry || sets_carry {
            let carry = self.carry();
            if takes_carry {
                self.read(carry);
            }
            if sets_carry {
                self.write(carry);
            }
            let bits = u32::from(ty.bits());
            return Self::lanes(with_carry(
                d,
                carry,
                takes_carry,
                sets_carry,
                bits,
                move |r, lane| {
                    let (x, y) = (r.lane(a, lane), r.lane(b, lane));
                    if subtracts { (x, !y, true) } else { (x, y, false) }
                },
            ));
        }
        if clamps && ty != Type::S32 {
            return Err(Unsupported("`.sat` of this type".to_owned()));
        }
        by_integer!(ty, T => Self::lanes(match (subtracts, clamps) {
            (false, false) => map2(d, a, b, |x: T, y: T| x.wrapping_add(y)),
            (true, false) => map2(d, a, b, |x: T, y: T| x.wrapping_sub(y)),
            (false, true) => map2(d, a, b, |x: T, y: T| x.add_clamped(y)),
            (true, true) => map2(d, a, b, |x: T, y: T| x.sub_clamped(y)),
        }))
    }

    /// `mul`, `mad`, their 24-bit forms, and `mad` with carry.
    fn product(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let base = opcode.base;
        let half = opcode.take_of(&["lo", "hi", "wide"]);
        let half =
            half.ok_or_else(|| Unsupported("`.lo`, `.hi` or `.wide` is missing".to_owned()))?;
        let (sets_carry, clamps) = (opcode.take("cc"), opcode.take("sat"));
        let ty = opcode.type_of()?;
        if clamps && (half != "hi" || ty != Type::S32 || base != "mad") {
            return Err(Unsupported("`.sat` of this form".to_owned()));
        }
        let wide = match ty {
            Type::U16 => Type::U32,
            Type::S16 => Type::S32,
            Type::U32 => Type::U64,
            Type::S32 => Type::S64,
            other if half == "wide" => {
                return Err(Unsupported(format!("a wide product of {other:?}")));
            }
            other => other,
        };
        let result = if half == "wide" { wide } else { ty };
        let [to, a, b, rest @ ..] = args else {
            return Err(Unsupported(format!("{} operands", args.len())));
        };
        let (a, b) = (self.src(a, ty)?, self.src(b, ty)?);
        let c = match (base.starts_with("mad"), rest) {
            (true, [c]) => Some(self.src(c, result)?),
            (false, []) => None,
            _ => return Err(Unsupported(format!("{} operands", args.len()))),
        };
        let d = self.dst(to, result.bits())?;
        if let Some(c) = c.filter(|_| sets_carry || base == "madc") {
            if half == "wide" {
                return Err(Unsupported("a carry of a wide product".to_owned()));
            }
            let carry = self.carry();
            let takes_carry = base == "madc";
            if takes_carry {
                self.read(carry);
            }
            if sets_carry {
                self.write(carry);
            }
            let (is_high, signed) = (half == "hi", ty.is_signed());
            let bits = u32::from(ty.bits());
            return Self::lanes(with_carry(
                d,
                carry,
                takes_carry,
                sets_carry,
                bits,
                move |r, lane| {
                    let widen = |x: u64| match (bits, signed) {
                        (32, true) => i128::from(x as i32),
                        (64, true) => i128::from(x as i64),
                        _ => i128::from(x),
                    };
                    // The lower bits are correct even if the product exceeds 127 bits.
                    let product = widen(r.lane(a, lane)).wrapping_mul(widen(r.lane(b, lane)));
                    let part = if is_high { product >> bits } else { product };
                    (part as u64, r.lane(c, lane), false)
                },
            ));
        }
        if base.ends_with("24") {
            return self.product24(d, [a, b], c, ty, half);
        }
        if half == "wide" {
            macro_rules! wide {
                ($T:ty, $W:ty) => {
                    match c {
                        None => {
                            map2(d, a, b, |x: $T, y: $T| <$W>::from(x).wrapping_mul(<$W>::from(y)))
                        }
                        Some(c) => map3(d, [a, b, c], |x: $T, y: $T, z: $W| {
                            <$W>::from(x).wrapping_mul(<$W>::from(y)).wrapping_add(z)
                        }),
                    }
                };
            }
            return Self::lanes(match ty {
                Type::U16 => wide!(u16, u32),
                Type::S16 => wide!(i16, i32),
                Type::U32 => wide!(u32, u64),
                _ => wide!(i32, i64),
            });
        }
        by_integer!(ty, T => Self::lanes(match (half, c) {
            ("lo", None) => map2(d, a, b, |x: T, y: T| x.wrapping_mul(y)),
            ("lo", Some(c)) => {
                map3(d, [a, b, c], |x: T, y: T, z: T| x.wrapping_mul(y).wrapping_add(z))
            }
            (_, None) => map2(d, a, b, |x: T, y: T| x.mul_high(y)),
            (_, Some(c)) if clamps => {
                map3(d, [a, b, c], |x: T, y: T, z: T| x.mul_high(y).add_clamped(z))
            }
            (_, Some(c)) => map3(d, [a, b, c], |x: T, y: T, z: T| x.mul_high(y).wrapping_add(z)),
        }))
    }

    fn product24(
        &mut self,
        d: Reg,
        [a, b]: [Reg; 2],
        c: Option<Reg>,
        ty: Type,
        half: &str,
    ) -> Decoded {
        let by = if half == "hi" { 16 } else { 0 };
        let zero = self.constant(32, 0);
        let c = c.unwrap_or(zero);
        Self::lanes(match ty {
            Type::S32 => map3(d, [a, b, c], move |x: i32, y: i32, z: i32| {
                let product = i64::from(x << 8 >> 8) * i64::from(y << 8 >> 8);
                ((product >> by) as i32).wrapping_add(z)
            }),
            Type::U32 => map3(d, [a, b, c], move |x: u32, y: u32, z: u32| {
                let product = u64::from(x & 0xff_ffff) * u64::from(y & 0xff_ffff);
                ((product >> by) as u32).wrapping_add(z)
            }),
            other => return Err(Unsupported(format!("24-bit products of {other:?}"))),
        })
    }

    fn pairwise(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let base = opcode.base;
        let ty = opcode.type_of()?;
        let [d, a, b] = self.two(args, ty)?;
        by_integer!(ty, T => Self::lanes(match base {
            "div" => map2(d, a, b, |x: T, y: T| x.quotient(y)),
            "rem" => map2(d, a, b, |x: T, y: T| x.remainder(y)),
            "min" => map2(d, a, b, |x: T, y: T| x.min(y)),
            _ => map2(d, a, b, |x: T, y: T| x.max(y)),
        }))
    }

    fn single(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let is_abs = opcode.base == "abs";
        let ty = opcode.type_of()?;
        let [d, a] = take::<2>(args)?;
        let (a, d) = (self.src(a, ty)?, self.dst(d, ty.bits())?);
        macro_rules! signed {
            ($T:ty) => {
                if is_abs {
                    map1(d, a, |x: $T| x.wrapping_abs())
                } else {
                    map1(d, a, |x: $T| x.wrapping_neg())
                }
            };
        }
        Self::lanes(match ty {
            Type::S16 => signed!(i16),
            Type::S32 => signed!(i32),
            Type::S64 => signed!(i64),
            other => return Err(Unsupported(format!("the type {other:?} is not known here"))),
        })
    }

    fn sad(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let ty = opcode.type_of()?;
        let [d, a, b, c] = take::<4>(args)?;
        let from = [self.src(a, ty)?, self.src(b, ty)?, self.src(c, ty)?];
        let d = self.dst(d, ty.bits())?;
        by_integer!(ty, T => Self::lanes(map3(d, from, |x: T, y: T, z: T| {
            T::from_raw(x.max(y).raw().wrapping_sub(x.min(y).raw()).wrapping_add(z.raw()))
        })))
    }

    fn dot(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let is_four = opcode.base == "dp4a";
        let half = opcode.take_of(&["lo", "hi"]);
        if is_four == half.is_some() {
            return Err(Unsupported("`.lo` and `.hi` belong to dp2a".to_owned()));
        }
        let (ta, tb) = (opcode.type_of()?, opcode.type_of()?);
        let (Type::S32 | Type::U32, Type::S32 | Type::U32) = (ta, tb) else {
            return Err(Unsupported("types other than `.s32` and `.u32`".to_owned()));
        };
        let [d, a, b, c] = take::<4>(args)?;
        let from = [self.src(a, ta)?, self.src(b, tb)?, self.src(c, Type::B32)?];
        let d = self.dst(d, 32)?;
        let byte = |signed: bool| {
            move |word: u32, i: u32| {
                let byte = (word >> (8 * i)) as u8;
                if signed { i32::from(byte as i8) } else { i32::from(byte) }
            }
        };
        let y = byte(tb.is_signed());
        let signed = ta.is_signed();
        let at = if half == Some("hi") { 2 } else { 0 };
        Self::lanes(if is_four {
            match (ta.is_signed(), tb.is_signed()) {
                (true, true) => map3(d, from, dot4::<true, true>),
                (true, false) => map3(d, from, dot4::<true, false>),
                (false, true) => map3(d, from, dot4::<false, true>),
                (false, false) => map3(d, from, dot4::<false, false>),
            }
        } else {
            map3(d, from, move |a: u32, b: u32, c: u32| {
                let wide = |i: u32| {
                    let half = (a >> (16 * i)) as u16;
                    if signed { i32::from(half as i16) } else { i32::from(half) }
                };
                (0..2).fold(c, |sum, i| sum.wrapping_add((wide(i) * y(b, at + i)) as u32))
            })
        })
    }
}

/// `d = x + y + carry`. `f` returns both terms, and whether the instruction subtracts: then the second term is a
/// complement, and the carry bit means borrow.
fn with_carry(
    d: Reg,
    carry: Reg,
    takes: bool,
    sets: bool,
    bits: u32,
    f: impl Fn(&crate::program::lanes::Registers, usize) -> (u64, u64, bool) + Send + Sync + 'static,
) -> LaneFn {
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    Box::new(move |r, active| {
        for lane in crate::program::lanes::lanes_of(active) {
            let (x, y, is_difference) = f(r, lane);
            let is_in = (takes && r.lane(carry, lane) == 1) ^ is_difference;
            let sum = u128::from(x & mask) + u128::from(y & mask) + u128::from(is_in);
            r.set_lane(d, lane, sum as u64 & mask);
            if sets {
                let is_out = (sum >> bits != 0) ^ is_difference;
                r.set_lane(carry, lane, u64::from(is_out));
            }
        }
    })
}

/// `dp4a`: adds the products of four signed or unsigned bytes to `c`.
#[inline(always)]
fn dot4<const A: bool, const B: bool>(a: u32, b: u32, c: u32) -> u32 {
    let byte = |word: u32, i: u32, signed: bool| {
        let top = word << (24 - 8 * i);
        if signed { top as i32 >> 24 } else { (top >> 24) as i32 }
    };
    (0..4).fold(c, |sum, i| sum.wrapping_add((byte(a, i, A) * byte(b, i, B)) as u32))
}
