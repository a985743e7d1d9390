//! Attention of decode rows: a context is cut into splits, and eight splits are a span, which are added in order.

use std::sync::Arc;

use super::Attention;
use crate::device::{Argument, Arguments, Device};
use crate::kernels::{AttentionArithmetic, DecodeKernel, Kernels};
use crate::ops::kv_store::NewHeads;
use crate::ops::quantize::BLOCK_LEN;
use crate::{Buffer, Error, Quantized};

/// Positions of a split, splits of a span, and query heads of a block, as `cuda/attention_decode.cuh` has them.
const SPLIT: usize = 256;
const SPAN: usize = 8;
const MAX_HEADS: usize = 8;
/// Threads of a block.
const THREADS: u32 = 128;
/// Heads of splits of a launch that there is room for: enough blocks for any card. With more, blocks have a span each.
pub(super) const SPLIT_HEADS: usize = 1 << 14;
/// Heads of spans of a launch that there is room for, or those of one row, if they are more. Rows with more in all take
/// several launches.
const SPAN_HEADS: usize = 1 << 16;

/// Heads, splits and spans that a scratch has room for.
struct Room {
    splits: usize,
    spans: usize,
    counters: usize,
}

impl Room {
    fn new(max_rows: usize, n_heads: usize, max_kv_len: usize) -> Self {
        let n_splits = max_kv_len.div_ceil(SPLIT).max(1);
        // A window need not begin with a span.
        let n_spans = n_splits.div_ceil(SPAN) + 1;
        // The heads of a group may be cut into unequal parts.
        let heads = n_heads.saturating_mul(2);
        let of_row = heads.saturating_mul(n_spans);
        Self {
            splits: heads.saturating_mul(n_splits).saturating_mul(max_rows).min(SPLIT_HEADS),
            spans: of_row.saturating_mul(max_rows).min(SPAN_HEADS.max(of_row)),
            counters: n_heads.saturating_mul(n_spans + 1).saturating_mul(max_rows),
        }
    }

    /// Bytes of splits and spans with heads of `head_dim`, and of the counters.
    fn bytes(&self, head_dim: usize) -> [usize; 3] {
        // Kernels have heads of up to twice the size, and at least 64 columns.
        let head = (head_dim.next_power_of_two().max(64) + 2).saturating_mul(4);
        [
            self.splits.saturating_mul(head),
            self.spans.saturating_mul(head),
            self.counters.saturating_mul(4),
        ]
    }
}

/// Room for what the blocks of a row hand to the one that adds it up. The layers of a model share it; steps that run at
/// the same time do not.
#[derive(Debug)]
pub struct AttentionScratch<D: Device> {
    splits: Buffer<D>,
    spans: Buffer<D>,
    counters: Buffer<D>,
}

impl<D: Device> AttentionScratch<D> {
    /// Bytes of [`Self::new`] with the same maxima; `usize::MAX` if that is not a number of bytes.
    pub fn bytes(max_rows: usize, n_heads: usize, head_dim: usize, max_kv_len: usize) -> usize {
        let bytes = Room::new(max_rows, n_heads, max_kv_len).bytes(head_dim);
        bytes.into_iter().fold(0, usize::saturating_add)
    }

    /// Room for steps of at most `max_rows` decode rows that see at most `max_kv_len` positions, each the maximum of
    /// all layers. It does not grow with rows times positions: steps with more run in larger pieces, and then in several
    /// launches, with the same bits.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or what the driver reports.
    pub fn new(
        device: &Arc<D>,
        stream: &D::Stream,
        max_rows: usize,
        n_heads: usize,
        head_dim: usize,
        max_kv_len: usize,
    ) -> Result<Self, Error> {
        let what = "sums of attention";
        let bytes = Room::new(max_rows, n_heads, max_kv_len).bytes(head_dim);
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

/// Whether attention of decode rows can store their keys and values itself: a head of these belongs to one block then.
pub fn takes_new_heads(n_heads: usize, n_kv_heads: usize) -> bool {
    n_heads / n_kv_heads <= MAX_HEADS
}

/// Attention of decode rows.
#[derive(Debug)]
pub struct DecodeAttention<'a, D: Device> {
    /// Of these rows.
    pub attention: Attention<'a, D>,
    /// What it is computed in.
    pub arithmetic: AttentionArithmetic,
    /// At least the number of positions that any row of the step, or of a replay of its graph, sees; with a window, what is
    /// more than the window takes does not count.
    pub max_kv_len: usize,
    /// Room for what blocks hand over.
    pub scratch: &'a AttentionScratch<D>,
    /// Keys and values of the rows, where they are not stored yet: then they are first, and queries, which are as products made
    /// them, turn. Each row is the only one of its sequence, and the last position that it sees is its own. Results may lie
    /// where the same queries do, and where nothing else is that is read. [`takes_new_heads`] tells which shapes allow it.
    pub new_heads: Option<NewHeads<'a, D>>,
    /// Where the results are quantized to as well.
    pub to: Option<Quantized<'a, D>>,
}

/// Queues attention of decode rows. The bits of a row depend on its own query and context alone, not on `max_kv_len`, nor on
/// whether its key and value were stored before. A row that sees more, and a page that does not exist, stop the device:
/// the next call that waits reports it.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit, the scratch is too small for the step, or the elements of a head to be quantized are not
/// whole blocks of 32.
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
    let &Attention { q, pages, window, .. } = attention;
    let (n_rows, spec, group) = (q.n_rows(), pages.spec(), attention.group());
    for buffer in [&scratch.splits, &scratch.spans, &scratch.counters] {
        kernels.check("the scratch", buffer, 0);
    }
    let DecodeKernel { function, dim, is_tensor } =
        kernels.attention_decode.get(&**kernels.device(), spec, *arithmetic)?;

    // A window need not begin with a split, nor its splits with a span.
    let n_splits = max_kv_len.div_ceil(SPLIT);
    let of_window = window.map_or(usize::MAX, |window| window.div_ceil(SPLIT) + 1);
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

    // A block has a split where all of them fit, otherwise a span.
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
        // what it reads by numbers of the lists. The scratch has room for the splits or spans of these rows, and a
        // counter for each. As `matvec` says, buffers outlive queued work.
        unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }?;
    }
    Ok(())
}
