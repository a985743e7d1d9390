//! glm4moe: GLM 4.5 to 4.7, and the text models of GLM-4.5V and GLM-4.6V. The first layers are dense, the others have experts, selected by sigmoid scores with a
//! bias, and one shared expert. Half of each head is rotated.
//!
//! GLM-4.5 Team, 2025 (arXiv:2508.06471). The layer that predicts a second token looks as the others.

use super::experts::{gguf_counts, gguf_scoring, gguf_shared_dim, groups_of, hf_counts_of};
use super::llama::{Shape, decoder};
use super::{Architecture, Build, glm4};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, Scoring, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "glm4moe",
    hf_model_types: &["glm4_moe", "glm4v_moe_text"],
    hf_names: &[
        ("choice_bias", "model.layers.{}.mlp.gate.e_score_correction_bias"),
        ("shared.w_gate", "model.layers.{}.mlp.shared_experts.gate_proj"),
        ("shared.w_up", "model.layers.{}.mlp.shared_experts.up_proj"),
        ("shared.w_down", "model.layers.{}.mlp.shared_experts.down_proj"),
    ],
    gguf_names: &[("ffn_norm", "blk.{}.post_attention_norm")],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = match s.str("model_type")? {
        "glm4v_moe_text" => HfRopeKeys { partial: Some(0.5), ..glm4::ROPE_OF_IMAGES },
        _ => HfRopeKeys { partial: Some(0.5), ..HfRopeKeys::COMMON },
    };
    let config = Config {
        attn_bias: hf_bias(s, "attention_bias")?,
        qk_norm: s.bool_or("use_qk_norm", false)?,
        ..Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?
    };
    let counts = hf_counts_of(s, "n_routed_experts", "num_experts_per_tok")?;
    let groups = groups_of((s.usize("n_group")?, s.usize("topk_group")?), counts);
    let groups = groups.map_err(|expected| s.wrong("topk_group", expected))?;
    let hidden_dim = s.usize("moe_intermediate_size")?;
    let shared_dim = s.usize("n_shared_experts")?.saturating_mul(hidden_dim);
    let experts = Experts {
        scoring: Scoring::Sigmoid,
        choice_bias: true,
        groups,
        scale: s.f32("routed_scaling_factor")?,
        shared_dim: Some(shared_dim).filter(|&dim| dim > 0),
        ..Experts::softmax(counts, hidden_dim, s.bool("norm_topk_prob")?)
    };
    let n_predictors = s.usize_or("num_nextn_predict_layers", 0)?;
    s.pass_over("num_mtp_layers");
    let config = config.with_predictors(n_predictors);
    let n_dense = s.usize("first_k_dense_replace")?;
    config.with_layers(|l, layer| layer.experts = (l >= n_dense).then_some(experts)).checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let mut config = Config::from_gguf(s, NormKind::Rms)?.without_gguf_predictors(s)?;
    config.qk_norm = s.gguf().tensor_info("blk.0.attn_q_norm.weight").is_some();
    if s.gguf().metadata().get("glm4moe.rope.dimension_sections").is_some() {
        return Err(s.unsupported("M-RoPE (`rope.dimension_sections`)"));
    }
    let Some(counts) = gguf_counts(s)? else {
        return Err(s.wrong("expert_count", "a number of experts", "nothing"));
    };
    let key = "expert_group_used_count";
    let n_open = s.opt_usize(key)?.unwrap_or(1);
    let groups = groups_of((s.opt_usize("expert_group_count")?.unwrap_or(1), n_open), counts);
    let groups = groups.map_err(|expected| s.wrong(key, expected, n_open.to_string()))?;
    let hidden_dim = s.usize("expert_feed_forward_length")?;
    let experts = Experts {
        scoring: gguf_scoring(s, Scoring::Sigmoid)?,
        choice_bias: true,
        groups,
        // Zero stands for no factor.
        scale: s.opt_f32("expert_weights_scale")?.filter(|&x| x != 0.0).unwrap_or(1.0),
        shared_dim: gguf_shared_dim(s, hidden_dim)?,
        ..Experts::softmax(counts, hidden_dim, s.bool_or("expert_weights_norm", false)?)
    };
    let n_dense = s.opt_usize("leading_dense_block_count")?.unwrap_or(0);
    config.with_layers(|l, layer| layer.experts = (l >= n_dense).then_some(experts)).checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    m.weights.ignore_layers_from(c.layers.len() + usize::from(m.has_predictor()));
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape { wo_bias: Bias::None, qk_norm: c.qk_norm, ..Shape::of(c) };
    decoder(m, tok_embed, x, shape)
}
