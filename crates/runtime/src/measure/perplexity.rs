//! Perplexity of a text, scored as llama.cpp's `llama-perplexity` does: the
//! tokens are cut into chunks of `ctx` that do not overlap, each begins with
//! BOS where the model wants one, and the second half of each is scored.

use crate::Error;
use crate::architectures::ModelOutput;
use crate::backend::Role;
use crate::run::{Chunk, Model, Outputs};
use crate::text::sampling::logprobs::LogSoftmax;

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

/// Sums over scored tokens.
#[derive(Debug, Default)]
struct Score {
    n: usize,
    nll: f64,
    nll_squared: f64,
}

impl Score {
    fn add(&mut self, nll: f64) {
        self.n += 1;
        self.nll += nll;
        self.nll_squared += nll * nll;
    }

    /// Mean and its standard error, through the exponential.
    fn perplexity(&self, n_chunks: usize) -> Perplexity {
        let n = self.n as f64;
        let mean = self.nll / n;
        let variance = (self.nll_squared / n - mean * mean).max(0.0);
        let value = mean.exp();
        let error = if self.n > 1 { (variance / (n - 1.0)).sqrt() * value } else { 0.0 };
        Perplexity { value, error, n_tokens: self.n, n_chunks }
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
        let bos = {
            let tokenizer = self.tokenizer()?;
            if tokenizer.add_bos() { tokenizer.bos() } else { None }
        };
        let runner = self.runner();
        runner.output().require(ModelOutput::Logits)?;
        if ctx < 4 || ctx > runner.max_seq_len() {
            let max = runner.max_seq_len();
            return Err(Error::Request(format!("a chunk of {ctx} tokens is not from 4 to {max}")));
        }
        if ids.len() < 2 * ctx {
            let n = ids.len();
            let mut text = format!("{n} tokens are too few for two chunks of {ctx}");
            if n >= 8 {
                text.push_str(&format!("; a smaller ctx (at most {}) would do", n / 2));
            }
            return Err(Error::Request(text));
        }
        // The last token of a chunk is scored but never run.
        let vocab_size = runner.vocab_size();
        if let Some(id) = ids.iter().chain(&bos).find(|&&id| id as usize >= vocab_size) {
            let text = format!("token {id} is not in the vocabulary of {vocab_size}");
            return Err(Error::Request(text));
        }
        let n_chunks = ids.len() / ctx;
        let first = ctx / 2;
        let mut score = Score::default();
        let mut result = score.perplexity(0);
        let mut tokens = Vec::with_capacity(ctx);
        for i in 0..n_chunks {
            tokens.clear();
            tokens.extend_from_slice(&ids[i * ctx..][..ctx]);
            if let Some(bos) = bos {
                tokens[0] = bos;
            }
            // The row at `pos` scores the token after it; the last has none.
            self.score_chunk(&tokens, first..ctx - 1, &mut score)?;
            result = score.perplexity(i + 1);
            if result.value.is_nan() {
                return Err(Error::NotFinite { path: self.path().to_owned() });
            }
            progress(i + 1, n_chunks, &result);
        }
        Ok(result)
    }

    /// Adds the likelihood of the tokens after the positions in `scored`.
    fn score_chunk(
        &mut self,
        tokens: &[u32],
        scored: std::ops::Range<usize>,
        score: &mut Score,
    ) -> Result<(), Error> {
        let runner = self.runner();
        let limits = runner.limits();
        let seq = runner.new_sequence();
        let mut result = Ok(());
        let mut pos = 0;
        while pos < scored.end && result.is_ok() {
            // Rows without logits run in whole steps, the others in as many as
            // have room for theirs.
            let (end, outputs) = if pos < scored.start {
                (scored.start.min(pos + limits.tokens), Outputs::None)
            } else {
                (scored.end.min(pos + limits.outputs), Outputs::All)
            };
            let step = Chunk { seq: &seq, tokens: &tokens[pos..end], role: Role::Prompt, outputs };
            result = runner.step(&[step]).map(|logits| {
                if outputs == Outputs::All {
                    for (i, &next) in tokens[pos + 1..=end].iter().enumerate() {
                        let row = logits.row(0, i);
                        score.add(-f64::from(LogSoftmax::new(row).of(row[next as usize])));
                    }
                }
            });
            pos = end;
        }
        runner.remove(seq);
        result
    }
}
