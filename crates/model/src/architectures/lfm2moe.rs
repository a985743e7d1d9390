//! lfm2moe: lfm2 with experts after its first layers, selected by sigmoid scores with a bias.
//!
//! Liquid AI, 2025 (LFM2-8B-A1B).

use super::experts::{gguf_counts, gguf_scoring, hf_counts};
use super::{Architecture, lfm2};
use crate::Error;
use crate::architectures::config::{Config, Experts};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::Scoring;

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
    let normalize = s.bool("norm_topk_prob")?;
    let experts = Experts {
        scoring: Scoring::Sigmoid,
        choice_bias: s.bool("use_expert_bias")?,
        scale: s.f32("routed_scaling_factor")?,
        ..Experts::softmax(hf_counts(s)?, s.usize("moe_intermediate_size")?, normalize)
    };
    let n_dense = s.usize("num_dense_layers")?;
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
