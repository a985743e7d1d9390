//! The part of a graph that drafts tokens: a layer for multi-token prediction that the model has (Gloeckle et
//! al., 2024, arXiv:2404.19737; DeepSeek-V3, arXiv:2412.19437).
//!
//! Its operations are run in steps of their own, behind a step of the model: they take the hidden states of
//! rows and the tokens that were chosen there, and give logits of the tokens after these. The model's own steps
//! store the keys and values that its attention reads, of every row. So they are in the pages of the sequence like
//! those of any other layer.

use super::select::movable;
use super::{Graph, Node, Op, Value, ValueId};

/// The operations that draft, and the values that they share with the rest.
#[derive(Debug, Clone)]
pub struct DraftPart {
    /// The operations, of which the first is the input.
    pub nodes: Vec<Node>,
    /// The model's normalized hidden states, which drafting begins with: `[outputs, dim]`.
    pub hidden: ValueId,
    /// The logits of the drafted tokens: `[outputs, vocab_size]`.
    pub logits: ValueId,
    /// The part's own normalized hidden states, with which it drafts one token more: `[outputs, dim]`.
    pub next: ValueId,
}

/// Removes what nothing needs of the operations that were recorded for the drafting part among the model's
/// own, and records again, for these alone, what would otherwise run on the output rows
/// ([`select_early`](super::select_early)): the keys and values of all rows are needed. Thus the logits are computed as
/// they are without that part.
///
/// A graph without such a part stays as it is.
///
/// # Panics
/// If the graph was not finished.
pub fn set_apart(mut graph: Graph) -> Graph {
    if graph.draft.is_none() {
        return graph;
    }
    let stores = |node: &Node| matches!(node.op, Op::StoreKv(_));
    let results: Vec<ValueId> = graph.results().collect();
    let of_model = reached(&graph, |_| false, &results);
    let of_draft = reached(&graph, stores, &[]);
    // The operations of the model that would run on output rows, seen without those of the draft.
    let nodes = std::mem::take(&mut graph.nodes);
    let (mut apart, mut own_idx) = (Vec::new(), Vec::new());
    for (i, node) in nodes.iter().enumerate().filter(|(i, _)| of_model[*i]) {
        graph.nodes.push(node.clone());
        own_idx.push(i);
    }
    let moves = movable(&graph);
    apart.resize(nodes.len(), false);
    own_idx.iter().zip(&moves).for_each(|(&i, &moves)| apart[i] = moves && of_draft[i]);

    // Of each value that is made a second time, the other.
    let mut twins: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    graph.nodes.clear();
    for (i, node) in nodes.into_iter().enumerate() {
        if of_model[i] {
            graph.nodes.push(node.clone());
        }
        let is_twin = of_model[i] && apart[i];
        if is_twin || (of_draft[i] && !of_model[i]) {
            let mut node = node;
            for input in &mut node.inputs {
                *input = twin(&mut graph, &mut twins, *input);
            }
            if is_twin {
                let Value { width, rows, view: _ } = graph.values[node.output.idx()];
                let output = add(&mut graph, Value { width, rows, view: None });
                twins[node.output.idx()] = Some(output);
                node.output = output;
            }
            graph.nodes.push(node);
        }
    }
    graph
}

/// Of each of the model's nodes, whether `ends` holds for it or one of `results`, or a node that does, depends on
/// it.
fn reached(graph: &Graph, ends: impl Fn(&Node) -> bool, results: &[ValueId]) -> Vec<bool> {
    let mut read = vec![false; graph.values.len()];
    results.iter().for_each(|&id| read[graph.root(id).0.idx()] = true);
    let mut reached = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        reached[i] = ends(node) || read[node.output.idx()];
        if reached[i] {
            node.inputs.iter().for_each(|&input| read[graph.root(input).0.idx()] = true);
        }
    }
    reached
}

fn add(graph: &mut Graph, value: Value) -> ValueId {
    graph.values.push(value);
    ValueId(u32::try_from(graph.values.len() - 1).expect("fewer than 2^32 values"))
}

/// The second of a value, or the value if it is made once; of columns, those of the second.
fn twin(graph: &mut Graph, twins: &mut Vec<Option<ValueId>>, id: ValueId) -> ValueId {
    twins.resize(graph.values.len(), None);
    if let Some(twin) = twins[id.idx()] {
        return twin;
    }
    let Value { width, rows, view } = graph.values[id.idx()];
    let Some((of, col)) = view else { return id };
    let root = twin(graph, twins, of);
    if root == of {
        return id;
    }
    let columns = add(graph, Value { width, rows, view: Some((root, col)) });
    twins.resize(graph.values.len(), None);
    twins[id.idx()] = Some(columns);
    columns
}

#[cfg(test)]
mod tests {
    use super::super::{
        Activation, AttentionSpec, Fusions, GraphBuilder, NormKind, Reach, RowDomain, fuse,
        select_early,
    };
    use super::*;
    use crate::graph::plan::{RowLimits, plan};
    use crate::graph::weights::{Linear, NormWeights, Weight, WeightId};

    const DIM: usize = 8;

    fn linear(rows: usize) -> Linear {
        let weight = Weight { id: WeightId(0), rows, cols: DIM };
        Linear { weight, bias: None, order: None, factor: 1.0 }
    }

    fn norm(b: &mut GraphBuilder, x: ValueId) -> ValueId {
        b.norm(x, NormKind::Rms, &NormWeights { weight: None, bias: None, len: DIM }, 1e-5)
    }

    /// Attention and its output projection, whose residual is `x`.
    fn layer(b: &mut GraphBuilder, x: ValueId) -> ValueId {
        let h = norm(b, x);
        let [q, k, v] = [0; 3].map(|_| b.linear(h, &linear(DIM)));
        let spec = AttentionSpec {
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: DIM,
            scale: 1.0,
            softcap: None,
            window: None,
            chunked: false,
            reach: Reach::Causal,
            sinks: None,
            alibi: None,
        };
        let a = b.attention(q, k, v, &spec);
        let o = b.linear(a, &linear(DIM));
        b.add(x, o)
    }

    fn model(drafts: bool) -> Graph {
        let mut b = GraphBuilder::new();
        let table = Weight { id: WeightId(0), rows: 10, cols: DIM };
        let x = b.embed(&table, 1.0);
        let x = layer(&mut b, x);
        let gate = b.act(x, Activation::Silu);
        let rows = b.add(x, gate);
        let x = b.select_rows(rows);
        let h = norm(&mut b, x);
        let logits = b.linear(h, &linear(10));
        if drafts {
            let h = norm(&mut b, rows);
            let before = b.short_conv(h, (WeightId(0), 2), None, None);
            b.store_draft_layer();
            layer(&mut b, before);
            let hidden = norm(&mut b, x);
            let before = b.begin_draft(DIM);
            let e = b.embed(&table, 1.0);
            let x = b.add(before, e);
            let x = layer(&mut b, x);
            let x = b.select_rows(x);
            let next = norm(&mut b, x);
            let logits = b.linear(next, &linear(10));
            b.end_draft(hidden, logits, next);
        }
        b.finish(logits)
    }

    /// The operations that a value is made of, with the kind of their rows.
    fn made_of(graph: &Graph, value: ValueId) -> Vec<String> {
        let reached = reached(graph, |_| false, &[value]);
        let nodes = graph.nodes.iter().zip(reached).filter(|(_, reached)| *reached);
        let name =
            |node: &Node| format!("{:?} of {:?}", node.op, graph.values[node.output.idx()].rows);
        nodes.map(|(node, _)| name(node)).collect()
    }

    #[test]
    fn the_model_computes_its_logits_as_without_the_part_that_drafts() {
        for fusions in [Fusions::NONE, Fusions::ALL] {
            let [plain, drafting] =
                [false, true].map(|drafts| fuse(select_early(model(drafts)), fusions));
            let logits = |graph: &Graph| made_of(graph, graph.output.unwrap());
            assert_eq!(logits(&drafting), logits(&plain), "{fusions:?}");

            // Keys and values are made of all rows, and of nothing that was recorded for the attention alone.
            let is_store = |node: &&Node| matches!(node.op, Op::StoreKv(_));
            let stores: Vec<_> = drafting.nodes.iter().filter(is_store).collect();
            let [store] = stores[..] else { panic!("{drafting}") };
            for &input in &store.inputs {
                let nodes = made_of(&drafting, drafting.root(input).0);
                let of_outputs =
                    |text: &&String| text.ends_with(&format!("{:?}", RowDomain::Outputs));
                assert_eq!(nodes.iter().find(of_outputs), None);
            }
            assert_eq!(drafting.kv_groups[0].n_layers, 2);
            assert_eq!(drafting.state_len, DIM);
            let attentions = |nodes: &[Node]| {
                nodes.iter().filter(|node| matches!(node.op, Op::Attention(_))).count()
            };
            let part = &drafting.draft.as_ref().unwrap().nodes;
            assert_eq!([attentions(&drafting.nodes), attentions(part)], [1, 1]);
        }
    }

    #[test]
    fn a_plan_has_the_steps_of_both() {
        let graph = fuse(select_early(model(true)), Fusions::ALL);
        let part = graph.draft.as_ref().unwrap().nodes.len();
        let plan = plan(&graph, RowLimits { tokens: 4, outputs: 2 });
        let (model, drafts) = (plan.steps_of(false), plan.steps_of(true));
        assert_eq!((model.start, model.end), (0, graph.nodes.len()));
        // The input is not a step.
        assert_eq!((drafts.start, drafts.len()), (model.end, part - 1));
        let shape = |place: &crate::graph::plan::Place| (place.width, place.stride, place.rows);
        let hidden = (DIM, DIM, RowDomain::Outputs);
        assert_eq!(plan.hidden_of(false).map(shape), Some(hidden));
        assert_eq!(plan.hidden_of(true).map(shape), Some(hidden));
        assert_eq!(plan.input_of(true).map(shape), Some((DIM, DIM, RowDomain::Tokens)));
        assert_eq!(plan.input_of(false), None);
        for drafts in [false, true] {
            assert_eq!(shape(plan.output_of(drafts)), (10, 10, RowDomain::Outputs));
        }
    }
}
