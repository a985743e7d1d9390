//! Filters, tests and functions of Jinja2 that minijinja lacks or writes in another way, and the `%` operator on strings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{
    Kwargs, Object, ObjectRepr, Rest, Value, ValueKind, ValueOrKwargs, from_args,
};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::globals;

use super::methods::{Side, justify};
use super::{budget, python};

/// Adds them to an environment.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("truncate", truncate);
    environment.add_filter("center", |text: &Value, width: Option<usize>, kwargs: Kwargs| {
        let width = width.or(kwargs.get("width")?).unwrap_or(80);
        kwargs.assert_all_used()?;
        justify(&text_of(text)?, width, ' ', Side::Center)
    });
    environment.add_filter("wordcount", |text: &Value| {
        let text = text_of(text)?;
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        Ok::<_, Error>(text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count())
    });
    environment.add_filter("urlencode", urlencode);
    environment.add_filter(
        "format",
        |state: &mut State<'_, '_>, format: &Value, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            let format = text_of(format)?;
            match &args[..] {
                [.., named] if named.is_kwargs() && args.len() > 1 => {
                    Err(failure("a format takes values or named values, not both"))
                }
                [named] if named.is_kwargs() => {
                    printf(state, &format, std::slice::from_ref(named), true)
                }
                _ => printf(state, &format, &args, false),
            }
        },
    );
    environment.add_test("callable", |value: &Value| {
        // Jinja2's undefined value can be called, to fail.
        value.is_undefined()
            || value.as_object().is_some_and(|object| object.repr() == ObjectRepr::Plain)
    });
    environment.add_function("joiner", globals::joiner);
    environment.add_function("cycler", |items: Rest<Value>| {
        if items.is_empty() {
            return Err(failure("at least one item has to be provided"));
        }
        Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) }))
    });
}

/// A value as Python's `str` writes it.
fn text_of(value: &Value) -> Result<String, Error> {
    budget::count_text(value)?;
    let mut text = String::new();
    python::write_str(value, &mut text)?;
    Ok(text)
}

/// `s | truncate(length=255, killwords=False, end='...', leeway=5)`.
fn truncate(text: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let values = args.into_values();
    let (length, killwords, end, leeway, kwargs): (
        Option<usize>,
        Option<bool>,
        Option<&str>,
        Option<usize>,
        Kwargs,
    ) = from_args(&values)?;
    let length = length.or(kwargs.get("length")?).unwrap_or(255);
    let killwords = killwords.or(kwargs.get("killwords")?).unwrap_or(false);
    let end = end.or(kwargs.get("end")?).unwrap_or("...");
    let leeway = leeway.or(kwargs.get("leeway")?).unwrap_or(5);
    kwargs.assert_all_used()?;
    let text = text_of(text)?;
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return Err(failure(format!("expected a length of at least that of `end`, got {length}")));
    };
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let cut = text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
    let cut = &text[..cut];
    let cut = if killwords { cut } else { cut.rsplit_once(' ').map_or(cut, |(words, _)| words) };
    Ok(format!("{cut}{end}"))
}

/// `value | urlencode`: a text as a part of a path, or a map or pairs as a query.
fn urlencode(value: &Value) -> Result<String, Error> {
    let pair = |key: &Value, value: &Value| {
        Ok(format!("{}={}", quoted(&text_of(key)?, true), quoted(&text_of(value)?, true)))
    };
    match value.kind() {
        ValueKind::Map => {
            let pairs = value.try_iter()?.map(|key| pair(&key, &value.get_item(&key)?));
            Ok(pairs.collect::<Result<Vec<_>, Error>>()?.join("&"))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let pairs = value
                .try_iter()?
                .map(|item| pair(&item.get_item_by_index(0)?, &item.get_item_by_index(1)?));
            Ok(pairs.collect::<Result<Vec<_>, Error>>()?.join("&"))
        }
        _ => Ok(quoted(&text_of(value)?, false)),
    }
}

/// Percent-encoding; blanks in a query are plus signs, and slashes stand in paths alone.
fn quoted(text: &str, in_query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// `left % right`: a remainder, or a format with its values.
pub(super) fn percent(
    state: &mut State<'_, '_>,
    left: &Value,
    right: &Value,
) -> Result<Value, Error> {
    if let Some(format) = left.as_str() {
        let is_list = matches!(right.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map);
        return match right.is_tuple() {
            true => printf(state, format, &right.try_iter()?.collect::<Vec<_>>(), false),
            false => printf(state, format, std::slice::from_ref(right), is_list),
        };
    }
    let impossible = || {
        let (left, right) = (left.kind(), right.kind());
        failure(format!("tried to use % operator on unsupported types {left} and {right}"))
    };
    let integers = (i128::try_from(left.clone()), i128::try_from(right.clone()));
    let is_float = |value: &Value| value.kind() == ValueKind::Number && !value.is_integer();
    match integers {
        (Ok(a), Ok(b)) if !is_float(left) && !is_float(right) => {
            let remainder = a.checked_rem(b).ok_or_else(|| failure("modulo by zero"))?;
            let crosses = remainder != 0 && (remainder < 0) != (b < 0);
            let remainder = if crosses { remainder + b } else { remainder };
            Ok(i64::try_from(remainder).map_or_else(|_| Value::from(remainder), Value::from))
        }
        _ => {
            let float = |value: &Value| match value.kind() {
                ValueKind::Number | ValueKind::Bool => f64::try_from(value.clone()),
                _ => Err(impossible()),
            };
            let (a, b) = (float(left)?, float(right)?);
            if b == 0.0 {
                return Err(failure("modulo by zero"));
            }
            let remainder = a % b;
            Ok(Value::from(match remainder {
                0.0 => 0.0_f64.copysign(b),
                _ if (remainder < 0.0) != (b < 0.0) => remainder + b,
                _ => remainder,
            }))
        }
    }
}

/// Python's `format % args`. Where `is_named`, the only argument may be one that fields take values from by name, and
/// need not be used.
fn printf(
    state: &mut State<'_, '_>,
    format: &str,
    args: &[Value],
    is_named: bool,
) -> Result<Value, Error> {
    let mut rest = format;
    let mut positional = String::with_capacity(format.len());
    let mut values = Vec::new();
    let mut n_taken = 0;
    while let Some(at) = rest.find('%') {
        positional.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut name = None;
        if let Some(inside) = rest.strip_prefix('(') {
            let (key, after) =
                inside.split_once(')').ok_or_else(|| failure("incomplete format key"))?;
            (name, rest) = (Some(key), after);
        }
        let len = rest.find(|c: char| !matches!(c, '#' | '0'..='9' | '-' | ' ' | '+' | '.' | '*'));
        let conversion = len.and_then(|len| rest[len..].chars().next());
        let (Some(len), Some(conversion)) = (len, conversion) else {
            return Err(failure("incomplete format"));
        };
        let flags = &rest[..len];
        if flags.contains('*') {
            return Err(failure("`*` in a format is not supported"));
        }
        rest = &rest[len + conversion.len_utf8()..];
        if conversion == '%' {
            positional.push_str("%%");
            continue;
        }
        let value = match name {
            Some(key) => {
                let map = args.first().filter(|map| is_named && map.kind() == ValueKind::Map);
                let map = map.ok_or_else(|| failure("format requires a mapping"))?;
                let value = map.get_attr(key)?;
                if value.is_undefined() {
                    return Err(failure(format!("no value for the field `{key}` of a format")));
                }
                value
            }
            None => {
                let value = args.get(n_taken).cloned();
                n_taken += 1;
                value.ok_or_else(|| failure("not enough arguments for format string"))?
            }
        };
        positional.push('%');
        positional.push_str(flags);
        match conversion {
            's' => {
                values.push(Value::from(text_of(&value)?));
                positional.push('s');
            }
            'r' | 'a' => {
                values.push(Value::from(python::repr(&value)?));
                positional.push('s');
            }
            'd' | 'i' | 'u' => {
                // A float loses its fraction, and a truth value is a number.
                let whole = match value.kind() {
                    ValueKind::Bool => Value::from(i64::from(value.is_true())),
                    ValueKind::Number if !value.is_integer() => {
                        Value::from(f64::try_from(value)?.trunc() as i128)
                    }
                    _ => value,
                };
                values.push(whole);
                positional.push('d');
            }
            _ => {
                values.push(value);
                positional.push(conversion);
            }
        }
    }
    positional.push_str(rest);
    if n_taken < args.len() && !is_named {
        return Err(failure("not all arguments converted during string formatting"));
    }
    values.insert(0, Value::from(positional));
    budget::count_format(&values)?;
    Value::from_function(filters::format).call(state, &values)
}

/// An object that gives its items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str()? == "current")
            .then(|| self.items[self.at.load(Ordering::Relaxed) % self.items.len()].clone())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let () = from_args(args)?;
        match method {
            "next" => {
                let at = self.at.fetch_add(1, Ordering::Relaxed);
                Ok(self.items[at % self.items.len()].clone())
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

fn failure(problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}
