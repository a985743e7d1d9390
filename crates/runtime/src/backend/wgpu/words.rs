//! The words of a step: what the host tells the device each time, as one list of
//! 32-bit numbers.
//!
//! The list begins with ranges of rows, at fixed places; then come lists at
//! places that depend on the row limits, one behind the other; at the end, of
//! varying length, the block tables. Kernels are bound to the places once.

use crate::backend::{Batch, BatchGroup};
use crate::graph::RowDomain;
use crate::plan::RowLimits;
use realizar_kernels_wgpu::{RowsAt, SPLIT, TILE_ROWS};
use realizar_kvcache::PAGE_LEN;

/// A list of a step is longer than there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong(pub(super) &'static str);

/// Which rows of a domain a kernel works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// All.
    All,
    /// Generated tokens.
    Generated,
    /// Rows of prompts.
    Prompt,
}

/// Words of the ranges: first row and number, for each domain and each choice.
const RANGES: usize = 12;

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

/// The numbers of rows of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowCounts([u32; RANGES]);

impl RowCounts {
    pub(super) fn of(batch: &Batch) -> Self {
        let ranges = |n: usize, generated: usize| {
            let (n, generated) = (n as u32, generated as u32);
            [0, n, 0, generated, generated, n - generated]
        };
        let mut all = [0; RANGES];
        all[..6].copy_from_slice(&ranges(batch.n_rows(), batch.n_generated));
        all[6..].copy_from_slice(&ranges(batch.outputs.len(), batch.n_generated_outputs()));
        Self(all)
    }

    /// How many rows the range at `at` has.
    pub(super) fn n(&self, at: RowsAt) -> u32 {
        self.0[at.0 as usize + 1]
    }
}

/// What a group of layers needs to know of its cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupShape {
    /// Positions that a query sees, itself included.
    pub(super) window: Option<usize>,
    /// Pages of the pool.
    pub(super) n_pages: usize,
}

/// The places of a group's lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupPlaces {
    /// Where each row's key and value go.
    pub(super) slots_at: u32, // [n_rows]
    /// What is added to an absolute page number to find the page's word.
    pub(super) bases_at: u32, // [n_seqs]
    /// Each row's first work item.
    pub(super) first_item_at: u32, // [n_generated]
    /// Row and split of each work item.
    pub(super) items_at: u32, // [n_items, 2]
    window: Option<usize>,
    /// Work items that there is room for.
    pub(super) max_items: usize,
}

/// The list and its places.
#[derive(Debug)]
pub(super) struct Words {
    /// The token of each row.
    pub(super) tokens_at: u32, // [n_rows]
    /// Its position.
    pub(super) positions_at: u32, // [n_rows]
    /// The rows whose logits are wanted.
    pub(super) outputs_at: u32, // [n_outputs]
    /// The index of each row's sequence.
    pub(super) seq_of_row_at: u32, // [n_rows]
    /// First row and number of rows of each tile of a prompt.
    pub(super) tiles_at: u32, // [n_tiles, 2]
    pub(super) groups: Vec<GroupPlaces>,
    tables_at: usize,
    /// Words that there is room for.
    capacity: usize,
    words: Vec<u32>,
    n_tiles: u32,
    n_items: Vec<u32>, // [n_groups]
}

/// Rows of sequences of full length that can generate in one step, where
/// sequences share pages or one generates several tokens.
const FULL_ROWS: usize = 16;

/// The most work items of a step in a group: of a row for each sequence when the
/// pool is full, or of a few rows of full length.
fn max_items(group: &GroupShape, max_seq_len: usize, max_rows: usize) -> usize {
    let split = SPLIT as usize;
    // A row sees its context or its window, which need not begin with a split.
    let seen = group.window.map_or(max_seq_len, |window| window.min(max_seq_len));
    let of_row = seen.div_ceil(split) + 1;
    let of_pool = (group.n_pages * PAGE_LEN).div_ceil(split) + 2 * max_rows;
    (of_row * max_rows).min(of_pool.max(of_row * FULL_ROWS))
}

/// Words for block tables, per page of the pools: sequences may share pages.
const TABLE_WORDS: usize = 8;

impl Words {
    /// Places for batches up to `limits` of sequences up to `max_seq_len` over these
    /// groups.
    pub(super) fn new(limits: RowLimits, max_seq_len: usize, groups: &[GroupShape]) -> Self {
        let mut end = RANGES;
        let mut place = |n: usize| {
            let at = end as u32;
            end += n;
            at
        };
        let n = limits.tokens;
        let (tokens_at, positions_at) = (place(n), place(n));
        let (outputs_at, seq_of_row_at) = (place(limits.outputs), place(n));
        let tiles_at = place(2 * n);
        let places = |group: &GroupShape| {
            let max_items = max_items(group, max_seq_len, n);
            GroupPlaces {
                slots_at: place(n),
                bases_at: place(n),
                first_item_at: place(n),
                items_at: place(2 * max_items),
                window: group.window,
                max_items,
            }
        };
        let places: Vec<GroupPlaces> = groups.iter().map(places).collect();
        let table_words: usize = groups.iter().map(|group| TABLE_WORDS * group.n_pages).sum();
        let capacity = end + table_words;
        let mut words = Vec::with_capacity(capacity);
        words.resize(end, 0);
        Self {
            tokens_at,
            positions_at,
            outputs_at,
            seq_of_row_at,
            tiles_at,
            n_items: vec![0; places.len()],
            groups: places,
            tables_at: end,
            capacity,
            words,
            n_tiles: 0,
        }
    }

    /// Words that there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The words of the step that was filled in last.
    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Tiles of prompt rows in that step.
    pub(super) fn n_tiles(&self) -> u32 {
        self.n_tiles
    }

    /// Work items of generated rows in that step, of a group.
    pub(super) fn n_items(&self, group: usize) -> u32 {
        self.n_items[group]
    }

    /// Fills in the words of `batch`.
    ///
    /// # Errors
    /// If its block tables or its generated rows are too long for the lists.
    pub(super) fn fill(&mut self, batch: &Batch) -> Result<(), TooLong> {
        self.words.truncate(self.tables_at);
        let counts = RowCounts::of(batch);
        self.words[..RANGES].copy_from_slice(&counts.0);
        for (at, list) in [
            (self.tokens_at, &batch.tokens),
            (self.positions_at, &batch.positions),
            (self.outputs_at, &batch.outputs),
        ] {
            self.words[at as usize..][..list.len()].copy_from_slice(list);
        }
        let mut n_tiles = 0;
        for (i, seq) in batch.seqs.iter().enumerate() {
            let rows = self.seq_of_row_at as usize + seq.first_row;
            self.words[rows..rows + seq.n_rows].fill(i as u32);
            if seq.first_row < batch.n_generated {
                continue;
            }
            for first in (0..seq.n_rows).step_by(TILE_ROWS as usize) {
                let n_rows = (seq.n_rows - first).min(TILE_ROWS as usize);
                let tile = [(seq.first_row + first) as u32, n_rows as u32];
                self.words[self.tiles_at as usize + 2 * n_tiles..][..2].copy_from_slice(&tile);
                n_tiles += 1;
            }
        }
        self.n_tiles = n_tiles as u32;
        for (i, group) in batch.groups.iter().enumerate() {
            self.fill_tables(i, batch, group)?;
            self.fill_items(i, batch)?;
        }
        Ok(())
    }

    /// Slots and block tables of group `i`.
    fn fill_tables(&mut self, i: usize, batch: &Batch, group: &BatchGroup) -> Result<(), TooLong> {
        let places = self.groups[i];
        for (word, (page, idx)) in
            self.words[places.slots_at as usize..].iter_mut().zip(&group.slots)
        {
            *word = page * PAGE_LEN as u32 + idx;
        }
        let first = self.words.len();
        if first + group.pages.len() > self.capacity {
            return Err(TooLong("block tables"));
        }
        self.words.extend_from_slice(&group.pages);
        for (seq, table) in group.tables.iter().enumerate().take(batch.seqs.len()) {
            let base = (first + table.start) as u32;
            // Page numbers count from the sequence's start, tables from the first
            // page that is kept.
            let base = base.wrapping_sub(table.first_page as u32);
            self.words[places.bases_at as usize + seq] = base;
        }
        Ok(())
    }

    /// Work items of the generated rows for group `i`.
    fn fill_items(&mut self, i: usize, batch: &Batch) -> Result<(), TooLong> {
        let places = self.groups[i];
        let mut n_items = 0;
        for (row, &pos) in batch.positions[..batch.n_generated].iter().enumerate() {
            self.words[places.first_item_at as usize + row] = n_items as u32;
            let first_pos = places.window.map_or(0, |w| (pos as usize + 1).saturating_sub(w));
            for split in first_pos as u32 / SPLIT..=pos / SPLIT {
                if n_items == places.max_items {
                    return Err(TooLong("contexts of the generated rows"));
                }
                let item = [row as u32, split];
                self.words[places.items_at as usize + 2 * n_items..][..2].copy_from_slice(&item);
                n_items += 1;
            }
        }
        self.n_items[i] = n_items as u32;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BatchSeq, SeqTable};

    /// Two generated rows (positions 5 and 600) and a prompt of 20 rows from 40 on.
    fn batch() -> Batch {
        let mut batch = Batch::with_capacity(32, 1);
        batch.tokens = (100..122).collect();
        batch.positions = [5, 600].into_iter().chain(40..60).collect();
        batch.n_generated = 2;
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
        let group = GroupShape { window: Some(300), n_pages: 40 };
        let mut words = Words::new(limits, 1024, &[group]);
        words.fill(&batch()).unwrap();
        let list = |at: u32, n: usize| words.words()[at as usize..][..n].to_vec();
        assert_eq!(list(0, 12), [0, 22, 0, 2, 2, 20, 0, 3, 0, 2, 2, 1]);
        assert_eq!(list(words.tokens_at, 3), [100, 101, 102]);
        assert_eq!(list(words.outputs_at, 3), [0, 1, 21]);
        assert_eq!(list(words.seq_of_row_at, 4), [0, 1, 2, 2]);
        // A prompt's tiles begin with its first row.
        let mut tiles = Vec::new();
        for first in (0..20).step_by(TILE_ROWS as usize) {
            tiles.extend([2 + first, (20 - first).min(TILE_ROWS)]);
        }
        assert_eq!(list(words.tiles_at, tiles.len()), tiles);
        assert_eq!(words.n_tiles() as usize, tiles.len() / 2);
        let places = words.groups[0];
        assert_eq!(list(places.slots_at, 3), [9 * 32 + 5, 31 * 32 + 24, 9 * 32 + 8]);
        // Position 600 with a window of 300 sees from 301 on: splits 1 and 2.
        assert_eq!(list(places.items_at, 6), [0, 0, 1, 1, 1, 2]);
        assert_eq!(list(places.first_item_at, 2), [0, 1]);
        assert_eq!(words.n_items(0), 3);
        // Position 600 is on page 18 of its sequence: the second that is kept.
        let base = list(places.bases_at, 3);
        let page = |seq: usize, p: u32| words.words()[base[seq].wrapping_add(p) as usize];
        assert_eq!([page(0, 0), page(1, 17), page(1, 18), page(2, 1)], [7, 30, 31, 9]);
    }

    #[test]
    fn room_grows_with_what_can_be_seen() {
        let group = |window, n_pages| GroupShape { window, n_pages };
        for (window, n_pages, max_seq_len, max_rows, expected) in [
            // One sequence: its splits for each row, up to sixteen rows.
            (None, 256, 8192, 8, 8 * 33),
            (None, 256, 8192, 256, 32 + 512),
            // Many sequences: those of the pool.
            (None, 16_384, 8192, 256, 2048 + 512),
            (Some(512), 64, 8192, 256, 8 + 512),
            (Some(512), 64, 8192, 4, 12),
        ] {
            let found = max_items(&group(window, n_pages), max_seq_len, max_rows);
            assert_eq!(found, expected, "{window:?} {n_pages} {max_seq_len} {max_rows}");
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let limits = RowLimits { tokens: 32, outputs: 4 };
        let mut words = Words::new(limits, 1024, &[GroupShape { window: None, n_pages: 1 }]);
        let mut long = batch();
        long.groups[0].pages = vec![0; 9];
        assert_eq!(words.fill(&long), Err(TooLong("block tables")));
        let mut words = Words::new(limits, 1024, &[GroupShape { window: None, n_pages: 40 }]);
        let mut many = batch();
        many.positions = vec![100_000; 22];
        assert_eq!(words.fill(&many), Err(TooLong("contexts of the generated rows")));
    }
}
