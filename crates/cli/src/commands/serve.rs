//! `realizar serve`: models over HTTP, by OpenAI's API, until it is told to stop.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use realizar_runtime::ModelOutput;
use realizar_runtime::engine::{Engine as EngineThread, EngineOptions};
use realizar_runtime::sampling::SamplingParams;
use realizar_server::{
    ConnectionLimits, Limits, Models, ServedModel, Server, ServerConfig, TlsFiles, openai_sampling,
};

use crate::engine::{Engine, Needs, read_template};
use crate::interrupt;
use crate::options::{GlobalArgs, LoadArgs, above_zero, positive, range, whole};
use crate::otel::Traces;
use crate::ui;

/// Prints one line with the URL once the models are loaded. Ctrl-C ends the server: it takes no
/// new requests, and those that run get time to end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Models: paths, aliases, or hf:, https:// or pip: sources. The first one answers requests
    /// that name none
    #[arg(required_unless_present = "embedding_model", value_name = "MODEL")]
    models: Vec<String>,
    /// Model to serve embeddings with, as NAME=MODEL or MODEL (may be given several times)
    #[arg(long, value_name = "MODEL")]
    embedding_model: Vec<String>,
    /// Name of the model for requests; with several models NAME=MODEL. Several names are given
    /// with commas or by several flags; the first one is shown in answers
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    alias: Vec<String>,
    /// Address or name to listen on; 0.0.0.0 is every address of the machine
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value = "8080")]
    port: u16,
    /// Speak TLS with this certificate, in PEM, and after it those that vouch for it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    #[arg(visible_alias = "ssl-cert-file", alias = "ssl-certfile")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM and without a password
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    #[arg(visible_alias = "ssl-key-file", alias = "ssl-keyfile")]
    tls_key: Option<PathBuf>,
    /// Ask every request for this key (may be given several times)
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    #[arg(env = "REALIZAR_API_KEY", hide_env_values = true)]
    api_key: Vec<String>,
    /// File with one key per line; lines that begin with # are comments
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let web pages of this origin use the server; * stands for all (may be given several times)
    #[arg(long, value_name = "ORIGIN", visible_alias = "allowed-origins", value_delimiter = ',')]
    cors_origin: Vec<String>,
    /// Connections that may be open; requests on further ones are refused with status 503
    #[arg(long, value_name = "N", default_value = "4096", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    max_connections: usize,
    /// Seconds after which a connection without a request is closed. What keeps connections for
    /// later, such as a balancer, should give them up sooner
    #[arg(long, value_name = "S", default_value = "75", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    idle_timeout: usize,
    /// Requests that run together; -np does the same
    #[arg(long, value_name = "N", default_value = "16", value_parser = positive)]
    #[arg(visible_alias = "max-seqs", alias = "max-num-seqs", allow_negative_numbers = true)]
    parallel: usize,
    /// Context length of each request: the most tokens of prompt and answer [default: the model's,
    /// at most 8192]
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    #[arg(visible_alias = "ctx-size", alias = "max-model-len")]
    ctx: Option<usize>,
    /// Tokens that the key-value cache holds of all requests together [default: --parallel times
    /// the context]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    kv_tokens: Option<usize>,
    /// Requests that may wait; more are refused with status 429
    #[arg(long, value_name = "N", default_value = "256", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    queue: usize,
    /// Prompt tokens in a step that also generates: fewer shorten the wait between two tokens of an
    /// answer, more the wait for the first one of others
    #[arg(long, value_name = "N", default_value = "64", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    prompt_step: usize,
    /// Tokens to guess ahead from what a text has said before; the answers do not depend on it
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    lookup: usize,
    /// Keep no prompts for requests that begin alike
    #[arg(long, visible_alias = "no-cache-prompt")]
    no_prefix_cache: bool,
    /// Longest time of a request in seconds [default: no limit]
    #[arg(long, value_name = "S", value_parser = positive, allow_negative_numbers = true)]
    timeout: Option<usize>,
    /// Seconds that running requests may take to end once the server is told to stop
    #[arg(long, value_name = "S", default_value = "30", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    grace: usize,
    /// Most tokens of a prompt [default: the context]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    max_prompt: Option<usize>,
    /// Most tokens of an answer; requests that ask for more are refused [default: the context]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    max_output: Option<usize>,
    /// Largest body of a request in MiB
    #[arg(long, value_name = "MIB", default_value = "32", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    max_body: usize,
    /// Jinja chat template to use instead of the model's
    #[arg(long, value_name = "FILE", visible_alias = "chat-template-file")]
    template: Option<PathBuf>,
    /// Metrics are always served at /metrics; this says so as llama-server does
    #[arg(long, hide = true)]
    metrics: bool,
    /// Requests always join those that run; this says so as llama-server does
    #[arg(long, hide = true)]
    cont_batching: bool,
    /// Templates are always Jinja; this says so as llama-server does
    #[arg(long, hide = true)]
    jinja: bool,
    /// Send a trace of every request by OpenTelemetry, as the environment variables OTEL_… say; only
    /// in builds with the feature `otel`
    #[arg(long)]
    otel: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// llama-server's flags of two letters, which the parser does not know, as it knows them.
const TWO_LETTERS: [(&str, &str); 2] = [("-cb", "--cont-batching"), ("-np", "--parallel")];

/// Spells out llama-server's flags of two letters where they belong to `serve`.
pub(crate) fn spell_out(mut args: Vec<OsString>) -> Vec<OsString> {
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let start = args[..end].iter().position(|arg| arg == "serve").unwrap_or(end);
    for arg in &mut args[start..end] {
        if let Some((_, long)) = TWO_LETTERS.iter().find(|(short, _)| arg == short) {
            *arg = OsString::from(long);
        }
    }
    args
}

/// Sampling of requests that ask for nothing else.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Defaults of requests")]
struct SamplingArgs {
    /// Temperature; 0 takes the most likely token [default: 1]
    #[arg(long, visible_alias = "temperature", value_name = "T", value_parser = range(0.0, 100.0))]
    #[arg(allow_negative_numbers = true)]
    temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default: 0]
    #[arg(long, value_name = "K", value_parser = whole, allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Keep the most likely tokens up to this probability [default: 1]
    #[arg(long, value_name = "P", value_parser = above_zero(1.0), allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Drop tokens below P times the best probability; 0 keeps all [default: 0]
    #[arg(long, value_name = "P", value_parser = range(0.0, 1.0), allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Penalty of repeated tokens; 1 is none [default: 1]
    #[arg(long, value_name = "X", value_parser = above_zero(100.0), allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
}

impl SamplingArgs {
    fn params(&self) -> SamplingParams {
        let base = openai_sampling();
        SamplingParams {
            temperature: self.temp.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repeat_penalty.unwrap_or(base.repetition_penalty),
            ..base
        }
    }
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let names = names(&args.models, &args.alias)?;
    if args.template.is_some() && args.models.len() > 1 {
        return Err(ui::usage("--template is for one model, and there are several"));
    }
    let traces = args.otel.then(Traces::start).transpose()?;
    let result = serve(args, global, names, traces.as_ref());
    if let Some(traces) = traces {
        traces.end();
    }
    result
}

fn serve(
    args: &Args,
    global: &GlobalArgs,
    names: Vec<Vec<String>>,
    traces: Option<&Traces>,
) -> Result<()> {
    let observer = traces.map(Traces::observer);
    let config = ServerConfig { observer, ..config(args)? };
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    // The engines' threads do the work; those of the server wait and copy.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the server's threads")?;
    let (address, state, running) = runtime.block_on(async {
        let server = Server::bind(config, Models::new()).await?;
        let (address, state) = (server.address(), server.state().clone());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let stopped = async move {
            // The sender goes only with the program.
            let _: Result<(), _> = stopped.await;
        };
        let running = tokio::spawn(server.run(stopped));
        Ok::<_, anyhow::Error>((address, state, (stop, running)))
    })?;
    // The address is taken and says that it is not ready, and the models take their time.
    for (source, names) in args.models.iter().zip(names) {
        state.models().add(load(source, names, ModelOutput::Logits, args, global)?)?;
    }
    for given in &args.embedding_model {
        let (name, source) = match given.split_once('=') {
            Some((name, source)) => (name.to_owned(), source),
            None => (own_name(given), given.as_str()),
        };
        let name = if state.models().get(&name).is_some() { name + "-embedding" } else { name };
        let model = load(source, vec![name], ModelOutput::Embeddings, args, global)?;
        state.models().add(model)?;
    }
    let guard = interrupt::Guard::new();
    ui::line(&format!("listening on {scheme}://{address}"))?;
    let (stop, mut running) = running;
    let result = runtime.block_on(async {
        tokio::select! {
            result = &mut running => return Ok(result??),
            asked = asked_to_stop() => asked?,
        }
        tracing::info!("shutting down");
        // An error means that the server has ended already, which its result tells.
        let _ = stop.send(());
        Ok::<_, anyhow::Error>(running.await??)
    });
    drop(guard);
    result
}

/// Waits for Ctrl-C or the system's wish that the process ends.
async fn asked_to_stop() -> Result<()> {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        tokio::select! {
            result = interrupt => result.context("cannot wait for Ctrl-C"),
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    interrupt.await.context("cannot wait for Ctrl-C")
}

fn config(args: &Args) -> Result<ServerConfig> {
    let mut api_keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let keys = text.lines().map(str::trim);
        let keys = keys.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = api_keys.len();
        api_keys.extend(keys.map(str::to_owned));
        // Without keys the server would be open, which is not what the flag asks for.
        anyhow::ensure!(api_keys.len() > before, "{} has no keys", path.display());
    }
    if api_keys.iter().any(String::is_empty) {
        return Err(ui::usage("an API key is empty"));
    }
    let seconds = |n: usize| Duration::from_secs(n as u64);
    Ok(ServerConfig {
        host: args.host.clone(),
        port: args.port,
        tls: args
            .tls_cert
            .clone()
            .zip(args.tls_key.clone())
            .map(|(cert, key)| TlsFiles { cert, key }),
        connections: ConnectionLimits {
            open: args.max_connections,
            idle_timeout: seconds(args.idle_timeout),
            ..ConnectionLimits::default()
        },
        api_keys,
        allowed_origins: args.cors_origin.clone(),
        limits: Limits {
            body_bytes: args.max_body.saturating_mul(1 << 20),
            prompt_tokens: args.max_prompt,
            output_tokens: args.max_output,
            ..Limits::default()
        },
        request_timeout: args.timeout.map(seconds),
        shutdown_grace: seconds(args.grace),
        ..ServerConfig::default()
    })
}

/// Loads a model and starts its engine.
fn load(
    source: &str,
    mut names: Vec<String>,
    output: ModelOutput,
    args: &Args,
    global: &GlobalArgs,
) -> Result<ServedModel> {
    let path = global.sources()?.resolve(source)?;
    let needs = Needs {
        ctx: args.ctx,
        seqs: Some(args.parallel),
        // A row of logits for every answer, and more for guesses and for prompts to be scored.
        outputs: Some(args.parallel.saturating_mul(1 + args.lookup).max(16)),
        output,
        kv_tokens: args.kv_tokens,
        prefix_cache: !args.no_prefix_cache,
        ..Needs::default()
    };
    let model = Engine::load(&path, &args.load, global, needs)?.model;
    let template = args.template.as_ref().map(|path| read_template(path, model.tokenizer()?));
    let template = template.transpose()?;
    let options = EngineOptions {
        max_seqs: Some(args.parallel),
        max_queue: args.queue,
        lookup_tokens: args.lookup,
        prompt_tokens: Some(args.prompt_step),
        ..EngineOptions::default()
    };
    let name = names.remove(0);
    let mut served = ServedModel::new(name, EngineThread::start(model, options)?);
    served.aliases = names;
    served.template = template;
    served.sampling = args.sampling.params();
    Ok(served)
}

/// Of each model its names, the one to show first: aliases, then what it is called by itself.
fn names(models: &[String], aliases: &[String]) -> Result<Vec<Vec<String>>> {
    let mut names: Vec<Vec<String>> = vec![Vec::new(); models.len()];
    for alias in aliases {
        let (name, of) = match alias.split_once('=') {
            Some((name, model)) => (name, models.iter().position(|m| m == model)),
            None if models.len() == 1 => (alias.as_str(), Some(0)),
            None => {
                let text = format!("--alias {alias}: with several models, write NAME=MODEL");
                return Err(ui::usage(text));
            }
        };
        let Some(of) = of else {
            return Err(ui::usage(format!("--alias {alias}: no such model is served")));
        };
        if name.is_empty() {
            return Err(ui::usage(format!("--alias {alias}: the name is empty")));
        }
        names[of].push(name.to_owned());
    }
    for (names, model) in names.iter_mut().zip(models) {
        let own = own_name(model);
        if !names.contains(&own) {
            names.push(own);
        }
    }
    Ok(names)
}

/// A file's name without its extension, a directory's name, or the source as it was written.
fn own_name(model: &str) -> String {
    let path = Path::new(model);
    let name = if path.is_dir() {
        path.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_owned()))
    } else if path.is_file() {
        path.file_stem().map(ToOwned::to_owned)
    } else {
        None
    };
    name.map_or_else(|| model.to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_two_letters() {
        let check = |args: &[&str], want: &[&str]| {
            let spelled = spell_out(args.iter().map(OsString::from).collect());
            assert_eq!(spelled, want, "{args:?}");
        };
        check(&["r", "serve", "m", "-np", "4"], &["r", "serve", "m", "--parallel", "4"]);
        check(&["r", "-v", "serve", "-cb", "m"], &["r", "-v", "serve", "--cont-batching", "m"]);
        check(&["r", "run", "m", "-np"], &["r", "run", "m", "-np"]);
        check(&["r", "serve", "--", "-np"], &["r", "serve", "--", "-np"]);
        check(&["r"], &["r"]);
    }

    #[test]
    fn names_of_models() {
        let check = |models: &[&str], aliases: &[&str], want: Result<&[&[&str]], &str>| {
            let owned = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
            match (names(&owned(models), &owned(aliases)), want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want),
                (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{got}"),
                (got, want) => panic!("{got:?}, expected {want:?}"),
            }
        };
        check(&["smollm2"], &[], Ok(&[&["smollm2"]]));
        check(&["a"], &["x", "y"], Ok(&[&["x", "y", "a"]]));
        check(&["a", "b"], &["x=b"], Ok(&[&["a"], &["x", "b"]]));
        check(&["a"], &["a"], Ok(&[&["a"]]));
        check(&["a", "b"], &["x"], Err("NAME=MODEL"));
        check(&["a"], &["x=c"], Err("no such model"));
        check(&["a"], &["=a"], Err("empty"));
    }
}
