//! smollm3: the llama shape, where every fourth layer does not rotate queries and keys.
//!
//! Hugging Face, 2025 (SmolLM3); Yang et al., 2025 (RoPE to NoPE and back again, arXiv:2501.18795). GGUF
//! files store Q and K with their rows permuted, as llama's do.

use super::{Architecture, llama};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, HfWindow, hf_bias};
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::NormKind;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "smollm3",
    hf_model_types: &["smollm3"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: llama::forward,
};

/// Of so many layers, the last does not rotate.
const PERIOD: usize = 4;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { theta: ("rope_theta", 2e6), ..HfRopeKeys::COMMON };
    let config = Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?;
    let n_layers = config.layers.len();
    let rotates = match s.opt_usizes("no_rope_layers")? {
        // The list has a 1 where there is a rotation, whatever its name says.
        Some(list) if list.len() == n_layers => list.iter().map(|&n| n != 0).collect(),
        Some(_) => return Err(s.wrong("no_rope_layers", format!("{n_layers} layers"))),
        None => match s.usize_or("no_rope_layer_interval", PERIOD)? {
            0 => return Err(s.wrong("no_rope_layer_interval", "a number of layers")),
            period => rotating(n_layers, period),
        },
    };
    s.pass_over("no_rope_layer_interval");
    let config =
        config.with_hf_layer_types(s, HfWindow::optional(s)?.switched(s)?, |l| !rotates[l])?;
    let (attn_bias, ffn_bias) = (hf_bias(s, "attention_bias")?, hf_bias(s, "mlp_bias")?);
    Ok(Config { attn_bias, ffn_bias, ..with_ropes(config, &rotates) })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let rotates = rotating(config.layers.len(), PERIOD);
    Ok(with_ropes(config, &rotates))
}

/// Of each layer whether it rotates, where one in `period` does not.
fn rotating(n_layers: usize, period: usize) -> Vec<bool> {
    (1..=n_layers).map(|l| !l.is_multiple_of(period)).collect()
}

fn with_ropes(config: Config, rotates: &[bool]) -> Config {
    config.with_layers(|l, layer| layer.rope = layer.rope.filter(|_| rotates[l]))
}
