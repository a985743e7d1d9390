//! What one step of the engine runs on: rows of tokens from any number of
//! sequences, prompts and generated tokens together.

use std::ops::Range;

/// Stands for the token of a row that is embedded. It is in no vocabulary.
pub const EMBEDDED: u32 = u32::MAX;

/// A ragged batch. Decode rows come first, then prefill rows;
/// the rows of a sequence are neighbours.
#[derive(Debug, Default)]
pub struct Batch {
    /// The token of each row; of a row that is embedded, `u32::MAX`.
    pub tokens: Vec<u32>, // [n_rows]
    /// The rows that are embedded, in their order.
    pub embedded: Vec<f32>, // [n_embedded, dim]
    /// Its position in its sequence.
    pub positions: Vec<u32>, // [n_rows]
    /// The temporal, height and width component of the position that its angles are made of. Empty
    /// when each of them is the position in the sequence, of all rows.
    pub angles: Vec<[u32; 3]>, // [n_rows]
    /// The first rows, of this number, are generated tokens.
    pub n_decode: usize,
    /// The rows whose output is wanted, ascending.
    pub outputs: Vec<u32>,
    /// The sequences, in the order of their rows.
    pub seqs: Vec<BatchSeq>,
    /// Where the keys and values are, for each key-value group.
    pub groups: Vec<BatchGroup>,
    /// Of each row, one past the last position that it sees where a layer attends as far as rows
    /// reach; ascending within a sequence. Prefill rows may see to the end of their chunk, which
    /// therefore holds the whole of a segment whose rows see each other; decode rows see up to
    /// themselves. Empty when all rows do.
    pub reaches: Vec<u32>, // [n_rows]
    /// Of each sequence, the slot of the recurrent state that its rows continue from; none at its
    /// beginning. Empty for models without such states, as is [`Self::state_writes`].
    pub state_reads: Vec<Option<u32>>, // [n_seqs]
    /// Its rows draft: the steps of the plan's drafting part are run, on hidden states that come with it.
    pub drafts: bool,
    /// Of each row, the slot that the state after it goes to. No slot is written twice, or read
    /// and written.
    pub state_writes: Vec<Option<u32>>, // [n_rows]
}

/// The rows of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSeq {
    /// Its first row in the batch.
    pub first_row: usize,
    /// Its rows.
    pub n_rows: usize,
    /// The position of its first row.
    pub first_pos: usize,
}

/// The pages of one key-value group that a batch reads and writes.
#[derive(Debug, Default)]
pub struct BatchGroup {
    /// The block tables of all sequences, one after the other.
    pub pages: Vec<u32>,
    /// Each sequence's part of `pages`.
    pub tables: Vec<SeqTable>, // [n_seqs]
    /// The page that each row's keys and values go to, and the index in it.
    pub slots: Vec<(u32, u32)>, // [n_rows]
}

/// A sequence's block table inside [`BatchGroup::pages`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqTable {
    /// Index of its first page.
    pub start: usize,
    /// Pages.
    pub len: usize,
    /// Pages at the front of the sequence that were released.
    pub first_page: usize,
}

impl Batch {
    /// An empty batch with room for `max_rows` rows in `n_groups` groups.
    pub fn with_capacity(max_rows: usize, n_groups: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(max_rows),
            embedded: Vec::new(),
            positions: Vec::with_capacity(max_rows),
            angles: Vec::with_capacity(max_rows),
            outputs: Vec::with_capacity(max_rows),
            seqs: Vec::with_capacity(max_rows),
            groups: (0..n_groups).map(|_| BatchGroup::default()).collect(),
            reaches: Vec::with_capacity(max_rows),
            state_reads: Vec::with_capacity(max_rows),
            state_writes: Vec::with_capacity(max_rows),
            n_decode: 0,
            drafts: false,
        }
    }

    /// The rows that are embedded, each with its index and its embedding of `dim` elements.
    pub fn embedded_rows(&self, dim: usize) -> impl Iterator<Item = (usize, &[f32])> {
        let rows = (0..self.n_rows()).filter(|&row| self.tokens[row] == EMBEDDED);
        let count = if self.embedded.is_empty() { 0 } else { usize::MAX };
        rows.take(count).zip(self.embedded.chunks_exact(dim))
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.tokens.len()
    }

    /// Output rows that are generated tokens; they come first.
    pub fn n_generated_outputs(&self) -> usize {
        self.outputs.partition_point(|&row| (row as usize) < self.n_decode)
    }

    /// The reaches of a sequence's rows; none if they see up to themselves.
    ///
    /// # Panics
    /// If a reach lies before its row or after the last row of the chunk, they do not rise, or a
    /// decode row sees more than what came before it.
    pub fn reaches_of(&self, seq: &BatchSeq) -> Option<&[u32]> {
        if self.reaches.is_empty() {
            return None;
        }
        let reaches = &self.reaches[seq.first_row..seq.first_row + seq.n_rows];
        let end = (seq.first_pos + seq.n_rows) as u32;
        let mut all = (seq.first_pos as u32 + 1..).zip(reaches);
        if seq.first_row < self.n_decode {
            assert!(all.all(|(own, &reach)| reach == own), "generated rows reach {reaches:?}");
            return None;
        }
        let within = |(own, &reach): (u32, &u32)| (own..=end).contains(&reach);
        assert!(reaches.is_sorted() && all.all(within), "reaches {reaches:?} in a chunk to {end}");
        Some(reaches)
    }

    /// The rows, which are a segment of a prompt, see each other in both directions.
    pub fn see_each_other(&mut self, rows: Range<usize>) {
        self.fill_reaches();
        let end = self.positions[rows.end - 1] + 1;
        self.reaches[rows].fill(end);
    }

    /// The rows that nothing was said of see up to themselves.
    fn fill_reaches(&mut self) {
        let rest = &self.positions[self.reaches.len()..];
        self.reaches.extend(rest.iter().map(|pos| pos + 1));
    }

    /// The positions of angles, those of the first `n_rows` rows filled up, to append those of the
    /// rows that follow.
    pub fn angles_from(&mut self, n_rows: usize) -> &mut Vec<[u32; 3]> {
        let rest = &self.positions[self.angles.len()..n_rows];
        self.angles.extend(rest.iter().map(|&pos| [pos; 3]));
        &mut self.angles
    }

    /// All rows are known: fills up the lists that some rows have requested.
    pub fn complete(&mut self) {
        if !self.reaches.is_empty() {
            self.fill_reaches();
        }
        if !self.angles.is_empty() {
            self.angles_from(self.positions.len());
        }
    }

    /// Makes this a copy of another batch, in the room that it has.
    #[cfg(feature = "cuda")]
    pub(crate) fn copy_from(&mut self, other: &Self) {
        // The fields are listed so that one of them cannot be missed.
        let Self {
            tokens,
            embedded,
            positions,
            angles,
            n_decode,
            outputs,
            seqs,
            groups,
            reaches,
            state_reads,
            state_writes,
            drafts,
        } = self;
        *drafts = other.drafts;
        tokens.clone_from(&other.tokens);
        embedded.clone_from(&other.embedded);
        positions.clone_from(&other.positions);
        angles.clone_from(&other.angles);
        *n_decode = other.n_decode;
        outputs.clone_from(&other.outputs);
        seqs.clone_from(&other.seqs);
        groups.resize_with(other.groups.len(), BatchGroup::default);
        for (group, BatchGroup { pages, tables, slots }) in groups.iter_mut().zip(&other.groups) {
            group.pages.clone_from(pages);
            group.tables.clone_from(tables);
            group.slots.clone_from(slots);
        }
        reaches.clone_from(&other.reaches);
        state_reads.clone_from(&other.state_reads);
        state_writes.clone_from(&other.state_writes);
    }

    /// Empties the batch and keeps its room.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.embedded.clear();
        self.positions.clear();
        self.angles.clear();
        self.outputs.clear();
        self.seqs.clear();
        self.n_decode = 0;
        self.drafts = false;
        self.reaches.clear();
        self.state_reads.clear();
        self.state_writes.clear();
        for group in &mut self.groups {
            group.pages.clear();
            group.tables.clear();
            group.slots.clear();
        }
    }
}
