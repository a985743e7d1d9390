//! What a rendering may make: bytes and values are counted where they are made, on the thread that
//! renders.
//!
//! The template machine counts steps, but one step can make a string of any length. So each
//! filter, method and function that makes more than it is given is wrapped here: what it will make
//! is estimated and counted before it is called. For operators, which cannot be wrapped,
//! [`scan`](super::scan) puts filters after the operands. What is freed again is not taken off, so
//! that the count also bounds the work.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::pycompat;

use super::turns::{Turn, Turns};
use super::{builtins, methods, scan};

/// The maximum number of bytes that a rendering makes, in strings and lists.
pub(super) const MAX_MADE: usize = 512 << 20;
/// What of it a rendering makes beside others of its template; the rest takes turns.
const MAX_MADE_TOGETHER: usize = 8 << 20;
/// Levels of lists and maps in one another.
const MAX_DEPTH: usize = 200;
/// Bytes of a value in a list.
const ITEM: usize = 32;
/// The maximum number of digits of a width in a format.
const MAX_WIDTH_DIGITS: usize = 4;
/// The maximum number of items that a filter may be asked for.
const MAX_COUNT: usize = 100_000;

thread_local! {
    static MADE: Cell<usize> = const { Cell::new(0) };
    /// Sizes of the left operands of products that are being computed.
    static LEFT: RefCell<Vec<Factor>> = const { RefCell::new(Vec::new()) };
    /// Left operands of `%` whose right one is being computed.
    static MODULO: RefCell<Vec<Value>> = const { RefCell::new(Vec::new()) };
    static TURN: RefCell<TurnState> = const { RefCell::new(TurnState::None) };
}

/// What a rendering has of the turns of its template.
enum TurnState {
    None,
    NotTaken(Arc<Turns>),
    Taken(#[expect(dead_code, reason = "it is held, not read")] Turn),
}

/// A rendering on this thread, from [`begin`] until this is dropped.
pub(super) struct Rendering(PhantomData<*const ()>);

/// Begins a rendering on this thread. What it makes is to be dropped before the result is.
pub(super) fn begin(turns: &Arc<Turns>) -> Rendering {
    MADE.set(0);
    LEFT.with_borrow_mut(Vec::clear);
    MODULO.with_borrow_mut(Vec::clear);
    TURN.set(TurnState::NotTaken(turns.clone()));
    Rendering(PhantomData)
}

impl Drop for Rendering {
    fn drop(&mut self) {
        MODULO.with_borrow_mut(Vec::clear);
        TURN.set(TurnState::None);
    }
}

/// Whether the rendering on this thread has made too much.
pub(super) fn is_exceeded() -> bool {
    MADE.get() > MAX_MADE
}

/// Counts bytes that are about to be made.
pub(super) fn count(n_bytes: usize) -> Result<(), Error> {
    MADE.set(MADE.get().saturating_add(n_bytes));
    if is_exceeded() {
        return Err(failure("it allocates too much"));
    }
    if MADE.get() > MAX_MADE_TOGETHER {
        TURN.with_borrow_mut(|turn| {
            if let TurnState::NotTaken(turns) = turn {
                *turn = TurnState::Taken(turns.take());
            }
        });
    }
    Ok(())
}

fn failure(problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// The bytes of a value written out, with its items; an error past the budget.
fn deep(value: &Value, depth: usize) -> Result<usize, Error> {
    if depth > MAX_DEPTH {
        return Err(failure("values are nested too deeply"));
    }
    let room = MAX_MADE.saturating_sub(MADE.get());
    let mut n_bytes = ITEM;
    match value.kind() {
        ValueKind::String => n_bytes += value.as_str().map_or(0, str::len),
        ValueKind::Bytes => n_bytes += value.as_bytes().map_or(0, <[u8]>::len),
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                n_bytes += deep(&item, depth + 1)?;
                if n_bytes > room {
                    return Err(count(n_bytes).err().unwrap_or_else(|| failure("too much")));
                }
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                n_bytes += deep(&key, depth + 1)? + deep(&value.get_item(&key)?, depth + 1)?;
                if n_bytes > room {
                    return Err(count(n_bytes).err().unwrap_or_else(|| failure("too much")));
                }
            }
        }
        _ => {}
    }
    Ok(n_bytes)
}

/// Counts a value that is about to be written out. Characters may be escaped.
pub(super) fn count_text(value: &Value) -> Result<(), Error> {
    count(match value.as_str() {
        Some(text) => text.len(),
        None => deep(value, 0)?.saturating_mul(4),
    })
}

/// Counts a value that is about to be written out as JSON, with this many bytes before each part.
pub(super) fn count_json(value: &Value, indent: usize) -> Result<(), Error> {
    count(deep(value, 0)?.saturating_mul(6_usize.saturating_add(indent.saturating_mul(4))))
}

/// The bytes of a string, or of the places of a list.
fn shallow(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(ITEM),
    }
}

/// The bytes of arguments as items: a string has a value for each character.
fn as_items(args: &[Value]) -> usize {
    args.iter()
        .map(|arg| shallow(arg).saturating_mul(if arg.as_str().is_some() { ITEM } else { 1 }))
        .sum()
}

/// Bytes that `text.replace(old, new)` makes.
fn replaced(args: &[Value]) -> Result<usize, Error> {
    let [text, old, new, ..] = args else { return Ok(0) };
    let written = |value: &Value| {
        deep(value, 0)?;
        Ok::<_, Error>(value.to_string())
    };
    let (text, old, new) = (written(text)?, written(old)?, written(new)?);
    let n = match old.len() {
        0 => text.chars().count() + 1,
        _ => text.matches(&*old).count(),
    };
    Ok(text.len().saturating_add(n.saturating_mul(new.len())))
}

/// Bytes of `items` with a separator between them.
fn joined(items: &Value, separator: usize) -> Result<usize, Error> {
    let n = match items.as_str() {
        Some(text) => text.chars().count(),
        None => items.len().unwrap_or(MAX_COUNT),
    };
    Ok(deep(items, 0)?.saturating_add(n.saturating_mul(separator)))
}

/// Counts what a format will make of its values, which follow it.
pub(super) fn count_format(args: &[Value]) -> Result<(), Error> {
    count(formatted(args)?)
}

/// Bytes of a format with its values. Widths that come from the values are refused.
fn formatted(args: &[Value]) -> Result<usize, Error> {
    let Some(format) = args.first().and_then(Value::as_str) else { return Ok(0) };
    let mut n_digits = 0;
    let mut after_percent = false;
    let mut n_fields = 0_usize;
    for c in format.chars() {
        n_digits = if c.is_ascii_digit() { n_digits + 1 } else { 0 };
        if n_digits > MAX_WIDTH_DIGITS {
            return Err(failure("a width in a format is too large"));
        }
        if c == '*' && after_percent {
            return Err(failure("`*` in a format is not supported"));
        }
        after_percent = c == '%' || (after_percent && !c.is_ascii_alphabetic());
        n_fields += usize::from(matches!(c, '{' | '%'));
    }
    let mut values = 0_usize;
    for arg in &args[1..] {
        values = values.saturating_add(deep(arg, 0)?);
    }
    // Each field may write the largest value.
    let field = values.saturating_add(10_usize.pow(MAX_WIDTH_DIGITS as u32));
    Ok(format.len().saturating_add(n_fields.saturating_mul(field)))
}

/// What a filter will make of its arguments.
type Estimate = fn(&[Value]) -> Result<usize, Error>;

fn counted(args: &[Value]) -> Result<usize, Error> {
    let mut total = as_items(args);
    for arg in args {
        deep(arg, 0)?;
        if let Some(n) = arg.as_usize() {
            if n > MAX_COUNT {
                return Err(failure(format!("too many items: {n}")));
            }
            total = total.saturating_add(n.saturating_mul(ITEM));
        }
    }
    Ok(total)
}

/// Wraps what makes more than it is given.
pub(super) fn wrap(environment: &mut Environment<'static>) {
    let text: Estimate = |args| Ok(args.first().map_or(0, |arg| 3 * shallow(arg)));
    let items: Estimate = |args| Ok(as_items(args));
    let table: [(&'static str, Value, Estimate); 28] = [
        ("lower", Value::from_function(filters::lower), text),
        ("upper", Value::from_function(filters::upper), text),
        ("title", Value::from_function(filters::title), text),
        ("capitalize", Value::from_function(filters::capitalize), text),
        ("trim", Value::from_function(filters::trim), text),
        ("replace", Value::from_function(filters::replace), replaced),
        ("join", Value::from_function(filters::join), |args| {
            args.first().map_or(Ok(0), |it| joined(it, args.get(1).map_or(0, shallow)))
        }),
        ("pprint", Value::from_function(filters::pprint), |args| {
            args.first().map_or(Ok(0), |arg| Ok(deep(arg, 0)?.saturating_mul(32)))
        }),
        ("split", Value::from_function(filters::split), items),
        ("lines", Value::from_function(filters::lines), items),
        ("list", Value::from_function(filters::list), items),
        ("sort", Value::from_function(filters::sort), items),
        ("reverse", Value::from_function(filters::reverse), items),
        ("unique", Value::from_function(filters::unique), items),
        ("items", Value::from_function(filters::items), items),
        ("dictsort", Value::from_function(filters::dictsort), items),
        ("map", Value::from_function(filters::map), items),
        ("select", Value::from_function(filters::select), items),
        ("reject", Value::from_function(filters::reject), items),
        ("selectattr", Value::from_function(filters::selectattr), items),
        ("rejectattr", Value::from_function(filters::rejectattr), items),
        ("safe", Value::from_function(filters::safe), text),
        ("chain", Value::from_function(filters::chain), counted),
        ("zip", Value::from_function(filters::zip), counted),
        ("groupby", Value::from_function(filters::groupby), counted),
        ("batch", Value::from_function(filters::batch), counted),
        ("slice", Value::from_function(filters::slice), counted),
        ("sum", Value::from_function(filters::sum), |args| {
            args.first().map_or(Ok(0), |arg| deep(arg, 0))
        }),
    ];
    for (name, original, estimate) in table {
        environment.add_filter(
            name,
            move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                count(estimate(&args)?)?;
                original.call(state, &args)
            },
        );
    }
    // It writes all that the template knows.
    environment.remove_global("debug");
    environment.set_unknown_method_callback(method);
    add_operators(environment);
    add_modulo(environment);
}

fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let all = || [std::slice::from_ref(value), args].concat();
        count(match name {
            "replace" => replaced(&all())?,
            "format" => formatted(&all())?,
            "join" => args.first().map_or(Ok(0), |items| joined(items, text.len()))?,
            "split" | "rsplit" | "splitlines" => text.len().saturating_mul(ITEM),
            "upper" | "lower" | "title" | "capitalize" | "casefold" | "swapcase" => 3 * text.len(),
            _ => text.len(),
        })?;
    }
    match methods::call(value, name, args) {
        Some(result) => result,
        None => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// The filters after operands. They give their value back.
fn add_operators(environment: &mut Environment<'static>) {
    environment.add_filter(scan::TEXT, |value: Value| {
        count(deep(&value, 0)?)?;
        Ok::<_, Error>(value)
    });
    environment.add_filter(scan::ITEMS, |value: Value| {
        count(shallow(&value))?;
        Ok::<_, Error>(value)
    });
    environment.add_filter(scan::LEFT, |value: Value| {
        LEFT.with_borrow_mut(|left| left.push(Factor::of(&value)));
        value
    });
    environment.add_filter(scan::RIGHT, |value: Value| {
        times(&value)?;
        Ok::<_, Error>(value)
    });
    environment.add_filter(scan::MIDDLE, |value: Value| {
        let product = times(&value)?;
        LEFT.with_borrow_mut(|left| left.push(product));
        Ok::<_, Error>(value)
    });
}

/// The filters after the operands of `%`, which [`scan`] makes a product: the first is 1, the second is the result.
fn add_modulo(environment: &mut Environment<'static>) {
    environment.add_filter(scan::MODULO_LEFT, |value: Value| {
        MODULO.with_borrow_mut(|left| left.push(value));
        1
    });
    environment.add_filter(scan::MODULO_RIGHT, |state: &mut State<'_, '_>, right: &Value| {
        let left = MODULO.with_borrow_mut(Vec::pop);
        builtins::percent(state, &left.unwrap_or_default(), right)
    });
}

/// What an operand of `*` contributes.
#[derive(Clone, Copy)]
enum Factor {
    Times(usize),
    Bytes(usize),
}

impl Factor {
    fn of(value: &Value) -> Self {
        match value.kind() {
            ValueKind::Number => Self::Times(value.as_usize().unwrap_or(0)),
            _ => Self::Bytes(shallow(value)),
        }
    }
}

/// Counts the product of the operand on the left with this one.
fn times(right: &Value) -> Result<Factor, Error> {
    let left = LEFT.with_borrow_mut(Vec::pop).unwrap_or(Factor::Times(0));
    let product = match (left, Factor::of(right)) {
        (Factor::Times(a), Factor::Times(b)) => return Ok(Factor::Times(a.saturating_mul(b))),
        (Factor::Times(n), Factor::Bytes(bytes)) | (Factor::Bytes(bytes), Factor::Times(n)) => {
            bytes.saturating_mul(n)
        }
        (Factor::Bytes(_), Factor::Bytes(_)) => 0, // which is an error
    };
    count(product)?;
    Ok(Factor::Bytes(product))
}

#[cfg(test)]
mod tests {
    use crate::template::{ChatTemplate, Message, RenderOptions};

    fn render(source: &str) -> Result<String, String> {
        let messages = [Message::new("user", "x".repeat(1000))];
        let template = ChatTemplate::new(source, "<s>", "</s>").map_err(|it| it.to_string())?;
        template.render(&messages, &RenderOptions::default()).map_err(|it| it.to_string())
    }

    #[test]
    fn what_grows_ends_with_an_error() {
        let mut wrong = Vec::new();
        let mut check = |source: &str, want: &str| match render(source) {
            Err(error) if error.contains(want) => {}
            got => wrong.push((source.to_owned(), got.map(|text| text.len()))),
        };
        let made = "made more than 512.00 MiB";
        let often = |body: &str| {
            format!(
                "{{% set ns = namespace(x=messages[0].content, l=[]) %}}\
                 {{% for i in range(99999) %}}{{% for j in range(99) %}}{body}{{% endfor %}}{{% endfor %}}"
            )
        };
        for body in [
            "{% set ns.x = ns.x ~ ns.x %}",
            "{% set ns.x = ns.x + ns.x %}",
            "{% set ns.x = '' ~ ns.x ~ 'a' %}{% set ns.l = ns.l + [ns.x] %}",
            "{% set ns.x = ns.x | replace('x', 'xx') %}",
            "{% set ns.x = ns.x.replace('x', 'xx') %}",
            "{% set ns.l = ns.l + [ns.x * 2 * 5000] %}",
            "{% set ns.l = ns.l + [2 * ns.x * 5000] %}",
            "{% set ns.l = ns.l + [ns.x[1:]] %}",
            "{% set ns.x = [ns.x, ns.x] | join(ns.x) %}",
            "{% set ns.x = ns.x.join([1, 2, 3]) %}",
            "{% set ns.x = '{} {}'.format(ns.x, ns.x) %}",
            "{% set ns.x = '%s %s' | format(ns.x, ns.x) %}",
            "{% set ns.x = [ns.x, ns.x] | tojson %}",
            "{% set ns.x = [ns.x, ns.x] | string %}",
            "{% set ns.x = ('\\n' ~ ns.x) | indent(100) %}{% set ns.x = ns.x | replace('x', '\\n') %}",
            "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
            "{% set ns.l = ns.l + [range(99999) | list] %}",
        ] {
            check(&often(body), made);
        }
        check(&often("{% set ns.x = ns.x * 2 %}"), "repeated string is too large");
        check(&often("{% set ns.x = [ns.x] %}"), "nested too deeply");
        check(&often("{% set ns.x = dict(a=ns.x) %}"), "nested too deeply");
        check(&often("{% set ns.x = [ns.x] | batch(1) | list %}"), "nested too deeply");
        check("{{ '{:>1000000000}'.format(1) }}", "a width in a format is too large");
        check("{{ '{:>{}}'.format(1, 99999999) }}", "invalid conversion type '{'");
        check("{{ '%1000000000d' | format(1) }}", "a width in a format is too large");
        check("{{ '%*d' | format(99999999, 1) }}", "`*` in a format");
        check("{{ [1] | batch(1000000000, 'x') }}", "too many items: 1000000000");
        check("{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m(messages[0].content) }}", made);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn renderings_of_a_template_that_make_much_take_turns() {
        use super::{MADE, MAX_MADE_TOGETHER, TURN, TurnState, begin, count};
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};

        let turns = Arc::default();
        let (large, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _rendering = begin(&turns);
                        count(MAX_MADE_TOGETHER).unwrap();
                        assert!(TURN.with_borrow(|turn| matches!(turn, TurnState::NotTaken(_))));
                        count(1).unwrap();
                        most.fetch_max(large.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        count(1).unwrap();
                        assert_eq!(MADE.get(), MAX_MADE_TOGETHER + 2);
                        large.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
        // Another template has turns of its own.
        let _turn = turns.take();
        let _rendering = begin(&Arc::default());
        count(MAX_MADE_TOGETHER + 1).unwrap();
    }

    #[test]
    fn what_is_as_large_as_may_be_fits_the_stack() {
        let check = |source: String| {
            let result = render(&source).map(drop);
            let problem = result.err().unwrap_or_default();
            assert!(problem.is_empty() || problem.contains("recursion limit"), "{problem}");
        };
        check(format!("{{{{ {} 1 }}}}", "not ".repeat(100)));
        check(format!("{{{{ {} 1 }}}}", "-".repeat(99)));
        check(format!(
            "{{{{ messages is defined {} }}}}",
            "and messages.a is undefined ".repeat(450)
        ));
        check(format!("{{{{ 1 {} }}}}", "+ 1".repeat(1990)));
        check(format!("{{{{ '' {} }}}}", "~ 1".repeat(1990)));
        check(format!("{{{{ '' {} }}}}", "| trim".repeat(1990)));
        check(format!("{{{{ 1 {} }}}}", "if 0 else 1 ".repeat(990)));
        check(format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(1000)));
        check(format!("{}{}", "{% if 1 %}".repeat(100), "{% endif %}".repeat(100)));
        check(format!("{{{{ {}{} }}}}", "[".repeat(60), "]".repeat(60)));
        check("{# #}".repeat(200_000));
        let deep = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".to_owned();
        check(deep);
    }
}
