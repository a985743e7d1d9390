//! Values in the notations of Python and of Gemma 4, for the grammars of calls.

use serde_json::{Value, json};

use super::gemma;
use super::parameters::{ANNOTATIONS, MAX_DEPTH, Parameter, Shape, parameters, within};
use super::writer::{EMPTY, Writer, literal};

/// A text as Python writes it, in single quotes.
const TEXT_IN_PYTHON: &str = r"/'([^'\\\x00-\x1f]|\\['\\nrt])*'/";

impl Writer<'_> {
    pub(super) fn python_members(&mut self, root: &Value) -> Option<String> {
        let mut members = Vec::new();
        for Parameter { name, required, schema } in parameters(root)? {
            let clean = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(clean) {
                return None;
            }
            let value = match schema.get("type").and_then(Value::as_str) {
                Some("boolean") => r#"("True" | "False")"#.to_owned(),
                Some("null") => r#""None""#.to_owned(),
                _ => self.python_value(schema, root)?,
            };
            members.push((format!("{} {value}", literal(format!("{name}="))), required));
        }
        Some(self.separated(members, r#"", ""#))
    }

    /// A rule for any value in Python.
    pub(super) fn any_python(&mut self) -> String {
        if !self.rules.contains("\npython: ") {
            let json = self.json(&json!({"type": ["array", "object"]}));
            self.rules += &format!(
                "\npython: {TEXT_IN_PYTHON} | PYTHON_TEXT | PYTHON_WORD | {json} \
                 | \"[\" (python (/, ?/ python)*)? \"]\" \
                 | \"{{\" (python_member (/, ?/ python_member)*)? \"}}\"\n\
                 python_member: (PYTHON_TEXT | {TEXT_IN_PYTHON}) /: ?/ python\n\
                 PYTHON_TEXT: /\"([^\"\\\\\\x00-\\x1f]|\\\\[\"'\\\\nrt])*\"/\n\
                 PYTHON_WORD: /[A-Za-z0-9_.+\\-]+/\n"
            );
        }
        "python".to_owned()
    }

    /// An expression for a value in Python that is no truth value: JSON, or a text in single quotes.
    fn python_value(&mut self, schema: &Value, root: &Value) -> Option<String> {
        let quoted = match Shape::of(schema, root, 0) {
            Some(Shape::Text) if schema.get("type").is_some_and(|kind| kind == "string") => {
                Some(TEXT_IN_PYTHON.to_owned())
            }
            Some(Shape::Choice(texts)) => {
                let plain =
                    |text: &&&str| !text.contains(|c: char| c.is_control() || "'\\".contains(c));
                let texts: Vec<String> =
                    texts.iter().filter(plain).map(|text| literal(format!("'{text}'"))).collect();
                (!texts.is_empty()).then(|| texts.join(" | "))
            }
            _ => None,
        };
        let value = self.json(&within(schema, root)?);
        Some(match quoted {
            Some(quoted) => format!("({quoted} | {value})"),
            None => value,
        })
    }

    /// A rule for any object as Gemma 4 writes it.
    pub(super) fn any_gemma(&mut self) -> String {
        if !self.rules.contains("\ngemma: ") {
            let (quote, text) = (self.text(gemma::QUOTE), self.text_until(gemma::QUOTE));
            self.rules += &format!(
                "\ngemma: \"{{\" (gemma_member (\",\" gemma_member)*)? \"}}\"\n\
                 gemma_member: /[A-Za-z0-9_.\\-]+/ \":\" gemma_value\n\
                 gemma_value: {quote} {text} | gemma | /[A-Za-z0-9_.+\\-]+/ \
                 | \"[\" (gemma_value (\",\" gemma_value)*)? \"]\"\n"
            );
        }
        "gemma".to_owned()
    }

    /// An expression for an object as Gemma 4 writes it, its keys in the order of the alphabet.
    pub(super) fn gemma_object(&mut self, schema: &Value, depth: usize) -> Option<String> {
        let mut all = parameters(schema)?;
        all.sort_by_key(|parameter| parameter.name.to_lowercase());
        let mut members = Vec::new();
        for Parameter { name, required, schema } in all {
            let clean = |c: char| c.is_alphanumeric() || "_-. ".contains(c);
            if name.is_empty() || name.trim() != name || !name.chars().all(clean) {
                return None;
            }
            let value = self.gemma_value(schema, depth + 1)?;
            members.push((format!("{} {value}", literal(format!("{name}:"))), required));
        }
        let members = self.separated(members, r#"",""#);
        Some(self.rule(&format!("\"{{\" {members} \"}}\"")))
    }

    fn gemma_value(&mut self, schema: &Value, depth: usize) -> Option<String> {
        let members = schema.as_object()?;
        let only = |keys: &[&str]| {
            let known = |key: &str| keys.contains(&key) || ANNOTATIONS.contains(&key);
            members.keys().all(|key| known(key))
        };
        let kind = schema.get("type").and_then(Value::as_str);
        match kind {
            _ if depth > MAX_DEPTH => None,
            Some("array") if only(&["items"]) => {
                let item = self.gemma_value(schema.get("items")?, depth + 1)?;
                Some(self.rule(&format!(r#""[" ({item} ("," {item})*)? "]""#)))
            }
            Some("object") => self.gemma_object(schema, depth),
            Some("array") => None,
            _ => match Shape::of(schema, schema, 0)? {
                Shape::Json => Some(self.json(schema)),
                // What else it may be beside a text cannot be told by quotes alone.
                Shape::Text if kind != Some("string") => None,
                Shape::Text => {
                    let quote = self.text(gemma::QUOTE);
                    let text = self.text_until(gemma::QUOTE);
                    Some(format!("{quote} {text}"))
                }
                Shape::Choice(texts) => {
                    let clear = texts.iter().all(|text| !text.contains(gemma::QUOTE));
                    let texts: Vec<String> =
                        clear.then_some(texts)?.into_iter().map(literal).collect();
                    let quote = self.text(gemma::QUOTE);
                    Some(format!("{quote} ({}) {quote}", texts.join(" | ")))
                }
            },
        }
    }

    /// An expression for members of which some may be left out, with separators between them.
    fn separated(&mut self, members: Vec<(String, bool)>, separator: &str) -> String {
        // From the last member on: what follows where nothing has come, and where something has.
        let (mut first, mut later) = (EMPTY.to_owned(), EMPTY.to_owned());
        for (member, required) in members.into_iter().rev() {
            let member = self.rule(&member);
            let (behind, without) = (later.clone(), |rest: &str| format!(" | {rest}"));
            let other = |rest: &str| if required { String::new() } else { without(rest) };
            let (no_first, no_later) = (other(&first), other(&later));
            first = self.rule(&format!("{member} {behind}{no_first}"));
            later = self.rule(&format!("{separator} {member} {behind}{no_later}"));
        }
        first
    }
}
