//! Products of rows with the matrices of their experts.
//!
//! There is one product per sibling file, for rows that [`ExpertRows`] has sorted: the rows of an expert
//! are multiplied together, and one parallel loop covers all experts. The bits of an element are those
//! of its row alone; for packed weights and tiles they are those of
//! [`matmul_packed`](crate::matmul_packed) and [`matmul_bf16`](crate::matmul_bf16).

use std::ops::Range;

use super::bf16::{Bf16Scratch, PANEL_STEPS, SMALL_PANEL_ROWS, WeightsRef};
use super::float::{PANEL_ROWS, PanelScratch, STRETCH, as_floats, multiply_panel, stretch_bytes};
use super::packed::{
    BATCH_ROWS, MAX_GROUPS, PANEL_COLS, PackedScratch, Scratch, TASKS_PER_THREAD, dot_rows,
};
use super::{MatrixRef, rows::TASKS_PER_THREAD as TASKS_OF_ROWS};
use crate::experts::{BLOCK_ROWS, ExpertRun};
use crate::packed::{
    GROUP_LEN, GroupSums, PACKED_ROWS, PANELS, direct_rows, expand, multiply_panels,
};
use crate::streams::{STREAMS, for_each_group};
use crate::tiles::{PAIR_LEN, Product, STEP_LEN, TILE_LEN, TilePair, Tiles};
use crate::vec_dot::{dot_float, widen};
use crate::{
    Bf16Rows, ExpertRows, PackedRef, PerThread, QuantizedRows, Rows, RowsMut, Team, Tier,
    supports_rows,
};

/// The experts' matrices, in parts with the same input, such as gate and up.
pub struct ExpertParts<'a, M> {
    /// Number of outputs of each part.
    pub outs: &'a [usize],
    /// Returns the matrix of a part and an expert, `[out, in]`.
    pub matrix: &'a (dyn Fn(usize, usize) -> M + Sync),
}

impl<M> std::fmt::Debug for ExpertParts<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExpertParts").field("outs", &self.outs).finish_non_exhaustive()
    }
}

impl<M> Clone for ExpertParts<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for ExpertParts<'_, M> {}

/// Scratch memory of [`experts_f32`] and [`experts_bf16`]: per thread the sums of a task.
#[derive(Debug)]
pub struct ExpertScratch(PerThread<Vec<f32>>); // [max_rows * SMALL_PANEL_ROWS]

impl ExpertScratch {
    /// Allocates for the threads of a team and at most `max_rows` rows.
    pub fn new(team: &Team, max_rows: usize) -> Self {
        let len = max_rows.next_multiple_of(BLOCK_ROWS) * SMALL_PANEL_ROWS;
        Self(PerThread::new(team.n_threads(), |_| vec![0.0; len]))
    }
}

/// The result, `[n_rows, n_chosen * sum of outs]`: per row and part, the results of the row's experts
/// side by side.
struct Target<'a, 'o> {
    rows: &'a ExpertRows,
    outs: &'a [usize],
    out: RowsMut<'o>,
}

impl<'a, 'o> Target<'a, 'o> {
    fn new(rows: &'a ExpertRows, outs: &'a [usize], out: RowsMut<'o>) -> Self {
        let n = rows.n_chosen() * outs.iter().sum::<usize>();
        assert_eq!((out.n_rows(), out.n_cols()), (rows.n_rows(), n), "shape of the output");
        Self { rows, outs, out }
    }

    /// The results of a pair and the weight rows `cols` of a part.
    ///
    /// # Safety
    /// The results must not be accessed in another way while they are borrowed.
    unsafe fn row(&self, pair: usize, part: usize, cols: Range<usize>) -> RowsMut<'_> {
        let pair = self.rows.pair(pair);
        let before: usize = self.outs[..part].iter().sum();
        let col = self.rows.n_chosen() * before + pair.slot as usize * self.outs[part];
        let row = pair.row as usize;
        // SAFETY: the caller's promise.
        unsafe { self.out.tile(row..row + 1, col + cols.start..col + cols.end) }
    }
}

/// A task: some weight rows of one part of one expert.
struct Task<'a> {
    run: &'a ExpertRun,
    part: usize,
    rows: Range<usize>,
}

/// Calls `f(task, thread)` for tasks that cover the weight rows of all selected experts. Tasks begin at
/// multiples of `unit` rows. `per_task` maps the number of units of all experts to the number of units
/// per task.
fn for_each_task(
    team: &Team,
    rows: &ExpertRows,
    outs: &[usize],
    unit: usize,
    per_task: impl Fn(usize) -> usize,
    f: &(dyn Fn(&Task<'_>, usize) + Sync),
) {
    let units_of = |out: &usize| out.div_ceil(unit);
    let n_units: usize = outs.iter().map(units_of).sum();
    let per_task = per_task(n_units * rows.runs().len()).clamp(1, n_units.max(1));
    let n_tasks = n_units.div_ceil(per_task); // of an expert
    team.parallel_for(rows.runs().len() * n_tasks, &|task, thread| {
        let run = &rows.runs()[task / n_tasks];
        let units = task % n_tasks * per_task..n_units.min((task % n_tasks + 1) * per_task);
        let mut first = 0;
        for (part, out) in outs.iter().enumerate() {
            let end = first + units_of(out);
            let (from, to) = (units.start.max(first), units.end.min(end));
            if from < to {
                let rows = (from - first) * unit..(*out).min((to - first) * unit);
                f(&Task { run, part, rows }, thread);
            }
            first = end;
        }
    });
}

/// Computes `out[r][i] = x[r, i] · parts of the i-th expert of row r`, with 8-bit activations and packed
/// weights.
///
/// # Panics
/// If the shapes do not match, or `scratch` was allocated for a smaller team or fewer rows.
pub fn experts_packed(
    team: &Team,
    tier: Tier,
    parts: ExpertParts<'_, PackedRef<'_>>,
    rows: &ExpertRows,
    x: &QuantizedRows, // [n_pairs, n_cols], see ExpertRows::quantize
    out: RowsMut<'_>,  // [n_rows, n_chosen * sum of outs]
    scratch: &PackedScratch,
) {
    assert_eq!(x.n_rows(), rows.n_pairs(), "rows of the pairs");
    assert!(team.n_threads() <= scratch.0.len(), "scratch for {} threads", scratch.0.len());
    let target = Target::new(rows, parts.outs, out);
    let most = direct_rows(tier);
    let are_few = rows.runs().iter().all(|run| run.pairs.len() <= most);
    let per_task = |n_groups: usize| {
        let per_task = n_groups.div_ceil(team.n_threads() * TASKS_PER_THREAD);
        match are_few {
            true => per_task.next_multiple_of(STREAMS),
            false => per_task.clamp(PANELS, MAX_GROUPS).next_multiple_of(PANELS),
        }
    };
    for_each_task(team, rows, parts.outs, PACKED_ROWS, per_task, &|task, thread| {
        let matrix = (parts.matrix)(task.part, task.run.expert);
        let shape = (matrix.n_rows(), matrix.n_cols());
        assert_eq!(shape, (parts.outs[task.part], x.n_cols()), "shape of the weights");
        let product = PackedProduct { tier, task, matrix, x, target: &target };
        if task.run.pairs.len() <= most {
            product.dot();
        } else {
            product.multiply(&mut scratch.0.get(thread));
        }
    });
}

/// A task of [`experts_packed`].
struct PackedProduct<'a, 'o> {
    tier: Tier,
    task: &'a Task<'a>,
    matrix: PackedRef<'a>,
    x: &'a QuantizedRows,
    target: &'a Target<'a, 'o>,
}

impl PackedProduct<'_, '_> {
    /// The groups of sixteen weight rows.
    fn groups(&self) -> Range<usize> {
        self.task.rows.start / PACKED_ROWS..self.task.rows.end.div_ceil(PACKED_ROWS)
    }

    /// Stores the products of a pair with a group.
    fn store(&self, pair: usize, group: usize, sums: &GroupSums) {
        let first = group * PACKED_ROWS;
        let cols = first..self.matrix.n_rows().min(first + PACKED_ROWS);
        let n = cols.len();
        // SAFETY: a task has weight rows and an expert of its own, and a pair is of one expert.
        let mut out = unsafe { self.target.row(pair, self.task.part, cols) };
        out.row_mut(0).copy_from_slice(&sums[..n]);
    }

    /// Multiplies few rows with the packed groups.
    fn dot(&self) {
        let pairs = &self.task.run.pairs;
        dot_rows(self.tier, &self.matrix, self.groups(), self.x, pairs.clone(), |group, sums| {
            for (pair, sums) in pairs.clone().zip(sums) {
                self.store(pair, group, sums);
            }
        });
    }

    /// Multiplies the rows with the groups, expanded two at a time.
    fn multiply(&self, scratch: &mut Scratch) {
        let (ty, n_cols) = (self.matrix.ty(), self.matrix.n_cols());
        let pairs = &self.task.run.pairs;
        let groups = self.groups();
        for first in groups.clone().step_by(PANELS) {
            let groups = first..groups.end.min(first + PANELS);
            let n = groups.len();
            let sums = &mut scratch.sums[..n * pairs.len()];
            sums.fill([0.0; PACKED_ROWS]);
            for col in (0..n_cols).step_by(PANEL_COLS) {
                let len = (n_cols - col).min(PANEL_COLS) / GROUP_LEN;
                for (group, panel) in groups.clone().zip(&mut scratch.panels) {
                    expand(self.tier, ty, self.matrix.group(group), col, &mut panel[..len]);
                }
                let panels = scratch.panels.each_ref().map(|panel| &panel[..len]);
                for at in (0..pairs.len()).step_by(BATCH_ROWS) {
                    let len = BATCH_ROWS.min(pairs.len() - at);
                    let rows = pairs.start + at..pairs.start + at + len;
                    let sums = &mut sums[n * at..n * (at + len)]; // [n, rows]
                    multiply_panels(self.tier, ty, &panels[..n], self.x, rows.clone(), col, sums);
                    if col + PANEL_COLS >= n_cols {
                        for (group, sums) in groups.clone().zip(sums.chunks_exact(len)) {
                            rows.clone().zip(sums).for_each(|(r, sums)| self.store(r, group, sums));
                        }
                    }
                }
            }
        }
    }
}

/// As [`experts_packed`], with F32 activations and float weights, for few rows. The bits are those of
/// [`matmul_rows`](crate::matmul_rows).
///
/// # Panics
/// If the shapes do not match, or weights have a quantized type.
pub fn experts_rows(
    team: &Team,
    tier: Tier,
    parts: ExpertParts<'_, MatrixRef<'_>>, // of F32, F16, BF16 or F8_0
    rows: &ExpertRows,
    x: Rows<'_>,      // [n_pairs, n_cols], see ExpertRows::gather
    out: RowsMut<'_>, // [n_rows, n_chosen * sum of outs]
) {
    /// Activation rows that are multiplied at a time.
    const TOKENS: usize = 4;
    assert_eq!(x.n_rows(), rows.n_pairs(), "rows of the pairs");
    let target = Target::new(rows, parts.outs, out);
    let per_task = |n: usize| n.div_ceil(team.n_threads() * TASKS_OF_ROWS);
    for_each_task(team, rows, parts.outs, 16, per_task, &|task, _thread| {
        let matrix = (parts.matrix)(task.part, task.run.expert);
        let shape = (matrix.n_rows(), matrix.n_cols());
        assert_eq!(shape, (parts.outs[task.part], x.n_cols()), "shape of the weights");
        let multiply = |weights: &[usize]| {
            let mut w = [&[] as &[u8]; STREAMS];
            w.iter_mut().zip(weights).for_each(|(w, &i)| *w = matrix.row(i));
            let mut first = task.run.pairs.start;
            while first < task.run.pairs.end {
                // As many rows at a time as `matmul_rows` takes.
                let left = task.run.pairs.end - first;
                let n = if left >= TOKENS { TOKENS } else { left.min(2) };
                let mut tokens = [&[] as &[f32]; TOKENS];
                tokens.iter_mut().enumerate().take(n).for_each(|(i, t)| *t = x.row(first + i));
                let mut dots = [0.0; STREAMS * TOKENS];
                let dots = &mut dots[..weights.len() * n];
                dot_float(matrix.ty(), tier, &w[..weights.len()], &tokens[..n], dots);
                for (dots, &weight) in dots.chunks_exact(n).zip(weights) {
                    for (i, dot) in dots.iter().enumerate() {
                        // SAFETY: a task has weight rows and an expert of its own, and a pair is
                        // of one expert.
                        let mut out =
                            unsafe { target.row(first + i, task.part, weight..weight + 1) };
                        out.row_mut(0)[0] = *dot;
                    }
                }
                first += n;
            }
        };
        for_each_group(task.rows.clone(), multiply);
    });
}

/// As [`experts_packed`], with F32 activations and weights of any type, which are widened once for all
/// rows of an expert. The bits are those of [`matmul_f32`](crate::matmul_f32).
///
/// # Panics
/// If the shapes do not match, or a scratch was allocated for a smaller team or fewer rows.
#[expect(clippy::too_many_arguments, reason = "the arguments of the kernel")]
pub fn experts_f32(
    team: &Team,
    tier: Tier,
    parts: ExpertParts<'_, MatrixRef<'_>>,
    rows: &ExpertRows,
    x: Rows<'_>,      // [n_pairs, n_cols], see ExpertRows::gather
    out: RowsMut<'_>, // [n_rows, n_chosen * sum of outs]
    panels: &PanelScratch,
    scratch: &ExpertScratch,
) {
    assert_eq!(x.n_rows(), rows.n_pairs(), "rows of the pairs");
    let n_threads = panels.0.len().min(scratch.0.len());
    assert!(team.n_threads() <= n_threads, "scratch for {n_threads} threads");
    let target = Target::new(rows, parts.outs, out);
    // Narrow matrices are cut finer, so that every thread has a few tasks.
    let widest = parts.outs.iter().copied().max().unwrap_or(0);
    let n_panels = team.n_threads() * 4 / rows.runs().len().clamp(1, team.n_threads() * 4);
    let unit = widest.div_ceil(n_panels.max(1)).next_multiple_of(3).clamp(3, PANEL_ROWS);
    for_each_task(team, rows, parts.outs, unit, |_| 1, &|task, thread| {
        let matrix = (parts.matrix)(task.part, task.run.expert);
        let n_cols = x.n_cols();
        let shape = (matrix.n_rows(), matrix.n_cols());
        assert_eq!(shape, (parts.outs[task.part], n_cols), "shape of the weights");
        let x = x.slice_rows(task.run.pairs.clone());
        let (mut widened, mut sums) = (panels.0.get(thread), scratch.0.get(thread));
        let (n_rows, n) = (x.n_rows(), task.rows.len());
        let sums = &mut sums[..n_rows * n];
        sums.fill(0.0);
        let mut tile = RowsMut::new(sums, n_rows, n);
        for k in (0..n_cols).step_by(STRETCH) {
            let len = STRETCH.min(n_cols - k);
            let mut panel = [&[] as &[f32]; PANEL_ROWS];
            let spaces = widened.chunks_exact_mut(STRETCH);
            for ((row, panel), space) in task.rows.clone().zip(&mut panel).zip(spaces) {
                let bytes = stretch_bytes(&matrix, row, k, len);
                *panel = match as_floats(matrix.ty(), bytes) {
                    Some(floats) => floats,
                    None => {
                        widen(matrix.ty(), tier, bytes, &mut space[..len]);
                        &space[..len]
                    }
                };
            }
            multiply_panel(tier, &panel[..n], x.slice_cols(k..k + len), &mut tile);
        }
        store_tile(&target, task, &tile);
    });
}

/// Stores the products of a task, `[rows of the expert, weight rows of the task]`.
fn store_tile(target: &Target<'_, '_>, task: &Task<'_>, tile: &RowsMut<'_>) {
    for (i, pair) in task.run.pairs.clone().enumerate() {
        // SAFETY: a task has weight rows and an expert of its own, and a pair is of one expert.
        let mut out = unsafe { target.row(pair, task.part, task.rows.clone()) };
        out.row_mut(0).copy_from_slice(tile.row(i));
    }
}

/// As [`experts_packed`], on BF16 tiles. The bits are those of [`matmul_bf16`](crate::matmul_bf16).
///
/// # Panics
/// If the tier has no tiles ([`Tier::prompt_arithmetic`]), the shapes do not match, float weights have
/// another type than those of [`WeightsRef::Float`], or a scratch was allocated for a smaller team or
/// fewer rows.
#[expect(clippy::too_many_arguments, reason = "the arguments of the kernel")]
pub fn experts_bf16(
    team: &Team,
    tier: Tier,
    parts: ExpertParts<'_, WeightsRef<'_>>,
    rows: &ExpertRows,
    x: &Bf16Rows,     // see ExpertRows::pack
    out: RowsMut<'_>, // [n_rows, n_chosen * sum of outs]
    panels: &Bf16Scratch,
    scratch: &ExpertScratch,
) {
    let n_threads = panels.0.len().min(scratch.0.len());
    assert!(team.n_threads() <= n_threads, "scratch for {n_threads} threads");
    let target = Target::new(rows, parts.outs, out);
    let per_task = |n_units: usize| {
        let per_task = n_units.div_ceil(team.n_threads() * 4);
        per_task.clamp(1, SMALL_PANEL_ROWS / PAIR_LEN)
    };
    for_each_task(team, rows, parts.outs, PAIR_LEN, per_task, &|task, thread| {
        let matrix = (parts.matrix)(task.part, task.run.expert);
        let shape = (matrix.n_rows(), matrix.n_cols());
        assert_eq!(shape, (parts.outs[task.part], x.n_cols()), "shape of the weights");
        if let WeightsRef::Float(matrix) = &matrix {
            let ty = matrix.ty();
            assert!(supports_rows(ty), "{ty} weights as they lie in the file");
        }
        let (mut panel, mut sums) = (panels.0.get(thread), scratch.0.get(thread));
        let panel = bytemuck::cast_slice_mut(&mut panel);
        let (n_rows, n) = (task.run.pairs.len(), task.rows.len());
        let mut tile = RowsMut::new(&mut sums[..n_rows * n], n_rows, n);
        match tier {
            #[cfg(target_arch = "x86_64")]
            Tier::AmxBf16(tiles) => multiply_tiles(tier, tiles, &matrix, task, x, panel, &mut tile),
            Tier::AmxBf16Software(tiles) => {
                multiply_tiles(tier, tiles, &matrix, task, x, panel, &mut tile);
            }
            other => panic!("{other} is no tier with tiles"),
        }
        store_tile(&target, task, &tile);
    });
}

/// Multiplies the rows of an expert with the weight rows of a task, which it widens to `panel`.
fn multiply_tiles(
    tier: Tier,
    tiles: impl Tiles,
    matrix: &WeightsRef<'_>,
    task: &Task<'_>,
    x: &Bf16Rows,
    panel: &mut [TilePair],
    out: &mut RowsMut<'_>, // [rows of the expert, weight rows of the task]
) {
    let n_cols = x.n_cols();
    let n_steps = n_cols.div_ceil(STEP_LEN);
    for first in (0..n_steps.max(1)).step_by(PANEL_STEPS) {
        let steps = first..n_steps.min(first + PANEL_STEPS);
        let cols = steps.start * STEP_LEN..n_cols.min(steps.end * STEP_LEN);
        let panel = &mut panel[..task.rows.len().div_ceil(PAIR_LEN) * steps.len()];
        let groups = task.rows.start / TILE_LEN..task.rows.end.div_ceil(TILE_LEN);
        for (i, group) in groups.enumerate() {
            let pairs = &mut panel[i / 2 * steps.len()..][..steps.len()];
            matrix.widen(tier, group, &cols, pairs.iter_mut().map(|pair| &mut pair[i % 2]));
        }
        for (block, row) in (0..out.n_rows()).step_by(BLOCK_ROWS).enumerate() {
            let a = x.block(task.run.first_block + block, steps.clone());
            let product = Product { a, b: panel, b_stride: steps.len(), add: first > 0, next: a };
            let rows = row..out.n_rows().min(row + BLOCK_ROWS);
            tiles.multiply(&product, out.slice_rows(rows));
        }
    }
}

#[cfg(test)]
mod tests;
