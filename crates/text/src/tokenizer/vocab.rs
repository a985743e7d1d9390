//! The vocabulary: the bytes and the kind of every token, in one buffer, with one index.
//!
//! A token is stored as the bytes it contributes to decoded text. The index finds a token by
//! those bytes; which tokens it holds is decided by the loader.

use super::Error;
use super::index::HashIndex;

/// What a token is for. The numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    /// The kind with this number in a GGUF file; unknown numbers are ordinary tokens.
    pub(super) fn from_ggml(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }

    /// Whether the token is a mark of structure rather than text.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// All tokens of a tokenizer.
pub(super) struct Vocab {
    bytes: Vec<u8>,
    ends: Vec<u32>, // [vocab_size], where each token's bytes end
    kinds: Vec<TokenKind>,
    index: HashIndex,
    max_len: usize,
}

impl Vocab {
    /// An empty vocabulary with room for `n_tokens` tokens.
    pub(super) fn with_capacity(n_tokens: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(n_tokens * 7),
            ends: Vec::with_capacity(n_tokens),
            kinds: Vec::with_capacity(n_tokens),
            index: HashIndex::with_capacity(n_tokens),
            max_len: 0,
        }
    }

    /// Appends a token whose bytes `write` produces; `indexed` says whether it can be found.
    pub(super) fn push(
        &mut self,
        kind: TokenKind,
        indexed: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Error> {
        let id = self.ends.len();
        let start = self.bytes.len();
        write(&mut self.bytes);
        let end = self.bytes.len();
        let (Ok(end_u32), true) = (u32::try_from(end), id < u32::MAX as usize) else {
            return Err(Error::VocabSize {
                found: format!("{end} bytes"),
                problem: "offsets have 32 bits",
            });
        };
        self.ends.push(end_u32);
        self.kinds.push(kind);
        if indexed && end > start {
            let (bytes, ends) = (&self.bytes, &self.ends);
            let key = &bytes[start..end];
            if self.index.insert(key, id as u32, |p| piece(bytes, ends, p) == key) {
                self.max_len = self.max_len.max(end - start);
            }
        }
        Ok(())
    }

    /// The number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of token `id`, which must be in range.
    pub(super) fn piece(&self, id: u32) -> &[u8] {
        piece(&self.bytes, &self.ends, id)
    }

    /// The kind of token `id`, which must be in range.
    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds[id as usize]
    }

    /// Overrides the kind of a token.
    pub(super) fn set_kind(&mut self, id: u32, kind: TokenKind) {
        self.kinds[id as usize] = kind;
    }

    /// The indexed token with exactly these bytes.
    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        if key.len() > self.max_len {
            return None;
        }
        self.index.find(key, |p| self.piece(p) == key)
    }

    /// Checks that an id is in range.
    pub(super) fn check(&self, id: u32) -> Result<(), Error> {
        if (id as usize) < self.len() {
            Ok(())
        } else {
            Err(Error::IdOutOfRange { id, vocab_size: self.len() })
        }
    }
}

fn piece<'a>(bytes: &'a [u8], ends: &[u32], id: u32) -> &'a [u8] {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends[id - 1] as usize };
    &bytes[start..ends[id] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_indexed_tokens_only() {
        let mut vocab = Vocab::with_capacity(4);
        for (text, kind, indexed) in [
            ("", TokenKind::Normal, true),
            ("ab", TokenKind::Normal, true),
            ("<s>", TokenKind::Control, false),
            ("ab", TokenKind::Normal, true),
        ] {
            vocab.push(kind, indexed, |out| out.extend(text.as_bytes())).unwrap();
        }
        assert_eq!(vocab.len(), 4);
        assert_eq!(vocab.find(b"ab"), Some(1));
        assert_eq!(vocab.find(b""), None);
        assert_eq!(vocab.find(b"<s>"), None);
        assert_eq!(vocab.piece(2), b"<s>");
        assert_eq!(vocab.kind(2), TokenKind::Control);
        assert!(matches!(vocab.check(4), Err(Error::IdOutOfRange { id: 4, vocab_size: 4 })));
    }
}
