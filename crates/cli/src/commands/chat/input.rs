//! Where the lines of a conversation come from: a terminal with line editing and history, or a pipe.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::source::cache::create_dir;

/// Where lines come from.
pub(super) enum Input {
    Terminal { editor: Box<DefaultEditor>, history: PathBuf },
    Pipe(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Input {
    pub(super) fn open(history: &Path) -> Result<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(Self::Pipe(stdin.lock().lines()));
        }
        let mut editor = DefaultEditor::new().context("cannot set up line editing")?;
        if let Err(error) = editor.load_history(history) {
            tracing::debug!("no history from {}: {error}", history.display());
        }
        Ok(Self::Terminal { editor: Box::new(editor), history: history.to_owned() })
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// The next line, joined with the lines it continues on; `None` at the end of the input.
    pub(super) fn read(&mut self) -> Result<Option<String>> {
        let mut text = String::new();
        loop {
            let prompt = if text.is_empty() { "> " } else { ". " };
            let Some(line) = self.read_one(prompt)? else {
                return Ok((!text.is_empty()).then_some(text));
            };
            match line.strip_suffix('\\') {
                Some(head) => {
                    text.push_str(head);
                    text.push('\n');
                }
                None => {
                    text.push_str(&line);
                    return Ok(Some(text));
                }
            }
        }
    }

    /// The answer to a question, which the history does not keep; `None` where there is nobody to ask,
    /// or no answer but Ctrl-C or Ctrl-D.
    pub(super) fn ask(&mut self, question: &str) -> Result<Option<String>> {
        let Self::Terminal { editor, .. } = self else { return Ok(None) };
        match editor.readline(question) {
            Ok(line) => Ok(Some(line)),
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => Ok(None),
            Err(error) => Err(error).context("cannot read the terminal"),
        }
    }

    fn read_one(&mut self, prompt: &str) -> Result<Option<String>> {
        match self {
            Self::Pipe(lines) => lines.next().transpose().context("cannot read standard input"),
            Self::Terminal { editor, history } => loop {
                match editor.readline(prompt) {
                    Ok(line) => {
                        remember(editor, history, &line);
                        return Ok(Some(line));
                    }
                    // Ctrl-C at the prompt clears the line.
                    Err(ReadlineError::Interrupted) => {}
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => return Err(error).context("cannot read the terminal"),
                }
            },
        }
    }
}

/// Adds a line to the history; a history that cannot be written is only logged.
fn remember(editor: &mut DefaultEditor, history: &Path, line: &str) {
    let saved = editor.add_history_entry(line).map_err(anyhow::Error::from).and_then(|_| {
        if let Some(dir) = history.parent() {
            create_dir(dir)?;
        }
        Ok(editor.save_history(history)?)
    });
    if let Err(error) = saved {
        tracing::debug!("cannot save the history: {error:#}");
    }
}
