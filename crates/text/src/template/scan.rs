//! What is checked of a template before it is parsed, and what is added to it.
//!
//! The parser, the compiler and the syntax tree they pass on all call themselves as deeply as an
//! expression nests, and operators nest as brackets do: `not not x`, `a.b.c`, `a + b + c`. So the
//! symbols of a tag and the tags that open blocks are counted first.
//!
//! The template machine has no bound on what operators make. So filters of [`budget`](super::budget)
//! are put after the operands of `~`, `+` and `*`, after slices and literals; they count, and give
//! the value back. `%`, which the machine has for numbers alone, becomes a product of two filters, where it is the first
//! operator of its term. No line is added, so that errors keep their place.

use super::names::{self, Named};

/// The maximum number of bytes of a template.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// The maximum number of symbols of a tag: names, strings, numbers, operators and brackets.
const MAX_SYMBOLS: usize = 10_000;
/// The maximum number of operators and brackets one inside another in a tag, and blocks in a template.
const MAX_DEPTH: usize = 100;
/// The maximum number of operators of a tag: each makes the tree of its expression one level deeper.
const MAX_OPERATORS: usize = 2_000;
/// The most `elif` in a template, which count as one inside another.
const MAX_BRANCHES: usize = 1_000;

/// Names of the filters that are added; see [`budget`](super::budget).
pub(super) const TEXT: &str = "_made_text";
pub(super) const ITEMS: &str = "_made_items";
pub(super) const LEFT: &str = "_times_left";
pub(super) const RIGHT: &str = "_times_right";
pub(super) const MIDDLE: &str = "_times_middle";
pub(super) const MODULO_LEFT: &str = "_modulo_left";
pub(super) const MODULO_RIGHT: &str = "_modulo_right";

/// Words that stand between operands.
const WORDS: &[&str] = &["and", "or", "not", "in", "is", "if", "else"];

/// A template that was checked.
#[derive(Debug)]
pub(super) struct Checked {
    /// The text with the filters.
    pub(super) text: String,
    /// Bytes of the longest text between tags.
    pub(super) longest_data: usize,
    /// The filters and tests without which Jinja2 does not compile it.
    pub(super) names: Vec<Named>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Name,
    Text,
    Number,
    Open,
    Close,
    Symbol,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    end: usize, // in the template
}

/// Checks a template, and adds the filters.
pub(super) fn check(source: &str) -> Result<Checked, String> {
    if source.len() > MAX_BYTES {
        return Err(format!("it has {} bytes, at most {MAX_BYTES} are allowed", source.len()));
    }
    let mut scan = Scan { source, at: 0, out: String::new(), copied: 0, longest_data: 0 };
    let mut n_branches = 0;
    let mut blocks: Vec<&str> = Vec::new(); // the names of the blocks that are open
    let mut names = Vec::new();
    while let Some((is_block, symbols)) = scan.next_tag()? {
        let line = |scan: &Scan<'_>| 1 + source[..scan.at].matches('\n').count();
        if let Err(problem) = check_tag(&symbols) {
            return Err(format!("{problem} (in line {})", line(&scan)));
        }
        let first = symbols.first().filter(|_| is_block).map_or("", |symbol| symbol.text);
        let is_conditional = first == "if" || blocks.last().is_some_and(|&block| block == "if");
        match first {
            "if" | "for" | "with" | "autoescape" | "filter" | "block" | "macro" | "call" => {
                blocks.push(first);
            }
            // A block has no value, or filters for it.
            "set" if !symbols.iter().any(|symbol| symbol.text == "=") => blocks.push(first),
            "elif" => n_branches += 1,
            "include" | "import" | "from" | "extends" if !is_conditional => {
                let line = line(&scan);
                return Err(format!("there is no template that it could {first} (in line {line})"));
            }
            name if name.starts_with("end") => drop(blocks.pop()),
            _ => {}
        }
        if !is_conditional {
            names::of_tag(&symbols, is_block, line(&scan), &mut names);
        }
        if blocks.len() > MAX_DEPTH {
            return Err(format!(
                "blocks are nested more than {MAX_DEPTH} deep (in line {})",
                line(&scan)
            ));
        }
        if n_branches > MAX_BRANCHES {
            return Err(format!("it has more than {MAX_BRANCHES} `elif`"));
        }
        scan.add_filters(&symbols, is_block);
    }
    scan.out.push_str(&source[scan.copied..]);
    Ok(Checked { text: scan.out, longest_data: scan.longest_data, names })
}

fn check_tag(symbols: &[Symbol<'_>]) -> Result<(), String> {
    if symbols.len() > MAX_SYMBOLS {
        return Err(format!("a tag has more than {MAX_SYMBOLS} symbols"));
    }
    let (mut depth, mut deepest, mut run, mut longest) = (0_usize, 0, 0, 0);
    let mut n_operators = 0;
    for symbol in symbols {
        match symbol.kind {
            Kind::Open => depth += 1,
            Kind::Close => {
                depth = depth.checked_sub(1).ok_or("a closing bracket has no opening one")?;
            }
            _ => {}
        }
        // `not` and `-` apply to what follows, one after another.
        run = if matches!(symbol.text, "not" | "-") { run + 1 } else { 0 };
        let is_operator = match symbol.kind {
            Kind::Name => WORDS.contains(&symbol.text),
            Kind::Symbol => !matches!(symbol.text, "," | ":" | "="),
            Kind::Open => true,
            Kind::Text | Kind::Number | Kind::Close => false,
        };
        n_operators += usize::from(is_operator);
        (deepest, longest) = (deepest.max(depth), longest.max(run));
    }
    if depth > 0 {
        return Err("a bracket is not closed before the end of a tag".to_owned());
    }
    if deepest > MAX_DEPTH || longest > MAX_DEPTH {
        return Err(format!("operators or brackets are nested more than {MAX_DEPTH} deep"));
    }
    if n_operators > MAX_OPERATORS {
        return Err(format!("a tag has more than {MAX_OPERATORS} operators"));
    }
    Ok(())
}

struct Scan<'a> {
    source: &'a str,
    at: usize,
    out: String,
    copied: usize, // bytes of the source that are in `out`
    longest_data: usize,
}

impl<'a> Scan<'a> {
    /// The symbols of the next tag, and whether it is a block's; comments and raw text are
    /// skipped.
    fn next_tag(&mut self) -> Result<Option<(bool, Vec<Symbol<'a>>)>, String> {
        loop {
            let start = self.at;
            let rest = &self.source[self.at..];
            let marker = rest.match_indices('{').find_map(|(at, _)| {
                let mark = *rest.as_bytes().get(at + 1)?;
                matches!(mark, b'{' | b'%' | b'#').then_some((at, mark))
            });
            let end = marker.map_or(rest.len(), |(at, _)| at);
            self.longest_data = self.longest_data.max(self.at + end - start);
            let Some((at, mark)) = marker else {
                self.at = self.source.len();
                return Ok(None);
            };
            self.at += at + 2;
            let rest = &self.source[self.at..];
            if mark == b'#' {
                self.at += rest.find("#}").ok_or("a comment is not closed")? + 2;
                continue;
            }
            if mark == b'%'
                && let Some(len) = tag_named(rest, "raw")
            {
                let raw = &rest[len..];
                let mut ends = raw.match_indices("{%");
                let end = ends.find_map(|(at, _)| {
                    tag_named(&raw[at + 2..], "endraw").map(|len| (at, at + 2 + len))
                });
                let (data, end) = end.ok_or("a raw block is not closed")?;
                self.longest_data = self.longest_data.max(data);
                self.at += len + end;
                continue;
            }
            return self.symbols(mark == b'%').map(|symbols| Some((mark == b'%', symbols)));
        }
    }

    /// The symbols up to the end of a tag.
    fn symbols(&mut self, is_block: bool) -> Result<Vec<Symbol<'a>>, String> {
        let close = if is_block { "%}" } else { "}}" };
        let mut symbols = Vec::new();
        let mut depth = 0_usize;
        if let Some(b'-' | b'+') = self.source.as_bytes().get(self.at) {
            self.at += 1;
        }
        loop {
            let rest = self.source[self.at..].trim_ascii_start();
            let start = self.source.len() - rest.len();
            let Some(first) = rest.chars().next() else {
                return Err("a tag is not closed".to_owned());
            };
            if depth == 0 {
                let unmarked = match first {
                    '-' => &rest[1..],
                    '+' if is_block => &rest[1..],
                    _ => rest,
                };
                if unmarked.starts_with(close) {
                    self.at = self.source.len() - unmarked.len() + close.len();
                    return Ok(symbols);
                }
            }
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let (kind, len) = match first {
                '\'' | '"' => (Kind::Text, quoted(rest, first).ok_or("a string is not closed")?),
                '(' | '[' | '{' => {
                    depth += 1;
                    (Kind::Open, 1)
                }
                ')' | ']' | '}' => {
                    depth = depth.checked_sub(1).ok_or("a closing bracket has no opening one")?;
                    (Kind::Close, 1)
                }
                c if c.is_ascii_digit() => (Kind::Number, number(rest)),
                c if is_word(c) => (Kind::Name, rest.find(|c| !is_word(c)).unwrap_or(rest.len())),
                _ if ["**", "//", "==", "!=", ">=", "<="].iter().any(|it| rest.starts_with(it)) => {
                    (Kind::Symbol, 2)
                }
                c => (Kind::Symbol, c.len_utf8()),
            };
            self.at = start + len;
            symbols.push(Symbol { kind, text: &rest[..len], end: self.at });
            if symbols.len() > MAX_SYMBOLS {
                return Ok(symbols);
            }
        }
    }

    /// Writes the tag with the filters after its operands.
    fn add_filters(&mut self, symbols: &[Symbol<'a>], is_block: bool) {
        let mut added: Vec<(usize, &'static str)> = Vec::new(); // where, and which
        let mut products: Vec<usize> = Vec::new(); // ends of the signs that become products
        // Names of a block's tag are not operands.
        let first = usize::from(is_block);
        for (i, symbol) in symbols.iter().enumerate().skip(first) {
            match symbol.text {
                "~" | "+" if symbol.kind == Kind::Symbol && ends_operand(symbols, i) => {
                    let filter = if symbol.text == "~" { TEXT } else { ITEMS };
                    added.push((symbols[i - 1].end, filter));
                    added.extend(operand_end(symbols, i + 1).map(|end| (end, filter)));
                }
                "*" if symbol.kind == Kind::Symbol && ends_operand(symbols, i) => {
                    let Some(end) = operand_end(symbols, i + 1) else { continue };
                    // The left operand of a further `*` is the product so far.
                    if !added.contains(&(symbols[i - 1].end, MIDDLE)) {
                        added.push((symbols[i - 1].end, LEFT));
                    }
                    let again = symbols.iter().any(|it| it.end > end)
                        && symbols.iter().find(|it| it.end > end).is_some_and(|it| it.text == "*");
                    added.push((end, if again { MIDDLE } else { RIGHT }));
                }
                "%" if symbol.kind == Kind::Symbol && begins_term(symbols, i) => {
                    let Some(end) = operand_end(symbols, i + 1) else { continue };
                    added.extend([(symbols[i - 1].end, MODULO_LEFT), (end, MODULO_RIGHT)]);
                    products.push(symbol.end);
                }
                // Lists, tuples, maps and slices.
                "[" | "(" | "{" if symbol.kind == Kind::Open => {
                    let Some(close) = closing(symbols, i) else { continue };
                    let is_postfix = ends_operand(symbols, i);
                    let inside = &symbols[i + 1..close];
                    let separated = |text: &str| {
                        let mut depth = 0_usize;
                        inside.iter().any(|it| {
                            match it.kind {
                                Kind::Open => depth += 1,
                                Kind::Close => depth = depth.saturating_sub(1),
                                _ => {}
                            }
                            depth == 0 && it.kind == Kind::Symbol && it.text == text
                        })
                    };
                    let makes = match symbol.text {
                        "[" if is_postfix => separated(":"),
                        "[" | "{" => !is_postfix,
                        _ => !is_postfix && separated(","),
                    };
                    // The list of names behind `for` or `set` is not a value.
                    let is_target =
                        is_block && symbols[i - 1..i].iter().any(|it| it.end == symbols[0].end);
                    let is_target = is_target && matches!(symbols[0].text, "for" | "set");
                    if makes && !is_target {
                        added.extend(postfix_end(symbols, close).map(|end| (end, TEXT)));
                    }
                }
                _ => {}
            }
        }
        added.sort_unstable_by_key(|&(at, filter)| (at, order(filter)));
        added.dedup();
        let mut products = products.into_iter().peekable();
        for (at, filter) in added {
            while let Some(end) = products.next_if(|&end| end <= at) {
                self.out.push_str(&self.source[self.copied..end - 1]);
                self.out.push('*');
                self.copied = end;
            }
            self.out.push_str(&self.source[self.copied..at]);
            self.out.push('|');
            self.out.push_str(filter);
            self.copied = at;
        }
    }
}

/// After one operand, what is counted comes before what is multiplied.
fn order(filter: &str) -> usize {
    [TEXT, MODULO_RIGHT, ITEMS, RIGHT, MIDDLE, LEFT, MODULO_LEFT]
        .iter()
        .position(|it| *it == filter)
        .unwrap_or(0)
}

/// Whether an operand ends before the symbol `i`.
fn ends_operand(symbols: &[Symbol<'_>], i: usize) -> bool {
    let Some(before) = i.checked_sub(1).map(|before| symbols[before]) else { return false };
    match before.kind {
        Kind::Name => !WORDS.contains(&before.text),
        Kind::Text | Kind::Number | Kind::Close => true,
        Kind::Open | Kind::Symbol => false,
    }
}

/// Whether the operand before the operator `i` may be a string, and no other operator of its term or a sign comes before it.
fn begins_term(symbols: &[Symbol<'_>], i: usize) -> bool {
    if !ends_operand(symbols, i) {
        return false;
    }
    let is = |at: usize, texts: &[&str]| {
        symbols[at].kind == Kind::Symbol && texts.contains(&symbols[at].text)
    };
    // The first symbol of the operand.
    let mut start = i - 1;
    loop {
        match symbols[start].kind {
            Kind::Close => {
                let Some(open) = opening(symbols, start) else { return false };
                start = open;
                if ends_operand(symbols, open) {
                    start -= 1;
                    continue;
                }
            }
            Kind::Text => {
                while start > 0 && symbols[start - 1].kind == Kind::Text {
                    start -= 1;
                }
            }
            Kind::Name if start >= 2 && is(start - 1, &[".", "|"]) => {
                start -= 2;
                continue;
            }
            Kind::Name => {}
            Kind::Number | Kind::Open | Kind::Symbol => return false,
        }
        break;
    }
    let Some(before) = start.checked_sub(1) else { return true };
    let is_sign = is(before, &["-", "+"]) && !ends_operand(symbols, before);
    !is_sign && !is(before, &["*", "/", "//", "%", "**"])
}

/// The index of the bracket that is closed by the one at `close`.
fn opening(symbols: &[Symbol<'_>], close: usize) -> Option<usize> {
    let mut depth = 0_usize;
    symbols[..=close].iter().rposition(|symbol| {
        match symbol.kind {
            Kind::Close => depth += 1,
            Kind::Open => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    })
}

/// The index of the bracket that closes the one at `open`.
fn closing(symbols: &[Symbol<'_>], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    symbols[open..]
        .iter()
        .position(|symbol| {
            match symbol.kind {
                Kind::Open => depth += 1,
                Kind::Close => depth -= 1,
                _ => {}
            }
            depth == 0
        })
        .map(|len| open + len)
}

/// Where the operand that begins at the symbol `i` ends, with its calls and filters.
fn operand_end(symbols: &[Symbol<'_>], mut i: usize) -> Option<usize> {
    while symbols.get(i)?.text == "-" && symbols[i].kind == Kind::Symbol {
        i += 1;
    }
    match symbols.get(i)?.kind {
        Kind::Open => postfix_end(symbols, closing(symbols, i)?),
        Kind::Text => {
            while symbols.get(i + 1).is_some_and(|next| next.kind == Kind::Text) {
                i += 1;
            }
            postfix_end(symbols, i)
        }
        Kind::Name | Kind::Number => postfix_end(symbols, i),
        Kind::Close | Kind::Symbol => None,
    }
}

/// Where what ends with the symbol `i` ends with the attributes, calls and filters after it.
fn postfix_end(symbols: &[Symbol<'_>], mut i: usize) -> Option<usize> {
    while let Some(next) = symbols.get(i + 1) {
        i = match (next.kind, next.text) {
            (Kind::Symbol, "." | "|") => i + 2,
            (Kind::Open, "(" | "[") => closing(symbols, i + 1)?,
            _ => break,
        };
    }
    Some(symbols.get(i)?.end)
}

/// The length of the rest of a tag with only this name, if it is one.
fn tag_named(rest: &str, name: &str) -> Option<usize> {
    let marks = ['-', '+'];
    let inner = rest.strip_prefix(marks).unwrap_or(rest).trim_ascii_start();
    let inner = inner.strip_prefix(name)?.trim_ascii_start();
    let end = inner.strip_prefix(marks).unwrap_or(inner).strip_prefix("%}")?;
    Some(rest.len() - end.len())
}

/// The length of a string with its marks.
fn quoted(rest: &str, mark: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == mark => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// The length of a number; what follows a dot is part of it only if it is a digit.
fn number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut len = 0;
    while let Some(&byte) = bytes.get(len) {
        let next = bytes.get(len + 1);
        let in_number = match byte {
            b'.' => next.is_some_and(u8::is_ascii_digit),
            b'+' | b'-' => {
                matches!(bytes[len - 1], b'e' | b'E') && next.is_some_and(u8::is_ascii_digit)
            }
            _ => byte.is_ascii_alphanumeric() || byte == b'_',
        };
        if !in_number {
            break;
        }
        len += 1;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_stand_behind_operands() {
        let check = |source: &str, want: &str| {
            let got = check(source).unwrap().text;
            let letters = [
                (TEXT, "T"),
                (ITEMS, "I"),
                (LEFT, "L"),
                (RIGHT, "R"),
                (MIDDLE, "M"),
                (MODULO_LEFT, "P"),
                (MODULO_RIGHT, "Q"),
            ];
            let short = letters.iter().fold(got, |text, (name, letter)| text.replace(name, letter));
            assert_eq!(short, want, "{source}");
        };
        check("a {{ b }} c", "a {{ b }} c");
        check("{{ a ~ b.c[0](d) ~ -e }}", "{{ a|T ~ b.c[0](d)|T ~ -e|T }}");
        check("{{ 'x' 'y' + a | trim + b }}", "{{ 'x' 'y'|I + a | trim|I + b|I }}");
        check("{{ a * b * c + 1 }}", "{{ a|L * b|M * c|I|R + 1|I }}");
        check("{{ f(*a, **b) ** c }}", "{{ f(*a, **b) ** c }}");
        check(
            "{{ a.b[0] % c + d - e|f(1) % -g }}",
            "{{ a.b[0]|P * c|Q|I + d|I - e|f(1)|P * -g|Q }}",
        );
        check("{{ '%s' 'x' % (a, b) }}", "{{ '%s' 'x'|P * (a, b)|T|Q }}");
        check("{{ a % b * c }}{{ a * b % c }}", "{{ a|P * b|Q|L * c|R }}{{ a|L * b|R % c }}");
        check(
            "{{ a % b % c }}{{ -a % b }}{{ 7 % a }}",
            "{{ a|P * b|Q % c }}{{ -a % b }}{{ 7 % a }}",
        );
        check("{{ [1, x[1:]] }}{{ x[1] }}", "{{ [1, x[1:]|T]|T }}{{ x[1] }}");
        check("{% set (a, b) = (c, d) %}", "{% set (a, b) = (c, d)|T %}");
        check("{% for a in b + [c] %}", "{% for a in b|I + [c]|T|I %}");
        check("{%- if not a ~ 'b' is string -%}", "{%- if not a|T ~ 'b'|T is string -%}");
        check(
            "{# a ~ b #}{% raw %}{{ a ~ b }}{% endraw %}",
            "{# a ~ b #}{% raw %}{{ a ~ b }}{% endraw %}",
        );
        check("{{ {'a': {'b': 1}} }}}", "{{ {'a': {'b': 1}|T}|T }}}");
        check("{{ \"}} ~\" ~ 1.5 }}", "{{ \"}} ~\"|T ~ 1.5|T }}");
    }

    #[test]
    fn filters_and_tests_are_found_where_jinja2_needs_them() {
        let check = |source: &str, want: &[&str]| {
            let names = check(source).unwrap().names;
            let names: Vec<_> = names.iter().map(|named| named.name.as_str()).collect();
            assert_eq!(names, want, "{source}");
        };
        check("{{ a|b|c(d|e) is not f }}", &["b", "c", "f", "e"]);
        check(
            "{% if a|b is c %}{{ d|e }}{% elif f|g %}{% else %}{{ h|i }}{% endif %}{{ j|k }}",
            &["k"],
        );
        check("{{ a|b if c|d else e }}{{ [f|g, h|i if j, (k|l if m)|n] }}", &["g", "n"]);
        check("{% if a %}{% for b in c|d %}{{ e|f }}{% endfor %}{% endif %}", &["f"]);
        check("{% for a in b|c if d|e %}{% endfor %}{% set f = g|h %}", &["c", "e", "h"]);
        check("{% filter a %}{% endfilter %}{% set b|c %}{% endset %}", &["a", "c"]);
        check("{{ f(a=b|c, d={'e': g|h}) }}", &["c", "h"]);
    }

    #[test]
    fn what_is_too_large_or_nests_too_deeply_is_refused() {
        let check = |source: String, want: &str| {
            let error = check(&source).unwrap_err();
            assert!(error.contains(want), "{want}: {error}");
        };
        check(
            format!("{{{{ {} x }}}}", "not ".repeat(50_000)),
            "a tag has more than 10000 symbols",
        );
        check(
            format!("{{{{ {} x }}}}", "not ".repeat(101)),
            "operators or brackets are nested more than 100 deep",
        );
        check(format!("\n{{{{ {} x }}}}", "-".repeat(101)), "(in line 2)");
        check(format!("{{{{ x{} }}}}", ".a".repeat(2001)), "more than 2000 operators");
        check(format!("{{{{ x{} }}}}", "|a".repeat(2001)), "more than 2000 operators");
        check(format!("{{{{ x{} }}}}", "+a".repeat(2001)), "more than 2000 operators");
        check(format!("{{{{ x{} }}}}", " if a else b".repeat(1001)), "more than 2000 operators");
        check(format!("{{{{ {}{} }}}}", "[".repeat(101), "]".repeat(101)), "brackets are nested");
        check("{% if a %}".repeat(101), "blocks are nested");
        check(format!("{{% if a %}}{}", "{% elif a %}".repeat(1001)), "`elif`");
        check("x".repeat(MAX_BYTES + 1), "at most 1048576 are allowed");
        check("{{ a".to_owned(), "not closed");
        check("{{ 'a }}".to_owned(), "not closed");
        check("{{ a) }}".to_owned(), "no opening one");
    }
}
