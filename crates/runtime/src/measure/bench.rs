//! Timed runs of a model, as `llama-bench` and `llama-batched-bench` do them: prompts of random
//! tokens, and tokens generated one after the other, by one sequence or by several that share
//! their steps.
//!
//! Which token follows does not change the work, so the tokens are made up. Where a device chooses
//! tokens itself, it chooses the most likely one of every row that a generation would choose from, and
//! that is all that comes to the host; elsewhere rows of logits are computed and nothing is chosen. A device
//! that can continue with its own choices does so, one step ahead of the host, as it does for the engine.

use crate::Error;
use crate::run::{Chunk, Model, Outputs, Runner, SeqId};
use realizar_backends::{Phase, TopKRequest};
use realizar_model::architectures::ModelOutput;
use realizar_text::sampling::NextToken;
use std::ops::Range;
use std::time::{Duration, Instant};

/// What a timed run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchTest {
    /// Whether the tokens are a prompt, or are generated one by one.
    pub phase: Phase,
    /// Tokens of each sequence.
    pub n_tokens: usize,
    /// Tokens of each sequence that are processed before the clock starts.
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
    /// Runs `test` `n_warmup` times, begins to count device metrics again, and runs it `n_runs` times
    /// more. Returns how long each of the latter took, and calls `on_run` after each. The
    /// logits of a prompt's last token and of every generated token are computed.
    ///
    /// What lies before the tokens stays from one run to the next, and is not timed. Where a window
    /// has released some of it, it is recomputed, which the metrics count.
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
    match test.phase {
        Phase::Prefill => prompt(runner, seqs, depth..depth + test.n_tokens)?,
        Phase::Decode => generate(runner, seqs, depth..depth + test.n_tokens)?,
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
    runner.launch(chunks.iter().copied())?;
    want_best(runner, chunks.iter().copied());
    runner.collect(chunks.iter().copied())?;
    Ok(())
}

/// Requests the most likely token of every output of the step that was launched.
fn want_best<'c>(runner: &mut Runner, chunks: impl Iterator<Item = Chunk<'c>>) {
    let n_tokens = runner.vocab_size();
    let is_text = runner.output() == ModelOutput::Logits;
    if is_text && let Some(mut wants) = runner.wants() {
        for (i, chunk) in chunks.enumerate() {
            if chunk.outputs == Outputs::Last {
                wants.shorten((i, 0), TopKRequest::best(n_tokens), None, |_| ());
            }
        }
    }
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
            chunks.push(Chunk { seq, rows: tokens.into(), phase: Phase::Prefill, outputs });
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

/// Appends a token at each of `positions` to every sequence. Where the device finds the next tokens by itself, a step is
/// launched after the one that runs, as the engine does.
fn generate(runner: &mut Runner, seqs: &[SeqId], positions: Range<usize>) -> Result<(), Error> {
    let generated = generate_all(runner, seqs, positions);
    if generated.is_err() {
        runner.discard();
    }
    generated
}

fn generate_all(runner: &mut Runner, seqs: &[SeqId], positions: Range<usize>) -> Result<(), Error> {
    let texts: Vec<Vec<u32>> =
        (0..seqs.len()).map(|i| tokens(i, positions.clone(), runner.vocab_size())).collect();
    let mut last: Vec<u32> = vec![0; seqs.len()];
    let mut is_ahead = false;
    for i in 0..positions.len() {
        if !is_ahead {
            last.iter_mut().zip(&texts).for_each(|(last, text)| *last = text[i]);
        }
        let chunk = |(seq, token)| Chunk {
            seq,
            rows: std::slice::from_ref(token).into(),
            phase: Phase::Decode,
            outputs: Outputs::Last,
        };
        let chunks = seqs.iter().zip(&last).map(chunk);
        if !is_ahead {
            runner.launch(chunks.clone())?;
        }
        want_best(runner, chunks.clone());
        is_ahead = i + 1 < positions.len() && runner.runs_ahead() && runner.wants_only_shortlists();
        if is_ahead {
            let next = seqs.iter().enumerate().map(|(i, seq)| (i, seq, NextToken::Best));
            runner.launch_ahead(chunks.clone(), next)?;
        }
        let results = runner.collect(chunks)?;
        if is_ahead {
            for (i, last) in last.iter_mut().enumerate() {
                *last = results.fed(i, 0).expect("every row goes on");
            }
            runner.advance();
        }
    }
    Ok(())
}

#[cfg(all(test, feature = "cuda-interpreter"))]
mod tests {
    use super::*;
    use crate::LoadOptions;
    use realizar_backends::cuda::CudaBackend;
    use realizar_kernels_cuda::Interpreter;
    use std::path::Path;

    const LLAMA: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/archs/llama/model-f32.gguf");

    /// The logits after `token`.
    fn logits(runner: &mut Runner, seq: &SeqId, token: u32) -> Vec<f32> {
        let (phase, outputs) = (Phase::Decode, Outputs::Last);
        let tokens = [token];
        let chunk = Chunk { seq, rows: (&tokens).into(), phase, outputs };
        runner.step(&[chunk]).unwrap().row(0, 0).to_vec()
    }

    #[test]
    fn steps_that_are_launched_ahead_go_on_with_the_best_tokens() {
        let device = Interpreter::new(realizar_ptx::Checks::FAST, usize::MAX);
        let backend = CudaBackend::new(device).unwrap();
        let options = LoadOptions { max_seq_len: Some(96), max_seqs: 4, ..LoadOptions::default() };
        let mut model = Model::load(Path::new(LLAMA), &backend, &options).unwrap();
        let runner = model.runner();
        assert!(runner.runs_ahead());
        let n_tokens = runner.vocab_size();
        let seqs = [runner.new_sequence(), runner.new_sequence()];
        generate(runner, &seqs, 0..5).unwrap();
        for (i, seq) in seqs.iter().enumerate() {
            let plain = runner.new_sequence();
            let mut token = tokens(i, 0..5, n_tokens)[0];
            for _ in 0..5 {
                let row = logits(runner, &plain, token);
                let best = (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b]));
                token = best.unwrap() as u32;
            }
            assert_eq!(logits(runner, seq, token), logits(runner, &plain, token), "{i}");
            runner.remove(plain);
        }
        seqs.into_iter().for_each(|seq| runner.remove(seq));
    }
}
