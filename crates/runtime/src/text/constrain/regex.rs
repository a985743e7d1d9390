//! What is checked of a regular expression before the library reads it.

use super::Error;

pub(super) const WHAT: &str = "regular expression";

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
    Ok(())
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
    }
}
