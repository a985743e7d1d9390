//! What is checked of a regular expression before the library reads it.

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{self, Ast, ClassSetItem};

use super::Error;

pub(super) const WHAT: &str = "regular expression";

/// The maximum number of classes of Unicode in an expression, such as `\w` and `\p{L}`: each is
/// written out as hundreds of ranges.
const MAX_CLASSES: usize = 4000;

/// The expression if it can be used.
pub(super) fn prepare(expression: &str) -> Result<&str, Error> {
    check(expression).map_err(|problem| Error::Grammar {
        what: WHAT,
        at: String::new(),
        problem,
    })?;
    Ok(expression)
}

/// Refuses what the library would read as something else.
pub(super) fn check(expression: &str) -> Result<(), String> {
    if expression.is_empty() {
        return Err("it is empty".to_owned());
    }
    // The library drops a backslash at the end.
    let n_backslashes = expression.bytes().rev().take_while(|&b| b == b'\\').count();
    if n_backslashes % 2 == 1 {
        return Err(format!("`{expression}` ends with a backslash that escapes nothing"));
    }
    // A group of this name is the library's look-ahead.
    if ["(?P<stop>", "(?<stop>"].iter().any(|group| expression.contains(group)) {
        return Err(format!("`{expression}` has a group named `stop`, which is reserved"));
    }
    // The library refuses an expression that it cannot parse, and says why.
    let n_classes = Parser::new().parse(expression).map_or(0, |ast| {
        let Ok(n) = ast::visit(&ast, Classes(0));
        n
    });
    if n_classes > MAX_CLASSES {
        return Err(format!(
            "an expression has {n_classes} classes such as `\\w`, at most {MAX_CLASSES} are supported"
        ));
    }
    Ok(())
}

/// Counts the classes of Unicode.
struct Classes(usize);

impl ast::Visitor for Classes {
    type Output = usize;
    type Err = std::convert::Infallible;

    fn finish(self) -> Result<usize, Self::Err> {
        Ok(self.0)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Self::Err> {
        self.0 += usize::from(matches!(ast, Ast::ClassUnicode(_) | Ast::ClassPerl(_)));
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Self::Err> {
        self.0 += usize::from(matches!(item, ClassSetItem::Unicode(_) | ClassSetItem::Perl(_)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn expressions_that_would_change_their_meaning_are_errors() {
        let check = |expression: &str, want: Option<&str>| match (super::check(expression), want) {
            (Ok(()), None) => {}
            (Err(problem), Some(want)) if problem.contains(want) => {}
            (got, _) => panic!("{expression:?}: {got:?}"),
        };
        check("a+", None);
        check(r"a\\", None);
        check("", Some("is empty"));
        check(r"a\", Some("ends with a backslash"));
        check(r"a\\\", Some("ends with a backslash"));
        check("a(?P<stop>b)", Some("`stop`"));
        check("(", None);
        check(&r"\w[\p{L}a]".repeat(2000), None);
        check(&r"\w[\p{L}a]".repeat(2001), Some("has 4002 classes"));
    }
}
