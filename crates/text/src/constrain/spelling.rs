//! Regular expressions and literals for texts that stand in others, spelled as these demand.

use std::ops::RangeInclusive;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Repetition};

/// Characters that a JSON string escapes.
const ESCAPED: [RangeInclusive<char>; 3] = ['\0'..='\u{1f}', '"'..='"', '\\'..='\\'];

/// A text as it stands between the quotes of a JSON string, each character in its one usual way.
pub(super) fn json_text(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The expression for what these expressions match, spelled in a JSON string.
pub(super) fn json_regex(pattern: &str) -> Result<String, String> {
    Ok(print(&json(&parse(pattern)?)?))
}

/// An expression in the form that a grammar takes between slashes.
pub(super) fn plain_regex(pattern: &str) -> Result<String, String> {
    Ok(print(&parse(pattern)?))
}

fn parse(pattern: &str) -> Result<Hir, String> {
    ParserBuilder::new().build().parse(pattern).map_err(|error| error.to_string())
}

fn print(expression: &Hir) -> String {
    slashes(&expression.to_string())
}

/// An expression with nothing that would end it between slashes.
fn slashes(pattern: &str) -> String {
    let pattern = pattern.replace('/', "\\x2f").replace('\n', "\\n");
    pattern.replace('\r', "\\r").replace('\t', "\\t")
}

fn json(expression: &Hir) -> Result<Hir, String> {
    let all = |parts: &[Hir]| parts.iter().map(json).collect::<Result<Vec<_>, _>>();
    Ok(match expression.kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0);
            let text = text.map_err(|_| "it matches bytes that are no text".to_owned())?;
            Hir::literal(json_text(text).into_bytes())
        }
        HirKind::Class(Class::Unicode(class)) => json_class(class),
        HirKind::Class(Class::Bytes(_)) => {
            return Err("it matches bytes instead of characters".to_owned());
        }
        HirKind::Look(_) => {
            return Err("anchors, look-around and word boundaries are not supported".to_owned());
        }
        HirKind::Repetition(repetition) => {
            let sub = Box::new(json(&repetition.sub)?);
            Hir::repetition(Repetition { sub, ..repetition.clone() })
        }
        HirKind::Capture(capture) => json(&capture.sub)?,
        HirKind::Concat(parts) => Hir::concat(all(parts)?),
        HirKind::Alternation(parts) => Hir::alternation(all(parts)?),
    })
}

fn json_class(class: &ClassUnicode) -> Hir {
    let escaped = ESCAPED.map(|range| ClassUnicodeRange::new(*range.start(), *range.end()));
    let escaped = ClassUnicode::new(escaped);
    let (mut plain, mut others) = (class.clone(), class.clone());
    plain.difference(&escaped);
    others.intersect(&escaped);
    let mut all = vec![Hir::class(Class::Unicode(plain))];
    for range in others.ranges() {
        let spelled = (range.start()..=range.end()).map(|c| json_text(&c.to_string()));
        all.extend(spelled.map(|text| Hir::literal(text.into_bytes())));
    }
    Hir::alternation(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether an expression matches a whole text.
    fn matches(pattern: &str, text: &str) -> bool {
        fancy_regex::Regex::new(&format!("^(?:{pattern})$")).unwrap().is_match(text).unwrap()
    }

    #[test]
    fn what_a_json_string_spells_is_what_was_matched() {
        for (pattern, text, want) in [
            ("(.+)", "a \"b\" \\ /c\tü\u{1}", true),
            ("(.+)", "a\nb", false),
            (r#"[^"]*"#, "a\n\\", true),
            (r#"[^"]*"#, "a\"", false),
            (r"(?s:.)\n+\s", "\\\n\n\r", true),
            ("(?i)straße/{2}", "STRAßE//", true),
            (r#"a{2,3}|\\["\x00]"#, "\\\0", true),
            (r#"a{2,3}|\\["\x00]"#, "aa", true),
            (r#"a{2,3}|\\["\x00]"#, "\\b", false),
        ] {
            assert_eq!(matches(&plain_regex(pattern).unwrap(), text), want, "{pattern}: {text:?}");
            let spelled = json_text(text);
            let json = json_regex(pattern).unwrap();
            assert_eq!(matches(&json, &spelled), want, "{json}: {spelled}");
            assert!(!json.contains(['/', '\n']), "{json}");
        }
        // A character has one spelling, and one that must be escaped is not there without.
        let any = json_regex("(?s:.*)").unwrap();
        for wrong in ["a\nb", "\"", "\\", "\\u0041", "\\/", "\\u000A"] {
            assert!(!matches(&any, wrong), "{wrong}");
        }
        for (pattern, problem) in
            [("a$", "anchors"), (r"\bx", "anchors"), (r"(?-u:\xff)", ""), ("(", "unclosed")]
        {
            let error = json_regex(pattern).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
