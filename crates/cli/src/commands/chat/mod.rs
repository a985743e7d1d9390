//! `realizar chat`: a conversation with line editing and history on a terminal, or line by line
//! from a pipe. A line that starts with `/` is a command to the program.

mod command;
mod complete;
mod conversation;
mod entry;
mod input;
mod settings;
mod show;
mod tools;
mod turn;

use std::path::PathBuf;

use anyhow::{Context, Result};
use realizar_runtime::GenerateParams;
use realizar_runtime::constrain::Grammar;
use realizar_runtime::template::{Content, Message};

use crate::engine::{self, Engine, Needs};
use crate::options::{GenerateArgs, GlobalArgs, LoadArgs, TemplateArgs};
use crate::source::cache::Cache;
use crate::source::{self, Sources, shown};
use crate::terminal::MarkdownArg;
use crate::ui;
use command::Typed;
use conversation::Conversation;
use input::Input;
use settings::{Changed, Setting};
use tools::Tools;

/// Ctrl-C stops an answer, Ctrl-D or /bye leaves, /help lists the other commands.
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
    let sources = global.sources();
    let history = sources.cache().ok().map(Cache::history_file);
    let input = Input::open(history.as_deref(), || sources.known_names())?;
    let tools = Tools::start(args.mcp.as_deref(), &input)?;
    let model = Choice { path: sources.resolve(&args.model)?, name: args.model.clone() };
    let system = args.template.system.clone();
    let mut chat = Chat {
        args,
        global,
        sources,
        model,
        input,
        tools,
        conversation: Conversation { messages: Vec::new(), system },
        changed: Changed::default(),
        grammar,
        markdown: args.markdown,
        thinks: None,
        is_verbose: false,
        n_retries: 0,
    };
    let mut engine = chat.load(&chat.model)?;
    loop {
        match chat.converse(&mut engine)? {
            Next::Leave => return Ok(()),
            Next::Model(model) => {
                // Two models may not fit.
                drop(engine);
                engine = match chat.load(&model) {
                    Ok(engine) => {
                        chat.model = model;
                        engine
                    }
                    Err(error) => {
                        chat.tell_of(error)?;
                        let name = chat.model.shown();
                        chat.load(&chat.model)
                            .with_context(|| format!("cannot return to {name}"))?
                    }
                };
            }
        }
    }
}

/// A model that was chosen.
struct Choice {
    /// As it was typed.
    name: String,
    path: PathBuf,
}

impl Choice {
    /// Its name as it may be shown.
    fn shown(&self) -> String {
        shown(&self.name)
    }
}

/// Why a conversation with a model is over.
enum Next {
    Leave,
    Model(Choice),
}

/// A conversation with all that outlives its model.
struct Chat<'a> {
    args: &'a Args,
    global: &'a GlobalArgs,
    sources: Sources,
    model: Choice,
    input: Input,
    tools: Tools,
    conversation: Conversation,
    changed: Changed,
    grammar: Option<Grammar>,
    markdown: MarkdownArg,
    thinks: Option<bool>, // as it was set, else the template decides
    is_verbose: bool,
    n_retries: u64, // of the last message
}

impl Chat<'_> {
    fn needs(&self) -> Needs {
        Needs { ctx: self.args.generate.ctx, prefix_cache: true, ..Needs::default() }
    }

    /// Loads a model for the conversation so far, and says so.
    fn load(&self, model: &Choice) -> Result<Engine> {
        let mut engine = Engine::load(&model.path, &self.args.load, self.global, self.needs())?;
        // The template of the command line is for the model beside it.
        if model.name == self.args.model {
            engine.set_template(&self.args.template)?;
        }
        engine
            .set_grammar(self.grammar.as_ref(), self.args.generate.additional_properties.into())?;
        // A model without a template is reported before the first question is typed.
        let mut messages = self.conversation.all();
        if messages.last().is_none_or(|message| message.role != "user") {
            messages.push(Message::user("hello"));
        }
        engine.chat_prompt(&messages, self.tools.values(), None)?;
        if self.input.is_terminal() {
            let (name, device) = (model.shown(), engine.model.backend());
            ui::dim(&format!("{name} on {device} | /help lists the commands"));
        }
        Ok(engine)
    }

    /// The parameters of the next answer.
    fn params(&self, engine: &Engine) -> Result<GenerateParams> {
        let mut params = engine.params(&self.args.generate, None);
        self.changed.apply(&mut params).map_err(anyhow::Error::msg)?;
        // An answer to the same message is another one, and the same in the next conversation.
        if let Some(sampling) = &mut params.sampling {
            sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(self.n_retries));
        }
        Ok(params)
    }

    /// Whether answers have a seed that was requested.
    fn has_seed(&self) -> bool {
        self.args.generate.sampling.seed.is_some() || self.changed.has("seed")
    }

    /// Shows an error, after which someone at the terminal can continue; from a pipe it is the end.
    fn tell_of(&self, error: anyhow::Error) -> Result<()> {
        if !self.input.is_terminal() || ui::is_broken_pipe(&error) {
            return Err(error);
        }
        ui::note(&format!("error: {}", ui::one_line(&error)));
        Ok(())
    }

    /// Answers messages and follows commands until the user leaves or chooses another model.
    fn converse(&mut self, engine: &mut Engine) -> Result<Next> {
        while let Some(text) = self.input.read()? {
            match command::parse(&text) {
                Typed::Nothing => {}
                Typed::Exit => break,
                Typed::Help => ui::note(&command::help()),
                Typed::Clear => {
                    self.conversation.messages.clear();
                    ui::dim("conversation cleared");
                }
                Typed::System(text) => {
                    self.conversation.messages.clear();
                    let done = if text.is_some() { "set" } else { "removed" };
                    ui::dim(&format!("system message {done}, conversation cleared"));
                    self.conversation.system = text.map(str::to_owned);
                }
                Typed::Undo => self.undo(),
                Typed::Retry => self.retry(engine)?,
                Typed::Set(text) => match settings::parse(text).map(|set| self.set(set, engine)) {
                    Ok(done) => self.note_of(done)?,
                    Err(error) => ui::note(&error),
                },
                Typed::Show(topic) => {
                    let text = show::text(self, engine, topic);
                    self.note_of(text)?;
                }
                Typed::Model(None) => {
                    let text = show::text(self, engine, "model");
                    self.note_of(text)?;
                }
                Typed::Model(Some(name)) => match self.choose(name) {
                    Ok(model) => return Ok(Next::Model(model)),
                    Err(error) => self.tell_of(error)?,
                },
                // A failed save must not end the conversation.
                Typed::Save(file) => match self.conversation.save(&conversation::path(file)) {
                    Ok(()) => ui::note(&format!("saved to {file}")),
                    Err(error) => ui::note(&format!("error: {}", ui::one_line(&error))),
                },
                Typed::Load(file) => match self.load_conversation(engine, file) {
                    Ok(n) => ui::note(&format!("loaded {n} messages from {file}")),
                    Err(error) => self.tell_of(error)?,
                },
                Typed::Tools => self.tools.list(),
                Typed::Incomplete(command) => {
                    ui::note(&format!("{} needs {}", command.name, command.argument));
                }
                Typed::Unknown(name, near) => {
                    let known = "/help lists the commands; a message that begins with / goes \
                                 between \"\"\" and \"\"\"";
                    ui::note(&command::unknown(&format!("command {name}"), near, known));
                }
                Typed::Message(text) => {
                    self.conversation.messages.push(Message::user(text));
                    self.n_retries = 0;
                    if let Err(error) = self.turn(engine) {
                        self.conversation.undo();
                        // Someone at the terminal can still /save or /clear.
                        self.tell_of(error)?;
                    }
                }
            }
        }
        Ok(Next::Leave)
    }

    /// Shows a text, or why there is none.
    fn note_of(&self, text: Result<String>) -> Result<()> {
        match text {
            Ok(text) => {
                if !text.is_empty() {
                    ui::note(&text);
                }
                Ok(())
            }
            Err(error) => self.tell_of(error),
        }
    }

    fn undo(&mut self) {
        match self.conversation.undo() {
            Some(Message { content: Some(Content::Text(text)), .. }) => {
                ui::dim(&format!("dropped: {}", text.lines().next().unwrap_or_default()));
            }
            Some(_) => ui::dim("dropped the last message"),
            None => ui::note("there is no message to drop"),
        }
    }

    fn retry(&mut self, engine: &mut Engine) -> Result<()> {
        let Some(answer) = self.conversation.take_answer() else {
            ui::note("there is no message to answer again");
            return Ok(());
        };
        self.n_retries += 1;
        if self.params(engine)?.sampling_or(engine.model.sampling()).temperature == 0.0 {
            ui::dim(
                "the temperature is 0, so the answer is the same unless something else was set",
            );
        }
        if let Err(error) = self.turn(engine) {
            self.conversation.take_answer();
            self.conversation.messages.extend(answer);
            self.tell_of(error)?;
        }
        Ok(())
    }

    /// Changes a setting; returns what is to be shown.
    fn set(&mut self, setting: Setting<'_>, engine: &mut Engine) -> Result<String> {
        Ok(match setting {
            Setting::Parameters => return show::text(self, engine, "parameters"),
            Setting::Parameter(parameter, text) => {
                let params = engine.params(&self.args.generate, None);
                match self.changed.set(parameter, text, &params) {
                    Ok(()) => match (parameter.name, self.has_seed()) {
                        ("seed", false) => "seed random".to_owned(),
                        _ => {
                            format!("{} {}", parameter.name, parameter.read(&self.params(engine)?))
                        }
                    },
                    Err(error) => error,
                }
            }
            Setting::System(text) => {
                self.conversation.system = text.map(str::to_owned);
                let done = if text.is_some() { "set" } else { "removed" };
                format!("system message {done}")
            }
            Setting::Think(thinks) => match engine.thinking_variable()? {
                Some(_) => {
                    self.thinks = Some(thinks);
                    format!("reasoning {}", if thinks { "on" } else { "off" })
                }
                None => "the model's chat template has no switch for reasoning".to_owned(),
            },
            Setting::Json(is_json) => {
                let grammar = is_json.then_some(Grammar::JsonObject);
                let objects = self.args.generate.additional_properties.into();
                engine.set_grammar(grammar.as_ref(), objects)?;
                self.grammar = grammar;
                format!("answers are {}", if is_json { "JSON objects" } else { "text" })
            }
            Setting::Verbose(is_verbose) => {
                self.is_verbose = is_verbose;
                format!("timings {}", if is_verbose { "on" } else { "off" })
            }
            Setting::History(keeps) => {
                self.input.keep_history(keeps);
                format!("history {}", if keeps { "on" } else { "off" })
            }
            Setting::Markdown(markdown) => {
                self.markdown = markdown;
                String::new()
            }
        })
    }

    /// The model of a name, which is fetched if need be, and of a kind that runs.
    fn choose(&self, name: &str) -> Result<Choice> {
        let path = self.sources.resolve(name)?;
        engine::memory_needed(&path, &self.args.load, self.global, self.needs())?;
        Ok(Choice { name: name.to_owned(), path })
    }

    /// Continues a saved conversation, if the model's template takes it; returns its messages.
    fn load_conversation(&mut self, engine: &Engine, file: &str) -> Result<usize> {
        let path = conversation::path(file);
        let hint = match source::is_name(file) && !path.exists() {
            true => format!("; /model {file} switches the model"),
            false => String::new(),
        };
        let loaded = Conversation::load(&path).map_err(|error| match hint.is_empty() {
            true => error,
            false => anyhow::anyhow!("{}{hint}", ui::one_line(&error)),
        })?;
        let mut all = loaded.all();
        if loaded.messages.last().is_none_or(|message| message.role != "user") {
            all.push(Message::user("hello"));
        }
        engine.chat_prompt(&all, self.tools.values(), self.thinks)?;
        self.conversation = loaded;
        self.n_retries = 0;
        Ok(self.conversation.all().len())
    }
}
