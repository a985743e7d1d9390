//! Records a graph while an architecture's forward pass is read.
//!
//! Methods check shapes as they record; a mismatch is a defect of the
//! architecture's code, so it panics. What a file can get wrong is checked
//! before, when its weights are declared.

use super::set_apart;
use super::{
    Activation, Attention, DeltaNet, DraftPart, Graph, KvLayer, LinearPart, Node, Norm, NormKind,
    Op, Prologue, Reach, RopeAngles, RopeStyle, RowDomain, ShortConv, StatePart, Value, ValueId,
};
use crate::graph::weights::{Linear, NormWeights, Weight, WeightId};
use realizar_kvcache::GroupSpec;

/// What a layer's attention looks like, apart from its place in the cache.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub n_heads: usize,
    /// Key-value heads.
    pub n_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Soft cap on the scores.
    pub softcap: Option<f32>,
    /// Positions that a query sees up to its own, which is included.
    pub window: Option<usize>,
    /// Whether windows lie side by side: a position sees only those of its own, up to itself.
    pub chunked: bool,
    /// How far it sees behind its own.
    pub reach: Reach,
    /// A vector with one logit per query head that takes part in the softmax and
    /// adds no value; neither scaled nor capped (gpt-oss, arXiv:2508.10925).
    pub sinks: Option<WeightId>, // [n_heads]
    /// The slopes of ALiBi (arXiv:2108.12409).
    pub alibi: Option<WeightId>, // [n_heads]
}

/// What a gated delta rule looks like, apart from its place in the state; see [`DeltaNet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetSpec {
    /// Heads of keys and queries.
    pub n_k_heads: usize,
    /// Heads of values.
    pub n_v_heads: usize,
    /// Columns of a key.
    pub k_dim: usize,
    /// Columns of a value.
    pub v_dim: usize,
    /// The order of value heads.
    pub tiled: bool,
    /// `-exp(A_log)`.
    pub decay: WeightId, // [n_v_heads]
    /// Added to the gate of the decay.
    pub dt_bias: WeightId, // [n_v_heads]
}

/// Records a [`Graph`].
#[derive(Debug, Clone, Default)]
pub struct GraphBuilder {
    graph: Graph,
    /// The layer that is being recorded.
    layer: Option<usize>,
    /// Values, the orders that their columns were put in, and the results.
    reordered: Vec<(ValueId, WeightId, ValueId)>,
    /// The layer whose keys and values the model stores for its drafting part.
    draft_layer: DraftLayer,
    /// The model's own operations, while those of its drafting part are recorded.
    trunk: Vec<Node>,
}

/// How attention is recorded, in regard to the layer that drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum DraftLayer {
    /// As a further layer of the model.
    #[default]
    None,
    /// As the layer that drafts, whose keys and values the model stores and nothing more.
    Stores,
    /// It was stored there.
    At(KvLayer),
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    fn value(&mut self, width: usize, rows: RowDomain, view: Option<(ValueId, usize)>) -> ValueId {
        let id = ValueId(u32::try_from(self.graph.values.len()).expect("fewer than 2^32 values"));
        self.graph.values.push(Value { width, rows, view });
        id
    }

    pub(super) fn push(
        &mut self,
        op: Op,
        inputs: &[ValueId],
        width: usize,
        rows: RowDomain,
    ) -> ValueId {
        let output = self.value(width, rows, None);
        self.graph.nodes.push(Node { op, inputs: inputs.to_vec(), output, layer: self.layer });
        output
    }

    pub(super) fn width(&self, x: ValueId) -> usize {
        self.graph.values[x.idx()].width
    }

    pub(super) fn rows(&self, x: ValueId) -> RowDomain {
        self.graph.values[x.idx()].rows
    }

    /// An operation whose output has the shape of its first input.
    fn same_shape(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        let (width, rows) = (self.width(inputs[0]), self.rows(inputs[0]));
        self.push(op, inputs, width, rows)
    }

    /// What is recorded from now on belongs to layer `layer`. A model can be split
    /// between devices in front of any layer, see [`super::split`].
    pub fn begin_layer(&mut self, layer: usize) {
        self.layer = Some(layer);
    }

    /// What is recorded from now on follows the last layer.
    pub fn end_layers(&mut self) {
        self.layer = None;
    }

    /// The rows of `width` columns that a graph begins with when it follows
    /// another.
    pub fn input(&mut self, width: usize) -> ValueId {
        assert!(self.graph.nodes.is_empty(), "an input comes first");
        self.push(Op::Input, &[], width, RowDomain::Tokens)
    }

    /// The embedding of each token, times `scale`.
    pub fn embed(&mut self, table: &Weight, scale: f32) -> ValueId {
        self.push(Op::Embed { table: table.id, scale }, &[], table.cols, RowDomain::Tokens)
    }

    /// The learned embedding of each position.
    pub fn pos_embed(&mut self, table: &Weight) -> ValueId {
        self.push(Op::PosEmbed { table: table.id }, &[], table.cols, RowDomain::Tokens)
    }

    /// The cosines and sines of each row's position, for [`Self::rope`].
    pub fn rope_table(&mut self, angles: RopeAngles) -> ValueId {
        let width = 2 * angles.inv_freq.len();
        self.push(Op::RopeTable(angles), &[], width, RowDomain::Tokens)
    }

    /// Normalizes every run of `weights.len` columns.
    pub fn norm(&mut self, x: ValueId, kind: NormKind, weights: &NormWeights, eps: f32) -> ValueId {
        assert_eq!(self.width(x) % weights.len, 0, "norm of {} columns", weights.len);
        let NormWeights { weight, bias, len } = *weights;
        let norm = Norm { kind, group: len, eps, weight, bias, per_run: false };
        self.same_shape(Op::Norm(norm), &[x])
    }

    /// Normalizes every run of `group` columns, with weights of its own.
    pub fn norm_of_runs(
        &mut self,
        x: ValueId,
        (kind, eps): (NormKind, f32),
        weights: &NormWeights,
        group: usize,
    ) -> ValueId {
        assert_eq!(self.width(x), weights.len, "weights of all runs");
        assert_eq!(self.width(x) % group, 0, "norm of {group} columns");
        let NormWeights { weight, bias, .. } = *weights;
        self.same_shape(Op::Norm(Norm { kind, group, eps, weight, bias, per_run: true }), &[x])
    }

    /// `x` times the transposed matrix, plus its bias, times its factor.
    pub fn linear(&mut self, x: ValueId, linear: &Linear) -> ValueId {
        let Linear { weight, bias, order, factor } = linear;
        let x = order.map_or(x, |order| self.reorder(x, order));
        assert_eq!(self.width(x), weight.cols, "linear on {} columns", weight.cols);
        let part = LinearPart { weight: weight.id, bias: *bias, out: weight.rows };
        let op = Op::Linear { prologue: Prologue::None, parts: vec![part], residual: false };
        let rows = self.rows(x);
        let y = self.push(op, &[x], weight.rows, rows);
        self.scale(y, *factor)
    }

    /// The columns of `x` in the order of a vector; one value for all linears that want it.
    fn reorder(&mut self, x: ValueId, order: WeightId) -> ValueId {
        let is_same = |(of, by, _): &&(ValueId, WeightId, ValueId)| (*of, *by) == (x, order);
        if let Some((_, _, reordered)) = self.reordered.iter().find(is_same) {
            return *reordered;
        }
        let reordered = self.same_shape(Op::Reorder { order }, &[x]);
        self.reordered.push((x, order, reordered));
        reordered
    }

    /// The columns of `x` that a vector lists, in its order.
    pub fn columns_of(&mut self, x: ValueId, order: WeightId, n_columns: usize) -> ValueId {
        let rows = self.rows(x);
        self.push(Op::Reorder { order }, &[x], n_columns, rows)
    }

    /// The columns of all `inputs` side by side.
    pub fn concat(&mut self, inputs: &[ValueId]) -> ValueId {
        let rows = self.rows(inputs[0]);
        assert!(inputs.iter().all(|&x| self.rows(x) == rows), "rows of what stands side by side");
        let width = inputs.iter().map(|&x| self.width(x)).sum();
        self.push(Op::Concat, inputs, width, rows)
    }

    /// Rotates the first columns of every head by its position's angles.
    pub fn rope(
        &mut self,
        x: ValueId,
        table: ValueId,
        head_dim: usize,
        style: RopeStyle,
    ) -> ValueId {
        assert!(self.width(table) <= head_dim && self.width(x).is_multiple_of(head_dim));
        self.same_shape(Op::Rope { head_dim, style }, &[x, table])
    }

    /// Stores `k` and `v` of a new layer and attends to them with `q`. Values that are the keys are stored once.
    pub fn attention(
        &mut self,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        spec: &AttentionSpec,
    ) -> ValueId {
        let &AttentionSpec { n_heads, n_kv_heads, head_dim, window, chunked, .. } = spec;
        assert_eq!(self.width(q), n_heads * head_dim, "width of q");
        assert_eq!(self.width(k), n_kv_heads * head_dim, "width of k");
        assert_eq!(self.width(v), n_kv_heads * head_dim, "width of v");
        let values_are_keys = k == v;
        let of_layer =
            GroupSpec { n_layers: 0, n_kv_heads, head_dim, window, chunked, values_are_keys };
        let kv = match self.draft_layer {
            DraftLayer::At(kv) => kv,
            DraftLayer::None | DraftLayer::Stores => self.kv_layer(of_layer),
        };
        if self.draft_layer == DraftLayer::Stores {
            self.draft_layer = DraftLayer::At(kv);
            self.push(Op::StoreKv(kv), &[k, v], 1, RowDomain::Tokens);
            return q;
        }
        let &AttentionSpec { scale, softcap, reach, sinks, alibi, .. } = spec;
        let attention = Attention {
            kv,
            n_heads,
            n_kv_heads,
            head_dim,
            scale,
            softcap,
            window,
            chunked,
            reach,
            sinks,
            alibi,
        };
        self.same_shape(Op::Attention(attention), &[q, k, v])
    }

    /// Attends with `q` to the keys and values that the attention with the output `stored` stores.
    pub fn attention_of_stored(&mut self, q: ValueId, stored: ValueId, scale: f32) -> ValueId {
        let is_it = |node: &&Node| node.output == stored;
        let Some(Op::Attention(of_stored)) =
            self.graph.nodes.iter().find(is_it).map(|node| node.op.clone())
        else {
            panic!("an attention stores keys and values")
        };
        assert_eq!(self.width(q), of_stored.n_heads * of_stored.head_dim, "width of q");
        self.same_shape(Op::Attention(Attention { scale, ..of_stored }), &[q])
    }

    /// Adds a layer to the group of its shape, which is made when it is new.
    fn kv_layer(&mut self, spec: GroupSpec) -> KvLayer {
        let groups = &mut self.graph.kv_groups;
        let is_same = |g: &GroupSpec| GroupSpec { n_layers: 0, ..g.clone() } == spec;
        let found = groups.iter().position(is_same);
        let group = found.unwrap_or_else(|| {
            groups.push(spec);
            groups.len() - 1
        });
        groups[group].n_layers += 1;
        KvLayer { group, layer: groups[group].n_layers - 1 }
    }

    /// Adds `len` elements to the recurrent state.
    fn state(&mut self, len: usize) -> StatePart {
        let start = self.graph.state_len;
        self.graph.state_len += len;
        StatePart { start, len }
    }

    /// A causal convolution of every column with the `n_taps` weights that `taps` has for it.
    pub fn short_conv(
        &mut self,
        x: ValueId,
        (taps, n_taps): (WeightId, usize), // [n_taps, width of x]
        bias: Option<WeightId>,
        act: Option<Activation>,
    ) -> ValueId {
        assert!(n_taps > 0, "a convolution has taps");
        let state = self.state((n_taps - 1) * self.width(x));
        self.same_shape(Op::ShortConv(ShortConv { taps, n_taps, bias, act, state }), &[x])
    }

    /// The gated delta rule over `q`, `k` and `v` with the gates `a` and `b`.
    pub fn delta_net(
        &mut self,
        [q, k, v]: [ValueId; 3],
        [a, b]: [ValueId; 2],
        spec: &DeltaNetSpec,
    ) -> ValueId {
        let &DeltaNetSpec { n_k_heads, n_v_heads, k_dim, v_dim, tiled, decay, dt_bias } = spec;
        for (x, width) in [
            (q, n_k_heads * k_dim),
            (k, n_k_heads * k_dim),
            (v, n_v_heads * v_dim),
            (a, n_v_heads),
            (b, n_v_heads),
        ] {
            assert_eq!(self.width(x), width, "width of an input of the delta rule");
        }
        let state = self.state(n_v_heads * k_dim * v_dim);
        let (width, rows) = (self.width(v), self.rows(v));
        let net = DeltaNet { n_k_heads, n_v_heads, k_dim, v_dim, tiled, decay, dt_bias, state };
        self.push(Op::DeltaNet(net), &[q, k, v, a, b], width, rows)
    }

    /// Columns of a value, as a value.
    pub fn columns(&mut self, x: ValueId, first: usize, width: usize) -> ValueId {
        assert!(first + width <= self.width(x), "columns of a value");
        let rows = self.rows(x);
        self.value(width, rows, Some((x, first)))
    }

    /// `a * b`, element by element.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        assert_eq!(self.width(a), self.width(b), "widths of a product");
        self.same_shape(Op::Mul, &[a, b])
    }

    /// The activation of every element.
    pub fn act(&mut self, x: ValueId, activation: Activation) -> ValueId {
        self.same_shape(Op::Act(activation), &[x])
    }

    /// `act(gate) * up`.
    pub fn gated_act(&mut self, gate: ValueId, up: ValueId, activation: Activation) -> ValueId {
        assert_eq!(self.width(gate), self.width(up), "widths of gate and up");
        self.same_shape(Op::GatedAct(activation), &[gate, up])
    }

    /// `a + b`.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        assert_eq!(self.width(a), self.width(b), "widths of a sum");
        self.same_shape(Op::Add, &[a, b])
    }

    /// `x` times a constant; nothing when it is 1.
    pub fn scale(&mut self, x: ValueId, factor: f32) -> ValueId {
        if factor == 1.0 { x } else { self.same_shape(Op::Scale(factor), &[x]) }
    }

    /// `cap * tanh(x / cap)`; nothing when there is no cap.
    pub fn softcap(&mut self, x: ValueId, cap: Option<f32>) -> ValueId {
        match cap {
            Some(cap) => self.same_shape(Op::Softcap(cap), &[x]),
            None => x,
        }
    }

    /// Every element held between `-limit` and `limit`; nothing when there is no limit.
    pub fn clamp(&mut self, x: ValueId, limit: Option<f32>) -> ValueId {
        match limit {
            Some(limit) => self.same_shape(Op::Clamp { min: -limit, max: limit }, &[x]),
            None => x,
        }
    }

    /// Every element held between `min` and `max`.
    pub fn clamp_to(&mut self, x: ValueId, min: f32, max: f32) -> ValueId {
        self.same_shape(Op::Clamp { min, max }, &[x])
    }

    /// Only the rows whose logits are wanted.
    pub fn select_rows(&mut self, x: ValueId) -> ValueId {
        let width = self.width(x);
        self.push(Op::SelectRows, &[x], width, RowDomain::Outputs)
    }

    /// Of the attention that is recorded next, the model's steps store keys and values, and nothing else is
    /// kept of what is recorded around it: it is that of the layer which drafts.
    pub fn store_draft_layer(&mut self) {
        self.draft_layer = DraftLayer::Stores;
    }

    /// What is recorded from now on is the part that drafts, whose attention reads what the model's steps
    /// [store](Self::store_draft_layer). Returns the rows of `width` columns that it begins with.
    ///
    /// # Panics
    /// If no keys and values are stored for it.
    pub fn begin_draft(&mut self, width: usize) -> ValueId {
        assert!(matches!(self.draft_layer, DraftLayer::At(_)), "keys and values are stored for it");
        self.trunk = std::mem::take(&mut self.graph.nodes);
        self.reordered.clear();
        self.input(width)
    }

    /// Ends the part that drafts with its logits and the hidden states that they are made of; `hidden` are
    /// the model's own, which it begins with.
    pub fn end_draft(&mut self, hidden: ValueId, logits: ValueId, next: ValueId) {
        let trunk = std::mem::take(&mut self.trunk);
        let nodes = std::mem::replace(&mut self.graph.nodes, trunk);
        self.graph.draft = Some(Box::new(DraftPart { nodes, hidden, logits, next }));
        self.reordered.clear();
    }

    /// Ends the graph with its output: logits, or hidden states for another graph.
    pub fn finish(mut self, output: ValueId) -> Graph {
        self.graph.output = Some(output);
        set_apart(self.graph)
    }
}
