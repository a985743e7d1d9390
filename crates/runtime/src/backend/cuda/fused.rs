//! Steps that are one launch with their neighbours.
//!
//! Found once, when a plan is loaded, and taken in every batch, so that fusing shows in no batch's bits.

use crate::graph::Op;
use crate::graph::plan::{Place, Plan, Step};

/// Columns of a block of 8-bit activations.
const BLOCK_LEN: usize = 32;

/// What becomes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fused {
    /// It is launched as it is.
    No,
    /// Its generated rows are quantized for the product that follows, too.
    Quantizes,
    /// A later step does its work.
    Skipped,
    /// An attention that turns its queries and keys on their way: the steps whose work that was.
    RopeStore {
        /// That of the queries.
        q: usize,
        /// That of the keys.
        k: usize,
    },
}

/// What becomes of each step of a plan; `is_int8` says whether all products of a linear step take quantized rows.
pub(super) fn find(plan: &Plan, is_int8: impl Fn(usize) -> bool) -> Vec<Fused> {
    let mut fused = vec![Fused::No; plan.steps.len()];
    for idx in 1..plan.steps.len() {
        if is_int8(idx) && quantizes(&plan.steps[idx - 1], &plan.steps[idx]) {
            fused[idx - 1] = Fused::Quantizes;
        }
        if let Some((q, k)) = ropes(plan, idx) {
            fused[idx] = Fused::RopeStore { q, k };
            (fused[q], fused[k]) = (Fused::Skipped, Fused::Skipped);
        }
    }
    fused
}

/// Whether a step makes what the linear step after it reads, in a launch that can quantize it.
fn quantizes(step: &Step, linear: &Step) -> bool {
    let makes = match &step.op {
        Op::Norm(norm) => norm.group == step.output.width,
        Op::Act(_) | Op::GatedAct(_) => true,
        _ => false,
    };
    let is_aligned =
        |place: &Place| place.start.is_multiple_of(4) && place.stride.is_multiple_of(4);
    makes
        && matches!(linear.op, Op::Linear { .. })
        && linear.inputs[0] == step.output
        && linear.output.rows == step.output.rows
        && step.output.width.is_multiple_of(BLOCK_LEN)
        && is_aligned(&step.output)
        && step.inputs.iter().all(is_aligned)
}

/// The two steps before an attention that turn its queries and its keys, if one launch may do that and store the keys.
fn ropes(plan: &Plan, idx: usize) -> Option<(usize, usize)> {
    let Op::Attention(attention) = &plan.steps[idx].op else { return None };
    let (first, second) = (idx.checked_sub(2)?, idx - 1);
    let made_by = |i: usize| {
        let input = &plan.steps[idx].inputs[i];
        [first, second].into_iter().find(|&step| plan.steps[step].output == *input)
    };
    let (q, k) = (made_by(0)?, made_by(1)?);
    let (of_q, of_k) = (&plan.steps[q], &plan.steps[k]);
    let is_rope = |step: &Step| match &step.op {
        Op::Rope { head_dim, .. } => *head_dim == attention.head_dim,
        _ => false,
    };
    if q == k || !is_rope(of_q) || of_q.op != of_k.op || of_q.inputs[1] != of_k.inputs[1] {
        return None;
    }
    // Queries are written while keys and values are read.
    let overlaps = |a: &Place, b: &Place| {
        let end = |p: &Place| p.start + plan.limits.tokens * p.stride;
        a.start < end(b) && b.start < end(a)
    };
    let read = [&of_k.inputs[0], &plan.steps[idx].inputs[2], &of_q.inputs[1]];
    let is_apart =
        of_q.output == of_q.inputs[0] || !read.iter().any(|place| overlaps(&of_q.output, place));
    is_apart.then_some((q, k))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::plan::RowLimits;
    use crate::graph::{
        Activation, Attention, KvLayer, LinearPart, Norm, NormKind, Prologue, Reach, RopeStyle,
        RowDomain,
    };

    const LIMITS: RowLimits = RowLimits { tokens: 4, outputs: 1 };

    fn place(start: usize, stride: usize, width: usize) -> Place {
        Place { start, stride, width, rows: RowDomain::Tokens }
    }

    fn step(op: Op, inputs: &[Place], output: Place) -> Step {
        Step { op, inputs: inputs.to_vec(), output }
    }

    fn plan(steps: Vec<Step>) -> Plan {
        let output = steps[steps.len() - 1].output;
        Plan { steps, arena_len: 4096, state_len: 0, input: None, output, limits: LIMITS }
    }

    /// Turns of queries and keys, which are columns of one value, and attention; queries go to `q`.
    fn attention(q: Place, table_of_keys: Place) -> Plan {
        let rope = || Op::Rope { head_dim: 32, style: RopeStyle::Neox };
        let (table, [k, v]) = (place(2000, 32, 32), [64, 96].map(|at| place(at, 128, 32)));
        let attention = Op::Attention(Attention {
            kv: KvLayer { group: 0, layer: 0 },
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 32,
            scale: 1.0,
            softcap: None,
            window: None,
            reach: Reach::Causal,
            sinks: None,
        });
        plan(vec![
            step(rope(), &[place(0, 128, 64), table], q),
            step(rope(), &[k, table_of_keys], k),
            step(attention, &[q, k, v], place(3000, 64, 64)),
        ])
    }

    #[test]
    fn queries_and_keys_turn_on_their_way_to_attention() {
        let (table, fused) = (place(2000, 32, 32), Fused::RopeStore { q: 0, k: 1 });
        let find = |plan: &Plan| super::find(plan, |_| false);
        // In place, and elsewhere.
        for q in [place(0, 128, 64), place(640, 64, 64)] {
            let found = find(&attention(q, table));
            assert_eq!(found, [Fused::Skipped, Fused::Skipped, fused], "{q:?}");
        }
        // Where keys are read while queries are written, and by tables of their own.
        assert_eq!(find(&attention(place(448, 64, 64), table)), [Fused::No; 3]);
        assert_eq!(find(&attention(place(640, 64, 64), place(2500, 32, 32))), [Fused::No; 3]);
        // Where norms stand between the turns and attention.
        let mut normed = attention(place(0, 128, 64), table);
        for step in &mut normed.steps[..2] {
            let (kind, weight, bias) = (NormKind::Rms, None, None);
            let norm = Norm { kind, group: 32, eps: 1e-5, weight, bias, per_run: false };
            (step.op, step.inputs) = (Op::Norm(norm), vec![step.inputs[0]]);
        }
        assert_eq!(find(&normed), [Fused::No; 3]);
    }

    #[test]
    fn what_a_product_of_8_bit_rows_reads_is_quantized_where_it_is_made() {
        let of = |width: usize, between: bool| {
            let (x, h) = (place(0, width, width), place(512, width, width));
            let linear = Op::Linear {
                prologue: Prologue::None,
                parts: Vec::<LinearPart>::new(),
                residual: false,
            };
            let mut steps = vec![step(Op::GatedAct(Activation::Silu), &[x, x], h)];
            steps.extend(between.then(|| step(Op::Scale(2.0), &[x], x)));
            steps.push(step(linear, &[h], place(1024, 64, 64)));
            plan(steps)
        };
        let find = |plan: &Plan, int8: usize| super::find(plan, |idx| idx == int8);
        assert_eq!(find(&of(64, false), 1), [Fused::Quantizes, Fused::No]);
        assert_eq!(find(&of(64, false), 9), [Fused::No; 2]);
        assert_eq!(find(&of(48, false), 1), [Fused::No; 2]);
        assert_eq!(find(&of(64, true), 2), [Fused::No; 3]);
    }
}
