//! olmo2: OLMo 2. The llama shape with its norms after attention and feed-forward
//! instead of before, and one norm each over all heads of Q and of K.
//!
//! OLMo Team, 2024 ("2 OLMo 2 Furious").

use super::{Architecture, Build, qwen2};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::checkpoint::HfSettings;
use crate::graph::{NormKind, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "olmo2",
    hf_model_types: &["olmo2"],
    hf_names: &[
        ("post_attn_norm", "model.layers.{}.post_attention_layernorm"),
        ("post_ffn_norm", "model.layers.{}.post_feedforward_layernorm"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    // The file of an OLMo 3 calls itself olmo2 and has a window.
    config_from_gguf: qwen2::config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let s =
        &s.with_defaults([("rms_norm_eps", json!(1e-5)), ("max_position_embeddings", json!(2048))]);
    let attn_bias = hf_bias(s, "attention_bias")?;
    Ok(Config { attn_bias, ..Config::from_hf(s, &HfKeys::COMMON)? })
}

/// RMSNorm over all columns of the queries or the keys, not head by head.
fn whole_norm(
    m: &mut Build<'_>,
    x: ValueId,
    l: usize,
    leaf: &'static str,
) -> Result<ValueId, Error> {
    let layer = &m.config.layers[l];
    let len = if leaf == "q_norm" { layer.q_dim() } else { layer.kv_dim() };
    let weights = m.weights.norm((l, leaf), len, Bias::None)?;
    Ok(m.graph.norm(x, NormKind::Rms, &weights, m.config.norm_eps))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let [q, k, v] = m.qkv(x, l, c.attn_bias)?;
        let (q, k) = (whole_norm(m, q, l, "q_norm")?, whole_norm(m, k, l, "k_norm")?);
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, c.attn_bias)?;
        let o = m.rms_norm(o, (l, "post_attn_norm"))?;
        x = m.graph.add(x, o);

        let f = m.gated_ffn(x, l, c.ffn_bias)?;
        let f = m.rms_norm(f, (l, "post_ffn_norm"))?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
