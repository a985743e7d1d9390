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

/// The settings that all Gemmas share. A configuration that does not speak of
/// tying ties the head, and every Gemma's gate is the tanh form of GELU: the
/// `gelu` in early files was a mistake that transformers corrects too.
pub(super) fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let tied_head = Some(s.bool_or("tie_word_embeddings", true)?);
    let config = Config::from_hf(s)?;
    Ok(Config { activation: Activation::GeluTanh, tied_head, ..config })
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
