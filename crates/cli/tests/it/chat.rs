//! Conversations through a pipe: the commands of `realizar chat`, on a model that says how the alphabet goes on.

use std::path::Path;

use serde_json::{Value, json};

use crate::models::run;

/// The model, which answers `ab` with `cde` if it may say three letters.
fn alphabet() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/examples/alphabet.gguf");
    path.display().to_string()
}

/// The output of a conversation of these lines: answers, and notes.
fn chat(args: &[&str], lines: &str) -> (String, String) {
    let model = alphabet();
    let output = run(&[&["chat", &model, "-c", "64", "--no-config"], args].concat(), lines);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{notes}");
    (String::from_utf8(output.stdout).expect("UTF-8"), notes)
}

/// Reads a saved conversation as pairs of a role and a text.
fn saved(path: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).expect("saved");
    let messages: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let field = |m: &Value, name: &str| m[name].as_str().expect("a text").to_owned();
    messages.iter().map(|m| (field(m, "role"), field(m, "content"))).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(role, text)| (role.to_owned(), text.to_owned())).collect()
}

/// The beginnings of the lines of timings, up to the speed.
fn prompts(notes: &str) -> Vec<&str> {
    let lines = notes.lines().filter(|line| line.starts_with("prompt "));
    lines.map(|line| line.split([',', '|']).next().unwrap_or_default().trim_end()).collect()
}

#[test]
fn turns_that_are_dropped_or_repeated_reuse_what_was_computed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c.json");
    let lines = format!(
        "/set verbose\nab\nx\n/undo\nlm\n/retry\n/save {path}\n/undo\n/undo\n/undo\n/retry\n",
        path = path.display()
    );
    let (answers, notes) = chat(&["--greedy", "-n", "3"], &lines);
    assert_eq!(answers, "cde\nyz\nnop\nnop\n");
    let found = prompts(&notes);
    // Of `abcdex`, `ab` was run as a prompt; of `abcdelm`, `abcde`; and then all but the last token.
    assert_eq!(
        found,
        [
            "prompt 2 tokens",
            "prompt 6 tokens (2 cached)",
            "prompt 7 tokens (5 cached)",
            "prompt 7 tokens (6 cached)",
        ]
    );
    let turns = [("user", "ab"), ("assistant", "cde"), ("user", "lm"), ("assistant", "nop")];
    assert_eq!(saved(&path), pairs(&turns));
    for note in [
        "dropped: x",
        "dropped: lm",
        "dropped: ab",
        "there is no message to drop",
        "there is no message to answer again",
        "the temperature is 0",
    ] {
        assert!(notes.contains(note), "{note}: {notes}");
    }
}

#[test]
fn an_answer_that_is_repeated_has_another_seed() {
    let (_, notes) = chat(&["--seed", "5", "-n", "3"], "/set verbose\nab\n/retry\n/retry\nab\n");
    let seeds: Vec<_> = notes
        .lines()
        .filter_map(|line| line.split(" | ").find_map(|part| part.strip_prefix("seed ")))
        .collect();
    assert_eq!(seeds, ["5", "6", "7", "5"]);
}

#[test]
fn settings_hold_for_the_answers_after_them() {
    let lines = "ab\n/set parameter num_predict 1\nk\n/set temperature 0.5\n/show parameters\n/show\n\
                 /set parameter max_tokens\nab\n/set parameter top_p 2\n/set parameter stop d\nab\n\
                 /set nothink\n/set nosuch 1\n/show nosuch\n/undoo\n/save\n";
    let (answers, notes) = chat(&["--greedy", "-n", "3"], lines);
    assert_eq!(answers, "cde\nl\ncde\nc\n");
    for note in [
        "max_tokens 1\n",
        "temperature 0.5\n",
        "max_tokens 3\n",
        "`top_p` must be above 0 and at most 1, but is 2",
        "stop \"d\"\n",
        "the model's chat template has no switch for reasoning",
        "unknown setting `nosuch`; /set takes parameter, system",
        "unknown topic `nosuch`; /show takes model, info",
        "unknown command /undoo, did you mean /undo? /help lists the commands",
        "/save needs FILE",
    ] {
        assert!(notes.contains(note), "{note}: {notes}");
    }
    let value = |name: &str| {
        let line = notes.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}: {notes}"))
            .split_whitespace()
            .skip(1)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(value("seed"), "random");
    assert_eq!(value("top_k"), "40");
    assert!(
        notes.lines().any(|line| line.starts_with("temperature") && line.ends_with("0.5  (set)"))
    );
    assert_eq!(value("conversation"), "4 messages, 7 of 64 tokens");
    let (answers, _) =
        chat(&["--greedy", "-n", "1"], "/set system yz\n/show system\nk\n/set system\nab\n");
    assert_eq!(answers, "l\nc\n");
}

#[test]
fn blocks_have_several_lines_and_begin_with_anything() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c.json");
    let lines = format!(
        "/system \"\"\"a\nb\"\"\"\n\"\"\"\n/c\nd\n\"\"\"\ne\\\nf\n\"\"\"g\"\"\"\n/save {}\n",
        path.display()
    );
    chat(&["--greedy", "-n", "1"], &lines);
    let want = [
        ("system", "a\nb"),
        ("user", "/c\nd"),
        ("assistant", "e"),
        ("user", "e\nf"),
        ("assistant", "g"),
        ("user", "g"),
        ("assistant", "h"),
    ];
    assert_eq!(saved(&path), pairs(&want));
    let output = run(&["chat", &alphabet(), "--no-config"], "\"\"\"a\nb\n");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = error.contains("the input ended in a block that begins with \"\"\"");
    assert!(output.status.code() == Some(1) && told, "{error}");
}

#[test]
fn conversations_are_saved_cleared_and_loaded() {
    let dir = tempfile::tempdir().expect("a directory");
    let (first, second) = (dir.path().join("first one.json"), dir.path().join("second.json"));
    let lines = format!(
        "/set system s\nab\n/save {first}\n/clear\nk\n/load {first}\nm\n/save {second}\n",
        first = first.display(),
        second = second.display()
    );
    let (answers, notes) = chat(&["--greedy", "-n", "3"], &lines);
    assert_eq!(answers, "cde\nlmn\nnop\n");
    assert!(notes.contains("loaded 3 messages from "), "{notes}");
    let begin = [("system", "s"), ("user", "ab"), ("assistant", "cde")];
    assert_eq!(saved(&first), pairs(&begin));
    let end = [("user", "m"), ("assistant", "nop")];
    assert_eq!(saved(&second), pairs(&[&begin[..], &end].concat()));
    // From a pipe an error is the end.
    std::fs::write(&second, json!([{"role": "robot", "content": "a"}]).to_string()).expect("write");
    for (line, want) in [
        (
            format!("/load {}", second.display()),
            "has the role `robot`; expected user, assistant or tool",
        ),
        ("/load smollm2".to_owned(), "; /model smollm2 switches the model"),
        ("/model /no/such.gguf".to_owned(), "/no/such.gguf"),
    ] {
        let output = run(&["chat", &alphabet(), "--no-config"], &line);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains(want), "{line}: {error}");
    }
}

#[test]
fn a_conversation_continues_with_another_model() {
    let dir = tempfile::tempdir().expect("a directory");
    let (other, path) = (dir.path().join("other.gguf"), dir.path().join("c.json"));
    std::fs::copy(alphabet(), &other).expect("a copy");
    let lines = format!(
        "/set verbose\n/set parameter max_tokens 2\nab\n/model {other}\nx\n/show\n/save {path}\n",
        other = other.display(),
        path = path.display()
    );
    let (answers, notes) = chat(&["--greedy", "-n", "3"], &lines);
    assert_eq!(answers, "cd\nyz\n");
    // It computes all of the conversation once.
    assert_eq!(prompts(&notes), ["prompt 2 tokens", "prompt 5 tokens"]);
    assert!(notes.contains("other.gguf: llama, "), "{notes}");
    let turns = [("user", "ab"), ("assistant", "cd"), ("user", "x"), ("assistant", "yz")];
    assert_eq!(saved(&path), pairs(&turns));
}
