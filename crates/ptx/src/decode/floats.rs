//! F32 and F64 arithmetic, exact and approximate. Instructions on 16-bit floats are in `halves`.

use crate::numeric::round::{Rounding, add_odd, div_odd, fma_odd, sqrt_odd};
use crate::numeric::{NAN32, approx, canonical, flush, fma, saturate};
use crate::program::lanes::{LaneFn, Reg, map1, map2, map3};
use crate::program::wide::is_wide;
use crate::syntax::Operand;

use super::operands::take;
use super::types::{Opcode, Type};
use super::{Decoded, Decoder, Unsupported};

/// Modifiers that apply to the inputs and the result of an F32 instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Edges {
    ftz: bool,
    sat: bool,
}

impl Edges {
    const PLAIN: Self = Self { ftz: false, sat: false };

    fn take(opcode: &mut Opcode<'_>) -> Self {
        Self { ftz: opcode.take("ftz"), sat: opcode.take("sat") }
    }

    #[inline]
    fn input(self, x: f32) -> f32 {
        if self.ftz { flush(x) } else { x }
    }

    #[inline]
    fn output(self, x: f32) -> u32 {
        let x = if self.ftz { flush(x) } else { x };
        canonical(if self.sat { saturate(x) } else { x })
    }
}

/// Wrappers that keep the common case free of branches.
fn f32_1(
    d: Reg,
    a: Reg,
    edges: Edges,
    f: impl Fn(f32) -> f32 + Copy + Send + Sync + 'static,
) -> LaneFn {
    if edges == Edges::PLAIN {
        return map1(d, a, move |x: f32| canonical(f(x)));
    }
    map1(d, a, move |x: f32| edges.output(f(edges.input(x))))
}

fn f32_2(
    [d, a, b]: [Reg; 3],
    edges: Edges,
    f: impl Fn(f32, f32) -> f32 + Copy + Send + Sync + 'static,
) -> LaneFn {
    if edges == Edges::PLAIN {
        return map2(d, a, b, move |x: f32, y: f32| canonical(f(x, y)));
    }
    map2(d, a, b, move |x: f32, y: f32| edges.output(f(edges.input(x), edges.input(y))))
}

impl Decoder<'_> {
    pub(super) fn floats(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Option<Decoded> {
        match opcode.base {
            "add" | "sub" | "mul" | "fma" | "mad" | "div" | "min" | "max" | "abs" | "neg"
            | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "copysign"
            | "testp" => {}
            _ => return None,
        }
        Some(match opcode.ty() {
            Some(Type::F32) => self.float32(opcode, args),
            Some(Type::F64) => self.float64(opcode, args),
            Some(Type::F16 | Type::F16x2 | Type::BF16 | Type::BF16x2) => self.half(opcode, args),
            other => Err(Unsupported(format!("the type {other:?} is not known here"))),
        })
    }

    /// The operands of an instruction that all have the type `ty`, destination first.
    pub(super) fn all<const N: usize>(
        &mut self,
        args: &[Operand],
        ty: Type,
    ) -> Result<[Reg; N], Unsupported> {
        let args = take::<N>(args)?;
        let mut found = Vec::with_capacity(N);
        for arg in &args[1..] {
            found.push(self.src(arg, ty)?);
        }
        found.insert(0, self.dst(&args[0], ty.bits())?);
        Ok(std::array::from_fn(|i| found[i]))
    }

    fn float32(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let base = opcode.base;
        if base == "testp" {
            return self.test_property(opcode, args);
        }
        let rounding = opcode.take_as(Rounding::parse).filter(|r| *r != Rounding::NearAway);
        let edges = Edges::take(opcode);
        let ty = opcode.type_of()?;
        let is_approx = opcode.take("approx");
        let is_full = opcode.take("full");
        if (is_approx || is_full) && rounding.is_some() {
            return Err(Unsupported("both approximate and rounded".to_owned()));
        }
        let mode = rounding.unwrap_or(Rounding::Near);
        let is_near = mode == Rounding::Near;
        let decoded = match base {
            "add" | "sub" => {
                let r = self.all(args, ty)?;
                let sign = if base == "sub" { -1.0f32 } else { 1.0 };
                if is_near {
                    f32_2(r, edges, move |x, y| x + sign * y)
                } else {
                    f32_2(r, edges, move |x, y| {
                        let (x, y) = (f64::from(x), f64::from(sign * y));
                        signed_zero(mode.f32(add_odd(x, y)), mode, x, y)
                    })
                }
            }
            "mul" => {
                let r = self.all(args, ty)?;
                if is_near {
                    f32_2(r, edges, |x, y| x * y)
                } else {
                    f32_2(r, edges, move |x, y| mode.f32(f64::from(x) * f64::from(y)))
                }
            }
            "fma" | "mad" => {
                let [d, a, b, c] = self.all(args, ty)?;
                if is_near && edges == Edges::PLAIN && is_wide() {
                    // Compiled for this processor, this is a single instruction.
                    return Self::lanes(map3(d, [a, b, c], |x: f32, y: f32, z: f32| {
                        canonical(x.mul_add(y, z))
                    }));
                }
                if is_near && edges == Edges::PLAIN {
                    let lanes = fma::fma_lanes();
                    return Self::lanes(Box::new(move |r, active| {
                        let out = lanes(r.word(a), r.word(b), r.word(c));
                        r.set_word(d, active, &out);
                    }));
                }
                map3(d, [a, b, c], move |x: f32, y: f32, z: f32| {
                    let [x, y, z] = [x, y, z].map(|x| edges.input(x));
                    let product = f64::from(x) * f64::from(y);
                    let sum = mode.f32(fma_odd(x, y, z));
                    edges.output(signed_zero(sum, mode, product, f64::from(z)))
                })
            }
            "div" => {
                let r = self.all(args, ty)?;
                if is_approx {
                    f32_2(r, edges, approx::div)
                } else if is_near || is_full {
                    f32_2(r, edges, |x, y| x / y)
                } else {
                    f32_2(r, edges, move |x, y| mode.f32(div_odd(x, y)))
                }
            }
            "min" | "max" => {
                let takes_nan = opcode.take("NaN");
                let by_magnitude = opcode.take("xorsign");
                if by_magnitude {
                    return Err(Unsupported("`.xorsign.abs` is not known".to_owned()));
                }
                let r = self.all(args, ty)?;
                let is_max = base == "max";
                f32_2(r, edges, move |x, y| extreme(x, y, is_max, takes_nan))
            }
            "abs" => {
                let [d, a] = self.all(args, ty)?;
                let ftz = edges.ftz;
                map1(d, a, move |x: f32| if ftz { flush(x).abs() } else { x.abs() })
            }
            "neg" => {
                let [d, a] = self.all(args, ty)?;
                let ftz = edges.ftz;
                map1(d, a, move |x: f32| if ftz { -flush(x) } else { -x })
            }
            "copysign" => {
                let [d, a, b] = self.all(args, ty)?;
                map2(d, a, b, |sign: f32, x: f32| x.copysign(sign))
            }
            "rcp" | "sqrt" if !is_approx => {
                let [d, a] = self.all(args, ty)?;
                if rounding.is_none() {
                    return Err(Unsupported("a rounding or `.approx` is missing".to_owned()));
                }
                match (base, is_near) {
                    ("rcp", true) => f32_1(d, a, edges, |x| 1.0 / x),
                    ("rcp", false) => f32_1(d, a, edges, move |x| mode.f32(div_odd(1.0, x))),
                    (_, true) => f32_1(d, a, edges, f32::sqrt),
                    (_, false) => f32_1(d, a, edges, move |x| mode.f32(sqrt_odd(x))),
                }
            }
            _ => {
                if !is_approx {
                    return Err(Unsupported("`.approx` is missing".to_owned()));
                }
                let [d, a] = self.all(args, ty)?;
                let f: fn(f32) -> f32 = match base {
                    "rcp" => approx::rcp,
                    "sqrt" => approx::sqrt,
                    "rsqrt" => approx::rsqrt,
                    "sin" => approx::sin,
                    "cos" => approx::cos,
                    "lg2" => approx::lg2,
                    "ex2" => approx::ex2,
                    _ => approx::tanh,
                };
                f32_1(d, a, edges, f)
            }
        };
        Self::lanes(decoded)
    }

    fn test_property(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let names = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
        let property = opcode.take_of(&names);
        let ty = opcode.type_of()?;
        let [d, a] = take::<2>(args)?;
        let (a, d) = (self.src(a, ty)?, self.dst(d, 1)?);
        macro_rules! property {
            ($T:ty) => {{
                let holds: fn($T) -> bool = match property {
                    Some("finite") => |x| x.is_finite(),
                    Some("infinite") => |x| x.is_infinite(),
                    Some("number") => |x| !x.is_nan(),
                    Some("notanumber") => |x| x.is_nan(),
                    // PTX counts zero as normal.
                    Some("normal") => |x| x.is_normal() || x == 0.0,
                    Some("subnormal") => |x| x.is_subnormal(),
                    _ => return Err(Unsupported("a property is missing".to_owned())),
                };
                Self::lanes(Box::new(move |r, active| {
                    let mask = crate::program::lanes::compare::<$T>(r, a, a, |x, _| holds(x));
                    r.set_predicate(d, active, mask);
                }))
            }};
        }
        if ty == Type::F64 { property!(f64) } else { property!(f32) }
    }

    fn float64(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let base = opcode.base;
        if base == "testp" {
            return self.test_property(opcode, args);
        }
        let rounding = opcode.take_as(Rounding::parse);
        if rounding.is_some_and(|r| r != Rounding::Near) {
            return Err(Unsupported("F64 is rounded to nearest only".to_owned()));
        }
        let ty = opcode.type_of()?;
        let is_approx = opcode.take("approx") && opcode.take("ftz");
        if is_approx && !matches!(base, "rcp" | "rsqrt") {
            return Err(Unsupported("an approximate result of F64".to_owned()));
        }
        if base == "fma" || base == "mad" {
            let [d, a, b, c] = self.all(args, ty)?;
            return Self::lanes(map3(d, [a, b, c], |x: f64, y: f64, z: f64| x.mul_add(y, z)));
        }
        if let "abs" | "neg" | "rcp" | "sqrt" | "rsqrt" = base {
            let [d, a] = self.all(args, ty)?;
            let f: fn(f64) -> f64 = match base {
                "abs" => f64::abs,
                "neg" => |x| -x,
                // The approximate form returns the upper 32 bits of the result.
                "rcp" if is_approx => |x| upper(1.0 / x),
                "rcp" => |x| 1.0 / x,
                "sqrt" => f64::sqrt,
                _ => |x| upper(1.0 / x.sqrt()),
            };
            return Self::lanes(map1(d, a, f));
        }
        let [d, a, b] = self.all(args, ty)?;
        let f: fn(f64, f64) -> f64 = match base {
            "add" => |x, y| x + y,
            "sub" => |x, y| x - y,
            "mul" => |x, y| x * y,
            "div" => |x, y| x / y,
            "copysign" => |sign, x| x.copysign(sign),
            "min" => {
                |x, y| if x.is_nan() || y < x || y == x && y.is_sign_negative() { y } else { x }
            }
            "max" => {
                |x, y| if x.is_nan() || y > x || y == x && x.is_sign_negative() { y } else { x }
            }
            _ => return Err(Unsupported("not known of F64".to_owned())),
        };
        Self::lanes(map2(d, a, b, f))
    }
}

/// The upper half of a number's bits.
fn upper(x: f64) -> f64 {
    f64::from_bits(x.to_bits() >> 32 << 32)
}

/// A sum that cancels to zero is negative when rounding down.
#[inline]
fn signed_zero(sum: f32, mode: Rounding, x: f64, y: f64) -> f32 {
    let cancels = sum == 0.0 && x == -y && x.is_sign_negative() != y.is_sign_negative();
    if cancels && mode == Rounding::Down { -0.0 } else { sum }
}

/// The smaller or larger number, with -0 below +0. NaN is ignored, or propagated with `.NaN`.
#[inline]
pub(super) fn extreme(x: f32, y: f32, is_max: bool, takes_nan: bool) -> f32 {
    if x.is_nan() || y.is_nan() {
        return match (takes_nan, x.is_nan()) {
            (true, _) => f32::from_bits(NAN32),
            (false, true) => y,
            (false, false) => x,
        };
    }
    let first_is_less = x < y || x == y && x.is_sign_negative();
    if first_is_less == is_max { y } else { x }
}
