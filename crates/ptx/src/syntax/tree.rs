//! The syntax tree of a module, by function and statement.

use std::ops::Range;

/// A module.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) globals: Vec<Global>,
    pub(crate) functions: Vec<Function>,
}

impl Tree {
    /// The variables that are allocated when the module is loaded, in order.
    pub(crate) fn in_global_memory(&self) -> impl Iterator<Item = &Global> {
        self.globals.iter().filter(|g| g.variable.space != "shared")
    }
}

/// A variable in memory, of a module or of a function.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) line: u32,
    /// `shared`, `local`, `param`, `global` or `const`.
    pub(crate) space: &'static str,
    pub(crate) name: String,
    pub(crate) align: usize,
    pub(crate) bytes: usize,
    /// Whether it is declared without a size, as dynamic shared memory.
    pub(crate) unsized_array: bool,
}

/// A variable of the module, with its initial content.
#[derive(Debug)]
pub(crate) struct Global {
    pub(crate) variable: Variable,
    /// Bytes per element.
    pub(crate) element: usize,
    pub(crate) initial: Vec<Initial>,
}

/// An element of an initializer.
#[derive(Debug, PartialEq)]
pub(crate) enum Initial {
    Number(Number),
    /// The address of a variable, and an offset.
    Address(String, i64),
}

/// A parameter of a function.
#[derive(Debug, Clone)]
pub(crate) struct Param {
    pub(crate) name: String,
    pub(crate) align: usize,
    pub(crate) bytes: usize,
}

/// A kernel or a device function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) line: u32,
    pub(crate) name: String,
    pub(crate) is_entry: bool,
    pub(crate) returns: Vec<Param>,
    pub(crate) params: Vec<Param>,
    /// From `.reqntid` or `.maxntid`, and whether it is exact.
    pub(crate) threads: Option<([u32; 3], bool)>,
    /// None for a declaration.
    pub(crate) body: Option<Body>,
}

/// Location of a function's body, which is parsed on demand.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    /// Byte range in the module's text, including both braces.
    pub(crate) text: Range<usize>,
    /// The line of the opening brace.
    pub(crate) line: u32,
    /// The items that must be checked before the function counts as supported.
    pub(crate) sample: Sample,
}

/// A part of a body: its declarations, and its statements whose forms are new in the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) declarations: Vec<Item>,
    pub(crate) statements: Vec<Statement>,
    /// Whether it calls functions.
    pub(crate) calls: bool,
}

/// An item of a body.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    /// `.reg .f32 %f<40>` or `.reg .f32 x, y`: bits, type, name, and number of registers if it is a range.
    Registers(u32, String, String, Option<u32>),
    Variable(Variable),
    Label(u32, String),
    /// `NAME: .branchtargets A, B, C`.
    Targets(String, Vec<String>),
    Statement(Statement),
    Open,
    Close,
}

/// An instruction.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    /// The predicate's name, and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    /// As written, with its modifiers.
    pub(crate) opcode: String,
    pub(crate) operands: Vec<Operand>,
}

/// A number as written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Integer(i128),
    F32(u32),
    F64(u64),
}

/// An operand with unresolved names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Name(String),
    /// `!p`.
    Not(String),
    /// `symbol+8`.
    Offset(String, i64),
    Number(Number),
    /// `[base+offset]`; absolute addresses have no base.
    Address(Option<String>, i64),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `d|p`.
    Pair(String, String),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
}
