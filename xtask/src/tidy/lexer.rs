//! Just enough of Rust's lexical rules to tell code from comments and literals.

/// The source with the insides of comments, strings and character literals replaced by spaces.
/// Line breaks stay, so that line numbers still hold.
pub(super) fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    while i < chars.len() {
        let end = literal_end(&chars, i);
        if end > i {
            out.extend(chars[i..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            i = end;
        } else {
            out.push(chars[i]);
            i += 1;
        }
    }
    out
}

/// Where the comment or literal that starts at `i` ends; `i` itself when none starts there.
fn literal_end(chars: &[char], i: usize) -> usize {
    let at = |k: usize| chars.get(i + k).copied();
    match (at(0), at(1)) {
        (Some('/'), Some('/')) => find(chars, i, |c| c == '\n'),
        (Some('/'), Some('*')) => block_comment_end(chars, i),
        (Some('"'), _) => string_end(chars, i),
        (Some('r'), Some('"' | '#')) if !follows_word(chars, i) => raw_string_end(chars, i),
        (Some('\''), Some('\\')) => find(chars, i + 3, |c| c == '\'') + 1,
        (Some('\''), Some(_)) if at(2) == Some('\'') => i + 3,
        _ => i,
    }
    .min(chars.len())
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|&k| wanted(chars[k])).unwrap_or(chars.len())
}

/// Is there a letter before? Then `r` ends an identifier; `br"…"` and `cr"…"` are raw strings.
fn follows_word(chars: &[char], i: usize) -> bool {
    i > 0
        && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_')
        && !matches!(chars[i - 1], 'b' | 'c')
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// The end of `r"…"` or `r##"…"##`; the start itself for a raw identifier (`r#type`).
fn raw_string_end(chars: &[char], start: usize) -> usize {
    let quote = find(chars, start + 1, |c| c != '#');
    let hashes = quote - start - 1;
    if chars.get(quote) != Some(&'"') {
        return start;
    }
    let mut i = quote + 1;
    while i < chars.len() {
        let closing = chars[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count();
        if chars[i] == '"' && closing == hashes {
            return i + 1 + hashes;
        }
        i += 1;
    }
    chars.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_become_spaces() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* /* b */ */ c", "a               c"),
            (r#"f("x \" y", z)"#, "f(        , z)"),
            (r##"f(r#"x " y"#) + 1"##, "f(          ) + 1"),
            ("r#type + 'a' + '\\'' + '\\u{61}'", "r#type +     +      +         "),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
        ];
        for (source, expected) in cases {
            assert_eq!(code_only(source), expected, "{source}");
        }
    }
}
