//! Values written as Python writes them: `str`, `repr` and `json.dumps`.
//!
//! Chat templates are written for Jinja2, where `{{ x }}` is Python's `str(x)` and transformers
//! replaces the `tojson` filter by `json.dumps` without HTML escapes.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::budget;
use crate::tokenizer::MARKS;

/// Nesting deeper than this is an error, as it is in Python.
const MAX_DEPTH: usize = 200;

/// Appends Python's `str(value)`.
pub(super) fn write_str(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None => write_repr(value, out, 0)?,
    }
    Ok(())
}

/// Python's `repr(value)`.
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    budget::count_text(value)?;
    let mut out = String::new();
    write_repr(value, &mut out, 0)?;
    Ok(out)
}

fn write_repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => write_number(value, out)?,
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut n_items = 0;
            for item in value.try_iter()? {
                if n_items > 0 {
                    out.push_str(", ");
                }
                write_repr(&item, out, depth + 1)?;
                n_items += 1;
            }
            if value.is_tuple() && n_items == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, out, depth + 1)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").map_err(|_| failure("a value cannot be written"))?,
    }
    Ok(())
}

/// A quoted string as Python's `repr` has it.
fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => {
                out.push('\\');
                out.push(c);
            }
            '\0'..='\x1F' | '\x7F'..='\u{A0}' | '\u{AD}' => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

fn write_number(value: &Value, out: &mut String) -> Result<(), Error> {
    if value.is_integer() {
        return write!(out, "{value}").map_err(|_| failure("a number cannot be written"));
    }
    let float = f64::try_from(value.clone())?;
    out.push_str(&float_repr(float));
    Ok(())
}

/// The shortest digits that read back as `x`, with an exponent where Python uses one.
fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

/// The `indent` filter of Jinja2: lines after the first are indented, the first one and empty ones
/// only on request. A line break at the end stays.
pub(super) fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: &Kwargs,
) -> Result<String, Error> {
    let width = match width {
        Some(width) => width,
        None => kwargs.get::<Option<Value>>("width")?.unwrap_or_else(|| Value::from(4)),
    };
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let space = match width.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let n = width.as_usize().ok_or_else(|| failure("indent needs a width"))?;
            if n > 1000 {
                return Err(failure("indent is at most 1000 spaces wide"));
            }
            " ".repeat(n)
        }
    };
    let n_lines = text.matches('\n').count() + 1;
    budget::count(text.len().saturating_add(n_lines.saturating_mul(space.len())))?;
    let mut out = String::with_capacity(text.len());
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&space);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// The `escape` filter: the characters that mean something in HTML.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// How `json.dumps` was asked to write.
struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ascii: bool,
    sort_keys: bool,
}

/// The `tojson` filter with the parameters that transformers gives it.
pub(super) fn tojson(value: &Value, kwargs: &Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(indent.as_usize().unwrap_or(0).min(64)),
        }),
    };
    let separators = kwargs.get::<Option<Value>>("separators")?.filter(|value| !value.is_none());
    let (item_separator, key_separator) = match separators {
        Some(pair) => {
            (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string())
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = Style {
        indent,
        item_separator,
        key_separator,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let indent = style.indent.as_ref().map_or(0, String::len);
    budget::count_json(value, indent + style.item_separator.len() + style.key_separator.len())?;
    let mut out = String::new();
    style.write(value, &mut out, 0)?;
    Ok(Value::from(out))
}

impl Style {
    fn write(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let start = out.len();
                write_number(value, out)?;
                match &out[start..] {
                    "nan" => out.replace_range(start.., "NaN"),
                    "inf" => out.replace_range(start.., "Infinity"),
                    "-inf" => out.replace_range(start.., "-Infinity"),
                    _ => {}
                }
            }
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                out.push('[');
                let mut n_items = 0;
                for item in value.try_iter()? {
                    self.start_item(n_items, out, depth);
                    self.write(&item, out, depth + 1)?;
                    n_items += 1;
                }
                self.close(n_items, ']', out, depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    self.start_item(i, out, depth);
                    let mut name = String::new();
                    match key.as_str() {
                        Some(text) => name.push_str(text),
                        None => self.write(key, &mut name, depth + 1)?,
                    }
                    self.write_text(&name, out);
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, out, depth + 1)?;
                }
                self.close(keys.len(), '}', out, depth);
            }
            kind => {
                return Err(failure(&format!("a value of type {kind} is not JSON serializable")));
            }
        }
        Ok(())
    }

    fn start_item(&self, i: usize, out: &mut String, depth: usize) {
        if i > 0 {
            out.push_str(&self.item_separator);
        }
        self.new_line(out, depth + 1);
    }

    fn close(&self, n_items: usize, mark: char, out: &mut String, depth: usize) {
        if n_items > 0 {
            self.new_line(out, depth);
        }
        out.push(mark);
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0C' => out.push_str("\\f"),
                // A mark is not part of the text.
                c if MARKS.contains(&c) => out.push(c),
                c if c < ' ' || self.ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth < MAX_DEPTH { Ok(()) } else { Err(failure("a value is nested too deeply")) }
}

fn failure(problem: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.to_owned())
}

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;

    use super::*;

    fn value(json: &str) -> Value {
        Value::from(Serde(serde_json::from_str::<serde_json::Value>(json).unwrap()))
    }

    #[test]
    fn writes_as_python_does() {
        for (json, want) in [
            (r#""text""#, "text"),
            ("null", "None"),
            ("[true, null, 1.0, 3]", "[True, None, 1.0, 3]"),
            (r#"{"b": "it's", "a": ["x\n"]}"#, r#"{'b': "it's", 'a': ['x\n']}"#),
            ("[1e16, 1.5e-5, 0.0001, 123456.75]", "[1e+16, 1.5e-05, 0.0001, 123456.75]"),
        ] {
            let mut out = String::new();
            write_str(&value(json), &mut out).unwrap();
            assert_eq!(out, want);
        }
    }

    #[test]
    fn tojson_is_json_dumps() {
        let json = r#"{"b": [1, 2.0, "é\u0001<\"/"], "a": {}, "c": null}"#;
        let check = |kwargs: Vec<(&str, Value)>, want: &str| {
            let out = tojson(&value(json), &Kwargs::from_iter(kwargs)).unwrap();
            assert_eq!(out.to_string(), want);
        };
        check(vec![], r#"{"b": [1, 2.0, "é\u0001<\"/"], "a": {}, "c": null}"#);
        check(
            vec![("ensure_ascii", true.into()), ("sort_keys", true.into())],
            r#"{"a": {}, "b": [1, 2.0, "\u00e9\u0001<\"/"], "c": null}"#,
        );
        check(
            vec![("indent", 2.into())],
            "{\n  \"b\": [\n    1,\n    2.0,\n    \"é\\u0001<\\\"/\"\n  ],\n  \"a\": {},\n  \"c\": null\n}",
        );
    }
}
