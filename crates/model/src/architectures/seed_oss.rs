//! seed_oss: Seed-OSS. The llama shape with biases on Q, K and V only.
//!
//! ByteDance Seed, 2025 (Seed-OSS 36B).

use super::llama::{Shape, decoder};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "seed_oss",
    hf_model_types: &["seed_oss"],
    hf_names: &[],
    gguf_names: &[("ffn_norm", "blk.{}.post_attention_norm")],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    Ok(Config {
        attn_bias: hf_bias(s, "attention_bias")?,
        wo_bias: Some(hf_bias(s, "attention_out_bias")?),
        ffn_bias: hf_bias(s, "mlp_bias")?,
        ..Config::from_hf(s, &HfKeys::COMMON)?
    })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    Ok(Config { ffn_bias: Bias::IfPresent, ..Config::from_gguf(s, NormKind::Rms)? })
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape::of(m.config);
    decoder(m, tok_embed, x, shape)
}
