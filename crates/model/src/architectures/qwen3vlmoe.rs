//! qwen3vlmoe: the text model of Qwen3-VL with experts. Qwen 3 with experts and the rotary embeddings of qwen3vl.
//!
//! Bai et al., 2025 (Qwen3-VL, arXiv:2511.21631). Safetensors files have the experts of a layer stacked, with rows
//! and columns exchanged. The vision tower is not built.

use super::experts::{hf_counts, with_gguf_experts, with_hf_sparse_layers};
use super::{Architecture, Build, qwen2, qwen3, qwen3vl};
use crate::Error;
use crate::architectures::config::{Config, Experts, hf_bias};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::ValueId;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen3vlmoe",
    hf_model_types: &["qwen3_vl_moe_text"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// Factors are normalized whatever the file says.
fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    s.pass_over("norm_topk_prob");
    let attn_bias = hf_bias(s, "attention_bias")?;
    let config = Config { attn_bias, ..Config::from_hf(s, &qwen3vl::KEYS)? };
    let experts = Experts::softmax(hf_counts(s)?, s.usize("moe_intermediate_size")?, true);
    with_hf_sparse_layers(config, s, experts)?.checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = with_gguf_experts(qwen2::config_from_gguf(s)?, s, true)?;
    qwen3vl::with_sections(config, s)?.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    m.weights.experts_may_be_turned();
    qwen3::forward(m)
}
