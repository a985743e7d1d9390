//! Calls that a request forces, in the formats of the models: their grammars take what templates
//! write, and whatever comes out of them is read as a call whose arguments fit their schema.

use std::collections::HashSet;
use std::path::PathBuf;

use realizar_runtime::constrain::{Constrainer, Constraint, Grammar};
use realizar_runtime::template::ChatTemplate;
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use realizar_server::conversation::{Answer, AnswerPart};
use realizar_server::tools::{Function, ToolChoice, ToolRequest, forced_grammar, tool_schema};
use realizar_server::{ChatParser, ChatParserOptions, ToolFormat};
use serde_json::{Value, json};

use crate::published_templates::{TEMPLATES, WITHOUT_CALLS, answer, template_dirs};

/// What a vocabulary has beside single bytes and markers.
const WORDS: &[&str] = &[
    "{\"",
    "\": ",
    "true",
    "name",
    "é",
    "日本",
    "</",
    "\n</",
    "\n</parameter>",
    "</parameter>",
    "</arg_value>",
    "</｜DSML｜parameter>",
];
/// What may end a value.
const ENDERS: &[&str] = &[
    "'",
    "\"",
    "}",
    "]",
    "</",
    "\n</parameter>",
    "</parameter>",
    "</arg_value>",
    "<|\"|>",
    "</｜DSML｜parameter>",
];

/// All formats, each with what a template must have to show the form that is meant.
pub(crate) const FORMATS: &[(ToolFormat, &str)] = &[
    (ToolFormat::Hermes, ""),
    (ToolFormat::Llama3Json, ""),
    (ToolFormat::Mistral, ""),
    (ToolFormat::Mistral, "[ARGS]"),
    (ToolFormat::Mistral, "[CALL_ID] [ARGS]"),
    (ToolFormat::Nemotron, ""),
    (ToolFormat::Apriel, "<tool_calls>["),
    (ToolFormat::Apriel, ""),
    (ToolFormat::Granite3, ""),
    (ToolFormat::CommandR7b, ""),
    (ToolFormat::DeepSeekV3, ""),
    (ToolFormat::DeepSeekV31, ""),
    (ToolFormat::DeepSeekV32, "function_calls>"),
    (ToolFormat::DeepSeekV32, ""),
    (ToolFormat::KimiK2, ""),
    (ToolFormat::Qwen3Coder, ""),
    (ToolFormat::SeedOss, ""),
    (ToolFormat::Glm45, ""),
    (ToolFormat::MinimaxM2, ""),
    (ToolFormat::Pythonic, ""),
    (ToolFormat::Lfm2, ""),
    (ToolFormat::Gemma4, ""),
    (ToolFormat::Harmony, ""),
];

/// A byte-level vocabulary with `markers`, as control tokens or as others that are found in a text.
pub(crate) fn tokenizer(markers: &[&str], special: bool) -> Tokenizer {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let spelled = |byte: u8| {
        let n_before = (0..byte).filter(|b| !printable(b)).count() as u32;
        if printable(&byte) { byte as char } else { char::from_u32(256 + n_before).unwrap() }
    };
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255_u8 {
        vocab.insert(spelled(byte).to_string(), json!(byte));
    }
    let words = WORDS.iter().filter(|word| !markers.contains(word));
    for (at, word) in words.enumerate() {
        vocab.insert(word.bytes().map(spelled).collect(), json!(256 + at));
    }
    let n_words = vocab.len();
    let ends = ["</s>", "<|call|>"].into_iter();
    let others = markers.iter().copied().filter(|marker| marker.len() > 1 && *marker != "<|call|>");
    let mut contents: Vec<&str> = ends.chain(others).collect();
    let mut seen = HashSet::new();
    contents.retain(|content| seen.insert(*content));
    let added = contents.iter().enumerate().map(|(at, content)| {
        json!({"id": n_words + at, "content": content, "special": special || at < 2,
               "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let config = json!({"eos_token": "</s>"});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let ends = json!({"eos_token_id": [n_words, n_words + 1]});
    std::fs::write(dir.path().join("generation_config.json"), ends.to_string()).unwrap();
    Tokenizer::from_hf_dir(dir.path()).unwrap()
}

pub(crate) fn functions() -> Vec<Function> {
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 20}},
        "unit": {"type": "string", "enum": ["celsius", "kelvin"], "description": "The unit"},
        "wind": {"type": "boolean"},
    }, "required": ["city", "unit"]});
    vec![
        Function::new("get_weather", weather),
        Function::new("ping", json!({"type": "object", "properties": {}})),
        Function::new(
            "get",
            json!({"type": "object", "properties": {
            "n": {"type": "number", "minimum": -5, "maximum": 5},
            "at": {"type": "object", "properties": {
                "x": {"type": "integer", "minimum": 0, "maximum": 9}, "label": {"type": "string"},
            }, "required": ["x"], "additionalProperties": false},
        }, "required": ["at"]}),
        ),
    ]
}

/// That arguments are those of a function.
pub(crate) fn check_arguments(name: &str, arguments: &str, text: &str) {
    let value: Value = serde_json::from_str(arguments)
        .unwrap_or_else(|error| panic!("{name}: {error}: {arguments}"));
    let object = value.as_object().unwrap();
    let only = |names: &[&str]| object.keys().all(|key| names.contains(&key.as_str()));
    let small = |value: &Value| value.as_u64().is_some_and(|n| n <= 20);
    let fits = match name {
        "get_weather" => {
            only(&["city", "days", "unit", "wind"])
                && value["city"].is_string()
                && ["celsius", "kelvin"].iter().any(|unit| value["unit"] == *unit)
                && value["days"].as_array().is_none_or(|days| days.iter().all(small))
                && object.get("days").is_none_or(Value::is_array)
                && object.get("wind").is_none_or(Value::is_boolean)
        }
        "ping" => object.is_empty(),
        "get" => {
            let at = value["at"].as_object().unwrap();
            only(&["n", "at"])
                && at.keys().all(|key| key == "x" || key == "label")
                && value["at"]["x"].as_u64().is_some_and(|x| x <= 9)
                && at.get("label").is_none_or(Value::is_string)
                && object.get("n").is_none_or(|n| n.as_f64().is_some_and(|n| n.abs() <= 5.0))
        }
        _ => false,
    };
    assert!(fits, "{name}: {arguments} of {text}");
}

fn calls(format: ToolFormat, single: bool, text: &str) -> Vec<(String, String)> {
    let mut parser = ChatParser::new(ChatParserOptions {
        tools: Some(format),
        functions: functions(),
        calls_alone: true,
        single_call: single,
        ..ChatParserOptions::default()
    });
    let mut deltas = Vec::new();
    for c in text.chars() {
        parser.push(c.encode_utf8(&mut [0; 4]), &mut deltas);
    }
    parser.finish(&mut deltas);
    let answer: Answer = deltas.into_iter().collect();
    let call = |part| match part {
        AnswerPart::ToolCall { name, arguments, .. } => (name, arguments),
        other => panic!("{format:?}: {other:?} in {text}"),
    };
    answer.parts.into_iter().map(call).collect()
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A random answer, none if it did not end. What ends something is preferred.
pub(crate) fn walk(
    tokenizer: &Tokenizer,
    start: &Constraint,
    random: &mut Random,
) -> Option<String> {
    let mut constraint = start.clone();
    let mut text: Vec<u8> = Vec::new();
    let mut enders: Vec<u32> = Vec::new();
    enders.extend(ENDERS.iter().filter_map(|text| tokenizer.id_of(text)));
    for n in 0..700 {
        if constraint.is_stopped() {
            return String::from_utf8(text).ok();
        }
        let mask = constraint.compute_mask().unwrap();
        let readable = |&id: &u32| {
            let bytes = tokenizer.token_bytes(id).unwrap();
            !tokenizer.is_eos(id) && std::str::from_utf8(bytes).is_ok_and(|t| !t.contains('\0'))
        };
        let all = 0..tokenizer.vocab_size() as u32;
        let ends = all.clone().any(|id| tokenizer.is_eos(id) && mask.allows(id));
        let allowed: Vec<u32> = all.filter(|&id| mask.allows(id)).collect();
        // A part of a character comes only where the grammar spells one.
        let whole: Vec<u32> = allowed.iter().copied().filter(readable).collect();
        let others = allowed.into_iter().filter(|&id| !tokenizer.is_eos(id));
        let allowed = if whole.is_empty() { others.collect() } else { whole };
        if ends && (allowed.is_empty() || n > 60 || random.below(3) == 0) {
            return String::from_utf8(text).ok();
        }
        assert!(!allowed.is_empty());
        let of = |wanted: &dyn Fn(u32) -> bool| -> Vec<u32> {
            allowed.iter().copied().filter(|&id| wanted(id)).collect()
        };
        let controls = of(&|id| tokenizer.is_special(id));
        let closers = of(&|id| enders.contains(&id));
        let from = match random.below(4) {
            0 | 1 if !controls.is_empty() => &controls,
            0..3 if n > 10 && !closers.is_empty() => &closers,
            _ => &allowed,
        };
        let id = from[random.below(from.len())];
        constraint.accept(id).unwrap();
        text.extend(tokenizer.token_bytes(id).unwrap());
    }
    None
}

fn request(choice: ToolChoice, parallel: bool) -> ToolRequest {
    ToolRequest { functions: functions(), choice, parallel }
}

#[test]
fn whatever_a_grammar_allows_is_read_as_calls_that_fit() {
    let mut random = Random(7);
    for (format, template) in FORMATS {
        for special in [true, false] {
            // The marks of channels are control tokens wherever they are used.
            if *format == ToolFormat::Harmony && !special {
                continue;
            }
            let tokenizer = tokenizer(&format.markers(), special);
            let constrainer = Constrainer::new(&tokenizer).unwrap();
            for (choice, parallel) in [
                (ToolChoice::Required, true),
                (ToolChoice::Required, false),
                (ToolChoice::Function("get_weather".to_owned()), true),
            ] {
                let request = request(choice, parallel);
                let grammar = forced_grammar(*format, &request, template, &tokenizer);
                let grammar = grammar.unwrap_or_else(|| panic!("{format:?} has no grammar"));
                let start = constrainer.compile(&grammar);
                let start =
                    start.unwrap_or_else(|error| panic!("{format:?}: {error}: {grammar:?}"));
                let mut n_read = 0;
                for _ in 0..12 {
                    let Some(text) = walk(&tokenizer, &start, &mut random) else { continue };
                    n_read += 1;
                    let several = request.choice == ToolChoice::Required && parallel;
                    let calls = calls(*format, !several, &text);
                    assert!(
                        !calls.is_empty() && (several || calls.len() == 1),
                        "{format:?}: {text}"
                    );
                    for (name, arguments) in calls {
                        let named = request.choice == ToolChoice::Function(name.clone());
                        assert!(named || request.choice == ToolChoice::Required, "{text}");
                        check_arguments(&name, &arguments, &format!("{format:?}: {text}"));
                    }
                }
                assert!(n_read > 2, "{format:?}: {n_read} answers ended");
            }
        }
    }
}

/// What a chat request with three functions and `tool_choice` says.
fn read(tool_choice: &Value) -> ToolRequest {
    let tools = functions().into_iter().map(|function| {
        let (name, parameters) = (&function.name, function.parameters());
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    });
    let body = json!({"tools": tools.collect::<Vec<_>>(), "tool_choice": tool_choice});
    ToolRequest::from_chat(body.as_object().unwrap()).unwrap()
}

/// `tool_choice` with some of the functions.
fn allowed_tools(mode: &str, names: &[&str]) -> Value {
    let tool = |name: &&str| json!({"type": "function", "function": {"name": name}});
    let tools: Vec<Value> = names.iter().map(tool).collect();
    json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
}

/// Whether a constraint takes a whole answer.
fn takes(start: &Constraint, tokenizer: &Tokenizer, text: &str) -> bool {
    let options = EncodeOptions { add_special: false, parse_special: true };
    let mut constraint = start.clone();
    for id in tokenizer.encode(text, options).unwrap() {
        if constraint.is_stopped() || !constraint.compute_mask().unwrap().allows(id) {
            return false;
        }
        constraint.accept(id).unwrap();
    }
    constraint.is_stopped() || constraint.may_end().unwrap()
}

#[test]
fn allowed_tools_leave_only_their_functions_in_every_format() {
    let mut random = Random(11);
    let all = ToolChoice::Required;
    // JSON by a schema alone is the way of all models without a format.
    for (format, template) in FORMATS.iter().chain(&[(ToolFormat::Json, "")]) {
        let tokenizer = tokenizer(&format.markers(), true);
        let constrainer = Constrainer::new(&tokenizer).unwrap();
        let start = |request: &ToolRequest| {
            let schema = || tool_schema(request).map(Grammar::JsonSchema);
            let grammar = forced_grammar(*format, request, template, &tokenizer).or_else(schema);
            grammar.map(|grammar| constrainer.compile(&grammar).unwrap())
        };
        // A choice of some forces no call, and the others are as if they were not there.
        let auto = read(&allowed_tools("auto", &["ping", "get"]));
        assert_eq!(auto.choice, ToolChoice::Auto);
        assert!(start(&auto).is_none(), "{format:?}");
        let some = read(&allowed_tools("required", &["ping", "get"]));
        assert_eq!(some.choice, all);
        let of_some = start(&some).unwrap();
        let mut named = HashSet::new();
        for _ in 0..200 {
            let Some(text) = walk(&tokenizer, &of_some, &mut random) else { continue };
            for (name, arguments) in calls(*format, false, &text) {
                check_arguments(&name, &arguments, &format!("{format:?}: {text}"));
                named.insert(name);
            }
            if named.len() == 2 {
                break;
            }
        }
        let expected = HashSet::from(["ping".to_owned(), "get".to_owned()]);
        assert_eq!(named, expected, "{format:?}");
        // What calls the function that is not allowed is taken where it is, and nowhere else.
        let other = read(&json!({"type": "function", "function": {"name": "get_weather"}}));
        let of_other = start(&other).unwrap();
        let of_all = [true, false].map(|parallel| start(&request(all.clone(), parallel)).unwrap());
        let mut n_refused = 0;
        for _ in 0..40 {
            let Some(text) = walk(&tokenizer, &of_other, &mut random) else { continue };
            assert!(!takes(&of_some, &tokenizer, &text), "{format:?}: {text}");
            n_refused += usize::from(of_all.iter().any(|all| takes(all, &tokenizer, &text)));
        }
        assert!(n_refused > 2, "{format:?}: {n_refused} calls of the other function");
    }
}

#[test]
fn what_a_format_cannot_say_has_no_grammar() {
    let tokenizer = tokenizer(&[], true);
    let check = |format: ToolFormat, parameters: Value, want: bool| {
        let request = ToolRequest {
            functions: vec![Function::new("f", parameters.clone())],
            choice: ToolChoice::Required,
            parallel: true,
        };
        let got = forced_grammar(format, &request, "", &tokenizer).is_some();
        assert_eq!(got, want, "{format:?}: {parameters}");
    };
    let with = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    for (schema, elements, gemma) in [
        (json!({"type": "string"}), true, true),
        (json!({}), true, false),
        (json!({"type": ["string", "null"]}), true, false),
        (json!({"type": "string", "pattern": "^a"}), false, false),
        (json!({"type": "string", "enum": ["a", "b"]}), true, true),
        (json!({"enum": ["a</parameter>"]}), false, true),
        (json!({"enum": ["a", 1]}), false, false),
        (json!({"type": "integer", "minimum": 3}), true, true),
        (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), true, false),
        (json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}), false, false),
        (json!({"type": "array", "items": {"type": "string", "maxLength": 3}}), true, false),
        (json!({"type": "array", "items": {"type": "string"}, "minItems": 1}), true, false),
    ] {
        check(ToolFormat::MinimaxM2, with(schema.clone()), elements);
        check(ToolFormat::Gemma4, with(schema.clone()), gemma);
        check(ToolFormat::Lfm2, with(schema.clone()), true);
        check(ToolFormat::Hermes, with(schema.clone()), true);
        check(ToolFormat::Json, with(schema), false);
    }
    let point = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/p"}},
        "$defs": {"p": {"type": "object", "properties": {"q": {"$ref": "#/$defs/p"}}}}});
    check(ToolFormat::Qwen3Coder, point, true);
    let upwards =
        json!({"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#"}}}});
    check(ToolFormat::Qwen3Coder, upwards.clone(), false);
    check(ToolFormat::Hermes, upwards, true);
    let named = json!({"type": "object", "properties": {"a b": {"type": "string"}}});
    check(ToolFormat::Lfm2, named, false);
    check(ToolFormat::Qwen3Coder, json!({"type": "object", "minProperties": 1}), false);
    let request = request(ToolChoice::Auto, true);
    assert!(forced_grammar(ToolFormat::Hermes, &request, "", &tokenizer).is_none());
}

#[test]
fn grammars_take_the_calls_that_templates_write() {
    let Some(dirs) = template_dirs() else { return };
    let (mut n_templates, mut refused) = (0, Vec::new());
    for (name, format, _) in TEMPLATES {
        let Some(format) = format.filter(|_| !WITHOUT_CALLS.contains(name)) else { continue };
        let paths = dirs.iter().map(|dir: &PathBuf| dir.join(format!("{name}.jinja")));
        let source = paths.filter_map(|path| std::fs::read_to_string(path).ok()).next();
        let Some(source) = source else { continue };
        n_templates += 1;
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        // Grammars of JSON spell characters as they are, also where a template escapes them.
        let written = answer(&template).unwrap().1.replace("\\u00fc", "ü");
        let tokenizer = tokenizer(&format.markers(), true);
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"},
            "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["city"]});
        let request = ToolRequest {
            functions: vec![Function::new("get_weather", parameters)],
            choice: ToolChoice::Required,
            parallel: false,
        };
        let grammar = forced_grammar(format, &request, &source, &tokenizer).unwrap();
        let start = Constrainer::new(&tokenizer).unwrap().compile(&grammar).unwrap();
        // Somewhere in what the template writes is a text of the grammar.
        let options = EncodeOptions { add_special: false, parse_special: true };
        let mut taken = written.char_indices().filter_map(|(at, _)| {
            let ids = tokenizer.encode(&written[at..], options).unwrap();
            let mut constraint = start.clone();
            let mut n_bytes = 0;
            for id in ids {
                if constraint.is_stopped() || tokenizer.is_eos(id) {
                    break;
                }
                if !constraint.compute_mask().unwrap().allows(id) {
                    break;
                }
                constraint.accept(id).unwrap();
                n_bytes += tokenizer.token_bytes(id).unwrap().len();
            }
            let ended = n_bytes > 0 && constraint.may_end().unwrap();
            ended.then(|| written[at..at + n_bytes].to_owned())
        });
        let text = taken.next_back();
        if text.is_none() {
            refused.push(format!("{name}: {written}\n{grammar:?}"));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n\n"));
    assert!(n_templates > 0, "no known template is in {dirs:?}");
    println!("{n_templates} templates");
}
