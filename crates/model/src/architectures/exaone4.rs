//! exaone4: EXAONE 4. OLMo 2's norms after attention and feed-forward network, with norms on every head of
//! Q and K. In models with sliding windows, the layers without one do not rotate queries and keys.
//!
//! LG AI Research, 2025 (EXAONE 4.0, arXiv:2507.11407).

use super::{Architecture, Build, olmo2};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, HfWindow, window_or_none};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "exaone4",
    hf_model_types: &["exaone4"],
    hf_names: olmo2::HF_NAMES,
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// Of so many layers, the last sees everything.
const PERIOD: usize = 4;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let config = Config::from_hf(s, &HfKeys::COMMON)?;
    let window = HfWindow::needed(s)?;
    let period = match s.has("layer_types") {
        // The list goes before the pattern, which then may be a word.
        true => PERIOD,
        false => match s.usize_or("sliding_window_pattern", PERIOD)? {
            0 => return Err(s.wrong("sliding_window_pattern", "a number of layers")),
            n => n,
        },
    };
    let config = config.with_hf_layer_types(s, window, |l| (l + 1) % period != 0)?;
    s.pass_over("sliding_window_pattern");
    // Whatever layers slide, heads are rotated everywhere only where the file has no window.
    Ok(if window == HfWindow::Null { config } else { config.with_rope_where_sliding() })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    let Some(window) = window else { return Ok(config) };
    let slides = s.sliding_layers(config.layers.len(), PERIOD)?;
    Ok(config.with_windows(|l| slides[l].then_some(window)).with_rope_where_sliding())
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    olmo2::decoder(m, |m, x, l, leaf| m.head_norm(x, (l, leaf)))
}
