//! gemma3: Gemma 2 with a norm on every head of Q and K instead of the soft cap on scores, and a
//! separate rotary base for the layers with a window.
//!
//! Gemma Team, 2025 (Gemma 3). The text model, and what it does with the rows of an image: they see each
//! other in both directions, in layers with a window too, where a row still sees no further back than the
//! window. The vision tower that makes such rows is not built.

use super::{Architecture, Build, gemma, gemma2};
use crate::Error;
use crate::architectures::config::{Config, HfWindow, window_or_none};
use crate::architectures::rope::{HfRopeKeys, Rope, RopeScaling};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Reach, ValueId};

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

/// Base of the angles in layers that see everything, where the file does not say it.
const GLOBAL_THETA: f32 = 1_000_000.0;

/// The rope of layers that see everything.
const GLOBAL_ROPE: HfRopeKeys = HfRopeKeys {
    layer_type: Some("full_attention"),
    theta: ("rope_theta", GLOBAL_THETA),
    ..HfRopeKeys::COMMON
};

/// The rope of layers with a window.
const LOCAL_ROPE: HfRopeKeys = HfRopeKeys {
    layer_type: Some("sliding_attention"),
    theta: ("rope_local_base_freq", LOCAL_THETA),
    ..HfRopeKeys::COMMON
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    // The soft cap on scores that the file may give is not applied by Gemma 3.
    s.pass_over("attn_logit_softcapping");
    let mut c = gemma2::scaled_from_hf(s, GLOBAL_ROPE)?;
    c.ropes.push(Rope::from_hf(s, &LOCAL_ROPE, c.layers[0].head_dim, c.max_seq_len)?);
    let pattern = match s.usize_or("sliding_window_pattern", PATTERN)? {
        0 => return Err(s.wrong("sliding_window_pattern", "a number of layers")),
        n => n,
    };
    Ok(finished(c.with_hf_layer_types(s, HfWindow::needed(s)?, |l| (l + 1) % pattern != 0)?))
}

/// Gives layers with a window the second rotary embedding, and lets rows see as far as they reach.
fn finished(c: Config) -> Config {
    Config { reach: Reach::OfRow, ..c }
        .with_layers(|_, layer| layer.rope = Some(usize::from(layer.window.is_some())))
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let mut c = gemma::config_from_gguf(s)?;
    c.logit_softcap = s.opt_f32("final_logit_softcapping")?;
    c.ropes.push(Rope {
        theta: s.opt_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA),
        scaling: RopeScaling::None,
        ..c.ropes[0].clone()
    });
    // The file does not say which model it is.
    if c.layers.len() == 62 {
        c = gemma2::scaled_by_share(c);
    }
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    let pattern = match s.opt_uniform("attention.sliding_window_pattern")?.unwrap_or(PATTERN) {
        0 => return Err(s.wrong("attention.sliding_window_pattern", "a number of layers", "0")),
        n => n,
    };
    Ok(finished(c.with_windows(|l| window.filter(|_| (l + 1) % pattern != 0))))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    gemma2::decoder(m, true)
}
