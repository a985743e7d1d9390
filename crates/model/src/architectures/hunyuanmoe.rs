//! hunyuan-moe: Hunyuan with experts in every layer, one of them shared. The llama shape with norms on every head of
//! Q and K after their rotation.
//!
//! Tencent Hunyuan team, 2025 (Hunyuan-A13B).

use super::experts::{gguf_counts, gguf_shared_dim, hf_counts};
use super::llama::decoder_of;
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::architectures::rope::{RopeScaling, parameters_from_hf};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "hunyuan-moe",
    hf_model_types: &["hunyuan_v1_moe"],
    hf_names: &[
        ("q_norm", "model.layers.{}.self_attn.query_layernorm"),
        ("k_norm", "model.layers.{}.self_attn.key_layernorm"),
        ("router", "model.layers.{}.mlp.gate.wg"),
        ("shared.w_gate", "model.layers.{}.mlp.shared_mlp.gate_proj"),
        ("shared.w_up", "model.layers.{}.mlp.shared_mlp.up_proj"),
        ("shared.w_down", "model.layers.{}.mlp.shared_mlp.down_proj"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// A number that is given for all layers, or for each.
fn of_layers(s: &HfSettings, key: &str, n_layers: usize) -> Result<Option<Vec<usize>>, Error> {
    let Ok(list) = s.opt_usizes(key) else { return Ok(Some(vec![s.usize(key)?; n_layers])) };
    if list.as_ref().is_some_and(|list| list.len() != n_layers) {
        return Err(s.wrong(key, format!("a number for each of {n_layers} layers")));
    }
    Ok(list)
}

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    if s.bool_or("use_cla", false)? {
        return Err(s.unsupported("cross-layer attention (`use_cla`)"));
    }
    let mut config = Config::from_hf(s, &HfKeys::COMMON)?;
    config.attn_bias = hf_bias(s, "attention_bias")?;
    let n_layers = config.layers.len();
    // A dynamic stretch with an `alpha` is a larger base at any context.
    let parameters = parameters_from_hf(s)?;
    let alpha = parameters.as_ref().map(|p| p.opt_f32("alpha")).transpose()?.flatten();
    let rope = &mut config.ropes[0];
    if let (RopeScaling::Dynamic { .. }, Some(alpha)) = (&rope.scaling, alpha)
        && alpha != 0.0
    {
        let dim = rope.rotary_dim as f32;
        rope.theta *= alpha.powf(dim / (dim - 2.0));
        rope.scaling = RopeScaling::None;
        if !(rope.theta > 1.0 && rope.theta.is_finite()) {
            let parameters = parameters.as_ref().unwrap_or(s);
            return Err(parameters.wrong("alpha", "a factor that gives a base above 1"));
        }
    }
    // The class reads one number of columns for all experts.
    let hidden_dim = s.usize("intermediate_size")?;
    let of_experts = of_layers(s, "moe_intermediate_size", n_layers)?;
    if of_experts.is_some_and(|dims| dims.iter().any(|&dim| dim != hidden_dim)) {
        return Err(s.wrong("moe_intermediate_size", format!("{hidden_dim} in all layers")));
    }
    if of_layers(s, "num_shared_expert", n_layers)?.is_some_and(|n| n.iter().any(|&n| n != 1)) {
        return Err(s.unsupported("other than one shared expert (`num_shared_expert`)"));
    }
    // What published files say of the one way that there is.
    s.pass_over("use_qk_norm");
    s.pass_over("norm_topk_prob");
    let n_chosen = of_layers(s, "moe_topk", n_layers)?;
    let n_chosen = n_chosen.ok_or_else(|| s.wrong("moe_topk", "a number of experts of a row"))?;
    let mut counts = Vec::with_capacity(n_layers);
    for n in n_chosen {
        counts.push(hf_counts(&s.with_value("num_experts_per_tok", json!(n)))?);
    }
    let shared_dim = Some(hidden_dim);
    let config = config.with_layers(|l, layer| {
        let experts = Experts::softmax(counts[l], hidden_dim, true);
        layer.experts = Some(Experts { shared_dim, ..experts });
    });
    if counts.iter().any(|&(n_experts, _)| n_experts == 0) {
        return Err(s.wrong("num_experts", "a number of experts"));
    }
    config.checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let Some(counts) = gguf_counts(s)? else {
        return Err(s.wrong("expert_count", "a number of experts", "nothing"));
    };
    let shared_dim = gguf_shared_dim(s, config.layers[0].hidden_dim)?;
    let config = config.with_layers(|_, layer| {
        let experts = Experts::softmax(counts, layer.hidden_dim, true);
        let shared_dim = shared_dim.or(Some(layer.hidden_dim));
        layer.experts = Some(Experts { shared_dim, ..experts });
    });
    if s.opt_usize("expert_feed_forward_length")?
        .is_some_and(|dim| config.layers.iter().any(|layer| layer.hidden_dim != dim))
    {
        return Err(
            s.unsupported("an `expert_feed_forward_length` other than the `feed_forward_length`")
        );
    }
    config.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    decoder_of(m, tok_embed, x, Bias::None, |m, h, l| {
        let [q, k, v] = m.qkv(h, l, c.attn_bias)?;
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let (q, k) = (m.head_norm(q, (l, "q_norm"))?, m.head_norm(k, (l, "k_norm"))?);
        let a = m.graph.attention(q, k, v, &c.attention(l));
        m.wo(a, l, c.attn_bias)
    })
}
