//! qwen3: the llama shape with a norm on every head of Q and K, and heads whose
//! size is not `dim / n_heads`.
//!
//! Yang et al., 2025 (Qwen3 technical report).

use super::{Architecture, Build, qwen2};
use crate::Error;
use crate::graph::ValueId;
use crate::weights::Bias;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen3",
    hf_model_types: &["qwen3"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf: qwen2::config_from_hf,
    config_from_gguf: qwen2::config_from_gguf,
    forward,
};

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    let rope = m.rope_table(&c.rope)?;
    for l in 0..c.n_layers {
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let [q, k, v] = m.qkv(h, l, Bias::IfPresent)?;
        let (q, k) = (m.head_norm(q, (l, "q_norm"))?, m.head_norm(k, (l, "k_norm"))?);
        let (q, k) = (m.rope(q, rope), m.rope(k, rope));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, Bias::IfPresent)?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = m.gated_ffn(h, l, Bias::None)?;
        x = m.graph.add(x, f);
    }
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
