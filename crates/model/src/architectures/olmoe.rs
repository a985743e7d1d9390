//! olmoe: OLMoE. Experts in every layer, one norm each over all heads of Q and of K, and clamped queries, keys
//! and values in some files.
//!
//! Muennighoff et al., 2024 (arXiv:2409.02060).

use super::experts::{hf_counts, with_gguf_experts};
use super::llama::decoder_of;
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Experts, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "olmoe",
    hf_model_types: &["olmoe"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let normalize = s.bool("norm_topk_prob")?;
    let experts = Experts::softmax(hf_counts(s)?, s.usize("intermediate_size")?, normalize);
    if experts.n_experts == 0 {
        return Err(s.wrong("num_experts", "a number of experts"));
    }
    let config = Config {
        qkv_limit: s.opt_f32("clip_qkv")?,
        attn_bias: hf_bias(s, "attention_bias")?,
        ..Config::from_hf(s, &HfKeys::COMMON)?
    };
    config.with_layers(|_, layer| layer.experts = Some(experts)).checked_hf(s)
}

/// Files have neither a key for factors that are normalized nor one for the columns of an expert, which
/// are those of a dense layer.
fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = with_gguf_experts(Config::from_gguf(s, NormKind::Rms)?, s, false)?;
    let has_own = s.opt_usize("expert_feed_forward_length")?.is_some_and(|dim| dim > 0);
    let config = config.with_layers(|_, layer| {
        let hidden_dim = layer.hidden_dim;
        let own = layer.experts.iter_mut().filter(|_| !has_own);
        own.for_each(|experts| experts.hidden_dim = hidden_dim);
    });
    config.checked_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    decoder_of(m, tok_embed, x, Bias::None, |m, h, l| {
        let [q, k, v] = m.qkv(h, l, c.attn_bias)?;
        let q = m.whole_norm(q, (l, "q_norm"), c.layers[l].q_dim())?;
        let k = m.whole_norm(k, (l, "k_norm"), c.layers[l].kv_dim())?;
        let [q, k, v] = [q, k, v].map(|part| m.graph.clamp(part, c.qkv_limit));
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        m.wo(a, l, c.attn_bias)
    })
}
