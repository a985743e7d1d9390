//! `realizar serve` as a process: the line with its URL, an answer, and its end.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::fixture;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use realizar_formats::{Gguf, GgufWriter};
use serde_json::{Value, json};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

fn model() -> String {
    fixture("model-f32.gguf").display().to_string()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_realizar"));
    command.arg("serve").args(args).env("REALIZAR_DEVICE", "cpu").env_remove("REALIZAR_API_KEY");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server that is killed if the test does not end it.
pub(crate) struct Server(Child);

/// A server with these arguments, and its URL.
pub(crate) fn start(args: &[&str]) -> (Server, String) {
    Server::start(&mut command(args))
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// A server that listens, and its URL.
    fn start(command: &mut Command) -> (Self, String) {
        let mut server = Self(command.spawn().expect("the binary starts"));
        let mut out = BufReader::new(server.0.stdout.take().expect("standard output"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        let url = line.trim().strip_prefix("listening on ").expect("the URL").to_owned();
        (server, url)
    }

    /// Tells it to end, and returns its exit code.
    fn end(mut self, signal: &str) -> Option<i32> {
        let id = self.0.id().to_string();
        let killed = Command::new("kill").args([signal, &id]).status().expect("kill is there");
        assert!(killed.success());
        self.0.wait().expect("it ends").code()
    }
}

#[test]
fn serves_until_it_is_told_to_stop() {
    for signal in ["-TERM", "-INT"] {
        let args = [&model(), "--port", "0", "--alias", "tiny", "--api-key", "k", "--temp", "0"];
        let (server, url) = Server::start(&mut command(&args));
        let get = |path: &str| {
            let request = ureq::get(format!("{url}{path}")).header("authorization", "Bearer k");
            let text = request.call().expect("an answer").body_mut().read_to_string();
            serde_json::from_str::<Value>(&text.expect("a body")).expect("JSON")
        };
        assert_eq!(get("/health"), json!({"status": "ok"}));
        let models = get("/v1/models");
        assert_eq!(models["data"][0]["id"], "tiny");
        assert_eq!(models["data"][0]["aliases"], json!(["model-f32"]));
        assert_eq!(server.end(signal), Some(0), "{signal}");
        // As soon as it says that it listens, it can be told.
        let (server, _) = Server::start(&mut command(&args));
        assert_eq!(server.end(signal), Some(0), "{signal} at once");
    }
}

#[test]
fn sigterm_ends_a_program_that_is_the_first_process() {
    // The system ends such a process by no signal that it does not handle; here it is seen by the exit code.
    let mut program = Command::new(env!("CARGO_BIN_EXE_realizar"));
    let dir = tempfile::tempdir().expect("a folder");
    let template = dir.path().join("chat.jinja");
    std::fs::write(&template, "{{ messages[-1].content }}").expect("written");
    program.args(["chat", &model(), "-n", "1", "--greedy", "--template"]).arg(&template);
    program.env("REALIZAR_DEVICE", "cpu");
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut program = Server(program.spawn().expect("the binary starts"));
    program.0.stdin.as_mut().expect("standard input").write_all(b"a\n").expect("write");
    let mut byte = [0];
    program.0.stdout.as_mut().expect("standard output").read_exact(&mut byte).expect("an answer");
    assert_eq!(program.end("-TERM"), Some(143));
}

#[test]
#[cfg(target_os = "linux")]
fn probes_are_answered_beside_more_connections_than_descriptors() {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_realizar")]);
    limited.args(["serve", &model(), "--port", "0"]).env("REALIZAR_DEVICE", "cpu");
    limited.env_remove("REALIZAR_API_KEY").stdin(Stdio::null());
    let (server, url) = Server::start(limited.stdout(Stdio::piped()).stderr(Stdio::null()));
    let address = url.strip_prefix("http://").expect("an address");
    let connect = |_| TcpStream::connect(address).expect("the system takes it");
    let _silent: Vec<TcpStream> = (0..300).map(connect).collect();
    for path in ["/health", "/live", "/health"] {
        let answer = ureq::get(format!("{url}{path}")).call().expect("an answer");
        assert_eq!(answer.status().as_u16(), 200, "{path}");
    }
    assert_eq!(server.end("-TERM"), Some(0));
}

/// The names and states of a server's models.
fn states(url: &str) -> Vec<(Value, Value)> {
    let text = ureq::get(format!("{url}/models")).call().expect("an answer");
    let text = text.into_body().read_to_string().expect("a body");
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let models = list["data"].as_array().expect("a list").iter();
    models.map(|model| (model["id"].clone(), model["status"]["value"].clone())).collect()
}

#[test]
fn a_seed_holds_for_requests_without_one() {
    let (_server, url) = start(&[&model(), "--port", "0", "--seed", "7"]);
    let seed = |field: &str| {
        let ask = format!(r#"{{"prompt": "a"{field}}}"#);
        let request = ureq::post(format!("{url}/v1/completions/render"));
        let answer = request.header("content-type", "application/json").send(ask);
        let text = answer.expect("an answer").into_body().read_to_string().expect("a body");
        let list: Value = serde_json::from_str(&text).expect("JSON");
        list[0]["sampling_params"]["seed"].clone()
    };
    assert_eq!(seed(""), 7);
    assert_eq!(seed(r#", "seed": null"#), 7);
    assert_eq!(seed(r#", "seed": 8"#), 8);
    assert_eq!(seed(r#", "seed": -1"#), Value::Null);
}

#[test]
fn a_model_may_be_given_a_name() {
    let (given, other) = (format!("a={}", model()), format!("b={}", model()));
    let (_server, url) = start(&[&given, &other, "--lazy", "--port", "0"]);
    let want = ["a", "b"].map(|name| (json!(name), json!("unloaded")));
    assert_eq!(states(&url), want);
}

#[test]
fn without_a_model_those_that_were_pulled_are_offered() {
    let cache = tempfile::tempdir().expect("a folder");
    let mut command = command(&["--port", "0", "--no-config"]);
    let mut server =
        Server(command.env("REALIZAR_CACHE", cache.path()).spawn().expect("it starts"));
    let mut lines = BufReader::new(server.0.stdout.take().expect("standard output")).lines();
    let mut line = || lines.next().expect("a line").expect("UTF-8");
    let url = line().strip_prefix("listening on ").expect("the URL").to_owned();
    assert_eq!(line(), format!("chat page: {url}/  OpenAI API: {url}/v1"));
    assert!(line().starts_with("no model has been pulled: `realizar pull smollm2`"));
    assert!(states(&url).is_empty());
    // What is pulled while it runs is there, too; nothing else is fetched.
    let bytes = std::fs::read(model()).expect("the model");
    let dir = cache.path().join("models/some-key");
    std::fs::create_dir_all(&dir).expect("a folder");
    std::fs::write(dir.join("m.gguf"), &bytes).expect("written");
    let manifest = json!({"name": "hf:o/r:Q8_0", "source": "hf:o/r:Q8_0", "file": "m.gguf",
        "bytes": bytes.len(), "sha256": null, "licence": null, "pulled_at": 0});
    std::fs::write(dir.join("manifest.json"), manifest.to_string()).expect("written");
    assert_eq!(states(&url), [(json!("hf:o/r:Q8_0"), json!("unloaded"))]);
    let ask = json!({"model": "hf:o/r:Q8_0", "prompt": "a", "max_tokens": 1}).to_string();
    let request = ureq::post(format!("{url}/v1/completions"));
    let answer = request.header("content-type", "application/json").send(ask).expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
    assert_eq!(states(&url), [(json!("hf:o/r:Q8_0"), json!("loaded"))]);
}

#[test]
fn a_server_ends_with_its_standard_input_if_it_is_to() {
    let model = model();
    let mut command = command(&[&model, "--port", "0", "--until-stdin-ends"]);
    let (mut server, url) = Server::start(command.stdin(Stdio::piped()));
    assert!(ureq::get(format!("{url}/ready")).call().is_ok());
    drop(server.0.stdin.take());
    assert_eq!(server.0.wait().expect("it ends").code(), Some(0));
}

#[test]
fn whether_a_server_is_ready_is_asked_without_a_key() {
    let model = model();
    let (server, url) = start(&[&model, "--port", "0", "--api-key", "k"]);
    let ready = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_realizar"));
        let output = command.args(["ps", "--ready", "--url", &url]).output().expect("it starts");
        (output.status.code(), output.stdout.is_empty())
    };
    assert_eq!(ready(), (Some(0), true));
    assert_eq!(server.end("-TERM"), Some(0));
    assert_eq!(ready(), (Some(1), true));
}

#[test]
fn models_of_a_directory_are_loaded_when_they_are_named() {
    let folder = PathBuf::from(model()).parent().expect("a folder").display().to_string();
    let args = ["--models-dir", &folder, "--memory-limit", "4G", "--port", "0", "--ctx", "64"];
    let (_server, url) = Server::start(&mut command(&args));
    let state = || {
        let text = ureq::get(format!("{url}/models")).call().expect("an answer");
        let text = text.into_body().read_to_string().expect("a body");
        let list: Value = serde_json::from_str(&text).expect("JSON");
        let model = &list["data"][0];
        (model["id"].clone(), model["status"]["value"].clone())
    };
    assert_eq!(state(), (json!("model-f32"), json!("unloaded")));
    let ask = json!({"model": "model-f32", "prompt": "a", "max_tokens": 1}).to_string();
    let request = ureq::post(format!("{url}/v1/completions"));
    let answer = request.header("content-type", "application/json").send(ask).expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
    assert_eq!(state(), (json!("model-f32"), json!("loaded")));
}

/// A greedy answer of a server, and the draft tokens that were accepted, those of each source and all.
fn drafted(model: &str, more: &[&str]) -> (Value, Vec<(String, f64)>) {
    let ask = json!({"prompt": "abc", "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    let args = [&[model, "--port", "0", "--ctx", "64"], more].concat();
    let (_server, url) = Server::start(&mut command(&args));
    let request = ureq::post(format!("{url}/v1/completions"));
    let request = request.header("content-type", "application/json");
    let answer = request.send(ask.to_string()).expect("an answer").into_body();
    let answer: Value = serde_json::from_reader(answer.into_reader()).expect("JSON");
    let metrics = ureq::get(format!("{url}/metrics")).call().expect("an answer").into_body();
    let lines = BufReader::new(metrics.into_reader()).lines().map_while(Result::ok);
    let accepted = lines
        .filter(|line| {
            line.starts_with("vllm:spec_decode_num_accepted_tokens_total{")
                || line.starts_with("realizar:draft_tokens_accepted_total{")
        })
        .filter_map(|line| {
            let source = line.split_once("source=\"").and_then(|(_, rest)| rest.split('"').next());
            let n = line.rsplit(' ').next()?.parse().ok()?;
            Some((source.unwrap_or("all").to_owned(), n))
        })
        .filter(|(_, n)| *n > 0.0)
        .collect();
    (answer["choices"][0]["text"].clone(), accepted)
}

fn counts(counts: &[(&str, f64)]) -> Vec<(String, f64)> {
    counts.iter().map(|(source, n)| ((*source).to_owned(), *n)).collect()
}

#[test]
fn a_draft_model_guesses_and_answers_stay_the_same() {
    let model = model();
    let (alone, none) = drafted(&model, &[]);
    let (guessed, accepted) = drafted(&model, &["--draft-model", &model, "--draft-max", "3"]);
    assert_eq!(guessed, alone);
    // A model that drafts for itself is right each time: 3 of 4 tokens after the first.
    assert_eq!((none, accepted), (vec![], counts(&[("all", 17.0), ("model", 17.0)])));
}

#[test]
fn a_model_drafts_for_itself_unless_it_is_told_not_to() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/drafts/");
    let model = format!("{root}copying/model-f32.gguf");
    let (alone, none) = drafted(&model, &[]);
    assert_eq!(none, vec![]);
    for more in [
        &["--draft-head", "auto"][..],
        &["--draft-head", "on"],
        &["--mtp", "auto", "--draft-max", "2"],
    ] {
        let (answer, accepted) = drafted(&model, more);
        assert_eq!(answer, alone, "{more:?}");
        let [(all, n), (head, of_head)] = &accepted[..] else { panic!("{more:?}: {accepted:?}") };
        assert_eq!((all.as_str(), head.as_str()), ("all", "head"));
        assert!(n == of_head && *n >= 11.0, "{more:?}: {n}");
    }
}

#[test]
fn speaks_tls_with_the_flags_of_llama_server() {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let dir = tempfile::tempdir().expect("temporary directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("write");
        path.display().to_string()
    };
    let cert_path = write("cert.pem", &cert.pem());
    let key_path = write("key.pem", &signing_key.serialize_pem());
    let keys = write("keys", "# of the tests\nk\n");
    let args = [&model(), "--port", "0", "-np", "2", "-cb", "--jinja", "--api-key-file", &keys];
    let tls = ["--ssl-cert-file", &cert_path, "--ssl-key-file", &key_path];
    let (server, url) = Server::start(command(&args).args(tls));
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let root = Certificate::from_der(cert.der()).to_owned();
    let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[root])).build();
    let config = ureq::Agent::config_builder().tls_config(tls).http_status_as_error(false);
    let agent: ureq::Agent = config.build().into();
    for (key, status) in [("k", 200), ("# of the tests", 401)] {
        let request = agent.get(format!("{url}/v1/models"));
        let request = request.header("authorization", format!("Bearer {key}"));
        assert_eq!(request.call().expect("an answer").status(), status, "{key}");
    }
    assert_eq!(server.end("-TERM"), Some(0));
}

/// A collector that takes one request.
#[cfg(feature = "otel")]
fn collector() -> (String, std::thread::JoinHandle<Vec<u8>>) {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let taken = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a connection");
        let mut text = Vec::new();
        let (head_len, body_len) = loop {
            let mut part = [0; 4096];
            let n = connection.read(&mut part).expect("a request");
            assert!(n > 0, "half a request");
            text.extend(&part[..n]);
            let Some(end) = text.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
                continue;
            };
            let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
            let len = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let len: usize = len.expect("a length").parse().expect("a number");
            assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
            assert!(head.contains("content-type: application/x-protobuf"), "{head}");
            if text.len() >= end + 4 + len {
                break (end + 4, len);
            }
        };
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(answer).expect("an answer");
        text[head_len..head_len + body_len].to_vec()
    });
    (url, taken)
}

#[cfg(feature = "otel")]
#[test]
fn sends_traces_before_it_ends() {
    let (collector, taken) = collector();
    let args = [&model(), "--port", "0", "--alias", "tiny", "--otel"];
    let mut command = command(&args);
    // Nothing is sent until the end.
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector).env("OTEL_BSP_SCHEDULE_DELAY", "600000");
    let (server, url) = Server::start(&mut command);
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    agent.get(format!("{url}/health")).call().expect("an answer");
    let ask = json!({"prompt": "abc", "max_tokens": 3, "ignore_eos": true, "stream": true});
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = agent.post(format!("{url}/v1/completions"));
    let request = request.header("traceparent", parent);
    let request = request.header("content-type", "application/json").header("x-request-id", "mine");
    let answer = request.send(ask.to_string()).expect("an answer").body_mut().read_to_string();
    assert!(answer.expect("a body").ends_with("data: [DONE]\n\n"));
    let missing = agent.get(format!("{url}/v1/models/other"));
    assert_eq!(missing.call().expect("an answer").status(), 404);
    assert_eq!(server.end("-TERM"), Some(0));
    let body = taken.join().expect("a request");
    // Of OTLP's messages: a field of bytes is its tag, its length and itself, a number its tag and
    // its digits; an attribute is a key and a value, which has tag 10 for a text and 24 for a number.
    let field = |tag: u8, bytes: &[u8]| [&[tag, bytes.len() as u8], bytes].concat();
    let text = |value: &str| field(10, value.as_bytes());
    let attribute = |name: &str, value: Vec<u8>| [text(name), field(18, &value)].concat();
    let times = |want: &[u8]| body.windows(want.len()).filter(|bytes| *bytes == want).count();
    let trace_id = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128;
    let span_id = 0xb7ad_6b71_6920_3331_u64;
    for (what, want, count) in [
        ("the service", attribute("service.name", text("realizar")), 1),
        ("a trace that goes on", field(10, &trace_id.to_be_bytes()), 1),
        ("the caller's span", field(34, &span_id.to_be_bytes()), 1),
        ("a span", field(42, b"POST /v1/completions"), 1),
        ("a span", field(42, b"GET /v1/models/{*name}"), 1),
        ("no span", field(42, b"GET /health"), 0),
        ("method", attribute("http.request.method", text("POST")), 1),
        ("route", attribute("http.route", text("/v1/completions")), 1),
        ("status", attribute("http.response.status_code", vec![24, 200, 1]), 1),
        ("status", attribute("http.response.status_code", vec![24, 148, 3]), 1),
        ("operation", attribute("gen_ai.operation.name", text("text_completion")), 1),
        ("id", attribute("gen_ai.request.id", text("mine")), 1),
        ("model", attribute("gen_ai.request.model", text("tiny")), 1),
        ("prompt", attribute("gen_ai.usage.input_tokens", vec![24, 4]), 1),
        ("answer", attribute("gen_ai.usage.output_tokens", vec![24, 3]), 1),
        ("first token", text("gen_ai.latency.time_to_first_token"), 1),
        ("ends", text("gen_ai.response.finish_reasons"), 1),
    ] {
        assert_eq!(times(&want), count, "{what}: {}", String::from_utf8_lossy(&body));
    }
}

#[cfg(feature = "otel")]
#[test]
fn traces_are_not_sent_by_other_protocols() {
    let mut command = command(&[&model(), "--port", "0", "--otel"]);
    let output = command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`"), "{stderr}");
}

#[cfg(not(any(feature = "kv-events", feature = "otel")))]
#[test]
fn builds_without_a_feature_name_it() {
    for (option, feature) in
        [(&["--otel"][..], "otel"), (&["--kv-events", "tcp://x:0"], "kv-events")]
    {
        let output = command(&[&model(), "--port", "0"]).args(option).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("--features {feature}")), "{stderr}");
    }
}

/// A server whose messages go to `log`, with all of its log, asked `n` times and then ended.
#[cfg(unix)]
fn serve_with_log(log: Stdio, n: usize, after: impl FnOnce(&str)) -> Option<i32> {
    let args = ["-vv", &model(), "--port", "0", "--ctx", "64"];
    let (server, url) = Server::start(command(&args).stderr(log));
    for _ in 0..n {
        let answer = ureq::get(format!("{url}/v1/models")).call().expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
    }
    after(&url);
    server.end("-TERM")
}

#[cfg(unix)]
fn lost_records(url: &str) -> u64 {
    let metrics = ureq::get(format!("{url}/metrics")).call().expect("an answer").into_body();
    let lines = BufReader::new(metrics.into_reader()).lines().map_while(Result::ok);
    let mut lost = lines.filter_map(|line| {
        line.strip_prefix("realizar:log_records_lost_total{} ")?.parse::<u64>().ok()
    });
    lost.next().expect("the number of lost records")
}

/// The log is written by a thread of its own, so what is lost may be counted a while after a request.
#[cfg(unix)]
fn loses_records(url: &str, n: u64) {
    assert!((0..2000).any(|_| lost_records(url) >= n), "fewer than {n} records are lost");
}

#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    // A full disk.
    let full = std::fs::File::options().write(true).open("/dev/full").expect("the device");
    let code = serve_with_log(full.into(), 20, |url| loses_records(url, 20));
    assert_eq!(code, Some(0), "a full disk");
    // A reader that is gone.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let code = serve_with_log(writer.into(), 20, |url| loses_records(url, 20));
    assert_eq!(code, Some(0), "no reader");
    // One that does not read: the pipe is full long before the last request.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let code = serve_with_log(writer.into(), 2000, |url| loses_records(url, 1));
    assert_eq!(code, Some(0), "a reader that does not read");
    drop(reader);
}

#[test]
fn what_cannot_be_served_is_one_line() {
    let model = model();
    for (args, code, want) in [
        (&["no-such-model.gguf", "--port", "0"][..], 1, "no-such-model.gguf"),
        (&[&model, "--host", "256.0.0.1"], 1, "256.0.0.1"),
        (&[&model, "--port", "0", "--api-key-file", "no-such-file"], 1, "no-such-file"),
        (&[&model, "--port", "0", "--cors-origin", "a\nb"], 1, "origin"),
        (&[&model, "b", "--port", "0", "--alias", "x"], 2, "NAME=MODEL"),
        (&[&model, "b", "--port", "0", "--template", "x"], 2, "--template"),
        (&[&model, "b", "--port", "0", "--draft-model", "x"], 2, "--draft-model"),
        (&[&model, "--port", "0", "--draft-model", "no-such-model.gguf"], 1, "no-such-model.gguf"),
        (
            &[&model, "--port", "0", "--draft-model", "x", "--draft-head", "on"],
            2,
            "mutually exclusive",
        ),
        (&[&model, "--port", "0", "--draft-head", "on"], 1, "multi-token prediction"),
        (&[&model, "--models-dir", "x", "--kv-events", "tcp://127.0.0.1:0"], 2, "--kv-events"),
        (&[&model, "--port", "0", "--kv-events", "nowhere"], 1, "nowhere"),
        (&["-hf"], 2, "`-hf` needs a value"),
        (&["-hf", "x/y/m.gguf", "--offline"], 1, "hf:x/y/m.gguf is not in the cache"),
        (&[&model, "-ctk", "q8_0", "--port", "0"], 2, "--kv-type TYPE"),
        (&["--models-dir", "no-such-dir", "--port", "0"], 1, "no-such-dir"),
        (&[&model, "--memory-limit", "8 apples"], 2, "--memory-limit"),
        (
            &[&model, "--memory-limit", "1K", "--port", "0"],
            1,
            "all models together may take 1.00 KiB",
        ),
        (&[&model, "--admin-key", "", "--port", "0"], 2, "admin key"),
        (&[&model, "--tls-cert", "a.pem"], 2, "--tls-key"),
        (&[&model, "--tls-cert", "no-cert.pem", "--tls-key", "b.pem"], 1, "no-cert.pem"),
        (&[&model, "--max-connections", "0"], 2, "--max-connections"),
    ] {
        let output = command(args).output().expect("the binary starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(want), "{args:?}: {stderr}");
        // What the parser refuses, it explains.
        assert!(code == 2 || stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
}

/// A copy of the tiny model that says how it is to be sampled.
fn sampled_model(dir: &Path) -> String {
    let source = Gguf::open(model()).expect("the repository's fixture");
    let infos = source.tensors().iter();
    let tensors: Vec<_> = infos.map(|info| source.tensor(&info.name).expect("a tensor")).collect();
    let mut writer = GgufWriter::new();
    for (key, value) in source.metadata().iter() {
        writer.set(key, value.clone()).expect("set");
    }
    writer.set("general.sampling.temp", 0.5_f32).expect("set");
    writer.set("general.sampling.top_k", 20_i32).expect("set");
    for tensor in &tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).expect("tensor");
    }
    let path = dir.join("sampled.gguf");
    writer.write_file(&path).expect("write");
    path.display().to_string()
}

#[test]
fn flags_of_sampling_count_before_the_models_own() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let model = sampled_model(dir.path());
    for (flags, want) in [
        (&[][..], json!({"temperature": 0.5, "top_k": 20, "top_p": 0.95, "min_p": 0.05})),
        (
            &["--top-k", "0", "--min-p", "0.1"],
            json!({"temperature": 0.5, "top_k": 0, "min_p": 0.1}),
        ),
        (&["--greedy"], json!({"temperature": 0.0, "top_k": 20})),
    ] {
        let args = [&[&*model, "--port", "0", "--no-config"], flags].concat();
        let (_server, url) = Server::start(&mut command(&args));
        let models = ureq::get(format!("{url}/v1/models")).call().expect("an answer").into_body();
        let models: Value = serde_json::from_reader(models.into_reader()).expect("JSON");
        for (name, want) in want.as_object().expect("members") {
            let sampling = &models["data"][0]["meta"]["sampling"];
            assert_eq!(sampling[name], *want, "{name} with {flags:?}");
        }
    }
}

#[test]
fn a_run_logs_the_sampling_in_force() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let model = sampled_model(dir.path());
    let args = ["run", &model, "--raw", "hi", "-n", "1", "--no-config", "-v", "--top-p", "0.9"];
    let output = Command::new(env!("CARGO_BIN_EXE_realizar")).args(args).output().expect("it runs");
    let log = String::from_utf8_lossy(&output.stderr);
    let line = log.lines().find(|line| line.contains("generating")).expect("a line of the log");
    for part in ["temperature=0.5", "top_k=20", "top_p=0.9", "min_p=0.05"] {
        assert!(line.contains(part), "{part} in {line}");
    }
}
