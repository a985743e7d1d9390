//! How the server listens and what it lets a request ask for.

use crate::record::RequestObserver;
use crate::tool_host::ToolHost;
use ipnet::IpNet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Settings of the server. Those of a model are in [`ServedModel`](crate::ServedModel).
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The address or name to listen on.
    pub host: String,
    /// The port to listen on; 0 takes a free one.
    pub port: u16,
    /// Certificate and key to speak TLS with; `None` is plain HTTP.
    pub tls: Option<TlsFiles>,
    /// What connections may take.
    pub connections: ConnectionLimits,
    /// Keys of which a request must show one; without any, none is requested.
    pub api_keys: Vec<String>,
    /// Keys of which a request must show one to load and unload models. Without any, API keys do;
    /// without these either, only a server that listens to this machine alone lets requests do it.
    pub admin_keys: Vec<String>,
    /// Web origins whose pages may use the server; `*` stands for all, `localhost` for those
    /// of this machine at any port. Pages of this machine and of programs on it may use models
    /// without being listed.
    pub allowed_origins: Vec<String>,
    /// Names by which the server is called, beside `localhost`, the host that it listens on and IP
    /// addresses: `NAME`, `.DOMAIN` for all names below it, `*` for all. Where no API keys are asked
    /// for, or where names are listed here, requests for other hosts are refused, and those of pages
    /// of origins that are neither such a host nor allowed. The machine's own name and names below
    /// `.local` and `.internal` may use models without being listed.
    pub allowed_hosts: Vec<String>,
    /// What a request may ask for.
    pub limits: Limits,
    /// The longest time from a request's body to the end of its answer; `None` sets no end.
    pub request_timeout: Option<Duration>,
    /// The longest time in which the body of a request must arrive.
    pub body_timeout: Duration,
    /// The longest time in which nothing of a body arrives.
    pub body_stall_timeout: Duration,
    /// The longest time that a body waits for room beside others.
    pub room_timeout: Duration,
    /// How often a stream without news says that it is alive.
    pub keep_alive: Duration,
    /// How long running requests may continue once the server is asked to stop.
    pub shutdown_grace: Duration,
    /// The observer of finished requests.
    pub observer: Option<Arc<dyn RequestObserver>>,
    /// Tools that may be called by those who may load models; `None` is none.
    pub tool_host: Option<Arc<dyn ToolHost>>,
    /// Returns freed memory to the system, where the program has a way to. It is called
    /// after work on large requests, at most once a second.
    pub give_back_memory: Option<fn()>,
    /// How many log records were lost, if the program counts that; `/metrics` reports it.
    pub lost_log_records: Option<Arc<AtomicU64>>,
}

/// The files that TLS needs, in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, and after it those that vouch for it.
    pub cert: PathBuf,
    /// The private key of the certificate, without a password.
    pub key: PathBuf,
    /// How often it is looked whether the files are new ones. Those that can be used are taken for
    /// connections that begin later; with others, those from before are used on.
    pub renewal: Duration,
}

impl TlsFiles {
    /// The files of a certificate and its key, which are checked every ten seconds.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { cert: cert.into(), key: key.into(), renewal: Duration::from_secs(10) }
    }
}

/// Limits of connections.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// Connections that may be open. Requests on further ones are answered with status 503 and
    /// closed: a router then tries another server, where waiting in the system's queue would hide
    /// that this one is full.
    pub open: usize,
    /// Of these, connections from one address, or from one network of IPv6 (`/64`). Further ones are
    /// answered as those beyond `open`.
    pub per_address: usize,
    /// Proxies, by address or network, that many clients come through. Their connections have no limit of
    /// their own below `open`, and the bodies of their requests count to the client that their
    /// `X-Forwarded-For` names.
    pub trusted_proxies: Vec<IpNet>,
    /// The longest time from a connection's beginning, or from the end of an answer, until the
    /// head of the next request has arrived. Clients that keep connections for later should give them
    /// up sooner; routers mostly do after 50 to 60 seconds.
    pub idle_timeout: Duration,
    /// The longest time of a TLS handshake.
    pub handshake_timeout: Duration,
    /// The longest time in which a client may take nothing of what is sent to it.
    pub stall_timeout: Duration,
    /// Bytes of a stream's events that may wait for its client. One that falls further behind is
    /// told so at the end of what waits, and its request is cancelled.
    pub backlog_bytes: usize,
}

/// Limits of a single request.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Bytes of all bodies together that are received, parsed, rendered and encoded, those of at
    /// most 32 KiB aside. A further one waits for [`ServerConfig::room_timeout`] and is then refused with status 503.
    /// One body always has room. A body takes 256 bytes for each of its values, if that is more.
    /// The bodies of one address, or of one network of IPv6 (`/64`), take no more than leaves room for
    /// another body, or half.
    pub bodies_bytes: usize,
    /// Values of JSON in a body: objects, lists and what they hold. Numbers in lists of token ids
    /// do not count.
    pub values: usize,
    /// Tokens of a prompt, where that is less than the model's context.
    pub prompt_tokens: Option<usize>,
    /// Tokens of an answer. A request that asks for more is refused; one that asks for no number
    /// gets this many.
    pub output_tokens: Option<usize>,
    /// Answers to one prompt.
    pub answers: usize,
    /// Prompts of one request.
    pub prompts: usize,
    /// Texts of one request for embeddings or scores.
    pub texts: usize,
    /// Stop texts.
    pub stops: usize,
    /// Bytes of a stop text.
    pub stop_bytes: usize,
    /// Tokens that end an answer, in `stop_token_ids`.
    pub stop_tokens: usize,
    /// Sequence breakers of DRY.
    pub breakers: usize,
    /// Bytes of a sequence breaker.
    pub breaker_bytes: usize,
    /// Bytes of all texts together whose tokens get a bias. There are at most as many biases as the
    /// model's vocabulary has tokens.
    pub bias_bytes: usize,
    /// The most likely tokens to report at a position.
    pub logprobs: usize,
    /// Responses and chat completions that are kept in memory for later requests.
    pub stored_responses: usize,
    /// Bytes that these take together. The oldest are dropped for new ones.
    pub stored_bytes: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            tls: None,
            connections: ConnectionLimits::default(),
            api_keys: Vec::new(),
            admin_keys: Vec::new(),
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            limits: Limits::default(),
            request_timeout: None,
            body_timeout: Duration::from_secs(60),
            body_stall_timeout: Duration::from_secs(10),
            room_timeout: Duration::from_secs(5),
            keep_alive: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(30),
            observer: None,
            tool_host: None,
            give_back_memory: None,
            lost_log_records: None,
        }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            open: 4096,
            per_address: 1024,
            trusted_proxies: Vec::new(),
            idle_timeout: Duration::from_secs(75),
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            backlog_bytes: 16 << 20,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            bodies_bytes: 128 << 20,
            values: 100_000,
            prompt_tokens: None,
            output_tokens: None,
            answers: 128,
            prompts: 1024,
            texts: 2048,
            stops: 64,
            stop_bytes: 1024,
            stop_tokens: 1024,
            breakers: 64,
            breaker_bytes: 64,
            bias_bytes: 16 << 10,
            logprobs: 20,
            stored_responses: 1000,
            stored_bytes: 64 << 20,
        }
    }
}
