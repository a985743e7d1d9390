//! mistral3: Mistral Small 3.1 and Ministral 3. The llama shape; Ministral has YaRN, and queries scaled with
//! the logarithm of how often their position exceeds the training context.
//!
//! Mistral AI, 2025 (Ministral 3). GGUF files store Q and K with their rows permuted, as llama's do.

use super::{Architecture, llama};
use crate::Error;
use crate::architectures::config::{Config, HfKeys, HfWindow, QueryGrowth};
use crate::architectures::rope::{RopeScaling, parameters_from_hf, yarn_attention_factor};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::NormKind;
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "mistral3",
    hf_model_types: &["ministral3"],
    hf_names: &[],
    gguf_names: &[],
    ignored: &["rotary_emb.inv_freq"],
    config_from_hf,
    config_from_gguf,
    forward: llama::forward,
};

fn config_from_hf(s: &HfSettings) -> Result<Config, Error> {
    let yarn = json!({
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    });
    let s = &s.or_if_null("rope_parameters", yarn);
    let window = HfWindow::optional(s)?.of_every_layer(s)?;
    let config = Config::from_hf(s, &HfKeys::COMMON)?.with_windows(|_| window);
    let Some(parameters) = parameters_from_hf(s)? else {
        return Err(s.wrong("rope_parameters", "an object with `llama_4_scaling_beta`"));
    };
    // A second value of the length, which nothing reads.
    parameters.pass_over("max_position_embeddings");
    let growth = Some(parameters.f32("llama_4_scaling_beta")?);
    let no_yarn = || s.unsupported("query scaling without YaRN (`llama_4_scaling_beta`)");
    with_growth(config, growth, no_yarn)
}

fn config_from_gguf(s: GgufSettings<'_>) -> Result<Config, Error> {
    if s.opt_usize("expert_count")?.is_some_and(|n| n > 0) {
        return Err(s.unsupported("experts in a file of architecture mistral3"));
    }
    let mut config = Config::from_gguf(s, NormKind::Rms)?;
    let mscale = s.opt_f32("rope.scaling.yarn_log_multiplier")?.filter(|&mscale| mscale != 0.0);
    if let (RopeScaling::Yarn { factor, attention_factor, .. }, Some(mscale)) =
        (&mut config.ropes[0].scaling, mscale)
    {
        *attention_factor /= yarn_attention_factor(*factor, mscale);
    }
    let growth = s.opt_f32("attention.temperature_scale")?;
    let no_yarn = || {
        s.unsupported(
            "query scaling (`attention.temperature_scale`) without YaRN (`rope.scaling.type`)",
        )
    };
    with_growth(config, growth, no_yarn)
}

/// Queries grow each time that their position passes the context of the training.
fn with_growth(
    config: Config,
    rate: Option<f32>,
    no_yarn: impl Fn() -> Error,
) -> Result<Config, Error> {
    let Some(rate) = rate.filter(|&rate| rate != 0.0) else { return Ok(config) };
    let RopeScaling::Yarn { original_max_seq_len: period, .. } = config.ropes[0].scaling else {
        return Err(no_yarn());
    };
    Ok(Config { query_growth: Some(QueryGrowth { rate, period, offset: 0 }), ..config })
}
