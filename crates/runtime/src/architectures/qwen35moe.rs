//! qwen35moe: qwen35 with experts in every layer, one of them shared.
//!
//! Qwen team, 2026 (Qwen3.5). The factors of a row's experts are normalized.

use super::experts::{hf_gated, with_gguf_gated};
use super::{Architecture, qwen35};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
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
    let s = &with_defaults(s, 256, 8);
    let experts = hf_gated(s, true)?;
    let config = hybrid_from_hf(s, &qwen35::KEYS)?;
    config.with_layers(|_, layer| layer.experts = Some(experts)).checked_hf(s)
}

/// The defaults of the experts, `n_experts` of which a row uses `n_chosen`.
pub(super) fn with_defaults(s: &HfSettings, n_experts: usize, n_chosen: usize) -> HfSettings {
    s.with_defaults([
        ("moe_intermediate_size", json!(512)),
        ("shared_expert_intermediate_size", json!(512)),
        ("num_experts", json!(n_experts)),
        ("num_experts_per_tok", json!(n_chosen)),
    ])
}

/// The settings of the layers, where no layer needs the columns of a network without experts.
pub(super) fn hybrid_from_hf(s: &HfSettings, keys: &HfKeys) -> Result<Config, Error> {
    let hidden_dim = s.usize("moe_intermediate_size")?;
    qwen35::hybrid_from_hf(&s.with_defaults([("intermediate_size", json!(hidden_dim))]), keys)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    with_gguf_gated(qwen35::config_from_gguf(s)?, s, true)?.checked_gguf(s)
}
