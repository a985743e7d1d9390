//! phi3: Phi 3, 3.5 and 4. The llama shape with stacked QKV and gate+up
//! matrices, and LongRoPE in the long-context models.
//!
//! Abdin et al., 2024 (Phi-3 technical report).

use super::llama::{Shape, decoder};
use super::{Architecture, Build};
use crate::Error;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::config::{Config, window_or_none};
use crate::graph::ValueId;
use crate::weights::Bias;
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    hf_model_types: &["phi3"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let s = &s.with_defaults([("rms_norm_eps", json!(1e-5))]);
    let window = window_or_none(s.opt_usize("sliding_window")?);
    Config::from_hf(s)?.with_hf_layer_types(s, window, |_| true)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    Ok(Config::from_gguf(s)?.with_windows(|_| window))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape { qkv_bias: Bias::None, bias: Bias::None, qk_norm: false };
    decoder(m, tok_embed, x, shape)
}
