//! Answers on a terminal: words stay whole, Markdown is drawn, reasoning is dim.
//!
//! Where standard output is not a terminal, nothing of this happens and an answer is its text.

mod inline;
mod layout;
mod markdown;
mod table;

use std::io::{self, Write};

use clap::ValueEnum;
use realizar_server::conversation::Answer;
use realizar_server::{ChatDelta, ChatParser};

use crate::screen::{self, Out, Signs, Styled};
use crate::status;
use crate::ui;
use layout::{Layout, Style};
use markdown::Markdown;

/// Whether Markdown is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MarkdownArg {
    /// On a terminal.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Whether answers are drawn, and not written as they are.
pub(crate) fn is_drawn(markdown: MarkdownArg) -> bool {
    markdown == MarkdownArg::On || status::is_capable(screen::stdout_is_terminal())
}

/// Writes one answer as it comes.
pub(crate) struct Printer {
    view: View,
    parser: Option<ChatParser>, // splits reasoning off
    deltas: Vec<ChatDelta>,
    ends_line: bool,
    answer: Answer,
}

enum View {
    /// The text as it is.
    Plain,
    Drawn(Box<Drawn>),
}

/// What draws an answer.
struct Drawn {
    markdown: bool,
    columns: Option<usize>,
    has_color: bool,
    pen: Pen,
    signs: Signs,
    in_reasoning: bool,
}

enum Pen {
    Words(Layout, Style),
    Markdown(Markdown),
}

impl Printer {
    /// For an answer in which `parser` finds the reasoning, if it has any.
    pub(crate) fn new(markdown: MarkdownArg, parser: Option<ChatParser>) -> Self {
        let view = if is_drawn(markdown) {
            let columns = screen::stdout_is_terminal().then(status::columns);
            let (markdown, has_color) = (markdown != MarkdownArg::Off, ui::has_color_on_stdout());
            View::Drawn(Box::new(Drawn::new(markdown, columns, has_color)))
        } else {
            View::Plain
        };
        Self { view, parser, deltas: Vec::new(), ends_line: true, answer: Answer::default() }
    }

    /// Writes a piece of the answer.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn push(&mut self, out: &mut Out<impl Write>, text: &str) -> io::Result<()> {
        match &mut self.parser {
            Some(parser) => parser.push(text, &mut self.deltas),
            None if text.is_empty() => {}
            None => self.deltas.push(ChatDelta::Content(text.to_owned())),
        }
        self.write(out)
    }

    /// Writes what was held back and `note`, and ends the line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn finish(&mut self, out: &mut Out<impl Write>, note: &str) -> io::Result<()> {
        if let Some(parser) = &mut self.parser {
            parser.finish(&mut self.deltas);
        }
        self.write(out)?;
        if let View::Drawn(drawn) = &mut self.view {
            let rest = drawn.finish();
            self.draw(out, &rest)?;
        }
        self.emit(out, note)?;
        if !self.ends_line {
            self.emit(out, "\n")?;
        }
        Ok(())
    }

    /// All of the answer. Its calls were not written.
    pub(crate) fn into_answer(self) -> Answer {
        self.answer
    }

    fn write(&mut self, out: &mut Out<impl Write>) -> io::Result<()> {
        for delta in std::mem::take(&mut self.deltas) {
            let shown = match &delta {
                ChatDelta::Reasoning(text) => Some((text, true)),
                ChatDelta::Content(text) => Some((text, false)),
                ChatDelta::ToolCallStart { .. } | ChatDelta::ToolCallArguments { .. } => None,
            };
            match (shown, &mut self.view) {
                (None, _) => {}
                (Some((text, _)), View::Plain) => self.emit(out, text)?,
                (Some((text, is_reasoning)), View::Drawn(drawn)) => {
                    let styled = drawn.push(text, is_reasoning);
                    self.draw(out, &styled)?;
                }
            }
            self.answer.push(delta);
        }
        Ok(())
    }

    fn emit(&mut self, out: &mut Out<impl Write>, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.ends_line = text.ends_with('\n');
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn draw(&mut self, out: &mut Out<impl Write>, styled: &Styled) -> io::Result<()> {
        if styled.is_empty() {
            return Ok(());
        }
        self.ends_line = styled.ends_line();
        out.styled(styled)?;
        out.flush()
    }
}

impl Drawn {
    fn new(markdown: bool, columns: Option<usize>, has_color: bool) -> Self {
        let pen = Pen::new(markdown, columns, has_color, Style::PLAIN);
        let signs = Signs::default();
        Self { markdown, columns, has_color, pen, signs, in_reasoning: false }
    }

    /// A piece of the reasoning or of the answer, which begins on a line of its own after it.
    fn push(&mut self, text: &str, is_reasoning: bool) -> Styled {
        let mut out = Styled::default();
        if self.in_reasoning != is_reasoning {
            out = self.pen.finish();
            let style = if is_reasoning { Style::DIM } else { Style::PLAIN };
            self.pen = Pen::new(self.markdown, self.columns, self.has_color, style);
            if self.in_reasoning {
                out.text("\n\n");
            }
            self.in_reasoning = is_reasoning;
        }
        out.push(&self.pen.push(&self.signs.of(text)));
        out
    }

    /// The text held back.
    fn finish(&mut self) -> Styled {
        let mut out = self.pen.push(self.signs.rest());
        out.push(&self.pen.finish());
        out
    }
}

impl Pen {
    fn new(markdown: bool, columns: Option<usize>, has_color: bool, style: Style) -> Self {
        if markdown {
            Self::Markdown(Markdown::new(columns, has_color, style))
        } else {
            Self::Words(Layout::new(columns, has_color), style)
        }
    }

    fn push(&mut self, text: &str) -> Styled {
        match self {
            Self::Markdown(markdown) => markdown.push(text),
            Self::Words(layout, style) => {
                for (n, line) in text.split('\n').enumerate() {
                    if n > 0 {
                        layout.newline();
                    }
                    layout.text(*style, line);
                }
                layout.take()
            }
        }
    }

    fn finish(&mut self) -> Styled {
        match self {
            Self::Markdown(markdown) => markdown.finish(),
            Self::Words(layout, _) => layout.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_server::{ChatParserOptions, ReasoningFormat};

    fn printed(view: View, pieces: &[&str], reasoning: bool) -> (String, (String, String)) {
        printed_on(false, view, pieces, reasoning)
    }

    fn printed_on(
        is_terminal: bool,
        view: View,
        pieces: &[&str],
        reasoning: bool,
    ) -> (String, (String, String)) {
        let options = ChatParserOptions {
            reasoning: Some(ReasoningFormat::Think),
            ..ChatParserOptions::default()
        };
        let parser = reasoning.then(|| ChatParser::new(options));
        let mut printer = Printer { view, parser, ..Printer::new(MarkdownArg::Off, None) };
        let mut written = Vec::new();
        let mut out = Out::new(&mut written, is_terminal);
        for piece in pieces {
            printer.push(&mut out, piece).expect("written");
        }
        printer.finish(&mut out, "").expect("written");
        drop(out);
        let answer = printer.into_answer();
        (String::from_utf8(written).expect("UTF-8"), (answer.reasoning(), answer.content()))
    }

    #[test]
    fn plain_answers_are_their_text() {
        let text = ["<think>a</think>", " **b** ", "c"];
        let (out, (reasoning, content)) = printed(View::Plain, &text, false);
        assert_eq!(out, "<think>a</think> **b** c\n");
        assert_eq!((reasoning.as_str(), content.as_str()), ("", "<think>a</think> **b** c"));
        assert_eq!(printed(View::Plain, &["a\n"], false).0, "a\n");
        assert_eq!(printed(View::Plain, &[], false).0, "");
    }

    #[test]
    fn reasoning_is_dim_and_apart() {
        let text = ["<thi", "nk>\nwhy *not", "*\n</think>\n\nSo **it", "** is"];
        let drawn = |markdown| View::Drawn(Box::new(Drawn::new(markdown, Some(40), true)));
        let (out, parts) = printed(drawn(true), &text, true);
        assert_eq!(
            out,
            "\x1b[2mwhy\x1b[0m\x1b[2m \x1b[0m\x1b[2;3mnot\x1b[0m\n\nSo \x1b[1mit\x1b[0m is\n"
        );
        assert_eq!(parts, ("why *not*".to_owned(), "So **it** is".to_owned()));
        let (out, _) = printed(drawn(false), &text, true);
        assert_eq!(out, "\x1b[2mwhy\x1b[0m\x1b[2m *not*\x1b[0m\n\nSo **it** is\n");
    }

    #[test]
    fn sequences_of_a_model_are_signs_however_they_are_split() {
        let drawn = |markdown| View::Drawn(Box::new(Drawn::new(markdown, None, true)));
        let pieces = ["a\x1b", "]52;c;eA==", "\x07 **b\x1b[8m** \u{9b}", "8m\r", "\nc\u{202e}d\re"];
        let plain = "a␛]52;c;eA==␇ **b␛[8m** <U+009B>8m\nc<U+202E>d␍e\n";
        let (out, parts) = printed_on(true, View::Plain, &pieces, false);
        assert_eq!(out, plain);
        // The conversation keeps the text as it is.
        assert_eq!(parts.1, pieces.concat());
        assert_eq!(printed(drawn(false), &pieces, false).0, plain);
        let bold = plain.replace("**b␛[8m**", "\x1b[1mb␛[8m\x1b[0m");
        assert_eq!(printed(drawn(true), &pieces, false).0, bold);
        assert_eq!(printed(View::Plain, &pieces, false).0, pieces.concat() + "\n");
    }
}
