//! Answers that end in the middle of a call, in every format and at every place.

use realizar_runtime::constrain::Constrainer;
use realizar_server::conversation::{Answer, AnswerPart};
use realizar_server::tools::{ToolChoice, ToolRequest, forced_grammar};
use realizar_server::{ChatParser, ChatParserOptions, ToolFormat};
use serde_json::{Map, Value};

use crate::forced_calls::{FORMATS, Random, functions, tokenizer, walk};

fn parser(format: ToolFormat) -> ChatParser {
    ChatParser::new(ChatParserOptions {
        tools: Some(format),
        functions: functions(),
        ..ChatParserOptions::default()
    })
}

/// The arguments of the calls in an answer, and its content.
fn parts(answer: &Answer) -> (Vec<&str>, String) {
    let calls = answer.parts.iter().filter_map(|part| match part {
        AnswerPart::ToolCall { arguments, .. } => Some(arguments.as_str()),
        _ => None,
    });
    (calls.collect(), answer.content())
}

#[test]
fn arguments_of_a_call_that_ends_early_are_json() {
    let mut random = Random(9);
    for (format, template) in FORMATS {
        let tokenizer = tokenizer(&format.markers(), true);
        let request =
            ToolRequest { functions: functions(), choice: ToolChoice::Required, parallel: true };
        let grammar = forced_grammar(*format, &request, template, &tokenizer).unwrap();
        let start = Constrainer::new(&tokenizer).unwrap().compile(&grammar).unwrap();
        let texts: Vec<String> =
            (0..12).filter_map(|_| walk(&tokenizer, &start, &mut random)).collect();
        assert!(!texts.is_empty(), "{format:?}");
        let mut n_called = 0;
        for text in &texts {
            for (end, _) in text.char_indices().chain([(text.len(), ' ')]) {
                let cut = &text[..end];
                let mut deltas = Vec::new();
                let mut reader = parser(*format);
                reader.push(cut, &mut deltas);
                let told: Answer = deltas.iter().cloned().collect();
                reader.finish(&mut deltas);
                let whole: Answer = deltas.into_iter().collect();
                let (arguments, content) = parts(&whole);
                n_called += arguments.len();
                for arguments in &arguments {
                    let object = serde_json::from_str::<Map<String, Value>>(arguments);
                    assert!(object.is_ok(), "{format:?}: {arguments} of {cut}");
                }
                if arguments.is_empty() && *format != ToolFormat::Harmony {
                    assert!(cut.contains(content.trim()), "{format:?}: {content} of {cut}");
                }
                // At a limit nothing is closed.
                let mut deltas = Vec::new();
                let mut reader = parser(*format);
                reader.push(cut, &mut deltas);
                reader.finish_cut(&mut deltas);
                let open: Answer = deltas.into_iter().collect();
                for (told, open) in parts(&told).0.iter().zip(parts(&open).0) {
                    assert!(open.starts_with(told), "{format:?}: {open} of {cut}");
                }
            }
        }
        assert!(n_called > 10, "{format:?}: {n_called}");
    }
}

#[test]
fn the_arguments_that_are_there_are_kept() {
    let check = |format: ToolFormat, text: &str, closed: &str, open: &str| {
        for (is_cut, want) in [(false, closed), (true, open)] {
            let mut deltas = Vec::new();
            let mut reader = parser(format);
            reader.push(text, &mut deltas);
            if is_cut {
                reader.finish_cut(&mut deltas);
            } else {
                reader.finish(&mut deltas);
            }
            let answer: Answer = deltas.into_iter().collect();
            assert_eq!(parts(&answer).0, [want], "{format:?}: {text}");
            assert!(reader.has_tool_calls());
        }
    };
    let call = "<tool_call>\n<function=get_weather>\n";
    let city = "<parameter=city>\nParis\n</parameter>\n";
    let days = "<parameter=days>\n[1]\n";
    check(
        ToolFormat::Qwen3Coder,
        &format!("{call}{city}"),
        "{\"city\": \"Paris\"}",
        "{\"city\": \"Paris\"",
    );
    check(
        ToolFormat::Qwen3Coder,
        &format!("{call}{city}{days}"),
        "{\"city\": \"Paris\", \"days\": [1]}",
        "{\"city\": \"Paris\", \"days\": [1]",
    );
    check(
        ToolFormat::Qwen3Coder,
        &format!("{call}{city}<parameter=un"),
        "{\"city\": \"Paris\"}",
        "{\"city\": \"Paris\"",
    );
    check(
        ToolFormat::Glm45,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Par",
        "{\"city\": \"Par\"}",
        "{\"city\": \"Par",
    );
    check(
        ToolFormat::KimiK2,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
         <|tool_call_argument_begin|>{\"city\": \"Paris\", \"days\": [1, 2",
        "{\"city\": \"Paris\", \"days\": [1, 2]}",
        "{\"city\": \"Paris\", \"days\": [1, 2",
    );
    check(
        ToolFormat::Mistral,
        "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\", \"un",
        "{\"city\": \"Paris\"}",
        "{\"city\": \"Paris\", \"un",
    );
    check(
        ToolFormat::DeepSeekV31,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{<｜tool▁call▁end｜>",
        "{}",
        "{",
    );
}
