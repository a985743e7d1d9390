//! starcoder2: StarCoder 2. LayerNorm, biases and a plain feed-forward network around llama's attention.
//!
//! Lozhkov et al., 2024 (arXiv:2402.19173).

use super::llama::{Shape, attention};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, HfWindow, window_or_none};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Activation, NormKind, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "starcoder2",
    hf_model_types: &["starcoder2"],
    hf_names: &[("w_up", "model.layers.{}.mlp.c_fc"), ("w_down", "model.layers.{}.mlp.c_proj")],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: decoder,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let bias = if s.bool("use_bias")? { Bias::Required } else { Bias::Denied("use_bias") };
    let window = HfWindow::optional(s)?.of_every_layer(s)?;
    let norm_eps = s.f32("norm_epsilon")?;
    let config = Config::from_hf(s, &HfKeys::COMMON)?.with_windows(|_| window);
    Ok(Config { norm_eps, attn_bias: bias, ffn_bias: bias, ..config })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let window = window_or_none(s.opt_usize("attention.sliding_window")?);
    let config = Config::from_gguf(s, NormKind::Layer)?.with_windows(|_| window);
    Ok(Config { activation: Activation::GeluTanh, ffn_bias: Bias::IfPresent, ..config })
}

/// The decoder from tokens to logits, with biases as the settings say and in every norm.
pub(super) fn decoder(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.layer_norm(x, (l, "attn_norm"))?;
        let o = attention(m, h, l, Shape::of(c))?;
        x = m.graph.add(x, o);

        let h = m.layer_norm(x, (l, "ffn_norm"))?;
        let f = m.plain_ffn(h, l, c.ffn_bias)?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.layer_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
