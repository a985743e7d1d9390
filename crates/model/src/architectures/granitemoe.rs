//! granitemoe: Granite 3 with experts in every layer, and in some models a shared expert. The llama shape with
//! factors on embedding, attention scores, residual additions and logits.
//!
//! IBM, 2024 (Granite 3.0). GGUF files store Q and K with their rows permuted, as llama's do.

use super::experts::{gguf_counts, hf_counts};
use super::{Architecture, llama};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, hf_bias};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, Scoring};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "granitemoe",
    hf_model_types: &["granitemoe", "granitemoeshared"],
    hf_names: &[
        ("router", "model.layers.{}.block_sparse_moe.router.layer"),
        ("experts.w_gate_up", "model.layers.{}.block_sparse_moe.input_linear"),
        ("experts.w_down", "model.layers.{}.block_sparse_moe.output_linear"),
        ("shared.w_gate_up", "model.layers.{}.shared_mlp.input_linear"),
        ("shared.w_down", "model.layers.{}.shared_mlp.output_linear"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: llama::forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let config = Config {
        embed_scale: s.f32("embedding_multiplier")?,
        residual_scale: s.f32("residual_multiplier")?,
        logit_scale: 1.0 / s.f32("logits_scaling")?,
        attn_bias: hf_bias(s, "attention_bias")?,
        ..Config::from_hf(s, &HfKeys::COMMON)?
    };
    let counts = hf_counts(s)?;
    if counts.0 == 0 {
        return Err(s.unsupported("layers without experts (`num_local_experts`)"));
    }
    let shared_dim = match s.str("model_type")? {
        "granitemoeshared" => s.opt_usize("shared_intermediate_size")?,
        _ => None,
    };
    let attn_scale = Some(s.f32("attention_multiplier")?);
    with_experts(config, counts, shared_dim, attn_scale).checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    // Zero stands for no factor.
    let factor = |key: &str| Ok::<_, Error>(s.opt_f32(key)?.filter(|&scale| scale != 0.0));
    let attn_scale = factor("attention.scale")?;
    let config = Config {
        embed_scale: factor("embedding_scale")?.unwrap_or(1.0),
        residual_scale: factor("residual_scale")?.unwrap_or(1.0),
        logit_scale: 1.0 / s.f32("logit_scale")?,
        ..Config::from_gguf(s, NormKind::Rms)?
    };
    let Some(counts) = gguf_counts(s)? else {
        return Err(s.wrong("expert_count", "a number of experts", "nothing"));
    };
    let shared_dim = s.opt_usize("expert_shared_feed_forward_length")?;
    with_experts(config, counts, shared_dim, attn_scale).checked_gguf(s)
}

fn with_experts(
    config: Config,
    counts: (usize, usize),
    shared_dim: Option<usize>,
    attn_scale: Option<f32>,
) -> Config {
    let shared_dim = shared_dim.filter(|&dim| dim > 0);
    config.with_layers(|_, layer| {
        layer.attn_scale = attn_scale.unwrap_or(layer.attn_scale);
        let experts = Experts::softmax(counts, layer.hidden_dim, false);
        let scoring = Scoring::SoftmaxOfChosen;
        layer.experts = Some(Experts { scoring, shared_dim, ..experts });
    })
}
