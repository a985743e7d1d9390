//! What a module's text says, by function and statement.

/// A module.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) globals: Vec<Global>,
    pub(crate) functions: Vec<Function>,
}

/// A variable with a place in memory: of a module, or of a function.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) line: u32,
    /// `shared`, `local`, `param`, `global` or `const`.
    pub(crate) space: &'static str,
    pub(crate) name: String,
    pub(crate) align: usize,
    pub(crate) bytes: usize,
    /// Declared without a size: dynamic shared memory.
    pub(crate) unsized_array: bool,
}

/// A variable of the module, with its first content.
#[derive(Debug)]
pub(crate) struct Global {
    pub(crate) variable: Variable,
    /// The bytes of one element.
    pub(crate) element: usize,
    pub(crate) initial: Vec<Initial>,
}

/// One element of an initialiser.
#[derive(Debug, PartialEq)]
pub(crate) enum Initial {
    Number(Number),
    /// The address of a variable, and how far behind it.
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
    /// None of a function that is only declared.
    pub(crate) body: Option<Vec<Item>>,
}

/// What a body consists of.
#[derive(Debug)]
pub(crate) enum Item {
    /// `.reg .f32 %f<40>` or `.reg .f32 x, y`: the type, the name, and how many if it is a range.
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
#[derive(Debug)]
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

/// An operand, its names unresolved.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Name(String),
    /// `!p`.
    Not(String),
    /// `symbol+8`.
    Offset(String, i64),
    Number(Number),
    /// `[base+offset]`; no base of an absolute address.
    Address(Option<String>, i64),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `d|p`.
    Pair(String, String),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
}
