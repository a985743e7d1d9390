//! qwen2moe: qwen2 with experts, one of them shared. Qwen 1.5 MoE and Qwen 2 57B-A14B.
//!
//! Yang et al., 2024 (Qwen2 technical report).

use super::experts::{hf_gated, with_gguf_gated, with_hf_sparse_layers};
use super::llama::{Shape, decoder};
use super::{Architecture, Build, qwen2};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, HfWindow};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::ValueId;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen2moe",
    hf_model_types: &["qwen2_moe"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let window = HfWindow::needed(s)?.switched(s)?;
    let end = s.usize("max_window_layers")?;
    let slides = |l: usize| (l + 1) % 2 == 1 && l < end;
    let attn_bias = match s.bool("qkv_bias")? {
        true => Bias::Required,
        false => Bias::Denied("qkv_bias"),
    };
    let config = Config::from_hf(s, &HfKeys::COMMON)?.with_hf_layer_types(s, window, slides)?;
    let experts = hf_gated(s, s.bool("norm_topk_prob")?)?;
    with_hf_sparse_layers(Config { attn_bias, ..config }, s, experts)?.checked_hf(s)
}

/// llama.cpp has no key for factors that are normalized, and does not normalize them.
fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    with_gguf_gated(qwen2::config_from_gguf(s)?, s, false)?.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape { wo_bias: Bias::None, ..Shape::of(m.config) };
    decoder(m, tok_embed, x, shape)
}
