//! qwen35: three of four layers are linear attention (gated delta rule) after a short convolution; the
//! others are attention with norms on the heads of Q and K, rotation of part of each head, and a gate on
//! the output.
//!
//! Qwen team, 2026 (Qwen3.5); Yang et al., 2024 (Gated Delta Networks, arXiv:2412.06464). GGUF files have
//! the value heads of one key head apart, transformers' as neighbours.

use super::llama::decoder_of;
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, Layer, Recurrent, hf_layer_types};
use crate::architectures::loader::{Bias, GroupedPart};
use crate::architectures::rope::{HfRopeKeys, Sections};
use crate::checkpoint::names::NameTable;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Activation, DeltaNetSpec, NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen35",
    hf_model_types: &["qwen3_5_text"],
    hf_names: HF_NAMES,
    gguf_names: GGUF_NAMES,
    ignored: IGNORED,
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The names in safetensors files that the architectures with these layers share.
pub(super) const HF_NAMES: NameTable = &[
    ("in_qkv", "model.layers.{}.linear_attn.in_proj_qkv"),
    ("in_z", "model.layers.{}.linear_attn.in_proj_z"),
    ("in_qkvz", "model.layers.{}.linear_attn.in_proj_qkvz"),
    ("in_a", "model.layers.{}.linear_attn.in_proj_a"),
    ("in_b", "model.layers.{}.linear_attn.in_proj_b"),
    ("in_ba", "model.layers.{}.linear_attn.in_proj_ba"),
    ("conv", "model.layers.{}.linear_attn.conv1d"),
    ("decay", "model.layers.{}.linear_attn.A_log"),
    ("dt", "model.layers.{}.linear_attn.dt_bias"),
    ("linear_norm", "model.layers.{}.linear_attn.norm"),
    ("linear_out", "model.layers.{}.linear_attn.out_proj"),
    ("nextn.join", "mtp.fc"),
    ("nextn.embed_norm", "mtp.pre_fc_norm_embedding"),
    ("nextn.hidden_norm", "mtp.pre_fc_norm_hidden"),
    ("nextn.norm", "mtp.norm"),
];

/// The names in GGUF files.
pub(super) const GGUF_NAMES: NameTable = &[
    ("ffn_norm", "blk.{}.post_attention_norm"),
    ("in_qkv", "blk.{}.attn_qkv"),
    ("in_z", "blk.{}.attn_gate"),
    ("in_qkvz", "blk.{}.ssm_in"),
    ("in_a", "blk.{}.ssm_alpha"),
    ("in_b", "blk.{}.ssm_beta"),
    ("in_ba", "blk.{}.ssm_ba"),
    ("conv", "blk.{}.ssm_conv1d"),
    ("decay", "blk.{}.ssm_a"),
    ("dt", "blk.{}.ssm_dt"),
    ("linear_norm", "blk.{}.ssm_norm"),
    ("linear_out", "blk.{}.ssm_out"),
];

/// What is not needed: the layers that predict further tokens among them.
pub(super) const IGNORED: &[&str] = &["rotary_emb.inv_freq", "mtp."];

/// The keys that the model reads: its rotary embedding takes a part of each head, and angles of
/// positions with three components.
pub(super) const KEYS: HfKeys = HfKeys { rope: ROPE, ..HfKeys::COMMON };

const ROPE: HfRopeKeys = HfRopeKeys {
    partial: Some(0.25),
    sections: Some(Sections { sizes: [11, 11, 10], interleaved: true }),
    ..HfRopeKeys::COMMON
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    hybrid_from_hf(s, &KEYS)
}

/// The settings of a decoder with these two kinds of layers.
pub(super) fn hybrid_from_hf(s: &HfSettings, keys: &HfKeys) -> Result<Config, Error> {
    let config = Config::from_hf(s, keys)?;
    let net = Recurrent::DeltaNet {
        n_k_heads: s.usize("linear_num_key_heads")?,
        n_v_heads: s.usize("linear_num_value_heads")?,
        k_dim: s.usize("linear_key_head_dim")?,
        v_dim: s.usize("linear_value_head_dim")?,
        n_taps: s.usize("linear_conv_kernel_dim")?,
    };
    check(net).map_err(|reason| s.unsupported(reason))?;
    if s.bool("attention_bias")? {
        return Err(s.unsupported("biases of attention (`attention_bias`)"));
    }
    let types = [("linear_attention", true), ("full_attention", false)];
    let linear = match hf_layer_types(s, config.layers.len(), &types)? {
        Some(linear) => linear,
        None => {
            let interval = s.usize_or("full_attention_interval", 4)?.max(1);
            (1..=config.layers.len()).map(|l| !l.is_multiple_of(interval)).collect()
        }
    };
    // Files that do not say have the tensors or not.
    let n_predictors = s.usize_or("mtp_num_hidden_layers", 1)?;
    s.pass_over("mtp_use_dedicated_embeddings");
    let config = config.with_layers(|l, layer| {
        layer.recurrent = linear[l].then_some(net);
    });
    Ok(Config { n_predictors: 0, ..config.with_predictors(n_predictors) })
}

pub(super) fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let mut config = hybrid_from_gguf(s)?;
    for rope in &mut config.ropes {
        rope.sections = Sections::from_gguf(s, true, rope.rotary_dim / 2)?;
    }
    Ok(config)
}

/// The settings of a decoder with these two kinds of layers, whose positions have one component.
pub(super) fn hybrid_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let (k_dim, n_v_heads) = (s.usize("ssm.state_size")?, s.usize("ssm.time_step_rank")?);
    let net = Recurrent::DeltaNet {
        n_k_heads: s.usize("ssm.group_count")?,
        n_v_heads,
        k_dim,
        v_dim: s.usize("ssm.inner_size")?.checked_div(n_v_heads).unwrap_or(0),
        n_taps: s.usize("ssm.conv_kernel")?,
    };
    check(net).map_err(|reason| {
        const KEYS: &str =
            "`ssm.group_count`, `ssm.time_step_rank`, `ssm.state_size`, `ssm.inner_size`, `ssm.conv_kernel`";
        s.unsupported(format!("{reason} ({KEYS})"))
    })?;
    let interval = s.opt_usize("full_attention_interval")?.unwrap_or(4).max(1);
    let linear = s.opt_bools("attention.recurrent_layers", config.layers.len())?;
    let config = config.with_layers(|l, layer| {
        let by_interval = !(l + 1).is_multiple_of(interval);
        let is_linear = linear.as_ref().map_or(by_interval, |linear| linear[l]);
        layer.recurrent = is_linear.then_some(net);
    });
    let config = config.without_gguf_predictors(s)?;
    // That layer attends, whatever its place.
    let predictor = config.predictor.map(|layer| Layer { recurrent: None, ..layer });
    Ok(Config { predictor, ..config })
}

/// Why a linear attention of these sizes cannot be.
fn check(net: Recurrent) -> Result<(), String> {
    let Recurrent::DeltaNet { n_k_heads, n_v_heads, k_dim, v_dim, n_taps } = net else {
        return Ok(());
    };
    let sizes = [n_k_heads, n_v_heads, k_dim, v_dim, n_taps];
    // No published model comes near this; a file that does is damaged.
    if sizes.iter().any(|&n| n == 0 || n > 1 << 12) || n_taps == 1 {
        return Err(format!("linear attention of sizes {sizes:?}"));
    }
    if !n_v_heads.is_multiple_of(n_k_heads) || !v_dim.is_multiple_of(8) {
        return Err(format!(
            "linear attention of {n_v_heads} heads of {v_dim} values for {n_k_heads} heads of keys"
        ));
    }
    Ok(())
}

pub(super) fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let tiled = !m.weights.is_hf();
    hybrid(m, tiled)
}

/// The decoder; `tiled` says which order the heads of values are in, as [`DeltaNetSpec::tiled`].
pub(super) fn hybrid(m: &mut Build<'_>, tiled: bool) -> Result<ValueId, Error> {
    if m.weights.is_hf() {
        m.weights.norms_are_offsets();
    }
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    // The layer that predicts further tokens has one more place than the model's own.
    m.weights.rename_layer(m.config.layers.len(), "mtp.layers.0.");
    decoder_of(m, tok_embed, x, Bias::None, |m, h, l| match m.config.layers[l].recurrent {
        Some(Recurrent::DeltaNet { n_k_heads, n_v_heads, k_dim, v_dim, n_taps }) => {
            linear_attention(m, h, l, tiled, [n_k_heads, n_v_heads, k_dim, v_dim, n_taps])
        }
        _ => gated_attention(m, h, l),
    })
}

/// Attention whose output is multiplied by the sigmoid of a gate, which comes with the queries.
fn gated_attention(m: &mut Build<'_>, h: ValueId, l: usize) -> Result<ValueId, Error> {
    let c = m.config;
    let layer = c.layers[l];
    let parts = [("wq", layer.head_dim), ("attn_gate", layer.head_dim)];
    let [q, gate] =
        m.weights.linears_in_turns((l, "wq"), parts, layer.n_heads, c.dim, Bias::None)?;
    let (q, gate) = (m.graph.linear(h, &q), m.graph.linear(h, &gate));
    let k = m.linear(h, (l, "wk"), (layer.kv_dim(), c.dim), Bias::None)?;
    let v = m.linear(h, (l, "wv"), (layer.kv_dim(), c.dim), Bias::None)?;
    let (q, k) = (m.head_norm(q, (l, "q_norm"))?, m.head_norm(k, (l, "k_norm"))?);
    let (q, k) = (m.rope(q, l), m.rope(k, l));
    let a = m.graph.attention(q, k, v, &c.attention(l));
    let a = m.graph.gated_act(gate, a, Activation::Sigmoid);
    m.wo(a, l, Bias::None)
}

/// The gated delta rule over convolved queries, keys and values; its heads are normalized and gated.
fn linear_attention(
    m: &mut Build<'_>,
    h: ValueId,
    l: usize,
    tiled: bool,
    [n_k_heads, n_v_heads, k_dim, v_dim, n_taps]: [usize; 5],
) -> Result<ValueId, Error> {
    let c = m.config;
    let (key_dim, value_dim) = (n_k_heads * k_dim, n_v_heads * v_dim);
    let conv_dim = 2 * key_dim + value_dim;
    // Values of a head of keys.
    let n_values = n_v_heads / n_k_heads;
    let [qkv, z] = if m.weights.has((l, "in_qkvz")) {
        let n_rows = n_values * v_dim;
        let qkv = [(0, k_dim), (k_dim, k_dim), (2 * k_dim, n_rows)];
        let z = [(2 * k_dim + n_rows, n_rows)];
        let parts =
            [GroupedPart { leaf: "in_qkv", rows: &qkv }, GroupedPart { leaf: "in_z", rows: &z }];
        let (name, none) = ((l, "in_qkvz"), Bias::None);
        let linears = m.weights.grouped_linears(name, n_k_heads, parts, c.dim, none)?;
        linears.map(|linear| m.graph.linear(h, &linear))
    } else {
        let qkv = m.linear(h, (l, "in_qkv"), (conv_dim, c.dim), Bias::None)?;
        [qkv, m.linear(h, (l, "in_z"), (value_dim, c.dim), Bias::None)?]
    };
    let [b, a] = if m.weights.has((l, "in_ba")) {
        let (name, parts) = ((l, "in_ba"), [("in_b", n_values), ("in_a", n_values)]);
        let linears = m.weights.linears_in_turns(name, parts, n_k_heads, c.dim, Bias::None)?;
        linears.map(|linear| m.graph.linear(h, &linear))
    } else {
        let b = m.linear(h, (l, "in_b"), (n_v_heads, c.dim), Bias::None)?;
        [b, m.linear(h, (l, "in_a"), (n_v_heads, c.dim), Bias::None)?]
    };
    let taps = m.weights.taps((l, "conv"), conv_dim, n_taps)?;
    let qkv = m.graph.short_conv(qkv, (taps, n_taps), None, Some(c.activation));
    let q = m.graph.columns(qkv, 0, key_dim);
    let k = m.graph.columns(qkv, key_dim, key_dim);
    let v = m.graph.columns(qkv, 2 * key_dim, value_dim);
    let is_hf = m.weights.is_hf();
    let decay =
        m.weights.vector_map((l, "decay"), n_v_heads, |x| if is_hf { -x.exp() } else { x })?;
    let dt_bias = match is_hf {
        true => m.weights.vector((l, "dt"), n_v_heads)?,
        false => m.weights.bias_vector((l, "dt"), n_v_heads)?,
    };
    let spec = DeltaNetSpec { n_k_heads, n_v_heads, k_dim, v_dim, tiled, decay, dt_bias };
    let o = m.graph.delta_net([q, k, v], [a, b], &spec);
    let norm = m.weights.plain_norm((l, "linear_norm"), v_dim)?;
    let o = m.graph.norm(o, NormKind::Rms, &norm, c.norm_eps);
    let o = m.graph.gated_act(z, o, Activation::Silu);
    m.linear(o, (l, "linear_out"), (c.dim, value_dim), Bias::None)
}
