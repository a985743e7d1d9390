//! Reasoning that comes before an answer: what may follow at each token.

use super::{BOS, EOS, EOT, tokenizer_of};
use realizar_runtime::constrain::{Constrainer, Constraint, Error, Grammar, Reasoning};
use realizar_runtime::tokenizer::Tokenizer;

const OPEN: u32 = 259;
const CLOSE: u32 = 260;
const BLANK: u32 = 261;
const AB: u32 = 262;

/// Markers as tokens. Every vocabulary has `ab`, which the merges make.
fn whole() -> Tokenizer {
    tokenizer_of(&["<think>", "</think>", "\n\n", "ab"])
}

fn think(is_open: bool, budget: Option<usize>) -> Reasoning {
    Reasoning { open: "<think>".to_owned(), close: "</think>".to_owned(), is_open, budget }
}

fn letters(tokenizer: &Tokenizer) -> Constraint {
    let grammar = Grammar::Regex("[ab]{1,3}".to_owned());
    Constrainer::new(tokenizer).unwrap().compile(&grammar).unwrap()
}

fn begin(tokenizer: &Tokenizer, reasoning: &Reasoning) -> Constraint {
    Constraint::after_reasoning(Some(letters(tokenizer)), reasoning, tokenizer)
}

/// The constraint after these tokens, each of which it must allow.
fn after(start: &Constraint, ids: &[u32]) -> Constraint {
    let mut constraint = start.clone();
    for (at, &id) in ids.iter().enumerate() {
        assert!(constraint.compute_mask().unwrap().allows(id), "token {at} of {ids:?}");
        constraint.accept(id).unwrap();
    }
    constraint
}

fn allowed(constraint: &Constraint) -> Vec<u32> {
    let mask = constraint.clone().compute_mask().unwrap();
    (0..263).filter(|&id| mask.allows(id)).collect()
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

const A: u32 = b'a' as u32;
const B: u32 = b'b' as u32;

#[test]
fn a_grammar_begins_behind_the_end_marker() {
    let tokenizer = whole();
    let start = begin(&tokenizer, &think(true, None));
    let free: Vec<u32> = (0..263).filter(|id| ![EOS, EOT].contains(id)).collect();
    let reasoning = after(&start, &[bytes("x {"), vec![AB, OPEN, BOS]].concat());
    assert_eq!(allowed(&reasoning), free);
    assert!(!reasoning.clone().may_end().unwrap());
    assert!(matches!(reasoning.clone().accept(EOT), Err(Error::Token { .. })));
    let closed = after(&reasoning, &[CLOSE]);
    let blanks = [9, 10, 12, 13, 32];
    assert_eq!(allowed(&closed), [&blanks[..], &[A, B, BLANK, AB]].concat());
    let blank = after(&closed, &[BLANK]);
    assert_eq!(allowed(&blank), [A, B, AB]);
    let answer = after(&blank, &[AB]);
    assert_eq!(allowed(&answer), [A, B, EOS, EOT]);
    assert!(answer.clone().may_end().unwrap() && !answer.is_stopped());
    assert!(after(&answer, &[A]).is_stopped());
    assert!(after(&closed, &[AB, A]).is_stopped());
}

#[test]
fn a_model_may_begin_its_reasoning_itself() {
    let tokenizer = whole();
    let start = begin(&tokenizer, &think(false, None));
    assert_eq!(allowed(&start), [A, B, OPEN, AB]);
    assert_eq!(allowed(&after(&start, &[AB])), [A, B, EOS, EOT]);
    let reasoned = after(&start, &[OPEN, u32::from(b'x'), CLOSE, B]);
    assert_eq!(allowed(&reasoned), [A, B, EOS, EOT, AB]);
    // Markers that are not tokens: the rest of one follows its first byte.
    let start = begin(&tokenizer_of(&["ab", "x", "y", "z"]), &think(false, None));
    assert_eq!(allowed(&start), [u32::from(b'<'), A, B, 259]);
    assert_eq!(allowed(&after(&start, &bytes("<th"))), bytes("i"));
    assert_eq!(allowed(&after(&start, &bytes("<think>x</think>\nb"))), [A, B, EOS, EOT, 259]);
}

#[test]
fn a_marker_in_pieces_ends_the_reasoning_and_begins_no_answer() {
    let tokenizer = tokenizer_of(&["k>\n", "k>a", "</th", "ink", "ab"]);
    let start = begin(&tokenizer, &think(true, None));
    let almost = after(&start, &[bytes("</</thin"), vec![]].concat());
    assert!(allowed(&almost).contains(&259) && !allowed(&almost).contains(&260));
    let other = after(&start, &[bytes("</th"), vec![260]].concat());
    assert!(allowed(&other).contains(&260), "`k>a` completes no marker here");
    assert_eq!(allowed(&after(&almost, &[259])), [A, B]);
    let pieces = after(&start, &[261, 262, u32::from(b'>'), A]);
    assert_eq!(allowed(&pieces), [A, B, EOS, EOT]);
}

#[test]
fn the_end_marker_is_forced_when_the_budget_is_spent() {
    let tokenizer = whole();
    let start = begin(&tokenizer, &think(true, Some(2)));
    assert_eq!(allowed(&after(&start, &[AB, AB])), [CLOSE]);
    assert_eq!(allowed(&begin(&tokenizer, &think(true, Some(0)))), [CLOSE]);
    let own = begin(&tokenizer, &think(false, Some(1)));
    assert_eq!(allowed(&after(&own, &[OPEN, AB])), [CLOSE]);
    // A character is not cut.
    let mut ids = bytes("x日");
    let last = ids.pop().unwrap();
    let cut = after(&start, &ids);
    assert!(allowed(&cut).contains(&last) && allowed(&cut).len() > 200);
    assert_eq!(allowed(&after(&cut, &[last])), [CLOSE]);
    // Without a grammar, and with a marker of several tokens of which one has been seen.
    let split = tokenizer_of(&["</th", "ink>", "x", "y", "ab"]);
    let free = Constraint::after_reasoning(None, &think(true, Some(1)), &split);
    assert_eq!(allowed(&free).len(), 263);
    assert_eq!(allowed(&after(&free, &[259])), bytes("i"));
    assert_eq!(allowed(&after(&free, &[A])), bytes("<"));
    let mut closed = after(&free, &[vec![A], bytes("</think>")].concat());
    assert_eq!(allowed(&closed).len(), 263);
    assert!(closed.may_end().unwrap() && !closed.is_stopped());
    closed.accept(EOT).unwrap();
    let plain = Constraint::after_reasoning(None, &think(false, Some(1)), &split);
    assert_eq!(allowed(&after(&plain, &bytes("a<think>xyz"))).len(), 263);
    assert_eq!(allowed(&after(&plain, &bytes("\n<think>x"))), bytes("<"));
}

#[test]
fn tokens_can_be_counted_and_taken_back() {
    let tokenizer = whole();
    for (is_open, ids) in [
        (true, [bytes("x"), vec![CLOSE, BLANK, AB, A]].concat()),
        (true, [bytes("</thi"), vec![AB, CLOSE, A, AB]].concat()),
        (false, [vec![OPEN], bytes("</think>"), vec![B, AB]].concat()),
        (false, vec![AB, B]),
    ] {
        let start = begin(&tokenizer, &think(is_open, None));
        let mut counted = ids.clone();
        counted.push(B);
        assert_eq!(start.clone().count_allowed(&counted).unwrap(), ids.len(), "{ids:?}");
        let whole = after(&start, &ids);
        for n in 0..=ids.len() {
            let mut cut = whole.clone();
            cut.rollback(n).unwrap();
            let want = after(&start, &ids[..ids.len() - n]);
            assert_eq!(allowed(&cut), allowed(&want), "{ids:?} without {n}");
            assert!(after(&cut, &ids[ids.len() - n..]).is_stopped());
        }
        let error = whole.clone().rollback(ids.len() + 1).unwrap_err();
        assert!(matches!(error, Error::Rollback { .. }), "{error}");
    }
}
