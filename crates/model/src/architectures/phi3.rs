//! phi3: Phi 3, 3.5 and 4. The llama shape with stacked QKV and gate+up
//! matrices, and LongRoPE in the long-context models.
//!
//! Abdin et al., 2024 (Phi-3 technical report).

use super::llama::{Shape, decoder};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, HfWindow, window_or_none};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};

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
    let window = HfWindow::optional(s)?.of_every_layer(s)?;
    let rope = HfRopeKeys { partial: Some(1.0), longrope_only: true, ..HfRopeKeys::COMMON };
    let config = Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?;
    Ok(config.with_windows(|_| window))
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    Ok(Config::from_gguf(s, NormKind::Rms)?.with_windows(|_| window))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape =
        Shape { qkv_bias: Bias::None, wo_bias: Bias::None, ffn_bias: Bias::None, qk_norm: false };
    decoder(m, tok_embed, x, shape)
}
