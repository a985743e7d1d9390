//! Attacks that take a server of their own: its log is lost, and it is told to end.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::attacks::{REFUSED_AT_ONCE, grammar_bombs, with_schema};
use super::{Stage, Told};
use crate::load::client::joined;
use crate::load::raw;
use crate::load::server::{Contender, Setup};
use crate::load::verify::text_difference;

/// Requests whose log records nothing reads.
const RECORDS: usize = 2000;
/// Clients whose grammars compile when the server is told to end.
const CLIENTS: usize = 16;
/// How long the server may take to end. It waits five seconds for what cannot be ended.
const EXIT_LIMIT: Duration = Duration::from_secs(15);

/// Serves while what reads its log is gone.
pub(super) fn unread_log(contender: &Contender, setup: &Setup, seed: u64) -> Result<Vec<String>> {
    let (reader, writer) = std::io::pipe()?;
    let mut contender = contender.clone();
    contender.extra.push("-vv".to_owned());
    let server = contender.start_logging(setup, Some(Stdio::from(writer)))?;
    drop(reader);
    let stage = Stage::new(server, seed)?;
    for _ in 0..RECORDS {
        stage.client.get("/health")?;
    }
    let reply = stage.client.ask(&stage.chat)?;
    if let Some(difference) = text_difference(&reply.text, &stage.text) {
        anyhow::bail!("{difference}");
    }
    stage.server.stop()?;
    Ok(vec![format!("{RECORDS} × 200")])
}

/// Ends the server while it compiles grammars that take as long as they can.
pub(super) fn terminated(contender: &Contender, setup: &Setup, _: u64) -> Result<Vec<String>> {
    let mut server = contender.start(setup)?;
    let (port, model) = (server.port, server.client.model.clone());
    let bombs = grammar_bombs();
    let over = AtomicBool::new(false);
    let attack = |idx: usize| {
        let body =
            with_schema(&model, &bombs[REFUSED_AT_ONCE + idx % (bombs.len() - REFUSED_AT_ONCE)]);
        let mut told = Told::default();
        while !over.load(Ordering::Relaxed) {
            // A server that ends refuses connections and closes others.
            let Ok(mut stream) = raw::post(port, "/v1/chat/completions", &body) else { break };
            let Ok(Some(answer)) = raw::answer(&mut stream) else { break };
            told.count(answer.status);
        }
        told
    };
    let (told, ended) = thread::scope(|scope| -> Result<_> {
        let attack = &attack;
        let threads: Vec<_> = (0..CLIENTS).map(|idx| scope.spawn(move || attack(idx))).collect();
        thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        let ended = server.terminate().and_then(|()| server.wait(EXIT_LIMIT));
        over.store(true, Ordering::Relaxed);
        if ended.is_err() {
            // Its clients would wait for it.
            server.kill();
        }
        let mut told = Told::default();
        threads.into_iter().map(joined).for_each(|one| told.add(one));
        ended.map(|status| (told, (status, start.elapsed())))
    })?;
    let (status, took) = ended;
    ensure!(status.success(), "the server exited with {status}: {}", server.last_line());
    Ok(vec![format!("{told}, exit status 0 after {:.1} s", took.as_secs_f64())])
}
