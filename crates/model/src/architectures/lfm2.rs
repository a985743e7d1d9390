//! lfm2: most layers are gated convolutions over three positions, the others are attention with norms
//! on the heads of Q and K.
//!
//! Liquid AI, 2025 (LFM2). An operator is normalized before, and so is the llama feed-forward after it.

use super::llama::{Shape, attention, decoder_of};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, Recurrent, hf_layer_types};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::names::NameTable;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "lfm2",
    hf_model_types: &["lfm2"],
    hf_names: HF_NAMES,
    gguf_names: GGUF_NAMES,
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The names in safetensors files, those of experts included.
pub(super) const HF_NAMES: NameTable = &[
    ("final_norm", "model.embedding_norm"),
    ("attn_norm", "model.layers.{}.operator_norm"),
    ("ffn_norm", "model.layers.{}.ffn_norm"),
    ("wo", "model.layers.{}.self_attn.out_proj"),
    ("q_norm", "model.layers.{}.self_attn.q_layernorm"),
    ("k_norm", "model.layers.{}.self_attn.k_layernorm"),
    ("conv_in", "model.layers.{}.conv.in_proj"),
    ("conv", "model.layers.{}.conv.conv"),
    ("conv_out", "model.layers.{}.conv.out_proj"),
    ("w_gate", "model.layers.{}.feed_forward.w1"),
    ("w_up", "model.layers.{}.feed_forward.w3"),
    ("w_down", "model.layers.{}.feed_forward.w2"),
    ("router", "model.layers.{}.feed_forward.gate"),
    ("choice_bias", "model.layers.{}.feed_forward.expert_bias"),
    ("experts.w_gate_up", "model.layers.{}.feed_forward.experts.gate_up_proj"),
    ("experts.w_down", "model.layers.{}.feed_forward.experts.down_proj"),
    ("expert.w_gate", "model.layers.{}.feed_forward.experts.{e}.w1"),
    ("expert.w_up", "model.layers.{}.feed_forward.experts.{e}.w3"),
    ("expert.w_down", "model.layers.{}.feed_forward.experts.{e}.w2"),
];

/// The names in GGUF files.
pub(super) const GGUF_NAMES: NameTable = &[
    ("final_norm", "token_embd_norm"),
    ("conv_in", "blk.{}.shortconv.in_proj"),
    ("conv", "blk.{}.shortconv.conv"),
    ("conv_out", "blk.{}.shortconv.out_proj"),
];

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let config = layers_from_hf(s)?;
    // An older spelling, which goes before the other.
    let mut hidden_dim = s.usize_or("block_ff_dim", s.usize("intermediate_size")?)?;
    if s.bool("block_auto_adjust_ff_dim")? {
        let multiplier = s.f32("block_ffn_dim_multiplier")?;
        let multiple = s.usize("block_multiple_of")?;
        if multiple == 0 {
            return Err(s.wrong("block_multiple_of", "a positive number"));
        }
        let adjusted = f64::from(multiplier) * (2 * hidden_dim / 3) as f64;
        hidden_dim = (adjusted as usize).next_multiple_of(multiple);
    }
    Ok(config.with_layers(|_, layer| layer.hidden_dim = hidden_dim))
}

/// The settings of all but the feed-forward networks.
pub(super) fn layers_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let mut s = s.with_value("rms_norm_eps", json!(s.f32("norm_eps")?));
    // An older spelling, which goes before the other.
    if !s.is_absent("tie_embedding") {
        if s.is_null("tie_embedding") {
            return Err(s.wrong("tie_embedding", "true or false"));
        }
        s = s.with_value("tie_word_embeddings", json!(s.bool("tie_embedding")?));
    }
    let s = &s;
    if s.bool("conv_bias")? {
        return Err(s.unsupported("biases of convolutions (`conv_bias`)"));
    }
    let rope = HfRopeKeys { theta: ("rope_theta", 1e6), ..HfRopeKeys::COMMON };
    // Files name an activation that their classes do not read.
    s.pass_over("hidden_act");
    let config = Config::from_hf(s, &HfKeys { activation: None, rope })?;
    let n_taps = s.usize("conv_L_cache")?;
    if n_taps < 2 {
        return Err(s.unsupported("convolutions over one position (`conv_L_cache`)"));
    }
    let types = [("conv", false), ("full_attention", true)];
    let attends = match hf_layer_types(s, config.layers.len(), &types)? {
        Some(attends) => attends,
        None => match s.opt_usizes("full_attn_idxs")? {
            Some(idxs) => (0..config.layers.len()).map(|l| idxs.contains(&l)).collect(),
            None => vec![true; config.layers.len()],
        },
    };
    Ok(with_convolutions(config, n_taps, |l| attends[l]))
}

pub(super) fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    if s.opt_usize("attention.sliding_window")?.is_some_and(|window| window > 0) {
        return Err(s.unsupported("a sliding window"));
    }
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let n_taps = s.usize("shortconv.l_cache")?;
    if n_taps < 2 {
        return Err(s.unsupported("convolutions over one position (`shortconv.l_cache`)"));
    }
    let heads = s.opt_per_layer("attention.head_count_kv", config.layers.len())?;
    Ok(with_convolutions(config, n_taps, |l| heads.as_ref().is_none_or(|heads| heads[l] > 0)))
}

fn with_convolutions(config: Config, n_taps: usize, attends: impl Fn(usize) -> bool) -> Config {
    let conv = Recurrent::ShortConv { n_taps };
    config.with_layers(|l, layer| layer.recurrent = (!attends(l)).then_some(conv))
}

pub(super) fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape =
        Shape { qkv_bias: Bias::None, wo_bias: Bias::None, ffn_bias: Bias::None, qk_norm: true };
    decoder_of(m, tok_embed, x, shape.ffn_bias, |m, h, l| match c.layers[l].recurrent {
        Some(Recurrent::ShortConv { n_taps }) => gated_conv(m, h, l, n_taps),
        _ => attention(m, h, l, shape),
    })
}

/// `conv_out(c * conv(b * x))`, with b, c and x from one stacked matrix.
fn gated_conv(m: &mut Build<'_>, h: ValueId, l: usize, n_taps: usize) -> Result<ValueId, Error> {
    let dim = m.config.dim;
    let parts = [("conv_b", dim), ("conv_c", dim), ("conv_x", dim)];
    let linears = m.weights.stacked_linears((l, "conv_in"), parts, dim, Bias::None)?;
    let [b, c, x] = linears.map(|linear| m.graph.linear(h, &linear));
    let bx = m.graph.mul(b, x);
    let taps = m.weights.taps((l, "conv"), dim, n_taps)?;
    let y = m.graph.short_conv(bx, (taps, n_taps), None, None);
    let y = m.graph.mul(c, y);
    m.linear(y, (l, "conv_out"), (dim, dim), Bias::None)
}
