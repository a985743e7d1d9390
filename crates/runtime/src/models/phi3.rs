//! phi3: Phi 3, 3.5 and 4. The llama shape with stacked QKV and gate+up
//! matrices, and LongRoPE in the long-context models.
//!
//! Abdin et al., 2024 (Phi-3 technical report).

use super::{Architecture, Build};
use crate::Error;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::config::{Config, window_or_none};
use crate::graph::ValueId;
use crate::weights::Bias;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    hf_model_types: &["phi3"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let window = window_or_none(s.opt_usize("sliding_window")?);
    Config::from_hf(s)?.with_hf_layer_types(s, window, |_| true)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    Ok(Config::from_gguf(s)?.with_windows(|_| window))
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    let rope = m.rope_table(&c.rope)?;
    for l in 0..c.n_layers {
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let [q, k, v] = m.qkv(h, l, Bias::None)?;
        let (q, k) = (m.rope(q, rope), m.rope(k, rope));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, Bias::None)?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = m.gated_ffn(h, l, Bias::None)?;
        x = m.graph.add(x, f);
    }
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
