//! gpt2: learned positions, LayerNorm, a plain GELU network, biases everywhere.
//!
//! Radford et al., 2019. Safetensors files store its matrices as `[in, out]`.

use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, Layer, activation_from_hf, hf_n_layers};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Activation, NormKind, Reach, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gpt2",
    hf_model_types: &["gpt2"],
    hf_names: &[
        ("tok_embed", "transformer.wte"),
        ("pos_embed", "transformer.wpe"),
        ("final_norm", "transformer.ln_f"),
        ("attn_norm", "transformer.h.{}.ln_1"),
        ("wqkv", "transformer.h.{}.attn.c_attn"),
        ("wo", "transformer.h.{}.attn.c_proj"),
        ("ffn_norm", "transformer.h.{}.ln_2"),
        ("w_up", "transformer.h.{}.mlp.c_fc"),
        ("w_down", "transformer.h.{}.mlp.c_proj"),
    ],
    gguf_names: &[],
    // Causal masks that early checkpoints carry.
    ignored: &[".attn.bias", ".attn.masked_bias"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let (dim, n_heads) = (s.usize("n_embd")?, s.usize("n_head")?);
    let head_dim = dim.checked_div(n_heads).unwrap_or(0);
    let max_seq_len = s.usize("n_positions")?;
    let hidden_dim = s.opt_usize("n_inner")?.unwrap_or(dim.saturating_mul(4));
    let layer = Layer { rope: None, ..Layer::new(n_heads, n_heads, head_dim, hidden_dim) };
    let scaled = s.bool("scale_attn_weights")?;
    let scaled_by_layer = s.bool("scale_attn_by_inverse_layer_idx")?;
    let config = Config {
        dim,
        layers: vec![layer; hf_n_layers(s, "n_layer")?],
        vocab_size: s.usize("vocab_size")?,
        max_seq_len,
        norm_eps: s.f32("layer_norm_epsilon")?,
        ropes: Vec::new(),
        qk_norm: false,
        gate_limit: None,
        attn_softcap: None,
        alibi: false,
        reach: Reach::Causal,
        query_growth: None,
        qkv_limit: None,
        logit_softcap: None,
        embed_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        parallel_residual: false,
        activation: activation_from_hf(s, s.str("activation_function")?)?,
        attn_bias: Bias::Required,
        wo_bias: None,
        ffn_bias: Bias::Required,
        tied_head: Some(s.bool("tie_word_embeddings")?),
        n_predictors: 0,
        per_layer_dim: 0,
        latent: None,
        per_layer_tokens: None,
        altup: None,
        predictor: None,
    };
    let config = config.checked_hf(s)?;
    Ok(config.with_layers(|l, layer| {
        if !scaled {
            layer.attn_scale = 1.0;
        }
        if scaled_by_layer {
            layer.attn_scale /= (l + 1) as f32;
        }
    }))
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Layer)?;
    let config = config.with_layers(|_, layer| layer.rope = None);
    Ok(Config { activation: Activation::GeluTanh, ropes: Vec::new(), ..config })
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    if m.weights.is_hf() {
        m.weights.linears_are_transposed();
    }
    let tok_embed = m.tok_embed()?;
    let pos_embed = m.weights.matrix("pos_embed", c.max_seq_len, c.dim)?;
    let (tokens, positions) = (m.graph.embed(&tok_embed, 1.0), m.graph.pos_embed(&pos_embed));
    let mut x = m.graph.add(tokens, positions);
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.layer_norm(x, (l, "attn_norm"))?;
        let [q, k, v] = m.qkv(h, l, Bias::Required)?;
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, Bias::Required)?;
        x = m.graph.add(x, o);

        let h = m.layer_norm(x, (l, "ffn_norm"))?;
        let f = m.plain_ffn(h, l, Bias::Required)?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.layer_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
