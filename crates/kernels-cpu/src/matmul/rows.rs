//! The product of a few rows of F32 activations with float weights, which are read once
//! in the form they lie in memory.
//!
//! A task is a run of weight rows. It reads them as four streams, which memory
//! serves faster than one, and multiplies each row with all activation rows while it
//! is in the cache.

use super::{Epilogue, MatrixRef, check_shapes, for_each_segment};
use crate::vec_dot::{MAX_WEIGHT_ROWS, dot_float};
use crate::{Rows, RowsMut, Team, Tier};

/// Tasks that each thread gets, so that a slow thread can be helped.
pub(super) const TASKS_PER_THREAD: usize = 8;
/// Rows of a task: at least, and a multiple of.
const ROW_GRAIN: usize = 16;

/// `out[r] = x[r] · parts + epilogue`, with the rows of several matrices side by side
/// in the columns of `out`. The order of an element's sum is another than that of
/// [`matmul_f32`](crate::matmul_f32).
///
/// # Panics
/// If the shapes do not fit each other, or weights are of a quantized type.
pub fn matmul_rows(
    team: &Team,
    tier: Tier,
    parts: &[MatrixRef<'_>], // of F32, F16, BF16 or F8_0
    x: Rows<'_>,             // [n_tokens, n_cols]
    out: RowsMut<'_>,        // [n_tokens, sum of the parts' rows]
    epilogue: &Epilogue<'_>,
) {
    let n_tokens = x.n_rows();
    let n = check_shapes(parts, n_tokens, x.n_cols(), &out, epilogue);
    let per_task = n.div_ceil(team.n_threads() * TASKS_PER_THREAD);
    let grain = per_task.next_multiple_of(ROW_GRAIN).max(ROW_GRAIN);
    team.for_each_tile_mut(out, n_tokens.max(1), grain, |mut tile, _row, col, _thread| {
        let end = col + tile.n_cols();
        for_each_segment(parts, col, end, |part, first, n_rows, at| {
            // Streams a quarter of the rows apart, then the rows that are left.
            let quarter = n_rows / MAX_WEIGHT_ROWS;
            let mut task = Segment { tier, part, x, epilogue, tile: &mut tile, col };
            for i in 0..quarter {
                let rows: [usize; MAX_WEIGHT_ROWS] = std::array::from_fn(|s| i + s * quarter);
                task.multiply(rows.map(|r| first + r), rows.map(|r| at + r));
            }
            for i in quarter * MAX_WEIGHT_ROWS..n_rows {
                task.multiply([first + i], [at + i]);
            }
        });
    });
}

/// The part of a task that lies in one matrix.
struct Segment<'s, 't, 'a> {
    tier: Tier,
    part: &'s MatrixRef<'a>,
    x: Rows<'s>,
    epilogue: &'s Epilogue<'s>,
    tile: &'s mut RowsMut<'t>,
    col: usize, // of the tile's first column
}

impl Segment<'_, '_, '_> {
    /// Multiplies some weight rows with every activation row.
    fn multiply<const R: usize>(&mut self, rows: [usize; R], cols: [usize; R]) {
        let w = rows.map(|i| self.part.row(i));
        let n_tokens = self.tile.n_rows();
        let mut token = 0;
        while n_tokens - token >= 4 {
            self.store::<R, 4>(w, cols, token);
            token += 4;
        }
        if n_tokens - token >= 2 {
            self.store::<R, 2>(w, cols, token);
            token += 2;
        }
        if token < n_tokens {
            self.store::<R, 1>(w, cols, token);
        }
    }

    /// Multiplies weight rows with `N` activation rows and stores the results.
    fn store<const R: usize, const N: usize>(
        &mut self,
        w: [&[u8]; R],
        cols: [usize; R],
        token: usize,
    ) {
        let mut dots = [0.0; MAX_WEIGHT_ROWS * 4];
        let dots = &mut dots[..R * N];
        let x: [&[f32]; N] = std::array::from_fn(|i| self.x.row(token + i));
        dot_float(self.part.ty(), self.tier, &w, &x, dots);
        for i in 0..N {
            let out = self.tile.row_mut(token + i);
            for (r, &n) in cols.iter().enumerate() {
                let out = &mut out[n - self.col];
                *out = dots[r * N + i] + self.epilogue.at(token + i, n);
            }
        }
    }
}
