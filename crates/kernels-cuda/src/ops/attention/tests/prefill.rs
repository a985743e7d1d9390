//! Tests of prefill rows.

use super::*;
use crate::testing::wgmma_kernels;
use crate::{
    GroupedRows, HalfRows, HalfType, PrefillAttention, PrefillResults, ProductRows, group_rows,
    round_rows,
};

/// Runs the last rows of all sequences in one step, then in other tiles, then alone.
fn check_prefill(case: &Case, tolerance: f64) {
    let world = World::new(case);
    // With a sliding window, only the pages of the last row's window exist.
    let n_last = if case.sliding_window.is_some() && !case.chunked { 1 } else { 45 };
    let of = |(seq, &n): (usize, &usize)| rows_of(seq, n.saturating_sub(n_last)..n);
    let rows: Vec<Row> = case.seqs.iter().enumerate().flat_map(of).collect();
    let found = world.prefill(&rows, false, TILE_ROWS);
    world.assert_close(&rows, &found, tolerance);
    let again = world.prefill(&rows, false, 7);
    assert_eq!(bits(&again), bits(&found), "in tiles of 7 rows");
    for (i, (&row, found)) in rows.iter().zip(found.chunks(case.n_cols())).enumerate() {
        if i % 16 == 3 {
            assert_eq!(bits(&world.prefill(&[row], false, 1)), bits(found), "{row:?} alone");
        }
    }
}

/// Checks tensor cores, with F16 weights, and F32.
fn check_prefills(case: &Case) {
    check_prefill(case, 3e-4);
    check_prefill(&in_f32(case), 2e-6);
}

#[cfg_attr(test, test)]
fn prefill_types_of_keys_and_values() {
    for (ty, tolerance) in [
        (BlockType::F32, 2e-6),
        (BlockType::F16, 3e-4),
        (BlockType::BF16, 3e-3),
        (BlockType::F8, 3e-4),
        (BlockType::Q8_0, 2.0 * HALF_STEP + 1e-4),
        (BlockType::Q4_0, 2.0 * HALF_STEP + 1e-4),
    ] {
        let case = Case { ty, ..Case::new(&[1, 70, 40]) };
        check_prefill(&case, tolerance);
        check_prefill(&in_f32(&case), 2e-6);
    }
}

#[cfg_attr(test, test)]
fn prefill_heads_and_pages_of_odd_shapes() {
    for (n_heads, n_kv_heads, head_dim, page_len) in [
        (1, 1, 8, 16),
        (2, 1, 12, 16),
        (3, 3, 80, 32),
        (6, 2, 40, 64),
        (7, 1, 128, 16),
        (20, 2, 20, 64),
        (3, 1, 15, 16),
        (2, 1, 250, 16),
    ] {
        let seqs = &[19, 60];
        let case = Case { n_heads, n_kv_heads, head_dim, page_len, ..Case::new(seqs) };
        check_prefills(&case);
    }
    // Heads that are too wide for tensor cores are computed in F32.
    check_prefill(&Case { n_heads: 1, n_kv_heads: 1, head_dim: 500, ..Case::new(&[40]) }, 2e-6);
    check_prefill(&Case { n_heads: 2, n_kv_heads: 1, head_dim: 576, ..Case::new(&[20]) }, 2e-6);
}

#[cfg_attr(test, test)]
fn prefill_windows() {
    for sliding_window in [1, 20, 64, 100, 4000] {
        let sliding_window = Some(sliding_window);
        let case = Case { sliding_window, head_dim: 16, ..Case::new(&[300, 19, 200, 1]) };
        check_prefills(&case);
        check_prefills(&Case { chunked: true, ..case });
    }
}

#[cfg_attr(test, test)]
fn prefill_soft_caps_and_sinks() {
    let case = Case { head_dim: 40, ..Case::new(&[1, 130, 40]) };
    check_prefills(&Case { softcap: Some(0.7), ..case.clone() });
    check_prefills(&Case { sinks: true, ..case.clone() });
    check_prefills(&Case { sinks: true, softcap: Some(2.0), sliding_window: Some(33), ..case });
}

#[cfg_attr(test, test)]
fn prefill_chunks_of_a_prompt_have_the_bits_of_the_whole() {
    let case = Case { head_dim: 32, n_heads: 3, n_kv_heads: 1, ..Case::new(&[300]) };
    for (case, tolerance) in [(in_f32(&case), 2e-6), (case, 3e-4)] {
        let world = World::new(&case);
        let rows = rows_of(0, 0..300);
        let whole = world.prefill(&rows, false, TILE_ROWS);
        world.assert_close(&rows, &whole, tolerance);
        let mut chunked = Vec::new();
        for chunk in [0..1, 1..64, 64..127, 127..256, 256..300] {
            chunked.extend(world.prefill(&rows[chunk], false, TILE_ROWS));
        }
        assert_eq!(bits(&chunked), bits(&whole));
    }
}

#[cfg_attr(test, test)]
fn prefill_rows_see_as_far_as_they_reach() {
    let case = Case { sinks: true, head_dim: 32, ..Case::new(&[150]) };
    for (case, tolerance) in [(in_f32(&case), 2e-6), (case, 3e-4)] {
        let world = World::new(&case);
        // Rows 20 to 89 attend to each other, all others up to themselves.
        let mut rows = rows_of(0, 10..150);
        let segment = rows.iter_mut().filter(|row| (20..90).contains(&row.position));
        segment.for_each(|row| row.reach = 90);
        let found = world.prefill(&rows, true, TILE_ROWS);
        world.assert_close(&rows, &found, tolerance);
        assert_eq!(bits(&world.prefill(&rows, true, 33)), bits(&found));
        // Rows that attend to nothing are zero.
        let mut none = rows_of(0, 3..6);
        none.iter_mut().for_each(|row| row.reach = 0);
        none.extend([Row::NONE, Row::NONE]);
        let found = world.prefill(&none, true, TILE_ROWS);
        assert!(found.iter().all(|x| x.to_bits() == 0), "{found:?}");
    }
}

#[cfg_attr(test, test)]
fn values_that_a_prefill_row_does_not_see_change_no_bit() {
    let case = Case { n_heads: 2, n_kv_heads: 1, head_dim: 16, ..Case::new(&[140]) };
    for case in [in_f32(&case), case] {
        let rows = rows_of(0, 0..140);
        let plain = World::new(&case).prefill(&rows, false, TILE_ROWS);
        let odd = World::with(&case, |_, k, v| {
            v[70 * 16 + 3] = f32::INFINITY;
            v[100 * 16 + 5] = f32::NAN;
            k[110 * 16..111 * 16].fill(f32::NAN);
        });
        for tile_rows in [TILE_ROWS, 50] {
            let found = odd.prefill(&rows, false, tile_rows);
            for (row, (found, plain)) in found.chunks(32).zip(plain.chunks(32)).enumerate() {
                for (i, (found, plain)) in found.iter().zip(plain).enumerate() {
                    let is_odd =
                        row >= 110 || row >= 70 && i % 16 == 3 || row >= 100 && i % 16 == 5;
                    if is_odd {
                        assert!(!found.is_finite(), "row {row} column {i}: {found}");
                    } else {
                        assert_eq!(found.to_bits(), plain.to_bits(), "row {row} column {i}");
                    }
                }
            }
        }
    }
}

#[cfg_attr(test, test)]
fn prefill_of_long_contexts_and_large_scores() {
    let case = Case { n_heads: 1, n_kv_heads: 1, head_dim: 32, ..Case::new(&[5000]) };
    for (case, tolerance) in [(in_f32(&case), 1e-6), (case, 3e-5)] {
        let world = World::new(&case);
        let rows = rows_of(0, 4990..5000);
        world.assert_close(&rows, &world.prefill(&rows, false, TILE_ROWS), tolerance);
        // Scores near zero, and scores of some hundreds.
        for factor in [1e-3, 200.0] {
            let mut world = World::new(&Case { seqs: vec![200], ..case.clone() });
            world.q[0].iter_mut().for_each(|x| *x *= factor);
            let rows = rows_of(0, 150..200);
            world.assert_close(&rows, &world.prefill(&rows, false, TILE_ROWS), 5e-4);
        }
    }
}

#[cfg_attr(test, test)]
fn prefill_blocks_along_heads_of_odd_sizes() {
    use BlockType::{F8, Q4_0, Q8_0};
    for (ty, head_dim) in [(Q8_0, 20), (Q8_0, 96), (Q8_0, 200), (Q4_0, 20), (Q4_0, 200), (F8, 20)] {
        let case = Case { ty, head_dim, page_len: 32, n_heads: 2, ..Case::new(&[19, 70]) };
        check_prefill(&case, 2.0 * HALF_STEP + 1e-4);
        check_prefill(&in_f32(&case), 2e-6);
    }
}

/// The operand of the next product is the rounding of the results, for prefill rows after two other rows.
#[cfg_attr(test, test)]
fn prefill_results_are_rounded_where_they_are_made() {
    let case = Case { n_heads: 4, head_dim: 64, ..Case::new(&[40, 9]) };
    let world = World::new(&case);
    let (kernels, stream, device) = (&world.kernels, &world.stream, world.kernels.device());
    let wgmma = wgmma_kernels(device);
    let (first, n_cols) = (2, case.n_cols());
    let rows: Vec<Row> =
        (0..first).map(|i| Row::of(1, i)).chain((3..30).map(|i| Row::of(0, i))).collect();
    let n = rows.len() - first;
    let tiles = on_device(device, stream, &[first as u32, n as u32]);
    let halves = [0, 1].map(|_| HalfRows::new(device, n + 1, n_cols).unwrap());
    let groups = [0, 1].map(|_| GroupedRows::new(device, n, n_cols).unwrap());
    let half = |i: usize| halves[i].rows(HalfType::BF16, 1, n, n_cols);
    let group = |i: usize| groups[i].rows(HalfType::BF16, n, n_cols);
    let run = |to: Option<ProductRows<'_, TestDevice>>, is_read: bool| {
        world.run(&rows, false, |attention, device| {
            let results = to.map(|to| PrefillResults { to, first, is_read });
            let (arithmetic, tiles) = (AttentionArithmetic::Tensor, List::all(&tiles));
            let prefill = PrefillAttention { attention: *attention, arithmetic, tiles, results };
            attention_prefill(kernels, stream, &prefill).unwrap();
            device.synchronize(stream).unwrap();
        })
    };
    let expected = run(None, true);
    let out = on_device(device, stream, &expected[first * n_cols..]);
    let out = Rows::new(&out, 0, n, n_cols, n_cols);
    round_rows(kernels, stream, out, half(1)).unwrap();
    assert_eq!(bits(&run(Some(ProductRows::Halves(half(0))), true)), bits(&expected));
    assert_eq!(half(0).read(stream), half(1).read(stream), "row by row");
    let Some(wgmma) = wgmma else { return };
    group_rows(kernels, &wgmma, stream, out, group(1)).unwrap();
    // Queries and results share memory, and the results are not stored.
    let untouched = run(Some(ProductRows::Grouped(group(0))), false);
    assert_eq!(bits(&untouched[first * n_cols..][..n_cols]), bits(world.query(rows[first])));
    assert_eq!(group(0).read(stream), group(1).read(stream), "in groups");
}

#[cfg_attr(test, test)]
fn a_tile_in_front_of_the_results_is_reported() {
    let case = Case { n_heads: 4, head_dim: 64, ..Case::new(&[9]) };
    let world = World::new(&case);
    let (stream, device) = (&world.stream, world.kernels.device());
    let rows: Vec<Row> = (0..4).map(|i| Row::of(0, i)).collect();
    let tiles = on_device(device, stream, &[1u32, 3]);
    let room = HalfRows::new(device, 2, case.n_cols()).unwrap();
    world.run(&rows, false, |attention, device| {
        let to = ProductRows::Halves(room.rows(HalfType::BF16, 0, 2, case.n_cols()));
        let results = Some(PrefillResults { to, first: 2, is_read: false });
        let (arithmetic, tiles) = (AttentionArithmetic::Tensor, List::all(&tiles));
        let prefill = PrefillAttention { attention: *attention, arithmetic, tiles, results };
        attention_prefill(&world.kernels, stream, &prefill).unwrap();
        let message = device.synchronize(stream).unwrap_err().to_string();
        assert!(message.contains("trap") && message.contains("attention_prefill"), "{message}");
    });
}

crate::testing::tests![
    prefill_types_of_keys_and_values,
    prefill_heads_and_pages_of_odd_shapes,
    prefill_windows,
    prefill_soft_caps_and_sinks,
    prefill_chunks_of_a_prompt_have_the_bits_of_the_whole,
    prefill_rows_see_as_far_as_they_reach,
    values_that_a_prefill_row_does_not_see_change_no_bit,
    prefill_of_long_contexts_and_large_scores,
    prefill_blocks_along_heads_of_odd_sizes,
    prefill_results_are_rounded_where_they_are_made,
    a_tile_in_front_of_the_results_is_reported,
];
