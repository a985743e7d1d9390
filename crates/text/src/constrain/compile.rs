//! Compiling within a budget: fuel for what the library builds and searches, and a flag that
//! gives it up wherever fuel is spent.

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::{CancellationHandle, Matcher, ParserFactory};

use super::MAX_GRAMMAR_MEMORY;
use super::error::message;

/// Cancels a compilation. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct CompileHandle(CancellationHandle);

impl CompileHandle {
    /// The compilation ends within a millisecond or so of work, with an error that nothing waits for.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    fn check(&self) -> Result<(), String> {
        if self.0.is_cancelled() { Err("it was cancelled".to_owned()) } else { Ok(()) }
    }
}

/// Compiles a grammar whose text was checked.
pub(super) fn compile(
    factory: &ParserFactory,
    grammar: TopLevelGrammar,
    handle: &CompileHandle,
) -> Result<Matcher, String> {
    handle.check()?;
    let fail = |error| handle.check().err().unwrap_or_else(|| message(&error));
    let limits = factory.limits().clone();
    let environment = Some(factory.tok_env().clone());
    let init = GrammarInit::Serialized(grammar);
    let (grammar, lexer) =
        init.to_internal_cancellable(environment, limits, Some(&handle.0)).map_err(fail)?;
    let parser = factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexer));
    let parser = parser.map_err(fail)?;
    let n_bytes = parser.parser.lexer_stats().num_bytes;
    if n_bytes > MAX_GRAMMAR_MEMORY {
        return Err(format!(
            "it takes {} once compiled, at most {} is allowed",
            realizar_base::ByteSize::from(n_bytes),
            realizar_base::ByteSize::from(MAX_GRAMMAR_MEMORY)
        ));
    }
    let matcher = Matcher::new(Ok(parser));
    match matcher.get_error() {
        Some(problem) => Err(message(&problem)),
        None => Ok(matcher),
    }
}
