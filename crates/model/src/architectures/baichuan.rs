//! baichuan: Baichuan 7B and 13B. The llama shape with one stacked matrix for Q, K and V. The larger models have
//! ALiBi instead of rotary embeddings.
//!
//! Yang et al., 2023 (arXiv:2309.10305). GGUF files store Q, K and V apart, the rows of Q and K permuted as
//! llama's are, also where nothing rotates them.

use super::{Architecture, llama};
use crate::Error;
use crate::architectures::config::{Config, HfKeys};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::NormKind;
use serde_json::json;

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

/// The layers of models with 13B parameters. No setting says that they have ALiBi.
const LAYERS_13B: usize = 40;

/// The vocabulary of the second generation, whose head's rows are normalized while it runs.
const VOCAB_2: usize = 125_696;

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    // Only the models with rotary embeddings give the length under this name.
    let alibi = s.usize("num_hidden_layers")? == LAYERS_13B || !s.has("max_position_embeddings");
    if s.usize("vocab_size")? == VOCAB_2 {
        return Err(s.unsupported("the head of Baichuan 2, whose rows are normalized,"));
    }
    if !alibi {
        return Config::from_hf(s, &HfKeys::COMMON);
    }
    let len = s.usize("model_max_length")?;
    Ok(with_alibi(Config::from_hf(
        &s.with_value("max_position_embeddings", json!(len)),
        &HfKeys::COMMON,
    )?))
}

fn with_alibi(config: Config) -> Config {
    let config = config.with_layers(|_, layer| layer.rope = None);
    Config { alibi: true, ropes: Vec::new(), ..config }
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    let config = Config::from_gguf(s, NormKind::Rms)?;
    Ok(if config.layers.len() == LAYERS_13B { with_alibi(config) } else { config })
}
