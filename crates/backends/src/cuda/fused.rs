//! Steps that are one launch with their neighbours.
//!
//! Found once, when a plan is loaded, and taken in every batch, so that fusing shows in no batch's bits.

use realizar_kernels_cuda::takes_new_heads;
use realizar_model::graph::plan::{Place, Plan, Step};
use realizar_model::graph::{NormKind, Op};
use std::ops::Range;

/// Columns of a block of 8-bit activations.
const BLOCK_LEN: usize = 32;

/// What becomes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fused {
    /// It is launched as it is.
    No,
    /// Its decode rows are quantized for the product that follows, too.
    Quantizes,
    /// A later step does its work.
    Skipped,
    /// A product that makes the step after it, a gated activation of its two halves, of its decode rows, if these are
    /// not too many; and quantizes them if that step would.
    Gates {
        /// Whether the gate is the second half.
        up_first: bool,
    },
    /// An attention that turns its queries and keys on their way: the steps whose work that was.
    RopeStore {
        /// Those of the queries.
        q: OfHeads,
        /// Those of the keys.
        k: OfHeads,
        /// Whether attention of decode rows can do their work, where each is the only row of its sequence.
        in_attention: bool,
        /// Whether its decode rows are quantized for the product that follows, too.
        quantizes: bool,
    },
}

impl Fused {
    /// Whether a step's decode rows are quantized for the product that follows.
    pub(super) fn quantizes(self) -> bool {
        matches!(self, Self::Quantizes | Self::RopeStore { quantizes: true, .. })
    }
}

/// Where the prefill rows of a step go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounded {
    /// To its output.
    No,
    /// To the product after it in BF16, and to its output, which others read.
    Too,
    /// To the product after it in BF16 alone.
    Only,
    /// Those of a product, gated as the step after it says, to the product after that alone.
    Gates {
        /// Whether the gate is the second half.
        up_first: bool,
    },
}

impl Rounded {
    /// Whether the product after the step finds them in BF16.
    pub(super) fn is_for_product(self) -> bool {
        matches!(self, Self::Too | Self::Only)
    }
}

/// How the products of a linear step take prefill rows in BF16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InBf16 {
    /// Whether in the order of groups of warps.
    pub(super) is_grouped: bool,
    /// Products.
    pub(super) n: usize,
}

/// Where the prefill rows of each step of a plan go; `in_bf16` tells of a linear step how all its products take them, if it is in one
/// form of BF16.
pub(super) fn find_rounded(plan: &Plan, in_bf16: impl Fn(usize) -> Option<InBf16>) -> Vec<Rounded> {
    let mut rounded = vec![Rounded::No; plan.steps.len()];
    for idx in 1..plan.steps.len() {
        let (step, linear) = (&plan.steps[idx - 1], &plan.steps[idx]);
        if !quantizes(step, linear) || in_bf16(idx).is_none() {
            continue;
        }
        let is_residual = linear.inputs[1..].contains(&step.output);
        let is_read = is_residual || is_read_after(plan, idx, &step.output);
        rounded[idx - 1] = if is_read { Rounded::Too } else { Rounded::Only };
        // The product in front of a gated activation.
        let gate = idx.checked_sub(2).filter(|_| !is_read);
        let is_grouped = |of: usize| in_bf16(of).filter(|of| of.is_grouped);
        if let Some(gate) = gate
            && is_grouped(idx).is_some()
            && is_grouped(gate).is_some_and(|of| of.n == 1)
            && let Some(up_first) = gates(plan, gate)
        {
            rounded[gate] = Rounded::Gates { up_first };
        }
    }
    rounded
}

/// What becomes of the steps of a plan.
#[derive(Debug)]
pub(super) struct FusedSteps {
    /// Of each.
    pub(super) steps: Vec<Fused>,
    /// Where the prefill rows of each go.
    pub(super) rounded: Vec<Rounded>,
}

/// The steps between the heads that a product makes and the attention that reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfHeads {
    /// The norm of each head.
    pub(super) norm: Option<usize>,
    /// The turn.
    pub(super) rope: usize,
}

impl OfHeads {
    /// The first of them.
    pub(super) fn first(self) -> usize {
        self.norm.unwrap_or(self.rope)
    }

    fn steps(self) -> impl Iterator<Item = usize> {
        self.norm.into_iter().chain([self.rope])
    }
}

/// How many matrices a linear step has on the device if all of them take quantized rows; 0 for other steps.
pub(super) fn n_quantized(types: impl IntoIterator<Item = bool>) -> usize {
    types.into_iter().try_fold(0, |n, is_int8| is_int8.then_some(n + 1)).unwrap_or(0)
}

/// What becomes of each step of a plan; `n_quantized` tells of a step what the function of that name does.
pub(super) fn find(plan: &Plan, n_quantized: impl Fn(usize) -> usize) -> Vec<Fused> {
    let mut fused = vec![Fused::No; plan.steps.len()];
    for idx in 1..plan.steps.len() {
        if n_quantized(idx - 1) == 1
            && let Some(up_first) = gates(plan, idx - 1)
        {
            fused[idx - 1] = Fused::Gates { up_first };
        }
        if n_quantized(idx) > 0 && quantizes(&plan.steps[idx - 1], &plan.steps[idx]) {
            match &mut fused[idx - 1] {
                Fused::RopeStore { quantizes, .. } => *quantizes = true,
                other => *other = Fused::Quantizes,
            }
        }
        if let Some((q, k, in_attention)) = ropes(plan, idx) {
            fused[idx] = Fused::RopeStore { q, k, in_attention, quantizes: false };
            q.steps().chain(k.steps()).for_each(|step| fused[step] = Fused::Skipped);
        }
    }
    fused
}

/// Whether a step makes what the linear step after it reads, in a launch that can quantize it.
fn quantizes(step: &Step, linear: &Step) -> bool {
    let makes = match &step.op {
        Op::Norm(norm) => norm.group == step.output.width,
        Op::Act(_) | Op::GatedAct(_) => true,
        // A head's results are whole blocks.
        Op::Attention(of) => (step.output.width / of.n_heads).is_multiple_of(BLOCK_LEN),
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

/// Whether a linear step is read by nothing but the gated activation of its halves after it, and whether the gate is
/// the second half.
fn gates(plan: &Plan, idx: usize) -> Option<bool> {
    let (linear, gated) = (&plan.steps[idx], &plan.steps[idx + 1]);
    let (Op::Linear { residual: false, .. }, Op::GatedAct(_)) = (&linear.op, &gated.op) else {
        return None;
    };
    let [gate, up] = &gated.inputs[..] else { return None };
    let Place { start, stride, width, rows } = linear.output;
    let half = |i: usize| Place { start: start + i * (width / 2), stride, width: width / 2, rows };
    let is_halves = |a, b| *gate == half(a) && *up == half(b);
    let is_all = width.is_multiple_of(2) && gated.output.rows == rows;
    let up_first = is_halves(1, 0);
    (is_all && (up_first || is_halves(0, 1)) && !is_read_after(plan, idx + 1, &linear.output))
        .then_some(up_first)
}

/// Whether what lies at `place` is read by a step after `idx`, or is an output.
fn is_read_after(plan: &Plan, idx: usize, place: &Place) -> bool {
    let range = |p: &Place| range(plan, p);
    // What no step has written over so far.
    let mut left = vec![range(place)];
    for step in &plan.steps[idx + 1..] {
        let is_read = |p: &Place| left.iter().any(|left| overlap(left, &range(p)));
        if step.inputs.iter().any(is_read) {
            return true;
        }
        // Between the rows of a view there may be something else.
        if step.output.stride == step.output.width {
            let over = range(&step.output);
            let rest = |left: Range<usize>| {
                [left.start..left.end.min(over.start), left.start.max(over.end)..left.end]
            };
            left = left.into_iter().flat_map(rest).filter(|left| !left.is_empty()).collect();
        }
    }
    let of_draft = plan.draft.iter().flat_map(|draft| [&draft.hidden, &draft.logits, &draft.next]);
    let mut outputs = [&plan.output].into_iter().chain(&plan.hidden).chain(of_draft);
    outputs.any(|output| left.iter().any(|left| overlap(left, &range(output))))
}

/// Up to the last column of the last row: a view does not reach as far as its stride would.
fn range(plan: &Plan, place: &Place) -> Range<usize> {
    let before_last = plan.limits.of(place.rows).saturating_sub(1) * place.stride;
    place.start..place.start + before_last + place.width
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The steps before an attention that turn its queries and its keys, and those before them that normalize their heads, if
/// one launch may do all of that and store the keys; and whether this may be attention's.
fn ropes(plan: &Plan, idx: usize) -> Option<(OfHeads, OfHeads, bool)> {
    let Op::Attention(attention) = &plan.steps[idx].op else { return None };
    let is_stored_by = |inputs: &[Place]| matches!(inputs, [_, k, v] if k.start != v.start);
    if !is_stored_by(&plan.steps[idx].inputs) {
        return None;
    }
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
    let mut found = [q, k].map(|rope| OfHeads { norm: None, rope });
    // Where a turn is in place, nothing else reads what the norm before it made.
    let is_norm_of = |step: &Step, rope: &Step| {
        matches!(&step.op, Op::Norm(norm)
            if norm.kind == NormKind::Rms
                && norm.group == attention.head_dim
                && !norm.per_run
                && norm.weight.is_some()
                && norm.bias.is_none())
            && step.output == rope.inputs[0]
            && step.output == rope.output
    };
    for before in (first.saturating_sub(2)..first).rev() {
        let step = &plan.steps[before];
        let of = |of: &&mut OfHeads| of.norm.is_none() && is_norm_of(step, &plan.steps[of.rope]);
        let Some(of) = found.iter_mut().find(of) else { break };
        of.norm = Some(before);
    }
    let [q, k] = found;
    let input = |of: OfHeads| &plan.steps[of.first()].inputs[0];
    let read = [input(k), &plan.steps[idx].inputs[2], &of_q.inputs[1]];
    // Queries, or results of attention, are written while keys and values are read, and queries of other heads.
    let is_apart = |written: &Place| {
        let is_read = |at: &Place| overlap(&range(plan, written), &range(plan, at));
        written == input(q) || !is_read(input(q)) && !read.into_iter().any(is_read)
    };
    let in_attention = takes_new_heads(attention.n_heads, attention.n_kv_heads)
        && is_apart(&plan.steps[idx].output);
    is_apart(&of_q.output).then_some((q, k, in_attention))
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_model::graph::plan::{DraftPlan, RowLimits};
    use realizar_model::graph::weights::WeightId;
    use realizar_model::graph::{
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
        Plan {
            steps,
            arena_len: 4096,
            state_len: 0,
            input: None,
            output,
            hidden: None,
            draft: None,
            limits: LIMITS,
        }
    }

    fn linear() -> Op {
        let parts = Vec::<LinearPart>::new();
        Op::Linear { prologue: Prologue::None, parts, residual: false }
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
            chunked: false,
            reach: Reach::Causal,
            sinks: None,
            alibi: None,
        });
        plan(vec![
            step(rope(), &[place(0, 128, 64), table], q),
            step(rope(), &[k, table_of_keys], k),
            step(attention, &[q, k, v], place(3000, 64, 64)),
        ])
    }

    #[test]
    fn queries_and_keys_turn_on_their_way_to_attention() {
        let [q, k] = [0, 1].map(|rope| OfHeads { norm: None, rope });
        let (table, fused) =
            (place(2000, 32, 32), Fused::RopeStore { q, k, in_attention: true, quantizes: false });
        let find = |plan: &Plan| super::find(plan, |_| 0);
        // In place, and elsewhere.
        for q in [place(0, 128, 64), place(640, 64, 64)] {
            let found = find(&attention(q, table));
            assert_eq!(found, [Fused::Skipped, Fused::Skipped, fused], "{q:?}");
        }
        // Where keys are read while queries are written, and by tables of their own.
        assert_eq!(find(&attention(place(448, 64, 64), table)), [Fused::No; 3]);
        assert_eq!(find(&attention(place(640, 64, 64), place(2500, 32, 32))), [Fused::No; 3]);
        // Where the results of attention lie on keys that other heads still read, or on other queries.
        for at in [64, 1] {
            let mut plan = attention(place(0, 128, 64), table);
            plan.steps[2].output = place(at, 64, 64);
            let fused = Fused::RopeStore { q, k, in_attention: false, quantizes: false };
            assert_eq!(find(&plan)[2], fused, "{at}");
        }
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
    fn heads_are_normalized_where_they_turn() {
        let norm = |group: usize, bias: Option<WeightId>| {
            let (kind, weight) = (NormKind::Rms, Some(WeightId(0)));
            Op::Norm(Norm { kind, group, eps: 1e-6, weight, bias, per_run: false })
        };
        let heads = place(0, 128, 64);
        // A norm of the queries goes in front of the two turns, and one of the keys.
        let with = |of_q: Op, of_k: Option<Op>| {
            let mut plan = attention(heads, place(2000, 32, 32));
            let k = plan.steps[1].output;
            let norms = of_k.map(|op| step(op, &[k], k));
            let norms = [step(of_q, &[heads], heads)].into_iter().chain(norms);
            plan.steps.splice(0..0, norms);
            plan
        };
        let find = |plan: &Plan| super::find(plan, |_| 0);
        let fused = |[q, k]: [Option<usize>; 2], first: usize| Fused::RopeStore {
            q: OfHeads { norm: q, rope: first },
            k: OfHeads { norm: k, rope: first + 1 },
            in_attention: true,
            quantizes: false,
        };
        let plan = with(norm(32, None), Some(norm(32, None)));
        assert_eq!(find(&plan)[4], fused([Some(0), Some(1)], 2));
        assert_eq!(find(&plan)[..4], [Fused::Skipped; 4]);
        let plan = with(norm(32, None), None);
        assert_eq!(find(&plan)[3], fused([Some(0), None], 1));
        // Norms of whole rows and such with a bias stay launches of their own, and so does what is in front of them.
        let plan = with(norm(32, None), Some(norm(32, Some(WeightId(1)))));
        assert_eq!(find(&plan)[..2], [Fused::No; 2]);
        assert_eq!(find(&plan)[4], fused([None, None], 2));
        let plan = with(norm(64, None), None);
        assert_eq!(find(&plan)[3], fused([None, None], 1));
        // What is not turned in place may have another reader.
        let mut plan = with(norm(32, None), None);
        let (output, at) = (place(640, 64, 64), [1, 3]);
        plan.steps[at[0]].output = output;
        plan.steps[at[1]].inputs[0] = output;
        assert_eq!(find(&plan)[0], Fused::No);
        assert_eq!(find(&plan)[3], fused([None, None], 1));
    }

    #[test]
    fn what_a_product_of_8_bit_rows_reads_is_quantized_where_it_is_made() {
        let of = |width: usize, between: bool| {
            let (x, h) = (place(0, width, width), place(512, width, width));
            let mut steps = vec![step(Op::GatedAct(Activation::Silu), &[x, x], h)];
            steps.extend(between.then(|| step(Op::Scale(2.0), &[x], x)));
            steps.push(step(linear(), &[h], place(1024, 64, 64)));
            plan(steps)
        };
        let find = |plan: &Plan, int8: usize| super::find(plan, |idx| usize::from(idx == int8));
        assert_eq!(find(&of(64, false), 1), [Fused::Quantizes, Fused::No]);
        assert_eq!(find(&of(64, false), 9), [Fused::No; 2]);
        assert_eq!(find(&of(48, false), 1), [Fused::No; 2]);
        assert_eq!(find(&of(64, true), 2), [Fused::No; 3]);
    }

    #[test]
    fn prefill_rows_go_to_the_product_behind_them() {
        let (x, h, out) = (place(0, 64, 64), place(512, 64, 64), place(1024, 64, 64));
        let of = |inputs: &[Place], then: Option<Place>| {
            let act = step(Op::GatedAct(Activation::Silu), &[x, x], h);
            let mut steps = vec![act, step(linear(), inputs, out)];
            steps.extend(then.map(|place| step(Op::Add, &[out, place], out)));
            plan(steps)
        };
        let in_bf16 = |is_grouped| Some(InBf16 { is_grouped, n: 1 });
        let find = |plan: &Plan| find_rounded(plan, |idx| in_bf16(true).filter(|_| idx == 1))[0];
        assert_eq!(find(&of(&[h], None)), Rounded::Only);
        assert_eq!(find_rounded(&of(&[h], None), |_| None), [Rounded::No; 2]);
        // Where it is the residual of that product, and where a later step reads it.
        assert_eq!(find(&of(&[h, h], None)), Rounded::Too);
        assert_eq!(find(&of(&[h], Some(h))), Rounded::Too);
        assert_eq!(find(&of(&[h], Some(x))), Rounded::Only);
        assert_eq!(find(&of(&[x], None)), Rounded::No);
        // Where drafting continues from it.
        let mut plan = of(&[h], None);
        let draft = DraftPlan { first: 2, hidden: h, input: x, logits: out, next: out };
        plan.draft = Some(draft);
        assert_eq!(find(&plan), Rounded::Too);
    }

    #[test]
    fn products_of_groups_of_warps_gate_prefill_rows() {
        let (x, both, h) = (place(0, 64, 64), place(512, 128, 128), place(2048, 64, 64));
        let [first, second] = [512, 576].map(|at| place(at, 128, 64));
        let of = |gate: Place, up: Place| {
            plan(vec![
                step(linear(), &[x], both),
                step(Op::GatedAct(Activation::Silu), &[gate, up], h),
                step(linear(), &[h], place(1024, 64, 64)),
            ])
        };
        let find = |plan: &Plan, of_gate: InBf16, of_next: bool| {
            let next = InBf16 { is_grouped: of_next, n: 1 };
            find_rounded(plan, |idx| Some(if idx == 0 { of_gate } else { next }))
        };
        let one = InBf16 { is_grouped: true, n: 1 };
        for (plan, up_first) in [(of(first, second), false), (of(second, first), true)] {
            let expected = [Rounded::Gates { up_first }, Rounded::Only, Rounded::No];
            assert_eq!(find(&plan, one, true), expected);
            // Where either product takes rows in another order, and where there are two of them.
            let apart = [Rounded::No, Rounded::Only, Rounded::No];
            assert_eq!(find(&plan, one, false), apart);
            assert_eq!(find(&plan, InBf16 { is_grouped: false, n: 1 }, true), apart);
            assert_eq!(find(&plan, InBf16 { is_grouped: true, n: 2 }, true), apart);
        }
    }

    #[test]
    fn results_of_attention_are_quantized_where_they_are_made() {
        let [q, k] = [0, 1].map(|rope| OfHeads { norm: None, rope });
        let of = |head: usize, int8: usize| {
            let mut plan = attention(place(0, 128, 64), place(2000, 32, 32));
            let Op::Attention(of_heads) = &mut plan.steps[2].op else { unreachable!() };
            of_heads.n_heads = 64 / head;
            let results = plan.steps[2].output;
            plan.steps.push(step(linear(), &[results], place(3100, 64, 64)));
            super::find(&plan, |idx| usize::from(idx == int8))[2]
        };
        assert_eq!(of(32, 3), Fused::RopeStore { q, k, in_attention: true, quantizes: true });
        assert_eq!(of(32, 9), Fused::RopeStore { q, k, in_attention: true, quantizes: false });
        assert!(!of(16, 3).quantizes());
    }

    #[test]
    fn a_product_gates_what_nobody_else_reads() {
        let (x, both, out) = (place(0, 32, 32), place(256, 128, 128), place(1024, 64, 64));
        let halves = [place(256, 128, 64), place(320, 128, 64)];
        let of = |inputs: &[Place], more: Vec<Step>| {
            let steps = [
                step(linear(), &[x], both),
                step(Op::GatedAct(Activation::Silu), inputs, out),
                step(linear(), &[out], x),
            ];
            plan(steps.into_iter().chain(more).collect())
        };
        let find = |plan: &Plan, n: usize| super::find(plan, |idx| if idx == 0 { n } else { 1 })[0];
        let fused = |up_first| Fused::Gates { up_first };
        let swapped = [halves[1], halves[0]];
        assert_eq!(find(&of(&halves, vec![]), 1), fused(false));
        assert_eq!(find(&of(&swapped, vec![]), 1), fused(true));
        // Of several matrices, of none that takes 8-bit rows, and of other columns.
        assert_eq!(find(&of(&halves, vec![]), 2), Fused::No);
        assert_eq!(find(&of(&halves, vec![]), 0), Fused::No);
        assert_eq!(find(&of(&[halves[0]; 2], vec![]), 1), Fused::No);
        // With another reader, unless its place was written before.
        let scale = |from, to| step(Op::Scale(2.0), &[from], to);
        assert_eq!(find(&of(&halves, vec![scale(halves[1], x)]), 1), Fused::No);
        assert_eq!(find(&of(&halves, vec![scale(both, both)]), 1), Fused::No);
        let written = vec![scale(x, both), scale(halves[1], x)];
        assert_eq!(find(&of(&halves, written), 1), fused(false));
        let written = vec![scale(x, place(256, 64, 64)), scale(place(288, 64, 32), x)];
        assert_eq!(find(&of(&halves, written), 1), fused(false), "columns of what was written");
        let written = vec![scale(x, place(256, 32, 32)), scale(halves[1], x)];
        assert_eq!(find(&of(&halves, written), 1), Fused::No);
    }
}
