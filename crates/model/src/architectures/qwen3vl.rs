//! qwen3vl: the text model of Qwen3-VL. Qwen 3 with multimodal rotary embeddings (M-RoPE), whose three components
//! take turns.
//!
//! Bai et al., 2025 (Qwen3-VL, arXiv:2511.21631). The vision tower is not built, nor is what it adds to the first
//! layers where there are images (DeepStack).

use super::{Architecture, qwen2, qwen3};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::rope::{HfRopeKeys, Sections};
use crate::checkpoint::{GgufSettings, HfSettings};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen3vl",
    hf_model_types: &["qwen3_vl_text"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: qwen3::forward,
};

/// The keys that the model reads.
pub(super) const KEYS: HfKeys = HfKeys {
    rope: HfRopeKeys {
        theta: ("rope_theta", 500_000.0),
        sections: Some(Sections { sizes: [24, 20, 20], interleaved: true }),
        ..HfRopeKeys::COMMON
    },
    ..HfKeys::COMMON
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let attn_bias = hf_bias(s, "attention_bias")?;
    Ok(Config { attn_bias, ..Config::from_hf(s, &KEYS)? })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    with_sections(qwen2::config_from_gguf(s)?, s)
}

/// The settings with the sections of the file.
pub(super) fn with_sections(mut config: Config, s: GgufSettings<'_>) -> Result<Config, Error> {
    // Rows that images add to the first layers; text adds none.
    s.opt_usize("n_deepstack_layers")?;
    for rope in &mut config.ropes {
        rope.sections = Sections::from_gguf(s, true, rope.rotary_dim / 2)?;
    }
    Ok(config)
}
