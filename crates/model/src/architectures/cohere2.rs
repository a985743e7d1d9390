//! cohere2: Command R7B, Command A and Aya Vision's successor. Command-R with a sliding window on three
//! of four layers; only these rotate queries and keys.
//!
//! Cohere, 2025 (Command A, arXiv:2504.00698).

use super::Architecture;
use super::command_r::{decoder, scaled_from_gguf, scaled_from_hf};
use crate::Error;
use crate::architectures::config::{Config, HfWindow, window_or_none};
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "cohere2",
    hf_model_types: &["cohere2"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: decoder,
};

/// Of so many layers, the last sees everything.
const PERIOD: usize = 4;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let period = match s.usize_or("sliding_window_pattern", PERIOD)? {
        0 => return Err(s.wrong("sliding_window_pattern", "a number of layers")),
        n => n,
    };
    let config = scaled_from_hf(s, HfRopeKeys::COMMON)?;
    let config = config.with_hf_layer_types(s, HfWindow::needed(s)?, |l| (l + 1) % period != 0)?;
    Ok(config.with_rope_where_sliding())
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = scaled_from_gguf(s)?;
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    let slides = s.sliding_layers(config.layers.len(), PERIOD)?;
    Ok(config.with_windows(|l| window.filter(|_| slides[l])).with_rope_where_sliding())
}
