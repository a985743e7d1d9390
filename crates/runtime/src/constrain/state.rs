//! The state of one answer: which tokens may follow, and what was accepted.

use std::sync::Arc;

use llguidance::Matcher;
use toktrie::SimpleVob;

use super::Error;
use super::error::message;

/// What one tokenizer's constraints share.
#[derive(Debug)]
pub(super) struct Tokens {
    pub(super) vocab_size: usize,
    pub(super) eos_ids: Vec<u32>,
}

/// The state of one answer under a grammar.
///
/// A clone follows another answer from the same point on. Clones share what they learn of the
/// grammar, behind a lock that is held while a mask is computed: the first answers of a grammar
/// make the masks of later ones cheaper. They also share its limits: where one answer fails by
/// them, compile the grammar anew for the next.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
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
        Self { matcher, tokens }
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
        let ended = self.is_stopped();
        let mut allowed = self.matcher.compute_mask_or_eos().map_err(|error| follow(&error))?;
        // A grammar may name a token that ends the answer; such a token would cut it short.
        if !ended && !self.may_end()? {
            self.tokens.eos_ids.iter().for_each(|&id| allowed.disallow_token(id));
        }
        let n_ends = self.tokens.eos_ids.iter().filter(|&&id| allowed.is_allowed(id)).count();
        let is_end = allowed.num_set() == n_ends;
        // A model may have no token that ends an answer.
        if is_end && n_ends == 0 && !self.may_end()? {
            return Err(Error::NoToken);
        }
        Ok(TokenMask { allowed, vocab_size: self.tokens.vocab_size, is_end })
    }

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// If the grammar does not allow it; the constraint cannot be used after that.
    pub fn accept(&mut self, id: u32) -> Result<(), Error> {
        let refused = |problem: String| Error::Token { id, problem };
        if self.tokens.eos_ids.contains(&id) && !self.may_end()? {
            return Err(refused("the answer is not complete".to_owned()));
        }
        self.matcher.consume_token(id).map_err(|error| refused(message(&error)))
    }

    /// How many of `ids`, one after another, the grammar allows from here; none is taken.
    ///
    /// # Errors
    /// If the grammar exceeds its limits.
    pub fn count_allowed(&mut self, ids: &[u32]) -> Result<usize, Error> {
        self.matcher.validate_tokens(ids).map_err(|error| follow(&error))
    }

    /// Takes back the last `n` tokens.
    ///
    /// # Errors
    /// If fewer were accepted, or the grammar counts tokens by `max_tokens`.
    pub fn rollback(&mut self, n: usize) -> Result<(), Error> {
        let problem = |error| Error::Rollback { n, problem: message(&error) };
        self.matcher.rollback(n).map_err(problem)
    }

    /// The bytes that must follow, whatever the tokens that spell them; often none.
    pub fn forced_bytes(&mut self) -> Vec<u8> {
        self.matcher.compute_ff_bytes()
    }

    /// Whether the grammar may end here.
    ///
    /// # Errors
    /// If the grammar exceeds its limits.
    pub fn may_end(&mut self) -> Result<bool, Error> {
        if self.is_stopped() {
            return Ok(true);
        }
        self.matcher.is_accepting().map_err(|error| follow(&error))
    }

    /// Whether the answer is complete and nothing can follow but its end.
    pub fn is_stopped(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
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
            .field("stop_reason", &self.matcher.stop_reason())
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
