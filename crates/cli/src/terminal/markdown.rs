//! Markdown as it comes from a model, piece by piece, drawn for a terminal.
//!
//! A line's first characters tell what it is: a heading, an item, a quote, a fence, a row of a table or
//! text. They are held back until that is certain; what follows them is written as it comes. Code
//! is never wrapped, so that it can be copied.

use super::inline;
use super::layout::{Layout, Style};
use super::table;
use crate::screen::Styled;

/// Columns of a rule across the page.
const RULE: usize = 40;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Markdown {
    layout: Layout,
    base: Style,
    state: State,
    held: String, // of the line: what is not written yet
}

#[derive(Debug)]
enum State {
    /// What the line is is not known yet.
    Start,
    /// Text in this style, after the character that was written last.
    Inline(Style, Option<char>),
    /// Between fences of this character and length, or longer.
    Code { fence: char, n: usize, in_line: bool },
    /// In rows that may be a table.
    Table(Vec<String>),
}

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
enum Block<'a> {
    Blank,
    Text { indent: usize, text: &'a str },
    Heading { level: usize, text: &'a str },
    Item { indent: usize, label: &'a str, text: &'a str },
    Quote { depth: usize, text: &'a str },
    Fence { fence: char, n: usize },
    Rule,
    Row,
}

impl Markdown {
    pub(super) fn new(columns: Option<usize>, has_color: bool, base: Style) -> Self {
        let layout = Layout::new(columns, has_color);
        Self { layout, base, state: State::Start, held: String::new() }
    }

    /// Takes a piece of text and returns what is to be written of all so far.
    pub(super) fn push(&mut self, text: &str) -> Styled {
        for c in text.chars() {
            self.held.push(c);
            match self.state {
                _ if c == '\n' => {
                    self.held.pop();
                    self.end_line();
                }
                State::Start | State::Table(_) => self.begin(false),
                State::Code { fence, n, in_line: false } => {
                    let may_close = self.held.trim_start().chars().all(|c| c == fence);
                    if !may_close || self.held.trim_start().len() > n + 8 {
                        self.state = State::Code { fence, n, in_line: true };
                    }
                }
                State::Inline(..) | State::Code { .. } => {}
            }
        }
        self.write_held(false);
        self.layout.take()
    }

    /// What is left at the end, without a line feed of its own.
    pub(super) fn finish(&mut self) -> Styled {
        if !self.held.is_empty() {
            match self.state {
                State::Start | State::Table(_) => self.begin(true),
                State::Code { fence, n, in_line: false } if !self.closes(fence, n) => {
                    self.state = State::Code { fence, n, in_line: true };
                }
                _ => {}
            }
        }
        self.write_held(true);
        if let State::Code { in_line: false, .. } = self.state {
            self.layout.raw(self.base.and(Style::DIM), &std::mem::take(&mut self.held));
        }
        self.flush_table();
        self.layout.finish()
    }

    /// A line feed was read.
    fn end_line(&mut self) {
        if let State::Start | State::Table(_) = self.state {
            self.begin(true);
            match self.state {
                // Rows wait for their last, and a fence has been written.
                State::Table(_) => return,
                State::Code { .. } => {
                    self.layout.newline();
                    return;
                }
                _ => {}
            }
        }
        if let State::Code { fence, n, in_line } = self.state {
            if !in_line && self.closes(fence, n) {
                self.layout.raw(self.base.and(Style::DIM), &std::mem::take(&mut self.held));
                self.state = State::Start;
            } else {
                self.state = State::Code { fence, n, in_line: true };
                self.write_held(true);
                self.state = State::Code { fence, n, in_line: false };
            }
        } else {
            self.write_held(true);
            self.state = State::Start;
        }
        self.layout.newline();
    }

    /// Whether the line ends the code.
    fn closes(&self, fence: char, n: usize) -> bool {
        let line = self.held.trim();
        line.chars().count() >= n && line.chars().all(|c| c == fence)
    }

    /// Examines a line so far; at its end that is all of it.
    fn begin(&mut self, whole: bool) {
        let line = std::mem::take(&mut self.held);
        let Some(block) = decide(&line, whole) else {
            self.held = line;
            return;
        };
        if block == Block::Row {
            match &mut self.state {
                State::Table(rows) => rows.push(line),
                _ => self.state = State::Table(vec![line]),
            }
            return;
        }
        self.flush_table();
        let (base, dim) = (self.base, self.base.and(Style::DIM));
        let (style, text) = match block {
            Block::Blank | Block::Row => (base, ""),
            Block::Text { indent, text } => {
                self.prefix(base, &" ".repeat(indent), indent);
                (base, text)
            }
            Block::Heading { level, text } => {
                (base.and(Style { bold: true, underline: level == 1, ..Style::PLAIN }), text)
            }
            Block::Item { indent, label, text } => {
                let label = if label.len() == 1 { "•" } else { label };
                let prefix = format!("{}{label} ", " ".repeat(indent));
                self.prefix(base, &prefix, prefix.chars().count());
                (base, text)
            }
            Block::Quote { depth, text } => {
                let bars = "│ ".repeat(depth);
                self.layout.raw(dim, &bars);
                self.layout.set_hang(vec![(dim, bars)]);
                (base, text)
            }
            Block::Rule => {
                let columns = self.layout.columns().map_or(RULE, |columns| columns.min(RULE));
                self.layout.raw(dim, &"─".repeat(columns));
                (base, "")
            }
            Block::Fence { fence, n } => {
                self.layout.raw(dim, line.trim_end());
                self.state = State::Code { fence, n, in_line: false };
                return;
            }
        };
        self.held = text.to_owned();
        self.state = State::Inline(style, None);
    }

    /// Writes what stands before the text of a line, whose further lines are as far in.
    fn prefix(&mut self, style: Style, prefix: &str, columns: usize) {
        if columns > 0 {
            self.layout.raw(style, prefix);
            self.layout.set_hang(vec![(style, " ".repeat(columns))]);
        }
    }

    /// Writes what is certain of the line.
    fn write_held(&mut self, end: bool) {
        match self.state {
            State::Inline(base, before) => {
                let (spans, taken) = inline::take(&self.held, end, before);
                for (style, text) in spans {
                    // Without colours, code keeps its marks.
                    if style.code && !self.layout.has_color() {
                        self.layout.text(base.and(style), &format!("`{text}`"));
                    } else {
                        self.layout.text(base.and(style), &text);
                    }
                }
                let last = self.held[..taken].chars().next_back();
                self.held.drain(..taken);
                self.state = State::Inline(base, last.or(before));
            }
            State::Code { in_line: true, .. } => {
                let text = std::mem::take(&mut self.held);
                self.layout.raw(self.base.and(Style::CODE), &text);
            }
            State::Start | State::Code { .. } | State::Table(_) => {}
        }
    }

    /// Writes the rows read so far, as a table or as they are.
    fn flush_table(&mut self) {
        let State::Table(rows) = std::mem::replace(&mut self.state, State::Start) else { return };
        if table::write(&mut self.layout, &rows, self.base) {
            return;
        }
        for row in rows {
            for (style, text) in inline::spans(row.trim()) {
                self.layout.text(self.base.and(style), &text);
            }
            self.layout.newline();
        }
    }
}

/// What a line is by its beginning, or none while that is open.
fn decide(line: &str, whole: bool) -> Option<Block<'_>> {
    let text = line.trim_start();
    let indent =
        line[..line.len() - text.len()].chars().map(|c| if c == '\t' { 4 } else { 1 }).sum();
    let plain = Block::Text { indent, text };
    let Some(first) = text.chars().next() else { return whole.then_some(Block::Blank) };
    let run = text.chars().take_while(|&c| c == first).count();
    let behind = text.chars().nth(run); // only ASCII is counted below
    let is_open = behind.is_none() && !whole;
    match first {
        '#' if is_open => None,
        '#' if run <= 6 && behind == Some(' ') => {
            let text = text[run..].trim_start();
            (!text.is_empty() || whole).then_some(Block::Heading { level: run, text })
        }
        '`' | '~' if run < 3 && is_open => None,
        '`' | '~' if run >= 3 && !whole => None,
        '`' | '~' if run >= 3 && !text[run..].contains('`') => {
            Some(Block::Fence { fence: first, n: run })
        }
        '|' => whole.then_some(Block::Row),
        '>' => quote(text, whole),
        '-' | '*' | '_' if text.chars().all(|c| c == first || c == ' ') => {
            let n = text.chars().filter(|&c| c == first).count();
            match whole {
                true if n >= 3 => Some(Block::Rule),
                true => Some(item(text, 1, indent).unwrap_or(plain)),
                false => None,
            }
        }
        '-' | '*' | '+' => match text[1..].chars().next() {
            None if !whole => None,
            _ => Some(item(text, 1, indent).unwrap_or(plain)),
        },
        '0'..='9' => {
            let digits = text.chars().take_while(char::is_ascii_digit).count();
            let mut rest = text[digits..].chars();
            match (rest.next(), rest.next()) {
                (None, _) | (Some('.' | ')'), None) if !whole && digits <= 9 => None,
                (Some('.' | ')'), Some(' ')) if digits <= 9 => {
                    Some(item(text, digits + 1, indent).unwrap_or(plain))
                }
                _ => Some(plain),
            }
        }
        _ => Some(plain),
    }
}

/// An item whose label has `n` bytes.
fn item(text: &str, n: usize, indent: usize) -> Option<Block<'_>> {
    let rest = text[n..].strip_prefix(' ')?;
    Some(Block::Item { indent, label: &text[..n], text: rest.trim_start() })
}

/// A line after one `>` or several.
fn quote(text: &str, whole: bool) -> Option<Block<'_>> {
    let rest = text.trim_start_matches(['>', ' ']);
    let marks = &text[..text.len() - rest.len()];
    let depth = marks.chars().filter(|&c| c == '>').count();
    (whole || !rest.is_empty()).then_some(Block::Quote { depth, text: rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is drawn, with letters in braces in the place of escape sequences.
    fn drawn_in(columns: usize, pieces: &[&str]) -> String {
        let mut markdown = Markdown::new(Some(columns), true, Style::PLAIN);
        let pieces = pieces.iter().map(|piece| markdown.push(piece));
        let mut out: String = pieces.map(|piece| piece.as_str().to_owned()).collect();
        out.push_str(markdown.finish().as_str());
        for (sequence, letter) in
            [("1", "b"), ("2", "d"), ("3", "i"), ("36", "c"), ("1;4", "bu"), ("0", "")]
        {
            out = out.replace(&format!("\x1b[{sequence}m"), &format!("{{{letter}}}"));
        }
        out
    }

    const PAGE: &str = "\
# Title

Some **bold** text that goes on for longer than a line.
## Part
- one with *emphasis* and enough words to wrap
  - two
10. ten `code`

> quoted text which is also longer than one line is

```rust
let text = \"a line that is much longer than the page\";
``

```
---
| a | b |
|---|---|
| 1 | 2 |
end
";

    const DRAWN: &str = "\
{bu}Title{}

Some {b}bold{} text that goes on for
longer than a line.
{b}Part{}
• one with {i}emphasis{} and enough
  words to wrap
  • two
10. ten {c}code{}

{d}│ {}quoted text which is also longer
{d}│ {}than one line is

{d}```rust{}
{c}let text = \"a line that is much longer than the page\";{}
{c}``{}

{d}```{}
{d}──────────────────────────────────{}
{b}a{}{d} │ {}{b}b{}
{d}──┼──{}
1{d} │ {}2
end
";

    #[test]
    fn a_page_is_drawn() {
        assert_eq!(drawn_in(34, &[PAGE]), DRAWN);
    }

    #[test]
    fn pieces_show_nowhere() {
        // Sequences may be repeated where a piece ends; what is seen is the same.
        let seen = |text: &str| {
            let mut seen = Vec::new();
            let mut style = "";
            let mut rest = text;
            while let Some(c) = rest.chars().next() {
                let end = rest.find('}').filter(|_| c == '{' && !rest.starts_with("{ "));
                if let Some(end) = end {
                    style = &rest[1..end];
                    rest = &rest[end + 1..];
                } else {
                    seen.push((c, if c == '\n' { "" } else { style }));
                    rest = &rest[c.len_utf8()..];
                }
            }
            seen.iter().map(|(c, style)| format!("{c}{style} ")).collect::<String>()
        };
        for size in [1, 2, 3, 5, 7, 11] {
            let pieces: Vec<&str> = PAGE
                .as_bytes()
                .chunks(size)
                .map(|piece| std::str::from_utf8(piece).expect("ASCII"))
                .collect();
            assert_eq!(seen(&drawn_in(34, &pieces)), seen(DRAWN), "{size}");
        }
    }

    #[test]
    fn what_is_open_at_the_end_is_written() {
        for (text, want) in [
            ("```\ncode", "{d}```{}\n{c}code{}"),
            ("```\ncode\n```", "{d}```{}\n{c}code{}\n{d}```{}"),
            ("| a |", "| a |\n"),
            ("**open", "**open"),
            ("-", "-"),
            ("- ", "• "),
            ("1.", "1."),
            ("#", "#"),
            ("> ", "{d}│ {}"),
            ("--", "--"),
            ("#tag and #", "#tag and #"),
            ("12.5 is a number", "12.5 is a number"),
            ("**bold** first", "{b}bold{} first"),
            ("", ""),
        ] {
            assert_eq!(drawn_in(60, &[text]), want, "{text:?}");
            let letters: Vec<_> = text.split_inclusive(|_: char| true).collect();
            assert_eq!(
                drawn_in(60, &letters).replace("{}{b}", "").replace("{}{c}", ""),
                want,
                "{text:?}"
            );
        }
    }
}
