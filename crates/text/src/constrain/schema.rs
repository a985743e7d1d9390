//! What is checked of a JSON schema before the library compiles it, so that an error says where,
//! and so that nothing is let through that the schema forbids.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::references::References;
use super::rewrite::{MAX_BOUND, Rewriter};
use super::{
    AdditionalProperties, Error, MAX_GRAMMAR_BYTES, MAX_INDENT, MAX_NESTING, MAX_REFS, estimate,
    formats, regex,
};

pub(super) const WHAT: &str = "JSON schema";

/// Keywords of any draft that restrict values and are not supported. The library knows most of
/// them by draft, and treats those of later drafts as annotations.
const UNSUPPORTED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    OPTIONS,
    COPIES,
];

/// The keyword by which the library takes options; in a schema from outside it could turn the
/// checks off.
const OPTIONS: &str = "x-guidance";

/// The keyword below which copies of targets stand.
pub(super) const COPIES: &str = "x-targets";

const TYPES: &[&str] = &["null", "boolean", "integer", "number", "string", "array", "object"];

/// Formats of strings that the library knows; `formats` has more.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Formats of strings that are not enforced: they say how a string is used and not what it looks
/// like, or no grammar describes them.
pub const UNENFORCED_FORMATS: &[&str] = &[
    "binary",
    "password",
    "path",
    "file-path",
    "directory-path",
    "regex",
    "iri",
    "iri-reference",
    "idn-email",
    "idn-hostname",
    "uri-template",
    "multi-host-uri",
    "name-email",
    "color",
    "json-string",
];

/// Keywords that have no value `null`; some generators write it for a missing one.
pub(super) const NO_NULL: &[&str] = &[
    "required",
    "properties",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];

/// The schema with the options that this crate wants, if it can be used.
pub(super) fn prepare(schema: &Value, objects: AdditionalProperties) -> Result<Value, Error> {
    let mut size = 0;
    measure(schema, 0, &mut size)?;
    if size > MAX_GRAMMAR_BYTES {
        let limit = MAX_GRAMMAR_BYTES;
        return Err(Error::TooLarge { what: WHAT, found: size, unit: "bytes", limit });
    }
    let references = References::new(schema);
    let mut checker =
        Checker { references: &references, seen: HashSet::new(), pending: Vec::new() };
    checker.schema(schema, &mut String::new())?;
    while let Some((target, mut pointer)) = checker.pending.pop() {
        checker.schema(target, &mut pointer)?;
    }
    let prepared = match schema {
        Value::Bool(false) => return Err(fail("", "`false` allows nothing")),
        Value::Object(_) => Rewriter::rewrite(schema, &references)?,
        _ => Map::new(),
    };
    let mut prepared = Value::Object(prepared);
    estimate::check(&prepared)?;
    let options = json!({
        "close_objects": objects == AdditionalProperties::Closed,
        "whitespace_pattern": format!(r"[\x20\x09]|\r?\n[\x20\x09]{{0,{MAX_INDENT}}}"),
        // With `u`, the name of a property could be spelled as that of another one.
        "json_allowed_escapes": "nrbtf\\\"",
    });
    prepared[OPTIONS] = options;
    Ok(prepared)
}

pub(super) fn fail(at: &str, problem: impl Into<String>) -> Error {
    Error::Grammar { what: WHAT, at: at.to_owned(), problem: problem.into() }
}

/// Adds up about how long the value is as text, and refuses what is nested too deeply.
pub(super) fn measure(value: &Value, depth: usize, size: &mut usize) -> Result<(), Error> {
    if depth > MAX_NESTING {
        let limit = MAX_NESTING;
        return Err(Error::TooLarge { what: WHAT, found: depth, unit: "levels", limit });
    }
    match value {
        Value::Array(items) => {
            *size += 2 + items.len();
            items.iter().try_for_each(|item| measure(item, depth + 1, size))
        }
        Value::Object(members) => {
            *size += 2 + members.iter().map(|(name, _)| name.len() + 4).sum::<usize>();
            members.values().try_for_each(|member| measure(member, depth + 1, size))
        }
        Value::String(text) => {
            *size += text.len() + 2;
            Ok(())
        }
        _ => {
            *size += 4;
            Ok(())
        }
    }
}

struct Checker<'a> {
    references: &'a References<'a>,
    seen: HashSet<&'a str>,            // references
    pending: Vec<(&'a Value, String)>, // targets that are still to be checked
}

impl<'a> Checker<'a> {
    /// Checks the schema `value` at the JSON pointer `at`.
    fn schema(&mut self, value: &'a Value, at: &mut String) -> Result<(), Error> {
        let members = match value {
            Value::Bool(_) => return Ok(()),
            Value::Object(members) => members,
            _ => return Err(fail(at, "a schema must be an object, `true` or `false`")),
        };
        for (keyword, value) in members {
            let len = at.len();
            push_segment(at, keyword);
            self.keyword(members, keyword, value, at)?;
            at.truncate(len);
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        members: &'a Map<String, Value>,
        keyword: &str,
        value: &'a Value,
        at: &mut String,
    ) -> Result<(), Error> {
        if UNSUPPORTED.contains(&keyword) {
            return Err(fail(at, format!("the keyword `{keyword}` is not supported")));
        }
        match (keyword, value) {
            (keyword, Value::Null) if NO_NULL.contains(&keyword) => Ok(()),
            ("propertyNames", _) if is_any_name(value) => Ok(()),
            ("propertyNames", _) => {
                if names_of(value, self.references).is_none() {
                    let problem = "the keyword `propertyNames` is only supported where it allows \
                                   any name, or those of an `enum`";
                    return Err(fail(at, problem));
                }
                if members.contains_key("patternProperties") {
                    let problem = "the keyword `propertyNames` is not supported beside \
                                   `patternProperties`";
                    return Err(fail(at, problem));
                }
                Ok(())
            }
            ("properties" | "patternProperties", Value::Object(schemas)) => {
                for (name, schema) in schemas {
                    let len = at.len();
                    push_segment(at, name);
                    if keyword == "patternProperties" {
                        regex::check(name).map_err(|problem| fail(at, problem))?;
                    }
                    self.schema(schema, at)?;
                    at.truncate(len);
                }
                Ok(())
            }
            ("properties" | "patternProperties", _) => Err(fail(at, "expected an object")),
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                for (i, schema) in schemas.iter().enumerate() {
                    let len = at.len();
                    push_segment(at, &i.to_string());
                    self.schema(schema, at)?;
                    at.truncate(len);
                }
                Ok(())
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", _) => Err(fail(at, "expected an array")),
            ("items" | "additionalItems" | "additionalProperties", _) => self.schema(value, at),
            ("$ref", _) => self.reference(value, at),
            ("type", _) => check_type(value, at),
            ("pattern", Value::String(pattern)) => {
                regex::check(pattern).map_err(|problem| fail(at, problem))
            }
            ("format", Value::String(format)) => {
                let known = [FORMATS, formats::NAMES, UNENFORCED_FORMATS];
                let known = known.iter().any(|list| list.contains(&format.as_str()));
                if known || !may_be(members, "string") {
                    return Ok(());
                }
                let known = [FORMATS, formats::NAMES].concat().join(", ");
                let problem =
                    format!("the format `{format}` is not supported (supported: {known})");
                Err(fail(at, problem))
            }
            ("const" | "enum", _) => check_exact(value, at),
            ("minimum" | "exclusiveMinimum", _) => check_bound(value, 1.0, at),
            ("maximum" | "exclusiveMaximum", _) => check_bound(value, -1.0, at),
            ("multipleOf", _) => match value.as_f64() {
                Some(number) if number > 0.0 => check_exact(value, at),
                _ => Err(fail(at, format!("expected a number above 0, found {value}"))),
            },
            ("minProperties", _) => {
                // Names that are not listed may come twice in an answer, so at most one of them
                // can be requested.
                let required = members.get("required").and_then(Value::as_array);
                let names: HashSet<&str> =
                    required.into_iter().flatten().filter_map(Value::as_str).collect();
                match value.as_u64() {
                    Some(n) if n > names.len() as u64 + 1 => {
                        let max = names.len() + 1;
                        let problem = format!(
                            "{n} is not supported: at most {max}, one more than is `required`"
                        );
                        Err(fail(at, problem))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Checks where a reference leads; its target is checked later, once.
    fn reference(&mut self, value: &'a Value, at: &str) -> Result<(), Error> {
        let Value::String(reference) = value else {
            return Err(fail(at, format!("expected a string, found {value}")));
        };
        let target = self.references.resolve(reference).map_err(|problem| fail(at, problem))?;
        if self.seen.insert(reference) {
            if self.seen.len() > MAX_REFS {
                let (found, limit) = (self.seen.len(), MAX_REFS);
                return Err(Error::TooLarge { what: WHAT, found, unit: "references", limit });
            }
            self.pending.push((target.schema, target.pointer));
        }
        Ok(())
    }
}

/// Whether a schema of names allows all names.
pub(super) fn is_any_name(schema: &Value) -> bool {
    match schema {
        Value::Bool(allows) => *allows,
        Value::Object(members) => {
            let says_nothing = |(keyword, value): (&String, &Value)| match keyword.as_str() {
                "type" => value == "string",
                "title" | "description" | "$comment" => true,
                _ => false,
            };
            members.iter().all(says_nothing)
        }
        _ => false,
    }
}

/// The names that a schema of names allows, if it lists them, itself or by a reference.
pub(super) fn names_of<'a>(schema: &'a Value, references: &References<'a>) -> Option<Vec<&'a str>> {
    let mut schema = schema;
    for _ in 0..MAX_NESTING {
        let members = schema.as_object()?;
        let mut listed = None;
        for (keyword, value) in members {
            match (keyword.as_str(), value) {
                ("type", value) if value == "string" => {}
                ("title" | "description" | "$comment" | "$anchor" | "examples" | "default", _) => {}
                ("enum" | "const" | "$ref", value) if listed.is_none() => {
                    listed = Some((keyword.as_str(), value));
                }
                _ => return None,
            }
        }
        match listed? {
            ("enum", value) => {
                return Some(value.as_array()?.iter().filter_map(Value::as_str).collect());
            }
            ("const", value) => return Some(value.as_str().into_iter().collect()),
            (_, value) => schema = references.resolve(value.as_str()?).ok()?.schema,
        }
    }
    None
}

/// Appends a name to a JSON pointer.
pub(super) fn push_segment(at: &mut String, name: &str) {
    at.push('/');
    at.push_str(&name.replace('~', "~0").replace('/', "~1"));
}

fn check_type(value: &Value, at: &str) -> Result<(), Error> {
    let names = match value {
        Value::Array(names) => names.as_slice(),
        name => std::slice::from_ref(name),
    };
    match names.iter().find(|name| !name.as_str().is_some_and(|name| TYPES.contains(&name))) {
        Some(name) => Err(fail(at, format!("expected one of {}, found {name}", TYPES.join(", ")))),
        None => Ok(()),
    }
}

/// Whether the `type` beside a keyword leaves room for this type.
fn may_be(members: &Map<String, Value>, name: &str) -> bool {
    match members.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(|it| it == name),
        Some(only) => only == name,
    }
}

/// Refuses a bound beyond which there is no number that the library can count to. `sign` is that
/// of the numbers within.
fn check_bound(value: &Value, sign: f64, at: &str) -> Result<(), Error> {
    match value.as_f64() {
        Some(bound) if bound * sign > MAX_BOUND => {
            let problem = format!("{value} is not supported: numbers go up to 2^63");
            Err(fail(at, problem))
        }
        _ => Ok(()),
    }
}

/// Refuses whole numbers that the library would round.
fn check_exact(value: &Value, at: &str) -> Result<(), Error> {
    const MAX: u64 = 1 << 53;
    match value {
        Value::Number(number) => {
            let magnitude = number.as_i64().map(i64::unsigned_abs).or(number.as_u64());
            if magnitude.is_some_and(|magnitude| magnitude > MAX) {
                let problem = format!("{number} is not supported: whole numbers go up to 2^53");
                return Err(fail(at, problem));
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_exact(item, at)),
        Value::Object(members) => members.values().try_for_each(|item| check_exact(item, at)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(schema: &Value) -> Result<Value, Error> {
        super::prepare(schema, AdditionalProperties::Closed)
    }

    #[test]
    fn errors_name_the_keyword_and_the_place() {
        let check = |schema: Value, want: &str| {
            let error = prepare(&schema).expect_err(want).to_string();
            assert_eq!(error, format!("JSON schema{want}"));
        };
        check(json!({"not": {}}), " at /not: the keyword `not` is not supported");
        let inside = json!({"properties": {"a/b": {"items": {"contains": true}}}});
        let want = "at /properties/a~1b/items/contains: the keyword `contains` is not supported";
        check(inside, &format!(" {want}"));
        check(
            json!({"propertyNames": {"pattern": "^a"}}),
            " at /propertyNames: the keyword `propertyNames` is only supported where it allows any \
             name, or those of an `enum`",
        );
        check(
            json!({"propertyNames": {"enum": ["a"]}, "patternProperties": {"a": true}}),
            " at /propertyNames: the keyword `propertyNames` is not supported beside \
             `patternProperties`",
        );
        let many: Map<String, Value> = (0..=501).map(|i| (i.to_string(), json!(true))).collect();
        check(
            json!({"items": {"properties": many, "required": ["0", "x"]}}),
            " at /items/properties: 501 optional properties (not in `required`) are too many: at \
             most 500 per object are supported",
        );
        check(json!({"$ref": "#/a%20b"}), " at /$ref: `#/a%20b` leads to nothing in the schema");
        // A draft that does not know a keyword does not turn it off.
        let old = json!({"$schema": "http://json-schema.org/draft-04/schema#", "if": {}});
        check(old, " at /if: the keyword `if` is not supported");
        let lenient = json!({"x-guidance": {"lenient": true}});
        check(lenient, " at /x-guidance: the keyword `x-guidance` is not supported");
        let dangling = json!({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {}});
        check(dangling, " at /anyOf/0/$ref: `#/$defs/a` leads to nothing in the schema");
        let remote = json!({"$ref": "https://example.org/a"});
        let want = "`https://example.org/a` leads outside the schema: only `#…` can be read";
        check(remote, &format!(" at /$ref: {want}"));
        check(
            json!({"minimum": 1e19}),
            " at /minimum: 1e+19 is not supported: numbers go up to 2^63",
        );
        let behind =
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"contains": {}}, "b": {"not": 1}}});
        check(behind, " at /$defs/a/contains: the keyword `contains` is not supported");
        check(
            json!({"pattern": "a\\"}),
            " at /pattern: `a\\` ends with a backslash that escapes nothing",
        );
        check(json!({"items": 3}), " at /items: a schema must be an object, `true` or `false`");
        check(json!([1]), ": a schema must be an object, `true` or `false`");
        check(json!(false), ": `false` allows nothing");
        check(
            json!({"const": [9_007_199_254_740_993_u64]}),
            " at /const: 9007199254740993 is not supported: whole numbers go up to 2^53",
        );
        check(json!({"multipleOf": 0}), " at /multipleOf: expected a number above 0, found 0");
        check(
            json!({"minProperties": 3, "required": ["a", "a"]}),
            " at /minProperties: 3 is not supported: at most 2, one more than is `required`",
        );
        check(
            json!({"type": ["null", "text"]}),
            &format!(" at /type: expected one of {}, found \"text\"", TYPES.join(", ")),
        );
        check(
            json!({"format": "phone"}),
            &format!(
                " at /format: the format `phone` is not supported (supported: {})",
                [FORMATS, formats::NAMES].concat().join(", ")
            ),
        );
    }

    #[test]
    fn names_of_properties_are_no_keywords() {
        let schema = json!({
            "type": "object",
            "properties": {"not": {"type": "integer", "format": "int32"}, "if": true},
            "$defs": {"unused": {"contains": true}},
            "minProperties": 1,
        });
        let prepared = prepare(&schema).unwrap();
        assert_eq!(prepared["properties"], schema["properties"]);
        assert!(prepare(&json!(true)).unwrap()[OPTIONS].is_object());
    }

    #[test]
    fn sizes_are_bounded() {
        let deep = (0..=MAX_NESTING).fold(json!({}), |inner, _| json!({"items": inner}));
        let error = prepare(&deep).unwrap_err().to_string();
        assert_eq!(error, "JSON schema of 101 levels is too large: at most 100 are allowed");
        let wide = json!({"enum": vec!["abcdefgh"; 30_000]});
        assert!(matches!(prepare(&wide), Err(Error::TooLarge { unit: "bytes", .. })));
        let defs: Map<String, Value> = (0..=MAX_REFS).map(|i| (i.to_string(), json!({}))).collect();
        let refs: Vec<Value> =
            (0..=MAX_REFS).map(|i| json!({"$ref": format!("#/$defs/{i}")})).collect();
        let error = prepare(&json!({"anyOf": refs, "$defs": defs})).unwrap_err();
        assert!(matches!(error, Error::TooLarge { unit: "references", .. }), "{error}");
    }
}
