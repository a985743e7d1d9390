//! Where the lines of a conversation come from: a terminal with line editing and history, or a pipe.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Config, Editor};

use super::complete::Completion;
use super::entry::Entry;
use crate::source::cache::create_dir;
use crate::ui;

/// Where lines come from.
pub(super) enum Input {
    Terminal(Box<Terminal>),
    Pipe(std::io::Lines<std::io::StdinLock<'static>>),
}

/// A terminal, and the file that keeps what was typed.
pub(super) struct Terminal {
    editor: Editor<Completion, DefaultHistory>,
    history: Option<PathBuf>,
    keeps_history: bool,
}

/// Input from a terminal or a pipe.
enum Line {
    Text(String),
    /// Ctrl-C.
    Interrupt,
    End,
}

impl Input {
    /// Standard input. On a terminal, Tab completes commands, files and the names of `models`, and the history is that of
    /// a file, if there is a place for one.
    pub(super) fn open(
        history: Option<&Path>,
        models: impl FnOnce() -> Vec<String>,
    ) -> Result<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(Self::Pipe(stdin.lock().lines()));
        }
        let config = Config::builder().completion_type(CompletionType::List).build();
        let mut editor = Editor::with_config(config).context("cannot set up line editing")?;
        editor.set_helper(Some(Completion::new(models())));
        if let Some(history) = history
            && let Err(error) = editor.load_history(history)
        {
            tracing::debug!("no history from {}: {error}", history.display());
        }
        let history = history.map(Path::to_owned);
        Ok(Self::Terminal(Box::new(Terminal { editor, history, keeps_history: true })))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Whether what is typed from now on is kept for the next start.
    pub(super) fn keep_history(&mut self, keeps: bool) {
        if let Self::Terminal(terminal) = self {
            terminal.keeps_history = keeps;
        }
    }

    /// The next text, of one line or several that belong together; `None` at the end of the input.
    pub(super) fn read(&mut self) -> Result<Option<String>> {
        let mut entry = Entry::default();
        loop {
            match self.read_one(if entry.is_empty() { "> " } else { ". " })? {
                Line::Text(line) => {
                    if entry.push(&line) {
                        let text = entry.into_text();
                        self.remember(&text);
                        return Ok(Some(text));
                    }
                }
                // Ctrl-C at the prompt clears what was typed.
                Line::Interrupt => entry = Entry::default(),
                Line::End if entry.is_empty() => return Ok(None),
                Line::End if entry.is_in_block() => match self {
                    Self::Terminal(_) => return Ok(None),
                    Self::Pipe(_) => bail!("the input ended in a block that begins with \"\"\""),
                },
                Line::End => return Ok(Some(entry.into_text())),
            }
        }
    }

    /// The answer to a question, which the history does not keep; `None` where there is nobody to ask,
    /// or no answer but Ctrl-C or Ctrl-D.
    pub(super) fn ask(&mut self, question: &str) -> Result<Option<String>> {
        let Self::Terminal(terminal) = self else { return Ok(None) };
        ui::reset()?;
        Ok(match terminal.read(question)? {
            Line::Text(line) => Some(line),
            Line::Interrupt | Line::End => None,
        })
    }

    fn read_one(&mut self, prompt: &str) -> Result<Line> {
        match self {
            Self::Pipe(lines) => {
                let line = lines.next().transpose().context("cannot read standard input")?;
                Ok(line.map_or(Line::End, Line::Text))
            }
            Self::Terminal(terminal) => terminal.read(prompt),
        }
    }

    /// Adds a text to the history; a history that cannot be written is only logged.
    fn remember(&mut self, text: &str) {
        let Self::Terminal(terminal) = self else { return };
        let Terminal { editor, history, keeps_history } = &mut **terminal;
        if !*keeps_history {
            return;
        }
        let saved = editor.add_history_entry(text).map_err(anyhow::Error::from).and_then(|_| {
            let Some(history) = history else { return Ok(()) };
            if let Some(dir) = history.parent() {
                create_dir(dir)?;
            }
            Ok(editor.save_history(history)?)
        });
        if let Err(error) = saved {
            tracing::debug!("cannot save the history: {error:#}");
        }
    }
}

impl Terminal {
    fn read(&mut self, prompt: &str) -> Result<Line> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(Line::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupt),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(error).context("cannot read the terminal"),
        }
    }
}
