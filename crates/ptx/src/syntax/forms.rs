//! Forms of statements. A module has many statements and few forms, so support is checked with one statement of each
//! form before any function is parsed.
//!
//! A form is an opcode with the kinds of its operands. Statements of one form differ only in register numbers, labels,
//! and values that do not affect decoding.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::lexer::Token;

/// Hashes of the forms found so far in a module.
#[derive(Debug, Default)]
pub(super) struct Forms(HashSet<u64, BuildHasherDefault<Itself>>);

impl Forms {
    /// Adds the form of a statement. Returns whether it is new.
    pub(super) fn insert(&mut self, statement: &[Token<'_>]) -> bool {
        self.0.insert(form(statement))
    }
}

/// The identity hash, for keys that are hashes.
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
    // Decoding depends on numeric operands of these opcodes.
    let mut keeps_numbers = false;
    for token in tokens {
        let text = token.text;
        match text.as_bytes()[0] {
            b'%' => add(text.trim_end_matches(|c: char| c.is_ascii_digit())),
            b'0'..=b'9' if !keeps_numbers => {
                // Floats are distinguished from integers.
                let is_float = matches!(text.get(..2), Some("0f" | "0F" | "0d" | "0D"));
                add(if is_float { &text[..2] } else { "0" });
            }
            // A label or a variable name.
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
