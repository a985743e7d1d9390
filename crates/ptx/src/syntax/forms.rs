//! The forms of statements: a module has many statements and few forms, so what is known is told
//! from one statement of each form, before any function is taken apart.
//!
//! A form is an opcode with the kinds of its operands. Two statements of one form differ in the numbers
//! after the names of registers, in labels and in values that no decoder chooses by.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::lexer::Token;

/// The forms that a module has had so far, as hashes.
#[derive(Debug, Default)]
pub(super) struct Forms(HashSet<u64, BuildHasherDefault<Itself>>);

impl Forms {
    /// Adds the form of a statement. Returns whether it is new.
    pub(super) fn insert(&mut self, statement: &[Token<'_>]) -> bool {
        self.0.insert(form(statement))
    }
}

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
