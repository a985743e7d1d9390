//! falcon: Falcon 7B, 40B, 180B and Falcon 2. LayerNorm, a plain feed-forward network parallel to attention, and
//! few key-value heads.
//!
//! Almazrouei et al., 2023 (arXiv:2311.16867). Safetensors files store the queries of each head of keys
//! before it and its values; of the larger models, attention and feed-forward network have norms of their own.

use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Activation, NormKind, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "falcon",
    hf_model_types: &["falcon"],
    hf_names: &[
        ("tok_embed", "transformer.word_embeddings"),
        ("final_norm", "transformer.ln_f"),
        ("attn_norm", "transformer.h.{}.input_layernorm"),
        ("ln_attn", "transformer.h.{}.ln_attn"),
        ("ln_mlp", "transformer.h.{}.ln_mlp"),
        ("ffn_norm", "transformer.h.{}.post_attention_layernorm"),
        ("wqkv", "transformer.h.{}.self_attention.query_key_value"),
        ("wo", "transformer.h.{}.self_attention.dense"),
        ("w_up", "transformer.h.{}.mlp.dense_h_to_4h"),
        ("w_down", "transformer.h.{}.mlp.dense_4h_to_h"),
    ],
    // With two norms, that of the feed-forward network has the usual name of the other.
    gguf_names: &[("ln_attn", "blk.{}.attn_norm_2"), ("ln_mlp", "blk.{}.attn_norm")],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    if s.bool("alibi")? {
        return Err(s.unsupported("ALiBi (`alibi`)"));
    }
    // An older spelling, which goes before the other.
    let dim = s.opt_usize("n_embed")?;
    let dim = dim.map_or_else(|| s.usize("hidden_size"), Ok)?;
    let n_heads = s.usize("num_attention_heads")?;
    let grouped = s.bool("new_decoder_architecture")?;
    let multi_query = s.bool("multi_query")?;
    let given = s.opt_usize("num_kv_heads")?;
    let n_kv_heads = match (grouped, multi_query) {
        (true, _) => given.unwrap_or(n_heads),
        (false, true) => 1,
        (false, false) => n_heads,
    };
    let hidden_dim = s.opt_usize("ffn_hidden_size")?.unwrap_or(dim.saturating_mul(4));
    let s = &s.with_value("hidden_size", json!(dim)).with_defaults([
        ("intermediate_size", json!(hidden_dim)),
        ("num_key_value_heads", json!(n_kv_heads)),
    ]);
    let bias = if s.bool("bias")? { Bias::Required } else { Bias::Denied("bias") };
    let keys = HfKeys { activation: Some("activation"), ..HfKeys::COMMON };
    // Which norms there are tells how many of them are before parallel networks.
    let n_norms = s.opt_usize("num_ln_in_parallel_attn")?.unwrap_or(2);
    if grouped && !(1..=2).contains(&n_norms) {
        return Err(s.wrong("num_ln_in_parallel_attn", "1 or 2"));
    }
    Ok(Config {
        norm_eps: s.f32("layer_norm_epsilon")?,
        attn_bias: bias,
        ffn_bias: bias,
        parallel_residual: s.bool("parallel_attn")?,
        ..Config::from_hf(s, &keys)?
    })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Layer)?;
    let bias = Bias::IfPresent;
    Ok(Config { activation: Activation::Gelu, parallel_residual: true, ffn_bias: bias, ..config })
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let two_norms = c.parallel_residual && m.weights.has((l, "ln_attn"));
        let h = m.layer_norm(x, (l, if two_norms { "ln_attn" } else { "attn_norm" }))?;
        let [q, k, v] = if m.weights.is_hf() {
            m.grouped_qkv(h, l, c.attn_bias)?
        } else {
            m.qkv(h, l, c.attn_bias)?
        };
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, c.attn_bias)?;
        let after = m.graph.add(x, o);

        let h = match (c.parallel_residual, two_norms) {
            (true, false) => h,
            (true, true) => m.layer_norm(x, (l, "ln_mlp"))?,
            (false, _) => m.layer_norm(after, (l, "ffn_norm"))?,
        };
        let f = m.plain_ffn(h, l, c.ffn_bias)?;
        x = m.graph.add(after, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.layer_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
