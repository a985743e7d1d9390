//! What the schema of a function says of its parameters, as far as a format can say it that writes
//! them one by one: which there are, and how the value of each is written.

use serde_json::{Map, Value};

use super::grammar::{DATA, LISTING};

/// Keywords that do not restrict a value.
pub(super) const ANNOTATIONS: [&str; 6] =
    ["type", "title", "description", "default", "examples", "deprecated"];
/// Levels of values within values that are written in a format's own notation.
pub(super) const MAX_DEPTH: usize = 16;
/// The maximum number of parameters of a function that may be left out.
const MAX_OPTIONAL: usize = 500;

/// A parameter of a function.
pub(super) struct Parameter<'a> {
    pub(super) name: &'a str,
    pub(super) required: bool,
    pub(super) schema: &'a Value,
}

/// The parameters of an object whose schema says no more than which there are.
pub(super) fn parameters(schema: &Value) -> Option<Vec<Parameter<'_>>> {
    let members = schema.as_object()?;
    let plain = |key: &str| LISTING.contains(&key) || ANNOTATIONS.contains(&key);
    if !members.keys().all(|key| plain(key) || key == "additionalProperties") {
        return None;
    }
    let named: Option<&Map<String, Value>> = match members.get("properties") {
        Some(named) => Some(named.as_object()?),
        None => None,
    };
    let names = members.get("required").and_then(Value::as_array).into_iter().flatten();
    let names: Vec<&str> = names.filter_map(Value::as_str).collect();
    if !names.iter().all(|name| named.is_some_and(|named| named.contains_key(*name))) {
        return None;
    }
    let all: Vec<Parameter<'_>> = named
        .into_iter()
        .flatten()
        .map(|(name, schema)| Parameter { name, required: names.contains(&name.as_str()), schema })
        .collect();
    let n_optional = all.iter().filter(|parameter| !parameter.required).count();
    (n_optional <= MAX_OPTIONAL).then_some(all)
}

/// How a value is written that stands between marks.
pub(super) enum Shape<'a> {
    /// Any text.
    Text,
    /// One of these texts.
    Choice(Vec<&'a str>),
    /// JSON that is not text, by its schema.
    Json,
}

impl<'a> Shape<'a> {
    /// `None` where a schema says more of a text than these do.
    pub(super) fn of(schema: &'a Value, root: &'a Value, depth: usize) -> Option<Self> {
        let members = match schema {
            Value::Bool(true) => return Some(Self::Text),
            _ => schema.as_object()?,
        };
        if depth > MAX_DEPTH {
            return None;
        }
        let beyond = |keys: &[&str]| {
            members
                .keys()
                .any(|key| !ANNOTATIONS.contains(&key.as_str()) && !keys.contains(&key.as_str()))
        };
        if let Some(reference) = members.get("$ref") {
            let target = root.pointer(reference.as_str()?.strip_prefix('#')?)?;
            return match Self::of(target, root, depth + 1)? {
                Self::Json => Some(Self::Json),
                shape => (!beyond(&["$ref"])).then_some(shape),
            };
        }
        let values = match (members.get("enum"), members.get("const")) {
            (Some(values), None) => Some(values.as_array()?.iter().collect::<Vec<_>>()),
            (None, Some(value)) => Some(vec![value]),
            (Some(_), Some(_)) => return None,
            (None, None) => None,
        };
        if let Some(values) = values {
            let texts: Vec<&str> = values.iter().filter_map(|value| value.as_str()).collect();
            let all_texts = texts.len() == values.len() && !beyond(&["enum", "const"]);
            return match (texts.len(), all_texts) {
                (0, _) => Some(Self::Json),
                (_, true) => Some(Self::Choice(texts)),
                _ => None,
            };
        }
        match members.get("type") {
            Some(Value::String(name)) if name != "string" => Some(Self::Json),
            Some(Value::Array(names)) if names.iter().all(|name| name != "string") => {
                Some(Self::Json)
            }
            Some(_) => (!beyond(&[])).then_some(Self::Text),
            None => {
                let options = ["anyOf", "oneOf"].iter().find_map(|key| members.get(*key));
                let Some(options) = options else {
                    return (!beyond(&[])).then_some(Self::Text);
                };
                if beyond(&["anyOf", "oneOf"]) {
                    return None;
                }
                let options = options.as_array()?.iter();
                let plain = |option: &Value| {
                    let members = option.as_object();
                    members
                        .is_some_and(|it| it.keys().all(|key| ANNOTATIONS.contains(&key.as_str())))
                };
                let (mut all_json, mut all_plain) = (true, true);
                for option in options {
                    all_json &= matches!(Self::of(option, root, depth + 1)?, Self::Json);
                    all_plain &= plain(option);
                }
                if all_json { Some(Self::Json) } else { all_plain.then_some(Self::Text) }
            }
        }
    }
}

/// The schema of a parameter as one of its own, with the definitions that it refers to.
pub(super) fn within(schema: &Value, root: &Value) -> Option<Value> {
    let mut schema = schema.clone();
    if !refers_to_definitions(&schema)? {
        return Some(schema);
    }
    for key in ["$defs", "definitions"] {
        if let (Some(definitions), Some(members)) = (root.get(key), schema.as_object_mut()) {
            refers_to_definitions(definitions)?;
            members.entry(key).or_insert_with(|| definitions.clone());
        }
    }
    Some(schema)
}

/// Whether a schema has references, all of which lead to definitions of the root.
fn refers_to_definitions(schema: &Value) -> Option<bool> {
    let mut any = false;
    let mut pending = vec![schema];
    while let Some(schema) = pending.pop() {
        match schema {
            Value::Object(members) => {
                for (key, value) in members {
                    match value {
                        Value::String(target) if key == "$ref" => {
                            let known = ["#/$defs/", "#/definitions/"];
                            if !known.iter().any(|start| target.starts_with(start)) {
                                return None;
                            }
                            any = true;
                        }
                        _ if DATA.contains(&key.as_str()) => {}
                        value => pending.push(value),
                    }
                }
            }
            Value::Array(all) => pending.extend(all),
            _ => {}
        }
    }
    Some(any)
}
