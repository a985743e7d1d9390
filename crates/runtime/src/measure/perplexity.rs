//! Perplexity of a text, scored as llama.cpp's `llama-perplexity` does: the
//! tokens are cut into chunks of `ctx` that do not overlap, each begins with
//! BOS where the model wants one, and the second half of each is scored.

use super::estimate::{Estimate, Sum};
use crate::Error;
use crate::run::require_output;
use crate::run::{Chunk, Model, OutputRows, Outputs, SeqId};
use realizar_backends::Phase;
use realizar_model::architectures::ModelOutput;
use realizar_model::graph::plan::RowLimits;
use realizar_text::sampling::logprobs::LogSoftmax;
use std::ops::Range;

/// A measured perplexity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Perplexity {
    /// exp of the mean negative log-likelihood.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
    /// Tokens that were scored.
    pub n_tokens: usize,
    /// Chunks that were run.
    pub n_chunks: usize,
}

impl Perplexity {
    /// That of `n_tokens` tokens whose negative log-likelihoods add up to `nll`.
    fn of(nll: &Sum, n_tokens: usize, n_chunks: usize) -> Self {
        let Estimate { value, error } = nll.mean(n_tokens).exp();
        Self { value, error, n_tokens, n_chunks }
    }
}

/// A text in chunks: how perplexity and KL divergence are measured.
#[derive(Debug)]
pub(crate) struct Chunks<'a> {
    ids: &'a [u32],
    len: usize,
    bos: Option<u32>,
}

impl<'a> Chunks<'a> {
    /// The tokens `ids` in chunks of `len` for `model`.
    ///
    /// # Errors
    /// If the model gives no logits, there are fewer tokens than two chunks, one is not in the
    /// vocabulary, or `len` does not fit the context.
    pub(crate) fn new(model: &mut Model, ids: &'a [u32], len: usize) -> Result<Self, Error> {
        let bos = {
            let tokenizer = model.tokenizer()?;
            if tokenizer.add_bos() { tokenizer.bos() } else { None }
        };
        let runner = model.runner();
        require_output(runner.output(), ModelOutput::Logits)?;
        if len < 4 || len > runner.max_seq_len() {
            let max = runner.max_seq_len();
            return Err(Error::Request(format!("a chunk must have 4 to {max} tokens, not {len}")));
        }
        if ids.len() < 2 * len {
            let n = ids.len();
            let mut text = format!("{n} tokens are too few for two chunks of {len}");
            if n >= 8 {
                text.push_str(&format!("; use a ctx of at most {}", n / 2));
            }
            return Err(Error::Request(text));
        }
        // The last token of a chunk is scored but never run.
        let vocab_size = runner.vocab_size();
        if let Some(id) = ids.iter().chain(&bos).find(|&&id| id as usize >= vocab_size) {
            let text = format!("token {id} is not in the vocabulary of {vocab_size}");
            return Err(Error::Request(text));
        }
        Ok(Self { ids, len, bos })
    }

    /// How many there are; at least two.
    pub(crate) fn count(&self) -> usize {
        self.ids.len() / self.len
    }

    /// The positions of a chunk whose logits are scored. The row at a position scores the token
    /// after it; the last has none.
    pub(crate) fn scored(&self) -> Range<usize> {
        self.len / 2..self.len - 1
    }

    /// The tokens of chunk `i`: `[len]`.
    pub(crate) fn tokens(&self, i: usize) -> Vec<u32> {
        let mut tokens = self.ids[i * self.len..][..self.len].to_vec();
        if let Some(bos) = self.bos {
            tokens[0] = bos;
        }
        tokens
    }

    /// The steps of a chunk within `limits`, each with its positions and whether their logits are
    /// wanted. Rows without logits run in whole steps, the others in as many as have room for
    /// theirs.
    pub(crate) fn steps(&self, limits: RowLimits) -> impl Iterator<Item = (Range<usize>, bool)> {
        let scored = self.scored();
        let mut pos = 0;
        std::iter::from_fn(move || {
            let is_scored = pos >= scored.start;
            let end = if is_scored {
                scored.end.min(pos + limits.outputs.min(limits.tokens))
            } else {
                scored.start.min(pos + limits.tokens)
            };
            let step = pos..end;
            pos = end;
            (!step.is_empty()).then_some((step, is_scored))
        })
    }
}

impl Model {
    /// The perplexity of the tokens `ids` in chunks of `ctx`. `progress` is told
    /// the chunks done, their number, and the result so far.
    ///
    /// # Errors
    /// If there are fewer tokens than two chunks, or `ctx` does not fit the context.
    pub fn perplexity(
        &mut self,
        ids: &[u32],
        ctx: usize,
        progress: &mut dyn FnMut(usize, usize, &Perplexity),
    ) -> Result<Perplexity, Error> {
        let chunks = Chunks::new(self, ids, ctx)?;
        let n_chunks = chunks.count();
        let (mut nll, mut n) = (Sum::default(), 0);
        let mut result = Perplexity::of(&nll, n, 0);
        for i in 0..n_chunks {
            n += self.score_chunk(&chunks, i, &mut nll)?;
            result = Perplexity::of(&nll, n, i + 1);
            if result.value.is_nan() {
                return Err(Error::NotFinite { path: self.path().to_owned() });
            }
            progress(i + 1, n_chunks, &result);
        }
        Ok(result)
    }

    /// Adds the negative log-likelihoods of the tokens that are scored of chunk `i`; returns how
    /// many these are.
    fn score_chunk(
        &mut self,
        chunks: &Chunks<'_>,
        i: usize,
        nll: &mut Sum,
    ) -> Result<usize, Error> {
        let tokens = chunks.tokens(i);
        let limits = self.runner().limits();
        let seq = self.runner().new_sequence();
        let mut n = 0;
        for (step, is_scored) in chunks.steps(limits) {
            let phase = is_scored.then_some(Phase::Prefill);
            let logits = self.score_rows(&seq, &tokens, step.clone(), phase)?;
            for (row, pos) in step.enumerate().filter(|_| is_scored) {
                let (row, next) = (logits.row(0, row), tokens[pos + 1]);
                nll.add(-f64::from(LogSoftmax::new(row).of(row[next as usize])));
                n += 1;
            }
        }
        Ok(n)
    }

    /// Runs a step of a chunk: rows of a phase with their logits, or of a prompt without any.
    pub(super) fn score_rows(
        &mut self,
        seq: &SeqId,
        tokens: &[u32],
        step: Range<usize>,
        scored: Option<Phase>,
    ) -> Result<OutputRows<'_>, Error> {
        self.runner().step(&[Chunk {
            seq,
            rows: tokens[step].into(),
            phase: scored.unwrap_or(Phase::Prefill),
            outputs: if scored.is_some() { Outputs::All } else { Outputs::None },
        }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_room_for_their_logits() {
        let ids: Vec<u32> = (0..40).collect();
        let chunks = Chunks { ids: &ids, len: 19, bos: Some(99) };
        assert_eq!((chunks.count(), chunks.scored()), (2, 9..18));
        let tokens = chunks.tokens(1);
        assert_eq!((tokens[0], &tokens[1..], tokens.len()), (99, &ids[20..38], 19));
        let steps =
            |tokens, outputs| chunks.steps(RowLimits { tokens, outputs }).collect::<Vec<_>>();
        assert_eq!(steps(64, 64), [(0..9, false), (9..18, true)]);
        assert_eq!(
            steps(8, 4),
            [(0..8, false), (8..9, false), (9..13, true), (13..17, true), (17..18, true)]
        );
    }
}
