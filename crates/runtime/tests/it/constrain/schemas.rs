//! Texts that a JSON schema takes or refuses: objects with properties that are not listed, and
//! keywords as generators of schemas write them.

use realizar_runtime::constrain::{AdditionalProperties, Grammar};
use serde_json::{Value, json};

use super::{check_texts, constrainer, takes};

fn check(schema: &Value, right: &[&str], wrong: &[&str]) {
    check_texts(&Grammar::JsonSchema(schema.clone()), right, wrong);
}

/// Whether an answer may be `text`, by default and where JSON Schema is followed to the letter.
fn check_objects(schema: &Value, text: &str, closed: bool, open: bool) {
    let takes_with = |objects| {
        let constrainer = constrainer().additional_properties(objects);
        let grammar = Grammar::JsonSchema(schema.clone());
        let constraint = constrainer.compile(&grammar).expect("a grammar");
        takes(&constraint, text)
    };
    let got = (takes_with(AdditionalProperties::Closed), takes_with(AdditionalProperties::Allowed));
    assert_eq!(got, (closed, open), "{schema}: {text}");
}

#[test]
fn json_texts_that_a_schema_takes_or_refuses() {
    let check = |schema: Value, right: &[&str], wrong: &[&str]| check(&schema, right, wrong);
    check(
        json!({"properties": {"a": {"type": "integer"}}, "type": "object",
               "additionalProperties": true}),
        &["{}", "{\"a\": 1}", "{\"a\":1,\"b\":\"x\"}", "{\n  \"a\": 1\n}", "{\"\\\"\": 1}"],
        &[
            "[]",
            "{\"a\":\"1\"}",
            // The same name again, plainly and in disguise.
            "{\"a\":1,\"a\":\"x\"}",
            "{\"a\":1,\"\\u0061\":\"x\"}",
            "{\"a\":1",
            "{   \"a\":1}",
            "{\n\n\"a\":1}",
        ],
    );
    check(json!({"type": "string"}), &["\"é\\n日\"", "\"\""], &["\"\n\"", "\"\\q\"", "a"]);
    check(json!({"const": "x/\"y"}), &[r#""x/\"y""#], &[r#""x/"#]);
    check(json!({"type": "integer", "multipleOf": 3}), &["9", "-3", "0"], &["4", "3.0"]);
    check(json!({"type": ["null", "boolean"]}), &["null", "true"], &["0", "nul"]);
    check(
        json!({"type": "string", "pattern": r"^\d{2}/[a-z]$"}),
        &["\"12/a\""],
        &["\"12/\"", "\"112/a\"", "\"1٣/a\""],
    );
    check(
        json!({"allOf": [{"minimum": 2}, {"maximum": 5}], "type": "integer"}),
        &["2", "5"],
        &["1", "6"],
    );
    check(json!({"oneOf": [{"type": "string"}, {"type": "null"}]}), &["null", "\"\""], &["true"]);
    let names =
        json!({"propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}});
    check(json!({"type": "object", "allOf": [names]}), &["{}", "{\"a\":null}"], &["{\"a\":1}"]);
    let list = json!({"items": {"type": "string", "format": "binary"}, "uniqueItems": false});
    check(json!({"type": "array", "allOf": [list]}), &["[\"a\",\"a\"]"], &["[1]"]);
    let escaped = json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {
        "type": "array", "items": {"$ref": "#/$defs/a~1b"}, "maxItems": 1}}});
    check(escaped, &["[]", "[[[]]]"], &["[1]", "[[],[]]"]);
    check(
        json!({
            "type": "object",
            "properties": {"not": {"$ref": "#"}},
            "additionalProperties": false,
        }),
        &["{\"not\":{\"not\":{}}}"],
        &["{\"not\":1}"],
    );
    let large = json!({"type": "array", "minItems": 1_000_000_000, "items": {"type": "null"}});
    check(large, &[], &["[]", "[null]"]);
}

#[test]
fn objects_that_list_their_properties_have_no_others() {
    let object = |more: Value| {
        let mut schema = json!({"type": "object", "properties": {"a": {"type": "null"}}});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    // Of which nothing else is said.
    check_objects(&object(json!({})), r#"{"a":null}"#, true, true);
    check_objects(&object(json!({})), r#"{"a":null,"b":1}"#, false, true);
    check_objects(&object(json!({})), "{}", true, true);
    check_objects(&json!({"properties": {"a": true}}), r#"{"b":1}"#, false, true);
    check_objects(&json!({"properties": {"a": true}}), "[]", true, true);
    check_objects(&json!({"type": "object", "properties": {}}), r#"{"b":1}"#, false, true);
    check_objects(
        &object(json!({"required": ["a"], "minProperties": 1})),
        r#"{"a":null}"#,
        true,
        true,
    );
    check_objects(&json!({"items": object(json!({}))}), r#"[{"b":1}]"#, false, true);
    let lark = |schema: &Value| Grammar::Lark(format!("start: %json {schema}"));
    check_texts(&lark(&object(json!({}))), &[r#"{"a":null}"#], &[r#"{"b":1}"#]);

    // Of which something is.
    check_objects(&json!({"type": "object"}), r#"{"b":1}"#, true, true);
    check_objects(&object(json!({"additionalProperties": true})), r#"{"b":1}"#, true, true);
    check_objects(&object(json!({"additionalProperties": false})), r#"{"b":1}"#, false, false);
    check_objects(
        &object(json!({"additionalProperties": {"type": "null"}})),
        r#"{"b":null}"#,
        true,
        true,
    );
    check_objects(&object(json!({"patternProperties": {"^x": true}})), r#"{"b":1}"#, true, true);
    check_objects(&object(json!({"required": ["b"]})), r#"{"b":1}"#, true, true);
    check_objects(&object(json!({"required": ["b"]})), r#"{"b":1,"c":1}"#, true, true);
    let two =
        json!({"properties": {"a": true}, "required": ["a"], "minProperties": 2, "type": "object"});
    check_objects(&two, r#"{"a":1,"b":1}"#, true, true);
}

#[test]
fn schemas_that_apply_to_one_object_are_merged_before_it_is_closed() {
    let named = |name: &str| json!({"type": "object", "properties": {name: {"type": "null"}}});
    let both = json!({"allOf": [named("a"), named("b")]});
    check_objects(&both, r#"{"a":null,"b":null}"#, true, true);
    check_objects(&both, r#"{"a":null,"c":1}"#, false, true);
    let beside = json!({"$ref": "#/$defs/a", "properties": {"b": {"type": "null"}},
                        "$defs": {"a": named("a")}});
    check_objects(&beside, r#"{"a":null,"b":null}"#, true, true);
    check_objects(&beside, r#"{"c":1}"#, false, true);
    let inherited = json!({"allOf": [{"$ref": "#/$defs/a"}, {"required": ["a"]}],
                           "$defs": {"a": named("a")}});
    check_objects(&inherited, r#"{"a":null}"#, true, true);
    check_objects(&inherited, r#"{"a":null,"c":1}"#, false, true);
    let opened = json!({"allOf": [named("a"), {"additionalProperties": {"type": "null"}}],
                        "properties": {"a": {"type": "null"}}});
    check_objects(&opened, r#"{"a":null,"c":null}"#, true, true);
    let by_pattern = json!({"allOf": [named("a"), {"patternProperties": {"^x": true}}]});
    check_objects(&by_pattern, r#"{"a":null,"c":1}"#, true, true);
    let either = json!({"properties": {"k": {"type": "null"}},
                        "anyOf": [named("a"), {"required": ["z"]}], "type": "object"});
    check_objects(&either, r#"{"k":null,"a":null}"#, true, true);
    check_objects(&either, r#"{"k":null,"c":1}"#, false, true);
    check_objects(&either, r#"{"k":null,"z":1}"#, true, true);
}

#[test]
fn control_characters_keep_their_place() {
    check(
        &json!({"enum": ["a\u{1}b", "\u{7f}", "\n\u{1f}"]}),
        &[r#""a\u0001b""#, r#""\u007f""#, r#""\n\u001f""#],
        &[r#""ab""#, r#""""#, r#""a\u0001""#, r#""\u0061\u0001b""#, r#""\n""#],
    );
    check(&json!({"const": {"k\u{2}": "\u{0}"}}), &[r#"{"k\u0002":"\u0000"}"#], &[r#"{"k":""}"#]);
    check(
        &json!({"enum": ["\u{1}", "b", "c"], "allOf": [{"minLength": 1, "pattern": "^[^c]$"}]}),
        &[r#""\u0001""#, r#""b""#],
        &[r#""c""#, r#""""#],
    );
    check(&json!({"type": "string", "pattern": "^a\u{1}$"}), &[r#""a\u0001""#], &[r#""a""#]);
    check(&json!({"type": "string", "pattern": "^a[\u{1}b]$"}), &[r#""ab""#], &[r#""a""#]);
}

#[test]
fn keywords_as_generators_write_them() {
    check(
        &json!({"type": "object", "propertyNames": {"enum": ["x", "y"]},
                "additionalProperties": {"type": "integer"}, "required": null}),
        &["{}", r#"{"x":1,"y":2}"#, r#"{"y":2}"#],
        &[r#"{"z":1}"#, r#"{"x":"1"}"#],
    );
    check(
        &json!({"type": "object", "propertyNames": {"$ref": "#/$defs/N"}, "required": ["x"],
                "$defs": {"N": {"enum": ["x"], "type": "string", "title": "N"}}}),
        &[r#"{"x":[]}"#],
        &["{}", r#"{"x":1,"z":1}"#],
    );
    let set = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
    check(&set, &["[]", "[1,2]"], &["[true]"]);
    let bounded =
        |least: Value, most: Value| json!({"type": "integer", "minimum": least, "maximum": most});
    check(
        &bounded(json!(i64::MIN), json!(i64::MAX)),
        &["0", "-9223372036854774784", "9223372036854774784"],
        &["9223372036854775808", "-9223372036854775809", "1.5"],
    );
    check(&bounded(json!(1), json!(u64::MAX)), &["1", "12345678901234567"], &["0"]);
    check(
        &json!({"type": "number", "minimum": -1e308, "maximum": 1e308}),
        &["0.5", "-7", "1234567890123456789"],
        &["true"],
    );
    for reference in ["#/$defs/a%20b", "#named"] {
        let schema =
            json!({"$ref": reference, "$defs": {"a b": {"$anchor": "named", "type": "null"}}});
        check(&schema, &["null"], &["1"]);
    }
    check(
        &json!({"type": "string", "format": "uuid4"}),
        &["\"01234567-89ab-4def-8123-456789abcdef\""],
        &["\"01234567-89ab-1def-8123-456789abcdef\""],
    );
    check(
        &json!({"type": "string", "format": "json-pointer", "pattern": "b$"}),
        &["\"/a/b\""],
        &["\"b\"", "\"/a\""],
    );
    check(&json!({"type": "string", "format": "base64"}), &["\"aGk=\"", "\"\""], &["\"a\""]);
    check(&json!({"type": "string", "format": "regex"}), &["\"(\""], &["1"]);
}
