//! Clients that mean harm, beside one that streams a chat from the same server. Each attack may cost
//! the chat only so much time and the server only so much memory, as ratios to what they take without
//! it; its requests must be answered with the statuses that are meant for them, and the chat's text
//! must be the same. Beside each attack probes are answered, and after it a request with a grammar is.

mod alone;
mod attacks;
mod mcp;
mod models;

use std::collections::BTreeMap;
use std::fmt;
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::client::{Client, joined};
use super::metrics::Gauges;
use super::raw;
use super::server::{Contender, Server, Setup};
use super::stats::{Timing, percentile};
use super::verify::text_difference;
use super::workload::{Api, Ask, Dice, text};
use crate::table;
use crate::totals::Totals;
use attacks::ATTACKS;

/// Tokens of the chat's answers, and answers that tell how it is without an attack.
const CHAT_TOKENS: usize = 128;
const ALONE: usize = 3;
/// How long an attack of short requests lasts.
const ATTACK_TIME: Duration = Duration::from_secs(2);
/// The time between two probes.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// How long a request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(120);
/// How long a server may take until a stream begins.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// How much longer the 99th percentile of the times between two tokens may be than alone. Eight
/// attackers that keep both processors of a small machine busy may make each token wait for its turn.
const P99_RATIO: f64 = 12.0;
/// How much longer the longest time may be than the median alone.
const STALL_RATIO: f64 = 120.0;
/// The room that memory may grow by beside any ratio: stacks of threads and buffers of connections.
const SLACK: u64 = 48 << 20;

/// An attack on a server that others attack too.
struct Attack {
    name: &'static str,
    run: fn(&Stage) -> Result<Told>,
    memory: Bound,
}

/// How much more memory the server may take, [`SLACK`] aside.
#[derive(Clone, Copy)]
enum Bound {
    /// Times the bytes of the bodies that are under way together.
    Bodies(f64),
    /// Times what it takes when idle.
    Idle(f64),
}

/// What an attack sent and how it was answered.
#[derive(Debug, Default)]
struct Told {
    /// Answers by status; 0 is a connection that was closed without one.
    statuses: BTreeMap<u16, usize>,
    /// The bytes of the bodies that were under way together.
    body_bytes: u64,
    more: String,
}

/// The times between the tokens of the chat, in milliseconds.
#[derive(Debug, Default)]
struct Gaps(Vec<f64>);

/// A server, the chat, and how both are without an attack.
struct Stage {
    server: Server,
    client: Client,
    chat: Ask,
    text: String,
    alone: Gaps,
    idle_bytes: Option<u64>,
}

/// Attacks the server in every way, prints a table, and counts what held.
pub(super) fn run(
    contender: &Contender,
    model: &Path,
    threads: usize,
    seed: u64,
) -> Result<Totals> {
    raw::allow_connections(2 * (attacks::SLOW + attacks::IDLE) as u64)?;
    let setup = Setup {
        model: model.to_owned(),
        threads,
        parallel: 8,
        request_len: 512,
        queue: Some(64),
        prefix_cache: true,
    };
    let mut rows = Vec::new();
    let mut totals = Totals::default();
    let mut tell = |name: &str, found: Result<Vec<String>>| {
        let start = vec![name.to_owned()];
        match found {
            Ok(cells) => {
                totals.passed += 1;
                println!("{}: {name}: ok: {}", contender.label, cells.join("; "));
                rows.push([start, vec!["ok".to_owned()], cells].concat());
            }
            Err(error) => {
                totals.fail(format!("{}: {name}: FAILED: {error:#}", contender.label));
                rows.push([start, vec!["FAILED".to_owned(), format!("{error:#}")]].concat());
            }
        }
    };
    let models = models::write(setup.request_len)?;
    let mut with_models = contender.clone();
    with_models.extra.extend(["--models-dir".to_owned(), models.path().display().to_string()]);
    let stage = Stage::new(with_models.start(&setup)?, seed)?;
    println!("{}: the chat alone: {}", contender.label, stage.alone);
    for attack in ATTACKS {
        tell(attack.name, stage.beside(attack));
    }
    stage.server.stop()?;
    tell("a log that nobody reads", alone::unread_log(contender, &setup, seed));
    tell("SIGTERM while grammars compile", alone::terminated(contender, &setup, seed));
    tell("MCP servers", mcp::servers(contender, &setup, seed));
    let head = ["attack", "", "answers", "p50 ms", "p99 ms", "longest ms", "memory"];
    println!("\n{}:\n{}", contender.label, table::render(&head, &rows));
    Ok(totals)
}

impl Stage {
    fn new(server: Server, seed: u64) -> Result<Self> {
        let client = server.client.limited(REQUEST_LIMIT);
        let prompt = text(&mut Dice::new(seed, 0), 64);
        let chat = Ask::greedy(Api::Chat, "", &prompt, CHAT_TOKENS);
        let mut alone = Gaps::default();
        let text = client.ask(&chat)?.text;
        for _ in 0..ALONE {
            let reply = client.ask(&chat)?;
            ensure!(reply.text == text, "the chat has two answers without any attack");
            alone.0.extend(Timing::new(&reply).gaps);
        }
        Gauges::wait_idle(&client)?;
        let idle_bytes = server.memory().map(|memory| memory.now_bytes);
        Ok(Self { server, client, chat, text, alone, idle_bytes })
    }

    /// Runs an attack while the chat continues, and checks the outcome of both. Returns the cells of
    /// the table.
    fn beside(&self, attack: &Attack) -> Result<Vec<String>> {
        let before = self.server.reset_peak()?;
        let over = AtomicBool::new(false);
        let (begun, begins) = mpsc::channel();
        let (gaps, told, probed) = thread::scope(|scope| {
            let probes = scope.spawn(|| self.probe(&over));
            let chat = scope.spawn(|| self.talk(&over, begun));
            let told = match begins.recv_timeout(BEGIN_LIMIT) {
                Ok(()) => (attack.run)(self),
                Err(_) => Err(anyhow::anyhow!("the chat did not begin")),
            };
            over.store(true, Ordering::Relaxed);
            (joined(chat), told, joined(probes))
        });
        let told = told?;
        let gaps = gaps.context("the chat")?;
        probed.context("a probe")?;
        self.follow_a_schema().context("a schema after the attack")?;
        Gauges::wait_idle(&self.client)?;
        let grown = before.zip(self.server.memory());
        let grown = grown.map(|(before, after)| after.peak_bytes.saturating_sub(before.now_bytes));
        let mut cells = vec![told.to_string()];
        cells.extend(gaps.compared(&self.alone)?);
        cells.push(self.bounded(attack.memory, grown, &told)?);
        Ok(cells)
    }

    /// Asks for the server's health until the attack is over.
    fn probe(&self, over: &AtomicBool) -> Result<()> {
        while !over.load(Ordering::Relaxed) {
            probe(&mut raw::connect(self.server.port)?)?;
        }
        Ok(())
    }

    /// An answer by a schema, which is compiled for this request alone.
    fn follow_a_schema(&self) -> Result<()> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let word = format!("word {}", NEXT.fetch_add(1, Ordering::Relaxed));
        let body = attacks::with_schema(&self.client.model, &json!({"const": word}));
        let mut stream = raw::post(self.server.port, "/v1/chat/completions", &body)?;
        let answer = raw::answer(&mut stream)?.context("no answer")?;
        ensure!(answer.status == 200, "status {}: {}", answer.status, answer.body);
        Ok(())
    }

    /// The chat: every answer must be the one it gets without an attack.
    fn talk(&self, over: &AtomicBool, begun: mpsc::Sender<()>) -> Result<Gaps> {
        let mut begun = Some(begun);
        let mut gaps = Gaps::default();
        loop {
            let reply = self.client.ask_while(&self.chat, |_| {
                if let Some(begun) = begun.take() {
                    // Nothing waits for it any longer when the attack has failed.
                    let _ = begun.send(());
                }
                ControlFlow::Continue(())
            })?;
            if let Some(difference) = text_difference(&reply.text, &self.text) {
                bail!("{difference}");
            }
            gaps.0.extend(Timing::new(&reply).gaps);
            if over.load(Ordering::Relaxed) {
                return Ok(gaps);
            }
        }
    }

    /// How much memory the server took more, within the bound.
    fn bounded(&self, bound: Bound, grown: Option<u64>, told: &Told) -> Result<String> {
        let (Some(grown), Some(idle)) = (grown, self.idle_bytes) else {
            return Ok("not told".to_owned());
        };
        let mib = grown >> 20;
        let (of, ratio, name) = match bound {
            Bound::Bodies(ratio) => (told.body_bytes, ratio, "the bodies"),
            Bound::Idle(ratio) => (idle, ratio, "the idle server"),
        };
        let found = grown as f64 / of as f64;
        let shown = format!("+{mib} MiB, {found:.2} × {name}");
        let allowed = (of as f64 * ratio) as u64 + SLACK;
        ensure!(grown <= allowed, "memory: {shown}; {} MiB are allowed", allowed >> 20);
        Ok(shown)
    }

    /// Sends the bodies to a path by this many clients, each repeatedly for [`ATTACK_TIME`] or
    /// once. Another status than one of `expected` is an error.
    fn volley(
        &self,
        path: &str,
        bodies: &[Vec<u8>],
        repeated: bool,
        expected: &[u16],
    ) -> Result<Told> {
        self.volley_telling(path, bodies, repeated, expected, "")
    }

    /// As [`Self::volley`], where each answer must have a text in it.
    fn volley_telling(
        &self,
        path: &str,
        bodies: &[Vec<u8>],
        repeated: bool,
        expected: &[u16],
        text: &str,
    ) -> Result<Told> {
        let start = Instant::now();
        let one = |body: &Vec<u8>| -> Result<Vec<u16>> {
            let mut statuses = Vec::new();
            loop {
                let mut stream = raw::connect(self.server.port)?;
                // A server that refuses a body may close before all of it was sent.
                let head = raw::head(path, Some(body.len()));
                let sent = raw::send_all(&mut stream, &[head.as_bytes(), body]);
                let answer = raw::answer(&mut stream)?;
                let status = answer.as_ref().map_or(0, |answer| answer.status);
                let told = answer.as_ref().is_none_or(|answer| answer.body.contains(text));
                ensure!(
                    expected.contains(&status) && told,
                    "{path}: {status} ({:?}, sent: {sent:?})",
                    answer.map(|answer| answer.body.chars().take(200).collect::<String>())
                );
                statuses.push(status);
                if !repeated || start.elapsed() > ATTACK_TIME {
                    return Ok(statuses);
                }
            }
        };
        let statuses = thread::scope(|scope| {
            let threads: Vec<_> =
                bodies.iter().map(|body| scope.spawn(move || one(body))).collect();
            threads.into_iter().map(joined).collect::<Result<Vec<_>>>()
        })?;
        let body_bytes = bodies.iter().map(|body| body.len() as u64).sum();
        let mut told = Told { body_bytes, ..Told::default() };
        statuses.into_iter().flatten().for_each(|status| told.count(status));
        Ok(told)
    }
}

/// Asks for the server's health on a new connection, and waits until the next time.
fn probe(stream: &mut TcpStream) -> Result<()> {
    raw::send_all(stream, &[raw::head("/ping", Some(0)).as_bytes()])?;
    let status = raw::answer(stream)?.map_or(0, |answer| answer.status);
    ensure!(status == 200, "status {status}");
    thread::sleep(PROBE_PAUSE);
    Ok(())
}

impl Told {
    fn count(&mut self, status: u16) {
        *self.statuses.entry(status).or_default() += 1;
    }

    fn add(&mut self, other: Self) {
        for (status, n) in other.statuses {
            *self.statuses.entry(status).or_default() += n;
        }
        self.body_bytes = self.body_bytes.max(other.body_bytes);
        self.more += &other.more;
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        for (status, n) in &self.statuses {
            parts.push(match status {
                0 => format!("{n} closed"),
                status => format!("{n} × {status}"),
            });
        }
        if !self.more.is_empty() {
            parts.push(self.more.clone());
        }
        f.write_str(&parts.join(", "))
    }
}

impl Gaps {
    fn p50(&self) -> f64 {
        percentile(&self.0, 0.50)
    }

    fn p99(&self) -> f64 {
        percentile(&self.0, 0.99)
    }

    fn longest(&self) -> f64 {
        percentile(&self.0, 1.0)
    }

    /// The cells of the table, within the bounds.
    fn compared(&self, alone: &Self) -> Result<Vec<String>> {
        let of = |now: f64, alone: f64| format!("{now:.1} ({:.1} ×)", now / alone);
        let stall = self.longest() / alone.p50();
        ensure!(
            self.p99() <= alone.p99() * P99_RATIO,
            "the 99th percentile between tokens: {}; {P99_RATIO} × are allowed",
            of(self.p99(), alone.p99())
        );
        ensure!(
            stall <= STALL_RATIO,
            "the longest time between tokens: {:.1} ms, {stall:.1} × the median alone; {STALL_RATIO} × \
             are allowed",
            self.longest()
        );
        Ok(vec![
            of(self.p50(), alone.p50()),
            of(self.p99(), alone.p99()),
            of(self.longest(), alone.p50()),
        ])
    }
}

impl fmt::Display for Gaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99, longest) = (self.p50(), self.p99(), self.longest());
        write!(f, "between tokens p50 {p50:.1} ms, p99 {p99:.1} ms, longest {longest:.1} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded_by_those_alone() {
        let gaps = |rest: f64| {
            let mut gaps = vec![10.0; 98];
            gaps.extend([rest, rest]);
            Gaps(gaps)
        };
        let alone = Gaps(vec![10.0; 100]);
        let cells = gaps(100.0).compared(&alone).unwrap();
        assert_eq!(cells, ["10.0 (1.0 ×)", "100.0 (10.0 ×)", "100.0 (10.0 ×)"]);
        let error = gaps(130.0).compared(&alone).unwrap_err().to_string();
        assert!(error.contains("99th percentile"), "{error}");
        let mut one = vec![10.0; 1000];
        one[5] = 4000.0;
        let error = Gaps(one).compared(&alone).unwrap_err().to_string();
        assert!(error.contains("400.0 × the median"), "{error}");
    }

    #[test]
    fn answers_are_counted_by_status() {
        let mut told = Told::default();
        [400, 0, 400, 429].into_iter().for_each(|status| told.count(status));
        let mut more = Told { body_bytes: 7, more: "3 left".to_owned(), ..Told::default() };
        more.count(400);
        told.add(more);
        assert_eq!(told.to_string(), "1 closed, 3 × 400, 1 × 429, 3 left");
        assert_eq!(told.body_bytes, 7);
    }
}
