//! stablelm: StableLM 3B, StableLM 2 and Stable Code. LayerNorm around a gated feed-forward network, and a
//! rotary embedding on a quarter of each head. The 12B model has separate norms for every head of Q and K,
//! and its feed-forward network parallel to attention.
//!
//! Bellagente et al., 2024 (Stable LM 2 1.6B, arXiv:2402.17834).

use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "stablelm",
    hf_model_types: &["stablelm"],
    hf_names: &[
        ("q_norm", "model.layers.{}.self_attn.q_layernorm"),
        ("k_norm", "model.layers.{}.self_attn.k_layernorm"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { partial: Some(0.25), ..HfRopeKeys::COMMON };
    Ok(Config {
        norm_eps: s.f32("layer_norm_eps")?,
        attn_bias: hf_bias(s, "use_qkv_bias")?,
        qk_norm: s.bool("qk_layernorm")?,
        parallel_residual: s.bool("use_parallel_residual")?,
        ..Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?
    })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Layer)?;
    let has = |name: &str| s.gguf().tensor_info(name).is_some();
    // What the file says of this is the converter's default for models that have a second norm.
    s.bool_or("use_parallel_residual", false)?;
    let parallel_residual = !has("blk.0.ffn_norm.weight");
    Ok(Config { parallel_residual, qk_norm: has("blk.0.attn_q_norm.weight"), ..config })
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.layer_norm(x, (l, "attn_norm"))?;
        let [mut q, mut k, v] = m.qkv(h, l, c.attn_bias)?;
        if c.qk_norm {
            (q, k) = (m.each_head_norm(q, (l, "q_norm"))?, m.each_head_norm(k, (l, "k_norm"))?);
        }
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, Bias::None)?;
        x = m.graph.add(x, o);

        let h = if c.parallel_residual { h } else { m.layer_norm(x, (l, "ffn_norm"))? };
        let f = m.gated_ffn(h, l, Bias::None)?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.layer_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
