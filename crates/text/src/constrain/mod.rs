//! Grammars that an answer must follow: JSON, JSON schemas, regular expressions, choices, and
//! context-free grammars.
//!
//! A [`Constrainer`] compiles a [`Grammar`] for a tokenizer. The [`Constraint`] that comes out
//! says for each token of an answer which ones may come next; with
//! [`Constraint::after_reasoning`] the grammar begins after a model's reasoning.
//!
//! The parsing of text by tokens is the library llguidance's; what is around it here makes sure
//! that nothing is let through that the grammar does not say.
//!
//! ```
//! use realizar_formats::Gguf;
//! use realizar_text::constrain::{Constrainer, Grammar};
//! use realizar_text::tokenizer::Tokenizer;
//!
//! // A vocabulary of the letters from `a`, which is token 4.
//! let gguf = Gguf::open("examples/alphabet.gguf")?;
//! let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
//! let grammar = Grammar::Choice(vec!["cat".to_owned(), "dog".to_owned()]);
//! let mut constraint = Constrainer::new(&tokenizer)?.compile(&grammar)?;
//! let allowed = constraint.compute_mask()?;
//! assert!(allowed.allows(6) && allowed.allows(7) && !allowed.allows(4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod compile;
mod embed;
mod error;
mod estimate;
mod formats;
mod gbnf;
mod lark;
mod reasoning;
mod references;
mod regex;
mod rewrite;
mod schema;
mod spelling;
mod state;
mod vocab;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};

use crate::tokenizer::Tokenizer;
pub use compile::CompileHandle;
pub use embed::{Definitions, Spelling};
pub use error::Error;
use error::message;
use realizar_base::{lower_priority, panics};
pub use reasoning::Reasoning;
pub use schema::UNENFORCED_FORMATS;
use state::Tokens;
pub use state::{Constraint, TokenMask};

/// The maximum number of bytes of a grammar's text; for a JSON schema, as compact JSON.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;
/// The maximum number of levels of values inside values in a JSON schema, and of groups in a GBNF grammar.
pub const MAX_NESTING: usize = 100;
/// The maximum number of different targets of the references in a JSON schema.
pub const MAX_REFS: usize = 1000;
/// The maximum number of properties of an object in a JSON schema that may be left out.
pub const MAX_OPTIONAL: usize = 500;
/// The maximum number of properties of an object in a JSON schema that are required.
pub const MAX_REQUIRED: usize = 5000;
/// The largest `multipleOf` in a JSON schema without its decimal point, and the largest least
/// common multiple of those that apply to one number: the lexer has a state for each remainder.
pub const MAX_DIVISOR: u64 = 10_000;
/// The maximum number of states of its text that a compiled grammar keeps.
pub const MAX_LEXER_STATES: usize = 50_000;
/// The maximum number of bytes of a grammar's lexer once it is compiled.
pub const MAX_GRAMMAR_MEMORY: usize = 64 << 20;
/// The maximum fuel of the lexer for compiling a grammar; about a tenth of a microsecond each.
pub const MAX_COMPILE_FUEL: u64 = 1_000_000;
/// The maximum fuel of the lexer for one mask.
pub const MAX_MASK_FUEL: u64 = 200_000;
/// The maximum number of parser items of one mask.
pub const MAX_MASK_ITEMS: usize = 50_000;
/// The maximum fuel of the lexer for all masks of one answer.
pub const MAX_ANSWER_FUEL: u64 = 10_000_000;
/// The longest time that [`Constrainer::compile`] waits.
pub const MAX_COMPILE_TIME: Duration = Duration::from_secs(20);
/// The maximum number of blanks at the beginning of a line of JSON.
pub const MAX_INDENT: usize = 64;

/// The maximum number of parser items at one place of an answer. Each property that may come next takes four.
const MAX_ROW_ITEMS: usize = 10_000;

/// The stack of the thread that compiles: the library's depth of calls follows the grammar.
const COMPILE_STACK: usize = 256 << 20;

/// What an answer must look like.
///
/// Between the parts of JSON there may be one blank, or one line break with at most
/// [`MAX_INDENT`] blanks or tabs after it, so that an answer cannot continue with white space alone.
/// Members of an object come in the order of the schema's `properties`. In strings only control
/// characters and quotes are escaped, with `\n` and the like: otherwise a name could be spelled
/// twice.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid by this schema.
    ///
    /// A keyword that is not supported is an error that names it: `not`, `if`, `contains`,
    /// `propertyNames` other than any or a list, the `unevaluated` and `dependent` families,
    /// more than [`MAX_OPTIONAL`] properties of an object that may be left out, `oneOf` whose
    /// members may overlap, references outside the schema. `uniqueItems` is not enforced.
    /// [`AdditionalProperties`] says which objects may have properties that are not listed.
    JsonSchema(serde_json::Value),
    /// A text that matches this expression as a whole, in the syntax of the `regex` crate.
    /// Look-around and word boundaries are not supported.
    Regex(String),
    /// A text of the rule `start`, in llguidance's variant of Lark.
    ///
    /// `temperature=` and `stop=` are not supported. JSON schemas by `%json` are checked as
    /// [`Grammar::JsonSchema`] is.
    Lark(String),
    /// A text of the rule `root`, in the format of llama.cpp's grammars.
    ///
    /// A rule that refers to itself, directly or not, is cut into terminals, and a terminal takes
    /// the longest text that it can. So of the texts of such a grammar some may never come, but
    /// none comes that is not a text of it. Tokens in angle brackets are not supported.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Whether an object may have properties that its schema does not list, where the schema says
/// nothing of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AdditionalProperties {
    /// Not if it has `properties`, as models otherwise go on inventing names. `allOf`, references
    /// and the schemas beside them are merged before. An object stays open where a
    /// `patternProperties` applies to it, or a `required` name that is no property, or a
    /// `minProperties` that is more than its properties.
    #[default]
    Closed,
    /// It may, as JSON Schema has it.
    Allowed,
}

/// Compiles grammars for one tokenizer. Clones share its tables.
///
/// Grammars may come from anyone, so they are bounded: [`MAX_GRAMMAR_BYTES`] of text,
/// [`MAX_NESTING`] levels of a JSON schema and [`MAX_REFS`] different targets of its references,
/// half a million symbols after translation, [`MAX_COMPILE_FUEL`] for compiling, and
/// [`MAX_GRAMMAR_MEMORY`] of what comes out. A compiled grammar keeps at most
/// [`MAX_LEXER_STATES`] states of its text, a mask takes at most [`MAX_MASK_ITEMS`] and
/// [`MAX_MASK_FUEL`], which the library puts at some 15 ms, and all masks of an answer
/// [`MAX_ANSWER_FUEL`]. Past a limit is an error, never an answer that was not checked.
#[derive(Clone)]
pub struct Constrainer {
    factory: Arc<ParserFactory>,
    tokens: Arc<Tokens>,
    objects: AdditionalProperties,
}

impl Constrainer {
    /// Arranges the vocabulary, which takes a tenth of a second or so.
    ///
    /// # Errors
    /// If the vocabulary is too large.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, Error> {
        let environment = vocab::environment(tokenizer)?;
        let mut factory = ParserFactory::new_simple(&environment)
            .map_err(|error| Error::Vocabulary(message(&error)))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: MAX_COMPILE_FUEL,
            step_lexer_fuel: MAX_MASK_FUEL,
            step_max_items: MAX_MASK_ITEMS,
            max_lexer_states: MAX_LEXER_STATES,
            max_items_in_row: MAX_ROW_ITEMS,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let tokens =
            Tokens { vocab_size: tokenizer.vocab_size(), eos_ids: tokenizer.eos_ids().to_vec() };
        let objects = AdditionalProperties::default();
        Ok(Self { factory: Arc::new(factory), tokens: Arc::new(tokens), objects })
    }

    /// The same, with another meaning of schemas that say nothing of properties beyond theirs.
    #[must_use]
    pub fn additional_properties(self, objects: AdditionalProperties) -> Self {
        Self { objects, ..self }
    }

    /// The state at the beginning of an answer. Keep it and clone it for each answer.
    ///
    /// # Errors
    /// If the grammar is malformed, is too large or asks for something that is not supported; the
    /// error says what and where. Past [`MAX_COMPILE_TIME`], which no known grammar takes.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, Error> {
        let (sender, receiver) = sync_channel(1);
        let handle = CompileHandle::default();
        self.start(grammar.clone(), &handle, move |compiled| {
            // The receiver may have been dropped.
            let _ = sender.send(compiled);
        })?;
        match receiver.recv_timeout(MAX_COMPILE_TIME) {
            Ok(compiled) => compiled,
            Err(RecvTimeoutError::Timeout) => {
                handle.cancel();
                Err(Error::Time { limit: MAX_COMPILE_TIME })
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Thread(std::io::Error::other("its thread ended")))
            }
        }
    }

    /// Compiles on a thread of its own, which ends the process no later, and calls `done` there
    /// when it is over. `handle` cancels it, as far as that is possible.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        &self,
        grammar: Grammar,
        handle: &CompileHandle,
        done: impl FnOnce(Result<Constraint, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let (this, handle) = (self.clone(), handle.clone());
        let work = move || {
            lower_priority();
            let compiled = panics::caught(|| this.compile_here(&grammar, &handle));
            done(compiled.unwrap_or_else(|panic| {
                tracing::error!("compiling a grammar panicked: {panic}");
                Err(Error::Thread(std::io::Error::other("the compiler panicked")))
            }));
        };
        std::thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(COMPILE_STACK)
            .spawn(work)?;
        Ok(())
    }

    fn compile_here(&self, grammar: &Grammar, handle: &CompileHandle) -> Result<Constraint, Error> {
        let (what, translated) = translate(grammar, self.objects)?;
        let fail = |problem| Error::Grammar { what, at: String::new(), problem };
        let matcher = compile::compile(&self.factory, translated, handle).map_err(fail)?;
        let mut constraint = Constraint::new(matcher, Arc::clone(&self.tokens));
        // A grammar that no text satisfies is found here, and what the first mask of each answer
        // needs is learned.
        match constraint.compute_mask() {
            Ok(_) => Ok(constraint),
            Err(Error::NoToken) => Err(fail("no text satisfies it".to_owned())),
            Err(error) => Err(fail(error.to_string())),
        }
    }
}

impl std::fmt::Debug for Constrainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constrainer").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

/// What people call the kind of grammar, and the grammar as the library takes it.
fn translate(
    grammar: &Grammar,
    objects: AdditionalProperties,
) -> Result<(&'static str, TopLevelGrammar), Error> {
    Ok(match grammar {
        Grammar::JsonObject => {
            let any = serde_json::json!({"type": "object"});
            ("JSON object", TopLevelGrammar::from_json_schema(schema::prepare(&any, objects)?))
        }
        Grammar::JsonSchema(value) => {
            (schema::WHAT, TopLevelGrammar::from_json_schema(schema::prepare(value, objects)?))
        }
        Grammar::Regex(expression) => {
            check_size(regex::WHAT, expression)?;
            (regex::WHAT, TopLevelGrammar::from_regex(regex::prepare(expression)?))
        }
        Grammar::Lark(text) => {
            check_size(lark::WHAT, text)?;
            (lark::WHAT, TopLevelGrammar::from_lark(lark::prepare(text, objects)?))
        }
        Grammar::Gbnf(text) => {
            check_size(gbnf::WHAT, text)?;
            (gbnf::WHAT, TopLevelGrammar::from_lark(gbnf::to_lark(text)?))
        }
        Grammar::Choice(texts) => {
            let what = "choice";
            if texts.is_empty() {
                let problem = "the list of choices is empty".to_owned();
                return Err(Error::Grammar { what, at: String::new(), problem });
            }
            let literals: Vec<String> = texts.iter().map(|text| lark::literal(text)).collect();
            let text = format!("start: CHOICE\nCHOICE: {}\n", literals.join(" | "));
            check_size(what, &text)?;
            (what, TopLevelGrammar::from_lark(text))
        }
    })
}

fn check_size(what: &'static str, text: &str) -> Result<(), Error> {
    let (found, limit) = (text.len(), MAX_GRAMMAR_BYTES);
    if found <= limit { Ok(()) } else { Err(Error::TooLarge { what, found, unit: "bytes", limit }) }
}
