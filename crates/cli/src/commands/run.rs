//! `realizar run`: one prompt, one answer, streamed as it is generated.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use crate::engine::{Generation, Message, Model};
use crate::interrupt;
use crate::options::{GenerateArgs, GlobalArgs, LoadArgs, TemplateArgs, read_text};
use crate::ui;

/// The answer streams to standard output, a line with timings goes to standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// The prompt; without it, -f FILE or standard input is read
    prompt: Option<String>,
    /// Read the prompt from FILE; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Give the prompt to the model as it is, without a chat template
    #[arg(long, conflicts_with_all = ["system", "template"])]
    raw: bool,
    /// Print one JSON object when done, instead of streaming
    #[arg(long)]
    json: bool,
    /// With --json, report the K most likely tokens of every step
    #[arg(long, value_name = "K", requires = "json")]
    logprobs: Option<usize>,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<ExitCode> {
    let prompt = read_text(args.prompt.as_deref(), args.file.as_ref(), "prompt")?;
    let path = global.sources()?.resolve(&args.model)?;
    let start = Instant::now();
    let mut model = Model::load(&path, &args.load, args.generate.ctx)?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;

    let prompt_ids = if args.raw {
        model.encode(&prompt, true, true)?
    } else {
        let mut messages = Vec::new();
        if let Some(system) = &args.template.system {
            messages.push(Message { role: "system", content: system.clone() });
        }
        messages.push(Message { role: "user", content: prompt });
        let text = model.render(&messages, args.template.template.as_deref())?;
        // The template writes the special tokens itself.
        model.encode(&text, false, true)?
    };

    let seed = args.generate.seed();
    tracing::info!("seed {seed}, {} prompt tokens", prompt_ids.len());
    let guard = interrupt::Guard::new();
    let mut out = std::io::stdout().lock();
    let mut failed = None;
    let mut ends_line = true;
    let generation =
        model.generate(&prompt_ids, &args.generate, seed, args.logprobs, &mut |token| {
            if guard.asked() {
                return ControlFlow::Break(());
            }
            if !args.json && !token.text.is_empty() {
                ends_line = token.text.ends_with('\n');
                let written = out.write_all(token.text.as_bytes()).and_then(|()| out.flush());
                if let Err(error) = written {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if args.json {
        drop(out);
        ui::json(&object(&model, &prompt_ids, &generation, load_ms, seed))?;
    } else {
        if !ends_line {
            writeln!(out)?;
        }
        if std::io::stdout().is_terminal() {
            ui::note("");
        }
        ui::dim(&timing_line(load_ms, &generation));
    }
    Ok(if guard.asked() { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// `load 210 ms | prompt 9 tokens, 88.1 tok/s | generated 32 tokens, 40.2 tok/s | stop`
pub(crate) fn timing_line(load_ms: f64, generation: &Generation) -> String {
    let g = generation;
    format!(
        "load {load_ms:.0} ms | prompt {} tokens, {:.1} tok/s | generated {} tokens, {:.1} tok/s | {}",
        g.prompt_tokens,
        rate(g.prompt_tokens, g.prompt_ms),
        g.generated_tokens,
        rate(g.generated_tokens, g.generate_ms),
        g.finish_reason
    )
}

/// Tokens per second; 0 when no time was measured.
fn rate(tokens: usize, ms: f64) -> f64 {
    if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 }
}

fn object(
    model: &Model,
    prompt_ids: &[u32],
    generation: &Generation,
    load_ms: f64,
    seed: u64,
) -> serde_json::Value {
    let g = generation;
    let top_logprobs: Vec<Vec<serde_json::Value>> = g
        .top_logprobs
        .iter()
        .map(|step| {
            step.iter()
                .map(|top| {
                    let token = model.token_text(top.id);
                    json!({ "id": top.id, "token": token, "logprob": top.logprob })
                })
                .collect()
        })
        .collect();
    json!({
        "prompt_ids": prompt_ids,
        "ids": g.ids,
        "text": g.text,
        "finish_reason": g.finish_reason,
        "top_logprobs": top_logprobs,
        "seed": seed,
        "timings": {
            "load_ms": load_ms,
            "prompt_tokens": g.prompt_tokens,
            "prompt_ms": g.prompt_ms,
            "prompt_tokens_per_second": rate(g.prompt_tokens, g.prompt_ms),
            "generated_tokens": g.generated_tokens,
            "generate_ms": g.generate_ms,
            "generated_tokens_per_second": rate(g.generated_tokens, g.generate_ms),
        },
    })
}
