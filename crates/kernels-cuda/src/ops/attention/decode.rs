//! Attention of decode rows: a context is cut into splits, which are added in order.

use std::sync::Arc;

use super::Attention;
use crate::device::{Argument, Device};
use crate::image::Image;
use crate::ops::Kernels;
use crate::pages::KV_TYPES;
use crate::{Buffer, Error};

const IMAGE: &[u8] = include_bytes!("../../../image/attention_decode.ptx.gz");
/// Positions of a split, as `cuda/attention_decode.cu` has them.
pub(super) const SPLIT: usize = 256;
/// Threads of a block.
const THREADS: u32 = 128;
/// Query heads of a block: a kernel for each.
const HEADS: [usize; 3] = [1, 4, 8];

/// The kernels of decode rows.
#[derive(Debug)]
pub(crate) struct DecodeKernels<D: Device> {
    /// By type of keys and values, and by [`HEADS`].
    splits: [[D::Function; HEADS.len()]; KV_TYPES.len()],
    merge: D::Function,
}

impl<D: Device> DecodeKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "attention_decode", IMAGE)?;
        let of_type = |ty: realizar_quant::BlockType| {
            let ty = ty.name().to_lowercase();
            image.functions(HEADS, |heads| format!("attention_{ty}_{heads}"))
        };
        let [f32, f16, bf16] = KV_TYPES.map(of_type);
        Ok(Self { splits: [f32?, f16?, bf16?], merge: image.function("attention_merge")? })
    }
}

/// Room for what the splits of a step hand to the kernel that adds them. The layers of a model share it.
#[derive(Debug)]
pub struct AttentionScratch<D: Device> {
    sums: Buffer<D>,
    stats: Buffer<D>,
}

impl<D: Device> AttentionScratch<D> {
    /// Bytes of [`Self::new`] with the same maxima; `usize::MAX` if that is not a number of bytes.
    pub fn bytes(max_rows: usize, n_heads: usize, head_dim: usize, max_kv_len: usize) -> usize {
        let n = [n_heads, max_kv_len.div_ceil(SPLIT), head_dim + 2, 4];
        n.into_iter().fold(max_rows, usize::saturating_mul)
    }

    /// Room for steps of at most `max_rows` decode rows that see at most `max_kv_len` positions, each the maximum of
    /// all layers.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or what the driver reports.
    pub fn new(
        device: &Arc<D>,
        _stream: &D::Stream,
        max_rows: usize,
        n_heads: usize,
        head_dim: usize,
        max_kv_len: usize,
    ) -> Result<Self, Error> {
        let what = "sums of attention";
        let n_bytes = Self::bytes(max_rows, n_heads, head_dim, max_kv_len);
        if n_bytes == usize::MAX {
            return Err(Error::OutOfMemory { what: what.to_owned(), n_bytes });
        }
        let stats = n_bytes / (head_dim + 2) * 2;
        Ok(Self {
            sums: Buffer::new(device, what, n_bytes - stats)?,
            stats: Buffer::new(device, what, stats)?,
        })
    }
}

/// Queues attention of decode rows. `max_kv_len` is at least the number of positions that any row of the step, or of
/// a replay of its graph, sees; with a window, what is more than the window takes does not count. The bits of a row
/// depend on its own query and context alone, not on `max_kv_len`. A row that sees more, and a page that does not
/// exist, stop the device: the next call that waits reports it.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit, or the scratch is too small for the step.
pub fn attention_decode<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    attention: &Attention<'_, D>,
    max_kv_len: usize,
    scratch: &AttentionScratch<D>,
) -> Result<(), Error> {
    attention.check(kernels);
    let &Attention { q, pages, n_heads, window, out, .. } = attention;
    let (n_rows, spec) = (q.n_rows(), pages.spec());
    // A window need not begin with a split.
    let of_window = window.map_or(usize::MAX, |window| window.div_ceil(SPLIT) + 1);
    let n_splits = max_kv_len.div_ceil(SPLIT).min(of_window);
    assert!(n_rows <= 65535 && n_heads <= i32::MAX as usize, "{n_rows} rows, {n_heads} heads");
    assert!(n_splits > 0 && n_splits <= 65535, "contexts of {max_kv_len} positions");
    // Less than 2^63: the factors fit in 16, 31 and 16 bits.
    let n_parts = n_rows * n_heads * n_splits;
    kernels.check("the scratch", &scratch.sums, n_parts.saturating_mul(spec.head_dim));
    kernels.check("the scratch", &scratch.stats, n_parts.saturating_mul(2));

    let [sums, stats] =
        [&scratch.sums, &scratch.stats].map(|buffer| Argument::Address(buffer.address()));
    let arguments = attention.arguments(&[sums, stats]);
    let group = attention.group();
    let which = HEADS.iter().position(|&heads| group <= heads).unwrap_or(HEADS.len() - 1);
    let function = &kernels.attention_decode.splits[spec.type_index()][which];
    let n_blocks = spec.n_kv_heads * group.div_ceil(HEADS[which]);
    let grid = [n_blocks as u32, n_rows as u32, n_splits as u32];
    // SAFETY: the arguments are those of `attention_*` in order; rows, lists and scratch were checked, and the
    // kernel checks what it reads by numbers of the lists. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }?;

    let [positions, seq_of_row, reaches, window] = [9, 10, 12, 15].map(|i| arguments[i]);
    let arguments = [
        sums,
        stats,
        positions,
        seq_of_row,
        reaches,
        window,
        attention.sinks(),
        out.address(),
        out.stride(),
        Argument::I32(n_splits as i32),
        Argument::I32(spec.head_dim as i32),
    ];
    let grid = [n_heads as u32, n_rows as u32, 1];
    let merge = &kernels.attention_decode.merge;
    // SAFETY: as above, for `attention_merge`; a context that is too long has stopped the device before.
    unsafe { kernels.launch(stream, merge, grid, [THREADS, 1], &arguments) }
}
