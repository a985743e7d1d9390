//! A check of debug builds: a linear step with ordinary operands has a finite result.
//!
//! The weights of a corrupt file may be infinite, NaN, or so large that sums overflow. The result is then
//! not finite either, and the model reports it as an error. So the operands are examined, but only if the
//! result is not finite. Quantized weights are never ordinary, because their elements do not show every factor.

use super::memory::Arena;
use realizar_kernels_cpu::Rows;
use realizar_model::graph::plan::Step;
use realizar_model::graph::weights::{WeightData, Weights};
use realizar_model::graph::{Norm, Op, Prologue};
use realizar_quant::BlockType;

/// Magnitude up to which an operand is ordinary. A squared activation times a gate and a weight is at
/// most `2^80`, so sums over up to `2^40` columns do not overflow.
const MAX_ORDINARY: f32 = 1_048_576.0;

/// Checks the result of a linear step on the first `n_rows` rows of the arena. `idx` is the step's number
/// in the plan, and `bias` has the biases of all parts.
///
/// # Panics
/// If an element is not finite although all operands are ordinary.
pub(super) fn assert_finite(
    idx: usize,
    step: &Step,
    weights: &Weights,
    bias: Option<&[f32]>, // [out]
    arena: &Arena,
    n_rows: usize,
) {
    let Some((row, col)) = find_not_finite(arena.rows(&step.output, n_rows)) else { return };
    let inputs = step.inputs.iter().map(|place| arena.rows(place, n_rows));
    let is_ordinary = inputs.flat_map(|rows| rows.iter()).all(are_ordinary)
        && bias.is_none_or(are_ordinary)
        && has_ordinary_weights(step, weights);
    assert!(
        !is_ordinary,
        "step {idx}, a linear of {} to {} columns: element {col} of row {row} is not finite, but its \
         operands are",
        step.inputs[0].width, step.output.width
    );
}

/// The row and the column of the first element that is not finite.
fn find_not_finite(rows: Rows<'_>) -> Option<(usize, usize)> {
    let col = |row: &[f32]| row.iter().position(|x| !x.is_finite());
    rows.iter().enumerate().find_map(|(r, row)| Some((r, col(row)?)))
}

fn are_ordinary(values: &[f32]) -> bool {
    // False for NaN.
    values.iter().all(|x| x.abs() <= MAX_ORDINARY)
}

fn has_ordinary_weights(step: &Step, weights: &Weights) -> bool {
    let Op::Linear { prologue, parts, .. } = &step.op else { return false };
    let is_ordinary_norm = |norm: &Norm| {
        let vectors = [norm.weight, norm.bias].into_iter().flatten();
        // A row of zeros has no norm without `eps`.
        norm.eps > 0.0 && vectors.into_iter().all(|id| are_ordinary(weights.vector(id)))
    };
    let prologue_is_ordinary = match prologue {
        Prologue::Norm(norm) => is_ordinary_norm(norm),
        Prologue::None | Prologue::Gated(_) | Prologue::Act(_) => true,
    };
    prologue_is_ordinary
        && parts.iter().all(|part| match weights.get(part.weight) {
            // The factors of a quantized block can overflow where its quants are zero, which its elements do not show.
            WeightData::Matrix { ty, cols, data, .. } if is_float(*ty) => {
                let mut row = vec![0.0; *cols];
                let row_bytes = ty.row_bytes(*cols).unwrap_or(0).max(1);
                data.chunks(row_bytes).all(|bytes| {
                    realizar_quant::dequantize(*ty, bytes, &mut row).is_ok() && are_ordinary(&row)
                })
            }
            _ => false,
        })
}

fn is_float(ty: BlockType) -> bool {
    matches!(ty, BlockType::F32 | BlockType::F16 | BlockType::BF16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_formats::Bytes;
    use realizar_model::graph::GraphBuilder;
    use realizar_model::graph::plan::{Plan, RowLimits, plan};
    use realizar_model::graph::weights::{Linear, Weight, WeightId};

    /// A plan of one linear of 2 to 3 columns, whose weights are ones and `last`.
    fn linear(last: f32) -> (Plan, Weights) {
        let mut b = GraphBuilder::new();
        let input = b.input(2);
        let weight = Weight { id: WeightId(0), rows: 3, cols: 2 };
        let output = b.linear(input, &Linear { weight, bias: None, order: None, factor: 1.0 });
        let plan = plan(&b.finish(output), RowLimits { tokens: 2, outputs: 2 });
        let data: Vec<u8> = [1.0; 5].iter().chain(&[last]).flat_map(|w| w.to_le_bytes()).collect();
        let ty = BlockType::F32;
        let matrix = WeightData::Matrix { ty, rows: 3, cols: 2, data: Bytes::from(data) };
        (plan, Weights(vec![matrix]))
    }

    /// Checks a linear whose second row of inputs is `[1, x]` and of results `[0, y, 0]`.
    fn check(last_weight: f32, bias: f32, x: f32, y: f32) {
        let (plan, weights) = linear(last_weight);
        let idx = plan.steps.iter().position(|step| matches!(step.op, Op::Linear { .. })).unwrap();
        let step = &plan.steps[idx];
        let mut arena = Arena::new(plan.arena_len).unwrap();
        arena.rows_mut(&step.inputs[0], 2).row_mut(1).copy_from_slice(&[1.0, x]);
        arena.rows_mut(&step.output, 2).row_mut(1).copy_from_slice(&[0.0, y, 0.0]);
        assert_finite(idx, step, &weights, Some(&[0.0, 0.0, bias]), &arena, 2);
    }

    #[test]
    fn results_of_extraordinary_operands_may_be_anything() {
        check(1.0, 0.0, 1.0, 1e38);
        for y in [f32::NAN, f32::INFINITY] {
            for bad in [f32::NAN, f32::NEG_INFINITY, 1e30] {
                check(bad, 0.0, 1.0, y);
                check(1.0, bad, 1.0, y);
                check(1.0, 0.0, bad, y);
            }
        }
    }

    #[test]
    #[should_panic(expected = "a linear of 2 to 3 columns: element 1 of row 1 is not finite")]
    fn a_nan_of_ordinary_operands_is_a_bug() {
        check(1.0, 0.0, 1.0, f32::NAN);
    }
}
