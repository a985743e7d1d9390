//! The pieces that architectures are written with: each declares its weights
//! and records its nodes.

use crate::Error;
use crate::architectures::ModelOutput;
use crate::architectures::config::{Config, Layer};
use crate::architectures::loader::{Bias, Name, WeightLoader};
use crate::architectures::rope::{Rope, RopeScaling};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::names::NameTable;
use crate::graph::weights::{Linear, Weight, WeightId, Weights};
use crate::graph::{Graph, GraphBuilder, NormKind, RopeStyle, RowDomain, ValueId};

/// A forward pass that is being recorded.
pub(crate) struct Build<'a> {
    pub(crate) config: &'a Config,
    pub(crate) graph: GraphBuilder,
    pub(crate) weights: WeightLoader<'a>,
    /// How rotated columns are paired; transformers' way unless changed.
    pub(crate) rope_style: RopeStyle,
    /// The angles of [`Config::ropes`].
    pub(super) rope_tables: Vec<ValueId>,
    /// The settings with the layer for multi-token prediction as one more layer, where it is wanted.
    pub(super) with_predictor: Option<&'a Config>,
    /// The factors by which queries grow, once they are made.
    query_growth: Option<Weight>,
    /// The head, once it is recorded.
    pub(super) head: Option<Linear>,
    context: usize,
    output: ModelOutput,
}

impl<'a> Build<'a> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        (config, with_predictor): (&'a Config, Option<&'a Config>),
        names: NameTable,
        (context, output): (usize, ModelOutput),
    ) -> Self {
        Self {
            config,
            graph: GraphBuilder::new(),
            weights: WeightLoader::new(checkpoint, names),
            rope_style: RopeStyle::Neox,
            rope_tables: Vec::new(),
            with_predictor,
            query_growth: None,
            head: None,
            context,
            output,
        }
    }

    pub(super) fn finish(
        mut self,
        logits: ValueId,
        architecture: &str,
        ignored: &[&str],
    ) -> Result<(Graph, Weights), Error> {
        let n_layers = self.config.layers.len();
        let mut graph = self.graph.finish(logits);
        // Of the layers that predict further tokens, the first may be recorded.
        let n_recorded = usize::from(graph.draft.is_some());
        self.weights.pass_over_layers(n_layers + n_recorded..n_layers + self.config.n_predictors);
        let (infos, weights) = self.weights.finish(architecture, ignored)?;
        let rows = graph.values[logits.idx()].rows;
        assert_eq!(rows, RowDomain::Outputs, "logits are of selected rows");
        graph.weights = infos;
        Ok((graph, weights))
    }

    /// The longest context that the model is loaded for.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// The token embedding's table. Where it is the head too, the file may hold it as either.
    pub(crate) fn tok_embed(&mut self) -> Result<Weight, Error> {
        let tied = self.config.tied_head == Some(true);
        let only_head = !self.weights.has("tok_embed") && self.weights.has("lm_head");
        let name = if tied && only_head { "lm_head" } else { "tok_embed" };
        self.weights.matrix(name, self.config.vocab_size, self.config.dim)
    }

    /// RMSNorm over `dim` columns.
    pub(crate) fn rms_norm(&mut self, x: ValueId, name: impl Into<Name>) -> Result<ValueId, Error> {
        self.norm(x, name, NormKind::Rms, Bias::None)
    }

    /// LayerNorm with bias over `dim` columns.
    pub(crate) fn layer_norm(
        &mut self,
        x: ValueId,
        name: impl Into<Name>,
    ) -> Result<ValueId, Error> {
        self.norm(x, name, NormKind::Layer, Bias::Required)
    }

    /// A normalization over `dim` columns.
    pub(crate) fn norm(
        &mut self,
        x: ValueId,
        name: impl Into<Name>,
        kind: NormKind,
        bias: Bias,
    ) -> Result<ValueId, Error> {
        let weights = self.weights.norm(name, self.config.dim, bias)?;
        Ok(self.graph.norm(x, kind, &weights, self.config.norm_eps))
    }

    /// RMSNorm of every head of `x`.
    pub(crate) fn head_norm(
        &mut self,
        x: ValueId,
        name: (usize, &'static str),
    ) -> Result<ValueId, Error> {
        let head_dim = self.config.layers[name.0].head_dim;
        let weights = self.weights.norm(name, head_dim, Bias::None)?;
        Ok(self.graph.norm(x, NormKind::Rms, &weights, self.config.norm_eps))
    }

    /// LayerNorm without bias of every head of `x`, each with weights of its own.
    pub(crate) fn each_head_norm(
        &mut self,
        x: ValueId,
        (l, leaf): (usize, &'static str),
    ) -> Result<ValueId, Error> {
        let Layer { n_heads, n_kv_heads, head_dim, .. } = self.config.layers[l];
        let n_heads = if leaf == "q_norm" { n_heads } else { n_kv_heads };
        let weights = self.weights.head_norms((l, leaf), n_heads, head_dim)?;
        let kind = (NormKind::Layer, self.config.norm_eps);
        Ok(self.graph.norm_of_runs(x, kind, &weights, head_dim))
    }

    /// RMSNorm over all columns of the queries or the keys, not head by head.
    pub(crate) fn whole_norm(
        &mut self,
        x: ValueId,
        name: (usize, &'static str),
        len: usize,
    ) -> Result<ValueId, Error> {
        let weights = self.weights.norm(name, len, Bias::None)?;
        Ok(self.graph.norm(x, NormKind::Rms, &weights, self.config.norm_eps))
    }

    /// LayerNorm with bias of every head of `x`.
    pub(crate) fn head_layer_norm(
        &mut self,
        x: ValueId,
        name: (usize, &'static str),
    ) -> Result<ValueId, Error> {
        let head_dim = self.config.layers[name.0].head_dim;
        let weights = self.weights.norm(name, head_dim, Bias::Required)?;
        Ok(self.graph.norm(x, NormKind::Layer, &weights, self.config.norm_eps))
    }

    /// A linear layer from the columns of `x` to `n_out`.
    pub(crate) fn linear(
        &mut self,
        x: ValueId,
        name: impl Into<Name>,
        shape: (usize, usize), // (out, in)
        bias: Bias,
    ) -> Result<ValueId, Error> {
        let linear = self.weights.linear(name, shape.0, shape.1, bias)?;
        Ok(self.graph.linear(x, &linear))
    }

    /// Queries, keys and values, from one stacked matrix or from three.
    pub(crate) fn qkv(&mut self, x: ValueId, l: usize, bias: Bias) -> Result<[ValueId; 3], Error> {
        let c = self.config;
        let (q_dim, kv_dim) = (c.layers[l].q_dim(), c.layers[l].kv_dim());
        let parts = [("wq", q_dim), ("wk", kv_dim), ("wv", kv_dim)];
        let linears = if self.weights.has((l, "wqkv")) {
            self.weights.stacked_linears((l, "wqkv"), parts, c.dim, bias)?
        } else {
            let mut one = |i: usize| self.weights.linear((l, parts[i].0), parts[i].1, c.dim, bias);
            [one(0)?, one(1)?, one(2)?]
        };
        Ok(linears.map(|linear| self.graph.linear(x, &linear)))
    }

    /// Queries, keys and values from one stacked matrix, in which each head of keys follows its queries
    /// and stands before its values.
    pub(crate) fn grouped_qkv(
        &mut self,
        x: ValueId,
        l: usize,
        bias: Bias,
    ) -> Result<[ValueId; 3], Error> {
        let Layer { n_heads, n_kv_heads, head_dim, .. } = self.config.layers[l];
        let q_rows = n_heads / n_kv_heads * head_dim;
        let parts = [("wq", q_rows), ("wk", head_dim), ("wv", head_dim)];
        let dim = self.config.dim;
        let linears = self.weights.linears_in_turns((l, "wqkv"), parts, n_kv_heads, dim, bias)?;
        Ok(linears.map(|linear| self.graph.linear(x, &linear)))
    }

    /// Records the angles of every rotary embedding, before the layers that [rotate](Self::rope) by
    /// them.
    pub(crate) fn rope_tables(&mut self) -> Result<(), Error> {
        for rope in &self.config.ropes {
            let table = self.rope_table(rope)?;
            self.rope_tables.push(table);
        }
        Ok(())
    }

    /// The angles of `rope`, with the factors that GGUF files store as tensors.
    fn rope_table(&mut self, rope: &Rope) -> Result<ValueId, Error> {
        let mut rope = rope.clone();
        if !self.weights.is_hf() {
            let n_pairs = rope.rotary_dim / 2;
            if let RopeScaling::LongRope { short, long, .. } = &mut rope.scaling {
                let mut factors = |leaf| match self.weights.opt_factors(leaf, n_pairs)? {
                    Some(factors) => Ok(factors),
                    None => Err(self.weights.missing(leaf)),
                };
                (*short, *long) = (factors("rope_factors_short")?, factors("rope_factors_long")?);
            } else if let RopeScaling::Factors(_) = rope.scaling {
                // The file's factors are for the angles of other layers.
            } else if let Some(mut factors) = self.weights.opt_factors("rope_freqs", n_pairs)? {
                match rope.scaling {
                    RopeScaling::None => {}
                    RopeScaling::Linear { factor, .. } => {
                        factors.iter_mut().for_each(|f| *f *= factor);
                    }
                    _ => return Err(self.weights.unsupported("`rope_freqs` with rope scaling")),
                }
                rope.scaling = RopeScaling::Factors(factors);
            }
        }
        let angles = rope.angles(self.context);
        angles.check().map_err(|(expected, found)| Error::Setting {
            path: self.weights.path().to_owned(),
            key: "rope".to_owned(),
            expected: expected.to_owned(),
            found,
        })?;
        Ok(self.graph.rope_table(angles))
    }

    /// Rotates every head of `x` by the angles of layer `l`.
    pub(crate) fn rope(&mut self, x: ValueId, l: usize) -> ValueId {
        let layer = &self.config.layers[l];
        match layer.rope {
            Some(i) => self.graph.rope(x, self.rope_tables[i], layer.head_dim, self.rope_style),
            None => x,
        }
    }

    /// Queries as they have grown at their positions, which is the choice of one result out of one, by a factor
    /// that lies in a table.
    pub(crate) fn grown(&mut self, q: ValueId) -> ValueId {
        let Some(growth) = self.config.query_growth else { return q };
        let context = self.context;
        let table = self.query_growth.get_or_insert_with(|| {
            let of = |position, col| if col == 0 { 0.0 } else { growth.factor(position) };
            let made = self.weights.made_linear("query_growth", [context, 2], None, of);
            made.weight
        });
        let routes = self.graph.pos_embed(table);
        self.graph.combine(q, routes)
    }

    /// The slopes of ALiBi in layer `l`, if the model has such: `2^(-8 i / n)` of head `i`, counted from 1, for `n`
    /// heads. Where `n` is not a power of two, those of the next lower power come first, and then every other one of
    /// twice that power.
    pub(crate) fn alibi(&mut self, l: usize) -> Option<WeightId> {
        if !self.config.alibi {
            return None;
        }
        let n_heads = self.config.layers[l].n_heads;
        let power = 1 << n_heads.ilog2();
        let slope = |i: usize, n: usize| (-8.0 * i as f32 / n as f32).exp2();
        let of = |head: usize| match head < power {
            true => slope(head + 1, power),
            false => slope(2 * (head - power) + 1, 2 * power),
        };
        Some(self.weights.made_vector((l, "alibi"), (0..n_heads).map(of).collect()))
    }

    /// `x + y`, with `y` times the factor on what layers add.
    pub(crate) fn residual(&mut self, x: ValueId, y: ValueId) -> ValueId {
        let y = self.graph.scale(y, self.config.residual_scale);
        self.graph.add(x, y)
    }

    /// Rotates every run of `head_dim` columns of `x` by the angles of layer `l`.
    pub(crate) fn rope_of(&mut self, x: ValueId, l: usize, head_dim: usize) -> ValueId {
        match self.config.layers[l].rope {
            Some(i) => self.graph.rope(x, self.rope_tables[i], head_dim, self.rope_style),
            None => x,
        }
    }

    /// The output projection of attention.
    pub(crate) fn wo(&mut self, x: ValueId, l: usize, bias: Bias) -> Result<ValueId, Error> {
        self.linear(x, (l, "wo"), (self.config.dim, self.config.layers[l].q_dim()), bias)
    }

    /// `w_down(act(w_gate x) * w_up x)`, gate and up from two matrices or, when
    /// there is no gate by itself, from one that stacks them.
    pub(crate) fn gated_ffn(&mut self, x: ValueId, l: usize, bias: Bias) -> Result<ValueId, Error> {
        let (dim, hidden_dim) = (self.config.dim, self.config.layers[l].hidden_dim);
        let [gate, up] = if self.weights.has((l, "w_gate")) {
            let gate = self.weights.linear((l, "w_gate"), hidden_dim, dim, bias)?;
            [gate, self.weights.linear((l, "w_up"), hidden_dim, dim, bias)?]
        } else {
            let parts = [("w_gate", hidden_dim), ("w_up", hidden_dim)];
            self.weights.stacked_linears((l, "w_gate_up"), parts, dim, bias)?
        };
        let gate = self.graph.linear(x, &gate);
        let up = self.graph.linear(x, &up);
        let hidden = self.graph.gated_act(gate, up, self.config.activation);
        self.linear(hidden, (l, "w_down"), (dim, hidden_dim), bias)
    }

    /// `w_down(act(w_up x))`.
    pub(crate) fn plain_ffn(&mut self, x: ValueId, l: usize, bias: Bias) -> Result<ValueId, Error> {
        let (dim, hidden_dim) = (self.config.dim, self.config.layers[l].hidden_dim);
        let up = self.linear(x, (l, "w_up"), (hidden_dim, dim), bias)?;
        let hidden = self.graph.act(up, self.config.activation);
        self.linear(hidden, (l, "w_down"), (dim, hidden_dim), bias)
    }

    /// Logits of normalized rows.
    pub(crate) fn lm_head(
        &mut self,
        x: ValueId,
        tok_embed: Weight,
        bias: Bias,
    ) -> Result<ValueId, Error> {
        let (mut tied, mut bias) = (self.config.tied_head, bias);
        if self.output == ModelOutput::Embeddings && !self.weights.has("lm_head") {
            // Checkpoints of the bare model have none, and none of it is needed.
            (tied, bias) = (Some(true), Bias::IfPresent);
        }
        let head = self.weights.lm_head(tok_embed, tied, bias)?;
        self.head = Some(head);
        let logits = self.graph.linear(x, &head);
        Ok(self.logits_of(logits))
    }

    /// Logits of what the head gives.
    pub(super) fn logits_of(&mut self, logits: ValueId) -> ValueId {
        let logits = self.graph.scale(logits, self.config.logit_scale);
        self.graph.softcap(logits, self.config.logit_softcap)
    }
}
