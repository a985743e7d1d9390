//! baichuan: Baichuan 7B. The llama shape with one stacked matrix for Q, K and V.
//!
//! Yang et al., 2023 (arXiv:2309.10305). GGUF files store Q, K and V apart, the rows of Q and K permuted as
//! llama's are. Of both generations the models with 13B parameters have ALiBi instead of rotary embeddings.

use super::{Architecture, llama};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::NormKind;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "baichuan",
    hf_model_types: &["baichuan"],
    hf_names: &[("wqkv", "model.layers.{}.self_attn.W_pack")],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: llama::forward,
};

/// The layers of models with 13B parameters. No setting tells that they have ALiBi.
const LAYERS_13B: usize = 40;

/// Why these are not run.
const ALIBI: &str =
    "ALiBi, which the models of Baichuan with 40 layers have in place of rotary embeddings,";

/// The vocabulary of the second generation, whose head's rows are normalized while it runs.
const VOCAB_2: usize = 125_696;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    // Only the models with rotary embeddings give the length under this name.
    if s.usize("num_hidden_layers")? == LAYERS_13B || !s.has("max_position_embeddings") {
        return Err(s.unsupported(ALIBI));
    }
    if s.usize("vocab_size")? == VOCAB_2 {
        return Err(s.unsupported("the head of Baichuan 2, whose rows are normalized,"));
    }
    Config::from_hf(s, &HfKeys::COMMON)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    if config.layers.len() == LAYERS_13B {
        return Err(s.unsupported(ALIBI));
    }
    Ok(config)
}
