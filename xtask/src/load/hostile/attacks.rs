//! The attacks that share a server: requests that are large, deep, expensive, slow, or not this
//! server's to answer.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use super::{ATTACK_TIME, Attack, Bound, Stage, Told, models};
use crate::load::client::joined;
use crate::load::raw;
use crate::load::workload::{Dice, text};

/// Connections that send a byte at a time.
pub(super) const SLOW: usize = 400;
/// Connections that send nothing, and where they come from.
pub(super) const IDLE: usize = 1100;
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Bytes of a large body, of a long text, of one word, and of a stop text.
const BODY: usize = 16 << 20;
const TEXT: usize = 8 << 20;
const WORD: usize = 4 << 20;
const STOP: usize = 20 << 20;
/// Clients that send small requests, as many as the server runs together.
const CLIENTS: usize = 8;

/// The attacks. A body that is parsed, rendered and encoded may take six times its bytes; for a single
/// word, which has a symbol of 16 bytes and a pair for every letter, it is some thirty times.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "three chats of 16 MiB", run: large_chats, memory: Bound::Bodies(6.0) },
    Attack { name: "pieces of a text of 8 MiB", run: pieces, memory: Bound::Bodies(6.0) },
    Attack { name: "a word of 4 MiB", run: long_word, memory: Bound::Bodies(40.0) },
    Attack { name: "lists and texts of samplers", run: samplers, memory: Bound::Bodies(6.0) },
    Attack { name: "deep and wide JSON", run: structures, memory: Bound::Bodies(6.0) },
    Attack { name: "grammars", run: grammars, memory: Bound::Idle(1.5) },
    Attack { name: "patterns that exclude each other", run: disjoint, memory: Bound::Idle(1.5) },
    Attack { name: "slow masks", run: slow_masks, memory: Bound::Idle(1.5) },
    Attack { name: "slow heads and bodies", run: slow_senders, memory: Bound::Idle(0.5) },
    Attack { name: "idle connections", run: idle, memory: Bound::Idle(0.5) },
    Attack { name: "bodies without their end", run: half_sent, memory: Bound::Bodies(1.5) },
    Attack { name: "foreign hosts and origins", run: foreign, memory: Bound::Idle(0.5) },
    Attack { name: "templates of other models", run: templates, memory: Bound::Idle(5.0) },
    Attack { name: "tokenizers of other models", run: tokenizers, memory: Bound::Idle(1.0) },
];

/// English-like text of this many bytes.
fn prose(stream: u64, n_bytes: usize) -> String {
    let part = text(&mut Dice::new(1, stream), 4000);
    let mut all = part.repeat(n_bytes / part.len() + 1);
    all.truncate(n_bytes);
    all
}

/// The body of a request to this server's model.
fn body(stage: &Stage, mut fields: Value) -> Vec<u8> {
    fields["model"] = stage.client.model.clone().into();
    fields.to_string().into_bytes()
}

fn chat(stage: &Stage, content: &str, more: &Value) -> Vec<u8> {
    let mut fields = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4});
    for (name, value) in more.as_object().into_iter().flatten() {
        fields[name] = value.clone();
    }
    body(stage, fields)
}

const CHATS: &str = "/v1/chat/completions";

fn large_chats(stage: &Stage) -> Result<Told> {
    let bodies: Vec<_> = (0..3).map(|idx| chat(stage, &prose(idx, BODY), &Value::Null)).collect();
    stage.volley(CHATS, &bodies, false, &[400])
}

fn pieces(stage: &Stage) -> Result<Told> {
    let fields = json!({
        "content": prose(3, TEXT), "with_pieces": true, "return_token_strs": true,
    });
    stage.volley("/tokenize", &[body(stage, fields)], false, &[200])
}

fn long_word(stage: &Stage) -> Result<Told> {
    let fields = json!({"content": "a".repeat(WORD)});
    stage.volley("/tokenize", &[body(stage, fields)], false, &[200])
}

fn samplers(stage: &Stage) -> Result<Told> {
    let breakers: Vec<String> = (0..100_000).map(|idx| format!("breaker {idx}")).collect();
    let stops: Vec<String> = (0..90_000).map(|idx| format!("stop {idx}")).collect();
    let biases: Map<String, Value> = (0..90_000).map(|id| (id.to_string(), json!(1))).collect();
    let ask = |more: Value| chat(stage, "Hello", &more);
    let bodies = [
        ask(json!({"dry_sequence_breakers": breakers, "dry_multiplier": 0.8})),
        ask(json!({"stop": "a".repeat(STOP)})),
        ask(json!({"stop": stops})),
        ask(json!({"logit_bias": biases})),
    ];
    stage.volley(CHATS, &bodies, false, &[400, 413])
}

fn structures(stage: &Stage) -> Result<Told> {
    let model = Value::from(stage.client.model.clone());
    let chats =
        |messages: &str| format!("{{\"model\": {model}, \"messages\": {messages}}}").into_bytes();
    let n = TEXT / 16;
    let bodies = [
        b"[".repeat(TEXT),
        b"{\"a\":".repeat(n),
        chats(&("[".repeat(n) + &"]".repeat(n))),
        chats(&format!("[{}0]", "[0],".repeat(n))),
        chats(&format!("[{}{{}}]", "{\"role\":\"user\",\"content\":\"a\"},".repeat(n / 8))),
        chats(&format!("[{{\"role\": \"user\", {}\"a\": 1}}]", "\"a\": 1,".repeat(n))),
    ];
    stage.volley(CHATS, &bodies, false, &[400, 413])
}

/// The first grammars of [`grammar_bombs`], which are refused for what they would grow to.
pub(super) const REFUSED_AT_ONCE: usize = 5;

/// Grammars that are refused for what they would grow to, and some that are only found out while they
/// are compiled.
pub(super) fn grammar_bombs() -> Vec<Value> {
    let optional: Map<String, Value> = (0..1000).map(|i| (format!("p{i}"), json!({}))).collect();
    let lengths = [2, 3, 5, 7, 11, 13, 17, 19, 23];
    let product: Vec<Value> =
        lengths.iter().map(|n| json!({"pattern": format!("^x(a{{{n}}})+y$")})).collect();
    let names: Vec<String> = (0..20_000).map(|i| format!("p{i}")).collect();
    // One derivative of their intersection is a product of all of them.
    let patterns = |n: usize| -> Vec<Value> {
        let pattern = |i| json!({"type": "string", "pattern": format!("(a|b)*a(a|b){{{i}}}")});
        (0..n).map(pattern).collect()
    };
    vec![
        json!({"type": "integer", "multipleOf": 99_999_989}),
        json!({"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}),
        json!({"type": "object", "properties": optional}),
        json!({"type": "object", "required": names}),
        json!({"allOf": patterns(15)}),
        json!({"allOf": patterns(10)}),
        json!({"type": "string", "allOf": product}),
        json!({"type": "string", "pattern": "^(.*a.{40}){40}$"}),
    ]
}

/// The body of a chat whose answer is to follow a schema.
pub(super) fn with_schema(model: &str, schema: &Value) -> Vec<u8> {
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let messages = json!([{"role": "user", "content": "Hello"}]);
    json!({"model": model, "messages": messages, "max_tokens": 4, "response_format": format})
        .to_string()
        .into_bytes()
}

fn grammars(stage: &Stage) -> Result<Told> {
    let bombs = grammar_bombs();
    let bodies: Vec<_> = bombs
        .iter()
        .cycle()
        .take(3 * bombs.len())
        .map(|schema| with_schema(&stage.client.model, schema))
        .collect();
    // The last one is within its budget, and waits for a place.
    stage.volley(CHATS, &bodies, true, &[200, 400, 429])
}

/// Schemas whose patterns all hold at once for no text, or for texts that are found late, by as many clients as
/// grammars are compiled for at once.
fn disjoint(stage: &Stage) -> Result<Told> {
    let pattern = |i: usize| json!({"type": "string", "pattern": format!("(a|b)*a(a|b){{{i}}}")});
    let schema = json!({"allOf": (0..15).map(pattern).collect::<Vec<_>>()});
    let names: Vec<String> = (0..20_000).map(|i| format!("k{i}")).collect();
    let wide = json!({"type": "object", "required": names});
    let ask = |schema: &Value| chat(stage, "Hello", &json!({"guided_json": schema}));
    let bodies = [ask(&schema), ask(&schema), ask(&schema), ask(&schema), ask(&wide)];
    stage.volley(CHATS, &bodies, false, &[400])
}

/// Answers whose grammar has as many states as there were letters in the last 2000.
fn slow_masks(stage: &Stage) -> Result<Told> {
    let more = json!({"guided_regex": "(a|b)*a(a|b){2000}", "max_tokens": 48, "temperature": 1});
    let bodies = vec![chat(stage, "Hello", &more); CLIENTS - 1];
    stage.volley(CHATS, &bodies, true, &[200, 400, 429])
}

/// Connections that send a byte of a head or of a body every now and then.
fn slow_senders(stage: &Stage) -> Result<Told> {
    let body = chat(stage, "Hello", &Value::Null);
    let head = raw::head(CHATS, Some(body.len()));
    let mut connections: Vec<(TcpStream, Vec<u8>)> = (0..SLOW)
        .map(|idx| -> Result<_> {
            let mut stream = raw::connect(stage.server.port)?;
            if idx % 2 == 0 {
                return Ok((stream, head.clone().into_bytes()));
            }
            stream.write_all(head.as_bytes())?;
            Ok((stream, body.clone()))
        })
        .collect::<Result<_>>()?;
    let start = Instant::now();
    let mut n_sent = 0;
    while start.elapsed() < ATTACK_TIME {
        for (stream, bytes) in &mut connections {
            stream.write_all(&bytes[n_sent..=n_sent])?;
        }
        n_sent += 1;
        thread::sleep(Duration::from_millis(50));
    }
    let more = format!("{SLOW} connections sent {n_sent} bytes each");
    Ok(Told { more, ..Told::default() })
}

/// More connections than one address may have, on which nothing is sent. The chat comes from another
/// address; probes are answered to this one too.
fn idle(stage: &Stage) -> Result<Told> {
    let connect = || raw::connect_from(ATTACKER, stage.server.port);
    let connections = (0..IDLE).map(|_| connect()).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    while start.elapsed() < ATTACK_TIME {
        super::probe(&mut connect()?)?;
    }
    drop(connections);
    Ok(Told { more: format!("{IDLE} connections"), ..Told::default() })
}

/// Bodies that take all the room there is for one address and never end.
fn half_sent(stage: &Stage) -> Result<Told> {
    const N: usize = 4;
    let head = raw::head(CHATS, Some(BODY + 1));
    let part = vec![b' '; BODY];
    let send = || -> Result<TcpStream> {
        let mut stream = raw::connect(stage.server.port)?;
        // A body without room is refused before all of it was sent.
        let _ = raw::send_all(&mut stream, &[head.as_bytes(), &part]);
        Ok(stream)
    };
    let held = thread::scope(|scope| {
        let threads: Vec<_> = (0..N).map(|_| scope.spawn(send)).collect();
        threads.into_iter().map(joined).collect::<Result<Vec<_>>>()
    })?;
    thread::sleep(ATTACK_TIME);
    drop(held);
    Ok(Told { more: format!("{N} bodies"), body_bytes: (N * BODY) as u64, ..Told::default() })
}

/// Requests that a page of another site could let a browser send.
fn foreign(stage: &Stage) -> Result<Told> {
    let body = chat(stage, "Hello", &Value::Null);
    let unload = json!({"model": stage.client.model}).to_string().into_bytes();
    let heads = [
        "Host: evil.example\r\nOrigin: http://evil.example",
        "Host: evil.example",
        "Host: localhost\r\nOrigin: http://evil.example",
        "Host: 127.0.0.1\r\nOrigin: null",
        "Host: localhost\r\nHost: evil.example",
        "Host: localhost@evil.example",
    ];
    let mut told = Told::default();
    let start = Instant::now();
    while start.elapsed() < ATTACK_TIME {
        for head in heads {
            for (path, body) in [(CHATS, &body), ("/models/unload", &unload)] {
                let mut stream = raw::connect(stage.server.port)?;
                let head = raw::head(path, Some(body.len())).replace("Host: 127.0.0.1", head);
                raw::send_all(&mut stream, &[head.as_bytes(), body])?;
                let status = raw::answer(&mut stream)?.map_or(0, |answer| answer.status);
                ensure!([400, 403].contains(&status), "{head}: {status}");
                told.count(status);
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(told)
}

/// Chats with models whose templates use up what they can.
fn templates(stage: &Stage) -> Result<Told> {
    let mut told = Told::default();
    for name in models::with_templates() {
        // Renderings that make much take turns.
        let bodies = vec![chat_with(name); CLIENTS - 1];
        told.add(stage.volley_telling(CHATS, &bodies, false, &[400, 500], "template")?);
    }
    Ok(told)
}

/// Chats with models whose tokenizers are expanded, or are no files.
fn tokenizers(stage: &Stage) -> Result<Told> {
    let mut told = Told::default();
    for name in models::WITH_TOKENIZERS {
        let bodies = vec![chat_with(name); CLIENTS - 1];
        told.add(stage.volley_telling(CHATS, &bodies, false, &[400, 500], "tokenizer.json")?);
    }
    Ok(told)
}

/// The body of a chat with another model of the server.
fn chat_with(name: &str) -> Vec<u8> {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    json!({"model": name, "messages": messages, "max_tokens": 1}).to_string().into_bytes()
}
