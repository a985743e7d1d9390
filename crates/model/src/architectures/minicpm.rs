//! minicpm: MiniCPM 1 and 4. The llama shape with a factor on the embedding, one on residual additions that
//! depends on the number of layers, and logits divided by the ratio of the model's width to its smallest
//! sibling's.
//!
//! Hu et al., 2024 (arXiv:2404.06395). GGUF files store Q and K with their rows permuted, as llama's do.

use super::{Architecture, llama};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::NormKind;
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "minicpm",
    hf_model_types: &["minicpm"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: llama::forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let one = json!(1.0);
    let s = &s.with_defaults([
        ("dim_model_base", one.clone()),
        ("max_position_embeddings", json!(2048)),
        ("scale_depth", one.clone()),
        ("scale_emb", one),
    ]);
    if s.opt_usize("num_experts")?.is_some_and(|n| n > 0) {
        return Err(s.unsupported("experts in MiniCPM"));
    }
    if s.has("sparse_config") {
        return Err(s.unsupported("block-sparse attention (`sparse_config`)"));
    }
    let attn_bias = hf_bias(s, "attention_bias")?;
    let config = Config::from_hf(s, &HfKeys::COMMON)?;
    let (dim, n_layers) = (config.dim as f32, config.layers.len() as f32);
    Ok(Config {
        embed_scale: s.f32("scale_emb")?,
        residual_scale: s.f32("scale_depth")? / n_layers.sqrt(),
        logit_scale: s.f32("dim_model_base")? / dim,
        attn_bias,
        ..config
    })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    // Files of before these keys are of models whose factors are these.
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let (dim, n_layers) = (config.dim as f32, config.layers.len() as f32);
    Ok(Config {
        embed_scale: s.opt_f32("embedding_scale")?.unwrap_or(12.0),
        residual_scale: s.opt_f32("residual_scale")?.unwrap_or(1.4 / n_layers.sqrt()),
        logit_scale: 1.0 / s.opt_f32("logit_scale")?.unwrap_or(dim / 256.0),
        ..config
    })
}
