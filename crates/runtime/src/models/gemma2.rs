//! gemma2: Gemma with norms after attention and feed-forward too, soft caps, and
//! a window on every other layer.
//!
//! Gemma Team, 2024 (Gemma 2).

use super::{Architecture, Build, gemma};
use crate::Error;
use crate::checkpoint::names::NameTable;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::config::{Config, window_or_none};
use crate::graph::ValueId;
use crate::weights::Bias;
use serde_json::json;

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

/// The settings of Gemma 2 and 3: soft caps and the scale of the scores.
pub(super) fn capped_from_hf(s: &HfSettings) -> Result<Config, Error> {
    Ok(Config {
        attn_scale: 1.0 / s.f32("query_pre_attn_scalar")?.sqrt(),
        attn_softcap: s.opt_f32("attn_logit_softcapping")?,
        logit_softcap: s.opt_f32("final_logit_softcapping")?,
        ..Config::from_hf(s)?
    })
}

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let s = &gemma::with_defaults(s).with_defaults([
        ("query_pre_attn_scalar", json!(256)),
        ("attn_logit_softcapping", json!(50.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("sliding_window", json!(DEFAULT_WINDOW)),
    ]);
    let window = window_or_none(s.opt_usize("sliding_window")?);
    capped_from_hf(s)?.with_hf_layer_types(s, window, |l| l % 2 == 0)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let mut c = gemma::config_from_gguf(s)?;
    c.attn_softcap = s.opt_f32("attn_logit_softcapping")?.or(Some(50.0));
    c.logit_softcap = s.opt_f32("final_logit_softcapping")?.or(Some(30.0));
    // The file does not say it: the 27B model scales by the width of a head's
    // share of the hidden state, the others by the head's own.
    if c.n_layers == 46 {
        c.attn_scale = 1.0 / (c.dim as f32 / c.n_heads as f32).sqrt();
    }
    let window = s.opt_usize("attention.sliding_window")?.unwrap_or(DEFAULT_WINDOW);
    let window = window_or_none(Some(window));
    Ok(c.with_windows(|l| window.filter(|_| l % 2 == 0)))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    decoder(m, false)
}

/// The decoder of Gemma 2 and 3, with or without a norm on every head of Q and K.
pub(super) fn decoder(m: &mut Build<'_>, qk_norm: bool) -> Result<ValueId, Error> {
    let c = m.config;
    let (tok_embed, mut x) = gemma::embed(m)?;
    let global = m.rope_table(&c.rope)?;
    let local = match &c.local_rope {
        Some(rope) => m.rope_table(rope)?,
        None => global,
    };
    for l in 0..c.n_layers {
        m.graph.begin_layer(l);
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let [mut q, mut k, v] = m.qkv(h, l, Bias::IfPresent)?;
        if qk_norm {
            (q, k) = (m.head_norm(q, (l, "q_norm"))?, m.head_norm(k, (l, "k_norm"))?);
        }
        let rope = if c.windows[l].is_some() { local } else { global };
        let (q, k) = (m.rope(q, rope), m.rope(k, rope));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, Bias::IfPresent)?;
        let o = m.rms_norm(o, (l, "post_attn_norm"))?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = m.gated_ffn(h, l, Bias::None)?;
        let f = m.rms_norm(f, (l, "post_ffn_norm"))?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
