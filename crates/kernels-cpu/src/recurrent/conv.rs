//! Causal depthwise convolutions over a few positions.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::_mm256_fmadd_ps;

use super::{LayerStates, StateSteps};
use crate::elementwise::for_each_piece;
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::{Activation, Rows, RowsMut, Team, Tier, activate_row};

/// A depthwise convolution with `n_taps` weights per channel:
/// `out[t][c] = act(bias[c] + Σ w[i][c] * x[t - n_taps + 1 + i][c])`, with zeros before the first row.
///
/// The state is the last `n_taps - 1` input rows, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv<'a> {
    /// Weights, of the oldest row first.
    pub taps: &'a [f32], // [n_taps][n_channels]
    /// Added to every row.
    pub bias: Option<&'a [f32]>, // [n_channels]
    /// Applied to every element.
    pub act: Option<Activation>,
}

impl ShortConv<'_> {
    /// Number of elements of the state.
    pub const fn state_len(n_taps: usize, n_channels: usize) -> usize {
        n_taps.saturating_sub(1) * n_channels
    }
}

/// Runs the convolution over the rows of every sequence.
///
/// # Panics
/// If the shapes disagree.
pub fn short_conv(
    team: &Team,
    tier: Tier,
    conv: &ShortConv<'_>,
    x: Rows<'_>,      // [n_rows, n_channels]
    out: RowsMut<'_>, // [n_rows, n_channels]
    steps: &StateSteps,
    states: &LayerStates<'_>,
) {
    let n = x.n_cols();
    assert_eq!((out.n_rows(), out.n_cols()), (x.n_rows(), n), "shapes of operand and result");
    assert!(n > 0 && conv.taps.len().is_multiple_of(n), "taps of {n} channels");
    let n_taps = conv.taps.len() / n;
    assert!(n_taps > 0 && conv.bias.is_none_or(|bias| bias.len() == n), "taps and biases");
    assert_eq!(steps.writes.len(), x.n_rows(), "rows of the batch");
    states.check(steps, ShortConv::state_len(n_taps, n));

    for_each_piece(team, out, |row, col, out| {
        let cols = col..col + out.len();
        let Some(seq) = steps.seq(row) else {
            out.fill(0.0);
            return;
        };
        // SAFETY: `StateSteps` has no slot that is read and written.
        let past = seq.from.map(|slot| unsafe { states.read(slot) });
        match conv.bias {
            Some(bias) => out.copy_from_slice(&bias[cols.clone()]),
            None => out.fill(0.0),
        }
        for (i, taps) in conv.taps.chunks_exact(n).enumerate() {
            let back = n_taps - 1 - i;
            if let Some(x) = input(&x, seq.rows.start, row, back, past, n) {
                add_products(tier, &taps[cols.clone()], &x[cols.clone()], out);
            }
        }
        if let Some(act) = conv.act {
            activate_row(tier, act, out);
        }
        if let Some(slot) = steps.write(row) {
            for i in 0..n_taps - 1 {
                // The state after a row begins with the oldest row that the next row needs.
                let kept = input(&x, seq.rows.start, row, n_taps - 2 - i, past, n);
                let range = i * n + cols.start..i * n + cols.end;
                // SAFETY: no other row writes the slot, no other piece these columns.
                let state = unsafe { states.write(slot, range) };
                match kept {
                    Some(kept) => state.copy_from_slice(&kept[cols.clone()]),
                    None => state.fill(0.0),
                }
            }
        }
    });
}

/// The input `back` rows before `row`, possibly from the state; `None` before the sequence's start.
fn input<'a>(
    x: &Rows<'a>,
    first_row: usize,
    row: usize,
    back: usize,
    past: Option<&'a [f32]>, // [n_taps - 1][n]
    n: usize,
) -> Option<&'a [f32]> {
    if row - first_row >= back {
        return Some(x.row(row - back));
    }
    let before = back - (row - first_row); // 1 is the last row of the state
    past.map(|past| &past[past.len() - before * n..][..n])
}

/// `out += w * x`, each product and sum rounded once.
fn add_products(tier: Tier, w: &[f32], x: &[f32], out: &mut [f32]) {
    match tier.avx2() {
        None => {
            for ((out, w), x) in out.iter_mut().zip(w).zip(x) {
                *out = w.mul_add(*x, *out);
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token of this tier exists only if its instructions were detected.
        Some(_) => unsafe { add_products_avx2(w, x, out) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_products_avx2(w: &[f32], x: &[f32], out: &mut [f32]) {
    let ((w8, w_tail), (x8, x_tail)) = (w.as_chunks::<8>(), x.as_chunks::<8>());
    let (out8, out_tail) = out.as_chunks_mut::<8>();
    for ((out, w), x) in out8.iter_mut().zip(w8).zip(x8) {
        lanes::store(_mm256_fmadd_ps(lanes::load(w), lanes::load(x), lanes::load(out)), out);
    }
    for ((out, w), x) in out_tail.iter_mut().zip(w_tail).zip(x_tail) {
        *out = w.mul_add(*x, *out);
    }
}
