//! phimoe: Phi 3.5 MoE. Two experts per row, selected one after another, LayerNorm, and biases of attention and head.
//!
//! Abdin et al., 2024 (Phi-3 technical report); routing: Liu et al., 2024 (arXiv:2409.12136). GGUF files are run as the
//! model was trained: neither norms nor routing are those of an approximation.

use super::experts::{gguf_counts, hf_counts};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, HfWindow, hf_bias, window_or_none};
use crate::architectures::loader::Bias;
use crate::architectures::rope::{HfRopeKeys, RopeScaling, parameters_from_hf};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, Scoring, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "phimoe",
    hf_model_types: &["phimoe"],
    hf_names: &[
        ("router", "model.layers.{}.block_sparse_moe.gate"),
        ("expert.w_gate", "model.layers.{}.block_sparse_moe.experts.{e}.w1"),
        ("expert.w_up", "model.layers.{}.block_sparse_moe.experts.{e}.w3"),
        ("expert.w_down", "model.layers.{}.block_sparse_moe.experts.{e}.w2"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// Half of the margin within which scores are near each other, where the file does not say it.
const JITTER: f32 = 0.01;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { theta: ("rope_theta", 1e6), ..HfRopeKeys::COMMON };
    let mut config = Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?;
    let scaling = &mut config.ropes[0].scaling;
    if *scaling != RopeScaling::None {
        let parameters = parameters_from_hf(s)?.unwrap_or_else(|| s.clone());
        let [short, long] = ["short_mscale", "long_mscale"].map(|key| parameters.f32(key));
        let (short, long) = (short?, long?);
        let RopeScaling::LongRope { attention_factor, .. } = scaling else {
            return Err(s.unsupported("rotary scaling other than `longrope`"));
        };
        if short != long {
            return Err(s.unsupported("a `short_mscale` other than the `long_mscale`"));
        }
        *attention_factor = short;
    }
    let window = HfWindow::optional(s)?.of_every_layer(s)?;
    let attn_bias = hf_bias(s, "attention_bias")?;
    // The head has a bias where the file holds one.
    s.pass_over("lm_head_bias");
    s.pass_over("input_jitter_noise");
    let jitter = s.f32("router_jitter_noise")?;
    let counts = hf_counts(s)?;
    if counts.0 == 0 || counts.1 != 2 {
        return Err(s.unsupported("other than two experts per token"));
    }
    let config = Config { attn_bias, ..config }.with_windows(|_| window);
    with_experts(config, counts, jitter).checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    let config = Config::from_gguf(s, NormKind::Rms)?.with_windows(|_| window);
    match gguf_counts(s)? {
        Some(counts) if counts.1 == 2 => with_experts(config, counts, JITTER).checked_gguf(s),
        _ => {
            Err(s.unsupported("an `expert_count` of none, or an `expert_used_count` other than 2,"))
        }
    }
}

fn with_experts(config: Config, counts: (usize, usize), jitter: f32) -> Config {
    let scoring = Scoring::SparseMixer { margin: 2.0 * jitter };
    config.with_layers(|_, layer| {
        let experts = Experts::softmax(counts, layer.hidden_dim, false);
        layer.experts = Some(Experts { scoring, ..experts });
    })
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.layer_norm(x, (l, "attn_norm"))?;
        let [q, k, v] = m.qkv(h, l, c.attn_bias)?;
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, c.attn_bias)?;
        x = m.graph.add(x, o);

        let h = m.layer_norm(x, (l, "ffn_norm"))?;
        let f = m.ffn(h, l, Bias::None)?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.layer_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::IfPresent)
}
