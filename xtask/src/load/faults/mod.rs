//! Clients that misbehave, beside one that does not and must get the answer it gets alone. After
//! each fault the server must tell that nothing runs and that its cache is as free as before.

mod alone;

use std::io::Write;
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Args;
use super::client::{Client, Failure, joined};
use super::metrics::Gauges;
use super::raw;
use super::server::{Contender, Server, Setup};
use super::verify::text_difference;
use super::workload::{Api, Ask, Dice, text};
use crate::table;

/// Tokens of the well-behaved client's answers.
const GOOD_TOKENS: usize = 96;
/// Tokens that clients ask for which leave: far more than may be generated while they are there.
const LONG_TOKENS: usize = 1500;
/// Tokens of the prompts of clients that leave before an answer begins.
const LONG_PROMPT: usize = 1000;
/// Connections on which nothing happens.
const IDLE: usize = 1000;
/// The body that is too large.
const FLOOD_BYTES: usize = 100 << 20;
/// How much more memory the server may take for it.
const FLOOD_MEMORY: u64 = 64 << 20;
/// How long a request may take: a server that is kept from answering must not keep this command.
const REQUEST_LIMIT: Duration = Duration::from_secs(120);
/// How long a server may take to finish its streams and end.
const EXIT_LIMIT: Duration = Duration::from_secs(120);

/// A server and what it is compared with.
struct Stage {
    server: Server,
    client: Client,
    seed: u64,
    good: Ask,
    /// The well-behaved client's answer when it is alone.
    alone: String,
    /// How much of the cache is in use when nothing runs.
    idle: Gauges,
}

/// What a misbehaving client found, in words.
type Found = Result<String>;

/// A fault on a server that others disturb too.
type Fault = fn(&Stage) -> Found;

/// The faults that share a server.
const FAULTS: &[(&str, Fault)] = &[
    ("clients that vanish mid-stream", vanish_mid_stream),
    ("clients that vanish before the answer", vanish_early),
    ("slow readers", slow_readers),
    ("half-sent heads and bodies", half_sent),
    ("malformed requests", malformed),
    ("a body of 100 MB", |stage| too_large(stage, false)),
    ("a body of 100 MB in chunks", |stage| too_large(stage, true)),
    ("1000 idle connections", idle_connections),
];

/// Disturbs the server in every way, prints a table, and returns whether all went well.
pub(super) fn run(args: &Args, contender: &Contender, model: &Path) -> Result<bool> {
    raw::allow_connections(4 * IDLE as u64)?;
    let setup = Setup {
        model: model.to_owned(),
        threads: args.threads()?,
        parallel: args.parallel,
        request_len: (LONG_PROMPT * 5 / 4).max(LONG_TOKENS) + 256,
        queue: Some(64),
        prefix_cache: true,
    };
    let mut rows = Vec::new();
    let mut passed = true;
    let mut tell = |name: &str, found: Found| {
        let (verdict, found) = match found {
            Ok(found) => ("ok", found),
            Err(error) => {
                passed = false;
                ("FAILED", format!("{error:#}"))
            }
        };
        println!("{}: {name}: {verdict}: {found}", contender.label);
        rows.push(vec![name.to_owned(), verdict.to_owned(), found]);
    };
    let stage = Stage::new(contender.start(&setup)?, args.seed)?;
    for &(name, fault) in FAULTS {
        tell(name, stage.beside(fault));
    }
    stage.server.stop()?;
    let few = Setup { parallel: 2, queue: Some(4), ..setup };
    tell("more requests than the queue", alone::too_many(contender, &few, args.seed));
    if contender.is_ours() {
        tell("more tokens than the cache", alone::cache_exhausted(contender, &few, args.seed));
    }
    tell("the model's file is deleted", alone::file_deleted(contender, &few, args.seed));
    tell("SIGTERM under load", alone::terminated(contender, &few, args.seed));
    println!("\n{}:\n{}", contender.label, table::render(&["fault", "", "found"], &rows));
    Ok(passed)
}

impl Stage {
    fn new(server: Server, seed: u64) -> Result<Self> {
        let prompt = text(&mut Dice::new(seed, 0), 64);
        let good = Ask::greedy(Api::Completions, "", &prompt, GOOD_TOKENS);
        let client = server.client.limited(REQUEST_LIMIT);
        let alone = client.ask(&good)?.text;
        let idle = Gauges::wait_idle(&client)?.0;
        Ok(Self { server, client, seed, good, alone, idle })
    }

    /// Runs a fault while the well-behaved client sends its request again and again, and looks at
    /// the gauges afterwards.
    fn beside(&self, fault: Fault) -> Found {
        let over = AtomicBool::new(false);
        let (begun, begins) = mpsc::channel();
        let (good, found) = thread::scope(|scope| {
            let good = scope.spawn(|| self.behave(&over, begun));
            // The fault begins in the middle of a good answer.
            let found = match begins.recv_timeout(EXIT_LIMIT) {
                Ok(()) => fault(self),
                Err(_) => Err(anyhow::anyhow!("no good answer began")),
            };
            over.store(true, Ordering::Relaxed);
            (joined(good), found)
        });
        let found = found?;
        let n_good = good.context("the well-behaved client")?;
        let (after, took) = Gauges::wait_idle(&self.client)?;
        ensure!(
            after.kv_usage == self.idle.kv_usage,
            "{:?} of the cache is in use, {:?} before",
            after.kv_usage,
            self.idle.kv_usage
        );
        Ok(format!("{found}; {n_good} good answers; idle after {:.1} s", took.as_secs_f64()))
    }

    /// The well-behaved client: every answer must be the one it gets alone.
    fn behave(&self, over: &AtomicBool, begun: mpsc::Sender<()>) -> Result<usize> {
        let mut begun = Some(begun);
        let mut n_good = 0;
        loop {
            let reply = self.client.ask_while(&self.good, |_| {
                if let Some(begun) = begun.take() {
                    // Nothing waits for it any longer when the fault has failed.
                    let _ = begun.send(());
                }
                ControlFlow::Continue(())
            })?;
            if let Some(difference) = text_difference(&reply.text, &self.alone) {
                bail!("{difference}");
            }
            n_good += 1;
            if over.load(Ordering::Relaxed) {
                return Ok(n_good);
            }
        }
    }

    /// The `idx`-th long request of a fault.
    fn long(&self, part: u64, idx: usize, prompt: usize) -> Ask {
        let mut dice = Dice::new(self.seed, (part << 32) | idx as u64);
        Ask::greedy(Api::Completions, "", &text(&mut dice, prompt), LONG_TOKENS)
    }

    fn bytes(&self, ask: &Ask) -> Vec<u8> {
        ask.bytes(&self.client.model)
    }
}

fn vanish_mid_stream(stage: &Stage) -> Found {
    let n_clients = 8;
    let one = |idx: usize| {
        let ask = stage.long(1, idx, 16);
        let left = stage.client.ask_while(&ask, |reply| {
            if reply.arrivals.len() > idx {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        match left {
            Err(Failure::Left) => Ok(()),
            Err(failure) => bail!("client {idx}: {failure}"),
            Ok(_) => bail!("client {idx}: its stream was over before it left"),
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n_clients).map(|idx| scope.spawn(move || one(idx))).collect();
        threads.into_iter().try_for_each(joined)
    })?;
    Ok(format!("{n_clients} left after 1 to {n_clients} chunks of {LONG_TOKENS}"))
}

fn vanish_early(stage: &Stage) -> Found {
    let n_clients = 24;
    let streams: Vec<TcpStream> = (0..n_clients)
        .map(|idx| {
            let ask = stage.long(2, idx, LONG_PROMPT);
            raw::post(stage.server.port, ask.api.path(), &stage.bytes(&ask))
        })
        .collect::<Result<_>>()?;
    // Some leave while they wait, some while their prompt runs.
    for stream in &streams {
        raw::leave(stream);
        thread::sleep(Duration::from_millis(50));
    }
    Ok(format!("{n_clients} left"))
}

fn slow_readers(stage: &Stage) -> Found {
    let n_readers = 4;
    let one = |idx: usize| -> Result<usize> {
        let ask = stage.long(3, idx, 16).with("max_tokens", 300).with("logprobs", 5);
        let mut stream = raw::connect(stage.server.port)?;
        raw::narrow(&stream)?;
        let body = stage.bytes(&ask);
        stream.write_all(raw::head(ask.api.path(), Some(body.len())).as_bytes())?;
        stream.write_all(&body)?;
        let bytes = raw::read_slowly(&mut stream, Duration::from_secs(8))?;
        let text = String::from_utf8_lossy(&bytes);
        ensure!(text.starts_with("HTTP/1.1 200"), "{:?}", text.lines().next());
        ensure!(text.contains("data: [DONE]"), "the stream was cut after {} bytes", bytes.len());
        Ok(bytes.len())
    };
    let bytes = thread::scope(|scope| {
        let threads: Vec<_> = (0..n_readers).map(|idx| scope.spawn(move || one(idx))).collect();
        threads.into_iter().map(joined).collect::<Result<Vec<_>>>()
    })?;
    Ok(format!("{n_readers} whole streams of up to {} KB", bytes.iter().max().unwrap_or(&0) / 1000))
}

fn half_sent(stage: &Stage) -> Found {
    let n_each = 16;
    let mut streams = Vec::new();
    let ask = stage.long(4, 0, 16);
    let body = stage.bytes(&ask);
    let head = raw::head(ask.api.path(), Some(body.len()));
    let halves = [head.as_bytes()[..head.len() / 2].to_vec(), {
        let half = &body[..body.len() / 2];
        [head.as_bytes(), half].concat()
    }];
    for half in halves.iter().cycle().take(2 * n_each) {
        let mut stream = raw::connect(stage.server.port)?;
        stream.write_all(half)?;
        streams.push(stream);
    }
    thread::sleep(Duration::from_secs(2));
    let gauges = Gauges::of(&stage.client)?;
    // One is the well-behaved client's.
    ensure!(gauges.running + gauges.waiting <= 1.0, "half a request runs: {gauges:?}");
    Ok(format!("{} connections for two seconds", streams.len()))
}

fn malformed(stage: &Stage) -> Found {
    let bodies: &[&[u8]] = &[
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe{}",
        b"{\"prompt\": \"a\"",
        b"{\"prompt\": \"a\"}}",
        b"{\"model\": MODEL, \"prompt\": {}}",
        b"{\"model\": MODEL, \"prompt\": \"a\", \"max_tokens\": \"many\"}",
        b"{\"model\": MODEL, \"prompt\": \"a\", \"max_tokens\": -2}",
        b"{\"model\": MODEL, \"prompt\": \"a\", \"temperature\": -1}",
        b"{\"model\": MODEL, \"prompt\": \"a\", \"stream\": 3}",
        b"{\"model\": MODEL, \"prompt\": [1e99]}",
        b"{\"model\": MODEL}",
    ];
    let nested = "[".repeat(100_000).into_bytes();
    let model = Value::from(stage.client.model.clone()).to_string();
    let mut wrong = Vec::new();
    for body in bodies.iter().copied().chain([&nested[..]]) {
        let name: String = String::from_utf8_lossy(body).chars().take(60).collect();
        let filled = match String::from_utf8(body.to_vec()) {
            Ok(text) => text.replace("MODEL", &model).into_bytes(),
            Err(_) => body.to_vec(),
        };
        let mut stream = raw::post(stage.server.port, "/v1/completions", &filled)?;
        match raw::answer(&mut stream)? {
            Some(answer) if (400..500).contains(&answer.status) => {
                let json = serde_json::from_str::<Value>(&answer.body);
                if !json.is_ok_and(|json| json["error"]["message"].is_string()) {
                    wrong.push(format!("{name}: {} without error.message", answer.status));
                }
            }
            Some(answer) => wrong.push(format!("{name}: {}", answer.status)),
            None => wrong.push(format!("{name}: closed")),
        }
    }
    // What is not HTTP may be met by anything but an error of the server, silence too.
    for garbage in [&b"\x16\x03\x01\x02\x00\x01\x00\x01"[..], b"GET\r\n\r\n", b"\r\n\r\n\r\n\0\0"] {
        let mut stream = raw::connect(stage.server.port)?;
        stream.write_all(garbage)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        if let Ok(Some(answer)) = raw::answer(&mut stream)
            && answer.status >= 500
        {
            wrong.push(format!("garbage: {answer:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(format!("{} bodies refused with a reason", bodies.len() + 1))
}

fn too_large(stage: &Stage, chunked: bool) -> Found {
    let before = stage.server.memory();
    let (answer, sent) = raw::flood(stage.server.port, "/v1/completions", FLOOD_BYTES, chunked)?;
    let after = stage.server.memory();
    let sent = sent >> 20;
    if let (Some(before), Some(after)) = (before, after) {
        let grown = after.peak_bytes.saturating_sub(before.peak_bytes);
        ensure!(grown < FLOOD_MEMORY, "the server took {} MiB more", grown >> 20);
    }
    match answer {
        Some(answer) if answer.status == 413 => Ok(format!("413 after {sent} MiB")),
        Some(answer) => bail!("{} after {sent} MiB", answer.status),
        None => bail!("closed after {sent} MiB without an answer"),
    }
}

fn idle_connections(stage: &Stage) -> Found {
    let streams: Vec<TcpStream> =
        (0..IDLE).map(|_| raw::connect(stage.server.port)).collect::<Result<_>>()?;
    thread::sleep(Duration::from_secs(2));
    let reply = stage.client.ask(&stage.good)?;
    ensure!(reply.text == stage.alone, "another answer beside idle connections");
    Ok(format!("{} connections, and one more request", streams.len()))
}
