//! `realizar embed`: texts in, one vector for each out.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use realizar_runtime::tokenizer::EncodeOptions;
use realizar_runtime::{EmbedParams, ModelOutput, Pooling};
use serde::Serialize;

use crate::engine::{Engine, Needs};
use crate::options::{GlobalArgs, LoadArgs, positive, read_text};
use crate::ui;

/// One line for every text, in their order.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// The texts; without one, -f FILE or standard input is read as one text. Put -- before a text
    /// that starts with a hyphen
    #[arg(value_name = "TEXT", allow_negative_numbers = true)]
    texts: Vec<String>,
    /// Read one text from FILE; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "texts")]
    file: Option<PathBuf>,
    /// Pooling of the hidden states [default: as the model specifies, or last]
    #[arg(long, value_enum)]
    pooling: Option<PoolingArg>,
    /// Keep only the first N elements, for models trained for that
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    dimensions: Option<usize>,
    /// Do not scale the vectors to unit length
    #[arg(long)]
    no_normalize: bool,
    /// Maximum number of tokens of a text [default: the model's context, as
    /// far as it fits into free memory]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    ctx: Option<usize>,
    /// Print a JSON object for every text: {"embedding": […], "n_tokens": N}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// How hidden states become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PoolingArg {
    /// That of the last token.
    Last,
    /// The mean of all.
    Mean,
    /// That of the first token.
    Cls,
}

impl From<PoolingArg> for Pooling {
    fn from(pooling: PoolingArg) -> Self {
        match pooling {
            PoolingArg::Last => Self::Last,
            PoolingArg::Mean => Self::Mean,
            PoolingArg::Cls => Self::Cls,
        }
    }
}

/// The object of --json.
#[derive(Serialize)]
struct Output {
    embedding: Vec<f32>,
    n_tokens: usize,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let texts = match args.texts.as_slice() {
        [] => vec![read_text(None, args.file.as_ref(), "text")?],
        texts => texts.to_vec(),
    };
    let path = global.sources().resolve(&args.model)?;
    let needs = Needs { ctx: args.ctx, output: ModelOutput::Embeddings, ..Needs::default() };
    let mut engine = Engine::load(&path, &args.load, global, needs)?;
    let pooling = args.pooling.map_or_else(|| engine.model.pooling(), |arg| Ok(arg.into()))?;
    tracing::info!(%pooling, n_texts = texts.len(), "embedding");
    let params = EmbedParams {
        pooling: Some(pooling),
        dimensions: args.dimensions,
        normalize: !args.no_normalize,
    };
    let options = EncodeOptions { add_special: true, parse_special: true };
    for text in &texts {
        let ids = engine.encode(text, options)?;
        let embedding = engine.model.embed(&ids, &params)?;
        if args.json {
            ui::json(&Output { embedding, n_tokens: ids.len() })?;
        } else {
            ui::json(&embedding)?;
        }
    }
    Ok(())
}
