//! Barriers in shared memory, with the bulk copies and fences that belong to them.

use crate::program::Op;
use crate::program::access::Space;
use crate::program::mbarrier::{CopyBulk, Mbarrier, MbarrierKind};
use crate::syntax::Operand;

use super::operands::take;
use super::types::{Opcode, Type};
use super::{Decoded, Decoder, Unsupported};

impl Decoder<'_> {
    pub(super) fn mbarriers(
        &mut self,
        opcode: &mut Opcode<'_>,
        args: &[Operand],
    ) -> Option<Decoded> {
        (opcode.base == "mbarrier").then(|| self.mbarrier(opcode, args))
    }

    fn mbarrier(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let known = ["init", "inval", "expect_tx", "arrive", "test_wait", "try_wait"];
        let what = opcode.take_of(&known);
        let what =
            what.ok_or_else(|| Unsupported(format!("only {} are known", known.join(", "))))?;
        let announces = what == "arrive" && opcode.take("expect_tx");
        let by_parity = what.ends_with("_wait") && opcode.take("parity");
        opcode.take_of(&["relaxed", "release", "acquire"]);
        opcode.take("cta");
        let is_shared = opcode.take_of(&["shared", "shared::cta"]).is_some();
        if opcode.type_of()? != Type::B64 {
            return Err(Unsupported("only `.b64` is known".to_owned()));
        }
        // Instructions with a result name it before the address.
        let (to, args) = match (what, args) {
            ("arrive" | "test_wait" | "try_wait", [to, rest @ ..]) => (Some(to), rest),
            (_, args) => (None, args),
        };
        let (Some(address), args) = (args.first(), args.get(1..).unwrap_or_default()) else {
            return Err(Unsupported("no operands".to_owned()));
        };
        let (address, symbol) = self.address(address)?;
        let is_shared = is_shared || symbol.is_some();
        let space = if is_shared { Space::Shared } else { Space::Generic };
        self.program.granules[0] = self.program.granules[0].min(8);
        let kind = match (what, to) {
            ("init", _) => {
                let [count] = take(args)?;
                MbarrierKind::Init(self.src(count, Type::U32)?)
            }
            ("inval", _) => {
                take::<0>(args)?;
                MbarrierKind::Invalidate
            }
            ("expect_tx", _) => {
                let [bytes] = take(args)?;
                MbarrierKind::Expect(self.src(bytes, Type::U32)?)
            }
            ("arrive", Some(state)) => {
                let (mut count, mut bytes) = (None, None);
                match (args, announces) {
                    ([], false) => {}
                    ([given], true) => bytes = Some(self.src(given, Type::U32)?),
                    ([given], false) => count = Some(self.src(given, Type::U32)?),
                    _ => return Err(Unsupported(format!("{} operands", args.len()))),
                }
                MbarrierKind::Arrive { state: self.dst(state, 64)?, count, bytes }
            }
            (_, Some(to)) => {
                // PTX does not bound the time of a wait.
                let phase = match args {
                    [phase] => phase,
                    [phase, time] if what == "try_wait" => {
                        self.src(time, Type::U32)?;
                        phase
                    }
                    _ => return Err(Unsupported(format!("{} operands", args.len()))),
                };
                let ty = if by_parity { Type::U32 } else { Type::B64 };
                let phase = self.src(phase, ty)?;
                let waits = what == "try_wait";
                MbarrierKind::Test { to: self.dst(to, 1)?, phase, by_parity, waits }
            }
            _ => return Err(Unsupported("no operands".to_owned())),
        };
        Ok(Op::Mbarrier(Mbarrier { kind, space, address }))
    }

    /// `cp.async.bulk`, after its first modifiers have been taken.
    pub(super) fn bulk_copy(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let is_known = opcode.take_of(&["shared::cluster", "shared::cta"]).is_some()
            && opcode.take("global")
            && opcode.take("mbarrier::complete_tx::bytes");
        if !is_known {
            let known = "of bulk copies only those from global to shared memory that complete on a \
                         barrier are interpreted";
            return Err(Unsupported(known.to_owned()));
        }
        let args = match args {
            [args @ .., _] if opcode.take("L2::cache_hint") => args,
            args => args,
        };
        let [to, from, bytes, barrier] = take(args)?;
        let bytes = self.src(bytes, Type::U32)?;
        let [to, from, barrier] = [self.address(to)?, self.address(from)?, self.address(barrier)?];
        self.program.granules[0] = self.program.granules[0].min(8);
        Ok(Op::CopyBulk(CopyBulk { to: to.0, from: from.0, bytes, barrier: barrier.0 }))
    }

    /// `fence.proxy` and `fence.mbarrier_init`; none for other fences.
    pub(super) fn fence_of_copies(opcode: &mut Opcode<'_>) -> Option<Decoded> {
        if opcode.take("mbarrier_init") {
            let is_known = opcode.take("release") && opcode.take("cluster");
            return Some(match is_known {
                true => Ok(Op::AsyncFence { stores: false }),
                false => Err(Unsupported("`.release.cluster` is missing".to_owned())),
            });
        }
        opcode.take("proxy").then(|| {
            if !opcode.take("async") {
                let known = "of fences between proxies only `.async` is interpreted";
                return Err(Unsupported(known.to_owned()));
            }
            Ok(match opcode.take("global") {
                true => Op::Nothing,
                false => {
                    opcode.take("shared::cta");
                    Op::AsyncFence { stores: true }
                }
            })
        })
    }
}
