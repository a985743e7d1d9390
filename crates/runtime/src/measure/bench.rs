//! Timed runs of a model, as `llama-bench` and `llama-batched-bench` do them: prompts of random
//! tokens, and tokens generated one after the other, by one sequence or by several that share
//! their steps.
//!
//! Which token follows does not change the work, so the tokens are made up. Where a device chooses
//! tokens itself, it chooses the most likely one of every row that a generation would choose from, and
//! that is all that comes to the host; elsewhere rows of logits are computed and nothing is chosen.

use crate::Error;
use crate::architectures::ModelOutput;
use crate::backend::{Few, Role};
use crate::run::{Chunk, Model, Outputs, Runner, SeqId};
use std::ops::Range;
use std::time::{Duration, Instant};

/// What a timed run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchTest {
    /// Whether the tokens are a prompt, or are generated one by one.
    pub role: Role,
    /// Tokens of each sequence.
    pub n_tokens: usize,
    /// Tokens of each sequence that are there before the clock starts.
    pub depth: usize,
    /// Sequences that run together.
    pub batch: usize,
}

impl BenchTest {
    /// The tokens that a run is timed for, of all sequences.
    pub fn timed_tokens(&self) -> usize {
        self.n_tokens * self.batch
    }
}

impl Model {
    /// Runs `test` `n_warmup` times, begins to count device metrics anew, and runs it `n_runs` times
    /// more. Returns how long each of the latter took, and calls `on_run` after each. The
    /// logits of a prompt's last token and of every generated token are computed.
    ///
    /// What lies before the tokens stays from one run to the next, and is not timed. Where a window
    /// has let go of some of it, it is run again, which the metrics count.
    ///
    /// # Errors
    /// If the sequences do not fit the context or the key-value cache, one step does not hold a
    /// token and a row of logits of each sequence, or the device fails.
    pub fn bench(
        &mut self,
        test: &BenchTest,
        n_warmup: usize,
        n_runs: usize,
        on_run: &mut dyn FnMut(),
    ) -> Result<Vec<Duration>, Error> {
        let mut times = Vec::with_capacity(n_runs);
        let seqs: Vec<SeqId> = (0..test.batch).map(|_| self.runner().new_sequence()).collect();
        let mut result = Ok(());
        for run in 0..n_warmup + n_runs {
            if run == n_warmup {
                self.reset_metrics();
            }
            match timed(self.runner(), &seqs, test) {
                Ok(time) if run >= n_warmup => {
                    times.push(time);
                    on_run();
                }
                Ok(_) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        for seq in seqs {
            self.runner().remove(seq);
        }
        result.map(|()| times)
    }
}

/// Brings every sequence to the test's depth and times what follows.
fn timed(runner: &mut Runner, seqs: &[SeqId], test: &BenchTest) -> Result<Duration, Error> {
    let depth = test.depth;
    let kept = seqs.iter().map(|seq| runner.truncate(seq, depth)).collect::<Vec<_>>();
    for (seq, kept) in seqs.iter().zip(kept) {
        prompt(runner, std::slice::from_ref(seq), kept..depth)?;
    }
    let started = Instant::now();
    match test.role {
        Role::Prompt => prompt(runner, seqs, depth..depth + test.n_tokens)?,
        Role::Generated => generate(runner, seqs, depth..depth + test.n_tokens)?,
    }
    Ok(started.elapsed())
}

/// Tokens that look random and are the same in every run: those of sequence `seq` at `positions`.
fn tokens(seq: usize, positions: Range<usize>, vocab_size: usize) -> Vec<u32> {
    let token = |pos: usize| {
        let hash = ((seq << 32) as u64 + pos as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        u32::try_from(hash % vocab_size as u64).unwrap_or(0)
    };
    positions.map(token).collect()
}

/// Runs a step, of whose outputs the most likely tokens are wanted where the device finds them.
fn step(runner: &mut Runner, chunks: &[Chunk<'_>]) -> Result<(), Error> {
    let n_tokens = runner.vocab_size();
    let is_text = runner.output() == ModelOutput::Logits;
    runner.launch(chunks.iter().copied())?;
    if is_text && let Some(mut wants) = runner.wants() {
        for (i, chunk) in chunks.iter().enumerate() {
            if chunk.outputs == Outputs::Last {
                wants.shorten((i, 0), Few::best(n_tokens), None, |_| ());
            }
        }
    }
    runner.collect(chunks.iter().copied())?;
    Ok(())
}

/// Appends a prompt at `positions` to every sequence, in steps that are as full as they may be.
fn prompt(runner: &mut Runner, seqs: &[SeqId], positions: Range<usize>) -> Result<(), Error> {
    let prompts: Vec<Vec<u32>> =
        (0..seqs.len()).map(|i| tokens(i, positions.clone(), runner.vocab_size())).collect();
    let limit = runner.limits().tokens;
    let (mut chunks, mut n_tokens) = (Vec::new(), 0);
    for (seq, prompt) in seqs.iter().zip(&prompts) {
        let mut rest = &prompt[..];
        while !rest.is_empty() {
            let (tokens, after) = rest.split_at(rest.len().min(limit - n_tokens));
            rest = after;
            let outputs = if rest.is_empty() { Outputs::Last } else { Outputs::None };
            chunks.push(Chunk { seq, rows: tokens.into(), role: Role::Prompt, outputs });
            n_tokens += tokens.len();
            if n_tokens == limit {
                step(runner, &chunks)?;
                chunks.clear();
                n_tokens = 0;
            }
        }
    }
    if !chunks.is_empty() {
        step(runner, &chunks)?;
    }
    Ok(())
}

/// Appends a token at each of `positions` to every sequence, one step after the other.
fn generate(runner: &mut Runner, seqs: &[SeqId], positions: Range<usize>) -> Result<(), Error> {
    let texts: Vec<Vec<u32>> =
        (0..seqs.len()).map(|i| tokens(i, positions.clone(), runner.vocab_size())).collect();
    for i in 0..positions.len() {
        let chunks = seqs.iter().zip(&texts).map(|(seq, text)| Chunk {
            seq,
            rows: text[i..=i].into(),
            role: Role::Generated,
            outputs: Outputs::Last,
        });
        step(runner, &chunks.collect::<Vec<_>>())?;
    }
    Ok(())
}
