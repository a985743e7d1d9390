//! Prefix sharing, copy-on-write, eviction and accounting of pages through [`KvCache`].

mod common;

use common::OfTokens;
use realizar_kvcache::{
    CacheEvent, Error, GroupPool, KvCache, PAGE_LEN, PageCopy, PageId, SeqPages, Symbol, Variant,
};
use std::ops::Range;

/// A cache with one group without a window, and a second group if `window` is given.
fn cache(n_pages: usize, window: Option<usize>) -> KvCache {
    cache_of(n_pages, window, None)
}

/// As [`cache`], with `n_states` recurrent states.
fn cache_of(n_pages: usize, window: Option<usize>, n_states: Option<usize>) -> KvCache {
    let groups = [None, window].map(|window| GroupPool { window, n_pages });
    KvCache::new(&groups[..1 + usize::from(window.is_some())], n_states, 64 * PAGE_LEN, true)
}

/// Runs `tokens` as the prompt of a new sequence; returns it and the number of cached tokens.
fn run(cache: &mut KvCache, tokens: &[u32]) -> Result<(SeqPages, usize), Error> {
    let mut seq = cache.sequence();
    let cached = cache.adopt_tokens(&mut seq, tokens, tokens.len() - 1);
    if let Err(error) = grow(cache, &mut seq, tokens.len()) {
        cache.clear(&mut seq);
        return Err(error);
    }
    cache.written_tokens(&mut seq, &tokens[cached..], true);
    Ok((seq, cached))
}

/// Grows a sequence, and returns the copies that were made for it.
fn grow(cache: &mut KvCache, seq: &mut SeqPages, len: usize) -> Result<Vec<PageCopy>, Error> {
    let mut copies = Vec::new();
    match cache.grow(seq, len, 1, &mut copies) {
        Ok(()) => cache.copied(&mut copies.clone()),
        Err(error) => {
            cache.shrink(seq, &copies);
            return Err(error);
        }
    }
    Ok(copies)
}

/// A prompt of `n` tokens. Prompts with different salts have no common prefix.
fn prompt(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| i + 1000 * salt).collect()
}

/// A prompt that begins with `n_common` tokens of [`prompt`]'s.
fn branch(n_common: usize, n: usize, salt: u32) -> Vec<u32> {
    let other = prompt(n, salt + 10);
    prompt(n, salt).into_iter().take(n_common).chain(other.into_iter().skip(n_common)).collect()
}

fn used(cache: &KvCache) -> Vec<(usize, usize)> {
    cache.pool_stats().map(|s| (s.used, s.idle)).collect()
}

#[test]
fn a_prompt_finds_the_pages_of_one_before() {
    let mut cache = cache(16, None);
    let shares = |cache: &KvCache| {
        let stats = cache.prefix_stats();
        (stats.hit_rate(), stats.utilization())
    };
    assert_eq!(shares(&cache), (0.0, 0.0));
    let first = prompt(3 * PAGE_LEN + 5, 1);
    let (mut a, cached) = run(&mut cache, &first).unwrap();
    // Three full pages are stored, and the sequence holds them too.
    assert_eq!(shares(&cache), (0.0, 3.0 / 16.0));
    assert_eq!((cached, used(&cache)), (0, vec![(4, 0)]));
    cache.clear(&mut a);
    assert_eq!(used(&cache), [(4, 4)], "its pages stay");

    // The same prompt: all but the last token. One token more than two pages: two pages.
    let check = |cache: &mut KvCache, tokens: &[u32], want: usize| {
        let (mut seq, cached) = run(cache, tokens).unwrap();
        assert_eq!(cached, want, "{} tokens", tokens.len());
        cache.clear(&mut seq);
    };
    check(&mut cache, &first, 3 * PAGE_LEN + 4);
    check(&mut cache, &first[..2 * PAGE_LEN + 1], 2 * PAGE_LEN);
    // The last token is always run, so the last page is used in part.
    check(&mut cache, &first[..2 * PAGE_LEN], 2 * PAGE_LEN - 1);
    // Seven tokens of the second page agree.
    check(&mut cache, &branch(PAGE_LEN + 7, 2 * PAGE_LEN + 9, 1), PAGE_LEN + 7);
    check(&mut cache, &prompt(40, 2), 0);
    let stats = cache.prefix_stats();
    assert_eq!((stats.hits, stats.misses), (4, 2));
    let found = (3 + 2 + 2 + 1) * PAGE_LEN + 4 - 1 + 7;
    assert_eq!(stats.found_tokens, found as u64);
    let queried = 2 * (3 * PAGE_LEN + 5) + 2 * PAGE_LEN + 1 + 2 * PAGE_LEN + 2 * PAGE_LEN + 9 + 40;
    assert_eq!(stats.queried_tokens, queried as u64);
    // The first prompt has four pages, and the last two add two each.
    assert_eq!(shares(&cache), (found as f64 / queried as f64, 8.0 / 16.0));
}

#[test]
fn utilization_counts_the_pages_of_all_groups() {
    let mut cache = cache(16, Some(PAGE_LEN));
    let (mut seq, _) = run(&mut cache, &prompt(2 * PAGE_LEN, 1)).unwrap();
    assert_eq!(cache.prefix_stats().utilization(), 4.0 / 32.0);
    cache.clear(&mut seq);
    cache.clear_prefixes();
    assert_eq!(cache.prefix_stats().utilization(), 0.0);
    // Without a prefix cache all statistics are zero.
    let cache =
        KvCache::new(&[GroupPool { window: None, n_pages: 16 }], None, 64 * PAGE_LEN, false);
    assert_eq!((cache.prefix_stats().hit_rate(), cache.prefix_stats().utilization()), (0.0, 0.0));
}

#[test]
fn the_end_of_a_prompt_is_kept_until_a_longer_one_comes() {
    let mut cache = cache(16, None);
    cache.keep_events();
    let check = |cache: &mut KvCache, tokens: &[u32], want_cached: usize, want_nodes: usize| {
        let (mut seq, cached) = run(cache, tokens).unwrap();
        // A generated token goes to the same page, but not to the cached prefix.
        grow(cache, &mut seq, tokens.len() + 1).unwrap();
        cache.written_tokens(&mut seq, &[77], false);
        cache.clear(&mut seq);
        assert_eq!(cached, want_cached, "{} tokens", tokens.len());
        let stats = cache.prefix_stats();
        assert_eq!((stats.nodes, stats.evicted), (want_nodes, 0), "{} tokens", tokens.len());
        assert_eq!(used(cache), [(want_nodes, want_nodes)]);
    };
    check(&mut cache, &prompt(PAGE_LEN + 8, 1), 0, 2);
    check(&mut cache, &prompt(PAGE_LEN + 8, 1), PAGE_LEN + 7, 2);
    check(&mut cache, &prompt(PAGE_LEN + 18, 1), PAGE_LEN + 8, 2);
    check(&mut cache, &prompt(PAGE_LEN + 4, 1), PAGE_LEN + 3, 2);
    check(&mut cache, &branch(PAGE_LEN + 10, PAGE_LEN + 18, 1), PAGE_LEN + 10, 3);
    check(&mut cache, &prompt(2 * PAGE_LEN + 1, 1), PAGE_LEN + 18, 4);
    check(&mut cache, &branch(PAGE_LEN + 10, PAGE_LEN + 20, 1), PAGE_LEN + 18, 4);
    // Only full pages are reported.
    let told = cache.take_events();
    assert_eq!(told.len(), 2, "{told:?}");
    cache.clear_prefixes();
    assert_eq!(used(&cache), [(0, 0)]);
    assert_eq!(cache.prefix_stats().evicted, 4);
}

#[test]
fn the_end_of_a_prompt_that_a_window_has_passed_is_not_kept() {
    let mut cache = cache(16, Some(PAGE_LEN));
    let tokens = prompt(PAGE_LEN + 8, 1);
    let mut nodes = |n_generated: usize| {
        cache.clear_prefixes();
        let (mut seq, _) = run(&mut cache, &tokens).unwrap();
        for len in tokens.len()..tokens.len() + n_generated {
            grow(&mut cache, &mut seq, len + 1).unwrap();
            cache.written_tokens(&mut seq, &[77], false);
        }
        cache.clear(&mut seq);
        cache.prefix_stats().nodes
    };
    assert_eq!((nodes(PAGE_LEN), nodes(3 * PAGE_LEN)), (2, 1));
}

#[test]
fn a_page_that_is_shared_is_copied_before_it_is_written() {
    let mut cache = cache(16, None);
    let first = prompt(2 * PAGE_LEN, 1);
    let (a, _) = run(&mut cache, &first).unwrap();
    let mut b = cache.sequence();
    assert_eq!(cache.adopt_tokens(&mut b, &first, first.len() - 1), 2 * PAGE_LEN - 1);
    assert_eq!(b.tables()[0].pages(), a.tables()[0].pages());
    let copies = grow(&mut cache, &mut b, 2 * PAGE_LEN).unwrap();
    let (from, to) = (a.tables()[0].pages()[1], b.tables()[0].pages()[1]);
    assert_eq!(copies, [PageCopy { group: 0, from, to }]);
    assert_ne!(from, to);
    // No other sequence has the new page, so growing again copies nothing.
    assert_eq!(grow(&mut cache, &mut b, 2 * PAGE_LEN), Ok(vec![]));

    // A fork shares pages that are not in the prefix cache, too.
    let mut c = cache.fork(&b);
    cache.written_tokens(&mut c, &[], false);
    let copies = grow(&mut cache, &mut c, 2 * PAGE_LEN).unwrap();
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0].from, to);
}

#[test]
fn copies_that_are_not_made_leave_the_pages_as_they_were() {
    let mut cache = cache(16, None);
    let tokens = prompt(PAGE_LEN + 5, 1);
    let (mut a, _) = run(&mut cache, &tokens).unwrap();
    let mut b = cache.fork(&a);
    let before = used(&cache);
    let shared = a.tables()[0].pages().to_vec();
    let mut copies = Vec::new();
    // The first sequence gets a copy of the last page, so the second one need not copy it.
    cache.grow(&mut a, 2 * PAGE_LEN + 1, 1, &mut copies).unwrap();
    cache.grow(&mut b, 2 * PAGE_LEN + 1, 1, &mut copies).unwrap();
    assert_eq!((copies.len(), copies[0].from), (1, shared[1]));
    for seq in [&mut a, &mut b] {
        cache.shrink(seq, &copies);
        assert_eq!(seq.tables()[0].pages(), shared);
    }
    assert_eq!(used(&cache), before);
    // It is shared again: both write only after a copy.
    assert_eq!(grow(&mut cache, &mut b, 2 * PAGE_LEN).unwrap().len(), 1);
    cache.clear(&mut b);
    cache.clear(&mut a);
    cache.clear_prefixes();
    assert_eq!(used(&cache), [(0, 0)]);
}

#[test]
fn a_reset_takes_every_page_back() {
    let mut cache = cache(16, Some(PAGE_LEN));
    cache.keep_events();
    let tokens = prompt(3 * PAGE_LEN + 5, 1);
    let (held, _) = run(&mut cache, &tokens).unwrap();
    assert!(matches!(cache.take_events()[..], [CacheEvent::Stored { .. }, _, _]));
    cache.reset();
    drop(held);
    assert_eq!(used(&cache), [(0, 0), (0, 0)]);
    assert_eq!(cache.take_events(), [CacheEvent::Cleared]);
    let stats = cache.prefix_stats();
    assert_eq!((stats.nodes, stats.stored, stats.evicted), (0, 3, 3));
    // After the reset it works like a new one.
    let (mut seq, cached) = run(&mut cache, &tokens).unwrap();
    assert_eq!(cached, 0);
    cache.clear(&mut seq);
    assert_eq!(run(&mut cache, &tokens).unwrap().1, tokens.len() - 1);
}

#[test]
fn a_page_that_an_eviction_leaves_to_one_needs_no_copy() {
    let mut cache = cache(2, None);
    let tokens = prompt(PAGE_LEN + 5, 1);
    let (mut seq, _) = run(&mut cache, &tokens).unwrap();
    cache.clear(&mut seq);
    // No page is free for a copy of the last page, which the prefix cache shares.
    assert_eq!(cache.adopt_tokens(&mut seq, &tokens, tokens.len()), tokens.len());
    let copies = grow(&mut cache, &mut seq, 2 * PAGE_LEN).unwrap();
    assert_eq!((copies, used(&cache)), (vec![], vec![(2, 0)]));
}

#[test]
fn two_that_ran_the_same_prompt_keep_one_copy() {
    let mut cache = cache(16, None);
    let tokens = prompt(2 * PAGE_LEN + 1, 1);
    let mut seqs = [cache.sequence(), cache.sequence()];
    for seq in &mut seqs {
        grow(&mut cache, seq, tokens.len()).unwrap();
    }
    assert_eq!(used(&cache), [(6, 0)]);
    for seq in &mut seqs {
        cache.written_tokens(seq, &tokens, true);
    }
    assert_eq!(used(&cache), [(4, 0)]);
    assert_eq!(seqs[0].tables()[0].pages()[..2], seqs[1].tables()[0].pages()[..2]);
}

#[test]
fn the_least_recently_used_leaf_goes_first() {
    let mut cache = cache(6, None);
    cache.keep_events();
    for salt in [1, 2, 3] {
        let (mut seq, _) = run(&mut cache, &prompt(2 * PAGE_LEN, salt)).unwrap();
        cache.clear(&mut seq);
    }
    assert_eq!(used(&cache), [(6, 6)]);
    // The first prompt is used again, so the second one is the oldest: its pages are evicted from its end.
    let (mut seq, cached) = run(&mut cache, &prompt(2 * PAGE_LEN, 1)).unwrap();
    assert_eq!(cached, 2 * PAGE_LEN - 1);
    cache.clear(&mut seq);
    let cached = |cache: &mut KvCache, salt| {
        let mut seq = cache.sequence();
        let n = cache.adopt_tokens(&mut seq, &prompt(2 * PAGE_LEN, salt), usize::MAX);
        cache.clear(&mut seq);
        n
    };
    assert_eq!([1, 3, 2].map(|salt| cached(&mut cache, salt) / PAGE_LEN), [2, 2, 1]);
    let events = cache.take_events();
    let removed = events.iter().filter(|e| matches!(e, CacheEvent::Removed { .. })).count();
    assert_eq!(removed, 1);
    let CacheEvent::Stored { hash, parent: None, tokens } = &events[0] else {
        panic!("{:?}", events[0])
    };
    assert_eq!(tokens, &prompt(PAGE_LEN, 1));
    assert!(matches!(&events[1], CacheEvent::Stored { parent, .. } if parent == &Some(*hash)));
}

#[test]
fn pages_in_use_are_not_evicted() {
    let mut cache = cache(4, None);
    let (mut a, _) = run(&mut cache, &prompt(3 * PAGE_LEN, 1)).unwrap();
    let error = run(&mut cache, &prompt(2 * PAGE_LEN, 2)).map(|_| ()).unwrap_err();
    assert_eq!(error, Error::OutOfPages { needed: 2, free: 1, total: 4 });
    assert!(cache.has_room(PAGE_LEN, 0) && !cache.has_room(PAGE_LEN, 1));
    cache.clear(&mut a);
    assert!(cache.has_room(4 * PAGE_LEN, 0));
    let (mut b, _) = run(&mut cache, &prompt(4 * PAGE_LEN, 2)).unwrap();
    cache.clear(&mut b);
    cache.clear_prefixes();
    assert_eq!(used(&cache), [(0, 0)]);
}

#[test]
fn a_window_lets_go_of_what_it_has_passed() {
    let window = PAGE_LEN;
    let mut cache = cache(8, Some(window));
    let tokens = prompt(6 * PAGE_LEN, 1);
    let (mut seq, _) = run(&mut cache, &tokens).unwrap();
    cache.clear(&mut seq);
    assert_eq!(used(&cache), [(6, 6), (6, 6)]);
    // Another prompt needs six pages: the group with a window evicts single pages, the other group
    // whole leaves.
    let (mut other, _) = run(&mut cache, &prompt(4 * PAGE_LEN, 2)).unwrap();
    cache.clear(&mut other);
    let mut seq = cache.sequence();
    let cached = cache.adopt_tokens(&mut seq, &tokens, usize::MAX);
    assert_eq!(cached, 4 * PAGE_LEN);
    let tables = seq.tables();
    assert_eq!((tables[0].first_page(), tables[0].pages().len()), (0, 4));
    assert_eq!((tables[1].first_page(), tables[1].pages().len()), (3, 1));
}

#[test]
fn rows_of_embeddings_are_found_by_their_content() {
    let mut cache = cache(32, None);
    cache.keep_events();
    let symbols = |n_tokens: usize, content: u8| -> Vec<Symbol> {
        let image = (0..2 * PAGE_LEN).map(|i| Symbol::embedded([content; 32], i));
        let before = prompt(n_tokens, 1).into_iter().map(Symbol::from);
        before.chain(image).chain(prompt(9, 2).into_iter().map(Symbol::from)).collect()
    };
    let run = |cache: &mut KvCache, variant, symbols: &[Symbol]| {
        let mut seq = cache.sequence();
        let cached = cache.adopt(&mut seq, Variant(variant), symbols, symbols.len() - 1, &[]);
        grow(cache, &mut seq, symbols.len()).unwrap();
        cache.written(&mut seq, symbols[cached..].iter().copied(), true);
        cache.clear(&mut seq);
        cached
    };
    let n = 40 + 2 * PAGE_LEN + 9;
    assert_eq!(run(&mut cache, 0, &symbols(40, 1)), 0);
    assert_eq!(run(&mut cache, 0, &symbols(40, 1)), n - 1, "the same content");
    assert_eq!(run(&mut cache, 0, &symbols(40, 2)), 40, "other content behind the same text");
    assert_eq!(run(&mut cache, 0, &symbols(41, 1)), 40, "the same content elsewhere");
    // Another variant shares nothing, and caches prefixes of its own.
    assert_eq!([7, 7, 8].map(|variant| run(&mut cache, variant, &symbols(40, 1))), [0, n - 1, 0]);
    assert_eq!(run(&mut cache, 0, &symbols(40, 1)), n - 1);
    // Only the page whose rows are all tokens is reported.
    assert_eq!(cache.take_events().len(), 1);
    cache.clear_prefixes();
    assert_eq!(used(&cache), [(0, 0)]);
}

#[test]
fn rows_that_belong_together_are_found_together() {
    let mut cache = cache(32, None);
    let image = (0..60).map(|i| Symbol::embedded([1; 32], i));
    let text = |n, seed| prompt(n, seed).into_iter().map(Symbol::from);
    let symbols: Vec<_> = text(10, 1).chain(image).chain(text(30, 2)).collect();
    let adopt = |cache: &mut KvCache, symbols: &[Symbol], max_len, whole: &[Range<usize>]| {
        let mut seq = cache.sequence();
        let cached = cache.adopt(&mut seq, Variant::default(), symbols, max_len, whole);
        (seq, cached)
    };
    let (mut seq, _) = adopt(&mut cache, &symbols, 99, &[]);
    grow(&mut cache, &mut seq, 100).unwrap();
    cache.written(&mut seq, symbols.iter().copied(), true);
    cache.clear(&mut seq);
    let found = [(99, 99), (75, 75), (70, 70), (69, 10), (40, 10), (11, 10), (10, 10), (9, 9)];
    let whole = std::slice::from_ref(&(10..70));
    for (max_len, expected) in found {
        let (mut seq, cached) = adopt(&mut cache, &symbols, max_len, whole);
        assert_eq!(cached, expected, "up to {max_len}");
        cache.clear(&mut seq);
    }
    // Of two adjacent ranges the first is found whole. Before a range at the start there is nothing to find.
    let whole = [10..30, 30..70];
    let (mut seq, cached) = adopt(&mut cache, &symbols, 69, &whole);
    assert_eq!(cached, 30);
    cache.clear(&mut seq);
    let (mut seq, cached) = adopt(&mut cache, &symbols, 69, &[0..10, 10..70]);
    assert_eq!(cached, 10);
    cache.clear(&mut seq);
    let (mut seq, cached) = adopt(&mut cache, &symbols, 69, std::slice::from_ref(&(0..70)));
    assert_eq!(cached, 0);
    cache.clear(&mut seq);
    // A lookup counts once per prompt, even if it searches several times.
    let stats = cache.prefix_stats();
    assert_eq!((stats.hits, stats.misses, stats.queried_tokens), (10, 2, 1200));
}

/// Starts, grows, forks, truncates and ends many sequences in a fixed random order, and models the contents
/// of pages: each sequence must read what it wrote.
#[test]
fn no_page_is_lost_and_none_is_written_by_two() {
    let cases = [
        (24, None, None),
        (24, Some(40), None),
        (12, Some(70), None),
        (40, Some(PAGE_LEN), None),
        (24, None, Some(40)),
        (40, Some(40), Some(17)),
    ];
    for (n_pages, window, n_states) in cases {
        let mut cache = cache_of(n_pages, window, n_states);
        // The tokens that each state summarizes.
        let mut states = vec![Vec::new(); n_states.unwrap_or(0)];
        let n_groups = 1 + usize::from(window.is_some());
        let mut memory = vec![vec![[u32::MAX; PAGE_LEN]; n_pages]; n_groups];
        let mut live: Vec<(SeqPages, Vec<u32>)> = Vec::new();
        let mut state = 7_u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let mut n_cached = 0;
        for _ in 0..6000 {
            match random(8) {
                0 | 1 if live.len() < 5 => {
                    let n_common = 20 + 25 * random(5);
                    let tokens = branch(n_common, 1 + random(5 * PAGE_LEN), random(3) as u32);
                    let mut seq = cache.sequence();
                    let cached = cache.adopt_tokens(&mut seq, &tokens, tokens.len() - 1);
                    n_cached += cached;
                    live.push((seq, tokens[..cached].to_vec()));
                }
                2 if !live.is_empty() => {
                    let (mut seq, _) = live.swap_remove(random(live.len()));
                    cache.clear(&mut seq);
                }
                3 if !live.is_empty() && live.len() < 5 => {
                    let (seq, tokens) = &live[random(live.len())];
                    let fork = (cache.fork(seq), tokens.clone());
                    live.push(fork);
                }
                4 if !live.is_empty() => {
                    let idx = random(live.len());
                    let (seq, tokens) = &mut live[idx];
                    let len = cache.truncate(seq, random(tokens.len() + 1));
                    tokens.truncate(len);
                }
                _ if !live.is_empty() => {
                    let idx = random(live.len());
                    let (seq, tokens) = &mut live[idx];
                    let salt = tokens.last().map_or(random(3) as u32, |t| t / 1000);
                    let is_prompt = random(3) > 0;
                    let n = 1 + random(PAGE_LEN + 9);
                    // Generated tokens differ from those of every prompt.
                    let more: Vec<u32> = (tokens.len()..tokens.len() + n)
                        .map(|i| i as u32 + 1000 * salt + if is_prompt { 0 } else { 500 })
                        .collect();
                    let mut copies = Vec::new();
                    let n_kept = if is_prompt { 1 } else { n.min(5) };
                    let grown = cache.grow(seq, tokens.len() + n, n_kept, &mut copies);
                    // Copies that fail may have written to some of the new pages.
                    let fails = random(8) == 0;
                    for &PageCopy { group, from, to } in &copies {
                        let page = memory[group][from.0 as usize];
                        memory[group][to.0 as usize] =
                            if fails { [u32::MAX; PAGE_LEN] } else { page };
                    }
                    if grown.is_err() || fails {
                        seq.states().pending().iter().for_each(|(_, id)| {
                            states[id.0 as usize] = vec![u32::MAX];
                        });
                        cache.shrink(seq, &copies);
                        continue;
                    }
                    let all = [&tokens[..], &more].concat();
                    for &(pos, id) in seq.states().pending() {
                        states[id.0 as usize] = all[..pos].to_vec();
                    }
                    cache.copied(&mut copies);
                    for (pos, &token) in (tokens.len()..).zip(&more) {
                        for (memory, table) in memory.iter_mut().zip(seq.tables()) {
                            let (PageId(page), idx) = table.locate(pos);
                            memory[page as usize][idx] = token;
                        }
                    }
                    cache.written_tokens(seq, &more, is_prompt);
                    tokens.extend(more);
                }
                _ => {}
            }
            for (seq, tokens) in &live {
                assert_eq!(seq.len(), tokens.len());
                if n_states.is_some() {
                    let state = seq.states().current().map(|id| &states[id.0 as usize]);
                    assert_eq!(state, Some(tokens).filter(|tokens| !tokens.is_empty()));
                }
                for (group, table) in seq.tables().iter().enumerate() {
                    let first = match group {
                        0 => 0,
                        _ => (tokens.len() + 1).saturating_sub(window.unwrap_or(0)),
                    };
                    for (pos, &token) in tokens.iter().enumerate().skip(first) {
                        let (PageId(page), idx) = table.locate(pos);
                        assert_eq!(memory[group][page as usize][idx], token, "{window:?}");
                    }
                }
            }
        }
        assert!(n_cached > 1000, "prompts found {n_cached} tokens");
        live.iter_mut().for_each(|(seq, _)| cache.clear(seq));
        let all_stats =
            |cache: &KvCache| cache.pool_stats().chain(cache.state_stats()).collect::<Vec<_>>();
        assert!(all_stats(&cache).iter().all(|s| s.used == s.idle), "{window:?}, {n_states:?}");
        cache.clear_prefixes();
        assert!(all_stats(&cache).iter().all(|s| s.used == 0), "{window:?}, {n_states:?}: lost");
    }
}
