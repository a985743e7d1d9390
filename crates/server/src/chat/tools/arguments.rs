//! From values as models write them in their own notations to the JSON text of arguments.

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

/// Levels of brackets within a value that is read as Python writes it.
const MAX_DEPTH: usize = 64;

/// The JSON text of an object, member by member.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    n: usize,
}

impl Members {
    /// What comes before the value of the next member.
    pub(super) fn next(&mut self, key: &str) -> String {
        let before = if self.n == 0 { "{" } else { ", " };
        self.n += 1;
        format!("{before}{}: ", Value::from(key))
    }

    /// What comes after the last.
    pub(super) fn end(&self) -> &'static str {
        if self.n == 0 { "{}" } else { "}" }
    }
}

/// What a schema lets a value be.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    names: HashSet<String>,
}

impl Kinds {
    /// Of the member `key` of arguments with this schema; none are known where it does not say.
    pub(super) fn of(parameters: &Value, key: &str) -> Self {
        let mut kinds = Self::default();
        if let Some(schema) = parameters.get("properties").and_then(|all| all.get(key)) {
            kinds.add(schema, parameters, 0);
        }
        kinds
    }

    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        if depth > 8 {
            return;
        }
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str)
            && let Some(target) = pointer.strip_prefix('#').and_then(|at| root.pointer(at))
        {
            self.add(target, root, depth + 1);
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.name(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.name(name));
            }
            _ => {
                let values = schema.get("enum").and_then(Value::as_array);
                values.into_iter().flatten().chain(schema.get("const")).for_each(|value| {
                    self.name(kind_of(value));
                });
            }
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            let schemas = schema.get(key).and_then(Value::as_array);
            schemas.into_iter().flatten().for_each(|one| self.add(one, root, depth + 1));
        }
    }

    fn name(&mut self, name: &str) {
        self.names.insert(name.to_lowercase());
    }

    fn takes(&self, value: &Value) -> bool {
        let kind = kind_of(value);
        self.names.is_empty()
            || self.names.contains(kind)
            || kind == "integer" && self.names.contains("number")
            || kind == "number" && self.names.contains("integer")
    }

    /// Only texts, which are then taken to the letter.
    pub(super) fn is_text(&self) -> bool {
        self.names.len() == 1 && self.names.contains("string")
    }

    /// The JSON text of a value that was written without quotes: JSON where it is JSON of a kind
    /// that it may be, a text otherwise. Python's words and quotes count where JSON fails.
    pub(super) fn json(&self, raw: &str) -> String {
        let text = raw.trim();
        if !self.is_text() {
            match serde_json::from_str::<Value>(text) {
                Ok(value) if self.takes(&value) => return text.to_owned(),
                Ok(_) => {}
                Err(_) if self.names.is_empty() => {}
                Err(_) => match python_value(text) {
                    Some(value) if !value.is_string() && self.takes(&value) => {
                        return value.to_string();
                    }
                    _ => {}
                },
            }
        }
        Value::from(raw).to_string()
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A piece of a text as it stands between the quotes of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A literal of Python: texts, numbers, words, lists, tuples and dictionaries. JSON is one, too.
pub(super) fn python_value(text: &str) -> Option<Value> {
    let mut literal = Literal { text, at: 0 };
    let value = literal.value(0)?;
    literal.space();
    (literal.at == text.len()).then_some(value)
}

struct Literal<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Literal<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn take(&mut self, c: char) -> bool {
        self.space();
        let taken = self.rest().starts_with(c);
        self.at += if taken { c.len_utf8() } else { 0 };
        taken
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.space();
        match self.rest().chars().next()? {
            _ if depth > MAX_DEPTH => None,
            '\'' | '"' => self.string().map(Value::from),
            '[' => self.list(']', depth).map(Value::from),
            '(' => self.list(')', depth).map(Value::from),
            '{' => self.dictionary(depth),
            _ => self.word(),
        }
    }

    fn list(&mut self, close: char, depth: usize) -> Option<Vec<Value>> {
        self.at += 1;
        let mut values = Vec::new();
        while !self.take(close) {
            values.push(self.value(depth + 1)?);
            if !self.take(',') {
                return self.take(close).then_some(values);
            }
        }
        Some(values)
    }

    fn dictionary(&mut self, depth: usize) -> Option<Value> {
        self.at += 1;
        let mut members = Map::new();
        while !self.take('}') {
            self.space();
            let key = match self.value(depth + 1)? {
                Value::String(key) => key,
                key @ Value::Number(_) => key.to_string(),
                _ => return None,
            };
            if !self.take(':') {
                return None;
            }
            members.insert(key, self.value(depth + 1)?);
            if !self.take(',') {
                return self.take('}').then_some(Value::Object(members));
            }
        }
        Some(Value::Object(members))
    }

    fn word(&mut self) -> Option<Value> {
        let rest = self.rest();
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        self.at += len;
        match &rest[..len] {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            word => word.strip_prefix('+').unwrap_or(word).parse::<Number>().ok().map(Value::from),
        }
    }

    fn string(&mut self) -> Option<String> {
        let mut chars = self.rest().char_indices();
        let (_, quote) = chars.next()?;
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.at += at + 1;
                return Some(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let (_, escape) = chars.next()?;
            match escape {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                '0' => text.push('\0'),
                '\n' => {}
                '\\' | '\'' | '"' | '/' => text.push(escape),
                'x' | 'u' | 'U' => {
                    let n_digits =
                        [('x', 2), ('u', 4), ('U', 8)].iter().find(|(c, _)| *c == escape)?.1;
                    let mut code = hex(&mut chars, n_digits)?;
                    if (0xD800..0xDC00).contains(&code) {
                        let low = (chars.next()?.1, chars.next()?.1) == ('\\', 'u');
                        let low = low.then(|| hex(&mut chars, 4)).flatten()?;
                        code = 0x10000 + ((code - 0xD800) << 10) + low.checked_sub(0xDC00)?;
                    }
                    text.push(char::from_u32(code)?);
                }
                other => text.extend(['\\', other]),
            }
        }
        None
    }
}

fn hex(chars: &mut std::str::CharIndices<'_>, n_digits: usize) -> Option<u32> {
    (0..n_digits).try_fold(0, |code, _| Some(code * 16 + chars.next()?.1.to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_what_their_schema_takes() {
        let parameters = json!({
            "properties": {
                "text": {"type": "string"},
                "n": {"type": "integer"},
                "flag": {"type": ["boolean", "null"]},
                "list": {"anyOf": [{"type": "array"}, {"type": "string"}]},
                "object": {"$ref": "#/$defs/point"},
                "choice": {"enum": ["1", "2"]},
            },
            "$defs": {"point": {"type": "object"}},
        });
        let check = |key: &str, raw: &str, want: &str| {
            assert_eq!(Kinds::of(&parameters, key).json(raw), want, "{key}: {raw}");
        };
        check("text", "12", r#""12""#);
        check("text", " a\n\"b\"", r#"" a\n\"b\"""#);
        check("n", " 12 ", "12");
        check("n", "1.5", "1.5");
        check("n", "many", r#""many""#);
        check("n", "\"12\"", r#""\"12\"""#);
        check("flag", "true", "true");
        check("flag", "False", "false");
        check("flag", "None", "null");
        check("list", "[1, {\"a\": 2}]", "[1, {\"a\": 2}]");
        check("list", "['a', True]", r#"["a",true]"#);
        check("list", "a, b", r#""a, b""#);
        check("object", "{\"x\": 1}", "{\"x\": 1}");
        check("choice", "1", r#""1""#);
        check("other", "1", "1");
        check("other", "[1]", "[1]");
        check("other", "None", r#""None""#);
        check("other", "Zürich", r#""Zürich""#);
    }

    #[test]
    fn literals_of_python_are_read() {
        let check =
            |text: &str, want: Option<Value>| assert_eq!(python_value(text), want, "{text}");
        check("'a\\'b\"'", Some(json!("a'b\"")));
        check(r#""\x41\u00fc\U0001F600\ud83d\ude00\q""#, Some(json!("Aü😀😀\\q")));
        check("[1, -2.5, +3, 1e3, ]", Some(json!([1, -2.5, 3, 1e3])));
        check("(True, None, false)", Some(json!([true, null, false])));
        check("{'a': {'b': []}, 1: 'c',}", Some(json!({"a": {"b": []}, "1": "c"})));
        check(" {} ", Some(json!({})));
        for wrong in
            ["", "abc", "[1", "[1 2]", "{'a'}", "'a", "1 2", "{[1]: 2}", "f(1)", "'\\ud83d'"]
        {
            check(wrong, None);
        }
        check(&"[".repeat(100_000), None);
    }
}
