//! qwen35moe: qwen35 with experts in every layer, one of which all rows share.
//!
//! Qwen team, 2026 (Qwen3.5). The factors of a row's experts are normalized.

use super::experts::{hf_counts, with_gguf_experts};
use super::{Architecture, qwen35};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys};
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
    let experts = shared_from_hf(s, true)?;
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

/// The experts and the one that all rows share.
pub(super) fn shared_from_hf(s: &HfSettings, normalize: bool) -> Result<Experts, Error> {
    let counts = hf_counts(s)?;
    let shared_dim = Some(s.usize("shared_expert_intermediate_size")?);
    let hidden_dim = s.usize("moe_intermediate_size")?;
    let experts = Experts::softmax(counts, hidden_dim, normalize);
    Ok(Experts { shared_dim, shared_gate: true, ..experts })
}

/// The settings of the layers, where no layer needs the columns of a network without experts.
pub(super) fn hybrid_from_hf(s: &HfSettings, keys: &HfKeys) -> Result<Config, Error> {
    let hidden_dim = s.usize("moe_intermediate_size")?;
    qwen35::hybrid_from_hf(&s.with_defaults([("intermediate_size", json!(hidden_dim))]), keys)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    shared_from_gguf(s, qwen35::config_from_gguf(s)?)
}

/// Puts experts in every layer, and the one that all rows share.
pub(super) fn shared_from_gguf(s: GgufSettings<'_>, config: Config) -> Result<Config, Error> {
    let config = with_gguf_experts(config, s, true)?;
    let shared_dim = s.opt_usize("expert_shared_feed_forward_length")?.filter(|&dim| dim > 0);
    let config = config.with_layers(|_, layer| {
        let hidden_dim = shared_dim.unwrap_or(layer.hidden_dim);
        if let Some(experts) = &mut layer.experts {
            (experts.shared_dim, experts.shared_gate) = (Some(hidden_dim), true);
        }
    });
    config.checked_gguf(s)
}
