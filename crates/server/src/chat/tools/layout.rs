//! How calls stand in an answer, format by format, for the grammars of calls.

use super::elements::Elements;
use super::format::{Notation, Syntax, ToolFormat};

/// How calls stand in an answer.
#[derive(Clone)]
pub(super) struct Layout {
    pub(super) before: String,
    pub(super) separator: &'static str,
    /// After the last call, before the mark that ends all.
    pub(super) list_end: &'static str,
    pub(super) after: String,
    pub(super) call: CallLayout,
}

/// How one call is written.
#[derive(Clone)]
pub(super) enum CallLayout {
    /// The name, and the arguments as JSON.
    Json {
        before_name: Vec<Part>,
        before_arguments: Vec<Part>,
        /// What may stand after the arguments.
        more: Vec<Part>,
        close: String,
    },
    /// A JSON object that nothing else begins, with its arguments under this key. It is cut into terminals as
    /// any JSON is, because another answer in JSON may begin as it does.
    Object {
        key: &'static str,
    },
    /// Elements, with `line` between them, and a line end around each value or not.
    Elements {
        open: String,
        marks: &'static Elements,
        line: &'static str,
        lines: bool,
        close: String,
    },
    Python,
    Gemma {
        open: String,
        close: &'static str,
    },
}

/// A part of what stands around a name.
#[derive(Clone)]
pub(super) enum Part {
    Text(String),
    /// A text that may be left out.
    Optional(&'static str),
    /// Characters of an id, by this expression.
    Id(&'static str),
}

/// A line end in a grammar, and one that may be left out.
pub(super) const LINE: &str = r#""\n""#;
const LINE_OR_NOT: &str = r#"("\n")?"#;

impl CallLayout {
    /// A call as a JSON object with its arguments under this key, between these texts.
    fn json(before: &str, key: &str, after: &str) -> Self {
        Self::Json {
            before_name: vec![Part::Text(format!("{before}{{\"name\": \""))],
            before_arguments: vec![Part::Text(format!("\", \"{key}\": "))],
            more: Vec::new(),
            close: format!("}}{after}"),
        }
    }

    /// What stands before the call, with the mark if a mark of its own begins it.
    fn before(&self) -> &str {
        match self {
            Self::Json { before_name, .. } => match before_name.first() {
                Some(Part::Text(text)) => text,
                _ => "",
            },
            Self::Elements { open, .. } => open,
            Self::Gemma { open, .. } => open,
            Self::Python | Self::Object { .. } => "",
        }
    }

    /// The call as JSON between the marks of this layout.
    pub(super) fn in_json(&self) -> Option<Self> {
        match self {
            Self::Json { .. } | Self::Object { .. } => None,
            Self::Elements { open, close, .. } => Some(Self::json(open, "arguments", close)),
            Self::Gemma { open, close } => Some(Self::json(open, "arguments", close)),
            Self::Python => Some(Self::json("", "arguments", "")),
        }
    }

    fn without(&self, mark: &str) -> Option<Self> {
        let mut call = self.clone();
        match &mut call {
            Self::Json { before_name, .. } => match before_name.first_mut() {
                Some(Part::Text(text)) => *text = text.strip_prefix(mark)?.to_owned(),
                _ => return None,
            },
            Self::Elements { open, .. } => *open = open.strip_prefix(mark)?.to_owned(),
            Self::Gemma { open, .. } => *open = open.strip_prefix(mark)?.to_owned(),
            Self::Python | Self::Object { .. } => return None,
        }
        Some(call)
    }
}

impl Layout {
    /// Calls that are JSON and nothing else: a list in brackets, or one.
    pub(super) fn json(list: bool) -> Self {
        let [before, list_end] = if list { ["[", "]"] } else { [""; 2] };
        let call = CallLayout::Object { key: "arguments" };
        let (before, after) = (before.to_owned(), String::new());
        Self { before, separator: ", ", list_end, after, call }
    }

    /// The mark by which calls begin, and the layout of what follows it; `None` where it is no more
    /// than a bracket.
    pub(super) fn split_mark(&self, syntax: &Syntax) -> Option<(&'static str, Self)> {
        let [section, _] = syntax.section.unwrap_or_default();
        let marks = [section, syntax.open.unwrap_or_default()];
        let mark = marks.into_iter().find(|mark| {
            let begins = if self.before.is_empty() { self.call.before() } else { &self.before };
            !mark.is_empty() && begins.starts_with(mark)
        })?;
        let mut rest = self.clone();
        match self.before.strip_prefix(mark) {
            Some(before) => before.clone_into(&mut rest.before),
            None => rest.call = self.call.without(mark)?,
        }
        Some((mark, rest))
    }

    /// Of the form of a format that a template shows; there is none of [`ToolFormat::Json`].
    pub(super) fn of(format: ToolFormat, template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        let syntax = format.syntax();
        let open = syntax.open.unwrap_or_default();
        let close = syntax.close.unwrap_or_default();
        let [section, section_end] = syntax.section.unwrap_or_default();
        let text = |text: &str| Part::Text(text.to_owned());
        let object = |key: &str| CallLayout::json("", key, "");
        let layout = |before: &str, separator, list_end, after: &str, call| {
            let (before, after) = (before.to_owned(), after.to_owned());
            Some(Self { before, separator, list_end, after, call })
        };
        // A list in brackets within marks.
        let list = |call| layout(&format!("{open}["), ", ", "]", close, call);
        // Each call within marks of its own.
        let each = |separator, before_name: String, before_arguments, close: String| {
            let before_name = vec![Part::Text(before_name)];
            let call = CallLayout::Json { before_name, before_arguments, more: Vec::new(), close };
            layout(section, separator, "", section_end, call)
        };
        match format {
            ToolFormat::Json => None,
            ToolFormat::Hermes => each(
                "\n",
                format!("{open}\n{{\"name\": \""),
                vec![text("\", \"arguments\": ")],
                format!("}}\n{close}"),
            ),
            ToolFormat::Llama3Json => {
                layout("", "; ", "", "", CallLayout::Object { key: "parameters" })
            }
            ToolFormat::Mistral if has("[CALL_ID]") => {
                let id = vec![text("[CALL_ID]"), Part::Id("[a-zA-Z0-9]{9}"), text("[ARGS]")];
                each("", open.to_owned(), id, String::new())
            }
            ToolFormat::Mistral if has("[ARGS]") => {
                each("", open.to_owned(), vec![text("[ARGS]")], String::new())
            }
            ToolFormat::Apriel if !has("<tool_calls>[") => {
                layout(&format!("{open}\n"), "\n", "\n", close, object("arguments"))
            }
            ToolFormat::Mistral => list(CallLayout::Json {
                before_name: vec![text("{\"name\": \"")],
                before_arguments: vec![text("\", \"arguments\": ")],
                more: vec![text(", \"id\": \""), Part::Id("[a-zA-Z0-9]{9}"), text("\"")],
                close: "}".to_owned(),
            }),
            ToolFormat::Nemotron | ToolFormat::Apriel | ToolFormat::Granite3 => {
                list(object("arguments"))
            }
            ToolFormat::CommandR7b => {
                let id = vec![text("{\"tool_call_id\": \""), Part::Id("[0-9]{1,4}")];
                let call = CallLayout::Json {
                    before_name: id.into_iter().chain([text("\", \"tool_name\": \"")]).collect(),
                    before_arguments: vec![text("\", \"parameters\": ")],
                    more: Vec::new(),
                    close: "}".to_owned(),
                };
                layout(&format!("{open}[\n    "), ",\n    ", "\n]", close, call)
            }
            ToolFormat::DeepSeekV3 => each(
                "\n",
                format!("{open}function<｜tool▁sep｜>"),
                vec![text("\n```json\n")],
                format!("\n```{close}"),
            ),
            ToolFormat::DeepSeekV31 => {
                each("", open.to_owned(), vec![text("<｜tool▁sep｜>")], close.to_owned())
            }
            ToolFormat::KimiK2 => {
                let begin = text("<|tool_call_argument_begin|>");
                let id = vec![text(":"), Part::Id("[0-9]{1,4}"), begin];
                each("", format!("{open}functions."), id, close.to_owned())
            }
            ToolFormat::Harmony => {
                let channel = vec![
                    text("<|channel|>commentary "),
                    Part::Optional("<|constrain|>"),
                    text("json<|message|>"),
                ];
                each("", " to=functions.".to_owned(), channel, String::new())
            }
            ToolFormat::Qwen3Coder | ToolFormat::SeedOss => {
                let call = CallLayout::Elements {
                    open: format!("{open}\n"),
                    marks: elements(syntax)?,
                    line: LINE,
                    lines: format == ToolFormat::Qwen3Coder,
                    close: format!("\n{close}"),
                };
                layout("", "\n", "", "", call)
            }
            ToolFormat::Glm45 => {
                let (open, close) = (open.to_owned(), close.to_owned());
                let (marks, line, lines) = (elements(syntax)?, LINE_OR_NOT, false);
                layout("", "\n", "", "", CallLayout::Elements { open, marks, line, lines, close })
            }
            ToolFormat::MinimaxM2 | ToolFormat::DeepSeekV32 => {
                // Newer models of DeepSeek call the marks around the calls otherwise.
                let newer = format == ToolFormat::DeepSeekV32 && !has("function_calls>");
                let (begin, end) = if newer { (section, section_end) } else { (open, close) };
                let call = CallLayout::Elements {
                    open: String::new(),
                    marks: elements(syntax)?,
                    line: LINE,
                    lines: false,
                    close: String::new(),
                };
                layout(&format!("{begin}\n"), "\n", "\n", end, call)
            }
            ToolFormat::Pythonic => layout("[", ", ", "]", "", CallLayout::Python),
            ToolFormat::Lfm2 => list(CallLayout::Python),
            ToolFormat::Gemma4 => {
                let open = open.to_owned();
                layout("", "", "", "", CallLayout::Gemma { open, close })
            }
        }
    }
}

fn elements(syntax: &'static Syntax) -> Option<&'static Elements> {
    match &syntax.notation {
        Notation::Elements(marks) => Some(marks),
        _ => None,
    }
}
