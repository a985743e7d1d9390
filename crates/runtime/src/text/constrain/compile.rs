//! Compiling within a budget: fuel for the lexer, a thread that nothing has to wait for, and a flag
//! that gives it up between its parts.
//!
//! The library bounds its work by fuel, with one gap: the first transition of the lexer on each
//! byte has none. It decides whether an expression can still match, and for a product of
//! expressions or for the remainders of a number that is a search through all states. So these
//! transitions are first made here, on a copy, with fuel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::{LexemeIdx, LexerSpec};
use llguidance::{Matcher, ParserFactory};

use super::error::message;
use super::{MAX_GRAMMAR_MEMORY, MAX_LEXER_STATES};

/// Cancels a compilation. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct CompileHandle(Arc<AtomicBool>);

impl CompileHandle {
    /// The compilation ends at the next place where it looks, with an error that nothing waits for.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), String> {
        if self.0.load(Ordering::Relaxed) { Err("it was cancelled".to_owned()) } else { Ok(()) }
    }
}

/// Compiles a grammar whose text was checked.
pub(super) fn compile(
    factory: &ParserFactory,
    grammar: TopLevelGrammar,
    handle: &CompileHandle,
) -> Result<Matcher, String> {
    handle.check()?;
    let limits = factory.limits();
    let environment = Some(factory.tok_env().clone());
    let init = GrammarInit::Serialized(grammar);
    let (grammar, lexer) =
        init.to_internal(environment, limits.clone()).map_err(|error| message(&error))?;
    handle.check()?;
    // The parser adds lexemes of its own after those of the grammar.
    let mut all = lexer.clone();
    all.add_extra_lexemes(&factory.extra_lexemes());
    first_transitions(&all, limits, handle)?;
    let parser = factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexer));
    let parser = parser.map_err(|error| message(&error))?;
    handle.check()?;
    let n_bytes = parser.parser.lexer_stats().num_bytes;
    if n_bytes > MAX_GRAMMAR_MEMORY {
        return Err(format!(
            "it takes {} once compiled, at most {} is allowed",
            crate::base::ByteSize::from(n_bytes),
            crate::base::ByteSize::from(MAX_GRAMMAR_MEMORY)
        ));
    }
    let matcher = Matcher::new(Ok(parser));
    match matcher.get_error() {
        Some(problem) => Err(message(&problem)),
        None => Ok(matcher),
    }
}

/// Makes the transitions from the beginning of all lexemes, or finds the lexeme with which they cost
/// too much.
fn first_transitions(
    lexer: &LexerSpec,
    limits: &ParserLimits,
    handle: &CompileHandle,
) -> Result<(), String> {
    let n_lexemes = lexer.lexemes.len();
    if within_fuel(lexer, n_lexemes, limits, handle)? {
        return Ok(());
    }
    let (mut within, mut over) = (0, n_lexemes);
    while over - within > 1 {
        let middle = within.midpoint(over);
        if within_fuel(lexer, middle, limits, handle)? { within = middle } else { over = middle }
    }
    let expression = lexer.lexeme_def_to_string(LexemeIdx::new(within));
    Err(format!("it is too complex to compile because of {expression}"))
}

/// Whether the first `n` lexemes can be begun with the fuel of a compilation.
fn within_fuel(
    lexer: &LexerSpec,
    n: usize,
    limits: &ParserLimits,
    handle: &CompileHandle,
) -> Result<bool, String> {
    let mut lexer = lexer.clone();
    lexer.lexemes.truncate(n);
    // Its only error is that the fuel is used up.
    let Ok(mut states) = lexer.to_regex_vec(&mut limits.clone()) else { return Ok(false) };
    states.set_fuel(limits.initial_lexer_fuel);
    states.set_max_states(MAX_LEXER_STATES);
    let start = states.initial_state(&lexer.all_lexemes());
    for byte in 0..=u8::MAX {
        handle.check()?;
        if states.has_error() {
            return Ok(false);
        }
        states.transition(start, byte);
    }
    Ok(!states.has_error())
}
