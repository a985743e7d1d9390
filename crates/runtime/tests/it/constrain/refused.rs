//! Grammars that are refused, and limits against hostile ones.

use realizar_runtime::constrain::Grammar;
use serde_json::{Value, json};

use super::budget::follow_letters;
use super::{constrainer, gbnf, lark};

#[test]
fn errors_say_what_and_where() {
    let constrainer = constrainer();
    let check = |grammar: Grammar, want: &str| {
        let error = constrainer.compile(&grammar).expect_err(want).to_string();
        assert!(error.contains(want) && !error.contains('\n'), "{want}: {error}");
        assert!(error.chars().count() < 1000, "{error}");
    };
    let schema = |schema: Value, want: &str| check(Grammar::JsonSchema(schema), want);
    schema(json!({"items": {"not": {}}}), "JSON schema at /items/not: the keyword `not`");
    schema(json!({"type": "string", "pattern": "("}), "JSON schema: regex parse error");
    schema(json!({"type": "string", "pattern": "a(?=b)"}), "JSON schema: regex parse error");
    schema(json!({"type": "string", "pattern": r"\bx"}), "lookarounds not supported");
    schema(json!({"$ref": "#/a"}), "JSON schema at /$ref: `#/a` leads to nothing");
    schema(
        json!({"oneOf": [{"type": "string"}, {"minLength": 2}]}),
        "`oneOf` is not supported where its members may overlap",
    );
    schema(json!({"type": "string", "minLength": 3, "maxLength": 2}), "Unsatisfiable schema");
    schema(json!({"required": 1, "type": "object"}), "Expected array for 'required'");
    schema(json!(7), "a schema must be an object");
    check(Grammar::Regex("a(".to_owned()), "regular expression: ");
    check(Grammar::Regex(r"a\b".to_owned()), "lookarounds not supported");
    check(Grammar::Regex(String::new()), "regular expression: it is empty");
    check(Grammar::Regex("[a&&b]".to_owned()), "regular expression: no text satisfies it");
    check(Grammar::Choice(Vec::new()), "choice: the list of choices is empty");
    check(lark("start: a\na: \"x"), "Lark grammar: 2(6): lexer error");
    check(lark("start: missing"), "missing");
    check(lark("root: \"a\""), "start");
    check(lark("start: %json {\"not\": 1}"), "Lark grammar at line 1: JSON schema at /not");
    check(gbnf("root ::= x"), "GBNF grammar at line 1, column 10: the rule `x` is not defined");
    check(gbnf("root ::= root \"a\""), "GBNF grammar: ");
}

#[test]
fn hostile_grammars_end_in_an_error_or_in_a_bounded_constraint() {
    let constrainer = constrainer();
    // The depth of calls follows the text, and these have about as much as is allowed.
    const N: usize = 26_000;
    let name = |i: usize| -> String {
        [26 * 26 * 26, 26 * 26, 26, 1]
            .map(|unit| char::from(b'a' + (i / unit % 26) as u8))
            .iter()
            .collect()
    };
    let chain = |n: usize, rule: &dyn Fn(&str, &str) -> String| -> String {
        (0..n).map(|i| rule(&name(i), &name(i + 1))).collect()
    };
    let text = chain(N, &|a, b| format!("{a}:{b}\n"));
    constrainer.compile(&lark(&format!("start:aaaa\n{text}{}:\"x\"", name(N)))).unwrap();
    let terminals = format!("start:AAAA\n{}{}:\"x\"", text.to_uppercase(), name(N).to_uppercase());
    constrainer.compile(&lark(&terminals)).unwrap();
    let text = chain(N / 2, &|a, b| format!("{a}::=\"(\"{b} a\n"));
    let text = format!("root::=aaaa\n{text}{}::=root?\na::=\"x\"?", name(N / 2));
    constrainer.compile(&gbnf(&text)).unwrap();
    let refs: serde_json::Map<String, Value> = (0..999)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/{}", i + 1)});
            let nested = (0..6).fold(next, |inner, _| json!({"type": "array", "items": inner}));
            (i.to_string(), json!({"allOf": [nested], "type": "array"}))
        })
        .chain([("999".to_owned(), json!(true))])
        .collect();
    let refs = json!({"$ref": "#/$defs/0", "$defs": refs});
    constrainer.compile(&Grammar::JsonSchema(refs)).unwrap();
    // Repetitions are counted, not written out.
    let counted = Grammar::Regex(r"(?:(?:\w{1000}){1000}){1000}".to_owned());
    assert!(constrainer.compile(&counted).unwrap().compute_mask().unwrap().count() > 100);

    let check = |grammar: Grammar, want: &str| {
        let error = constrainer.compile(&grammar).expect_err(want).to_string();
        assert!(error.contains(want), "{want}: {error}");
    };
    check(lark(&format!("start: {}\"a\"{}", "(".repeat(90_000), ")".repeat(90_000))), "nested");
    check(Grammar::Regex("(".repeat(100_000)), "regular expression: ");
    let growing = chain(6_000, &|a, b| format!("{a}:\"(\" {b} \")\"\n")).to_uppercase();
    let growing = format!("start: AAAA\n{growing}{}:\"x\"", name(6_000).to_uppercase());
    check(lark(&growing), "too big");
    check(Grammar::Regex("a".repeat(300_000)), "regular expression of 300000 bytes is too large");
    let product: Vec<Value> = (0..40)
        .map(|i| {
            let of =
                |ty: &str| json!({"type": "object", "properties": {i.to_string(): {"type": ty}}});
            json!({"anyOf": [of("null"), of("boolean")]})
        })
        .collect();
    check(Grammar::JsonSchema(json!({"allOf": product})), "multiply to");
    let both = json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
        "a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}},
        "b": {"type": "object", "properties": {"x": {"$ref": "#/$defs/b"}}},
    }});
    check(Grammar::JsonSchema(both), "JSON schema: ");

    // An expression with 2^24 states: the answer fails when the memory for them is used up.
    let wide = Grammar::Regex("(a|b)*a(a|b){24}".to_owned());
    let error = follow_letters(constrainer.compile(&wide).unwrap()).unwrap_err().to_string();
    assert!(error.contains("too many states: 50000"), "{error}");
}
