//! Writes the rules of the grammars of calls.

use std::collections::HashMap;

use realizar_runtime::constrain::{Definitions, Error, Grammar, Spelling};
use realizar_runtime::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::elements::Elements;
use super::gemma;
use super::grammar::arguments;
use super::layout::{CallLayout, LINE, Part};
use super::parameters::{Parameter, Shape, parameters, within};
use super::request::{Function, INPUT, TextGrammar, ToolInput};

/// An expression for nothing.
pub(super) const EMPTY: &str = "\"\"";

/// A part of a mark as tokens see it.
pub(super) enum Token {
    Text(String),
    Control(u32),
}

/// Writes the rules of a grammar.
pub(super) struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    /// All arguments follow their schemas, not only those of strict functions.
    all_strict: bool,
    pub(super) rules: String,
    n_rules: usize,
    /// Expressions of texts, rules that end with them, and rules of calls from the name on.
    texts: HashMap<String, String>,
    until: HashMap<String, String>,
    bodies: HashMap<(String, String), Option<String>>,
    /// A text had a token that ends an answer.
    pub(super) ends: bool,
    /// Why the last grammar of a custom tool could not be written.
    error: Option<Error>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, all_strict: bool) -> Self {
        Self {
            tokenizer,
            all_strict,
            rules: String::new(),
            n_rules: 0,
            texts: HashMap::new(),
            until: HashMap::new(),
            bodies: HashMap::new(),
            ends: false,
            error: None,
        }
    }

    /// A rule with this body, by its name.
    pub(super) fn rule(&mut self, body: &str) -> String {
        self.attributed("", body)
    }

    pub(super) fn attributed(&mut self, attributes: &str, body: &str) -> String {
        let name = format!("r{}", self.n_rules);
        self.n_rules += 1;
        self.rules += &format!("{name}{attributes}: {body}\n");
        name
    }

    /// The control tokens of a text, and what is between them.
    pub(super) fn tokens(&mut self, text: &str) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let control = ends.filter_map(|end| Some((end, self.tokenizer.id_of(&rest[..end])?)));
            let is_control = |id| self.tokenizer.is_special(id) || self.tokenizer.is_eos(id);
            let found = control.into_iter().find(|(_, id)| is_control(*id));
            match found {
                Some((len, id)) => {
                    if !plain.is_empty() {
                        tokens.push(Token::Text(std::mem::take(&mut plain)));
                    }
                    self.ends |= self.tokenizer.is_eos(id);
                    tokens.push(Token::Control(id));
                    rest = &rest[len..];
                }
                None => {
                    plain.push(first);
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        if !plain.is_empty() {
            tokens.push(Token::Text(plain));
        }
        tokens
    }

    /// An expression for a text.
    pub(super) fn text(&mut self, text: &str) -> String {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let expression = expression(&self.tokens(text));
        self.texts.insert(text.to_owned(), expression.clone());
        expression
    }

    fn parts(&mut self, parts: &[Part]) -> String {
        let mut all = Vec::new();
        for part in parts {
            all.push(match part {
                Part::Text(text) => self.text(text),
                Part::Optional(text) => format!("({})?", self.text(text)),
                Part::Id(characters) => format!("/{characters}/"),
            });
        }
        all.join(" ")
    }

    /// A rule for JSON by a schema.
    pub(super) fn json(&mut self, schema: &Value) -> String {
        self.rule(&format!("%json {schema}"))
    }

    /// A rule for any text up to this one, and this one.
    pub(super) fn text_until(&mut self, end: &str) -> String {
        if let Some(known) = self.until.get(end) {
            return known.clone();
        }
        let tokens = self.tokens(end);
        let rule = match tokens.as_slice() {
            [Token::Text(end)] => {
                self.attributed(&format!("[suffix={}]", literal(end)), "/(?s:.*)/")
            }
            // A text has no control tokens, so it ends where one stands; but other tokens may spell the end.
            [Token::Text(first), rest @ ..] => {
                let text = self.terminal(&format!("(?s:.*){}", escaped(first)), end);
                let rest = expression(rest);
                self.rule(&format!("{text} {rest}"))
            }
            all => {
                let text = self.terminal("(?s:.+)", end);
                let all = expression(all);
                self.rule(&format!("({text})? {all}"))
            }
        };
        self.until.insert(end.to_owned(), rule.clone());
        rule
    }

    /// A terminal for the texts of an expression in which `without` is nowhere.
    fn terminal(&mut self, expression: &str, without: &str) -> String {
        self.text_without(expression, &[without])
    }

    /// A terminal for the texts of an expression in which none of `without` is.
    pub(super) fn text_without(&mut self, expression: &str, without: &[&str]) -> String {
        let without: Vec<String> = without.iter().map(|text| escaped(text)).collect();
        let complement = match without.as_slice() {
            [] => String::new(),
            all => format!(" & ~/(?s:.*)({})(?s:.*)/", all.join("|")),
        };
        self.define_terminal(&format!("/{expression}/{complement}"))
    }

    /// Why the calls cannot be written.
    pub(super) fn refusal(self) -> Error {
        self.error.unwrap_or_else(|| Error::Grammar {
            what: "schema of a strict function",
            at: String::new(),
            problem: "the model's format of calls cannot hold it".to_owned(),
        })
    }

    /// An expression for a call of one of these functions. With `in_json`, those that the layout cannot
    /// hold are called by JSON between its marks.
    pub(super) fn calls(
        &mut self,
        layout: &CallLayout,
        functions: &[&Function],
        in_json: bool,
    ) -> Option<String> {
        let other = layout.in_json().filter(|_| in_json);
        let (mut own, mut json) = (Vec::new(), Vec::new());
        for function in functions {
            match (self.body(layout, function), &other) {
                (Some(body), _) => own.push(body),
                (None, Some(other)) => json.push(self.body(other, function)?),
                (None, None) => return None,
            }
        }
        let mut all = Vec::new();
        for (layout, bodies) in [(Some(layout), own), (other.as_ref(), json)] {
            if let Some(layout) = layout.filter(|_| !bodies.is_empty()) {
                all.push(format!("{} ({})", self.opening(layout), bodies.join(" | ")));
            }
        }
        Some(self.rule(&all.join(" | ")))
    }

    /// An expression for what stands before the name.
    fn opening(&mut self, layout: &CallLayout) -> String {
        match layout {
            CallLayout::Json { before_name, .. } => self.parts(before_name),
            CallLayout::Elements { open, marks, .. } => self.text(&format!("{open}{}", marks.open)),
            CallLayout::Python | CallLayout::Object { .. } => EMPTY.to_owned(),
            CallLayout::Gemma { open, .. } => self.text(&format!("{open}{}", gemma::OPEN)),
        }
    }

    /// A rule for a call from the name on.
    fn body(&mut self, layout: &CallLayout, function: &Function) -> Option<String> {
        let form = match layout {
            CallLayout::Json { before_arguments, close, .. } => {
                format!("{} {}", self.parts(before_arguments), self.text(close))
            }
            _ => String::new(),
        };
        let key = (function.name.clone(), form);
        if let Some(known) = self.bodies.get(&key) {
            return known.clone();
        }
        let written = self.write_body(layout, function);
        let rule = written.map(|body| self.rule(&body));
        self.bodies.insert(key, rule.clone());
        rule
    }

    fn write_body(&mut self, layout: &CallLayout, function: &Function) -> Option<String> {
        let free = !self.all_strict
            && !function.strict
            && matches!(function.input, ToolInput::Parameters(_));
        let root = arguments(function);
        match layout {
            CallLayout::Json { before_arguments, more, close, .. } => {
                let (name, before) = (literal(&function.name), self.parts(before_arguments));
                let arguments = self.json_arguments(function, free)?;
                let close = self.text(close);
                let more = match more.as_slice() {
                    [] => String::new(),
                    parts => format!("({})?", self.parts(parts)),
                };
                Some(format!("{name} {before} {arguments} {more} {close}"))
            }
            CallLayout::Object { key } => {
                let [name_key, name, key] = ["name", function.name.as_str(), *key]
                    .map(|text| literal(json!(text).to_string()));
                let arguments = self.json_arguments(function, free)?;
                Some(format!(
                    r#""{{" {name_key} ":" " " {name} "," " " {key} ":" " " {arguments} "}}""#
                ))
            }
            CallLayout::Elements { marks, line, lines, close, .. } => {
                let members = match &function.input {
                    ToolInput::Text(Some(grammar)) => {
                        // One line end on each side is not a part of the value.
                        let text = self.raw_text(grammar, "\n", marks.value_end)?;
                        let open =
                            self.element_open(marks, line, false, &literal(INPUT), Some(true));
                        format!("{open} {LINE} {text} {line}")
                    }
                    _ if free => {
                        let key = r#"/[^<>"'{}\s]([^<>"'{}\x00-\x1f]*[^<>"'{}\s])?/"#;
                        let open = self.element_open(marks, line, *lines, key, None);
                        let value = self.text_until(marks.value_end);
                        format!("({open} {value} {line})*")
                    }
                    _ => {
                        let mut members = Vec::new();
                        for Parameter { name, required, schema } in parameters(&root)? {
                            let clean = |c: char| !c.is_control() && !"<>\"'{}".contains(c);
                            if name.is_empty() || name.trim() != name || !name.chars().all(clean) {
                                return None;
                            }
                            let element = self.element(marks, line, *lines, name, schema, &root)?;
                            members.push(if required { element } else { format!("({element})?") });
                        }
                        members.join(" ")
                    }
                };
                let (name, name_end) = (literal(&function.name), self.text(marks.name_end));
                let end = self.text(&format!("{}{close}", marks.close));
                Some(format!("{name} {name_end} {line} {members} {end}"))
            }
            CallLayout::Python => {
                let members = match &function.input {
                    ToolInput::Text(Some(grammar)) => {
                        let text = self.json_text(grammar)?;
                        format!("{} {text} {}", literal(format!("{INPUT}=\"")), literal("\""))
                    }
                    _ if free => {
                        let value = self.any_python();
                        let member = format!("/[A-Za-z_][A-Za-z0-9_]*/ \"=\" {value}");
                        format!("({member} (/, ?/ {member})*)?")
                    }
                    _ => self.python_members(&root)?,
                };
                let open = literal(format!("{}(", function.name));
                Some(format!("{open} {members} \")\""))
            }
            CallLayout::Gemma { close, .. } => {
                let (name, end) = (literal(&function.name), self.text(close));
                let object = match &function.input {
                    ToolInput::Text(Some(grammar)) => {
                        let quote = self.text(gemma::QUOTE);
                        let text = self.raw_text(grammar, "", gemma::QUOTE)?;
                        format!("\"{{{INPUT}:\" {quote} {text} \"}}\"")
                    }
                    _ if free => self.any_gemma(),
                    _ => self.gemma_object(&root, 0)?,
                };
                Some(format!("{name} {object} {end}"))
            }
        }
    }

    /// An expression for a function's arguments as JSON.
    fn json_arguments(&mut self, function: &Function, free: bool) -> Option<String> {
        Some(match &function.input {
            ToolInput::Text(Some(grammar)) => {
                let text = self.json_text(grammar)?;
                let key = literal(json!(INPUT).to_string());
                format!(r#""{{" {key} ":" " " {} {text} {} "}}""#, literal("\""), literal("\""))
            }
            _ if free => self.json(&json!({"type": "object"})),
            _ => self.json(&arguments(function)),
        })
    }

    /// Defines the texts of a custom tool's input.
    fn define(&mut self, grammar: &TextGrammar, spelling: Spelling) -> Option<Definitions> {
        let grammar = match grammar {
            TextGrammar::Lark(text) => Grammar::Lark(text.clone()),
            TextGrammar::Regex(text) => Grammar::Regex(text.clone()),
        };
        self.n_rules += 1;
        match grammar.definitions(spelling, &format!("g{}", self.n_rules)) {
            Ok(defined) => Some(defined),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    /// The name of what spells a custom tool's input in a JSON string.
    fn json_text(&mut self, grammar: &TextGrammar) -> Option<String> {
        let defined = self.define(grammar, Spelling::Json)?;
        self.rules += &defined.text;
        Some(defined.start)
    }

    /// A rule for a custom tool's input to the letter, with `before_mark` and `mark` behind it. The mark is
    /// nowhere in the input.
    fn raw_text(&mut self, grammar: &TextGrammar, before_mark: &str, mark: &str) -> Option<String> {
        let defined = self.define(grammar, Spelling::Plain)?;
        if !defined.is_terminal {
            return None;
        }
        self.rules += &defined.text;
        let complement = format!("~/(?s:.*){}(?s:.*)/", escaped(mark));
        let text = format!("{} & {complement}", defined.start);
        let tokens = self.tokens(&format!("{before_mark}{mark}"));
        Some(match tokens.as_slice() {
            [Token::Text(end)] => self.attributed(&format!("[suffix={}]", literal(end)), &text),
            [Token::Text(first), rest @ ..] => {
                let text = format!("{} {} & {complement}", defined.start, literal(first));
                let (text, rest) = (self.define_terminal(&text), expression(rest));
                self.rule(&format!("{text} {rest}"))
            }
            all => {
                let (text, all) = (self.define_terminal(&text), expression(all));
                self.rule(&format!("{text} {all}"))
            }
        })
    }

    fn define_terminal(&mut self, body: &str) -> String {
        let name = format!("T{}", self.n_rules);
        self.n_rules += 1;
        self.rules += &format!("{name}: {body}\n");
        name
    }

    /// An expression for what stands before a value in an element, with this expression for its key.
    /// Where `is_text` is not known, its attribute may say either.
    fn element_open(
        &mut self,
        marks: &Elements,
        line: &str,
        lines: bool,
        key: &str,
        is_text: Option<bool>,
    ) -> String {
        let key_open = self.text(marks.key_open);
        let key_end = match marks.attributes_end {
            None => self.text(marks.key_end),
            Some(end) => {
                let mut closed = |is_text: bool| {
                    self.text(&format!("{} string=\"{is_text}\"{end}", marks.key_end))
                };
                match is_text {
                    Some(is_text) => closed(is_text),
                    None => format!("({} | {})", closed(true), closed(false)),
                }
            }
        };
        let open = if marks.value_open.is_empty() {
            if lines { LINE.to_owned() } else { EMPTY.to_owned() }
        } else {
            format!("{line} {}", self.text(marks.value_open))
        };
        format!("{key_open} {key} {key_end} {open}")
    }

    /// An expression for an argument as an element.
    fn element(
        &mut self,
        marks: &Elements,
        line: &str,
        lines: bool,
        name: &str,
        schema: &Value,
        root: &Value,
    ) -> Option<String> {
        let shape = Shape::of(schema, root, 0)?;
        let is_text = !matches!(shape, Shape::Json);
        let open = self.element_open(marks, line, lines, &literal(name), Some(is_text));
        let end = format!("{}{}", if lines { "\n" } else { "" }, marks.value_end);
        let value = match shape {
            // A line end before the mark belongs to what the model may write.
            Shape::Text => self.text_until(marks.value_end),
            Shape::Choice(texts) => {
                let clear = |text: &&str| !text.contains(marks.value_end) && text.trim() == *text;
                let texts = texts.iter().all(clear).then_some(texts)?;
                let texts: Vec<String> = texts.into_iter().map(literal).collect();
                format!("({}) {}", texts.join(" | "), self.text(&end))
            }
            Shape::Json => {
                let value = self.json(&within(schema, root)?);
                format!("{value} {}", self.text(&end))
            }
        };
        Some(format!("{open} {value} {line}"))
    }
}

pub(super) fn expression(tokens: &[Token]) -> String {
    let parts = tokens.iter().map(|token| match token {
        Token::Text(text) => literal(text),
        Token::Control(id) => format!("<[{id}]>"),
    });
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { EMPTY.to_owned() } else { parts.join(" ") }
}

/// A text as a string of a grammar.
pub(super) fn literal(text: impl AsRef<str>) -> String {
    json!(text.as_ref()).to_string().replace('\u{7f}', "\\u007f")
}

/// A text within an expression between slashes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '/' => out.push_str("\\x2f"),
            c if ".+*?()|[]{}^$\\#&-~".contains(c) => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
