//! Compares attention with an F64 reference.

pub(crate) mod decode;
pub(crate) mod new_heads;
pub(crate) mod prefill;

use std::sync::Arc;

use realizar_ptx::Stream;
use realizar_quant::{BlockType, dequantize, quantize};

use super::*;
use crate::testing::{Random, TestDevice, kernels, on_device, read};
use crate::{AttentionArithmetic, Buffer, Kernels, KvSpec, QuantType, QuantizedRows, kv_store};

/// The maximum error of rounding a number below one to F16: values of Q8_0 on tensor cores, and weights of prefill
/// rows.
const HALF_STEP: f64 = 1.0 / 4096.0;

#[derive(Clone)]
struct Case {
    ty: BlockType,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    page_len: usize,
    softcap: Option<f32>,
    sliding_window: Option<usize>,
    chunked: bool,
    sinks: bool,
    /// For prefill rows.
    arithmetic: AttentionArithmetic,
    /// Number of stored positions of each sequence.
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
            sliding_window: None,
            chunked: false,
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

/// A row of a step: its sequence (none for padding), its position, and the exclusive end of what it attends to.
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

/// Sequences whose keys and values are stored on a device.
struct World {
    case: Case,
    kernels: Kernels<TestDevice>,
    stream: Stream,
    pages: KvPages<TestDevice>,
    k: Vec<Vec<f32>>, // [n_seqs][kv_len * kv_cols]
    v: Vec<Vec<f32>>, // as k
    q: Vec<Vec<f32>>, // [n_seqs][kv_len * n_cols]
    sinks: Vec<f32>,
    words: Vec<u32>,
    bases: Vec<u32>,
}

impl World {
    /// Stores pages in descending order. With a window, only the pages that the last row attends to exist.
    fn new(case: &Case) -> Self {
        Self::with(case, |_, _, _| ())
    }

    /// `change` may modify the keys and values of a sequence before they are stored.
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
            values_are_keys: false,
        };
        let pages = KvPages::new(kernels.device(), "kv", spec).unwrap();
        let mut values = |cols: usize, factor: f32| -> Vec<Vec<f32>> {
            let of = |n: &usize| random.floats(n * cols).iter().map(|x| factor * x).collect();
            case.seqs.iter().map(of).collect()
        };
        let (mut k, mut v) = (values(case.kv_cols(), 1.0), values(case.kv_cols(), 1.0));
        let q = values(case.n_cols(), 3.0);
        let sinks = random.floats(case.n_heads);
        // Unused words before the tables.
        let mut words = vec![u32::MAX; 7];
        let mut bases = Vec::new();
        let mut next = n_pages as u32;
        for (seq, &n) in case.seqs.iter().enumerate() {
            change(seq, &mut k[seq], &mut v[seq]);
            let slides = case.sliding_window.filter(|_| !case.chunked);
            let first = slides.map_or(0, |w| n.saturating_sub(w)) / page_len;
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

    /// Runs attention of rows that begin at index `offset` of all lists.
    fn run(
        &self,
        rows: &[Row],
        reaches: bool,
        launch: impl Fn(&Attention<'_, TestDevice>, &Arc<TestDevice>),
    ) -> Vec<f32> {
        let (device, stream, case) = (self.kernels.device(), &self.stream, &self.case);
        let (n_rows, n_cols) = (rows.len(), case.n_cols());
        let stride = n_cols + 4;
        let mut q = vec![9.0; n_rows * stride];
        for (to, &row) in q.chunks_mut(stride).zip(rows) {
            to[..n_cols].copy_from_slice(self.query(row));
        }
        let list = |of: &dyn Fn(&Row) -> u32| -> Buffer<TestDevice> {
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
            sliding_window: case.sliding_window,
            chunked: case.chunked,
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

    /// Runs decode attention with scratch for contexts of `max_kv_len` and `room` rows. If heads can be quantized,
    /// checks the quantized results against a separate quantization.
    fn decode_in(&self, rows: &[Row], max_kv_len: usize, room: usize) -> Vec<f32> {
        let (n_heads, head_dim) = (self.case.n_heads, self.case.head_dim);
        let (device, stream) = (self.kernels.device(), &self.stream);
        let scratch =
            AttentionScratch::new(device, stream, room, n_heads, head_dim, max_kv_len).unwrap();
        self.run(rows, false, |attention, device| {
            let (kernels, arithmetic) = (&self.kernels, self.case.arithmetic);
            let ty = if rows.len().is_multiple_of(2) { QuantType::Bf16 } else { QuantType::Int8 };
            let rooms = [0, 1].map(|_| {
                let n_cols = self.case.n_cols().next_multiple_of(32);
                QuantizedRows::new(device, ty, rows.len() + 1, n_cols).unwrap()
            });
            let quantizes = head_dim.is_multiple_of(32);
            let to = |i: usize| quantizes.then(|| rooms[i].rows(1, rows.len(), self.case.n_cols()));
            let decode = DecodeAttention {
                attention: *attention,
                arithmetic,
                max_kv_len,
                scratch: &scratch,
                new_heads: None,
                to: to(0),
            };
            attention_decode(kernels, stream, &decode).unwrap();
            if let [Some(found), Some(expected)] = [to(0), to(1)] {
                crate::quantize(kernels, stream, attention.out, expected).unwrap();
                device.synchronize(stream).unwrap();
                assert_eq!(found.read(stream), expected.read(stream));
            }
            device.synchronize(stream).unwrap();
        })
    }

    fn decode(&self, rows: &[Row], max_kv_len: usize) -> Vec<f32> {
        self.decode_in(rows, max_kv_len, rows.len())
    }

    /// Runs prefill attention in tiles of at most `tile_rows` consecutive rows of a sequence.
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
            let prefill =
                PrefillAttention { attention: *attention, arithmetic, tiles, results: None };
            attention_prefill(&self.kernels, &self.stream, &prefill).unwrap();
            device.synchronize(&self.stream).unwrap();
        })
    }

    /// Heads, rounded to the type of the pages.
    fn rounded(&self, values: &[f32]) -> Vec<f64> {
        let ty = self.case.ty;
        let mut all = Vec::new();
        for head in values.chunks(self.case.head_dim) {
            let mut head = head.to_vec();
            head.resize(head.len().next_multiple_of(ty.block_len()), 0.0);
            let mut bytes = vec![0; head.len() / ty.block_len() * ty.block_bytes()];
            quantize(ty, &head, &mut bytes).unwrap();
            dequantize(ty, &bytes, &mut head).unwrap();
            all.extend(head[..self.case.head_dim].iter().map(|&x| f64::from(x)));
        }
        all
    }

    /// The expected result of a row in F64.
    fn expected(&self, row: Row) -> Vec<f64> {
        let Case { n_heads, n_kv_heads, head_dim, softcap, sliding_window, chunked, sinks, .. } =
            self.case;
        let Some(seq) = row.seq else { return vec![0.0; self.case.n_cols()] };
        let first = match sliding_window {
            Some(n) if chunked => row.position - row.position % n,
            sliding_window => sliding_window.map_or(0, |n| (row.position + 1).saturating_sub(n)),
        };
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

/// The rows of a range of positions of a sequence.
fn rows_of(seq: usize, positions: std::ops::Range<usize>) -> Vec<Row> {
    positions.map(|position| Row::of(seq, position)).collect()
}

fn in_f32(case: &Case) -> Case {
    Case { arithmetic: AttentionArithmetic::F32, ..case.clone() }
}
