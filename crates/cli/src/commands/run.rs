//! `realizar run`: one prompt, one answer, streamed as it is generated; on a terminal without a prompt it is a
//! conversation.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::template::Message;
use realizar_runtime::tokenizer::EncodeOptions;
use realizar_runtime::{Event, Generation, Model, Timings, TopLogprob};
use serde_json::json;

use super::chat;
use crate::engine::{Engine, Needs};
use crate::interrupt;
use crate::options::{
    GenerateArgs, GlobalArgs, LoadArgs, TemplateArgs, read_pipe, read_text, whole,
};
use crate::screen;
use crate::terminal::{self, MarkdownArg, Printer};
use crate::ui;

/// The answer streams to standard output, a line with timings goes to standard error.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// The prompt; piped text is put before it. Without it, -f FILE or standard input is read, and
    /// on a terminal a chat starts. Put -- before a prompt that starts with a hyphen
    #[arg(allow_negative_numbers = true)]
    prompt: Option<String>,
    /// Read the prompt from FILE; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Pass the prompt to the model unchanged, without a chat template
    #[arg(long, conflicts_with_all = ["system", "template"])]
    raw: bool,
    /// Print one JSON object when done, instead of streaming
    #[arg(long)]
    json: bool,
    /// With --json, report the K most likely tokens of each step
    #[arg(long, value_name = "K", requires = "json", value_parser = whole)]
    logprobs: Option<usize>,
    /// Save the keys and values of the prompt to FILE; a later run whose prompt has a common prefix
    /// loads them
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// Render Markdown: auto (on a terminal), on or off
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", conflicts_with = "json")]
    #[arg(hide_possible_values = true)]
    markdown: MarkdownArg,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    load: LoadArgs,
}

impl Args {
    /// Whether nothing says that one answer is wanted.
    fn is_conversation(&self) -> bool {
        let one = self.prompt.is_some() || self.file.is_some() || self.prompt_cache.is_some();
        !(one || self.raw || self.json)
    }
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<ExitCode> {
    if args.is_conversation() && std::io::stdin().is_terminal() {
        let Args { model, markdown, template, generate, load, .. } = args.clone();
        let args = chat::Args { model, markdown, mcp: None, template, generate, load };
        return chat::execute(&args, global).map(|()| ExitCode::SUCCESS);
    }
    let prompt = match &args.prompt {
        Some(prompt) => joined(&read_pipe()?, prompt),
        None => read_text(None, args.file.as_ref(), "prompt")?,
    };
    let grammar = args.generate.grammar.read()?;
    let path = global.sources().resolve(&args.model)?;
    let start = Instant::now();
    let prefix_cache = args.prompt_cache.is_some();
    let needs = Needs { ctx: args.generate.ctx, prefix_cache, ..Needs::default() };
    let mut engine = Engine::load(&path, &args.load, global, needs)?;
    if let Some(file) = &args.prompt_cache {
        engine.restore(file)?;
    }
    engine.set_grammar(grammar.as_ref(), args.generate.additional_properties.into())?;
    let load = start.elapsed();

    let prompt_ids = if args.raw {
        engine.encode(&prompt, EncodeOptions { add_special: true, parse_special: true })?
    } else {
        let mut messages = Vec::new();
        if let Some(system) = &args.template.system {
            messages.push(Message::new("system", system.as_str()));
        }
        messages.push(Message::new("user", prompt));
        engine.set_template(&args.template)?;
        engine.chat_prompt(&messages, &[], None)?
    };

    let mut params = engine.params(&args.generate, args.logprobs);
    // Reasoning is told apart only where that is seen.
    let is_parsed = !args.raw && !args.json && terminal::is_drawn(args.markdown);
    let parser = if is_parsed { engine.answer_parser(&prompt_ids, &[])? } else { None };
    let parser = parser.map(|(parser, shown)| {
        params.shown_tokens = shown;
        parser
    });
    let mut printer = Printer::new(args.markdown, parser);
    let sampling = params.sampling_or(engine.model.sampling()).clone();
    let p = &sampling;
    tracing::info!(
        prompt_tokens = prompt_ids.len(),
        temperature = %p.temperature,
        top_k = p.top_k,
        top_p = %p.top_p,
        min_p = %p.min_p,
        repeat_penalty = %p.repetition_penalty,
        seed = p.seed,
        "generating"
    );
    let guard = interrupt::Guard::new();
    let mut out = ui::out();
    let mut failed = None;
    let generation = engine.generate(&prompt_ids, &params, &mut |event| {
        if let Event::Token(token) = event
            && !args.json
        {
            failed = printer.push(&mut out, token.text).err();
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
    if let Some(file) = &args.prompt_cache {
        engine.save(file)?;
    }
    if args.json {
        drop(out);
        let seed = sampling.seed;
        let mut object = object(&prompt_ids, &generation, load, seed);
        object["device"] = json!(engine.model.backend());
        if args.logprobs.is_some() {
            object["top_logprobs"] = top_logprobs(&engine.model, &generation)?;
        }
        ui::json(&object)?;
    } else {
        printer.push(&mut out, &generation.tail)?;
        printer.finish(&mut out, "")?;
        if screen::stdout_is_terminal() {
            ui::note("");
        }
        let (device, ms) = (engine.model.backend(), load.as_secs_f64() * 1e3);
        let timings = timing_line(&generation, &sampling);
        ui::dim(&format!("{device} | load {ms:.0} ms | {timings}"));
    }
    Ok(if guard.asked() { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// The prompt of a command line after the text that was piped to it, on a line of its own.
fn joined(piped: &str, prompt: &str) -> String {
    let end = if piped.is_empty() || piped.ends_with('\n') { "" } else { "\n" };
    format!("{piped}{end}{prompt}")
}

/// `prompt 9 tokens (4 cached), 88.1 tok/s | generated 32 tokens, 40.2 tok/s | seed 7 | stop`; without the
/// seed when nothing is drawn, and without what is not cached.
pub(crate) fn timing_line(generation: &Generation, sampling: &SamplingParams) -> String {
    let t = &generation.timings;
    let reason = serde_json::to_value(generation.finish_reason).unwrap_or_default();
    let cached = match t.cached_tokens {
        0 => String::new(),
        n => format!(" ({n} cached)"),
    };
    let mut line = format!("prompt {}", tokens(t.prompt_tokens, &cached, prompt_rate(t)));
    line.push_str(&format!(" | generated {}", tokens(t.generated_tokens, "", generated_rate(t))));
    if sampling.temperature > 0.0
        && let Some(seed) = sampling.seed
    {
        line.push_str(&format!(" | seed {seed}"));
    }
    line.push_str(&format!(" | {}", reason.as_str().unwrap_or_default()));
    line
}

/// `1 token`, or `32 tokens, 40.2 tok/s`, with a note after the number.
fn tokens(n: usize, note: &str, rate: Option<f64>) -> String {
    let rate = rate.map_or_else(String::new, |rate| format!(", {rate:.1} tok/s"));
    format!("{n} {}{note}{rate}", if n == 1 { "token" } else { "tokens" })
}

/// Tokens per second; `None` when there was nothing to measure.
fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// Tokens of the prompt per second, without those that the session held already.
fn prompt_rate(t: &Timings) -> Option<f64> {
    rate(t.prompt_tokens.saturating_sub(t.cached_tokens), t.prompt)
}

/// Generated tokens per second. The first token comes from the prompt's logits and takes no step,
/// so one token has no rate.
fn generated_rate(t: &Timings) -> Option<f64> {
    rate(t.generated_tokens.saturating_sub(1), t.generate)
}

/// Milliseconds, to the microsecond.
fn ms(time: Duration) -> f64 {
    thousandths(time.as_secs_f64() * 1e3)
}

fn thousandths(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

/// The object of `--json`, without `top_logprobs`.
fn object(
    prompt_ids: &[u32],
    generation: &Generation,
    load: Duration,
    seed: Option<u64>,
) -> serde_json::Value {
    let t = &generation.timings;
    let mut timings = json!({
        "load_ms": ms(load),
        "prompt_tokens": t.prompt_tokens,
        "prompt_ms": ms(t.prompt),
        "generated_tokens": t.generated_tokens,
        "generate_ms": ms(t.generate),
    });
    for (name, rate) in [
        ("prompt_tokens_per_second", prompt_rate(t)),
        ("generated_tokens_per_second", generated_rate(t)),
    ] {
        if let Some(rate) = rate {
            timings[name] = json!(thousandths(rate));
        }
    }
    json!({
        "prompt_ids": prompt_ids,
        "ids": generation.ids,
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "seed": seed,
        "timings": timings,
    })
}

/// One list per generated token of the most likely tokens.
fn top_logprobs(model: &Model, generation: &Generation) -> Result<serde_json::Value> {
    let tokenizer = model.tokenizer()?;
    let one = |top: &TopLogprob| {
        // A model may have more rows of logits than its vocabulary has tokens.
        let token = tokenizer.token_text(top.id).ok();
        json!({ "id": top.id, "token": token, "logprob": top.logprob })
    };
    let steps = generation.top_logprobs.iter();
    Ok(steps.map(|step| step.iter().map(one).collect::<serde_json::Value>()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_runtime::FinishReason;

    #[test]
    fn a_prompt_follows_what_is_piped() {
        for (piped, prompt, want) in
            [("", "p", "p"), ("a\nb\n", "p", "a\nb\np"), ("a", "p", "a\np"), ("\n", "p", "\np")]
        {
            assert_eq!(joined(piped, prompt), want, "{piped:?}");
        }
    }

    #[test]
    fn timing_lines() {
        let second = Duration::from_secs(1);
        let line = |prompt_tokens, cached_tokens, n, sampling: &SamplingParams| {
            let timings = Timings {
                prompt_tokens,
                cached_tokens,
                prompt: second,
                generated_tokens: n,
                generate: second * 2,
            };
            let generation = Generation {
                ids: Vec::new(),
                text: String::new(),
                tail: String::new(),
                finish_reason: FinishReason::Length,
                logprobs: Vec::new(),
                top_logprobs: Vec::new(),
                timings,
            };
            timing_line(&generation, sampling)
        };
        let greedy = SamplingParams { seed: Some(7), ..SamplingParams::greedy() };
        let sampled = SamplingParams { seed: Some(7), ..SamplingParams::default() };
        for (got, want) in [
            (line(9, 0, 5, &greedy), "prompt 9 tokens, 9.0 tok/s | generated 5 tokens, 2.0 tok/s"),
            (line(9, 9, 0, &greedy), "prompt 9 tokens (9 cached) | generated 0 tokens"),
            (line(9, 4, 1, &greedy), "prompt 9 tokens (4 cached), 5.0 tok/s | generated 1 token"),
            (line(1, 0, 1, &greedy), "prompt 1 token, 1.0 tok/s | generated 1 token"),
            (line(1, 0, 1, &sampled), "prompt 1 token, 1.0 tok/s | generated 1 token | seed 7"),
        ] {
            assert_eq!(got, format!("{want} | length"));
        }
        assert_eq!(ms(Duration::from_nanos(1_234_567_890)), 1234.568);
    }
}
