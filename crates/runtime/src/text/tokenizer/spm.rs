//! SentencePiece byte-pair encoding: neighbouring pieces are joined, the best score first.
//!
//! Spaces stand for themselves here; SentencePiece writes them as U+2581, and the loader turns
//! those into spaces once. Characters that no piece covers fall back to byte tokens.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Error;
use super::vocab::Vocab;

const NONE: u32 = u32::MAX;

/// An encoder over the scores of a vocabulary.
pub(super) struct Spm {
    pub(super) scores: Vec<f32>, // [vocab_size]
    pub(super) byte_ids: Box<[Option<u32>; 256]>,
    pub(super) unk: Option<u32>,
}

#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    len: u32, // 0 once it was joined to the symbol before it
    prev: u32,
    next: u32,
}

/// A pair that could be joined; the greatest is joined first.
struct Pair {
    score: f32,
    left: u32,
    right: u32,
    len: u32,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    /// Appends the ids of `text`, which has plain spaces and no special tokens in it.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let bytes = text.as_bytes();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start: start as u32,
                len: c.len_utf8() as u32,
                prev: (i as u32).wrapping_sub(1),
                next: i as u32 + 1,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }

        let mut queue = BinaryHeap::with_capacity(symbols.len());
        for left in 0..symbols.len() as u32 {
            self.consider(vocab, bytes, &symbols, left, &mut queue);
        }
        while let Some(pair) = queue.pop() {
            let left = symbols[pair.left as usize];
            let right = symbols[pair.right as usize];
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue; // one of the two was joined to something else since
            }
            symbols[pair.left as usize].len = pair.len;
            symbols[pair.left as usize].next = right.next;
            symbols[pair.right as usize].len = 0;
            if let Some(after) = symbols.get_mut(right.next as usize) {
                after.prev = pair.left;
            }
            if left.prev != NONE {
                self.consider(vocab, bytes, &symbols, left.prev, &mut queue);
            }
            self.consider(vocab, bytes, &symbols, pair.left, &mut queue);
        }

        let mut at = 0;
        while let Some(symbol) = symbols.get(at as usize) {
            let piece = &bytes[symbol.start as usize..][..symbol.len as usize];
            match vocab.find(piece) {
                Some(id) => out.push(id),
                None => self.fall_back(piece, out)?,
            }
            at = symbol.next;
        }
        Ok(())
    }

    /// A character outside the vocabulary: its bytes, or the unknown token for the whole of it.
    fn fall_back(&self, piece: &[u8], out: &mut Vec<u32>) -> Result<(), Error> {
        let start = out.len();
        for &byte in piece {
            match (self.byte_ids[byte as usize], self.unk) {
                (Some(id), _) => out.push(id),
                (None, Some(unk)) => {
                    out.truncate(start);
                    out.push(unk);
                    return Ok(());
                }
                (None, None) => return Err(Error::NoTokenForByte { byte }),
            }
        }
        Ok(())
    }

    fn consider(
        &self,
        vocab: &Vocab,
        bytes: &[u8],
        symbols: &[Symbol],
        left_at: u32,
        queue: &mut BinaryHeap<Pair>,
    ) {
        let left = symbols[left_at as usize];
        if let Some(right) = symbols.get(left.next as usize) {
            let len = left.len + right.len;
            if let Some(id) = vocab.find(&bytes[left.start as usize..][..len as usize]) {
                let score = self.scores[id as usize];
                queue.push(Pair { score, left: left_at, right: left.next, len });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bpe::fallback_bytes;
    use super::super::vocab::TokenKind;
    use super::*;

    #[test]
    fn joins_by_score_and_falls_back_to_bytes() {
        let mut vocab = Vocab::with_capacity(300);
        let pieces = [
            ("<unk>", 0.0),
            (" ", -9.0),
            ("a", -8.0),
            ("b", -8.0),
            ("ab", -2.0),
            (" a", -1.0),
            (" ab", -3.0),
            ("ba", -2.0),
        ];
        for (text, _) in pieces {
            let kind = if text == "<unk>" { TokenKind::Unknown } else { TokenKind::Normal };
            vocab.push(kind, kind == TokenKind::Normal, |out| out.extend(text.bytes())).unwrap();
        }
        for byte in 0..=255_u8 {
            vocab.push(TokenKind::Byte, false, |out| out.push(byte)).unwrap();
        }
        let mut scores: Vec<f32> = pieces.iter().map(|p| p.1).collect();
        scores.resize(vocab.len(), 0.0);
        let spm = Spm { scores, byte_ids: fallback_bytes(&vocab), unk: Some(0) };
        let check = |text: &str, want: &[u32]| {
            let mut out = Vec::new();
            spm.encode(&vocab, text, &mut out).unwrap();
            assert_eq!(out, want, "{text:?}");
        };
        check(" ab", &[6]); // " a" scores best, then " ab"
        check("aba", &[4, 2]); // equal scores: the leftmost pair
        check("bab", &[7, 3]);
        check("é", &[8 + 0xC3, 8 + 0xA9]);
        check("", &[]);
    }
}
