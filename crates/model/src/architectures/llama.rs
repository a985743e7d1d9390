//! llama: Llama 1 to 3, TinyLlama, SmolLM2, Mistral, Mixtral and others of this shape.
//!
//! Touvron et al., 2023; Mixtral's experts: Jiang et al., 2024 (arXiv:2401.04088). GGUF files store Q and K with their rows permuted so
//! that rotated columns are neighbours.

use super::experts::{gguf_counts, hf_counts};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, HfWindow, hf_bias, window_or_none};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::weights::Weight;
use crate::graph::{AttentionSpec, NormKind, RopeStyle, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    hf_model_types: &["llama", "mistral", "mixtral"],
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

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    match s.str("model_type")? {
        "mistral" => return mistral_from_hf(s),
        "mixtral" => return mixtral_from_hf(s),
        _ => {}
    }
    let (attn_bias, ffn_bias) = (hf_bias(s, "attention_bias")?, hf_bias(s, "mlp_bias")?);
    Ok(Config { attn_bias, ffn_bias, ..Config::from_hf(s, &HfKeys::COMMON)? })
}

/// Mistral has no biases, and a window on every layer but those that `layer_types` takes out:
/// transformers runs a file that has that list as its sibling Ministral.
fn mistral_from_hf(s: &HfSettings) -> Result<Config, Error> {
    Config::from_hf(s, &HfKeys::COMMON)?.with_hf_layer_types(s, HfWindow::optional(s)?, |_| true)
}

/// Mixtral has experts in every layer, whose factors are normalized. Its files have no window by
/// default, and one for every layer if they have one.
fn mixtral_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { theta: ("rope_theta", 1e6), ..HfRopeKeys::COMMON };
    let window = HfWindow::optional(s)?.of_every_layer(s)?;
    let config = Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?.with_windows(|_| window);
    let experts = Experts::softmax(hf_counts(s)?, s.usize("intermediate_size")?, true);
    if experts.n_experts == 0 {
        return Err(s.wrong("num_local_experts", "a number of experts"));
    }
    Ok(config.with_layers(|_, layer| layer.experts = Some(experts)))
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    let config = Config { ffn_bias: Bias::IfPresent, ..Config::from_gguf(s, NormKind::Rms)? };
    let counts = gguf_counts(s)?;
    let config = config.with_layers(|_, layer| {
        layer.experts = counts.map(|counts| Experts::softmax(counts, layer.hidden_dim, true));
    });
    Ok(config.with_windows(|_| window))
}

/// The decoder with biases as the settings say and what they multiply by; in GGUF files the rows of Q and
/// K are permuted.
pub(super) fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    if !m.weights.is_hf() {
        m.rope_style = RopeStyle::Interleaved;
    }
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, m.config.embed_scale);
    let shape = Shape::of(m.config);
    decoder(m, tok_embed, x, shape)
}

/// What sets the decoders of this shape apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Whether Q, K and V have biases.
    pub(super) qkv_bias: Bias,
    /// Whether the output projection of attention has one.
    pub(super) wo_bias: Bias,
    /// Whether the feed-forward network has biases.
    pub(super) ffn_bias: Bias,
    /// Whether every head of Q and K is normalized.
    pub(super) qk_norm: bool,
}

impl Shape {
    /// Biases as the settings say, and no norms of heads.
    pub(super) fn of(c: &Config) -> Self {
        let wo_bias = c.wo_bias.unwrap_or(c.attn_bias);
        Self { qkv_bias: c.attn_bias, wo_bias, ffn_bias: c.ffn_bias, qk_norm: false }
    }
}

/// The decoder from embedded tokens to logits.
pub(super) fn decoder(
    m: &mut Build<'_>,
    tok_embed: Weight,
    x: ValueId,
    shape: Shape,
) -> Result<ValueId, Error> {
    let attend = |m: &mut Build<'_>, h, l| attention(m, h, l, shape);
    decoder_of(m, tok_embed, x, shape.ffn_bias, attend)
}

/// As [`decoder`], with what mixes the normalized rows `h` of layer `l`, by `mix(m, h, l)`, in place of its
/// attention.
pub(super) fn decoder_of(
    m: &mut Build<'_>,
    tok_embed: Weight,
    mut x: ValueId,
    ffn_bias: Bias,
    mut mix: impl FnMut(&mut Build<'_>, ValueId, usize) -> Result<ValueId, Error>,
) -> Result<ValueId, Error> {
    m.rope_tables()?;
    for l in 0..m.config.layers.len() {
        m.graph.begin_layer(l);
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let o = mix(m, h, l)?;
        x = m.residual(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = m.ffn(h, l, ffn_bias)?;
        x = m.residual(x, f);
    }
    m.graph.end_layers();
    let rows = x;
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    let logits = m.lm_head(h, tok_embed, Bias::None)?;
    if m.has_predictor() {
        m.predictor((rows, x), tok_embed, ffn_bias, &mut mix)?;
    }
    Ok(logits)
}

/// The attention of layer `l` over normalized rows.
pub(super) fn attention(
    m: &mut Build<'_>,
    h: ValueId,
    l: usize,
    shape: Shape,
) -> Result<ValueId, Error> {
    let c = m.config;
    let [mut q, mut k, v] = m.qkv(h, l, shape.qkv_bias)?;
    if shape.qk_norm {
        (q, k) = (m.head_norm(q, (l, "q_norm"))?, m.head_norm(k, (l, "k_norm"))?);
    }
    let (q, k) = (m.rope(q, l), m.rope(k, l));
    let q = m.grown(q);
    let alibi = m.alibi(l);
    let a = m.graph.attention(q, k, v, &AttentionSpec { alibi, ..c.attention(l) });
    m.wo(a, l, shape.wo_bias)
}
