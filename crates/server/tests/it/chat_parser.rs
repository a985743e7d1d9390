//! Answers of models as they come in pieces: whatever the cuts, the same reasoning, content and
//! tool calls must come out, and no part of a marker.

use realizar_server::conversation::{Answer, AnswerPart};
use realizar_server::{ChatDelta, ChatParser, ChatParserOptions, ReasoningFormat, ToolFormat};

use ToolFormat::{Apriel, Hermes, Json, Llama3Json, Mistral, Nemotron};

fn options(tools: ToolFormat) -> ChatParserOptions {
    ChatParserOptions {
        tools: Some(tools),
        tool_names: vec!["f".to_owned(), "get_weather".to_owned()],
        id_seed: Some(1),
        ..ChatParserOptions::default()
    }
}

/// What comes out of `pieces`, one line per part: `R` reasoning, `C` content, `T` a call.
fn parse<'a>(options: &ChatParserOptions, pieces: impl IntoIterator<Item = &'a str>) -> String {
    let mut parser = ChatParser::new(options.clone());
    let mut deltas = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut deltas);
    }
    parser.finish(&mut deltas);
    let mut n_calls = 0;
    for delta in &deltas {
        match delta {
            ChatDelta::ToolCallStart { index, .. } => {
                assert_eq!(*index, n_calls, "calls are counted from 0");
                n_calls += 1;
            }
            ChatDelta::ToolCallArguments { index, text } => {
                assert_eq!(*index + 1, n_calls, "arguments belong to the latest call");
                assert!(!text.is_empty());
            }
            ChatDelta::Content(text) | ChatDelta::Reasoning(text) => assert!(!text.is_empty()),
        }
    }
    assert_eq!(parser.has_tool_calls(), n_calls > 0);
    let answer: Answer = deltas.into_iter().collect();
    let show = |part: &AnswerPart| match part {
        AnswerPart::Reasoning(text) => format!("R {text}"),
        AnswerPart::Content(text) => format!("C {text}"),
        AnswerPart::ToolCall { name, arguments, .. } => format!("T {name} {arguments}"),
    };
    answer.parts.iter().map(show).collect::<Vec<_>>().join("|")
}

/// A small generator of numbers, xorshift by Marsaglia.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// Cuts `text` at random characters.
fn random_pieces<'a>(text: &'a str, numbers: &mut Numbers) -> Vec<&'a str> {
    let mean = 1 + numbers.below(12);
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, _) in text.char_indices() {
        if numbers.below(mean) == 0 {
            pieces.push(&text[start..at]);
            start = at;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// Parses `text` whole, in characters, cut at every place, and cut at random.
fn check(options: &ChatParserOptions, text: &str, want: &str) {
    assert_eq!(parse(options, [text]), want, "{text:?} whole");
    let characters: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(parse(options, characters.iter().map(String::as_str)), want, "{text:?} by 1");
    for (cut, _) in text.char_indices() {
        let (a, b) = text.split_at(cut);
        assert_eq!(parse(options, [a, b]), want, "{a:?} + {b:?}");
    }
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    for _ in 0..50 {
        let pieces = random_pieces(text, &mut numbers);
        assert_eq!(parse(options, pieces.iter().copied()), want, "{pieces:?}");
    }
}

#[test]
fn hermes() {
    let check = |text: &str, want: &str| check(&options(Hermes), text, want);
    check("Just text.\n", "C Just text.\n");
    check("a <b> <tool <tool_call <", "C a <b> <tool <tool_call <");
    check(
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>\"}}\n</tool_call>",
        "T f {\"a\": \"}</tool_call>\"}",
    );
    check(
        "Let me see.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, {}]}}\n</tool_call>\n\
         <tool_call>{\"arguments\": {\"city\": \"Zürich\"}, \"name\": \"get_weather\"}</tool_call>\n",
        "C Let me see.|T f {\"x\": [1, {}]}|T get_weather {\"city\": \"Zürich\"}",
    );
    // Any function may be called between markers, and one without arguments has none.
    check("<tool_call>{\"name\": \"unknown\"}</tool_call>", "T unknown {}");
    // Markers that models forget, and braces that they miscount.
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}}", "T f {}");
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_c", "T f {}");
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}\n</tool_call>", "T f {}");
    check("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call>", "T f {\"a\": 1");
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}}}</tool_call>", "T f {}|C }</tool_call>");
    check(
        "<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]</tool_call>",
        "T f {}|T g {}",
    );
    check(
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\"}</tool_call>",
        "T f {}|T g {}",
    );
    // The answer was cut off.
    check("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", "T f {\"a\": \"b");
    check("<tool_call>{\"name\": \"f\", \"argu", "C <tool_call>{\"name\": \"f\", \"argu");
    // What is no call is content, to the letter.
    check("a\n<tool_call>\nhello\n</tool_call>\n", "C a\n<tool_call>\nhello\n</tool_call>\n");
    check("<tool_call>{\"nam\": 1}</tool_call> b", "C <tool_call>{\"nam\": 1}</tool_call> b");
    check("<tool_call>{\"name\": 5}", "C <tool_call>{\"name\": 5}");
    check("<tool_call>[]</tool_call>", "C <tool_call>[]</tool_call>");
    check("<tool_call>", "C <tool_call>");
    check(
        "<tool_call>oops <tool_call>{\"name\": \"f\"}</tool_call> then\n text",
        "C <tool_call>oops|T f {}|C  then\n text",
    );
    check("{\"name\": \"f\", \"arguments\": {}}", "C {\"name\": \"f\", \"arguments\": {}}");
    check(" \n", "C  \n");
    check("", "");
}

#[test]
fn llama3() {
    let check = |text: &str, want: &str| check(&options(Llama3Json), text, want);
    check("{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "T f {\"a\": 1}");
    check("\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}\n", "T f {}");
    check("<|python_tag|>{\"name\": \"g\", \"parameters\": {\"a\": 1}}", "T g {\"a\": 1}");
    check(
        "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"get_weather\", \"parameters\": {}}",
        "T f {}|T get_weather {}",
    );
    check(
        "<|python_tag|>{\"name\": \"f\", \"parameters\": {}};{\"name\": \"g\"} ; and more",
        "T f {}|T g {}|C  ; and more",
    );
    check("<|python_tag|>{\"name\": \"f\"}<|python_tag|>{\"name\": \"g\"}", "T f {}|T g {}");
    check("Sure: <|python_tag|>{\"name\": \"f\"}", "C Sure:|T f {}");
    // An object that names no function of the request is an answer in JSON.
    for text in [
        "{\"name\": \"Ada\", \"parameters\": {}}",
        "{\"name\": \"f\"}",
        "{\"a\": 1}\n",
        "{not json",
        "{",
        "Here: {\"name\": \"f\", \"parameters\": {}}",
        "<|python_tag|>print(1)",
        "[1, 2]",
    ] {
        check(text, &format!("C {text}"));
    }
}

#[test]
fn mistral() {
    let check = |text: &str, want: &str| check(&options(Mistral), text, want);
    check("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}]", "T f {\"a\": \"]\"}");
    check(
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefghi\"}, \
         {\"arguments\": {\"b\": 2}, \"name\": \"g\"}]",
        "T f {}|T g {\"b\": 2}",
    );
    check("[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}", "T f {}");
    check("Hm. [TOOL_CALLS]f[ARGS]{\"a\": {\"b\": 1}}", "C Hm.|T f {\"a\": {\"b\": 1}}");
    check(
        "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]get-weather.x[ARGS]{}\n",
        "T f {\"a\": 1}|T get-weather.x {}",
    );
    check("[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{\"a\": 1}", "T f {\"a\": 1}");
    check("[TOOL_CALLS]f{\"a\": 1}", "T f {\"a\": 1}");
    check("[TOOL_CALLS]f[ARGS]{\"a\": 1", "T f {\"a\": 1");
    for text in [
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[ARG",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]none",
        "[TOOL_CALLS]f [ARGS]",
        "[TOOL_CALLS][{\"name\": 1}]",
        "[TOOL_CALLS][\"f\"]",
        "[TOOL_CALLS]",
        "[TOOL_CALL",
        "[INST] [1, 2]",
    ] {
        check(text, &format!("C {text}"));
    }
    check("[TOOL_CALLS][{\"name\": \"f\"}, 5]", "T f {}|C , 5]");
}

#[test]
fn lists_between_markers() {
    let calls =
        "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]";
    let want = "C ok|T f {\"a\": 1}|T g {}";
    check(&options(Nemotron), &format!("ok <TOOLCALL>{calls}</TOOLCALL>"), want);
    check(&options(Apriel), &format!("ok\n<tool_calls>{calls}</tool_calls>\n"), want);
}

#[test]
fn constrained_json() {
    let check = |text: &str, want: &str| check(&options(Json), text, want);
    check("{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "T f {\"a\": 1}");
    check(
        "[{\"name\": \"f\", \"arguments\": {}},\n {\"name\": \"get_weather\", \"arguments\": {}}]\n",
        "T f {}|T get_weather {}",
    );
    for text in ["[]", "[{\"name\": \"g\", \"arguments\": {}}]", "{}", "text", "["] {
        check(text, &format!("C {text}"));
    }
    // As a model may write it of itself.
    let marked = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    check(&format!("Well.\n{marked}"), "C Well.|T f {\"a\": 1}");
}

#[test]
fn reasoning_and_calls() {
    let think = |open| ChatParserOptions {
        reasoning: Some(ReasoningFormat::Think),
        reasoning_open: open,
        ..options(Hermes)
    };
    let rest = "\n\nNow.\n<tool_call>{\"name\": \"f\"}</tool_call>";
    check(
        &think(false),
        &format!("<think>\nHm <tool_call>\n</think>{rest}"),
        "R Hm <tool_call>|C Now.|T f {}",
    );
    check(&think(true), &format!("Hm.\n</think>{rest}"), "R Hm.|C Now.|T f {}");
    check(&think(true), "Hm.</think><tool_call>{\"name\": \"f\"}</tool_call>", "R Hm.|T f {}");
    check(&think(false), "a <think>b</think>", "C a <think>b</think>");
    let mistral =
        ChatParserOptions { reasoning: Some(ReasoningFormat::Mistral), ..options(Mistral) };
    check(&mistral, "[THINK]Hm[/THINK][TOOL_CALLS]f[ARGS]{}", "R Hm|T f {}");
    let bare = ChatParserOptions { reasoning: Some(ReasoningFormat::Think), ..options(Llama3Json) };
    check(&bare, "<think>a</think>\n{\"name\": \"f\", \"parameters\": {}}", "R a|T f {}");
    let plain = ChatParserOptions { tools: None, ..think(false) };
    check(&plain, "<think>a</think>\n<tool_call>x ", "R a|C <tool_call>x ");
    check(&ChatParserOptions::default(), "<think>a</think> \n", "C <think>a</think> \n");
}

#[test]
fn only_one_call_if_only_one_is_wanted() {
    let options = ChatParserOptions { single_call: true, ..options(Hermes) };
    let call = |name: &str| {
        format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{\"a\": \"b\"}}}}</tool_call>")
    };
    check(&options, &format!("a{}\n{}", call("f"), call("g")), "C a|T f {\"a\": \"b\"}");
    let mut parser = ChatParser::new(options);
    let mut deltas = Vec::new();
    let text = call("f");
    let end = text.len() - "</tool_call>".len();
    parser.push(&text[..end - 1], &mut deltas);
    assert!(!parser.is_complete());
    parser.push(&text[end - 1..], &mut deltas);
    assert!(parser.is_complete());
}

#[test]
fn pieces_come_as_early_as_they_are_certain() {
    let mut parser = ChatParser::new(options(Hermes));
    let mut check = |text: &str, want: &[&str]| {
        let mut deltas = Vec::new();
        parser.push(text, &mut deltas);
        let show = |delta: &ChatDelta| match delta {
            ChatDelta::Content(text) => format!("C {text}"),
            ChatDelta::Reasoning(text) => format!("R {text}"),
            ChatDelta::ToolCallStart { index, name, .. } => format!("S{index} {name}"),
            ChatDelta::ToolCallArguments { index, text } => format!("A{index} {text}"),
        };
        assert_eq!(deltas.iter().map(show).collect::<Vec<_>>(), want, "{text:?}");
    };
    check("a b", &["C a b"]);
    check(" < c", &["C  < c"]);
    check(" <", &[]);
    check("tool_call>", &[]);
    check("{\"name\": \"f\"", &[]);
    check(", \"arguments\": ", &[]);
    check("{", &["S0 f", "A0 {"]);
    check("\"a\": \"<", &["A0 \"a\": \"<"]);
    check("/tool_call>\"", &["A0 /tool_call>\""]);
    check("}}</tool", &["A0 }"]);
    check("_call>\n\n<tool_call>{\"name\": \"g\", \"arguments\": {}", &["S1 g", "A1 {}"]);
    check("}</tool_call>", &[]);
    check(" end", &["C  end"]);
}

/// Random mixtures of what calls are made of: no cut changes the result, and a text without a
/// call comes out as it went in.
#[test]
fn no_cut_changes_what_comes_out() {
    const SCRAPS: &[&str] = &[
        "<tool_call>",
        "</tool_call>",
        "<tool_",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<think>",
        "</think>",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "{\"name\": \"f\"",
        "{\"name\":",
        "\"arguments\": ",
        "\"parameters\":{\"b\":",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        ":",
        "\"",
        "\\",
        " ",
        "\n",
        "f",
        "12",
        "null",
        "é",
        "<",
        "/",
    ];
    const OPENERS: &[&str] = &[
        "<tool_call>",
        "<TOOLCALL> [",
        "<|python_tag|>",
        "[TOOL_CALLS][",
        "[TOOL_CALLS]f[ARGS]",
        "",
        "[",
    ];
    let mut numbers = Numbers(42);
    let mut n_calls = 0;
    for round in 0..4000 {
        let tools = [Hermes, Llama3Json, Mistral, Nemotron, Json][round % 5];
        let reasoning = [None, Some(ReasoningFormat::Think)][numbers.below(2)];
        let reasoning_open = numbers.below(4) == 0;
        let single_call = numbers.below(4) == 0;
        let options =
            ChatParserOptions { reasoning, reasoning_open, single_call, ..options(tools) };
        let mut text = String::new();
        if numbers.below(2) == 0 {
            text.push_str(OPENERS[numbers.below(OPENERS.len())]);
            text.push_str("{\"name\": \"f\", \"arguments\": {\"a\": 1}}");
        }
        for _ in 0..numbers.below(14) {
            text.push_str(SCRAPS[numbers.below(SCRAPS.len())]);
        }
        let want = parse(&options, [text.as_str()]);
        for _ in 0..8 {
            let pieces = random_pieces(&text, &mut numbers);
            assert_eq!(parse(&options, pieces.iter().copied()), want, "{pieces:?} as {options:?}");
        }
        if want.contains("T f") {
            n_calls += 1;
        } else if reasoning.is_none() && !text.is_empty() {
            assert_eq!(want, format!("C {text}"));
        }
    }
    assert!(n_calls > 200, "only {n_calls} of the texts have calls");
}
