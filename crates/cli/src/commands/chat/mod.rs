//! `realizar chat`: a conversation with line editing and history on a terminal, or line by line
//! from a pipe. A line that starts with `/` is a command to the program.

use std::fs;
use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result};
use realizar_runtime::template::Message;
use realizar_runtime::{Event, FinishReason};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::engine::{Engine, Needs};
use crate::interrupt;
use crate::options::{GenerateArgs, GlobalArgs, LoadArgs, TemplateArgs};
use crate::source::{cache::create_dir, shown};
use crate::terminal::{self, MarkdownArg, Printer};
use crate::ui;

const HELP: &str = "\
/help           this text
/reset          forget the conversation; the system message stays
/system TEXT    set the system message and forget the conversation; no TEXT removes it
/save FILE      write the conversation to FILE as JSON
/exit, /quit    leave; so does Ctrl-D
Ctrl-C stops an answer. A line that ends with \\ is continued.";

/// Ctrl-C stops an answer, Ctrl-D or /exit leaves, /help lists the other commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    pub(super) model: String,
    /// Draw Markdown: auto (on a terminal), on or off
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    #[arg(hide_possible_values = true)]
    pub(super) markdown: MarkdownArg,
    #[command(flatten)]
    pub(super) template: TemplateArgs,
    #[command(flatten)]
    pub(super) generate: GenerateArgs,
    #[command(flatten)]
    pub(super) load: LoadArgs,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let grammar = args.generate.grammar.read()?;
    let sources = global.sources()?;
    let path = sources.resolve(&args.model)?;
    let needs = Needs { ctx: args.generate.ctx, prefix_cache: true, ..Needs::default() };
    let mut engine = Engine::load(&path, &args.load, global, needs)?;
    engine.set_template(&args.template)?;
    engine.set_grammar(grammar.as_ref())?;
    let mut chat = Chat { messages: Vec::new(), system: args.template.system.clone() };
    // A model without a template is reported before the first question is typed.
    engine.chat_prompt(&chat.with_user("hello"))?;
    let mut input = Input::open(&sources.cache.history_file())?;
    if input.is_terminal() {
        let device = engine.model.backend();
        ui::dim(&format!("{} on {device} | /help lists the commands", shown(&args.model)));
    }
    while let Some(line) = input.read()? {
        match command(&line) {
            Typed::Nothing => {}
            Typed::Exit => break,
            Typed::Help => ui::note(HELP),
            Typed::Reset => {
                chat.messages.clear();
                ui::dim("the conversation is forgotten");
            }
            Typed::System(text) => {
                chat.messages.clear();
                let done = if text.is_some() { "set" } else { "removed" };
                ui::dim(&format!("system message {done}, the conversation is forgotten"));
                chat.system = text.map(str::to_owned);
            }
            // A failed save must not end the conversation.
            Typed::Save(file) => match chat.save(Path::new(file)) {
                Ok(()) => ui::note(&format!("saved to {file}")),
                Err(error) => ui::note(&format!("error: {}", ui::one_line(&error))),
            },
            Typed::SaveNothing => ui::note("/save needs a file"),
            Typed::Unknown(name) => ui::note(&format!("unknown command {name}; see /help")),
            Typed::Message(text) => {
                let fitted = chat.fit(text, &engine, args.generate.max_tokens);
                let answer = fitted.and_then(|(ids, n_dropped)| {
                    tell_of_dropped(n_dropped);
                    answer(&mut engine, &ids, args)
                });
                match answer {
                    Ok(answer) => {
                        chat.messages.push(Message::new("user", text));
                        chat.messages.push(answer);
                    }
                    // Someone at the terminal can still /save or /reset.
                    Err(error) if input.is_terminal() && !ui::is_broken_pipe(&error) => {
                        ui::note(&format!("error: {}", ui::one_line(&error)));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

fn tell_of_dropped(n_turns: usize) {
    match n_turns {
        0 => {}
        1 => ui::note("the context is full: the oldest turn was dropped; /reset forgets all"),
        n => ui::note(&format!(
            "the context is full: the {n} oldest turns were dropped; /reset forgets all"
        )),
    }
}

/// Streams the answer to a conversation of these tokens and returns it.
fn answer(engine: &mut Engine, ids: &[u32], args: &Args) -> Result<Message> {
    let guard = interrupt::Guard::new();
    let mut out = std::io::stdout().lock();
    let mut failed = None;
    let mut params = engine.params(&args.generate, None);
    // Reasoning is told apart only where that is seen.
    let parser = match terminal::is_drawn(args.markdown) {
        true => engine.reasoning_parser(ids)?,
        false => None,
    };
    let parser = parser.map(|(parser, shown)| {
        params.shown_tokens = shown;
        parser
    });
    let mut printer = Printer::new(args.markdown, parser);
    let generation = engine.generate(ids, &params, &mut |event| {
        if let Event::Token(token) = event {
            failed = printer.push(&mut out, token.text).err();
        }
        if guard.asked() || failed.is_some() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    printer.push(&mut out, &generation.tail)?;
    printer.finish(&mut out, if guard.asked() { " [stopped]" } else { "" })?;
    if generation.finish_reason == FinishReason::Length {
        ui::note(&match generation.ids.len() >= args.generate.max_tokens {
            true => format!("the answer was cut after {} tokens (-n)", generation.ids.len()),
            false => "the answer was cut: the context is full (-c)".to_owned(),
        });
    }
    tracing::info!("{}", super::run::timing_line(&generation, &params.sampling));
    let (reasoning, content) = printer.into_parts();
    let mut message = Message::new("assistant", content);
    if !reasoning.is_empty() {
        message.fields.insert("reasoning_content".to_owned(), reasoning.into());
    }
    Ok(message)
}

struct Chat {
    messages: Vec<Message>, // user and assistant in turn
    system: Option<String>,
}

impl Chat {
    fn all(&self) -> Vec<Message> {
        let system = self.system.iter().map(|s| Message::new("system", s.as_str()));
        system.chain(self.messages.iter().cloned()).collect()
    }

    fn with_user(&self, text: &str) -> Vec<Message> {
        let mut messages = self.all();
        messages.push(Message::new("user", text));
        messages
    }

    /// The tokens of the conversation with a further message of the user, and how many of its
    /// oldest turns were dropped because they no longer fit the context.
    ///
    /// A conversation that does not fit is left a quarter of the context for the answer, or
    /// `max_tokens` where that is less, so that the next turns fit as well.
    fn fit(&mut self, text: &str, engine: &Engine, max_tokens: usize) -> Result<(Vec<u32>, usize)> {
        let context = engine.model.max_seq_len();
        let (mut room, mut n_dropped) = (1, 0);
        loop {
            let ids = engine.chat_prompt(&self.with_user(text))?;
            if self.messages.is_empty() || ids.len() + room <= context {
                return Ok((ids, n_dropped));
            }
            let turn_len = 1 + self.messages[1..].iter().take_while(|m| m.role != "user").count();
            self.messages.drain(..turn_len);
            n_dropped += 1;
            room = (context / 4).min(max_tokens).max(1);
        }
    }

    fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.all()).context("cannot encode")?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

/// What a line asks for.
#[derive(Debug, PartialEq)]
enum Typed<'a> {
    Nothing,
    Exit,
    Help,
    Reset,
    System(Option<&'a str>),
    Save(&'a str),
    SaveNothing,
    Unknown(&'a str),
    Message(&'a str),
}

fn command(line: &str) -> Typed<'_> {
    let line = line.trim();
    if line.is_empty() {
        return Typed::Nothing;
    }
    if !line.starts_with('/') {
        return Typed::Message(line);
    }
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match (name, rest) {
        ("/exit" | "/quit" | "/bye", _) => Typed::Exit,
        ("/help" | "/?", _) => Typed::Help,
        ("/reset", _) => Typed::Reset,
        ("/system", "") => Typed::System(None),
        ("/system", text) => Typed::System(Some(text)),
        ("/save", "") => Typed::SaveNothing,
        ("/save", file) => Typed::Save(file),
        _ => Typed::Unknown(line),
    }
}

/// Where lines come from.
enum Input {
    Terminal { editor: Box<DefaultEditor>, history: std::path::PathBuf },
    Pipe(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Input {
    fn open(history: &Path) -> Result<Self> {
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

    fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// The next line, joined with the lines it continues on; `None` at the end of the input.
    fn read(&mut self) -> Result<Option<String>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_commands() {
        for (line, want) in [
            ("", Typed::Nothing),
            ("  hello ", Typed::Message("hello")),
            ("/help", Typed::Help),
            ("/reset", Typed::Reset),
            ("/system be brief", Typed::System(Some("be brief"))),
            ("/system", Typed::System(None)),
            ("/save a b.json", Typed::Save("a b.json")),
            ("/save", Typed::SaveNothing),
            ("/quit", Typed::Exit),
            ("/x", Typed::Unknown("/x")),
            ("/exit", Typed::Exit),
        ] {
            assert_eq!(command(line), want, "{line:?}");
        }
    }

    #[test]
    fn the_system_message_comes_first_and_a_save_is_json() {
        let mut chat = Chat { messages: Vec::new(), system: Some("s".to_owned()) };
        chat.messages.push(Message::new("user", "a"));
        let roles: Vec<_> = chat.with_user("b").into_iter().map(|m| m.role).collect();
        assert_eq!(roles, ["system", "user", "user"]);
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("c.json");
        chat.save(&path).expect("save");
        let value: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        assert_eq!(value[1], serde_json::json!({ "role": "user", "content": "a" }));
    }
}
