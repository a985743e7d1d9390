//! gemma3: Gemma 2 with a norm on every head of Q and K instead of the soft cap
//! on scores, and a rotary base of its own for the layers with a window.
//!
//! Gemma Team, 2025 (Gemma 3). The text model; images are not built.

use super::{Architecture, Build, gemma, gemma2};
use crate::Error;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::config::{Config, window_or_none};
use crate::graph::ValueId;
use crate::rope::{Rope, RopeScaling};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gemma3",
    hf_model_types: &["gemma3_text"],
    hf_names: gemma2::HF_NAMES,
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// Of so many layers, the last sees everything.
const PATTERN: usize = 6;

/// Base of the angles in layers with a window.
const LOCAL_THETA: f32 = 10_000.0;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let s = &gemma::with_defaults(s)
        .with_defaults([("query_pre_attn_scalar", json!(256)), ("sliding_window", json!(4096))]);
    let mut c = gemma2::capped_from_hf(s)?;
    let rope = |layer_type| Rope::from_hf(s, Some(layer_type), c.head_dim, c.max_seq_len);
    let (global, mut local) = (rope("full_attention")?, rope("sliding_attention")?);
    // The older spelling has the local base apart, and never scales it.
    let nested = s.opt_object("rope_parameters")?.is_some_and(|p| p.has("sliding_attention"));
    if !nested {
        local.theta = s.opt_f32("rope_local_base_freq")?.unwrap_or(LOCAL_THETA);
        local.scaling = RopeScaling::None;
    }
    (c.rope, c.local_rope) = (global, Some(local));
    let pattern = match s.opt_usize("sliding_window_pattern")?.unwrap_or(PATTERN) {
        0 => return Err(s.wrong("sliding_window_pattern", "a number of layers")),
        n => n,
    };
    let window = window_or_none(s.opt_usize("sliding_window")?);
    c.with_hf_layer_types(s, window, |l| (l + 1) % pattern != 0)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let mut c = gemma::config_from_gguf(s)?;
    c.logit_softcap = s.opt_f32("final_logit_softcapping")?;
    c.local_rope = Some(Rope {
        theta: s.opt_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA),
        scaling: RopeScaling::None,
        ..c.rope.clone()
    });
    // The file does not say it: see gemma2.
    if c.n_layers == 62 {
        c.attn_scale = 1.0 / (c.dim as f32 / c.n_heads as f32).sqrt();
    }
    let window = window_or_none(Some(s.usize("attention.sliding_window")?));
    let pattern = match s.opt_uniform("attention.sliding_window_pattern")?.unwrap_or(PATTERN) {
        0 => return Err(s.wrong("attention.sliding_window_pattern", "a number of layers", "0")),
        n => n,
    };
    Ok(c.with_windows(|l| window.filter(|_| (l + 1) % pattern != 0)))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    gemma2::decoder(m, true)
}
