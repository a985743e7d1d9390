//! gptj: GPT-J. One LayerNorm before parallel attention and feed-forward network, a rotary embedding on the
//! first columns of each head, and a head with a bias.
//!
//! Wang and Komatsuzaki, 2021 (GPT-J-6B). Rotated columns are neighbours. No converter writes GGUF files of
//! it.

use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
use crate::architectures::loader::Bias;
use crate::architectures::rope::{Rope, RopeScaling};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{RopeStyle, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gptj",
    hf_model_types: &["gptj"],
    hf_names: &[
        ("tok_embed", "transformer.wte"),
        ("final_norm", "transformer.ln_f"),
        ("attn_norm", "transformer.h.{}.ln_1"),
        ("wq", "transformer.h.{}.attn.q_proj"),
        ("wk", "transformer.h.{}.attn.k_proj"),
        ("wv", "transformer.h.{}.attn.v_proj"),
        ("wo", "transformer.h.{}.attn.out_proj"),
        ("w_up", "transformer.h.{}.mlp.fc_in"),
        ("w_down", "transformer.h.{}.mlp.fc_out"),
    ],
    gguf_names: &[],
    // Causal masks that early checkpoints carry.
    ignored: &[".attn.bias", ".attn.masked_bias"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The base of the angles, which no setting changes.
const THETA: f32 = 10_000.0;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let dim = s.usize("n_embd")?;
    let s = &s.with_defaults([
        ("hidden_size", json!(dim)),
        ("num_attention_heads", json!(s.usize("n_head")?)),
        ("num_hidden_layers", json!(s.usize("n_layer")?)),
        ("intermediate_size", json!(s.opt_usize("n_inner")?.unwrap_or(dim.saturating_mul(4)))),
        ("max_position_embeddings", json!(s.usize("n_positions")?)),
    ]);
    let keys = HfKeys { activation: Some("activation_function"), ..HfKeys::COMMON };
    let config = Config { norm_eps: s.f32("layer_norm_epsilon")?, ..Config::from_hf(s, &keys)? };
    if s.has("rope_scaling") {
        return Err(s.unsupported("a scaling of the rotary embedding (`rope_scaling`)"));
    }
    let rotary_dim = s.usize("rotary_dim")?;
    if rotary_dim == 0 || rotary_dim > config.layers[0].head_dim || !rotary_dim.is_multiple_of(2) {
        return Err(s.wrong("rotary_dim", "an even part of a head"));
    }
    let rope = Rope { theta: THETA, rotary_dim, scaling: RopeScaling::None, sections: None };
    Ok(Config { ropes: vec![rope], ..config })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    Err(s.unsupported("GPT-J in a GGUF file"))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    m.rope_style = RopeStyle::Interleaved;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.layer_norm(x, (l, "attn_norm"))?;
        let [q, k, v] = m.qkv(h, l, Bias::None)?;
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, Bias::None)?;
        let f = m.plain_ffn(h, l, Bias::Required)?;
        x = m.graph.add(x, o);
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.layer_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::Required)
}
