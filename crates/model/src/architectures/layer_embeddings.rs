//! Embeddings that every token has for each layer, as Gemma 3n and later have them.
//!
//! Gemma Team, 2025 (Gemma 3n). A table has one vector of a token for every layer; to these come projections
//! of the token's embedding, normalized by layer. A layer lets its hidden state choose from its vector.

use super::Build;
use crate::Error;
use crate::architectures::loader::Bias;
use crate::checkpoint::names::NameTable;
use crate::graph::{NormKind, ValueId};

/// The names in safetensors files.
pub(super) const HF_NAMES: NameTable = &[
    ("per_layer.table", "model.embed_tokens_per_layer"),
    ("per_layer.project", "model.per_layer_model_projection"),
    ("per_layer.norm", "model.per_layer_projection_norm"),
    ("per_layer_gate", "model.layers.{}.per_layer_input_gate"),
    ("per_layer_out", "model.layers.{}.per_layer_projection"),
    ("per_layer_norm", "model.layers.{}.post_per_layer_input_norm"),
    ("ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
    ("post_attn_norm", "model.layers.{}.post_attention_layernorm"),
    ("post_ffn_norm", "model.layers.{}.post_feedforward_layernorm"),
    ("layer_scale", "model.layers.{}.layer_scalar"),
    ("router", "model.layers.{}.router.proj"),
    ("router_scale", "model.layers.{}.router.scale"),
    ("expert_scale", "model.layers.{}.router.per_expert_scale"),
    ("experts.w_gate_up", "model.layers.{}.experts.gate_up_proj"),
    ("experts.w_down", "model.layers.{}.experts.down_proj"),
    ("experts_norm", "model.layers.{}.pre_feedforward_layernorm_2"),
    ("post_mlp_norm", "model.layers.{}.post_feedforward_layernorm_1"),
    ("post_experts_norm", "model.layers.{}.post_feedforward_layernorm_2"),
];

/// The names in GGUF files.
pub(super) const GGUF_NAMES: NameTable = &[
    ("per_layer.table", "per_layer_token_embd"),
    ("per_layer.project", "per_layer_model_proj"),
    ("per_layer.norm", "per_layer_proj_norm"),
    ("per_layer_gate", "blk.{}.inp_gate"),
    ("per_layer_out", "blk.{}.proj"),
    ("per_layer_norm", "blk.{}.post_norm"),
    ("layer_scale", "blk.{}.layer_output_scale"),
    ("router_scale", "blk.{}.ffn_gate_inp.scale"),
    ("expert_scale", "blk.{}.ffn_down_exps.scale"),
    ("experts_norm", "blk.{}.pre_ffw_norm_2"),
    ("post_mlp_norm", "blk.{}.post_ffw_norm_1"),
    ("post_experts_norm", "blk.{}.post_ffw_norm_2"),
];

/// What files may have of layers that attend to the keys and values of others, beside what none needs.
pub(super) const IGNORED: &[&str] = &[
    "rotary_emb.inv_freq",
    ".self_attn.k_proj.weight",
    ".self_attn.v_proj.weight",
    ".self_attn.k_norm.weight",
    ".attn_k.weight",
    ".attn_v.weight",
    ".attn_k_norm.weight",
];

impl Build<'_> {
    /// Of tokens with the embeddings `x`, the vectors of all layers side by side; none in models
    /// without.
    pub(super) fn per_layer_inputs(&mut self, x: ValueId) -> Result<Option<ValueId>, Error> {
        let c = self.config;
        let dim = c.per_layer_dim;
        if dim == 0 {
            return Ok(None);
        }
        let width = c.layers.len() * dim;
        let n_tokens = c.per_layer_tokens.unwrap_or(c.vocab_size);
        let rows = (n_tokens, c.vocab_size);
        let table = self.weights.extended_table("per_layer.table", rows, width)?;
        let of_tokens = self.graph.embed(&table, (dim as f32).sqrt());
        let projected = self.linear(x, "per_layer.project", (width, c.dim), Bias::None)?;
        let projected = self.graph.scale(projected, 1.0 / (c.dim as f32).sqrt());
        let norm = self.weights.norm("per_layer.norm", dim, Bias::None)?;
        let projected = self.graph.norm(projected, NormKind::Rms, &norm, c.norm_eps);
        let sum = self.graph.add(projected, of_tokens);
        Ok(Some(self.graph.scale(sum, 0.5_f32.sqrt())))
    }

    /// What layer `l` takes from its part of `inputs`, as `x` chooses: normalized, to be added.
    pub(super) fn per_layer_choice(
        &mut self,
        x: ValueId,
        inputs: ValueId,
        l: usize,
    ) -> Result<ValueId, Error> {
        let c = self.config;
        let dim = c.per_layer_dim;
        let gate = self.linear(x, (l, "per_layer_gate"), (dim, c.dim), Bias::None)?;
        let own = self.graph.columns(inputs, l * dim, dim);
        let chosen = self.graph.gated_act(gate, own, c.activation);
        let out = self.linear(chosen, (l, "per_layer_out"), (c.dim, dim), Bias::None)?;
        self.rms_norm(out, (l, "per_layer_norm"))
    }
}
