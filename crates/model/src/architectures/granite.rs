//! granite: Granite 3. The llama shape with factors on embedding, attention scores, residual additions
//! and logits.
//!
//! IBM, 2024 (Granite 3.0). GGUF files store Q and K with their rows permuted, as llama's do.

use super::{Architecture, llama};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::NormKind;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "granite",
    hf_model_types: &["granite"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: llama::forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let attn_scale = s.f32("attention_multiplier")?;
    let config = Config {
        embed_scale: s.f32("embedding_multiplier")?,
        residual_scale: s.f32("residual_multiplier")?,
        logit_scale: 1.0 / s.f32("logits_scaling")?,
        attn_bias: hf_bias(s, "attention_bias")?,
        ffn_bias: hf_bias(s, "mlp_bias")?,
        ..Config::from_hf(s, &HfKeys::COMMON)?
    };
    Ok(config.with_layers(|_, layer| layer.attn_scale = attn_scale))
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    if s.opt_usize("expert_count")?.is_some_and(|n| n > 0) {
        return Err(s.unsupported("experts in a file of architecture granite"));
    }
    // Zero stands for no factor.
    let factor = |key: &str| Ok::<_, Error>(s.opt_f32(key)?.filter(|&scale| scale != 0.0));
    let attn_scale = factor("attention.scale")?;
    // The key that elsewhere says nothing of the forward pass turns the rotation off here.
    let rotates = s.bool_or("rope.scaling.finetuned", true)?;
    let config = Config {
        embed_scale: factor("embedding_scale")?.unwrap_or(1.0),
        residual_scale: factor("residual_scale")?.unwrap_or(1.0),
        logit_scale: 1.0 / s.f32("logit_scale")?,
        ffn_bias: Bias::IfPresent,
        ..Config::from_gguf(s, NormKind::Rms)?
    };
    Ok(config.with_layers(|_, layer| {
        layer.attn_scale = attn_scale.unwrap_or(layer.attn_scale);
        layer.rope = layer.rope.filter(|_| rotates);
    }))
}
