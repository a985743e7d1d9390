//! Warp-group matrix products (`wgmma`).

use crate::Error;
use crate::numeric::format::{BF16, F16};
use crate::program::wgmma::{GroupProduct, Source, Wgmma};
use crate::program::{Constant, Instruction, Op};
use crate::syntax::Operand;

use super::flow::Flow;
use super::operands::{literal, take};
use super::types::{Opcode, Type};
use super::{Decoded, Decoder, Unsupported};

impl Decoder<'_> {
    pub(super) fn groups(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Option<Decoded> {
        (opcode.base == "wgmma").then(|| self.group(opcode, args).map(Op::Wgmma))
    }

    fn group(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Result<Wgmma, Unsupported> {
        let known = ["fence", "mma_async", "commit_group", "wait_group"];
        let what = opcode.take_of(&known);
        if !opcode.take("sync") || !opcode.take("aligned") {
            return Err(Unsupported("`.sync.aligned` is missing".to_owned()));
        }
        self.program.has_groups = true;
        match what {
            Some("fence") => take::<0>(args).map(|_| Wgmma::Fence),
            Some("commit_group") => take::<0>(args).map(|_| Wgmma::Commit),
            Some("wait_group") => Ok(Wgmma::Wait(literal(&take::<1>(args)?[0])? as u32)),
            Some(_) => self.group_product(opcode, args).map(Wgmma::Product),
            None => Err(Unsupported(format!("only {} are known", known.join(", ")))),
        }
    }

    fn group_product(
        &mut self,
        opcode: &mut Opcode<'_>,
        args: &[Operand],
    ) -> Result<GroupProduct, Unsupported> {
        let shape = opcode.take_as(|word| word.starts_with('m').then(|| word.to_owned()));
        let shape = shape.unwrap_or_default();
        let unknown =
            || Unsupported(format!("the shape `.{shape}` with these types is not interpreted"));
        let n = shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix("k16"));
        let n: usize = n.and_then(|n| n.parse().ok()).ok_or_else(unknown)?;
        if n == 0 || n > 256 || !n.is_multiple_of(8) {
            return Err(unknown());
        }
        let [td, ta, tb] = [opcode.type_of()?, opcode.type_of()?, opcode.type_of()?];
        let format = match (td, ta, tb) {
            (Type::F32, Type::F16, Type::F16) => F16,
            (Type::F32, Type::BF16, Type::BF16) => BF16,
            _ => return Err(unknown()),
        };
        let [d, a, b, adds, rest @ ..] = args else {
            return Err(Unsupported(format!("{} operands", args.len())));
        };
        let regs = Self::elements(d);
        if regs.len() != n / 2 {
            return Err(Unsupported(format!(
                "{} registers where {} are expected",
                regs.len(),
                n / 2
            )));
        }
        let (adds, negated) = self.src_predicate(adds)?;
        if negated {
            return Err(Unsupported("a negated predicate".to_owned()));
        }
        // Without accumulation, D may be undefined.
        let is_zero = self
            .program
            .constants
            .iter()
            .any(|(reg, constant)| *reg == adds && matches!(constant, Constant::Value(0)));
        if !is_zero {
            regs.iter().try_for_each(|reg| self.src(reg, Type::F32).map(|_| ()))?;
        }
        let d = regs.iter().map(|reg| self.dst(reg, 32)).collect::<Result<Box<[_]>, _>>()?;
        let (a, n_transposed) = match a {
            Operand::Vector(regs) => {
                let regs = take::<4>(regs)?.iter().map(|reg| self.src(reg, Type::B32));
                (Source::Registers(regs.collect::<Result<_, _>>()?), 1)
            }
            descriptor => (Source::Shared(self.src(descriptor, Type::B64)?), 2),
        };
        let b = self.src(b, Type::B64)?;
        let rest = rest.iter().map(literal).collect::<Result<Vec<_>, _>>()?;
        let (signs, transposed) = rest.split_at_checked(2).unwrap_or_default();
        if signs.iter().any(|sign| sign.abs() != 1) || transposed.len() != n_transposed {
            return Err(Unsupported(format!("{} operands", args.len())));
        }
        if transposed.iter().any(|t| *t != 0) {
            return Err(Unsupported("transposed matrices are not interpreted".to_owned()));
        }
        let negates = signs.iter().product::<i64>() < 0;
        Ok(GroupProduct { n, format, d, a, b, adds, negates })
    }
}

/// Extends live ranges over asynchronous products: a wait writes the sums of all products before it, so their registers
/// keep their slots until then.
///
/// # Errors
///
/// [`Error::Unsupported`] for a product whose registers are written by an instruction after the last fence, or that has
/// no fence before it.
pub(super) fn hold(code: &[Instruction], flow: &mut [Flow], names: &[String]) -> Result<(), Error> {
    let mut sums = Vec::new();
    for (at, instruction) in code.iter().enumerate() {
        let Op::Wgmma(Wgmma::Product(product)) = &instruction.op else { continue };
        sums.extend(product.d.iter().map(|reg| reg.id));
        let mut own: Vec<u32> = product.d.iter().map(|reg| reg.id).collect();
        if let Source::Registers(regs) = &product.a {
            own.extend(regs.iter().map(|reg| reg.id));
        }
        let error = |message| Error::Unsupported {
            line: instruction.line,
            opcode: "wgmma.mma_async".to_owned(),
            message,
        };
        let is_fenced = code[..at].iter().any(|i| matches!(i.op, Op::Wgmma(Wgmma::Fence)));
        if !is_fenced {
            return Err(error("there is no `wgmma.fence` in front of it".to_owned()));
        }
        for (before, flow) in code[..at].iter().zip(&*flow).rev() {
            match &before.op {
                Op::Wgmma(Wgmma::Fence) => break,
                Op::Wgmma(Wgmma::Product(_)) => continue,
                Op::Branch(_) | Op::BranchTable(..) | Op::Exit if before.guard.is_none() => {
                    return Err(error("there is no `wgmma.fence` in front of it".to_owned()));
                }
                _ => {}
            }
            if let Some(&written) = flow.defs.iter().find(|def| own.contains(def)) {
                let name = &names[written as usize];
                return Err(error(format!("`{name}` is written behind the last `wgmma.fence`")));
            }
        }
    }
    sums.sort_unstable();
    sums.dedup();
    let waits = code.iter().zip(flow).filter(|(i, _)| matches!(i.op, Op::Wgmma(Wgmma::Wait(_))));
    waits.for_each(|(_, flow)| flow.uses = flow.uses.iter().chain(&sums).copied().collect());
    Ok(())
}
