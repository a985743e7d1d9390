//! gemma: the first Gemma. The llama shape with a scaled embedding, a GELU gate
//! and norm weights stored as their difference from 1.
//!
//! Gemma Team, 2024. GGUF files store the norm weights with the 1 added.

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
    let c = m.config;
    let (tok_embed, mut x) = embed(m)?;
    let rope = m.rope_table(&c.rope)?;
    for l in 0..c.n_layers {
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let [q, k, v] = m.qkv(h, l, Bias::IfPresent)?;
        let (q, k) = (m.rope(q, rope), m.rope(k, rope));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, Bias::IfPresent)?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = m.gated_ffn(h, l, Bias::None)?;
        x = m.graph.add(x, f);
    }
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
