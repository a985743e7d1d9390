//! The numbers of a step: what the host passes to the device each time, as one list of 32-bit numbers.
//!
//! Lists lie at places that depend on the row limits and the context alone, so that a captured step finds them
//! again; the block tables come last. A step of decode rows may be filled up with rows that see and store
//! nothing, so that one capture serves several numbers of rows.

use crate::Batch;
use realizar_kernels_cuda::{Driver, Shortlists, StateLists, TILE_ROWS};
use realizar_kvcache::PAGE_LEN;
use realizar_model::graph::plan::RowLimits;

/// What stands for no slot, no state and no sequence.
const NONE: u32 = u32::MAX;
/// Numbers of a sequence in the list of states.
pub(super) const SEQ_WORDS: usize = StateLists::<Driver>::SEQ_WORDS;
/// Numbers of a row in the list of sources.
pub(super) const SOURCE_WORDS: usize = Shortlists::<Driver>::SOURCE_WORDS;

/// Lists that only some plans have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Lists {
    /// Some layer has a recurrent state.
    pub(super) states: bool,
    /// Some layer attends as far as rows reach.
    pub(super) reaches: bool,
    /// Components of the positions that angles are made of; 0 where nothing is rotated.
    pub(super) angles: usize,
}

/// The places of a group's lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupPlaces {
    /// Where each row's key and value go.
    pub(super) slots: usize, // [n_rows]
    /// What is added to the number of a page of a sequence to find the page's word.
    pub(super) bases: usize, // [n_seqs]
}

/// The places of all lists.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// The token of each row.
    pub(super) tokens: usize, // [n_rows]
    /// Where the shortlists of the step before have the token of each row, as far as rows have outputs.
    pub(super) sources: usize, // [n_outputs, SOURCE_WORDS]
    /// The position of each row.
    pub(super) positions: usize, // [n_rows]
    /// The positions that its angles are made of, component by component.
    pub(super) angles: usize, // [n_components, max_rows]
    n_components: usize,
    /// The rows whose output is wanted.
    pub(super) outputs: usize, // [n_outputs]
    /// The index of each row's sequence.
    pub(super) seq_of_row: usize, // [n_rows]
    /// First row and number of rows of each tile of a prompt.
    pub(super) tiles: usize, // [n_tiles, 2]
    /// One past the last position that each row sees; `None` if no layer attends as far as rows reach.
    pub(super) reaches: Option<usize>, // [n_rows]
    /// Of sequences, and of the slots that states go to; `None` if no layer has a state.
    pub(super) states: Option<[usize; 2]>, // [n_seqs, 3], [n_rows]
    pub(super) groups: Vec<GroupPlaces>,
    tables: usize,
    /// Numbers of the largest step.
    pub(super) n_words: usize,
    pub(super) limits: RowLimits,
}

impl Places {
    /// Places for batches up to `limits` of sequences up to `max_seq_len`, over groups with these numbers of pages.
    pub(super) fn new(
        limits: RowLimits,
        max_seq_len: usize,
        n_pages: &[usize],
        lists: Lists,
    ) -> Self {
        let mut end = 0usize;
        let mut place = |n: usize| {
            let at = end;
            // Each list begins at 16 bytes.
            end = end.saturating_add(n.next_multiple_of(4));
            at
        };
        let n = limits.tokens;
        let (tokens, positions) = (place(n), place(n));
        let sources = place(limits.outputs.saturating_mul(SOURCE_WORDS));
        let angles = place(lists.angles.saturating_mul(n));
        let (outputs, seq_of_row, tiles) = (place(limits.outputs), place(n), place(2 * n));
        let reaches = lists.reaches.then(|| place(n));
        let states = lists.states.then(|| [place(SEQ_WORDS * n), place(n)]);
        let groups =
            n_pages.iter().map(|_| GroupPlaces { slots: place(n), bases: place(n) }).collect();
        // Each sequence of a step writes to a page that no other has.
        let of_group = |&n_pages: &usize| {
            let of_seq = max_seq_len.div_ceil(PAGE_LEN).min(n_pages);
            n.min(n_pages).saturating_mul(of_seq)
        };
        let n_words = n_pages.iter().map(of_group).fold(end, usize::saturating_add);
        Self {
            tokens,
            sources,
            positions,
            angles,
            n_components: lists.angles,
            outputs,
            seq_of_row,
            tiles,
            reaches,
            states,
            groups,
            tables: end,
            // A list of nothing has an address too.
            n_words: n_words.max(4),
            limits,
        }
    }
}

/// The numbers of rows of a step, and of what else it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Counts {
    /// Rows.
    pub(super) rows: usize,
    /// Decode rows, the first ones.
    pub(super) generated: usize,
    /// Rows whose output is wanted.
    pub(super) outputs: usize,
    /// Those of generated tokens among them, the first ones.
    pub(super) generated_outputs: usize,
    /// Sequences.
    pub(super) seqs: usize,
    /// Tiles of prompts.
    pub(super) tiles: usize,
}

impl Counts {
    /// Whether all rows are decode rows, each the only one of its sequence.
    pub(super) fn is_row_of_each(&self) -> bool {
        self.generated == self.rows && self.seqs == self.rows
    }
}

/// The list of a step.
#[derive(Debug)]
pub(super) struct Words {
    places: Places,
    words: Vec<u32>,
}

impl Words {
    pub(super) fn new(places: Places) -> Self {
        let mut words = Vec::with_capacity(places.n_words);
        words.resize(places.tables, 0);
        Self { words, places }
    }

    /// Numbers that there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.words.capacity()
    }

    /// Where the lists are.
    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// The numbers of the step that was filled in last.
    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Fills in the numbers of `batch`; a batch of decode rows alone becomes one of `n_rows` rows.
    ///
    /// # Panics
    /// If the batch is larger than the places were made for.
    pub(super) fn fill(&mut self, batch: &Batch, n_rows: usize) -> Counts {
        let n = batch.n_rows();
        assert!(n <= n_rows && n_rows <= self.places.limits.tokens, "{n} of {n_rows} rows");
        assert!(n == n_rows || batch.n_decode == n, "rows of prompts are not filled up");
        self.words.truncate(self.places.tables);
        let Places { tokens, positions, outputs, seq_of_row, .. } = self.places;
        self.list(tokens, &batch.tokens, n_rows, |_| 0);
        self.list(positions, &batch.positions, n_rows, |_| 0);
        let n_outputs = batch.outputs.len() + n_rows - n;
        self.list(outputs, &batch.outputs, n_outputs, |row| row as u32);
        self.fill_angles(batch);
        self.words[seq_of_row..][..n_rows].fill(NONE);
        for (i, seq) in batch.seqs.iter().enumerate() {
            self.words[seq_of_row + seq.first_row..][..seq.n_rows].fill(i as u32);
        }
        let tiles = self.fill_tiles(batch);
        if let Some(at) = self.places.reaches {
            self.fill_reaches(at, batch, n_rows);
        }
        if let Some(at) = self.places.states {
            self.fill_states(at, batch, n_rows);
        }
        for i in 0..batch.groups.len() {
            self.fill_tables(i, batch, n_rows);
        }
        let added = n_rows - n;
        Counts {
            rows: n_rows,
            generated: batch.n_decode + added,
            outputs: n_outputs,
            generated_outputs: batch.n_generated_outputs() + added,
            seqs: batch.seqs.len() + added,
            tiles,
        }
    }

    /// Fills in where the tokens of the first rows are found; the rows that are added have none.
    pub(super) fn fill_sources(&mut self, sources: &[[u32; SOURCE_WORDS]], n_rows: usize) {
        let words = &mut self.words[self.places.sources..][..n_rows * SOURCE_WORDS];
        let all = sources.iter().chain(std::iter::repeat(&[NONE; SOURCE_WORDS]));
        let words = words.as_chunks_mut::<SOURCE_WORDS>().0;
        words.iter_mut().zip(all).for_each(|(words, source)| *words = *source);
    }

    /// Writes a list, and what the rows that are added have in it.
    fn list(&mut self, at: usize, values: &[u32], n: usize, added: impl Fn(usize) -> u32) {
        let (own, rest) = self.words[at..at + n].split_at_mut(values.len());
        own.copy_from_slice(values);
        rest.iter_mut().zip(values.len()..).for_each(|(word, row)| *word = added(row));
    }

    /// The positions that angles are made of.
    fn fill_angles(&mut self, batch: &Batch) {
        let Places { angles, n_components, limits, .. } = self.places;
        for component in 0..n_components {
            let words = &mut self.words[angles + component * limits.tokens..];
            if batch.angles.is_empty() {
                words[..batch.n_rows()].copy_from_slice(&batch.positions);
            } else {
                let own = batch.angles.iter().map(|components| components[component]);
                words.iter_mut().zip(own).for_each(|(word, own)| *word = own);
            }
        }
    }

    /// The tiles of prompts, each with rows of one sequence.
    fn fill_tiles(&mut self, batch: &Batch) -> usize {
        let mut n_tiles = 0;
        for seq in batch.seqs.iter().filter(|seq| seq.first_row >= batch.n_decode) {
            for first in (0..seq.n_rows).step_by(TILE_ROWS) {
                let n_rows = (seq.n_rows - first).min(TILE_ROWS);
                let at = self.places.tiles + 2 * n_tiles;
                self.words[at..at + 2]
                    .copy_from_slice(&[(seq.first_row + first) as u32, n_rows as u32]);
                n_tiles += 1;
            }
        }
        n_tiles
    }

    /// How far each row sees.
    fn fill_reaches(&mut self, at: usize, batch: &Batch, n_rows: usize) {
        for seq in &batch.seqs {
            let words = &mut self.words[at + seq.first_row..][..seq.n_rows];
            match batch.reaches_of(seq) {
                Some(reaches) => words.copy_from_slice(reaches),
                None => words.iter_mut().zip(seq.first_pos as u32 + 1..).for_each(|(w, r)| *w = r),
            }
        }
        self.words[at + batch.n_rows()..at + n_rows].fill(0);
    }

    /// The states that sequences continue from, and those that are wanted after rows.
    fn fill_states(&mut self, [seqs_at, writes_at]: [usize; 2], batch: &Batch, n_rows: usize) {
        assert_eq!(batch.state_reads.len(), batch.seqs.len(), "states of sequences");
        assert_eq!(batch.state_writes.len(), batch.n_rows(), "states of rows");
        let seqs = batch.seqs.iter().zip(&batch.state_reads);
        let mut words = self.words[seqs_at..].chunks_exact_mut(SEQ_WORDS);
        for (seq, from) in seqs {
            let words = words.next().expect("room for as many sequences as rows");
            let from = from.unwrap_or(NONE);
            words.copy_from_slice(&[seq.first_row as u32, seq.n_rows as u32, from]);
        }
        for (row, words) in (batch.n_rows()..n_rows).zip(words) {
            words.copy_from_slice(&[row as u32, 0, NONE]);
        }
        let writes = batch.state_writes.iter().map(|slot| slot.unwrap_or(NONE));
        let writes = writes.chain(std::iter::repeat(NONE)).take(n_rows);
        self.words[writes_at..].iter_mut().zip(writes).for_each(|(word, slot)| *word = slot);
    }

    /// Slots and block tables of group `i`.
    fn fill_tables(&mut self, i: usize, batch: &Batch, n_rows: usize) {
        let GroupPlaces { slots, bases } = self.places.groups[i];
        let group = &batch.groups[i];
        let own = group.slots.iter().map(|(page, idx)| page * PAGE_LEN as u32 + idx);
        let all = own.chain(std::iter::repeat(NONE)).take(n_rows);
        self.words[slots..].iter_mut().zip(all).for_each(|(word, slot)| *word = slot);
        let first = self.words.len();
        let n_pages = group.pages.len();
        assert!(first + n_pages <= self.places.n_words, "block tables of {n_pages} pages");
        self.words.extend_from_slice(&group.pages);
        for (seq, table) in group.tables.iter().enumerate().take(batch.seqs.len()) {
            // Page numbers count from the sequence's start, tables from the first page that is kept.
            let base = (first + table.start) as u32;
            self.words[bases + seq] = base.wrapping_sub(table.first_page as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchGroup, BatchSeq, SeqTable};

    fn places(limits: RowLimits) -> Places {
        let lists = Lists { states: true, reaches: true, angles: 3 };
        Places::new(limits, 1024, &[40], lists)
    }

    fn batch() -> Batch {
        let mut batch = Batch::with_capacity(32, 1);
        batch.tokens = vec![5, 6];
        batch.positions = vec![5, 600];
        batch.n_decode = 2;
        batch.outputs = vec![0, 1];
        batch.seqs = vec![
            BatchSeq { first_row: 0, n_rows: 1, first_pos: 5 },
            BatchSeq { first_row: 1, n_rows: 1, first_pos: 600 },
        ];
        batch.state_reads = vec![Some(4), None];
        batch.state_writes = vec![Some(6), Some(0)];
        batch.groups[0] = BatchGroup {
            pages: vec![7, 30, 31],
            tables: vec![
                SeqTable { start: 0, len: 1, first_page: 0 },
                SeqTable { start: 1, len: 2, first_page: 17 },
            ],
            slots: vec![(7, 5), (31, 24)],
        };
        batch
    }

    #[test]
    fn rows_that_are_added_see_and_store_nothing() {
        let places = places(RowLimits { tokens: 32, outputs: 8 });
        let mut words = Words::new(places.clone());
        // What a step before has left is not seen.
        words.words.fill(77);
        let counts = words.fill(&batch(), 4);
        let wanted =
            Counts { rows: 4, generated: 4, outputs: 4, generated_outputs: 4, seqs: 4, tiles: 0 };
        assert_eq!(counts, wanted);
        let list = |at: usize, n: usize| words.words()[at..at + n].to_vec();
        assert_eq!(list(places.tokens, 4), [5, 6, 0, 0]);
        assert_eq!(list(places.positions, 4), [5, 600, 0, 0]);
        assert_eq!(list(places.outputs, 4), [0, 1, 2, 3]);
        assert_eq!(list(places.seq_of_row, 4), [0, 1, NONE, NONE]);
        assert_eq!(list(places.reaches.unwrap(), 4), [6, 601, 0, 0]);
        let [seqs, writes] = places.states.unwrap();
        assert_eq!(list(seqs, 12), [0, 1, 4, 1, 1, NONE, 2, 0, NONE, 3, 0, NONE]);
        assert_eq!(list(writes, 4), [6, 0, NONE, NONE]);
        let group = places.groups[0];
        assert_eq!(list(group.slots, 4), [7 * 32 + 5, 31 * 32 + 24, NONE, NONE]);
        let base = list(group.bases, 2);
        let page = |seq: usize, p: u32| words.words()[base[seq].wrapping_add(p) as usize];
        assert_eq!([page(0, 0), page(1, 17), page(1, 18)], [7, 30, 31]);
        assert!(words.words().len() <= places.n_words);
    }

    #[test]
    fn prompts_are_cut_into_tiles_of_one_sequence() {
        let limits = RowLimits { tokens: 2 * TILE_ROWS, outputs: 8 };
        let places = places(limits);
        let mut words = Words::new(places.clone());
        let mut batch = batch();
        let n = 2 + TILE_ROWS + 4;
        batch.tokens.resize(n, 9);
        batch.positions.extend(40..40 + n as u32 - 2);
        batch.outputs = vec![1, n as u32 - 1];
        batch.seqs.push(BatchSeq { first_row: 2, n_rows: n - 2, first_pos: 40 });
        batch.state_reads.push(Some(9));
        batch.state_writes.resize(n, None);
        batch.angles = batch.positions.iter().map(|&pos| [pos, pos + 100, pos + 200]).collect();
        batch.groups[0].pages.extend([8, 9]);
        batch.groups[0].tables.push(SeqTable { start: 3, len: 2, first_page: 0 });
        batch.groups[0].slots.resize(n, (9, 0));
        let counts = words.fill(&batch, n);
        let Counts { generated, outputs, generated_outputs, seqs, tiles, .. } = counts;
        assert_eq!((generated, outputs, generated_outputs, seqs, tiles), (2, 2, 1, 3, 2));
        let list = |at: usize, n: usize| words.words()[at..at + n].to_vec();
        let tile = TILE_ROWS as u32;
        assert_eq!(list(places.tiles, 4), [2, tile, 2 + tile, 4]);
        assert_eq!(list(places.seq_of_row, n), [&[0, 1][..], &vec![2; n - 2]].concat());
        for component in 0..3 {
            let wanted: Vec<u32> =
                batch.positions.iter().map(|pos| pos + 100 * component as u32).collect();
            assert_eq!(list(places.angles + limits.tokens * component, n), wanted);
        }
    }
}
