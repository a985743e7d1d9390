//! `realizar chat`: a conversation with line editing and history on a terminal, or line by line
//! from a pipe. A line that starts with `/` is a command to the program.

mod input;
mod tools;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use realizar_runtime::template::Message;
use realizar_runtime::{Event, FinishReason};
use realizar_server::conversation::{Answer, AnswerPart};
use serde_json::{Value, json};

use crate::engine::{Engine, Needs};
use crate::interrupt;
use crate::options::{GenerateArgs, GlobalArgs, LoadArgs, TemplateArgs};
use crate::source::shown;
use crate::terminal::{self, MarkdownArg, Printer};
use crate::ui;
use input::Input;
use tools::{Call, Tools};

const HELP: &str = "\
/help           this text
/tools          list the tools that the model may ask for
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
    /// Render Markdown: auto (on a terminal), on or off
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    #[arg(hide_possible_values = true)]
    pub(super) markdown: MarkdownArg,
    /// JSON file with `mcpServers`, whose tools the model may call; asks before each call
    #[arg(long, value_name = "FILE")]
    pub(super) mcp: Option<PathBuf>,
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
    let mut input = Input::open(&sources.cache.history_file())?;
    let mut tools = Tools::start(args.mcp.as_deref(), &input)?;
    let path = sources.resolve(&args.model)?;
    let needs = Needs { ctx: args.generate.ctx, prefix_cache: true, ..Needs::default() };
    let mut engine = Engine::load(&path, &args.load, global, needs)?;
    engine.set_template(&args.template)?;
    engine.set_grammar(grammar.as_ref())?;
    let mut chat = Chat { messages: Vec::new(), system: args.template.system.clone() };
    // A model without a template is reported before the first question is typed.
    engine.chat_prompt(&[chat.all(), vec![Message::user("hello")]].concat(), tools.values())?;
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
                ui::dim("conversation cleared");
            }
            Typed::System(text) => {
                chat.messages.clear();
                let done = if text.is_some() { "set" } else { "removed" };
                ui::dim(&format!("system message {done}, conversation cleared"));
                chat.system = text.map(str::to_owned);
            }
            // A failed save must not end the conversation.
            Typed::Save(file) => match chat.save(Path::new(file)) {
                Ok(()) => ui::note(&format!("saved to {file}")),
                Err(error) => ui::note(&format!("error: {}", ui::one_line(&error))),
            },
            Typed::SaveNothing => ui::note("/save needs a file"),
            Typed::Unknown(name) => ui::note(&format!("unknown command {name}; see /help")),
            Typed::Tools => tools.list(),
            Typed::Message(text) => {
                chat.messages.push(Message::user(text));
                match turn(&mut chat, &mut engine, args, &mut tools, &mut input) {
                    Ok(()) => {}
                    // Someone at the terminal can still /save or /reset.
                    Err(error) if input.is_terminal() && !ui::is_broken_pipe(&error) => {
                        chat.take_back_turn();
                        ui::note(&format!("error: {}", ui::one_line(&error)));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

/// Answers the last message. Where the model asks for tools, those that the user lets run do, and it
/// continues with what they say.
fn turn(
    chat: &mut Chat,
    engine: &mut Engine,
    args: &Args,
    tools: &mut Tools,
    input: &mut Input,
) -> Result<()> {
    loop {
        let (ids, n_dropped) = chat.fit(engine, args.generate.max_tokens, tools.values())?;
        tell_of_dropped(n_dropped);
        let (answer, mut is_stopped) = answer(engine, &ids, args, tools)?;
        let (message, calls) = message_of(answer);
        chat.messages.push(message);
        if calls.is_empty() {
            return Ok(());
        }
        for call in calls {
            // A call without a result is no conversation that a template knows.
            let result = if is_stopped { None } else { tools.run(&call, input)? };
            is_stopped |= result.is_none();
            let result = result.unwrap_or_else(|| tools::STOPPED.to_owned());
            let mut message = Message::new("tool", result);
            message.fields.insert("tool_call_id".to_owned(), call.id.into());
            message.fields.insert("name".to_owned(), call.name.into());
            chat.messages.push(message);
        }
        if is_stopped {
            return Ok(());
        }
    }
}

/// An answer as a message of the conversation, and the calls in it.
fn message_of(answer: Answer) -> (Message, Vec<Call>) {
    let mut message = Message::assistant(answer.content());
    let reasoning = answer.reasoning();
    if !reasoning.is_empty() {
        message.fields.insert("reasoning_content".to_owned(), reasoning.into());
    }
    let calls = answer.parts.into_iter().filter_map(|part| match part {
        AnswerPart::ToolCall { id, name, arguments, .. } => Some(Call { id, name, arguments }),
        AnswerPart::Reasoning(_) | AnswerPart::Content(_) => None,
    });
    let calls: Vec<Call> = calls.collect();
    if !calls.is_empty() {
        let values = calls.iter().map(|call| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        });
        message.fields.insert("tool_calls".to_owned(), values.collect());
    }
    (message, calls)
}

fn tell_of_dropped(n_turns: usize) {
    match n_turns {
        0 => {}
        1 => ui::note(
            "the context is full: the oldest turn was dropped; /reset clears the conversation",
        ),
        n => ui::note(&format!(
            "the context is full: the {n} oldest turns were dropped; /reset clears the conversation"
        )),
    }
}

/// Streams the answer to a conversation of these tokens and returns it, and whether it was stopped.
fn answer(engine: &mut Engine, ids: &[u32], args: &Args, tools: &Tools) -> Result<(Answer, bool)> {
    let guard = interrupt::Guard::new();
    let mut out = std::io::stdout().lock();
    let mut failed = None;
    let mut params = engine.params(&args.generate, None);
    // Reasoning is told apart only where that is seen, or calls are.
    let parser = match terminal::is_drawn(args.markdown) || !tools.functions().is_empty() {
        true => engine.answer_parser(ids, tools.functions())?,
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
        ui::note(&match args.generate.max_tokens.is_some_and(|n| generation.ids.len() >= n) {
            true => format!("the answer was cut off after {} tokens (-n)", generation.ids.len()),
            false => "the answer was cut off: the context is full (-c)".to_owned(),
        });
    }
    tracing::info!("{}", super::run::timing_line(&generation, params.sampling_or(engine.model.sampling())));
    Ok((printer.into_answer(), guard.asked()))
}

struct Chat {
    messages: Vec<Message>, // turns: the user's message, answers, results of tools
    system: Option<String>,
}

impl Chat {
    fn all(&self) -> Vec<Message> {
        let system = self.system.iter().map(|s| Message::new("system", s.as_str()));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// The tokens of the conversation, and how many of its oldest turns were dropped because they no
    /// longer fit the context.
    ///
    /// A conversation that does not fit is left a quarter of the context for the answer, or
    /// `max_tokens` where that is less, so that the next turns fit as well.
    fn fit(
        &mut self,
        engine: &Engine,
        max_tokens: Option<usize>,
        tools: &[Value],
    ) -> Result<(Vec<u32>, usize)> {
        let context = engine.model.max_seq_len();
        let (mut room, mut n_dropped) = (1, 0);
        loop {
            let ids = engine.chat_prompt(&self.all(), tools)?;
            let turn_len = 1 + self.messages[1..].iter().take_while(|m| m.role != "user").count();
            if turn_len == self.messages.len() || ids.len() + room <= context {
                return Ok((ids, n_dropped));
            }
            self.messages.drain(..turn_len);
            n_dropped += 1;
            room = (context / 4).min(max_tokens.unwrap_or(usize::MAX)).max(1);
        }
    }

    /// Forgets the last message of the user and what came after it.
    fn take_back_turn(&mut self) {
        let start = self.messages.iter().rposition(|message| message.role == "user");
        self.messages.truncate(start.unwrap_or(0));
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
    Tools,
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
        ("/tools", _) => Typed::Tools,
        ("/reset", _) => Typed::Reset,
        ("/system", "") => Typed::System(None),
        ("/system", text) => Typed::System(Some(text)),
        ("/save", "") => Typed::SaveNothing,
        ("/save", file) => Typed::Save(file),
        _ => Typed::Unknown(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_server::tools::CallKind;

    #[test]
    fn lines_and_commands() {
        for (line, want) in [
            ("", Typed::Nothing),
            ("  hello ", Typed::Message("hello")),
            ("/help", Typed::Help),
            ("/tools", Typed::Tools),
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
        chat.messages.push(Message::user("a"));
        let roles = |chat: &Chat| chat.all().into_iter().map(|m| m.role).collect::<Vec<_>>();
        assert_eq!(roles(&chat), ["system", "user"]);
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("c.json");
        chat.save(&path).expect("save");
        let value: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        assert_eq!(value[1], serde_json::json!({ "role": "user", "content": "a" }));
    }
    #[test]
    fn calls_are_a_part_of_the_message_and_a_failed_turn_is_taken_back() {
        let call = |id: &str| AnswerPart::ToolCall {
            id: id.to_owned(),
            name: "add".to_owned(),
            arguments: r#"{"a": 1}"#.to_owned(),
            kind: CallKind::Function,
        };
        let parts = vec![
            AnswerPart::Reasoning("r".to_owned()),
            call("x"),
            AnswerPart::Content("c".to_owned()),
        ];
        let (message, calls) = message_of(Answer { parts });
        let want = json!({
            "role": "assistant",
            "content": "c",
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}},
            ],
        });
        assert_eq!(serde_json::to_value(&message).expect("JSON"), want);
        assert_eq!(calls.len(), 1);
        let messages =
            vec![Message::user("a"), Message::assistant("b"), Message::user("c"), message];
        let mut chat = Chat { messages, system: None };
        chat.take_back_turn();
        assert_eq!(chat.messages, [Message::user("a"), Message::assistant("b")]);
    }
}
