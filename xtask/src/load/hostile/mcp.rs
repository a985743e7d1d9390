//! MCP servers that mean harm: a program that floods its standard error with one line, one whose list of tools has no end,
//! and one over HTTP that answers no call.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ATTACK_TIME, BEGIN_LIMIT, SLACK, Stage};
use crate::load::raw;
use crate::load::server::{Contender, Setup};
use crate::load::verify::text_difference;

/// Seconds that a call may continue when the server ends.
const GRACE: &str = "2";
/// How long the server may take to end: its grace, and a moment.
const EXIT_LIMIT: Duration = Duration::from_secs(15);

/// A program that floods first if it is to, and then answers requests; `PAGE` is its list of tools.
const PROGRAM: &str = r#"
FLOOD
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    case "$line" in
        *'"method":"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}' ;;
        *'"method":"tools/list"'*) result='PAGE' ;;
        *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

/// Serves with such servers, and ends while a call is not answered.
pub(super) fn servers(contender: &Contender, setup: &Setup, seed: u64) -> Result<Vec<String>> {
    let (url, calls) = silent_server()?;
    let (_folder, file) = write(&url)?;
    let mut contender = contender.clone();
    let args = ["--grace", GRACE, "--mcp", &file.display().to_string()].map(str::to_owned);
    contender.extra.extend(args);
    let mut stage = Stage::new(contender.start(setup)?, seed)?;
    let found = started(&stage)?;
    let error = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    ensure!(error("pages").contains("more than 100 pages"), "pages: {}", error("pages"));
    ensure!(error("log").is_empty() && error("silent").is_empty(), "{found}");
    let before = stage.server.reset_peak()?;
    let call = json!({"name": "silent", "arguments": {}}).to_string();
    let stream = raw::post(stage.server.port, "/mcp/call", call.as_bytes())?;
    let held = calls.recv_timeout(BEGIN_LIMIT).context("the call")?;
    let start = Instant::now();
    let mut n_chats = 0;
    while start.elapsed() < ATTACK_TIME {
        let reply = stage.client.ask(&stage.chat)?;
        if let Some(difference) = text_difference(&reply.text, &stage.text) {
            anyhow::bail!("{difference}");
        }
        n_chats += 1;
    }
    if let Some((before, after)) = before.zip(stage.server.memory()) {
        let grown = after.peak_bytes.saturating_sub(before.now_bytes);
        ensure!(grown <= SLACK, "memory: +{} MiB", grown >> 20);
    }
    let start = Instant::now();
    stage.server.terminate()?;
    let status = stage.server.wait(EXIT_LIMIT)?;
    ensure!(status.success(), "the server exited with {status}: {}", stage.server.last_line());
    drop((stream, held));
    Ok(vec![format!("{n_chats} chats, exit status 0 after {:.1} s", start.elapsed().as_secs_f64())])
}

/// The file that names the servers.
fn write(url: &str) -> Result<(TempDir, PathBuf)> {
    let program = |flood: &str, page: &str| {
        let text = PROGRAM.replace("FLOOD", flood).replace("PAGE", page);
        json!({"command": "sh", "args": ["-c", text]})
    };
    // It ends by a broken pipe when its reader does.
    let flood = "head -c 1000000000000 /dev/zero >&2 &";
    let servers = json!({"mcpServers": {
        "log": program(flood, r#"{"tools":[]}"#),
        "pages": program("", r#"{"tools":[],"nextCursor":"more"}"#),
        "silent": {"url": url},
    }});
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("mcp.json");
    fs::write(&file, servers.to_string())?;
    Ok((folder, file))
}

/// The servers' errors by their names, once all have started.
fn started(stage: &Stage) -> Result<Value> {
    let start = Instant::now();
    loop {
        let list: Value = serde_json::from_str(&stage.client.get("/mcp/tools")?)?;
        let servers = list["servers"].as_array().context("no list of servers")?;
        let is_starting = |server: &Value| server["error"] == "it is starting";
        if !servers.iter().any(is_starting) {
            let pair = |server: &Value| {
                (server["name"].as_str().unwrap_or_default().to_owned(), server["error"].clone())
            };
            return Ok(Value::Object(servers.iter().map(pair).collect()));
        }
        ensure!(start.elapsed() < BEGIN_LIMIT, "the MCP servers did not start: {list}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A server over HTTP that has one tool and answers everything but its calls. Returns its URL, and where the connections of
/// calls come.
fn silent_server() -> Result<(String, mpsc::Receiver<TcpStream>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            match answer(&stream) {
                Ok(true) => {}
                // Nobody waits for it any longer when the attack is over.
                Ok(false) => drop(sender.send(stream)),
                Err(error) => println!("an MCP server: {error:#}"),
            }
        }
    });
    Ok((url, receiver))
}

/// Answers a request; false for a call, which it does not.
fn answer(mut stream: &TcpStream) -> Result<bool> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {}
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let result = match request["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "t", "version": "1"},
        }),
        Some("tools/list") => {
            json!({"tools": [{"name": "silent", "inputSchema": {"type": "object"}}]})
        }
        Some("tools/call") => return Ok(false),
        _ => Value::Null,
    };
    let text = match result {
        Value::Null => String::new(),
        result => json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string(),
    };
    let status = if text.is_empty() { "202 Accepted" } else { "200 OK" };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())?;
    Ok(true)
}
