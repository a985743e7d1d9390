//! Decodes statements to a [`Program`]: names become registers and addresses, opcodes become functions.
//!
//! Each family of instructions has a file. A decoder takes the modifiers that it supports, and any modifier left over
//! is an error that names it. Calls of device functions are inlined.

mod bits;
mod collectives;
mod control;
mod conversions;
mod floats;
mod flow;
mod halves;
mod integers;
mod matrices;
mod mbarrier;
mod memory;
mod moves;
mod operands;
mod types;
mod wgmma;
mod work;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use crate::Error;
use crate::program::access::LOCAL_BASE;
use crate::program::lanes::{LaneFn, Reg, UNTRACKED};
use crate::program::work::Work;
use crate::program::{Guard, Instruction, Op, Program, Special};
use crate::syntax::{Function, Item, Statement, Tree, Variable};

use flow::Flow;
use operands::Symbol;
use types::Opcode;

/// The unsupported part of an instruction. The caller adds opcode and line.
#[derive(Debug)]
pub(crate) struct Unsupported(pub(crate) String);

/// The result of decoding an instruction.
type Decoded = Result<Op, Unsupported>;

/// A module's text and its declarations.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) text: Box<str>,
    pub(crate) tree: Tree,
}

/// Decodes kernel `entry` of a module.
///
/// # Errors
///
/// [`Error::Unsupported`] with the opcode and its line.
pub(crate) fn decode(source: &Source, entry: &Function) -> Result<Program, Error> {
    let mut decoder = Decoder::new(source, entry);
    decoder.entry(entry)?;
    let Decoder { program, mut flow, regs, bodies, .. } = decoder;
    wgmma::hold(&program.code, &mut flow, &program.names)?;
    let constants = program.constants.iter().map(|c| c.0);
    let fixed = constants.chain(program.specials.iter().map(|s| s.0));
    let layout = flow::layout(&program.code, &flow, &regs, fixed);
    // Instructions contain register slots, so they are decoded a second time once slots are assigned.
    let mut decoder = Decoder::new(source, entry);
    decoder.bodies = bodies;
    let names = layout.tracked.iter().map(|&id| program.names[id as usize].clone());
    decoder.program.names = names.collect();
    [decoder.program.n_w32, decoder.program.n_w64, decoder.program.n_predicates] = layout.sizes;
    decoder.regs = layout.regs;
    decoder.is_laid_out = true;
    decoder.entry(entry)?;
    Ok(decoder.program)
}

/// Decodes the statements of a function whose forms are new.
///
/// # Errors
///
/// As [`decode`].
pub(crate) fn check(source: &Source, function: &Function) -> Result<(), Error> {
    let Some(body) = function.body.as_ref().filter(|b| !b.sample.statements.is_empty()) else {
        return Ok(());
    };
    let mut decoder = Decoder::new(source, function);
    let mut scope = decoder.parameters(function);
    if !function.is_entry {
        // Parameters of functions are in the thread's local memory.
        let params = function.returns.iter().chain(&function.params);
        scope.symbols.extend(params.map(|p| (p.name.clone(), Symbol::Local(LOCAL_BASE))));
    }
    decoder.scopes.push(scope);
    for item in &body.sample.declarations {
        decoder.item(item)?;
    }
    let statements = body.sample.statements.iter();
    statements.filter(|s| !s.opcode.starts_with("call")).try_for_each(|s| decoder.statement(s))
}

/// A map with short keys that are looked up often and not chosen by an adversary.
type Map<K, V> = HashMap<K, V, BuildHasherDefault<Short>>;

/// A hash function for short keys.
#[derive(Default)]
struct Short(u64);

impl Hasher for Short {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for bytes in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Names and labels between two braces.
#[derive(Default)]
struct Scope {
    symbols: Map<String, Symbol>,
    labels: Map<String, usize>,
    tables: HashMap<String, Vec<String>>,
    /// Jumps to labels that are not defined yet: the instruction, the index of the target, the label and the line.
    jumps: Vec<(usize, usize, String, u32)>,
}

/// The label after a function's body.
const END: &str = "end of the function";

struct Decoder<'a> {
    text: &'a str,
    /// Numbers of the variables in global or constant memory.
    globals: HashMap<&'a str, usize>,
    functions: HashMap<&'a str, &'a Function>,
    /// Shared variables of the module, which are allocated when a kernel uses them.
    shared: Vec<&'a Variable>,
    shared_places: HashMap<String, u64>,
    /// Constants that hold the address of dynamic shared memory, with the required alignment.
    dynamic: Vec<(usize, usize)>,
    /// The functions that enclose the current statement, to detect recursion.
    calls: Vec<String>,
    scopes: Vec<Scope>,
    constants: Map<(u8, u64), Reg>,
    specials: HashMap<Special, Reg>,
    /// The carry bit of `add.cc` and similar instructions.
    carry: Option<Reg>,
    /// Parsed bodies of functions.
    bodies: HashMap<String, Rc<[Item]>>,
    /// All registers by number; in the second pass, with their slots.
    regs: Vec<Reg>,
    /// Number of registers created so far.
    n_regs: usize,
    is_laid_out: bool,
    /// In the first pass, the registers of each instruction.
    flow: Vec<Flow>,
    /// Properties of the current instruction: the registers that must be defined and that it defines, all registers
    /// that it reads and writes, whether it is a move, and its jump targets.
    reads: Vec<u32>,
    writes: Vec<u32>,
    uses: Vec<u32>,
    defs: Vec<u32>,
    moves: bool,
    targets: Vec<String>,
    program: Program,
}

impl<'a> Decoder<'a> {
    fn new(source: &'a Source, entry: &Function) -> Self {
        let Source { text, tree } = source;
        let functions = tree.functions.iter().filter(|f| !f.is_entry);
        let mut bodies = HashMap::new();
        for function in functions {
            // A declaration does not replace the definition.
            if function.body.is_some() || !bodies.contains_key(function.name.as_str()) {
                bodies.insert(function.name.as_str(), function);
            }
        }
        let globals = tree.in_global_memory().enumerate();
        Self {
            text,
            globals: globals.map(|(i, g)| (g.variable.name.as_str(), i)).collect(),
            functions: bodies,
            shared: tree
                .globals
                .iter()
                .map(|g| &g.variable)
                .filter(|v| v.space == "shared")
                .collect(),
            shared_places: HashMap::new(),
            dynamic: Vec::new(),
            calls: Vec::new(),
            scopes: Vec::new(),
            constants: Map::default(),
            specials: HashMap::new(),
            carry: None,
            bodies: HashMap::new(),
            regs: Vec::new(),
            n_regs: 0,
            is_laid_out: false,
            flow: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            uses: Vec::new(),
            defs: Vec::new(),
            moves: false,
            targets: Vec::new(),
            program: Program::new(entry.name.clone(), entry.threads),
        }
    }

    /// Allocates a kernel's parameters and returns their names.
    fn parameters(&mut self, entry: &Function) -> Scope {
        let mut scope = Scope::default();
        let mut offset: usize = 0;
        for param in &entry.params {
            offset = offset.next_multiple_of(param.align);
            scope.symbols.insert(param.name.clone(), Symbol::Param(offset as u64));
            let layout = crate::program::ParamLayout { offset, bytes: param.bytes };
            self.program.params.push(layout);
            offset += param.bytes;
        }
        self.program.param_bytes = offset;
        scope
    }

    fn entry(&mut self, entry: &'a Function) -> Result<(), Error> {
        let scope = self.parameters(entry);
        self.function(entry, scope)?;
        self.push(entry.line, None, Op::Exit);
        self.place_dynamic();
        Ok(())
    }

    /// Decodes a function whose parameters are in `scope`.
    fn function(&mut self, function: &'a Function, scope: Scope) -> Result<(), Error> {
        self.calls.push(function.name.clone());
        let outer = std::mem::replace(&mut self.scopes, vec![scope]);
        if let Some(body) = &function.body {
            let items = match self.bodies.get(&function.name) {
                Some(items) => Rc::clone(items),
                None => crate::syntax::body(self.text, body)?.into(),
            };
            self.bodies.insert(function.name.clone(), Rc::clone(&items));
            items.iter().try_for_each(|item| self.item(item))?;
        }
        self.label(function.line, END)?;
        self.close()?;
        self.scopes = outer;
        self.calls.pop();
        Ok(())
    }

    fn item(&mut self, item: &Item) -> Result<(), Error> {
        match item {
            Item::Registers(line, kind, name, count) => self.registers(*line, kind, name, *count),
            Item::Variable(variable) => self.variable(variable),
            Item::Label(line, name) => self.label(*line, name),
            Item::Targets(name, labels) => {
                self.scope().tables.insert(name.clone(), labels.clone());
                Ok(())
            }
            Item::Statement(statement) => self.statement(statement),
            Item::Open => {
                self.scopes.push(Scope::default());
                Ok(())
            }
            Item::Close => self.close(),
        }
    }

    fn scope(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("a function has a scope")
    }

    fn label(&mut self, line: u32, name: &str) -> Result<(), Error> {
        let at = self.program.code.len();
        if self.scope().labels.insert(name.to_owned(), at).is_some() {
            let message = format!("the label `{name}` is there twice");
            return Err(Error::Syntax { line, message });
        }
        Ok(())
    }

    /// Leaves a scope. Its jumps are resolved to its labels or passed to the enclosing scope.
    fn close(&mut self) -> Result<(), Error> {
        let scope = self.scopes.pop().expect("braces were matched");
        for (at, slot, name, line) in scope.jumps {
            match (scope.labels.get(&name), self.scopes.last_mut()) {
                (Some(&place), _) => match &mut self.program.code[at].op {
                    Op::BranchTable(_, places) => places[slot] = place,
                    op => *op = Op::Branch(place),
                },
                (None, Some(outer)) => outer.jumps.push((at, slot, name, line)),
                (None, None) => {
                    let message = format!("there is no label `{name}`");
                    return Err(Error::Syntax { line, message });
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, line: u32, guard: Option<Guard>, op: Op) {
        let at = self.program.code.len();
        let targets = std::mem::take(&mut self.targets);
        let jumps = targets.into_iter().enumerate().map(|(slot, name)| (at, slot, name, line));
        if let Some(scope) = self.scopes.last_mut() {
            scope.jumps.extend(jumps);
        }
        let mut taken =
            [&mut self.reads, &mut self.writes, &mut self.uses, &mut self.defs].map(std::mem::take);
        if self.is_laid_out {
            taken[..2].iter_mut().for_each(|ids| ids.retain(|&id| id != UNTRACKED));
        } else {
            taken[2].extend(guard.map(|g| g.predicate.id));
        }
        let [reads, writes, uses, defs] = taken.map(Vec::into_boxed_slice);
        self.flow.push(Flow { uses, defs });
        let moves = std::mem::take(&mut self.moves);
        let is_tracked = !reads.is_empty() || !writes.is_empty();
        let work = Work::None;
        let instruction = Instruction { line, guard, op, work, reads, writes, is_tracked, moves };
        self.program.code.push(instruction);
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), Error> {
        let unsupported = |Unsupported(message)| Error::Unsupported {
            line: statement.line,
            opcode: statement.opcode.clone(),
            message,
        };
        let mut opcode = Opcode::new(&statement.opcode);
        let ty = opcode.ty();
        let guard = match &statement.guard {
            None => None,
            Some((name, negated)) => {
                let predicate = self.predicate(name).map_err(unsupported)?;
                Some(Guard { predicate, negated: *negated })
            }
        };
        self.reads.clear();
        self.uses.clear();
        if opcode.base == "call" {
            if guard.is_some() {
                let message = "a call behind a predicate is not supported".to_owned();
                return Err(unsupported(Unsupported(message)));
            }
            return self.call(statement);
        }
        let op = self.instruction(&mut opcode, statement).map_err(unsupported)?;
        opcode.done().map_err(unsupported)?;
        let work = work::of(&opcode, ty, &op);
        self.push(statement.line, guard, op);
        self.program.code.last_mut().expect("one was added").work = work;
        Ok(())
    }

    fn instruction(&mut self, opcode: &mut Opcode<'_>, statement: &Statement) -> Decoded {
        let args = &statement.operands;
        for decode in [
            Self::moves,
            Self::integers,
            Self::bits,
            Self::floats,
            Self::conversions,
            Self::memory,
            Self::collectives,
            Self::matrices,
            Self::mbarriers,
            Self::groups,
            Self::control,
        ] {
            if let Some(found) = decode(self, opcode, args) {
                return found;
            }
        }
        Err(Unsupported(refusal(opcode.base).to_owned()))
    }

    fn lanes(f: LaneFn) -> Decoded {
        Ok(Op::Lanes(f))
    }
}

/// The reason why an opcode is not supported.
fn refusal(base: &str) -> &'static str {
    match base {
        "tcgen05" => "tensor memory (tcgen05) is not interpreted",
        "cluster" | "mapa" | "getctarank" | "clusterlaunchcontrol" => {
            "clusters of blocks are not interpreted"
        }
        "wmma" => "the older matrix form (wmma) is not interpreted; use mma.sync",
        "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" => {
            "textures and surfaces are not interpreted"
        }
        _ => "an opcode that is not known",
    }
}
