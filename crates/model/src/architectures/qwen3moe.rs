//! qwen3moe: qwen3 with experts instead of the feed-forward network, in all layers or in some.
//!
//! Yang et al., 2025 (Qwen3 technical report).

use super::experts::{hf_counts, with_gguf_experts, with_hf_sparse_layers};
use super::llama::{Shape, decoder};
use super::{Architecture, Build, qwen2};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, HfWindow, hf_bias};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::ValueId;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen3moe",
    hf_model_types: &["qwen3_moe"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The window, where it is used, is every layer's.
fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let window = HfWindow::optional(s)?.switched(s)?.of_every_layer(s)?;
    let attn_bias = hf_bias(s, "attention_bias")?;
    let config = Config::from_hf(s, &HfKeys::COMMON)?.with_windows(|_| window);
    let normalize = s.bool("norm_topk_prob")?;
    let experts = Experts::softmax(hf_counts(s)?, s.usize("moe_intermediate_size")?, normalize);
    with_hf_sparse_layers(Config { attn_bias, ..config }, s, experts)?.checked_hf(s)
}

/// llama.cpp has no key for factors that are not normalized, and normalizes them.
fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    with_gguf_experts(qwen2::config_from_gguf(s)?, s, true)?.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape { qk_norm: true, ..Shape::of(m.config) };
    decoder(m, tok_embed, x, shape)
}
