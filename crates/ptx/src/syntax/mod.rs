//! The syntax of modules: tokens, statements, variables and functions.
//!
//! Names and opcodes are not resolved here, but in `decode`.

mod forms;
mod lexer;
mod parser;
mod tree;

pub(crate) use parser::{body, parse};
pub(crate) use tree::{
    Function, Global, Initial, Item, Number, Operand, Statement, Tree, Variable,
};
