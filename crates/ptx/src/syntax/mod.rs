//! The text of a module: words with their lines, and the statements that they form.
//!
//! Names are not resolved here and opcodes not known; that is the work of `decode`.

mod forms;
mod lexer;
mod parser;
mod tree;

pub(crate) use parser::{body, parse};
pub(crate) use tree::{
    Function, Global, Initial, Item, Number, Operand, Statement, Tree, Variable,
};
