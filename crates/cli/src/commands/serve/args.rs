//! The command line of `realizar serve`.

use std::net::IpAddr;
use std::path::PathBuf;

use realizar_server::{IpNet, KeepAlive, ReasoningFormat, ToolFormat};

use crate::grammar::UnlistedProperties;
use crate::options::{
    DraftHeadArg, LoadArgs, SamplingArgs, host, memory_size, port, positive, whole,
};

/// Prints the URL once the models are loaded. Without a model, those that have been pulled are
/// offered, each loaded on its first request. Ctrl-C ends the server: it takes no new requests, and
/// those that run get time to end.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) models: ModelArgs,
    #[command(flatten)]
    pub(super) network: NetworkArgs,
    #[command(flatten)]
    pub(super) access: AccessArgs,
    #[command(flatten)]
    pub(super) scheduling: SchedulingArgs,
    #[command(flatten)]
    pub(super) draft: DraftArgs,
    #[command(flatten)]
    pub(super) chat: ChatArgs,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) observability: ObservabilityArgs,
    #[command(flatten, next_help_heading = "Defaults of requests")]
    pub(super) sampling: SamplingArgs,
    #[command(flatten)]
    pub(super) load: LoadArgs,
    /// Accepted for compatibility with llama-server: metrics are always served at /metrics
    #[arg(long, hide = true)]
    pub(super) metrics: bool,
    /// Accepted for compatibility with llama-server: batching is always continuous
    #[arg(long, hide = true)]
    cont_batching: bool,
    /// Accepted for compatibility with llama-server: templates are always Jinja
    #[arg(long, hide = true)]
    jinja: bool,
    /// End when standard input does: for a program that starts the server for itself
    #[arg(long, hide = true)]
    pub(super) until_stdin_ends: bool,
}

/// The models that are served, and when they are loaded.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Models")]
pub(super) struct ModelArgs {
    /// Models: paths, aliases, or hf:, https:// or pip: sources, each as MODEL or NAME=MODEL. The
    /// first one is the default for requests without a model [default: those that have been pulled]
    #[arg(value_name = "MODEL")]
    pub(super) models: Vec<String>,
    /// Model for embeddings, as NAME=MODEL or MODEL (may be given several times)
    #[arg(long, value_name = "MODEL")]
    pub(super) embedding_model: Vec<String>,
    /// Name of the model in requests; with several models NAME=MODEL, where MODEL is as given or as
    /// listed. Several names are separated by commas or given by several flags; the first one is
    /// shown in responses
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    pub(super) alias: Vec<String>,
    /// Serve every model in this directory (GGUF files and model directories); each is loaded on
    /// its first request
    #[arg(long, value_name = "DIR")]
    pub(super) models_dir: Option<PathBuf>,
    /// Memory limit for all loaded models together, in GiB or with a unit (512M, 1.5G): weights, KV
    /// cache, activations. Idle models are unloaded to make room [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    #[arg(hide_short_help = true)]
    pub(super) memory_limit: Option<usize>,
    /// Maximum number of loaded models; 0 is unlimited
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) models_max: usize,
    /// How long a model of --models-dir, or one that was pulled, stays loaded after its last request:
    /// seconds, or a duration such as 30s, 5m or 1h30m; -1 keeps it. Models that are named here stay
    #[arg(long, value_name = "TIME", default_value = "5m", allow_negative_numbers = true)]
    pub(super) keep_alive: KeepAlive,
    /// Load each model on its first request instead of at the start
    #[arg(long)]
    #[arg(hide_short_help = true)]
    pub(super) lazy: bool,
    /// Do not load models on request: only at the start and by POST /models/load
    #[arg(long)]
    #[arg(hide_short_help = true)]
    pub(super) no_models_autoload: bool,
}

/// Where the server listens.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Network")]
pub(super) struct NetworkArgs {
    /// Address or name to listen on, such as ::1; 0.0.0.0 is all addresses of the machine
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", value_parser = host)]
    pub(super) host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "PORT", default_value = "8080", value_parser = port)]
    pub(super) port: u16,
    /// Serve TLS with this certificate chain, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    #[arg(visible_alias = "ssl-cert-file", alias = "ssl-certfile")]
    #[arg(hide_short_help = true)]
    pub(super) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM without a passphrase
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    #[arg(visible_alias = "ssl-key-file", alias = "ssl-keyfile")]
    #[arg(hide_short_help = true)]
    pub(super) tls_key: Option<PathBuf>,
}

/// Who may use the server.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Access")]
pub(super) struct AccessArgs {
    /// Require this API key (may be given several times)
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    #[arg(env = "REALIZAR_API_KEY", hide_env_values = true)]
    pub(super) api_key: Vec<String>,
    /// File with one API key per line; lines that start with # are comments
    #[arg(long, value_name = "FILE")]
    #[arg(hide_short_help = true)]
    pub(super) api_key_file: Option<PathBuf>,
    /// Require this key to load and unload models and to call tools (may be given several times)
    /// [default: the API keys; without keys, allowed only on a loopback address]
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    #[arg(env = "REALIZAR_ADMIN_KEY", hide_env_values = true)]
    #[arg(hide_short_help = true)]
    pub(super) admin_key: Vec<String>,
    /// Allow web pages of this origin (CORS); * allows all, localhost those of this machine on any
    /// port, which may use models without it (may be given several times)
    #[arg(long, value_name = "ORIGIN", visible_alias = "allowed-origins", value_delimiter = ',')]
    pub(super) cors_origin: Vec<String>,
    /// Accept requests for this host name, or for all names below .DOMAIN; * accepts all. Without
    /// API keys only localhost, IP addresses and --host are accepted, and this machine's name, .local
    /// and .internal for models (may be given several times)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    #[arg(hide_short_help = true)]
    pub(super) allowed_hosts: Vec<String>,
}

/// How requests share the model and its KV cache.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Scheduling")]
pub(super) struct SchedulingArgs {
    /// Maximum number of requests that run concurrently; also -np
    #[arg(long, value_name = "N", default_value = "16", value_parser = positive)]
    #[arg(visible_alias = "max-seqs", alias = "max-num-seqs", allow_negative_numbers = true)]
    pub(super) parallel: usize,
    /// Context length of each request: the maximum number of tokens of prompt and answer [default:
    /// the model's, as far as it fits into free memory]
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    #[arg(visible_alias = "ctx-size", alias = "max-model-len")]
    pub(super) ctx: Option<usize>,
    /// Size of the KV cache in tokens, for all requests together [default: one context or --parallel
    /// times 8192, whichever is more, within half of the free memory; with --ctx, --parallel times
    /// the context, or as many as fit]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) kv_tokens: Option<usize>,
    /// Maximum number of queued requests; more are refused with status 429
    #[arg(long, value_name = "N", default_value = "256", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) queue: usize,
    /// Prompt tokens in a step that also generates (at least one per running answer): fewer reduce
    /// inter-token latency, more reduce time to first token
    #[arg(long, value_name = "N", default_value = "32", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) prompt_step: usize,
    /// Disable the prefix cache
    #[arg(long, visible_alias = "no-cache-prompt")]
    #[arg(hide_short_help = true)]
    pub(super) no_prefix_cache: bool,
}

/// Where draft tokens come from.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Speculative decoding")]
pub(super) struct DraftArgs {
    /// Prompt-lookup drafting: propose up to N draft tokens from n-gram matches; answers do not
    /// depend on it
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) lookup: usize,
    /// Smaller model with the same vocabulary that proposes draft tokens; answers do not depend on
    /// it
    #[arg(long, value_name = "MODEL", alias = "model-draft")]
    pub(super) draft_model: Option<String>,
    /// Draft tokens with the model's own multi-token prediction (MTP) layer: auto (if it has one
    /// and no draft model is given), on (it must have one) or off; answers do not depend on it
    #[arg(long, value_enum, default_value = "off", value_name = "WHEN", alias = "mtp")]
    #[arg(hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub(super) draft_head: DraftHeadArg,
    /// Draft tokens per step of the draft model; the maximum for the model's own layer
    #[arg(long, value_name = "N", default_value = "4", value_parser = positive)]
    #[arg(alias = "draft-n", allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) draft_max: usize,
}

/// How messages become a prompt, and answers become messages.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Chats")]
pub(super) struct ChatArgs {
    /// Jinja chat template to use instead of the model's
    #[arg(long, value_name = "FILE", visible_alias = "chat-template-file")]
    pub(super) template: Option<PathBuf>,
    /// Format of tool calls, instead of the one detected from the chat template: hermes,
    /// qwen3_coder, openai, …
    #[arg(long, value_name = "NAME", visible_alias = "tool-call-parser")]
    #[arg(hide_short_help = true)]
    pub(super) tool_parser: Option<ToolFormat>,
    /// Format of reasoning, instead of the one detected from the chat template: think,
    /// openai_gptoss, …
    #[arg(long, value_name = "NAME")]
    #[arg(hide_short_help = true)]
    pub(super) reasoning_parser: Option<ReasoningFormat>,
    /// Allow properties that a schema says nothing of, or close objects that list theirs
    #[arg(long, value_name = "WHETHER", value_enum, default_value_t)]
    #[arg(hide_short_help = true)]
    pub(super) additional_properties: UnlistedProperties,
    /// JSON file with `mcpServers`, whose tools the chat page can use; it asks before each call
    #[arg(long, value_name = "FILE")]
    pub(super) mcp: Option<PathBuf>,
}

/// Limits of requests, connections and time.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Maximum number of tokens of a prompt [default: the context]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) max_prompt: Option<usize>,
    /// Maximum number of tokens of an answer; requests for more are refused [default: the context]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) max_output: Option<usize>,
    /// Maximum size of a request body in MiB
    #[arg(long, value_name = "MIB", default_value = "32", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) max_body: usize,
    /// Maximum total size in MiB of request bodies being received, parsed, rendered and tokenized;
    /// further ones wait a few seconds and are then refused with status 503
    #[arg(long, value_name = "MIB", default_value = "128", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) max_bodies: usize,
    /// Maximum number of JSON values in a body, not counting lists of token ids
    #[arg(long, value_name = "N", default_value = "100000", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) max_values: usize,
    /// Maximum number of open connections; requests on further ones are refused with status 503
    #[arg(long, value_name = "N", default_value = "4096", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) max_connections: usize,
    /// Maximum number of connections from one address, or from one IPv6 /64 network
    #[arg(long, value_name = "N", default_value = "1024", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) max_connections_per_address: usize,
    /// Address or network (10.0.0.0/8) of a proxy that many clients come through: its connections
    /// have no limit per address, and its X-Forwarded-For is believed (may be given several times)
    #[arg(long, value_name = "ADDRESS", value_parser = network, value_delimiter = ',')]
    #[arg(hide_short_help = true)]
    pub(super) trusted_proxy: Vec<IpNet>,
    /// Seconds after which an idle connection is closed; load balancers should close theirs sooner
    #[arg(long, value_name = "S", default_value = "75", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) idle_timeout: usize,
    /// Time limit of a request in seconds [default: no limit]
    #[arg(long, value_name = "S", value_parser = positive, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) timeout: Option<usize>,
    /// Seconds that running requests get to finish at shutdown
    #[arg(long, value_name = "S", default_value = "30", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(super) grace: usize,
}

/// Traces, and events of the KV cache for routers.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Observability")]
pub(super) struct ObservabilityArgs {
    /// Export OpenTelemetry traces of requests, configured by the OTEL_… environment variables
    #[arg(long)]
    #[arg(hide_short_help = true)]
    pub(super) otel: bool,
    /// Publish the contents of the prefix cache at this ZeroMQ endpoint as vLLM's KV events, for
    /// cache-aware routers: tcp://HOST:PORT
    #[arg(long, value_name = "ENDPOINT")]
    #[arg(hide_short_help = true)]
    pub(super) kv_events: Option<String>,
    /// Endpoint for replaying events
    #[arg(long, value_name = "ENDPOINT", requires = "kv_events")]
    #[arg(hide_short_help = true)]
    pub(super) kv_events_replay: Option<String>,
    /// Topic of the events
    #[arg(long, value_name = "TOPIC", default_value = "", requires = "kv_events")]
    #[arg(hide_default_value = true)]
    #[arg(hide_short_help = true)]
    pub(super) kv_events_topic: String,
}

/// An address, or a network with the length of its prefix.
fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse().ok().map(|address: IpAddr| IpNet::from(address));
    let found = text.parse().ok().or_else(address);
    found.ok_or_else(|| "must be an IP address or a network such as 10.0.0.0/8".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::Cli;

    #[test]
    fn options_stand_under_a_heading_and_the_short_help_has_those_that_most_people_need() {
        let mut program = Cli::command();
        program.build();
        let serve = program.find_subcommand("serve").expect("the command");
        let named = |option: &&clap::Arg| !option.is_positional() && !option.is_hide_set();
        let options = || serve.get_arguments().filter(named);
        let name = |option: &clap::Arg| option.get_long().expect("a name").to_owned();
        let unnamed: Vec<_> =
            options().filter(|o| o.get_help_heading().is_none()).map(name).collect();
        assert_eq!(unnamed, ["help"]);
        let short: Vec<_> = options().filter(|o| !o.is_hide_short_help_set()).map(name).collect();
        let expected = [
            ["embedding-model", "alias", "models-dir", "keep-alive", "host"],
            ["port", "api-key", "cors-origin", "parallel", "ctx"],
            ["draft-model", "template", "mcp", "temp", "top-k"],
            ["top-p", "min-p", "repeat-penalty", "seed", "device"],
            ["gpu-layers", "threads", "kv-type", "config", "verbose"],
        ];
        let mut expected = expected.concat();
        expected.push("help");
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        assert_eq!(sorted(short), sorted(expected.into_iter().map(str::to_owned).collect()));
    }
}
