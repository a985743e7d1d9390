//! `realizar run`: one prompt, one answer, streamed as it is generated.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use realizar_runtime::template::Message;
use realizar_runtime::tokenizer::EncodeOptions;
use realizar_runtime::{Event, Generation, Model, Timings};
use serde_json::json;

use crate::engine::{Engine, Needs, generate_params};
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
    let needs = Needs { ctx: args.generate.ctx, ..Needs::default() };
    let mut engine = Engine::load(&path, &args.load, needs)?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;

    let prompt_ids = if args.raw {
        engine.encode(&prompt, EncodeOptions { add_special: true, parse_special: true })?
    } else {
        let mut messages = Vec::new();
        if let Some(system) = &args.template.system {
            messages.push(Message::new("system", system.as_str()));
        }
        messages.push(Message::new("user", prompt));
        engine.set_template(&args.template)?;
        engine.chat_prompt(&messages)?
    };

    let params = generate_params(&args.generate, args.logprobs);
    tracing::info!("{} prompt tokens, {:?}", prompt_ids.len(), params.sampling);
    let guard = interrupt::Guard::new();
    let mut out = std::io::stdout().lock();
    let mut failed = None;
    let mut ends_line = true;
    let generation = engine.generate(&prompt_ids, &params, &mut |event| {
        if let Event::Token(token) = event
            && !args.json
            && !token.text.is_empty()
        {
            ends_line = token.text.ends_with('\n');
            let written = out.write_all(token.text.as_bytes()).and_then(|()| out.flush());
            failed = written.err();
        }
        if guard.asked() || failed.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if args.json {
        drop(out);
        let seed = params.sampling.seed;
        ui::json(&object(&engine.model, &prompt_ids, &generation, load_ms, seed)?)?;
    } else {
        out.write_all(generation.tail.as_bytes())?;
        if !generation.tail.is_empty() {
            ends_line = generation.tail.ends_with('\n');
        }
        if !ends_line {
            writeln!(out)?;
        }
        out.flush()?;
        if std::io::stdout().is_terminal() {
            ui::note("");
        }
        let load = format!("load {load_ms:.0} ms | ");
        ui::dim(&(load + &timing_line(&generation)));
    }
    Ok(if guard.asked() { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// `prompt 9 tokens, 88.1 tok/s | generated 32 tokens, 40.2 tok/s | stop`
pub(crate) fn timing_line(generation: &Generation) -> String {
    let t = &generation.timings;
    let reason = serde_json::to_value(generation.finish_reason).unwrap_or_default();
    format!(
        "prompt {} tokens, {:.1} tok/s | generated {} tokens, {:.1} tok/s | {}",
        t.prompt_tokens,
        prompt_rate(t),
        t.generated_tokens,
        rate(t.generated_tokens, t.generate),
        reason.as_str().unwrap_or_default()
    )
}

/// Tokens per second; 0 when no time was measured.
fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// Tokens of the prompt per second, without those that the session held already.
fn prompt_rate(t: &Timings) -> f64 {
    rate(t.prompt_tokens - t.cached_tokens.min(t.prompt_tokens), t.prompt)
}

/// The object of `--json`.
fn object(
    model: &Model,
    prompt_ids: &[u32],
    generation: &Generation,
    load_ms: f64,
    seed: Option<u64>,
) -> Result<serde_json::Value> {
    let tokenizer = model.tokenizer()?;
    let mut top_logprobs = Vec::new(); // one list per generated token
    for step in &generation.top_logprobs {
        let mut list = Vec::new();
        for top in step {
            // A model may have more rows of logits than its vocabulary has tokens.
            let token = tokenizer.token_text(top.id).ok();
            list.push(json!({ "id": top.id, "token": token, "logprob": top.logprob }));
        }
        top_logprobs.push(list);
    }
    let t = &generation.timings;
    Ok(json!({
        "prompt_ids": prompt_ids,
        "ids": generation.ids,
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "top_logprobs": top_logprobs,
        "seed": seed,
        "timings": {
            "load_ms": load_ms,
            "prompt_tokens": t.prompt_tokens,
            "prompt_ms": t.prompt.as_secs_f64() * 1e3,
            "prompt_tokens_per_second": prompt_rate(t),
            "generated_tokens": t.generated_tokens,
            "generate_ms": t.generate.as_secs_f64() * 1e3,
            "generated_tokens_per_second": rate(t.generated_tokens, t.generate),
        },
    }))
}
