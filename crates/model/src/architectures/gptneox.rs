//! gptneox: GPT-NeoX, Pythia and Dolly. LayerNorm, biases everywhere, a rotary embedding on part of each
//! head, and a feed-forward network parallel to attention, with its own norm.
//!
//! Black et al., 2022 (arXiv:2204.06745). Safetensors files store Q, K and V of each head together.

use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Activation, NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gptneox",
    hf_model_types: &["gpt_neox"],
    hf_names: &[
        ("tok_embed", "gpt_neox.embed_in"),
        ("final_norm", "gpt_neox.final_layer_norm"),
        ("lm_head", "embed_out"),
        ("attn_norm", "gpt_neox.layers.{}.input_layernorm"),
        ("wqkv", "gpt_neox.layers.{}.attention.query_key_value"),
        ("wo", "gpt_neox.layers.{}.attention.dense"),
        ("ffn_norm", "gpt_neox.layers.{}.post_attention_layernorm"),
        ("w_up", "gpt_neox.layers.{}.mlp.dense_h_to_4h"),
        ("w_down", "gpt_neox.layers.{}.mlp.dense_4h_to_h"),
    ],
    gguf_names: &[],
    // Causal masks that early checkpoints carry.
    ignored: &["rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys {
        theta: ("rotary_emb_base", 10_000.0),
        partial: Some(0.25),
        partial_key: "rotary_pct",
        ..HfRopeKeys::COMMON
    };
    let has_bias = s.bool("attention_bias")?;
    Ok(Config {
        norm_eps: s.f32("layer_norm_eps")?,
        attn_bias: if has_bias { Bias::Required } else { Bias::Denied("attention_bias") },
        parallel_residual: s.bool("use_parallel_residual")?,
        ..Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?
    })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Layer)?;
    let parallel_residual = s.bool_or("use_parallel_residual", true)?;
    Ok(Config { parallel_residual, activation: Activation::Gelu, ..config })
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.layer_norm(x, (l, "attn_norm"))?;
        let [q, k, v] = if m.weights.is_hf() {
            m.grouped_qkv(h, l, c.attn_bias)?
        } else {
            m.qkv(h, l, c.attn_bias)?
        };
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, c.attn_bias)?;
        let after = m.graph.add(x, o);

        let h = m.layer_norm(if c.parallel_residual { x } else { after }, (l, "ffn_norm"))?;
        let f = m.plain_ffn(h, l, Bias::Required)?;
        x = m.graph.add(after, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.layer_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
