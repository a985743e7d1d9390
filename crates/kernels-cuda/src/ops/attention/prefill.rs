//! Attention of prompts: tiles of rows go over tiles of positions, on tensor cores or in F32.

use super::Attention;
use crate::device::{Argument, Arguments, Device};
use crate::kernels::{AttentionArithmetic, HEAD_DIMS, Kernels};
use crate::ops::quantize::ProductRows;
use crate::{Error, KvSpec, List};

/// The maximum number of rows of a prompt's tile.
pub const TILE_ROWS: usize = 128;
/// Threads of a block on tensor cores, and its queries, as `cuda/attention_prefill.cuh` has them.
const THREADS: u32 = 256;
const QUERIES: usize = 128;
/// The same in F32, as `cuda/attention_prefill_f32.cu` has them.
const F32_THREADS: u32 = 128;
const F32_QUERIES: usize = 32;
/// Whether results can go to the product behind in the launch that makes them: rows are whole spans of 128 columns, and
/// computed on tensor cores.
pub fn rounds_results(spec: &KvSpec, n_heads: usize, arithmetic: AttentionArithmetic) -> bool {
    let n_cols = n_heads * spec.head_dim;
    arithmetic.tensor(spec, &HEAD_DIMS).is_some() && n_cols.is_multiple_of(128)
}

/// Where the results of prefill rows go for the product behind.
#[derive(Debug)]
pub struct PrefillResults<'a, D: Device> {
    /// Its rows, in BF16.
    pub to: ProductRows<'a, D>,
    /// The row of the step that is the first of these.
    pub first: usize,
    /// Whether the results are wanted in F32, too.
    pub is_read: bool,
}

/// Attention of prefill rows.
#[derive(Debug)]
pub struct PrefillAttention<'a, D: Device> {
    /// Of all rows of the step.
    pub attention: Attention<'a, D>,
    /// What it is computed in.
    pub arithmetic: AttentionArithmetic,
    /// Two numbers for each tile: its first row, and the number of its rows, at most [`TILE_ROWS`], which are of one sequence at
    /// consecutive positions; what they see may only rise. A tile without rows is skipped.
    pub tiles: List<'a, D>, // [n_tiles, 2]
    /// Where the results go for the product behind, if [`rounds_results`] allows it.
    pub results: Option<PrefillResults<'a, D>>,
}

/// Queues attention of prefill rows. The bits of a row depend on its own query and context alone. A tile in front of the first row
/// whose results go to a product stops the device: the next call that waits reports it.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit.
pub fn attention_prefill<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    prefill: &PrefillAttention<'_, D>,
) -> Result<(), Error> {
    let &PrefillAttention { attention, arithmetic, tiles, ref results } = prefill;
    attention.check(kernels);
    let spec = attention.pages.spec();
    tiles.check(kernels, "tiles", 2);
    let n_tiles = tiles.len() / 2;
    assert!(n_tiles <= 65535, "{n_tiles} tiles");
    let device = &**kernels.device();
    let (function, is_tensor) = kernels.attention_prefill.get(device, spec, arithmetic)?;
    let (threads, queries) = match is_tensor {
        true => (THREADS, QUERIES),
        false => (F32_THREADS, F32_QUERIES),
    };
    let n_parts = (TILE_ROWS * attention.group()).div_ceil(queries);
    let of_tiles = [tiles.address(), Argument::I32(n_tiles as i32), Argument::I32(n_parts as i32)];
    // The kernels for any type take that, and others where results go.
    let mut last = [Argument::Address(0), Argument::I32(0), Argument::I32(0), Argument::I32(0)];
    let mut out = Some(attention.out);
    if let Some(PrefillResults { to, first, is_read }) = results {
        let n_heads = attention.n_heads;
        assert!(rounds_results(spec, n_heads, arithmetic), "results that no kernel rounds");
        let n_rows = attention.q.n_rows() - first;
        to.check(kernels);
        assert_eq!((to.n_rows(), to.n_cols()), (n_rows, attention.out.n_cols()), "the results");
        let [values, _, stride, _] = to.target();
        let in_groups = match to {
            ProductRows::Quantized(_) => panic!("results of prefill rows are not quantized"),
            ProductRows::Halves(_) => 0,
            ProductRows::Grouped(_) => 1,
        };
        last = [values, stride, Argument::I32(in_groups), Argument::I32(*first as i32)];
        out = out.filter(|_| *is_read);
    }
    let ty = attention.type_argument(is_tensor);
    let last = if is_tensor { &last[..] } else { ty.as_slice() };
    let arguments = Arguments::of(&[&attention.arguments(out)[..], &of_tiles, last]);
    let grid = [(spec.n_kv_heads * n_parts) as u32, n_tiles as u32, 1];
    // SAFETY: the arguments are those of `attention_prefill_*` in order; rows and lists were checked, and the kernel
    // checks what it reads by numbers of the lists. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [threads, 1], &arguments) }
}
