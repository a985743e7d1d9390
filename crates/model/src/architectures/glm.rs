//! chatglm: GLM-4-9B and its relatives, `glm` in transformers. The llama shape with a rotary embedding on
//! half of each head, and biases on Q, K and V.
//!
//! Team GLM, 2024 (ChatGLM, arXiv:2406.12793). Rotated columns are neighbours in files of both formats.

use super::llama::{Shape, decoder};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, RopeStyle, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "chatglm",
    hf_model_types: &["glm"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

pub(super) fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { partial: Some(0.5), ..HfRopeKeys::COMMON };
    let attn_bias = hf_bias(s, "attention_bias")?;
    Ok(Config { attn_bias, ..Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })? })
}

pub(super) fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    Config::from_gguf(s, NormKind::Rms)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    m.rope_style = RopeStyle::Interleaved;
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape { wo_bias: Bias::None, ..Shape::of(m.config) };
    decoder(m, tok_embed, x, shape)
}
