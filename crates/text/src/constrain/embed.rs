//! Grammars inside others: as an expression of a Lark grammar, or as definitions for it.
//!
//! For definitions a grammar in Lark is rewritten token by token. For a JSON string its literals and expressions become
//! those of the escaped text. Rules that do not lead back to themselves become terminals: where one
//! of its terminals ends may only show after the next has begun, with escapes or with the mark that ends the text, and
//! the lexer does not go back.

use std::collections::{HashMap, HashSet};

use super::lark::{self, comment, literal, quoted, word};
use super::{AdditionalProperties, Error, Grammar, check_size, gbnf, regex, spelling};

/// How a text is spelled where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// To the letter.
    Plain,
    /// Between the quotes of a JSON string, each character in its one usual way.
    Json,
}

/// Definitions of a Lark grammar for the texts of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definitions {
    /// The definitions, in lines.
    pub text: String,
    /// The name of the one for the whole text.
    pub start: String,
    /// It is a terminal.
    pub is_terminal: bool,
}

/// The terminals of `%import common`.
const COMMON: [(&str, &str); 25] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9A-Fa-f]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("_EXP", "[Ee][+-]?[0-9]+"),
    ("FLOAT", r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?|[0-9]+[Ee][+-]?[0-9]+"),
    (
        "SIGNED_FLOAT",
        r"[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?|[0-9]+[Ee][+-]?[0-9]+)",
    ),
    ("NUMBER", r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?"),
    ("SIGNED_NUMBER", r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?"),
    ("ESCAPED_STRING", r#""(?:[^"\\]|\\.)*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[A-Za-z_][A-Za-z0-9_]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(?:\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("C_COMMENT", r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/"),
    ("SQL_COMMENT", r"--[^\n]*"),
];

impl Grammar {
    /// An expression of a Lark grammar for the texts of this one.
    ///
    /// # Errors
    /// If the grammar cannot be read.
    pub fn embedded(&self) -> Result<String, Error> {
        Ok(match self {
            Self::JsonObject => r#"%json {"type": "object"}"#.to_owned(),
            Self::JsonSchema(schema) => format!("%json {schema}"),
            Self::Regex(pattern) => {
                let plain = spelling::plain_regex(regex::prepare(pattern)?);
                format!("/{}/", plain.map_err(regex_error)?)
            }
            Self::Lark(text) => nested(text),
            Self::Gbnf(text) => nested(&gbnf::to_lark(text)?),
            Self::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                format!("({})", texts.join(" | "))
            }
        })
    }

    /// Definitions for the texts of this grammar, which is in Lark or a regular expression. Their names
    /// begin with `prefix`, a word of small letters and digits. Of a grammar whose rules lead back to themselves,
    /// some texts may never come, as with [`Grammar::Gbnf`].
    ///
    /// # Errors
    /// If the grammar cannot be read, or has what cannot be written so: attributes, `%ignore`, tokens, grammars
    /// within it, and complements that do not follow an `&`. The error says what and where.
    pub fn definitions(&self, spelling: Spelling, prefix: &str) -> Result<Definitions, Error> {
        match self {
            Self::Lark(text) => {
                check_size(lark::WHAT, text)?;
                // Schemas are refused here.
                lark::prepare(text, AdditionalProperties::Closed)?;
                let reader = Reader::new(text, spelling);
                reader.read()?.write(prefix)
            }
            Self::Regex(pattern) => {
                check_size(regex::WHAT, pattern)?;
                let spelled = spelling.pattern(regex::prepare(pattern)?).map_err(regex_error)?;
                let start = format!("{}_START", prefix.to_ascii_uppercase());
                Ok(Definitions {
                    text: format!("{start}: /{spelled}/\n"),
                    start,
                    is_terminal: true,
                })
            }
            _ => {
                let problem = "only Lark grammars and regular expressions have definitions";
                let (what, at) = ("grammar", String::new());
                Err(Error::Grammar { what, at, problem: problem.to_owned() })
            }
        }
    }
}

impl Spelling {
    fn pattern(self, pattern: &str) -> Result<String, String> {
        match self {
            Self::Plain => spelling::plain_regex(pattern),
            Self::Json => spelling::json_regex(pattern),
        }
    }
}

fn nested(text: &str) -> String {
    format!("%lark {{\n{text}\n}}")
}

fn regex_error(problem: String) -> Error {
    Error::Grammar { what: regex::WHAT, at: String::new(), problem }
}

fn line_error(line: usize, problem: impl Into<String>) -> Error {
    let (at, problem) = (format!("line {line}"), problem.into());
    Error::Grammar { what: lark::WHAT, at, problem }
}

/// A part of a definition.
#[derive(Debug)]
enum Part {
    /// As it is written.
    Text(String),
    /// The rule or the terminal of this name.
    Name(String),
}

/// A rule or a terminal.
#[derive(Debug)]
struct Definition {
    name: String,
    line: usize,
    body: Vec<Part>,
}

/// A grammar whose literals and expressions have their new spelling.
#[derive(Debug)]
struct Rewritten {
    definitions: Vec<Definition>,
}

impl Rewritten {
    fn write(&self, prefix: &str) -> Result<Definitions, Error> {
        let mut places = HashMap::new();
        for (at, definition) in self.definitions.iter().enumerate() {
            if places.insert(definition.name.as_str(), at).is_some() {
                let problem = format!("`{}` is defined twice", definition.name);
                return Err(line_error(definition.line, problem));
            }
        }
        let terminals = self.terminals(&places)?;
        let name = |at: usize| {
            let name = &self.definitions[at].name;
            let kind = if is_terminal(name) { 't' } else { 'r' };
            let name = format!("{prefix}_{kind}_{name}");
            if terminals.contains(&at) {
                name.to_ascii_uppercase()
            } else {
                name.to_ascii_lowercase()
            }
        };
        let Some(&start) = places.get("start") else {
            return Err(line_error(1, "there is no rule `start`"));
        };
        let mut text = String::new();
        for (at, definition) in self.definitions.iter().enumerate() {
            text.push_str(&name(at));
            text.push(':');
            for part in &definition.body {
                match part {
                    Part::Text(written) => text.push_str(written),
                    Part::Name(used) => text.push_str(&name(places[used.as_str()])),
                }
            }
            text.push('\n');
        }
        Ok(Definitions { text, start: name(start), is_terminal: terminals.contains(&start) })
    }

    /// The definitions that do not lead back to themselves, nor to one that does.
    fn terminals(&self, places: &HashMap<&str, usize>) -> Result<HashSet<usize>, Error> {
        let mut used: Vec<HashSet<usize>> = Vec::new();
        for definition in &self.definitions {
            let mut all = HashSet::new();
            for part in &definition.body {
                let Part::Name(name) = part else { continue };
                let Some(&at) = places.get(name.as_str()) else {
                    return Err(line_error(definition.line, format!("`{name}` is not defined")));
                };
                all.insert(at);
            }
            used.push(all);
        }
        let mut terminals = HashSet::new();
        loop {
            let next = |at: &usize| !terminals.contains(at) && used[*at].is_subset(&terminals);
            let next: Vec<usize> = (0..used.len()).filter(next).collect();
            if next.is_empty() {
                return Ok(terminals);
            }
            terminals.extend(next);
        }
    }
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase())
}

/// Reads a grammar and gives it its new spelling.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    spelling: Spelling,
    definitions: Vec<Definition>,
    /// The last token was an `&`.
    after_and: bool,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, spelling: Spelling) -> Self {
        Self { text, at: 0, spelling, definitions: Vec::new(), after_and: false }
    }

    fn line(&self) -> usize {
        1 + self.text[..self.at].matches('\n').count()
    }

    fn fail<T>(&self, problem: impl Into<String>) -> Result<T, Error> {
        Err(line_error(self.line(), problem))
    }

    fn read(mut self) -> Result<Rewritten, Error> {
        while let Some(first) = self.text[self.at..].chars().next() {
            let rest = &self.text[self.at..];
            let len = match first {
                '"' => self.string(rest)?,
                '#' => comment(rest),
                '/' if rest.starts_with("//") => comment(rest),
                '/' => self.expression(rest)?,
                '<' | '@' => {
                    return self.fail("tokens and other grammars cannot be a part of a text");
                }
                '%' => self.statement(rest)?,
                '~' if !self.after_and && !counts(rest) && self.spelling == Spelling::Json => {
                    return self.fail("a complement is only supported after `&`");
                }
                '-' if rest.starts_with("->") => alias_len(rest),
                '_' | '?' | '!' | 'a'..='z' | 'A'..='Z' => self.name(rest)?,
                // A definition goes on in its next lines.
                c if c.is_whitespace() => self.write(" ", c.len_utf8())?,
                c => self.write(&rest[..c.len_utf8()], c.len_utf8())?,
            };
            if !first.is_whitespace() {
                self.after_and = first == '&';
            }
            self.at += len;
        }
        Ok(Rewritten { definitions: self.definitions })
    }

    /// Adds to the definition that is being read; returns `len`.
    fn write(&mut self, written: &str, len: usize) -> Result<usize, Error> {
        match self.definitions.last_mut() {
            Some(definition) => match definition.body.last_mut() {
                Some(Part::Text(text)) => text.push_str(written),
                _ => definition.body.push(Part::Text(written.to_owned())),
            },
            None if written == " " => {}
            None => return self.fail(format!("expected a rule, found `{written}`")),
        }
        Ok(len)
    }

    /// A string, a string that ignores case, or a range of two characters.
    fn string(&mut self, rest: &str) -> Result<usize, Error> {
        let (text, len) = self.read_string(rest)?;
        let behind = &rest[len..];
        if let Some(to) = behind.trim_start().strip_prefix("..") {
            let last_at = rest.len() - to.trim_start().len();
            let (last, last_len) = self.read_string(&rest[last_at..])?;
            let mut ends = text.chars().chain(last.chars());
            let (Some(from), Some(up_to), None) = (ends.next(), ends.next(), ends.next()) else {
                return self.fail("a range is between two characters");
            };
            let class = format!("[\\x{{{:x}}}-\\x{{{:x}}}]", from as u32, up_to as u32);
            self.pattern(&class, last_at + last_len)
        } else if behind.starts_with('i') {
            self.pattern(&format!("(?i){}", regex_syntax::escape(&text)), len + 1)
        } else {
            let text = match self.spelling {
                Spelling::Plain => text,
                Spelling::Json => spelling::json_text(&text),
            };
            self.write(&literal(&text), len)
        }
    }

    /// The text of a string, and its length in the grammar.
    fn read_string(&self, rest: &str) -> Result<(String, usize), Error> {
        if !rest.starts_with('"') {
            return self.fail("expected a string");
        }
        let len = quoted(rest, '"');
        match serde_json::from_str(&with_unicode_escapes(&rest[..len])) {
            Ok(text) => Ok((text, len)),
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// An expression between slashes, with its flags.
    fn expression(&mut self, rest: &str) -> Result<usize, Error> {
        let len = quoted(rest, '/');
        let pattern = rest[1..len].strip_suffix('/').unwrap_or(&rest[1..len]);
        let n_flags = rest[len..].find(|c| !"imslux".contains(c)).unwrap_or(rest.len() - len);
        let flags = &rest[len..len + n_flags];
        if flags.contains('l') {
            return self.fail("the flag `l` is not supported");
        }
        let flags = if flags.is_empty() { String::new() } else { format!("(?{flags})") };
        self.pattern(&format!("{flags}{pattern}"), len + n_flags)
    }

    /// Writes an expression in its new spelling.
    fn pattern(&mut self, pattern: &str, len: usize) -> Result<usize, Error> {
        match self.spelling.pattern(pattern) {
            Ok(spelled) => self.write(&format!("/{spelled}/"), len),
            Err(problem) => self.fail(problem),
        }
    }

    /// A name: what is being defined, or a rule or a terminal in an expression.
    fn name(&mut self, rest: &str) -> Result<usize, Error> {
        let n_marks = rest.len() - rest.trim_start_matches(['?', '!']).len();
        let len = n_marks + word(&rest[n_marks..]);
        let name = &rest[n_marks..len];
        if name.is_empty() {
            // An operator.
            return self.write(&rest[..n_marks], n_marks);
        }
        let behind = rest[len..].trim_start();
        let before = self.text[..self.at].trim_end_matches([' ', '\t']);
        let begins_line = before.is_empty() || before.ends_with('\n');
        if begins_line && behind.starts_with(['[', '{', '.']) {
            return self.fail(format!("`{name}` has attributes, which are not supported here"));
        }
        if begins_line && behind.starts_with(':') {
            let (name, line) = (name.to_owned(), self.line());
            self.definitions.push(Definition { name, line, body: Vec::new() });
            return Ok(rest.len() - behind.len() + 1);
        }
        if n_marks > 0 {
            self.write(&rest[..n_marks], n_marks)?;
        }
        match self.definitions.last_mut() {
            Some(definition) => definition.body.push(Part::Name(name.to_owned())),
            None => return self.fail(format!("expected a rule, found `{name}`")),
        }
        Ok(len)
    }

    fn statement(&mut self, rest: &str) -> Result<usize, Error> {
        let len = 1 + word(&rest[1..]);
        match &rest[..len] {
            "%import" => {
                let end = rest.find(['\n', '#']).unwrap_or(rest.len());
                let end = rest[..end].find("//").unwrap_or(end);
                self.import(rest[len..end].trim())?;
                Ok(end)
            }
            other => self.fail(format!("`{other}` is not supported here")),
        }
    }

    /// Defines what is imported: `common.NAME`, perhaps with another name, or `common (NAME, …)`.
    fn import(&mut self, what: &str) -> Result<(), Error> {
        let Some(names) = what.strip_prefix("common").map(str::trim_start) else {
            return self.fail(format!("`{what}` cannot be imported"));
        };
        let mut all: Vec<(&str, &str)> = Vec::new();
        if let Some(list) = names.strip_prefix('(').and_then(|list| list.strip_suffix(')')) {
            all.extend(list.split(',').map(|name| (name.trim(), name.trim())));
        } else if let Some(name) = names.strip_prefix('.') {
            let (name, alias) = name.split_once("->").unwrap_or((name, name));
            all.push((name.trim(), alias.trim()));
        } else {
            return self.fail(format!("`{what}` cannot be imported"));
        }
        for (name, alias) in all {
            let Some((_, pattern)) = COMMON.iter().find(|(known, _)| *known == name) else {
                return self.fail(format!("`common.{name}` is unknown"));
            };
            let (name, line) = (alias.to_owned(), self.line());
            self.definitions.push(Definition { name, line, body: Vec::new() });
            self.pattern(pattern, 0)?;
        }
        Ok(())
    }
}

/// The length of the name of an alternative, which says nothing of its texts.
fn alias_len(rest: &str) -> usize {
    let behind = rest[2..].trim_start_matches([' ', '\t']);
    rest.len() - behind.len() + word(behind)
}

/// Whether a `~` is followed by a number of repetitions.
fn counts(rest: &str) -> bool {
    rest[1..].trim_start().starts_with(|c: char| c.is_ascii_digit())
}

/// A string with `\xHH` as JSON has it.
fn with_unicode_escapes(spelled: &str) -> String {
    let mut out = String::with_capacity(spelled.len());
    let mut chars = spelled.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('x') => out.push_str("\\u00"),
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            (c, false) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lark(text: &str) -> Grammar {
        Grammar::Lark(text.to_owned())
    }

    #[test]
    fn a_grammar_becomes_terminals_in_its_new_spelling() {
        let check = |text: &str, json: &str, plain: &str| {
            for (spelling, want) in [(Spelling::Json, json), (Spelling::Plain, plain)] {
                let got = lark(text).definitions(spelling, "p").unwrap();
                let lines: Vec<&str> = got.text.lines().map(str::trim_end).collect();
                assert_eq!(lines.join("\n"), want, "{text}");
                assert_eq!((got.start.as_str(), got.is_terminal), ("P_R_START", true));
            }
        };
        check(
            "start: \"a\\n\" b? // \"\n  | LF -> end\n?b: /x/i \"\\x41\"~2\n%import common.LF",
            "P_R_START: \"a\\\\n\" P_R_B?    | P_T_LF\nP_R_B: /[Xx]/ \"A\"~2\nP_T_LF:/(?:\\\\n)/",
            "P_R_START: \"a\\n\" P_R_B?    | P_T_LF\nP_R_B: /[Xx]/ \"A\"~2\nP_T_LF:/\\n/",
        );
        check(
            "%import common.CR -> X # x\nstart: X \"b\"..\"c\" & ~/\\t/",
            "P_T_X:/(?:\\\\r)/\nP_R_START: P_T_X /[bc]/ & ~/(?:\\\\t)/",
            "P_T_X:/\\r/\nP_R_START: P_T_X /[bc]/ & ~/\\t/",
        );
        let regex = Grammar::Regex("\"+".to_owned()).definitions(Spelling::Json, "p").unwrap();
        assert_eq!(regex.text, "P_START: /(?:\\\\\")+/\n");
        let nested = lark("start: \"(\" start? \")\" | A\nA: \"a\"");
        let nested = nested.definitions(Spelling::Json, "p").unwrap();
        assert_eq!((nested.start.as_str(), nested.is_terminal), ("p_r_start", false));
        assert_eq!(nested.text, "p_r_start: \"(\" p_r_start? \")\" | P_T_A \nP_T_A: \"a\"\n");
    }

    #[test]
    fn what_cannot_be_written_is_an_error_with_its_line() {
        for (text, line, problem) in [
            ("start: <x>", 1, "tokens"),
            ("start: a\na: @b", 2, "other grammars"),
            ("start: A\n\nA: ~/b/", 3, "complement"),
            ("start: %json {}", 1, "`%json`"),
            ("start: A\n%ignore / /\nA: \"a\"", 2, "`%ignore`"),
            ("start: /a$/", 1, "anchors"),
            ("start[suffix=\"x\"]: /a/", 1, "attributes"),
            ("start: A\n%import other.A", 2, "`other.A` cannot"),
            ("start: A\n%import common.A", 2, "`common.A` is unknown"),
            ("a: \"x\"\nstart: b", 2, "`b` is not defined"),
            ("start: \"x\"\nstart: \"y\"", 2, "defined twice"),
            ("a: \"x\"", 1, "no rule `start`"),
        ] {
            let error = lark(text).definitions(Spelling::Json, "p").unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}")), "{text}: {error}");
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert!(Grammar::JsonObject.definitions(Spelling::Json, "p").is_err());
    }

    #[test]
    fn every_grammar_is_an_expression() {
        let schema = serde_json::json!({"type": "null"});
        for (grammar, want) in [
            (Grammar::JsonObject, "%json {\"type\": \"object\"}"),
            (Grammar::JsonSchema(schema), "%json {\"type\":\"null\"}"),
            (Grammar::Regex("a/\\n".to_owned()), "/(?:a\\x2f\\n)/"),
            (lark("start: \"a\""), "%lark {\nstart: \"a\"\n}"),
            (Grammar::Choice(vec!["a".to_owned(), "\"".to_owned()]), "(\"a\" | \"\\\"\")"),
        ] {
            assert_eq!(grammar.embedded().unwrap(), want);
        }
        let gbnf = Grammar::Gbnf("root ::= \"a\"".to_owned()).embedded().unwrap();
        assert!(gbnf.starts_with("%lark {\nstart: "), "{gbnf}");
    }
}
