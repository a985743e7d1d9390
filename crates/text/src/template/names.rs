//! The filters and tests that a template names where Jinja2 compiles it only if it has them.
//!
//! Jinja2 refuses a template with an unknown filter or test when it compiles it, except in an `if` block or a
//! conditional expression: there the template may ask first whether the filter exists, and one that is missing fails
//! when it is reached. A block inside such a block, like a loop, is checked again.

use super::scan::{Kind, Symbol};

/// The kind of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Filter,
    Test,
}

/// A name with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) of: Use,
    pub(super) name: String,
    pub(super) line: usize,
}

/// The names in a tag; none of those in conditional expressions.
pub(super) fn of_tag(symbols: &[Symbol<'_>], is_block: bool, line: usize, names: &mut Vec<Named>) {
    let first = symbols.first().filter(|_| is_block).map_or("", |symbol| symbol.text);
    // The name of the tag is no operand; that of a filter's block is a filter.
    let skipped = usize::from(is_block);
    let symbols = &symbols[skipped.min(symbols.len())..];
    if first == "filter"
        && let Some(filter) = symbols.first()
    {
        let name = filter.text.to_owned();
        names.push(Named { of: Use::Filter, name, line });
    }
    of_parts(symbols, first == "for", line, names);
}

/// The names in expressions that commas, colons and equal signs separate. The `if` of a loop is none of a conditional
/// expression.
fn of_parts(symbols: &[Symbol<'_>], is_loop: bool, line: usize, names: &mut Vec<Named>) {
    let mut depth = 0_usize;
    let is_separator = |symbol: &Symbol<'_>| {
        match symbol.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && symbol.kind == Kind::Symbol && matches!(symbol.text, "," | ":" | "=")
    };
    for part in symbols.split(is_separator) {
        of_part(part, is_loop, line, names);
    }
}

/// The names in one expression, unless it is a conditional one.
fn of_part(symbols: &[Symbol<'_>], is_loop: bool, line: usize, names: &mut Vec<Named>) {
    let mut depth = 0_usize;
    let mut outer = Vec::new(); // indices outside of brackets
    let mut open = 0;
    let mut inner = Vec::new(); // what stands in brackets
    for (at, symbol) in symbols.iter().enumerate() {
        match symbol.kind {
            Kind::Open => {
                if depth == 0 {
                    open = at + 1;
                }
                depth += 1;
            }
            Kind::Close => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    inner.push(&symbols[open..at]);
                }
            }
            _ if depth == 0 => outer.push(at),
            _ => {}
        }
    }
    let is_name =
        |at: usize, text: &str| symbols[at].kind == Kind::Name && symbols[at].text == text;
    if !is_loop && outer.iter().any(|&at| is_name(at, "if")) {
        return;
    }
    for &at in &outer {
        let named = |of: Use, at: usize| {
            let symbol = symbols.get(at).filter(|symbol| symbol.kind == Kind::Name)?;
            Some(Named { of, name: symbol.text.to_owned(), line })
        };
        if symbols[at].kind == Kind::Symbol && symbols[at].text == "|" {
            names.extend(named(Use::Filter, at + 1));
        } else if is_name(at, "is") {
            let negated = symbols.get(at + 1).is_some_and(|next| next.text == "not");
            names.extend(named(Use::Test, at + 1 + usize::from(negated)));
        }
    }
    for inside in inner {
        of_parts(inside, false, line, names);
    }
}
