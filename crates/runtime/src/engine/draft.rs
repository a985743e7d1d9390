//! Draft tokens from a smaller model (speculative decoding with a draft model).
//!
//! The draft model follows the text of every answer and continues it greedily by a few tokens. What
//! it drafts is run as [prompt lookup](super::lookup)'s draft tokens are, so the answers do not depend on
//! it (Leviathan et al., 2023, "Fast Inference from Transformers via Speculative Decoding").

use super::job::{DraftSource, Key, Run};
use crate::Error;
use crate::backend::{Few, Role};
use crate::run::{Chunk, Outputs, Runner, SeqId, likeliest};
use std::collections::HashMap;

/// A draft model with the texts that it follows.
pub(super) struct Draft {
    runner: Runner,
    n_guesses: usize,
    texts: HashMap<Key, Text>,
    /// The runs that tokens are drafted for, and the tokens of a round.
    ready: Vec<usize>,
    guesses: Vec<u32>,
}

/// What the draft model has read of an answer's text.
struct Text {
    seq: SeqId,
    read: Vec<u32>,
    /// Tokens that it has to read in this step, followed by draft tokens.
    todo: Vec<u32>,
}

impl Draft {
    pub(super) fn new(runner: Runner, n_guesses: usize) -> Self {
        let (texts, ready, guesses) = (HashMap::new(), Vec::new(), Vec::new());
        Self { runner, n_guesses, texts, ready, guesses }
    }

    /// Fills the draft tokens of the runs that are at their last token. Where the draft model has no
    /// room for a text, there are none.
    pub(super) fn guess(&mut self, runs: &mut [Run]) -> Result<(), Error> {
        // Texts whose answers are over, or wait.
        let is_run = |key: &Key| runs.iter().any(|run| run.key == *key && run.seq.is_some());
        self.texts.retain(|key, _| is_run(key));
        let limit = self.runner.limits().outputs.min(self.runner.limits().tokens);
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        for (i, run) in runs.iter_mut().enumerate() {
            run.guesses.clear();
            run.guesses_by = DraftSource::Model;
            let is_text = !run.prompt.has_embeddings();
            if is_text && run.seq.is_some() && run.done + 1 == run.n_known() && ready.len() < limit
            {
                run.guesses.reserve(self.n_guesses.min(limit));
                ready.push(i);
            }
        }
        let result = self.guess_for(&mut ready, runs);
        self.ready = ready;
        result
    }

    /// Drafts tokens for the runs that are `ready`, which become those that still get one.
    fn guess_for(&mut self, ready: &mut Vec<usize>, runs: &mut [Run]) -> Result<(), Error> {
        for &i in ready.iter() {
            self.follow(&runs[i]);
        }
        #[cfg(test)]
        super::faults::reach(super::faults::Place::Draft);
        // First what is new of every text, in chunks; its last row gives the first draft token.
        let mut n_ready = 0;
        for at in 0..ready.len() {
            if self.read_up(&runs[ready[at]].key)? {
                ready[n_ready] = ready[at];
                n_ready += 1;
            }
        }
        ready.truncate(n_ready);
        for round in 0..self.n_guesses {
            ready.retain(|&i| {
                let text = &self.texts[&runs[i].key];
                text.read.len() + text.todo.len() <= self.runner.max_seq_len()
            });
            if ready.is_empty() || !self.step(ready, runs)? {
                break;
            }
            for (&i, &guess) in ready.iter().zip(&self.guesses) {
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

    /// Sees to it that what was read of a run's text is right, and lists what is not read yet.
    fn follow(&mut self, run: &Run) {
        let runner = &mut self.runner;
        let room = runner.max_seq_len();
        let text = self.texts.entry(run.key).or_insert_with(|| Text {
            seq: runner.new_sequence(),
            read: Vec::with_capacity(room),
            todo: Vec::with_capacity(room),
        });
        let known = || run.prompt.rows().ids().iter().chain(run.generated());
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
            match runner.step(&[Chunk { seq: &text.seq, rows: tokens.into(), role, outputs }]) {
                Ok(_) => text.read.extend_from_slice(tokens),
                Err(Error::Kv(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        text.todo.drain(..last);
        Ok(true)
    }

    /// Runs what is to be read of the texts of the runs that are `ready`, and drafts a token for
    /// each. Returns false, without any, where the cache is full.
    fn step(&mut self, ready: &[usize], runs: &[Run]) -> Result<bool, Error> {
        let Self { runner, texts, guesses, .. } = self;
        let of_texts = &*texts;
        let chunk = |&i: &usize| {
            let Text { seq, todo, .. } = &of_texts[&runs[i].key];
            Chunk { seq, rows: todo.into(), role: Role::Generated, outputs: Outputs::Last }
        };
        guesses.clear();
        match runner.launch(ready.iter().map(chunk)) {
            Ok(()) => {}
            Err(Error::Kv(_)) => return Ok(false),
            Err(error) => return Err(error),
        }
        let vocab_size = runner.vocab_size();
        if let Some(mut wants) = runner.wants() {
            for i in 0..ready.len() {
                wants.shorten((i, 0), Few::best(vocab_size), None, |_| ());
            }
        }
        let mut rows = runner.collect(ready.iter().map(chunk))?;
        for i in 0..ready.len() {
            let list = rows.shortlist(i, 0).and_then(|given| given.list.best);
            let guess = match list.and_then(|best| best.first()) {
                Some(&[id, _]) => id,
                None => likeliest(rows.row(i, 0)?),
            };
            guesses.push(guess);
        }
        for i in ready {
            if let Some(Text { read, todo, .. }) = texts.get_mut(&runs[*i].key) {
                read.append(todo);
            }
        }
        Ok(true)
    }
}
