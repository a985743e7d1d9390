//! `realizar kl-divergence`: how far a model's distributions are from those of a base, with the
//! statistics of `llama-perplexity --kl-divergence`. Both models run side by side; no file of
//! logits lies between them.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::ValueEnum;
use realizar_runtime::backend::Phase;
use realizar_runtime::tokenizer::EncodeOptions;
use realizar_runtime::{Estimate, KlDivergence};
use serde_json::{Value, json};

use super::perplexity::{OUTPUTS, chunk_len};
use crate::engine::{Engine, Needs};
use crate::options::{ArithmeticArg, GlobalArgs, LoadArgs, read_text};
use crate::source::progress::Progress;
use crate::ui;

/// The text is cut into chunks of --ctx tokens; the second half of each is compared. Without
/// --base the model is compared with itself in the arithmetic of --base-arithmetic.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// The text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// The base: a model with the same vocabulary [default: MODEL]
    #[arg(long, value_name = "MODEL")]
    base: Option<String>,
    /// Arithmetic of the base; f32 also keeps its keys and values in F32
    #[arg(long, value_enum, default_value = "f32", value_name = "KIND")]
    base_arithmetic: ArithmeticArg,
    /// Run the compared tokens as prefill rows or as decode rows
    #[arg(long, value_enum, default_value = "prompt", value_name = "ROLE")]
    rows: RowsArg,
    /// Tokens per chunk
    #[arg(long, value_name = "N", default_value = "512", value_parser = chunk_len, allow_negative_numbers = true)]
    ctx: usize,
    /// Compare only the first N chunks; at least two [default: all]
    #[arg(long, value_name = "N", value_parser = chunks, allow_negative_numbers = true)]
    chunks: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadArgs,
}

fn chunks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n >= 2 => Ok(n),
        _ => Err("must be a whole number of at least 2".to_owned()),
    }
}

/// The phase of the rows that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RowsArg {
    Prompt,
    Generated,
}

/// The quantiles that are printed: name, key in JSON, fraction.
const QUANTILES: &[(&str, &str, f64)] = &[
    ("maximum", "max", 1.0),
    ("99.9 %", "p99_9", 0.999),
    ("99 %", "p99", 0.99),
    ("90 %", "p90", 0.9),
    ("median", "median", 0.5),
    ("minimum", "min", 0.0),
];

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let text = read_text(None, Some(&args.file), "text")?;
    let sources = global.sources();
    let path = sources.resolve(&args.model)?;
    let base_path = args.base.as_ref().map(|base| sources.resolve(base)).transpose()?;
    let needs = Needs { ctx: Some(args.ctx), outputs: Some(OUTPUTS), ..Needs::default() };
    let mut engine = Engine::load(&path, &args.load, global, needs)?;
    let mut base_load = LoadArgs { arithmetic: args.base_arithmetic, ..args.load.clone() };
    if args.base_arithmetic == ArithmeticArg::F32 {
        base_load.kv_type = None;
    }
    let base_path = base_path.unwrap_or(path);
    let mut base = Engine::load(&base_path, &base_load, global, needs)?;
    let options = EncodeOptions { add_special: true, parse_special: false };
    let mut ids = engine.encode(&text, options)?;
    if base.encode(&text, options)? != ids {
        bail!("{} tokenizes the text differently", base_path.display());
    }
    if let Some(chunks) = args.chunks {
        ids.truncate(chunks.saturating_mul(args.ctx));
    }
    let phase = match args.rows {
        RowsArg::Prompt => Phase::Prefill,
        RowsArg::Generated => Phase::Decode,
    };
    let progress = Progress::steps("kl-divergence", (ids.len() / args.ctx) as u64);
    let (model, base) = (&mut engine.model, &mut base.model);
    let result = model.kl_divergence(base, &ids, args.ctx, phase, &mut |done, total, mean| {
        progress.set_total(total as u64);
        progress.set(done as u64);
        progress.note(&format!("{mean:.6}"));
    })?;
    progress.done();
    if args.json {
        return ui::json(&object(&result, args));
    }
    let mut out = ui::out();
    let KlDivergence { n_tokens, n_chunks, .. } = &result;
    let ctx = args.ctx;
    writeln!(out, "{n_tokens} tokens compared ({n_chunks} chunks of {ctx} tokens)")?;
    let plain = |name: &str, Estimate { value, error }: Estimate| {
        format!("{name:<30} {value:>11.6} ± {error:.6}")
    };
    let percent = |name: &str, Estimate { value, error }: Estimate| {
        format!("{name:<30} {:>9.4} % ± {:.4} %", 100.0 * value, 100.0 * error)
    };
    writeln!(out, "{}", plain("perplexity", result.perplexity))?;
    writeln!(out, "{}", plain("perplexity of the base", result.base_perplexity))?;
    writeln!(out, "{}", plain("ratio", result.perplexity_ratio))?;
    writeln!(out, "{}", plain("KL divergence, mean", result.mean))?;
    for (name, _, fraction) in QUANTILES {
        let name = format!("KL divergence, {name}");
        writeln!(out, "{name:<30} {:>11.6}", result.quantile(*fraction))?;
    }
    writeln!(out, "{}", percent("same top token", result.same_top))?;
    writeln!(out, "{}", percent("change of p, mean", result.mean_change))?;
    writeln!(out, "{}", percent("change of p, RMS", result.rms_change))?;
    out.flush()?;
    Ok(())
}

/// What `--json` prints.
fn object(result: &KlDivergence, args: &Args) -> Value {
    let estimate = |Estimate { value, error }: Estimate| json!({"value": value, "error": error});
    let mut divergence = json!({"mean": result.mean.value, "error": result.mean.error});
    for (_, key, fraction) in QUANTILES {
        divergence[*key] = result.quantile(*fraction).into();
    }
    json!({
        "kl_divergence": divergence,
        "same_top": estimate(result.same_top),
        "mean_change": estimate(result.mean_change),
        "rms_change": estimate(result.rms_change),
        "perplexity": estimate(result.perplexity),
        "base_perplexity": estimate(result.base_perplexity),
        "perplexity_ratio": estimate(result.perplexity_ratio),
        "n_tokens": result.n_tokens,
        "n_chunks": result.n_chunks,
        "ctx": args.ctx,
        "rows": args.rows.to_possible_value().map(|value| value.get_name().to_owned()),
    })
}
