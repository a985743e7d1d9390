//! Tests of decode attention that stores new keys and values.

use super::super::decode::SPLIT_HEADS;
use super::*;
use crate::ops::kv_store::{HeadNorm, NewHeads, RopeStore, rope_store};
use realizar_types::RopeStyle;

/// Norms and rotary embedding of heads.
#[derive(Clone, Copy)]
struct Turn {
    rotary_dim: usize,
    pairs: RopeStyle,
    norms: bool,
}

/// Runs the last row of every sequence between padding rows, with keys, values and queries as products leave them. The
/// results and pages must have the same bits as after a separate store.
fn check(case: &Case, turn: Turn, max_kv_len: usize) {
    let &Case { n_heads, head_dim, page_len, arithmetic, .. } = case;
    let last = |(seq, &n): (usize, &usize)| Row::of(seq, n - 1);
    let mut rows: Vec<Row> = case.seqs.iter().enumerate().map(last).collect();
    rows.insert(1, Row::NONE);
    rows.push(Row::NONE);
    let (n_rows, q_cols, kv_cols) = (rows.len(), case.n_cols(), case.kv_cols());
    let stride = q_cols + 2 * kv_cols;
    let mut random = Random(17);
    let x = random.floats(n_rows * stride);
    let table = random.floats(n_rows * turn.rotary_dim);
    let weights = random.floats(2 * head_dim);

    let run = |stored_before: bool| {
        let world = World::new(case);
        let (kernels, stream, device) = (&world.kernels, &world.stream, world.kernels.device());
        let slot = |row: &Row| {
            let seq = row.seq?;
            let word = world.bases[seq].wrapping_add((row.position / page_len) as u32);
            let page = world.words[word as usize] as usize;
            Some((page * page_len + row.position % page_len) as u32)
        };
        let slots: Vec<u32> = rows.iter().map(|row| slot(row).unwrap_or(u32::MAX)).collect();
        let slots = on_device(device, stream, &slots);
        let [x, table, weights] = [&x, &table, &weights].map(|of| on_device(device, stream, of));
        let turned = on_device(device, stream, &vec![0.0f32; n_rows * q_cols]);
        // The previous contents of the slots must not matter.
        let nothing = on_device(device, stream, &vec![f32::NAN; n_rows * kv_cols]);
        let nothing = Rows::new(&nothing, 0, n_rows, kv_cols, kv_cols);
        kv_store(kernels, stream, nothing, nothing, List::all(&slots), &world.pages).unwrap();

        let of = |from, n_cols| Rows::new(&x, from, n_rows, n_cols, stride);
        let norm = |from| {
            let weight = Rows::vector_at(&weights, from, head_dim);
            turn.norms.then_some(HeadNorm { weight, eps: 1e-3 })
        };
        let heads = NewHeads {
            k: of(q_cols, kv_cols),
            v: of(q_cols + kv_cols, kv_cols),
            q_norm: norm(0),
            k_norm: norm(head_dim),
            table: Rows::new(&table, 0, n_rows, turn.rotary_dim, turn.rotary_dim),
            pairs: turn.pairs,
            slots: List::all(&slots),
        };
        let (q, q_out) = (of(0, q_cols), Rows::new(&turned, 0, n_rows, q_cols, q_cols));
        let room = AttentionScratch::new(device, stream, n_rows, n_heads, head_dim, max_kv_len);
        let scratch = &room.unwrap();
        let found = world.run(&rows, false, |attention, device| {
            if stored_before {
                let store = RopeStore { q, q_out, heads, pages: &world.pages };
                rope_store(kernels, stream, &store).unwrap();
            }
            let q = if stored_before { q_out } else { q };
            let attention = Attention { q, ..*attention };
            let (new_heads, to) = ((!stored_before).then_some(heads), None);
            let decode =
                DecodeAttention { attention, arithmetic, max_kv_len, scratch, new_heads, to };
            attention_decode(kernels, stream, &decode).unwrap();
            device.synchronize(stream).unwrap();
        });
        let mut pages = Vec::new();
        for page in 0..world.pages.spec().n_pages {
            world.pages.read_page(stream, page as u32, &mut pages).unwrap();
        }
        (bits(&found), pages)
    };
    let (expected, found) = (run(true), run(false));
    assert!(expected.0.iter().all(|&bits| f32::from_bits(bits).is_finite()));
    assert_eq!(found.0, expected.0, "results");
    assert!(found.1 == expected.1, "pages");
}

/// Checks tensor cores and F32.
fn check_both(case: &Case, turn: Turn) {
    let longest = *case.seqs.iter().max().unwrap();
    check(case, turn, longest);
    check(&in_f32(case), turn, longest);
}

#[cfg_attr(test, test)]
fn of_all_types() {
    let turn = Turn { rotary_dim: 64, pairs: RopeStyle::Neox, norms: true };
    use BlockType::{BF16, F8, F16, F32, Q4_0, Q8_0};
    for ty in [F32, F16, BF16, F8, Q8_0, Q4_0] {
        // The first position, the first one of a split, and one within a later tile.
        check_both(&Case { ty, ..Case::new(&[1, 257, 40]) }, turn);
    }
}

#[cfg_attr(test, test)]
fn of_heads_of_odd_shapes() {
    for (n_heads, n_kv_heads, head_dim, rotary_dim, norms) in
        [(1, 1, 8, 8, false), (3, 3, 80, 20, true), (16, 2, 20, 12, false), (6, 2, 256, 64, true)]
    {
        let turn = Turn { rotary_dim, pairs: RopeStyle::Interleaved, norms };
        check_both(&Case { n_heads, n_kv_heads, head_dim, ..Case::new(&[19, 270]) }, turn);
    }
    let turn = Turn { rotary_dim: 64, pairs: RopeStyle::Neox, norms: false };
    let wide = Case { n_heads: 5, n_kv_heads: 1, head_dim: 576, ..Case::new(&[270]) };
    check(&wide, turn, 270);
}

#[cfg_attr(test, test)]
fn of_contexts_of_several_splits() {
    let turn = Turn { rotary_dim: 8, pairs: RopeStyle::Neox, norms: true };
    let case = Case { head_dim: 8, n_heads: 1, n_kv_heads: 1, ..Case::new(&[2100, 300]) };
    check_both(&case, turn);
    // Blocks have a span each.
    let many = SPLIT_HEADS * 256 / 4 + 2356;
    check(&case, turn, many);
    check(&in_f32(&case), turn, many);
    for chunked in [false, true] {
        check_both(&Case { sliding_window: Some(20), chunked, ..case.clone() }, turn);
    }
}

crate::testing::tests![of_all_types, of_heads_of_odd_shapes, of_contexts_of_several_splits,];
