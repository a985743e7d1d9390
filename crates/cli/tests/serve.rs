//! `realizar serve` as a process: the line with its URL, an answer, and its end.

#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

fn model() -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs/llama");
    folder.join("model-f32.gguf").display().to_string()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_realizar"));
    command.arg("serve").args(args).env("REALIZAR_DEVICE", "cpu").env_remove("REALIZAR_API_KEY");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server that is killed if the test does not end it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that listens, and its URL.
fn start(args: &[&str]) -> (Server, String) {
    let mut server = Server(command(args).spawn().expect("the binary starts"));
    let mut out = BufReader::new(server.0.stdout.take().expect("standard output"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    let url = line.trim().strip_prefix("listening on ").expect("the URL").to_owned();
    (server, url)
}

#[test]
fn serves_until_it_is_told_to_stop() {
    for signal in ["-TERM", "-INT"] {
        let args = [&model(), "--port", "0", "--alias", "tiny", "--api-key", "k", "--temp", "0"];
        let (mut server, url) = start(&args);
        let get = |path: &str| {
            let request = ureq::get(format!("{url}{path}")).header("authorization", "Bearer k");
            let text = request.call().expect("an answer").body_mut().read_to_string();
            serde_json::from_str::<Value>(&text.expect("a body")).expect("JSON")
        };
        assert_eq!(get("/health"), json!({"status": "ok"}));
        let models = get("/v1/models");
        assert_eq!(models["data"][0]["id"], "tiny");
        assert_eq!(models["data"][0]["aliases"], json!(["model-f32"]));
        let id = server.0.id().to_string();
        let killed = Command::new("kill").args([signal, &id]).status().expect("kill is there");
        assert!(killed.success());
        assert_eq!(server.0.wait().expect("it ends").code(), Some(0), "{signal}");
    }
}

#[test]
fn models_of_a_directory_are_loaded_when_they_are_named() {
    let folder = PathBuf::from(model()).parent().expect("a folder").display().to_string();
    let args = ["--models-dir", &folder, "--memory-limit", "4G", "--port", "0", "--ctx", "64"];
    let (_server, url) = start(&args);
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

#[test]
fn a_draft_model_guesses_and_answers_stay_the_same() {
    let model = model();
    let ask = json!({"prompt": "abc", "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    let answer = |more: &[&str]| {
        let args = [&[&model, "--port", "0", "--ctx", "64"], more].concat();
        let (_server, url) = start(&args);
        let request = ureq::post(format!("{url}/v1/completions"));
        let request = request.header("content-type", "application/json");
        let answer = request.send(ask.to_string()).expect("an answer").into_body();
        let answer: Value = serde_json::from_reader(answer.into_reader()).expect("JSON");
        let metrics = ureq::get(format!("{url}/metrics")).call().expect("an answer").into_body();
        let metrics = metrics.into_reader();
        let metrics = BufReader::new(metrics).lines().map_while(Result::ok);
        let accepted = metrics
            .filter(|line| line.starts_with("vllm:spec_decode_num_accepted_tokens_total{"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>();
        (answer["choices"][0]["text"].clone(), accepted)
    };
    let (alone, none) = answer(&[]);
    let (guessed, accepted) = answer(&["--draft-model", &model, "--draft-max", "3"]);
    assert_eq!(guessed, alone);
    // A model that guesses for itself is right each time: 3 of 4 tokens behind the first.
    assert_eq!((none, accepted), (0.0, 17.0));
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
        (&[&model, "--models-dir", "x", "--kv-events", "tcp://127.0.0.1:0"], 2, "--kv-events"),
        (&[&model, "--port", "0", "--kv-events", "nowhere"], 1, "nowhere"),
        (&["--port", "0"], 2, "MODEL"),
        (&["--models-dir", "no-such-dir", "--port", "0"], 1, "no-such-dir"),
        (&[&model, "--memory-limit", "8 apples"], 2, "--memory-limit"),
        (&[&model, "--memory-limit", "1K", "--port", "0"], 1, "all models together may take 1024"),
        (&[&model, "--admin-key", "", "--port", "0"], 2, "admin key"),
    ] {
        let output = command(args).output().expect("the binary starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(want), "{args:?}: {stderr}");
    }
}
