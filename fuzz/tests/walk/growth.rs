//! Inputs that grow with a number, for every target and every endpoint.

use realizar_formats::{Array, GgufWriter, TensorType};
use realizar_fuzz::{PATHS, Target, target};
use serde_json::{Map, Value, json};

/// An input that grows.
pub(crate) struct Growth {
    pub(crate) target: &'static Target,
    pub(crate) name: String,
    /// The smallest number of things in it.
    pub(crate) first: usize,
    /// The input with this many things.
    pub(crate) make: Box<dyn Fn(usize) -> Vec<u8>>,
    /// Whether the input is a program, whose work its length does not bound, but a limit does.
    pub(crate) is_program: bool,
}

impl Growth {
    fn program(self) -> Self {
        Self { is_program: true, ..self }
    }
}

/// Every input.
pub(crate) fn all() -> Vec<Growth> {
    [files(), tokenizers(), templates(), schemas(), grammars(), answers(), requests()]
        .into_iter()
        .flatten()
        .collect()
}

fn grow(
    name: &'static str,
    what: impl Into<String>,
    first: usize,
    make: impl Fn(usize) -> Vec<u8> + 'static,
) -> Growth {
    let target = target(name).expect("the name of a target");
    Growth {
        target,
        name: format!("{name}: {}", what.into()),
        first,
        make: Box::new(make),
        is_program: false,
    }
}

/// `n` texts between brackets.
fn list(n: usize, item: impl Fn(usize) -> String) -> String {
    format!("[{}]", (0..n).map(item).collect::<Vec<_>>().join(","))
}

/// A JSON object with `n` members.
fn members(n: usize, item: impl Fn(usize) -> Value) -> Value {
    Value::Object((0..n).map(|i| (format!("k{i}"), item(i))).collect::<Map<_, _>>())
}

/// `n` of these around a core.
fn nested(n: usize, open: &str, core: &str, close: &str) -> String {
    format!("{}{core}{}", open.repeat(n), close.repeat(n))
}

fn gguf(fill: impl Fn(&mut GgufWriter<'_>)) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama").expect("a key");
    fill(&mut writer);
    let mut bytes = Vec::new();
    writer.write(&mut bytes).expect("memory takes it");
    bytes
}

/// A GGUF file with one key, an array in `n` arrays.
fn nested_array(n: usize) -> Vec<u8> {
    const ARRAY: u32 = 9;
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    for number in [0_u64, 1, 1] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.push(b'k');
    bytes.extend(ARRAY.to_le_bytes());
    for _ in 0..n {
        bytes.extend(ARRAY.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
    }
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes
}

/// A vocabulary of `n` tokens.
fn tokens(writer: &mut GgufWriter<'_>, kind: &str, n: usize) {
    let text = |i: usize| format!("{}{i}", ["\u{2581}", "a", "b"][i % 3]);
    writer.set("tokenizer.ggml.model", kind).expect("a key");
    let all: Vec<String> = (0..n).map(text).collect();
    writer.set("tokenizer.ggml.tokens", Array::from_strs(&all)).expect("a key");
    let merges: Vec<String> = (0..n).map(|i| format!("a{i} b{i}")).collect();
    writer.set("tokenizer.ggml.merges", Array::from_strs(&merges)).expect("a key");
    writer.set("tokenizer.ggml.scores", Array::from(&vec![0_f32; n][..])).expect("a key");
}

fn files() -> Vec<Growth> {
    let text = |text: String| text.into_bytes();
    let header = |json: String| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    let tensor = |i: usize| format!(r#""t{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
    let config = |more: &str| format!(r#"{{"architectures":["LlamaForCausalLM"],{more}}}"#);
    vec![
        grow("gguf", "keys", 64, |n| {
            gguf(|g| (0..n).for_each(|i| drop(g.set(&format!("k{i}"), i as u32))))
        }),
        grow("gguf", "a long text", 512, |n| gguf(|g| drop(g.set("general.name", "a".repeat(n))))),
        grow("gguf", "a long list", 512, |n| {
            gguf(|g| drop(g.set("general.tags", Array::from_strs(vec!["a"; n]))))
        }),
        grow("gguf", "nested arrays", 8, nested_array),
        grow("gguf", "tokens of llama", 256, |n| gguf(|g| tokens(g, "llama", n))),
        grow("gguf", "tokens of gpt2", 256, |n| gguf(|g| tokens(g, "gpt2", n))),
        grow("gguf", "tensors", 64, |n| {
            gguf(|g| {
                (0..n).for_each(|i| drop(g.tensor(&format!("t{i}"), TensorType::F32, &[0], &[])));
            })
        }),
        grow("safetensors", "tensors", 64, move |n| {
            header(format!("{{{}}}", (0..n).map(tensor).collect::<Vec<_>>().join(",")))
        }),
        grow("safetensors", "dimensions", 64, move |n| {
            let shape = list(n, |_| "1".to_owned());
            header(format!(r#"{{"t":{{"dtype":"U8","shape":{shape},"data_offsets":[0,1]}}}}"#))
        }),
        grow("safetensors", "metadata", 64, move |n| {
            header(json!({"__metadata__": members(n, |i| json!(i.to_string()))}).to_string())
        }),
        grow("config", "keys", 64, move |n| text(members(n, |i| json!(i)).to_string())),
        grow("config", "layers", 8, move |n| {
            text(config(&format!(r#""model_type":"llama","num_hidden_layers":{n}"#)))
        }),
        grow("config", "layer types", 64, move |n| {
            let types = list(n, |_| r#""full_attention""#.to_owned());
            text(config(&format!(r#""model_type":"llama","layer_types":{types}"#)))
        }),
        grow("config", "nested objects", 8, move |n| text(nested(n, r#"{"a":"#, "1", "}"))),
        grow("config", "a long name", 512, move |n| {
            text(config(&format!(r#""model_type":"{}""#, "a".repeat(n))))
        }),
        grow("session", "keys", 64, move |n| text(members(n, |i| json!(i)).to_string())),
        grow("session", "tokens", 64, move |n| {
            text(format!(r#"{{"tokens":{}}}"#, list(n, |_| "3".to_owned())))
        }),
        grow("packed", "bytes", 64, |n| vec![b'a'; n]),
    ]
}

/// A tokenizer.json with a vocabulary of words, and these members.
fn tokenizer_json(n_words: usize, more: &Value) -> Vec<u8> {
    let vocab: Map<String, Value> =
        (0..n_words.max(4)).map(|i| (format!("w{i}"), json!(i))).collect();
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "w0"});
    let mut all =
        json!({"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}});
    let Value::Object(all) = &mut all else { unreachable!("an object") };
    all.extend(more.as_object().cloned().unwrap_or_default());
    Value::Object(std::mem::take(all)).to_string().into_bytes()
}

fn tokenizers() -> Vec<Growth> {
    let several = |key: &'static str, list: &'static str, one: Value| {
        move |n: usize| {
            let all = json!({"type": "Sequence", list: vec![one.clone(); n]});
            tokenizer_json(4, &json!({key: all}))
        }
    };
    let regex = |pattern: String| {
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                           "invert": false});
        tokenizer_json(4, &json!({"pre_tokenizer": split}))
    };
    let replace = json!({"type": "Replace", "pattern": {"String": "l"}, "content": "ll"});
    let template = |ids: usize, pieces: usize| {
        let piece = json!({"SpecialToken": {"id": "x", "type_id": 0}});
        let tokens = json!({"id": "x", "ids": vec![1; ids], "tokens": vec!["w1"; ids]});
        let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
        let mut single = vec![piece; pieces];
        single.push(sequence);
        let processor = json!({"type": "TemplateProcessing", "single": single, "pair": [],
                               "special_tokens": {"x": tokens}});
        tokenizer_json(4, &json!({"post_processor": processor}))
    };
    vec![
        grow("tokenizer", "words", 64, |n| tokenizer_json(n, &json!({}))),
        grow("tokenizer", "added tokens", 64, |n| {
            let token = |i| {
                json!({"id": i + 4, "content": format!("<{i}>"), "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
            };
            tokenizer_json(4, &json!({"added_tokens": (0..n).map(token).collect::<Vec<_>>()}))
        }),
        grow("tokenizer", "merges", 64, |n| {
            let vocab: Map<String, Value> = (0..n).map(|i| (format!("a{i}"), json!(i))).collect();
            let merges: Vec<String> = (1..n).map(|i| format!("a{} a{i}", i - 1)).collect();
            let model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
            tokenizer_json(4, &json!({"model": model}))
        }),
        grow("tokenizer", "normalizers", 4, several("normalizer", "normalizers", replace)),
        grow(
            "tokenizer",
            "pre-tokenizers",
            8,
            several("pre_tokenizer", "pretokenizers", json!({"type": "Whitespace"})),
        ),
        grow("tokenizer", "decoders", 8, several("decoder", "decoders", json!({"type": "Fuse"}))),
        grow("tokenizer", "nested normalizers", 4, |n| {
            let open = r#"{"type":"Sequence","normalizers":["#;
            let text = nested(n, open, r#"{"type":"NFC"}"#, "]}");
            let normalizer: Value = serde_json::from_str(&text).unwrap_or_default();
            tokenizer_json(4, &json!({"normalizer": normalizer}))
        }),
        grow("tokenizer", "ids of a special token", 64, move |n| template(n, 1)),
        grow("tokenizer", "special tokens of many ids", 8, move |n| template(n, n)),
        grow("tokenizer", "a pattern with counts", 4, move |n| {
            regex(format!("(a|b)*a(a|b){{{n}}}"))
        }),
        grow("tokenizer", "nested groups", 4, move |n| regex(nested(n, "(", "a", ")+"))),
        grow("tokenizer", "optional letters", 4, move |n| {
            regex(format!("{}{}", "l?".repeat(n), "l".repeat(n)))
        }),
        grow("tokenizer", "alternatives", 16, move |n| regex(vec!["l+o"; n].join("|"))),
    ]
}

fn templates() -> Vec<Growth> {
    let template = |what: &'static str, first, make: fn(usize) -> String| {
        grow("template", what, first, move |n| make(n).into_bytes())
    };
    vec![
        template("text", 512, |n| "a ".repeat(n)),
        template("tags", 64, |n| "{{ 1 }}".repeat(n)),
        template("a range", 64, |n| format!("{{% for i in range({n}) %}}a{{% endfor %}}")),
        template("nested ranges", 4, |n| nested(n, "{% for i in range(8) %}", "a", "{% endfor %}"))
            .program(),
        template("nested conditions", 4, |n| nested(n, "{% if true %}", "a", "{% endif %}")),
        template("brackets", 4, |n| format!("{{{{ {} }}}}", nested(n, "(", "1", ")"))),
        template("lists in lists", 4, |n| format!("{{{{ {} }}}}", nested(n, "[", "1", "]"))),
        template("a text doubled", 4, |n| {
            format!("{{% set a = 'a' %}}{}{{{{ a }}}}", "{% set a = a ~ a %}".repeat(n))
        })
        .program(),
        template("a list doubled", 4, |n| {
            format!("{{% set a = [1] %}}{}{{{{ a }}}}", "{% set a = a + a %}".repeat(n))
        })
        .program(),
        template("a list of itself", 4, |n| {
            format!("{{% set a = [1] %}}{}{{{{ a | tojson }}}}", "{% set a = [a, a] %}".repeat(n))
        })
        .program(),
        template("a repeated text", 64, |n| format!("{{{{ 'a' * {n} }}}}")),
        template("a wide format", 4, |n| format!("{{{{ '%{n}d' % 1 }}}}")),
        template("filters", 16, |n| format!("{{{{ 'a' {} }}}}", "| upper ".repeat(n))),
        template("replaced texts", 4, |n| {
            format!("{{{{ 'a' {} }}}}", "| replace('a', 'aa') ".repeat(n))
        })
        .program(),
        template("joined lists", 64, |n| format!("{{{{ range({n}) | join(',') }}}}")),
        template("macros that call themselves", 4, |n| {
            let body = "{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}";
            format!("{{% macro m(n) %}}{body}{{% endmacro %}}{{{{ m({n}) }}}}")
        })
        .program(),
        template("sums", 16, |n| format!("{{{{ {} }}}}", vec!["1"; n].join(" + "))),
        template("slices", 16, |n| format!("{{{{ messages{} }}}}", "[:]".repeat(n))).program(),
        template("names", 64, |n| {
            (0..n).map(|i| format!("{{% set a{i} = {i} %}}")).collect::<String>()
        }),
    ]
}

fn schemas() -> Vec<Growth> {
    let schema = |what: &'static str, first, make: fn(usize) -> Value| {
        grow("schema", what, first, move |n| make(n).to_string().into_bytes())
    };
    let nested_schema = |what: &'static str, open: &'static str, close: &'static str| {
        grow("schema", what, 4, move |n| nested(n, open, r#"{"type":"null"}"#, close).into_bytes())
    };
    vec![
        schema("an enum", 16, |n| json!({"enum": (0..n).collect::<Vec<_>>()})),
        schema(
            "an enum of texts",
            16,
            |n| json!({"enum": (0..n).map(|i| format!("text {i}")).collect::<Vec<_>>()}),
        ),
        schema("a long constant", 64, |n| json!({"const": "ab".repeat(n)})),
        schema(
            "properties",
            8,
            |n| json!({"type": "object", "properties": members(n, |_| json!({"type": "string"}))}),
        ),
        schema("required properties", 8, |n| {
            let names: Vec<String> = (0..n).map(|i| format!("k{i}")).collect();
            let properties = members(n, |_| json!({"type": "integer"}));
            json!({"type": "object", "properties": properties, "required": names})
        }),
        schema("required names", 8, |n| {
            let names: Vec<String> = (0..n).map(|i| format!("k{i}")).collect();
            json!({"type": "object", "required": names})
        }),
        schema("pattern properties", 4, |n| {
            let patterns = (0..n).map(|i| (format!("^a{i}.*"), json!({"type": "null"})));
            json!({"type": "object", "patternProperties": patterns.collect::<Map<_, _>>()})
        }),
        schema(
            "a count in a pattern",
            4,
            |n| json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{n}}}$")}),
        ),
        schema("counts in patterns of allOf", 2, |n| {
            let pattern = |i| json!({"type": "string", "pattern": format!("(a|b)*a(a|b){{{i}}}")});
            json!({"allOf": (0..n).map(pattern).collect::<Vec<_>>()})
        })
        .program(),
        schema(
            "nested counts",
            2,
            |n| json!({"type": "string", "pattern": nested(n, "(", "ab", "){1,4}")}),
        ),
        schema(
            "alternatives of a pattern",
            8,
            |n| json!({"type": "string", "pattern": vec!["[a-z]+1"; n].join("|")}),
        ),
        schema("a minimum length", 16, |n| json!({"type": "string", "minLength": n})),
        schema(
            "a minimum of items",
            4,
            |n| json!({"type": "array", "items": {"type": "boolean"}, "minItems": n}),
        ),
        schema(
            "items one by one",
            8,
            |n| json!({"type": "array", "prefixItems": vec![json!({"type": "integer"}); n]}),
        ),
        schema("anyOf", 8, |n| {
            let one = |i: usize| {
                json!({"type": "object", "required": [format!("k{i}")],
                "properties": {format!("k{i}"): {"type": "integer"}}})
            };
            json!({"anyOf": (0..n).map(one).collect::<Vec<_>>()})
        }),
        schema("a chain of references", 4, |n| {
            let link = |i: usize| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}));
            let mut defs: Map<String, Value> = (0..n).map(link).collect();
            defs.insert(format!("d{n}"), json!({"type": "null"}));
            json!({"$ref": "#/$defs/d0", "$defs": defs})
        }),
        schema("references that double", 2, |n| {
            let link = |i: usize| {
                let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
                (format!("d{i}"), json!({"type": "array", "prefixItems": [next, next]}))
            };
            let mut defs: Map<String, Value> = (0..n).map(link).collect();
            defs.insert(format!("d{n}"), json!({"type": "null"}));
            json!({"$ref": "#/$defs/d0", "$defs": defs})
        })
        .program(),
        schema("a multiple", 4, |n| json!({"type": "integer", "multipleOf": n})),
        schema(
            "a range of integers",
            4,
            |n| json!({"type": "integer", "minimum": -(n as i64), "maximum": n}),
        ),
        nested_schema("nested allOf", r#"{"allOf":["#, "]}"),
        nested_schema("nested anyOf", r#"{"anyOf":[{"type":"integer"},"#, "]}"),
        nested_schema("nested not", r#"{"not":"#, "}"),
        nested_schema("nested items", r#"{"type":"array","items":"#, "}"),
        nested_schema("nested properties", r#"{"type":"object","properties":{"a":"#, "}}"),
    ]
}

fn grammars() -> Vec<Growth> {
    const REGEX: u8 = 0;
    const LARK: u8 = 1;
    const GBNF: u8 = 2;
    const CHOICE: u8 = 3;
    let grammar = |kind: u8, what: &'static str, first, make: fn(usize) -> String| {
        let dialect = ["regex", "Lark", "GBNF", "choice"][usize::from(kind)];
        grow("grammar", format!("{dialect}: {what}"), first, move |n| {
            [&[kind][..], make(n).as_bytes()].concat()
        })
    };
    let terminal = |i: usize| format!("T{i}: /[a-z]+{i}/\n");
    vec![
        grammar(REGEX, "letters", 64, |n| "ab".repeat(n)),
        grammar(REGEX, "a count", 4, |n| format!("(a|b)*a(a|b){{{n}}}")),
        grammar(REGEX, "nested counts", 2, |n| nested(n, "(", "ab", "){1,4}")),
        grammar(REGEX, "nested stars", 4, |n| nested(n, "(", "a", ")*")),
        grammar(REGEX, "alternatives", 8, |n| vec!["[a-z]+1"; n].join("|")),
        grammar(REGEX, "optional letters", 8, |n| "a?".repeat(n)),
        grammar(REGEX, "classes of letters", 8, |n| r"\p{L}".repeat(n)),
        grammar(LARK, "a chain", 4, |n| {
            let rule = |i: usize| format!("r{i}: r{}\n", i + 1);
            format!("start: r0\n{}r{n}: \"a\"\n", (0..n).map(rule).collect::<String>())
        }),
        grammar(LARK, "terminals that double", 5, |n| {
            let rule = |i: usize| format!("T{i}: T{} T{}\n", i + 1, i + 1);
            format!("start: T0\n{}T{n}: \"a\"\n", (0..n).map(rule).collect::<String>())
        })
        .program(),
        grammar(LARK, "a chain of terminals", 8, |n| {
            let rule = |i: usize| format!("T{i}: T{}\n", i + 1);
            format!("start: T0\n{}T{n}: \"a\"\n", (0..n).map(rule).collect::<String>())
        }),
        grammar(LARK, "rules that double", 5, |n| {
            let rule = |i: usize| format!("r{i}: r{} r{}\n", i + 1, i + 1);
            format!("start: r0\n{}r{n}: \"a\"\n", (0..n).map(rule).collect::<String>())
        })
        .program(),
        grow("grammar", "Lark: terminals", 8, move |n| {
            let names: Vec<String> = (0..n).map(|i| format!("T{i}")).collect();
            let rules: String = (0..n).map(terminal).collect();
            [&[LARK][..], format!("start: {}\n{rules}", names.join(" | ")).as_bytes()].concat()
        }),
        grammar(LARK, "repeated rules", 4, |n| format!("start: r{{0,{n}}}\nr: \"a\" | \"b\"\n")),
        grammar(GBNF, "a chain", 4, |n| {
            let rule = |i: usize| format!("r{i} ::= r{}\n", i + 1);
            format!("root ::= r0\n{}r{n} ::= \"a\"\n", (0..n).map(rule).collect::<String>())
        }),
        grammar(GBNF, "rules that double", 5, |n| {
            let rule = |i: usize| format!("r{i} ::= r{} r{}\n", i + 1, i + 1);
            format!("root ::= r0\n{}r{n} ::= \"a\"\n", (0..n).map(rule).collect::<String>())
        })
        .program(),
        grammar(GBNF, "groups", 4, |n| format!("root ::= {}", nested(n, "(", "\"a\"", ")*"))),
        grammar(GBNF, "counts", 4, |n| format!("root ::= \"a\"{{{n}}}")),
        grammar(GBNF, "alternatives", 8, |n| format!("root ::= {}", vec!["[a-z]+"; n].join(" | "))),
        grammar(CHOICE, "texts", 8, |n| {
            (0..n).map(|i| format!("text {i}")).collect::<Vec<_>>().join("\n")
        }),
        grammar(CHOICE, "a long text", 64, |n| "a".repeat(n)),
    ]
}

fn answers() -> Vec<Growth> {
    // Every format, read in pieces of several letters.
    let formats = (0..6_u8).map(|format| (format, 7)).chain((0..14).map(|more| (6, more << 3 | 7)));
    let texts = [
        "a",
        "{",
        "[",
        "<",
        "\"",
        "\\",
        "{\"a\":",
        "<tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "<|channel|>",
        "<function=f>",
        "<parameter=a>",
        "f(a='",
        "\u{2581}\u{1f600}",
    ];
    let mut all = Vec::new();
    for (format, piece) in formats {
        for text in texts {
            all.push(grow("answer", format!("{text} in format {format}, {piece}"), 64, move |n| {
                [&[format, piece][..], text.repeat(n).as_bytes()].concat()
            }));
        }
    }
    all
}

/// A body of an endpoint, with what grows in each of the fields that take texts or lists.
fn body(fields: &[&str], grown: &Value) -> Value {
    let mut body = json!({"model": "tiny", "max_tokens": 1, "max_output_tokens": 1, "n_predict": 1,
                          "options": {"num_predict": 1}, "stream": false});
    for field in fields {
        body[*field] = grown.clone();
    }
    body
}

fn requests() -> Vec<Growth> {
    /// The fields that the endpoints read their texts from.
    const TEXTS: &[&str] = &[
        "prompt",
        "input",
        "content",
        "query",
        "text_1",
        "text_2",
        "documents",
        "input_prefix",
        "input_suffix",
        "tokens",
        "system",
        "instructions",
        "name",
        "tool",
    ];
    type Make = fn(usize) -> Value;
    let text: Make = |n| body(TEXTS, &json!("a ".repeat(n)));
    let word: Make = |n| body(TEXTS, &json!("a".repeat(n)));
    let signs: Make = |n| body(TEXTS, &json!("\u{1f600}<s>\n".repeat(n)));
    let texts: Make = |n| body(TEXTS, &json!(vec!["a"; n]));
    let ids: Make = |n| body(TEXTS, &json!(vec![3; n]));
    let messages: Make = |n| {
        let message = json!({"role": "user", "content": "a"});
        body(&["messages", "input"], &json!(vec![message; n]))
    };
    let parts: Make = |n| {
        let message =
            json!({"role": "user", "content": vec![json!({"type": "text", "text": "a"}); n]});
        body(&["messages", "input"], &json!([message]))
    };
    let tools: Make = |n| {
        let tool = |i: usize| {
            let parameters = json!({"type": "object", "properties": {"a": {"type": "string"}}});
            json!({"type": "function", "name": format!("f{i}"), "parameters": parameters,
                   "input_schema": parameters,
                   "function": {"name": format!("f{i}"), "parameters": parameters}})
        };
        let mut all = body(&["messages", "input"], &json!([{"role": "user", "content": "a"}]));
        all["tools"] = json!((0..n).map(tool).collect::<Vec<_>>());
        all
    };
    let unknown: Make = |n| {
        let mut all = body(TEXTS, &json!("a"));
        all["unknown"] = members(n, |i| json!(i));
        all
    };
    let nests: Make = |n| {
        let deep = nested(n.min(120), "[", "1", "]");
        body(TEXTS, &serde_json::from_str(&deep).expect("nested lists"))
    };
    let kinds: [(&str, Make); 10] = [
        ("words", text),
        ("a long word", word),
        ("signs", signs),
        ("texts", texts),
        ("ids", ids),
        ("messages", messages),
        ("parts", parts),
        ("tools", tools),
        ("unknown fields", unknown),
        ("nested lists", nests),
    ];
    let mut all = Vec::new();
    for (place, path) in PATHS.iter().enumerate() {
        let place = u8::try_from(place).expect("few endpoints");
        for (kind, make) in kinds {
            all.push(grow("request", format!("{kind} to {path}"), 64, move |n| {
                [&[place][..], make(n).to_string().as_bytes()].concat()
            }));
        }
    }
    all
}
