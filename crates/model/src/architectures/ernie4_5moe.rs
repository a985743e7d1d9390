//! ernie4_5-moe: ERNIE 4.5 with experts after its first layers, selected with a bias, and one shared expert.
//! Interleaved rotary embeddings in files of both formats.
//!
//! Baidu ERNIE team, 2025 (ERNIE 4.5). Layers that predict further tokens are left out.

use super::experts::{gguf_counts, gguf_shared_dim, hf_counts_of};
use super::llama::{Shape, decoder};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, RopeStyle, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "ernie4_5-moe",
    hf_model_types: &["ernie4_5_moe"],
    hf_names: &[
        ("choice_bias", "model.layers.{}.mlp.moe_statics.e_score_correction_bias"),
        ("shared.w_gate", "model.layers.{}.mlp.shared_experts.gate_proj"),
        ("shared.w_up", "model.layers.{}.mlp.shared_experts.up_proj"),
        ("shared.w_down", "model.layers.{}.mlp.shared_experts.down_proj"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// Sums of an expert's factors are above it.
const MAX_NORM_MIN: f32 = 1e-6;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { theta: ("rope_theta", 500_000.0), ..HfRopeKeys::COMMON };
    let bias = hf_bias(s, "use_bias")?;
    if bias == Bias::IfPresent {
        return Err(s.unsupported("biases in a model with experts (`use_bias`)"));
    }
    let config = Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?;
    let config = Config { attn_bias: bias, ffn_bias: bias, ..config };
    let hidden_dim = s.usize("moe_intermediate_size")?;
    let shared_dim = s.usize("moe_num_shared_experts")?.saturating_mul(hidden_dim);
    let counts = hf_counts_of(s, "moe_num_experts", "moe_k")?;
    // The least sum that factors are divided by, far below the sums that there are.
    if !(0.0..=MAX_NORM_MIN).contains(&s.f32("moe_norm_min")?) {
        return Err(s.unsupported(format!("a `moe_norm_min` above {MAX_NORM_MIN}")));
    }
    let experts = Experts {
        choice_bias: true,
        shared_dim: Some(shared_dim).filter(|&dim| dim > 0),
        ..Experts::softmax(counts, hidden_dim, true)
    };
    let (first, step) = (s.usize("moe_layer_start_index")?, s.usize("moe_layer_interval")?);
    if step == 0 {
        return Err(s.wrong("moe_layer_interval", "a positive number"));
    }
    // -1 stands for the last layer.
    let last = match s.opt_f32("moe_layer_end_index")? {
        Some(-1.0) => usize::MAX,
        _ => s.usize("moe_layer_end_index")?,
    };
    let is_sparse = |l: usize| (first..=last).contains(&l) && (l + 1).is_multiple_of(step);
    config.with_layers(|l, layer| layer.experts = is_sparse(l).then_some(experts)).checked_hf(s)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    let Some(counts) = gguf_counts(s)? else {
        return Err(s.wrong("expert_count", "a number of experts", "nothing"));
    };
    let hidden_dim = s.usize("expert_feed_forward_length")?;
    let first = s.opt_usize("leading_dense_block_count")?.unwrap_or(0);
    let step = s.opt_usize("interleave_moe_layer_step")?.unwrap_or(1);
    if step == 0 {
        return Err(s.wrong("interleave_moe_layer_step", "a positive number", "0"));
    }
    let experts = Experts {
        shared_dim: gguf_shared_dim(s, hidden_dim)?,
        ..Experts::softmax(counts, hidden_dim, true)
    };
    let config = config.with_layers(|l, layer| {
        let is_sparse = l >= first && (l + 1).is_multiple_of(step);
        let bias = format!("blk.{l}.exp_probs_b.bias");
        let choice_bias = s.gguf().tensor_info(&bias).is_some();
        layer.experts = is_sparse.then_some(Experts { choice_bias, ..experts });
    });
    config.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    m.rope_style = RopeStyle::Interleaved;
    m.weights.ignore(|name| name.starts_with("model.mtp_"));
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape::of(m.config);
    decoder(m, tok_embed, x, shape)
}
