//! qwen2: Qwen 1.5, 2 and 2.5. The llama shape with biases on Q, K and V.
//!
//! Yang et al., 2024 (Qwen2 technical report).

use super::llama::{Shape, decoder};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, HfWindow, window_or_none};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen2",
    hf_model_types: &["qwen2"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The settings, with the window on the layers from `max_window_layers` on.
pub(super) fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    config_with(s, &HfKeys::COMMON)
}

/// As [`config_from_hf`], of a family that reads these keys.
pub(super) fn config_with(s: &HfSettings, keys: &HfKeys) -> Result<Config, Error> {
    let window = HfWindow::optional(s)?.switched(s)?;
    let first = s.usize("max_window_layers")?;
    Config::from_hf(s, keys)?.with_hf_layer_types(s, window, |l| l >= first)
}

pub(super) fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    if window_or_none(s.opt_usize("attention.sliding_window")?).is_some() {
        return Err(s.unsupported("a sliding window whose layers the file does not name"));
    }
    Config::from_gguf(s, NormKind::Rms)
}

pub(super) fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape {
        qkv_bias: Bias::Required,
        wo_bias: Bias::None,
        ffn_bias: Bias::None,
        qk_norm: false,
    };
    decoder(m, tok_embed, x, shape)
}
