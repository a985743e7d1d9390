//! Text in llguidance's variant of Lark: literals to write, and the checks of a grammar that is
//! given in it.
//!
//! The grammar is not parsed here. It is read just far enough to tell strings, expressions and
//! comments from the rest, so that JSON schemas inside are checked and what would be ignored is
//! found.

use serde_json::Value;

use super::{AdditionalProperties, Error, regex, schema};

pub(super) const WHAT: &str = "Lark grammar";

/// Attributes of a rule that would not do what they say.
const UNSUPPORTED_ATTRIBUTES: &[(&str, &str)] = &[
    ("temperature", "the temperature is a parameter of the request"),
    ("stop", "write `suffix=`, which keeps the text in the answer"),
    ("stop_capture", "captures are not reported"),
];

/// A text as a string literal.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// The grammar with its JSON schemas checked and prepared.
pub(super) fn prepare(text: &str, objects: AdditionalProperties) -> Result<String, Error> {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let before = &text[..at];
        let fail = |problem: String| {
            let line = 1 + before.matches('\n').count();
            Err(Error::Grammar { what: WHAT, at: format!("line {line}"), problem })
        };
        let len = match first {
            '"' => quoted(rest, '"'),
            '#' => comment(rest),
            '/' if rest.starts_with("//") => comment(rest),
            '/' => {
                let len = quoted(rest, '/');
                if let Err(problem) = regex::check(rest[1..len].trim_end_matches('/')) {
                    return fail(problem);
                }
                len
            }
            '<' => special_token(rest),
            '%' => {
                let name = 1 + word(&rest[1..]);
                out.push_str(&rest[..name]);
                at += name;
                let json = &rest[name..];
                match &rest[..name] {
                    "%json" => {
                        let (value, len) = match json_value(json) {
                            Ok(found) => found,
                            Err(problem) => return fail(problem),
                        };
                        out.push(' ');
                        match schema::prepare(&value, objects) {
                            Ok(schema) => out.push_str(&schema.to_string()),
                            Err(error) => return fail(error.to_string()),
                        }
                        out.push(' ');
                        at += len;
                        0
                    }
                    "%llguidance" => match json_value(json) {
                        // Bytes that are not text could be control tokens.
                        Ok((value, _)) if value.get("allow_invalid_utf8").is_some() => {
                            return fail("`allow_invalid_utf8` is not supported".to_owned());
                        }
                        Ok((_, len)) => len,
                        Err(problem) => return fail(problem),
                    },
                    "%regex" => match json_value(json) {
                        Ok((_, len)) => len,
                        Err(problem) => return fail(problem),
                    },
                    _ => 0,
                }
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                let len = word(rest);
                let name = &rest[..len];
                let assigned = rest[len..].trim_start().starts_with('=');
                let found = UNSUPPORTED_ATTRIBUTES.iter().find(|(it, _)| assigned && *it == name);
                if let Some((_, instead)) = found {
                    return fail(format!("`{name}=` is not supported: {instead}"));
                }
                len
            }
            _ => first.len_utf8(),
        };
        out.push_str(&text[at..at + len]);
        at += len;
    }
    Ok(out)
}

/// The length of a string or an expression with its marks; all of `rest` if it has no end.
pub(super) fn quoted(rest: &str, mark: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == mark => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

pub(super) fn comment(rest: &str) -> usize {
    rest.find('\n').unwrap_or(rest.len())
}

/// The length of a token in angle brackets, or of the bracket alone.
fn special_token(rest: &str) -> usize {
    let end = rest[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace());
    match end {
        Some(end) if rest[1 + end..].starts_with('>') => end + 2,
        _ => 1,
    }
}

pub(super) fn word(rest: &str) -> usize {
    let in_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    rest.find(|c| !in_word(c)).unwrap_or(rest.len())
}

/// The JSON value at the beginning of `rest`, and its length.
fn json_value(rest: &str) -> Result<(Value, usize), String> {
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(error)) => Err(format!("expected JSON: {error}")),
        None => Err("expected JSON, found the end".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(text: &str) -> Result<String, Error> {
        super::prepare(text, AdditionalProperties::Closed)
    }

    #[test]
    fn literals_read_back() {
        let check = |text: &str, want: &str| assert_eq!(literal(text), want);
        check("a\"b\\c", r#""a\"b\\c""#);
        check("\n\u{1}\u{7f}é", "\"\\n\\u0001\\u007fé\"");
    }

    #[test]
    fn only_what_would_be_ignored_is_refused() {
        let check = |text: &str, want: Result<&str, &str>| match (prepare(text), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want),
            (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{error}"),
            (got, _) => panic!("{text:?}: {got:?}"),
        };
        let same = |text: &str| check(text, Ok(text));
        same("start: \"stop=\" /temperature=[/]/ // stop= \"\n# temperature= \"\n");
        same("start: </s> \"x\" <[12]> b[suffix=\"stop=\"]\n");
        same("%llguidance {\"no_forcing\": true}\nstart: %regex {\"substring_chars\": \"stop=\"}");
        check("start: a\n\na[temperature=0.5]: /x/", Err("line 3: `temperature=`"));
        check("a[lazy, stop = \"x\"]: /x/", Err("line 1: `stop=` is not supported"));
        check("a: /x\\", Err("ends with a backslash"));
        check("a: %json {\"not\": {}}", Err("line 1: JSON schema at /not: "));
        check("\na: %json {\"no", Err("line 2: expected JSON"));
        check("%llguidance {\"allow_invalid_utf8\": true}", Err("`allow_invalid_utf8`"));
        let prepared = prepare("a: %json {\"type\": \"null\"} \"b\"").unwrap();
        assert!(prepared.starts_with("a: %json {\"type\":\"null\",\"x-guidance\":{"), "{prepared}");
        assert!(prepared.ends_with("}}  \"b\""), "{prepared}");
    }
}
