//! The layer for multi-token prediction that some models bring: its settings, and the part of the graph that drafts with
//! it.
//!
//! DeepSeek-AI, 2024 (DeepSeek-V3, arXiv:2412.19437, section 2.2). From the normalized hidden state of a position and the
//! token chosen there, the layer predicts the token after that one: both are normalized again, joined by a matrix,
//! and go through a decoder layer with keys and values of its own and the model's head.
//!
//! The input at position `i` is the token there with the hidden state of position `i - 1`, zeros at the first. So what
//! the layer keeps of a position depends on that position and those before it alone, as with any other layer, and pages
//! of a common beginning can be shared.

use super::Build;
use crate::Error;
use crate::architectures::config::Config;
use crate::architectures::loader::Bias;
use crate::checkpoint::GgufSettings;
use crate::graph::ValueId;
use crate::graph::weights::Weight;

/// What attends within the layer: rows `h`, which are normalized, and the index of the layer.
pub(crate) type Attend<'f> =
    &'f mut dyn FnMut(&mut Build<'_>, ValueId, usize) -> Result<ValueId, Error>;

impl Build<'_> {
    /// Whether the layer is to be recorded: it is wanted, and the file has it.
    pub(crate) fn has_predictor(&self) -> bool {
        let l = self.config.layers.len();
        self.with_predictor.is_some() && self.weights.has((l, "nextn.join"))
    }

    /// Records the layer of a decoder after whose last layer are `rows`, and `outputs` of them selected. Its weights are
    /// those of one more layer, of which `attend` records the attention; the feed-forward network has biases as
    /// `ffn_bias` says.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub(crate) fn predictor(
        &mut self,
        (rows, outputs): (ValueId, ValueId),
        tok_embed: Weight,
        ffn_bias: Bias,
        attend: Attend<'_>,
    ) -> Result<(), Error> {
        let Some(config) = self.with_predictor else { return Ok(()) };
        let own = std::mem::replace(&mut self.config, config);
        self.weights.share_weights();
        let l = own.layers.len();
        let table = self.weights.own_or((l, "nextn.tok_embed"), "tok_embed", tok_embed)?;

        // In steps of the model: keys and values of every row.
        let h = self.rms_norm(rows, "final_norm")?;
        let delay = self.weights.delay("nextn.delay", own.dim);
        let before = self.graph.short_conv(h, delay, None, None);
        let x = self.joined(table, before, l)?;
        let h = self.rms_norm(x, (l, "attn_norm"))?;
        self.graph.store_draft_layer();
        attend(self, h, l)?;
        let hidden = self.rms_norm(outputs, "final_norm")?;

        // In steps that draft: logits.
        let before = self.graph.begin_draft(own.dim);
        self.rope_tables.clear();
        self.rope_tables()?;
        let x = self.joined(table, before, l)?;
        let h = self.rms_norm(x, (l, "attn_norm"))?;
        let o = attend(self, h, l)?;
        let x = self.residual(x, o);
        let h = self.rms_norm(x, (l, "ffn_norm"))?;
        let f = self.ffn(h, l, ffn_bias)?;
        let x = self.residual(x, f);
        let x = self.graph.select_rows(x);
        let next = match self.weights.has((l, "nextn.norm")) {
            true => self.rms_norm(x, (l, "nextn.norm"))?,
            false => self.rms_norm(x, "final_norm")?,
        };
        let logits = self.predictor_head(next, l)?;
        self.graph.end_draft(hidden, logits, next);
        self.config = own;
        Ok(())
    }

    /// The embedding of each row's token from `table`, joined with the hidden state `before` it.
    fn joined(&mut self, table: Weight, before: ValueId, l: usize) -> Result<ValueId, Error> {
        let e = self.graph.embed(&table, self.config.embed_scale);
        let e = self.rms_norm(e, (l, "nextn.embed_norm"))?;
        let before = self.rms_norm(before, (l, "nextn.hidden_norm"))?;
        let leaves = ["nextn.join_embed", "nextn.join_hidden"];
        let dim = self.config.dim;
        let [of_embed, of_hidden] =
            self.weights.column_halves((l, "nextn.join"), leaves, (dim, 2 * dim))?;
        let e = self.graph.linear(e, &of_embed);
        let before = self.graph.linear(before, &of_hidden);
        Ok(self.graph.add(before, e))
    }

    /// Logits of the layer's normalized rows: by the model's head, or its own.
    fn predictor_head(&mut self, x: ValueId, l: usize) -> Result<ValueId, Error> {
        let mut head = self.head.expect("the model's head was recorded");
        let own = self.weights.own_or((l, "nextn.lm_head"), "lm_head", head.weight)?;
        if own != head.weight {
            (head.weight, head.bias, head.order) = (own, None, None);
        }
        let logits = self.graph.linear(x, &head);
        Ok(self.logits_of(logits))
    }
}

impl Config {
    /// Without the layers at the end that predict further tokens, which `nextn_predict_layers` of a GGUF
    /// file counts among its blocks.
    ///
    /// # Errors
    /// If no layer is left.
    pub(crate) fn without_gguf_predictors(mut self, s: GgufSettings<'_>) -> Result<Self, Error> {
        let n = s.opt_usize("nextn_predict_layers")?.unwrap_or(0);
        if n >= self.layers.len() {
            let expected = format!("fewer than the {} blocks", self.layers.len());
            return Err(s.wrong("nextn_predict_layers", expected, n.to_string()));
        }
        let predictors = self.layers.split_off(self.layers.len() - n);
        Ok(Self { n_predictors: n, predictor: predictors.first().copied(), ..self })
    }

    /// With a layer that predicts further tokens and looks as the last of its layers that attends; `n` counts
    /// them, none where it is 0.
    #[must_use]
    pub(crate) fn with_predictors(self, n: usize) -> Self {
        let last = self.layers.iter().rev().find(|layer| layer.recurrent.is_none()).copied();
        Self { n_predictors: n, predictor: last.filter(|_| n > 0), ..self }
    }

    /// The settings with the layer that predicts further tokens as one more layer; none without it.
    pub(crate) fn with_predictor_layer(&self) -> Option<Self> {
        let mut config = self.clone();
        config.layers.push(self.predictor?);
        Some(config)
    }
}

/// The settings of a model with its layer for multi-token prediction as one more layer, if it is wanted.
pub(super) fn settings(config: &Config, is_wanted: bool) -> Option<Config> {
    if is_wanted { config.with_predictor_layer() } else { None }
}
