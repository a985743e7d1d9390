//! Splits a recorded graph in front of a layer into two that run one after the
//! other, each on its own device.
//!
//! What the first hands to the second is one value: the residual stream. Nodes
//! that need neither weights nor inputs, such as the table of rotation angles,
//! are recorded again where they are read. A split comes before the fusions, as
//! each part gets those of its own backend.

use super::{
    Attention, DeltaNet, ExpertBias, ExpertLinear, ExpertPart, Graph, KvLayer, LinearPart, Node,
    Norm, Op, Prologue, Route, RowDomain, ShortConv, StatePart, Value, ValueId,
};
use crate::Error;
use crate::graph::weights::{WeightId, Weights};

/// A part of a model: a graph of its own, over some of the model's weights.
#[derive(Debug, Clone)]
pub struct Part {
    /// The part's graph. Its weights, its layers of key-value groups and the elements of its
    /// recurrent state are counted again; its groups are those of the model, without layers
    /// where it has none of theirs.
    pub graph: Graph,
    /// Of each weight of the part, its index in the model.
    pub weights: Vec<WeightId>,
}

impl Part {
    /// The part's weights out of the model's. Matrices are shared, not copied.
    pub fn weights_of(&self, model: &Weights) -> Weights {
        Weights(self.weights.iter().map(|&id| model.get(id).clone()).collect())
    }
}

/// Splits `graph` in front of layer `layer`: the first part ends in the hidden
/// states that the second one begins with. A weight that both need is in both.
///
/// # Errors
/// If there is no such layer, or something other than the hidden states crosses
/// the cut.
///
/// # Panics
/// If the graph was not finished, or fused before.
pub fn split(graph: &Graph, layer: usize) -> Result<(Part, Part), Error> {
    let output = graph.output.expect("a finished graph has an output");
    let refuse = |reason: String| Err(Error::Split { layer, reason });
    let Some(cut) = graph.nodes.iter().position(|node| node.layer == Some(layer)) else {
        return refuse("there is no such layer".to_owned());
    };
    let needed = needed(graph, cut, output);
    // What the second part reads of the first and cannot record again.
    let before = needed[..cut].iter().zip(&graph.nodes).filter(|&(&needed, _)| needed);
    let mut crossing = before.map(|(_, node)| node).filter(|node| !is_cheap(&node.op));
    let hidden = match (crossing.next(), crossing.next()) {
        (Some(hidden), None) => hidden,
        (None, _) => return refuse("nothing comes before it".to_owned()),
        _ => return refuse("layers after it read more than the hidden states".to_owned()),
    };
    let hidden = hidden.output;
    let attention = |node: &Node| match &node.op {
        Op::Attention(attention) => Some((attention.kv, node.inputs.len() > 1)),
        _ => None,
    };
    let is_stored =
        |kv: KvLayer| graph.nodes[cut..].iter().any(|n| attention(n) == Some((kv, true)));
    if graph.nodes[cut..].iter().filter_map(attention).any(|(kv, _)| !is_stored(kv)) {
        return refuse("layers after it read keys and values of a layer before it".to_owned());
    }
    if graph.values[hidden.idx()].rows != RowDomain::Tokens {
        return refuse("rows were selected before it".to_owned());
    }
    let first = {
        let mut parts = Extract::new(graph);
        let needed = self::needed(graph, 0, hidden);
        (0..cut).filter(|&i| needed[i]).for_each(|i| parts.node(&graph.nodes[i]));
        parts.finish(hidden)
    };
    let second = {
        let mut parts = Extract::new(graph);
        parts.input(hidden);
        let cheap = |i: &usize| *i >= cut || is_cheap(&graph.nodes[*i].op);
        let kept = (0..graph.nodes.len()).filter(|&i| needed[i]).filter(cheap);
        kept.for_each(|i| parts.node(&graph.nodes[i]));
        parts.finish(output)
    };
    Ok((first, second))
}

/// Whether an operation can be recorded in both parts: it takes no weights and
/// no inputs, and costs little.
fn is_cheap(op: &Op) -> bool {
    matches!(op, Op::RopeTable(_))
}

/// Of each node, whether `output` depends on it; of those before `from`, only
/// whether a node from there on reads it.
pub(super) fn needed(graph: &Graph, from: usize, output: ValueId) -> Vec<bool> {
    let mut read = vec![false; graph.values.len()];
    read[graph.root(output).0.idx()] = true;
    let mut needed = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        needed[i] = read[node.output.idx()];
        if needed[i] && i >= from {
            node.inputs.iter().for_each(|&input| read[graph.root(input).0.idx()] = true);
        }
    }
    needed
}

/// A part that is being taken out of a graph.
pub(super) struct Extract<'a> {
    whole: &'a Graph,
    part: Graph,
    values: Vec<Option<ValueId>>,   // [values of the whole]
    weights: Vec<Option<WeightId>>, // [weights of the whole]
    taken: Vec<WeightId>,
    /// Of layers of the cache in the whole, those that the part has of them.
    kv: Vec<(KvLayer, KvLayer)>,
}

impl<'a> Extract<'a> {
    pub(super) fn new(whole: &'a Graph) -> Self {
        let mut part = Graph { kv_groups: whole.kv_groups.clone(), ..Graph::default() };
        part.kv_groups.iter_mut().for_each(|group| group.n_layers = 0);
        Self {
            part,
            values: vec![None; whole.values.len()],
            weights: vec![None; whole.weights.len()],
            taken: Vec::new(),
            kv: Vec::new(),
            whole,
        }
    }

    fn value(&mut self, id: ValueId) -> ValueId {
        let new = ValueId(u32::try_from(self.part.values.len()).expect("fewer than 2^32 values"));
        let Value { width, rows, view: _ } = self.whole.values[id.idx()];
        self.part.values.push(Value { width, rows, view: None });
        self.values[id.idx()] = Some(new);
        new
    }

    /// Lets `value`, which another part makes, come from outside.
    fn input(&mut self, value: ValueId) {
        let output = self.value(value);
        self.part.nodes.push(Node { op: Op::Input, inputs: Vec::new(), output, layer: None });
    }

    pub(super) fn node(&mut self, node: &Node) {
        let mut op = node.op.clone();
        each_weight(&mut op, &mut |id| *id = self.weight(*id));
        if let Op::Attention(attention) = &mut op {
            let own = self.kv.iter().find(|(whole, _)| *whole == attention.kv).map(|(_, own)| *own);
            attention.kv = own.unwrap_or_else(|| {
                let layers = &mut self.part.kv_groups[attention.kv.group].n_layers;
                let own = KvLayer { layer: *layers, ..attention.kv };
                *layers += 1;
                self.kv.push((attention.kv, own));
                own
            });
        }
        if let Op::ShortConv(ShortConv { state, .. }) | Op::DeltaNet(DeltaNet { state, .. }) =
            &mut op
        {
            *state = StatePart { start: self.part.state_len, len: state.len };
            self.part.state_len += state.len;
        }
        let inputs = node.inputs.iter().map(|&id| self.made(id)).collect();
        let output = self.value(node.output);
        self.part.nodes.push(Node { op, inputs, output, layer: node.layer });
    }

    /// A value that was made, or columns of one.
    fn made(&mut self, id: ValueId) -> ValueId {
        if let (None, Some((of, col))) = (self.values[id.idx()], self.whole.values[id.idx()].view) {
            let of = self.made(of);
            let view = self.value(id);
            self.part.values[view.idx()].view = Some((of, col));
        }
        self.values[id.idx()].expect("made before it is read")
    }

    fn weight(&mut self, id: WeightId) -> WeightId {
        *self.weights[id.idx()].get_or_insert_with(|| {
            self.taken.push(id);
            self.part.weights.push(self.whole.weights[id.idx()].clone());
            WeightId(u32::try_from(self.taken.len() - 1).expect("fewer than 2^32 weights"))
        })
    }

    pub(super) fn finish(mut self, output: ValueId) -> Part {
        self.part.output = Some(self.made(output));
        Part { graph: self.part, weights: self.taken }
    }
}

/// Calls `change` with every weight that an operation names.
pub(super) fn each_weight(op: &mut Op, change: &mut dyn FnMut(&mut WeightId)) {
    let of_norm = |norm: &mut Norm, change: &mut dyn FnMut(&mut WeightId)| {
        norm.weight.iter_mut().chain(&mut norm.bias).for_each(change);
    };
    match op {
        Op::Embed { table, .. } | Op::PosEmbed { table } => change(table),
        Op::Reorder { order } => change(order),
        Op::Norm(norm) => of_norm(norm, change),
        Op::Linear { prologue, parts, residual: _ } => {
            if let Prologue::Norm(norm) = prologue {
                of_norm(norm, change);
            }
            for LinearPart { weight, bias, out: _ } in parts {
                change(weight);
                bias.iter_mut().for_each(&mut *change);
            }
        }
        // The fields are listed so that a weight among them cannot be missed.
        Op::Attention(Attention {
            kv: _,
            n_heads: _,
            n_kv_heads: _,
            head_dim: _,
            scale: _,
            softcap: _,
            window: _,
            chunked: _,
            reach: _,
            sinks,
            alibi,
        }) => sinks.iter_mut().chain(alibi).for_each(change),
        Op::ShortConv(ShortConv { taps, n_taps: _, bias, act: _, state: _ }) => {
            change(taps);
            bias.iter_mut().for_each(change);
        }
        Op::DeltaNet(DeltaNet {
            n_k_heads: _,
            n_v_heads: _,
            k_dim: _,
            v_dim: _,
            tiled: _,
            decay,
            dt_bias,
            state: _,
        }) => {
            change(decay);
            change(dt_bias);
        }
        Op::Route(Route {
            scoring: _,
            n_experts: _,
            n_chosen: _,
            choice_bias,
            groups: _,
            normalize: _,
            scale: _,
        }) => choice_bias.iter_mut().for_each(change),
        Op::ExpertLinear(ExpertLinear { prologue, parts, n_experts: _, n_chosen: _, n_in: _ }) => {
            if let Prologue::Norm(norm) = prologue {
                of_norm(norm, change);
            }
            parts.iter_mut().for_each(|ExpertPart { weight, out: _ }| change(weight));
        }
        Op::ExpertBias(ExpertBias { biases, n_experts: _, n_chosen: _ }) => change(biases),
        Op::Input
        | Op::StoreKv(_)
        | Op::Combine
        | Op::Concat
        | Op::RopeTable(_)
        | Op::Rope { .. }
        | Op::Act(_)
        | Op::GatedAct(_)
        | Op::Add
        | Op::Mul
        | Op::Scale(_)
        | Op::Softcap(_)
        | Op::Clamp { .. }
        | Op::SelectRows
        | Op::AllReduce { .. }
        | Op::AllGather => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        AttentionSpec, GraphBuilder, NormKind, Reach, RopeAngles, RopeStyle, WeightInfo,
    };
    use super::*;
    use crate::graph::weights::{Linear, NormWeights, Weight, WeightData};
    use realizar_quant::BlockType;

    const DIM: usize = 8;

    /// Embedding, `n_layers` layers that alternate a window, and a tied head. Of
    /// layer `l` the matrix is weight `l + 1`; with `skip`, each layer also adds
    /// the embedding.
    fn model(n_layers: usize, skip: bool) -> Graph {
        let mut b = GraphBuilder::new();
        let table = Weight { id: WeightId(0), rows: 10, cols: DIM };
        let linear = |id: usize, rows| Linear {
            weight: Weight { id: WeightId(id as u32), rows, cols: DIM },
            bias: None,
            order: None,
            factor: 1.0,
        };
        let embedded = b.embed(&table, 1.0);
        let mut x = embedded;
        let angles = |freq: f32| RopeAngles {
            inv_freq: vec![freq; 2].into(),
            mscale: 1.0,
            components: [].into(),
        };
        let tables = [b.rope_table(angles(1.0)), b.rope_table(angles(0.5))];
        for l in 0..n_layers {
            b.begin_layer(l);
            let norm = NormWeights { weight: None, bias: None, len: DIM };
            let h = b.norm(x, NormKind::Rms, &norm, 1e-5);
            let q = b.linear(h, &linear(l + 1, DIM));
            let q = b.rope(q, tables[l % 2], DIM, RopeStyle::Neox);
            let spec = AttentionSpec {
                n_heads: 1,
                n_kv_heads: 1,
                head_dim: DIM,
                scale: 1.0,
                softcap: None,
                window: (l % 2 == 1).then_some(4),
                chunked: false,
                reach: Reach::Causal,
                sinks: None,
                alibi: None,
            };
            let a = b.attention(q, h, h, &spec);
            x = b.add(x, a);
            if skip {
                x = b.add(x, embedded);
            }
        }
        b.end_layers();
        let x = b.select_rows(x);
        let logits = b.linear(x, &linear(0, 10));
        let mut graph = b.finish(logits);
        let info = |i| WeightInfo { name: format!("w{i}"), shape: vec![], ty: BlockType::F32 };
        graph.weights = (0..=n_layers).map(info).collect();
        graph
    }

    fn names(part: &Part) -> Vec<&str> {
        part.graph.weights.iter().map(|info| info.name.as_str()).collect()
    }

    #[test]
    fn each_part_has_its_own_weights_tables_and_layers() {
        let (first, second) = split(&model(4, false), 1).unwrap();
        assert_eq!(names(&first), ["w0", "w1"]);
        assert_eq!(names(&second), ["w2", "w3", "w4", "w0"], "the head is the embedding");
        let count = |part: &Part, f: fn(&Op) -> bool| {
            part.graph.nodes.iter().filter(|node| f(&node.op)).count()
        };
        // The first layer has no window, so the other table is not its own.
        assert_eq!(count(&first, |op| matches!(op, Op::RopeTable(_))), 1);
        assert_eq!(count(&second, |op| matches!(op, Op::RopeTable(_))), 2);
        let n_layers = |part: &Part| -> Vec<usize> {
            part.graph.kv_groups.iter().map(|group| group.n_layers).collect()
        };
        assert_eq!((n_layers(&first), n_layers(&second)), (vec![1, 0], vec![1, 2]));
        let kv = |part: &Part| -> Vec<(usize, usize)> {
            let attention = |node: &Node| match &node.op {
                Op::Attention(a) => Some((a.kv.group, a.kv.layer)),
                _ => None,
            };
            part.graph.nodes.iter().filter_map(attention).collect()
        };
        assert_eq!(kv(&second), [(1, 0), (0, 0), (1, 1)]);
        assert_eq!(second.graph.nodes[0].op, Op::Input);
        let rows = |part: &Part| {
            let output = part.graph.output.unwrap();
            let value = &part.graph.values[output.idx()];
            (value.width, value.rows)
        };
        assert_eq!(rows(&first), (DIM, RowDomain::Tokens));
        assert_eq!(rows(&second), (10, RowDomain::Outputs));
    }

    #[test]
    fn weights_follow_their_graph() {
        let (_, second) = split(&model(3, false), 2).unwrap();
        let model = Weights((0..4).map(|i| WeightData::Vector(vec![i as f32])).collect());
        let part = second.weights_of(&model);
        let found: Vec<f32> = (0..2).map(|i| part.vector(WeightId(i))[0]).collect();
        assert_eq!(found, [3.0, 0.0]);
    }

    #[test]
    fn what_cannot_be_split_is_an_error() {
        let check = |graph: &Graph, layer: usize, reason: &str| {
            let error = split(graph, layer).map(|_| ()).unwrap_err().to_string();
            let expected = format!("the model cannot be split before layer {layer}: {reason}");
            assert_eq!(error, expected);
        };
        check(&model(2, false), 2, "there is no such layer");
        check(&model(2, true), 1, "layers after it read more than the hidden states");
        let kept = "layers after it read keys and values of a layer before it";
        check(&sharing(), 2, kept);
    }

    /// Three layers, of which the last attends to what the first stored.
    fn sharing() -> Graph {
        let mut b = GraphBuilder::new();
        let table = Weight { id: WeightId(0), rows: 10, cols: DIM };
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
        let mut x = b.embed(&table, 1.0);
        let mut stored = None;
        for l in 0..3 {
            b.begin_layer(l);
            x = match stored {
                Some(stored) if l == 2 => b.attention_of_stored(x, stored, 1.0),
                _ => b.attention(x, x, x, &spec),
            };
            stored.get_or_insert(x);
        }
        b.end_layers();
        let x = b.select_rows(x);
        let mut graph = b.finish(x);
        let (name, ty) = ("w0".to_owned(), BlockType::F32);
        graph.weights = vec![WeightInfo { name, shape: vec![], ty }];
        graph
    }

    #[test]
    fn a_layer_that_stores_nothing_reads_the_cache_of_another() {
        let graph = sharing();
        assert_eq!(graph.kv_groups[0].n_layers, 2);
        // A part that has both has the same layer of the cache for both.
        let mut part = Extract::new(&graph);
        graph.nodes.iter().for_each(|node| part.node(node));
        let part = part.finish(graph.output.unwrap()).graph;
        let layers: Vec<_> = part
            .nodes
            .iter()
            .filter_map(|node| match &node.op {
                Op::Attention(attention) => Some((attention.kv.layer, node.inputs.len())),
                _ => None,
            })
            .collect();
        assert_eq!(layers, [(0, 3), (1, 3), (0, 1)]);
        assert_eq!(part.kv_groups[0].n_layers, 2);
    }
}
