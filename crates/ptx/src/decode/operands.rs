//! Operands: resolves names to registers, addresses and constants.

use crate::Error;
use crate::program::access::{Address, LOCAL_BASE, SHARED_BASE};
use crate::program::lanes::{File, Reg};
use crate::program::{Constant, Special};
use crate::syntax::{Number, Operand, Variable};

use super::types::Type;
use super::{Decoder, Unsupported};

/// The meaning of a name.
#[derive(Debug, Clone, Copy)]
pub(super) enum Symbol {
    Register(Reg),
    /// `%r<40>`: the number of the first register, and the number of registers.
    Range(usize, u32),
    /// An address in the kernel's parameters.
    Param(u64),
    /// An address in the thread's local memory.
    Local(u64),
    /// An address in the block's shared memory.
    Shared(u64),
    /// The start of dynamic shared memory, with the required alignment.
    Dynamic(usize),
    /// A variable in global or constant memory, by number.
    Global(usize),
}

/// The name of a discarded result.
const SINK: &str = "_";

impl Decoder<'_> {
    pub(super) fn registers(
        &mut self,
        line: u32,
        kind: &str,
        name: &str,
        count: Option<u32>,
    ) -> Result<(), Error> {
        let bits = match Type::parse(kind) {
            Some(ty) if matches!(ty.bits(), 1 | 16 | 32 | 64) => ty.bits(),
            _ => {
                let message = format!("registers of type `.{kind}` are not supported");
                return Err(Error::Syntax { line, message });
            }
        };
        let symbol = match count {
            None => Symbol::Register(self.register(bits, || name.to_owned())),
            Some(0) => return Ok(()),
            Some(count) => {
                let first = self.n_regs;
                for i in 0..count {
                    self.register(bits, || format!("{name}{i}"));
                }
                Symbol::Range(first, count)
            }
        };
        self.scope().symbols.insert(name.to_owned(), symbol);
        Ok(())
    }

    /// Creates a register.
    pub(super) fn register(&mut self, bits: u8, name: impl FnOnce() -> String) -> Reg {
        let id = self.n_regs as u32;
        self.n_regs += 1;
        if let Some(&reg) = self.regs.get(id as usize) {
            return reg;
        }
        let file = match bits {
            1 => File::Predicate,
            64 => File::W64,
            _ => File::W32,
        };
        self.program.names.push(name());
        let reg = Reg { file, bits, idx: id, id };
        self.regs.push(reg);
        reg
    }

    pub(super) fn variable(&mut self, variable: &Variable) -> Result<(), Error> {
        let program = &mut self.program;
        let place = |size: &mut usize| {
            let at = size.next_multiple_of(variable.align);
            *size = at + variable.bytes;
            at as u64
        };
        let symbol = match variable.space {
            "shared" if variable.unsized_array => Symbol::Dynamic(variable.align),
            "shared" => Symbol::Shared(SHARED_BASE + place(&mut program.shared_bytes)),
            _ if variable.unsized_array => {
                let message = format!("`{}` has no size", variable.name);
                return Err(Error::Syntax { line: variable.line, message });
            }
            // Call parameters are in the thread's local memory too.
            _ => Symbol::Local(LOCAL_BASE + place(&mut program.local_bytes)),
        };
        self.scope().symbols.insert(variable.name.clone(), symbol);
        Ok(())
    }

    /// Resolves `name`.
    pub(super) fn symbol(&mut self, name: &str) -> Result<Symbol, Unsupported> {
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (prefix, number) = name.split_at(digits);
        for scope in self.scopes.iter().rev() {
            if !number.is_empty()
                && let Some(&Symbol::Range(first, count)) = scope.symbols.get(prefix)
                && let Ok(n) = number.parse::<u32>()
            {
                if n >= count {
                    return Err(Unsupported(format!("`{name}` is behind the last of `{prefix}`")));
                }
                return Ok(Symbol::Register(self.regs[first + n as usize]));
            }
            if let Some(&symbol) = scope.symbols.get(name) {
                return Ok(symbol);
            }
        }
        if let Some(special) = Special::parse(name) {
            return Ok(Symbol::Register(self.special(special)));
        }
        if let Some(&variable) = self.shared.iter().find(|v| v.name == name) {
            if variable.unsized_array {
                return Ok(Symbol::Dynamic(variable.align));
            }
            let size = &mut self.program.shared_bytes;
            let at = self.shared_places.entry(name.to_owned()).or_insert_with(|| {
                let at = size.next_multiple_of(variable.align);
                *size = at + variable.bytes;
                SHARED_BASE + at as u64
            });
            return Ok(Symbol::Shared(*at));
        }
        if let Some(&variable) = self.globals.get(name) {
            return Ok(Symbol::Global(variable));
        }
        let what = if name.starts_with('%') { "register" } else { "name" };
        Err(Unsupported(format!("there is no {what} `{name}`")))
    }

    fn special(&mut self, special: Special) -> Reg {
        if let Some(&reg) = self.specials.get(&special) {
            return reg;
        }
        let reg = self.register(32, || format!("{special:?}"));
        self.specials.insert(special, reg);
        self.program.specials.push((reg, special));
        reg
    }

    /// A register that holds a constant.
    pub(super) fn constant(&mut self, bits: u8, value: u64) -> Reg {
        let value = if bits == 64 { value } else { value & ((1 << bits) - 1) };
        if let Some(&reg) = self.constants.get(&(bits, value)) {
            return reg;
        }
        let reg = self.register(bits, || format!("{value:#x}"));
        self.constants.insert((bits, value), reg);
        self.program.constants.push((reg, Constant::Value(value)));
        reg
    }

    /// A register that holds the address of a variable.
    fn variable_address(&mut self, bits: u8, variable: usize, offset: i64) -> Reg {
        let reg = self.register(bits, || "the address of a variable".to_owned());
        self.program.constants.push((reg, Constant::Variable(variable, offset)));
        reg
    }

    /// A register that holds the address of dynamic shared memory, which is known after everything else is allocated.
    fn dynamic_address(&mut self, bits: u8, align: usize, offset: i64) -> Reg {
        let reg = self.register(bits, || "dynamic shared memory".to_owned());
        self.dynamic.push((self.program.constants.len(), align));
        self.program.constants.push((reg, Constant::Value(offset as u64)));
        reg
    }

    pub(super) fn place_dynamic(&mut self) {
        let Some(align) = self.dynamic.iter().map(|&(_, align)| align).max() else { return };
        let program = &mut self.program;
        program.shared_bytes = program.shared_bytes.next_multiple_of(align.max(16));
        for &(at, _) in &self.dynamic {
            let start = SHARED_BASE + program.shared_bytes as u64;
            if let (_, Constant::Value(value)) = &mut program.constants[at] {
                *value = value.wrapping_add(start);
            }
        }
    }

    pub(super) fn predicate(&mut self, name: &str) -> Result<Reg, Unsupported> {
        match self.symbol(name)? {
            Symbol::Register(reg) if reg.file == File::Predicate => Ok(reg),
            _ => Err(Unsupported(format!("`{name}` is no predicate"))),
        }
    }

    /// Records that the instruction reads a register.
    pub(super) fn read(&mut self, reg: Reg) -> Reg {
        self.reads.push(reg.id);
        self.uses.push(reg.id);
        reg
    }

    /// Records that the instruction writes a register.
    pub(super) fn write(&mut self, reg: Reg) -> Reg {
        self.writes.push(reg.id);
        self.defs.push(reg.id);
        reg
    }

    /// A destination of any size.
    pub(super) fn any_dst(&mut self, operand: &Operand) -> Result<Reg, Unsupported> {
        let Operand::Name(name) = operand else {
            return Err(Unsupported(format!("a register is expected, not {operand:?}")));
        };
        match self.symbol(name)? {
            Symbol::Register(reg) => Ok(self.write(reg)),
            _ => Err(Unsupported(format!("`{name}` is no register"))),
        }
    }

    /// A destination of `bits`.
    pub(super) fn dst(&mut self, operand: &Operand, bits: u8) -> Result<Reg, Unsupported> {
        if *operand == Operand::Name(SINK.to_owned()) {
            let reg = self.register(bits, || SINK.to_owned());
            return Ok(self.write(reg));
        }
        let reg = self.any_dst(operand)?;
        self.sized(reg, bits)
    }

    fn sized(&self, reg: Reg, bits: u8) -> Result<Reg, Unsupported> {
        if reg.bits == bits {
            return Ok(reg);
        }
        let name = &self.program.names[reg.id as usize];
        Err(Unsupported(format!("`{name}` has {} bits where {bits} are expected", reg.bits)))
    }

    /// A source with the type's size: a register, a number or an address.
    pub(super) fn src(&mut self, operand: &Operand, ty: Type) -> Result<Reg, Unsupported> {
        let reg = self.any_src(operand, ty)?;
        self.sized(reg, if ty.bits() == 8 { 16 } else { ty.bits() })
    }

    /// A source that may be wider than the type; only the lower bits are used.
    pub(super) fn any_src(&mut self, operand: &Operand, ty: Type) -> Result<Reg, Unsupported> {
        let bits = if ty.bits() == 8 { 16 } else { ty.bits() };
        match operand {
            Operand::Number(number) => {
                let value = number_bits(*number, ty)?;
                Ok(self.constant(bits, value))
            }
            Operand::Name(name) => self.named(name, 0, bits),
            Operand::Offset(name, offset) => self.named(name, *offset, bits),
            _ => Err(Unsupported(format!("a register or number is expected, not {operand:?}"))),
        }
    }

    fn named(&mut self, name: &str, offset: i64, bits: u8) -> Result<Reg, Unsupported> {
        match self.symbol(name)? {
            Symbol::Register(reg) if offset == 0 => Ok(self.read(reg)),
            Symbol::Register(_) | Symbol::Range(..) => {
                Err(Unsupported(format!("`{name}` is no address")))
            }
            Symbol::Dynamic(align) => Ok(self.dynamic_address(bits, align, offset)),
            Symbol::Global(variable) => Ok(self.variable_address(bits, variable, offset)),
            Symbol::Param(at) | Symbol::Local(at) | Symbol::Shared(at) => {
                Ok(self.constant(bits, at.wrapping_add_signed(offset)))
            }
        }
    }

    /// A predicate operand, and whether it is negated.
    pub(super) fn src_predicate(&mut self, operand: &Operand) -> Result<(Reg, bool), Unsupported> {
        let (name, negated) = match operand {
            Operand::Name(name) => (name, false),
            Operand::Not(name) => (name, true),
            Operand::Number(Number::Integer(n @ (0 | 1))) => {
                return Ok((self.constant(1, *n as u64), false));
            }
            _ => return Err(Unsupported(format!("a predicate is expected, not {operand:?}"))),
        };
        let reg = self.predicate(name)?;
        Ok((self.read(reg), negated))
    }

    /// An address, and the space of its symbol.
    pub(super) fn address(
        &mut self,
        operand: &Operand,
    ) -> Result<(Address, Option<Symbol>), Unsupported> {
        let Operand::Address(base, offset) = operand else {
            return Err(Unsupported(format!("an address is expected, not {operand:?}")));
        };
        let Some(name) = base else {
            return Ok((Address { base: None, offset: *offset }, None));
        };
        let symbol = self.symbol(name)?;
        Ok(match symbol {
            Symbol::Register(reg) if matches!(reg.bits, 32 | 64) => {
                let base = self.read(reg);
                (Address { base: Some(base), offset: *offset }, None)
            }
            Symbol::Register(_) | Symbol::Range(..) => {
                return Err(Unsupported(format!("`{name}` is no address")));
            }
            Symbol::Dynamic(align) => {
                let base = self.dynamic_address(64, align, 0);
                (Address { base: Some(base), offset: *offset }, Some(symbol))
            }
            Symbol::Global(variable) => {
                let base = self.variable_address(64, variable, 0);
                (Address { base: Some(base), offset: *offset }, Some(symbol))
            }
            Symbol::Param(at) | Symbol::Local(at) | Symbol::Shared(at) => {
                let address =
                    Address { base: None, offset: at.wrapping_add_signed(*offset) as i64 };
                (address, Some(symbol))
            }
        })
    }

    /// The elements of a vector, or a single operand itself.
    pub(super) fn elements(operand: &Operand) -> &[Operand] {
        match operand {
            Operand::Vector(elements) => elements,
            single => std::slice::from_ref(single),
        }
    }
}

/// Requires exactly `N` operands.
pub(super) fn take<const N: usize>(args: &[Operand]) -> Result<&[Operand; N], Unsupported> {
    args.try_into()
        .map_err(|_| Unsupported(format!("{} operands where {N} are expected", args.len())))
}

/// A number that must be constant.
pub(super) fn literal(operand: &Operand) -> Result<i64, Unsupported> {
    match operand {
        Operand::Number(Number::Integer(n)) if i64::try_from(*n).is_ok() => Ok(*n as i64),
        _ => Err(Unsupported(format!("a number is expected, not {operand:?}"))),
    }
}

/// The bits of a number in a type.
fn number_bits(number: Number, ty: Type) -> Result<u64, Unsupported> {
    Ok(match (number, ty) {
        (Number::Integer(n), Type::F32) => u64::from((n as f32).to_bits()),
        (Number::Integer(n), Type::F64) => (n as f64).to_bits(),
        (Number::Integer(n), _) => n as u64,
        (Number::F32(bits), Type::F32 | Type::B32 | Type::Tf32) => u64::from(bits),
        (Number::F32(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
        (Number::F64(bits), Type::F64 | Type::B64) => bits,
        (Number::F64(bits), Type::F32) => u64::from((f64::from_bits(bits) as f32).to_bits()),
        _ => return Err(Unsupported(format!("a float number for `{ty:?}`"))),
    })
}
