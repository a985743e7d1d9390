//! olmo: OLMo, the first generation. The llama shape with LayerNorm without weight or bias, and
//! clamped queries, keys and values.
//!
//! Groeneveld et al., 2024 (arXiv:2402.00838). GGUF files store Q and K with their
//! rows permuted, as llama's do.

use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::weights::NormWeights;
use crate::graph::{NormKind, RopeStyle, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "olmo",
    hf_model_types: &["olmo"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    Ok(Config {
        // config.json has no key for what is added to the variance.
        norm_eps: 1e-5,
        qkv_limit: s.opt_f32("clip_qkv")?,
        attn_bias: hf_bias(s, "attention_bias")?,
        ..Config::from_hf(s, &HfKeys::COMMON)?
    })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    // Zero stands for no limit.
    let limit = s.opt_f32("attention.clamp_kqv")?.filter(|&limit| limit != 0.0);
    Ok(Config { qkv_limit: limit, ..Config::from_gguf(s, NormKind::Layer)? })
}

/// LayerNorm over `dim` columns, with nothing learned.
fn plain_norm(m: &mut Build<'_>, x: ValueId) -> ValueId {
    let weights = NormWeights { weight: None, bias: None, len: m.config.dim };
    m.graph.norm(x, NormKind::Layer, &weights, m.config.norm_eps)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    if !m.weights.is_hf() {
        m.rope_style = RopeStyle::Interleaved;
    }
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = plain_norm(m, x);
        let qkv = m.qkv(h, l, c.attn_bias)?;
        let [q, k, v] = qkv.map(|part| m.graph.clamp(part, c.qkv_limit));
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, c.attn_bias)?;
        x = m.graph.add(x, o);

        let h = plain_norm(m, x);
        let f = m.gated_ffn(h, l, c.ffn_bias)?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = plain_norm(m, x);
    m.lm_head(h, tok_embed, Bias::None)
}
