//! Attention on the interpreter, against F64.

use std::sync::Arc;

use realizar_ptx::Stream;
use realizar_quant::{BlockType, dequantize, quantize};

use super::*;
use crate::pages::KV_TYPES;
use crate::testing::{Interpreter, Random, kernels, on_device, read};
use crate::{Buffer, Kernels, KvSpec, kv_store};

#[derive(Clone)]
struct Case {
    ty: BlockType,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    page_len: usize,
    softcap: Option<f32>,
    window: Option<usize>,
    sinks: bool,
    /// Of prefill rows.
    arithmetic: AttentionArithmetic,
    /// Positions of each sequence that are stored.
    seqs: Vec<usize>,
}

impl Case {
    fn new(seqs: &[usize]) -> Self {
        Self {
            ty: BlockType::F16,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            page_len: 16,
            softcap: None,
            window: None,
            sinks: false,
            arithmetic: AttentionArithmetic::Tensor,
            seqs: seqs.to_vec(),
        }
    }

    fn kv_cols(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    fn n_cols(&self) -> usize {
        self.n_heads * self.head_dim
    }
}

/// A row of a step: its sequence, its position, and one past the last position that it sees. Without a sequence it is
/// one that fills up a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Row {
    seq: Option<usize>,
    position: usize,
    reach: usize,
}

impl Row {
    fn of(seq: usize, position: usize) -> Self {
        Self { seq: Some(seq), position, reach: position + 1 }
    }

    const NONE: Self = Self { seq: None, position: 0, reach: 0 };
}

/// Sequences whose keys and values are on a device.
struct World {
    case: Case,
    kernels: Kernels<Interpreter>,
    stream: Stream,
    pages: KvPages<Interpreter>,
    k: Vec<Vec<f32>>, // [n_seqs][kv_len * kv_cols]
    v: Vec<Vec<f32>>, // as k
    q: Vec<Vec<f32>>, // [n_seqs][kv_len * n_cols]
    sinks: Vec<f32>,
    words: Vec<u32>,
    bases: Vec<u32>,
}

impl World {
    /// Pages lie from the last one down; of a sequence with a window, only those exist that its last row sees.
    fn new(case: &Case) -> Self {
        Self::with(case, |_, _, _| ())
    }

    /// `change` may alter keys and values of a sequence before they are stored.
    fn with(case: &Case, change: impl Fn(usize, &mut [f32], &mut [f32])) -> Self {
        let (kernels, stream) = kernels();
        let mut random = Random(11);
        let page_len = case.page_len;
        let n_pages = case.seqs.iter().map(|n| n.div_ceil(page_len)).sum::<usize>() + 1;
        let spec = KvSpec {
            ty: case.ty,
            n_kv_heads: case.n_kv_heads,
            head_dim: case.head_dim,
            page_len,
            n_pages,
        };
        let pages = KvPages::new(kernels.device(), "kv", spec).unwrap();
        let mut values = |cols: usize, factor: f32| -> Vec<Vec<f32>> {
            let of = |n: &usize| random.floats(n * cols).iter().map(|x| factor * x).collect();
            case.seqs.iter().map(of).collect()
        };
        let (mut k, mut v) = (values(case.kv_cols(), 1.0), values(case.kv_cols(), 1.0));
        let q = values(case.n_cols(), 3.0);
        let sinks = random.floats(case.n_heads);
        // Words in front of the tables, that are none of them.
        let mut words = vec![u32::MAX; 7];
        let mut bases = Vec::new();
        let mut next = n_pages as u32;
        for (seq, &n) in case.seqs.iter().enumerate() {
            change(seq, &mut k[seq], &mut v[seq]);
            let first = case.window.map_or(0, |w| n.saturating_sub(w)) / page_len;
            bases.push((words.len() as u32).wrapping_sub(first as u32));
            let mut slots = vec![u32::MAX; n];
            for page in first..n.div_ceil(page_len) {
                next -= 1;
                words.push(next);
                let end = n.min((page + 1) * page_len);
                for (i, slot) in slots[page * page_len..end].iter_mut().enumerate() {
                    *slot = next * page_len as u32 + i as u32;
                }
            }
            if n > 0 {
                let device = kernels.device();
                let [k, v] = [&k[seq], &v[seq]].map(|x| on_device(device, &stream, x));
                let of = |x| Rows::new(x, 0, n, case.kv_cols(), case.kv_cols());
                let slots = on_device(device, &stream, &slots);
                let slots = List::all(&slots);
                kv_store(&kernels, &stream, of(&k), of(&v), slots, &pages).unwrap();
            }
        }
        Self { case: case.clone(), kernels, stream, pages, k, v, q, sinks, words, bases }
    }

    fn query(&self, row: Row) -> &[f32] {
        let n = self.case.n_cols();
        row.seq.map_or(&[0.5; 4096][..n], |seq| &self.q[seq][row.position * n..][..n])
    }

    /// Runs attention of rows that follow `offset` others in all lists.
    fn run(
        &self,
        rows: &[Row],
        reaches: bool,
        launch: impl Fn(&Attention<'_, Interpreter>, &Arc<Interpreter>),
    ) -> Vec<f32> {
        let (device, stream, case) = (self.kernels.device(), &self.stream, &self.case);
        let (n_rows, n_cols) = (rows.len(), case.n_cols());
        let stride = n_cols + 4;
        let mut q = vec![9.0; n_rows * stride];
        for (to, &row) in q.chunks_mut(stride).zip(rows) {
            to[..n_cols].copy_from_slice(self.query(row));
        }
        let list = |of: &dyn Fn(&Row) -> u32| -> Buffer<Interpreter> {
            on_device(device, stream, &rows.iter().map(of).collect::<Vec<_>>())
        };
        let positions = list(&|row| row.position as u32);
        let seq_of_row = list(&|row| row.seq.map_or(u32::MAX, |seq| seq as u32));
        let reach_of_row = list(&|row| row.reach as u32);
        let bases = on_device(device, stream, &self.bases);
        let words = on_device(device, stream, &self.words);
        let q_at = on_device(device, stream, &q);
        let out_at = on_device(device, stream, &q);
        let sinks_at = on_device(device, stream, &[&[0.0; 3], &self.sinks[..]].concat());
        let attention = Attention {
            q: Rows::new(&q_at, 0, n_rows, n_cols, stride),
            pages: &self.pages,
            tables: Tables {
                positions: List::all(&positions),
                seq_of_row: List::all(&seq_of_row),
                bases: List::all(&bases),
                words: List::all(&words),
                reaches: reaches.then(|| List::all(&reach_of_row)),
            },
            n_heads: case.n_heads,
            scale: 1.0 / (case.head_dim as f32).sqrt(),
            softcap: case.softcap,
            window: case.window,
            sinks: case.sinks.then(|| Rows::vector_at(&sinks_at, 3, case.n_heads)),
            out: Rows::new(&out_at, 0, n_rows, n_cols, stride),
        };
        launch(&attention, device);
        if device.synchronize(stream).is_err() {
            return Vec::new();
        }
        let found = read(stream, &out_at, n_rows * stride);
        for (found, q) in found.chunks(stride).zip(q.chunks(stride)) {
            assert_eq!(found[n_cols..], q[n_cols..], "behind a row");
        }
        found.chunks(stride).flat_map(|row| row[..n_cols].to_vec()).collect()
    }

    /// Attention of decode rows, in a scratch for contexts of `max_kv_len`.
    fn decode(&self, rows: &[Row], max_kv_len: usize) -> Vec<f32> {
        self.run(rows, false, |attention, device| {
            let (n_heads, head_dim) = (self.case.n_heads, self.case.head_dim);
            let scratch = AttentionScratch::new(
                device,
                &self.stream,
                rows.len(),
                n_heads,
                head_dim,
                max_kv_len,
            )
            .unwrap();
            attention_decode(&self.kernels, &self.stream, attention, max_kv_len, &scratch).unwrap();
            device.synchronize(&self.stream).unwrap();
        })
    }

    /// Attention of prefill rows; rows of a sequence that follow one another are cut into tiles of `tile_rows`.
    fn prefill(&self, rows: &[Row], reaches: bool, tile_rows: usize) -> Vec<f32> {
        let mut tiles: Vec<u32> = vec![0, 0];
        let mut first = 0;
        for run in rows.chunk_by(|a, b| a.seq == b.seq && a.position + 1 == b.position) {
            for tile in run.chunks(tile_rows) {
                tiles.extend([first as u32, tile.len() as u32]);
                first += tile.len();
            }
        }
        self.run(rows, reaches, |attention, device| {
            let tiles = on_device(device, &self.stream, &tiles);
            let tiles = List::all(&tiles);
            let arithmetic = self.case.arithmetic;
            attention_prefill(&self.kernels, &self.stream, attention, tiles, arithmetic).unwrap();
            device.synchronize(&self.stream).unwrap();
        })
    }

    /// What rounding to the type of the pages makes of values.
    fn rounded(&self, values: &[f32]) -> Vec<f64> {
        let ty = self.case.ty;
        let mut bytes = vec![0; values.len() / ty.block_len() * ty.block_bytes()];
        quantize(ty, values, &mut bytes).unwrap();
        let mut back = vec![0.0; values.len()];
        dequantize(ty, &bytes, &mut back).unwrap();
        back.into_iter().map(f64::from).collect()
    }

    /// A row in F64.
    fn expected(&self, row: Row) -> Vec<f64> {
        let Case { n_heads, n_kv_heads, head_dim, softcap, window, sinks, .. } = self.case;
        let Some(seq) = row.seq else { return vec![0.0; self.case.n_cols()] };
        let first = window.map_or(0, |n| (row.position + 1).saturating_sub(n));
        let scale = 1.0 / (head_dim as f64).sqrt();
        let kv_cols = self.case.kv_cols();
        let seen = |values: &[f32]| self.rounded(&values[first * kv_cols..row.reach * kv_cols]);
        let (k, v) = (seen(&self.k[seq]), seen(&self.v[seq]));
        let mut all = Vec::new();
        for head in 0..n_heads {
            let column = head / (n_heads / n_kv_heads) * head_dim;
            let q = &self.query(row)[head * head_dim..][..head_dim];
            let scores = k.chunks_exact(kv_cols).map(|k| {
                let k = &k[column..][..head_dim];
                let dot: f64 = q.iter().zip(k).map(|(&q, k)| f64::from(q) * k).sum();
                softcap.map_or(dot * scale, |cap| {
                    f64::from(cap) * (dot * scale / f64::from(cap)).tanh()
                })
            });
            let scores: Vec<f64> = scores.collect();
            let sink = if sinks { f64::from(self.sinks[head]) } else { f64::NEG_INFINITY };
            let largest = scores.iter().copied().fold(sink, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let sink = (sink - largest).exp();
            let total = weights.iter().sum::<f64>() + sink;
            let mut out = vec![0.0; head_dim];
            for (weight, v) in weights.iter().zip(v.chunks_exact(kv_cols)) {
                for (out, v) in out.iter_mut().zip(&v[column..]) {
                    *out += weight / total * v;
                }
            }
            all.extend(out);
        }
        all
    }

    fn assert_close(&self, rows: &[Row], found: &[f32], tolerance: f64) {
        let n_cols = self.case.n_cols();
        for (&row, found) in rows.iter().zip(found.chunks(n_cols)) {
            for (i, (found, wanted)) in found.iter().zip(self.expected(row)).enumerate() {
                let away = (f64::from(*found) - wanted).abs();
                assert!(away <= tolerance, "{row:?} column {i}: {found} is not {wanted}");
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The last row of every sequence in one step, between rows without a sequence, and each row alone in a step with room
/// for longer contexts.
fn check_decode(case: &Case) {
    let world = World::new(case);
    let last = |(seq, &n): (usize, &usize)| Row::of(seq, n - 1);
    let mut rows: Vec<Row> = case.seqs.iter().enumerate().map(last).collect();
    rows.insert(1, Row::NONE);
    rows.push(Row::NONE);
    let longest = *case.seqs.iter().max().unwrap();
    let found = world.decode(&rows, longest);
    world.assert_close(&rows, &found, 3e-6);
    for (&row, found) in rows.iter().zip(found.chunks(case.n_cols())) {
        let alone = world.decode(&[row], longest + 600);
        assert_eq!(bits(&alone), bits(found), "{row:?} alone");
    }
}

#[test]
fn decode_types_of_keys_and_values() {
    for ty in KV_TYPES {
        check_decode(&Case { ty, ..Case::new(&[1, 257, 40]) });
    }
}

#[test]
fn decode_heads_and_pages_of_odd_shapes() {
    for (n_heads, n_kv_heads, head_dim, page_len) in [
        (1, 1, 8, 16),
        (2, 1, 12, 16),
        (3, 3, 80, 32),
        (6, 2, 40, 64),
        (7, 1, 128, 16),
        (20, 2, 20, 64),
        (2, 1, 256, 16),
        (2, 2, 512, 32),
    ] {
        check_decode(&Case { n_heads, n_kv_heads, head_dim, page_len, ..Case::new(&[19, 270]) });
    }
}

#[test]
fn decode_long_contexts_are_merged() {
    check_decode(&Case { head_dim: 32, ..Case::new(&[1025, 256, 512, 3]) });
}

#[test]
fn decode_windows_soft_caps_and_sinks() {
    for window in [1, 20, 256, 300, 4000] {
        let window = Some(window);
        check_decode(&Case { window, head_dim: 16, ..Case::new(&[600, 19, 513, 1]) });
    }
    let case = Case::new(&[1, 257, 40]);
    check_decode(&Case { softcap: Some(0.7), ..case.clone() });
    check_decode(&Case { sinks: true, ..case.clone() });
    check_decode(&Case { sinks: true, softcap: Some(2.0), window: Some(33), ..case });
}

/// Rows `first..` of a sequence.
fn rows_of(seq: usize, positions: std::ops::Range<usize>) -> Vec<Row> {
    positions.map(|position| Row::of(seq, position)).collect()
}

/// The last rows of all sequences in one step, and again in other tiles, and alone.
fn check_prefill(case: &Case, tolerance: f64) {
    let world = World::new(case);
    // With a window, only the pages of the last row's are there.
    let n_last = if case.window.is_some() { 1 } else { 45 };
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

/// The same on tensor cores, with weights of F16, and in F32.
fn check_prefills(case: &Case) {
    check_prefill(case, 3e-4);
    check_prefill(&in_f32(case), 2e-6);
}

fn in_f32(case: &Case) -> Case {
    Case { arithmetic: AttentionArithmetic::F32, ..case.clone() }
}

#[test]
fn prefill_types_of_keys_and_values() {
    for (ty, tolerance) in [(BlockType::F32, 2e-6), (BlockType::F16, 3e-4), (BlockType::BF16, 3e-3)]
    {
        let case = Case { ty, ..Case::new(&[1, 70, 40]) };
        check_prefill(&case, tolerance);
        check_prefill(&in_f32(&case), 2e-6);
    }
}

#[test]
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
}

#[test]
fn prefill_windows() {
    for window in [1, 20, 64, 100, 4000] {
        let window = Some(window);
        check_prefills(&Case { window, head_dim: 16, ..Case::new(&[300, 19, 200, 1]) });
    }
}

#[test]
fn prefill_soft_caps_and_sinks() {
    let case = Case { head_dim: 40, ..Case::new(&[1, 130, 40]) };
    check_prefills(&Case { softcap: Some(0.7), ..case.clone() });
    check_prefills(&Case { sinks: true, ..case.clone() });
    check_prefills(&Case { sinks: true, softcap: Some(2.0), window: Some(33), ..case });
}

#[test]
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

#[test]
fn prefill_rows_see_as_far_as_they_reach() {
    let case = Case { sinks: true, head_dim: 32, ..Case::new(&[150]) };
    for (case, tolerance) in [(in_f32(&case), 2e-6), (case, 3e-4)] {
        let world = World::new(&case);
        // Rows 20 to 89 see each other, all others up to themselves.
        let mut rows = rows_of(0, 10..150);
        let segment = rows.iter_mut().filter(|row| (20..90).contains(&row.position));
        segment.for_each(|row| row.reach = 90);
        let found = world.prefill(&rows, true, TILE_ROWS);
        world.assert_close(&rows, &found, tolerance);
        assert_eq!(bits(&world.prefill(&rows, true, 33)), bits(&found));
        // Rows that see nothing are zero.
        let mut none = rows_of(0, 3..6);
        none.iter_mut().for_each(|row| row.reach = 0);
        none.extend([Row::NONE, Row::NONE]);
        let found = world.prefill(&none, true, TILE_ROWS);
        assert!(found.iter().all(|x| x.to_bits() == 0), "{found:?}");
    }
}

#[test]
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

#[test]
fn prefill_of_long_contexts_and_large_scores() {
    let case = Case { n_heads: 1, n_kv_heads: 1, head_dim: 32, ..Case::new(&[5000]) };
    for (case, tolerance) in [(in_f32(&case), 1e-6), (case, 3e-5)] {
        let world = World::new(&case);
        let rows = rows_of(0, 4990..5000);
        world.assert_close(&rows, &world.prefill(&rows, false, TILE_ROWS), tolerance);
        // Queries that are far from one: scores of nearly zero, and of some hundreds.
        for factor in [1e-3, 200.0] {
            let mut world = World::new(&Case { seqs: vec![200], ..case.clone() });
            world.q[0].iter_mut().for_each(|x| *x *= factor);
            let rows = rows_of(0, 150..200);
            world.assert_close(&rows, &world.prefill(&rows, false, TILE_ROWS), 5e-4);
        }
    }
}

#[test]
fn contexts_that_do_not_exist_are_reported() {
    let case = Case::new(&[16]);
    // A context that is longer than the step's, a sequence without a base, a page without a word, and a word that is
    // no page.
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
            let scratch = AttentionScratch::new(device, &world.stream, 1, 4, 64, 256).unwrap();
            attention_decode(&world.kernels, &world.stream, attention, max_kv_len, &scratch)
                .unwrap();
            let message = device.synchronize(&world.stream).unwrap_err().to_string();
            assert!(message.contains("trap") && message.contains("attention_f16"), "{message}");
        });
    }
}
