//! qwen2vl: the text model of Qwen2-VL and Qwen2.5-VL. Qwen 2 with multimodal rotary embeddings (M-RoPE):
//! positions have three components, each for a section of pairs.
//!
//! Wang et al., 2024 (Qwen2-VL, arXiv:2409.12191). The vision tower is not built.

use super::{Architecture, qwen2};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
use crate::architectures::rope::{HfRopeKeys, Sections};
use crate::checkpoint::{GgufSettings, HfSettings};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen2vl",
    hf_model_types: &["qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: qwen2::forward,
};

/// The keys that the model reads.
const KEYS: HfKeys = HfKeys {
    rope: HfRopeKeys {
        theta: ("rope_theta", 1e6),
        sections: Some(Sections { sizes: [16, 24, 24], interleaved: false }),
        ..HfRopeKeys::COMMON
    },
    ..HfKeys::COMMON
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    qwen2::config_with(s, &KEYS)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let mut config = qwen2::config_from_gguf(s)?;
    for rope in &mut config.ropes {
        rope.sections = Sections::from_gguf(s, false, rope.rotary_dim / 2)?;
    }
    Ok(config)
}
