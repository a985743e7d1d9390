//! llama: Llama 1 to 3, TinyLlama, SmolLM2, Mistral and others of this shape.
//!
//! Touvron et al., 2023. GGUF files store Q and K with their rows permuted so
//! that rotated columns are neighbours.

use super::{Architecture, Build};
use crate::Error;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::config::{Config, window_or_none};
use crate::graph::{RopeStyle, ValueId};
use crate::weights::{Bias, Weight};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    hf_model_types: &["llama", "mistral"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    // Only Mistral has a window, on every layer.
    let window = match s.str("model_type")? {
        "mistral" => {
            s.with_defaults([("sliding_window", json!(4096))]).opt_usize("sliding_window")?
        }
        _ => None,
    };
    let window = window_or_none(window);
    Config::from_hf(s)?.with_hf_layer_types(s, window, |_| true)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    if s.opt_usize("expert_count")?.is_some_and(|n| n > 0) {
        return Err(s.unsupported("a mixture of experts (`llama.expert_count`)"));
    }
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    Ok(Config::from_gguf(s)?.with_windows(|_| window))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    if !m.weights.is_hf() {
        m.rope_style = RopeStyle::Interleaved;
    }
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape { qkv_bias: Bias::IfPresent, bias: Bias::IfPresent, qk_norm: false };
    decoder(m, tok_embed, x, shape)
}

/// What sets the decoders of this shape apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Whether Q, K and V have biases.
    pub(super) qkv_bias: Bias,
    /// Whether the other matrices have.
    pub(super) bias: Bias,
    /// Whether every head of Q and K is normalized.
    pub(super) qk_norm: bool,
}

/// The decoder from embedded tokens to logits.
pub(super) fn decoder(
    m: &mut Build<'_>,
    tok_embed: Weight,
    mut x: ValueId,
    shape: Shape,
) -> Result<ValueId, Error> {
    let c = m.config;
    let rope = m.rope_table(&c.rope)?;
    for l in 0..c.n_layers {
        m.graph.begin_layer(l);
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let [mut q, mut k, v] = m.qkv(h, l, shape.qkv_bias)?;
        if shape.qk_norm {
            (q, k) = (m.head_norm(q, (l, "q_norm"))?, m.head_norm(k, (l, "k_norm"))?);
        }
        let (q, k) = (m.rope(q, rope), m.rope(k, rope));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, shape.bias)?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = m.gated_ffn(h, l, shape.bias)?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
