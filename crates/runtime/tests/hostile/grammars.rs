//! Grammars of every kind that grow in all the ways a library multiplies: each is compiled, or
//! refused, within a bound of its thread's processor time and memory.

use std::sync::mpsc::channel;
use std::time::Duration;

use realizar_formats::{Array, Gguf, GgufWriter};
use realizar_runtime::constrain::{CompileHandle, Constrainer, Error, Grammar};
use realizar_runtime::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use super::PEAK;
use super::random::Random;

/// The processor time that the thread of a compilation may take.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// The memory that it may hold.
const MEMORY_LIMIT: usize = 256 << 20;

/// How many random grammars are compiled.
const N_SEEDS: u64 = 150;

/// A vocabulary of bytes and of all words of two and three small letters.
fn tokenizer() -> Tokenizer {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let byte_char = |byte: u8| {
        let n_before = (0..byte).filter(|b| !printable(b)).count() as u32;
        if printable(&byte) {
            byte as char
        } else {
            char::from_u32(256 + n_before).expect("a char")
        }
    };
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    let letters = || (b'a'..=b'z').map(char::from);
    tokens.extend(letters().flat_map(|a| letters().map(move |b| format!("{a}{b}"))));
    let two: Vec<String> = tokens[256..].to_vec();
    tokens.extend(two.iter().flat_map(|ab| letters().map(move |c| format!("{ab}{c}"))));
    let mut types = vec![1_i32; tokens.len()];
    tokens.push("</s>".to_owned());
    types.push(3);
    let mut writer = GgufWriter::new();
    let mut set = |key: &str, value: realizar_formats::Value| writer.set(key, value).expect("set");
    set("general.architecture", "llama".into());
    set("tokenizer.ggml.model", "gpt2".into());
    set("tokenizer.ggml.pre", "gpt-2".into());
    set("tokenizer.ggml.tokens", Array::from_strs(&tokens).into());
    set("tokenizer.ggml.token_type", Array::from(types.as_slice()).into());
    set("tokenizer.ggml.merges", Array::from_strs(["a b"]).into());
    set("tokenizer.ggml.eos_token_id", (tokens.len() as u32 - 1).into());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("vocab.gguf");
    writer.write_file(&path).expect("write");
    Tokenizer::from_gguf(Gguf::open(&path).expect("open").metadata()).expect("a tokenizer")
}

/// The processor time of this thread, where the system tells it.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(stat.split(' ').next()?.parse().ok()?))
}

/// The costs of a compilation, and its error if it had one.
struct Outcome {
    time: Option<Duration>,
    bytes: usize,
    error: Option<Error>,
}

fn compile(constrainer: &Constrainer, grammar: Grammar) -> Outcome {
    let (sender, receiver) = channel();
    let done = move |compiled: Result<_, Error>| {
        let bytes = usize::try_from(PEAK.get()).unwrap_or(0);
        let outcome = Outcome { time: processor_time(), bytes, error: compiled.err() };
        sender.send(outcome).expect("the test waits for it");
    };
    constrainer.start(grammar, &CompileHandle::default(), done).expect("a thread");
    receiver.recv().expect("it ends")
}

impl Random {
    /// A number up to `n`, small ones as often as large ones.
    fn size(&mut self, n: usize) -> usize {
        let bits = 1 + self.below((usize::BITS - n.leading_zeros()) as usize);
        1 + self.below(n.min(1 << bits))
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A regular expression of about `size` characters.
fn expression(random: &mut Random, size: usize) -> String {
    if size <= 4 {
        let simple = ["a", "b", "[ab]", "(a|b)*", "\\w", ".", "[^a]", "é", "\\s", "\\p{L}"];
        return (*random.of(&simple)).to_owned();
    }
    let n = random.size(2000);
    match random.below(7) {
        0 => {
            let n = random.size(size / 4).min(1000);
            (0..n).map(|_| expression(random, size / n.max(1))).collect()
        }
        1 => {
            let n = random.size(size / 4).min(1000);
            let all: Vec<_> = (0..n).map(|_| expression(random, size / n.max(1))).collect();
            format!("({})", all.join("|"))
        }
        2 => format!("({}){{{n}}}", expression(random, size - 4)),
        3 => format!("({}){{0,{n}}}", expression(random, size - 4)),
        4 => format!("({})+", expression(random, size - 4)),
        5 => format!("(a|b)*a(a|b){{{}}}", n % 40),
        _ => format!("{}(a|b){{{n}}}", expression(random, size / 2)),
    }
}

/// A schema of about `size` parts, with references to `n_defs` definitions.
fn schema(random: &mut Random, size: usize, n_defs: usize) -> Value {
    if size <= 1 {
        return match random.below(6) {
            0 if n_defs > 0 => json!({"$ref": format!("#/$defs/{}", random.below(n_defs))}),
            1 => {
                let size = random.size(200);
                json!({"type": "string", "pattern": expression(random, size)})
            }
            2 => json!({"maxLength": random.size(1 << 20), "pattern": "(a|b)*a(a|b){9}"}),
            3 => json!({"type": "integer", "multipleOf": random.size(10_000)}),
            4 => json!({"type": "string", "format": *random.of(&["email", "uri", "ipv6"])}),
            _ => json!({"enum": (0..random.size(300)).collect::<Vec<_>>()}),
        };
    }
    let n = 1 + random.size(size.min(2000));
    let parts = |random: &mut Random| -> Vec<Value> {
        (0..n).map(|_| schema(random, size / n, n_defs)).collect()
    };
    let named = |all: Vec<Value>| -> Map<String, Value> {
        all.into_iter().enumerate().map(|(i, part)| (format!("p{i}"), part)).collect()
    };
    match random.below(9) {
        0 | 1 => json!({"allOf": parts(random)}),
        2 => json!({"anyOf": parts(random)}),
        3 => json!({"oneOf": parts(random)}),
        4 => {
            let names: Vec<String> = (0..n).map(|i| format!("p{i}")).collect();
            json!({"type": "object", "properties": named(parts(random)), "required": names})
        }
        5 => {
            json!({"properties": named(parts(random)), "allOf": [schema(random, size / 2, n_defs)]})
        }
        6 => json!({"type": "array", "items": schema(random, size - 1, n_defs),
                    "minItems": random.size(1000)}),
        7 => {
            let all = parts(random).into_iter().enumerate();
            let all: Map<String, Value> =
                all.map(|(i, part)| (format!("^{i}(a|b){{{}}}", i % 50), part)).collect();
            json!({"type": "object", "patternProperties": all})
        }
        _ => json!({"type": "string", "allOf": (0..n.min(500)).map(|_| {
            let size = random.size(2000 / n.min(500));
            json!({"pattern": expression(random, size)})
        }).collect::<Vec<_>>()}),
    }
}

/// Terminals or rules, each of later ones.
fn chain(random: &mut Random, n: usize, name: char, operators: &[&str]) -> String {
    let separator = if name.is_ascii_uppercase() { ":" } else { ": " };
    let mut text = format!("start{separator}{name}0\n");
    for i in 0..n {
        let next = format!("{name}{}", i + 1 + random.below((n - i).min(3)));
        let last = format!("{name}{}", i + 1);
        let operator = random.of(operators).replace('X', &next).replace('Y', &last);
        text.push_str(&format!("{name}{i}{separator}{operator}\n"));
    }
    text.push_str(&format!("{name}{n}{separator}\"x\" | /[ab]+/\n"));
    text
}

/// A grammar that fits into what is accepted.
fn grammar(random: &mut Random) -> Grammar {
    let large = random.size(6000);
    match random.below(8) {
        0..=2 => {
            let n_defs = random.below(50);
            let defs: Map<String, Value> = (0..n_defs)
                .map(|i| {
                    let size = random.size(30);
                    (i.to_string(), schema(random, size, n_defs.min(i + 1)))
                })
                .collect();
            let mut all = schema(random, large, n_defs);
            all["$defs"] = Value::Object(defs);
            Grammar::JsonSchema(all)
        }
        3 => Grammar::Regex(expression(random, large)),
        4 => Grammar::Lark(chain(
            random,
            large,
            'T',
            &[
                "X Y",
                "X | Y \"a\"",
                "\"(\" X \")\"",
                "X Y?",
                "X* Y",
                "X & Y",
                "X & ~Y",
                "X~1..50 Y",
            ],
        )),
        5 => Grammar::Lark(chain(random, large, 'T', &["X X", "Y Y", "X | Y", "Y Y | X"])),
        6 => Grammar::Lark(chain(
            random,
            large,
            'r',
            &["X Y", "X | Y \"a\"", "X Y?", "X* Y", "X~1..50 Y"],
        )),
        _ => {
            let n = random.size(20_000);
            let text = |i: usize| format!("{}{i}", "ab".repeat(i % 6));
            Grammar::Choice((0..n).map(text).collect())
        }
    }
}

/// Compiles it, and says what is wrong with what that took.
fn judge(constrainer: &Constrainer, what: &str, grammar: Grammar) -> Option<String> {
    let shown = format!("{grammar:.300?}");
    let outcome = compile(constrainer, grammar);
    let error = outcome.error.map_or_else(|| "compiled".to_owned(), |error| error.to_string());
    let time = outcome.time.unwrap_or_default();
    let within = time <= TIME_LIMIT && outcome.bytes <= MEMORY_LIMIT;
    (!within).then(|| {
        let shown: String = shown.chars().take(400).collect();
        format!("{what}: {time:.2?}, {} bytes: {error}: {shown}", outcome.bytes)
    })
}

#[test]
fn random_grammars_take_bounded_work() {
    let constrainer = Constrainer::new(&tokenizer()).expect("a constrainer");
    let failures: Vec<String> = (0..N_SEEDS)
        .filter_map(|seed| {
            let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            judge(&constrainer, &format!("seed {seed}"), grammar(&mut random))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The grammars with which one part grows as far as the text of a grammar may.
fn worst() -> Vec<(&'static str, Grammar)> {
    let schema = Grammar::JsonSchema;
    let doubling = |operator: &str, n: usize| {
        let lines: String = (0..n)
            .map(|i| format!("T{i}: {}\n", operator.replace('X', &format!("T{}", i + 1))))
            .collect();
        Grammar::Lark(format!("start: T0\n{lines}T{n}: \"ab\"\n"))
    };
    let defs = |n: usize, of: &dyn Fn(usize) -> Value, last: Value| -> Value {
        let mut all: Map<String, Value> = (0..n).map(|i| (i.to_string(), of(i))).collect();
        all.insert(n.to_string(), last);
        json!({"$ref": "#/$defs/0", "$defs": all})
    };
    let twice = |i: usize| {
        let next = json!({"$ref": format!("#/$defs/{}", i + 1)});
        json!({"allOf": [next, next]})
    };
    let letters = |i: usize| format!("(a|b)*a(a|b){{{i}}}");
    let names = |n: usize| -> Vec<String> { (0..n).map(|i| format!("n{i}")).collect() };
    let object = |n: usize| -> Map<String, Value> {
        names(n).into_iter().map(|name| (name, json!(true))).collect()
    };
    let big = "x".repeat(100_000);
    let any_rule = |n: usize, rule: &dyn Fn(usize) -> String| {
        let all: Vec<String> = (0..n).map(|i| format!("r{i}")).collect();
        let rules: String = (0..n).map(|i| format!("r{i}: {}\n", rule(i))).collect();
        Grammar::Lark(format!("start: {}\n{rules}", all.join(" | ")))
    };
    vec![
        ("patterns of allOf", schema(json!({"allOf": (0..15).map(|i| {
            json!({"type": "string", "pattern": letters(i)})
        }).collect::<Vec<_>>()}))),
        ("patterns of many strings", schema(json!({"properties": (0..1500).map(|i| {
            (format!("n{i}"), json!({"allOf": [{"type": "string", "pattern": letters(9)},
                                               {"pattern": letters(8)}]}))
        }).collect::<Map<_, _>>(), "required": names(1500)}))),
        ("required names", schema(json!({"type": "object", "required": names(20_000)}))),
        ("required names with properties", schema(json!({"type": "object",
            "properties": object(8_000), "required": names(8_000)}))),
        ("required names in alternatives", schema(json!({"anyOf": vec![json!({"$ref": "#/$defs/a"}); 8_000],
            "$defs": {"a": {"type": "object", "required": names(5_000)}}}))),
        ("doubling terminals", doubling("X X", 40)),
        ("doubling alternatives", doubling("X | \"c\" X X", 40)),
        ("doubling intersections", doubling("X & (X | \"c\" X)", 40)),
        ("doubling repeats", doubling("(X \"a\"){2}", 3_000)),
        ("growing terminals", doubling("\"(\" X \")\"", 3_000)),
        ("growing terminals by one", doubling("X \"a\"", 3_000)),
        ("optional terminals", doubling("X? \"a\"?", 3_000)),
        ("doubling strings", schema(defs(40, &twice, json!({"type": "string", "pattern": "a"})))),
        ("doubling objects", schema(defs(40, &twice, json!({"properties": {"a": {"pattern": "a"}}})))),
        ("expressions of properties", schema(json!({"patternProperties": (0..4000).map(|i| {
            (format!("^a{i}$"), json!(true))
        }).collect::<Map<_, _>>()}))),
        ("expressions of properties, searched", schema(json!({"patternProperties": (0..15).map(|i| {
            (letters(i), json!(true))
        }).collect::<Map<_, _>>(), "properties": {"abababababbbabababababababab": true}}))),
        ("names and expressions", schema(json!({"patternProperties": (0..60).map(|i| {
            (format!("^{i}(a|b)*a(a|b){{9}}$"), json!(true))
        }).collect::<Map<_, _>>(), "properties": object(400)}))),
        ("constants of oneOf", schema(json!({"oneOf": (0..13_000).map(|i| {
            json!({"const": i.to_string()})
        }).collect::<Vec<_>>()}))),
        ("objects of oneOf", schema(json!({"oneOf": (0..3_000).map(|i| {
            json!({"type": "object", "properties": {"k": {"const": i.to_string()}}, "required": ["k"]})
        }).collect::<Vec<_>>()}))),
        ("a large constant in alternatives", schema(json!({"anyOf": vec![json!({"minLength": 1}); 7_000],
            "const": big}))),
        ("large constants by reference", schema(json!({"allOf": (0..5_000).map(|_| {
            json!({"$ref": "#/$defs/a"})
        }).collect::<Vec<_>>(), "$defs": {"a": {"const": big}}}))),
        ("enums in allOf", schema(json!({"allOf": vec![json!({"enum": (0..3_000).collect::<Vec<_>>()}); 9]}))),
        ("classes", Grammar::Regex("\\w".repeat(131_000))),
        ("classes of categories", Grammar::Regex("[\\p{L}\\p{N}]".repeat(20_000))),
        ("classes without case", Grammar::Regex(format!("(?i){}", "[k-z]".repeat(50_000)))),
        ("classes of a schema", schema(json!({"type": "string", "pattern": "\\p{L}".repeat(50_000)}))),
        ("repeats of repeats", Grammar::Regex("(((a{1000}){1000}|b){1000}c{0,1000}){1000}".to_owned())),
        ("repeats of alternatives", Grammar::Regex(format!("({}){{999}}", "(a|b)*a(a|b){30}|".repeat(5_000)))),
        ("repeated rules", Grammar::Lark("start: a~1..2000000\na: b~1..2000000\nb: \"x\"".to_owned())),
        ("a substring of characters", Grammar::Lark(format!(
            "start: S\nS: %regex {{\"substring_chars\": \"{}\"}}", "abcabdacd".repeat(28_000)))),
        ("a substring of words", Grammar::Lark(format!(
            "start: S\nS: %regex {{\"substring_words\": \"{}\"}}", "a b c d ab ".repeat(23_000)))),
        ("long choices", Grammar::Choice((0..2_000).map(|i| format!("{}{i}", "a".repeat(120))).collect())),
        ("many rules", Grammar::Gbnf((0..7_000).fold("root ::= r0\n".to_owned(), |text, i| {
            format!("{text}r{i} ::= \"a\" r{} | r{} \"b\"\n", i + 1, i + 1)
        }) + "r7000 ::= \"x\"\n")),
        ("rules that double", Grammar::Gbnf((0..60).fold("root ::= r0\n".to_owned(), |text, i| {
            format!("{text}r{i} ::= r{} r{}\n", i + 1, i + 1)
        }) + "r60 ::= root | \"x\"\n")),
        ("rules that begin with one another", any_rule(2500, &|i| format!("start \"{i}\" | \"x\""))),
        ("rules within one another", any_rule(2500, &|i| format!("\"{i}\" start | start \"{i}\""))),
        ("rules that may be empty", Grammar::Lark((0..5_000).fold("start: r0\n".to_owned(), |text, i| {
            format!("{text}r{i}: r{0}? r{0}? r{0}?\n", i + 1)
        }) + "r5000: \"x\"?\n")),
        ("words before numbers", any_rule(2500, &|i| format!("/\\w*{i}/"))),
        ("any characters", Grammar::Regex(".".repeat(250_000))),
        ("arrays of arrays", schema((0..90).fold(json!({"pattern": letters(12)}), |inner, _| {
            json!({"type": "array", "items": inner, "minItems": 999, "maxItems": 1000})
        }))),
        ("prefixes", schema(json!({"prefixItems": vec![json!({"$ref": "#/$defs/a"}); 9_000], "minItems": 9_000,
            "$defs": {"a": {"type": "string", "pattern": "^a+$"}}}))),
        ("lengths", schema(json!({"type": "string", "minLength": 4_000_000_000_u64, "pattern": letters(30)}))),
        ("bounds", schema(json!({"anyOf": (0..5_000).map(|i| {
            json!({"type": "number", "minimum": f64::from(i) * 1.37e-5, "maximum": f64::from(i) * 9.9e9 + 1.0})
        }).collect::<Vec<_>>()}))),
        ("divisors", schema(json!({"anyOf": (0..3_000).map(|i| {
            json!({"type": "integer", "multipleOf": 9_000 + i % 1000, "minimum": 5 + i})
        }).collect::<Vec<_>>()}))),
    ]
}

#[test]
fn grammars_that_grow_in_one_way_take_bounded_work() {
    let constrainer = Constrainer::new(&tokenizer()).expect("a constrainer");
    let failures: Vec<String> = worst()
        .into_iter()
        .filter_map(|(what, grammar)| judge(&constrainer, what, grammar))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let answer = constrainer.compile(&Grammar::JsonObject).and_then(|mut it| it.compute_mask());
    assert!(answer.expect("a mask").count() > 0);
}
