//! Reasoning that a model writes before its answer, between markers.
//!
//! The markers count only where the answer begins: `<think>` in the middle of an answer is text.
//! White space around the reasoning, and between it and the answer, is left out. Messages in the
//! channels of gpt-oss are separated by the parser of [`harmony`]; here are only the markers by which a
//! constraint knows them.

use realizar_runtime::constrain::Reasoning;
use std::str::FromStr;

use crate::chat::tools::harmony;
use crate::chat::tools::reader::partial_len;
use crate::chat::tools::{ToolFormat, UnknownParser};

/// How a model marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// `<think>…</think>`: DeepSeek-R1, Qwen 3, SmolLM3.
    Think,
    /// `[THINK]…[/THINK]`: Mistral.
    Mistral,
    /// `<seed:think>…</seed:think>`: Seed-OSS.
    SeedOss,
    /// `<|START_THINKING|>…<|END_THINKING|>`: Command-R7B, Command A.
    CommandR7b,
    /// `<|channel>thought…<channel|>`: Gemma 4.
    Gemma4,
    /// The channel `analysis`: gpt-oss.
    Harmony,
}

/// The names of the formats, as `--reasoning-parser` takes them; where there is one, vLLM's.
static NAMES: [(&str, ReasoningFormat); 12] = [
    ("think", ReasoningFormat::Think),
    ("deepseek_r1", ReasoningFormat::Think),
    ("deepseek_v3", ReasoningFormat::Think),
    ("qwen3", ReasoningFormat::Think),
    ("glm45", ReasoningFormat::Think),
    ("minimax_m2", ReasoningFormat::Think),
    ("mistral", ReasoningFormat::Mistral),
    ("seed_oss", ReasoningFormat::SeedOss),
    ("command_r7b", ReasoningFormat::CommandR7b),
    ("gemma4", ReasoningFormat::Gemma4),
    ("openai_gptoss", ReasoningFormat::Harmony),
    ("gpt_oss", ReasoningFormat::Harmony),
];

impl ReasoningFormat {
    /// The format that a chat template knows.
    pub fn detect(template: &str) -> Option<Self> {
        if template.contains("<|channel|>analysis") {
            return Some(Self::Harmony);
        }
        let marked = [Self::Mistral, Self::SeedOss, Self::CommandR7b, Self::Gemma4, Self::Think];
        marked.into_iter().find(|format| template.contains(format.close()))
    }

    /// Whether a prompt ends inside reasoning, because the template has begun it for the model.
    pub fn is_open_in(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open())
    }

    /// Whether a prompt ends after reasoning, because the template has left it out for the model.
    pub fn is_closed_in(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.close())
    }

    /// The reasoning as a constraint knows it: begun by the prompt or not, and of at most `budget`
    /// tokens.
    #[must_use]
    pub fn limited(self, is_open: bool, budget: Option<usize>) -> Reasoning {
        let (open, close) = (self.open().to_owned(), self.close().to_owned());
        Reasoning { open, close, is_open, budget }
    }

    /// The markers that the parser must see. Where one of them is a control token, its text must
    /// not be left out of what is decoded.
    pub fn markers(self) -> Vec<&'static str> {
        match self {
            Self::Gemma4 => vec!["<|channel>", self.close()],
            Self::Harmony => ToolFormat::Harmony.markers(),
            _ => vec![self.open(), self.close()],
        }
    }

    fn open(self) -> &'static str {
        match self {
            Self::Think => "<think>",
            Self::Mistral => "[THINK]",
            Self::SeedOss => "<seed:think>",
            Self::CommandR7b => "<|START_THINKING|>",
            Self::Gemma4 => "<|channel>thought",
            Self::Harmony => harmony::REASONING_OPEN,
        }
    }

    fn close(self) -> &'static str {
        match self {
            Self::Think => "</think>",
            Self::Mistral => "[/THINK]",
            Self::SeedOss => "</seed:think>",
            Self::CommandR7b => "<|END_THINKING|>",
            Self::Gemma4 => "<channel|>",
            Self::Harmony => harmony::REASONING_CLOSE,
        }
    }
}

impl FromStr for ReasoningFormat {
    type Err = UnknownParser;

    /// Reads a name as `--reasoning-parser` takes it, with vLLM's names.
    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format).ok_or_else(|| UnknownParser {
            what: "reasoning",
            name: name.to_owned(),
            known: NAMES.map(|(name, _)| name).join(", "),
        })
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Reasoning(String),
    Answer(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Opened, // no reasoning but white space yet
    Inside,
    Closed, // no answer but white space yet
    Answer,
}

/// Splits an answer into reasoning and what follows it.
#[derive(Debug)]
pub(crate) struct ReasoningParser {
    format: ReasoningFormat,
    state: State,
    buf: String,
    space: String, // at the end of the reasoning so far
}

impl ReasoningParser {
    /// A parser that begins inside the reasoning if it is `open`.
    pub(crate) fn new(format: ReasoningFormat, open: bool) -> Self {
        let state = if open { State::Opened } else { State::Start };
        Self { format, state, buf: String::new(), space: String::new() }
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        self.buf.push_str(text);
        while self.step(out) {}
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<Part>) {
        let text = std::mem::take(&mut self.buf);
        match self.state {
            State::Opened | State::Inside => self.reasoning(&text, out),
            State::Start | State::Closed | State::Answer if !text.is_empty() => {
                out.push(Part::Answer(text));
            }
            _ => {}
        }
    }

    /// Decides what can be decided next; false if that needs more text.
    fn step(&mut self, out: &mut Vec<Part>) -> bool {
        let (open, close) = (self.format.open(), self.format.close());
        match self.state {
            State::Start => {
                let text = self.buf.trim_start();
                if let Some(rest) = text.strip_prefix(open) {
                    self.buf = rest.to_owned();
                    self.state = State::Opened;
                } else if open.starts_with(text) {
                    return false;
                } else {
                    self.state = State::Answer;
                }
            }
            State::Opened | State::Closed => {
                let n = self.buf.len() - self.buf.trim_start().len();
                self.buf.drain(..n);
                if self.buf.is_empty() {
                    return false;
                }
                let opened = self.state == State::Opened;
                // A model may repeat the marker that the template wrote for it.
                if opened && open.starts_with(self.buf.as_str()) && self.buf != open {
                    return false;
                }
                if opened && self.buf.starts_with(open) {
                    self.buf.drain(..open.len());
                    return true;
                }
                self.state = if opened { State::Inside } else { State::Answer };
            }
            State::Inside => {
                if let Some(at) = self.buf.find(close) {
                    let text: String = self.buf.drain(..at).collect();
                    self.reasoning(&text, out);
                    self.buf.drain(..close.len());
                    self.space.clear();
                    self.state = State::Closed;
                    return true;
                }
                let n = self.buf.len() - partial_len(&self.buf, close);
                let text: String = self.buf.drain(..n).collect();
                self.reasoning(&text, out);
                return false;
            }
            State::Answer => {
                if !self.buf.is_empty() {
                    out.push(Part::Answer(std::mem::take(&mut self.buf)));
                }
                return false;
            }
        }
        true
    }

    fn reasoning(&mut self, text: &str, out: &mut Vec<Part>) {
        let trimmed = text.trim_end();
        if !trimmed.is_empty() {
            let mut reasoning = std::mem::take(&mut self.space);
            reasoning.push_str(trimmed);
            out.push(Part::Reasoning(reasoning));
        }
        self.space.push_str(&text[trimmed.len()..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_template_name_and_prompt() {
        use ReasoningFormat::{Mistral, Think};
        let detect = ReasoningFormat::detect;
        assert_eq!(detect("{%- if '</think>' in content %}"), Some(Think));
        assert_eq!(detect("{{- '[THINK]' + block['thinking'] + '[/THINK]' }}"), Some(Mistral));
        assert_eq!(detect("{{ content }}"), None);
        assert_eq!("qwen3".parse(), Ok(Think));
        assert_eq!("mistral".parse(), Ok(Mistral));
        let error = "x".parse::<ReasoningFormat>().unwrap_err().to_string();
        assert!(error.contains("\"x\"") && error.contains("deepseek_r1"), "{error}");
        for (prompt, open) in [
            ("<|im_start|>assistant\n<think>\n", true),
            ("<｜Assistant｜><think>", true),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", false),
            ("<|im_start|>assistant\n", false),
        ] {
            assert_eq!(Think.is_open_in(prompt), open, "{prompt:?}");
            assert_eq!(Think.is_closed_in(prompt), prompt.contains("</think>"), "{prompt:?}");
        }
    }

    /// Splits `text` by pieces of every length; reasoning and answer must be the same.
    fn check(format: ReasoningFormat, open: bool, text: &str, reasoning: &str, answer: &str) {
        let chars: Vec<char> = text.chars().collect();
        for piece_len in 1..=chars.len().max(1) {
            let mut parser = ReasoningParser::new(format, open);
            let mut parts = Vec::new();
            for piece in chars.chunks(piece_len) {
                parser.push(&piece.iter().collect::<String>(), &mut parts);
            }
            parser.finish(&mut parts);
            let (mut got_reasoning, mut got_answer) = (String::new(), String::new());
            for part in parts {
                match part {
                    Part::Reasoning(text) => {
                        assert!(got_answer.is_empty(), "reasoning after the answer: {text:?}");
                        got_reasoning.push_str(&text);
                    }
                    Part::Answer(text) => got_answer.push_str(&text),
                }
            }
            assert_eq!(
                (got_reasoning.as_str(), got_answer.as_str()),
                (reasoning, answer),
                "{text:?} by {piece_len}"
            );
        }
    }

    #[test]
    fn reasoning_is_split_off_wherever_pieces_end() {
        use ReasoningFormat::{Mistral, Think};
        check(Think, false, "<think>\nOne.\n\nTwo.\n</think>\n\nYes.\n", "One.\n\nTwo.", "Yes.\n");
        check(Think, false, "\n <think>a</think>b", "a", "b");
        check(Think, false, "<think>\n\n</think>\n\nb", "", "b");
        check(Think, true, "a < b</think>b", "a < b", "b");
        check(Think, true, "\n<think>\na</think>b", "a", "b");
        check(Think, true, "</think>b", "", "b");
        check(Think, true, "a </thin", "a </thin", "");
        check(Think, true, "a b\n", "a b", "");
        check(Think, false, "  plain <think> text</think>", "", "  plain <think> text</think>");
        check(Think, false, " <thi", "", " <thi");
        check(Think, false, "", "", "");
        check(Mistral, false, "[THINK]ü[/THINK]é", "ü", "é");
        check(Mistral, false, "<think>a</think>", "", "<think>a</think>");
    }
}
