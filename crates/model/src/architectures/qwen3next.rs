//! qwen3next: the layers of qwen35 with experts, and with one-component positions. Qwen3-Next 80B-A3B.
//!
//! Qwen team, 2025 (Qwen3-Next). The projections of linear attention have the rows of a head of keys together,
//! those of its queries, values and gates included; GGUF files have some of them apart, and heads of values
//! in the order of transformers.

use super::experts::{hf_gated, with_gguf_gated, with_hf_sparse_layers};
use super::{Architecture, Build, qwen35};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::ValueId;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen3next",
    hf_model_types: &["qwen3_next"],
    hf_names: qwen35::HF_NAMES,
    gguf_names: qwen35::GGUF_NAMES,
    ignored: qwen35::IGNORED,
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The keys that the model reads: its rotary embedding takes a part of each head.
const KEYS: HfKeys =
    HfKeys { rope: HfRopeKeys { partial: Some(0.25), ..HfRopeKeys::COMMON }, ..HfKeys::COMMON };

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let experts = hf_gated(s, s.bool("norm_topk_prob")?)?;
    let config = qwen35::hybrid_from_hf(s, &KEYS)?;
    with_hf_sparse_layers(config, s, experts)?.checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    with_gguf_gated(qwen35::hybrid_from_gguf(s)?, s, true)?.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    qwen35::hybrid(m, false)
}
