//! gemma: the first Gemma. The llama shape with a scaled embedding, a GELU gate
//! and norm weights stored as their difference from 1.
//!
//! Gemma Team, 2024. GGUF files store the norm weights with the 1 added.

use super::llama::{Shape, decoder};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, activation_from_hf, hf_bias};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::weights::Weight;
use crate::graph::{Activation, NormKind, ValueId};

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

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let (activation, attn_bias) = (activation_of(s)?, hf_bias(s, "attention_bias")?);
    Ok(Config { activation, attn_bias, ..Config::from_hf(s, &HfKeys::COMMON)? })
}

/// The gate. The `gelu` of early files was a mistake that transformers corrects too. Its
/// releases disagree on which of two keys to read, so these must not contradict each other.
fn activation_of(s: &HfSettings) -> Result<Activation, Error> {
    let read = |key| match s.opt_str(key)? {
        None => Ok(None),
        Some("gelu") => Ok(Some(Activation::GeluTanh)),
        Some(name) => activation_from_hf(s, name).map(Some),
    };
    let (own, other) = (read("hidden_act")?, read("hidden_activation")?);
    let own = own.unwrap_or(Activation::GeluTanh);
    if other.is_some_and(|other| other != own) {
        return Err(s.wrong("hidden_activation", "the same as `hidden_act`"));
    }
    Ok(own)
}

pub(super) fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    Ok(Config { activation: Activation::GeluTanh, ..config })
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
    let shape = Shape::of(m.config);
    decoder(m, tok_embed, x, shape)
}
