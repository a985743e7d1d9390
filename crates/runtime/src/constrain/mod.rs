//! Grammars that an answer must follow: JSON, JSON schemas, regular expressions, choices, and
//! context-free grammars.
//!
//! A [`Constrainer`] compiles a [`Grammar`] for a tokenizer. The [`Constraint`] that comes out
//! says for each token of an answer which ones may come next; with
//! [`Constraint::after_reasoning`] the grammar begins behind a model's reasoning.
//!
//! The parsing of text by tokens is the library llguidance's; what is around it here makes sure
//! that nothing is let through that the grammar does not say.

mod error;
mod gbnf;
mod lark;
mod reasoning;
mod regex;
mod schema;
mod state;
mod vocab;

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};

use crate::panics;
use crate::tokenizer::Tokenizer;
pub use error::Error;
use error::message;
pub use reasoning::Reasoning;
use state::Tokens;
pub use state::{Constraint, TokenMask};

/// The most bytes of a grammar's text; for a JSON schema, as compact JSON.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;
/// The most levels of values inside values in a JSON schema, and of groups in a GBNF grammar.
pub const MAX_NESTING: usize = 100;
/// The most different targets of the references in a JSON schema.
pub const MAX_REFS: usize = 1000;
/// The most properties of an object in a JSON schema that may be left out.
pub const MAX_OPTIONAL: usize = 500;
/// The most states of its text that a compiled grammar keeps.
pub const MAX_LEXER_STATES: usize = 50_000;
/// The most blanks at the beginning of a line of JSON.
pub const MAX_INDENT: usize = 64;

/// The most parser items at one place of an answer. Each property that may come next takes four.
const MAX_ROW_ITEMS: usize = 10_000;

/// The stack of the thread that compiles: the library's depth of calls follows the grammar.
const COMPILE_STACK: usize = 256 << 20;

/// What an answer must look like.
///
/// Between the parts of JSON there may be one blank, or one line break with at most
/// [`MAX_INDENT`] blanks or tabs after it, so that an answer cannot go on with white space alone.
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
    /// `uniqueItems`, `propertyNames` other than any, the `unevaluated` and `dependent` families,
    /// more than [`MAX_OPTIONAL`] properties of an object that may be left out, `oneOf` whose
    /// members may overlap, references outside the schema.
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

/// Compiles grammars for one tokenizer. Clones share its tables.
///
/// Grammars may come from anyone, so they are bounded: [`MAX_GRAMMAR_BYTES`] of text,
/// [`MAX_NESTING`] levels of a JSON schema and [`MAX_REFS`] different targets of its references,
/// half a million symbols and a million expressions after translation. A compiled grammar keeps
/// at most [`MAX_LEXER_STATES`] states of its text, which the library puts at 1 to 2 kB each, and
/// a mask creates at most 50,000 parser items and 200,000 expressions, which it puts at some
/// 15 ms. Past a limit is an error, never an answer that was not checked.
#[derive(Clone)]
pub struct Constrainer {
    factory: Arc<ParserFactory>,
    tokens: Arc<Tokens>,
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
            max_lexer_states: MAX_LEXER_STATES,
            max_items_in_row: MAX_ROW_ITEMS,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let tokens =
            Tokens { vocab_size: tokenizer.vocab_size(), eos_ids: tokenizer.eos_ids().to_vec() };
        Ok(Self { factory: Arc::new(factory), tokens: Arc::new(tokens) })
    }

    /// The state at the beginning of an answer. Keep it and clone it for each answer.
    ///
    /// # Errors
    /// If the grammar is malformed, is too large or asks for something that is not supported; the
    /// error says what and where.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, Error> {
        let (what, translated) = translate(grammar)?;
        let compile = || {
            let matcher = Matcher::new(self.factory.create_parser(translated));
            match matcher.get_error() {
                Some(problem) => Err(problem),
                None => Ok(matcher),
            }
        };
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("grammar".to_owned())
                .stack_size(COMPILE_STACK)
                .spawn_scoped(scope, compile)?;
            Ok::<_, Error>(thread.join().unwrap_or_else(|panic| {
                Err(format!("the compiler panicked: {}", panics::text(&*panic)))
            }))
        })?;
        let fail = |problem| Error::Grammar { what, at: String::new(), problem };
        let matcher = compiled.map_err(|problem| fail(message(&problem)))?;
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
fn translate(grammar: &Grammar) -> Result<(&'static str, TopLevelGrammar), Error> {
    Ok(match grammar {
        Grammar::JsonObject => {
            let any = serde_json::json!({"type": "object"});
            ("JSON object", TopLevelGrammar::from_json_schema(schema::prepare(&any)?))
        }
        Grammar::JsonSchema(value) => {
            (schema::WHAT, TopLevelGrammar::from_json_schema(schema::prepare(value)?))
        }
        Grammar::Regex(expression) => {
            check_size(regex::WHAT, expression)?;
            (regex::WHAT, TopLevelGrammar::from_regex(regex::prepare(expression)?))
        }
        Grammar::Lark(text) => {
            check_size(lark::WHAT, text)?;
            (lark::WHAT, TopLevelGrammar::from_lark(lark::prepare(text)?))
        }
        Grammar::Gbnf(text) => {
            check_size(gbnf::WHAT, text)?;
            (gbnf::WHAT, TopLevelGrammar::from_lark(gbnf::to_lark(text)?))
        }
        Grammar::Choice(texts) => {
            let what = "choice";
            if texts.is_empty() {
                let problem = "there is nothing to choose from".to_owned();
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
