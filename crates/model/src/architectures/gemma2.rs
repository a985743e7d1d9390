//! gemma2: Gemma with norms also after attention and feed-forward network, soft caps, and a sliding
//! window on every other layer.
//!
//! Gemma Team, 2024 (Gemma 2).

use super::{Architecture, Build, gemma};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, HfWindow, hf_bias, window_or_none};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::names::NameTable;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::ValueId;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gemma2",
    hf_model_types: &["gemma2"],
    hf_names: HF_NAMES,
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The four norms of a layer, as Gemma 2 and 3 call them.
pub(super) const HF_NAMES: NameTable = &[
    ("post_attn_norm", "model.layers.{}.post_attention_layernorm"),
    ("ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
    ("post_ffn_norm", "model.layers.{}.post_feedforward_layernorm"),
];

/// The window of files that do not give one.
const DEFAULT_WINDOW: usize = 4096;

/// The settings that Gemma 2 and 3 share: the scale of the scores and the cap on logits.
pub(super) fn scaled_from_hf(s: &HfSettings, rope: HfRopeKeys) -> Result<Config, Error> {
    let attn_scale = 1.0 / s.f32("query_pre_attn_scalar")?.sqrt();
    let config = Config {
        logit_softcap: s.opt_f32("final_logit_softcapping")?,
        attn_bias: hf_bias(s, "attention_bias")?,
        ..Config::from_hf(s, &HfKeys { activation: Some("hidden_activation"), rope })?
    };
    Ok(config.with_layers(|_, layer| layer.attn_scale = attn_scale))
}

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let mut c = scaled_from_hf(s, HfRopeKeys::COMMON)?;
    c.attn_softcap = s.opt_f32("attn_logit_softcapping")?;
    c.with_hf_layer_types(s, HfWindow::needed(s)?, |l| l % 2 == 0)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let mut c = gemma::config_from_gguf(s)?;
    c.attn_softcap = s.opt_f32("attn_logit_softcapping")?.or(Some(50.0));
    c.logit_softcap = s.opt_f32("final_logit_softcapping")?.or(Some(30.0));
    // The file does not say which model it is.
    if c.layers.len() == 46 {
        c = scaled_by_share(c);
    }
    let window = s.opt_usize("attention.sliding_window")?.unwrap_or(DEFAULT_WINDOW);
    let window = window_or_none(Some(window));
    Ok(c.with_windows(|l| window.filter(|_| l % 2 == 0)))
}

/// With the scale of the 27B models, by the width of a head's share of the hidden state, where all
/// others take the head's own.
pub(super) fn scaled_by_share(c: Config) -> Config {
    let dim = c.dim as f32;
    c.with_layers(|_, layer| layer.attn_scale = 1.0 / (dim / layer.n_heads as f32).sqrt())
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    decoder(m, false)
}

/// The decoder of Gemma 2 and 3, with or without a norm on every head of Q and K.
pub(super) fn decoder(m: &mut Build<'_>, qk_norm: bool) -> Result<ValueId, Error> {
    let c = m.config;
    let (tok_embed, mut x) = gemma::embed(m)?;
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let [mut q, mut k, v] = m.qkv(h, l, c.attn_bias)?;
        if qk_norm {
            (q, k) = (m.head_norm(q, (l, "q_norm"))?, m.head_norm(k, (l, "k_norm"))?);
        }
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, c.attn_bias)?;
        let o = m.rms_norm(o, (l, "post_attn_norm"))?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = m.gated_ffn(h, l, c.ffn_bias)?;
        let f = m.rms_norm(f, (l, "post_ffn_norm"))?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
