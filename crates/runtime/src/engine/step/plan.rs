//! A planned step: chunks of the running sequences.

use crate::engine::sequence::{Sequence, Stage};
use crate::generate::generator::Scratch;
use crate::run::{Chunk, Outputs, Runner};
use realizar_backends::Phase;

/// A sequence's part of a step. Its tokens are [`Sequence::scheduled`].
#[derive(Debug)]
pub(in crate::engine) struct PlannedChunk {
    /// The index of the running sequence.
    pub(in crate::engine) seq_idx: usize,
    /// The index of the chunk in the batch.
    pub(in crate::engine) batch_idx: usize,
    pub(in crate::engine) phase: Phase,
    pub(in crate::engine) outputs: Outputs<'static>,
}

/// A planned step.
#[derive(Debug, Default)]
pub(in crate::engine) struct StepPlan {
    pub(in crate::engine) chunks: Vec<PlannedChunk>,
}

impl StepPlan {
    /// The chunks as the runner takes them.
    pub(super) fn to_chunks<'a>(
        &'a self,
        seqs: &'a [Sequence],
    ) -> impl Iterator<Item = Chunk<'a>> + Clone {
        self.chunks.iter().map(|chunk| {
            let seq = &seqs[chunk.seq_idx];
            let rows = match chunk.phase {
                Phase::Prefill => {
                    let end = seq.n_computed + seq.scheduled.len();
                    seq.prompt.rows().slice(seq.n_computed..end)
                }
                Phase::Decode => seq.scheduled.as_slice().into(),
            };
            let kv = seq.kv.as_ref().expect("a scheduled sequence has pages");
            Chunk { seq: kv, rows, phase: chunk.phase, outputs: chunk.outputs }
        })
    }

    /// Requests sampling results for the launched step, if the device gives any. Answers that share
    /// their prompt's last row get one shortlist, and a draw each.
    pub(super) fn request_samples(
        &self,
        seqs: &mut [Sequence],
        runner: &mut Runner,
        scratch: &mut Scratch,
    ) {
        let Some(mut requests) = runner.wants() else { return };
        for chunk in &self.chunks {
            let (batch_idx, seq) = (chunk.batch_idx, &mut seqs[chunk.seq_idx]);
            match (&mut seq.stage, chunk.outputs) {
                (Stage::Answer(answer), Outputs::Last | Outputs::All) => {
                    for row in 0..=seq.n_drafts {
                        answer.request_sample(batch_idx, row, &mut requests, scratch);
                    }
                }
                (Stage::Prompt { answers, .. }, Outputs::Last) => {
                    let Some((first, others)) = answers.split_first_mut() else { continue };
                    first.request_sample(batch_idx, 0, &mut requests, scratch);
                    for answer in others {
                        answer.request_draw(batch_idx, 0, &mut requests);
                    }
                }
                _ => {}
            }
        }
    }
}
