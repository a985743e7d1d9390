//! lfm2moe: lfm2 with experts after its first layers, selected by sigmoid scores with a bias.
//!
//! Liquid AI, 2025 (LFM2-8B-A1B).

use super::experts::{gguf_counts, gguf_scoring, hf_counts};
use super::{Architecture, lfm2};
use crate::Error;
use crate::architectures::config::{Config, Experts};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::Scoring;
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "lfm2moe",
    hf_model_types: &["lfm2_moe"],
    hf_names: lfm2::HF_NAMES,
    gguf_names: lfm2::GGUF_NAMES,
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: lfm2::forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let s = &s.with_defaults([
        ("num_key_value_heads", json!(8)),
        ("num_experts", json!(32)),
        ("num_experts_per_tok", json!(4)),
        ("moe_intermediate_size", json!(1792)),
    ]);
    // An older spelling, which goes before the other.
    let s = &match s.has("tie_embedding") {
        true => s.with_value("tie_word_embeddings", json!(s.bool_or("tie_embedding", true)?)),
        false => s.clone(),
    };
    let normalize = s.bool_or("norm_topk_prob", true)?;
    let experts = Experts {
        scoring: Scoring::Sigmoid,
        choice_bias: s.bool_or("use_expert_bias", true)?,
        scale: s.opt_f32("routed_scaling_factor")?.unwrap_or(1.0),
        ..Experts::softmax(hf_counts(s)?, s.usize("moe_intermediate_size")?, normalize)
    };
    let n_dense = s.opt_usize("num_dense_layers")?.unwrap_or(2);
    with_experts(lfm2::layers_from_hf(s)?, experts, n_dense).checked_hf(s)
}

/// llama.cpp has no key for factors that are not normalized, and normalizes them.
fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let Some(counts) = gguf_counts(s)? else {
        return Err(s.wrong("expert_count", "a number of experts", "nothing"));
    };
    let experts = Experts {
        scoring: gguf_scoring(s, Scoring::Sigmoid)?,
        choice_bias: true,
        scale: s.opt_f32("expert_weights_scale")?.filter(|&x| x != 0.0).unwrap_or(1.0),
        ..Experts::softmax(counts, s.usize("expert_feed_forward_length")?, true)
    };
    let n_dense = s.opt_usize("leading_dense_block_count")?.unwrap_or(0);
    with_experts(lfm2::config_from_gguf(s)?, experts, n_dense).checked_gguf(s)
}

fn with_experts(config: Config, experts: Experts, n_dense: usize) -> Config {
    config.with_layers(|l, layer| {
        layer.experts = (l >= n_dense && experts.n_experts > 0).then_some(experts);
    })
}
