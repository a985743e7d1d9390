//! command-r: Command-R, Command-R+ and Aya. Parallel attention and feed-forward network, both after
//! one LayerNorm without bias, and a factor on the logits.
//!
//! Cohere, 2024 (Command R). Rotated columns are neighbours in files of both formats.

use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, RopeStyle, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "command-r",
    hf_model_types: &["cohere"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: decoder,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let qk_norm = s.bool("use_qk_norm")?;
    let rope = HfRopeKeys { theta: ("rope_theta", 500_000.0), ..HfRopeKeys::COMMON };
    Ok(Config { qk_norm, ..scaled_from_hf(s, rope)? })
}

/// The settings that Command-R and its successor share.
pub(super) fn scaled_from_hf(s: &HfSettings, rope: HfRopeKeys) -> Result<Config, Error> {
    Ok(Config {
        norm_eps: s.f32("layer_norm_eps")?,
        logit_scale: s.f32("logit_scale")?,
        attn_bias: hf_bias(s, "attention_bias")?,
        ..Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?
    })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    // The file does not say it, and only the larger models have them.
    let qk_norm = s.gguf().tensor_info("blk.0.attn_q_norm.weight").is_some();
    Ok(Config { qk_norm, ..scaled_from_gguf(s)? })
}

/// As [`scaled_from_hf`].
pub(super) fn scaled_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    // Zero stands for no factor.
    let logit_scale = s.opt_f32("logit_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0);
    Ok(Config { logit_scale, ..Config::from_gguf(s, NormKind::Layer)? })
}

/// The decoder from tokens to logits.
pub(super) fn decoder(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    m.rope_style = RopeStyle::Interleaved;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.norm(x, (l, "attn_norm"), NormKind::Layer, Bias::None)?;
        let [mut q, mut k, v] = m.qkv(h, l, c.attn_bias)?;
        if c.qk_norm {
            (q, k) = (m.each_head_norm(q, (l, "q_norm"))?, m.each_head_norm(k, (l, "k_norm"))?);
        }
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, c.attn_bias)?;
        let f = m.gated_ffn(h, l, Bias::None)?;
        x = m.graph.add(x, o);
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.norm(x, "final_norm", NormKind::Layer, Bias::None)?;
    m.lm_head(h, tok_embed, Bias::None)
}
