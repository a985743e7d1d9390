//! Steps that draft: the part of a model that predicts further tokens is run after the rows of its sequences, which
//! stay as they are.

use super::{LIVES, Runner, shrink_seqs};
use crate::Error;
use crate::run::chunk::OutputRows;
use crate::run::seq_id::SeqId;
use realizar_backends::{BatchSeq, SeqTable};
use realizar_formats::FileWatch;

impl Runner {
    /// The same runner of a model with a part that drafts, from hidden states of this many columns.
    pub(crate) fn with_draft_head(mut self, hidden_dim: Option<usize>) -> Self {
        self.hidden_dim = hidden_dim;
        self
    }

    /// Columns of the hidden states that drafting continues from; `None` if the model does not draft.
    pub fn hidden_dim(&self) -> Option<usize> {
        self.hidden_dim
    }

    /// After a step that has succeeded, the hidden state of row `i` of the chunk's wanted rows, and after one that
    /// drafts that of the sequence's row: `[hidden_dim]`. `None` if the model does not draft.
    pub(crate) fn hidden(&self, chunk: usize, i: usize) -> Option<&[f32]> {
        self.hidden_row(self.hidden_dim?, (chunk, i))
    }

    /// After a step of a model of text that has succeeded, row `i` of the chunk's wanted rows as it is in an embedding:
    /// `[embedding_dim]`. `None` if the model computes none beside its text.
    pub(crate) fn embedding_row(&self, chunk: usize, i: usize) -> Option<&[f32]> {
        self.hidden_row(self.embedding_dim?, (chunk, i))
    }

    fn hidden_row(&self, dim: usize, (chunk, i): (usize, usize)) -> Option<&[f32]> {
        let row = self.first_rows.get(chunk)? + i;
        self.executable.hidden().get(row * dim..(row + 1) * dim)
    }

    /// Allocates the pages for this many rows after each of the sequences, which [`Self::end_draft`] releases.
    ///
    /// # Errors
    /// If pages run out, or the device fails. Nothing is left of it then.
    pub(crate) fn begin_draft<'s>(
        &mut self,
        seqs: impl Iterator<Item = (&'s SeqId, usize)> + Clone,
    ) -> Result<(), Error> {
        self.discard();
        self.free_ended();
        let Self { seqs: pages, cache, copies, executable, .. } = self;
        copies.clear();
        let (mut n_grown, mut grown) = (0, Ok(()));
        for (id, n) in seqs.clone() {
            let seq = pages[id.idx].as_mut().expect(LIVES);
            n_grown += 1;
            // What drafts has no recurrent state.
            grown = cache.grow(seq, seq.len() + n, 0, copies).map_err(Error::from);
            if grown.is_err() {
                break;
            }
        }
        if grown.is_ok() && !copies.is_empty() {
            grown = executable.copy_pages(copies).map_err(Error::from);
        }
        match grown {
            Ok(()) => cache.copied(copies),
            Err(_) => shrink_seqs(pages, cache, seqs.map(|(id, _)| id).take(n_grown), copies),
        }
        grown
    }

    /// Runs a step that drafts: of each sequence one row, `depth` rows after its last, with a token and the
    /// hidden states of the rows before, `[n_seqs, hidden_dim]`. The first row of a sequence has depth 0; each needs
    /// those before it. Returns the logits of the tokens that follow, row 0 of each sequence.
    ///
    /// # Errors
    /// If the device fails, or a file that it reads from was truncated.
    ///
    /// # Panics
    /// If there is no room for the row, see [`Self::begin_draft`], or there are more sequences than a step has
    /// output rows.
    pub(crate) fn draft<'s>(
        &mut self,
        rows: impl Iterator<Item = (&'s SeqId, u32)>,
        depth: usize,
        hidden: &[f32],
    ) -> Result<OutputRows<'_>, Error> {
        let Self { batch, first_rows, seqs, files, executable, .. } = self;
        batch.clear();
        first_rows.clear();
        batch.drafts = true;
        for (i, (id, token)) in rows.enumerate() {
            let seq = seqs[id.idx].as_ref().expect(LIVES);
            let pos = seq.len() + depth;
            batch.tokens.push(token);
            // A context has at most 2^31 positions.
            batch.positions.push(pos as u32);
            batch.outputs.push(i as u32);
            batch.seqs.push(BatchSeq { first_row: i, n_rows: 1, first_pos: pos });
            first_rows.push(i);
            for (group, table) in batch.groups.iter_mut().zip(seq.tables()) {
                let start = group.pages.len();
                group.pages.extend(table.pages().iter().map(|page| page.0));
                let (len, first_page) = (table.pages().len(), table.first_page());
                group.tables.push(SeqTable { start, len, first_page });
                let (page, idx) = table.locate(pos);
                group.slots.push((page.0, idx as u32));
            }
        }
        batch.n_decode = batch.tokens.len();
        assert!(batch.n_rows() <= self.limits.outputs, "rows of a step that drafts");
        if self.cache.has_states() {
            batch.state_reads.resize(batch.seqs.len(), None);
            batch.state_writes.resize(batch.tokens.len(), None);
        }
        let values = executable.run(batch, hidden)?;
        files.iter().try_for_each(FileWatch::check)?;
        Ok(OutputRows { values, width: self.output_width, first_rows })
    }

    /// Releases the pages that drafting took for these sequences.
    pub(crate) fn end_draft<'s>(&mut self, seqs: impl Iterator<Item = &'s SeqId>) {
        shrink_seqs(&mut self.seqs, &mut self.cache, seqs, &[]);
    }
}
