//! The state of one answer: which tokens may follow, and what was accepted.

use std::sync::Arc;

use llguidance::Matcher;
use toktrie::SimpleVob;

use super::error::message;
use super::reasoning::{Next, Prelude, Reasoning};
use super::{Error, MAX_ANSWER_FUEL};
use crate::tokenizer::Tokenizer;

/// What one tokenizer's constraints share.
#[derive(Debug)]
pub(super) struct Tokens {
    pub(super) vocab_size: usize,
    pub(super) eos_ids: Vec<u32>,
}

/// The state of one answer: under a grammar, after reasoning that is free, or both.
///
/// A clone follows another answer from the same point on. Clones share what they learn of the
/// grammar, behind a lock that is held while a mask is computed: the first answers of a grammar
/// make the masks of later ones cheaper. They also share its limits: where one answer fails by
/// them, compile the grammar again for the next.
#[derive(Clone)]
pub struct Constraint {
    matcher: Option<Matcher>, // none: the answer is free
    prelude: Option<Prelude>,
    n_answer: usize, // tokens since the prelude was over
    fuel: u64,       // what the masks have taken, those of clones in between included
    tokens: Arc<Tokens>,
}

/// The tokens that may come next.
#[derive(Debug, Clone)]
pub struct TokenMask {
    allowed: SimpleVob, // [vocab_size] bits
    vocab_size: usize,
    is_end: bool,
}

impl Constraint {
    pub(super) fn new(matcher: Matcher, tokens: Arc<Tokens>) -> Self {
        Self { matcher: Some(matcher), prelude: None, n_answer: 0, fuel: 0, tokens }
    }

    /// The beginning of an answer that may have reasoning in front of it; what comes after must
    /// follow the grammar of `answer`, or is free. `tokenizer` is the one that it was compiled for.
    pub fn after_reasoning(
        answer: Option<Self>,
        reasoning: &Reasoning,
        tokenizer: &Tokenizer,
    ) -> Self {
        let prelude = Prelude::new(reasoning, tokenizer, answer.is_some());
        let answer = answer.unwrap_or_else(|| {
            let (vocab_size, eos_ids) = (tokenizer.vocab_size(), tokenizer.eos_ids().to_vec());
            let tokens = Arc::new(Tokens { vocab_size, eos_ids });
            Self { matcher: None, prelude: None, n_answer: 0, fuel: 0, tokens }
        });
        Self { prelude: Some(prelude), ..answer }
    }

    /// The size of the vocabulary that the grammar was compiled for.
    pub fn vocab_size(&self) -> usize {
        self.tokens.vocab_size
    }

    /// Sets the logits of all tokens that may not come next to minus infinity.
    ///
    /// # Errors
    /// If no token may come next, or the grammar exceeds its limits.
    pub fn mask(
        &mut self,
        logits: &mut [f32], /* [vocab_size or more] */
    ) -> Result<(), Error> {
        self.compute_mask()?.apply(logits)
    }

    /// The tokens that may come next. It needs no logits, so it can run while the model does.
    ///
    /// End-of-generation tokens are among them only where the grammar may end, and alone where
    /// nothing else can follow.
    ///
    /// # Errors
    /// If no token may come next, or the grammar exceeds its limits.
    pub fn compute_mask(&mut self) -> Result<TokenMask, Error> {
        let vocab_size = self.tokens.vocab_size;
        let allowed = match self.prelude.as_ref().map_or(Next::Answer, Prelude::next) {
            Next::Answer => return self.answer_mask(),
            Next::AnswerOr(ids) => {
                let mut mask = self.answer_mask()?;
                ids.into_iter().for_each(|id| mask.allowed.allow_token(id));
                mask.allowed
            }
            Next::Only(id) => {
                let mut allowed = SimpleVob::alloc(vocab_size);
                allowed.allow_token(id);
                allowed
            }
            Next::Reasoning(forbidden) => {
                let mut allowed = SimpleVob::alloc_ones(vocab_size);
                forbidden.into_iter().for_each(|id| allowed.disallow_token(id));
                if self.matcher.is_some() {
                    self.tokens.eos_ids.iter().for_each(|&id| allowed.disallow_token(id));
                }
                allowed
            }
        };
        let n_ends = self.tokens.eos_ids.iter().filter(|&&id| allowed.is_allowed(id)).count();
        Ok(TokenMask { is_end: allowed.num_set() == n_ends, allowed, vocab_size })
    }

    /// What may come next of the answer.
    fn answer_mask(&mut self) -> Result<TokenMask, Error> {
        let vocab_size = self.tokens.vocab_size;
        let ended = self.is_stopped();
        let Some(matcher) = &mut self.matcher else {
            let allowed = SimpleVob::alloc_ones(vocab_size);
            return Ok(TokenMask { allowed, vocab_size, is_end: false });
        };
        if self.fuel > MAX_ANSWER_FUEL {
            let problem = format!("its masks took more than {MAX_ANSWER_FUEL} units of fuel");
            return Err(Error::Follow(problem));
        }
        let mut allowed = matcher.compute_mask_or_eos().map_err(|error| follow(&error))?;
        self.fuel += matcher.last_step_stats().map_or(0, |stats| stats.lexer_cost);
        // A grammar may name a token that ends the answer; such a token would cut it short.
        if !ended && !self.answer_may_end()? {
            self.tokens.eos_ids.iter().for_each(|&id| allowed.disallow_token(id));
        }
        let n_ends = self.tokens.eos_ids.iter().filter(|&&id| allowed.is_allowed(id)).count();
        let is_end = allowed.num_set() == n_ends;
        // A model may have no token that ends an answer.
        if is_end && n_ends == 0 && !self.answer_may_end()? {
            return Err(Error::NoToken);
        }
        Ok(TokenMask { allowed, vocab_size, is_end })
    }

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// If the grammar does not allow it; the constraint cannot be used after that.
    pub fn accept(&mut self, id: u32) -> Result<(), Error> {
        let refused = |problem: &str| Error::Token { id, problem: problem.to_owned() };
        if self.tokens.eos_ids.contains(&id) && !self.may_end()? {
            return Err(refused("the answer is not complete"));
        }
        if let Some(prelude) = &mut self.prelude
            && !prelude.is_over()
        {
            let allowed = match (prelude.next(), &mut self.matcher) {
                (Next::Answer | Next::AnswerOr(_), Some(matcher)) => {
                    matcher.validate_tokens(&[id]).map_err(|error| follow(&error))? == 1
                }
                _ => false,
            };
            let fits = match prelude.next() {
                Next::Answer => true,
                Next::AnswerOr(ids) => allowed || ids.contains(&id),
                Next::Only(only) => only == id,
                Next::Reasoning(forbidden) => !forbidden.contains(&id),
            };
            if !fits {
                return Err(refused("it is not allowed between reasoning and answer"));
            }
            if !prelude.accept(id, allowed) {
                return Ok(());
            }
        } else {
            self.n_answer += 1;
        }
        match &mut self.matcher {
            Some(matcher) => matcher.consume_token(id).map_err(|error| refused(&message(&error))),
            None => Ok(()),
        }
    }

    /// How many of `ids`, one after another, the grammar allows from here; none is taken.
    ///
    /// # Errors
    /// If the grammar exceeds its limits.
    pub fn count_allowed(&mut self, ids: &[u32]) -> Result<usize, Error> {
        if self.prelude.as_ref().is_none_or(Prelude::is_over) {
            return match &mut self.matcher {
                Some(matcher) => matcher.validate_tokens(ids).map_err(|error| follow(&error)),
                None => Ok(ids.len()),
            };
        }
        let mut probe = self.clone();
        for (n, &id) in ids.iter().enumerate() {
            if probe.is_stopped() || !probe.compute_mask()?.allows(id) {
                return Ok(n);
            }
            probe.accept(id)?;
        }
        Ok(ids.len())
    }

    /// Takes back the last `n` tokens.
    ///
    /// # Errors
    /// If fewer were accepted, or the grammar counts tokens by `max_tokens`.
    pub fn rollback(&mut self, n: usize) -> Result<(), Error> {
        let of_answer = match &self.prelude {
            Some(_) => n.min(self.n_answer),
            None => n,
        };
        let mut of_grammar = of_answer;
        if let Some(prelude) = &mut self.prelude {
            let n_before = n - of_answer;
            let problem = || format!("only {} were taken", prelude.n_tokens() + self.n_answer);
            if n_before > prelude.n_tokens() {
                return Err(Error::Rollback { n, problem: problem() });
            }
            of_grammar += prelude.rollback(n_before).unwrap_or(0);
            self.n_answer -= of_answer;
        }
        let problem = |error| Error::Rollback { n, problem: message(&error) };
        match &mut self.matcher {
            Some(matcher) => matcher.rollback(of_grammar).map_err(problem),
            None => Ok(()),
        }
    }

    /// The bytes that must follow, whatever the tokens that spell them; often none.
    pub fn forced_bytes(&mut self) -> Vec<u8> {
        match &mut self.matcher {
            Some(matcher) if self.prelude.as_ref().is_none_or(Prelude::is_over) => {
                matcher.compute_ff_bytes()
            }
            _ => Vec::new(),
        }
    }

    /// Whether the answer may end here.
    ///
    /// # Errors
    /// If the grammar exceeds its limits.
    pub fn may_end(&mut self) -> Result<bool, Error> {
        Ok(self.prelude.as_ref().is_none_or(Prelude::may_end) && self.answer_may_end()?)
    }

    fn answer_may_end(&mut self) -> Result<bool, Error> {
        if self.is_stopped() {
            return Ok(true);
        }
        match &mut self.matcher {
            Some(matcher) => matcher.is_accepting().map_err(|error| follow(&error)),
            None => Ok(true),
        }
    }

    /// Whether the answer is complete and nothing can follow but its end.
    pub fn is_stopped(&self) -> bool {
        let begun = self.prelude.as_ref().is_none_or(Prelude::is_over);
        let matcher = self.matcher.as_ref().filter(|_| begun);
        matcher.is_some_and(|matcher| matcher.is_stopped() && !matcher.is_error())
    }
}

/// The library's error of a mask.
fn follow(error: &impl std::fmt::Display) -> Error {
    match message(error) {
        // Its word for a mask without tokens.
        problem if problem == "NoExtensionBias" => Error::NoToken,
        problem => Error::Follow(problem),
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint")
            .field("tokens", &self.tokens)
            .field("stop_reason", &self.matcher.as_ref().map(Matcher::stop_reason))
            .field("prelude", &self.prelude)
            .finish_non_exhaustive()
    }
}

impl TokenMask {
    /// Whether a token may come next; false outside the vocabulary.
    pub fn allows(&self, id: u32) -> bool {
        (id as usize) < self.vocab_size && self.allowed.is_allowed(id)
    }

    /// Whether nothing may come but the end of the answer.
    pub fn is_end(&self) -> bool {
        self.is_end
    }

    /// One bit for each token, set where it may come next, 32 to a word from the lowest on.
    pub fn words(&self) -> &[u32] {
        self.allowed.as_slice()
    }

    /// How many tokens may come next.
    pub fn count(&self) -> usize {
        self.allowed.num_set()
    }

    /// Sets the logits of all other tokens to minus infinity, and those of rows past the
    /// vocabulary.
    ///
    /// # Errors
    /// If the logits have no row for any token that may come next.
    pub fn apply(&self, logits: &mut [f32] /* [vocab_size or more] */) -> Result<(), Error> {
        let mut any = false;
        let words = self.allowed.as_slice();
        for (word, logits) in words.iter().zip(logits.chunks_mut(32)) {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                } else {
                    any = true;
                }
            }
        }
        let padding = logits.len().min(self.vocab_size);
        logits[padding..].fill(f32::NEG_INFINITY);
        if any { Ok(()) } else { Err(Error::NoToken) }
    }
}
