//! Texts in which some spellings of control tokens are ordinary text.
//!
//! A prompt is written by a chat template around strings that come from its user. Only what the
//! template writes may become a control token, but the two meet within words and within strings, so
//! the whole is encoded as one text. A mark, a noncharacter that the text itself does not have,
//! stands inside each spelling of a control token that came from outside. A spelling with a mark
//! in it is not found; the marks are taken out before anything else is done with the text, so
//! pre-tokenization and merges see what they would see without them.

use std::borrow::Cow;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::vocab::Vocab;
use super::{EncodeOptions, Error, Tokenizer};

/// The characters of which one is the mark: Unicode keeps them for the use of a process.
pub const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// A text with marks: which spellings of control tokens in it stand for these tokens, and which
/// are ordinary text. [`ChatTemplate::render_prompt`](crate::template::ChatTemplate::render_prompt)
/// makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedText {
    marked: String,
    mark: Option<char>,
}

impl GuardedText {
    /// A text in which all spellings stand for their tokens.
    pub fn unguarded(text: impl Into<String>) -> Self {
        Self { marked: text.into(), mark: None }
    }

    /// A text whose spellings with `mark` inside are ordinary text.
    pub fn new(marked: String, mark: char) -> Self {
        debug_assert!(MARKS.contains(&mark));
        Self { marked, mark: Some(mark) }
    }

    /// The text itself.
    pub fn text(&self) -> Cow<'_, str> {
        without(&self.marked, self.mark)
    }

    /// Cuts the text itself after `len` bytes, which must be a border of characters.
    pub fn truncate(&mut self, len: usize) {
        let Some(mark) = self.mark else { return self.marked.truncate(len) };
        let mut left = len;
        for (at, c) in self.marked.char_indices().filter(|(_, c)| *c != mark) {
            if left == 0 {
                return self.marked.truncate(at);
            }
            left = left.checked_sub(c.len_utf8()).expect("a border of characters");
        }
    }
}

/// The text without its marks.
pub(super) fn without(text: &str, mark: Option<char>) -> Cow<'_, str> {
    match mark {
        Some(mark) if text.contains(mark) => Cow::Owned(text.replace(mark, "")),
        _ => Cow::Borrowed(text),
    }
}

/// Finds spellings of control tokens.
pub(super) struct Guard {
    spellings: Vec<String>, // in ascending order, all of more than one character
    finder: AhoCorasick,
    max_len: usize,
}

impl Guard {
    pub(super) fn new(vocab: &Vocab) -> Result<Self, Error> {
        let ids = (0..vocab.len() as u32).filter(|&id| vocab.kind(id).is_special());
        let texts = ids.filter_map(|id| std::str::from_utf8(vocab.piece(id)).ok());
        let mut spellings: Vec<String> =
            texts.filter(|text| text.chars().nth(1).is_some()).map(str::to_owned).collect();
        spellings.sort_unstable();
        spellings.dedup();
        let finder =
            AhoCorasick::builder().kind(Some(AhoCorasickKind::ContiguousNFA)).build(&spellings)?;
        let max_len = spellings.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { spellings, finder, max_len })
    }

    /// The control tokens that `text` spells, some perhaps in one another.
    fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (&'a str, Range<usize>)> + 'a {
        let found = self.finder.find_overlapping_iter(text);
        found.map(|found| (self.spellings[found.pattern().as_usize()].as_str(), found.range()))
    }

    /// Where a text ends, but for white space, if it ends with the beginning of a spelling: what
    /// is written after it could complete that.
    fn part_end(&self, text: &str) -> Option<usize> {
        let text = text.trim_end();
        let from = text.len().saturating_sub(self.max_len);
        let starts = (from..text.len()).filter(|&at| text.is_char_boundary(at));
        let is_part = |part: &str| {
            let at = self.spellings.partition_point(|spelling| spelling.as_str() <= part);
            self.spellings.get(at).is_some_and(|spelling| spelling.starts_with(part))
        };
        starts.map(|at| &text[at..]).any(is_part).then_some(text.len())
    }

    /// The text with a mark inside each spelling that is not `spared`, and after what may be
    /// the beginning of one.
    fn mark<'a>(&self, text: &'a str, mark: char, spared: &[&str]) -> Cow<'a, str> {
        let inside = |range: Range<usize>| {
            range.start + text[range].chars().next().map_or(0, char::len_utf8)
        };
        let found = self.find(text).filter(|(spelling, _)| !spared.contains(spelling));
        let mut places: Vec<usize> = found.map(|(_, range)| inside(range)).collect();
        places.extend(self.part_end(text));
        if places.is_empty() {
            return Cow::Borrowed(text);
        }
        places.sort_unstable();
        places.dedup();
        let mut marked = String::with_capacity(text.len() + 3 * places.len());
        let mut done = 0;
        for place in places {
            marked.push_str(&text[done..place]);
            marked.push(mark);
            done = place;
        }
        marked.push_str(&text[done..]);
        Cow::Owned(marked)
    }
}

impl Tokenizer {
    /// The token ids of a text, where with `parse_special` the spellings of control tokens are
    /// read as those tokens, but for those that are guarded.
    ///
    /// Fails as [`Self::encode`] does.
    pub fn encode_guarded(
        &self,
        text: &GuardedText,
        options: EncodeOptions,
    ) -> Result<Vec<u32>, Error> {
        match text.mark {
            Some(mark) if options.parse_special => {
                self.encode_marked(&text.marked, Some(mark), options)
            }
            _ => self.encode(&text.text(), options),
        }
    }

    /// As [`Self::min_tokens`], for [`Self::encode_guarded`].
    pub fn min_tokens_guarded(&self, text: &GuardedText) -> usize {
        match text.mark {
            None => self.min_tokens(&text.marked),
            Some(mark) => self.min_tokens_of(text.marked.split(mark)),
        }
    }

    /// Whether [`Self::mark`] changes the text.
    pub fn needs_marks(&self, text: &str) -> bool {
        self.guard.finder.is_match(text) || self.guard.part_end(text).is_some()
    }

    /// The control tokens that the text spells.
    pub fn spelled<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.guard.find(text).map(|(spelling, _)| spelling)
    }

    /// The text with marks, so that it yields no control token and completes none, whatever is
    /// written around it; `spared` lists those that it may spell.
    pub fn mark<'a>(&self, text: &'a str, mark: char, spared: &[&str]) -> Cow<'a, str> {
        self.guard.mark(text, mark, spared)
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocab::TokenKind;
    use super::*;

    fn guard(texts: &[&str]) -> Guard {
        let mut vocab = Vocab::with_capacity(texts.len() + 1);
        vocab.push(TokenKind::UserDefined, true, |out| out.extend(b"<think>")).unwrap();
        for text in texts {
            vocab.push(TokenKind::Control, true, |out| out.extend(text.bytes())).unwrap();
        }
        Guard::new(&vocab).unwrap()
    }

    #[test]
    fn spellings_and_their_beginnings_are_marked() {
        let guard = guard(&["<|a|>", "|a|>x", "<s>", "｜é｜", "\n\n"]);
        let check = |text: &str, want: &str| {
            let marked = guard.mark(text, '\u{FDD0}', &[]);
            assert_eq!(marked.replace('\u{FDD0}', "^"), want, "{text:?}");
            assert_eq!(without(&marked, Some('\u{FDD0}')), text);
            assert_eq!(matches!(marked, Cow::Borrowed(_)), text == want);
        };
        check("", "");
        check("plain <think> |a| < s> text.", "plain <think> |a| < s> text.");
        check("a<|a|>b<s>", "a<^|a|>b<^s>");
        check("<|a|>x", "<^|^a|>x");
        check("｜é｜", "｜^é｜^"); // the last character could begin another
        check("<|a", "<|a^");
        check("1 < 2 <", "1 < 2 <^");
        check("<|a| \n", "<|a|^ \n");
        check("a\n", "a\n");
        check("a\n\nb", "a\n^\nb");
        let spared = guard.mark("<s><|a|>", '\u{FDD1}', &["<s>"]);
        assert_eq!(spared, "<s><\u{FDD1}|a|>\u{FDD1}");
    }

    #[test]
    fn texts_are_cut_by_their_own_length() {
        for (marked, len, want) in [
            ("a^bc", 1, "a^"),
            ("a^bc", 2, "a^b"),
            ("é^b^", 3, "é^b^"),
            ("a^", 1, "a^"),
            ("^a", 0, "^"),
        ] {
            let mut text = GuardedText::new(marked.replace('^', "\u{FDD5}"), '\u{FDD5}');
            text.truncate(len);
            assert_eq!(text.marked.replace('\u{FDD5}', "^"), want);
            assert_eq!(text.text(), want.replace('^', ""));
        }
        let mut text = GuardedText::unguarded("abc\u{FDD0}");
        assert_eq!(text.text(), "abc\u{FDD0}");
        text.truncate(2);
        assert_eq!(text.text(), "ab");
    }
}
