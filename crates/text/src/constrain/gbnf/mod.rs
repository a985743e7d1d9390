//! Translation of llama.cpp's grammar format, GBNF, into Lark.
//!
//! GBNF describes text by characters, Lark by terminals that a lexer cuts out of it. So every
//! rule that does not lead back to itself becomes a terminal, exactly what it describes, and in
//! the other rules each longest run of such parts becomes one.

mod parse;
mod translate;

use super::{Error, MAX_NESTING};

pub(super) const WHAT: &str = "GBNF grammar";

/// The grammar in Lark.
pub(super) fn to_lark(text: &str) -> Result<String, Error> {
    let rules = parse::parse(text)?;
    Ok(translate::translate(&rules))
}

/// A rule: alternatives.
#[derive(Debug, Default)]
struct Rule {
    name: String,
    alternatives: Vec<Sequence>,
}

type Sequence = Vec<Item>;

/// A part of a sequence and how often it comes.
#[derive(Debug)]
struct Item {
    part: Part,
    min: u32,
    max: Option<u32>,
}

#[derive(Debug)]
enum Part {
    /// These characters.
    Literal(String),
    /// One character, as a regular expression.
    Class(String),
    /// The rule with this index.
    Rule(usize),
    Group(Vec<Sequence>),
}
