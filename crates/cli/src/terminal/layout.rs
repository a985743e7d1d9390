//! Text in lines of a terminal's width: words stay whole, styles become escape sequences.
//!
//! A word is written when it has ended, so that it can go to the next line as a whole. One that is
//! longer than a line is left to the terminal, which keeps a URL in one piece for the mouse.

use unicode_width::UnicodeWidthChar;

use crate::screen::Styled;

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) bold: bool,
    pub(super) dim: bool,
    pub(super) italic: bool,
    pub(super) underline: bool,
    pub(super) strike: bool,
    pub(super) code: bool,
}

impl Style {
    pub(super) const PLAIN: Self = Self {
        bold: false,
        dim: false,
        italic: false,
        underline: false,
        strike: false,
        code: false,
    };
    pub(super) const DIM: Self = Self { dim: true, ..Self::PLAIN };
    pub(super) const BOLD: Self = Self { bold: true, ..Self::PLAIN };
    pub(super) const CODE: Self = Self { code: true, ..Self::PLAIN };

    /// Both styles at once.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            bold: self.bold | other.bold,
            dim: self.dim | other.dim,
            italic: self.italic | other.italic,
            underline: self.underline | other.underline,
            strike: self.strike | other.strike,
            code: self.code | other.code,
        }
    }

    /// The codes that set this style after a plain one.
    fn codes(self, has_color: bool) -> String {
        let parts = [
            (self.bold, "1"),
            (self.dim, "2"),
            (self.italic, "3"),
            (self.underline, "4"),
            (self.strike, "9"),
            (self.code && has_color, "36"),
        ];
        let set: Vec<_> = parts.iter().filter(|(is_set, _)| *is_set).map(|(_, n)| *n).collect();
        set.join(";")
    }
}

/// A piece of text with its style.
pub(super) type Span = (Style, String);

/// Columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Layout {
    columns: Option<usize>, // none: lines are as long as they come
    has_color: bool,
    column: usize,
    word: Vec<Span>,
    word_width: usize,
    spaces: Vec<Style>, // before the word
    may_break: bool,    // before the word
    hang: Vec<Span>,    // before what a line is continued with
    written: Style,     // in effect on the terminal
    out: Styled,
}

impl Layout {
    pub(super) fn new(columns: Option<usize>, has_color: bool) -> Self {
        Self {
            columns,
            has_color,
            column: 0,
            word: Vec::new(),
            word_width: 0,
            spaces: Vec::new(),
            may_break: false,
            hang: Vec::new(),
            written: Style::PLAIN,
            out: Styled::default(),
        }
    }

    pub(super) fn columns(&self) -> Option<usize> {
        self.columns
    }

    pub(super) fn has_color(&self) -> bool {
        self.has_color
    }

    /// What goes before each line that this one is continued on.
    pub(super) fn set_hang(&mut self, hang: Vec<Span>) {
        self.hang = hang;
    }

    /// Text without a line feed, which may be continued on the next line where it has a space.
    pub(super) fn text(&mut self, style: Style, text: &str) {
        for c in text.chars() {
            match c.width().unwrap_or(0) {
                _ if c == ' ' || c == '\t' => {
                    self.end_word();
                    self.spaces.push(style);
                    self.may_break = true;
                }
                // A line may be broken before any of the wide characters.
                2 => {
                    self.end_word();
                    self.may_break = true;
                    self.add(style, c, 2);
                }
                n => self.add(style, c, n),
            }
        }
    }

    /// Text that is written as it is, wherever the line ends.
    pub(super) fn raw(&mut self, style: Style, text: &str) {
        if text.is_empty() {
            return;
        }
        self.end_word();
        self.write_spaces();
        self.write(style, text);
        self.column += width(text);
    }

    /// Ends the line.
    pub(super) fn newline(&mut self) {
        self.end_word();
        self.spaces.clear();
        self.set(Style::PLAIN);
        self.out.text("\n");
        self.column = 0;
        self.hang.clear();
    }

    /// What is to be written now; a word that may continue is held back.
    pub(super) fn take(&mut self) -> Styled {
        self.set(Style::PLAIN);
        std::mem::take(&mut self.out)
    }

    /// What is to be written at the end.
    pub(super) fn finish(&mut self) -> Styled {
        self.end_word();
        self.spaces.clear();
        self.take()
    }

    fn add(&mut self, style: Style, c: char, width: usize) {
        match self.word.last_mut() {
            Some((last, text)) if *last == style => text.push(c),
            _ => self.word.push((style, c.to_string())),
        }
        self.word_width += width;
        // What no line can hold need not wait for its end.
        if self.columns.is_some_and(|columns| self.word_width >= columns) {
            self.end_word();
            self.may_break = false;
        }
    }

    /// Writes the word that was held back, on the next line if it does not fit this one.
    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let hang_width = self.hang.iter().map(|(_, text)| width(text)).sum::<usize>();
        if let Some(columns) = self.columns
            && self.may_break
            && self.column + self.spaces.len() + self.word_width > columns
            && self.column > hang_width
            && self.word_width + hang_width <= columns
        {
            self.spaces.clear();
            self.set(Style::PLAIN);
            self.out.text("\n");
            for (style, text) in self.hang.clone() {
                self.write(style, &text);
            }
            self.column = hang_width;
        }
        self.write_spaces();
        for (style, text) in std::mem::take(&mut self.word) {
            self.write(style, &text);
        }
        self.column += self.word_width;
        if let Some(columns) = self.columns.filter(|&columns| self.column > columns) {
            self.column %= columns;
        }
        self.word_width = 0;
    }

    fn write_spaces(&mut self) {
        for style in std::mem::take(&mut self.spaces) {
            self.write(style, " ");
            self.column += 1;
        }
    }

    fn write(&mut self, style: Style, text: &str) {
        self.set(style);
        self.out.text(text);
    }

    fn set(&mut self, style: Style) {
        if style == self.written {
            return;
        }
        let (from, to) = (self.written.codes(self.has_color), style.codes(self.has_color));
        if from != to {
            if !from.is_empty() {
                self.out.style("0");
            }
            if !to.is_empty() {
                self.out.style(&to);
            }
        }
        self.written = style;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid_out(columns: Option<usize>, text: &str) -> String {
        let mut layout = Layout::new(columns, true);
        for (n, line) in text.split('\n').enumerate() {
            if n > 0 {
                layout.newline();
            }
            layout.text(Style::PLAIN, line);
        }
        layout.finish().as_str().to_owned()
    }

    #[test]
    fn lines_break_between_words() {
        for (columns, text, want) in [
            (10, "one two three", "one two\nthree"),
            (7, "one two three", "one two\nthree"),
            (6, "one two three", "one\ntwo\nthree"),
            (10, "one  two", "one  two"),
            (10, "a\n\nb ", "a\n\nb"),
            // A word that no line holds is not cut.
            (5, "a incomprehensible b", "a\nincomprehensible b"),
            (8, "漢字漢字漢字", "漢字漢字\n漢字"),
            (20, "  indented", "  indented"),
        ] {
            assert_eq!(laid_out(Some(columns), text), want, "{columns} {text:?}");
        }
        assert_eq!(laid_out(None, &"ab ".repeat(99)), "ab ".repeat(99).trim_end());
    }

    #[test]
    fn pieces_show_nowhere() {
        let text = "The quick brown fox jumps over the lazy dog and incomprehensibilities, twice.";
        let whole = laid_out(Some(16), text);
        for size in 1..9 {
            let mut layout = Layout::new(Some(16), true);
            let mut out = Styled::default();
            for piece in text.as_bytes().chunks(size) {
                layout.text(Style::PLAIN, std::str::from_utf8(piece).expect("ASCII"));
                out.push(&layout.take());
            }
            out.push(&layout.finish());
            assert_eq!(out.as_str(), whole, "{size}");
        }
    }

    #[test]
    fn styles_end_before_a_line_does() {
        let mut layout = Layout::new(Some(6), true);
        layout.set_hang(vec![(Style::DIM, "| ".to_owned())]);
        layout.raw(Style::DIM, "| ");
        layout.text(Style::BOLD, "aa bbb");
        let want = "\x1b[2m| \x1b[0m\x1b[1maa\x1b[0m\n\x1b[2m| \x1b[0m\x1b[1mbbb\x1b[0m";
        assert_eq!(layout.finish().as_str(), want);
        // Without colours, code looks like text.
        let mut layout = Layout::new(None, false);
        layout.text(Style::CODE, "a");
        layout.text(Style::BOLD, "b");
        assert_eq!(layout.finish().as_str(), "a\x1b[1mb\x1b[0m");
    }
}
