//! The words of a step: what the host passes to the device each time, as one list of
//! 32-bit numbers.
//!
//! The list begins with ranges of rows, at fixed places; then come lists at
//! places that depend on the row limits and the context, one after the other; at
//! the end, of varying length, the block tables. Kernels are bound to the places
//! once. Every list has room for the largest step that there can be. What they
//! describe may still be too much for the scratch memory of attention, so generated
//! rows are attended to in waves.

use crate::{Batch, BatchGroup};
use realizar_kernels_wgpu::{RowsAt, SPLIT, Splits, StateLists, TILE_ROWS};
use realizar_kvcache::PAGE_LEN;
use realizar_model::graph::RowDomain;
use realizar_model::graph::plan::RowLimits;

/// Which rows of a domain a kernel works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// All.
    All,
    /// Generated tokens.
    Generated,
    /// Prefill rows.
    Prompt,
}

/// Words of the ranges: first row and number, for each domain and each choice, and the same of
/// sequences.
const RANGES: usize = 14;

/// The place of the range of sequences.
pub(super) const SEQS: RowsAt = RowsAt(12);

/// The place of a range.
pub(super) fn rows_at(domain: RowDomain, rows: Rows) -> RowsAt {
    let domain = match domain {
        RowDomain::Tokens => 0,
        RowDomain::Outputs => 6,
    };
    let rows = match rows {
        Rows::All => 0,
        Rows::Generated => 2,
        Rows::Prompt => 4,
    };
    RowsAt(domain + rows)
}

/// The numbers of rows and sequences of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowCounts([u32; RANGES]);

impl RowCounts {
    pub(super) fn of(batch: &Batch) -> Self {
        let ranges = |n: usize, generated: usize| {
            let (n, generated) = (n as u32, generated as u32);
            [0, n, 0, generated, generated, n - generated]
        };
        let mut all = [0; RANGES];
        all[..6].copy_from_slice(&ranges(batch.n_rows(), batch.n_decode));
        all[6..12].copy_from_slice(&ranges(batch.outputs.len(), batch.n_generated_outputs()));
        all[12..].copy_from_slice(&[0, batch.seqs.len() as u32]);
        Self(all)
    }

    /// How many rows, or sequences, the range at `at` has.
    pub(super) fn n(&self, at: RowsAt) -> u32 {
        self.0[at.0 as usize + 1]
    }
}

/// What a group of layers needs to know of its cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupShape {
    /// Positions that a query sees, itself included.
    pub(super) window: Option<usize>,
    /// Whether windows lie side by side.
    pub(super) chunked: bool,
    /// Pages of the pool.
    pub(super) n_pages: usize,
}

impl GroupShape {
    /// The maximum number of work items of a decode row.
    fn items_of_row(&self, max_seq_len: usize) -> usize {
        let split = SPLIT as usize;
        match self.window {
            // A window need not begin with a split.
            Some(window) if window < max_seq_len => window.div_ceil(split) + 1,
            _ => max_seq_len.div_ceil(split),
        }
    }

    /// The maximum number of pages of all block tables of a step.
    fn table_pages(&self, max_seq_len: usize, max_rows: usize) -> usize {
        // Each sequence of a step writes to a page that no other has.
        let n_seqs = max_rows.min(self.n_pages);
        n_seqs.saturating_mul(max_seq_len.div_ceil(PAGE_LEN).min(self.n_pages))
    }
}

/// The places of a group's lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupPlaces {
    /// Where each row's key and value go.
    pub(super) slots_at: u32, // [n_rows]
    /// What is added to an absolute page number to find the page's word.
    pub(super) bases_at: u32, // [n_seqs]
    /// The work items of decode rows, and their waves.
    pub(super) splits: Splits,
    window: Option<usize>,
    chunked: bool,
    /// The maximum number of work items of a wave.
    pub(super) wave_items: usize,
}

/// The places of the lists that say what becomes of recurrent states.
#[derive(Debug, Clone, Copy)]
pub(super) struct StatePlaces {
    /// First row, number of rows, and the slot that they continue from.
    pub(super) seqs_at: u32, // [n_seqs, 3]
    /// The slot that the state after each row goes to.
    pub(super) writes_at: u32, // [n_rows]
}

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

/// The places of all lists.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// The token of each row.
    pub(super) tokens_at: u32, // [n_rows]
    /// Its position.
    pub(super) positions_at: u32, // [n_rows]
    /// The positions that its angles are made of, component by component.
    pub(super) angles_at: u32, // [n_components, max_rows]
    n_components: usize,
    /// The rows whose logits are wanted.
    pub(super) outputs_at: u32, // [n_outputs]
    /// The index of each row's sequence.
    pub(super) seq_of_row_at: u32, // [n_rows]
    /// First row and number of rows of each tile of a prompt.
    pub(super) tiles_at: u32, // [n_tiles, 2]
    /// One past the last position that each row sees; `None` if no layer attends as
    /// far as rows reach.
    pub(super) reaches_at: Option<u32>, // [n_rows]
    /// None where no layer has a state.
    pub(super) states: Option<StatePlaces>,
    pub(super) groups: Vec<GroupPlaces>,
    tables_at: usize,
    /// Words of the largest step.
    pub(super) n_words: usize,
    pub(super) max_rows: usize,
}

impl Places {
    /// Places for batches up to `limits` of sequences up to `max_seq_len` over these
    /// groups. A wave of decode rows has up to `wave_items` work items, or as many
    /// as a single row may have where that is more.
    pub(super) fn new(
        limits: RowLimits,
        max_seq_len: usize,
        groups: &[GroupShape],
        wave_items: usize,
        lists: Lists,
    ) -> Self {
        let mut end = RANGES;
        let mut place = |n: usize| {
            let at = end as u32;
            end = end.saturating_add(n);
            at
        };
        let n = limits.tokens;
        let (tokens_at, positions_at) = (place(n), place(n));
        let angles_at = place(lists.angles.saturating_mul(n));
        let (outputs_at, seq_of_row_at) = (place(limits.outputs), place(n));
        let tiles_at = place(2 * n);
        let reaches_at = lists.reaches.then(|| place(n));
        let states = lists.states.then(|| StatePlaces {
            seqs_at: place(n.saturating_mul(StateLists::SEQ_WORDS as usize)),
            writes_at: place(n),
        });
        let places = |group: &GroupShape| {
            let of_row = group.items_of_row(max_seq_len);
            let max_items = of_row.saturating_mul(n);
            GroupPlaces {
                slots_at: place(n),
                bases_at: place(n),
                splits: Splits {
                    items_at: place(max_items.saturating_mul(2)),
                    first_item_at: place(n),
                    waves_at: place(Splits::WAVE_WORDS as usize + n),
                },
                window: group.window,
                chunked: group.chunked,
                wave_items: wave_items.max(of_row).min(max_items),
            }
        };
        let places: Vec<GroupPlaces> = groups.iter().map(places).collect();
        let tables = groups.iter().map(|group| group.table_pages(max_seq_len, n));
        Self {
            tokens_at,
            positions_at,
            angles_at,
            n_components: lists.angles,
            outputs_at,
            seq_of_row_at,
            tiles_at,
            reaches_at,
            states,
            groups: places,
            tables_at: end,
            n_words: tables.fold(end, usize::saturating_add),
            max_rows: n,
        }
    }
}

/// Decode rows that are attended to together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wave {
    /// Their work items.
    pub(super) n_items: u32,
    pub(super) n_rows: u32,
}

/// The work of attention in a group's layers.
#[derive(Debug, Default)]
struct Work {
    waves: Vec<Wave>,
    /// Positions that all rows see, added up.
    n_seen: u64,
}

/// The list of a step.
#[derive(Debug)]
pub(super) struct Words {
    places: Places,
    words: Vec<u32>,
    n_tiles: u32,
    work: Vec<Work>, // [n_groups]
}

impl Words {
    pub(super) fn new(places: Places) -> Self {
        let mut words = Vec::with_capacity(places.n_words);
        words.resize(places.tables_at, 0);
        let work = |_: &_| Work { waves: Vec::with_capacity(places.max_rows), n_seen: 0 };
        Self { words, n_tiles: 0, work: places.groups.iter().map(work).collect(), places }
    }

    /// Words that there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.words.capacity()
    }

    /// The words of the step that was filled in last.
    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Tiles of prompt rows in that step.
    pub(super) fn n_tiles(&self) -> u32 {
        self.n_tiles
    }

    /// The waves of decode rows in that step, in a group.
    pub(super) fn waves(&self, group: usize) -> &[Wave] {
        &self.work[group].waves
    }

    /// Positions that the rows of that step see in a group, added up.
    pub(super) fn n_seen(&self, group: usize) -> u64 {
        self.work[group].n_seen
    }

    /// Fills in the words of `batch`.
    ///
    /// # Panics
    /// If the batch is larger than the places were made for.
    pub(super) fn fill(&mut self, batch: &Batch) {
        assert!(batch.n_rows() <= self.places.max_rows, "{} rows", batch.n_rows());
        self.words.truncate(self.places.tables_at);
        let counts = RowCounts::of(batch);
        self.words[..RANGES].copy_from_slice(&counts.0);
        for (at, list) in [
            (self.places.tokens_at, &batch.tokens),
            (self.places.positions_at, &batch.positions),
            (self.places.outputs_at, &batch.outputs),
        ] {
            self.words[at as usize..][..list.len()].copy_from_slice(list);
        }
        self.fill_angles(batch);
        let mut n_tiles = 0;
        for (i, seq) in batch.seqs.iter().enumerate() {
            let rows = self.places.seq_of_row_at as usize + seq.first_row;
            self.words[rows..rows + seq.n_rows].fill(i as u32);
            if seq.first_row < batch.n_decode {
                continue;
            }
            for first in (0..seq.n_rows).step_by(TILE_ROWS as usize) {
                let n_rows = (seq.n_rows - first).min(TILE_ROWS as usize);
                let tile = [(seq.first_row + first) as u32, n_rows as u32];
                let at = self.places.tiles_at as usize + 2 * n_tiles;
                self.words[at..at + 2].copy_from_slice(&tile);
                n_tiles += 1;
            }
        }
        self.n_tiles = n_tiles as u32;
        if let Some(at) = self.places.reaches_at {
            self.fill_reaches(at as usize, batch);
        }
        if let Some(places) = self.places.states {
            self.fill_states(places, batch);
        }
        for (i, group) in batch.groups.iter().enumerate() {
            self.fill_tables(i, batch, group);
            self.fill_work(i, batch);
        }
    }

    /// The positions that angles are made of.
    fn fill_angles(&mut self, batch: &Batch) {
        let Places { angles_at, n_components, max_rows, .. } = self.places;
        for component in 0..n_components {
            let words = &mut self.words[angles_at as usize + component * max_rows..];
            if batch.angles.is_empty() {
                words[..batch.n_rows()].copy_from_slice(&batch.positions);
            } else {
                let own = batch.angles.iter().map(|components| components[component]);
                words.iter_mut().zip(own).for_each(|(word, own)| *word = own);
            }
        }
    }

    /// How far each row sees.
    fn fill_reaches(&mut self, at: usize, batch: &Batch) {
        for seq in &batch.seqs {
            let words = &mut self.words[at + seq.first_row..][..seq.n_rows];
            match batch.reaches_of(seq) {
                Some(reaches) => words.copy_from_slice(reaches),
                None => words.iter_mut().zip(seq.first_pos as u32 + 1..).for_each(|(w, r)| *w = r),
            }
        }
    }

    /// The states that sequences continue from, and those that are wanted after rows.
    fn fill_states(&mut self, StatePlaces { seqs_at, writes_at }: StatePlaces, batch: &Batch) {
        assert_eq!(batch.state_reads.len(), batch.seqs.len(), "states of sequences");
        assert_eq!(batch.state_writes.len(), batch.n_rows(), "states of rows");
        let seqs = batch.seqs.iter().zip(&batch.state_reads);
        let words = self.words[seqs_at as usize..].chunks_exact_mut(StateLists::SEQ_WORDS as usize);
        for (words, (seq, from)) in words.zip(seqs) {
            let from = from.unwrap_or(StateLists::NONE);
            words.copy_from_slice(&[seq.first_row as u32, seq.n_rows as u32, from]);
        }
        let writes = batch.state_writes.iter().map(|slot| slot.unwrap_or(StateLists::NONE));
        self.words[writes_at as usize..]
            .iter_mut()
            .zip(writes)
            .for_each(|(word, slot)| *word = slot);
    }

    /// Slots and block tables of group `i`.
    fn fill_tables(&mut self, i: usize, batch: &Batch, group: &BatchGroup) {
        let places = self.places.groups[i];
        for (word, (page, idx)) in
            self.words[places.slots_at as usize..].iter_mut().zip(&group.slots)
        {
            *word = page * PAGE_LEN as u32 + idx;
        }
        let first = self.words.len();
        let n_pages = group.pages.len();
        assert!(first + n_pages <= self.places.n_words, "block tables of {n_pages} pages");
        self.words.extend_from_slice(&group.pages);
        for (seq, table) in group.tables.iter().enumerate().take(batch.seqs.len()) {
            let base = (first + table.start) as u32;
            // Page numbers count from the sequence's start, tables from the first
            // page that is kept.
            let base = base.wrapping_sub(table.first_page as u32);
            self.words[places.bases_at as usize + seq] = base;
        }
    }

    /// Work items and waves of the decode rows for group `i`.
    fn fill_work(&mut self, i: usize, batch: &Batch) {
        let GroupPlaces { splits, window, chunked, wave_items, .. } = self.places.groups[i];
        let Work { waves, n_seen } = &mut self.work[i];
        let first_seen = |pos: u32| match window {
            None => 0,
            Some(window) if chunked => pos as usize / window * window,
            Some(window) => (pos as usize + 1).saturating_sub(window),
        };
        let seen = |&pos: &u32| u64::from(pos) + 1 - first_seen(pos) as u64;
        *n_seen = batch.positions.iter().map(seen).sum();
        waves.clear();
        let (items_at, first_item_at) = (splits.items_at as usize, splits.first_item_at as usize);
        let waves_at = splits.waves_at as usize;
        let mut n_items = 0;
        for (row, &pos) in batch.positions[..batch.n_decode].iter().enumerate() {
            self.words[first_item_at + row] = n_items as u32;
            let of_row = first_seen(pos) as u32 / SPLIT..=pos / SPLIT;
            let n_of_row = of_row.clone().count() as u32;
            match waves.last_mut() {
                Some(wave) if (wave.n_items + n_of_row) as usize <= wave_items => {
                    wave.n_items += n_of_row;
                    wave.n_rows += 1;
                }
                _ => {
                    let at = waves_at + Splits::WAVE_WORDS as usize + waves.len();
                    self.words[at] = row as u32;
                    waves.push(Wave { n_items: n_of_row, n_rows: 1 });
                }
            }
            for split in of_row {
                let item = [row as u32, split];
                self.words[items_at + 2 * n_items..][..2].copy_from_slice(&item);
                n_items += 1;
            }
        }
        // The first wave begins with the first item and row.
        self.words[waves_at..][..4].copy_from_slice(&[0, 0, 0, waves.len() as u32]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchSeq, SeqTable};

    const ALL: Lists = Lists { states: true, reaches: true, angles: 3 };

    /// Two decode rows (positions 5 and 600) and a prompt of 20 rows from 40 on.
    fn batch() -> Batch {
        let mut batch = Batch::with_capacity(32, 1);
        batch.tokens = (100..122).collect();
        batch.positions = [5, 600].into_iter().chain(40..60).collect();
        batch.n_decode = 2;
        batch.outputs = vec![0, 1, 21];
        batch.seqs = vec![
            BatchSeq { first_row: 0, n_rows: 1, first_pos: 5 },
            BatchSeq { first_row: 1, n_rows: 1, first_pos: 600 },
            BatchSeq { first_row: 2, n_rows: 20, first_pos: 40 },
        ];
        let group = &mut batch.groups[0];
        group.pages = vec![7, 30, 31, 8, 9];
        group.tables = vec![
            SeqTable { start: 0, len: 1, first_page: 0 },
            SeqTable { start: 1, len: 2, first_page: 17 },
            SeqTable { start: 3, len: 2, first_page: 0 },
        ];
        let slot = |pos: u32| if pos < 64 { (9, pos % 32) } else { (31, pos % 32) };
        group.slots = batch.positions.iter().map(|&pos| slot(pos)).collect();
        batch
    }

    #[test]
    fn a_batch_in_words() {
        let limits = RowLimits { tokens: 32, outputs: 4 };
        let group = GroupShape { window: Some(300), chunked: false, n_pages: 40 };
        let places = Places::new(limits, 1024, &[group], 100, ALL);
        let mut words = Words::new(places.clone());
        let mut batch = batch();
        batch.state_reads = vec![Some(4), None, Some(4)];
        batch.state_writes = vec![None; 22];
        (batch.state_writes[0], batch.state_writes[21]) = (Some(6), Some(0));
        // The first ten rows of the prompt see each other.
        batch.reaches = [6, 601].into_iter().chain([50; 10]).chain(51..61).collect();
        words.fill(&batch);
        let list = |at: u32, n: usize| words.words()[at as usize..][..n].to_vec();
        assert_eq!(list(0, 14), [0, 22, 0, 2, 2, 20, 0, 3, 0, 2, 2, 1, 0, 3]);
        assert_eq!(list(places.tokens_at, 3), [100, 101, 102]);
        assert_eq!(list(places.outputs_at, 3), [0, 1, 21]);
        assert_eq!(list(places.seq_of_row_at, 4), [0, 1, 2, 2]);
        // A prompt's tiles begin with its first row.
        let mut tiles = Vec::new();
        for first in (0..20).step_by(TILE_ROWS as usize) {
            tiles.extend([2 + first, (20 - first).min(TILE_ROWS)]);
        }
        assert_eq!(list(places.tiles_at, tiles.len()), tiles);
        assert_eq!(words.n_tiles() as usize, tiles.len() / 2);
        assert_eq!(list(places.reaches_at.unwrap(), 22), batch.reaches);
        let component = |words: &Words, c: u32| {
            let at = places.angles_at as usize + 32 * c as usize;
            words.words()[at..][..22].to_vec()
        };
        assert!((0..3).all(|c| component(&words, c) == batch.positions));
        batch.angles = batch.positions.iter().map(|&pos| [pos, pos + 100, pos + 200]).collect();
        let mut own = Words::new(places.clone());
        own.fill(&batch);
        for c in 0..3 {
            let wanted: Vec<u32> = batch.positions.iter().map(|pos| pos + 100 * c).collect();
            assert_eq!(component(&own, c), wanted);
        }
        batch.reaches.clear();
        let mut causal = Words::new(places.clone());
        causal.fill(&batch);
        let reaches: Vec<u32> = batch.positions.iter().map(|pos| pos + 1).collect();
        assert_eq!(causal.words()[places.reaches_at.unwrap() as usize..][..22], reaches);
        let states = places.states.unwrap();
        let none = StateLists::NONE;
        assert_eq!(list(states.seqs_at, 9), [0, 1, 4, 1, 1, none, 2, 20, 4]);
        let writes = [&[6][..], &[none; 20], &[0]].concat();
        assert_eq!(list(states.writes_at, 22), writes);
        let places = places.groups[0];
        assert_eq!(list(places.slots_at, 3), [9 * 32 + 5, 31 * 32 + 24, 9 * 32 + 8]);
        // Position 600 with a window of 300 sees from 301 on: splits 1 and 2.
        assert_eq!(list(places.splits.items_at, 6), [0, 0, 1, 1, 1, 2]);
        assert_eq!(list(places.splits.first_item_at, 2), [0, 1]);
        assert_eq!(words.waves(0), [Wave { n_items: 3, n_rows: 2 }]);
        assert_eq!(list(places.splits.waves_at, 5), [0, 0, 0, 1, 0]);
        assert_eq!(words.n_seen(0), 6 + 300 + (41..=60).sum::<u64>());
        // Position 600 is on page 18 of its sequence: the second that is kept.
        let base = list(places.bases_at, 3);
        let page = |seq: usize, p: u32| words.words()[base[seq].wrapping_add(p) as usize];
        assert_eq!([page(0, 0), page(1, 17), page(1, 18), page(2, 1)], [7, 30, 31, 9]);
    }

    #[test]
    fn rows_run_in_waves_of_whole_rows() {
        let limits = RowLimits { tokens: 32, outputs: 4 };
        let group = GroupShape { window: None, chunked: false, n_pages: 40 };
        // Contexts of 1, 4, 1, 2, 2 and 3 splits.
        let mut batch = Batch::with_capacity(32, 1);
        batch.positions = vec![0, 1023, 255, 256, 511, 767];
        batch.tokens = vec![3; 6];
        batch.n_decode = 6;
        let waves = |all: &[(u32, u32)]| -> Vec<Wave> {
            all.iter().map(|&(n_items, n_rows)| Wave { n_items, n_rows }).collect()
        };
        for (wave_items, expected, first_rows) in [
            // A row of full length fits any wave.
            (1, waves(&[(1, 1), (4, 1), (3, 2), (2, 1), (3, 1)]), vec![0, 1, 2, 4, 5]),
            (5, waves(&[(5, 2), (5, 3), (3, 1)]), vec![0, 2, 5]),
            (12, waves(&[(10, 5), (3, 1)]), vec![0, 5]),
            (13, waves(&[(13, 6)]), vec![0]),
        ] {
            let places = Places::new(limits, 1024, &[group], wave_items, Lists::default());
            let mut words = Words::new(places.clone());
            words.fill(&batch);
            assert_eq!(words.waves(0), expected, "{wave_items}");
            let Splits { waves_at, first_item_at, .. } = places.groups[0].splits;
            let list = |at: u32, n: usize| words.words()[at as usize..][..n].to_vec();
            assert_eq!(list(first_item_at, 6), [0, 1, 5, 6, 8, 10]);
            assert_eq!(list(waves_at, 4), [0, 0, 0, expected.len() as u32]);
            assert_eq!(list(waves_at + Splits::WAVE_WORDS, expected.len()), first_rows);
        }
    }

    #[test]
    fn there_is_room_for_the_largest_step() {
        let group = |window, n_pages| GroupShape { window, chunked: false, n_pages };
        // As many rows as there may be, each of a sequence of its own where there are
        // pages for it, at the end of the context.
        for (window, n_pages, max_seq_len, max_rows) in [
            (None, 256, 8192, 80),
            (None, 3, 8192, 80),
            (None, 1024, 1000, 16),
            (Some(512), 64, 8192, 80),
            (Some(1), 64, 257, 7),
            (Some(4096), 64, 300, 7),
        ] {
            let limits = RowLimits { tokens: max_rows, outputs: max_rows };
            let groups = [group(window, n_pages), group(None, n_pages)];
            let places = Places::new(limits, max_seq_len, &groups, 20, ALL);
            let mut words = Words::new(places);
            let mut batch = Batch::with_capacity(max_rows, 2);
            let n_seqs = max_rows.min(n_pages);
            let first_rows = (0..n_seqs).map(|seq| seq * max_rows / n_seqs);
            let ends = first_rows.clone().skip(1).chain([max_rows]);
            let seqs = first_rows.zip(ends).map(|(first_row, end)| BatchSeq {
                first_row,
                n_rows: end - first_row,
                first_pos: max_seq_len - 1,
            });
            batch.seqs = seqs.collect();
            batch.tokens = vec![3; max_rows];
            batch.positions = vec![max_seq_len as u32 - 1; max_rows];
            batch.n_decode = max_rows;
            batch.state_reads = vec![Some(0); n_seqs];
            batch.state_writes = vec![None; max_rows];
            let len = max_seq_len.div_ceil(PAGE_LEN).min(n_pages);
            for group in &mut batch.groups {
                let table = |seq| SeqTable { start: seq * len, len, first_page: 0 };
                group.tables = (0..n_seqs).map(table).collect();
                group.pages = vec![0; n_seqs * len];
                group.slots = vec![(0, 0); max_rows];
            }
            words.fill(&batch);
            for group in 0..2 {
                let n_rows: u32 = words.waves(group).iter().map(|wave| wave.n_rows).sum();
                assert_eq!(n_rows as usize, max_rows, "{window:?} {max_seq_len}");
            }
        }
    }
}
