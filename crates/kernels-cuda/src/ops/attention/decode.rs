//! Decode attention. A context is cut into splits; the partial results of eight splits form a span, and are added in
//! order.

use std::sync::Arc;

use super::Attention;
use crate::device::{Argument, Arguments, Device};
use crate::kernels::{AttentionArithmetic, DecodeKernel, Kernels};
use crate::ops::kv_store::NewHeads;
use crate::ops::quantize::BLOCK_LEN;
use crate::{Buffer, Error, Quantized};

/// Positions of a split, splits of a span, and query heads of a block, as in `cuda/attention_decode.cuh`.
const SPLIT: usize = 256;
const SPAN: usize = 8;
const MAX_HEADS: usize = 8;
/// Threads of a block.
const THREADS: u32 = 128;
/// Capacity for partial results of splits, in heads: enough blocks for any GPU. Larger launches have one block per
/// span.
pub(super) const SPLIT_HEADS: usize = 1 << 14;
/// Capacity for partial results of spans, in heads, or those of one row if it has more. Larger steps take several
/// launches.
const SPAN_HEADS: usize = 1 << 16;

/// Capacity of a scratch buffer.
struct Capacity {
    splits: usize,
    spans: usize,
    counters: usize,
}

impl Capacity {
    fn new(max_rows: usize, n_heads: usize, max_kv_len: usize) -> Self {
        let n_splits = max_kv_len.div_ceil(SPLIT).max(1);
        // A window may begin in the middle of a span.
        let n_spans = n_splits.div_ceil(SPAN) + 1;
        // The heads of a group may be divided into unequal parts.
        let heads = n_heads.saturating_mul(2);
        let of_row = heads.saturating_mul(n_spans);
        Self {
            splits: heads.saturating_mul(n_splits).saturating_mul(max_rows).min(SPLIT_HEADS),
            spans: of_row.saturating_mul(max_rows).min(SPAN_HEADS.max(of_row)),
            counters: n_heads.saturating_mul(n_spans + 1).saturating_mul(max_rows),
        }
    }

    /// Bytes of the splits and spans for heads of `head_dim`, and of the counters.
    fn bytes(&self, head_dim: usize) -> [usize; 3] {
        // Kernels are compiled for head dimensions of up to twice the size, and at least 64.
        let head = (head_dim.next_power_of_two().max(64) + 2).saturating_mul(4);
        [
            self.splits.saturating_mul(head),
            self.spans.saturating_mul(head),
            self.counters.saturating_mul(4),
        ]
    }
}

/// Partial results of blocks, which the last block of a row combines. The layers of a model share it; concurrent steps
/// must not.
#[derive(Debug)]
pub struct AttentionScratch<D: Device> {
    splits: Buffer<D>,
    spans: Buffer<D>,
    counters: Buffer<D>,
}

impl<D: Device> AttentionScratch<D> {
    /// Bytes that [`Self::new`] allocates for the same limits; `usize::MAX` on overflow.
    pub fn bytes(max_rows: usize, n_heads: usize, head_dim: usize, max_kv_len: usize) -> usize {
        let bytes = Capacity::new(max_rows, n_heads, max_kv_len).bytes(head_dim);
        bytes.into_iter().fold(0, usize::saturating_add)
    }

    /// Allocates scratch for steps of at most `max_rows` decode rows that attend to at most `max_kv_len` positions,
    /// each the maximum over all layers. The size is bounded: larger steps run in larger pieces, and then in several
    /// launches, with the same bits.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or any error of the driver.
    pub fn new(
        device: &Arc<D>,
        stream: &D::Stream,
        max_rows: usize,
        n_heads: usize,
        head_dim: usize,
        max_kv_len: usize,
    ) -> Result<Self, Error> {
        let what = "sums of attention";
        let bytes = Capacity::new(max_rows, n_heads, max_kv_len).bytes(head_dim);
        if bytes.contains(&usize::MAX) {
            return Err(Error::OutOfMemory { what: what.to_owned(), n_bytes: usize::MAX });
        }
        let [splits, spans, counters] = bytes;
        Ok(Self {
            splits: Buffer::new(device, what, splits)?,
            spans: Buffer::new(device, what, spans)?,
            counters: Buffer::with(device, stream, what, &vec![0u8; counters])?,
        })
    }
}

/// Whether decode attention can store new keys and values itself. Each of their heads must then belong to one block.
pub fn takes_new_heads(n_heads: usize, n_kv_heads: usize) -> bool {
    n_heads / n_kv_heads <= MAX_HEADS
}

/// Operands of decode attention.
#[derive(Debug)]
pub struct DecodeAttention<'a, D: Device> {
    /// The attention of these rows.
    pub attention: Attention<'a, D>,
    /// Arithmetic of the products.
    pub arithmetic: AttentionArithmetic,
    /// Upper bound on the positions that any row of the step, or of a replay of its graph, attends to. With a window,
    /// positions outside it do not count.
    pub max_kv_len: usize,
    /// Memory for partial results.
    pub scratch: &'a AttentionScratch<D>,
    /// Keys and values of the rows that are not stored yet. The launch first stores them, and applies norms and rotary
    /// embeddings to them and to the queries. Each row must be the only one of its sequence and attend up to itself.
    /// Results may overlap only the same rows' queries. [`takes_new_heads`] says which shapes allow it.
    pub new_heads: Option<NewHeads<'a, D>>,
    /// Where the results are quantized to, in addition to `out`.
    pub to: Option<Quantized<'a, D>>,
}

/// Queues decode attention. The bits of a row depend on its own query and context alone, not on `max_kv_len` or on
/// whether its key and value were stored before. A row that exceeds `max_kv_len`, or a page that does not exist, stops
/// the device, which the next call that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, the scratch is too small for the step, or heads to be quantized are not whole
/// blocks of 32.
pub fn attention_decode<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    decode: &DecodeAttention<'_, D>,
) -> Result<(), Error> {
    let DecodeAttention { attention, arithmetic, max_kv_len, scratch, new_heads, to } = decode;
    attention.check(kernels);
    if let Some(to) = to {
        let head_dim = attention.pages.spec().head_dim;
        assert!(head_dim.is_multiple_of(BLOCK_LEN), "heads of {head_dim} are not blocks of 32");
        to.check(kernels, "the quantized results", attention.q.n_rows(), attention.out.n_cols());
    }
    if let Some(heads) = new_heads {
        assert_eq!(heads.k.n_rows(), attention.q.n_rows(), "rows of keys");
        assert!(attention.tables.reaches.is_none(), "rows with new heads see up to themselves");
        assert!(attention.group() <= MAX_HEADS, "several blocks for a new head");
        heads.check(kernels, attention.pages.spec());
    }
    let of_heads = new_heads.as_ref().map_or(NewHeads::<D>::NONE, NewHeads::arguments);
    let [quants, blocks, quants_stride, in_bf16] =
        to.as_ref().map_or(Quantized::<D>::NULL, Quantized::target);
    let &Attention { q, pages, sliding_window, .. } = attention;
    let (n_rows, spec, group) = (q.n_rows(), pages.spec(), attention.group());
    for buffer in [&scratch.splits, &scratch.spans, &scratch.counters] {
        kernels.check("the scratch", buffer, 0);
    }
    let DecodeKernel { function, dim, is_tensor } =
        kernels.attention_decode.get(&**kernels.device(), spec, *arithmetic)?;

    // A window may begin in the middle of a split, and its splits in the middle of a span.
    let n_splits = max_kv_len.div_ceil(SPLIT);
    let of_window = sliding_window.map_or(usize::MAX, |window| window.div_ceil(SPLIT) + 1);
    let (n_splits, n_spans) = if of_window < n_splits {
        (of_window, of_window.div_ceil(SPAN) + 1)
    } else {
        (n_splits, n_splits.div_ceil(SPAN))
    };
    assert!(n_splits > 0 && n_splits <= 65535, "contexts of {max_kv_len} positions");
    let n_parts = group.div_ceil(MAX_HEADS);
    let n_blocks = spec.n_kv_heads * n_parts;
    let heads_of_row = n_blocks * group.div_ceil(n_parts);
    let room = |buffer: &Buffer<D>| buffer.n_bytes() / 4 / (dim + 2) / heads_of_row;

    // One block per split if all of them fit, otherwise one per span.
    let by_span = n_rows * n_splits > room(&scratch.splits).min(SPLIT_HEADS / heads_of_row);
    let of_counters = scratch.counters.n_bytes() / 4 / n_blocks / (n_spans + 1);
    let rows_at_once = (room(&scratch.spans) / n_spans).min(of_counters).min(65535);
    assert!(rows_at_once > 0, "the scratch is too small for contexts of {max_kv_len} positions");
    for first_row in (0..n_rows).step_by(rows_at_once) {
        let n_rows = rows_at_once.min(n_rows - first_row);
        let own = [
            Argument::Address(scratch.splits.address()),
            Argument::Address(scratch.spans.address()),
            Argument::Address(scratch.counters.address()),
            Argument::I32(first_row as i32),
            Argument::I32(n_parts as i32),
            Argument::I32(n_splits as i32),
            Argument::I32(n_spans as i32),
            Argument::I32(i32::from(by_span)),
            quants,
            blocks,
            quants_stride,
            in_bf16,
        ];
        let ty = attention.type_argument(is_tensor);
        let parts = [&attention.arguments(Some(attention.out))[..], &own, &of_heads, ty.as_slice()];
        let arguments = Arguments::of(&parts);
        let z = if by_span { n_spans } else { n_splits };
        let grid = [n_blocks as u32, n_rows as u32, z as u32];
        // SAFETY: the arguments are those of `attention_*` in order; rows and lists were checked, and the kernel checks
        // the indices in the lists. The scratch has room for the splits or spans of these rows, and a counter for each.
        // As `matvec` says, buffers outlive queued work.
        unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }?;
    }
    Ok(())
}
