//! From text to rules. The errors say the line and the column.

use std::collections::HashMap;
use std::fmt::Write;

use super::{Error, Item, MAX_NESTING, Part, Rule, Sequence, WHAT};

/// The maximum number of repetitions that a grammar may ask for.
const MAX_REPEAT: u32 = 2000;

/// The rules of a grammar, the first of them `root`.
pub(super) fn parse(text: &str) -> Result<Vec<Rule>, Error> {
    let mut parser = Parser { text, at: 0, depth: 0, rules: Vec::new(), ids: HashMap::new() };
    let root = parser.rule_id("root", 0);
    parser.spaces(true);
    while parser.peek().is_some() {
        parser.rule()?;
    }
    // The first rule without a definition, in the order of the text.
    let undefined = parser.rules.iter().enumerate().filter(|(_, (_, rule))| rule.is_none());
    if let Some((id, (at, _))) = undefined.min_by_key(|(_, (at, _))| *at) {
        parser.at = *at;
        let name = parser.ids.iter().find(|(_, it)| **it == id).map_or("", |(name, _)| name);
        return Err(parser.fail(format!("the rule `{name}` is not defined")));
    }
    debug_assert_eq!(root, 0);
    Ok(parser.rules.into_iter().filter_map(|(_, rule)| rule).collect())
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    rules: Vec<(usize, Option<Rule>)>, // where it is first named, and the rule once defined
    ids: HashMap<&'a str, usize>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.text[self.at..].starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    /// An error at the present place.
    fn fail(&self, problem: String) -> Error {
        let before = &self.text[..self.at];
        let line = 1 + before.matches('\n').count();
        let column = 1 + before[before.rfind('\n').map_or(0, |at| at + 1)..].chars().count();
        Error::Grammar { what: WHAT, at: format!("line {line}, column {column}"), problem }
    }

    fn unexpected(&self, expected: &str) -> Error {
        let found = self.peek().map_or_else(|| "the end".to_owned(), |c| format!("{c:?}"));
        self.fail(format!("expected {expected}, found {found}"))
    }

    /// Skips blanks and comments, and line breaks where they mean nothing.
    fn spaces(&mut self, newlines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if newlines => self.at += 1,
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find(['\n', '\r']).unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let len = rest.find(|c| !in_name(c)).unwrap_or(rest.len());
        self.at += len;
        (len > 0).then(|| &rest[..len])
    }

    fn rule_id(&mut self, name: &'a str, at: usize) -> usize {
        let next = self.rules.len();
        let id = *self.ids.entry(name).or_insert(next);
        if id == next {
            self.rules.push((at, None));
        }
        id
    }

    fn rule(&mut self) -> Result<(), Error> {
        let start = self.at;
        let name = self.name().ok_or_else(|| self.unexpected("the name of a rule"))?;
        let id = self.rule_id(name, start);
        if self.rules[id].1.is_some() {
            self.at = start;
            return Err(self.fail(format!("the rule `{name}` is defined twice")));
        }
        self.spaces(false);
        if !self.eat("::=") {
            return Err(self.unexpected("`::=`"));
        }
        self.spaces(true);
        let alternatives = self.alternatives(false)?;
        self.rules[id].1 = Some(Rule { name: name.to_owned(), alternatives });
        if !matches!(self.peek(), None | Some('\n' | '\r')) {
            return Err(self.unexpected("the end of the rule"));
        }
        self.spaces(true);
        Ok(())
    }

    fn alternatives(&mut self, nested: bool) -> Result<Vec<Sequence>, Error> {
        let mut alternatives = vec![self.sequence(nested)?];
        while self.eat("|") {
            self.spaces(true);
            alternatives.push(self.sequence(nested)?);
        }
        Ok(alternatives)
    }

    fn sequence(&mut self, nested: bool) -> Result<Sequence, Error> {
        let mut items: Sequence = Vec::new();
        loop {
            let part = match self.peek() {
                Some('"') => Part::Literal(self.literal()?),
                Some('[') => Part::Class(self.class()?),
                Some('.') => {
                    self.at += 1;
                    Part::Class("(?s:.)".to_owned())
                }
                Some('(') => Part::Group(self.group()?),
                Some('<' | '!') => {
                    let problem = "tokens in angle brackets are not supported: write their text";
                    return Err(self.fail(problem.to_owned()));
                }
                Some('*' | '+' | '?' | '{') => {
                    return Err(self.unexpected("something to repeat"));
                }
                _ => {
                    let at = self.at;
                    match self.name() {
                        Some(name) => Part::Rule(self.rule_id(name, at)),
                        None => return Ok(items),
                    }
                }
            };
            self.spaces(nested);
            let (min, max) = self.repetition(nested)?;
            items.push(Item { part, min, max });
        }
    }

    fn group(&mut self) -> Result<Vec<Sequence>, Error> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return Err(self.fail(format!("groups are nested more than {MAX_NESTING} deep")));
        }
        self.at += 1;
        self.spaces(true);
        let alternatives = self.alternatives(true)?;
        if !self.eat(")") {
            return Err(self.unexpected("`)`"));
        }
        self.depth -= 1;
        Ok(alternatives)
    }

    /// What follows a part: how often it comes.
    fn repetition(&mut self, nested: bool) -> Result<(u32, Option<u32>), Error> {
        let range = if self.eat("*") {
            (0, None)
        } else if self.eat("+") {
            (1, None)
        } else if self.eat("?") {
            (0, Some(1))
        } else if self.eat("{") {
            self.spaces(nested);
            let min = if self.peek() == Some(',') { 0 } else { self.number()? };
            self.spaces(nested);
            let max = if self.eat(",") {
                self.spaces(nested);
                if self.peek() == Some('}') { None } else { Some(self.number()?) }
            } else {
                Some(min)
            };
            self.spaces(nested);
            if max.is_some_and(|max| max < min) {
                return Err(self.fail(format!("the maximum is less than the minimum of {min}")));
            }
            if !self.eat("}") {
                return Err(self.unexpected("`}`"));
            }
            (min, max)
        } else {
            return Ok((1, Some(1)));
        };
        self.spaces(nested);
        if matches!(self.peek(), Some('*' | '+' | '?' | '{')) {
            return Err(self.fail("put what is repeated twice into a group".to_owned()));
        }
        Ok(range)
    }

    fn number(&mut self) -> Result<u32, Error> {
        let rest = &self.text[self.at..];
        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if len == 0 {
            return Err(self.unexpected("a number"));
        }
        match rest[..len].parse::<u32>() {
            Ok(n) if n <= MAX_REPEAT => {
                self.at += len;
                Ok(n)
            }
            _ => Err(self.fail(format!("at most {MAX_REPEAT} repetitions are supported"))),
        }
    }

    fn literal(&mut self) -> Result<String, Error> {
        self.at += 1;
        let mut text = String::new();
        while !self.eat("\"") {
            if self.peek() == Some('\n') {
                return Err(self.unexpected("`\"`"));
            }
            text.push(self.character("`\"`")?);
        }
        Ok(text)
    }

    /// A class of characters as a regular expression.
    fn class(&mut self) -> Result<String, Error> {
        let start = self.at;
        self.at += 1;
        let mut class = String::from(if self.eat("^") { "[^" } else { "[" });
        let empty = class.len();
        while !self.eat("]") {
            let first = self.character("`]`")?;
            let rest = &self.text[self.at..];
            let last = if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                self.character("the end of the range")?
            } else {
                first
            };
            if last < first {
                return Err(self.fail(format!("the range from {first:?} to {last:?} is empty")));
            }
            // Every character as its number, so that none has a meaning of its own.
            let (first, last) = (u32::from(first), u32::from(last));
            let _ = write!(class, "\\x{{{first:X}}}-\\x{{{last:X}}}");
        }
        if class.len() == empty {
            self.at = start;
            return Err(self.fail("the class of characters is empty".to_owned()));
        }
        class.push(']');
        Ok(class)
    }

    /// A character of a literal or a class.
    fn character(&mut self, end: &str) -> Result<char, Error> {
        let start = self.at;
        let Some(c) = self.next() else { return Err(self.unexpected(end)) };
        if c != '\\' {
            return Ok(c);
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => {
                self.at = start;
                return Err(self.fail("unknown escape".to_owned()));
            }
        };
        let hex = self.text.get(self.at..self.at + digits).unwrap_or("");
        let all_hex = hex.len() == digits && hex.bytes().all(|b| b.is_ascii_hexdigit());
        let code = if all_hex { u32::from_str_radix(hex, 16).ok() } else { None };
        match code.and_then(char::from_u32) {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => {
                self.at = start;
                Err(self.fail(format!("expected {digits} hexadecimal digits of a character")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_the_place() {
        let check = |text: &str, want: &str| {
            let error = parse(text).expect_err(text).to_string();
            assert_eq!(error, format!("GBNF grammar at {want}"), "{text:?}");
        };
        check("", "line 1, column 1: the rule `root` is not defined");
        check("root ::= a\nb ::= c", "line 1, column 10: the rule `a` is not defined");
        check("root ::= \"a", "line 1, column 12: expected `\"`, found the end");
        check("root ::= [a", "line 1, column 12: expected `]`, found the end");
        check("root ::= []", "line 1, column 10: the class of characters is empty");
        check("root ::= [b-a]", "line 1, column 14: the range from 'b' to 'a' is empty");
        check("root ::= (\"a\"", "line 1, column 14: expected `)`, found the end");
        check("root ::= \"a\" )", "line 1, column 14: expected the end of the rule, found ')'");
        check("root = \"a\"", "line 1, column 6: expected `::=`, found '='");
        check("root ::= \"a\"\n# x\n&", "line 3, column 1: expected the name of a rule, found '&'");
        check("root ::= *", "line 1, column 10: expected something to repeat, found '*'");
        check("root ::= \"a\"**", "line 1, column 14: put what is repeated twice into a group");
        check(
            "root ::= \"a\"{2,1}",
            "line 1, column 17: the maximum is less than the minimum of 2",
        );
        check("root ::= \"a\"{9999}", "line 1, column 14: at most 2000 repetitions are supported");
        check("root ::= \"\\q\"", "line 1, column 11: unknown escape");
        check(
            "root ::= \"\\uD800\"",
            "line 1, column 11: expected 4 hexadecimal digits of a character",
        );
        check(
            "root ::= <think>",
            "line 1, column 10: tokens in angle brackets are not supported: write their text",
        );
        check(
            "root ::= \"a\"\nroot ::= \"b\"",
            "line 2, column 1: the rule `root` is defined twice",
        );
        let deep = format!("root ::= {}", "(".repeat(MAX_NESTING + 1));
        check(&deep, "line 1, column 110: groups are nested more than 100 deep");
    }
}
