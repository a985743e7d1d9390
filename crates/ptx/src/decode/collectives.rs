//! Barriers, shuffles, votes, matches and reductions.

use crate::program::Op;
use crate::program::collective::{
    Barrier, BarrierKind, BarrierReduce, Collective, Kind, Reduce, Shuffle, ShuffleRegs, Vote,
    VoteRegs,
};
use crate::syntax::Operand;

use super::operands::take;
use super::types::{Opcode, Type};
use super::{Decoded, Decoder, Unsupported};

impl Decoder<'_> {
    pub(super) fn collectives(
        &mut self,
        opcode: &mut Opcode<'_>,
        args: &[Operand],
    ) -> Option<Decoded> {
        Some(match opcode.base {
            "bar" | "barrier" => self.barrier(opcode, args),
            "shfl" => self.shuffle(opcode, args),
            "vote" => self.vote(opcode, args),
            "match" => self.match_lanes(opcode, args),
            "redux" => self.reduce(opcode, args),
            "activemask" => self.active_mask(opcode, args),
            _ => return None,
        })
    }

    fn collective(&mut self, kind: Kind, mask: &Operand) -> Decoded {
        let mask = self.src(mask, Type::B32)?;
        Ok(Op::Collective(Collective { kind, mask }))
    }

    fn barrier(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        if opcode.take("warp") {
            let is_sync = opcode.take("sync");
            let [mask] = take::<1>(args)?;
            if !is_sync {
                return Err(Unsupported("`.sync` is missing".to_owned()));
            }
            return self.collective(Kind::Sync, mask);
        }
        opcode.take("cta");
        if opcode.take("cluster") {
            return Err(Unsupported("clusters of blocks are not interpreted".to_owned()));
        }
        let aligned = opcode.base == "bar" || opcode.take("aligned");
        if opcode.base == "bar" {
            opcode.take("aligned");
        }
        if opcode.take("red") {
            return self.barrier_reduction(opcode, args, aligned);
        }
        let what = opcode.take_of(&["sync", "arrive"]);
        let (id, count) = match (what, args) {
            (Some("sync"), [id]) => (id, None),
            (Some(_), [id, count]) => (id, Some(count)),
            _ => {
                return Err(Unsupported(
                    "`.sync` or `.arrive`, or an operand, is missing".to_owned(),
                ));
            }
        };
        let id = self.src(id, Type::U32)?;
        let count = count.map(|count| self.src(count, Type::U32)).transpose()?;
        let kind = if what == Some("sync") { BarrierKind::Sync } else { BarrierKind::Arrive };
        Ok(Op::Barrier(Barrier { kind, id, count, aligned }))
    }

    fn barrier_reduction(
        &mut self,
        opcode: &mut Opcode<'_>,
        args: &[Operand],
        aligned: bool,
    ) -> Decoded {
        let how = match opcode.take_of(&["popc", "and", "or"]) {
            Some("popc") => BarrierReduce::Count,
            Some("and") => BarrierReduce::All,
            Some(_) => BarrierReduce::Any,
            None => return Err(Unsupported("a reduction is missing".to_owned())),
        };
        let ty = opcode.type_of()?;
        if ty != if how == BarrierReduce::Count { Type::U32 } else { Type::Pred } {
            return Err(Unsupported("a reduction to another type".to_owned()));
        }
        let (to, id, count, predicate) = match args {
            [to, id, predicate] => (to, id, None, predicate),
            [to, id, count, predicate] => (to, id, Some(count), predicate),
            _ => return Err(Unsupported(format!("{} operands", args.len()))),
        };
        let id = self.src(id, Type::U32)?;
        let count = count.map(|count| self.src(count, Type::U32)).transpose()?;
        let (predicate, negated) = self.src_predicate(predicate)?;
        let to = self.dst(to, ty.bits())?;
        let kind = BarrierKind::Reduce { how, to, predicate, negated };
        Ok(Op::Barrier(Barrier { kind, id, count, aligned }))
    }

    fn shuffle(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        if !opcode.take("sync") {
            return Err(Unsupported("only the form with `.sync` is known".to_owned()));
        }
        let how = match opcode.take_of(&["up", "down", "bfly", "idx"]) {
            Some("up") => Shuffle::Up,
            Some("down") => Shuffle::Down,
            Some("bfly") => Shuffle::Butterfly,
            Some(_) => Shuffle::Index,
            None => return Err(Unsupported("a mode is missing".to_owned())),
        };
        let ty = opcode.type_of()?;
        if ty != Type::B32 {
            return Err(Unsupported("only `.b32` is known".to_owned()));
        }
        let [to, from, by, clamp, mask] = take::<5>(args)?;
        let (to, valid) = match to {
            Operand::Pair(to, valid) => {
                let valid = self.dst(&Operand::Name(valid.clone()), 1)?;
                (Operand::Name(to.clone()), Some(valid))
            }
            single => (single.clone(), None),
        };
        let to = self.dst(&to, 32)?;
        // Which lanes receive a value is known only at run time, and a lane's own value is not always read.
        self.writes.clear();
        let from = self.src(from, ty)?;
        self.reads.clear();
        let (by, clamp) = (self.src(by, Type::B32)?, self.src(clamp, Type::B32)?);
        self.collective(Kind::Shuffle(how, ShuffleRegs { to, valid, from, by, clamp }), mask)
    }

    fn vote(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        if !opcode.take("sync") {
            return Err(Unsupported("only the form with `.sync` is known".to_owned()));
        }
        let how = match opcode.take_of(&["all", "any", "uni", "ballot"]) {
            Some("all") => Vote::All,
            Some("any") => Vote::Any,
            Some("uni") => Vote::Uniform,
            Some(_) => Vote::Ballot,
            None => return Err(Unsupported("a mode is missing".to_owned())),
        };
        let ty = opcode.type_of()?;
        let [to, predicate, mask] = take::<3>(args)?;
        let (predicate, negated) = self.src_predicate(predicate)?;
        let bits = if how == Vote::Ballot { 32 } else { 1 };
        if ty.bits() != bits {
            return Err(Unsupported("a vote of another type".to_owned()));
        }
        let to = self.dst(to, bits)?;
        self.collective(Kind::Vote(how, VoteRegs { to, predicate, negated }), mask)
    }

    fn match_lanes(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let how = opcode.take_of(&["any", "all"]);
        let is_sync = opcode.take("sync");
        let ty = opcode.type_of()?;
        if !is_sync || !matches!(ty, Type::B32 | Type::B64) {
            return Err(Unsupported("`.sync`, or bits, are missing".to_owned()));
        }
        let [to, value, mask] = take::<3>(args)?;
        let value = self.src(value, ty)?;
        let kind = match (how, to) {
            (Some("any"), to) => Kind::MatchAny { to: self.dst(to, 32)?, value },
            (Some(_), Operand::Pair(to, same)) => {
                let same = self.dst(&Operand::Name(same.clone()), 1)?;
                let to = self.dst(&Operand::Name(to.clone()), 32)?;
                Kind::MatchAll { to, same: Some(same), value }
            }
            (Some(_), to) => Kind::MatchAll { to: self.dst(to, 32)?, same: None, value },
            (None, _) => return Err(Unsupported("a mode is missing".to_owned())),
        };
        self.collective(kind, mask)
    }

    fn reduce(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let is_sync = opcode.take("sync");
        let how = opcode.take_of(&["add", "min", "max", "and", "or", "xor"]);
        let ty = opcode.type_of()?;
        let how = match (how, ty) {
            (Some("add"), Type::U32 | Type::S32) => Reduce::Add,
            (Some("min"), Type::U32) => Reduce::MinUnsigned,
            (Some("min"), Type::S32) => Reduce::MinSigned,
            (Some("max"), Type::U32) => Reduce::MaxUnsigned,
            (Some("max"), Type::S32) => Reduce::MaxSigned,
            (Some("and"), Type::B32) => Reduce::And,
            (Some("or"), Type::B32) => Reduce::Or,
            (Some("xor"), Type::B32) => Reduce::Xor,
            _ => return Err(Unsupported("this reduction is not known".to_owned())),
        };
        if !is_sync {
            return Err(Unsupported("`.sync` is missing".to_owned()));
        }
        let [to, value, mask] = take::<3>(args)?;
        let (value, to) = (self.src(value, ty)?, self.dst(to, 32)?);
        self.collective(Kind::Reduce { how, to, value }, mask)
    }

    fn active_mask(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let ty = opcode.type_of()?;
        let [to] = take::<1>(args)?;
        Ok(Op::ActiveMask(self.dst(to, ty.bits())?))
    }
}
