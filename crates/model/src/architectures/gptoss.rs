//! gpt-oss: experts with biases and a clamped gate in every layer, sliding windows in every other one, and
//! attention sinks.
//!
//! OpenAI, 2025 (arXiv:2508.10925). Safetensors files have experts as MXFP4 beside scales, or transposed.

use super::experts::{gguf_counts, hf_counts};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, HfWindow, window_or_none};
use crate::architectures::loader::Bias;
use crate::architectures::rope::{HfRopeKeys, Rope, RopeScaling};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Activation, AttentionSpec, NormKind, Route, Scoring, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gpt-oss",
    hf_model_types: &["gpt_oss"],
    hf_names: &[
        ("attn_sinks", "model.layers.{}.self_attn.sinks"),
        ("router", "model.layers.{}.mlp.router"),
    ],
    gguf_names: &[("attn_sinks", "blk.{}.attn_sinks"), ("ffn_norm", "blk.{}.post_attention_norm")],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The factor inside the gate's sigmoid, which that of [`Activation::GeluQuick`] is.
const ALPHA: f32 = 1.702;
/// The limit of gates, which GGUF files do not say.
const LIMIT: f32 = 7.0;
/// Of so many layers, all but the last have a window.
const PATTERN: usize = 2;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let yarn = json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": false, "original_max_position_embeddings": 4096
    });
    let s = &s.or_if_null("rope_parameters", yarn);
    if s.f32("swiglu_alpha")? != ALPHA {
        return Err(s.unsupported(format!("a `swiglu_alpha` other than {ALPHA}")));
    }
    // Other spellings of what is read.
    s.pass_over("experts_per_token");
    s.pass_over("initial_context_length");
    let rope = HfRopeKeys { theta: ("rope_theta", 150_000.0), ..HfRopeKeys::COMMON };
    s.pass_over("hidden_act");
    let config = Config::from_hf(s, &HfKeys { activation: None, rope })?;
    let config = config.with_hf_layer_types(s, HfWindow::needed(s)?, slides)?;
    let attn_bias = match s.bool("attention_bias")? {
        true => Bias::Required,
        false => Bias::Denied("attention_bias"),
    };
    let limit = s.f32("swiglu_limit")?;
    let counts = hf_counts(s)?;
    if counts.0 == 0 {
        return Err(s.wrong("num_local_experts", "a number of experts"));
    }
    finished(Config { attn_bias, ..config }, counts, limit).checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let mut config = Config::from_gguf(s, NormKind::Rms)?;
    if let Rope { scaling: RopeScaling::Yarn { truncate, .. }, .. } = &mut config.ropes[0] {
        // The file has no key for it. The published models' settings have it so.
        *truncate = false;
    }
    let of_windows = s.opt_f32("rope.freq_base_swa")?;
    if of_windows.is_some_and(|theta| theta != config.ropes[0].theta) {
        return Err(
            s.unsupported("a base of angles for layers with a window (`rope.freq_base_swa`)")
        );
    }
    if s.opt_uniform("attention.sliding_window_pattern")?.is_some_and(|n| n != PATTERN) {
        return Err(s.unsupported("sliding windows in layers other than every second"));
    }
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    let config = config.with_windows(|l| window.filter(|_| slides(l)));
    let Some(counts) = gguf_counts(s)? else {
        return Err(s.wrong("expert_count", "a number of experts", "nothing"));
    };
    let hidden_dims = s.opt_per_layer("expert_feed_forward_length", config.layers.len())?;
    let config = config.with_layers(|l, layer| {
        layer.hidden_dim = hidden_dims.as_ref().map_or(layer.hidden_dim, |dims| dims[l]);
    });
    let config = Config { attn_bias: Bias::Required, ..config };
    finished(config, counts, LIMIT).checked_gguf(s)
}

/// Whether layer `l` has a window, where the file does not say it.
fn slides(l: usize) -> bool {
    !(l + 1).is_multiple_of(PATTERN)
}

fn finished(config: Config, counts: (usize, usize), limit: f32) -> Config {
    let config = config.with_layers(|_, layer| {
        let experts = Experts::softmax(counts, layer.hidden_dim, false);
        layer.experts = Some(Experts { scoring: Scoring::SoftmaxOfChosen, ..experts });
    });
    Config { gate_limit: Some(limit), activation: Activation::GeluQuick, ..config }
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..m.config.layers.len() {
        m.graph.begin_layer(l);
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let o = attention(m, h, l)?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = ffn(m, h, l)?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}

fn attention(m: &mut Build<'_>, h: ValueId, l: usize) -> Result<ValueId, Error> {
    let c = m.config;
    let [q, k, v] = m.qkv(h, l, c.attn_bias)?;
    let (q, k) = (m.rope(q, l), m.rope(k, l));
    let sinks = Some(m.weights.vector((l, "attn_sinks"), c.layers[l].n_heads)?);
    let spec = AttentionSpec { sinks, ..c.attention(l) };
    let a = m.graph.attention(q, k, v, &spec);
    m.wo(a, l, c.attn_bias)
}

/// The sum over the experts of a row of `w_down((up + 1) * gate * sigmoid(1.702 gate))`, by their factors, with
/// `gate` and `up` held within the limit.
fn ffn(m: &mut Build<'_>, x: ValueId, l: usize) -> Result<ValueId, Error> {
    let c = m.config;
    let layer = &c.layers[l];
    let experts = layer.experts.expect("all layers have experts");
    let Experts { n_experts, n_chosen, hidden_dim, scoring, .. } = experts;
    let limit = c.gate_limit.expect("gates have a limit");
    let scores = m.linear(x, (l, "router"), (n_experts, c.dim), Bias::Required)?;
    let route = Route {
        scoring,
        n_experts,
        n_chosen,
        choice_bias: None,
        groups: None,
        normalize: false,
        scale: 1.0,
    };
    let routes = m.graph.route(scores, route);
    let [gate, up] = m.weights.turned_gate_up_experts(l, n_experts, hidden_dim, c.dim)?;
    let down = m.weights.turned_experts((l, "experts.w_down"), n_experts, c.dim, hidden_dim)?;
    // The 1 that is added after the limit is part of the bias, and of the limit.
    let [gate_bias, up_bias] =
        m.weights.gate_up_expert_biases(l, n_experts, hidden_dim, [0.0, 1.0])?;
    let down_bias = m.weights.expert_biases((l, "experts.w_down"), n_experts, c.dim)?;

    let gate = m.graph.expert_linear(x, routes, &gate);
    let up = m.graph.expert_linear(x, routes, &up);
    let gate = m.graph.expert_bias(gate, routes, gate_bias, n_experts);
    let gate = m.graph.clamp_to(gate, f32::MIN, limit);
    let up = m.graph.expert_bias(up, routes, up_bias, n_experts);
    let up = m.graph.clamp_to(up, 1.0 - limit, 1.0 + limit);
    let hidden = m.graph.gated_act(gate, up, c.activation);
    let y = m.graph.expert_linear(hidden, routes, &down);
    let y = m.graph.expert_bias(y, routes, down_bias, n_experts);
    Ok(m.graph.combine(y, routes))
}
