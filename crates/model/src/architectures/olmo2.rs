//! olmo2: OLMo 2 and 3. The llama shape with its norms after attention and feed-forward network instead of
//! before, and one norm each over all heads of Q and of K. OLMo 3 has a sliding window on three of four
//! layers, whose rotary embeddings are never scaled.
//!
//! OLMo Team, 2024 ("2 OLMo 2 Furious"); Team Olmo, 2025 (Olmo 3). GGUF files of both call themselves olmo2.

use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, HfWindow, hf_bias, window_or_none};
use crate::architectures::loader::Bias;
use crate::architectures::rope::{HfRopeKeys, Rope, RopeScaling};
use crate::checkpoint::names::NameTable;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "olmo2",
    hf_model_types: &["olmo2", "olmo3"],
    hf_names: HF_NAMES,
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The norms of a layer that has none before attention and feed-forward network.
pub(super) const HF_NAMES: NameTable = &[
    ("post_attn_norm", "model.layers.{}.post_attention_layernorm"),
    ("post_ffn_norm", "model.layers.{}.post_feedforward_layernorm"),
];

/// Of so many layers, the last sees everything.
const PERIOD: usize = 4;

/// Base of the angles of OLMo 3, where the file does not say it.
const THETA: f32 = 500_000.0;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let attn_bias = hf_bias(s, "attention_bias")?;
    if s.str("model_type")? == "olmo3" {
        return Ok(Config { attn_bias, ..olmo3_from_hf(s)? });
    }
    Ok(Config { attn_bias, ..Config::from_hf(s, &HfKeys::COMMON)? })
}

fn olmo3_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let keys = |ty| HfRopeKeys {
        layer_type: Some(ty),
        theta: ("rope_theta", THETA),
        ..HfRopeKeys::COMMON
    };
    let global = keys("full_attention");
    let config = Config::from_hf(s, &HfKeys { rope: global, ..HfKeys::COMMON })?;
    let named = s.opt_f32("rope_theta")?.is_some_and(|theta| theta != THETA);
    if named && !s.has("rope_parameters") {
        // transformers takes it for one layer type and its own default for the other.
        return Err(s.wrong("rope_theta", "500000, or `rope_parameters` by layer type"));
    }
    let (head_dim, max_seq_len) = (config.layers[0].head_dim, config.max_seq_len);
    let local = Rope::from_hf(s, &keys("sliding_attention"), head_dim, max_seq_len)?;
    let config = config.with_hf_layer_types(s, HfWindow::needed(s)?, |l| (l + 1) % PERIOD != 0)?;
    Ok(with_local_rope(config, local))
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    let Some(window) = window else { return Ok(config) };
    let slides = s.sliding_layers(config.layers.len(), PERIOD)?;
    let own = &config.ropes[0];
    let theta = s.opt_f32("rope.freq_base_swa")?.unwrap_or(own.theta);
    let local = Rope { theta, scaling: RopeScaling::None, ..own.clone() };
    Ok(with_local_rope(config.with_windows(|l| slides[l].then_some(window)), local))
}

/// Gives layers with a window a rotary embedding of their own.
fn with_local_rope(mut config: Config, local: Rope) -> Config {
    config.ropes.push(local);
    config.with_layers(|_, layer| layer.rope = Some(usize::from(layer.window.is_some())))
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
    decoder(m, whole_norm)
}

/// The decoder, with `norm(m, x, l, leaf)` for the norms of queries and keys.
pub(super) fn decoder(
    m: &mut Build<'_>,
    norm: impl Fn(&mut Build<'_>, ValueId, usize, &'static str) -> Result<ValueId, Error>,
) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let [q, k, v] = m.qkv(x, l, c.attn_bias)?;
        let (q, k) = (norm(m, q, l, "q_norm")?, norm(m, k, l, "k_norm")?);
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
