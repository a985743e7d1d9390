//! Answers that may be calls: what is held to a schema or a grammar is held from the mark on by which a
//! call begins, in every format, and nothing else is.

use realizar_runtime::constrain::{Constrainer, Constraint, Grammar};
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use realizar_server::conversation::{Answer, AnswerPart};
use realizar_server::tools::{
    CallKind, Function, TextGrammar, ToolChoice, ToolRequest, call_grammar, forced_grammar,
};
use realizar_server::{ChatParser, ChatParserOptions, ToolFormat};
use serde_json::{Value, json};

use crate::forced_calls::{FORMATS, Random, check_arguments, functions, tokenizer, walk};

/// A grammar of edits to files, of the shape that agents send.
const EDITS: &str = r#"
start: begin edit+ end
begin: "*** Begin Edits" LF
end: "*** End Edits" LF?

edit: create | drop | change
create: "*** New: " name LF ("+" /(.*)/ LF)+
drop: "*** Gone: " name LF
change: "*** Edit: " name LF (place | line)+ last?
name: /(.+)/
place: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF -> one
last: "*** Last" LF

%import common.LF
"#;
const EDIT: &str = "*** Begin Edits\n*** Edit: src/\"a\".rs\n@@ fn main() {\n-\tlet x = '\\\\';\n+\
                    let x = 1; // </x> ü\n*** End Edits\n";

fn edits() -> Function {
    Function::custom("edit", Some(TextGrammar::Lark(EDITS.to_owned())))
}

/// A strict function, a custom tool with a grammar, and functions that are neither.
fn request(choice: ToolChoice) -> ToolRequest {
    let mut all = functions();
    all[0].strict = true;
    all.push(edits());
    ToolRequest { functions: all, choice, parallel: true }
}

fn grammar(
    format: ToolFormat,
    request: &ToolRequest,
    content: Option<&Grammar>,
    template: &str,
    tokenizer: &Tokenizer,
) -> Grammar {
    let made = call_grammar(Some(format), request, content, template, tokenizer);
    let (made_for, grammar) = made.unwrap().unwrap();
    assert_eq!(made_for, format);
    grammar
}

fn takes(start: &Constraint, tokenizer: &Tokenizer, text: &str, parse_special: bool) -> bool {
    let options = EncodeOptions { add_special: false, parse_special };
    let mut constraint = start.clone();
    for id in tokenizer.encode(text, options).unwrap() {
        if constraint.is_stopped() || !constraint.compute_mask().unwrap().allows(id) {
            return false;
        }
        constraint.accept(id).unwrap();
    }
    constraint.is_stopped() || constraint.may_end().unwrap()
}

fn answer(format: ToolFormat, request: &ToolRequest, text: &str) -> Answer {
    let mut parser = ChatParser::new(ChatParserOptions {
        tools: Some(format),
        functions: request.functions.clone(),
        ..ChatParserOptions::default()
    });
    let mut deltas = Vec::new();
    for c in text.chars() {
        parser.push(c.encode_utf8(&mut [0; 4]), &mut deltas);
    }
    parser.finish(&mut deltas);
    deltas.into_iter().collect()
}

#[test]
fn calls_of_their_own_will_are_held_and_text_before_them_is_free() {
    let mut random = Random(5);
    for (format, template) in FORMATS {
        for special in [true, false] {
            if *format == ToolFormat::Harmony && !special {
                continue;
            }
            let tokenizer = tokenizer(&format.markers(), special);
            let constrainer = Constrainer::new(&tokenizer).unwrap();
            let compile = |grammar: &Grammar| {
                let compiled = constrainer.compile(grammar);
                compiled.unwrap_or_else(|error| panic!("{format:?}: {error}: {grammar:?}"))
            };
            let auto = request(ToolChoice::Auto);
            let start = compile(&grammar(*format, &auto, None, template, &tokenizer));
            let input = compile(&Grammar::Lark(EDITS.to_owned()));
            // Calls that are forced are such calls.
            let mut required = request(ToolChoice::Required);
            // JSON in an element may have the mark that ends it in one of its texts.
            required.functions.retain(|function| function.name != "get");
            let forced = forced_grammar(*format, &required, template, &tokenizer);
            let forced = compile(&forced.unwrap_or_else(|| panic!("{format:?} has no grammar")));
            let mut n_calls = 0;
            for _ in 0..40 {
                let Some(text) = walk(&tokenizer, &forced, &mut random) else { continue };
                assert!(takes(&start, &tokenizer, &text, true), "{format:?}: {text}");
                for part in answer(*format, &auto, &text).parts {
                    let AnswerPart::ToolCall { name, arguments, kind, .. } = part else {
                        panic!("{format:?}: {part:?} in {text}");
                    };
                    n_calls += 1;
                    if kind == CallKind::Custom {
                        assert!(
                            takes(&input, &tokenizer, &arguments, false),
                            "{text}: {arguments}"
                        );
                    } else {
                        check_arguments(&name, &arguments, &format!("{format:?}: {text}"));
                    }
                }
            }
            assert!(n_calls > 5, "{format:?}: {n_calls} calls");
            // Whatever it allows is read as it was meant.
            for _ in 0..10 {
                let Some(text) = walk(&tokenizer, &start, &mut random) else { continue };
                for part in answer(*format, &auto, &text).parts {
                    let AnswerPart::ToolCall { name, arguments, .. } = part else { continue };
                    match name.as_str() {
                        "get_weather" => check_arguments(&name, &arguments, &text),
                        "edit" => assert!(
                            takes(&input, &tokenizer, &arguments, false),
                            "{text}: {arguments}"
                        ),
                        _ => {
                            let object = serde_json::from_str::<Value>(&arguments);
                            assert!(object.is_ok_and(|it| it.is_object()), "{text}: {arguments}");
                        }
                    }
                }
            }
            let free = if *format == ToolFormat::Harmony {
                "<|channel|>final<|message|>Some text: ü</x>."
            } else {
                "Some text: ü</x>."
            };
            assert!(takes(&start, &tokenizer, free, true), "{format:?}");
        }
    }
}

#[test]
fn one_call_in_each_format() {
    let json = |arguments: &Value| arguments.to_string().replace("\":\"", "\": \"");
    let edit = json(&json!({"input": EDIT}));
    let wrong = json(&json!({"input": EDIT.replace("@@ ", "%% ")}));
    let check = |format: ToolFormat, template: &str, before: &str, written: [&str; 2], special| {
        let tokenizer = tokenizer(&format.markers(), special);
        let auto = ToolRequest {
            functions: vec![edits(), Function::new("free", json!({"type": "object"}))],
            choice: ToolChoice::Auto,
            parallel: true,
        };
        let grammar = grammar(format, &auto, None, template, &tokenizer);
        let start = Constrainer::new(&tokenizer).unwrap().compile(&grammar).unwrap();
        let [good, wrong] = written.map(|text| format!("{before}{text}"));
        assert!(takes(&start, &tokenizer, &good, true), "{format:?}: {good}");
        assert!(!takes(&start, &tokenizer, &wrong, true), "{format:?}: {wrong}");
        let answer = answer(format, &auto, &good);
        let call = answer.parts.last().unwrap();
        let AnswerPart::ToolCall { name, arguments, kind, .. } = call else {
            panic!("{format:?}: {answer:?}");
        };
        assert_eq!(name, "edit");
        assert_eq!((arguments.as_str(), *kind), (EDIT, CallKind::Custom), "{format:?}");
        assert_eq!(answer.content(), before.trim_end(), "{format:?}");
    };
    let raw = |text: &str| EDIT.replace("@@ ", text);
    for special in [true, false] {
        let hermes = |arguments: &str| {
            format!("<tool_call>\n{{\"name\": \"edit\", \"arguments\": {arguments}}}\n</tool_call>")
        };
        let written = [hermes(&edit), hermes(&wrong)];
        check(ToolFormat::Hermes, "", "I edit.\n", written.each_ref().map(|it| &**it), special);
        let coder = |place: &str| {
            format!(
                "<tool_call>\n<function=edit>\n<parameter=input>\n{}\n</parameter>\n</function>\n\
                 </tool_call>",
                raw(place)
            )
        };
        let written = [coder("@@ "), coder("%% ")];
        check(ToolFormat::Qwen3Coder, "", "I edit.\n", written.each_ref().map(|it| &**it), special);
        let gemma = |place: &str| {
            format!("<|tool_call>call:edit{{input:<|\"|>{}<|\"|>}}<tool_call|>", raw(place))
        };
        let written = [gemma("@@ "), gemma("%% ")];
        check(ToolFormat::Gemma4, "", "", written.each_ref().map(|it| &**it), special);
    }
    let bare = |arguments: &str| format!("{{\"name\": \"edit\", \"parameters\": {arguments}}}");
    let written = [bare(&edit), bare(&wrong)];
    check(ToolFormat::Llama3Json, "", "", written.each_ref().map(|it| &**it), true);
    let mistral = |arguments: &str| format!("[TOOL_CALLS]edit[ARGS]{arguments}");
    let written = [mistral(&edit), mistral(&wrong)];
    check(ToolFormat::Mistral, "[ARGS]", "Now: ", written.each_ref().map(|it| &**it), true);
    let channel = |arguments: &str| {
        format!("<|channel|>commentary to=functions.edit <|constrain|>json<|message|>{arguments}")
    };
    let written = [channel(&edit), channel(&wrong)];
    check(ToolFormat::Harmony, "", "", written.each_ref().map(|it| &**it), true);
}

#[test]
fn an_answer_by_a_schema_may_be_a_call_instead() {
    let mut random = Random(3);
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}},
                        "required": ["n"], "additionalProperties": false});
    let content = Grammar::JsonSchema(schema);
    for (format, template) in FORMATS.iter().chain(&[(ToolFormat::Json, "")]) {
        let tokenizer = tokenizer(&format.markers(), true);
        let constrainer = Constrainer::new(&tokenizer).unwrap();
        let request = |choice| ToolRequest { functions: functions(), choice, parallel: true };
        let auto = request(ToolChoice::Auto);
        assert_eq!(call_grammar(Some(*format), &auto, None, template, &tokenizer).unwrap(), None);
        let either = grammar(*format, &auto, Some(&content), template, &tokenizer);
        let start = constrainer.compile(&either).unwrap();
        let head = if *format == ToolFormat::Harmony { "<|channel|>final<|message|>" } else { "" };
        for (text, want) in [("{\"n\": 5}", true), ("{\"m\": 5}", false), ("Five.", false)] {
            let text = format!("{head}{text}");
            assert_eq!(takes(&start, &tokenizer, &text, true), want, "{format:?}: {text}");
        }
        // Where a call must be made, the schema is not asked.
        let required = request(ToolChoice::Required);
        let made = call_grammar(Some(*format), &required, Some(&content), template, &tokenizer);
        let (_, forced) = made.unwrap().unwrap();
        let forced = constrainer.compile(&forced).unwrap();
        let mut n_taken = 0;
        for _ in 0..20 {
            let Some(text) = walk(&tokenizer, &forced, &mut random) else { continue };
            // By a schema alone, JSON has more spaces than models write.
            let taken = *format == ToolFormat::Json || takes(&start, &tokenizer, &text, true);
            assert!(taken, "{format:?}: {text}");
            n_taken += 1;
        }
        assert!(n_taken > 2, "{format:?}: {n_taken}");
    }
}

#[test]
fn what_a_format_cannot_hold_is_json_between_its_marks() {
    let pattern = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^b+$"}},
                         "required": ["a"]});
    let mut strict = Function::new("f", pattern);
    strict.strict = true;
    let nested = TextGrammar::Lark("start: \"(\" start? \")\" | \"\\\"\"".to_owned());
    let functions = vec![strict, Function::custom("nest", Some(nested))];
    for (format, open, close) in [
        (ToolFormat::Qwen3Coder, "<tool_call>\n", "\n</tool_call>"),
        (ToolFormat::MinimaxM2, "<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        (ToolFormat::Gemma4, "<|tool_call>", "<tool_call|>"),
    ] {
        let tokenizer = tokenizer(&format.markers(), true);
        let request =
            ToolRequest { functions: functions.clone(), choice: ToolChoice::Auto, parallel: true };
        let grammar = grammar(format, &request, None, "", &tokenizer);
        let start = Constrainer::new(&tokenizer).unwrap().compile(&grammar).unwrap();
        for (name, arguments, want) in [
            ("f", "{\"a\": \"bb\"}", true),
            ("f", "{\"a\": \"c\"}", false),
            ("nest", "{\"input\": \"((\\\"))\"}", true),
            ("nest", "{\"input\": \"((\\\")\"}", false),
        ] {
            let call = format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}");
            let text = format!("Yes. {open}{call}{close}");
            assert_eq!(takes(&start, &tokenizer, &text, true), want, "{format:?}: {text}");
            if want {
                let answer = answer(format, &request, &text);
                let AnswerPart::ToolCall { name: called, arguments: got, kind, .. } =
                    &answer.parts[1]
                else {
                    panic!("{format:?}: {answer:?}");
                };
                let input = "((\"))";
                let want = if *kind == CallKind::Custom { input } else { arguments };
                assert_eq!((called.as_str(), got.as_str()), (name, want));
            }
        }
    }
    // What no form can hold is refused.
    let tokens = TextGrammar::Lark("start: <x>".to_owned());
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        let functions = vec![Function::custom("c", Some(tokens.clone()))];
        let request = ToolRequest { functions, choice, parallel: true };
        for format in [ToolFormat::Hermes, ToolFormat::Qwen3Coder, ToolFormat::Json] {
            let tokenizer = tokenizer(&format.markers(), true);
            let error = call_grammar(Some(format), &request, None, "", &tokenizer).unwrap_err();
            assert!(error.to_string().contains("line 1"), "{error}");
        }
    }
}
