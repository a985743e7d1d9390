//! The forms of statements: a module has many statements and few forms, so what is known is told
//! from one statement of each form, before any function is taken apart.
//!
//! A form is an opcode with the kinds of its operands. Two statements of one form differ in the numbers
//! after the names of registers, in labels and in values that no decoder chooses by.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use crate::Error;

use super::lexer::Token;
use super::parser::Parser;
use super::tree::{Item, Sample};

/// The forms that a module has had so far, as hashes.
#[derive(Debug, Default)]
pub(super) struct Forms(HashSet<u64, BuildHasherDefault<Itself>>);

/// The hash of what is a hash already.
#[derive(Debug, Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, b| hash << 8 | u64::from(*b));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The hash of a statement's form.
fn form(tokens: &[Token<'_>]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |text: &str| {
        for byte in text.bytes().chain([b' ']) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    // Of these a decoder reads the numbers.
    let mut keeps_numbers = false;
    for token in tokens {
        let text = token.text;
        match text.as_bytes()[0] {
            b'%' => add(text.trim_end_matches(|c: char| c.is_ascii_digit())),
            b'0'..=b'9' if !keeps_numbers => {
                // Floats are told from integers.
                let is_float = matches!(text.get(..2), Some("0f" | "0F" | "0d" | "0D"));
                add(if is_float { &text[..2] } else { "0" });
            }
            // A label, or a variable's name.
            b'$' | b'_' if text.len() > 1 => add("$"),
            b'a'..=b'z' if text.contains("_param_") => add("$"),
            _ => {
                let first = text.split('.').next().unwrap_or_default();
                keeps_numbers |= matches!(first, "cp" | "lop3" | "bar" | "barrier" | "setmaxnreg");
                add(text);
            }
        }
    }
    hash
}

impl Parser<'_> {
    /// Skips a body, and takes from it what must be examined now.
    pub(super) fn sample(&mut self) -> Result<Sample, Error> {
        let mut sample = Sample::default();
        let mut items = Vec::new();
        let mut depth = 0;
        loop {
            let start = self.at;
            match self.peek() {
                "" => return self.error("a function's body does not end"),
                "{" => depth += 1,
                "}" => depth -= 1,
                ".loc" => {
                    self.directive_line(self.line());
                    continue;
                }
                word if word.starts_with('.') => {
                    self.body_item(&mut sample.declarations)?;
                    continue;
                }
                _ if self.tokens.get(start + 1).is_some_and(|t| t.text == ":") => {
                    if self.tokens.get(start + 2).is_some_and(|t| t.text == ".branchtargets") {
                        self.body_item(&mut sample.declarations)?;
                    } else {
                        self.at += 2;
                    }
                    continue;
                }
                _ => {
                    let rest = &self.tokens[start..];
                    let len = rest.iter().position(|t| t.text == ";").unwrap_or(rest.len());
                    sample.calls |= rest[..len].iter().any(|t| t.text.starts_with("call"));
                    if self.forms.0.insert(form(&rest[..len])) {
                        self.body_item(&mut items)?;
                    } else {
                        self.at = start + len + 1;
                    }
                    continue;
                }
            }
            self.at += 1;
            if depth == 0 {
                break;
            }
        }
        sample.statements.extend(items.into_iter().filter_map(|item| match item {
            Item::Statement(statement) => Some(statement),
            _ => None,
        }));
        Ok(sample)
    }
}
