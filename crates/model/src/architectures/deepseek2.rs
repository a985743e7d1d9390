//! deepseek2: DeepSeek V2 and V3 and others of their shape. Keys and values of all heads come from one latent
//! vector (MLA), and most layers have experts.
//!
//! DeepSeek-AI, 2024 (DeepSeek-V2, arXiv:2405.04434; DeepSeek-V3, arXiv:2412.19437). Kimi K2 and GLM 4.7 Flash have
//! the same graph, and so has DeepSeek V3.2 in contexts from which its indexer chooses all positions; longer ones are
//! refused. The cache holds the latent vector and the one key that turns, side by side. The matrix that would make a
//! head's keys of the vector takes the head's query to it instead, and that of its values takes what the head attended
//! to (section 2.1.2 of the first). So a layer has one head of keys, and its values are the keys: columns after the
//! vector are left out of their results. The layer that predicts a second token looks as the others with experts;
//! files in GGUF do not have it.

use super::experts::{gguf_counts, gguf_scoring, gguf_shared_dim, groups_of, hf_counts_of};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, Latent, hf_bias};
use crate::architectures::loader::{Bias, GroupedPart};
use crate::architectures::rope::{RopeScaling, parameters_from_hf};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Groups, NormKind, RopeStyle, Route, Scoring, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "deepseek2",
    hf_model_types: &["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_k2"],
    hf_names: &[
        ("q_latent", "model.layers.{}.self_attn.q_a_proj"),
        ("q_latent_norm", "model.layers.{}.self_attn.q_a_layernorm"),
        ("wq_of_latent", "model.layers.{}.self_attn.q_b_proj"),
        ("kv_latent", "model.layers.{}.self_attn.kv_a_proj_with_mqa"),
        ("kv_latent_norm", "model.layers.{}.self_attn.kv_a_layernorm"),
        ("kv_heads", "model.layers.{}.self_attn.kv_b_proj"),
        ("choice_bias", "model.layers.{}.mlp.gate.e_score_correction_bias"),
        ("shared.w_gate", "model.layers.{}.mlp.shared_experts.gate_proj"),
        ("shared.w_up", "model.layers.{}.mlp.shared_experts.up_proj"),
        ("shared.w_down", "model.layers.{}.mlp.shared_experts.down_proj"),
    ],
    gguf_names: &[
        ("q_latent", "blk.{}.attn_q_a"),
        ("q_latent_norm", "blk.{}.attn_q_a_norm"),
        ("wq_of_latent", "blk.{}.attn_q_b"),
        ("kv_latent", "blk.{}.attn_kv_a_mqa"),
        ("kv_latent_norm", "blk.{}.attn_kv_a_norm"),
        ("kv_heads", "blk.{}.attn_kv_b"),
        ("k_heads", "blk.{}.attn_k_b"),
        ("v_heads", "blk.{}.attn_v_b"),
    ],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// Added to the variance of the latent vectors in transformers, whatever the settings say.
const LATENT_EPS: f32 = 1e-6;

/// The models of this shape, by what their config.json has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// DeepSeek V2.
    V2,
    /// DeepSeek V3, and Kimi K2, which is one under another name.
    V3,
    /// DeepSeek V3.2.
    V32,
    /// GLM 4.7 Flash.
    Glm,
}

impl Family {
    fn of(s: &HfSettings) -> Result<Self, Error> {
        Ok(match s.str("model_type")? {
            "deepseek_v2" => Self::V2,
            "deepseek_v32" => Self::V32,
            "glm4_moe_lite" => Self::Glm,
            _ => Self::V3,
        })
    }
}

/// Groups as DeepSeek V2 chooses them, by the best expert of each; V3 does by the two best.
fn by_best(groups: Groups) -> Groups {
    Groups { n_best: 1, ..groups }
}

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let family = Family::of(s)?;
    let latent = Latent {
        q_rank: s.opt_usize("q_lora_rank")?,
        kv_rank: s.usize("kv_lora_rank")?,
        plain_dim: s.usize("qk_nope_head_dim")?,
        rotary_dim: s.usize("qk_rope_head_dim")?,
        v_dim: s.usize("v_head_dim")?,
        turns_neighbours: match family {
            Family::V2 | Family::V32 => true,
            Family::V3 | Family::Glm => s.bool("rope_interleave")?,
        },
        max_dense: match family {
            Family::V32 => Some(s.usize("index_topk")?),
            _ => None,
        },
    };
    s.pass_over("qk_head_dim");
    // The classes' rotary embedding takes it for the turning columns, which it is where they wrote it.
    let reads_it = matches!(family, Family::V3 | Family::V32) && !s.is_absent("head_dim");
    if reads_it && s.usize("head_dim")? != latent.rotary_dim {
        let expected = format!("{}, as `qk_rope_head_dim`", latent.rotary_dim);
        return Err(s.wrong("head_dim", expected));
    }
    s.pass_over("head_dim");
    check(&latent).map_err(|reason| s.unsupported(reason))?;
    let (attn_bias, ffn_bias) = (hf_bias(s, "attention_bias")?, hf_bias(s, "mlp_bias")?);
    let n_heads = s.usize("num_attention_heads")?;
    let n_kv_heads = s.opt_usize("num_key_value_heads")?.unwrap_or(n_heads);
    if n_heads.checked_div(n_kv_heads) != Some(1) {
        let expected = format!("{n_heads}, as all heads have keys of their own");
        return Err(s.wrong("num_key_value_heads", expected));
    }
    let common = s.with_value("head_dim", json!(latent.rotary_dim));
    let common = common.with_value("num_key_value_heads", json!(n_heads));
    let config = Config { attn_bias, ffn_bias, ..Config::from_hf(&common, &HfKeys::COMMON)? };
    let config = finished(config, latent, score_factor_from_hf(s)?);
    let experts = experts_from_hf(s, family)?;
    let is_sparse = sparse_layers_from_hf(s, family, config.layers.len())?;
    let n_predictors = s.usize_or("num_nextn_predict_layers", 0)?;
    // After the others, layers that predict have experts.
    let is_sparse = |l: usize| is_sparse.get(l).is_none_or(|&is_sparse| is_sparse);
    let config = config.with_predictors(n_predictors);
    config.with_layers(|l, layer| layer.experts = experts.filter(|_| is_sparse(l))).checked_hf(s)
}

/// The factor on scores that scaled angles ask for.
fn score_factor_from_hf(s: &HfSettings) -> Result<f32, Error> {
    let Some(p) = parameters_from_hf(s)? else { return Ok(1.0) };
    let all_dim = p.opt_f32("mscale_all_dim")?.filter(|&x| x != 0.0);
    let ty = p.opt_str("rope_type")?.or(p.opt_str("type")?).unwrap_or("default");
    match all_dim.filter(|_| ty != "default") {
        Some(all_dim) => Ok(yarn_factor(p.f32("factor")?, all_dim).powi(2)),
        None => Ok(1.0),
    }
}

/// Which layers have experts.
fn sparse_layers_from_hf(
    s: &HfSettings,
    family: Family,
    n_layers: usize,
) -> Result<Vec<bool>, Error> {
    let n_dense = match family {
        Family::V2 | Family::V3 | Family::V32 => s.usize("first_k_dense_replace")?,
        Family::Glm => {
            s.pass_over("first_k_dense_replace");
            1
        }
    };
    let types =
        s.opt_strs("mlp_layer_types")?.filter(|_| matches!(family, Family::Glm | Family::V32));
    let Some(types) = types else { return Ok((0..n_layers).map(|l| l >= n_dense).collect()) };
    if types.len() != n_layers {
        return Err(s.wrong("mlp_layer_types", format!("{n_layers} layers")));
    }
    let is_sparse = |ty: &str| match ty {
        "sparse" => Ok(true),
        "dense" => Ok(false),
        _ => {
            let feature = format!("a feed-forward network of type `{ty}` (`mlp_layer_types`)");
            Err(s.unsupported_value(feature, &["sparse", "dense"]))
        }
    };
    types.into_iter().map(is_sparse).collect()
}

/// The experts of layers that have such.
fn experts_from_hf(s: &HfSettings, family: Family) -> Result<Option<Experts>, Error> {
    if s.usize("n_routed_experts")? == 0 {
        return Ok(None);
    }
    let counts = hf_counts_of(s, "n_routed_experts", "num_experts_per_tok")?;
    let hidden_dim = s.usize("moe_intermediate_size")?;
    let groups = |s: &HfSettings| {
        groups_of((s.usize("n_group")?, s.usize("topk_group")?), counts)
            .map_err(|expected| s.wrong("topk_group", expected))
    };
    let n_shared = s.usize("n_shared_experts")?;
    let shared_dim = Some(n_shared.saturating_mul(hidden_dim)).filter(|&dim| dim > 0);
    let scale = s.f32("routed_scaling_factor")?;
    let of_both = |normalize| Experts {
        scale,
        shared_dim,
        ..Experts::softmax(counts, hidden_dim, normalize)
    };
    if family != Family::V2 {
        let (scoring, groups) = (Scoring::Sigmoid, groups(s)?);
        let experts = of_both(s.bool("norm_topk_prob")?);
        return Ok(Some(Experts { scoring, choice_bias: true, groups, ..experts }));
    }
    // transformers does not normalize the factors of this model, whatever the file says.
    s.pass_over("norm_topk_prob");
    let groups = match s.str("topk_method")? {
        "greedy" => {
            s.pass_over("n_group");
            s.pass_over("topk_group");
            None
        }
        "group_limited_greedy" => groups(s)?.map(by_best),
        method => {
            let feature = format!("expert selection by `{method}` (`topk_method`)");
            return Err(s.unsupported_value(feature, &["greedy", "group_limited_greedy"]));
        }
    };
    Ok(Some(Experts { groups, ..of_both(false) }))
}

/// No published model comes near this; a file that does is damaged.
const MAX_PART: usize = 1 << 14;

/// Why latent vectors of these sizes cannot be.
fn check(latent: &Latent) -> Result<(), String> {
    let &Latent { q_rank, kv_rank, plain_dim, rotary_dim, v_dim, .. } = latent;
    let sizes = [q_rank.unwrap_or(1), kv_rank, plain_dim, rotary_dim, v_dim];
    if sizes.iter().any(|&n| n == 0 || n > MAX_PART) || !rotary_dim.is_multiple_of(2) {
        return Err(format!("latent attention of sizes {sizes:?}"));
    }
    Ok(())
}

/// YaRN's factor of a stretch: `0.1 * mscale * ln(factor) + 1`.
fn yarn_factor(factor: f32, mscale: f32) -> f32 {
    if factor > 1.0 { 0.1 * mscale * factor.ln() + 1.0 } else { 1.0 }
}

/// With one head of keys for all heads of queries, and scores that are scaled by the width of the heads
/// that it stands for, and by a factor.
fn finished(config: Config, latent: Latent, score_factor: f32) -> Config {
    let width = (latent.plain_dim + latent.rotary_dim) as f32;
    Config { latent: Some(latent), ..config }.with_layers(|_, layer| {
        layer.n_kv_heads = 1;
        layer.head_dim = latent.kv_rank + latent.rotary_dim;
        layer.attn_scale = score_factor / width.sqrt();
    })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let kv_rank = s.usize("attention.kv_lora_rank")?;
    let rotary_dim = s.usize("rope.dimension_count")?;
    let (key, value) = ("attention.key_length_mla", "attention.value_length_mla");
    let [key_dim, v_dim] = match (s.opt_usize(key)?, s.opt_usize(value)?) {
        (Some(key_dim), Some(v_dim)) => [key_dim, v_dim],
        // Files of before llama.cpp had one head of keys.
        _ => [s.usize("attention.key_length")?, s.usize("attention.value_length")?],
    };
    let latent = Latent {
        q_rank: s.opt_usize("attention.q_lora_rank")?.filter(|&rank| rank > 0),
        kv_rank,
        plain_dim: key_dim.saturating_sub(rotary_dim),
        rotary_dim,
        v_dim,
        turns_neighbours: true,
        max_dense: None,
    };
    for (key, n) in [
        ("rope.dimension_count", rotary_dim),
        ("attention.q_lora_rank", latent.q_rank.unwrap_or(1)),
        ("attention.kv_lora_rank", kv_rank),
        (key, latent.plain_dim),
        (value, latent.v_dim),
    ] {
        if n == 0 || n > MAX_PART || (key == "rope.dimension_count" && !n.is_multiple_of(2)) {
            return Err(s.wrong(key, "a size of latent attention", n.to_string()));
        }
    }
    let mut config = Config::from_gguf_with_head(s, NormKind::Rms, Some(rotary_dim))?;
    // The converter writes a tenth of `mscale_all_dim`, which llama.cpp takes for `mscale` too.
    const LOG: &str = "rope.scaling.yarn_log_multiplier";
    let all_dim = 10.0 * s.opt_f32(LOG)?.unwrap_or(0.0);
    if !all_dim.is_finite() {
        return Err(s.wrong(LOG, "a finite number", all_dim.to_string()));
    }
    if let RopeScaling::Yarn { attention_factor, .. } = &mut config.ropes[0].scaling
        && all_dim != 0.0
    {
        *attention_factor = 1.0;
    }
    let score_factor = match config.ropes[0].scaling {
        RopeScaling::Yarn { factor, .. } => yarn_factor(factor, all_dim).powi(2),
        _ => 1.0,
    };
    let config = finished(config, latent, score_factor);
    let Some(counts) = gguf_counts(s)? else { return config.checked_gguf(s) };
    let hidden_dim = s.usize("expert_feed_forward_length")?;
    let groups = (
        s.opt_usize("expert_group_count")?.unwrap_or(1),
        s.opt_usize("expert_group_used_count")?.unwrap_or(1),
    );
    let found = groups.1.to_string();
    let groups = groups_of(groups, counts)
        .map_err(|expected| s.wrong("expert_group_used_count", expected, found))?;
    let n_dense = s.opt_usize("leading_dense_block_count")?.unwrap_or(0);
    // Files of models whose config.json leaves the function out do not say it either.
    let has_bias = |l| s.gguf().tensor_info(&format!("blk.{l}.exp_probs_b.bias")).is_some();
    let choice_bias = (0..config.layers.len()).any(has_bias);
    let default = if choice_bias { Scoring::Sigmoid } else { Scoring::Softmax };
    let scoring = gguf_scoring(s, default)?;
    // Softmax and groups are those of V2, whose files do not say by which experts a group is chosen.
    let groups = match scoring {
        Scoring::Sigmoid => groups,
        _ => groups.map(by_best),
    };
    let experts = Experts {
        scoring,
        choice_bias,
        groups,
        scale: s.opt_f32("expert_weights_scale")?.filter(|&x| x != 0.0).unwrap_or(1.0),
        shared_dim: gguf_shared_dim(s, hidden_dim)?,
        ..Experts::softmax(counts, hidden_dim, s.bool_or("expert_weights_norm", false)?)
    };
    let config = config
        .with_layers(|l, layer| layer.experts = Some(experts).filter(|_| l >= n_dense))
        .without_gguf_predictors(s)?;
    // llama.cpp's converter leaves the layer that predicts a second token out.
    Config { predictor: None, ..config }.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    if m.config.latent.is_some_and(|latent| latent.turns_neighbours) {
        m.rope_style = RopeStyle::Interleaved;
    }
    let max_dense = m.config.latent.and_then(|latent| latent.max_dense);
    if let Some(max_dense) = max_dense.filter(|&most| m.context() > most) {
        return Err(m.weights.unsupported(format!(
            "the sparse-attention indexer, in contexts longer than the {max_dense} positions that \
             it selects (`index_topk`),"
        )));
    }
    if max_dense.is_some() {
        m.weights.ignore(|name| name.contains(".self_attn.indexer."));
    }
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let ffn_bias = m.config.ffn_bias;
    super::llama::decoder_of(m, tok_embed, x, ffn_bias, attention)
}

/// Latent attention over normalized rows.
fn attention(m: &mut Build<'_>, h: ValueId, l: usize) -> Result<ValueId, Error> {
    let c = m.config;
    let latent = c.latent.expect("the architecture sets the sizes");
    let Latent { q_rank, kv_rank, plain_dim, rotary_dim, v_dim, .. } = latent;
    let n_heads = c.layers[l].n_heads;
    let eps = if m.weights.is_hf() { LATENT_EPS } else { c.norm_eps };

    let (of, name, n_in) = match q_rank {
        None => (h, "wq", c.dim),
        Some(rank) => {
            let q = m.linear(h, (l, "q_latent"), (rank, c.dim), c.attn_bias)?;
            let norm = m.weights.norm((l, "q_latent_norm"), rank, Bias::None)?;
            (m.graph.norm(q, NormKind::Rms, &norm, eps), "wq_of_latent", rank)
        }
    };
    let parts = [
        GroupedPart { leaf: "wq_plain", rows: &[(0, plain_dim)] },
        GroupedPart { leaf: "wq_turned", rows: &[(plain_dim, rotary_dim)] },
    ];
    let [plain, turned] = m.weights.grouped_linears((l, name), n_heads, parts, n_in, Bias::None)?;
    let (plain, turned) = (m.graph.linear(of, &plain), m.graph.linear(of, &turned));
    let turned = m.rope_of(turned, l, rotary_dim);

    let parts = [("kv_latent", kv_rank), ("k_turned", rotary_dim)];
    let kv = m.weights.stacked_linears((l, "kv_latent"), parts, c.dim, c.attn_bias)?;
    let [kv, k_turned] = kv.map(|linear| m.graph.linear(h, &linear));
    let norm = m.weights.norm((l, "kv_latent_norm"), kv_rank, Bias::None)?;
    let kv = m.graph.norm(kv, NormKind::Rms, &norm, eps);
    let k_turned = m.rope_of(k_turned, l, rotary_dim);
    let k = m.graph.concat(&[kv, k_turned]);

    // All heads, in their order: the matrices of heads are multiplied as those of experts are.
    let scores = m.graph.columns(plain, 0, n_heads);
    let route = Route {
        scoring: Scoring::Sigmoid,
        n_experts: n_heads,
        n_chosen: n_heads,
        choice_bias: None,
        groups: None,
        normalize: false,
        scale: 1.0,
    };
    let heads = m.graph.route(scores, route);
    let [to_latent, to_values] = m.weights.latent_heads(l, n_heads, &latent)?;
    let q = m.graph.expert_linear(plain, heads, &to_latent);
    let q = m.graph.concat(&[q, turned]);
    // From all heads' queries to the vector, then all that turn, to both of one head after the other.
    let head = |head: usize| {
        let first = n_heads * kv_rank + head * rotary_dim;
        (head * kv_rank..(head + 1) * kv_rank).chain(first..first + rotary_dim)
    };
    let order = (0..n_heads).flat_map(head).map(|column| column as u32).collect();
    let order = m.weights.made_order(order);
    let q = m.graph.columns_of(q, order, n_heads * (kv_rank + rotary_dim));

    let a = m.graph.attention(q, k, k, &c.attention(l));
    // Of what a head attended to, the latent vector.
    let head = |head: usize| (0..kv_rank).map(move |i| head * (kv_rank + rotary_dim) + i);
    let order = (0..n_heads).flat_map(head).map(|column| column as u32).collect();
    let order = m.weights.made_order(order);
    let a = m.graph.columns_of(a, order, n_heads * kv_rank);
    let values = m.graph.expert_linear(a, heads, &to_values);
    m.linear(values, (l, "wo"), (c.dim, n_heads * v_dim), c.attn_bias)
}
