//! Streaming decode: token ids in, whole characters out.

use super::{Error, Tokenizer};
use std::ops::Deref;

/// Turns token ids into text one at a time and never emits part of a character.
///
/// Bytes that do not yet form a character are held back until the tokens after them complete it.
/// The concatenation of everything returned equals [`Tokenizer::decode`] of all the ids.
/// The tokenizer is borrowed, or shared where the decoder outlives a borrow.
pub struct StreamDecoder<T> {
    tokenizer: T,
    pending: Vec<u8>, // at most one incomplete character between pushes
    text: String,
    skip_special: bool,
    shown: Vec<u32>, // control tokens that are written all the same
    strip_space: bool,
}

impl<T: Deref<Target = Tokenizer>> StreamDecoder<T> {
    /// A decoder for the beginning of a text; control tokens are left out.
    pub fn new(tokenizer: T) -> Self {
        Self {
            strip_space: tokenizer.strips_leading_space,
            tokenizer,
            pending: Vec::new(),
            text: String::new(),
            skip_special: true,
            shown: Vec::new(),
        }
    }

    /// The ids continue an earlier text: a leading space is kept, where a tokenizer that puts a
    /// space before every text would otherwise drop it.
    #[must_use]
    pub fn continuing(mut self) -> Self {
        self.strip_space = false;
        self
    }

    /// Control tokens are written as text; without this they are left out.
    #[must_use]
    pub fn with_special(mut self) -> Self {
        self.skip_special = false;
        self
    }

    /// These control tokens are written as text, where others are left out: those that mark parts
    /// of an answer, such as `[TOOL_CALLS]`.
    #[must_use]
    pub fn with_specials(mut self, ids: &[u32]) -> Self {
        self.shown.extend(ids);
        self
    }

    /// Adds one token and returns the text it completes, which may be empty.
    pub fn push(&mut self, id: u32) -> Result<&str, Error> {
        self.text.clear();
        self.push_into(id)?;
        Ok(&self.text)
    }

    /// Ends the text: bytes still held back become U+FFFD.
    pub fn finish(mut self) -> String {
        self.text.clear();
        self.flush();
        self.text
    }

    /// Adds one token, appending to `self.text`.
    fn push_into(&mut self, id: u32) -> Result<(), Error> {
        let vocab = &self.tokenizer.vocab;
        vocab.check(id)?;
        if vocab.kind(id).is_special() && self.skip_special && !self.shown.contains(&id) {
            return Ok(());
        }
        let mut piece = vocab.piece(id);
        if self.strip_space && !piece.is_empty() {
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
            self.strip_space = false;
        }
        self.pending.extend_from_slice(piece);
        let mut done = 0;
        loop {
            match std::str::from_utf8(&self.pending[done..]) {
                Ok(text) => {
                    self.text.push_str(text);
                    done = self.pending.len();
                    break;
                }
                Err(error) => {
                    let valid = done + error.valid_up_to();
                    if let Ok(text) = std::str::from_utf8(&self.pending[done..valid]) {
                        self.text.push_str(text);
                    }
                    done = valid;
                    match error.error_len() {
                        Some(len) => {
                            self.text.push(char::REPLACEMENT_CHARACTER);
                            done += len;
                        }
                        None => break,
                    }
                }
            }
        }
        self.pending.drain(..done);
        Ok(())
    }

    fn flush(&mut self) {
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
    }

    /// Decodes all of `ids` at once.
    pub(super) fn decode_all(mut self, ids: &[u32]) -> Result<String, Error> {
        for &id in ids {
            self.push_into(id)?;
        }
        self.flush();
        Ok(self.text)
    }
}
