//! minimax-m2: MiniMax M2. Experts in every layer, selected by sigmoid scores with a bias, one norm each over all
//! heads of Q and of K, and rotation of part of each head.
//!
//! MiniMax, 2025 (MiniMax-M2).

use super::experts::{gguf_scoring, hf_counts, with_gguf_experts};
use super::llama::decoder_of;
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, Scoring, ValueId};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "minimax-m2",
    hf_model_types: &["minimax_m2"],
    hf_names: &[
        ("router", "model.layers.{}.block_sparse_moe.gate"),
        ("choice_bias", "model.layers.{}.block_sparse_moe.e_score_correction_bias"),
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
    // Published files give the rotated columns as a number instead of a part.
    let s = &match (s.opt_usize("rotary_dim")?, s.usize("head_dim")?) {
        (Some(rotary_dim), head_dim) if head_dim > 0 => {
            s.with_defaults([("partial_rotary_factor", json!(rotary_dim as f64 / head_dim as f64))])
        }
        _ => s.clone(),
    };
    let rope = HfRopeKeys { theta: ("rope_theta", 5e6), partial: Some(1.0), ..HfRopeKeys::COMMON };
    let config = Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?;
    let experts = Experts {
        scoring: Scoring::Sigmoid,
        choice_bias: true,
        ..Experts::softmax(hf_counts(s)?, s.usize("intermediate_size")?, true)
    };
    if experts.n_experts == 0 {
        return Err(s.wrong("num_local_experts", "a number of experts"));
    }
    // What the published files say of the one way that there is.
    s.pass_over("use_qk_norm");
    s.pass_over("qk_norm_type");
    s.pass_over("scoring_func");
    s.pass_over("use_routing_bias");
    s.pass_over("shared_intermediate_size");
    config.with_layers(|_, layer| layer.experts = Some(experts)).checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = with_gguf_experts(Config::from_gguf(s, NormKind::Rms)?, s, true)?;
    let scoring = gguf_scoring(s, Scoring::Sigmoid)?;
    let config = config.with_layers(|_, layer| {
        layer.experts.iter_mut().for_each(|experts| {
            (experts.scoring, experts.choice_bias) = (scoring, true);
        });
    });
    config.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    decoder_of(m, tok_embed, x, Bias::None, |m, h, l| {
        let [q, k, v] = m.qkv(h, l, Bias::None)?;
        let q = m.whole_norm(q, (l, "q_norm"), c.layers[l].q_dim())?;
        let k = m.whole_norm(k, (l, "k_norm"), c.layers[l].kv_dim())?;
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        m.wo(a, l, Bias::None)
    })
}
