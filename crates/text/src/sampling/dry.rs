//! DRY by p-e-w (oobabooga/text-generation-webui, pull request 5677): a penalty on tokens that
//! would continue a sequence that is in the text already, growing with its length.
//!
//! A repetition does not reach back over a sequence breaker: a text such as a line's end. It is
//! found in the bytes of the tokens, inside one of them or spelled by several.

use std::collections::HashMap;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::noncontiguous::NFA;

use super::candidates::Adjusted;
use super::{Error, SamplingParams};
use crate::tokenizer::TokenBytes;

/// The repetitions of one request.
#[derive(Debug)]
pub(super) struct Dry {
    multiplier: f64,
    base: f64,
    allowed_len: usize,
    last_n: usize,
    breakers: Option<Breakers>,
    tokens: Vec<u32>,     // the latest, at least `last_n` where there are so many
    since_breaker: usize, // tokens after the latest breaker
    repeats: Vec<usize>,  // [n], by the distance from the end
    continued: HashMap<u32, usize>, // the longest sequence that each token would continue
}

impl Dry {
    /// `None` if the parameters turn it off.
    ///
    /// Fails if there are breakers and no tokens' bytes to find them in.
    pub(super) fn new(
        params: &SamplingParams,
        bytes: Option<TokenBytes>,
    ) -> Result<Option<Self>, Error> {
        if !params.uses_dry() {
            return Ok(None);
        }
        let breakers = match bytes {
            _ if params.dry_sequence_breakers.is_empty() => None,
            None => return Err(Error::NoTokenizer),
            Some(bytes) => Some(Breakers::new(&params.dry_sequence_breakers, bytes)?),
        };
        Ok(Some(Self {
            multiplier: f64::from(params.dry_multiplier),
            base: f64::from(params.dry_base),
            allowed_len: params.dry_allowed_length,
            last_n: usize::try_from(params.dry_penalty_last_n).unwrap_or(usize::MAX),
            breakers,
            tokens: Vec::new(),
            since_breaker: 0,
            repeats: Vec::new(),
            continued: HashMap::new(),
        }))
    }

    /// Makes room for `n_tokens` more tokens.
    pub(super) fn reserve(&mut self, n_tokens: usize) {
        self.tokens.reserve(n_tokens.min(self.last_n.saturating_mul(2)));
        self.repeats.reserve(self.last_n.min(self.tokens.len() + n_tokens));
    }

    /// Adds a token of the prompt or the answer.
    pub(super) fn push(&mut self, id: u32) {
        // Old tokens go when there are as many as new ones, so that each is moved once.
        if self.tokens.len() >= self.last_n.saturating_mul(2) {
            self.tokens.drain(..self.tokens.len() - self.last_n);
        }
        self.tokens.push(id);
        let breaks = self.breakers.as_mut().is_some_and(|breakers| breakers.push(id));
        self.since_breaker = if breaks { 0 } else { self.since_breaker + 1 };
    }

    /// Subtracts `multiplier * base^(length - allowed_len)` from the logit of each token that
    /// would continue a sequence of at least `allowed_len`. A token with a breaker in it is free.
    pub(super) fn apply(&mut self, logits: &mut (impl Adjusted + ?Sized)) {
        self.find_continued();
        for (&id, &len) in &self.continued {
            let free = self.breakers.as_ref().is_some_and(|breakers| breakers.is_inside(id));
            if let Some(logit) = logits.logit(id).filter(|_| !free) {
                let growth = self.base.powf((len - self.allowed_len) as f64);
                *logit -= (self.multiplier * growth).min(f64::from(f32::MAX)) as f32;
            }
        }
    }

    /// The tokens that would continue a sequence.
    pub(super) fn continued(&mut self) -> impl Iterator<Item = u32> {
        self.find_continued();
        self.continued.keys().copied()
    }

    /// Fills `continued` with the tokens that follow, somewhere in the window, what the text
    /// ends with.
    fn find_continued(&mut self) {
        let Self { allowed_len, ref tokens, ref mut repeats, ref mut continued, .. } = *self;
        let window = &tokens[tokens.len().saturating_sub(self.last_n)..];
        let n = window.len();
        let longest = self.since_breaker.min(n);
        continued.clear();
        if n <= allowed_len || longest < allowed_len {
            return;
        }
        // The Z function of the reversed window: how many tokens before a place equal those
        // before the end. The stretch known to repeat that begins latest tells later places
        // what they can have at least.
        let back = |i: usize| window[n - 1 - i];
        repeats.clear();
        repeats.resize(n, 0);
        let (mut start, mut end) = (0, 0);
        for i in 1..n {
            let known = if i < end { repeats[i - start].min(end - i) } else { 0 };
            let mut len = known;
            while i + len < n && back(len) == back(i + len) {
                len += 1;
            }
            repeats[i] = len;
            if i + len > end {
                (start, end) = (i, i + len);
            }
            let len = len.min(longest);
            if len >= allowed_len {
                let most = continued.entry(back(i - 1)).or_insert(len);
                *most = (*most).max(len);
            }
        }
    }
}

/// Finds sequence breakers in a stream of tokens.
#[derive(Debug)]
struct Breakers {
    automaton: NFA, // over bytes
    bytes: TokenBytes,
    start: StateID,
    at: StateID, // after the tokens so far
}

impl Breakers {
    fn new(texts: &[String], bytes: TokenBytes) -> Result<Self, Error> {
        let automaton = NFA::new(texts).map_err(|e| Error::Breakers(e.to_string()))?;
        let start = automaton.start_state(Anchored::No);
        let start = start.map_err(|e| Error::Breakers(e.to_string()))?;
        Ok(Self { automaton, bytes, start, at: start })
    }

    /// Adds a token; whether a breaker ends in it.
    fn push(&mut self, id: u32) -> bool {
        let (at, found) = self.read(self.at, id);
        self.at = at;
        found
    }

    /// Whether a breaker is in the token alone.
    fn is_inside(&self, id: u32) -> bool {
        self.read(self.start, id).1
    }

    /// The state after the bytes of a token, and whether a breaker ended in them.
    fn read(&self, from: StateID, id: u32) -> (StateID, bool) {
        self.bytes.get(id).iter().fold((from, false), |(at, found), &byte| {
            let at = self.automaton.next_state(Anchored::No, at, byte);
            (at, found || self.automaton.is_match(at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: [&str; 8] = ["a", "b", "c", "d", "\n", "x:y", "User", ":\n"];

    /// The penalties of all tokens after the prompt, which is spelled by indices into `PIECES`.
    fn penalties(params: &SamplingParams, prompt: &[u32]) -> Vec<f32> {
        let bytes = TokenBytes::of(&PIECES);
        let mut dry = Dry::new(params, Some(bytes)).unwrap().unwrap();
        prompt.iter().for_each(|&id| dry.push(id));
        let mut logits = [0.0; PIECES.len()];
        dry.apply(&mut logits[..]);
        let mut twice = logits;
        dry.apply(&mut twice[..]);
        assert_eq!(twice, logits.map(|logit| 2.0 * logit), "a second call does the same");
        logits.iter().map(|logit| -logit).collect()
    }

    fn check(params: &SamplingParams, prompt: &[u32], want: &[(u32, f32)]) {
        let got = penalties(params, prompt);
        for (id, got) in got.iter().enumerate() {
            let want = want.iter().find(|(want, _)| *want as usize == id).map_or(0.0, |w| w.1);
            assert!((got - want).abs() < 1e-6, "{got} for {id} after {prompt:?}, not {want}");
        }
    }

    fn params() -> SamplingParams {
        SamplingParams { dry_multiplier: 0.5, dry_base: 2.0, ..SamplingParams::default() }
    }

    #[test]
    fn the_penalty_grows_with_the_length_of_the_repetition() {
        let p = params();
        // "a b" came before with "c" after it: length 2, as allowed, so 0.5 * 2^0.
        check(&p, &[0, 1, 2, 0, 1], &[(2, 0.5)]);
        // "a b c" came before "d": 0.5 * 2^1.
        check(&p, &[0, 1, 2, 3, 0, 1, 2], &[(3, 1.0)]);
        // One token is too short.
        check(&p, &[0, 1, 3, 0], &[]);
        check(&p, &[], &[]);
        // Both "c a b" and "a b" came before "d": the longest counts.
        check(&p, &[2, 0, 1, 3, 0, 1, 3, 2, 0, 1], &[(3, 1.0)]);
        // Repetitions may overlap: "a a a" continues "a a" and is itself continued.
        check(&p, &[0, 0, 0, 0], &[(0, 1.0)]);
        // "b c" was followed by "a" once and by "d" once, "a b c" by "d".
        check(&p, &[0, 1, 2, 3, 1, 2, 0, 1, 2], &[(3, 1.0), (0, 0.5)]);
        let allowed = SamplingParams { dry_allowed_length: 3, ..p.clone() };
        check(&allowed, &[0, 1, 2, 3, 0, 1, 2], &[(3, 0.5)]);
        check(&allowed, &[0, 1, 2, 0, 1], &[]);
        let one = SamplingParams { dry_allowed_length: 1, ..p.clone() };
        check(&one, &[0, 1, 3, 0], &[(1, 0.5)]);
        // Nothing has to match for a length of 0: every token of the window is one too many.
        let none = SamplingParams { dry_allowed_length: 0, ..p };
        check(&none, &[0, 1, 3, 0], &[(0, 0.5), (1, 1.0), (3, 0.5)]);
    }

    #[test]
    fn a_breaker_ends_the_repetition() {
        let p = params();
        let repeated = |breaker: &[u32]| [&[0, 1, 2][..], breaker, &[0, 1, 2], breaker].concat();
        // Nothing is repeated since the line's end, alone or in a token with more.
        for breaker in [4, 5, 7] {
            check(&p, &repeated(&[breaker]), &[]);
            check(&p, &[&repeated(&[breaker])[..], &[0]].concat(), &[]);
        }
        // Two tokens since then: the length is not that of the whole match.
        check(&p, &[&repeated(&[4])[..], &[0, 1]].concat(), &[(2, 0.5)]);
        // The breaker itself is never penalized.
        check(&p, &[0, 1, 4, 0, 1], &[]);
        let without = SamplingParams { dry_sequence_breakers: Vec::new(), ..p.clone() };
        check(&without, &[0, 1, 4, 0, 1], &[(4, 0.5)]);
        check(&without, &[0, 1, 2, 4, 0, 1, 2, 4], &[(0, 2.0)]);
        // "User" and ":\n" spell this one together, and "x:y" does not contain it.
        let spelled =
            SamplingParams { dry_sequence_breakers: vec!["ser:".to_owned()], ..p.clone() };
        check(&spelled, &[6, 7, 0, 1, 6, 7, 0], &[]);
        check(&spelled, &[6, 7, 0, 1, 6, 7, 0, 1], &[(6, 0.5)]);
        check(&spelled, &[6, 5, 0, 1, 6, 5, 0], &[(1, 1.0)]);
        // A token that would only complete it is no breaker by itself.
        check(&spelled, &[0, 6, 7, 0, 6], &[(7, 0.5)]);
        // A token without bytes breaks nothing, and is penalized as any other.
        let unknown = SamplingParams { dry_allowed_length: 1, ..p };
        check(&unknown, &[99, 0, 99], &[(0, 0.5)]);
    }

    #[test]
    fn the_window_bounds_what_is_compared() {
        let p = params();
        let text = [0, 1, 2, 3, 0, 1, 2];
        for (last_n, want) in [(-1, 1.0), (64, 1.0), (7, 1.0), (6, 0.5), (5, 0.0)] {
            let p = SamplingParams { dry_penalty_last_n: last_n, ..p.clone() };
            let want = [(3, want)];
            check(&p, &text, if want[0].1 == 0.0 { &[] } else { &want });
            // So many tokens before it make no difference.
            check(&p, &[&[5; 50][..], &text].concat(), if want[0].1 == 0.0 { &[] } else { &want });
        }
    }

    #[test]
    fn long_texts_match_a_plain_search() {
        let mut state = 1_u32;
        for (n_kinds, n) in [(1, 40), (2, 300), (3, 300), (8, 500)] {
            let text: Vec<u32> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16) % n_kinds
                })
                .collect();
            let p = SamplingParams {
                dry_penalty_last_n: 250,
                dry_base: 1.1,
                dry_sequence_breakers: vec!["\n".to_owned()],
                ..params()
            };
            for end in 1..=text.len() {
                let window = &text[end.saturating_sub(250)..end];
                let since = window.iter().rev().position(|&id| PIECES[id as usize].contains('\n'));
                let mut longest = HashMap::new();
                for place in 1..window.len() {
                    let ends_alike = (1..=place.min(since.unwrap_or(end)))
                        .take_while(|&len| window[place - len] == window[window.len() - len])
                        .count();
                    let most = longest.entry(window[place]).or_insert(0);
                    *most = ends_alike.max(*most);
                }
                let want: Vec<(u32, f32)> = longest
                    .into_iter()
                    .filter(|(id, len)| *len >= 2 && !PIECES[*id as usize].contains('\n'))
                    .map(|(id, len)| (id, 0.5 * 1.1_f32.powi(len as i32 - 2)))
                    .collect();
                let got = penalties(&p, &text[..end]);
                for (id, got) in got.iter().enumerate() {
                    let want = want.iter().find(|w| w.0 as usize == id).map_or(0.0, |w| w.1);
                    assert!((got - want).abs() <= 1e-4 * want, "{got} for {id}, not {want}");
                }
            }
        }
    }

    #[test]
    fn a_huge_penalty_is_finite() {
        let p = SamplingParams { dry_base: 100.0, dry_penalty_last_n: -1, ..params() };
        let mut dry = Dry::new(&p, Some(TokenBytes::of(&PIECES))).unwrap().unwrap();
        (0..500).for_each(|_| dry.push(0));
        let mut logits = [0.0; PIECES.len()];
        dry.apply(&mut logits[..]);
        assert_eq!(logits[0], f32::MIN);
    }

    #[test]
    fn breakers_need_the_bytes_of_tokens() {
        let off = SamplingParams::default();
        assert!(Dry::new(&off, None).unwrap().is_none());
        assert_eq!(Dry::new(&params(), None).err(), Some(Error::NoTokenizer));
        let without = SamplingParams { dry_sequence_breakers: Vec::new(), ..params() };
        assert!(Dry::new(&without, None).unwrap().is_some());
        let no_window = SamplingParams { dry_penalty_last_n: 0, ..params() };
        assert!(Dry::new(&no_window, None).unwrap().is_none());
    }
}
