//! glm4: GLM-4-0414, GLM-Z1, and the text models of GLM-4.1V, GLM-4.6V Flash and GLM-OCR. GLM-4 with norms also after
//! attention and feed-forward network.
//!
//! GLM team, 2025 (GLM-4-0414; GLM-4.1V, arXiv:2507.01006). Rotated columns are neighbours in files of both formats. The
//! text models of those with images have multimodal rotary embeddings (M-RoPE).

use super::{Architecture, Build, glm};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
use crate::architectures::loader::Bias;
use crate::architectures::rope::{HfRopeKeys, Sections};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{RopeStyle, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "glm4",
    hf_model_types: &["glm4", "glm4v_text", "glm_ocr_text"],
    hf_names: &[
        ("post_attn_norm", "model.layers.{}.post_self_attn_layernorm"),
        ("post_ffn_norm", "model.layers.{}.post_mlp_layernorm"),
    ],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

/// The rope of the text models beside images.
pub(super) const ROPE_OF_IMAGES: HfRopeKeys = HfRopeKeys {
    partial: Some(1.0),
    sections: Some(Sections { sizes: [8, 12, 12], interleaved: false }),
    ..HfRopeKeys::COMMON
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let attn_bias = match s.str("model_type")? {
        "glm4v_text" => Bias::Required,
        "glm_ocr_text" => Bias::None,
        _ => return glm::config_from_hf(s),
    };
    let keys = HfKeys { rope: ROPE_OF_IMAGES, ..HfKeys::COMMON };
    Ok(Config { attn_bias, ..Config::from_hf(s, &keys)? })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    if s.opt_usize("nextn_predict_layers")?.is_some_and(|n| n > 0) {
        return Err(s.unsupported("multi-token prediction layers (`nextn_predict_layers`)"));
    }
    if s.opt_usizes("rope.dimension_sections")?.is_some_and(|sizes| sizes.iter().any(|&n| n > 0)) {
        return Err(s.unsupported("M-RoPE (`rope.dimension_sections`)"));
    }
    glm::config_from_gguf(s)
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    let c = m.config;
    m.rope_style = RopeStyle::Interleaved;
    // Layers that predict further tokens.
    m.weights.ignore_layers_from(c.layers.len());
    let tok_embed = m.tok_embed()?;
    let mut x = m.graph.embed(&tok_embed, 1.0);
    m.rope_tables()?;
    for l in 0..c.layers.len() {
        m.graph.begin_layer(l);
        let h = m.rms_norm(x, (l, "attn_norm"))?;
        let [q, k, v] = m.qkv(h, l, c.attn_bias)?;
        let (q, k) = (m.rope(q, l), m.rope(k, l));
        let a = m.graph.attention(q, k, v, &c.attention(l));
        let o = m.wo(a, l, Bias::None)?;
        let o = m.rms_norm(o, (l, "post_attn_norm"))?;
        x = m.graph.add(x, o);

        let h = m.rms_norm(x, (l, "ffn_norm"))?;
        let f = m.gated_ffn(h, l, Bias::None)?;
        let f = m.rms_norm(f, (l, "post_ffn_norm"))?;
        x = m.graph.add(x, f);
    }
    m.graph.end_layers();
    let x = m.graph.select_rows(x);
    let h = m.rms_norm(x, "final_norm")?;
    m.lm_head(h, tok_embed, Bias::None)
}
