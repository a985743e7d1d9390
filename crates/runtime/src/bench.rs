//! Timed runs of a model, as `llama-bench` does them: a prompt of random tokens,
//! and tokens generated one after the other.

use crate::Error;
use crate::backend::Role;
use crate::model::Model;
use crate::runner::{Chunk, Outputs};
use std::time::{Duration, Instant};

/// Tokens that look random and are the same in every run.
fn token(i: usize, vocab_size: usize) -> u32 {
    let hash = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    u32::try_from(hash % vocab_size as u64).unwrap_or(0)
}

impl Model {
    /// How long a prompt of `n_tokens` takes, logits of its last token included.
    ///
    /// # Errors
    /// If the prompt does not fit the context, or the device fails.
    pub fn bench_prompt(&mut self, n_tokens: usize) -> Result<Duration, Error> {
        self.bench(n_tokens, Role::Prompt)
    }

    /// How long `n_tokens` single tokens take after an empty context.
    ///
    /// # Errors
    /// If they do not fit the context, or the device fails.
    pub fn bench_generate(&mut self, n_tokens: usize) -> Result<Duration, Error> {
        self.bench(n_tokens, Role::Generated)
    }

    fn bench(&mut self, n_tokens: usize, role: Role) -> Result<Duration, Error> {
        let runner = self.runner();
        let tokens: Vec<u32> = (0..n_tokens).map(|i| token(i, runner.vocab_size())).collect();
        let chunk = if role == Role::Prompt { runner.limits().tokens } else { 1 };
        let seq = runner.new_sequence();
        let started = Instant::now();
        let mut result = Ok(());
        for (i, tokens) in tokens.chunks(chunk).enumerate() {
            let last = i * chunk + tokens.len() == n_tokens;
            let wanted = last || role == Role::Generated;
            let outputs = if wanted { Outputs::Last } else { Outputs::None };
            let step = Chunk { seq: &seq, tokens, role, outputs };
            result = runner.step(&[step]).map(|_| ());
            if result.is_err() {
                break;
            }
        }
        let elapsed = started.elapsed();
        runner.remove(seq);
        result.map(|()| elapsed)
    }
}
