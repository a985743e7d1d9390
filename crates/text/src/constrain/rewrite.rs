//! Makes of a checked JSON schema one that the library reads as it is meant: what asks for nothing
//! is left out, references that it does not know lead to copies of their targets, and names from a
//! list become properties.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::references::{DATA, References, is_plain};
use super::schema::{COPIES, NO_NULL, UNENFORCED_FORMATS, WHAT, is_any_name, measure, names_of};
use super::{Error, MAX_GRAMMAR_BYTES, formats};

/// The largest bound of a number that the library follows: the largest 64-bit float below 2^63.
pub(super) const MAX_BOUND: f64 = 9_223_372_036_854_774_784.0;

/// Rewrites one schema.
pub(super) struct Rewriter<'a> {
    references: &'a References<'a>,
    copied: HashMap<&'a str, usize>, // references, by the number of the copy of their target
    pending: Vec<(&'a Value, usize)>, // targets that are still to be copied
    size: usize,                     // of what was copied
}

impl<'a> Rewriter<'a> {
    /// The schema as it is given to the library.
    pub(super) fn rewrite(
        root: &'a Value,
        references: &'a References<'a>,
    ) -> Result<Map<String, Value>, Error> {
        let mut rewriter =
            Self { references, copied: HashMap::new(), pending: Vec::new(), size: 0 };
        let mut rewritten = match rewriter.value(root)? {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        let mut copies = Map::new();
        while let Some((target, n)) = rewriter.pending.pop() {
            let copy = rewriter.value(target)?;
            copies.insert(n.to_string(), copy);
        }
        if !copies.is_empty() {
            rewritten.insert(COPIES.to_owned(), Value::Object(copies));
        }
        Ok(rewritten)
    }

    fn value(&mut self, value: &'a Value) -> Result<Value, Error> {
        match value {
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(members) => self.members(members).map(Value::Object),
            other => Ok(other.clone()),
        }
    }

    fn members(&mut self, members: &'a Map<String, Value>) -> Result<Map<String, Value>, Error> {
        let mut rewritten = Map::new();
        let (mut names, mut pattern) = (None, None);
        for (keyword, value) in members {
            let value = match (keyword.as_str(), value) {
                ("uniqueItems", _) => continue,
                ("propertyNames", schema) => {
                    names = names_of(schema, self.references).filter(|_| !is_any_name(schema));
                    continue;
                }
                ("format", Value::String(format))
                    if UNENFORCED_FORMATS.contains(&format.as_str()) =>
                {
                    continue;
                }
                ("format", Value::String(format)) if formats::NAMES.contains(&format.as_str()) => {
                    pattern = formats::pattern(format);
                    continue;
                }
                (keyword, Value::Null) if NO_NULL.contains(&keyword) => continue,
                (keyword, _) if DATA.contains(&keyword) => value.clone(),
                // Below these the keys are names.
                (
                    "properties" | "patternProperties" | "$defs" | "definitions",
                    Value::Object(named),
                ) => {
                    let named =
                        named.iter().map(|(name, schema)| Ok((name.clone(), self.value(schema)?)));
                    Value::Object(named.collect::<Result<_, Error>>()?)
                }
                ("$ref", Value::String(reference)) if !is_plain(reference) => {
                    self.copy(reference)?.map_or_else(|| value.clone(), Value::from)
                }
                ("minimum" | "exclusiveMinimum", Value::Number(_)) => {
                    bound(value, true).map_or_else(|| value.clone(), Value::from)
                }
                ("maximum" | "exclusiveMaximum", Value::Number(_)) => {
                    bound(value, false).map_or_else(|| value.clone(), Value::from)
                }
                _ => self.value(value)?,
            };
            rewritten.insert(keyword.clone(), value);
        }
        if let Some(names) = names {
            self.list_names(&mut rewritten, &names)?;
        }
        match (pattern, rewritten.contains_key("pattern")) {
            (Some(pattern), false) => {
                rewritten.insert("pattern".to_owned(), Value::from(pattern));
            }
            (Some(pattern), true) => {
                let all = rewritten.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(all) = all {
                    all.push(json!({"pattern": pattern}));
                }
            }
            (None, _) => {}
        }
        Ok(rewritten)
    }

    /// Makes properties of the only names that an object may have.
    fn list_names(
        &mut self,
        members: &mut Map<String, Value>,
        names: &[&str],
    ) -> Result<(), Error> {
        let others = members.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        let mut properties = match members.shift_remove("properties") {
            Some(Value::Object(properties)) => properties,
            _ => Map::new(),
        };
        let listed: HashSet<&str> = names.iter().copied().collect();
        for (name, schema) in &mut properties {
            if !listed.contains(name.as_str()) {
                *schema = Value::Bool(false);
            }
        }
        for &name in names {
            if !properties.contains_key(name) {
                self.count(&others)?;
                properties.insert(name.to_owned(), others.clone());
            }
        }
        members.insert("properties".to_owned(), Value::Object(properties));
        members.insert("additionalProperties".to_owned(), Value::Bool(false));
        Ok(())
    }

    /// A reference to the copy of the target of one that the library does not know. One that leads
    /// nowhere is where no schema is used: those that are were checked.
    fn copy(&mut self, reference: &'a str) -> Result<Option<String>, Error> {
        let Ok(target) = self.references.resolve(reference) else { return Ok(None) };
        let next = self.copied.len();
        let n = *self.copied.entry(reference).or_insert(next);
        if n == next {
            self.count(target.schema)?;
            self.pending.push((target.schema, n));
        }
        Ok(Some(format!("#/{COPIES}/{n}")))
    }

    /// Adds up what is copied, which may be as much as a schema may have.
    fn count(&mut self, copied: &Value) -> Result<(), Error> {
        measure(copied, 0, &mut self.size)?;
        if self.size > MAX_GRAMMAR_BYTES {
            let (found, limit) = (self.size, MAX_GRAMMAR_BYTES);
            return Err(Error::TooLarge { what: WHAT, found, unit: "bytes", limit });
        }
        Ok(())
    }
}

/// A bound as the library takes it, in 64-bit floats, where it is not what stands there. It is
/// rounded so that no number beyond what stands there is within.
fn bound(value: &Value, is_lower: bool) -> Option<f64> {
    let whole = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    let mut bound = value.as_f64()?;
    if let Some(whole) = whole {
        bound = match (bound as i128).cmp(&whole) {
            Ordering::Less if is_lower => bound.next_up(),
            Ordering::Greater if !is_lower => bound.next_down(),
            _ => bound,
        };
    }
    bound = bound.clamp(-MAX_BOUND, MAX_BOUND);
    let is_same = whole.map_or(value.as_f64() == Some(bound), |whole| bound as i128 == whole);
    (!is_same).then_some(bound)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rewritten(schema: &Value) -> Result<Value, Error> {
        let references = References::new(schema);
        Rewriter::rewrite(schema, &references).map(Value::Object)
    }

    fn check(schema: &Value, want: &Value) {
        assert_eq!(rewritten(schema).expect("a schema"), *want);
    }

    #[test]
    fn what_asks_for_nothing_is_left_out() {
        check(
            &json!({
                "type": "object",
                "propertyNames": {"type": "string"},
                "required": null,
                "properties": {
                    "propertyNames": {"type": "string", "format": "password", "pattern": null},
                    "uniqueItems": {"type": "array", "uniqueItems": true, "items": {"format": "uri"}},
                },
                "additionalProperties": {"format": "regex", "const": {"uniqueItems": false}},
            }),
            &json!({
                "type": "object",
                "properties": {
                    "propertyNames": {"type": "string"},
                    "uniqueItems": {"type": "array", "items": {"format": "uri"}},
                },
                "additionalProperties": {"const": {"uniqueItems": false}},
            }),
        );
        let pattern = formats::pattern("decimal");
        check(&json!({"format": "decimal"}), &json!({"pattern": pattern}));
        check(
            &json!({"allOf": [{}], "format": "decimal", "pattern": "0"}),
            &json!({"allOf": [{}, {"pattern": pattern}], "pattern": "0"}),
        );
        check(&json!({"const": null, "enum": [null]}), &json!({"const": null, "enum": [null]}));
    }

    #[test]
    fn references_that_the_library_does_not_know_lead_to_copies() {
        let schema = json!({
            "$ref": "#/$defs/a~1b",
            "$defs": {"a/b": {"items": {"$ref": "#/$defs/c%20d"}, "format": "path"},
                      "c d": {"anyOf": [{"$ref": "#named"}, {"$ref": "#/$defs/a~1b"}]},
                      "e": {"$anchor": "named", "items": {"$ref": "#/$defs/e"}}},
        });
        let rewritten = rewritten(&schema).expect("a schema");
        assert_eq!(rewritten["$ref"], "#/x-targets/0");
        let copies = json!({
            "0": {"items": {"$ref": "#/x-targets/1"}},
            "1": {"anyOf": [{"$ref": "#/x-targets/2"}, {"$ref": "#/x-targets/0"}]},
            "2": {"$anchor": "named", "items": {"$ref": "#/$defs/e"}},
        });
        assert_eq!(rewritten[COPIES], copies);
        let unused = json!({"$defs": {"a": {"$ref": "b.json#/c"}, "d": {"$ref": "#/~0"}}});
        check(&unused, &unused);
        // Copies of one another's parts do not add up to more than a schema may have.
        let big = json!({"enum": vec!["abcdefgh"; 2_000]});
        let parts: Map<String, Value> = (0..20).map(|i| (format!("/{i}"), big.clone())).collect();
        let refs: Vec<Value> =
            (0..20).map(|i| json!({"$ref": format!("#/$defs/all/~1{i}")})).collect();
        let error = self::rewritten(&json!({"anyOf": refs, "$defs": {"all": parts}})).unwrap_err();
        assert!(matches!(error, Error::TooLarge { unit: "bytes", .. }), "{error}");
    }

    #[test]
    fn names_from_a_list_become_properties() {
        let number = json!({"type": "number"});
        check(
            &json!({"propertyNames": {"enum": ["a", 1, "b"]}, "additionalProperties": number}),
            &json!({"properties": {"a": number, "b": number}, "additionalProperties": false}),
        );
        check(
            &json!({"propertyNames": {"$ref": "#/$defs/n"}, "properties": {"c": true, "a": true},
                    "$defs": {"n": {"const": "a", "title": "N"}}}),
            &json!({"properties": {"c": false, "a": true}, "additionalProperties": false,
                    "$defs": {"n": {"const": "a", "title": "N"}}}),
        );
        let names: Vec<String> = (0..5_000).map(|i| i.to_string()).collect();
        let large = json!({"propertyNames": {"enum": names},
                           "additionalProperties": {"const": "x".repeat(100)}});
        assert!(matches!(rewritten(&large), Err(Error::TooLarge { unit: "bytes", .. })));
    }

    #[test]
    fn bounds_are_rounded_inwards() {
        let check = |bound: Value, lower: Option<f64>, upper: Option<f64>| {
            assert_eq!(super::bound(&bound, true), lower, "{bound}");
            assert_eq!(super::bound(&bound, false), upper, "{bound}");
        };
        check(json!(5), None, None);
        check(json!(-0.5), None, None);
        check(json!(1_u64 << 62), None, None);
        let (below, above) = (9_007_199_254_740_992.0, 9_007_199_254_740_994.0);
        check(json!(9_007_199_254_740_993_i64), Some(above), Some(below));
        check(json!(-9_007_199_254_740_993_i64), Some(-below), Some(-above));
        check(json!(i64::MIN), Some(-MAX_BOUND), Some(-MAX_BOUND));
        check(json!(i64::MAX), Some(MAX_BOUND), Some(MAX_BOUND));
        check(json!(u64::MAX), Some(MAX_BOUND), Some(MAX_BOUND));
        check(json!(1e308), Some(MAX_BOUND), Some(MAX_BOUND));
    }
}
