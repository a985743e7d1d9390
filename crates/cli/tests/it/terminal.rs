//! Text of models, files and servers on a terminal: no sequence in it is obeyed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use nix::pty::{Winsize, openpty};
use realizar_formats::{Array, Gguf, GgufWriter, Value};
use serde_json::json;
use tempfile::TempDir;

use crate::mock::{self, Mock};
use crate::models;

/// Sets the title, writes the clipboard, hides text in two ways, and reverses it.
const HOSTILE: &str = "\x1b]0;t\x07\x1b]52;c;eA==\x07\x1b[8m\u{9b}8m\u{202e}\u{2066}\r\x08\x7f";
const SIGNS: &str = "␛]0;t␇␛]52;c;eA==␇␛[8m<U+009B>8m<U+202E><U+2066>␍␈␡";

/// The binary on a pseudo-terminal, in a folder of its own.
struct Terminal {
    child: Child,
    screen: File,
    seen: Vec<u8>,
}

impl Terminal {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let size = Winsize { ws_row: 50, ws_col: 500, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None).expect("a pseudo-terminal");
        let end = || File::from(pair.slave.try_clone().expect("a descriptor"));
        let child = Command::new(env!("CARGO_BIN_EXE_realizar"))
            .args(args)
            .current_dir(dir)
            .env("REALIZAR_CACHE", dir.join("cache"))
            .env("REALIZAR_DEVICE", "cpu")
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the binary starts");
        Self { child, screen: pair.master.into(), seen: Vec::new() }
    }

    /// Reads a piece; false at the end.
    fn read(&mut self) -> bool {
        let mut piece = [0; 4096];
        // Linux reports an error once the program has closed its end.
        let n = self.screen.read(&mut piece).unwrap_or(0);
        self.seen.extend_from_slice(&piece[..n]);
        n > 0
    }

    /// Waits for a text, and for nothing before it.
    fn wait_for(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.seen).contains(text) {
            assert!(self.read(), "{text}: {:?}", String::from_utf8_lossy(&self.seen));
        }
    }

    fn type_line(&mut self, line: &str) {
        self.screen.write_all(format!("{line}\r").as_bytes()).expect("typed");
    }

    /// All output; it has nothing but signs of [`HOSTILE`].
    fn finish(mut self, want_success: bool) -> String {
        while self.read() {}
        let status = self.child.wait().expect("the binary ends");
        let text = String::from_utf8(self.seen).expect("UTF-8");
        assert_eq!(status.success(), want_success, "{text:?}");
        for sequence in
            ["\x1b]", "\x1b[8m", "\x07", "\x08", "\x7f", "\u{9b}", "\u{202e}", "\u{2066}"]
        {
            assert!(!text.contains(sequence), "{sequence:?}: {text:?}");
        }
        text
    }
}

/// Writes the model of the alphabet with other texts for some letters, another name and another template.
fn alphabet(path: &Path, letters: &[(&str, String)], name: &str, template: Option<&str>) {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/examples/alphabet.gguf");
    let gguf = Gguf::open(model).expect("the model");
    let tensors: Vec<_> =
        gguf.tensors().iter().map(|info| gguf.tensor(&info.name).expect("listed")).collect();
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        let value = match (key, value) {
            ("tokenizer.ggml.tokens", Value::Array(tokens)) => {
                let text = |token: Value| {
                    let Value::Str(token) = token else { panic!("a text") };
                    let other = letters.iter().find(|(letter, _)| *letter == token);
                    other.map_or(token, |(_, text)| text.clone())
                };
                Value::Array(Array::from_strs(tokens.iter().map(text).collect::<Vec<_>>()))
            }
            ("general.name", _) => Value::Str(name.to_owned()),
            ("tokenizer.chat_template", _) if template.is_some() => {
                Value::Str(template.unwrap_or_default().to_owned())
            }
            _ => value.clone(),
        };
        writer.set(key, value).expect("a key");
    }
    for tensor in &tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).expect("a tensor");
    }
    writer.write_file(path).expect("written");
}

/// A folder with a model whose answer to `ab` is hostile, split within sequences and after them.
fn folder() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join(format!("m{HOSTILE}.gguf"));
    let (first, second) = HOSTILE.split_once("]52").expect("a sequence");
    let letters =
        [("c", first.to_owned()), ("d", format!("]52{second}")), ("e", "**end**\n".to_owned())];
    alphabet(&path, &letters, HOSTILE, None);
    (dir, path)
}

#[test]
fn answers_are_signs_on_a_terminal_and_raw_elsewhere() {
    let (dir, path) = folder();
    let path = path.display().to_string();
    let args = |more: &[&'static str]| {
        [&["run", &path, "ab", "--raw", "--greedy", "-n", "3", "--no-config"], more].concat()
    };
    for (more, end) in [(&[][..], "\x1b[1mend\x1b[0m"), (&["--markdown", "off"], "**end**")] {
        let text = Terminal::start(dir.path(), &args(more)).finish(true);
        assert!(text.starts_with(&format!("{SIGNS}{end}\r\n")), "{text:?}");
    }
    let output = models::run(&args(&[]), "");
    assert_eq!(String::from_utf8(output.stdout).expect("UTF-8"), format!("{HOSTILE}**end**\n"));
}

#[test]
fn a_call_is_shown_whole_before_it_may_run() {
    let (dir, path) = folder();
    let call = json!({"name": "add", "arguments": {"a": format!("b{HOSTILE}")}}).to_string();
    let call = format!("<tool_call>\n{call}\n</tool_call>");
    let template = "{% if tools %}<tool_call>{\"name\": its name, \"arguments\": {}}</tool_call>\
                    {% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}\
                    {% for message in messages %}{{ message.content or \"\" }}\
                    {% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>\
                    {% endfor %}{% endfor %}";
    let hide = format!("{HOSTILE}{call}");
    alphabet(&path, &[("k", hide), ("y", "y\n".to_owned())], "m", Some(template));
    let description = json!(format!("Adds {HOSTILE}"));
    let script = format!(
        r#"
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    case "$line" in
        *'"method":"initialize"'*) result='{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"t","version":"1"}}}}' ;;
        *'"method":"tools/list"'*) result='{{"tools":[{{"name":"add","description":{description},"inputSchema":{{"type":"object"}}}}]}}' ;;
        *'"method":"tools/call"'*) result='{{"content":[{{"type":"text","text":{result}}}]}}' ;;
        *) continue ;;
    esac
    printf '%s\n' '{{"jsonrpc":"2.0","id":'"$id"',"result":'"$result"'}}'
done
"#,
        result = json!(format!("{HOSTILE}\nx")),
    );
    let servers = json!({"mcpServers": {"s": {"command": "sh", "args": ["-c", script]}}});
    fs::write(dir.path().join("mcp.json"), servers.to_string()).expect("written");
    let path = path.display().to_string();
    let args = ["chat", &path, "--greedy", "-n", "1", "--no-config", "--mcp", "mcp.json"];
    let mut terminal = Terminal::start(dir.path(), &args);
    terminal.wait_for("> ");
    terminal.type_line("/tools");
    terminal.wait_for(&format!("add (s)  Adds {SIGNS}"));
    terminal.type_line("j");
    terminal.wait_for("run it? [y]es, [n]o, [a]lways this tool: ");
    terminal.type_line("y");
    terminal.wait_for("y\r\n");
    terminal.type_line("/exit");
    let text = terminal.finish(true);
    // Escapes of JSON stand for C0; the rest of it is signs.
    let shown = serde_json::to_string(HOSTILE).expect("JSON");
    let shown =
        shown.trim_matches('"').replace('\u{9b}', "<U+009B>").replace('\u{202e}', "<U+202E>");
    let shown = shown.replace('\u{2066}', "<U+2066>").replace('\u{7f}', "␡");
    let want = format!("\x1b[0ms wants to call add {{\"a\":\"b{shown}\"}}\r\n\x1b[0m");
    let (before, _) = text.split_once("run it?").expect("the question");
    assert!(before.contains(&want), "{want:?}: {before:?}");
    assert!(text.contains(&format!("\x1b[2m{SIGNS}\x1b[0m\r\n\x1b[2mx\x1b[0m")), "{text:?}");
}

#[test]
fn metadata_names_and_errors_are_signs() {
    let (dir, path) = folder();
    let path = path.display().to_string();
    let escaped = format!("{HOSTILE:?}");
    for (args, want) in [
        (&["inspect", &path][..], escaped.trim_matches('"').replace('\u{202e}', "<U+202E>")),
        (&["inspect", &path], format!("m{SIGNS}.gguf: GGUF")),
        (&["show", &path], format!("name{}", " ".repeat(14)) + SIGNS),
        (
            &["tokenize", &path, "--decode", "6"],
            SIGNS.split_once("]52").expect("a part").0.to_owned(),
        ),
    ] {
        let text = Terminal::start(dir.path(), args).finish(true);
        assert!(text.contains(&want), "{args:?}: {want:?}: {text:?}");
    }
    let missing = path.replace("m\x1b", "n\x1b");
    for args in [&["inspect", &missing][..], &["inspect", &path, HOSTILE], &["run", &missing, "a"]]
    {
        Terminal::start(dir.path(), args).finish(false);
    }
    let list = json!({"data": [{"id": HOSTILE, "status": {"value": format!("a\n{HOSTILE}")}}]});
    let body = list.to_string();
    let server = Mock::start(move |_, _| {
        mock::answer(200, &[("Content-Type", "application/json")], body.as_bytes())
    });
    let text = Terminal::start(dir.path(), &["ps", "--url", &server.origin]).finish(true);
    assert!(text.contains(&format!("{SIGNS}  a␊{SIGNS}")), "{text:?}");
}
