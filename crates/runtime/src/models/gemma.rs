//! gemma: the first Gemma. The llama shape with a scaled embedding, a GELU gate
//! and norm weights stored as their difference from 1.
//!
//! Gemma Team, 2024. GGUF files store the norm weights with the 1 added.

use super::llama::{Shape, decoder};
use super::{Architecture, Build};
use crate::Error;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::config::Config;
use crate::graph::{Activation, ValueId};
use crate::weights::{Bias, Weight};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gemma",
    hf_model_types: &["gemma"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The settings. The gate is the tanh form of GELU whatever the file says: the
/// `gelu` of early files was a mistake that transformers corrects too.
fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    Ok(Config { activation: Activation::GeluTanh, ..Config::from_hf(&with_defaults(s))? })
}

/// The defaults that all Gemmas share.
pub(super) fn with_defaults(s: &HfSettings) -> HfSettings {
    s.with_defaults([
        ("tie_word_embeddings", json!(true)),
        ("head_dim", json!(256)),
        ("hidden_activation", json!("gelu_pytorch_tanh")),
    ])
}

pub(super) fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    Ok(Config { activation: Activation::GeluTanh, ..Config::from_gguf(s)? })
}

/// The scaled embedding of the tokens, with its table.
pub(super) fn embed(m: &mut Build<'_>) -> Result<(Weight, ValueId), Error> {
    if m.weights.is_hf() {
        m.weights.norms_are_offsets();
    }
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, (m.config.dim as f32).sqrt());
    Ok((tok_embed, x))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let (tok_embed, x) = embed(m)?;
    let shape = Shape { qkv_bias: Bias::IfPresent, bias: Bias::IfPresent, qk_norm: false };
    decoder(m, tok_embed, x, shape)
}
