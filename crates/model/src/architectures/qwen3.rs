//! qwen3: the llama shape with a norm on every head of Q and K, and heads whose
//! size is not `dim / n_heads`.
//!
//! Yang et al., 2025 (Qwen3 technical report).

use super::llama::{Shape, decoder};
use super::{Architecture, Build, qwen2};
use crate::Error;
use crate::architectures::config::{Config, hf_bias};
use crate::checkpoint::HfSettings;
use crate::graph::ValueId;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen3",
    hf_model_types: &["qwen3"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf: qwen2::config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let attn_bias = hf_bias(s, "attention_bias")?;
    let config = qwen2::config_from_hf(s)?;
    Ok(Config { attn_bias, ..config })
}

pub(super) fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape { qk_norm: true, ..Shape::of(m.config) };
    decoder(m, tok_embed, x, shape)
}
