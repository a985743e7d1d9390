//! qwen35moe: qwen35 with experts in every layer, one of them shared.
//!
//! Qwen team, 2026 (Qwen3.5). The factors of a row's experts are normalized.

use super::experts::{hf_gated, with_gguf_gated};
use super::{Architecture, qwen35};
use crate::Error;
use crate::architectures::config::Config;
use crate::checkpoint::{GgufSettings, HfSettings};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen35moe",
    hf_model_types: &["qwen3_5_moe_text"],
    hf_names: qwen35::HF_NAMES,
    gguf_names: qwen35::GGUF_NAMES,
    ignored: qwen35::IGNORED,
    config_from_hf,
    config_from_gguf,
    forward: qwen35::forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let experts = hf_gated(s, true)?;
    // No layer needs the columns of a network without experts.
    let hidden_dim = json!(s.usize("moe_intermediate_size")?);
    let of_layers = s.with_value("intermediate_size", hidden_dim);
    let config = qwen35::hybrid_from_hf(&of_layers, &qwen35::KEYS)?;
    config.with_layers(|_, layer| layer.experts = Some(experts)).checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    with_gguf_gated(qwen35::config_from_gguf(s)?, s, true)?.checked_gguf(s)
}
