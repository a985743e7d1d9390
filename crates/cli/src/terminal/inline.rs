//! Markdown within a line: emphasis, code, links.
//!
//! A marker that has no partner on its line is text. So what begins one is held back until its
//! partner comes, for a bounded number of characters: a line can be shown while it is written.

use super::layout::{Span, Style};

/// Characters that wait for the partner of a marker; then it is text.
const MAX_HELD: usize = 400;

/// Takes from the front of `text` what is certain, and returns its spans and how many bytes they
/// are. At the `end` of a line that is all.
pub(super) fn take(text: &str, end: bool, before: Option<char>) -> (Vec<Span>, usize) {
    let mut parser = Parser { text, end, spans: Vec::new() };
    let taken = parser.run(0..text.len(), Style::PLAIN, before, true);
    (parser.spans, taken)
}

/// The spans of a whole text.
pub(super) fn spans(text: &str) -> Vec<Span> {
    take(text, true, None).0
}

struct Parser<'a> {
    text: &'a str,
    end: bool,
    spans: Vec<Span>,
}

/// What a marker turned out to be.
enum Found {
    /// Text of this many bytes.
    Text(usize),
    /// Something that ends here.
    Until(usize),
    /// It depends on what comes.
    Open,
}

impl Parser<'_> {
    /// Goes over a part of the text; `outer` is the line itself, of which more may come.
    fn run(
        &mut self,
        range: std::ops::Range<usize>,
        style: Style,
        mut before: Option<char>,
        outer: bool,
    ) -> usize {
        let (text, mut at) = (self.text, range.start);
        while let Some(c) = text[at..range.end].chars().next() {
            let found = match c {
                '\\' => self.escape(at, range.end, style),
                '`' => self.code(at, range.end, style),
                '*' | '_' | '~' => self.emphasis(at, range.end, c, style, before),
                '[' | '!' => self.link(at, range.end, style),
                _ => Found::Text(c.len_utf8()),
            };
            let next = match found {
                Found::Until(next) => next,
                Found::Text(n) => {
                    self.push(style, &text[at..at + n]);
                    at + n
                }
                Found::Open if outer && !self.end && text[at..].chars().count() < MAX_HELD => {
                    return at;
                }
                // Only the marker is text; what follows it may be more.
                Found::Open => {
                    let n = run_len(&text[at..range.end], c) * c.len_utf8();
                    self.push(style, &text[at..at + n]);
                    at + n
                }
            };
            before = text[at..next].chars().next_back();
            at = next;
        }
        at
    }

    fn push(&mut self, style: Style, text: &str) {
        match self.spans.last_mut() {
            Some((last, all)) if *last == style => all.push_str(text),
            _ => self.spans.push((style, text.to_owned())),
        }
    }

    /// A backslash before a marker; `\(` and `\[` begin formulas and stay.
    fn escape(&mut self, at: usize, end: usize, style: Style) -> Found {
        match self.text[at + 1..end].chars().next() {
            None => Found::Open,
            Some(c) if "*_`#~|<>.-+!".contains(c) => {
                self.push(style, c.encode_utf8(&mut [0; 4]));
                Found::Until(at + 2)
            }
            Some(_) => Found::Text(1),
        }
    }

    fn code(&mut self, at: usize, end: usize, style: Style) -> Found {
        let text = self.text;
        let rest = &text[at..end];
        let n = run_len(rest, '`');
        let mut from = n;
        while let Some(begin) = rest[from..].find('`').map(|i| from + i) {
            let run = run_len(&rest[begin..], '`');
            if run == n && (at + begin + run < self.text.len() || self.end) {
                let inner = &rest[n..begin];
                let trimmed = inner.strip_prefix(' ').and_then(|text| text.strip_suffix(' '));
                let inner = trimmed.filter(|text| !text.trim().is_empty()).unwrap_or(inner);
                self.push(style.and(Style::CODE), inner);
                return Found::Until(at + begin + run);
            }
            from = begin + run;
        }
        Found::Open
    }

    fn emphasis(
        &mut self,
        at: usize,
        end: usize,
        marker: char,
        style: Style,
        before: Option<char>,
    ) -> Found {
        let rest = &self.text[at..end];
        let n = run_len(rest, marker);
        let Some(next) = rest[n..].chars().next() else { return Found::Open };
        let inside_word = before.is_some_and(char::is_alphanumeric);
        // A marker within a word is what it looks like: 2*3*4, snake_case, ~10~.
        let opens = !next.is_whitespace() && !inside_word;
        let set = match (marker, n) {
            ('*' | '_', 1) => Style { italic: true, ..Style::PLAIN },
            ('*' | '_', 2) => Style::BOLD,
            ('*' | '_', 3) => Style { bold: true, italic: true, ..Style::PLAIN },
            ('~', 2) => Style { strike: true, ..Style::PLAIN },
            _ => return Found::Text(n),
        };
        if !opens {
            return Found::Text(n);
        }
        match self.partner(at + n, end, marker, n) {
            Some(close) => {
                self.run(at + n..close, style.and(set), None, false);
                Found::Until(close + n)
            }
            None => Found::Open,
        }
    }

    /// Where the marker of `n` characters is closed.
    fn partner(&self, from: usize, end: usize, marker: char, n: usize) -> Option<usize> {
        let mut at = from;
        while let Some(c) = self.text[at..end].chars().next() {
            let rest = &self.text[at..end];
            match c {
                '\\' => at += 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
                '`' => {
                    // Markers in code are text.
                    let run = run_len(rest, '`');
                    let close = rest[run..].find(&rest[..run]).map(|i| run + i + run);
                    at += close.unwrap_or(run);
                }
                _ if c == marker => {
                    let run = run_len(rest, marker);
                    let after = rest[run..].chars().next();
                    // More of the marker, or what decides about it, may be still to come.
                    if after.is_none() && !self.end && at + run == self.text.len() {
                        return None;
                    }
                    let before = self.text[..at].chars().next_back();
                    let closes = before.is_some_and(|c| !c.is_whitespace())
                        && (marker == '*' || !after.is_some_and(char::is_alphanumeric));
                    // `***` closes an outer pair of two after an inner one of one.
                    if closes && at > from && (run == n || run == 3) {
                        return Some(if run == n { at } else { at + run - n });
                    }
                    at += run;
                }
                _ => at += c.len_utf8(),
            }
        }
        None
    }

    /// `[text](url)` as the text and the address, `![text](url)` too.
    fn link(&mut self, at: usize, end: usize, style: Style) -> Found {
        let rest = &self.text[at..end];
        let open = usize::from(rest.starts_with('!'));
        match rest[open..].chars().next() {
            Some('[') => {}
            Some(_) => return Found::Text(1),
            None => return Found::Open,
        }
        let mut depth = 0;
        let mut close = None;
        for (i, c) in rest.char_indices().skip(open) {
            match c {
                '[' => depth += 1,
                ']' if depth == 1 => {
                    close = Some(i);
                    break;
                }
                ']' => depth -= 1,
                _ => {}
            }
        }
        let Some(close) = close else { return Found::Open };
        match rest[close + 1..].chars().next() {
            None => return Found::Open,
            Some('(') => {}
            Some(_) => return Found::Text(open + 1),
        }
        let Some(length) = rest[close + 2..].find(')') else { return Found::Open };
        let text = (at + open + 1, at + close);
        let target = rest[close + 2..close + 2 + length].split_whitespace().next();
        let target = target.unwrap_or_default().to_owned();
        let shown = Style { underline: true, ..style };
        if self.text[text.0..text.1] == target {
            self.push(shown, &target);
        } else {
            self.run(text.0..text.1, shown, None, false);
            if !target.is_empty() {
                self.push(style.and(Style::DIM), &format!(" ({target})"));
            }
        }
        Found::Until(at + close + 3 + length)
    }
}

/// How often `c` stands at the front of `text`.
fn run_len(text: &str, c: char) -> usize {
    text.chars().take_while(|&other| other == c).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spans as a text with a letter for each style in braces.
    fn shown(spans: &[Span]) -> String {
        let one = |(style, text): &Span| {
            let letters: String = [
                (style.bold, 'b'),
                (style.italic, 'i'),
                (style.underline, 'u'),
                (style.strike, 's'),
                (style.code, 'c'),
                (style.dim, 'd'),
            ]
            .iter()
            .filter_map(|&(is_set, letter)| is_set.then_some(letter))
            .collect();
            if letters.is_empty() { text.clone() } else { format!("{{{letters} {text}}}") }
        };
        spans.iter().map(one).collect()
    }

    #[test]
    fn markers_become_styles() {
        for (text, want) in [
            ("a *b* c", "a {i b} c"),
            ("a **b** c", "a {b b} c"),
            ("***b***", "{bi b}"),
            ("**a *b* c**", "{b a }{bi b}{b  c}"),
            ("**a *b***", "{b a }{bi b}"),
            ("__a__ _b_ ~~c~~", "{b a} {i b} {s c}"),
            ("`a*b*` ``c`d``", "{c a*b*} {c c`d}"),
            ("**`a`**", "{bc a}"),
            ("[t](http://x)", "{u t}{d  (http://x)}"),
            ("[http://x](http://x \"title\")", "{u http://x}"),
            ("![t](p.png)!", "{u t}{d  (p.png)}!"),
            ("(**Note:** it)", "({b Note:} it)"),
            ("**漢字**です", "{b 漢字}です"),
        ] {
            assert_eq!(shown(&spans(text)), want, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_marker_is_text() {
        for text in [
            "2 * 3 * 4",
            "2*3*4",
            "snake_case_name",
            "a ** b",
            "*open",
            "**open *too",
            "`open",
            "[1] and [2]",
            "[a](b",
            "![",
            "~10~ or ~20",
            "****",
            r"\(x_1\) and \[y_2\]",
            "wow!",
            "* ",
        ] {
            assert_eq!(shown(&spans(text)), text, "{text:?}");
        }
        assert_eq!(shown(&spans(r"\*a\* \`b\` \_")), "*a* `b` _");
    }

    #[test]
    fn pieces_show_nowhere() {
        let text = "One **bold and *both* of it** and `code*`, 2 * 3, [a](b) then *open **x** _y.";
        let want = shown(&spans(text));
        for size in 1..12 {
            let (mut held, mut all, mut before) = (String::new(), Vec::<Span>::new(), None);
            let mut add = |held: &mut String, end: bool| {
                let (spans, taken) = take(held, end, before);
                before = held[..taken].chars().next_back().or(before);
                held.drain(..taken);
                for (style, text) in spans {
                    match all.last_mut() {
                        Some((last, all)) if *last == style => all.push_str(&text),
                        _ => all.push((style, text)),
                    }
                }
            };
            for piece in text.as_bytes().chunks(size) {
                held.push_str(std::str::from_utf8(piece).expect("ASCII"));
                add(&mut held, false);
            }
            add(&mut held, true);
            assert_eq!((shown(&all), held.as_str()), (want.clone(), ""), "{size}");
        }
        // What waits is bounded.
        let long = format!("**{}", "a ".repeat(MAX_HELD));
        assert_eq!(take(&long, false, None).1, long.len());
        assert_eq!(take("**short", false, None).1, 0);
    }
}
