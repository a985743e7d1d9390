//! What `realizar serve` is told on the command line.

use std::path::PathBuf;

use realizar_server::{ReasoningFormat, ToolFormat};

use crate::options::{DraftHeadArg, LoadArgs, SamplingArgs, memory_size, positive, whole};

/// Prints one line with the URL once the models are loaded. Ctrl-C ends the server: it takes no
/// new requests, and those that run get time to end.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Models: paths, aliases, or hf:, https:// or pip: sources. The first one answers requests
    /// that name none
    #[arg(required_unless_present_any = ["embedding_model", "models_dir"], value_name = "MODEL")]
    pub(super) models: Vec<String>,
    /// Model to serve embeddings with, as NAME=MODEL or MODEL (may be given several times)
    #[arg(long, value_name = "MODEL")]
    pub(super) embedding_model: Vec<String>,
    /// Name of the model for requests; with several models NAME=MODEL. Several names are given
    /// with commas or by several flags; the first one is shown in answers
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    pub(super) alias: Vec<String>,
    /// Offer every model in this directory, GGUF files and folders with a model; each is loaded when
    /// a request names it
    #[arg(long, value_name = "DIR")]
    pub(super) models_dir: Option<PathBuf>,
    /// Memory that loaded models may take together, in GiB or with a unit (512M, 1.5G): weights, keys
    /// and values, activations. Models that are not used make room for others [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub(super) memory_limit: Option<usize>,
    /// Models that may be loaded together; 0 is any number
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    pub(super) models_max: usize,
    /// Load each model when a request names it first, not at the start
    #[arg(long)]
    pub(super) lazy: bool,
    /// Load no model because a request names it: only at the start, and by POST /models/load
    #[arg(long)]
    pub(super) no_models_autoload: bool,
    /// Ask requests that load and unload models for this key (may be given several times) [default:
    /// the API keys; without keys, only on a loopback address]
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    #[arg(env = "REALIZAR_ADMIN_KEY", hide_env_values = true)]
    pub(super) admin_key: Vec<String>,
    /// JSON file whose `mcpServers` have tools for the page, which asks before each call; for those who
    /// may load models
    #[arg(long, value_name = "FILE")]
    pub(super) mcp: Option<PathBuf>,
    /// Address or name to listen on; 0.0.0.0 is every address of the machine
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(super) host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value = "8080")]
    pub(super) port: u16,
    /// Speak TLS with this certificate, in PEM, and after it those that vouch for it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    #[arg(visible_alias = "ssl-cert-file", alias = "ssl-certfile")]
    pub(super) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM and without a password
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    #[arg(visible_alias = "ssl-key-file", alias = "ssl-keyfile")]
    pub(super) tls_key: Option<PathBuf>,
    /// Ask every request for this key (may be given several times)
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    #[arg(env = "REALIZAR_API_KEY", hide_env_values = true)]
    pub(super) api_key: Vec<String>,
    /// File with one key per line; lines that begin with # are comments
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// Let web pages of this origin use the server; * stands for all, localhost for those of this
    /// machine at any port (may be given several times)
    #[arg(long, value_name = "ORIGIN", visible_alias = "allowed-origins", value_delimiter = ',')]
    pub(super) cors_origin: Vec<String>,
    /// Answer requests for this name too, and for all names below .DOMAIN; * stands for all. Without
    /// API keys only localhost, IP addresses and --host are answered (may be given several times)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) allowed_hosts: Vec<String>,
    /// Connections that may be open; requests on further ones are refused with status 503
    #[arg(long, value_name = "N", default_value = "4096", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    pub(super) max_connections: usize,
    /// Of these, connections from one address, or from one network of IPv6 (/64)
    #[arg(long, value_name = "N", default_value = "1024", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    pub(super) max_connections_per_address: usize,
    /// Seconds after which a connection without a request is closed. What keeps connections for
    /// later, such as a balancer, should give them up sooner
    #[arg(long, value_name = "S", default_value = "75", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    pub(super) idle_timeout: usize,
    /// Requests that run together; also -np
    #[arg(long, value_name = "N", default_value = "16", value_parser = positive)]
    #[arg(visible_alias = "max-seqs", alias = "max-num-seqs", allow_negative_numbers = true)]
    pub(super) parallel: usize,
    /// Context length of each request: the maximum number of tokens of prompt and answer [default: the model's,
    /// at most 8192]
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    #[arg(visible_alias = "ctx-size", alias = "max-model-len")]
    pub(super) ctx: Option<usize>,
    /// Tokens that the key-value cache holds of all requests together [default: --parallel times
    /// the context, or as many as fit into the memory that is free]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(super) kv_tokens: Option<usize>,
    /// Requests that may wait; more are refused with status 429
    #[arg(long, value_name = "N", default_value = "256", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    pub(super) queue: usize,
    /// Prompt tokens in a step that also generates, or one per answer if that is more: fewer shorten
    /// the wait between two tokens of an answer, more the wait for the first one of others
    #[arg(long, value_name = "N", default_value = "32", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    pub(super) prompt_step: usize,
    /// Tokens to guess ahead from what a text has said before; the answers do not depend on it
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    pub(super) lookup: usize,
    /// Smaller model that guesses ahead for the one that is served; it has the same vocabulary, and
    /// the answers do not depend on it
    #[arg(long, value_name = "MODEL", alias = "model-draft")]
    pub(super) draft_model: Option<String>,
    /// Draft tokens with the model's own layer for multi-token prediction (MTP): auto (if it brings one and no draft
    /// model is given), on (a model without one is an error) or off; the answers do not depend on it
    #[arg(long, value_enum, default_value = "off", value_name = "WHEN", alias = "mtp")]
    #[arg(hide_possible_values = true)]
    pub(super) draft_head: DraftHeadArg,
    /// Tokens that the draft model drafts, or the model's own layer at most
    #[arg(long, value_name = "N", default_value = "4", value_parser = positive)]
    #[arg(alias = "draft-n", allow_negative_numbers = true)]
    pub(super) draft_max: usize,
    /// Publish what the prefix cache holds at this ZeroMQ endpoint, as vLLM's KV events, for routers
    /// that choose by it: tcp://HOST:PORT
    #[arg(long, value_name = "ENDPOINT")]
    pub(super) kv_events: Option<String>,
    /// Endpoint at which events can be asked for again
    #[arg(long, value_name = "ENDPOINT", requires = "kv_events")]
    pub(super) kv_events_replay: Option<String>,
    /// Topic of the events, by which subscribers choose
    #[arg(long, value_name = "TOPIC", default_value = "", requires = "kv_events")]
    #[arg(hide_default_value = true)]
    pub(super) kv_events_topic: String,
    /// Keep no prompts for requests that begin alike
    #[arg(long, visible_alias = "no-cache-prompt")]
    pub(super) no_prefix_cache: bool,
    /// Longest time of a request in seconds [default: no limit]
    #[arg(long, value_name = "S", value_parser = positive, allow_negative_numbers = true)]
    pub(super) timeout: Option<usize>,
    /// Seconds that running requests may take to end once the server is told to stop
    #[arg(long, value_name = "S", default_value = "30", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    pub(super) grace: usize,
    /// Maximum number of tokens of a prompt [default: the context]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(super) max_prompt: Option<usize>,
    /// Maximum number of tokens of an answer; requests that ask for more are refused [default: the context]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(super) max_output: Option<usize>,
    /// Largest body of a request in MiB
    #[arg(long, value_name = "MIB", default_value = "32", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    pub(super) max_body: usize,
    /// Largest bodies of all requests together that are received, parsed, rendered and encoded, in
    /// MiB; a further one waits a few seconds and is then refused with status 503
    #[arg(long, value_name = "MIB", default_value = "128", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    pub(super) max_bodies: usize,
    /// Most values of JSON in a body, numbers in lists of token ids aside
    #[arg(long, value_name = "N", default_value = "100000", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    pub(super) max_values: usize,
    /// Jinja chat template to use instead of the model's
    #[arg(long, value_name = "FILE", visible_alias = "chat-template-file")]
    pub(super) template: Option<PathBuf>,
    /// Format of tool calls instead of the one that the chat template shows: hermes, qwen3_coder,
    /// openai, …
    #[arg(long, value_name = "NAME", visible_alias = "tool-call-parser")]
    pub(super) tool_parser: Option<ToolFormat>,
    /// Format of reasoning instead of the one that the chat template shows: think, openai_gptoss, …
    #[arg(long, value_name = "NAME")]
    pub(super) reasoning_parser: Option<ReasoningFormat>,
    /// Metrics are always served at /metrics; this says so as llama-server does
    #[arg(long, hide = true)]
    pub(super) metrics: bool,
    /// Requests always join those that run; this says so as llama-server does
    #[arg(long, hide = true)]
    cont_batching: bool,
    /// Templates are always Jinja; this says so as llama-server does
    #[arg(long, hide = true)]
    jinja: bool,
    /// Send a trace of every request by OpenTelemetry, as the environment variables OTEL_… say
    #[arg(long)]
    pub(super) otel: bool,
    #[command(flatten, next_help_heading = "Defaults of requests")]
    pub(super) sampling: SamplingArgs,
    #[command(flatten)]
    pub(super) load: LoadArgs,
}
