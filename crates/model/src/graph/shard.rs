//! Divides a recorded graph among ranks that run it in lockstep, each with a part of every layer's weights: tensor
//! parallelism (Shoeybi et al., arXiv:1909.08053).
//!
//! All ranks run the same graph; they differ in what their weights hold. A linear on a value that every rank has
//! keeps some rows of its matrix and makes some columns of its output. What works on columns alone, or on whole
//! heads, continues with these. A linear on columns keeps those columns of its matrix, and makes a term of a sum over
//! the ranks, which is added up where something needs it whole. How values are divided follows from the operations,
//! so nothing here knows an architecture: what needs all columns of a row, such as a router, makes the linears before
//! it stay whole.

use super::split::each_weight;
use super::{
    Attention, ExpertLinear, ExpertPart, Graph, LinearPart, Node, Op, Value, ValueId, WeightInfo,
};
use crate::Error;
use crate::graph::weights::{Slice, WeightId, Weights};
use std::collections::HashMap;

/// A graph for ranks.
#[derive(Debug, Clone)]
pub struct Sharded {
    /// The graph of each rank, over its own weights.
    pub graph: Graph,
    /// The names of the matrices of linears that every rank has whole.
    pub whole: Vec<String>,
    n_ranks: usize,
    weights: Vec<(WeightId, Slice)>,
}

impl Sharded {
    /// The weights of a rank out of the model's. Rows are shared with them, columns copied when they are first read.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn weights_of(&self, model: &Weights, rank: usize) -> Weights {
        assert!(rank < self.n_ranks, "rank {rank} of {}", self.n_ranks);
        let of_rank =
            |&(id, slice): &(WeightId, Slice)| model.get(id).sliced(slice, rank, self.n_ranks);
        Weights(self.weights.iter().map(of_rank).collect())
    }
}

/// Columns of a value that are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    /// Neighbouring ranks that have the same columns.
    copies: usize,
    /// Runs of columns, such as those of a row's experts, each of which is divided by itself.
    segments: usize,
}

/// What a rank has of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// All of it.
    Whole,
    /// Some of its columns.
    Cut(Cut),
    /// All columns of one of the terms whose sum over the ranks it is.
    Term,
}

/// What a linear on a whole value makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Whole,
    /// Columns, the same in so many neighbouring ranks.
    Cut {
        copies: usize,
    },
}

/// Divides `graph` among `n_ranks` ranks.
///
/// # Errors
/// If heads, rows or blocks of columns cannot be divided evenly, or there is nothing to divide.
///
/// # Panics
/// If the graph was not finished, or fused before.
pub fn shard(graph: &Graph, n_ranks: usize) -> Result<Sharded, Error> {
    check_heads(graph, n_ranks)?;
    let mut layouts = Layouts::new(graph, n_ranks);
    // Every round keeps another linear whole, so there is an end.
    while layouts.round() {}
    layouts.check()?;
    Emit::new(graph, &layouts).run()
}

fn refused<T>(n_ranks: usize, reason: String) -> Result<T, Error> {
    Err(Error::Shard { n_ranks, reason })
}

/// Neighbouring ranks that have the same key-value heads.
fn kv_copies(n_ranks: usize, n_kv_heads: usize) -> usize {
    (n_ranks / n_kv_heads).max(1)
}

/// Every rank has as many heads as another.
fn check_heads(graph: &Graph, n_ranks: usize) -> Result<(), Error> {
    for node in &graph.nodes {
        let Op::Attention(Attention { n_heads, n_kv_heads, .. }) = &node.op else { continue };
        let fits = n_heads.is_multiple_of(n_ranks)
            && (n_kv_heads.is_multiple_of(n_ranks) || n_ranks.is_multiple_of(*n_kv_heads));
        if !fits {
            let layer = node.layer.map_or(String::new(), |layer| format!(" of layer {layer}"));
            let heads = format!("{n_heads} query heads and {n_kv_heads} key-value heads");
            return refused(n_ranks, format!("the {heads}{layer} cannot be divided evenly"));
        }
    }
    Ok(())
}

/// How values are divided, found in rounds.
struct Layouts<'a> {
    graph: &'a Graph,
    n_ranks: usize,
    wanted: Vec<Wanted>, // [nodes]
    of: Vec<Layout>,     // [values]
    /// The linears whose columns a value is made of.
    sources: Vec<Vec<usize>>, // [values]
    changed: bool,
}

impl<'a> Layouts<'a> {
    fn new(graph: &'a Graph, n_ranks: usize) -> Self {
        Self {
            graph,
            n_ranks,
            wanted: vec![Wanted::Cut { copies: 1 }; graph.nodes.len()],
            of: vec![Layout::Whole; graph.values.len()],
            sources: vec![Vec::new(); graph.values.len()],
            changed: false,
        }
    }

    /// The layout of every value by what is wanted now; whether that was changed.
    fn round(&mut self) -> bool {
        self.changed = false;
        for (idx, node) in self.graph.nodes.iter().enumerate() {
            let layout = self.node(idx, node);
            let mut sources = Vec::new();
            if let Layout::Cut(_) = layout {
                for &input in &node.inputs {
                    sources.extend_from_slice(&self.sources[self.graph.root(input).0.idx()]);
                }
                if sources.is_empty() {
                    sources.push(idx);
                }
                sources.sort_unstable();
                sources.dedup();
            }
            self.of[node.output.idx()] = layout;
            self.sources[node.output.idx()] = sources;
        }
        let output = self.graph.output.expect("a finished graph has an output");
        if let Layout::Cut(cut) = self.layout(output)
            && (cut != Cut { copies: 1, segments: 1 }
                || !self.graph.values[output.idx()].width.is_multiple_of(self.n_ranks))
        {
            self.keep_whole(output);
        }
        if !self.changed {
            self.agree_in_groups();
        }
        self.changed
    }

    /// The layers of a key-value group have the same heads, so all of them are divided, or none.
    fn agree_in_groups(&mut self) {
        let attentions: Vec<(usize, &Node)> = self
            .graph
            .nodes
            .iter()
            .filter_map(|node| match &node.op {
                Op::Attention(attention) => Some((attention.kv.group, node)),
                _ => None,
            })
            .collect();
        for &(group, node) in &attentions {
            if self.of[node.output.idx()] == Layout::Whole {
                let others = attentions.iter().filter(|(of, _)| *of == group);
                others.for_each(|(_, other)| self.keep_whole(other.output));
            }
        }
    }

    fn want(&mut self, value: ValueId, wanted: Wanted) {
        let root = self.graph.root(value).0.idx();
        for source in std::mem::take(&mut self.sources[root]) {
            let earlier = self.wanted[source];
            // Readers may want several things, and whole rows serve all of them.
            let settled = match earlier {
                Wanted::Cut { copies: 1 } => wanted,
                other if other == wanted => other,
                _ => Wanted::Whole,
            };
            if settled != earlier {
                self.wanted[source] = settled;
                self.changed = true;
            }
        }
    }

    /// Every rank needs all of a value: the linears that it comes from stay whole.
    fn keep_whole(&mut self, value: ValueId) {
        if let Layout::Cut(_) = self.of[self.graph.root(value).0.idx()] {
            self.want(value, Wanted::Whole);
            self.of[self.graph.root(value).0.idx()] = Layout::Whole;
        }
    }

    fn keep_all_whole(&mut self, node: &Node) -> Layout {
        node.inputs.iter().for_each(|&input| self.keep_whole(input));
        Layout::Whole
    }

    /// The layout of a value, or of columns of one: these are taken of whole rows alone.
    fn layout(&mut self, value: ValueId) -> Layout {
        if self.graph.values[value.idx()].view.is_some() {
            self.keep_whole(value);
        }
        self.of[self.graph.root(value).0.idx()]
    }

    /// Operands of which each element meets its like.
    fn alike(&mut self, node: &Node) -> Option<Cut> {
        let layouts: Vec<Layout> = node.inputs.iter().map(|&id| self.layout(id)).collect();
        match layouts[0] {
            Layout::Cut(cut) if layouts.iter().all(|&layout| layout == layouts[0]) => Some(cut),
            _ => None,
        }
    }

    fn node(&mut self, idx: usize, node: &Node) -> Layout {
        let input = |layouts: &mut Self, i: usize| layouts.layout(node.inputs[i]);
        match &node.op {
            Op::Linear { .. } => match input(self, 0) {
                Layout::Cut(Cut { copies: 1, segments: 1 }) => Layout::Term,
                Layout::Cut(_) => self.keep_all_whole(node),
                Layout::Whole | Layout::Term => self.rows(idx, 1),
            },
            Op::ExpertLinear(linear) => {
                self.keep_whole(node.inputs[1]);
                let n_chosen = linear.n_chosen;
                let has_own = self.graph.values[node.inputs[0].idx()].width != linear.n_in;
                let segments = if has_own { n_chosen } else { 1 };
                match input(self, 0) {
                    Layout::Cut(cut) if cut == (Cut { copies: 1, segments }) => Layout::Term,
                    Layout::Cut(_) => self.keep_all_whole(node),
                    Layout::Whole | Layout::Term => self.rows(idx, n_chosen),
                }
            }
            Op::Combine => {
                self.keep_whole(node.inputs[1]);
                match input(self, 0) {
                    Layout::Cut(Cut { copies, .. }) => Layout::Cut(Cut { copies, segments: 1 }),
                    layout => layout,
                }
            }
            Op::Attention(attention) => self.attention(node, attention),
            // Heads are normalized by themselves; where each has a scale of its own, every rank has all.
            Op::Norm(norm) => match input(self, 0) {
                Layout::Cut(cut)
                    if !norm.per_run && norm.group < self.graph.values[node.output.idx()].width =>
                {
                    Layout::Cut(cut)
                }
                _ => self.keep_all_whole(node),
            },
            Op::Rope { .. } => {
                self.keep_whole(node.inputs[1]);
                match input(self, 0) {
                    Layout::Cut(cut) => Layout::Cut(cut),
                    _ => Layout::Whole,
                }
            }
            Op::Act(_) | Op::Softcap(_) | Op::Clamp { .. } => match input(self, 0) {
                Layout::Cut(cut) => Layout::Cut(cut),
                _ => Layout::Whole,
            },
            Op::Scale(_) | Op::SelectRows => input(self, 0),
            Op::GatedAct(_) => match self.alike(node) {
                Some(cut) => Layout::Cut(cut),
                None => self.keep_all_whole(node),
            },
            Op::Add => match (self.alike(node), input(self, 0), input(self, 1)) {
                (Some(cut), ..) => Layout::Cut(cut),
                (_, Layout::Term, Layout::Term) => Layout::Term,
                _ => self.keep_all_whole(node),
            },
            Op::Mul => match (self.alike(node), input(self, 0), input(self, 1)) {
                (Some(cut), ..) => Layout::Cut(cut),
                (_, Layout::Term, Layout::Whole) | (_, Layout::Whole, Layout::Term) => Layout::Term,
                _ => self.keep_all_whole(node),
            },
            Op::Input
            | Op::Embed { .. }
            | Op::PosEmbed { .. }
            | Op::RopeTable(_)
            | Op::Reorder { .. }
            | Op::Concat
            | Op::Route(_)
            | Op::ExpertBias(_)
            | Op::StoreKv(_)
            | Op::ShortConv(_)
            | Op::DeltaNet(_) => self.keep_all_whole(node),
            Op::AllReduce { .. } | Op::AllGather => unreachable!("a graph is divided once"),
        }
    }

    /// What a linear on a whole value makes.
    fn rows(&self, idx: usize, segments: usize) -> Layout {
        match self.wanted[idx] {
            Wanted::Whole => Layout::Whole,
            Wanted::Cut { copies } => Layout::Cut(Cut { copies, segments }),
        }
    }

    fn attention(&mut self, node: &Node, attention: &Attention) -> Layout {
        let copies = kv_copies(self.n_ranks, attention.n_kv_heads);
        let cut = |copies| Layout::Cut(Cut { copies, segments: 1 });
        let [q_of, k_of, v_of] = match node.inputs[..] {
            [q, k, v] => [q, k, v],
            // What an earlier attention stored is divided as that one is: see `agree_in_groups`.
            _ => match self.layout(node.inputs[0]) {
                layout if layout == cut(1) => return layout,
                _ => return self.keep_all_whole(node),
            },
        };
        let [q, k, v] = [q_of, k_of, v_of].map(|input| self.layout(input));
        let is_cut = |layout| matches!(layout, Layout::Cut(Cut { segments: 1, .. }));
        if q != cut(1) || !is_cut(k) || !is_cut(v) {
            return self.keep_all_whole(node);
        }
        for (layout, &input) in [k, v].into_iter().zip(&node.inputs[1..]) {
            if layout != cut(copies) {
                self.want(input, Wanted::Cut { copies });
            }
        }
        cut(1)
    }

    /// Whether everything that is divided can be shared evenly.
    fn check(&self) -> Result<(), Error> {
        let n = self.n_ranks;
        let info = |id: WeightId| &self.graph.weights[id.idx()];
        let rows = |id: WeightId, out: usize, layout: Layout| match layout {
            Layout::Cut(Cut { copies, .. }) if !out.is_multiple_of(n / copies) => {
                let name = &info(id).name;
                refused(n, format!("`{name}` has {out} rows, which cannot be divided evenly"))
            }
            _ => Ok(()),
        };
        let columns = |id: WeightId, cols: usize| {
            let WeightInfo { name, ty, .. } = info(id);
            let block = ty.block_len();
            if cols.is_multiple_of(n * block) {
                return Ok(());
            }
            let blocks = if block > 1 { format!(" in blocks of {block}") } else { String::new() };
            let has = format!("`{name}` of {ty} has {cols} columns{blocks}");
            refused(n, format!("{has}, which cannot be divided evenly"))
        };
        let is_cut = |id: ValueId| matches!(self.of[id.idx()], Layout::Cut(_));
        let width = |id: ValueId| self.graph.values[id.idx()].width;
        for node in &self.graph.nodes {
            let layout = self.of[node.output.idx()];
            match &node.op {
                Op::Linear { parts, .. } => {
                    let part = &parts[0];
                    rows(part.weight, part.out, layout)?;
                    if layout == Layout::Term {
                        columns(part.weight, width(node.inputs[0]))?;
                    }
                }
                Op::ExpertLinear(linear) => {
                    let part = &linear.parts[0];
                    rows(part.weight, part.out, layout)?;
                    if layout == Layout::Term {
                        columns(part.weight, linear.n_in)?;
                    }
                }
                Op::Norm(norm) => {
                    let Layout::Cut(Cut { copies, .. }) = layout else { continue };
                    let width = width(node.output);
                    if !width.is_multiple_of(norm.group * n / copies) {
                        let reason = format!("a norm of every {} of {width} columns", norm.group);
                        return refused(n, format!("{reason} cannot be divided evenly"));
                    }
                }
                _ => {}
            }
        }
        let is_shared = self.graph.nodes.iter().any(|node| {
            let takes = node.inputs.iter().any(|&id| is_cut(self.graph.root(id).0));
            takes && matches!(node.op, Op::Linear { .. } | Op::ExpertLinear(_))
        });
        match is_shared {
            true => Ok(()),
            false => refused(n, "no matrix of its layers can be divided".to_owned()),
        }
    }
}

/// The graph of a rank, while it is put together.
struct Emit<'a> {
    whole: &'a Graph,
    layouts: &'a Layouts<'a>,
    n_ranks: usize,
    graph: Graph,
    values: Vec<Option<ValueId>>, // [values of the whole]
    /// The sums of terms that were added up.
    sums: HashMap<ValueId, ValueId>,
    ids: HashMap<(WeightId, Slice), WeightId>,
    weights: Vec<(WeightId, Slice)>,
    kept: Vec<String>,
}

impl<'a> Emit<'a> {
    fn new(whole: &'a Graph, layouts: &'a Layouts<'a>) -> Self {
        let graph = Graph {
            kv_groups: whole.kv_groups.clone(),
            state_len: whole.state_len,
            ..Graph::default()
        };
        Self {
            whole,
            layouts,
            n_ranks: layouts.n_ranks,
            graph,
            values: vec![None; whole.values.len()],
            sums: HashMap::new(),
            ids: HashMap::new(),
            weights: Vec::new(),
            kept: Vec::new(),
        }
    }

    fn run(mut self) -> Result<Sharded, Error> {
        let whole = self.whole;
        whole.nodes.iter().for_each(|node| self.node(node));
        let output = whole.output.expect("a finished graph has an output");
        self.graph.output = Some(match self.layout(output) {
            Layout::Whole => self.made(output),
            Layout::Term => self.sum(output, None),
            Layout::Cut(_) => {
                let Value { width, rows, .. } = whole.values[output.idx()];
                let inputs = vec![self.made(output)];
                let output = self.value(Value { width, rows, view: None });
                self.graph.nodes.push(Node { op: Op::AllGather, inputs, output, layer: None });
                output
            }
        });
        self.kept.sort();
        self.kept.dedup();
        let Self { graph, weights, kept, n_ranks, .. } = self;
        Ok(Sharded { graph, whole: kept, n_ranks, weights })
    }

    fn layout(&self, id: ValueId) -> Layout {
        self.layouts.of[self.whole.root(id).0.idx()]
    }

    fn value(&mut self, value: Value) -> ValueId {
        let id = ValueId(u32::try_from(self.graph.values.len()).expect("fewer than 2^32 values"));
        self.graph.values.push(value);
        id
    }

    /// What a rank has of a value that was made, or of columns of one.
    fn made(&mut self, id: ValueId) -> ValueId {
        let value = &self.whole.values[id.idx()];
        if let (None, Some((of, col))) = (self.values[id.idx()], value.view) {
            let of = self.made(of);
            let view = self.value(Value { view: Some((of, col)), ..value.clone() });
            self.values[id.idx()] = Some(view);
        }
        self.values[id.idx()].expect("made before it is read")
    }

    /// The sum of a value's terms.
    fn sum(&mut self, id: ValueId, layer: Option<usize>) -> ValueId {
        if let Some(&sum) = self.sums.get(&id) {
            return sum;
        }
        let inputs = vec![self.made(id)];
        let Value { width, rows, .. } = self.whole.values[id.idx()];
        let output = self.value(Value { width, rows, view: None });
        let op = Op::AllReduce { residual: false };
        self.graph.nodes.push(Node { op, inputs, output, layer });
        self.sums.insert(id, output);
        output
    }

    /// Columns of a value that a rank has.
    fn own(&self, layout: Layout, width: usize) -> usize {
        match layout {
            Layout::Cut(Cut { copies, .. }) => width * copies / self.n_ranks,
            Layout::Whole | Layout::Term => width,
        }
    }

    fn weight(&mut self, id: WeightId, slice: Slice) -> WeightId {
        let Self { ids, weights, graph, whole, n_ranks, .. } = self;
        *ids.entry((id, slice)).or_insert_with(|| {
            let mut info = whole.weights[id.idx()].clone();
            slice.cut_shape(&mut info.shape, *n_ranks);
            graph.weights.push(info);
            weights.push((id, slice));
            WeightId(u32::try_from(weights.len() - 1).expect("fewer than 2^32 weights"))
        })
    }

    /// How a linear's matrix and its bias are divided.
    fn slices(&mut self, weight: WeightId, made: Layout) -> (Slice, Slice) {
        match made {
            Layout::Cut(Cut { copies, .. }) => (Slice::Rows { copies }, Slice::Rows { copies }),
            // A bias is added in one of the terms.
            Layout::Term => (Slice::Columns, Slice::FirstRank),
            Layout::Whole => {
                self.kept.push(self.whole.weights[weight.idx()].name.clone());
                (Slice::Whole, Slice::Whole)
            }
        }
    }

    fn node(&mut self, node: &Node) {
        let made = self.layouts.of[node.output.idx()];
        let mut op = node.op.clone();
        match &mut op {
            Op::Linear { parts, .. } => {
                for LinearPart { weight, bias, out } in parts {
                    let (of_weight, of_bias) = self.slices(*weight, made);
                    *weight = self.weight(*weight, of_weight);
                    *bias = bias.map(|id| self.weight(id, of_bias));
                    *out = self.own(made, *out);
                }
            }
            Op::ExpertLinear(ExpertLinear { parts, n_in, .. }) => {
                for ExpertPart { weight, out } in parts {
                    let slice = self.slices(*weight, made).0;
                    *weight = self.weight(*weight, slice);
                    *out = self.own(made, *out);
                }
                if made == Layout::Term {
                    *n_in /= self.n_ranks;
                }
            }
            Op::Attention(Attention { kv, n_heads, n_kv_heads, sinks, alibi, .. }) => {
                let is_cut = made != Layout::Whole;
                if is_cut {
                    let copies = kv_copies(self.n_ranks, *n_kv_heads);
                    *n_heads /= self.n_ranks;
                    *n_kv_heads = *n_kv_heads * copies / self.n_ranks;
                    self.graph.kv_groups[kv.group].n_kv_heads = *n_kv_heads;
                }
                let slice = if is_cut { Slice::Rows { copies: 1 } } else { Slice::Whole };
                *sinks = sinks.map(|id| self.weight(id, slice));
                *alibi = alibi.map(|id| self.weight(id, slice));
            }
            op => each_weight(op, &mut |id| *id = self.weight(*id, Slice::Whole)),
        }
        let is_product = matches!(op, Op::Linear { .. } | Op::ExpertLinear(_));
        let takes_terms = made == Layout::Term && !is_product;
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &id in &node.inputs {
            inputs.push(match self.layout(id) {
                Layout::Term if !takes_terms => self.sum(id, node.layer),
                _ => self.made(id),
            });
        }
        let Value { width, rows, .. } = self.whole.values[node.output.idx()];
        let output = self.value(Value { width: self.own(made, width), rows, view: None });
        self.values[node.output.idx()] = Some(output);
        self.graph.nodes.push(Node { op, inputs, output, layer: node.layer });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Activation, AttentionSpec, Fusions, GraphBuilder, NormKind, Reach, RopeAngles, RopeStyle,
        Route, Scoring, fuse,
    };
    use super::*;
    use crate::graph::weights::{ExpertWeight, Linear, NormWeights, Weight, WeightData};
    use realizar_formats::Bytes;
    use realizar_quant::BlockType;

    const DIM: usize = 64;
    const HEAD_DIM: usize = 8;

    /// Records a model and the names, shapes and types of its weights.
    #[derive(Default)]
    struct Recorder {
        b: GraphBuilder,
        infos: Vec<WeightInfo>,
    }

    impl Recorder {
        fn add(&mut self, name: &str, shape: Vec<usize>, ty: BlockType) -> WeightId {
            self.infos.push(WeightInfo { name: name.to_owned(), shape, ty });
            WeightId(self.infos.len() as u32 - 1)
        }

        fn linear(&mut self, name: &str, x: ValueId, rows: usize, has_bias: bool) -> ValueId {
            let cols = self.b.width(x);
            let id = self.add(name, vec![rows, cols], BlockType::Q8_0);
            let bias =
                has_bias.then(|| self.add(&format!("{name}.bias"), vec![rows], BlockType::F32));
            self.b.linear(
                x,
                &Linear { weight: Weight { id, rows, cols }, bias, order: None, factor: 1.0 },
            )
        }

        fn norm(&mut self, x: ValueId, len: usize) -> ValueId {
            let weight = Some(self.add("norm", vec![len], BlockType::F32));
            self.b.norm(x, NormKind::Rms, &NormWeights { weight, bias: None, len }, 1e-5)
        }

        fn start(&mut self) -> ValueId {
            let id = self.add("tok_embed", vec![96, DIM], BlockType::Q8_0);
            self.b.embed(&Weight { id, rows: 96, cols: DIM }, 1.0)
        }

        /// Attention of `n_heads` and `n_kv_heads` heads, the latter normalized over `group` columns.
        fn attention(&mut self, x: ValueId, n_heads: usize, n_kv: usize, group: usize) -> ValueId {
            let angles = RopeAngles { inv_freq: [1.0].into(), mscale: 1.0, components: [].into() };
            let table = self.b.rope_table(angles);
            let h = self.norm(x, DIM);
            let q = self.linear("wq", h, n_heads * HEAD_DIM, true);
            let k = self.linear("wk", h, n_kv * HEAD_DIM, false);
            let v = self.linear("wv", h, n_kv * HEAD_DIM, false);
            let k = self.norm(k, group);
            let q = self.b.rope(q, table, HEAD_DIM, RopeStyle::Neox);
            let k = self.b.rope(k, table, HEAD_DIM, RopeStyle::Neox);
            let spec = AttentionSpec {
                n_heads,
                n_kv_heads: n_kv,
                head_dim: HEAD_DIM,
                scale: 1.0,
                softcap: None,
                window: None,
                chunked: false,
                reach: Reach::Causal,
                sinks: None,
                alibi: None,
            };
            let a = self.b.attention(q, k, v, &spec);
            let o = self.linear("wo", a, DIM, true);
            self.b.add(x, o)
        }

        fn ffn(&mut self, x: ValueId, hidden_dim: usize) -> ValueId {
            let gate = self.linear("w_gate", x, hidden_dim, false);
            let up = self.linear("w_up", x, hidden_dim, false);
            let h = self.b.gated_act(gate, up, Activation::Silu);
            self.linear("w_down", h, DIM, false)
        }

        fn finish(mut self, x: ValueId, vocab_size: usize) -> Graph {
            self.b.end_layers();
            let x = self.b.select_rows(x);
            let logits = self.linear("lm_head", x, vocab_size, false);
            let mut graph = self.b.finish(logits);
            graph.weights = self.infos;
            graph
        }
    }

    fn dense(n_heads: usize, n_kv: usize, group: usize, vocab_size: usize) -> Graph {
        let mut r = Recorder::default();
        let x = r.start();
        r.b.begin_layer(0);
        let x = r.attention(x, n_heads, n_kv, group);
        let h = r.norm(x, DIM);
        let y = r.ffn(h, 128);
        let x = r.b.add(x, y);
        r.finish(x, vocab_size)
    }

    fn shape<'a>(sharded: &'a Sharded, name: &str) -> &'a [usize] {
        let found = sharded.graph.weights.iter().find(|info| info.name == name);
        &found.unwrap_or_else(|| panic!("no {name}")).shape
    }

    fn count(graph: &Graph, f: fn(&Op) -> bool) -> usize {
        graph.nodes.iter().filter(|node| f(&node.op)).count()
    }

    fn is_sum(op: &Op) -> bool {
        matches!(op, Op::AllReduce { .. })
    }

    #[test]
    fn heads_and_hidden_columns_are_shared_and_sums_follow_the_projections() {
        let graph = dense(8, 4, HEAD_DIM, 96);
        let two = shard(&graph, 2).unwrap();
        for (name, expected) in [
            ("tok_embed", &[96, 64][..]),
            ("wq", &[32, 64]),
            ("wq.bias", &[32]),
            ("wk", &[16, 64]),
            ("wo", &[64, 32]),
            ("wo.bias", &[64]),
            ("w_up", &[64, 64]),
            ("w_down", &[64, 64]),
            ("lm_head", &[48, 64]),
        ] {
            assert_eq!(shape(&two, name), expected, "{name}");
        }
        assert!(two.whole.is_empty(), "{:?}", two.whole);
        assert_eq!(count(&two.graph, is_sum), 2);
        assert_eq!(two.graph.nodes.last().unwrap().op, Op::AllGather);
        assert_eq!(two.graph.output_width(), 96);
        assert_eq!(two.graph.kv_groups[0].n_kv_heads, 2);
        let heads = two.graph.nodes.iter().find_map(|node| match &node.op {
            Op::Attention(a) => Some((a.n_heads, a.n_kv_heads)),
            _ => None,
        });
        assert_eq!(heads, Some((4, 2)));
        // The residual goes with the sum.
        let fused = fuse(two.graph, Fusions::ALL);
        assert_eq!(count(&fused, |op| *op == Op::AllReduce { residual: true }), 2);
        assert_eq!(count(&fused, |op| *op == Op::Add), 0);
    }

    #[test]
    fn a_key_value_head_is_in_several_ranks_where_there_are_more_ranks() {
        let mut graph = dense(8, 2, HEAD_DIM, 96);
        // The columns of a head are less than a block.
        graph.weights.iter_mut().for_each(|info| info.ty = BlockType::F32);
        let eight = shard(&graph, 8).unwrap();
        assert_eq!(shape(&eight, "wq"), [8, 64]);
        assert_eq!(shape(&eight, "wk"), [8, 64]);
        assert_eq!(eight.graph.kv_groups[0].n_kv_heads, 1);
        let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let halves = |rank| {
            let slice = Slice::Rows { copies: 4 };
            match WeightData::Vector(values.clone()).sliced(slice, rank, 8) {
                WeightData::Vector(own) => own,
                _ => Vec::new(),
            }
        };
        assert_eq!((halves(3), halves(4)), (values[..8].to_vec(), values[8..].to_vec()));
    }

    #[test]
    fn what_needs_whole_rows_keeps_its_linears_whole() {
        // A norm over all key heads, and a vocabulary that cannot be shared.
        let two = shard(&dense(8, 4, 4 * HEAD_DIM, 97), 2).unwrap();
        assert_eq!(two.whole, ["lm_head", "wk", "wo", "wq", "wv"]);
        assert_eq!(two.graph.kv_groups[0].n_kv_heads, 4);
        assert_eq!((count(&two.graph, is_sum), shape(&two, "w_down")), (1, &[64, 64][..]));
    }

    #[test]
    fn experts_are_divided_within_and_added_up_once_with_the_shared_one() {
        let mut r = Recorder::default();
        let x = r.start();
        r.b.begin_layer(0);
        let scores = r.linear("router", x, 6, false);
        let route = Route {
            scoring: Scoring::Softmax,
            n_experts: 6,
            n_chosen: 2,
            choice_bias: None,
            groups: None,
            normalize: true,
            scale: 1.0,
        };
        let routes = r.b.route(scores, route);
        let experts = |r: &mut Recorder, name: &str, x, rows: usize, cols: usize| {
            let id = r.add(name, vec![6, rows, cols], BlockType::Q8_0);
            let weight = ExpertWeight { id, n_experts: 6, rows, cols };
            r.b.expert_linear(x, routes, &weight)
        };
        let gate = experts(&mut r, "experts.w_gate", x, 128, DIM);
        let up = experts(&mut r, "experts.w_up", x, 128, DIM);
        let h = r.b.gated_act(gate, up, Activation::Silu);
        let y = experts(&mut r, "experts.w_down", h, DIM, 128);
        let y = r.b.combine(y, routes);
        let shared = r.ffn(x, 128);
        let y = r.b.add(y, shared);
        let x = r.b.add(x, y);
        let two = shard(&r.finish(x, 96), 2).unwrap();
        assert_eq!(two.whole, ["router"]);
        assert_eq!(shape(&two, "experts.w_gate"), [6, 64, 64]);
        assert_eq!(shape(&two, "experts.w_down"), [6, 64, 64]);
        assert_eq!(count(&two.graph, is_sum), 1);
    }

    #[test]
    fn what_cannot_be_shared_evenly_is_an_error() {
        let check = |graph: &Graph, n_ranks: usize, reason: &str| {
            let error = shard(graph, n_ranks).map(|_| ()).unwrap_err().to_string();
            let expected = format!("the model cannot be divided among {n_ranks} ranks: {reason}");
            assert_eq!(error, expected);
        };
        let heads = "the 8 query heads and 3 key-value heads of layer 0 cannot be divided evenly";
        check(&dense(8, 3, HEAD_DIM, 96), 2, heads);
        let blocks = "`wo` of Q8_0 has 64 columns in blocks of 32, which cannot be divided evenly";
        check(&dense(8, 4, HEAD_DIM, 96), 4, blocks);
        let mut r = Recorder::default();
        let x = r.start();
        check(&r.finish(x, 97), 2, "no matrix of its layers can be divided");
    }

    #[test]
    fn the_parts_of_a_matrix_are_its_rows_and_its_columns() {
        let ty = BlockType::Q8_0;
        let (rows, cols) = (4, 128);
        let row_bytes = ty.row_bytes(cols).unwrap();
        let block = ty.block_bytes();
        let data: Vec<u8> = (0..rows * row_bytes).map(|i| (i % 251) as u8).collect();
        let source = Bytes::from(data.clone());
        let make = {
            let source = source.clone();
            move || source.to_vec()
        };
        let whole = Bytes::made(vec![source], data.len(), make);
        let matrix = WeightData::Matrix { ty, rows, cols, data: whole.clone() };
        let part = |slice, rank| match matrix.sliced(slice, rank, 2) {
            WeightData::Matrix { rows, cols, data, .. } => (rows, cols, data.to_vec()),
            _ => panic!("a part of a matrix is a matrix"),
        };
        let below = data[2 * row_bytes..].to_vec();
        assert_eq!(part(Slice::Rows { copies: 1 }, 1), (2, cols, below));
        let right: Vec<u8> =
            data.chunks(row_bytes).flat_map(|row| row[2 * block..].to_vec()).collect();
        assert_eq!(part(Slice::Columns, 1), (rows, 64, right.clone()));
        let experts = WeightData::Experts { ty, rows, cols, data: vec![whole; 3] };
        let WeightData::Experts { cols, data, .. } = experts.sliced(Slice::Columns, 1, 2) else {
            panic!("a part of experts is experts")
        };
        assert_eq!((cols, data.len(), data[2].to_vec()), (64, 3, right));
        let bias = WeightData::Vector(vec![1.0, 2.0]);
        let of = |rank| match bias.sliced(Slice::FirstRank, rank, 2) {
            WeightData::Vector(values) => values,
            _ => Vec::new(),
        };
        assert_eq!((of(0), of(1)), (vec![1.0, 2.0], vec![0.0, 0.0]));
    }
}
