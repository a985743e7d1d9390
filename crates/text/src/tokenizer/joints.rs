//! Which characters stand side by side in some token.
//!
//! Tokens are joined from neighbours, so none ever reaches over two characters that stand side by
//! side in no token. Between these a text can be cut, and its parts be encoded one by one: most words
//! of a text, instead of the text as a whole.

use super::vocab::Vocab;

/// Bits of the set: some times as many as there are pairs in large vocabularies.
const N_BITS: usize = 1 << 20;

/// Pairs of characters, by their hash: a pair that is not in the set stands in no token.
pub(super) struct Joints(Vec<u64>);

impl Joints {
    /// Those of all tokens that are whole characters.
    pub(super) fn of(vocab: &Vocab) -> Self {
        let mut bits = vec![0; N_BITS / 64];
        for id in 0..vocab.len() as u32 {
            let Ok(text) = std::str::from_utf8(vocab.piece(id)) else { continue };
            for (left, right) in text.chars().zip(text.chars().skip(1)) {
                let bit = hash(left, right);
                bits[bit / 64] |= 1 << (bit % 64);
            }
        }
        Self(bits)
    }

    /// False if no token has these two side by side.
    pub(super) fn may_join(&self, left: char, right: char) -> bool {
        let bit = hash(left, right);
        self.0[bit / 64] >> (bit % 64) & 1 == 1
    }
}

/// A number below [`N_BITS`] (Fibonacci hashing).
fn hash(left: char, right: char) -> usize {
    let pair = u64::from(u32::from(left)) << 32 | u64::from(u32::from(right));
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - N_BITS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::super::vocab::TokenKind;
    use super::*;

    #[test]
    fn only_characters_of_a_token_are_joined() {
        let mut vocab = Vocab::with_capacity(4);
        for piece in [&b"ab"[..], b" c\xc3\xa9", b"d", b"\xff"] {
            vocab.push(TokenKind::Normal, true, |out| out.extend(piece)).unwrap();
        }
        let joints = Joints::of(&vocab);
        let joined = [('a', 'b'), (' ', 'c'), ('c', '\u{e9}')];
        assert!(joined.iter().all(|&(left, right)| joints.may_join(left, right)));
        for (left, right) in [('b', 'a'), ('b', ' '), ('d', 'd'), ('a', ' '), ('\u{e9}', 'c')] {
            assert!(!joints.may_join(left, right), "{left:?} {right:?}");
        }
    }
}
