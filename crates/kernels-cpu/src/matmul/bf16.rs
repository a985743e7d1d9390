//! The product on BF16 tiles, for prefill rows on processors with matrix units.
//!
//! A task takes a panel of weight rows, widens some of its columns to BF16 in memory that stays in the
//! L2 cache, and multiplies it with 32 activation rows at a time. Between panels of columns, sums are
//! kept in the result as F32, the type of the tile's sums, so the size of a panel does not affect the
//! bits: an element is the sum of the instruction's results for each 32 columns, in order.

use std::ops::Range;

use super::{Epilogue, MatrixRef};
use crate::packed::widen_group;
use crate::tiles::{Bf16Rows, PAIR_LEN, Product, STEP_LEN, TILE_LEN, TilePair, Tiles, widen_rows};
use crate::{PackedRef, Pages, PerThread, RowsMut, Team, Tier, supports_rows};

/// Maximum number of weight rows of a panel. With the columns of [`PANEL_STEPS`] it takes 1 MiB, half of
/// the L2 cache of processors with tiles.
const PANEL_ROWS: usize = 256;
/// Weight rows of a panel for few activation rows, which use a panel only once or twice.
pub(super) const SMALL_PANEL_ROWS: usize = 128;
/// Maximum number of activation rows that count as few.
const FEW_ROWS: usize = 64;
/// Steps of a panel: 2048 columns, which are whole blocks of every type.
pub(super) const PANEL_STEPS: usize = 2048 / STEP_LEN;
/// Tasks per thread, so that others can take over tasks of a slow thread.
const TASKS_PER_THREAD: usize = 4;

/// A weight matrix for [`matmul_bf16`].
#[derive(Clone, Copy, Debug)]
pub enum WeightsRef<'a> {
    /// A packed quantized matrix.
    Packed(PackedRef<'a>),
    /// A matrix of F32, F16, BF16 or F8_0.
    Float(MatrixRef<'a>),
}

impl WeightsRef<'_> {
    /// Number of rows, which are outputs.
    pub const fn n_rows(&self) -> usize {
        match self {
            Self::Packed(matrix) => matrix.n_rows(),
            Self::Float(matrix) => matrix.n_rows(),
        }
    }

    /// Number of columns, which are inputs.
    pub const fn n_cols(&self) -> usize {
        match self {
            Self::Packed(matrix) => matrix.n_cols(),
            Self::Float(matrix) => matrix.n_cols(),
        }
    }

    /// Widens the sixteen rows from row `16 * group` on to one tile per step from column `col` on.
    pub(super) fn widen<'t>(
        &self,
        tier: Tier,
        group: usize,
        cols: &Range<usize>,
        out: impl Iterator<Item = &'t mut crate::tiles::Tile>,
    ) {
        match self {
            Self::Packed(matrix) => {
                widen_group(tier, matrix.ty(), matrix.group(group), cols, out);
            }
            Self::Float(matrix) => {
                widen_rows(tier, matrix, group * TILE_LEN, cols.start, out);
            }
        }
    }
}

/// Scratch memory of [`matmul_bf16`]: a panel of 1 MiB for each thread of a team.
#[derive(Debug)]
pub struct Bf16Scratch(pub(super) PerThread<Pages>);

impl Bf16Scratch {
    /// Bytes per thread.
    pub const PANEL_BYTES: usize = PANEL_ROWS / PAIR_LEN * PANEL_STEPS * size_of::<TilePair>();

    /// Allocates for the threads of a team; `None` if there is too little memory.
    pub fn new(team: &Team) -> Option<Self> {
        let panels: Option<Vec<_>> =
            (0..team.n_threads()).map(|_| Pages::zeroed(Self::PANEL_BYTES)).collect();
        let mut panels = panels?.into_iter();
        Some(Self(PerThread::new(team.n_threads(), |_| panels.next().expect("one for each"))))
    }
}

/// Computes `out[r] = x[r] · parts + epilogue`, with the outputs of several matrices side by side in the
/// columns of `out`. Activations and weights are rounded to BF16; products and sums are F32. The bits of
/// an element depend on its two rows alone, and are the same on every tier that has this arithmetic.
///
/// # Panics
/// If the tier has no tiles ([`Tier::prompt_arithmetic`]), the shapes do not match, a float part has
/// another type than those listed, or `scratch` was allocated for a smaller team.
#[expect(clippy::needless_pass_by_value, reason = "the view must be exclusive for the call")]
pub fn matmul_bf16(
    team: &Team,
    tier: Tier,
    parts: &[WeightsRef<'_>],
    x: &Bf16Rows,     // [n_rows, n_cols]
    out: RowsMut<'_>, // [n_rows, sum of the parts' rows]
    scratch: &Bf16Scratch,
    epilogue: &Epilogue<'_>,
) {
    for part in parts {
        assert_eq!(part.n_cols(), x.n_cols(), "columns of the weights and of the activations");
        if let WeightsRef::Float(matrix) = part {
            let ty = matrix.ty();
            assert!(supports_rows(ty), "{ty} weights as they lie in the file");
        }
    }
    let n: usize = parts.iter().map(WeightsRef::n_rows).sum();
    assert_eq!((out.n_rows(), out.n_cols()), (x.n_rows(), n), "shape of the output");
    epilogue.check(x.n_rows(), n);
    assert!(team.n_threads() <= scratch.0.len(), "scratch for {} threads", scratch.0.len());
    if x.n_rows() == 0 {
        return;
    }
    match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::AmxBf16(tiles) => multiply(team, tier, tiles, parts, x, &out, scratch, epilogue),
        Tier::AmxBf16Software(tiles) => {
            multiply(team, tier, tiles, parts, x, &out, scratch, epilogue);
        }
        other => panic!("{other} is no tier with tiles"),
    }
}

#[expect(clippy::too_many_arguments, reason = "the arguments of the kernel")]
fn multiply(
    team: &Team,
    tier: Tier,
    tiles: impl Tiles,
    parts: &[WeightsRef<'_>],
    x: &Bf16Rows,
    out: &RowsMut<'_>,
    scratch: &Bf16Scratch,
    epilogue: &Epilogue<'_>,
) {
    let groups_of = |part: &WeightsRef<'_>| part.n_rows().div_ceil(TILE_LEN);
    let n_groups: usize = parts.iter().map(groups_of).sum();
    let most = if x.n_rows() <= FEW_ROWS { SMALL_PANEL_ROWS } else { PANEL_ROWS };
    let per_task = n_groups.div_ceil(team.n_threads() * TASKS_PER_THREAD);
    let per_task = per_task.next_multiple_of(2).clamp(2, most / TILE_LEN);
    team.parallel_for(n_groups.div_ceil(per_task), &|task, thread| {
        let groups = task * per_task..n_groups.min((task + 1) * per_task);
        let (mut first, mut col) = (0, 0);
        for part in parts {
            let end = first + groups_of(part);
            let (from, to) = (groups.start.max(first), groups.end.min(end));
            if from < to {
                let rows = (from - first) * TILE_LEN..part.n_rows().min((to - first) * TILE_LEN);
                let cols = col + rows.start..col + rows.end;
                // SAFETY: a task index is handed out once, tasks have disjoint groups and
                // groups disjoint columns, and `out` is not used otherwise meanwhile.
                let out = unsafe { out.tile(0..x.n_rows(), cols.clone()) };
                let panel = Panel { tier, tiles, part, rows, x, epilogue, col: cols.start };
                panel.multiply(&mut scratch.0.get(thread), out);
            }
            first = end;
            col += part.n_rows();
        }
    });
}

/// The weight rows of a task in one matrix.
struct Panel<'a, T> {
    tier: Tier,
    tiles: T,
    part: &'a WeightsRef<'a>,
    rows: Range<usize>, // of the matrix, from a multiple of 16 on
    x: &'a Bf16Rows,
    epilogue: &'a Epilogue<'a>,
    col: usize, // of the first row in the result
}

impl<T: Tiles> Panel<'_, T> {
    fn multiply(&self, memory: &mut Pages, mut out: RowsMut<'_>) {
        let memory: &mut [TilePair] = bytemuck::cast_slice_mut(memory);
        let n_cols = self.part.n_cols();
        let n_steps = n_cols.div_ceil(STEP_LEN);
        let n_blocks = self.x.n_rows().div_ceil(PAIR_LEN);
        for first in (0..n_steps.max(1)).step_by(PANEL_STEPS) {
            let steps = first..n_steps.min(first + PANEL_STEPS);
            let panel = &mut memory[..self.rows.len().div_ceil(PAIR_LEN) * steps.len()];
            self.widen(&steps, panel);
            for block in 0..n_blocks {
                let rows = block * PAIR_LEN..self.x.n_rows().min((block + 1) * PAIR_LEN);
                // The next product has the next block of rows, or the first one with the next columns.
                let next = match steps.end < n_steps {
                    _ if block + 1 < n_blocks => self.x.block(block + 1, steps.clone()),
                    true => self.x.block(0, steps.end..n_steps),
                    false => self.x.block(0, 0..n_steps),
                };
                let product = Product {
                    a: self.x.block(block, steps.clone()),
                    b: panel,
                    b_stride: steps.len(),
                    add: first > 0,
                    next,
                };
                let mut out = out.slice_rows(rows.clone());
                self.tiles.multiply(&product, out.reborrow());
                if steps.end == n_steps {
                    self.finish(rows, out);
                }
            }
        }
    }

    /// Widens columns of the weight rows to a panel.
    fn widen(&self, steps: &Range<usize>, panel: &mut [TilePair]) {
        let cols = steps.start * STEP_LEN..self.part.n_cols().min(steps.end * STEP_LEN);
        let groups = self.rows.start / TILE_LEN..self.rows.end.div_ceil(TILE_LEN);
        for (i, group) in groups.enumerate() {
            let pairs = &mut panel[i / 2 * steps.len()..][..steps.len()];
            let tiles = pairs.iter_mut().map(|pair| &mut pair[i % 2]);
            self.part.widen(self.tier, group, &cols, tiles);
        }
    }

    /// Adds the epilogue.
    fn finish(&self, rows: Range<usize>, out: RowsMut<'_>) {
        if self.epilogue.bias.is_none() && self.epilogue.residual.is_none() {
            return;
        }
        match self.tier.avx2() {
            None => add_epilogue(self.epilogue, rows, self.col, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token exists only if the instructions were detected.
            Some(_) => unsafe { add_epilogue_avx2(self.epilogue, rows, self.col, out) },
        }
    }
}

/// Adds biases, then residuals, to some rows from column `col` on.
#[inline(always)]
fn add_epilogue(epilogue: &Epilogue<'_>, rows: Range<usize>, col: usize, mut out: RowsMut<'_>) {
    let cols = col..col + out.n_cols();
    for (i, row) in rows.enumerate() {
        let out = out.row_mut(i);
        if let Some(bias) = epilogue.bias {
            out.iter_mut().zip(&bias[cols.clone()]).for_each(|(out, bias)| *out += bias);
        }
        if let Some(residual) = epilogue.residual {
            let residual = &residual.row(row)[cols.clone()];
            out.iter_mut().zip(residual).for_each(|(out, residual)| *out += residual);
        }
    }
}

/// [`add_epilogue`], compiled for registers of 256 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_epilogue_avx2(epilogue: &Epilogue<'_>, rows: Range<usize>, col: usize, out: RowsMut<'_>) {
    add_epilogue(epilogue, rows, col, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_quant::BlockType;

    use crate::testing::{random, random_weights, tile_tiers};
    use crate::{PackedMatrix, Rows, packs};

    /// A matrix as the kernel takes it, and its values.
    struct Weights {
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        bytes: Vec<u8>,
        packed: Option<PackedMatrix>,
    }

    impl Weights {
        fn new(ty: BlockType, n_rows: usize, n_cols: usize) -> Self {
            let mut seed = (n_cols * 31 + ty as usize * 7 + n_rows) as u64;
            let bytes = random_weights(&mut seed, ty, n_rows, n_cols);
            let matrix = MatrixRef::new(ty, n_rows, n_cols, &bytes);
            let packed = packs(ty).then(|| {
                PackedMatrix::new(&Team::new(1), Tier::Scalar, &matrix).expect("a small matrix")
            });
            Self { ty, n_rows, n_cols, bytes, packed }
        }

        fn view(&self) -> WeightsRef<'_> {
            match &self.packed {
                Some(packed) => WeightsRef::Packed(packed.view()),
                None => {
                    let Self { ty, n_rows, n_cols, bytes, .. } = self;
                    WeightsRef::Float(MatrixRef::new(*ty, *n_rows, *n_cols, bytes))
                }
            }
        }

        fn values(&self) -> Vec<f32> {
            let mut values = vec![0.0; self.n_rows * self.n_cols];
            crate::vec_dot::widen(self.ty, Tier::Scalar, &self.bytes, &mut values);
            values
        }
    }

    fn weight_types() -> impl Iterator<Item = BlockType> {
        BlockType::all().filter(|&ty| packs(ty) || supports_rows(ty))
    }

    fn run(
        tier: Tier,
        n_threads: usize,
        parts: &[WeightsRef<'_>],
        x: Rows<'_>,
        epilogue: &Epilogue<'_>,
    ) -> Vec<f32> {
        let team = Team::new(n_threads);
        let mut rows = Bf16Rows::with_capacity(x.n_rows(), x.n_cols()).expect("small rows");
        rows.pack(&team, tier, x);
        let n: usize = parts.iter().map(WeightsRef::n_rows).sum();
        let mut out = vec![f32::NAN; x.n_rows() * n];
        let view = RowsMut::new(&mut out, x.n_rows(), n);
        let scratch = Bf16Scratch::new(&team).expect("some mebibytes");
        matmul_bf16(&team, tier, parts, &rows, view, &scratch, epilogue);
        out
    }

    fn bits(v: &[f32]) -> Vec<u32> {
        v.iter().map(|v| v.to_bits()).collect()
    }

    /// Each of two operands is rounded to 8 bits, by at most 2^-8 of itself, and a sum of `n`
    /// products rounds about as often in 24 bits. So much is the most that an element may be
    /// off; all together they are less than what independent errors come to.
    #[test]
    fn products_are_close_to_f64_for_every_type() {
        const EPS: f64 = 1.0 / 256.0;
        for ty in weight_types() {
            let lengths: &[usize] = match ty.block_len() {
                1 => &[1, 33, 512, 2085],
                32 => &[32, 96, 2080],
                64 => &[64, 192, 2112],
                _ => &[256, 2304, 4352],
            };
            for &n_cols in lengths {
                let (n_rows, n_tokens) = (37, 35);
                let weights = Weights::new(ty, n_rows, n_cols);
                let x = random(&mut 17, n_tokens * n_cols);
                let view = Rows::new(&x, n_tokens, n_cols);
                let out =
                    run(Tier::software_tiles(), 2, &[weights.view()], view, &Epilogue::default());
                let w = weights.values();
                let (mut squares, mut expected_squares) = (0.0, 0.0);
                for (i, &value) in out.iter().enumerate() {
                    let w = &w[i % n_rows * n_cols..][..n_cols];
                    let products: Vec<f64> = w
                        .iter()
                        .zip(view.row(i / n_rows))
                        .map(|(&w, &x)| f64::from(w) * f64::from(x))
                        .collect();
                    let expected: f64 = products.iter().sum();
                    let sum: f64 = products.iter().map(|p| p.abs()).sum();
                    let error = f64::from(value) - expected;
                    let bound = sum * (2.01 * EPS + n_cols as f64 * f64::from(f32::EPSILON));
                    assert!(
                        error.abs() <= bound,
                        "{ty} {n_cols}: {value}, not {expected} ± {bound}"
                    );
                    squares += error * error;
                    expected_squares +=
                        products.iter().map(|p| p * p * 2.0 * EPS * EPS / 3.0).sum::<f64>();
                }
                let ratio = (squares / expected_squares).sqrt();
                assert!(ratio < 1.2, "{ty} {n_cols}: errors {ratio} of those of rounding");
            }
        }
    }

    #[test]
    fn bits_depend_on_neither_rows_nor_threads_nor_the_form_of_the_tiles() {
        for ty in weight_types() {
            let n_cols = if ty.block_len() == 1 { 77 } else { 768 };
            let weights = Weights::new(ty, 70, n_cols);
            let x = random(&mut 5, 67 * n_cols);
            let x = Rows::new(&x, 67, n_cols);
            let whole = |tier, n_threads, rows: Range<usize>| {
                let parts = [weights.view()];
                bits(&run(tier, n_threads, &parts, x.slice_rows(rows), &Epilogue::default()))
            };
            let all = whole(Tier::software_tiles(), 1, 0..67);
            for tier in tile_tiers() {
                assert!(whole(tier, 2, 0..67) == all, "{ty}: {tier} on {}", tier.vectors());
            }
            for (n_threads, rows) in [(3, 0..1), (1, 66..67), (2, 3..35), (1, 16..33), (3, 1..67)] {
                let expected = &all[rows.start * 70..rows.end * 70];
                let found = whole(Tier::software_tiles(), n_threads, rows.clone());
                assert!(found == expected, "{ty}: rows {rows:?}, {n_threads} threads");
            }
        }
    }

    #[test]
    fn parts_are_side_by_side_and_the_epilogue_is_added() {
        let weights = [
            Weights::new(BlockType::Q4_K, 33, 2304),
            Weights::new(BlockType::F16, 5, 2304),
            Weights::new(BlockType::Q6_K, 18, 2304),
        ];
        let parts: Vec<_> = weights.iter().map(Weights::view).collect();
        let (n, n_tokens) = (56, 34);
        let x = random(&mut 23, n_tokens * 2304);
        let x = Rows::new(&x, n_tokens, 2304);
        let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let residual: Vec<f32> = (0..n_tokens * n).map(|i| i as f32 * 0.37).collect();
        for tier in tile_tiers() {
            let apart: Vec<_> =
                parts.iter().map(|part| run(tier, 1, &[*part], x, &Epilogue::default())).collect();
            for with_residual in [false, true] {
                let residual = with_residual.then(|| Rows::new(&residual, n_tokens, n));
                let epilogue = Epilogue { bias: Some(&bias), residual };
                let out = run(tier, 2, &parts, x, &epilogue);
                for (i, &value) in out.iter().enumerate() {
                    let (r, col) = (i / n, i % n);
                    let (part, at) = match col {
                        0..33 => (0, col),
                        33..38 => (1, col - 33),
                        _ => (2, col - 38),
                    };
                    let product = apart[part][r * weights[part].n_rows + at];
                    let expected = product + bias[col];
                    let expected = residual.map_or(expected, |rows| expected + rows.row(r)[col]);
                    assert_eq!(value.to_bits(), expected.to_bits(), "{tier} ({r}, {col})");
                }
            }
        }
    }
}
