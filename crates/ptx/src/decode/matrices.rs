//! `ldmatrix`, `stmatrix` and `mma`.

use crate::numeric::format::{BF16, E4M3, E5M2, F16};
use crate::program::Op;
use crate::program::access::Space;
use crate::program::matrix::{Element, Fragments, Matrix, Product, Sum};
use crate::syntax::Operand;

use super::operands::take;
use super::types::{Opcode, Type};
use super::{Decoded, Decoder, Unsupported};

impl Decoder<'_> {
    pub(super) fn matrices(
        &mut self,
        opcode: &mut Opcode<'_>,
        args: &[Operand],
    ) -> Option<Decoded> {
        Some(match opcode.base {
            "ldmatrix" | "stmatrix" => self.fragments(opcode, args),
            "mma" => self.mma(opcode, args).map(|p| Op::Matrix(Matrix::Product(p))),
            _ => return None,
        })
    }

    fn fragments(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let is_load = opcode.base == "ldmatrix";
        let is_known = opcode.take("sync") && opcode.take("aligned") && opcode.take("m8n8");
        let count = opcode.take_of(&["x1", "x2", "x4"]);
        let transposed = opcode.take("trans");
        let shared = opcode.take_of(&["shared", "shared::cta"]);
        let ty = opcode.type_of()?;
        let n = match count {
            Some("x1") => 1,
            Some("x2") => 2,
            Some("x4") => 4,
            _ => return Err(Unsupported("the number of matrices is missing".to_owned())),
        };
        if !is_known || ty != Type::B16 {
            return Err(Unsupported("only `.m8n8` of `.b16` is known".to_owned()));
        }
        let args = take::<2>(args)?;
        let (regs, address) = if is_load { (&args[0], &args[1]) } else { (&args[1], &args[0]) };
        let (address, symbol) = self.address(address)?;
        let regs = Self::elements(regs);
        if regs.len() != n {
            return Err(Unsupported(format!("{} registers for {n} matrices", regs.len())));
        }
        let mut found = Vec::new();
        for reg in regs {
            found.push(if is_load { self.dst(reg, 32)? } else { self.src(reg, Type::B32)? });
        }
        let is_generic = shared.is_none() && symbol.is_none();
        let space = if is_generic { Space::Generic } else { Space::Shared };
        let fragments = Fragments { space, address, regs: found.into(), transposed };
        if is_load {
            return Ok(Op::Matrix(Matrix::Load(fragments)));
        }
        self.program.granules[0] = self.program.granules[0].min(4);
        Ok(Op::Matrix(Matrix::Store(fragments)))
    }

    fn mma(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Result<Product, Unsupported> {
        let is_warp = opcode.take("sync") && opcode.take("aligned");
        let shape = opcode.take_as(|word| word.starts_with('m').then(|| word.to_owned()));
        let is_known = opcode.take("row") && opcode.take("col");
        let clamps = opcode.take("satfinite");
        let mut types = [Type::Pred; 4];
        for slot in &mut types {
            let eight = |word: &str| match word {
                "e4m3" => Some(Type::E4m3x2),
                "e5m2" => Some(Type::E5m2x2),
                word => Type::parse(word),
            };
            *slot = opcode
                .take_as(eight)
                .ok_or_else(|| Unsupported("four types are expected".to_owned()))?;
        }
        let shape = shape.unwrap_or_default();
        let unknown =
            || Unsupported(format!("the shape `.{shape}` with these types is not interpreted"));
        if !is_warp || !is_known {
            return Err(unknown());
        }
        let [td, ta, tb, tc] = types;
        let element = |ty| {
            Some(match ty {
                Type::F16 => Element::Float(F16),
                Type::BF16 => Element::Float(BF16),
                Type::E4m3x2 => Element::Float(E4M3),
                Type::E5m2x2 => Element::Float(E5M2),
                Type::Tf32 => Element::Tf32,
                Type::S8 => Element::Signed8,
                Type::U8 => Element::Unsigned8,
                _ => return None,
            })
        };
        let (Some(ea), Some(eb)) = (element(ta), element(tb)) else { return Err(unknown()) };
        let is_eight = |ty| matches!(ty, Type::E4m3x2 | Type::E5m2x2);
        let (m, k) = match (shape.as_str(), ta, tb) {
            ("m16n8k16", Type::F16, Type::F16) | ("m16n8k16", Type::BF16, Type::BF16) => (16, 16),
            ("m16n8k8", Type::F16, Type::F16) | ("m16n8k8", Type::BF16, Type::BF16) => (16, 8),
            ("m16n8k8", Type::Tf32, Type::Tf32) => (16, 8),
            ("m16n8k4", Type::Tf32, Type::Tf32) => (16, 4),
            ("m16n8k32", a, b) if is_eight(a) && is_eight(b) => (16, 32),
            ("m16n8k32", Type::S8 | Type::U8, Type::S8 | Type::U8) => (16, 32),
            ("m16n8k16", Type::S8 | Type::U8, Type::S8 | Type::U8) => (16, 16),
            ("m8n8k16", Type::S8 | Type::U8, Type::S8 | Type::U8) => (8, 16),
            _ => return Err(unknown()),
        };
        let is_integer = matches!(ta, Type::S8 | Type::U8);
        let (sum, n_sums) = match (td, tc) {
            (Type::S32, Type::S32) if is_integer => (Sum::Integer { clamps }, m / 4),
            (Type::F32, Type::F32) if !is_integer && !clamps => (Sum::F32, 4),
            (Type::F16, Type::F16) if ta == Type::F16 && !clamps => (Sum::F16, 2),
            _ => return Err(unknown()),
        };
        let per_register = match ea {
            Element::Tf32 => 1,
            Element::Float(format) => 32 / format.bits() as usize,
            _ => 4,
        };
        let [d, a, b, c] = take::<4>(args)?;
        let ty = if sum == Sum::F32 { Type::F32 } else { Type::B32 };
        let sources = |this: &mut Self, operand, ty, n: usize| {
            let regs = Self::elements(operand).iter().map(|r| this.src(r, ty));
            let regs = regs.collect::<Result<Box<[_]>, _>>()?;
            if regs.len() == n {
                return Ok(regs);
            }
            Err(Unsupported(format!("{} registers where {n} are expected", regs.len())))
        };
        let a = sources(self, a, Type::B32, m * k / 32 / per_register)?;
        let b = sources(self, b, Type::B32, k / 4 / per_register)?;
        let c = sources(self, c, ty, n_sums)?;
        let d = Self::elements(d).iter().map(|r| self.dst(r, 32));
        let d = d.collect::<Result<Box<[_]>, _>>()?;
        if d.len() != n_sums {
            return Err(Unsupported(format!("{} registers for the result", d.len())));
        }
        Ok(Product { m, k, elements: [ea, eb], sum, d, a, b, c })
    }
}
