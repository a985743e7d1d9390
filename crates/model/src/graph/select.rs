//! Moves the selection of output rows up, so that what is computed of single rows is computed of
//! the output rows alone.
//!
//! Architectures select rows before their final norm. All that stands between the last operation
//! that mixes rows, attention for most, and the head works row by row: the output projection and
//! the feed-forward network of the last layer. Rows whose logits nothing reads need none of it.

use super::{Graph, Node, Op, RowDomain, Value, ValueId};

/// Selects each value when it leaves the operations that work on all rows, in place of the selection
/// that `graph` has.
///
/// A node runs on the output rows if it works row by row and nothing reads it but such nodes and
/// the selection. A graph without a head keeps its selection: of hidden states often every row is
/// an output.
///
/// # Panics
/// If the graph was not finished, or fused before.
pub fn select_early(mut graph: Graph) -> Graph {
    assert!(graph.output.is_some(), "a finished graph has an output");
    let is_selection = |node: &&Node| node.op == Op::SelectRows;
    let mut selections = graph.nodes.iter().filter(is_selection);
    let (Some(selection), None) = (selections.next(), selections.next()) else { return graph };
    let (from, to) = (selection.inputs[0], selection.output);
    let is_head =
        |node: &Node| matches!(node.op, Op::Linear { .. }) && is_of_outputs(&graph, node.output);
    if !graph.nodes.iter().any(is_head) {
        return graph;
    }
    let moves = movable(&graph);
    if !moves.contains(&true) {
        return graph;
    }

    // Of each value that is selected, its output rows; of the old selection, what it selected.
    let mut selected: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let nodes = std::mem::take(&mut graph.nodes);
    let made_by_moved: Vec<bool> = {
        let mut made = vec![false; graph.values.len()];
        let moved = nodes.iter().zip(&moves).filter(|&(_, &moves)| moves);
        moved.for_each(|(node, _)| made[node.output.idx()] = true);
        graph.value_ids().map(|id| made[graph.root(id).0.idx()]).collect()
    };
    for (value, _) in graph.values.iter_mut().zip(&made_by_moved).filter(|&(_, &moved)| moved) {
        value.rows = RowDomain::Outputs;
    }
    let wanted: Vec<ValueId> = {
        let readers = nodes.iter().zip(&moves).filter(|&(_, &moves)| moves);
        let read = readers.flat_map(|(node, _)| node.inputs.iter().copied());
        read.filter(|id| !made_by_moved[id.idx()]).collect()
    };
    let mut is_made = vec![false; graph.values.len()];
    for (mut node, moves) in nodes.into_iter().zip(moves) {
        if node.op == Op::SelectRows {
            continue;
        }
        if moves {
            // All that can be selected by now is, so that sums can move into the linears before.
            for &id in &wanted {
                if is_made[graph.root(id).0.idx()] && selected[id.idx()].is_none() {
                    selected[id.idx()] = Some(select(&mut graph, id, node.layer));
                }
            }
            for input in &mut node.inputs {
                if !made_by_moved[input.idx()] {
                    *input = selected[input.idx()].expect("a value is made before it is read");
                }
            }
        }
        node.inputs.iter_mut().filter(|input| **input == to).for_each(|input| *input = from);
        is_made[node.output.idx()] = true;
        graph.nodes.push(node);
    }
    for (of, _) in graph.values.iter_mut().filter_map(|value| value.view.as_mut()) {
        if *of == to {
            *of = from;
        }
    }
    graph
}

/// Records the selection of `id`.
fn select(graph: &mut Graph, id: ValueId, layer: Option<usize>) -> ValueId {
    let output = ValueId(u32::try_from(graph.values.len()).expect("fewer than 2^32 values"));
    let width = graph.values[id.idx()].width;
    graph.values.push(Value { width, rows: RowDomain::Outputs, view: None });
    graph.nodes.push(Node { op: Op::SelectRows, inputs: vec![id], output, layer });
    output
}

fn is_of_outputs(graph: &Graph, id: ValueId) -> bool {
    graph.values[id.idx()].rows == RowDomain::Outputs
}

/// Of each node, whether it can run after the selection.
pub(super) fn movable(graph: &Graph) -> Vec<bool> {
    // Of each root, whether something reads it, and whether anything that needs all rows does.
    let mut is_read = vec![false; graph.values.len()];
    let mut all_rows = vec![false; graph.values.len()];
    if let Some(output) = graph.output {
        all_rows[graph.root(output).0.idx()] = true;
    }
    let mut moves = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let made = node.output.idx();
        moves[i] = is_row_wise(&node.op)
            && !is_of_outputs(graph, node.output)
            && is_read[made]
            && !all_rows[made];
        for &input in &node.inputs {
            let root = graph.root(input).0.idx();
            is_read[root] = true;
            all_rows[root] |= !moves[i] && node.op != Op::SelectRows;
        }
    }
    moves
}

/// Whether each row of an operation's output depends on that row of its inputs alone, and nothing
/// else comes of it.
fn is_row_wise(op: &Op) -> bool {
    match op {
        Op::Norm(_)
        | Op::Linear { .. }
        | Op::Rope { .. }
        | Op::Act(_)
        | Op::GatedAct(_)
        | Op::Add
        | Op::Mul
        | Op::Scale(_)
        | Op::Softcap(_)
        | Op::Clamp { .. }
        | Op::Reorder { .. }
        | Op::Concat
        | Op::Route(_)
        | Op::ExpertLinear(_)
        | Op::ExpertBias(_)
        | Op::Combine
        | Op::AllReduce { .. }
        | Op::AllGather => true,
        // Those without inputs have the rows of the batch.
        Op::Input
        | Op::Embed { .. }
        | Op::PosEmbed { .. }
        | Op::RopeTable(_)
        | Op::Attention(_)
        | Op::StoreKv(_)
        | Op::ShortConv(_)
        | Op::DeltaNet(_)
        | Op::SelectRows => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Activation, AttentionSpec, Fusions, GraphBuilder, NormKind, Reach, body, fuse, split,
    };
    use super::*;
    use crate::graph::weights::{Linear, NormWeights, Weight, WeightId};

    const DIM: usize = 8;

    fn linear(id: u32, rows: usize, cols: usize) -> Linear {
        Linear {
            weight: Weight { id: WeightId(id), rows, cols },
            bias: None,
            order: None,
            factor: 1.0,
        }
    }

    fn norm(b: &mut GraphBuilder, x: ValueId) -> ValueId {
        b.norm(x, NormKind::Rms, &NormWeights { weight: None, bias: None, len: DIM }, 1e-5)
    }

    fn attend(b: &mut GraphBuilder, q: ValueId, k: ValueId) -> ValueId {
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
        b.attention(q, k, k, &spec)
    }

    /// What mixes the rows of a layer, with its place in the residual stream `x`.
    type Layer = fn(&mut GraphBuilder, ValueId) -> ValueId;

    fn feed_forward(b: &mut GraphBuilder, h: ValueId) -> ValueId {
        let up = b.linear(h, &linear(0, 16, DIM));
        let act = b.act(up, Activation::Relu);
        b.linear(act, &linear(0, DIM, 16))
    }

    fn sequential(b: &mut GraphBuilder, x: ValueId) -> ValueId {
        let h = norm(b, x);
        let q = b.linear(h, &linear(0, DIM, DIM));
        let a = attend(b, q, h);
        let o = b.linear(a, &linear(0, DIM, DIM));
        let x = b.add(x, o);
        let h = norm(b, x);
        let f = feed_forward(b, h);
        b.add(x, f)
    }

    /// Attention and feed-forward network on the same norm.
    fn parallel(b: &mut GraphBuilder, x: ValueId) -> ValueId {
        let h = norm(b, x);
        let f = feed_forward(b, h);
        let a = attend(b, h, h);
        let o = b.linear(a, &linear(0, DIM, DIM));
        let x = b.add(x, o);
        b.add(x, f)
    }

    /// A convolution whose result is multiplied with columns of the linear before it.
    fn recurrent(b: &mut GraphBuilder, x: ValueId) -> ValueId {
        let both = b.linear(x, &linear(0, 2 * DIM, DIM));
        let (gate, value) = (b.columns(both, 0, DIM), b.columns(both, DIM, DIM));
        let value = b.short_conv(value, (WeightId(0), 3), None, None);
        let y = b.mul(gate, value);
        let y = b.linear(y, &linear(0, DIM, DIM));
        b.add(x, y)
    }

    fn model(layers: &[Layer], head: bool) -> Graph {
        let mut b = GraphBuilder::new();
        let mut x = b.embed(&Weight { id: WeightId(0), rows: 10, cols: DIM }, 1.0);
        for (l, layer) in layers.iter().enumerate() {
            b.begin_layer(l);
            x = layer(&mut b, x);
        }
        b.end_layers();
        let x = b.select_rows(x);
        let h = norm(&mut b, x);
        let output = if head { b.linear(h, &linear(0, 10, DIM)) } else { h };
        let mut graph = b.finish(output);
        let info = super::super::WeightInfo {
            name: String::new(),
            shape: vec![],
            ty: realizar_quant::BlockType::F32,
        };
        graph.weights = vec![info];
        graph
    }

    /// The nodes of all rows, then after a bar those of the output rows.
    fn ops(graph: &Graph) -> (String, String) {
        let mut names = [Vec::new(), Vec::new()];
        for node in &graph.nodes {
            let debug = format!("{:?}", node.op);
            let name = debug.split([' ', '(', '{']).next().unwrap_or("").to_owned();
            let outputs = is_of_outputs(graph, node.output);
            if outputs && node.op != Op::SelectRows {
                // Rows of one kind meet only those.
                assert!(node.inputs.iter().all(|&x| is_of_outputs(graph, x)), "{debug}");
            } else {
                assert!(!node.inputs.iter().any(|&x| is_of_outputs(graph, x)), "{debug}");
            }
            names[usize::from(outputs)].push(name);
        }
        assert!(is_of_outputs(graph, graph.output.unwrap()));
        (names[0].join(" "), names[1].join(" "))
    }

    #[test]
    fn rows_are_selected_behind_the_last_operation_that_mixes_them() {
        let check = |layers: &[Layer], all: &str, outputs: &str| {
            let early = select_early(model(layers, true));
            assert_eq!(ops(&early), (all.to_owned(), outputs.to_owned()));
        };
        check(
            &[sequential],
            "Embed Norm Linear Attention",
            "SelectRows SelectRows Linear Add Norm Linear Act Linear Add Norm Linear",
        );
        check(
            &[recurrent, sequential],
            "Embed Linear ShortConv Mul Linear Add Norm Linear Attention",
            "SelectRows SelectRows Linear Add Norm Linear Act Linear Add Norm Linear",
        );
        check(
            &[parallel],
            "Embed Norm Attention",
            "SelectRows SelectRows Linear Act Linear SelectRows Linear Add Add Norm Linear",
        );
        // The gate, the convolution's result and the residual stream.
        check(
            &[recurrent],
            "Embed Linear ShortConv",
            "SelectRows SelectRows SelectRows Mul Linear Add Norm Linear",
        );
        check(&[], "Embed", "SelectRows Norm Linear");
    }

    #[test]
    fn residuals_still_move_into_linears() {
        let graph = fuse(select_early(model(&[sequential], true)), Fusions::ALL);
        let n_sums = graph.nodes.iter().filter(|node| node.op == Op::Add).count();
        assert_eq!(n_sums, 0);
        let selections = graph.nodes.iter().filter(|node| node.op == Op::SelectRows);
        assert!(selections.map(|node| node.layer).eq([Some(0), Some(0)]));
    }

    #[test]
    fn hidden_states_of_a_part_and_of_embeddings_stay() {
        let whole = model(&[sequential, sequential], true);
        let (first, second) = split(&whole, 1).unwrap();
        let text = |graph: &Graph| graph.to_string();
        assert_eq!(text(&select_early(first.graph.clone())), text(&first.graph));
        let (all, outputs) = ops(&select_early(second.graph));
        assert_eq!(all, "Input Norm Linear Attention");
        assert!(outputs.starts_with("SelectRows SelectRows Linear"));
        for graph in [model(&[sequential], false), body(&whole).unwrap().graph] {
            assert_eq!(text(&select_early(graph.clone())), text(&graph));
        }
    }
}
