//! The plan: a graph as a flat list of steps with a place in one arena for
//! every value.
//!
//! Places are found by liveness: a value's storage is free again after its last
//! reader, and an operation that can work in place takes its input's storage
//! when nothing reads it later. The arena is sized for the largest batch, so a
//! step of the engine allocates nothing.

use crate::graph::{Graph, Op, RowDomain, ValueId};
use std::ops::Range;

/// The largest batch that a plan has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLimits {
    /// Tokens in a step.
    pub tokens: usize,
    /// Output rows in a step.
    pub outputs: usize,
}

impl RowLimits {
    /// Rows of a domain.
    pub fn of(&self, rows: RowDomain) -> usize {
        match rows {
            RowDomain::Tokens => self.tokens,
            RowDomain::Outputs => self.outputs,
        }
    }
}

/// Where a value lies: row `r` is `arena[start + r * stride ..][.. width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the first element in the arena, in f32.
    pub start: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Elements of a row.
    pub width: usize,
    /// What the rows stand for.
    pub rows: RowDomain,
}

/// One operation with its places.
#[derive(Debug, Clone)]
pub struct Step {
    /// What is done.
    pub op: Op,
    /// To what.
    pub inputs: Vec<Place>,
    /// Into what; equal to the first input's place when it works in place.
    pub output: Place,
}

/// A graph, laid out.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The operations in order.
    pub steps: Vec<Step>,
    /// Elements of the arena, in f32.
    pub arena_len: usize,
    /// Elements of a recurrent state, in f32.
    pub state_len: usize,
    /// Where the rows that come from outside go before the first step, if the
    /// graph has an input; no step fills it.
    pub input: Option<Place>,
    /// Where the graph's output is after the last step, its rows without gaps.
    pub output: Place,
    /// Where the hidden states of the output rows are after the last step, without gaps, if they stay beside the
    /// logits.
    pub hidden: Option<Place>,
    /// The part that drafts, whose steps are the last of [`Self::steps`]; none if the model has none.
    pub draft: Option<DraftPlan>,
    /// The rows that there is room for.
    pub limits: RowLimits,
}

/// Where a [drafting part](crate::graph::DraftPart) begins, and where its values are, rows without gaps.
#[derive(Debug, Clone, Copy)]
pub struct DraftPlan {
    /// Its first step. Those before it are the model's.
    pub first: usize,
    /// After a step of the model, the hidden states of its output rows.
    pub hidden: Place,
    /// Where hidden states go before the part's first step.
    pub input: Place,
    /// After the part's last step, the logits.
    pub logits: Place,
    /// After it, the hidden states that they are made of.
    pub next: Place,
}

impl Plan {
    /// The steps that are run for a batch which drafts, or for one of the model.
    pub fn steps_of(&self, drafts: bool) -> Range<usize> {
        match &self.draft {
            Some(draft) if drafts => draft.first..self.steps.len(),
            Some(draft) => 0..draft.first,
            None => 0..self.steps.len(),
        }
    }

    /// Where the rows lie that such a batch gives.
    ///
    /// # Panics
    /// If it drafts and there is no part for that.
    pub fn output_of(&self, drafts: bool) -> &Place {
        if drafts { &self.draft_part().logits } else { &self.output }
    }

    /// Where the hidden states lie that such a batch leaves, for drafting or as embeddings; none where neither is
    /// wanted.
    pub fn hidden_of(&self, drafts: bool) -> Option<&Place> {
        match &self.draft {
            Some(draft) if drafts => Some(&draft.next),
            Some(draft) => Some(&draft.hidden),
            None => self.hidden.as_ref(),
        }
    }

    /// Where the rows go that such a batch comes with.
    ///
    /// # Panics
    /// If it drafts and there is no part for that.
    pub fn input_of(&self, drafts: bool) -> Option<&Place> {
        if drafts { Some(&self.draft_part().input) } else { self.input.as_ref() }
    }

    fn draft_part(&self) -> &DraftPlan {
        self.draft.as_ref().expect("a batch that drafts is for a model with a part for it")
    }
}

/// Storages begin at multiples of a cache line.
const ALIGN: usize = 16;

/// A piece of the arena that holds one or several values.
struct Storage {
    start: usize,
    stride: usize,
    len: usize,
    last_use: usize,
}

/// Free pieces of the arena, in order of position.
#[derive(Default)]
struct FreeList {
    pieces: Vec<(usize, usize)>, // (start, len)
    arena_len: usize,
}

impl FreeList {
    /// The smallest free piece that fits, or new room at the end.
    fn take(&mut self, len: usize) -> usize {
        let fits = |&(_, &(_, free)): &(usize, &(usize, usize))| free >= len;
        let best = self.pieces.iter().enumerate().filter(fits).min_by_key(|(_, p)| p.1);
        if let Some((i, &(start, free))) = best {
            if free == len {
                self.pieces.remove(i);
            } else {
                self.pieces[i] = (start + len, free - len);
            }
            return start;
        }
        // Extend a free piece that reaches to the end.
        let start = match self.pieces.last() {
            Some(&(start, free)) if start + free == self.arena_len => {
                self.pieces.pop();
                start
            }
            _ => self.arena_len,
        };
        self.arena_len = start + len;
        start
    }

    fn give(&mut self, start: usize, len: usize) {
        let i = self.pieces.partition_point(|&(s, _)| s < start);
        self.pieces.insert(i, (start, len));
        if i + 1 < self.pieces.len() && start + len == self.pieces[i + 1].0 {
            self.pieces[i].1 += self.pieces.remove(i + 1).1;
        }
        if i > 0 && self.pieces[i - 1].0 + self.pieces[i - 1].1 == start {
            self.pieces[i - 1].1 += self.pieces.remove(i).1;
        }
    }
}

/// Whether an operation may write over its first input.
fn works_in_place(op: &Op) -> bool {
    matches!(
        op,
        Op::Norm(_)
            | Op::Rope { .. }
            | Op::Act(_)
            | Op::Scale(_)
            | Op::Softcap(_)
            | Op::Clamp { .. }
            | Op::ExpertBias(_)
            | Op::Add
            | Op::Mul
            | Op::AllReduce { .. }
    )
}

/// Of an operation that puts its inputs side by side, where in its output each of them goes.
pub fn parts(step: &Step) -> impl Iterator<Item = (Place, Place)> + '_ {
    let mut start = step.output.start;
    step.inputs.iter().map(move |&input| {
        let part = Place { start, width: input.width, ..step.output };
        start += input.width;
        (input, part)
    })
}

/// Lays `graph` out for batches up to `limits`.
///
/// # Panics
/// If the graph was not finished.
pub fn plan(graph: &Graph, limits: RowLimits) -> Plan {
    let result = graph.output.expect("a finished graph has an output");
    let results: Vec<ValueId> = graph.results().collect();
    let mut last_use = vec![0; graph.values.len()]; // by direct readers
    for (i, node) in graph.all_nodes().enumerate() {
        last_use[node.output.idx()] = i;
        node.inputs.iter().for_each(|id| last_use[id.idx()] = i);
    }
    results.iter().for_each(|result| last_use[result.idx()] = usize::MAX);
    if let Some(draft) = &graph.draft {
        // What a step of the model gives is taken before one that drafts.
        let of_model = [result, draft.hidden].into_iter().chain(graph.hidden);
        of_model.for_each(|id| last_use[id.idx()] = graph.nodes.len());
    }
    // A value is read until the last of its views is.
    let mut root_last_use = last_use.clone();
    for id in graph.value_ids() {
        let root = graph.root(id).0.idx();
        root_last_use[root] = root_last_use[root].max(last_use[id.idx()]);
    }

    let mut storages: Vec<Storage> = Vec::new();
    // Of each root that was made so far: its storage and its first column there.
    let mut homes: Vec<Option<(usize, usize)>> = vec![None; graph.values.len()];
    let mut free = FreeList::default();
    let mut steps = Vec::with_capacity(graph.nodes.len());
    let (mut outside, mut draft_input) = (None, None);
    let mut made_in = vec![None; graph.values.len()];

    for (i, node) in graph.all_nodes().enumerate() {
        let out = &graph.values[node.output.idx()];
        let home = |homes: &[Option<(usize, usize)>], id: ValueId| {
            let (root, col) = graph.root(id);
            let (storage, base) = homes[root.idx()].expect("a value is made before it is read");
            (storage, base + col)
        };
        let in_place = node.inputs.first().copied().filter(|&x| {
            let (storage, col) = home(&homes, x);
            let width = graph.values[x.idx()].width;
            // A later reader of these columns would see them overwritten.
            let read_later = |id: ValueId| {
                let root = graph.root(id).0.idx();
                homes[root].is_some_and(|(s, _)| s == storage)
                    && last_use[id.idx()] > i
                    && (id == x || {
                        let c = home(&homes, id).1;
                        c < col + width && col < c + graph.values[id.idx()].width
                    })
            };
            works_in_place(&node.op)
                && width == out.width
                // The graph's output must have rows without gaps.
                && (!results.contains(&node.output) || storages[storage].stride == width)
                && !graph.value_ids().any(read_later)
                // An operand in the same storage cannot be read while it is written.
                && node.inputs[1..].iter().all(|&y| home(&homes, y).0 != storage)
        });
        let inputs: Vec<Place> = node
            .inputs
            .iter()
            .map(|&id| {
                let (storage, col) = home(&homes, id);
                let Storage { start, stride, .. } = storages[storage];
                let value = &graph.values[id.idx()];
                Place { start: start + col, stride, width: value.width, rows: value.rows }
            })
            .collect();
        let (storage, col) = match in_place {
            Some(x) => home(&homes, x),
            None => {
                let len = (out.width * limits.of(out.rows)).next_multiple_of(ALIGN);
                let start = free.take(len);
                storages.push(Storage { start, stride: out.width, len, last_use: 0 });
                (storages.len() - 1, 0)
            }
        };
        homes[node.output.idx()] = Some((storage, col));
        let s = &mut storages[storage];
        s.last_use = s.last_use.max(root_last_use[node.output.idx()]);
        let output =
            Place { start: s.start + col, stride: s.stride, width: out.width, rows: out.rows };
        made_in[node.output.idx()] = Some(output);
        if node.op == Op::Input {
            match i {
                0 => outside = Some(output),
                _ => {
                    assert_eq!(i, graph.nodes.len(), "an input comes before every step");
                    draft_input = Some((steps.len(), output));
                }
            }
        } else {
            steps.push(Step { op: node.op.clone(), inputs, output });
        }
        for s in &mut storages {
            if s.last_use <= i {
                free.give(s.start, s.len);
                s.last_use = usize::MAX; // given back once
            }
        }
    }

    let place = |id: ValueId| made_in[id.idx()].expect("a node makes each result");
    let draft = graph.draft.as_ref().zip(draft_input).map(|(draft, (first, input))| DraftPlan {
        first,
        hidden: place(draft.hidden),
        input,
        logits: place(draft.logits),
        next: place(draft.next),
    });
    let (output, hidden) = (place(result), graph.hidden.map(place));
    let (arena_len, state_len) = (free.arena_len, graph.state_len);
    Plan { steps, arena_len, state_len, input: outside, output, hidden, draft, limits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::weights::{Linear, NormWeights, Weight, WeightId};
    use crate::graph::{
        AttentionSpec, Fusions, GraphBuilder, NormKind, Reach, RopeAngles, RopeStyle, fuse,
    };

    const DIM: usize = 32;

    fn linear(rows: usize, cols: usize) -> Linear {
        Linear {
            weight: Weight { id: WeightId(0), rows, cols },
            bias: None,
            order: None,
            factor: 1.0,
        }
    }

    /// Attention layers with rope on views of a merged QKV.
    fn attention_layers(n_layers: usize) -> Graph {
        let mut b = GraphBuilder::new();
        let mut x = b.embed(&Weight { id: WeightId(0), rows: 10, cols: DIM }, 1.0);
        let table = b.rope_table(RopeAngles {
            inv_freq: vec![1.0; 4].into(),
            mscale: 1.0,
            components: [].into(),
        });
        for _ in 0..n_layers {
            let norm = NormWeights { weight: None, bias: None, len: DIM };
            let h = b.norm(x, NormKind::Rms, &norm, 1e-5);
            let q = b.linear(h, &linear(DIM, DIM));
            let k = b.linear(h, &linear(8, DIM));
            let v = b.linear(h, &linear(8, DIM));
            let q = b.rope(q, table, 8, RopeStyle::Neox);
            let k = b.rope(k, table, 8, RopeStyle::Neox);
            let spec = AttentionSpec {
                n_heads: 4,
                n_kv_heads: 1,
                head_dim: 8,
                scale: 1.0,
                softcap: None,
                window: None,
                chunked: false,
                reach: Reach::Causal,
                sinks: None,
                alibi: None,
            };
            let a = b.attention(q, k, v, &spec);
            let o = b.linear(a, &linear(DIM, DIM));
            x = b.add(x, o);
        }
        let x = b.select_rows(x);
        let logits = b.linear(x, &linear(10, DIM));
        b.finish(logits)
    }

    /// Every value that is read must still hold what its maker wrote.
    fn check_no_overlap(plan: &Plan) {
        let limits = plan.limits;
        let cells = |p: &Place| {
            let (p, rows) = (*p, limits.of(p.rows));
            (0..rows).flat_map(move |r| (0..p.width).map(move |c| p.start + r * p.stride + c))
        };
        // Replay: each cell remembers the step that wrote it.
        let mut written = vec![None; plan.arena_len];
        plan.input.iter().flat_map(cells).for_each(|c| written[c] = Some(usize::MAX));
        for (i, step) in plan.steps.iter().enumerate() {
            for input in &step.inputs {
                let owner = written[input.start];
                assert!(owner.is_some(), "step {i} reads what no step wrote");
                let whole = cells(input).all(|c| written[c] == owner);
                assert!(whole, "step {i} ({:?}) reads a value that was overwritten", step.op);
            }
            for input in &step.inputs {
                let overlap = cells(input).any(|c| cells(&step.output).any(|o| o == c));
                assert!(!overlap || *input == step.output, "step {i} writes what it reads");
            }
            cells(&step.output).for_each(|c| written[c] = Some(i));
        }
        assert!(cells(&plan.output).all(|c| written[c] == Some(plan.steps.len() - 1)));
    }

    #[test]
    fn storages_are_reused_and_never_overlap() {
        for fusions in [Fusions::NONE, Fusions::ALL] {
            let limits = RowLimits { tokens: 3, outputs: 2 };
            let deep = plan(&fuse(attention_layers(6), fusions), limits);
            check_no_overlap(&deep);
            let deeper = plan(&fuse(attention_layers(12), fusions), limits);
            assert_eq!(deep.arena_len, deeper.arena_len, "depth costs no memory, {fusions:?}");
        }
    }

    #[test]
    fn rope_works_in_place_on_columns_of_qkv() {
        let limits = RowLimits { tokens: 4, outputs: 1 };
        let plan = plan(&fuse(attention_layers(1), Fusions::ALL), limits);
        let ropes: Vec<&Step> =
            plan.steps.iter().filter(|s| matches!(s.op, Op::Rope { .. })).collect();
        assert_eq!(ropes.len(), 2);
        for rope in &ropes {
            assert_eq!(rope.inputs[0], rope.output);
            assert_eq!(rope.output.stride, DIM + 8 + 8);
        }
        assert_eq!(ropes[1].output.start - ropes[0].output.start, DIM);
    }

    #[test]
    fn a_graph_may_begin_with_rows_from_outside_and_end_with_hidden_states() {
        let limits = RowLimits { tokens: 4, outputs: 1 };
        let mut b = GraphBuilder::new();
        let x = b.input(DIM);
        let h = b.linear(x, &linear(DIM, DIM));
        let wide = b.linear(x, &linear(8, DIM));
        let wide = b.act(wide, crate::graph::Activation::Relu);
        let back = b.linear(wide, &linear(DIM, 8));
        let sum = b.add(h, back);
        for fusions in [Fusions::NONE, Fusions::ALL] {
            let graph = fuse(b.clone().finish(sum), fusions);
            let plan = plan(&graph, limits);
            check_no_overlap(&plan);
            assert!(plan.steps.iter().all(|step| step.op != Op::Input));
            let place = |p: Place| (p.stride, p.width, p.rows);
            assert_eq!(plan.input.map(place), Some((DIM, DIM, RowDomain::Tokens)));
            assert_eq!(place(plan.output), (DIM, DIM, RowDomain::Tokens), "{fusions:?}");
        }
    }
}
