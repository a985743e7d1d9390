//! nemotron: Nemotron-4 and Minitron. LayerNorm whose weights are stored as their difference from 1, a
//! plain feed-forward network with squared ReLU, and a rotary embedding on half of each head.
//!
//! Parmar et al., 2024 (Nemotron-4 15B, arXiv:2402.16819). GGUF files store the norm weights with the 1
//! added.

use super::{Architecture, Build, starcoder2};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Activation, NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "nemotron",
    hf_model_types: &["nemotron"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { partial: Some(0.5), ..HfRopeKeys::COMMON };
    Ok(Config {
        norm_eps: s.f32("norm_eps")?,
        attn_bias: hf_bias(s, "attention_bias")?,
        ffn_bias: hf_bias(s, "mlp_bias")?,
        ..Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?
    })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Layer)?;
    Ok(Config { activation: Activation::ReluSquared, ffn_bias: Bias::IfPresent, ..config })
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    if m.weights.is_hf() {
        m.weights.norms_are_offsets();
    }
    starcoder2::decoder(m)
}
