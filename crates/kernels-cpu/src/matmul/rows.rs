//! The product of a few F32 rows with float weights, which are read once, in their stored type.
//!
//! A task is a run of weight rows. It multiplies each of them with all activation rows while it is in
//! the cache.

use super::{Epilogue, MatrixRef, check_shapes, for_each_segment};
use crate::streams::{STREAMS, for_each_group};
use crate::vec_dot::dot_float;
use crate::{Rows, RowsMut, Team, Tier};

/// Tasks per thread, so that others can take over tasks of a slow thread.
pub(super) const TASKS_PER_THREAD: usize = 8;
/// Minimum number of weight rows per task; task sizes are multiples of it.
const ROW_GRAIN: usize = 16;

/// Computes `out[r] = x[r] · parts + epilogue`, with the outputs of several matrices side by side in the
/// columns of `out`. Elements are summed in another order than by [`matmul_f32`](crate::matmul_f32).
///
/// # Panics
/// If the shapes do not match, or weights have a quantized type.
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
            let mut task = Segment { tier, part, x, epilogue, tile: &mut tile, first, at, col };
            for_each_group(0..n_rows, |rows| task.multiply(rows));
        });
    });
}

/// The part of a task in one matrix.
struct Segment<'s, 't, 'a> {
    tier: Tier,
    part: &'s MatrixRef<'a>,
    x: Rows<'s>,
    epilogue: &'s Epilogue<'s>,
    tile: &'s mut RowsMut<'t>,
    first: usize, // row of the matrix
    at: usize,    // the first row's column of the output
    col: usize,   // of the tile's first column
}

impl Segment<'_, '_, '_> {
    /// Multiplies some weight rows with every activation row.
    fn multiply(&mut self, rows: &[usize]) {
        let mut w = [&[] as &[u8]; STREAMS];
        w.iter_mut().zip(rows).for_each(|(w, &i)| *w = self.part.row(self.first + i));
        let w = &w[..rows.len()];
        let n_tokens = self.tile.n_rows();
        let mut token = 0;
        while n_tokens - token >= 4 {
            self.store::<4>(w, rows, token);
            token += 4;
        }
        if n_tokens - token >= 2 {
            self.store::<2>(w, rows, token);
            token += 2;
        }
        if token < n_tokens {
            self.store::<1>(w, rows, token);
        }
    }

    /// Multiplies weight rows with `N` activation rows and stores the results.
    fn store<const N: usize>(&mut self, w: &[&[u8]], rows: &[usize], token: usize) {
        let mut dots = [0.0; STREAMS * 4];
        let dots = &mut dots[..w.len() * N];
        let x: [&[f32]; N] = std::array::from_fn(|i| self.x.row(token + i));
        dot_float(self.part.ty(), self.tier, w, &x, dots);
        for i in 0..N {
            let out = self.tile.row_mut(token + i);
            for (r, &row) in rows.iter().enumerate() {
                let n = self.at + row;
                out[n - self.col] = dots[r * N + i] + self.epilogue.at(token + i, n);
            }
        }
    }
}
