//! ernie4_5: the dense models of ERNIE 4.5. The llama shape with interleaved rotary embeddings in files of
//! both formats.
//!
//! Baidu ERNIE team, 2025 (ERNIE 4.5).

use super::llama::{Shape, decoder};
use super::{Architecture, Build};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, hf_bias};
use crate::architectures::loader::Bias;
use crate::architectures::rope::HfRopeKeys;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{NormKind, RopeStyle, ValueId};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "ernie4_5",
    hf_model_types: &["ernie4_5"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let rope = HfRopeKeys { theta: ("rope_theta", 500_000.0), ..HfRopeKeys::COMMON };
    let bias = hf_bias(s, "use_bias")?;
    let config = Config::from_hf(s, &HfKeys { rope, ..HfKeys::COMMON })?;
    Ok(Config { attn_bias: bias, ffn_bias: bias, ..config })
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    Ok(Config { ffn_bias: Bias::IfPresent, ..Config::from_gguf(s, NormKind::Rms)? })
}

fn forward(m: &mut Build<'_>) -> Result<ValueId, Error> {
    m.rope_style = RopeStyle::Interleaved;
    let tok_embed = m.tok_embed()?;
    let x = m.graph.embed(&tok_embed, 1.0);
    let shape = Shape::of(m.config);
    decoder(m, tok_embed, x, shape)
}
