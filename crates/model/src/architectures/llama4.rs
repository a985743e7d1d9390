//! llama4: the text models of Llama 4 Scout and Maverick. Three of four layers rotate queries and keys, normalize
//! them afterwards, and attend within chunks of 8192 positions; the others do neither, and their queries are
//! scaled with their position. A row has one expert in addition to the shared one, and the expert's input is
//! multiplied by its weight.
//!
//! Meta, 2025.

use super::experts::{gguf_counts, hf_counts};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, QueryGrowth, hf_bias, hf_layer_types};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::weights::NormWeights;
use crate::graph::{NormKind, RopeStyle, Route, Scoring, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "llama4",
    hf_model_types: &["llama4_text"],
    hf_names: &[
        ("w_gate", "model.layers.{}.feed_forward.gate_proj"),
        ("w_up", "model.layers.{}.feed_forward.up_proj"),
        ("w_down", "model.layers.{}.feed_forward.down_proj"),
        ("router", "model.layers.{}.feed_forward.router"),
        ("experts.w_gate_up", "model.layers.{}.feed_forward.experts.gate_up_proj"),
        ("experts.w_down", "model.layers.{}.feed_forward.experts.down_proj"),
        ("shared.w_gate", "model.layers.{}.feed_forward.shared_expert.gate_proj"),
        ("shared.w_up", "model.layers.{}.feed_forward.shared_expert.up_proj"),
        ("shared.w_down", "model.layers.{}.feed_forward.shared_expert.down_proj"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// Of so many layers, all but the last rotate queries and keys.
const PATTERN: usize = 4;
/// Positions of a chunk, and those after which queries grow, where the file does not say it; GGUF files never do.
const CHUNK: usize = 8192;
/// The growth of queries, likewise.
const GROWTH: f32 = 0.1;
/// The number of experts of the model without norms of heads, by which GGUF files tell it.
const EXPERTS_WITHOUT_NORMS: usize = 128;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { theta: ("rope_theta", 500_000.0), ..HfRopeKeys::COMMON };
    let config = Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?;
    let n_layers = config.layers.len();

    let interval = s.usize_or("no_rope_layer_interval", PATTERN)?;
    if interval == 0 {
        return Err(s.wrong("no_rope_layer_interval", "a positive number"));
    }
    let rotates = match s.opt_usizes("no_rope_layers")?.filter(|layers| !layers.is_empty()) {
        Some(layers) if layers.len() < n_layers => {
            return Err(s.wrong("no_rope_layers", format!("{n_layers} layers")));
        }
        Some(layers) => layers.iter().map(|&n| n != 0).collect(),
        None => (1..=n_layers).map(|n| !n.is_multiple_of(interval)).collect::<Vec<_>>(),
    };
    let types = [("full_attention", false), ("chunked_attention", true)];
    let chunked = hf_layer_types(s, n_layers, &types)?;
    let chunk = match chunked.as_ref().unwrap_or(&rotates).contains(&true) {
        true => Some(s.usize("attention_chunk_size")?),
        false => {
            s.pass_over("attention_chunk_size");
            None
        }
    };
    if chunk == Some(0) {
        return Err(s.wrong("attention_chunk_size", "a positive number"));
    }
    let growth = match s.bool("attn_temperature_tuning")? {
        true => Some(QueryGrowth {
            rate: s.f32("attn_scale")?,
            period: s.usize("floor_scale")?,
            offset: 1,
        }),
        false => None,
    };
    if growth.is_some_and(|growth| growth.period == 0) {
        return Err(s.wrong("floor_scale", "a positive number"));
    }

    let counts = hf_counts(s)?;
    if counts.1 != 1 {
        return Err(s.unsupported("more than one expert per token (`num_experts_per_tok`)"));
    }
    let step = s.usize("interleave_moe_layer_step")?;
    if step == 0 {
        return Err(s.wrong("interleave_moe_layer_step", "a positive number"));
    }
    let sparse = s.opt_usizes("moe_layers")?;
    let is_sparse = |l: usize| match &sparse {
        Some(layers) => layers.contains(&l),
        None => (l + 1).is_multiple_of(step),
    };
    let dims = (s.usize("intermediate_size")?, s.usize("intermediate_size_mlp")?);
    let attn_bias = hf_bias(s, "attention_bias")?;
    let qk_norm = s.bool("use_qk_norm")?;
    let config = Config { attn_bias, qk_norm, query_growth: growth, ..config };
    let config = with_experts(config, counts, dims, is_sparse);
    let chunked = chunked.unwrap_or_else(|| rotates.clone());
    let config = with_rotation(config, |l| rotates[l]);
    in_chunks(config, |l| chunk.filter(|_| chunked[l])).checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    if s.opt_usize("attention.sliding_window")? == Some(0) {
        return Err(s.unsupported("layers without chunks (`attention.sliding_window`)"));
    }
    let Some(counts) = gguf_counts(s)? else {
        return Err(s.wrong("expert_count", "a number of experts", "nothing"));
    };
    if counts.1 != 1 {
        return Err(s.unsupported("more than one expert per token (`expert_used_count`)"));
    }
    let step = s.usize("interleave_moe_layer_step")?;
    let is_sparse = |l: usize| step > 0 && (l + 1).is_multiple_of(step);
    let dims = (s.usize("expert_feed_forward_length")?, s.usize("feed_forward_length")?);
    let growth = QueryGrowth { rate: GROWTH, period: CHUNK, offset: 1 };
    let qk_norm = counts.0 != EXPERTS_WITHOUT_NORMS;
    let config = Config { qk_norm, query_growth: Some(growth), ..config };
    let config = with_experts(config, counts, dims, is_sparse);
    let config = with_rotation(config, |l| !(l + 1).is_multiple_of(PATTERN));
    in_chunks(config, |l| (!(l + 1).is_multiple_of(PATTERN)).then_some(CHUNK)).checked_gguf(s)
}

/// Experts in some layers, of which a row has one that a sigmoid chooses; `dims` are the columns inside an expert
/// and inside the other layers' network.
fn with_experts(
    config: Config,
    counts: (usize, usize),
    dims: (usize, usize),
    is_sparse: impl Fn(usize) -> bool,
) -> Config {
    let experts = Experts {
        scoring: Scoring::Sigmoid,
        shared_dim: Some(dims.0),
        ..Experts::softmax(counts, dims.0, false)
    };
    config.with_layers(|l, layer| {
        layer.hidden_dim = dims.1;
        layer.experts = (is_sparse(l) && experts.n_experts > 0).then_some(experts);
    })
}

fn with_rotation(config: Config, rotates: impl Fn(usize) -> bool) -> Config {
    config.with_layers(|l, layer| layer.rope = rotates(l).then_some(0))
}

/// With the chunks of each layer, in which a row sees what is before it in its own.
fn in_chunks(config: Config, chunk: impl Fn(usize) -> Option<usize>) -> Config {
    config.with_windows(chunk).with_layers(|_, layer| layer.chunked = layer.window.is_some())
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    m.rope_style = RopeStyle::Interleaved;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..m.config.layers.len() {
        m.graph.begin_layer(l);
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let o = attention(m, h, l)?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = match m.config.layers[l].experts {
            Some(experts) => routed_ffn(m, h, l, &experts)?,
            None => m.gated_ffn(h, l, Bias::None)?,
        };
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}

fn attention(m: &mut Build<'_>, h: ValueId, l: usize) -> Result<ValueId, Error> {
    let c = m.config;
    let layer = &c.layers[l];
    let [mut q, mut k, v] = m.qkv(h, l, c.attn_bias)?;
    if layer.rope.is_some() {
        (q, k) = (m.rope(q, l), m.rope(k, l));
        if c.qk_norm {
            let plain = NormWeights { weight: None, bias: None, len: layer.head_dim };
            [q, k] = [q, k].map(|x| m.graph.norm(x, NormKind::Rms, &plain, c.norm_eps));
        }
    } else {
        q = m.grown(q);
    }
    let a = m.graph.attention(q, k, v, &c.attention(l));
    m.wo(a, l, c.attn_bias)
}

/// What the expert of a row makes of the row times its factor, and the expert that all rows share.
fn routed_ffn(
    m: &mut Build<'_>,
    x: ValueId,
    l: usize,
    experts: &Experts,
) -> Result<ValueId, Error> {
    let &Experts { n_experts, n_chosen, hidden_dim, scoring, shared_dim, .. } = experts;
    let c = m.config;
    let scores = m.linear(x, (l, "router"), (n_experts, c.dim), Bias::None)?;
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
    let [gate, up] = m.weights.halved_gate_up_experts(l, n_experts, hidden_dim, c.dim)?;
    let down = m.weights.turned_experts((l, "experts.w_down"), n_experts, c.dim, hidden_dim)?;
    let scaled = m.graph.combine(x, routes);
    let gate = m.graph.expert_linear(scaled, routes, &gate);
    let up = m.graph.expert_linear(scaled, routes, &up);
    let hidden = m.graph.gated_act(gate, up, c.activation);
    let y = m.graph.expert_linear(hidden, routes, &down);
    let shared =
        m.shared_expert(x, l, shared_dim.expect("an expert that all rows share"), false)?;
    Ok(m.graph.add(y, shared))
}
