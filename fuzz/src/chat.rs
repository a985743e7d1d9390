//! Answers of models, in which tool calls and reasoning are found as they come.

use realizar_server::{ChatDelta, ChatParser, ChatParserOptions, ReasoningFormat, ToolFormat};

/// An answer: the first byte says which formats it has, the second how it is cut into pieces. What
/// comes out does not depend on the pieces.
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
            _ => None,
        },
        tool_names: vec!["f".to_owned()],
        calls_alone: formats & 8 != 0,
        single_call: formats & 16 != 0,
        reasoning: match formats >> 5 & 3 {
            0 => Some(ReasoningFormat::Think),
            1 => Some(ReasoningFormat::Mistral),
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
