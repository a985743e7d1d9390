//! From statements to a [`Program`]: names become registers and places, opcodes functions.
//!
//! A file per family of instructions; each takes the modifiers that it knows, and what is left over
//! is an error that names it. Calls of device functions are replaced by the functions' bodies.

mod bits;
mod collectives;
mod control;
mod conversions;
mod floats;
mod halves;
mod integers;
mod matrices;
mod memory;
mod moves;
mod operands;
mod types;

use std::collections::HashMap;

use crate::Error;
use crate::exec::lanes::{LaneFn, Reg};
use crate::exec::program::{Guard, Instruction, Op, Program, Special};
use crate::syntax::{Function, Item, Statement, Tree, Variable};

use operands::Symbol;
use types::Opcode;

/// What of an instruction is not known; the statement around it adds opcode and line.
#[derive(Debug)]
pub(crate) struct Unsupported(pub(crate) String);

/// What a decoder of an instruction gives.
type Decoded = Result<Op, Unsupported>;

/// Decodes kernel `entry` of a module whose variables lie at `globals`.
///
/// # Errors
///
/// [`Error::Unsupported`] names the opcode that is not known, and its line.
pub(crate) fn decode(
    tree: &Tree,
    globals: &HashMap<String, u64>,
    entry: &Function,
) -> Result<Program, Error> {
    let functions = tree.functions.iter().filter(|f| !f.is_entry);
    let mut bodies = HashMap::new();
    for function in functions {
        // A declaration does not hide the definition.
        if function.body.is_some() || !bodies.contains_key(function.name.as_str()) {
            bodies.insert(function.name.as_str(), function);
        }
    }
    let mut decoder = Decoder {
        globals,
        functions: bodies,
        shared: tree.globals.iter().map(|g| &g.variable).filter(|v| v.space == "shared").collect(),
        shared_places: HashMap::new(),
        dynamic: Vec::new(),
        calls: Vec::new(),
        scopes: Vec::new(),
        constants: HashMap::new(),
        specials: HashMap::new(),
        carry: None,
        reads: Vec::new(),
        writes: Vec::new(),
        moves: false,
        targets: Vec::new(),
        program: Program {
            name: entry.name.clone(),
            code: Vec::new(),
            n_w32: 0,
            n_w64: 0,
            n_predicates: 0,
            names: Vec::new(),
            constants: Vec::new(),
            specials: Vec::new(),
            params: Vec::new(),
            param_bytes: 0,
            shared_bytes: 0,
            local_bytes: 0,
            granules: [4; 2],
            threads: entry.threads,
        },
    };
    decoder.entry(entry)?;
    Ok(decoder.program)
}

/// Names and labels between two braces.
#[derive(Default)]
struct Scope {
    symbols: HashMap<String, Symbol>,
    labels: HashMap<String, usize>,
    tables: HashMap<String, Vec<String>>,
    /// Instructions that jump to labels not seen yet: the instruction, which of its targets, the
    /// label, the line.
    jumps: Vec<(usize, usize, String, u32)>,
}

/// The label behind a function's body.
const END: &str = "end of the function";

struct Decoder<'a> {
    globals: &'a HashMap<String, u64>,
    functions: HashMap<&'a str, &'a Function>,
    /// The module's own shared variables, which get a place when a kernel uses them.
    shared: Vec<&'a Variable>,
    shared_places: HashMap<String, u64>,
    /// Constants that are the address of dynamic shared memory, with the alignment it must have.
    dynamic: Vec<(usize, usize)>,
    /// The functions around the current statement, to find recursion.
    calls: Vec<String>,
    scopes: Vec<Scope>,
    constants: HashMap<(u8, u64), Reg>,
    specials: HashMap<Special, Reg>,
    /// The carry bit of `add.cc` and its like.
    carry: Option<Reg>,
    /// Of the instruction in work: what it reads and writes, whether it is a move, where it jumps.
    reads: Vec<u32>,
    writes: Vec<u32>,
    moves: bool,
    targets: Vec<String>,
    program: Program,
}

impl<'a> Decoder<'a> {
    fn entry(&mut self, entry: &'a Function) -> Result<(), Error> {
        let mut scope = Scope::default();
        let mut offset: usize = 0;
        for param in &entry.params {
            offset = offset.next_multiple_of(param.align);
            scope.symbols.insert(param.name.clone(), Symbol::Param(offset as u64));
            let layout = crate::exec::program::ParamLayout { offset, bytes: param.bytes };
            self.program.params.push(layout);
            offset += param.bytes;
        }
        self.program.param_bytes = offset;
        self.function(entry, scope)?;
        self.push(entry.line, None, Op::Exit);
        self.place_dynamic();
        Ok(())
    }

    /// The code of a function whose parameters are in `scope`.
    fn function(&mut self, function: &'a Function, scope: Scope) -> Result<(), Error> {
        self.calls.push(function.name.clone());
        let outer = std::mem::replace(&mut self.scopes, vec![scope]);
        for item in function.body.iter().flatten() {
            match item {
                Item::Registers(line, kind, name, count) => {
                    self.registers(*line, kind, name, *count)?;
                }
                Item::Variable(variable) => self.variable(variable)?,
                Item::Label(line, name) => self.label(*line, name)?,
                Item::Targets(name, labels) => {
                    self.scope().tables.insert(name.clone(), labels.clone());
                }
                Item::Statement(statement) => self.statement(statement)?,
                Item::Open => self.scopes.push(Scope::default()),
                Item::Close => self.close()?,
            }
        }
        self.label(function.line, END)?;
        self.close()?;
        self.scopes = outer;
        self.calls.pop();
        Ok(())
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

    /// Leaves a scope: its jumps find its labels, or are left to the scope around it.
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
        let reads = std::mem::take(&mut self.reads).into();
        let writes = std::mem::take(&mut self.writes).into();
        let moves = std::mem::take(&mut self.moves);
        self.program.code.push(Instruction { line, guard, op, reads, writes, moves });
    }

    fn statement(&mut self, statement: &'a Statement) -> Result<(), Error> {
        let unsupported = |Unsupported(message)| Error::Unsupported {
            line: statement.line,
            opcode: statement.opcode.clone(),
            message,
        };
        let mut opcode = Opcode::new(&statement.opcode);
        let guard = match &statement.guard {
            None => None,
            Some((name, negated)) => {
                let predicate = self.predicate(name).map_err(unsupported)?;
                Some(Guard { predicate, negated: *negated })
            }
        };
        self.reads.clear();
        if opcode.base == "call" {
            if guard.is_some() {
                let message = "a call behind a predicate is not supported".to_owned();
                return Err(unsupported(Unsupported(message)));
            }
            return self.call(statement);
        }
        let op = self.instruction(&mut opcode, statement).map_err(unsupported)?;
        opcode.done().map_err(unsupported)?;
        self.push(statement.line, guard, op);
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

/// Why an opcode is not known.
fn refusal(base: &str) -> &'static str {
    match base {
        "wgmma" => "products of warp groups (wgmma) are not interpreted",
        "tcgen05" => "tensor memory (tcgen05) is not interpreted",
        "mbarrier" => "barriers in memory (mbarrier) are not interpreted",
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
