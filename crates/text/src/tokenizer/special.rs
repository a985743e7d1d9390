//! Special tokens: found in the text before anything else is tokenized, and the texts by which
//! end-of-generation tokens are known.
//!
//! Longer tokens are cut out first, over the whole text, then shorter ones in what is left. One
//! pass of an Aho-Corasick automaton first says which tokens occur at all, since a vocabulary may
//! have thousands of them.

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::Error;
use super::vocab::{TokenKind, Vocab};

/// Texts of tokens that end an answer, whatever the file says about their type.
pub(super) const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Texts of the padding and separator tokens of infilling, which end an answer too.
pub(super) const END_OF_INFILL: &[&str] = &[
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// A part of a text: still text, or a special token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

struct SpecialToken {
    id: u32,
    kind: TokenKind,
    rstrip: bool,
}

/// The special tokens of a vocabulary, longest first.
pub(super) struct SpecialTokens {
    tokens: Vec<SpecialToken>,
    finder: AhoCorasick,
}

impl SpecialTokens {
    /// Collects the control, user-defined and unknown tokens of `vocab`. The tokens for which
    /// `rstrip` holds swallow the white space after them.
    pub(super) fn new(vocab: &Vocab, rstrip: impl Fn(u32) -> bool) -> Result<Self, Error> {
        let mut tokens: Vec<SpecialToken> = (0..vocab.len() as u32)
            .filter(|&id| !vocab.piece(id).is_empty())
            .filter_map(|id| match vocab.kind(id) {
                kind @ (TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown) => {
                    Some(SpecialToken { id, kind, rstrip: rstrip(id) })
                }
                _ => None,
            })
            .collect();
        tokens.sort_by_key(|token| std::cmp::Reverse(vocab.piece(token.id).len()));
        let finder = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(tokens.iter().map(|token| vocab.piece(token.id)))?;
        Ok(Self { tokens, finder })
    }

    /// The special token with this text.
    pub(super) fn find(&self, vocab: &Vocab, text: &[u8]) -> Option<u32> {
        self.tokens.iter().map(|token| token.id).find(|&id| vocab.piece(id) == text)
    }

    /// Cuts `text` at its special tokens. User-defined tokens always count; control and unknown
    /// tokens only with `parse_special`, and are ordinary text without it.
    pub(super) fn split(&self, vocab: &Vocab, text: &str, parse_special: bool) -> Vec<Fragment> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut occurs = vec![false; self.tokens.len()];
        for found in self.finder.find_overlapping_iter(text) {
            occurs[found.pattern().as_usize()] = true;
        }
        let mut fragments = vec![Fragment::Text(0..text.len())];
        for (token, _) in self.tokens.iter().zip(occurs).filter(|(_, occurs)| *occurs) {
            if token.kind.is_special() && !parse_special {
                continue;
            }
            let needle = vocab.piece(token.id);
            let mut next = Vec::with_capacity(fragments.len() + 2);
            for fragment in fragments {
                match fragment {
                    Fragment::Text(range) => token.split(text, range, needle, &mut next),
                    Fragment::Token(_) => next.push(fragment),
                }
            }
            fragments = next;
        }
        fragments
    }
}

impl SpecialToken {
    fn split(&self, text: &str, range: Range<usize>, needle: &[u8], out: &mut Vec<Fragment>) {
        // A special token's bytes are whole characters, so its matches fall on their borders.
        let Ok(needle) = std::str::from_utf8(needle) else {
            out.push(Fragment::Text(range));
            return;
        };
        let mut start = range.start;
        while let Some(at) = text[start..range.end].find(needle) {
            if at > 0 {
                out.push(Fragment::Text(start..start + at));
            }
            out.push(Fragment::Token(self.id));
            start += at + needle.len();
            if self.rstrip {
                let rest = &text.as_bytes()[start..range.end];
                start += rest.iter().take_while(|b| matches!(b, b' ' | 9..=13)).count();
            }
        }
        if start < range.end {
            out.push(Fragment::Text(start..range.end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocab(tokens: &[(&str, TokenKind)]) -> Vocab {
        let mut vocab = Vocab::with_capacity(tokens.len());
        for (text, kind) in tokens {
            vocab.push(*kind, true, |out| out.extend(text.as_bytes())).unwrap();
        }
        vocab
    }

    #[test]
    fn longest_token_wins_and_control_needs_parse_special() {
        let vocab = vocab(&[
            ("<s>", TokenKind::Control),
            ("  ", TokenKind::UserDefined),
            ("    ", TokenKind::UserDefined),
            ("a", TokenKind::Normal),
        ]);
        let specials = SpecialTokens::new(&vocab, |id| id == 0).unwrap();
        use Fragment::{Text, Token};
        let check = |text: &str, parse_special, want: &[Fragment]| {
            assert_eq!(specials.split(&vocab, text, parse_special), want, "{text:?}");
        };
        check("", true, &[]);
        check("a<s> \n b", true, &[Text(0..1), Token(0), Text(7..8)]);
        check("a<s>b", false, &[Text(0..5)]);
        check("x      y", false, &[Text(0..1), Token(2), Token(1), Text(7..8)]);
        check("<s><s>", true, &[Token(0), Token(0)]);
    }
}
