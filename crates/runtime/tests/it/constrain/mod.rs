//! Answers under grammars: random answers token by token, texts that a grammar takes or refuses,
//! and a session. What cannot be compiled or followed is in `refused`.

use crate::common::random::Random;
use crate::common::tiny::tiny;
use realizar_formats::{Array, Gguf, GgufWriter};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::constrain::{Constrainer, Constraint, Error, Grammar};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::tokenizer::Tokenizer;
use realizar_runtime::{FinishReason, GenerateParams, LoadOptions, Model};
use serde_json::{Value, json};
use std::ops::ControlFlow;

mod budget;
mod reasoning;
mod refused;
mod schemas;

/// Tokens of the vocabulary beyond the bytes: text of several bytes, some of it twice.
const WORDS: &[&str] = &[
    "{\"", "\":", "\": ", "\",\"", "\"}", "true", "false", "null", "name", " \"", "]}", "10", "-1",
    "the", "é", "日本", "abc", "ab", "ab", "\n  ", "(", "))", "yes", "no", "a", "\\n", "<tool>",
];
const BOS: u32 = 256;
const EOS: u32 = 257;
const EOT: u32 = 258;

/// A byte-level vocabulary: id = byte value, three control tokens, then [`WORDS`].
fn tokenizer() -> Tokenizer {
    tokenizer_of(WORDS)
}

/// The same with other words.
fn tokenizer_of(words: &[&str]) -> Tokenizer {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let byte_char = |byte: u8| {
        let n_before = (0..byte).filter(|b| !printable(b)).count() as u32;
        if printable(&byte) { byte as char } else { char::from_u32(256 + n_before).unwrap() }
    };
    let spelled = |text: &str| text.bytes().map(byte_char).collect::<String>();
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    let mut types = vec![1_i32; 256];
    for control in ["<s>", "</s>", "<|im_end|>"] {
        tokens.push(control.to_owned());
        types.push(3);
    }
    for word in words {
        tokens.push(spelled(word));
        types.push(1);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.gguf");
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama").unwrap();
    writer.set("tokenizer.ggml.model", "gpt2").unwrap();
    writer.set("tokenizer.ggml.pre", "gpt-2").unwrap();
    writer.set("tokenizer.ggml.tokens", Array::from_strs(&tokens)).unwrap();
    writer.set("tokenizer.ggml.token_type", Array::from(types.as_slice())).unwrap();
    writer.set("tokenizer.ggml.merges", Array::from_strs(["a b"])).unwrap();
    writer.set("tokenizer.ggml.bos_token_id", BOS).unwrap();
    writer.set("tokenizer.ggml.eos_token_id", EOS).unwrap();
    writer.write_file(&path).unwrap();
    Tokenizer::from_gguf(Gguf::open(&path).unwrap().metadata()).unwrap()
}

fn constrainer() -> Constrainer {
    Constrainer::new(&tokenizer()).unwrap()
}

fn gbnf(text: &str) -> Grammar {
    Grammar::Gbnf(text.to_owned())
}

fn lark(text: &str) -> Grammar {
    Grammar::Lark(text.to_owned())
}

/// A random answer, or none if it did not end within some hundred tokens. Later tokens prefer
/// what closes something.
fn walk(tokenizer: &Tokenizer, start: &Constraint, random: &mut Random) -> Option<String> {
    let mut constraint = start.clone();
    let mut ids = Vec::new();
    while ids.len() < 400 {
        if constraint.is_stopped() {
            break;
        }
        // Two rows of padding.
        let mut logits = vec![0.0; tokenizer.vocab_size() + 2];
        constraint.mask(&mut logits).unwrap();
        let allowed: Vec<u32> =
            (0..logits.len() as u32).filter(|&id| logits[id as usize] == 0.0).collect();
        assert!(allowed.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        let ends = allowed.iter().any(|&id| tokenizer.is_eos(id));
        assert_eq!(ends, constraint.may_end().unwrap());
        assert!(!allowed.contains(&BOS));
        if ends && (ids.len() > 40 || random.below(4) == 0) {
            constraint.accept(EOT).unwrap();
            assert!(constraint.is_stopped());
            return Some(tokenizer.decode(&ids, false).unwrap());
        }
        let texts: Vec<u32> = allowed.into_iter().filter(|&id| !tokenizer.is_eos(id)).collect();
        let closing =
            |id: &&u32| tokenizer.token_bytes(**id).unwrap().iter().any(|b| b"\"}])".contains(b));
        let closing: Vec<u32> = texts.iter().filter(closing).copied().collect();
        let among = if ids.len() > 20 && !closing.is_empty() { &closing } else { &texts };
        let id = among[random.below(among.len())];
        assert_eq!(constraint.count_allowed(&[id]).unwrap(), 1);
        constraint.accept(id).unwrap();
        ids.push(id);
    }
    constraint.is_stopped().then(|| tokenizer.decode(&ids, false).unwrap())
}

/// Random answers under a grammar, all of which `valid` must find right.
fn check_walks(grammar: &Grammar, valid: &dyn Fn(&str) -> bool) {
    let tokenizer = tokenizer();
    let constraint = Constrainer::new(&tokenizer).unwrap().compile(grammar).unwrap();
    let mut random = Random(7);
    let mut n_complete = 0;
    for _ in 0..60 {
        if let Some(text) = walk(&tokenizer, &constraint, &mut random) {
            assert!(valid(&text), "{grammar:?}: {text:?}");
            n_complete += 1;
        }
    }
    assert!(n_complete >= 20, "{grammar:?}: only {n_complete} answers ended");
}

/// Whether a text, byte by byte, is an answer.
fn takes(constraint: &Constraint, text: &str) -> bool {
    let mut constraint = constraint.clone();
    for byte in text.bytes() {
        let id = u32::from(byte);
        if constraint.is_stopped() || !constraint.compute_mask().unwrap().allows(id) {
            return false;
        }
        constraint.accept(id).unwrap();
    }
    constraint.may_end().unwrap()
}

fn check_texts(grammar: &Grammar, right: &[&str], wrong: &[&str]) {
    let constraint = constrainer().compile(grammar).unwrap();
    for text in right {
        assert!(takes(&constraint, text), "{grammar:?} refuses {text:?}");
    }
    for text in wrong {
        assert!(!takes(&constraint, text), "{grammar:?} takes {text:?}");
    }
}

fn parse(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        // Digits and exponents are not bounded by JSON.
        Err(error) if error.to_string().starts_with("number out of range") => None,
        Err(error) => panic!("{text:?}: {error}"),
    }
}

fn has_only(value: &Value, names: &[&str]) -> bool {
    value.as_object().unwrap().keys().all(|name| names.contains(&name.as_str()))
}

#[test]
fn random_answers_are_json_that_is_valid() {
    check_walks(&Grammar::JsonObject, &|text| parse(text).is_none_or(|value| value.is_object()));
    check_walks(&Grammar::JsonSchema(json!(true)), &|text| {
        parse(text);
        true
    });

    type Case = (Value, fn(&Value) -> bool);
    let cases: &[Case] = &[
        (
            json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 6},
                    "age": {"type": "integer", "minimum": 0, "maximum": 130},
                    "tags": {
                        "type": "array",
                        "items": {"enum": ["a", "b\"", 3, null]},
                        "maxItems": 3,
                    },
                },
                "required": ["name", "age"],
                "additionalProperties": false,
            }),
            |value| {
                let name = value["name"].as_str().unwrap();
                let tags = value.get("tags").map_or(&[][..], |tags| tags.as_array().unwrap());
                let allowed = [json!("a"), json!("b\""), json!(3), json!(null)];
                has_only(value, &["name", "age", "tags"])
                    && (1..=6).contains(&name.chars().count())
                    && value["age"].as_i64().is_some_and(|age| (0..=130).contains(&age))
                    && tags.len() <= 3
                    && tags.iter().all(|tag| allowed.contains(tag))
            },
        ),
        (
            // Members beyond those listed must not be able to spell a listed one again.
            json!({"properties": {"a": {"type": "integer"}}, "required": ["a"], "type": "object",
                   "additionalProperties": true}),
            |value| value["a"].as_f64().is_some_and(|a| a.fract() == 0.0),
        ),
        (
            json!({
                "$defs": {"tree": {
                    "type": "object",
                    "properties": {
                        "v": {"type": "boolean"},
                        "kids": {"items": {"$ref": "#/$defs/tree"}, "type": "array", "maxItems": 2},
                    },
                    "required": ["v"],
                    "additionalProperties": false,
                }},
                "$ref": "#/$defs/tree",
            }),
            |value| {
                fn tree(value: &Value) -> bool {
                    let kids = value.get("kids").map_or(&[][..], |k| k.as_array().unwrap());
                    value["v"].is_boolean() && kids.len() <= 2 && kids.iter().all(tree)
                }
                tree(value)
            },
        ),
        (json!({"type": "string", "pattern": "^[^x]|y$"}), |value| {
            let text = value.as_str().unwrap();
            !text.is_empty() && (!text.starts_with('x') || text.ends_with('y'))
        }),
        (json!({"type": "string", "format": "ipv4"}), |value| {
            value.as_str().unwrap().parse::<std::net::Ipv4Addr>().is_ok()
        }),
        (
            json!({
                "type": "array",
                "prefixItems": [{"const": {"x": [1]}}],
                "items": {"type": "number", "multipleOf": 0.5, "exclusiveMaximum": 4},
                "minItems": 2,
            }),
            |value| {
                let items = value.as_array().unwrap();
                let half = |item: &Value| {
                    let number = item.as_f64().unwrap();
                    number < 4.0 && (number * 2.0).fract() == 0.0
                };
                items.len() >= 2 && items[0] == json!({"x": [1]}) && items[1..].iter().all(half)
            },
        ),
        (
            json!({
                "type": "object",
                "patternProperties": {"^x": {"type": "null"}},
                "additionalProperties": {"type": "boolean"},
                "minProperties": 1,
                "maxProperties": 2,
            }),
            |value| {
                let members = value.as_object().unwrap();
                (1..=2).contains(&members.len())
                    && members.iter().all(|(name, value)| match name.starts_with('x') {
                        true => value.is_null(),
                        false => value.is_boolean(),
                    })
            },
        ),
    ];
    for (schema, valid) in cases {
        let grammar = Grammar::JsonSchema(schema.clone());
        check_walks(&grammar, &|text| parse(text).is_none_or(|value| valid(&value)));
    }
}

#[test]
fn random_answers_match_their_expression_or_choice() {
    for expression in [
        r"[a-c]{3,5}\d?(yes|no)?",
        r"^(the|a) .{0,6}$",
        r"\([^()é]*\)",
        "(?i)abc/\"|日本+",
        r"\w+\s[^\n]",
    ] {
        let regex = fancy_regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
        let matches = |text: &str| regex.is_match(text).unwrap();
        check_walks(&Grammar::Regex(expression.to_owned()), &matches);
    }
    let texts = ["yes", "yes, sir", "no\n\"", "日本", "\u{7f}"];
    let choice = Grammar::Choice(texts.map(str::to_owned).to_vec());
    check_walks(&choice, &|text| texts.contains(&text));
    check_texts(&choice, &texts, &["", "y", "yes,", "yes, sir "]);
    check_texts(&Grammar::Choice(vec![String::new(), "a".to_owned()]), &["", "a"], &["aa"]);
    let empty = Grammar::Choice(vec![String::new()]);
    assert!(constrainer().compile(&empty).unwrap().compute_mask().unwrap().is_end());
}

#[test]
fn gbnf_texts_that_a_grammar_takes_or_refuses() {
    check_texts(
        &gbnf("root ::= \"a\" b? [0-9]{2,3} # comment\nb ::= \"b\" |\n  \"\\x63\""),
        &["a12", "ab123", "ac12"],
        &["a1", "a1234", "abc12", ""],
    );
    check_texts(
        &gbnf("root ::= (\n \"x\" # one\n | [^a-y\\n\\]-]\n)+ .\n"),
        &["xé", "zz\n", "xx]", "日本"],
        &["x", "\nx", "-x", "ab", "]x"],
    );
    check_texts(
        &gbnf("root ::= [\\u65e5\\U0000672C\"/\\\\] \"/\\\"\\t\""),
        &["日/\"\t", "本/\"\t", "\"/\"\t", "//\"\t", "\\/\"\t"],
        &["木/\"\t"],
    );
    check_texts(
        &gbnf("root ::= \"a\"{,2} \"b\"{0} \"c\"{1,}"),
        &["c", "aac"],
        &["aaac", "abc", ""],
    );
    // Rules that lead back to themselves, to the left, to the right and in the middle.
    check_texts(
        &gbnf("root ::= root \"+\" term | term\nterm ::= \"(\" root \")\" | [0-9]+"),
        &["1", "12+(3+4)", "((1))+2"],
        &["1+", "(1", "+1", "()"],
    );
    check_texts(
        &gbnf("root ::= list\nlist ::= \"-\" [a-z]* \"\\n\" list?"),
        &["-ab\n", "-\n-x\n"],
        &["-ab", "ab\n"],
    );
    check_texts(
        &gbnf("root ::= \"(\" root{2} \")\" | \"\" | (root \"!\"){0}"),
        &["", "()", "(()())", "((())())"],
        &["(", "!", "()()"],
    );
    // Deeper groups than Lark allows.
    let deep = format!("{}\"x\"{}", "(\"a\" ".repeat(60), ")?".repeat(60));
    let deep = format!("root ::= {deep} | \"(\" root \")\"");
    check_texts(&gbnf(&deep), &["", "a", "((aa))"], &["x", "ax", "(a"]);
    let json = r#"
        root   ::= object
        value  ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
        array  ::= "[" ws ( value ("," ws value)* )? "]" ws
        string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
        number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,2})? ws
        ws     ::= | " " | "\n" [ \t]{0,20}
    "#;
    let lines: Vec<&str> = json.trim().lines().map(str::trim).collect();
    let grammar = gbnf(&lines.join("\n"));
    check_texts(&grammar, &["{}", "{\"a\": [1.5, {\"\\u00e9\":null}] }\n"], &["[]", "{\"a\"}"]);
    check_walks(&grammar, &|text| parse(text).is_none_or(|value| value.is_object()));
}

#[test]
fn lark_texts_and_schemas_inside() {
    check_texts(
        &lark(
            r#"
            start: "<f>" call "</f>"
            call: %json {"type": "object", "properties": {"a": {"type": "null"}},
                         "additionalProperties": true}
            "#,
        ),
        &["<f>{\"a\":null}</f>", "<f>{\"b\":1}</f>"],
        &["<f>{\"a\":1}</f>", "<f>{\"a\":null,\"\\u0061\":1}</f>", "<f>{}"],
    );
    check_texts(&lark("start: /[a-z]+/ | NUM\nNUM: /[0-9]/{2}"), &["ab", "12"], &["1", "a1"]);

    // A control token comes only where the grammar names it, and never cuts an answer short.
    let constrainer = constrainer();
    let mut constraint = constrainer.compile(&lark("start: \"a\" <s> \"b\"")).unwrap();
    constraint.accept(u32::from(b'a')).unwrap();
    let mask = constraint.compute_mask().unwrap();
    assert!(mask.allows(BOS) && mask.count() == 1);
    let mut cut = constrainer.compile(&lark("start: \"a\" </s> \"b\"")).unwrap();
    cut.accept(u32::from(b'a')).unwrap();
    assert!(matches!(cut.compute_mask(), Err(Error::NoToken)));
}

#[test]
fn control_tokens_and_broken_characters_are_no_text() {
    let tokenizer = tokenizer();
    let constrainer = Constrainer::new(&tokenizer).unwrap();
    let mut constraint = constrainer.compile(&Grammar::Regex("(?s:.)*".to_owned())).unwrap();
    let mask = constraint.compute_mask().unwrap();
    let words = 259..259 + WORDS.len() as u32;
    assert!(words.clone().all(|id| mask.allows(id)), "words, also those that come twice");
    assert!(mask.allows(EOS) && mask.allows(EOT));
    assert!(!mask.allows(BOS) && !mask.allows(0xFF) && !mask.allows(0x80), "no text");
    assert!(!mask.allows(words.end) && !mask.allows(u32::MAX), "no tokens");
    constraint.accept(0xC3).unwrap();
    let mask = constraint.compute_mask().unwrap();
    assert!(mask.allows(0xA9) && !mask.allows(EOS) && !mask.allows(u32::from(b'a')));
    let error = constraint.accept(EOS).unwrap_err().to_string();
    assert_eq!(error, "token 257 is not allowed here by the grammar: the answer is not complete");

    // Fewer rows than tokens are masked too, unless no row is left.
    let mut constraint = constrainer.compile(&Grammar::Regex("a+".to_owned())).unwrap();
    let mut logits = [0.0; 98];
    constraint.mask(&mut logits).unwrap();
    assert_eq!(logits.iter().position(|&logit| logit == 0.0), Some(97));
    assert_eq!(logits.iter().filter(|&&logit| logit == 0.0).count(), 1);
    assert!(matches!(constraint.mask(&mut [0.0; 97]), Err(Error::NoToken)));
}

#[test]
fn tokens_can_be_taken_back_and_clones_go_their_own_way() {
    let tokenizer = tokenizer();
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "boolean"}},
        "required": ["name"],
        "additionalProperties": false,
    });
    let constrainer = Constrainer::new(&tokenizer).unwrap();
    let start = constrainer.compile(&Grammar::JsonSchema(schema)).unwrap();
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    let mut constraint = start.clone();
    assert_eq!(constraint.count_allowed(&bytes("{\"name\":tr!")).unwrap(), 10);
    for id in bytes("{\"name\"") {
        constraint.accept(id).unwrap();
    }
    let mut other = constraint.clone();
    for id in bytes(":true}") {
        constraint.accept(id).unwrap();
    }
    assert!(constraint.is_stopped() && !other.is_stopped());
    let mask = constraint.compute_mask().unwrap();
    assert!(mask.count() == 2 && mask.allows(EOS) && mask.allows(EOT));
    assert_eq!(constraint.count_allowed(&bytes("}")).unwrap(), 0);
    constraint.rollback(5).unwrap();
    assert!(!constraint.is_stopped());
    for id in bytes("false}") {
        constraint.accept(id).unwrap();
    }
    assert!(constraint.is_stopped());
    let error = constraint.rollback(100).unwrap_err().to_string();
    assert!(error.starts_with("100 tokens cannot be taken back: "), "{error}");

    for id in bytes(": t") {
        other.accept(id).unwrap();
    }
    assert_eq!(other.forced_bytes(), b"rue");
    let error = other.accept(u32::from(b'x')).unwrap_err().to_string();
    assert!(error.starts_with("token 120 is not allowed here by the grammar: "), "{error}");
    assert!(other.compute_mask().is_err() && !other.is_stopped());
}

#[test]
fn constraints_move_between_threads() {
    fn check<T: Send + 'static>() {}
    fn check_shared<T: Send + Sync + 'static>() {}
    check::<Constraint>();
    check_shared::<Constrainer>();
    check_shared::<realizar_runtime::constrain::TokenMask>();
}

#[test]
fn a_session_answers_as_its_constraint_says() {
    let path = tiny("llama").join("model-f32.gguf");
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let mut model = Model::load(&path, &backend, &LoadOptions::default()).unwrap();
    let constrainer = Constrainer::new(model.tokenizer().unwrap()).unwrap();
    let mut session = model.new_session();
    let mut generate = |grammar: &Grammar, change: &dyn Fn(&mut GenerateParams)| {
        let mut params = GenerateParams {
            sampling: Some(SamplingParams {
                temperature: 2.0,
                seed: Some(5),
                ..SamplingParams::default()
            }),
            constraint: Some(constrainer.compile(grammar).unwrap()),
            ..GenerateParams::default()
        };
        change(&mut params);
        session.generate(&mut model, &[1, 40, 41], &params, &mut |_| ControlFlow::Continue(()))
    };
    let schema = Grammar::JsonSchema(json!({
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "word": {"type": "string", "maxLength": 5},
            "n": {"type": "integer", "minimum": 10, "maximum": 99},
        },
        "required": ["ok", "word", "n"],
        "additionalProperties": false,
    }));
    for seed in 0..5 {
        let seed = |params: &mut GenerateParams| {
            params.sampling.get_or_insert_default().seed = Some(seed);
        };
        let answer = generate(&schema, &seed).unwrap();
        let value: Value = serde_json::from_str(&answer.text).unwrap();
        assert!(value["ok"].is_boolean() && value["word"].as_str().unwrap().chars().count() <= 5);
        assert!((10..=99).contains(&value["n"].as_i64().unwrap()), "{value}");
        assert_eq!(answer.finish_reason, FinishReason::Stop);
    }
    // Complete means the end, also where the model may not choose its own.
    let yes = Grammar::Choice(vec!["yes".to_owned()]);
    let answer = generate(&yes, &|params| {
        params.ignore_eos = true;
        params.max_tokens = Some(3);
    });
    let answer = answer.unwrap();
    assert_eq!((answer.text.as_str(), answer.finish_reason), ("yes", FinishReason::Stop));
    let empty = generate(&Grammar::Choice(vec![String::new()]), &|_| {}).unwrap();
    assert_eq!((empty.text.as_str(), empty.finish_reason), ("", FinishReason::Stop));
    let cut = generate(&yes, &|params| params.max_tokens = Some(1)).unwrap();
    assert_eq!(cut.finish_reason, FinishReason::Length);
    // Nothing can be sampled: an error, not any token.
    let banned = |params: &mut GenerateParams| {
        let sampling = params.sampling.get_or_insert_default();
        sampling.logit_bias = (0..288).map(|id| (id, f32::NEG_INFINITY)).collect();
    };
    let error = generate(&yes, &banned).unwrap_err().to_string();
    assert_eq!(error, "every logit is minus infinity: no token can be chosen");

    let other = Constrainer::new(&tokenizer()).unwrap().compile(&yes).unwrap();
    let error = generate(&yes, &|params| params.constraint = Some(other.clone())).unwrap_err();
    let want = "the constraint is for a vocabulary of 286 tokens, the model's has 288";
    assert_eq!(error.to_string(), want);
}

#[test]
fn an_object_may_leave_out_five_hundred_properties() {
    let names: Vec<String> = (0..500).map(|i| format!("p{i}")).collect();
    let properties: serde_json::Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!({"type": "boolean"}))).collect();
    let object = json!({"type": "object", "properties": properties, "additionalProperties": false});
    let all: Vec<String> = names.iter().map(|name| format!("\"{name}\":true")).collect();
    let all = format!("{{{}}}", all.join(","));
    let grammar = Grammar::JsonSchema(object.clone());
    check_texts(&grammar, &["{}", "{\"p499\":false}", &all], &["{\"p1\":true,\"p0\":true}"]);
    // Several of them may begin at one place.
    let either =
        Grammar::JsonSchema(json!({"anyOf": [{"type": "array", "items": object}, object]}));
    check_texts(&either, &["{\"p499\":false}", "[{\"p499\":false}]"], &["{\"p500\":true}"]);
}
