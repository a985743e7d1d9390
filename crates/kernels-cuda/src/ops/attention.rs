//! Keys and values into their pages, and attention of decode steps over them.

use std::sync::Arc;

use super::kernels::{ATTENTION_HEADS, Kernels};
use crate::device::{Argument, Device};
use crate::{Buffer, Error, KvPages, Rows};

/// Positions that one block attends to, as `cuda/attention.cu` has them.
const SPLIT: usize = 256;
/// Threads of a block.
const THREADS: u32 = 128;

/// Queues a copy of keys and values to their slots, rounded to the type of the pages. A slot is the number of
/// the page times its length, plus the position in the page; a row whose slot is `u32::MAX` is not stored. A page
/// that does not exist stops the device: the next call that waits reports it.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit.
pub fn kv_store<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    k: Rows<'_, D>,    // [n_rows, n_kv_heads * head_dim]
    v: Rows<'_, D>,    // [n_rows, n_kv_heads * head_dim]
    slots: &Buffer<D>, // `u32`, one for each row
    pages: &KvPages<D>,
) -> Result<(), Error> {
    let n_cols = pages.spec().n_kv_heads * pages.spec().head_dim;
    k.check(kernels, "k", k.n_rows(), n_cols);
    v.check(kernels, "v", k.n_rows(), n_cols);
    kernels.check("slots", slots, k.n_rows());
    kernels.check("pages", pages.buffer(), 0);
    let [k_pages, v_pages, n_pages, n_kv_heads, page_len, head_dim] = pages.arguments();
    let arguments = [
        k.address(),
        k.stride(),
        v.address(),
        v.stride(),
        Argument::Address(slots.address()),
        k_pages,
        v_pages,
        n_pages,
        n_kv_heads,
        page_len,
        head_dim,
    ];
    let function = &kernels.of_kv(pages.spec().ty).store;
    let grid = [k.n_rows() as u32, 2, 1];
    // SAFETY: the arguments are those of `kv_store_*` in order; rows are inside of their buffers, their shapes
    // were checked, and the kernel checks slots. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }
}

/// Room for what the splits of a step hand to the kernel that adds them.
#[derive(Debug)]
pub struct AttentionScratch<D: Device> {
    sums: Buffer<D>,
    stats: Buffer<D>,
}

impl<D: Device> AttentionScratch<D> {
    /// Room for steps of at most `max_rows` rows with contexts of at most `max_kv_len` positions.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(
        device: &Arc<D>,
        max_rows: usize,
        n_heads: usize,
        head_dim: usize,
        max_kv_len: usize,
    ) -> Result<Self, Error> {
        let what = "sums of attention";
        let n = [max_rows, n_heads, max_kv_len.div_ceil(SPLIT), head_dim.max(2), 4];
        let n_bytes = n.into_iter().try_fold(1usize, usize::checked_mul);
        let n_bytes = n_bytes
            .ok_or_else(|| Error::OutOfMemory { what: what.to_owned(), n_bytes: usize::MAX })?;
        let stats = n_bytes / head_dim.max(2) * 2;
        Ok(Self {
            sums: Buffer::new(device, what, n_bytes)?,
            stats: Buffer::new(device, what, stats)?,
        })
    }
}

/// Attention of rows that each see a context of their own.
#[derive(Debug)]
pub struct Attention<'a, D: Device> {
    /// Queries, `[n_rows, n_heads * head_dim]`.
    pub q: Rows<'a, D>,
    /// Keys and values.
    pub pages: &'a KvPages<D>,
    /// Positions of each row's context, `u32`; the result of a row that has none is zero.
    pub kv_lens: &'a Buffer<D>,
    /// Pages of each row's context in order, `u32`, `[n_rows, table_len]`.
    pub block_table: &'a Buffer<D>,
    /// Pages of a row in the table.
    pub table_len: usize,
    /// The most positions that a context of this step has.
    pub max_kv_len: usize,
    /// Query heads; `n_heads / n_kv_heads` after one another share a head of keys and values.
    pub n_heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Only that many positions at the end of a context are seen.
    pub window: Option<usize>,
    /// A score for each head that takes part in the softmax without a value, `f32`.
    pub sinks: Option<&'a Buffer<D>>,
    /// Room for the splits.
    pub scratch: &'a AttentionScratch<D>,
    /// The result, `[n_rows, n_heads * head_dim]`.
    pub out: Rows<'a, D>,
}

/// Queues attention: the splits of all contexts, then their sums in order. The bits of a row depend on its own
/// context alone. A context that is longer than `max_kv_len` or its part of the table, and a page that does not
/// exist, stop the device: the next call that waits reports it.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit, or the scratch is too small for the step.
pub fn attention<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    attention: &Attention<'_, D>,
) -> Result<(), Error> {
    let &Attention { q, pages, kv_lens, block_table, table_len, max_kv_len, n_heads, .. } =
        attention;
    let (scratch, out, spec) = (attention.scratch, attention.out, pages.spec());
    let n_rows = q.n_rows();
    assert!(n_heads > 0 && n_heads.is_multiple_of(spec.n_kv_heads), "{n_heads} query heads");
    assert!(n_rows <= 65535 && n_heads <= i32::MAX as usize, "{n_rows} rows, {n_heads} heads");
    q.check(kernels, "q", n_rows, n_heads * spec.head_dim);
    out.check(kernels, "out", n_rows, n_heads * spec.head_dim);
    kernels.check("kv_lens", kv_lens, n_rows);
    kernels.check("pages", pages.buffer(), 0);
    assert!(table_len <= i32::MAX as usize, "{table_len} pages in a row of the table");
    kernels.check("block_table", block_table, n_rows.saturating_mul(table_len));
    let n_splits = max_kv_len.div_ceil(SPLIT);
    assert!(n_splits > 0 && n_splits <= 65535, "contexts of {max_kv_len} positions");
    // Less than 2^63: the factors fit in 16, 31 and 16 bits.
    let n_parts = n_rows * n_heads * n_splits;
    kernels.check("the scratch", &scratch.sums, n_parts.saturating_mul(spec.head_dim));
    kernels.check("the scratch", &scratch.stats, n_parts.saturating_mul(2));
    if let Some(sinks) = attention.sinks {
        kernels.check("sinks", sinks, n_heads);
    }

    let [kv_lens, block_table, sums, stats] = [kv_lens, block_table, &scratch.sums, &scratch.stats]
        .map(|b| Argument::Address(b.address()));
    // No window, and one that is wider than any context, are the same.
    let window = attention.window.map_or(0, |n| n.min(i32::MAX as usize) as i32);
    assert!(attention.window != Some(0), "a window without positions");
    let window = Argument::I32(window);
    let [k_pages, v_pages, n_pages, n_kv_heads, page_len, head_dim] = pages.arguments();
    let arguments = [
        q.address(),
        q.stride(),
        k_pages,
        v_pages,
        n_pages,
        n_kv_heads,
        page_len,
        head_dim,
        kv_lens,
        block_table,
        Argument::I32(table_len as i32),
        window,
        Argument::I32(n_heads as i32),
        Argument::F32(attention.scale),
        Argument::F32(attention.softcap.unwrap_or(0.0)),
        sums,
        stats,
    ];
    let group = n_heads / spec.n_kv_heads;
    let which = ATTENTION_HEADS
        .iter()
        .position(|&heads| group <= heads)
        .unwrap_or(ATTENTION_HEADS.len() - 1);
    let function = &kernels.of_kv(spec.ty).attention[which];
    let n_blocks = spec.n_kv_heads * group.div_ceil(ATTENTION_HEADS[which]);
    let grid = [n_blocks as u32, n_rows as u32, n_splits as u32];
    // SAFETY: the arguments are those of `attention_*` in order; rows, tables and scratch were checked, and the
    // kernel checks lengths and pages. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }?;

    let sinks = attention.sinks.map_or(0, Buffer::address);
    let arguments = [
        sums,
        stats,
        kv_lens,
        window,
        Argument::Address(sinks),
        out.address(),
        out.stride(),
        Argument::I32(n_splits as i32),
        head_dim,
    ];
    let grid = [n_heads as u32, n_rows as u32, 1];
    // SAFETY: as above, for `attention_merge`; a length that is too large has stopped the device before.
    unsafe { kernels.launch(stream, &kernels.attention_merge, grid, [THREADS, 1], &arguments) }
}

#[cfg(test)]
mod tests {
    use realizar_quant::{BlockType, dequantize, quantize};

    use super::*;
    use crate::KvSpec;
    use crate::pages::KV_TYPES;
    use crate::testing::{Random, kernels, on_device, read};

    struct Case {
        ty: BlockType,
        n_heads: usize,
        n_kv_heads: usize,
        head_dim: usize,
        page_len: usize,
        kv_lens: &'static [u32],
        softcap: Option<f32>,
        window: Option<usize>,
        sinks: bool,
    }

    const PLAIN: Case = Case {
        ty: BlockType::F16,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        page_len: 16,
        kv_lens: &[1, 0, 257, 40],
        softcap: None,
        window: None,
        sinks: false,
    };

    /// What rounding to a type makes of values.
    fn rounded(ty: BlockType, values: &[f32]) -> Vec<f64> {
        let mut bytes = vec![0; values.len() * ty.block_bytes()];
        quantize(ty, values, &mut bytes).unwrap();
        let mut back = vec![0.0; values.len()];
        dequantize(ty, &bytes, &mut back).unwrap();
        back.into_iter().map(f64::from).collect()
    }

    /// One head of a row in F64. `k` and `v` are rows of the head, one for each position that is seen.
    fn expected(case: &Case, q: &[f32], k: &[&[f64]], v: &[&[f64]], sink: Option<f32>) -> Vec<f64> {
        let scale = 1.0 / (case.head_dim as f64).sqrt();
        let scores: Vec<f64> = k
            .iter()
            .map(|k| q.iter().zip(*k).map(|(&q, k)| f64::from(q) * k).sum::<f64>() * scale)
            .map(|s| case.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh()))
            .collect();
        let total: f64 = scores.iter().map(|s| s.exp()).sum::<f64>()
            + sink.map_or(0.0, |sink| f64::from(sink).exp());
        let mut out = vec![0.0; case.head_dim];
        for (score, v) in scores.iter().zip(v) {
            for (out, v) in out.iter_mut().zip(*v) {
                *out += score.exp() / total * v;
            }
        }
        out
    }

    fn check(case: &Case) {
        let Case { ty, n_heads, n_kv_heads, head_dim, page_len, kv_lens, .. } = *case;
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let mut random = Random(11);
        let n_rows = kv_lens.len();
        let max_kv_len = kv_lens.iter().copied().max().unwrap() as usize;
        let table_len = max_kv_len.div_ceil(page_len);

        // Each row has pages of its own, from the last one down.
        let n_pages = n_rows * table_len;
        let table: Vec<u32> = (0..n_pages as u32).rev().collect();
        let spec = KvSpec { ty, n_kv_heads, head_dim, page_len, n_pages };
        let pages = KvPages::new(device, "kv", spec).unwrap();

        // Keys and values of all positions, and one more row that is not stored.
        let mut slots: Vec<u32> = Vec::new();
        for (row, &len) in kv_lens.iter().enumerate() {
            slots.extend((0..len as usize).map(|p| {
                table[row * table_len + p / page_len] * page_len as u32 + (p % page_len) as u32
            }));
        }
        slots.push(u32::MAX);
        let kv_cols = n_kv_heads * head_dim;
        let [k, v] = [(); 2].map(|()| random.floats(slots.len() * kv_cols));
        let [k_at, v_at] = [&k, &v].map(|values| on_device(device, &stream, values));
        let slots_at = on_device(device, &stream, &slots);
        let of = |buffer| Rows::new(buffer, 0, slots.len(), kv_cols, kv_cols);
        kv_store(&kernels, &stream, of(&k_at), of(&v_at), &slots_at, &pages).unwrap();

        let n_cols = n_heads * head_dim;
        let stride = n_cols + 4;
        let q: Vec<f32> = random.floats(n_rows * stride).iter().map(|x| 3.0 * x).collect();
        let q_at = on_device(device, &stream, &q);
        let sinks = random.floats(n_heads);
        let sinks_at = on_device(device, &stream, &sinks);
        let out_at = on_device(device, &stream, &q);
        let room = max_kv_len + 2 * SPLIT;
        let scratch = AttentionScratch::new(device, n_rows, n_heads, head_dim, room).unwrap();
        let run = |from: usize, n: usize, max_kv_len| {
            let launch = Attention {
                q: Rows::new(&q_at, from * stride, n, n_cols, stride),
                pages: &pages,
                kv_lens: &on_device(device, &stream, &kv_lens[from..from + n]),
                block_table: &on_device(device, &stream, &table[from * table_len..]),
                table_len,
                max_kv_len,
                n_heads,
                scale: 1.0 / (head_dim as f32).sqrt(),
                softcap: case.softcap,
                window: case.window,
                sinks: case.sinks.then_some(&sinks_at),
                scratch: &scratch,
                out: Rows::new(&out_at, from * stride, n, n_cols, stride),
            };
            attention(&kernels, &stream, &launch).unwrap();
        };
        run(0, n_rows, max_kv_len);
        let found = read(&stream, &out_at, q.len());
        // Each row alone has the same bits, in a step that has room for longer contexts.
        out_at.write(&stream, 0, &q).unwrap();
        for row in 0..n_rows {
            run(row, 1, room);
        }
        let alone = read(&stream, &out_at, q.len());
        assert!(alone.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits()), "alone");

        let (k, v) = (rounded(ty, &k), rounded(ty, &v));
        let mut start = 0;
        for (row, &len) in kv_lens.iter().enumerate() {
            let end = start + len as usize;
            let first = case.window.map_or(start, |n| start.max(end.saturating_sub(n)));
            for (head, &sink) in sinks.iter().enumerate() {
                let column = head / (n_heads / n_kv_heads) * head_dim;
                let of = |values: &'_ [f64], p: usize| {
                    values[p * kv_cols + column..][..head_dim].to_vec()
                };
                let keys: Vec<Vec<f64>> = (first..end).map(|p| of(&k, p)).collect();
                let values: Vec<Vec<f64>> = (first..end).map(|p| of(&v, p)).collect();
                let keys: Vec<&[f64]> = keys.iter().map(Vec::as_slice).collect();
                let values: Vec<&[f64]> = values.iter().map(Vec::as_slice).collect();
                let at = row * stride + head * head_dim;
                let sink = case.sinks.then_some(sink);
                let wanted = expected(case, &q[at..][..head_dim], &keys, &values, sink);
                for (found, wanted) in found[at..].iter().zip(&wanted) {
                    let away = (f64::from(*found) - wanted).abs();
                    assert!(away < 3e-6, "row {row}, head {head}: {found} is not {wanted}");
                }
            }
            assert_eq!(found[row * stride + n_cols..][..4], q[row * stride + n_cols..][..4]);
            start = end;
        }
    }

    #[test]
    fn types_of_keys_and_values() {
        for ty in KV_TYPES {
            check(&Case { ty, ..PLAIN });
        }
    }

    #[test]
    fn heads_and_pages_of_odd_shapes() {
        for (n_heads, n_kv_heads, head_dim, page_len) in [
            (1, 1, 8, 1),
            (3, 3, 80, 5),
            (6, 2, 40, 32),
            (7, 1, 128, 16),
            (20, 2, 16, 64),
            (2, 1, 256, 7),
        ] {
            check(&Case { n_heads, n_kv_heads, head_dim, page_len, kv_lens: &[19, 270], ..PLAIN });
        }
    }

    #[test]
    fn long_contexts_are_merged() {
        check(&Case { kv_lens: &[1025, 256, 512, 3], head_dim: 32, ..PLAIN });
    }

    #[test]
    fn windows_soft_caps_and_sinks() {
        for window in [1, 20, 256, 300, 4000] {
            let kv_lens = &[600, 19, 513, 1];
            check(&Case { window: Some(window), head_dim: 16, kv_lens, ..PLAIN });
        }
        check(&Case { softcap: Some(0.7), ..PLAIN });
        check(&Case { sinks: true, ..PLAIN });
        check(&Case { sinks: true, softcap: Some(2.0), window: Some(33), ..PLAIN });
    }

    #[test]
    fn contexts_and_slots_that_do_not_exist_are_reported() {
        let spec =
            KvSpec { ty: BlockType::F16, n_kv_heads: 1, head_dim: 8, page_len: 4, n_pages: 2 };
        // A context longer than the table, one longer than the step, and a page behind the last one.
        for (kv_len, page, max_kv_len) in [(5, 0, 300), (257, 0, 256), (1, 2, 300)] {
            let (kernels, stream) = kernels();
            let device = kernels.device();
            let pages = KvPages::new(device, "kv", spec).unwrap();
            let x = on_device(device, &stream, &[0.0f32; 8]);
            let table_len = if kv_len == 257 { 65 } else { 1 };
            let launch = Attention {
                q: Rows::vector(&x, 8),
                pages: &pages,
                kv_lens: &on_device(device, &stream, &[kv_len]),
                block_table: &on_device(device, &stream, &[page; 65]),
                table_len,
                max_kv_len,
                n_heads: 1,
                scale: 1.0,
                softcap: None,
                window: None,
                sinks: None,
                scratch: &AttentionScratch::new(device, 1, 1, 8, max_kv_len).unwrap(),
                out: Rows::vector(&x, 8),
            };
            attention(&kernels, &stream, &launch).unwrap();
            let message = device.synchronize(&stream).unwrap_err().to_string();
            assert!(message.contains("trap") && message.contains("attention_f16_1"), "{message}");
        }
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let pages = KvPages::new(device, "kv", spec).unwrap();
        let x = on_device(device, &stream, &[0.0f32; 8]);
        let slots = on_device(device, &stream, &[8u32]);
        let rows = Rows::vector(&x, 8);
        kv_store(&kernels, &stream, rows, rows, &slots, &pages).unwrap();
        let message = device.synchronize(&stream).unwrap_err().to_string();
        assert!(message.contains("trap") && message.contains("kv_store_f16"), "{message}");
    }
}
