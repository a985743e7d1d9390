//! Draft tokens by a smaller model (Leviathan et al., 2023, "Fast Inference from Transformers via
//! Speculative Decoding").
//!
//! The draft model has a sequence of its own for each sequence of the target and continues it
//! greedily.

use super::DraftSource;
use crate::Error;
use crate::engine::sequence::{SeqKey, Sequence};
use crate::run::{Chunk, Outputs, Runner, SeqId, likeliest};
use realizar_backends::{Phase, TopKRequest};
use std::collections::HashMap;

/// A draft model and its sequences.
pub(in crate::engine) struct DraftModel {
    runner: Runner,
    /// The maximum number of draft tokens per sequence and step.
    n_drafts: usize,
    seqs: HashMap<SeqKey, DraftSequence>,
    /// The target's sequences to draft for, by index.
    ready: Vec<usize>,
    /// The token of each ready sequence after a step of the draft model.
    sampled: Vec<u32>,
}

/// The draft model's copy of a sequence.
struct DraftSequence {
    id: SeqId,
    /// Its computed tokens.
    computed: Vec<u32>,
    /// The target's tokens that are not computed yet, followed by draft tokens.
    pending: Vec<u32>,
}

impl DraftModel {
    pub(in crate::engine) fn new(runner: Runner, n_drafts: usize) -> Self {
        let (seqs, ready, sampled) = (HashMap::new(), Vec::new(), Vec::new());
        Self { runner, n_drafts, seqs, ready, sampled }
    }

    /// Proposes draft tokens for the sequences that are at their last token. There are none for a
    /// sequence that the draft model has no room for.
    pub(super) fn propose(&mut self, seqs: &mut [Sequence]) -> Result<(), Error> {
        let is_running = |key: &SeqKey| seqs.iter().any(|seq| seq.key == *key && seq.kv.is_some());
        self.seqs.retain(|key, _| is_running(key));
        let limits = self.runner.limits();
        let limit = limits.outputs.min(limits.tokens);
        self.ready.clear();
        for (i, seq) in seqs.iter_mut().enumerate() {
            seq.draft.proposed.clear();
            seq.draft.proposed_by = DraftSource::Model;
            let is_text = !seq.prompt.has_embeddings();
            if is_text && seq.at_last_token() && self.ready.len() < limit {
                seq.draft.proposed.reserve(self.n_drafts.min(limit));
                self.ready.push(i);
            }
        }
        for at in 0..self.ready.len() {
            self.sync(&seqs[self.ready[at]]);
        }
        // Prefill first; the last pending token of each sequence gives the first draft token.
        let mut n_ready = 0;
        for at in 0..self.ready.len() {
            let i = self.ready[at];
            if self.catch_up(&seqs[i].key)? {
                self.ready[n_ready] = i;
                n_ready += 1;
            }
        }
        self.ready.truncate(n_ready);
        for round in 0..self.n_drafts {
            self.ready.retain(|&i| {
                let copy = &self.seqs[&seqs[i].key];
                copy.computed.len() + copy.pending.len() <= self.runner.max_seq_len()
            });
            if self.ready.is_empty() || !self.step(seqs)? {
                break;
            }
            for (&i, &token) in self.ready.iter().zip(&self.sampled) {
                seqs[i].draft.proposed.push(token);
                if round + 1 < self.n_drafts
                    && let Some(copy) = self.seqs.get_mut(&seqs[i].key)
                {
                    copy.pending.push(token);
                }
            }
        }
        Ok(())
    }

    /// Syncs the draft model's copy with the target's sequence: drops the tokens that differ and
    /// lists those that are missing.
    fn sync(&mut self, seq: &Sequence) {
        let room = self.runner.max_seq_len();
        let copy = self.seqs.entry(seq.key).or_insert_with(|| DraftSequence {
            id: self.runner.new_sequence(),
            computed: Vec::with_capacity(room),
            pending: Vec::with_capacity(room),
        });
        let tokens = || seq.prompt.rows().ids().iter().chain(seq.generated());
        let common = copy.computed.iter().zip(tokens()).take_while(|(a, b)| a == b).count();
        let kept = self.runner.truncate(&copy.id, common.min(seq.n_tokens() - 1));
        copy.computed.truncate(kept);
        copy.pending.clear();
        copy.pending.extend(tokens().skip(kept));
    }

    /// Computes all pending tokens of a sequence but the last. Returns whether there was room.
    fn catch_up(&mut self, key: &SeqKey) -> Result<bool, Error> {
        let Some(copy) = self.seqs.get_mut(key) else { return Ok(false) };
        if copy.computed.len() + copy.pending.len() > self.runner.max_seq_len() {
            return Ok(false);
        }
        let last = copy.pending.len() - 1;
        for tokens in copy.pending[..last].chunks(self.runner.limits().tokens) {
            let (phase, outputs) = (Phase::Prefill, Outputs::None);
            match self.runner.step(&[Chunk { seq: &copy.id, rows: tokens.into(), phase, outputs }])
            {
                Ok(_) => copy.computed.extend_from_slice(tokens),
                Err(Error::Kv(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        copy.pending.drain(..last);
        Ok(true)
    }

    /// Runs the pending tokens of the ready sequences and samples a token for each. Returns false,
    /// with none, if pages run out.
    fn step(&mut self, seqs: &[Sequence]) -> Result<bool, Error> {
        let copies = &self.seqs;
        let chunks = self.ready.iter().map(|&i| {
            let DraftSequence { id, pending, .. } = &copies[&seqs[i].key];
            Chunk { seq: id, rows: pending.into(), phase: Phase::Decode, outputs: Outputs::Last }
        });
        self.sampled.clear();
        match self.runner.launch(chunks.clone()) {
            Ok(()) => {}
            Err(Error::Kv(_)) => return Ok(false),
            Err(error) => return Err(error),
        }
        let vocab_size = self.runner.vocab_size();
        if let Some(mut wants) = self.runner.wants() {
            for i in 0..self.ready.len() {
                wants.shorten((i, 0), TopKRequest::best(vocab_size), None, |_| ());
            }
        }
        let mut rows = self.runner.collect(chunks)?;
        for i in 0..self.ready.len() {
            let best = rows.shortlist(i, 0).and_then(|given| given.list.best);
            let token = match best.and_then(|best| best.first()) {
                Some(&[id, _]) => id,
                None => likeliest(rows.row(i, 0)?),
            };
            self.sampled.push(token);
        }
        for &i in &self.ready {
            if let Some(copy) = self.seqs.get_mut(&seqs[i].key) {
                copy.computed.append(&mut copy.pending);
            }
        }
        Ok(true)
    }
}
