//! What a JSON schema grows to when it is compiled, estimated before it is.
//!
//! The library merges the schemas that apply at one place into one: members of `allOf` and targets
//! of references are intersected, each alternative with each. Two things multiply then: the
//! alternatives, each of which takes part in every row of the parser, and the divisors of numbers,
//! for which the lexer counts remainders. Both are added up here place by place, so that an error
//! names the place.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use super::schema::{fail, push_segment};
use super::{Error, MAX_DIVISOR, MAX_OPTIONAL, MAX_REQUIRED, MAX_ROW_ITEMS};

/// The maximum number of decimals of a `multipleOf`: the library counts them in 32 bits.
const MAX_DECIMALS: u32 = 8;
/// Parser items of a property that may come next.
const ITEMS_PER_PROPERTY: usize = 4;
/// Places and alternatives that are visited, some of them once for each way to them, and the names of properties there, a few of
/// which count as one.
const MAX_LOOKED: usize = 200_000;
/// Names of properties that count as a place.
const NAMES_PER_PLACE: usize = 16;
/// The maximum number of expressions that apply to one string: the lexer follows all of them at
/// once, and their states multiply.
const MAX_PATTERNS: usize = 10;

/// Alternatives within alternatives, through references too.
const MAX_DEPTH: usize = 200;

/// Checks a schema whose references lead somewhere.
pub(super) fn check(root: &Value) -> Result<(), Error> {
    let mut estimator = Estimator { root, n_looked: 0, done: HashSet::new(), pending: Vec::new() };
    estimator.pending.push((vec![root], String::new()));
    while let Some((schemas, at)) = estimator.pending.pop() {
        estimator.place(&schemas, &at)?;
    }
    Ok(())
}

/// What the schemas of one place add up to.
#[derive(Clone, Copy)]
struct Size {
    ways: usize,      // alternatives
    n_items: usize,   // parser items of all of them
    divisor: Divisor, // of the alternative with the largest
}

/// A `multipleOf`, as `coefficient / 10^decimals`.
#[derive(Clone, Copy)]
struct Divisor {
    coefficient: u64,
    decimals: u32,
}

impl Divisor {
    const NONE: Self = Self { coefficient: 0, decimals: 0 };

    /// Read as the library does; none if it has too many digits.
    fn read(mut value: f64) -> Option<Self> {
        let mut decimals = 0;
        while value.fract() != 0.0 {
            value *= 10.0;
            decimals += 1;
            if decimals > MAX_DECIMALS {
                return None;
            }
        }
        (value <= MAX_DIVISOR as f64).then_some(Self { coefficient: value as u64, decimals })
    }

    /// The least common multiple.
    fn with(self, other: Self) -> Self {
        if self.coefficient == 0 || other.coefficient == 0 {
            return if self.coefficient == 0 { other } else { self };
        }
        let decimals = self.decimals.max(other.decimals);
        let scaled = |it: Self| it.coefficient.saturating_mul(10_u64.pow(decimals - it.decimals));
        let (a, b) = (scaled(self), scaled(other));
        Self { coefficient: (a / gcd(a, b)).saturating_mul(b), decimals }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

struct Estimator<'a> {
    root: &'a Value,
    n_looked: usize,
    /// Sets of schemas, by their addresses, whose places were visited.
    done: HashSet<Vec<*const Value>>,
    /// Schemas that apply together, and where.
    pending: Vec<(Vec<&'a Value>, String)>,
}

impl<'a> Estimator<'a> {
    /// Looks at a place where all of `schemas` apply; the places inside it come later.
    fn place(&mut self, schemas: &[&'a Value], at: &str) -> Result<(), Error> {
        let all = self.gather(schemas);
        let mut key: Vec<*const Value> = all.iter().map(|it| std::ptr::from_ref(*it)).collect();
        key.sort_unstable();
        if !self.done.insert(key) {
            return Ok(());
        }
        let size = self.merged(&all, at, &mut Vec::new())?;
        if size.n_items > MAX_ROW_ITEMS {
            let problem = format!(
                "its alternatives and properties multiply to {} parser items, at most \
                 {MAX_ROW_ITEMS} are supported",
                size.n_items
            );
            return Err(fail(at, problem));
        }
        let options = all.iter().flat_map(|it| list(it, "anyOf").chain(list(it, "oneOf")));
        self.pending.extend(options.map(|option| (vec![option], at.to_owned())));
        let mut inside: BTreeMap<String, Vec<&'a Value>> = BTreeMap::new();
        let mut add = |segment: String, schema: &'a Value| {
            inside.entry(segment).or_default().push(schema);
        };
        for members in all.iter().filter_map(|schema| schema.as_object()) {
            for (keyword, value) in members {
                match (keyword.as_str(), value) {
                    ("properties" | "patternProperties", Value::Object(named)) => {
                        for (name, schema) in named {
                            let mut segment = String::new();
                            push_segment(&mut segment, keyword);
                            push_segment(&mut segment, name);
                            add(segment, schema);
                        }
                    }
                    ("prefixItems" | "items", Value::Array(schemas)) => {
                        for (i, schema) in schemas.iter().enumerate() {
                            add(format!("/{keyword}/{i}"), schema);
                        }
                    }
                    ("items" | "additionalItems" | "additionalProperties", _) => {
                        add(format!("/{keyword}"), value);
                    }
                    _ => {}
                }
            }
        }
        let inside =
            inside.into_iter().map(|(segment, schemas)| (schemas, format!("{at}{segment}")));
        self.pending.extend(inside);
        Ok(())
    }

    /// All schemas that apply where these do, each once.
    fn gather(&self, schemas: &[&'a Value]) -> Vec<&'a Value> {
        let mut all = Vec::new();
        let mut seen: HashSet<*const Value> = HashSet::new();
        let mut stack = schemas.to_vec();
        while let Some(schema) = stack.pop() {
            if seen.insert(std::ptr::from_ref(schema)) {
                all.push(schema);
                stack.extend(self.target(schema));
                stack.extend(list(schema, "allOf"));
            }
        }
        all
    }

    fn target(&self, schema: &'a Value) -> Option<&'a Value> {
        self.root.pointer(schema.get("$ref")?.as_str()?.trim_start_matches('#'))
    }

    /// Adds up schemas that all apply. `open` holds what is being added up, as references may
    /// lead back.
    fn merged(
        &mut self,
        all: &[&'a Value],
        at: &str,
        open: &mut Vec<*const Value>,
    ) -> Result<Size, Error> {
        self.n_looked += 1;
        if self.n_looked > MAX_LOOKED || open.len() > MAX_DEPTH {
            return Err(fail(at, "too many alternatives, or alternatives nested too deeply"));
        }
        let mut names: HashSet<&str> = HashSet::new();
        let mut required: HashSet<&str> = HashSet::new();
        let mut size = Size { ways: 1, n_items: 1, divisor: Divisor::NONE };
        let mut multiply = |ways: usize, n_items: usize| {
            size.n_items =
                size.n_items.saturating_mul(ways).saturating_add(n_items.saturating_mul(size.ways));
            size.ways = size.ways.saturating_mul(ways);
        };
        let mut divisor = Divisor::NONE;
        let mut alternatives: Vec<Divisor> = Vec::new();
        let mut n_patterns = 0;
        for members in all.iter().filter_map(|schema| schema.as_object()) {
            names.extend(keys(members, "properties"));
            required.extend(
                members
                    .get("required")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str),
            );
            n_patterns += usize::from(members.contains_key("pattern"));
            if let Some(number) = members.get("multipleOf").and_then(Value::as_f64) {
                divisor = divisor.with(Divisor::read(number).ok_or_else(|| {
                    let problem = format!(
                        "{number} is not supported: at most {MAX_DIVISOR}, with at most \
                         {MAX_DECIMALS} decimals"
                    );
                    fail(&format!("{at}/multipleOf"), problem)
                })?);
            }
            for keyword in ["anyOf", "oneOf"] {
                let Some(options) = members.get(keyword).and_then(Value::as_array) else {
                    continue;
                };
                let (mut ways, mut n_items) = (0_usize, 0_usize);
                for option in options {
                    let address = std::ptr::from_ref(option);
                    if open.contains(&address) {
                        continue; // it leads back to itself, which adds nothing
                    }
                    open.push(address);
                    let parts = self.gather(&[option]);
                    let of_option = self.merged(&parts, at, open)?;
                    open.pop();
                    ways = ways.saturating_add(of_option.ways);
                    n_items = n_items.saturating_add(of_option.n_items);
                    alternatives.push(of_option.divisor);
                }
                multiply(ways.max(1), n_items);
            }
        }
        // Values of one `enum` are one alternative for the lexer, until it is merged.
        let n_values: Vec<usize> =
            all.iter().map(|schema| list(schema, "enum").count()).filter(|&n| n > 0).collect();
        if n_values.len() > 1 {
            n_values.iter().for_each(|&n| multiply(n, n));
        }
        if n_patterns > MAX_PATTERNS {
            let problem = format!(
                "{n_patterns} expressions apply to one string, at most {MAX_PATTERNS} are supported"
            );
            return Err(fail(at, problem));
        }
        let n_required = required.len();
        if n_required > MAX_REQUIRED {
            let problem = format!(
                "{n_required} required properties are too many: at most {MAX_REQUIRED} per object \
                 are supported"
            );
            return Err(fail(&format!("{at}/required"), problem));
        }
        self.n_looked += (names.len() + n_required) / NAMES_PER_PLACE;
        let n_optional = names.difference(&required).count();
        if n_optional > MAX_OPTIONAL {
            let problem = format!(
                "{n_optional} optional properties (not in `required`) are too many: at most \
                 {MAX_OPTIONAL} per object are supported"
            );
            return Err(fail(&format!("{at}/properties"), problem));
        }
        if n_optional > 0 {
            multiply(1, ITEMS_PER_PROPERTY * n_optional);
        }
        let largest = alternatives.into_iter().map(|it| it.with(divisor));
        size.divisor = largest.max_by_key(|it| it.coefficient).unwrap_or(divisor);
        if size.divisor.coefficient > MAX_DIVISOR {
            let problem = format!(
                "the `multipleOf` values that apply here have the least common multiple {}; the \
                 maximum is {MAX_DIVISOR}",
                size.divisor.coefficient as f64 / 10_f64.powi(size.divisor.decimals as i32)
            );
            return Err(fail(at, problem));
        }
        Ok(size)
    }
}

/// The members of a keyword whose value is a list.
fn list<'a>(schema: &'a Value, keyword: &str) -> impl Iterator<Item = &'a Value> {
    schema.get(keyword).and_then(Value::as_array).into_iter().flatten()
}

fn keys<'a>(members: &'a Map<String, Value>, keyword: &str) -> impl Iterator<Item = &'a str> {
    members
        .get(keyword)
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|named| named.keys().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value, want: Result<(), &str>) {
        let got = super::check(schema).map_err(|error| error.to_string());
        match (&got, want) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err(want)) if error.contains(want) => {}
            _ => panic!("{got:?}, expected {want:?}"),
        }
    }

    #[test]
    fn divisors_are_bounded_where_they_meet() {
        check(&json!({"multipleOf": 1000}), Ok(()));
        check(&json!({"multipleOf": 0.01}), Ok(()));
        check(&json!({"items": {"multipleOf": 99_999_989}}), Err("at /items/multipleOf: 99999989"));
        check(&json!({"multipleOf": 1e-9}), Err("at /multipleOf: 0.000000001 is not"));
        check(&json!({"multipleOf": 1e-300}), Err("at /multipleOf: "));
        // Two primes below the limit.
        let primes = json!([{"multipleOf": 9973}, {"multipleOf": 9967}]);
        check(&json!({"allOf": primes}), Err("the least common multiple 99400891"));
        check(&json!({"anyOf": primes}), Ok(()));
        check(&json!({"anyOf": primes, "multipleOf": 9949}), Err("least common multiple 992"));
        let by_ref = json!({"$ref": "#/$defs/a", "multipleOf": 9967,
                            "$defs": {"a": {"multipleOf": 9973}}});
        check(&by_ref, Err("the least common multiple 99400891"));
        let of_properties = json!({"properties": {"x": {"allOf": [
            {"properties": {"n": {"multipleOf": 9973}}},
            {"properties": {"n": {"multipleOf": 9967}}, "required": ["n"]}]}}});
        check(&of_properties, Err("at /properties/x/properties/n: the `multipleOf`"));
        let apart = json!({"allOf": [{"properties": {"n": {"multipleOf": 9973}}},
                                     {"properties": {"m": {"multipleOf": 9967}}}]});
        check(&apart, Ok(()));
    }

    #[test]
    fn alternatives_that_multiply_are_counted() {
        let any = |n: usize, name: &str| {
            let options: Vec<Value> =
                (0..n).map(|i| json!({"properties": {format!("{name}{i}"): {}}})).collect();
            json!({"anyOf": options})
        };
        check(&any(500, "a"), Ok(()));
        let patterns = vec![json!({"pattern": "a"}); 11];
        check(&json!({"allOf": patterns[1..]}), Ok(()));
        check(&json!({"items": {"allOf": patterns}}), Err("at /items: 11 expressions apply"));
        let names: Vec<String> = (0..=MAX_REQUIRED).map(|i| i.to_string()).collect();
        check(&json!({"required": names[1..]}), Ok(()));
        check(&json!({"required": names}), Err("at /required: 5001 required properties"));
        check(&json!({"allOf": [any(20, "a"), any(20, "b")]}), Ok(()));
        check(&json!({"allOf": [any(101, "a"), any(101, "b")]}), Err(": its alternatives"));
        let nested = json!({"items": {"allOf": [
            {"properties": {"x": any(101, "a")}}, {"properties": {"x": any(101, "b")}}]}});
        check(&nested, Err("at /items/properties/x: its alternatives"));
        let optional = |range: std::ops::Range<usize>| {
            let named: Map<String, Value> = range.map(|i| (format!("p{i}"), json!({}))).collect();
            json!({"properties": named})
        };
        let merged = json!({"allOf": [optional(0..300), optional(300..600)]});
        check(&merged, Err("at /properties: 600 optional properties"));
        let six = json!({"anyOf": [optional(0..400), optional(0..401), optional(0..402),
            optional(0..403), optional(0..404), optional(0..405), optional(0..406)]});
        check(&six, Err(": its alternatives and properties multiply to 11298"));
    }

    #[test]
    fn references_that_lead_back_end() {
        let tree = json!({"$ref": "#/$defs/t", "$defs": {"t": {"anyOf": [
            {"type": "null"}, {"$ref": "#/$defs/t"},
            {"properties": {"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#"}}}]}}});
        check(&tree, Ok(()));
        check(&json!({"allOf": [{"$ref": "#"}]}), Ok(()));
    }
}
