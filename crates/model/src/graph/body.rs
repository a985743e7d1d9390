//! The body of a model: its graph without the head.
//!
//! What is left ends in the final norm, whose rows are the hidden states that embeddings are made
//! of. As the head's matrix is not a weight of that graph, it is not loaded, unless it is also the
//! table of the embedding.

use super::split::{Extract, needed};
use super::{Graph, Op, Part, Prologue, RowDomain, ValueId};

/// The part of `graph` before its head: what is computed before the last linear, after which
/// there is nothing but what works on single logits.
///
/// `None` if the graph does not end so.
///
/// # Panics
/// If the graph was not finished, or fused before.
pub fn body(graph: &Graph) -> Option<Part> {
    let at = head_input(graph)?;
    let needed = needed(graph, 0, at);
    let mut part = Extract::new(graph);
    let kept = graph.nodes.iter().zip(needed).filter(|&(_, needed)| needed);
    kept.for_each(|(node, _)| part.node(node));
    Some(part.finish(at))
}

/// The input of the head of `graph`: the hidden states that its [`body`] ends in.
///
/// `None` if the graph does not end in a head.
///
/// # Panics
/// If the graph was not finished, or fused before.
pub fn head_input(graph: &Graph) -> Option<ValueId> {
    let mut at = graph.output.expect("a finished graph has an output");
    loop {
        let node = graph.nodes.iter().find(|node| node.output == at)?;
        at = *node.inputs.first()?;
        match &node.op {
            Op::Scale(_) | Op::Softcap(_) | Op::Clamp { .. } => {}
            Op::Linear { prologue: Prologue::None, residual: false, .. } => break,
            _ => return None,
        }
    }
    (graph.values[at.idx()].rows == RowDomain::Outputs).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::super::{GraphBuilder, NormKind, WeightInfo};
    use super::*;
    use crate::graph::weights::{Linear, NormWeights, Weight, WeightId};
    use realizar_quant::BlockType;

    const DIM: usize = 8;

    fn linear(id: u32, rows: usize) -> Linear {
        Linear {
            weight: Weight { id: WeightId(id), rows, cols: DIM },
            bias: None,
            order: None,
            factor: 1.0,
        }
    }

    /// An embedding, a linear and a norm; then what `head` makes of the norm.
    fn model(head: impl Fn(&mut GraphBuilder, ValueId) -> ValueId) -> Graph {
        let mut b = GraphBuilder::new();
        let x = b.embed(&Weight { id: WeightId(0), rows: 10, cols: DIM }, 1.0);
        let x = b.linear(x, &linear(1, DIM));
        let x = b.select_rows(x);
        let norm = NormWeights { weight: Some(WeightId(2)), bias: None, len: DIM };
        let x = b.norm(x, NormKind::Rms, &norm, 1e-5);
        let logits = head(&mut b, x);
        let mut graph = b.finish(logits);
        let info = |i| WeightInfo { name: format!("w{i}"), shape: vec![], ty: BlockType::F32 };
        graph.weights = (0..4).map(info).collect();
        graph
    }

    #[test]
    fn the_head_and_its_weights_are_left_out() {
        let check = |graph: &Graph| {
            let part = body(graph).unwrap();
            let names: Vec<&str> = part.graph.weights.iter().map(|w| w.name.as_str()).collect();
            assert_eq!(names, ["w0", "w1", "w2"]);
            let value = &part.graph.values[part.graph.output.unwrap().idx()];
            assert_eq!((value.width, value.rows), (DIM, RowDomain::Outputs));
            assert!(matches!(part.graph.nodes.last().unwrap().op, Op::Norm(_)));
        };
        check(&model(|b, x| b.linear(x, &linear(3, 10))));
        // A tied head leaves its matrix to the embedding.
        check(&model(|b, x| b.linear(x, &linear(0, 10))));
        check(&model(|b, x| {
            let logits = b.linear(x, &linear(3, 10));
            let logits = b.scale(logits, 0.5);
            b.softcap(logits, Some(30.0))
        }));
    }

    #[test]
    fn what_does_not_end_in_a_head_has_no_body() {
        assert!(body(&model(|_, x| x)).is_none());
        assert!(body(&model(|b, x| b.act(x, crate::graph::Activation::Relu))).is_none());
    }
}
