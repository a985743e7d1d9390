//! Methods of Python's strings and lists that templates call and minijinja's compatibility with Python lacks.

use minijinja::value::{Kwargs, Tuple, Value, from_args};
use minijinja::{Error, ErrorKind};

use super::budget;

/// The largest width that a string is padded to.
const MAX_WIDTH: usize = 10_000;

/// Calls a method; `None` if it is not here.
pub(super) fn call(value: &Value, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    match value.as_str() {
        Some(text) => of_text(text, name, args).transpose(),
        None if name == "index" && value.len().is_some() => Some(index(value, args)),
        None => None,
    }
}

fn of_text(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let strip = |strip: fn(&str, &str) -> Option<usize>| -> Result<&str, Error> {
        let (affix,): (&str,) = from_args(args)?;
        Ok(strip(text, affix).map_or(text, |at| match name {
            "removeprefix" => &text[at..],
            _ => &text[..at],
        }))
    };
    Ok(Some(match name {
        // Without named arguments, `split` is known already.
        "split" if !args.last().is_some_and(Value::is_kwargs) => return Ok(None),
        "split" | "rsplit" => {
            let (separator, most, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(kwargs.get("sep")?);
            let most = most.or(kwargs.get("maxsplit")?);
            kwargs.assert_all_used()?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            let parts = if name == "split" { split } else { rsplit };
            Value::from(parts(text, separator, most)?)
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(failure("empty separator"));
            }
            let from_left = name == "partition";
            let found = if from_left { text.find(separator) } else { text.rfind(separator) };
            let parts = match found {
                Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
                None if from_left => [text, "", ""],
                None => ["", "", text],
            };
            Value::from_object(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            Value::from(strip(|text, affix| text.starts_with(affix).then_some(affix.len()))?)
        }
        "removesuffix" => Value::from(strip(|text, affix| {
            text.ends_with(affix).then(|| text.len() - affix.len())
        })?),
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let found = if name == "index" { text.find(part) } else { text.rfind(part) };
            let at = found.ok_or_else(|| failure("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let side = match name {
                "ljust" => Side::Left,
                "rjust" => Side::Right,
                _ => Side::Center,
            };
            Value::from(justify(text, width, fill.unwrap_or(' '), side)?)
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = match text.strip_prefix(['+', '-']) {
                Some(digits) => text.split_at(text.len() - digits.len()),
                None => ("", text),
            };
            let digits = justify(digits, width.saturating_sub(sign.len()), '0', Side::Right)?;
            Value::from(format!("{sign}{digits}"))
        }
        _ => return Ok(None),
    }))
}

/// Where a string stands among what pads it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Left,
    Right,
    Center,
}

/// A string padded to a width.
pub(super) fn justify(text: &str, width: usize, fill: char, side: Side) -> Result<String, Error> {
    if width > MAX_WIDTH {
        return Err(failure("a width is too large"));
    }
    let missing = width.saturating_sub(text.chars().count());
    budget::count(missing.saturating_mul(fill.len_utf8()))?;
    let before = match side {
        Side::Left => 0,
        Side::Right => missing,
        // Python has the larger half on the left where both the padding and the width are odd.
        Side::Center => missing / 2 + (missing & width & 1),
    };
    let pad = |n: usize| std::iter::repeat_n(fill, n);
    Ok(pad(before).chain(text.chars()).chain(pad(missing - before)).collect())
}

/// `text.rsplit(separator, most)`: splits from the end.
fn rsplit(text: &str, separator: Option<&str>, most: usize) -> Result<Vec<String>, Error> {
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = text;
    match separator {
        Some("") => return Err(failure("empty separator")),
        Some(separator) => {
            while parts.len() < most
                && let Some((before, after)) = rest.rsplit_once(separator)
            {
                parts.push(after);
                rest = before;
            }
            parts.push(rest);
        }
        None => {
            rest = rest.trim_end();
            while parts.len() < most
                && let Some((at, space)) = rest.char_indices().rfind(|(_, c)| c.is_whitespace())
            {
                parts.push(&rest[at + space.len_utf8()..]);
                rest = rest[..at].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
        }
    }
    Ok(parts.into_iter().rev().map(str::to_owned).collect())
}

/// `text.split(separator, most)`.
fn split(text: &str, separator: Option<&str>, most: usize) -> Result<Vec<String>, Error> {
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = text;
    match separator {
        Some("") => return Err(failure("empty separator")),
        Some(separator) => parts.extend(text.splitn(most.saturating_add(1), separator)),
        None => {
            rest = rest.trim_start();
            while parts.len() < most
                && let Some((word, after)) = rest.split_once(char::is_whitespace)
            {
                parts.push(word);
                rest = after.trim_start();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
        }
    }
    Ok(parts.into_iter().map(str::to_owned).collect())
}

/// `list.index(item)`.
fn index(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (Value,) = from_args(args)?;
    let at = list.try_iter()?.position(|item| item == wanted);
    at.map(Value::from).ok_or_else(|| failure("the item is not in the list"))
}

fn failure(problem: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}
