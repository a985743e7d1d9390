//! phi2: Phi 1, 1.5 and 2. LayerNorm, biases everywhere, a rotary embedding on part of each head,
//! and parallel attention and feed-forward network.
//!
//! Li et al., 2023 ("Textbooks Are All You Need II").

use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Activation, NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "phi2",
    hf_model_types: &["phi"],
    hf_names: &[
        ("final_norm", "model.final_layernorm"),
        ("q_norm", "model.layers.{}.self_attn.q_layernorm"),
        ("k_norm", "model.layers.{}.self_attn.k_layernorm"),
        ("wo", "model.layers.{}.self_attn.dense"),
        ("w_up", "model.layers.{}.mlp.fc1"),
        ("w_down", "model.layers.{}.mlp.fc2"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { partial: Some(0.5), ..HfRopeKeys::COMMON };
    let qk_norm = s.bool("qk_layernorm")?;
    let norm_eps = s.f32("layer_norm_eps")?;
    Ok(Config { norm_eps, qk_norm, ..Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })? })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Layer)?;
    Ok(Config { activation: Activation::GeluTanh, ..config })
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.layer_norm(x, (l, "attn_norm"))?;
        let [mut q, mut k, v] = m.qkv(h, l, Bias::Required)?;
        if c.qk_norm {
            q = m.head_layer_norm(q, (l, "q_norm"))?;
            k = m.head_layer_norm(k, (l, "k_norm"))?;
        }
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, Bias::Required)?;
        let f = m.plain_ffn(h, l, Bias::Required)?;
        x = m.graph.add(x, o);
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.layer_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::Required)
}
