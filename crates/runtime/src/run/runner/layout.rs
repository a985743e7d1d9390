//! A step as a ragged batch: what chunks may be, and where their rows lie.

use super::{LIVES, Runner};
use crate::Error;
use crate::run::chunk::{Chunk, Outputs};
use crate::run::prompt::Source;
use realizar_backends::{BatchSeq, Phase, SeqTable};
use realizar_model::graph::plan::RowLimits;
use std::ops::Range;

impl Runner {
    /// Whether the chunks are as they should be.
    pub(super) fn check<'c>(
        &mut self,
        chunks: impl Iterator<Item = Chunk<'c>>,
    ) -> Result<(), Error> {
        let (mut n_tokens, mut n_outputs) = (0, 0);
        let request = |text: &str| Err(Error::Request(text.to_owned()));
        self.n_steps += 1;
        for chunk in chunks {
            if chunk.rows.is_empty() {
                return request("a chunk has no rows");
            }
            if std::mem::replace(&mut self.last_steps[chunk.seq.idx], self.n_steps) == self.n_steps
            {
                return request("a sequence has two chunks in one step");
            }
            if let Outputs::At(idx) = chunk.outputs
                && !(idx.is_sorted_by(|a, b| a < b)
                    && idx.last().is_none_or(|&last| last < chunk.rows.len()))
            {
                return request("the output rows of a chunk must be in it and ascending");
            }
            let at = (self.seq(chunk.seq).len(), &self.offsets[chunk.seq.idx]);
            self.rules.check(chunk.rows, at)?;
            let mut bidirectional = chunk.rows.bidirectional();
            if bidirectional.any(|segment| chunk.phase == Phase::Decode || !segment.is_whole()) {
                return request("rows with bidirectional attention must be in one prefill chunk");
            }
            let len = self.seq(chunk.seq).len() + chunk.rows.len();
            if len > self.max_seq_len {
                let n = self.max_seq_len;
                let text = format!("{len} tokens do not fit the context of {n}");
                return Err(Error::Request(text));
            }
            n_tokens += chunk.rows.len();
            n_outputs += chunk.outputs.count(chunk.rows.len());
        }
        let RowLimits { tokens, outputs } = self.limits;
        if n_tokens > tokens || n_outputs > outputs {
            return Err(Error::Request(format!(
                "a step of {n_tokens} tokens and {n_outputs} output rows exceeds its limits of \
                 {tokens} and {outputs}"
            )));
        }
        Ok(())
    }

    /// Lays the chunks out as rows: generated tokens first, then prompts.
    pub(super) fn fill_batch<'c>(&mut self, chunks: &(impl Iterator<Item = Chunk<'c>> + Clone)) {
        let Self { batch, first_rows, seqs, cache, offsets, .. } = self;
        batch.clear();
        first_rows.clear();
        first_rows.extend(chunks.clone().map(|_| 0));
        let of_phase = |phase| {
            let chunks = chunks.clone().enumerate();
            chunks.filter(move |(_, chunk)| chunk.phase == phase)
        };
        for (i, chunk) in of_phase(Phase::Decode).chain(of_phase(Phase::Prefill)) {
            let seq = seqs[chunk.seq.idx].as_ref().expect(LIVES);
            let (first_row, n_rows) = (batch.tokens.len(), chunk.rows.len());
            batch.tokens.extend_from_slice(chunk.rows.ids());
            let embedded = chunk.rows.sources().filter_map(Source::embedding);
            embedded.for_each(|row| batch.embedded.extend_from_slice(row));
            // A context has at most 2^31 positions.
            batch.positions.extend((seq.len()..seq.len() + n_rows).map(|pos| pos as u32));
            let offsets = &offsets[chunk.seq.idx];
            if offsets.concern(chunk.rows) {
                let angles = batch.angles_from(first_row);
                offsets.angles(seq.len(), chunk.rows, angles);
            }
            for segment in chunk.rows.bidirectional() {
                let Range { start, end } = segment.rows;
                batch.see_each_other(first_row + start..first_row + end);
            }
            if chunk.phase == Phase::Decode {
                batch.n_decode += n_rows;
            }
            first_rows[i] = batch.outputs.len();
            let row = |idx: usize| (first_row + idx) as u32;
            match chunk.outputs {
                Outputs::None => {}
                Outputs::Last => batch.outputs.push(row(n_rows - 1)),
                Outputs::All => batch.outputs.extend((0..n_rows).map(row)),
                Outputs::At(idx) => batch.outputs.extend(idx.iter().map(|&i| row(i))),
            }
            batch.seqs.push(BatchSeq { first_row, n_rows, first_pos: seq.len() });
            if cache.has_states() {
                let states = seq.states();
                batch.state_reads.push(states.current().map(|state| state.0));
                batch.state_writes.resize(first_row + n_rows, None);
                for &(pos, state) in states.pending() {
                    batch.state_writes[first_row + pos - 1 - seq.len()] = Some(state.0);
                }
            }
            for (group, table) in batch.groups.iter_mut().zip(seq.tables()) {
                let start = group.pages.len();
                group.pages.extend(table.pages().iter().map(|page| page.0));
                let (len, first_page) = (table.pages().len(), table.first_page());
                group.tables.push(SeqTable { start, len, first_page });
                group.slots.extend((seq.len()..seq.len() + n_rows).map(|pos| {
                    let (page, idx) = table.locate(pos);
                    (page.0, idx as u32)
                }));
            }
        }
        batch.complete();
    }
}
