//! gemma3n: several streams of hidden states, of which layers process one and predict and correct the others
//! (AltUp), a low-rank residual parallel to attention (LAuReL), per-layer token embeddings, gates that keep
//! only their largest values, and last layers that attend to the keys and values of earlier ones.
//!
//! Gemma Team, 2025 (Gemma 3n); Baykal et al., 2023 (AltUp, arXiv:2301.13310); Menghani et al., 2024 (LAuReL,
//! arXiv:2411.07501). Every row has its own factors by which streams are summed up. They are made as those of
//! experts are, and so the streams' sums are those of experts' results.

use super::{Architecture, Build, gemma4, layer_embeddings};
use crate::Error;
use crate::architectures::config::{
    AltUp, Config, HfKeys, HfWindow, activation_from_hf, hf_bias, window_or_none,
};
use crate::architectures::loader::Bias;
use crate::architectures::rope::{HfRopeKeys, Rope, RopeScaling};
use crate::checkpoint::names::NameTable;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::weights::NormWeights;
use crate::graph::{Activation, NormKind, Route, Scoring, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gemma3n",
    hf_model_types: &["gemma3n_text"],
    hf_names: HF_NAMES,
    gguf_names: GGUF_NAMES,
    ignored: layer_embeddings::IGNORED,
    config_from_hf,
    config_from_gguf,
    forward,
};

const HF_NAMES: NameTable = &[
    ("per_layer.table", "model.embed_tokens_per_layer"),
    ("per_layer.project", "model.per_layer_model_projection"),
    ("per_layer.norm", "model.per_layer_projection_norm"),
    ("per_layer_gate", "model.layers.{}.per_layer_input_gate"),
    ("per_layer_out", "model.layers.{}.per_layer_projection"),
    ("per_layer_norm", "model.layers.{}.post_per_layer_input_norm"),
    ("ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
    ("post_attn_norm", "model.layers.{}.post_attention_layernorm"),
    ("post_ffn_norm", "model.layers.{}.post_feedforward_layernorm"),
    ("stream.begin", "model.altup_projections.{e}"),
    ("stream.end", "model.altup_unembed_projections.{e}"),
    ("altup.correct", "model.layers.{}.altup.correction_coefs"),
    ("altup.scale", "model.layers.{}.altup.correct_output_scale"),
    ("altup.predict", "model.layers.{}.altup.prediction_coefs"),
    ("altup.router", "model.layers.{}.altup.modality_router"),
    ("altup.norm", "model.layers.{}.altup.router_norm"),
    ("laurel.left", "model.layers.{}.laurel.linear_left"),
    ("laurel.right", "model.layers.{}.laurel.linear_right"),
    ("laurel.norm", "model.layers.{}.laurel.post_laurel_norm"),
];

const GGUF_NAMES: NameTable = &[
    ("per_layer.table", "per_layer_token_embd"),
    ("per_layer.project", "per_layer_model_proj"),
    ("per_layer.norm", "per_layer_proj_norm"),
    ("per_layer_gate", "blk.{}.inp_gate"),
    ("per_layer_out", "blk.{}.proj"),
    ("per_layer_norm", "blk.{}.post_norm"),
    ("streams.begin", "altup_proj"),
    ("streams.end", "altup_unembd_proj"),
    ("altup.correct", "blk.{}.altup_correct_coef"),
    ("altup.scale", "blk.{}.altup_correct_scale"),
    ("altup.predict", "blk.{}.altup_predict_coef"),
    ("altup.router", "blk.{}.altup_router"),
    ("altup.norm", "blk.{}.altup_router_norm"),
    ("laurel.left", "blk.{}.laurel_l"),
    ("laurel.right", "blk.{}.laurel_r"),
    ("laurel.norm", "blk.{}.laurel_post_norm"),
];

/// Of so many layers, the last sees everything.
const PATTERN: usize = 5;

/// The share of gates that the first layers of published models close.
const SPARSITY: f32 = 0.95;

/// Those layers, in models with more.
const SPARSE_LAYERS: usize = 10;

/// Added to the mean square of a stream before it is scaled to that of another; too little to change any but
/// a row of zeros.
const TINY: f32 = 1e-20;

/// The rope of layers that see everything.
const GLOBAL_ROPE: HfRopeKeys = HfRopeKeys {
    layer_type: Some("full_attention"),
    theta: ("rope_theta", 1_000_000.0),
    ..HfRopeKeys::COMMON
};

/// The rope of layers with a window.
const LOCAL_ROPE: HfRopeKeys = HfRopeKeys {
    layer_type: Some("sliding_attention"),
    theta: ("rope_local_base_freq", 10_000.0),
    ..HfRopeKeys::COMMON
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let n_layers = s.usize("num_hidden_layers")?;
    let hidden_dims = match s.opt_usizes("intermediate_size") {
        Ok(dims) => dims.unwrap_or_else(|| vec![16_384; n_layers]),
        Err(_) => vec![s.usize("intermediate_size")?; n_layers],
    };
    if hidden_dims.len() != n_layers {
        return Err(s.wrong("intermediate_size", format!("a size for each of {n_layers} layers")));
    }
    let sparsity = match s.opt_f32s("activation_sparsity_pattern") {
        Ok(Some(sparsity)) => sparsity,
        Ok(None) => {
            let n_sparse = if n_layers > SPARSE_LAYERS { SPARSE_LAYERS } else { 0 };
            (0..n_layers).map(|l| if l < n_sparse { SPARSITY } else { 0.0 }).collect()
        }
        Err(error) => return Err(error),
    };
    if sparsity.len() != n_layers || sparsity.iter().any(|p| !(0.0..1.0).contains(p)) {
        let expected = format!("a share for each of {n_layers} layers");
        return Err(s.wrong("activation_sparsity_pattern", expected));
    }
    let first = hidden_dims.first().copied().unwrap_or_default();
    let keys = HfKeys { activation: Some("hidden_activation"), rope: GLOBAL_ROPE };
    let config = Config::from_hf(&s.with_value("intermediate_size", json!(first)), &keys)?;
    s.pass_over("altup_coef_clip");
    // Scores are not scaled.
    s.pass_over("query_pre_attn_scalar");
    let altup = AltUp {
        n: s.usize("altup_num_inputs")?,
        active: s.usize("altup_active_idx")?,
        scales: s.bool("altup_correct_scale")?,
        laurel_rank: s.usize("laurel_rank")?,
    };
    check(&altup).map_err(|reason| s.unsupported(reason))?;
    let (context, head_dim) = (config.max_seq_len, config.layers[0].head_dim);
    let mut config = Config {
        logit_softcap: s.opt_f32("final_logit_softcapping")?,
        attn_bias: hf_bias(s, "attention_bias")?,
        per_layer_dim: s.usize("hidden_size_per_layer_input")?,
        activation: activation_from_hf(s, s.str("hidden_activation")?)?,
        altup: Some(altup),
        ..config.with_hf_layer_types(s, HfWindow::needed(s)?, |l| (l + 1) % PATTERN != 0)?
    };
    config.per_layer_tokens = Some(s.usize("vocab_size_per_layer_input")?);
    config.ropes.push(Rope::from_hf(s, &LOCAL_ROPE, head_dim, context)?);
    let config = config.with_layers(|l, layer| {
        layer.hidden_dim = hidden_dims[l];
        let share = sparsity[l];
        layer.gate_cutoff = (share > 0.0).then(|| quantile(f64::from(share)) as f32);
    });
    let n_sharing = s.usize("num_kv_shared_layers")?;
    let config = gemma4::finished(config, n_sharing).ok_or_else(|| {
        s.wrong("num_kv_shared_layers", "layers with others of their type before")
    })?;
    config.checked_hf(s)
}

/// Why streams of these numbers cannot be.
fn check(altup: &AltUp) -> Result<(), String> {
    // No published model comes near this; a file that does is damaged.
    if !(2..=16).contains(&altup.n) || altup.active >= altup.n {
        return Err(format!("{} streams of which layers work on number {}", altup.n, altup.active));
    }
    if !(1..=1 << 14).contains(&altup.laurel_rank) {
        return Err(format!("a residual of rank {}", altup.laurel_rank));
    }
    Ok(())
}

/// The quantile of the normal distribution, by the rational approximation of P. Acklam, 2003, whose relative
/// error is less than 1.2e-9.
fn quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    /// Where the approximation of the tails begins.
    const TAIL: f64 = 0.02425;
    let polynomial = |c: &[f64], x: f64| c.iter().fold(0.0, |sum, c| sum * x + c);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    };
    if p < TAIL {
        tail(p)
    } else if p > 1.0 - TAIL {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        q * polynomial(&A, q * q) / polynomial(&B, q * q)
    }
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let n_layers = config.layers.len();
    let key = "attention.sliding_window_pattern";
    let slides = s.opt_bools(key, n_layers)?;
    let slides = slides.ok_or_else(|| s.wrong(key, "the layers with a window", "nothing"))?;
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    let key = "activation_sparsity_scale";
    let cutoffs = s.opt_f32s(key)?.unwrap_or_else(|| vec![f32::NEG_INFINITY; n_layers]);
    if cutoffs.len() != n_layers {
        let found = format!("a list of {}", cutoffs.len());
        return Err(s.wrong(key, format!("a number for each of {n_layers} layers"), found));
    }
    // The file has no key for it, and the tensor no other shape.
    let laurel = s.gguf().tensor_info("blk.0.laurel_l.weight");
    let laurel_rank = laurel.and_then(|tensor| tensor.shape.first().copied()).unwrap_or(0);
    let altup = AltUp {
        n: s.usize("altup.num_inputs")?,
        active: s.usize("altup.active_idx")?,
        scales: true,
        laurel_rank,
    };
    check(&altup).map_err(|reason| {
        const KEYS: &str = "`altup.num_inputs`, `altup.active_idx`, `blk.0.laurel_l`";
        s.unsupported(format!("{reason} ({KEYS})"))
    })?;
    let theta = s.opt_f32("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let local = Rope { theta, scaling: RopeScaling::None, ..config.ropes[0].clone() };
    let mut config = Config {
        activation: Activation::GeluTanh,
        logit_softcap: s.opt_f32("final_logit_softcapping")?.or(Some(30.0)),
        per_layer_dim: s.usize("embedding_length_per_layer_input")?,
        altup: Some(altup),
        ..config.with_windows(|l| window.filter(|_| slides[l]))
    };
    config.ropes.push(local);
    // Files of Ollama's have the tokens of images and audio at the end of the vocabulary alone.
    let of_layers = s.gguf().tensor_info("per_layer_token_embd.weight");
    let n_tokens = of_layers.and_then(|tensor| tensor.shape.first().copied());
    config.per_layer_tokens = n_tokens.filter(|&n| n < config.vocab_size);
    let config = config.with_layers(|l, layer| {
        layer.gate_cutoff = Some(cutoffs[l]).filter(|cutoff| cutoff.is_finite());
    });
    let key = "attention.shared_kv_layers";
    let n_sharing = s.opt_usize(key)?.unwrap_or(0);
    let config = gemma4::finished(config, n_sharing).ok_or_else(|| {
        s.wrong(key, "layers with others of their type before", n_sharing.to_string())
    })?;
    config.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let altup = c.altup.expect("the architecture sets the streams");
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, (c.dim as f32).sqrt());
    let inputs = m.per_layer_inputs(x)?;
    m.rope_tables()?;
    let mut streams = begin(m, x, altup.n)?;
    let mut attended = Vec::with_capacity(c.layers.len());
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let predicted = predict(m, &streams, l)?;
        let x = predicted.1[altup.active];
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let laurel = laurel(m, h, l, altup.laurel_rank)?;
        let a = gemma4::attention(m, h, l, &attended)?;
        attended.push(a);
        let o = m.wo(a, l, c.attn_bias)?;
        let o = m.rms_norm(o, (l, "post_attn_norm"))?;
        let x = m.graph.add(x, o);
        let x = m.graph.add(x, laurel);
        let x = m.graph.scale(x, 0.5_f32.sqrt());

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = feed_forward(m, h, l)?;
        let f = m.rms_norm(f, (l, "post_ffn_norm"))?;
        let x = m.graph.add(x, f);

        let mut corrected = correct(m, predicted, x, l)?;
        if let Some(inputs) = inputs {
            let chosen = per_layer_choice(m, corrected[altup.active], inputs, l)?;
            for stream in &mut corrected[1..] {
                *stream = m.graph.add(*stream, chosen);
            }
        }
        streams = corrected;
    }
    m.graph.end_layers();
    let x = end(m, &streams)?;
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}

/// All of `n` matrices, in their order.
fn all(m: &mut Build<'_>, x: ValueId, n: usize) -> ValueId {
    let scores = m.graph.columns(x, 0, n);
    let route = Route {
        scoring: Scoring::Sigmoid,
        n_experts: n,
        n_chosen: n,
        choice_bias: None,
        groups: None,
        normalize: false,
        scale: 1.0,
    };
    m.graph.route(scores, route)
}

/// The columns of rows whose sum has the root of the mean square of `x` for a sum: `x` times `x` normalized.
fn magnitudes(m: &mut Build<'_>, x: ValueId) -> ValueId {
    let plain = NormWeights { weight: None, bias: None, len: m.config.dim };
    let normed = m.graph.norm(x, NormKind::Rms, &plain, TINY);
    m.graph.mul(normed, x)
}

/// The streams of embedded tokens: the embedding, and projections of it with the same mean square.
fn begin(m: &mut Build<'_>, x: ValueId, n: usize) -> Result<Vec<ValueId>, Error> {
    let dim = m.config.dim;
    let routes = all(m, x, n - 1);
    let matrices = m.weights.experts("streams.begin", n - 1, dim, dim)?;
    let others = m.graph.expert_linear(x, routes, &matrices);
    let plain = NormWeights { weight: None, bias: None, len: dim };
    let others = m.graph.norm(others, NormKind::Rms, &plain, TINY);
    let squares = magnitudes(m, x);
    let factor = m.weights.made_linear("streams.factor", [2, dim], None, |row, _| {
        if row == 1 { 1.0 / dim as f32 } else { 0.0 }
    });
    let factor = m.graph.linear(squares, &factor);
    let mut streams = vec![x];
    for i in 0..n - 1 {
        let other = m.graph.columns(others, i * dim, dim);
        streams.push(m.graph.combine(other, factor));
    }
    Ok(streams)
}

/// The mean of the first stream and of projections of the others with its mean square, for output rows.
fn end(m: &mut Build<'_>, streams: &[ValueId]) -> Result<ValueId, Error> {
    let (n, dim) = (streams.len(), m.config.dim);
    let x = m.graph.concat(streams);
    let x = m.graph.select_rows(x);
    let first = m.graph.columns(x, 0, dim);
    let others = m.graph.columns(x, dim, (n - 1) * dim);
    let routes = all(m, x, n - 1);
    let matrices = m.weights.experts("streams.end", n - 1, dim, dim)?;
    let others = m.graph.expert_linear(others, routes, &matrices);
    let plain = NormWeights { weight: None, bias: None, len: dim };
    let others = m.graph.norm(others, NormKind::Rms, &plain, TINY);
    let mut sum = m.graph.columns(others, 0, dim);
    for i in 1..n - 1 {
        let other = m.graph.columns(others, i * dim, dim);
        sum = m.graph.add(sum, other);
    }
    let squares = magnitudes(m, first);
    let share = 1.0 / n as f32;
    let bias = vec![0.0, 0.0, share, 0.0];
    let factors = m.weights.made_linear("streams.mean", [4, dim], Some(bias), |row, _| {
        if row == 3 { share / dim as f32 } else { 0.0 }
    });
    let factors = m.graph.linear(squares, &factors);
    let both = m.graph.concat(&[first, sum]);
    Ok(m.graph.combine(both, factors))
}

/// What factors of layer `l` are made of, for the stream that layers work on.
fn modalities(m: &mut Build<'_>, x: ValueId, l: usize) -> Result<ValueId, Error> {
    let (n, dim) = (m.config.altup.map_or(0, |altup| altup.n), m.config.dim);
    let h = m.rms_norm(x, (l, "altup.norm"))?;
    let h = m.graph.scale(h, 1.0 / dim as f32);
    let scores = m.linear(h, (l, "altup.router"), (n, dim), Bias::None)?;
    Ok(m.graph.act(scores, Activation::Tanh))
}

/// What the streams should be after layer `l`, side by side and each: each is the sum of all by factors of its
/// own, and of itself.
fn predict(
    m: &mut Build<'_>,
    streams: &[ValueId],
    l: usize,
) -> Result<(ValueId, Vec<ValueId>), Error> {
    let altup = m.config.altup.expect("the architecture sets the streams");
    let (n, active) = (altup.n, altup.active);
    let modalities = modalities(m, streams[active], l)?;
    let coefs = m.weights.numbers((l, "altup.predict"), [n * n, n])?;
    // For each stream the numbers of all, which nothing reads, and their factors.
    let of = |row: usize| {
        let (to, from) = (row / (2 * n), row % (2 * n));
        from.checked_sub(n).map(|from| (to, from))
    };
    let bias = (0..2 * n * n).map(|row| of(row).map_or(0.0, |(to, from)| f32::from(to == from)));
    let factors = m.weights.made_linear(
        (l, "altup.predict"),
        [2 * n * n, n],
        Some(bias.collect()),
        |row, i| of(row).map_or(0.0, |(to, from)| coefs[(to * n + from) * n + i]),
    );
    let factors = m.graph.linear(modalities, &factors);
    let all = m.graph.concat(streams);
    let predicted: Vec<ValueId> = (0..n)
        .map(|to| {
            let own = m.graph.columns(factors, to * 2 * n, 2 * n);
            m.graph.combine(all, own)
        })
        .collect();
    Ok((m.graph.concat(&predicted), predicted))
}

/// The streams after layer `l`, which made `x` of the one that it works on: to each is added a part of what
/// that differs from its prediction by.
fn correct(
    m: &mut Build<'_>,
    (all, predicted): (ValueId, Vec<ValueId>),
    x: ValueId,
    l: usize,
) -> Result<Vec<ValueId>, Error> {
    let altup = m.config.altup.expect("the architecture sets the streams");
    let (n, active) = (altup.n, altup.active);
    let modalities = modalities(m, x, l)?;
    let coefs = m.weights.numbers((l, "altup.correct"), [n, n])?;
    // Factors of all predictions and of x.
    let width = 2 * (n + 1);
    let of = |row: usize| {
        let (to, from) = (row / width, row % width);
        from.checked_sub(n + 1).map(|from| (to, from))
    };
    let constant = |(to, from): (usize, usize)| {
        let part = f32::from(from == n) - f32::from(from == active);
        part + f32::from(to == from)
    };
    let bias = (0..n * width).map(|row| of(row).map_or(0.0, constant)).collect();
    let factors =
        m.weights.made_linear((l, "altup.correct"), [n * width, n], Some(bias), |row, i| {
            of(row).map_or(0.0, |(to, from)| {
                coefs[to * n + i] * (f32::from(from == n) - f32::from(from == active))
            })
        });
    let factors = m.graph.linear(modalities, &factors);
    let both = m.graph.concat(&[all, x]);
    Ok((0..predicted.len())
        .map(|to| {
            let own = m.graph.columns(factors, to * width, width);
            m.graph.combine(both, own)
        })
        .collect())
}

/// `h` and a projection of it of low rank.
fn laurel(m: &mut Build<'_>, h: ValueId, l: usize, rank: usize) -> Result<ValueId, Error> {
    let dim = m.config.dim;
    let low = m.linear(h, (l, "laurel.left"), (rank, dim), Bias::None)?;
    let out = m.linear(low, (l, "laurel.right"), (dim, rank), Bias::None)?;
    let out = m.rms_norm(out, (l, "laurel.norm"))?;
    Ok(m.graph.add(h, out))
}

/// The gated network; where the layer has a cutoff, gates are what of them lies above their mean by that many
/// deviations.
fn feed_forward(m: &mut Build<'_>, h: ValueId, l: usize) -> Result<ValueId, Error> {
    let layer = m.config.layers[l];
    let Some(cutoff) = layer.gate_cutoff else { return m.gated_ffn(h, l, Bias::None) };
    let (dim, hidden_dim) = (m.config.dim, layer.hidden_dim);
    let gate = m.linear(h, (l, "w_gate"), (hidden_dim, dim), Bias::None)?;
    let up = m.linear(h, (l, "w_up"), (hidden_dim, dim), Bias::None)?;
    // In deviations from the mean, and less the cutoff.
    let plain = NormWeights { weight: None, bias: None, len: hidden_dim };
    let normed = m.graph.norm(gate, NormKind::Layer, &plain, TINY);
    let bias = Some(m.weights.made_vector((l, "gate_cutoff"), vec![-cutoff; hidden_dim]));
    let above = m.graph.norm(gate, NormKind::Layer, &NormWeights { bias, ..plain }, TINY);
    let above = m.graph.act(above, Activation::Relu);
    // The deviation is the mean of the products of values and normed values.
    let squares = m.graph.mul(normed, gate);
    let deviation =
        m.weights.made_linear((l, "gate_deviation"), [2, hidden_dim], None, |row, _| {
            if row == 1 { 1.0 / hidden_dim as f32 } else { 0.0 }
        });
    let deviation = m.graph.linear(squares, &deviation);
    let gate = m.graph.combine(above, deviation);
    let hidden = m.graph.gated_act(gate, up, m.config.activation);
    m.linear(hidden, (l, "w_down"), (dim, hidden_dim), Bias::None)
}

/// As [`Build::per_layer_choice`], by `x` whose columns have factors, which the gate's matrix takes up.
fn per_layer_choice(
    m: &mut Build<'_>,
    x: ValueId,
    inputs: ValueId,
    l: usize,
) -> Result<ValueId, Error> {
    let c = m.config;
    let (dim, altup) = (c.per_layer_dim, c.altup.expect("the architecture sets the streams"));
    let factors = m.weights.numbers((l, "altup.scale"), [c.dim])?;
    let gate = m.weights.numbers((l, "per_layer_gate"), [dim, c.dim])?;
    let gate = m.weights.made_linear((l, "per_layer_gate"), [dim, c.dim], None, |row, col| {
        let factor = if altup.scales { factors[col] } else { 1.0 };
        gate[row * c.dim + col] * factor
    });
    let gate = m.graph.linear(x, &gate);
    let own = m.graph.columns(inputs, l * dim, dim);
    let chosen = m.graph.gated_act(gate, own, c.activation);
    let out = m.linear(chosen, (l, "per_layer_out"), (c.dim, dim), Bias::None)?;
    m.rms_norm(out, (l, "per_layer_norm"))
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        let cases = [
            (0.5, 0.0),
            (0.95, 1.644_853_626_951_472_2),
            (0.99, 2.326_347_874_040_841),
            (0.01, -2.326_347_874_040_841),
        ];
        for (p, wanted) in cases {
            assert!((quantile(p) - wanted).abs() < 1e-8, "{p}");
        }
    }
}
