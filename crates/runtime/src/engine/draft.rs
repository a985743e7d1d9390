//! Guesses of the next tokens by a smaller model (speculative decoding with a draft model).
//!
//! The draft model follows the text of every answer and continues it greedily by a few tokens. What
//! it guesses is run as [prompt lookup](super::lookup)'s guesses are, so the answers do not depend on
//! it (Leviathan et al., 2023, "Fast Inference from Transformers via Speculative Decoding").

use super::job::{Key, Run};
use crate::Error;
use crate::backend::Role;
use crate::runner::{Chunk, Outputs, Runner, SeqId};
use std::collections::HashMap;

/// A draft model with the texts that it follows.
pub(super) struct Draft {
    runner: Runner,
    n_guesses: usize,
    texts: HashMap<Key, Text>,
}

/// What the draft model has read of an answer's text.
struct Text {
    seq: SeqId,
    read: Vec<u32>,
    /// Tokens that it has to read in this step, guesses behind them.
    todo: Vec<u32>,
}

/// The most likely token.
fn best(row: &[f32]) -> u32 {
    let best = row
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (i, &x)| if x > best.1 { (i, x) } else { best });
    best.0 as u32
}

impl Draft {
    pub(super) fn new(runner: Runner, n_guesses: usize) -> Self {
        Self { runner, n_guesses, texts: HashMap::new() }
    }

    /// Fills the guesses of the runs that are at their last token. Where the draft model has no
    /// room for a text, there are none.
    pub(super) fn guess(&mut self, runs: &mut [Run]) -> Result<(), Error> {
        self.forget(runs);
        let limit = self.runner.limits().outputs.min(self.runner.limits().tokens);
        let mut ready = Vec::new();
        for (i, run) in runs.iter_mut().enumerate() {
            run.guesses.clear();
            if run.seq.is_some() && run.done + 1 == run.n_known() && ready.len() < limit {
                ready.push(i);
            }
        }
        for &i in &ready {
            self.follow(&runs[i]);
        }
        // First what is new of every text, in chunks; its last row gives the first guess.
        let mut guessing = Vec::new();
        for &i in &ready {
            if self.read_up(&runs[i].key)? {
                guessing.push(i);
            }
        }
        for round in 0..self.n_guesses {
            guessing.retain(|&i| {
                let text = &self.texts[&runs[i].key];
                text.read.len() + text.todo.len() <= self.runner.max_seq_len()
            });
            if guessing.is_empty() {
                break;
            }
            let keys: Vec<Key> = guessing.iter().map(|&i| runs[i].key).collect();
            let guesses = self.step(&keys)?;
            if guesses.is_empty() {
                break;
            }
            for (&i, guess) in guessing.iter().zip(guesses) {
                runs[i].guesses.push(guess);
                if round + 1 < self.n_guesses
                    && let Some(text) = self.texts.get_mut(&runs[i].key)
                {
                    text.todo.push(guess);
                }
            }
        }
        Ok(())
    }

    /// Lets go of texts whose answers are over, or wait.
    fn forget(&mut self, runs: &[Run]) {
        let gone: Vec<Key> = self
            .texts
            .keys()
            .filter(|key| !runs.iter().any(|run| run.key == **key && run.seq.is_some()))
            .copied()
            .collect();
        for key in gone {
            if let Some(text) = self.texts.remove(&key) {
                self.runner.remove(text.seq);
            }
        }
    }

    /// Sees to it that what was read of a run's text is right, and lists what is not read yet.
    fn follow(&mut self, run: &Run) {
        let runner = &mut self.runner;
        let text = self.texts.entry(run.key).or_insert_with(|| Text {
            seq: runner.new_sequence(),
            read: Vec::new(),
            todo: Vec::new(),
        });
        let known = || run.prompt.iter().chain(run.generated());
        let common = text.read.iter().zip(known()).take_while(|(a, b)| a == b).count();
        let kept = runner.truncate(&text.seq, common.min(run.n_known() - 1));
        text.read.truncate(kept);
        text.todo.clear();
        text.todo.extend(known().skip(kept));
    }

    /// Reads all but the last token that is new of a text; returns whether there was room.
    fn read_up(&mut self, key: &Key) -> Result<bool, Error> {
        let Self { runner, texts, .. } = self;
        let Some(text) = texts.get_mut(key) else { return Ok(false) };
        if text.read.len() + text.todo.len() > runner.max_seq_len() {
            return Ok(false);
        }
        let last = text.todo.len() - 1;
        for tokens in text.todo[..last].chunks(runner.limits().tokens) {
            let (role, outputs) = (Role::Prompt, Outputs::None);
            match runner.step(&[Chunk { seq: &text.seq, tokens, role, outputs }]) {
                Ok(_) => text.read.extend_from_slice(tokens),
                Err(Error::Kv(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        text.todo.drain(..last);
        Ok(true)
    }

    /// Runs what is to be read of the texts, and guesses a token for each. There are no guesses
    /// where the cache is full.
    fn step(&mut self, keys: &[Key]) -> Result<Vec<u32>, Error> {
        let Self { runner, texts, .. } = self;
        let chunks: Vec<Chunk<'_>> = keys
            .iter()
            .map(|key| {
                let Text { seq, todo, .. } = &texts[key];
                Chunk { seq, tokens: todo, role: Role::Generated, outputs: Outputs::Last }
            })
            .collect();
        let guesses = match runner.step(&chunks) {
            Ok(logits) => (0..keys.len()).map(|i| best(logits.row(i, 0))).collect(),
            Err(Error::Kv(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        for key in keys {
            if let Some(Text { read, todo, .. }) = texts.get_mut(key) {
                read.append(todo);
            }
        }
        Ok(guesses)
    }
}
