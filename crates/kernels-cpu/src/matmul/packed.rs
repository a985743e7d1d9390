//! The product of 8-bit activations with packed weights, the default for quantized weights.
//!
//! A task is a run of groups of sixteen weight rows. Few activation rows are multiplied with the packed
//! weights directly, which are read in several streams. For more rows, a task expands some columns of
//! two groups to panels that stay in the L1 and L2 caches, and multiplies these with all rows.

use std::ops::Range;

use super::Epilogue;
use crate::packed::{
    GROUP_LEN, GroupSums, MAX_DIRECT_ROWS, PACKED_ROWS, PANELS, PanelGroup, add_planes,
    direct_rows, dot_groups, expand, multiply_panels,
};
use crate::quantize::{QuantizedRow, QuantizedRows};
use crate::streams::{STREAMS, for_each_group};
use crate::{PackedRef, PerThread, RowsMut, Team, Tier};

/// Columns that are expanded at a time; whole blocks of every type.
pub(super) const PANEL_COLS: usize = 768;
/// Tasks per thread, so that others can take over tasks of a slow thread.
pub(super) const TASKS_PER_THREAD: usize = 8;
/// Maximum number of groups of a task that expands them.
pub(super) const MAX_GROUPS: usize = 4;
/// Rows that are multiplied before their products are stored: a multiple of every tier's tile of rows
/// and of two planes, and few enough that the stores overlap with the products of the next rows.
pub(super) const BATCH_ROWS: usize = 48;

/// Scratch memory of [`matmul_packed`]: per thread two panels of 21 KiB and the sums of two groups.
#[derive(Debug)]
pub struct PackedScratch(pub(super) PerThread<Scratch>);

#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) panels: [Vec<PanelGroup>; PANELS], // [PANEL_COLS / 32] each
    pub(super) sums: Vec<GroupSums>,              // [PANELS * max_rows]
}

impl PackedScratch {
    /// Allocates for the threads of a team and at most `max_rows` rows; each plane counts.
    pub fn new(team: &Team, max_rows: usize) -> Self {
        Self(PerThread::new(team.n_threads(), |_| Scratch {
            panels: std::array::from_fn(|_| vec![PanelGroup::ZERO; PANEL_COLS / GROUP_LEN]),
            sums: vec![[0.0; PACKED_ROWS]; PANELS * max_rows],
        }))
    }
}

/// Computes `out[r] = x[r] · parts + epilogue`, with the outputs of several matrices side by side in the
/// columns of `out`. The products of a row's two planes are added before the epilogue. The bits of an
/// element depend on its two rows alone, and are the same on every tier.
///
/// # Panics
/// If the shapes do not match, or `scratch` was allocated for a smaller team or fewer rows.
#[expect(clippy::needless_pass_by_value, reason = "the view must be exclusive for the call")]
pub fn matmul_packed(
    team: &Team,
    tier: Tier,
    parts: &[PackedRef<'_>],
    x: &QuantizedRows, // [n_rows, n_cols], rows of two planes counted once
    out: RowsMut<'_>,  // [n_rows, sum of the parts' rows]
    scratch: &PackedScratch,
    epilogue: &Epilogue<'_>,
) {
    for part in parts {
        assert_eq!(part.n_cols(), x.n_cols(), "columns of the weights and of the activations");
    }
    let n: usize = parts.iter().map(PackedRef::n_rows).sum();
    assert_eq!((out.n_rows(), out.n_cols()), (x.n_tokens(), n), "shape of the output");
    epilogue.check(x.n_tokens(), n);
    assert!(team.n_threads() <= scratch.0.len(), "scratch for {} threads", scratch.0.len());
    let n_tokens = x.n_tokens();
    if n_tokens == 0 {
        return;
    }
    let n_groups: usize = parts.iter().map(PackedRef::n_groups).sum();
    let per_task = n_groups.div_ceil(team.n_threads() * TASKS_PER_THREAD);
    let is_direct = x.n_rows() <= direct_rows(tier);
    let per_task = if is_direct {
        per_task.next_multiple_of(STREAMS)
    } else {
        // Whole pairs of groups, unless some threads would have no task.
        let per_task = per_task.clamp(1, MAX_GROUPS);
        let pairs = if per_task == 1 { PANELS } else { per_task / PANELS * PANELS };
        if n_groups.div_ceil(pairs) < team.n_threads() { per_task } else { pairs }
    };
    team.parallel_for(n_groups.div_ceil(per_task.max(1)), &|task, thread| {
        let groups = task * per_task..n_groups.min((task + 1) * per_task);
        let (mut first, mut col) = (0, 0);
        for part in parts {
            let (start, end) = (groups.start.max(first), groups.end.min(first + part.n_groups()));
            if start < end {
                // SAFETY: a task index is handed out once, tasks have disjoint groups and
                // groups disjoint columns, and `out` is not used otherwise meanwhile.
                let tile = |groups: Range<usize>| unsafe {
                    let from = col + groups.start * PACKED_ROWS;
                    let to = col + part.n_rows().min(groups.end * PACKED_ROWS);
                    (out.tile(0..n_tokens, from..to), from)
                };
                let segment = Segment { tier, part, x, epilogue };
                let range = start - first..end - first;
                if is_direct {
                    segment.dot(range, tile);
                } else {
                    segment.multiply(range, tile, &mut scratch.0.get(thread));
                }
            }
            first += part.n_groups();
            col += part.n_rows();
        }
    });
}

/// Multiplies a few rows, where each plane counts, with some groups of a matrix, and calls
/// `store(group, products)`.
pub(super) fn dot_rows(
    tier: Tier,
    matrix: &PackedRef<'_>,
    groups: Range<usize>,
    x: &QuantizedRows,
    rows: Range<usize>,                         // at most MAX_DIRECT_ROWS
    mut store: impl FnMut(usize, &[GroupSums]), // the group, [rows]
) {
    let n_rows = rows.len();
    // The array is filled up with the last row; the padding is not read.
    let rows: [QuantizedRow<'_>; MAX_DIRECT_ROWS] =
        std::array::from_fn(|i| x.row(rows.start + i.min(n_rows - 1)));
    let mut sums = [[0.0; PACKED_ROWS]; STREAMS * MAX_DIRECT_ROWS];
    for_each_group(groups, |groups| {
        let mut bytes = [&[] as &[u8]; STREAMS];
        let (bytes, sums) = (&mut bytes[..groups.len()], &mut sums[..groups.len() * n_rows]);
        bytes.iter_mut().zip(groups).for_each(|(bytes, &group)| *bytes = matrix.group(group));
        dot_groups(tier, matrix.ty(), bytes, &rows[..n_rows], sums);
        for (&group, sums) in groups.iter().zip(sums.chunks_exact(n_rows)) {
            store(group, sums);
        }
    });
}

/// The part of a task in one matrix.
struct Segment<'s> {
    tier: Tier,
    part: &'s PackedRef<'s>,
    x: &'s QuantizedRows,
    epilogue: &'s Epilogue<'s>,
}

impl Segment<'_> {
    /// Multiplies few rows with the packed groups in `range`.
    fn dot<'o>(&self, range: Range<usize>, tile: impl Fn(Range<usize>) -> (RowsMut<'o>, usize)) {
        let rows = 0..self.x.n_rows();
        dot_rows(self.tier, self.part, range, self.x, rows.clone(), |group, sums| {
            let (mut out, col) = tile(group..group + 1);
            self.store(rows.clone(), sums, &mut out, col);
        });
    }

    /// Multiplies all rows with the groups in `range`, expanded two at a time.
    fn multiply<'o>(
        &self,
        range: Range<usize>,
        tile: impl Fn(Range<usize>) -> (RowsMut<'o>, usize),
        scratch: &mut Scratch,
    ) {
        let (ty, n_cols, n_rows) = (self.part.ty(), self.part.n_cols(), self.x.n_rows());
        for first in range.clone().step_by(PANELS) {
            let groups = first..range.end.min(first + PANELS);
            let n = groups.len();
            let (mut out, out_col) = tile(groups.clone());
            let sums = &mut scratch.sums[..n * n_rows];
            sums.fill([0.0; PACKED_ROWS]);
            for col in (0..n_cols).step_by(PANEL_COLS) {
                let len = (n_cols - col).min(PANEL_COLS) / GROUP_LEN;
                for (group, panel) in groups.clone().zip(&mut scratch.panels) {
                    expand(self.tier, ty, self.part.group(group), col, &mut panel[..len]);
                }
                let panels = scratch.panels.each_ref().map(|panel| &panel[..len]);
                for row in (0..n_rows).step_by(BATCH_ROWS) {
                    let rows = row..n_rows.min(row + BATCH_ROWS);
                    let sums = &mut sums[n * rows.start..n * rows.end]; // [n, rows]
                    multiply_panels(self.tier, ty, &panels[..n], self.x, rows.clone(), col, sums);
                    if col + PANEL_COLS >= n_cols {
                        self.store(rows, sums, &mut out, out_col);
                    }
                }
            }
        }
    }

    /// Stores the products of some rows, with both planes of a row or none, to `out`, whose first column is
    /// column `col` of the output.
    fn store(
        &self,
        rows: Range<usize>,
        sums: &[GroupSums], // [groups, rows]
        out: &mut RowsMut<'_>,
        col: usize,
    ) {
        let (n_pairs, n_rows) = (self.x.n_pairs(), rows.len());
        let token = |i: usize| self.x.tokens()[i] as usize;
        let mut row = rows.start;
        while row < rows.end {
            let i = row - rows.start;
            if row < 2 * n_pairs {
                let sums = |g: usize| add_planes(&sums[g * n_rows + i], &sums[g * n_rows + i + 1]);
                self.store_row(token(row / 2), sums, out, col);
                row += 2;
            } else {
                let sums = |g: usize| sums[g * n_rows + i];
                self.store_row(token(row - n_pairs), sums, out, col);
                row += 1;
            }
        }
    }

    /// Stores row `r` of `out`, given the products with each group.
    #[inline]
    fn store_row(
        &self,
        r: usize,
        sums: impl Fn(usize) -> GroupSums,
        out: &mut RowsMut<'_>,
        col: usize,
    ) {
        let (whole, tail) = out.row_mut(r).as_chunks_mut::<PACKED_ROWS>();
        let n_whole = whole.len();
        for (g, out) in whole.iter_mut().enumerate() {
            self.epilogue.store_group(r, col + g * PACKED_ROWS, &sums(g), out);
        }
        if !tail.is_empty() {
            self.epilogue.store(r, col + n_whole * PACKED_ROWS, &sums(n_whole), tail);
        }
    }
}
