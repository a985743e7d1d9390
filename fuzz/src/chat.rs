//! Answers of models, in which tool calls and reasoning are found as they come.

use realizar_server::tools::Function;
use realizar_server::{ChatDelta, ChatParser, ChatParserOptions, ReasoningFormat, ToolFormat};
use serde_json::json;

/// The formats of calls that the second byte chooses from where the first says so.
const MORE: [ToolFormat; 14] = [
    ToolFormat::Qwen3Coder,
    ToolFormat::Glm45,
    ToolFormat::Harmony,
    ToolFormat::Gemma4,
    ToolFormat::Pythonic,
    ToolFormat::Lfm2,
    ToolFormat::DeepSeekV3,
    ToolFormat::DeepSeekV31,
    ToolFormat::DeepSeekV32,
    ToolFormat::KimiK2,
    ToolFormat::MinimaxM2,
    ToolFormat::SeedOss,
    ToolFormat::CommandR7b,
    ToolFormat::Granite3,
];

/// An answer: the first byte and the upper bits of the second say which formats it has, its lower bits
/// how it is cut into pieces. What comes out does not depend on the pieces.
pub(crate) fn answer(data: &[u8]) {
    let [formats, piece, text @ ..] = data else { return };
    let text = String::from_utf8_lossy(text);
    let options = || ChatParserOptions {
        tools: match formats & 7 {
            0 => Some(ToolFormat::Hermes),
            1 => Some(ToolFormat::Llama3Json),
            2 => Some(ToolFormat::Mistral),
            3 => Some(ToolFormat::Nemotron),
            4 => Some(ToolFormat::Apriel),
            5 => Some(ToolFormat::Json),
            6 => Some(MORE[usize::from(*piece >> 3) % MORE.len()]),
            _ => None,
        },
        functions: vec![Function::new("f", json!({"properties": {"a": {"type": "string"}}}))],
        calls_alone: formats & 8 != 0,
        single_call: formats & 16 != 0,
        reasoning: match formats >> 5 & 3 {
            0 => Some(ReasoningFormat::Think),
            1 => Some(ReasoningFormat::Mistral),
            2 if formats & 7 == 6 => Some(ReasoningFormat::Harmony),
            _ => None,
        },
        reasoning_open: formats & 128 != 0,
        id_seed: Some(1),
    };
    let whole = {
        let mut deltas = Vec::new();
        let mut parser = ChatParser::new(options());
        parser.push(&text, &mut deltas);
        parser.finish(&mut deltas);
        joined(deltas)
    };
    let mut deltas = Vec::new();
    let mut parser = ChatParser::new(options());
    let chars: Vec<char> = text.chars().collect();
    for piece in chars.chunks(usize::from(*piece % 8) + 1) {
        parser.push(&piece.iter().collect::<String>(), &mut deltas);
    }
    parser.finish(&mut deltas);
    assert_eq!(joined(deltas), whole, "in pieces, and whole");
}

/// The deltas with neighbours of one kind as one.
fn joined(deltas: Vec<ChatDelta>) -> Vec<ChatDelta> {
    let mut all: Vec<ChatDelta> = Vec::new();
    for delta in deltas {
        match (all.last_mut(), &delta) {
            (Some(ChatDelta::Content(before)), ChatDelta::Content(text))
            | (Some(ChatDelta::Reasoning(before)), ChatDelta::Reasoning(text)) => {
                before.push_str(text);
            }
            (
                Some(ChatDelta::ToolCallArguments { index: before_index, text: before }),
                ChatDelta::ToolCallArguments { index, text },
            ) if before_index == index => before.push_str(text),
            _ => all.push(delta),
        }
    }
    all
}
