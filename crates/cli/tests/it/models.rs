//! The built binary on a tiny model: logits against the reference beside it, generation, chat,
//! measurements, and the errors of options that a model cannot meet.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::fixture;
use serde_json::Value;

/// Runs the binary with `input` as standard input.
pub(crate) fn run(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_realizar"))
        .args(args)
        .env("REALIZAR_DEVICE", "cpu")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("standard input");
    stdin.write_all(input.as_bytes()).expect("write");
    drop(stdin);
    child.wait_with_output().expect("the binary ends")
}

fn stdout(args: &[&str], input: &str) -> String {
    let output = run(args, input);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args, "")).expect("JSON")
}

fn model() -> String {
    fixture("model-f32.gguf").display().to_string()
}

#[test]
fn logits_of_file_and_directory_agree_and_chunks_do_not_matter() {
    let dir = fixture("").display().to_string();
    let base =
        ["--ids", "94,256,18,108,164", "--positions", "1,4", "--arithmetic", "f32", "--json"];
    let logits = |model: &str, more: &[&str]| json(&[&["logits", model], &base[..], more].concat());
    let whole = logits(&dir, &[]);
    let keys: Vec<&String> = whole["values"].as_object().expect("object").keys().collect();
    assert_eq!(keys, ["1", "4"]);
    assert_eq!(whole["values"]["4"].as_array().map(Vec::len), Some(288));
    assert_eq!(logits(&dir, &["--chunk", "2"]), whole);
    assert!(whole.get("chunks").is_none());
    let more = logits(&dir, &["--also-chunks", "1,3"]);
    assert_eq!(more["values"], whole["values"]);
    assert_eq!(more["chunks"], serde_json::json!({"1": whole["values"], "3": whole["values"]}));
    let file = logits(&model(), &[]);
    for key in keys {
        let rows = [&whole, &file].map(|v| v["values"][key].as_array().expect("row").clone());
        for (a, b) in rows[0].iter().zip(&rows[1]) {
            let (a, b) = (a.as_f64().expect("number"), b.as_f64().expect("number"));
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
}

#[test]
fn lines_of_logits_are_answered_one_by_one() {
    let model = model();
    let request = |more: &[&'static str]| {
        let base = ["logits", &model, "--ids", "94,256,18", "--json", "--threads", "1"];
        [&base[..], more].concat()
    };
    let other = request(&["--arithmetic", "f32", "--also-chunks", "1"]);
    let lines = [
        serde_json::json!(request(&[])),
        serde_json::json!(["logits", "missing.gguf", "--ids", "1", "--json"]),
        serde_json::json!(["devices"]),
        serde_json::json!({}),
        serde_json::json!(other),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let output = run(&["logits-lines"], &lines);
    assert!(output.status.success(), "{output:?}");
    let answers = String::from_utf8(output.stdout).expect("UTF-8");
    let answers: Vec<Value> =
        answers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(answers.len(), 5);
    assert_eq!(answers[0], json(&request(&[])));
    assert_eq!(answers[4], json(&other));
    for (answer, words) in answers[1..4].iter().zip(["missing.gguf", "`logits`", "arguments"]) {
        let error = answer["error"].as_str().expect("an error");
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_grammar_tells_nothing_of_itself() {
    let model = model();
    let schema = r#"{"type": "object", "properties": {"a": {"const": "b"}}, "required": ["a"]}"#;
    let args = ["run", &model, "abc", "--raw", "-n", "32", "--json-schema", schema];
    let output = run(&args, "");
    assert!(output.status.success(), "{output:?}");
    let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(object, serde_json::json!({"a": "b"}));
    // The line of timings alone.
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.trim().lines().count(), 1, "{told}");
}

#[test]
fn generation_streams_what_json_reports() {
    let model = model();
    let args = ["run", &model, "abc", "--raw", "--seed", "7", "-n", "12"];
    let text = stdout(&args, "");
    let object = json(&[&args[..], &["--json", "--logprobs", "3"]].concat());
    assert_eq!(text.trim_end_matches('\n'), object["text"].as_str().expect("text"));
    assert_eq!(object["seed"], 7);
    assert!(object["device"].as_str().is_some_and(|device| device.starts_with("cpu (")));
    let plain = json(&[&args[..], &["--json"]].concat());
    assert!(plain.get("top_logprobs").is_none());
    // A banned token is never chosen.
    let greedy = |more: &[&str]| {
        json(
            &[&["run", &model, "--raw", "--greedy", "-n", "1", "--json"], more, &["--", "- b"]]
                .concat(),
        )
    };
    let first = greedy(&[])["ids"][0].clone();
    assert!(first.is_u64());
    assert_ne!(greedy(&["--logit-bias", &format!("{first}=-inf")])["ids"][0], first);
    let ids = object["ids"].as_array().expect("ids");
    let top = object["top_logprobs"].as_array().expect("top_logprobs");
    assert_eq!(top.len(), ids.len());
    assert!(top.iter().all(|step| step.as_array().is_some_and(|step| step.len() == 3)));
    assert_eq!(object["timings"]["generated_tokens"], ids.len());
    assert!(["stop", "length"].contains(&object["finish_reason"].as_str().expect("reason")));
    // The prompt from a pipe and from a file named `-` is the same prompt.
    let piped = |more: &[&str]| {
        stdout(&[&["run", &model, "--raw", "--seed", "7", "-n", "12"], more].concat(), "abc")
    };
    assert_eq!(piped(&[]), text);
    assert_eq!(piped(&["-f", "-"]), text);
}

#[test]
fn piped_text_comes_before_the_prompt() {
    let ids = |args: &[&str], input: &str| {
        let base = ["run", &model(), "--raw", "-n", "1", "--json"];
        let object = stdout(&[&base[..], args].concat(), input);
        let object: Value = serde_json::from_str(&object).expect("JSON");
        object["prompt_ids"].clone()
    };
    let both = ids(&[], "ab\ncd");
    assert_ne!(ids(&["cd"], ""), both);
    assert_eq!(ids(&["cd"], "ab"), both);
    assert_eq!(ids(&["cd"], "ab\n"), both);
}

#[test]
fn embeddings_are_one_line_for_each_text() {
    let model = model();
    let rows = |args: &[&str], input: &str| -> Vec<Value> {
        let text = stdout(&[&["embed", &model], args].concat(), input);
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let numbers = |row: &Value| -> Vec<f64> {
        row.as_array().expect("a row").iter().map(|x| x.as_f64().expect("a number")).collect()
    };
    let length = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
    let both = rows(&["abc", "a longer text"], "");
    assert_eq!(both.len(), 2);
    for row in &both {
        assert_eq!(numbers(row).len(), 32);
        assert!((length(&numbers(row)) - 1.0).abs() < 1e-5);
    }
    assert_ne!(both[0], both[1]);
    // A text is the same from a pipe, with its pooling by name, and whatever the steps.
    assert_eq!(rows(&["--pooling", "last"], "abc"), both[..1]);
    assert_eq!(rows(&["-f", "-", "--chunk", "1"], "abc"), both[..1]);
    assert_ne!(rows(&["--pooling", "mean", "abc"], ""), both[..1]);
    let raw = numbers(&rows(&["--no-normalize", "abc"], "")[0]);
    for (x, unit) in raw.iter().zip(numbers(&both[0])) {
        assert!((x / length(&raw) - unit).abs() < 1e-6);
    }
    assert_eq!(numbers(&rows(&["--dimensions", "7", "abc"], "")[0]).len(), 7);
    let object = &rows(&["--json", "abc"], "")[0];
    assert_eq!(object["embedding"], both[0]);
    assert!(object["n_tokens"].as_u64().is_some_and(|n| n >= 3));
    for (args, want) in [
        (["--ctx", "2"], "does not fit the context of 2"),
        (["--dimensions", "33"], "an embedding must have 1 to 32 dimensions, not 33"),
    ] {
        let output = run(&[&["embed", &model, "abc"], &args[..]].concat(), "");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains(want), "{error}");
    }
}

#[test]
fn a_system_message_that_the_template_refuses_begins_the_users_turn() {
    let template = tempfile::NamedTempFile::new().expect("temporary file");
    let source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                  [{{ m.content }}]{% endfor %}";
    std::fs::write(template.path(), source).expect("write");
    let template = template.path().display().to_string();
    let run = |more: &[&str]| {
        let args = ["run", &model(), "--template", &template, "-n", "3", "--greedy"];
        stdout(&[&args[..], more].concat(), "")
    };
    let joined = run(&["a\n\nb"]);
    assert_eq!(run(&["b", "--system", "a"]), joined);
    assert_ne!(run(&["b"]), joined);
}

#[test]
fn chat_with_a_template_reads_lines() {
    let template = tempfile::NamedTempFile::new().expect("temporary file");
    let source = "{% for m in messages %}{{ m.content }} {% endfor %}";
    std::fs::write(template.path(), source).expect("write");
    let saved = tempfile::NamedTempFile::new().expect("temporary file");
    let (template, saved) = (template.path().display(), saved.path().display());
    let lines = format!("/system s\nab\n/save {saved}\n/exit\nnot read\n");
    stdout(&["chat", &model(), "--template", &template.to_string(), "-n", "3", "--greedy"], &lines);
    let text = std::fs::read_to_string(saved.to_string()).expect("saved");
    let messages: Value = serde_json::from_str(&text).expect("JSON");
    let roles: Vec<_> =
        messages.as_array().expect("array").iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
}

#[test]
fn a_chat_that_fills_its_context_drops_its_oldest_turns() {
    let template = tempfile::NamedTempFile::new().expect("temporary file");
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}";
    std::fs::write(template.path(), source).expect("write");
    let saved = tempfile::NamedTempFile::new().expect("temporary file");
    let (template, saved) = (template.path().display().to_string(), saved.path().display());
    // Letters are a token each: two of these fit a context of 32, and a third does not.
    let lines = format!(
        "/system s\n{}\n{}\n{}\n/save {saved}\n",
        "a".repeat(12),
        "b".repeat(12),
        "c".repeat(12)
    );
    let model = model();
    let args = ["chat", &model, "--template", &template, "-n", "1", "--greedy", "-c", "32"];
    let output = run(&[&args[..], &["--ignore-eos"]].concat(), &lines);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("the context is full: the oldest turn was dropped"), "{told}");
    assert!(told.contains("the answer was cut off after 1 tokens"), "{told}");
    let text = std::fs::read_to_string(saved.to_string()).expect("saved");
    let messages: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let kept: Vec<_> = messages.iter().filter(|m| m["role"] != "assistant").collect();
    let kept: Vec<_> = kept.iter().map(|m| m["content"].as_str().expect("a text")).collect();
    assert_eq!(kept, ["s", "bbbbbbbbbbbb", "cccccccccccc"]);
}

#[test]
fn tokens_perplexity_and_bench() {
    let model = model();
    let object = json(&["tokenize", &model, "abc", "--json"]);
    assert_eq!(object["ids"], serde_json::json!([1, 260, 261, 262]));
    for ids in ["260,261", "260, 261", " 260 261\n"] {
        assert_eq!(stdout(&["tokenize", &model, "--decode", ids], ""), "ab\n");
    }
    assert_eq!(json(&["tokenize", &model, "-f", "-", "--json"])["text"], "");
    let piped = stdout(&["tokenize", &model, "--json"], "\u{feff}- b");
    assert_eq!(piped, stdout(&["tokenize", &model, "--json", "--", "- b"], ""));
    let text = "a b c d ".repeat(40);
    let args = ["perplexity", &model, "-f", "-", "--ctx", "16", "--json"];
    let object: Value = serde_json::from_str(&stdout(&args, &text)).expect("JSON");
    assert!(object["perplexity"].as_f64().is_some_and(|p| p > 1.0), "{object}");
    let (chunks, tokens) = (object["n_chunks"].as_u64(), object["n_tokens"].as_u64());
    assert_eq!(chunks.map(|n| n * 7), tokens);
    let object = json(&["bench", &model, "-p", "4,8", "-n", "2", "-r", "2", "--json"]);
    let names: Vec<_> =
        object["results"].as_array().expect("results").iter().map(|r| r["test"].clone()).collect();
    assert_eq!(names, ["pp4", "pp8", "tg2"]);
    assert_eq!(object["dispatch"].as_array().map(Vec::len), Some(3));
    let tg = &object["dispatch"][2];
    assert_eq!((&tg["test"], &tg["cpu_gpu_ratio"]), (&"tg2".into(), &Value::Null));
    let device = &tg["devices"][0];
    assert_eq!(device["share_of_dispatches"], 1.0);
    let classes = device["op_classes"].as_array().expect("classes");
    let class = |name: &str| {
        classes.iter().find(|class| class["op_class"] == name).unwrap_or_else(|| panic!("{name}"))
    };
    // Two runs of two tokens, each a step of its own; the warm-up is not counted.
    for name in ["step", "embed"] {
        assert_eq!(class(name)["dispatches"], 4);
        assert_eq!(class(name)["latency"]["count"], 4);
    }
    let time = |name: &str| class(name)["latency"]["sum_us"].as_f64().expect("a time");
    let ops = classes.iter().filter_map(|class| class["op_class"].as_str());
    let all: f64 = ops.filter(|&name| name != "step").map(time).sum();
    assert!((all / time("step") - 1.0).abs() < 1e-9, "{all} {}", time("step"));
    // Two sequences of five tokens each generate three together, in three steps.
    let object =
        json(&["bench", &model, "-p", "0", "-n", "3", "-d", "5", "-b", "2", "-r", "2", "--json"]);
    let result = &object["results"][0];
    assert_eq!((&result["test"], &result["batch"]), (&"tg3 x2 @ d5".into(), &2.into()));
    assert_eq!((&result["n_tokens"], &result["depth"]), (&3.into(), &5.into()));
    let classes = object["dispatch"][0]["devices"][0]["op_classes"].as_array().expect("classes");
    let steps = classes.iter().find(|class| class["op_class"] == "step").expect("steps");
    assert_eq!(steps["dispatches"], 6);
    let plain = stdout(&["bench", &model, "-p", "4", "-n", "0", "-r", "1"], "");
    assert!(plain.contains("| pp4 |") && !plain.contains("op class"));
    let profile = stdout(&["bench", &model, "-p", "4", "-n", "0", "-r", "1", "--profile"], "");
    assert!(profile.contains("| pp4 |") && profile.contains("attention"), "{profile}");
    let graph = stdout(&["inspect", "--graph", &model], "");
    assert!(graph.contains("rms_norm"));
    let object = json(&["inspect", "--graph", "--json", &model]);
    let lines: Vec<_> = object["graph"].as_array().expect("lines").iter().collect();
    assert!(lines.iter().zip(graph.lines()).all(|(a, b)| a.as_str() == Some(b)));
    assert_eq!(lines.len(), graph.lines().count());
}

#[test]
fn a_divergence_is_from_the_base() {
    let model = model();
    let text = "a b c d ".repeat(40);
    let measure = |args: &[&str]| -> Value {
        let base = ["kl-divergence", &model, "-f", "-", "--ctx", "16", "--json"];
        serde_json::from_str(&stdout(&[&base[..], args].concat(), &text)).expect("JSON")
    };
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    // A model is not apart from itself; keys and values in F16 are from those in F32.
    let same = measure(&["--base-arithmetic", "auto"]);
    assert_eq!(same["kl_divergence"]["max"].as_f64().map(f64::abs).map(|x| x < 1e-12), Some(true));
    assert_eq!(number(&same["same_top"]["value"]), 1.0);
    assert_eq!(number(&same["perplexity_ratio"]["value"]), 1.0);
    let apart = measure(&[]);
    let mean = number(&apart["kl_divergence"]["mean"]);
    assert!(mean > 1e-12, "{apart}");
    let quantiles = ["min", "median", "p90", "p99", "p99_9", "max"];
    let quantiles = quantiles.map(|key| number(&apart["kl_divergence"][key]));
    assert!(quantiles.is_sorted() && quantiles[0] < mean && mean < quantiles[5], "{apart}");
    assert_eq!(number(&apart["n_chunks"]) * 7.0, number(&apart["n_tokens"]));
    // The perplexities are those that are measured alone.
    let args = ["perplexity", &model, "-f", "-", "--ctx", "16", "--json", "--arithmetic", "f32"];
    let alone: Value = serde_json::from_str(&stdout(&args, &text)).expect("JSON");
    let base = &apart["base_perplexity"];
    for (found, alone) in
        [(&base["value"], &alone["perplexity"]), (&base["error"], &alone["error"])]
    {
        assert!((number(found) / number(alone) - 1.0).abs() < 1e-5, "{found} {alone}");
    }
    let generated = measure(&["--rows", "generated", "--chunks", "3"]);
    assert_eq!((&generated["rows"], &generated["n_chunks"]), (&"generated".into(), &3.into()));
    let plain = ["kl-divergence", &model, "-f", "-", "--ctx", "16"];
    assert!(stdout(&plain, &text).contains("KL divergence, 99.9 %"));
    // Another model is further away; one whose tokens are others is refused.
    let other = fixture("../phi3/model-f32.gguf").display().to_string();
    assert!(number(&measure(&["--base", &other])["kl_divergence"]["mean"]) > 0.1);
    let mut bytes = std::fs::read(&model).expect("the model");
    let token = |text: u8| [&1_u64.to_le_bytes()[..], &[text]].concat();
    let (tokens, swapped) =
        ([token(b'a'), token(b'b')].concat(), [token(b'b'), token(b'a')].concat());
    let at = bytes.windows(tokens.len()).position(|window| window == tokens).expect("tokens");
    bytes[at..at + tokens.len()].copy_from_slice(&swapped);
    let file = tempfile::NamedTempFile::with_suffix(".gguf").expect("temporary file");
    std::fs::write(file.path(), bytes).expect("write");
    let other = file.path().display().to_string();
    let output = run(&[&plain[..], &["--base", &other]].concat(), &text);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = error.contains("tokenizes the text differently");
    assert!(output.status.code() == Some(1) && refused, "{error}");
}

#[test]
fn what_a_model_cannot_do_is_one_line() {
    let model = model();
    for (args, want) in [
        (&["run", &model, "abc"][..], "no chat template"),
        (&["chat", &model], "no chat template"),
        (&["run", &model, "abc", "--raw", "--ctx", "100000"], "100000"),
        (&["run", &model, "abc", "--template", "no-such-file"], "no-such-file"),
        (&["run", &model, "abc", "--raw", "--regex", "(("], "regex parse error: unclosed group"),
        (&["logits", &model, "--ids", "1,99999"], "99999"),
        (&["tokenize", &model, "--decode", "99999"], "99999"),
        (&["perplexity", &model, "-f", "-", "--ctx", "16"], "too few"),
        (&["perplexity", &model, "-f", "-", "--ctx", "512"], "512"),
        (&["run", &fixture("").display().to_string(), "abc", "--raw"], "tokenizer.json"),
    ] {
        let output = run(args, "abc");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(want), "{args:?}: {stderr}");
    }
}

#[test]
fn a_prompt_cache_changes_no_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("prompt.cache").display().to_string();
    let model = model();
    let answer = |prompt: &str, more: &[&str]| {
        let base = ["run", &model, prompt, "--raw", "--greedy", "--seed", "1", "-n", "6"];
        let mut object = json(&[&base[..], &["--json"], more].concat());
        object["timings"] = Value::Null;
        object
    };
    let prompts = ["once upon a time there", "once upon a time there was a tiny model"];
    for prompt in prompts {
        let wanted = answer(prompt, &[]);
        for _ in 0..2 {
            assert_eq!(answer(prompt, &["--prompt-cache", &file]), wanted, "{prompt}");
        }
    }
    let args = ["run", &model, "once", "--raw", "--kv-type", "f32", "--prompt-cache", &file];
    let output = run(&args, "");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("prompt.cache: it was made with another layout of keys and values"),
        "{error}"
    );
}

#[test]
fn settings_that_nothing_reads_are_listed_at_v() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture(name), dir.path().join(name)).expect("a copy");
    }
    let path = dir.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("settings");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["made_up"] = serde_json::json!(7);
    config["rope_parameters"]["also_made_up"] = serde_json::json!(7);
    std::fs::write(&path, config.to_string()).expect("settings");
    let model = dir.path().display().to_string();
    let logged = |more: &[&str]| {
        let output = run(&[&["logits", &model, "--ids", "1,5"], more].concat(), "");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let line = "config.json: unused settings: rope_parameters.also_made_up, made_up";
    let text = logged(&["-v"]);
    assert!(text.lines().any(|text| text.ends_with(line)), "{text}");
    assert!(!logged(&[]).contains("made_up"));
}
