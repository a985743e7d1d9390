//! What of a model's weights a token needs: all of them, but one row of a table, and of experts those
//! that it chose.

use super::split::each_weight;
use super::{Graph, Node, Op};
use crate::graph::weights::Weights;

/// Bytes of weights that a generated token reads when it is alone in its step.
pub fn bytes_per_token(graph: &Graph, weights: &Weights) -> usize {
    read_by(graph.nodes.iter(), weights)
}

/// Bytes of weights that a model which drafts tokens reads for one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftBytes {
    /// In a step of the model.
    pub step: usize,
    /// In a step that drafts.
    pub draft: usize,
    /// Of those in a step of the model, bytes of experts, which other rows may not have chosen.
    pub experts: usize,
}

/// What `graph` reads; `None` if it has no part that drafts.
pub fn draft_bytes(graph: &Graph, weights: &Weights) -> Option<DraftBytes> {
    let draft = graph.draft.as_ref()?;
    let is_expert = |node: &&Node| matches!(node.op, Op::ExpertLinear(_));
    Some(DraftBytes {
        step: read_by(graph.nodes.iter(), weights),
        draft: read_by(draft.nodes.iter(), weights),
        experts: read_by(graph.nodes.iter().filter(is_expert), weights),
    })
}

fn read_by<'g>(nodes: impl Iterator<Item = &'g Node>, weights: &Weights) -> usize {
    let of_op = |op: &Op| match op {
        Op::Embed { table, .. } | Op::PosEmbed { table } => {
            let table = weights.get(*table);
            let n_rows = table.matrix_shape().map_or(1, |(_, rows, _)| rows);
            table.n_bytes().checked_div(n_rows).unwrap_or(0)
        }
        Op::ExpertLinear(linear) => {
            let of_part = |part: &super::ExpertPart| {
                let blocks = weights.get(part.weight).blocks();
                linear.n_chosen * blocks.first().map_or(0, |data| data.len())
            };
            linear.parts.iter().map(of_part).sum()
        }
        Op::ExpertBias(bias) => {
            weights.get(bias.biases).n_bytes() / bias.n_experts.max(1) * bias.n_chosen
        }
        op => {
            let mut n_bytes = 0;
            each_weight(&mut op.clone(), &mut |id| n_bytes += weights.get(*id).n_bytes());
            n_bytes
        }
    };
    nodes.map(|node| of_op(&node.op)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::weights::{ExpertWeight, Linear, Weight, WeightData, WeightId};
    use crate::graph::{GraphBuilder, Route, Scoring};
    use realizar_formats::Bytes;
    use realizar_quant::BlockType;

    #[test]
    fn a_token_reads_a_row_of_the_table_and_the_experts_that_it_chose() {
        let ty = BlockType::F32;
        let bytes = |n: usize| Bytes::from(vec![0; 4 * n]);
        let matrix = |rows, cols| WeightData::Matrix { ty, rows, cols, data: bytes(rows * cols) };
        let experts = vec![bytes(5 * 8); 6];
        let weights = Weights(vec![
            matrix(100, 8),
            matrix(6, 8),
            WeightData::Experts { ty, rows: 5, cols: 8, data: experts },
        ]);
        let mut b = GraphBuilder::new();
        let weight = |id: u32, rows| Weight { id: WeightId(id), rows, cols: 8 };
        let x = b.embed(&weight(0, 100), 1.0);
        let scores =
            b.linear(x, &Linear { weight: weight(1, 6), bias: None, order: None, factor: 1.0 });
        let route = Route {
            scoring: Scoring::Softmax,
            n_experts: 6,
            n_chosen: 2,
            choice_bias: None,
            groups: None,
            normalize: true,
            scale: 1.0,
        };
        let routes = b.route(scores, route);
        let experts = ExpertWeight { id: WeightId(2), n_experts: 6, rows: 5, cols: 8 };
        let y = b.expert_linear(x, routes, &experts);
        let y = b.combine(y, routes);
        let y = b.select_rows(y);
        let graph = b.finish(y);
        // A row of 8, six rows of 8, two experts of 5 rows of 8.
        assert_eq!(bytes_per_token(&graph, &weights), 4 * (8 + 6 * 8 + 2 * 5 * 8));
    }
}
