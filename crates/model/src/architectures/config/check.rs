//! What of a configuration cannot be a model's.

use super::{A_SIZE, Config, Layer, MAX_POSITIONS};

// No published model comes near this; a file that does is damaged.
pub(crate) const MAX_SIZE: usize = 1 << 24;

impl Config {
    /// What cannot be right: the keys (GGUF's and transformers'), what was
    /// expected and what was found.
    pub(super) fn check(&self) -> Result<(), ((&'static str, &'static str), String, String)> {
        let of_model = [
            (("embedding_length", "hidden_size"), self.dim),
            (("vocab_size", "vocab_size"), self.vocab_size),
        ];
        let of_layers = self.all_layers().flat_map(|layer| {
            let Layer { n_heads, n_kv_heads, head_dim, hidden_dim, .. } = *layer;
            [
                (("feed_forward_length", "intermediate_size"), hidden_dim),
                (("attention.head_count", "num_attention_heads"), n_heads),
                (("attention.head_count_kv", "num_key_value_heads"), n_kv_heads),
                (("attention.key_length", "head_dim"), head_dim),
                (("embedding_length", "hidden_size"), n_heads.saturating_mul(head_dim)),
            ]
        });
        let of_experts = self.all_layers().filter_map(|layer| layer.experts).flat_map(|experts| {
            let shared = ("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
            [
                (("expert_feed_forward_length", "moe_intermediate_size"), experts.hidden_dim),
                (shared, experts.shared_dim.unwrap_or(1)),
            ]
        });
        for (key, size) in of_model.into_iter().chain(of_layers).chain(of_experts) {
            if size == 0 || size > MAX_SIZE {
                return Err((key, A_SIZE.to_owned(), size.to_string()));
            }
        }
        if self.max_seq_len == 0 || self.max_seq_len > MAX_POSITIONS {
            let key = ("context_length", "max_position_embeddings");
            return Err((key, "a number of positions".to_owned(), self.max_seq_len.to_string()));
        }
        let mut layers = self.layers.iter();
        if let Some(layer) = layers.find(|layer| !layer.n_heads.is_multiple_of(layer.n_kv_heads)) {
            let key = ("attention.head_count_kv", "num_key_value_heads");
            let expected = format!("a divisor of the {} query heads", layer.n_heads);
            return Err((key, expected, layer.n_kv_heads.to_string()));
        }
        if !(self.norm_eps >= 0.0 && self.norm_eps < 1.0) {
            let key = ("attention.layer_norm_rms_epsilon", "rms_norm_eps");
            return Err((key, "a small number".to_owned(), self.norm_eps.to_string()));
        }
        Ok(())
    }

    /// What cannot be right among the factors of a whole configuration: what it
    /// is for, what was expected and what was found.
    pub(crate) fn check_factors(&self) -> Result<(), (&'static str, &'static str, f32)> {
        let caps = [
            ("soft cap of attention scores (`attn_logit_softcapping`)", self.attn_softcap),
            ("soft cap of logits (`final_logit_softcapping`)", self.logit_softcap),
            (
                "limit of queries, keys and values (`clip_qkv`, `attention.clamp_kqv`)",
                self.qkv_limit,
            ),
            ("limit of gates", self.gate_limit),
        ];
        let caps = caps.into_iter().filter_map(|(what, x)| Some((what, x?)));
        let of_experts = self.layers.iter().filter_map(|layer| layer.experts);
        let caps = caps.chain(of_experts.map(|experts| {
            ("factor of experts (`routed_scaling_factor`, `expert_weights_scale`)", experts.scale)
        }));
        let scales = self.layers.iter().map(|layer| {
            (
                "factor of attention scores (`attention_multiplier`, `attention.scale`)",
                layer.attn_scale,
            )
        });
        let scales = scales.chain([
            ("factor of embeddings (`embedding_multiplier`, `embedding_scale`)", self.embed_scale),
            (
                "factor of what layers add (`residual_multiplier`, `residual_scale`)",
                self.residual_scale,
            ),
            ("factor of logits (`logits_scaling`, `logit_scale`)", self.logit_scale),
        ]);
        for (what, x) in caps.chain(scales) {
            if !(x > 0.0 && x.is_finite()) {
                return Err((what, "a positive number", x));
            }
        }
        Ok(())
    }
}
