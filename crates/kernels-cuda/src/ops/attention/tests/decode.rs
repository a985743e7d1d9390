//! Tests of decode rows.

use super::super::decode::SPLIT_HEADS;
use super::*;

/// Runs the last row of every sequence in one step, between padding rows, and each row alone in a step with scratch for
/// longer contexts.
fn check_decode(case: &Case, tolerance: f64) {
    let world = World::new(case);
    let last = |(seq, &n): (usize, &usize)| Row::of(seq, n - 1);
    let mut rows: Vec<Row> = case.seqs.iter().enumerate().map(last).collect();
    rows.insert(1, Row::NONE);
    rows.push(Row::NONE);
    let longest = *case.seqs.iter().max().unwrap();
    let found = world.decode(&rows, longest);
    world.assert_close(&rows, &found, tolerance);
    for (&row, found) in rows.iter().zip(found.chunks(case.n_cols())) {
        let alone = world.decode(&[row], longest + 600);
        assert_eq!(bits(&alone), bits(found), "{row:?} alone");
    }
}

/// Tensor-core attention over stored keys and values.
fn plain<'a>(
    attention: &Attention<'a, TestDevice>,
    max_kv_len: usize,
    scratch: &'a AttentionScratch<TestDevice>,
) -> DecodeAttention<'a, TestDevice> {
    let arithmetic = AttentionArithmetic::Tensor;
    let (new_heads, to) = (None, None);
    DecodeAttention { attention: *attention, arithmetic, max_kv_len, scratch, new_heads, to }
}

/// Checks tensor cores and F32.
fn check_decodes(case: &Case) {
    check_decode(case, 3e-6);
    check_decode(&in_f32(case), 3e-6);
}

#[cfg_attr(test, test)]
fn decode_types_of_keys_and_values() {
    for (ty, tolerance) in [
        (BlockType::F32, 3e-6),
        (BlockType::F16, 3e-6),
        (BlockType::BF16, 2e-5),
        (BlockType::F8, 3e-6),
        (BlockType::Q8_0, HALF_STEP + 1e-4),
        (BlockType::Q4_0, HALF_STEP + 1e-4),
    ] {
        let case = Case { ty, ..Case::new(&[1, 257, 40]) };
        check_decode(&case, tolerance);
        check_decode(&in_f32(&case), 3e-6);
    }
}

#[cfg_attr(test, test)]
fn decode_heads_and_pages_of_odd_shapes() {
    for (n_heads, n_kv_heads, head_dim, page_len) in [
        (1, 1, 8, 16),
        (2, 1, 12, 16),
        (3, 3, 80, 32),
        (6, 2, 40, 64),
        (7, 1, 128, 16),
        (18, 2, 20, 64),
        (3, 1, 15, 16),
        (2, 1, 256, 16),
    ] {
        let seqs = &[19, 270];
        check_decodes(&Case { n_heads, n_kv_heads, head_dim, page_len, ..Case::new(seqs) });
    }
    // Heads that are too wide for tensor cores are computed in F32.
    check_decode(&Case { n_heads: 2, head_dim: 500, ..Case::new(&[19, 270]) }, 3e-6);
    let wide = Case { n_heads: 5, n_kv_heads: 1, head_dim: 576, ..Case::new(&[270]) };
    check_decode(&wide, 3e-6);
}

#[cfg_attr(test, test)]
fn decode_splits_and_spans_are_added() {
    let case =
        Case { head_dim: 16, n_heads: 3, n_kv_heads: 1, ..Case::new(&[1025, 2048, 5000, 3]) };
    check_decodes(&case);
}

#[cfg_attr(test, test)]
fn decode_rows_have_the_same_bits_by_splits_and_by_spans() {
    let case = Case { head_dim: 8, n_heads: 1, n_kv_heads: 1, ..Case::new(&[2100, 300]) };
    for case in [in_f32(&case), case] {
        let world = World::new(&case);
        let rows = [Row::of(0, 2099), Row::of(1, 299), Row::of(0, 600)];
        let found = world.decode(&rows, 2100);
        // With scratch for one split of contexts of 100,000 positions, blocks have a span each. Scratch for one row
        // takes one launch per row.
        let many = SPLIT_HEADS * 256 / rows.len() + 256;
        assert_eq!(bits(&world.decode(&rows, 2100 + many)), bits(&found), "by spans");
        assert_eq!(bits(&world.decode_in(&rows, 2100, 1)), bits(&found), "in three launches");
    }
}

#[cfg_attr(test, test)]
fn a_decode_step_is_replayed() {
    let world = World::new(&Case { head_dim: 8, ..Case::new(&[2100, 300]) });
    let rows = [Row::of(0, 2099), Row::of(1, 299), Row::NONE];
    let found = world.decode(&rows, 2100);
    let (kernels, stream) = (&world.kernels, &world.stream);
    let scratch = AttentionScratch::new(kernels.device(), stream, 3, 4, 8, 2100).unwrap();
    let replayed = world.run(&rows, false, |attention, device| {
        device.begin_capture(stream).unwrap();
        let decode = plain(attention, 2100, &scratch);
        attention_decode(kernels, stream, &decode).unwrap();
        let graph = device.end_capture(stream).unwrap();
        for _ in 0..3 {
            // SAFETY: the buffers of the step are alive.
            unsafe { device.replay(stream, &graph) }.unwrap();
        }
        device.synchronize(stream).unwrap();
    });
    assert_eq!(bits(&replayed), bits(&found));
}

#[cfg_attr(test, test)]
fn decode_windows() {
    for sliding_window in [1, 20, 256, 300, 4000] {
        let sliding_window = Some(sliding_window);
        let case = Case { sliding_window, head_dim: 16, ..Case::new(&[600, 19, 513, 1]) };
        check_decodes(&case);
        check_decodes(&Case { chunked: true, ..case });
    }
    // A window over parts of three spans.
    let case = Case { head_dim: 8, n_heads: 1, n_kv_heads: 1, ..Case::new(&[6000]) };
    check_decodes(&Case { sliding_window: Some(3000), ..case });
}

#[cfg_attr(test, test)]
fn decode_soft_caps_and_sinks() {
    let case = Case::new(&[1, 257, 40]);
    check_decodes(&Case { softcap: Some(0.7), ..case.clone() });
    check_decodes(&Case { sinks: true, ..case.clone() });
    check_decodes(&Case { sinks: true, softcap: Some(2.0), sliding_window: Some(33), ..case });
}

#[cfg_attr(test, test)]
fn values_that_a_decode_row_does_not_see_change_no_bit() {
    let case = Case { n_heads: 2, n_kv_heads: 1, head_dim: 16, ..Case::new(&[40]) };
    let [f8, q4_0] = [BlockType::F8, BlockType::Q4_0].map(|ty| Case { ty, ..case.clone() });
    for case in [in_f32(&case), in_f32(&f8), case, f8, q4_0] {
        let case = Case { sliding_window: Some(20), ..case };
        let row = [Row::of(0, 30)];
        let plain = World::new(&Case { sliding_window: None, ..case.clone() });
        let odd = World::with(&Case { sliding_window: None, ..case.clone() }, |_, k, v| {
            v[10 * 16] = f32::NAN;
            k[9 * 16..10 * 16].fill(f32::NAN);
            v[31 * 16..].fill(f32::INFINITY);
            k[32 * 16..].fill(f32::NAN);
        });
        let mut worlds = [plain, odd];
        worlds.iter_mut().for_each(|world| world.case.sliding_window = Some(20));
        let [plain, odd] = worlds.map(|world| world.decode(&row, 40));
        assert_eq!(bits(&odd), bits(&plain));
    }
}

#[cfg_attr(test, test)]
fn contexts_that_do_not_exist_are_reported() {
    let case = Case::new(&[16]);
    // A context that exceeds the step's, a sequence without a base, a page without a word, and a page number out of
    // range.
    for (row, max_kv_len, word) in [
        (Row::of(0, 256), 256, 0),
        (Row::of(1, 3), 256, 0),
        (Row::of(0, 40), 256, 0),
        (Row::of(0, 3), 256, 2),
    ] {
        let mut world = World::new(&Case { seqs: vec![16], ..case.clone() });
        world.q = vec![vec![0.0; 300 * case.n_cols()]; 2];
        let base = world.bases[0] as usize;
        world.words[base] = word;
        world.run(&[row], false, |attention, device| {
            let (kernels, stream) = (&world.kernels, &world.stream);
            let scratch = AttentionScratch::new(device, stream, 1, 4, 64, 256).unwrap();
            let decode = plain(attention, max_kv_len, &scratch);
            attention_decode(kernels, stream, &decode).unwrap();
            let message = device.synchronize(stream).unwrap_err().to_string();
            assert!(message.contains("trap") && message.contains("attention_f16"), "{message}");
        });
    }
}

#[cfg_attr(test, test)]
fn decode_blocks_along_heads_of_odd_sizes() {
    use BlockType::{F8, Q4_0, Q8_0};
    for (ty, head_dim) in [(Q8_0, 20), (Q8_0, 96), (Q8_0, 200), (Q4_0, 20), (Q4_0, 200), (F8, 20)] {
        let case = Case { ty, head_dim, page_len: 32, n_heads: 2, ..Case::new(&[19, 70]) };
        check_decode(&case, HALF_STEP + 1e-4);
        check_decode(&in_f32(&case), 3e-6);
    }
}

crate::testing::tests![
    decode_types_of_keys_and_values,
    decode_heads_and_pages_of_odd_shapes,
    decode_splits_and_spans_are_added,
    decode_rows_have_the_same_bits_by_splits_and_by_spans,
    a_decode_step_is_replayed,
    decode_windows,
    decode_soft_caps_and_sinks,
    values_that_a_decode_row_does_not_see_change_no_bit,
    contexts_that_do_not_exist_are_reported,
    decode_blocks_along_heads_of_odd_sizes,
];
