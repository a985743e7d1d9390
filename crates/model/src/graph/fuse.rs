//! Fusions: rewrites of a graph that a backend asks for.
//!
//! Each turns several nodes into one with a prologue, more parts or an
//! epilogue. A fusion never changes what is computed, and one that a backend
//! does not run is left out, so every backend starts from the same graph.

use super::{ExpertLinear, Graph, Node, Op, Prologue, Value, ValueId};

/// The fusions that a backend runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fusions {
    /// Linears on the same value become one with several parts (Q+K+V, gate+up).
    pub parts: bool,
    /// A normalization or activation whose only reader is a linear moves into it.
    pub prologue: bool,
    /// A sum with a linear's output moves into the linear, and one with a sum over ranks into that.
    pub residual: bool,
}

impl Fusions {
    /// Every fusion.
    pub const ALL: Self = Self { parts: true, prologue: true, residual: true };
    /// No fusion: the graph as it was recorded.
    pub const NONE: Self = Self { parts: false, prologue: false, residual: false };
}

/// Applies `fusions` to `graph`, and to its drafting part by itself.
pub fn fuse(mut graph: Graph, fusions: Fusions) -> Graph {
    fuse_nodes(&mut graph, fusions);
    if let Some(mut draft) = graph.draft.take() {
        let trunk = std::mem::replace(&mut graph.nodes, std::mem::take(&mut draft.nodes));
        graph.draft = Some(draft);
        fuse_nodes(&mut graph, fusions);
        let nodes = std::mem::replace(&mut graph.nodes, trunk);
        if let Some(draft) = &mut graph.draft {
            draft.nodes = nodes;
        }
    }
    graph
}

fn fuse_nodes(graph: &mut Graph, fusions: Fusions) {
    if fusions.parts {
        merge_parts(graph);
    }
    if fusions.prologue {
        fold_prologues(graph);
    }
    if fusions.residual {
        fold_residuals(graph);
    }
}

/// How often each value is read, as itself or through a view.
fn readers(graph: &Graph) -> Vec<usize> {
    let mut n = vec![0; graph.values.len()];
    let reads = graph.nodes.iter().flat_map(|node| &node.inputs).copied().chain(graph.results());
    for id in reads {
        n[id.idx()] += 1;
        if graph.values[id.idx()].view.is_some() {
            n[graph.root(id).0.idx()] += 1;
        }
    }
    n
}

/// The node that makes `value`, if a node does (a view has none of its own).
fn maker(graph: &Graph, value: ValueId) -> Option<usize> {
    graph.nodes.iter().position(|node| node.output == value)
}

/// Replaces linears on one value by a single linear whose output they view.
fn merge_parts(graph: &mut Graph) {
    let mut first = 0;
    while first < graph.nodes.len() {
        let mergeable = |node: &Node| match &node.op {
            Op::Linear { prologue, residual, .. } => *prologue == Prologue::None && !residual,
            Op::ExpertLinear(linear) => linear.prologue == Prologue::None,
            _ => false,
        };
        // Linears and experts never have the same inputs, as the latter read routes.
        let same_input: Vec<usize> = (first..graph.nodes.len())
            .filter(|&i| mergeable(&graph.nodes[i]))
            .filter(|&i| graph.nodes[i].inputs == graph.nodes[first].inputs)
            .collect();
        if same_input.len() > 1 && same_input[0] == first {
            merge_nodes(graph, &same_input);
        }
        first += 1;
    }
}

fn merge_nodes(graph: &mut Graph, nodes: &[usize]) {
    let output = ValueId(u32::try_from(graph.values.len()).expect("fewer than 2^32 values"));
    let mut merged = graph.nodes[nodes[0]].op.clone();
    let mut width = 0;
    for (n, &i) in nodes.iter().enumerate() {
        let node = &graph.nodes[i];
        match (&mut merged, &node.op) {
            _ if n == 0 => {}
            (Op::Linear { parts: merged, .. }, Op::Linear { parts, .. }) => {
                merged.extend(parts.iter().cloned());
            }
            (Op::ExpertLinear(merged), Op::ExpertLinear(linear)) => {
                merged.parts.extend(&linear.parts);
            }
            _ => unreachable!("only linears on the same inputs are merged"),
        }
        let value = &mut graph.values[node.output.idx()];
        value.view = Some((output, width));
        width += value.width;
    }
    let rows = graph.values[graph.nodes[nodes[0]].output.idx()].rows;
    graph.values.push(Value { width, rows, view: None });
    let node = &mut graph.nodes[nodes[0]];
    node.op = merged;
    node.output = output;
    for &i in nodes[1..].iter().rev() {
        graph.nodes.remove(i);
    }
}

/// Moves a norm, an activation or a gated activation into the linear that reads it.
fn fold_prologues(graph: &mut Graph) {
    let n_readers = readers(graph);
    let mut i = 0;
    while i < graph.nodes.len() {
        let node = &graph.nodes[i];
        let (plain, is_linear) = match &node.op {
            Op::Linear { prologue, .. } => (*prologue == Prologue::None, true),
            Op::ExpertLinear(linear) => (linear.prologue == Prologue::None, false),
            _ => (false, false),
        };
        let folded = if plain && n_readers[node.inputs[0].idx()] == 1 {
            maker(graph, node.inputs[0])
        } else {
            None
        };
        let prologue = folded.and_then(|m| {
            let made = &graph.nodes[m];
            let prologue = match &made.op {
                // A per-head norm is not the linear's: it normalizes parts of a row.
                // Experts have no norms, as they would compute one for each.
                Op::Norm(norm)
                    if is_linear && norm.group == graph.values[made.output.idx()].width =>
                {
                    Prologue::Norm(norm.clone())
                }
                Op::Act(act) => Prologue::Act(*act),
                Op::GatedAct(act) => Prologue::Gated(*act),
                _ => return None,
            };
            Some((m, prologue, made.inputs.clone()))
        });
        if let Some((m, new_prologue, inputs)) = prologue {
            let node = &mut graph.nodes[i];
            if let Op::Linear { prologue, .. } | Op::ExpertLinear(ExpertLinear { prologue, .. }) =
                &mut node.op
            {
                *prologue = new_prologue;
            }
            node.inputs.splice(..1, inputs);
            graph.nodes.remove(m);
        } else {
            i += 1;
        }
    }
}

/// Moves `x + linear(h)` into the linear, when nothing else reads the linear; a sum over ranks is as a linear.
fn fold_residuals(graph: &mut Graph) {
    let n_readers = readers(graph);
    let mut i = 0;
    while i < graph.nodes.len() {
        let node = &graph.nodes[i];
        if node.op != Op::Add {
            i += 1;
            continue;
        }
        let (a, b, sum) = (node.inputs[0], node.inputs[1], node.output);
        // Either operand may be the linear; the other must exist before it runs.
        let candidate = [(a, b), (b, a)].into_iter().find_map(|(linear, other)| {
            let l = maker(graph, linear)?;
            let fits = n_readers[linear.idx()] == 1
                && matches!(
                    &graph.nodes[l].op,
                    Op::Linear { residual: false, .. } | Op::AllReduce { residual: false }
                );
            let made = maker(graph, graph.root(other).0);
            (fits && made.is_some_and(|m| m < l)).then_some((l, other))
        });
        if let Some((l, other)) = candidate {
            let linear = &mut graph.nodes[l];
            if let Op::Linear { residual, .. } | Op::AllReduce { residual } = &mut linear.op {
                *residual = true;
            }
            linear.inputs.push(other);
            linear.output = sum;
            graph.nodes.remove(i);
        } else {
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Activation, GraphBuilder, NormKind, Route, Scoring};
    use super::*;
    use crate::graph::weights::{ExpertWeight, Linear, NormWeights, Weight, WeightId};

    fn linear(id: u32, rows: usize, cols: usize) -> Linear {
        Linear {
            weight: Weight { id: WeightId(id), rows, cols },
            bias: None,
            order: None,
            factor: 1.0,
        }
    }

    /// x -> norm -> (gate, up) -> gated -> down -> + x
    fn ffn() -> Graph {
        let mut b = GraphBuilder::new();
        let x = b.embed(&Weight { id: WeightId(0), rows: 10, cols: 8 }, 1.0);
        let weights = NormWeights { weight: Some(WeightId(1)), bias: None, len: 8 };
        let h = b.norm(x, NormKind::Rms, &weights, 1e-5);
        let gate = b.linear(h, &linear(2, 16, 8));
        let up = b.linear(h, &linear(3, 16, 8));
        let act = b.gated_act(gate, up, Activation::Silu);
        let down = b.linear(act, &linear(4, 8, 16));
        let x = b.add(x, down);
        let x = b.select_rows(x);
        let logits = b.linear(x, &linear(0, 10, 8));
        b.finish(logits)
    }

    fn ops(graph: &Graph) -> Vec<String> {
        let name = |op: &Op| match op {
            Op::Linear { prologue, parts, residual } => {
                let before = match prologue {
                    Prologue::None => "",
                    Prologue::Norm(_) => "norm+",
                    Prologue::Gated(_) => "gated+",
                    Prologue::Act(_) => "act+",
                };
                let after = if *residual { "+residual" } else { "" };
                format!("{before}linear{}{after}", parts.len())
            }
            other => format!("{other:?}").split([' ', '(', '{']).next().unwrap_or("").to_owned(),
        };
        graph.nodes.iter().map(|n| name(&n.op)).collect()
    }

    #[test]
    fn a_gated_ffn_becomes_two_linears() {
        let check = |fusions: Fusions, expected: &[&str]| {
            assert_eq!(ops(&fuse(ffn(), fusions)), expected, "{fusions:?}");
        };
        let recorded = [
            "Embed",
            "Norm",
            "linear1",
            "linear1",
            "GatedAct",
            "linear1",
            "Add",
            "SelectRows",
            "linear1",
        ];
        check(Fusions::NONE, &recorded);
        let parts = Fusions { parts: true, ..Fusions::NONE };
        check(
            parts,
            &["Embed", "Norm", "linear2", "GatedAct", "linear1", "Add", "SelectRows", "linear1"],
        );
        check(
            Fusions::ALL,
            &["Embed", "norm+linear2", "gated+linear1+residual", "SelectRows", "linear1"],
        );
    }

    /// Columns in one order are put in it once, and their linears are still one.
    #[test]
    fn linears_whose_inputs_have_one_order_share_it() {
        let check = |orders: [u32; 3], expected: &[&str]| {
            let mut b = GraphBuilder::new();
            let x = b.embed(&Weight { id: WeightId(0), rows: 10, cols: 8 }, 1.0);
            let weights = NormWeights { weight: Some(WeightId(1)), bias: None, len: 8 };
            let h = b.norm(x, NormKind::Rms, &weights, 1e-5);
            let [gate, up, down] = [(2, 16, 8), (3, 16, 8), (4, 8, 16)].map(|(id, rows, cols)| {
                Linear { order: Some(WeightId(orders[id as usize - 2])), ..linear(id, rows, cols) }
            });
            let (gate, up) = (b.linear(h, &gate), b.linear(h, &up));
            let act = b.gated_act(gate, up, Activation::Silu);
            let down = b.linear(act, &down);
            let x = b.add(x, down);
            let x = b.select_rows(x);
            assert_eq!(ops(&fuse(b.finish(x), Fusions::ALL)), expected, "{orders:?}");
        };
        let end = ["GatedAct", "Reorder", "linear1+residual", "SelectRows"];
        check([5, 5, 6], &[&["Embed", "Norm", "Reorder", "linear2"], &end[..]].concat());
        let apart = ["Embed", "Norm", "Reorder", "linear1", "Reorder", "linear1"];
        check([5, 6, 7], &[&apart, &end[..]].concat());
    }

    #[test]
    fn gate_and_up_of_experts_become_one_and_take_no_norm() {
        let mut b = GraphBuilder::new();
        let x = b.embed(&Weight { id: WeightId(0), rows: 10, cols: 8 }, 1.0);
        let weights = NormWeights { weight: Some(WeightId(1)), bias: None, len: 8 };
        let h = b.norm(x, NormKind::Rms, &weights, 1e-5);
        let route = Route {
            scoring: Scoring::Softmax,
            n_experts: 4,
            n_chosen: 2,
            choice_bias: None,
            groups: None,
            normalize: true,
            scale: 1.0,
        };
        let scores = b.columns(x, 0, 4);
        let routes = b.route(scores, route);
        let experts =
            |id: u32, rows, cols| ExpertWeight { id: WeightId(id), n_experts: 4, rows, cols };
        let gate = b.expert_linear(h, routes, &experts(2, 16, 8));
        let up = b.expert_linear(h, routes, &experts(3, 16, 8));
        let act = b.gated_act(gate, up, Activation::Silu);
        let down = b.expert_linear(act, routes, &experts(4, 8, 16));
        let y = b.combine(down, routes);
        let y = b.select_rows(y);
        let graph = fuse(b.finish(y), Fusions::ALL);
        let experts: Vec<_> = graph
            .nodes
            .iter()
            .filter_map(|node| match &node.op {
                Op::ExpertLinear(linear) => Some((node, linear)),
                _ => None,
            })
            .collect();
        let [(gate_up, first), (down, second)] = experts[..] else { panic!("{experts:?}") };
        assert_eq!((first.parts.len(), &first.prologue), (2, &Prologue::None));
        assert_eq!((second.parts.len(), &second.prologue), (1, &Prologue::Gated(Activation::Silu)));
        // Both experts of a row side by side, gates before ups.
        assert_eq!(graph.values[gate_up.output.idx()].width, 64);
        let [gate, up] = [0, 1].map(|i| graph.root(down.inputs[i]));
        assert_eq!((gate, up), ((gate_up.output, 0), (gate_up.output, 32)));
        assert_eq!(down.inputs[2], gate_up.inputs[1], "the routes");
    }

    #[test]
    fn merged_outputs_are_views() {
        let graph = fuse(ffn(), Fusions::ALL);
        let down = &graph.nodes[2];
        assert_eq!(down.inputs.len(), 3, "gate, up and the residual");
        let (gate, up) = (graph.root(down.inputs[0]), graph.root(down.inputs[1]));
        assert_eq!(gate.0, up.0);
        assert_eq!((gate.1, up.1), (0, 16));
        assert_eq!(graph.values[gate.0.idx()].width, 32);
    }
}
