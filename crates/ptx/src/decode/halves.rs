//! Arithmetic of F16 and BF16, scalar and packed.

use crate::numeric::format::{BF16, F16, Format};
use crate::numeric::round::{Rounding, add_odd};
use crate::program::lanes::{LaneFn, Reg, map1, map2, map3};
use crate::syntax::Operand;

use super::types::{Opcode, Type};
use super::{Decoded, Decoder, Unsupported};

/// How an instruction computes 16-bit results.
#[derive(Debug, Clone, Copy)]
struct Shape {
    format: Format,
    is_pair: bool,
    ftz: bool,
    sat: bool,
    relu: bool,
}

impl Shape {
    #[inline]
    fn input(self, bits: u32) -> f64 {
        let x = self.format.widen(bits & 0xffff);
        // The smallest normal number of F16; BF16 has no `.ftz`.
        if self.ftz && x.abs() < 2f64.powi(-14) { 0.0f64.copysign(x) } else { x }
    }

    #[inline]
    fn output(self, x: f64) -> u32 {
        let x = match () {
            () if self.sat => {
                if x > 0.0 {
                    x.min(1.0)
                } else {
                    0.0
                }
            }
            () if self.relu && x <= 0.0 => 0.0,
            () => x,
        };
        let bits = self.format.narrow(x, Rounding::Near, false);
        let is_subnormal = bits & 0x7c00 == 0 && bits & 0x7fff != 0;
        if self.ftz && is_subnormal { bits & 0x8000 } else { bits }
    }

    #[inline]
    fn each(self, word: [u32; 3], f: impl Fn([f64; 3]) -> f64) -> u32 {
        let low = self.output(f(word.map(|w| self.input(w))));
        if !self.is_pair {
            return low;
        }
        low | self.output(f(word.map(|w| self.input(w >> 16)))) << 16
    }

    fn lanes1(self, [d, a]: [Reg; 2], f: impl Fn(f64) -> f64 + Send + Sync + 'static) -> LaneFn {
        map1(d, a, move |x: u32| self.each([x, 0, 0], |[x, _, _]| f(x)))
    }

    fn lanes2(
        self,
        [d, a, b]: [Reg; 3],
        f: impl Fn(f64, f64) -> f64 + Send + Sync + 'static,
    ) -> LaneFn {
        map2(d, a, b, move |x: u32, y: u32| self.each([x, y, 0], |[x, y, _]| f(x, y)))
    }
}

impl Decoder<'_> {
    pub(super) fn half(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let base = opcode.base;
        let is_rounded = opcode.take("rn");
        let is_approx = opcode.take("approx");
        let (ftz, sat, relu) = (opcode.take("ftz"), opcode.take("sat"), opcode.take("relu"));
        let takes_nan = opcode.take("NaN");
        let ty = opcode.type_of()?;
        let is_pair = matches!(ty, Type::F16x2 | Type::BF16x2);
        let is_f16 = matches!(ty, Type::F16 | Type::F16x2);
        let format = if is_f16 { F16 } else { BF16 };
        // `ex2.approx.ftz.bf16` flushes by definition; such small inputs give 1 anyway.
        let ftz = ftz && is_f16;
        let shape = Shape { format, is_pair, ftz, sat, relu };
        if takes_nan && !matches!(base, "min" | "max") {
            return Err(Unsupported("`.NaN` of this instruction".to_owned()));
        }
        if relu && base != "fma" {
            return Err(Unsupported("`.relu` of this instruction".to_owned()));
        }
        if is_approx != matches!(base, "ex2" | "tanh") || is_rounded && is_approx {
            return Err(Unsupported("`.approx` belongs to ex2 and tanh".to_owned()));
        }
        Self::lanes(match base {
            "add" => shape.lanes2(self.all(args, ty)?, |x, y| x + y),
            "sub" => shape.lanes2(self.all(args, ty)?, |x, y| x - y),
            "mul" => shape.lanes2(self.all(args, ty)?, |x, y| x * y),
            "fma" => {
                let [d, a, b, c] = self.all(args, ty)?;
                map3(d, [a, b, c], move |x: u32, y: u32, z: u32| {
                    shape.each([x, y, z], |[x, y, z]| add_odd(x * y, z))
                })
            }
            "min" | "max" => {
                let is_max = base == "max";
                shape.lanes2(self.all(args, ty)?, move |x, y| {
                    f64::from(super::floats::extreme(x as f32, y as f32, is_max, takes_nan))
                })
            }
            "neg" if !ftz => {
                let [d, a] = self.all(args, ty)?;
                let sign = if is_pair { 0x8000_8000 } else { 0x8000 };
                map1(d, a, move |x: u32| x ^ sign)
            }
            // PTX does not specify which NaN results; an H100 returns the canonical one.
            "abs" => shape.lanes1(self.all(args, ty)?, f64::abs),
            "neg" => shape.lanes1(self.all(args, ty)?, |x| -x),
            "ex2" => shape.lanes1(self.all(args, ty)?, f64::exp2),
            "tanh" => shape.lanes1(self.all(args, ty)?, f64::tanh),
            _ => return Err(Unsupported(format!("not known of {ty:?}"))),
        })
    }
}
