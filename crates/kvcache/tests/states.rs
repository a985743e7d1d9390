//! Recurrent states: the states that prompts continue from, and those that are kept, evicted or released.

mod common;

use common::OfTokens;
use realizar_kvcache::{Error, GroupPool, KvCache, PAGE_LEN, SeqPages};

fn cache(n_states: usize) -> KvCache {
    KvCache::new(&[GroupPool { window: None, n_pages: 256 }], Some(n_states), 8192, true)
}

fn prompt(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| i + 10_000 * salt).collect()
}

/// A prompt of `n` tokens, the first `n_common` of which are those of [`prompt`].
fn branch(n_common: usize, n: usize, salt: u32) -> Vec<u32> {
    [&prompt(n_common, 1)[..], &prompt(n, 1 + salt)[n_common..]].concat()
}

/// Runs a prompt in steps of `step` tokens; returns its sequence and the number of cached tokens.
fn run(cache: &mut KvCache, tokens: &[u32], step: usize) -> (SeqPages, usize) {
    let mut seq = cache.sequence();
    let cached = cache.adopt_tokens(&mut seq, tokens, tokens.len() - 1);
    prefill(cache, &mut seq, tokens, step);
    (seq, cached)
}

fn prefill(cache: &mut KvCache, seq: &mut SeqPages, tokens: &[u32], step: usize) {
    while seq.len() < tokens.len() {
        let (at, end) = (seq.len(), tokens.len().min(seq.len() + step));
        extend(cache, seq, &tokens[at..end], 1, true);
    }
}

fn extend(cache: &mut KvCache, seq: &mut SeqPages, tokens: &[u32], n_states: usize, prompt: bool) {
    let mut copies = Vec::new();
    cache.grow(seq, seq.len() + tokens.len(), n_states, &mut copies).unwrap();
    cache.copied(&mut copies);
    cache.written_tokens(seq, tokens, prompt);
}

/// Runs a prompt and an answer of three tokens, and ends the sequence; returns the number of cached tokens.
fn turn(cache: &mut KvCache, tokens: &[u32], step: usize) -> usize {
    let (mut seq, cached) = run(cache, tokens, step);
    for token in 0..3 {
        extend(cache, &mut seq, &[900_000 + token], 1, false);
    }
    cache.clear(&mut seq);
    cached
}

#[test]
fn a_conversation_goes_on_from_the_end_of_its_last_prompt() {
    for step in [7, 64, 8192] {
        let mut cache = cache(64);
        let mut cached = 0;
        for n in (1..=10).map(|turn| 90 * turn + 5) {
            assert_eq!(turn(&mut cache, &prompt(n, 1), step), cached, "steps of {step}");
            cached = n;
        }
        // The same prompt again: there is no state before the last token, but one at the last page end.
        assert_eq!(turn(&mut cache, &prompt(905, 1), step), 896);
        // An earlier turn with another message continues from where that turn began.
        assert_eq!(turn(&mut cache, &branch(275, 400, 1), step), 275);
    }
}

#[test]
fn a_shared_beginning_gets_a_state_where_prompts_part() {
    let mut cache = cache(64);
    // All prompts share 561 tokens: 17 pages and 17 tokens.
    assert_eq!(turn(&mut cache, &branch(561, 700, 1), 8192), 0);
    assert_eq!(turn(&mut cache, &branch(561, 700, 2), 8192), 0, "nobody knew where they part");
    assert_eq!(cache.prefix_stats().stateless_tokens, 561);
    for salt in 3..16 {
        assert_eq!(turn(&mut cache, &branch(561, 700, salt), 8192), 17 * PAGE_LEN);
    }

    // If several prompts arrive together, the first one is told where they diverge.
    let mut cache = self::cache(64);
    let tokens = branch(561, 700, 1);
    let mut first = cache.sequence();
    cache.adopt_tokens(&mut first, &tokens, 699);
    cache.note_junction(&mut first, 561);
    prefill(&mut cache, &mut first, &tokens, 8192);
    for salt in 2..16 {
        assert_eq!(turn(&mut cache, &branch(561, 700, salt), 8192), 17 * PAGE_LEN);
    }
}

#[test]
fn a_long_prompt_has_states_on_its_way() {
    let mut cache = cache(64);
    assert_eq!(turn(&mut cache, &prompt(5000, 1), 512), 0);
    // The states are at 1024, 2048, 3072, 4096, the last page end, and the end.
    assert_eq!(cache.prefix_stats().states, 6);
    assert_eq!(turn(&mut cache, &branch(2500, 2600, 1), 512), 2048);
}

#[test]
fn rejected_drafts_end_at_the_state_of_the_last_accepted() {
    let mut cache = cache(64);
    let (mut seq, _) = run(&mut cache, &prompt(50, 1), 50);
    extend(&mut cache, &mut seq, &[1, 2, 3, 4, 5], 5, false);
    assert_eq!(cache.truncate(&mut seq, 52), 52);
    extend(&mut cache, &mut seq, &[7, 8], 2, false);
    assert_eq!((cache.truncate(&mut seq, 53), seq.len()), (53, 53));
    // Earlier states are at the end of the prompt, and at the page end before it.
    assert_eq!(cache.truncate(&mut seq, 51), 50);
    assert_eq!(cache.truncate(&mut seq, 49), 32);
    assert_eq!(cache.truncate(&mut seq, 31), 0);
    assert!(seq.states().current().is_none());
    cache.clear(&mut seq);
    cache.clear_prefixes();
    assert_eq!(cache.state_stats().unwrap().used, 0);
}

#[test]
fn forks_share_a_state_until_they_write_their_own() {
    let mut cache = cache(64);
    let (mut a, _) = run(&mut cache, &prompt(50, 1), 50);
    let mut b = cache.fork(&a);
    assert_eq!(a.states().current(), b.states().current());
    extend(&mut cache, &mut a, &[1], 1, false);
    assert_ne!(a.states().current(), b.states().current());
    for seq in [&mut a, &mut b] {
        cache.clear(seq);
    }
}

#[test]
fn states_are_evicted_alone_and_those_in_use_are_not() {
    let mut cache = cache(6);
    let (mut seq, _) = run(&mut cache, &prompt(50, 1), 50);
    // Three more prompts with two states each do not fit.
    for salt in 2..5 {
        assert_eq!(turn(&mut cache, &prompt(50, salt), 50), 0);
    }
    let stats = cache.prefix_stats();
    assert!(stats.states_evicted > 0 && stats.evicted == 0, "{stats:?}");
    extend(&mut cache, &mut seq, &[1], 1, false);
    // The sequences hold all states, so none is left for another one.
    let mut held: Vec<SeqPages> = (0..4).map(|_| cache.fork(&seq)).collect();
    for (seq, token) in held.iter_mut().zip(10..) {
        let mut copies = Vec::new();
        let grown = cache.grow(seq, seq.len() + 1, 1, &mut copies);
        if let Err(error) = grown {
            assert_eq!(error, Error::OutOfStates { needed: 1, free: 0, total: 6 });
            assert!(!cache.has_room(1, 0));
            cache.shrink(seq, &copies);
            continue;
        }
        cache.copied(&mut copies);
        cache.written_tokens(seq, &[token], false);
    }
    held.push(seq);
    held.iter_mut().for_each(|seq| cache.clear(seq));
    cache.clear_prefixes();
    assert_eq!(cache.state_stats().unwrap().used, 0);
}
