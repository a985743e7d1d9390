//! SentencePiece byte-pair encoding: neighbouring pieces are joined, the best score first.
//!
//! Spaces stand for themselves here; SentencePiece writes them as U+2581, and the loader turns
//! those into spaces once. Characters that no piece covers fall back to byte tokens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Error;
use super::buckets::{Buckets, Queue};
use super::joints::Joints;
use super::vocab::Vocab;

const NONE: u32 = u32::MAX;

/// Characters from which on the pairs of a word are joined by [`Buckets`].
const LONG_WORD: usize = 4096;

/// An encoder over the scores of a vocabulary.
pub(super) struct Spm {
    pub(super) scores: Vec<f32>, // [vocab_size]
    pub(super) byte_ids: Box<[Option<u32>; 256]>,
    pub(super) unk: Option<u32>,
    pub(super) joints: Joints,
}

#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    len: u32,
    prev: u32,
    next: u32,
    /// The rank of joining it with the next one; NONE if they make no token, or once it was joined to the
    /// symbol before it.
    rank: u32,
}

impl Spm {
    /// Appends the ids of `text`, which has plain spaces and no special tokens in it.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let (mut symbols, mut queue) = (Vec::new(), BinaryHeap::new());
        let (mut start, mut before) = (0, None);
        for (at, c) in text.char_indices() {
            if before.is_some_and(|before| !self.joints.may_join(before, c)) {
                self.encode_word(vocab, &text[start..at], &mut symbols, &mut queue, out)?;
                start = at;
            }
            before = Some(c);
        }
        self.encode_word(vocab, &text[start..], &mut symbols, &mut queue, out)
    }

    /// Appends the ids of a part of a text, over whose borders no token reaches.
    fn encode_word(
        &self,
        vocab: &Vocab,
        word: &str,
        symbols: &mut Vec<Symbol>,
        queue: &mut BinaryHeap<Reverse<(u32, u32)>>,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        symbols.clear();
        symbols.extend(word.char_indices().enumerate().map(|(i, (start, c))| Symbol {
            start: start as u32,
            len: c.len_utf8() as u32,
            prev: (i as u32).wrapping_sub(1),
            next: i as u32 + 1,
            rank: NONE,
        }));
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let bytes = word.as_bytes();
        if symbols.len() < LONG_WORD {
            queue.clear();
            self.join(vocab, bytes, symbols, queue);
        } else {
            self.join(vocab, bytes, symbols, &mut Buckets::default());
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

    /// Joins the pair of the best score, leftmost first, until no pair makes a token.
    fn join(&self, vocab: &Vocab, bytes: &[u8], symbols: &mut [Symbol], queue: &mut impl Queue) {
        for left in 0..symbols.len() as u32 {
            self.consider(vocab, bytes, symbols, left, queue);
        }
        while let Some((rank, at)) = queue.take() {
            let left = symbols[at as usize];
            if left.rank != rank {
                continue; // one of the two was joined to something else since
            }
            let right = symbols[left.next as usize];
            symbols[at as usize].len += right.len;
            symbols[at as usize].next = right.next;
            symbols[left.next as usize].rank = NONE;
            if let Some(after) = symbols.get_mut(right.next as usize) {
                after.prev = at;
            }
            if left.prev != NONE {
                self.consider(vocab, bytes, symbols, left.prev, queue);
            }
            self.consider(vocab, bytes, symbols, at, queue);
        }
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

    /// Queues the joining of the symbol at `at` with the one after it, if the two make a token.
    fn consider(
        &self,
        vocab: &Vocab,
        bytes: &[u8],
        symbols: &mut [Symbol],
        at: u32,
        queue: &mut impl Queue,
    ) {
        let left = symbols[at as usize];
        let joined = symbols.get(left.next as usize).and_then(|right| {
            let len = left.len + right.len;
            vocab.find(&bytes[left.start as usize..][..len as usize])
        });
        let rank = joined.map_or(NONE, |id| rank(self.scores[id as usize]));
        symbols[at as usize].rank = rank;
        if rank != NONE {
            queue.add(rank, at);
        }
    }
}

/// Ascending where scores descend, in the order of [`f32::total_cmp`], and below [`NONE`].
fn rank(score: f32) -> u32 {
    let bits = score.to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    (!ascending).min(NONE - 1)
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
        let (byte_ids, joints) = (fallback_bytes(&vocab), Joints::of(&vocab));
        let spm = Spm { scores, byte_ids, unk: Some(0), joints };
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

    #[test]
    fn ranks_ascend_where_scores_descend() {
        let scores = [f32::INFINITY, 7.5, 1e-40, 0.0, -0.0, -1e-40, -0.5, -9.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert!(rank(f32::from_bits(u32::MAX)) < NONE);
    }

    /// Joins as the definition says: the best score, leftmost first, one pair after another.
    fn plainly(vocab: &Vocab, spm: &Spm, text: &str) -> Vec<u32> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let pairs = parts.windows(2).enumerate();
            let scored = pairs.filter_map(|(at, it)| {
                let id = vocab.find(it.concat().as_bytes())?;
                Some((spm.scores[id as usize], at))
            });
            let better =
                |a: &(f32, usize), b: &(f32, usize)| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1));
            let Some((_, at)) = scored.max_by(better) else { break };
            let right = parts.remove(at + 1);
            parts[at] += &right;
        }
        parts.iter().map(|part| vocab.find(part.as_bytes()).unwrap()).collect()
    }

    #[test]
    fn texts_of_all_lengths_are_joined_as_the_definition_says() {
        let mut vocab = Vocab::with_capacity(30);
        let pieces =
            ["a", "b", "c", " ", "ab", "bc", "aa", "abc", "aaa", "aaaa", " a", " ab", "b "];
        for text in pieces {
            vocab.push(TokenKind::Normal, true, |out| out.extend(text.bytes())).unwrap();
        }
        let scores = vec![0.0, 0.0, 0.0, 0.0, -3.0, -2.0, -1.0, -1.5, -4.0, -0.5, -2.0, 1.0, -9.0];
        let (byte_ids, joints) = (fallback_bytes(&vocab), Joints::of(&vocab));
        let spm = Spm { scores, byte_ids, unk: None, joints };
        let mut state = 7_u32;
        let mut random = |n: usize, letters: u8| -> String {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                char::from(b"ab c"[usize::from((state >> 24) as u8 % letters)])
            };
            (0..n).map(|_| next()).collect()
        };
        let mut texts = vec!["a".repeat(LONG_WORD + 7), "abc".repeat(LONG_WORD / 2)];
        for letters in [1, 2, 3, 4] {
            texts.extend([10, 300, LONG_WORD + 1000].map(|n| random(n, letters)));
        }
        for text in texts {
            let mut out = Vec::new();
            spm.encode(&vocab, &text, &mut out).unwrap();
            assert!(out == plainly(&vocab, &spm, &text), "{} bytes", text.len());
        }
    }
}
