//! internlm2: InternLM 2 and 2.5. The llama shape with different tensor names and one stacked matrix, in
//! which the query heads of each key-value head precede its key and value.
//!
//! Cai et al., 2024 (arXiv:2403.17297). GGUF files store Q, K and V apart, the rows of Q and K permuted as
//! llama's are.

use super::llama::decoder_of;
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, RopeStyle, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "internlm2",
    hf_model_types: &["internlm2"],
    hf_names: &[
        ("tok_embed", "model.tok_embeddings"),
        ("lm_head", "output"),
        ("attn_norm", "model.layers.{}.attention_norm"),
        ("wqkv", "model.layers.{}.attention.wqkv"),
        ("wo", "model.layers.{}.attention.wo"),
        ("ffn_norm", "model.layers.{}.ffn_norm"),
        ("w_gate", "model.layers.{}.feed_forward.w1"),
        ("w_up", "model.layers.{}.feed_forward.w3"),
        ("w_down", "model.layers.{}.feed_forward.w2"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let s = &s.with_defaults([("max_position_embeddings", json!(2048))]);
    let attn_bias = hf_bias(s, "bias")?;
    Ok(Config { attn_bias, ..Config::from_hf(s, &HfKeys::COMMON)? })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    Config::from_gguf(s, NormKind::Rms)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let is_hf = m.weights.is_hf();
    if !is_hf {
        m.rope_style = RopeStyle::Interleaved;
    }
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    decoder_of(m, tok_embed, x, c.ffn_bias, |m, h, l| {
        let [q, k, v] =
            if is_hf { m.grouped_qkv(h, l, c.attn_bias)? } else { m.qkv(h, l, c.attn_bias)? };
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        m.wo(a, l, c.attn_bias)
    })
}
