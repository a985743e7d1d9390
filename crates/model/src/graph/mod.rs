//! The graph of a forward pass: what is computed, not how or where.
//!
//! A graph is recorded once per loaded model by [`GraphBuilder`], relieved of rows that
//! nothing reads ([`select_early`]), rewritten by the fusions a backend asks for ([`fuse`]),
//! laid out in memory by [`plan`] and then run for every batch. Every value is a matrix of f32
//! with a fixed number of columns; its rows are the tokens of the batch, or the
//! rows whose output is wanted.

mod body;
mod builder;
mod draft;
mod experts;
mod fuse;
pub mod plan;
mod print;
mod reads;
mod select;
mod shard;
mod split;
pub mod weights;

pub use body::{body, head_input};
pub use builder::{AttentionSpec, DeltaNetSpec, GraphBuilder};
pub use draft::{DraftPart, set_apart};
pub use experts::{ExpertBias, ExpertLinear, ExpertPart, Route};
pub use fuse::{Fusions, fuse};
pub use reads::{DraftBytes, bytes_per_token, draft_bytes};
pub use realizar_types::{Activation, Groups, NormKind, RopeStyle, Scoring};
pub use select::select_early;
pub use shard::{Sharded, shard};
pub use split::{Part, split};

use realizar_kvcache::GroupSpec;
use std::sync::Arc;
use weights::WeightId;

/// A value of the graph: the output of a node, or some columns of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// The index as a `usize`.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// What the rows of a value stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowDomain {
    /// One row per token of the batch.
    Tokens,
    /// One row per token whose output is wanted: its logits or its hidden state.
    Outputs,
}

/// A value's shape and where it comes from.
#[derive(Debug, Clone)]
pub struct Value {
    /// Columns.
    pub width: usize,
    /// What its rows stand for.
    pub rows: RowDomain,
    /// Set when the value is columns of another: that value and the first column.
    pub view: Option<(ValueId, usize)>,
}

/// A normalization over runs of `group` columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Root mean square or mean and deviation.
    pub kind: NormKind,
    /// Columns that are normalized together: all of them, or one head's.
    pub group: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Scale, of length `group`.
    pub weight: Option<WeightId>,
    /// Offset, of length `group`.
    pub bias: Option<WeightId>,
    /// Whether every run has a scale and an offset of its own, one after another.
    pub per_run: bool,
}

/// One matrix of a [`Op::Linear`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearPart {
    /// The matrix, `[out, in]`.
    pub weight: WeightId,
    /// Its bias, `[out]`.
    pub bias: Option<WeightId>,
    /// Rows of the matrix.
    pub out: usize,
}

/// What a [`Op::Linear`] does to its input row before it multiplies.
#[derive(Debug, Clone, PartialEq)]
pub enum Prologue {
    /// Nothing.
    None,
    /// Normalizes it.
    Norm(Norm),
    /// Takes two inputs, gate and up, and uses `act(gate) * up`.
    Gated(Activation),
    /// Applies the activation.
    Act(Activation),
}

/// The rotation angles of a rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeAngles {
    /// Angle per position, for each pair of rotated columns.
    pub inv_freq: Arc<[f32]>, // [rotary_dim / 2]
    /// Factor on sine and cosine (YaRN's attention factor).
    pub mscale: f32,
    /// Of each pair the component of the position that its angle is made of: temporal, height or
    /// width. Empty where positions have one.
    pub components: Arc<[u8]>, // [rotary_dim / 2]
}

/// How far behind its own position a row of attention sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reach {
    /// Not at all.
    #[default]
    Causal,
    /// As far as the batch says of each row: to the end of a segment whose rows see each other, or
    /// of the whole text.
    OfRow,
}

/// Scaled dot-product attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// The layer's group in [`Graph::kv_groups`] and its index in the group.
    pub kv: KvLayer,
    /// Query heads.
    pub n_heads: usize,
    /// Key-value heads; each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores are passed through `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Positions that a query sees up to its own, which is included.
    pub window: Option<usize>,
    /// Whether windows lie side by side: a position sees only those of its own, up to itself.
    pub chunked: bool,
    /// How far it sees behind its own.
    pub reach: Reach,
    /// One logit per query head that takes part in the softmax and adds no value.
    pub sinks: Option<WeightId>, // [n_heads]
    /// What the distance of a key before the query is multiplied by and taken off its score, after scale and
    /// cap: the slopes of ALiBi (arXiv:2108.12409).
    pub alibi: Option<WeightId>, // [n_heads]
}

/// A layer's place in the key-value cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayer {
    /// Index of the group.
    pub group: usize,
    /// Index of the layer within the group.
    pub layer: usize,
}

/// A layer's part of the recurrent state, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatePart {
    /// Its first element.
    pub start: usize,
    /// Its elements.
    pub len: usize,
}

/// A causal convolution over few positions, each channel by itself. Its state is the last
/// `n_taps - 1` rows of its input.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    /// A vector of `[n_taps, channels]`, those of the oldest row first.
    pub taps: WeightId,
    /// Positions that an element depends on.
    pub n_taps: usize,
    /// Added to every row, `[channels]`.
    pub bias: Option<WeightId>,
    /// Applied to the result.
    pub act: Option<Activation>,
    /// Its state.
    pub state: StatePart,
}

/// Linear attention by the gated delta rule (arXiv:2412.06464). Its state is a matrix of
/// `[k_dim, v_dim]` for each value head.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaNet {
    /// Heads of keys and queries; each serves `n_v_heads / n_k_heads` heads of values.
    pub n_k_heads: usize,
    /// Heads of values.
    pub n_v_heads: usize,
    /// Columns of a key.
    pub k_dim: usize,
    /// Columns of a value.
    pub v_dim: usize,
    /// Whether value head `h` has key head `h % n_k_heads`; otherwise those of a key head are
    /// neighbours.
    pub tiled: bool,
    /// A vector, `-exp(A_log)` of each value head.
    pub decay: WeightId, // [n_v_heads]
    /// A vector, added to the gate of the decay.
    pub dt_bias: WeightId, // [n_v_heads]
    /// Its state.
    pub state: StatePart,
}

impl DeltaNet {
    /// Added to the squares of keys and queries before they are normalized, as in the reference
    /// implementations.
    pub const EPS: f32 = 1e-6;
}

/// An operation. Its inputs and output are the node's.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Rows that come from outside: the hidden states of the device before. No
    /// inputs; the first node of its graph.
    Input,
    /// Rows of a table by token id, times `scale`.
    Embed {
        /// `[vocab_size, dim]`
        table: WeightId,
        /// Factor on the row.
        scale: f32,
    },
    /// Rows of a table by position.
    PosEmbed {
        /// `[max_seq_len, dim]`
        table: WeightId,
    },
    /// Cosines and sines for each row's position: `[rows, rotary_dim]`.
    RopeTable(RopeAngles),
    /// Input x.
    Norm(Norm),
    /// Inputs x (gate and up with a gated prologue), then the residual if there
    /// is one. Output: the parts' outputs side by side.
    Linear {
        /// What happens to x first.
        prologue: Prologue,
        /// The matrices, all on the same x.
        parts: Vec<LinearPart>,
        /// Whether the last input is added to the output.
        residual: bool,
    },
    /// Input x: some of its columns, or all, in the order of a vector, which holds the index in x of each.
    Reorder {
        /// As many whole numbers as come out.
        order: WeightId,
    },
    /// One input or more: their columns side by side.
    Concat,
    /// Input: the scores of the router, `[rows, n_experts]`. Output: `[rows, 2 * n_chosen]`, the
    /// indices of each row's experts, ascending, then their factors.
    Route(Route),
    /// Inputs x (gate and up with a gated prologue), then the routes. Output: for each part, the
    /// results of each row's experts side by side, `[rows, n_chosen * out]`.
    ExpertLinear(ExpertLinear),
    /// Inputs x, `[rows, n_chosen * width]`, and the routes: each result of a row's experts, plus the
    /// biases of its expert.
    ExpertBias(ExpertBias),
    /// Inputs x, `[rows, n_chosen * width]`, and the routes. Output: the sum of a row's results by
    /// their factors.
    Combine,
    /// Inputs x and a rope table; rotates the first columns of every head.
    Rope {
        /// Columns of a head.
        head_dim: usize,
        /// How columns are paired.
        style: RopeStyle,
    },
    /// Inputs q, k and v. Stores k and v, then attends with q. With q as the only input it attends to what
    /// an earlier attention stored for its layer of the cache.
    Attention(Attention),
    /// Inputs k and v, which it stores in the key-value cache. Nothing reads its output of one column.
    StoreKv(KvLayer),
    /// Input x.
    ShortConv(ShortConv),
    /// Inputs q, k, v, and for each value head the gates of decay and of writing, `a` and `b`.
    DeltaNet(DeltaNet),
    /// Input x.
    Act(Activation),
    /// Inputs gate and up: `act(gate) * up`.
    GatedAct(Activation),
    /// Inputs a and b.
    Add,
    /// Inputs a and b: the product of their elements.
    Mul,
    /// Input x, times a constant.
    Scale(f32),
    /// Input x: `cap * tanh(x / cap)`.
    Softcap(f32),
    /// Input x: each element, no less than `min` and no more than `max`.
    Clamp {
        /// The lower bound.
        min: f32,
        /// The upper bound.
        max: f32,
    },
    /// Input x, tokens; output: only the rows whose output is wanted.
    SelectRows,
    /// Input x, a term of every rank, and then the residual if there is one. Output: the sum of the terms in the
    /// order of the ranks, and of the residual.
    AllReduce {
        /// Whether the last input is added to the sum.
        residual: bool,
    },
    /// Input x, some columns of every rank. Output: the columns of all, in the order of the ranks.
    AllGather,
}

/// An operation with its inputs and its output.
#[derive(Debug, Clone)]
pub struct Node {
    /// What is done.
    pub op: Op,
    /// To what.
    pub inputs: Vec<ValueId>,
    /// Into what.
    pub output: ValueId,
    /// The model's layer that it belongs to; none before the first and after the
    /// last.
    pub layer: Option<usize>,
}

/// A weight as the graph knows it.
#[derive(Debug, Clone)]
pub struct WeightInfo {
    /// Canonical name, such as `layers.3.wq`.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Block type of the stored elements.
    pub ty: realizar_quant::BlockType,
}

/// A recorded forward pass.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The operations, in an order in which they can run.
    pub nodes: Vec<Node>,
    /// Every value.
    pub values: Vec<Value>,
    /// Every weight, indexed by [`WeightId`].
    pub weights: Vec<WeightInfo>,
    /// The groups of layers that share key-value pages.
    pub kv_groups: Vec<GroupSpec>,
    /// Elements of the recurrent state of a sequence, of all layers; 0 without such layers.
    pub state_len: usize,
    /// What the graph computes: the logits, `[outputs, vocab_size]`, without the head the
    /// normalized hidden states, `[outputs, dim]`, or of a part that another one follows
    /// the hidden states, `[tokens, dim]`.
    pub output: Option<ValueId>,
    /// The normalized hidden states, `[outputs, dim]`, where they stay after a step beside the logits.
    pub hidden: Option<ValueId>,
    /// The part that drafts tokens, for models that bring one; it runs in steps of its own.
    pub draft: Option<Box<DraftPart>>,
}

impl Graph {
    /// The values that stay after a step: the output, hidden states beside it, and what drafting needs.
    pub fn results(&self) -> impl Iterator<Item = ValueId> {
        let of_draft = self.draft.iter().flat_map(|draft| [draft.hidden, draft.logits, draft.next]);
        self.output.into_iter().chain(self.hidden).chain(of_draft)
    }

    /// The operations of a step of the model, then those of a step that drafts.
    pub fn all_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().chain(self.draft.iter().flat_map(|draft| &draft.nodes))
    }

    /// The ids of all values.
    pub fn value_ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        // The builder sees to it that ids fit.
        (0..self.values.len() as u32).map(ValueId)
    }

    /// Whether rows may see further than themselves: every layer that mixes rows attends as far as
    /// the batch says.
    pub fn has_reaches(&self) -> bool {
        let mut of_rows = self.nodes.iter().filter_map(|node| match &node.op {
            Op::Attention(attention) => Some(attention.reach == Reach::OfRow),
            Op::ShortConv(_) | Op::DeltaNet(_) => Some(false),
            _ => None,
        });
        let first = of_rows.next();
        first.unwrap_or(false) && of_rows.all(|of_row| of_row)
    }

    /// How many components positions have that rows may bring along for their angles: none where
    /// positions do not reach the rows by angles alone.
    pub fn angle_components(&self) -> usize {
        let of_node = |node: &Node| match &node.op {
            Op::RopeTable(angles) => Some(if angles.components.is_empty() { 1 } else { 3 }),
            Op::PosEmbed { .. } => Some(0),
            Op::Attention(attention) if attention.alibi.is_some() => Some(0),
            _ => None,
        };
        let all = || self.nodes.iter().filter_map(of_node);
        if all().any(|n| n == 0) { 0 } else { all().max().unwrap_or(0) }
    }

    /// Whether rows may come as embeddings in place of tokens: nothing but the first table is looked up
    /// by token.
    pub fn takes_embeddings(&self) -> bool {
        self.nodes.iter().filter(|node| matches!(node.op, Op::Embed { .. })).count() <= 1
    }

    /// Columns of what the graph computes.
    ///
    /// # Panics
    /// If the graph was not finished.
    pub fn output_width(&self) -> usize {
        self.values[self.output.expect("a finished graph has an output").idx()].width
    }

    /// The value that holds the storage of `id`, and the column where `id` begins.
    pub fn root(&self, id: ValueId) -> (ValueId, usize) {
        let (mut id, mut col) = (id, 0);
        while let Some((of, offset)) = self.values[id.idx()].view {
            (id, col) = (of, col + offset);
        }
        (id, col)
    }
}
