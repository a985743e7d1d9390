//! What compiling and following a grammar may take, whoever wrote it.

use realizar_runtime::constrain::{
    CompileHandle, Constraint, Error, Grammar, MAX_ANSWER_FUEL, MAX_COMPILE_FUEL, MAX_DIVISOR,
};
use serde_json::{Map, Value, json};

use super::{Random, constrainer, lark};

fn schema(value: Value) -> Grammar {
    Grammar::JsonSchema(value)
}

#[test]
fn numbers_with_large_divisors_are_refused_by_place() {
    let constrainer = constrainer();
    let check = |value: Value, want: &str| {
        let error = constrainer.compile(&schema(value)).expect_err(want).to_string();
        assert!(error.contains(want), "{want}: {error}");
    };
    let large = json!({"type": "integer", "multipleOf": 99_999_989});
    check(json!({"properties": {"n": large}}), "at /properties/n/multipleOf: 99999989 is not");
    let primes = json!([{"multipleOf": 9973}, {"multipleOf": 9967}]);
    check(json!({"type": "integer", "allOf": primes}), "the least common multiple 99400891");
    for divisor in [json!(MAX_DIVISOR), json!(9973), json!(0.01), json!(0.0001), json!(86.4)] {
        let number = json!({"type": "number", "multipleOf": divisor});
        let mut number = constrainer.compile(&schema(number)).unwrap();
        assert!(number.compute_mask().unwrap().allows(u32::from(b'7')));
    }
    let bounded = json!({"type": "integer", "multipleOf": 9973, "minimum": 5});
    constrainer.compile(&schema(bounded)).unwrap();
}

/// A grammar that a text follows only at a length that is found by trying all lengths up to a product.
fn slow() -> Grammar {
    let lengths = [2, 3, 5, 7, 11, 13, 17, 19, 23];
    let all: Vec<String> = lengths.iter().map(|n| format!("/x(a{{{n}}})+y/")).collect();
    lark(&format!("start: \"a\" SLOW\nSLOW: {}\n", all.join(" & ")))
}

#[test]
fn expressions_that_are_searched_for_long_end_with_their_name() {
    let error = constrainer().compile(&slow()).unwrap_err().to_string();
    assert!(
        error.contains("too complex to compile because of") && error.contains("{23, 23}"),
        "{error}"
    );
}

#[test]
fn a_compilation_can_be_given_up() {
    let constrainer = constrainer();
    let start = |grammar: Grammar, handle: &CompileHandle| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = move |compiled: Result<_, Error>| sender.send(compiled.map(drop)).unwrap();
        constrainer.start(grammar, handle, done).unwrap();
        receiver
    };
    let before = CompileHandle::default();
    before.cancel();
    let error = start(Grammar::JsonObject, &before).recv().unwrap().unwrap_err().to_string();
    assert_eq!(error, "JSON object: it was cancelled");
    let during = CompileHandle::default();
    let running = start(slow(), &during);
    during.cancel();
    let error = running.recv().unwrap().unwrap_err().to_string();
    assert_eq!(error, "Lark grammar: it was cancelled");
    // A grammar that was compiled no longer listens.
    let (sender, receiver) = std::sync::mpsc::channel();
    let after = CompileHandle::default();
    let done = move |compiled: Result<Constraint, Error>| sender.send(compiled).unwrap();
    constrainer.start(Grammar::Regex("(a|b)+".to_owned()), &after, done).unwrap();
    let mut constraint = receiver.recv().unwrap().unwrap();
    after.cancel();
    constraint.accept(u32::from(b'a')).unwrap();
    assert!(constraint.compute_mask().unwrap().allows(u32::from(b'b')));
}

#[test]
fn many_properties_and_alternatives_are_refused_at_the_start() {
    let constrainer = constrainer();
    let check = |value: Value, want: &str| {
        let error = constrainer.compile(&schema(value)).expect_err(want).to_string();
        assert!(error.contains(want), "{want}: {error}");
    };
    let named: Map<String, Value> = (0..1000).map(|i| (format!("p{i}"), json!({}))).collect();
    check(json!({"properties": named}), "1000 optional properties");
    let any = |name: &str| {
        let options: Vec<Value> = (0..101)
            .map(|i| json!({"type": "object", "properties": {format!("{name}{i}"): {}}}))
            .collect();
        json!({"anyOf": options})
    };
    check(json!({"allOf": [any("a"), any("b")]}), "multiply to");
}

/// Takes random letters `a` and `b` for as long as the grammar's limits allow.
pub(super) fn follow_letters(mut constraint: Constraint) -> Result<(), Error> {
    let mut random = Random(3);
    for _ in 0..60_000 {
        constraint.compute_mask()?;
        constraint.accept(u32::from(b'a') + random.below(2) as u32)?;
    }
    Ok(())
}

#[test]
fn an_answer_has_fuel_for_all_its_masks() {
    const { assert!(MAX_ANSWER_FUEL > MAX_COMPILE_FUEL) };
    // Each state has as many expressions as there were `a` in the last 2000 characters.
    let wide = Grammar::Regex("(a|b)*a(a|b){2000}".to_owned());
    let error = follow_letters(constrainer().compile(&wide).unwrap()).unwrap_err().to_string();
    assert!(error.contains("its masks took more than 10000000 units of fuel"), "{error}");
}
