//! The step `documents`: the console blocks of the documents run, and print what they show.
//!
//! A block is fenced as `console`. Its lines after `$ ` are commands, the lines after them what is
//! printed, where `…` stands for any text and, alone in a line, for any lines. A block that cannot run
//! here says why after `skip:`. Blocks of one file share a folder; ports are replaced by free ones.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::totals::Totals;
use crate::{models, shell};

/// What a user reads, beside `docs/*.md`.
const FILES: &[&str] = &["README.md", "deploy/README.md", "crates/cli/README.md"];
/// The port that the documents use.
const PORT: &str = "8080";
/// Seconds that one block may take.
const LIMIT: &str = "300";

/// A fenced block.
#[derive(Debug, Default, PartialEq, Eq)]
struct Block {
    line: usize,
    /// Why it does not run.
    skip: Option<String>,
    commands: Vec<Shown>,
}

/// A command and the lines that the document shows after it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    text: String,
    lines: Vec<String>,
}

impl Shown {
    /// Whether it goes on in the next line.
    fn is_open(&self) -> bool {
        self.text.ends_with('\\') || self.text.matches('\'').count() % 2 == 1
    }

    /// The command without a comment after it.
    fn command(&self) -> &str {
        self.text.split("  #").next().unwrap_or_default().trim_end()
    }
}

/// Runs every block; prints those that fail, and what was left out.
pub(crate) fn run(engine: &Path) -> Result<Totals> {
    let mut files: Vec<PathBuf> = FILES.iter().map(PathBuf::from).collect();
    for entry in fs::read_dir(shell::root().join("docs"))? {
        let name = PathBuf::from("docs").join(entry?.file_name());
        files.extend(name.extension().is_some_and(|e| e == "md").then_some(name));
    }
    files.sort();
    let model = models::find(engine, "smollm2")?;
    let (mut totals, mut skipped) = (Totals::default(), Vec::new());
    for file in &files {
        let text = fs::read_to_string(shell::root().join(file))?;
        let place = Place::new(engine, &model)?;
        for block in blocks(&text) {
            let at = format!("{}:{}", file.display(), block.line);
            if let Some(reason) = &block.skip {
                skipped.push(format!("{at}: {reason}"));
                continue;
            }
            match place.run(&block) {
                Ok(()) => totals.passed += 1,
                Err(error) => totals.fail(format!("documents: {at}: {error:#}")),
            }
        }
    }
    println!("documents: {} blocks ran, {} were skipped", totals.passed, skipped.len());
    skipped.iter().for_each(|line| println!("  {line}"));
    Ok(totals)
}

/// A folder in which the blocks of a file run.
struct Place {
    folder: tempfile::TempDir,
    port: String,
}

impl Place {
    fn new(engine: &Path, model: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let root = folder.path();
        for name in ["bin", "work", "home/models", "out"] {
            fs::create_dir_all(root.join(name))?;
        }
        link(engine, &root.join("bin/realizar"))?;
        link(model, &root.join("work/model.gguf"))?;
        link(model, &root.join("home/models/model.gguf"))?;
        fs::write(
            root.join("work/notes.txt"),
            "The meeting is on Monday. Ann brings the figures.\n",
        )?;
        fs::write(root.join("work/prompt.txt"), "Say hello.\n")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        Ok(Self { folder, port })
    }

    /// Runs the commands in one shell and compares what they print.
    fn run(&self, block: &Block) -> Result<()> {
        let root = self.folder.path();
        let script = block.commands.iter().enumerate().map(|(i, shown)| self.script(i, shown));
        let ends = "trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT\n".to_owned();
        let script = std::iter::once(ends).chain(script).collect::<String>();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut bash = shell::command("timeout");
        bash.args([LIMIT, "bash", "-c", &script]).current_dir(root.join("work"));
        bash.env("HOME", root.join("home")).env("REALIZAR_CACHE", shell::model_dir());
        bash.env("PATH", format!("{}:{path}", root.join("bin").display()));
        let out = |i: usize| {
            let bytes = fs::read(root.join(format!("out/{i}"))).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace(&self.port, PORT)
        };
        let done = bash.output().context("start bash")?;
        let reached = String::from_utf8_lossy(&done.stdout);
        for (i, shown) in block.commands.iter().enumerate() {
            let printed = out(i);
            ensure!(
                reached.lines().any(|line| line == i.to_string()),
                "`{}` fails ({}): {printed}",
                shown.text,
                done.status
            );
            let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
            let shows: Vec<&str> = shown.lines.iter().map(String::as_str).collect();
            ensure!(
                shows.is_empty() || lines_match(&shows, &lines),
                "`{}` prints\n{printed}\nand the document shows\n{}",
                shown.text,
                shows.join("\n")
            );
        }
        Ok(())
    }

    /// A command that writes to a file of its own, and then its number to standard output.
    fn script(&self, i: usize, shown: &Shown) -> String {
        let command = shown.command().replace(PORT, &self.port);
        let out = self.folder.path().join(format!("out/{i}"));
        let out = out.display();
        if command.ends_with('&') {
            let n = shown.lines.len();
            return format!(
                "{{ {command}\n}} > {out} 2>&1 < /dev/null\n\
                 for _ in $(seq 600); do [ $(wc -l < {out}) -ge {n} ] && break; sleep 0.1; done\n\
                 echo {i}\n"
            );
        }
        format!("{{ {command}\n}} > {out} 2>&1 < /dev/null || exit 1\necho {i}\n")
    }
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> Result<()> {
    Ok(std::os::unix::fs::symlink(from, to)?)
}

#[cfg(not(unix))]
fn link(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)?;
    Ok(())
}

/// The console blocks of a document.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut fence = None; // indentation, and whether it is a console
    for (idx, line) in text.lines().enumerate() {
        let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
        if let Some(info) = rest.strip_prefix("```") {
            if fence.take().is_none() {
                let mut words = info.splitn(2, ' ');
                let is_console = words.next() == Some("console");
                if is_console {
                    let skip = words.next().and_then(|rest| rest.strip_prefix("skip: "));
                    let skip = skip.map(str::to_owned);
                    blocks.push(Block { line: idx + 1, skip, ..Block::default() });
                }
                fence = Some((indent.len(), is_console));
            }
            continue;
        }
        let (Some((indent, true)), Some(block)) = (fence, blocks.last_mut()) else { continue };
        let line = line.get(indent..).unwrap_or_default().trim_end();
        match (block.commands.last_mut(), line.strip_prefix("$ ")) {
            (Some(last), _) if last.is_open() => last.text += &format!("\n{line}"),
            (_, Some(command)) => {
                block.commands.push(Shown { text: command.to_owned(), lines: Vec::new() });
            }
            (Some(last), None) => last.lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    blocks
}

/// Whether lines are as shown; `…` alone stands for any number of lines.
fn lines_match(shown: &[&str], lines: &[&str]) -> bool {
    match shown {
        [] => lines.is_empty(),
        ["…", rest @ ..] => (0..=lines.len()).any(|n| lines_match(rest, &lines[n..])),
        [first, rest @ ..] => {
            lines.first().is_some_and(|line| line_matches(first, line))
                && lines_match(rest, &lines[1..])
        }
    }
}

/// Whether a line is as shown; `…` stands for any text.
fn line_matches(shown: &str, line: &str) -> bool {
    let Some((start, rest)) = shown.split_once('…') else { return shown == line };
    let Some(mut line) = line.strip_prefix(start) else { return false };
    let pieces: Vec<&str> = rest.split('…').collect();
    let Some((end, middle)) = pieces.split_last() else { return false };
    for piece in middle {
        let Some(at) = line.find(piece) else { return false };
        line = &line[at + piece.len()..];
    }
    line.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read() {
        let text = "a\n```sh\n$ no\n```\n- b\n\n  ```console\n  $ x '{\n    }' \\\n      y\n  out\n  $ z\n  ```\n\
                    ```console skip: needs root\n$ w\n```\n";
        let shown = |text: &str, lines: &[&str]| Shown {
            text: text.to_owned(),
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
        };
        let first = vec![shown("x '{\n  }' \\\n    y", &["out"]), shown("z", &[])];
        let skip = Some("needs root".to_owned());
        assert_eq!(
            blocks(text),
            [
                Block { line: 7, skip: None, commands: first },
                Block { line: 14, skip, commands: vec![shown("w", &[])] },
            ]
        );
        assert_eq!(shown("serve &   # it", &[]).command(), "serve &");
    }

    #[test]
    fn lines_are_compared() {
        let cases: &[(&[&str], &[&str], bool)] = &[
            (&["a"], &["a"], true),
            (&["a"], &["a", "b"], false),
            (&["a", "…"], &["a", "b", "c"], true),
            (&["…", "c"], &["a", "b", "c"], true),
            (&["…", "c"], &["c", "d"], false),
            (&["a…c"], &["a b c"], true),
            (&["a…c"], &["a b cd"], false),
            (&["…x…y"], &["1x2y"], true),
            (&["…x…y"], &["1y2x"], false),
            (&["a…a"], &["a"], false),
        ];
        for (shown, lines, expected) in cases {
            assert_eq!(lines_match(shown, lines), *expected, "{shown:?} {lines:?}");
        }
    }
}
