//! gemma4: Gemma 3 with unscaled scores, norms also on the heads of values, larger heads in the global
//! layers, and per-layer token embeddings.
//!
//! Google DeepMind, 2026 (Gemma 4). In the layers that see everything a quarter of each head's pairs turn. The last
//! layers may attend to the keys and values of earlier ones. Models with experts have them beside the gated network, each
//! with a factor of its own. The text model.

use super::experts::{gguf_counts, hf_counts_of};
use super::{Architecture, Build, layer_embeddings};
use crate::Error;
use crate::architectures::config::{
    A_SIZE, Config, Experts, HfKeys, HfWindow, Layer, MAX_SIZE, activation_from_hf, hf_bias,
    window_or_none,
};
use crate::architectures::loader::Bias;
use crate::architectures::rope::{HfRopeKeys, Rope, RopeScaling};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::weights::NormWeights;
use crate::graph::{Activation, NormKind, Route, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gemma4",
    hf_model_types: &["gemma4_text", "gemma4_unified_text"],
    hf_names: layer_embeddings::HF_NAMES,
    gguf_names: layer_embeddings::GGUF_NAMES,
    ignored: layer_embeddings::IGNORED,
    config_from_hf,
    config_from_gguf,
    forward,
};

/// Of so many layers, the last sees everything.
const PATTERN: usize = 6;

/// Columns of a head in layers that see everything, where the file does not say.
const GLOBAL_HEAD_DIM: usize = 512;

/// The rope of layers that see everything.
const GLOBAL_ROPE: HfRopeKeys = HfRopeKeys {
    layer_type: Some("full_attention"),
    theta: ("rope_theta", 1_000_000.0),
    ..HfRopeKeys::COMMON
};

/// The rope of layers with a window.
const LOCAL_ROPE: HfRopeKeys =
    HfRopeKeys { layer_type: Some("sliding_attention"), ..HfRopeKeys::COMMON };

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    // Its class has neither embeddings for each layer nor experts.
    let s = &match s.str("model_type")? {
        "gemma4_unified_text" => s
            .with_value("hidden_size_per_layer_input", json!(0))
            .with_value("enable_moe_block", json!(false)),
        _ => s.clone(),
    };
    // The class makes it its only parameters, in which no layer type is.
    if !s.is_absent("rope_scaling") {
        return Err(s.wrong("rope_scaling", "no key, but `rope_parameters` by layer type"));
    }
    let s = &s.or_if_null(
        "rope_parameters",
        json!({
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
        }),
    );
    let experts = match s.bool("enable_moe_block")? {
        true => {
            let counts = hf_counts_of(s, "num_experts", "top_k_experts")?;
            Some(Experts::softmax(counts, s.usize("moe_intermediate_size")?, true))
        }
        false => {
            s.pass_over("num_experts");
            None
        }
    };
    let config =
        Config::from_hf(s, &HfKeys { activation: Some("hidden_activation"), rope: LOCAL_ROPE })?;
    let (local, context) = (config.ropes[0].clone(), config.max_seq_len);
    let mut config = Config {
        logit_softcap: s.opt_f32("final_logit_softcapping")?,
        attn_bias: hf_bias(s, "attention_bias")?,
        per_layer_dim: s.opt_usize("hidden_size_per_layer_input")?.unwrap_or(0),
        activation: activation_from_hf(s, s.str("hidden_activation")?)?,
        ..config.with_hf_layer_types(s, HfWindow::needed(s)?, |l| (l + 1) % PATTERN != 0)?
    };
    s.pass_over("vocab_size_per_layer_input");
    if config.per_layer_dim > 0 && s.usize("vocab_size_per_layer_input")? != config.vocab_size {
        let expected = format!("{}, as `vocab_size`", config.vocab_size);
        return Err(s.wrong("vocab_size_per_layer_input", expected));
    }
    if let Some(last) = config.layers.last_mut() {
        // As transformers has it, whatever the list of types says.
        last.window = None;
    }
    for (l, layer) in config.layers.iter_mut().enumerate() {
        [layer.head_dim, layer.n_kv_heads] = heads_of(s, l, layer.window.is_none(), layer)?;
    }
    for slides in [false, true] {
        let mut of_type = config.layers.iter().filter(|layer| layer.window.is_some() == slides);
        let heads = |layer: &Layer| (layer.head_dim, layer.n_kv_heads);
        if let Some(first) = of_type.next()
            && of_type.any(|layer| heads(layer) != heads(first))
        {
            return Err(s.wrong("per_layer_config", "the same heads in all layers of a type"));
        }
    }
    let head_dim = |c: &Config| c.layers.iter().find(|l| l.window.is_none()).map(|l| l.head_dim);
    let head_dim = head_dim(&config).unwrap_or_default();
    config.ropes = vec![Rope::from_hf(s, &GLOBAL_ROPE, head_dim, context)?, local];
    let parameters = s.opt_object("rope_parameters")?;
    for ty in [GLOBAL_ROPE, LOCAL_ROPE].into_iter().filter_map(|keys| keys.layer_type) {
        let of_type = parameters.as_ref().map(|p| p.opt_object(ty)).transpose()?.flatten();
        if of_type.is_none_or(|p| p.is_absent("rope_theta")) {
            let expected = format!("a `rope_theta` of `{ty}`, which has no default");
            return Err(s.wrong("rope_parameters", expected));
        }
    }
    let n_sharing = s.usize("num_kv_shared_layers")?;
    let config = finished(config, n_sharing).ok_or_else(|| {
        s.wrong("num_kv_shared_layers", "layers with others of their type before")
    })?;
    let is_wide = s.bool("use_double_wide_mlp")?;
    config
        .with_layers(|_, layer| {
            layer.experts = experts;
            let is_wide = is_wide && layer.kv_of.is_some();
            layer.hidden_dim = layer.hidden_dim.saturating_mul(1 + usize::from(is_wide));
        })
        .checked_hf(s)
}

/// The columns of a head, and the number of heads of keys, in layer `l`.
fn heads_of(s: &HfSettings, l: usize, is_global: bool, layer: &Layer) -> Result<[usize; 2], Error> {
    let own = [layer.head_dim, layer.n_kv_heads];
    if s.is_null("per_layer_config") {
        return Ok(own);
    }
    if let Some(layers) = s.opt_object("per_layer_config")? {
        let Some(of_layer) = layers.opt_object(&l.to_string())? else { return Ok(own) };
        let [head_dim, n_kv_heads] = own;
        return Ok([
            of_layer.opt_usize("head_dim")?.unwrap_or(head_dim),
            of_layer.opt_usize("num_key_value_heads")?.unwrap_or(n_kv_heads),
        ]);
    }
    let head_dim = s.usize_or("global_head_dim", GLOBAL_HEAD_DIM)?;
    let n_kv_heads = s.opt_usize("num_global_key_value_heads")?;
    let has_own = s.bool("attention_k_eq_v")?;
    let n_kv_heads = n_kv_heads.filter(|_| has_own);
    Ok(if is_global { [head_dim, n_kv_heads.unwrap_or(layer.n_kv_heads)] } else { own })
}

/// Gives each layer its rope, and lets the last ones share; `None` if those have nothing to share.
pub(super) fn finished(c: Config, n_sharing: usize) -> Option<Config> {
    let config = c.with_layers(|_, layer| {
        layer.rope = Some(usize::from(layer.window.is_some()));
        layer.attn_scale = 1.0;
    });
    config.with_shared_kv(n_sharing)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let experts = match gguf_counts(s)? {
        Some(counts) => {
            Some(Experts::softmax(counts, s.usize("expert_feed_forward_length")?, true))
        }
        None => None,
    };
    let n_layers = config.layers.len();
    let key = "attention.sliding_window_pattern";
    let slides = s.opt_bools(key, n_layers)?;
    let slides = slides.ok_or_else(|| s.wrong(key, "the layers with a window", "nothing"))?;
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    if window.is_none() && slides.contains(&true) {
        let expected = "the positions that layers with a window see";
        return Err(s.wrong("attention.sliding_window", expected, "none"));
    }
    let head_dim = match s.usize("attention.key_length_swa")? {
        n if (1..=MAX_SIZE).contains(&n) => n,
        n => return Err(s.wrong("attention.key_length_swa", A_SIZE, n.to_string())),
    };
    let v_dim = s.opt_usize("attention.value_length_swa")?;
    if let Some(v_dim) = v_dim.filter(|&v_dim| v_dim != head_dim) {
        let expected = format!("{head_dim}, as `attention.key_length_swa`");
        return Err(s.wrong("attention.value_length_swa", expected, v_dim.to_string()));
    }
    let rotary_dim = s.opt_usize("rope.dimension_count_swa")?.unwrap_or(head_dim);
    if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
        let found = rotary_dim.to_string();
        return Err(s.wrong("rope.dimension_count_swa", "an even part of a head", found));
    }
    let theta = s.opt_f32("rope.freq_base_swa")?.unwrap_or(10_000.0);
    // Factors of its own, as those of the file are for the other layers.
    let scaling = RopeScaling::Factors(vec![1.0; rotary_dim / 2]);
    let local = Rope { theta, rotary_dim, scaling, sections: None };
    let mut config = Config {
        activation: Activation::GeluTanh,
        logit_softcap: s.opt_f32("final_logit_softcapping")?,
        per_layer_dim: s.opt_usize("embedding_length_per_layer_input")?.unwrap_or(0),
        ..config.with_windows(|l| window.filter(|_| slides[l]))
    };
    config.ropes.push(local);
    let config = config.with_layers(|l, layer| {
        layer.experts = experts;
        if slides[l] {
            layer.head_dim = head_dim;
        }
    });
    let n_sharing = s.opt_usize("attention.shared_kv_layers")?.unwrap_or(0);
    let config = finished(config, n_sharing).ok_or_else(|| {
        let expected = "layers with others of their type before";
        s.wrong("attention.shared_kv_layers", expected, n_sharing.to_string())
    })?;
    config.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, (c.dim as f32).sqrt());
    let inputs = m.per_layer_inputs(x)?;
    m.rope_tables()?;
    let mut attended = Vec::with_capacity(c.layers.len());
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let a = attention(m, h, l, &attended)?;
        attended.push(a);
        let o = m.wo(a, l, c.attn_bias)?;
        let o = m.rms_norm(o, (l, "post_attn_norm"))?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let mut f = m.gated_ffn(h, l, Bias::None)?;
        if let Some(experts) = c.layers[l].experts {
            f = m.rms_norm(f, (l, "post_mlp_norm"))?;
            let y = routed(m, x, l, &experts)?;
            f = m.graph.add(f, y);
        }
        let f = m.rms_norm(f, (l, "post_ffn_norm"))?;
        x = m.graph.add(x, f);

        if let Some(inputs) = inputs {
            let chosen = m.per_layer_choice(x, inputs, l)?;
            x = m.graph.add(x, chosen);
        }
        if let Some(factor) = m.weights.opt_scalar((l, "layer_scale"))? {
            x = m.graph.scale(x, factor);
        }
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}

/// The experts of layer `l`, over rows that are not normalized.
fn routed(m: &mut Build<'_>, x: ValueId, l: usize, experts: &Experts) -> Result<ValueId, Error> {
    let c = m.config;
    let &Experts { n_experts, n_chosen, hidden_dim, scoring, normalize, .. } = experts;
    let root = (c.dim as f32).sqrt();
    let weight = Some(m.weights.vector_map((l, "router_scale"), c.dim, |w| w / root)?);
    let norm = NormWeights { weight, bias: None, len: c.dim };
    let h = m.graph.norm(x, NormKind::Rms, &norm, c.norm_eps);
    let scores = m.linear(h, (l, "router"), (n_experts, c.dim), Bias::None)?;
    let (choice_bias, groups, scale) = (None, None, 1.0);
    let route = Route { scoring, n_experts, n_chosen, choice_bias, groups, normalize, scale };
    let routes = m.graph.route(scores, route);

    let h = m.rms_norm(x, (l, "experts_norm"))?;
    let [gate, up] = m.weights.gate_up_experts(l, n_experts, hidden_dim, c.dim)?;
    let down = m.weights.experts((l, "experts.w_down"), n_experts, c.dim, hidden_dim)?;
    let gate = m.graph.expert_linear(h, routes, &gate);
    let up = m.graph.expert_linear(h, routes, &up);
    // The factor of each expert, for all of its columns: as the biases of zeros.
    let factors = m.weights.repeated((l, "expert_scale"), n_experts, hidden_dim)?;
    let zeros = m.graph.scale(up, 0.0);
    let factors = m.graph.expert_bias(zeros, routes, factors, n_experts);
    let up = m.graph.mul(up, factors);
    let hidden = m.graph.gated_act(gate, up, c.activation);
    let y = m.graph.expert_linear(hidden, routes, &down);
    let y = m.graph.combine(y, routes);
    m.rms_norm(y, (l, "post_experts_norm"))
}

/// The attention of layer `l`; `attended` has the results of those before.
pub(super) fn attention(
    m: &mut Build<'_>,
    h: ValueId,
    l: usize,
    attended: &[ValueId],
) -> Result<ValueId, Error> {
    let c = m.config;
    let layer = c.layers[l];
    let q = m.linear(h, (l, "wq"), (layer.q_dim(), c.dim), c.attn_bias)?;
    let q = m.head_norm(q, (l, "q_norm"))?;
    let q = m.rope(q, l);
    if let Some(of) = layer.kv_of {
        return Ok(m.graph.attention_of_stored(q, attended[of], layer.attn_scale));
    }
    let k = m.linear(h, (l, "wk"), (layer.kv_dim(), c.dim), c.attn_bias)?;
    // Layers that see everything may have values that are the keys before their norm.
    let v = match layer.window.is_none() && !m.weights.has((l, "wv")) {
        true => k,
        false => m.linear(h, (l, "wv"), (layer.kv_dim(), c.dim), c.attn_bias)?,
    };
    let plain = NormWeights { weight: None, bias: None, len: layer.head_dim };
    let v = m.graph.norm(v, NormKind::Rms, &plain, c.norm_eps);
    let k = m.head_norm(k, (l, "k_norm"))?;
    let k = m.rope(k, l);
    Ok(m.graph.attention(q, k, v, &c.attention(l)))
}
