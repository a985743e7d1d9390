//! hunyuan-dense: the dense models of Hunyuan. The llama shape with norms on every head of Q and K after
//! their rotation.
//!
//! Tencent Hunyuan team, 2025 (Hunyuan dense models).

use super::llama::decoder_of;
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "hunyuan-dense",
    hf_model_types: &["hunyuan_v1_dense"],
    hf_names: &[
        ("q_norm", "model.layers.{}.self_attn.query_layernorm"),
        ("k_norm", "model.layers.{}.self_attn.key_layernorm"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    // Files name what every model of the class has.
    s.pass_over("use_qk_norm");
    if s.opt_usize("num_experts")?.is_some_and(|n| n > 1) {
        return Err(s.unsupported("experts in a dense model of Hunyuan (`num_experts`)"));
    }
    if s.bool_or("use_cla", false)? {
        return Err(s.unsupported("cross-layer attention (`use_cla`)"));
    }
    let rope = HfRopeKeys { ntk_alpha: true, ..HfRopeKeys::COMMON };
    let attn_bias = hf_bias(s, "attention_bias")?;
    Ok(Config { attn_bias, ..Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })? })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    Config::from_gguf(s, NormKind::Rms)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    decoder_of(m, tok_embed, x, c.ffn_bias, |m, h, l| {
        let [q, k, v] = m.qkv(h, l, c.attn_bias)?;
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let (q, k) = (m.head_norm(q, (l, "q_norm"))?, m.head_norm(k, (l, "k_norm"))?);
        let a = m.graph.attention(q, k, v, &c.attention(l));
        m.wo(a, l, c.attn_bias)
    })
}
