//! The architectures: one short file each, over shared pieces, and the registry
//! that finds them by name.
//!
//! An architecture maps settings to a [`Config`], says where its tensors' names
//! deviate, and records its forward pass. It names no backend.

mod baichuan;
mod cohere2;
mod command_r;
pub mod config;
mod deepseek2;
mod ernie4_5;
mod ernie4_5moe;
mod exaone4;
mod experts;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4;
mod glm4moe;
mod gpt2;
mod gptj;
mod gptneox;
mod gptoss;
mod granite;
mod granitemoe;
mod hunyuan;
mod hunyuanmoe;
mod internlm2;
mod layer_embeddings;
mod lfm2;
mod lfm2moe;
mod llama;
mod llama4;
pub mod loader;
mod minicpm;
mod minimax_m2;
mod mistral3;
mod nemotron;
mod olmo;
mod olmo2;
mod olmoe;
mod output;
mod phi2;
mod phi3;
mod phimoe;
mod pieces;
mod predictor;
mod qwen2;
mod qwen2moe;
mod qwen2vl;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod qwen3vlmoe;
pub mod rope;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

pub use output::ModelOutput;
pub(crate) use pieces::Build;

use crate::Error;
use crate::checkpoint::names::NameTable;
use crate::checkpoint::{Asked, Checkpoint, GgufSettings, HfSettings, Quantized};
use crate::graph::weights::Weights;
use crate::graph::{Graph, ValueId};
use config::Config;

/// One row of the registry.
pub(crate) struct Architecture {
    /// The name in messages and in GGUF's `general.architecture`.
    name: &'static str,
    /// The values of `model_type` in config.json.
    hf_model_types: &'static [&'static str],
    /// Where the names in safetensors files deviate from the common table.
    hf_names: NameTable,
    /// Where the names in GGUF files deviate from the common table.
    gguf_names: NameTable,
    /// Endings of tensors that files carry and no computation needs, and beginnings, which end in a dot.
    ignored: &'static [&'static str],
    config_from_hf: fn(&HfSettings) -> Result<Config, Error>,
    config_from_gguf: fn(GgufSettings<'_>) -> Result<Config, Error>,
    forward: fn(&mut Build<'_>) -> Result<ValueId, Error>,
}

static REGISTRY: [&Architecture; 53] = [
    &llama::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &gemma::ARCHITECTURE,
    &gemma2::ARCHITECTURE,
    &gemma3::ARCHITECTURE,
    &gemma3n::ARCHITECTURE,
    &gemma4::ARCHITECTURE,
    &deepseek2::ARCHITECTURE,
    &phi2::ARCHITECTURE,
    &phi3::ARCHITECTURE,
    &gpt2::ARCHITECTURE,
    &olmo::ARCHITECTURE,
    &olmo2::ARCHITECTURE,
    &lfm2::ARCHITECTURE,
    &gptoss::ARCHITECTURE,
    &olmoe::ARCHITECTURE,
    &glm4moe::ARCHITECTURE,
    &minimax_m2::ARCHITECTURE,
    &lfm2moe::ARCHITECTURE,
    &ernie4_5moe::ARCHITECTURE,
    &phimoe::ARCHITECTURE,
    &granitemoe::ARCHITECTURE,
    &hunyuanmoe::ARCHITECTURE,
    &qwen35::ARCHITECTURE,
    &qwen35moe::ARCHITECTURE,
    &qwen2moe::ARCHITECTURE,
    &qwen2vl::ARCHITECTURE,
    &qwen3moe::ARCHITECTURE,
    &baichuan::ARCHITECTURE,
    &cohere2::ARCHITECTURE,
    &command_r::ARCHITECTURE,
    &ernie4_5::ARCHITECTURE,
    &exaone4::ARCHITECTURE,
    &falcon::ARCHITECTURE,
    &glm::ARCHITECTURE,
    &glm4::ARCHITECTURE,
    &gptj::ARCHITECTURE,
    &gptneox::ARCHITECTURE,
    &granite::ARCHITECTURE,
    &hunyuan::ARCHITECTURE,
    &internlm2::ARCHITECTURE,
    &minicpm::ARCHITECTURE,
    &mistral3::ARCHITECTURE,
    &nemotron::ARCHITECTURE,
    &seed_oss::ARCHITECTURE,
    &smollm3::ARCHITECTURE,
    &stablelm::ARCHITECTURE,
    &starcoder2::ARCHITECTURE,
    &qwen3next::ARCHITECTURE,
    &qwen3vl::ARCHITECTURE,
    &qwen3vlmoe::ARCHITECTURE,
    &llama4::ARCHITECTURE,
];

/// The architectures of GGUF files, as `general.architecture` calls them.
pub fn supported_gguf() -> Vec<&'static str> {
    REGISTRY.iter().map(|a| a.name).collect()
}

/// The architectures of Hugging Face directories, as `model_type` calls them.
pub fn supported_hf() -> Vec<&'static str> {
    REGISTRY.iter().flat_map(|a| a.hf_model_types).copied().collect()
}

impl Architecture {
    /// The architecture that the checkpoint names.
    fn of(checkpoint: &Checkpoint) -> Result<&'static Self, Error> {
        let name = checkpoint.architecture()?;
        let found = REGISTRY.iter().find(|a| match checkpoint {
            Checkpoint::Gguf(_) => a.name == name,
            Checkpoint::Hf { .. } => a.hf_model_types.contains(&name),
        });
        found.copied().ok_or_else(|| Error::UnknownArchitecture {
            path: checkpoint.path().to_owned(),
            name: name.to_owned(),
            relation: checkpoint.relation(),
            known: match checkpoint {
                Checkpoint::Gguf(_) => supported_gguf(),
                Checkpoint::Hf { .. } => supported_hf(),
            }
            .join(", "),
        })
    }
}

/// A checkpoint, understood: its settings, its graph and its weights.
pub struct Recorded {
    /// The name in the registry.
    pub architecture: &'static str,
    /// The settings.
    pub config: Config,
    /// The forward pass.
    pub graph: Graph,
    /// The weights that the graph names.
    pub weights: Weights,
}

/// Reads the settings of a checkpoint.
pub fn config(checkpoint: &Checkpoint) -> Result<Config, Error> {
    let architecture = Architecture::of(checkpoint)?;
    let asked = Asked::default();
    let config = match checkpoint {
        Checkpoint::Gguf(gguf) => {
            let settings = GgufSettings::noting(gguf, &asked);
            let config = (architecture.config_from_gguf)(settings)?;
            if !settings.bool_or("attention.causal", true)? {
                return Err(settings.unsupported("bidirectional attention"));
            }
            settings.check_unread(&asked)?;
            config
        }
        Checkpoint::Hf { settings, quantized, .. } => {
            if quantized.is_none()
                && let Some(q) = settings.opt_object("quantization_config")?
            {
                let method = q.opt_str("quant_method")?.unwrap_or("unnamed");
                let feature = format!("quantization method `{method}` (`quant_method`)");
                return Err(settings.unsupported_value(feature, Quantized::METHODS));
            }
            let config = (architecture.config_from_hf)(&settings.as_class()?)?;
            check_causal(settings)?;
            settings.check_unread(architecture.name)?;
            config
        }
    };
    config.check_factors().map_err(|(key, expected, found)| Error::Setting {
        path: checkpoint.path().to_owned(),
        key: key.to_owned(),
        expected: expected.to_owned(),
        found: found.to_string(),
    })?;
    Ok(config)
}

/// Refuses models that attend in both directions, as decoders that were made into encoders do.
fn check_causal(settings: &HfSettings) -> Result<(), Error> {
    // Rows of images alone see each other in both directions by this value.
    let of_images = settings.text_is("use_bidirectional_attention", "vision");
    if !of_images && settings.bool_or("use_bidirectional_attention", false)? {
        return Err(settings.unsupported("`use_bidirectional_attention`"));
    }
    if !settings.bool_or("is_causal", true)? {
        return Err(settings.unsupported("bidirectional attention (`is_causal`)"));
    }
    Ok(())
}

/// Records the graph of a checkpoint for contexts up to `context`. Where the head is of no use
/// for `output`, the checkpoint may omit it. If it is to draft tokens and the model has a layer for that, the graph
/// has a part for it.
///
/// # Errors
/// If the architecture is not in the registry, a tensor is missing, unused or of the wrong shape or type, or a setting
/// is not supported.
pub fn record(
    checkpoint: &Checkpoint,
    config: Config,
    context: usize,
    output: ModelOutput,
    drafts: bool,
) -> Result<Recorded, Error> {
    let architecture = Architecture::of(checkpoint)?;
    let names = match checkpoint {
        Checkpoint::Gguf(_) => architecture.gguf_names,
        Checkpoint::Hf { .. } => architecture.hf_names,
    };
    let wants_predictor = drafts && output == ModelOutput::Logits;
    let with_predictor = predictor::settings(&config, wants_predictor);
    let configs = (&config, with_predictor.as_ref());
    let mut build = Build::new(checkpoint, configs, names, (context, output));
    let logits = (architecture.forward)(&mut build)?;
    let (graph, weights) = build.finish(logits, architecture.name, architecture.ignored)?;
    Ok(Recorded { architecture: architecture.name, config, graph, weights })
}
