//! Texts that come with models and requests: chat templates, JSON schemas, grammars.

use crate::files;
use realizar_formats::Gguf;
use realizar_runtime::constrain::{Constrainer, Grammar};
use realizar_runtime::template::{ChatTemplate, Message, RenderOptions};
use realizar_runtime::tokenizer::Tokenizer;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Tokens that are taken under a grammar.
const N_TOKENS: usize = 8;

/// A chat template, rendered with and without tools.
pub(crate) fn template(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>") else { return };
    let messages = ["system", "user", "assistant", "user"]
        .map(|role| Message::new(role, "some {{ text }} of it"));
    let tools = [serde_json::json!({
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
    })];
    for tools in [None, Some(&tools[..])] {
        let now = Some(SystemTime::UNIX_EPOCH);
        let options =
            RenderOptions { add_generation_prompt: true, tools, now, ..Default::default() };
        // That it refuses the conversation is its right.
        let _ = template.render(&messages, &options);
        let _ = template.render_prompt(&messages, &options, tokenizer());
    }
}

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let gguf = Gguf::open(files::tiny_gguf()).expect("a sound model");
        Tokenizer::from_gguf(gguf.metadata()).expect("a sound tokenizer")
    })
}

fn constrainer() -> &'static Constrainer {
    static CONSTRAINER: OnceLock<Constrainer> = OnceLock::new();
    CONSTRAINER.get_or_init(|| Constrainer::new(tokenizer()).expect("a small vocabulary"))
}

/// Compiles a grammar and takes tokens that it allows.
fn follow(grammar: &Grammar) {
    let Ok(mut constraint) = constrainer().compile(grammar) else { return };
    for _ in 0..N_TOKENS {
        let Ok(mask) = constraint.compute_mask() else { return };
        let allowed = (0..constraint.vocab_size() as u32).rfind(|&id| mask.allows(id));
        let Some(id) = allowed.filter(|_| !mask.is_end()) else { return };
        constraint.accept(id).expect("the mask allows it");
    }
}

/// A JSON schema.
pub(crate) fn schema(data: &[u8]) {
    if let Ok(schema) = serde_json::from_slice(data) {
        follow(&Grammar::JsonSchema(schema));
    }
}

/// A grammar: the first byte says of which kind.
pub(crate) fn grammar(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let text = text.to_owned();
    follow(&match kind % 4 {
        0 => Grammar::Regex(text),
        1 => Grammar::Lark(text),
        2 => Grammar::Gbnf(text),
        _ => Grammar::Choice(text.split('\n').map(str::to_owned).collect()),
    });
}
