//! Byte-pair encoding: the merge table and the merging of one word.
//!
//! The table is this crate's own rather than the `tokenizers` crate's, because it has to live
//! beside a mapped model within a quarter of its size: two flat arrays and an index of four bytes
//! per slot take 2 MB for a vocabulary of 49 thousand tokens, and are built without owned strings.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Error;
use super::buckets::{Buckets, Queue};
use super::index::HashIndex;
use super::pretokenizer::PreTokenizer;
use super::vocab::{TokenKind, Vocab};

/// Symbols of a word from which on its pairs are merged by [`Buckets`].
const LONG_WORD: usize = 4096;

/// Marks a byte without a token, a merged-away symbol, and the ends of the symbol list.
const NONE: u32 = u32::MAX;

/// The merges of a vocabulary, in order of rank.
pub(super) struct Merges {
    pairs: Vec<(u32, u32)>, // [n_merges], left and right token
    results: Vec<u32>,      // [n_merges], the token they form
    index: HashIndex,
}

impl Merges {
    /// An empty table with room for `n` merges.
    pub(super) fn with_capacity(n: usize) -> Self {
        Self {
            pairs: Vec::with_capacity(n),
            results: Vec::with_capacity(n),
            index: HashIndex::with_capacity(n),
        }
    }

    /// Appends the merge of the next rank. A pair that already exists keeps its first rank.
    pub(super) fn push(&mut self, left: u32, right: u32, result: u32) {
        let rank = self.pairs.len() as u32;
        let pairs = &self.pairs;
        if self.index.insert((left, right), rank, |p| pairs[p as usize] == (left, right)) {
            self.pairs.push((left, right));
            self.results.push(result);
        }
    }

    fn rank(&self, left: u32, right: u32) -> Option<u32> {
        self.index.find((left, right), |p| self.pairs[p as usize] == (left, right))
    }
}

/// A byte-pair encoder over a vocabulary.
pub(super) struct Bpe {
    pub(super) merges: Merges,
    pub(super) pre: PreTokenizer,
    pub(super) byte_ids: Box<[Option<u32>; 256]>,
    pub(super) unk: Option<u32>,
}

/// A symbol in the list of a word being merged.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32, // NONE for a character or byte without a token
    start: u32,
    prev: u32,
    next: u32,
}

/// Buffers of one call to encode, reused from word to word.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<(u32, u32)>>, // (rank, position)
}

impl Bpe {
    /// Appends the ids of `text`, which has no special tokens in it.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        self.pre.each_word(text, |word| self.encode_word(vocab, &text[word], scratch, out))
    }

    fn encode_word(
        &self,
        vocab: &Vocab,
        word: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let whole = self.pre.ignore_merges
            || (self.pre.characters && word.bytes().all(|byte| byte == b'\n'));
        if whole
            && let Some(id) = vocab.find(word.as_bytes())
            && !vocab.kind(id).is_special()
        {
            out.push(id);
            return Ok(());
        }
        self.start_symbols(vocab, word, scratch);
        self.merge(scratch);
        let mut at = 0;
        while let Some(symbol) = scratch.symbols.get(at as usize) {
            if symbol.id != NONE {
                out.push(symbol.id);
            } else if self.pre.characters {
                let start = symbol.start as usize;
                let len = word[start..].chars().next().map_or(0, char::len_utf8);
                for &byte in &word.as_bytes()[start..start + len] {
                    out.push(self.byte_id(byte)?);
                }
            }
            // A single byte without a token is left out, as llama.cpp does; the
            // unknown token may be one that text must not be able to write.
            at = symbol.next;
        }
        Ok(())
    }

    fn byte_id(&self, byte: u8) -> Result<u32, Error> {
        self.byte_ids[byte as usize].or(self.unk).ok_or(Error::NoTokenForByte { byte })
    }

    /// One symbol per byte, or per character where the vocabulary merges characters.
    fn start_symbols(&self, vocab: &Vocab, word: &str, scratch: &mut Scratch) {
        let symbols = &mut scratch.symbols;
        symbols.clear();
        let mut add = |id: u32, start: usize| {
            let at = symbols.len() as u32;
            symbols.push(Symbol {
                id,
                start: start as u32,
                prev: at.wrapping_sub(1),
                next: at + 1,
            });
        };
        if self.pre.characters {
            for (start, c) in word.char_indices() {
                let character = &word.as_bytes()[start..start + c.len_utf8()];
                let id = vocab.find(character).filter(|&id| !vocab.kind(id).is_special());
                add(id.unwrap_or(NONE), start);
            }
        } else {
            for (start, byte) in word.bytes().enumerate() {
                add(self.byte_ids[byte as usize].unwrap_or(NONE), start);
            }
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
    }

    /// Merges the pair of lowest rank, leftmost first, until no pair can be merged.
    fn merge(&self, scratch: &mut Scratch) {
        let Scratch { symbols, queue } = scratch;
        if symbols.len() < LONG_WORD {
            queue.clear();
            self.merge_by(symbols, queue);
        } else {
            self.merge_by(symbols, &mut Buckets::default());
        }
    }

    fn merge_by(&self, symbols: &mut [Symbol], queue: &mut impl Queue) {
        for left in 0..symbols.len().saturating_sub(1) {
            self.consider(symbols, queue, left as u32);
        }
        while let Some((rank, at)) = queue.take() {
            let left = symbols[at as usize];
            let Some(right) = symbols.get(left.next as usize).copied() else { continue };
            if (left.id, right.id) != self.merges.pairs[rank as usize] {
                continue; // one of the two was merged since
            }
            symbols[at as usize].id = self.merges.results[rank as usize];
            symbols[at as usize].next = right.next;
            symbols[left.next as usize].id = NONE;
            if let Some(after) = symbols.get_mut(right.next as usize) {
                after.prev = at;
            }
            if left.prev != NONE {
                self.consider(symbols, queue, left.prev);
            }
            self.consider(symbols, queue, at);
        }
    }

    /// Queues the merge of the symbol at `at` with the one after it, if there is such a merge.
    fn consider(&self, symbols: &[Symbol], queue: &mut impl Queue, at: u32) {
        let left = symbols[at as usize];
        if let Some(right) = symbols.get(left.next as usize)
            && left.id != NONE
            && right.id != NONE
            && let Some(rank) = self.merges.rank(left.id, right.id)
        {
            queue.add(rank, at);
        }
    }
}

/// The `<0xXX>` token of each byte value, for vocabularies that fall back to bytes.
pub(super) fn fallback_bytes(vocab: &Vocab) -> Box<[Option<u32>; 256]> {
    let mut ids = Box::new([None; 256]);
    for id in 0..vocab.len() as u32 {
        if let (TokenKind::Byte, &[byte]) = (vocab.kind(id), vocab.piece(id)) {
            ids[byte as usize].get_or_insert(id);
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of all bytes and the given merges, in order of rank.
    fn bpe(pre: &str, merges: &[(&str, &str)]) -> (Vocab, Bpe) {
        let mut vocab = Vocab::with_capacity(300);
        for byte in 0..=255_u8 {
            vocab.push(TokenKind::Normal, true, |out| out.push(byte)).unwrap();
        }
        let mut table = Merges::with_capacity(merges.len());
        for (left, right) in merges {
            vocab
                .push(TokenKind::Normal, true, |out| out.extend([*left, *right].concat().bytes()))
                .unwrap();
            let id = |text: &str| vocab.find(text.as_bytes()).unwrap();
            table.push(id(left), id(right), vocab.len() as u32 - 1);
        }
        let mut byte_ids = Box::new([None; 256]);
        for byte in 0..=255_u8 {
            byte_ids[byte as usize] = Some(byte as u32);
        }
        let pre = PreTokenizer::new(pre).unwrap();
        (vocab, Bpe { merges: table, pre, byte_ids, unk: None })
    }

    #[test]
    fn merges_by_rank_then_from_the_left() {
        let (vocab, bpe) =
            bpe("gpt-2", &[("a", "b"), ("b", "c"), ("a", "a"), ("ab", "c"), ("aa", "a")]);
        let check = |text: &str, want: &[&str]| {
            let mut out = Vec::new();
            bpe.encode(&vocab, text, &mut Scratch::default(), &mut out).unwrap();
            let got: Vec<&[u8]> = out.iter().map(|&id| vocab.piece(id)).collect();
            let want: Vec<&[u8]> = want.iter().map(|s| s.as_bytes()).collect();
            assert_eq!(got, want, "{text:?}");
        };
        check("abc", &["abc"]);
        check("bc", &["bc"]);
        check("aaaaa", &["aa", "aaa"]);
        check("aabcb", &["a", "abc", "b"]);
        check("xyz", &["x", "y", "z"]);
        check("", &[]);
    }

    #[test]
    fn a_byte_without_a_token_is_left_out() {
        let (vocab, mut bpe) = bpe("gpt-2", &[("a", "b")]);
        bpe.byte_ids[0x1d] = None;
        bpe.byte_ids[0xa9] = None; // the second byte of é
        bpe.unk = Some(0);
        let mut out = Vec::new();
        bpe.encode(&vocab, "a\u{1d}b\u{e9}ab", &mut Scratch::default(), &mut out).unwrap();
        let got: Vec<&[u8]> = out.iter().map(|&id| vocab.piece(id)).collect();
        assert_eq!(got, [b"a".as_slice(), b"b", b"\xc3", b"ab"]);
    }

    /// Merges as the definition says: the lowest rank, leftmost first, one pair after another.
    fn plainly(bpe: &Bpe, text: &str) -> Vec<u32> {
        let mut ids: Vec<u32> = text.bytes().map(u32::from).collect();
        loop {
            let pairs = ids.windows(2).enumerate();
            let ranked = pairs.filter_map(|(at, it)| Some((bpe.merges.rank(it[0], it[1])?, at)));
            let Some((rank, at)) = ranked.min() else { return ids };
            ids[at] = bpe.merges.results[rank as usize];
            ids.remove(at + 1);
        }
    }

    #[test]
    fn words_of_all_lengths_are_merged_as_the_definition_says() {
        let merges = [("a", "b"), ("b", "c"), ("a", "a"), ("ab", "c"), ("aa", "a"), ("aa", "aa")];
        let more = [("c", "a"), ("abc", "abc"), ("ca", "bc"), ("aaaa", "aaaa"), ("b", "ab")];
        let (vocab, bpe) = bpe("gpt-2", &[&merges[..], &more[..]].concat());
        let mut state = 7_u32;
        let mut random = |n: usize, letters: u8| -> String {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                char::from(b'a' + (state >> 24) as u8 % letters)
            };
            (0..n).map(|_| next()).collect()
        };
        let mut texts = vec!["a".repeat(LONG_WORD + 7), "abc".repeat(LONG_WORD / 2)];
        for letters in [1, 2, 3, 5] {
            texts.extend([10, 300, LONG_WORD + 1000].map(|n| random(n, letters)));
        }
        for text in texts {
            let mut out = Vec::new();
            bpe.encode(&vocab, &text, &mut Scratch::default(), &mut out).unwrap();
            assert!(out == plainly(&bpe, &text), "{} bytes", text.len());
        }
    }
}
