//! Loads, stores, atomics, asynchronous copies and cache hints.

use crate::numeric::canonical;
use crate::numeric::format::{BF16, F16, Format};
use crate::numeric::round::{Rounding, add_odd};
use crate::program::Op;
use crate::program::access::{Access, Atomic, Combine, CopyAsync, Space};
use crate::program::lanes::{Reg, Value};
use crate::syntax::Operand;

use super::operands::{Symbol, literal, take};
use super::types::{Opcode, Type};
use super::{Decoded, Decoder, Unsupported};

/// Modifiers that only affect caching.
const CACHES: [&str; 27] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_normal",
    "L2::evict_first",
    "L2::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L1",
    "L2",
    "evict_first",
    "evict_last",
    "evict_normal",
    "evict_unchanged",
    "no_allocate",
    "L2::cache_hint_none",
];

/// Modifier of instructions that take a cache policy operand.
const POLICY: &str = "L2::cache_hint";

impl Decoder<'_> {
    pub(super) fn memory(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Option<Decoded> {
        Some(match opcode.base {
            "ld" | "ldu" | "st" => self.access(opcode, args),
            "atom" | "red" => self.atomic(opcode, args),
            "cp" => self.copy(opcode, args),
            "prefetch" | "prefetchu" | "applypriority" | "discard" => {
                while opcode.next().is_some() {}
                Ok(Op::Nothing)
            }
            "createpolicy" => self.policy(opcode, args),
            _ => return None,
        })
    }

    /// Ignores the result of an instruction that creates a cache policy.
    fn policy(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        while opcode.next().is_some() {}
        let [to, ..] = args else { return Err(Unsupported("no operands".to_owned())) };
        let zero = self.constant(64, 0);
        let to = self.dst(to, 64)?;
        Self::lanes(super::moves::copy(to, zero))
    }

    /// Takes cache modifiers, which are ignored. Returns whether the instruction has a policy operand.
    fn caches(opcode: &mut Opcode<'_>) -> bool {
        while opcode.take_of(&CACHES).is_some() {}
        opcode.take(POLICY)
    }

    /// Takes a memory order and its scope. Returns whether there is one.
    fn order(opcode: &mut Opcode<'_>) -> bool {
        let is_weak = opcode.take("weak");
        let order =
            opcode.take_of(&["volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"]);
        opcode.take_of(&["cta", "gpu", "sys"]);
        !is_weak && order.is_some()
    }

    fn space(opcode: &mut Opcode<'_>, symbol: Option<Symbol>) -> Result<Space, Unsupported> {
        let space = opcode.take_as(|word| {
            Some(match word {
                "global" | "const" => Space::Global,
                "shared" | "shared::cta" => Space::Shared,
                "local" => Space::Local,
                "param" | "param::entry" | "param::func" => Space::Param,
                _ => return None,
            })
        });
        Ok(match (space, symbol) {
            // Call parameters are in the thread's local memory.
            (Some(Space::Param), Some(Symbol::Local(_))) => Space::Local,
            (None, Some(Symbol::Local(_))) => Space::Local,
            (None, Some(Symbol::Shared(_) | Symbol::Dynamic(_))) => Space::Shared,
            (None, Some(Symbol::Param(_))) => Space::Param,
            (space, _) => space.unwrap_or(Space::Generic),
        })
    }

    /// Records the size of a write for race checks.
    fn granule(&mut self, space: Space, bytes: usize) {
        let [shared, global] = &mut self.program.granules;
        if matches!(space, Space::Shared | Space::Generic) {
            *shared = bytes.min(*shared);
        }
        if matches!(space, Space::Global | Space::Generic) {
            *global = bytes.min(*global);
        }
    }

    fn access(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let is_store = opcode.base == "st";
        let strong = Self::order(opcode);
        let has_policy = Self::caches(opcode);
        let lanes = match opcode.take_of(&["v2", "v4", "v8"]) {
            None => 1,
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
        };
        let is_const = opcode.take("const");
        let (first, second) = match (args, has_policy) {
            ([a, b], false) | ([a, b, _], true) => (a, b),
            _ => return Err(Unsupported(format!("{} operands", args.len()))),
        };
        let (values, address) = if is_store { (second, first) } else { (first, second) };
        let (address, symbol) = self.address(address)?;
        let space = if is_const { Space::Global } else { Self::space(opcode, symbol)? };
        let ty = opcode.type_of()?;
        if is_store && (is_const || space == Space::Param) {
            return Err(Unsupported("a store to memory that is only read".to_owned()));
        }
        let values = Self::elements(values);
        if values.len() != lanes || ty == Type::Pred {
            return Err(Unsupported(format!("{} registers for {lanes} elements", values.len())));
        }
        let width = usize::from(ty.bits()) / 8;
        let mut regs = Vec::new();
        for value in values {
            let reg = if is_store {
                self.any_src(value, ty)?
            } else if *value == Operand::Name("_".to_owned()) {
                self.dst(value, if ty.bits() == 8 { 16 } else { ty.bits() })?
            } else {
                self.any_dst(value)?
            };
            if reg.bits < ty.bits().max(16) {
                return Err(Unsupported("a register that is too small".to_owned()));
            }
            regs.push(reg);
        }
        if is_store {
            self.granule(space, width * lanes.min(4));
        }
        let signed = ty.is_signed();
        let is_words = width == 4 && lanes <= 4 && regs.iter().all(|r: &Reg| r.bits == 32);
        Ok(Op::Access(Access {
            is_words,
            is_store,
            space,
            address,
            width,
            regs: regs.into(),
            signed,
            strong,
        }))
    }

    fn atomic(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        let returns = opcode.base == "atom";
        Self::order(opcode);
        let has_policy = Self::caches(opcode);
        let names = ["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"];
        let how = opcode.take_of(&names);
        let how = how.ok_or_else(|| Unsupported("an operation is missing".to_owned()))?;
        if how == "exch" && !returns {
            return Err(Unsupported("there is no `red` with `.exch`".to_owned()));
        }
        opcode.take("noftz");
        let args = if has_policy { &args[..args.len().saturating_sub(1)] } else { args };
        let (to, rest) = match args {
            [to, rest @ ..] if returns => (Some(to), rest),
            rest => (None, rest),
        };
        let (address, a, b) = match (rest, how) {
            ([address, a, b], "cas") => (address, a, b),
            ([address, a], how) if how != "cas" => (address, a, a),
            _ => return Err(Unsupported(format!("{} operands", args.len()))),
        };
        let (address, symbol) = self.address(address)?;
        let space = Self::space(opcode, symbol)?;
        let ty = opcode.type_of()?;
        let combine = combine(how, ty)
            .ok_or_else(|| Unsupported(format!("`{how}` of {ty:?} is not known")))?;
        let operands = [self.src(a, ty)?, self.src(b, ty)?];
        let sink = Operand::Name("_".to_owned());
        let to = to.filter(|to| **to != sink).map(|to| self.dst(to, ty.bits())).transpose()?;
        let width = usize::from(ty.bits()) / 8;
        self.granule(space, width);
        let adds_floats = how == "add" && ty.is_float();
        Ok(Op::Atomic(Atomic { space, address, width, to, operands, combine, adds_floats }))
    }

    fn copy(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        if !opcode.take("async") {
            return Err(Unsupported("only `cp.async` is known".to_owned()));
        }
        if opcode.take("bulk") {
            return self.bulk_copy(opcode, args);
        }
        if opcode.take("mbarrier") {
            return Err(Unsupported(
                "copies that arrive at a barrier in shared memory are not interpreted".to_owned(),
            ));
        }
        if opcode.take("commit_group") {
            return Ok(Op::CommitCopies);
        }
        if opcode.take("wait_all") {
            return Ok(Op::WaitCopies(None));
        }
        if opcode.take("wait_group") {
            let [left] = take::<1>(args)?;
            return Ok(Op::WaitCopies(Some(literal(left)? as u32)));
        }
        let has_policy = {
            let level = opcode.take_of(&["ca", "cg"]);
            level.ok_or_else(|| Unsupported("`.ca` or `.cg` is missing".to_owned()))?;
            let is_wide = level == Some("cg");
            let spaces = opcode.take("shared") || opcode.take("shared::cta");
            if !spaces || !opcode.take("global") {
                return Err(Unsupported("only from global to shared memory".to_owned()));
            }
            (Self::caches(opcode), is_wide)
        };
        let (has_policy, is_wide) = has_policy;
        let args = if has_policy { &args[..args.len().saturating_sub(1)] } else { args };
        let [to, from, bytes, rest @ ..] = args else {
            return Err(Unsupported(format!("{} operands", args.len())));
        };
        let bytes = literal(bytes)? as usize;
        if !matches!(bytes, 4 | 8 | 16) || is_wide && bytes != 16 {
            return Err(Unsupported(format!("a copy of {bytes} bytes")));
        }
        let (to, from) = (self.address(to)?.0, self.address(from)?.0);
        let (mut size, mut ignore) = (None, None);
        match rest {
            [] => {}
            [Operand::Number(_)] => size = Some(self.src(&rest[0], Type::U32)?),
            [operand @ Operand::Not(_)] => ignore = Some(self.src_predicate(operand)?),
            [Operand::Name(name)] => match self.symbol(name)? {
                Symbol::Register(reg) if reg.bits == 1 => {
                    ignore = Some(self.src_predicate(&rest[0])?);
                }
                _ => size = Some(self.src(&rest[0], Type::U32)?),
            },
            _ => return Err(Unsupported(format!("{} operands", args.len()))),
        }
        self.granule(Space::Shared, bytes);
        Ok(Op::CopyAsync(CopyAsync { to, from, bytes, size, ignore }))
    }
}

/// The function of an atomic from the old value and its operands to the new value.
fn combine(how: &str, ty: Type) -> Option<Combine> {
    macro_rules! integers {
        ($T:ty, $W:ty) => {{
            let of = |x: u64| x as $T;
            let to = |x: $T| x as $W as u64;
            Some(match how {
                "add" => Box::new(move |old, a, _| to(of(old).wrapping_add(of(a)))),
                "min" => Box::new(move |old, a, _| to(of(old).min(of(a)))),
                "max" => Box::new(move |old, a, _| to(of(old).max(of(a)))),
                _ => return None,
            })
        }};
    }
    let by_bits: Option<Combine> = match (how, ty.bits()) {
        ("and", 32 | 64) => Some(Box::new(|old, a, _| old & a)),
        ("or", 32 | 64) => Some(Box::new(|old, a, _| old | a)),
        ("xor", 32 | 64) => Some(Box::new(|old, a, _| old ^ a)),
        ("exch", 32 | 64) => Some(Box::new(|_, a, _| a)),
        ("cas", 16 | 32 | 64) => Some(Box::new(|old, a, b| if old == a { b } else { old })),
        _ => None,
    };
    let is_bits = matches!(ty, Type::B16 | Type::B32 | Type::B64);
    if by_bits.is_some() {
        return by_bits.filter(|_| is_bits || ty.is_integer());
    }
    match (how, ty) {
        ("inc", Type::U32) => Some(Box::new(|old, a, _| if old >= a { 0 } else { old + 1 })),
        ("dec", Type::U32) => {
            Some(Box::new(|old, a, _| if old == 0 || old > a { a } else { old - 1 }))
        }
        (_, Type::U32) => integers!(u32, u32),
        (_, Type::S32) => integers!(i32, u32),
        (_, Type::U64) => integers!(u64, u64),
        (_, Type::S64) => integers!(i64, u64),
        ("add", Type::F32) => Some(Box::new(|old, a, _| {
            let sum = f32::of(old as u32) + f32::of(a as u32);
            u64::from(canonical(sum))
        })),
        ("add", Type::F64) => {
            Some(Box::new(|old, a, _| (f64::from_bits(old) + f64::from_bits(a)).to_bits()))
        }
        ("add", Type::F16) => Some(halves(F16, 1)),
        ("add", Type::F16x2) => Some(halves(F16, 2)),
        ("add", Type::BF16) => Some(halves(BF16, 1)),
        ("add", Type::BF16x2) => Some(halves(BF16, 2)),
        _ => None,
    }
}

fn halves(format: Format, n: u32) -> Combine {
    Box::new(move |old, a, _| {
        (0..n).fold(0, |word, i| {
            let half = |x: u64| format.widen((x >> (16 * i)) as u32 & 0xffff);
            let sum = format.narrow(add_odd(half(old), half(a)), Rounding::Near, false);
            word | u64::from(sum) << (16 * i)
        })
    })
}
