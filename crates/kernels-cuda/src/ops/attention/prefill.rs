//! Prefill attention: tiles of rows iterate over tiles of positions, on tensor cores or in F32.

use super::Attention;
use crate::device::{Argument, Arguments, Device};
use crate::kernels::{AttentionArithmetic, HEAD_DIMS, Kernels};
use crate::ops::quantize::ProductRows;
use crate::{Error, KvSpec, List};

/// The maximum number of rows of a tile.
pub const TILE_ROWS: usize = 128;
/// Threads and queries of a tensor-core block, as in `cuda/attention_prefill.cuh`.
const THREADS: u32 = 256;
const QUERIES: usize = 128;
/// Threads and queries of an F32 block, as in `cuda/attention_prefill_f32.cu`.
const F32_THREADS: u32 = 128;
const F32_QUERIES: usize = 32;
/// Whether the launch can also round its results for the next product. This requires tensor cores and rows of whole
/// spans of 128 columns.
pub fn rounds_results(spec: &KvSpec, n_heads: usize, arithmetic: AttentionArithmetic) -> bool {
    let n_cols = n_heads * spec.head_dim;
    arithmetic.tensor(spec, &HEAD_DIMS).is_some() && n_cols.is_multiple_of(128)
}

/// Where the results of prefill rows are rounded to for the next product.
#[derive(Debug)]
pub struct PrefillResults<'a, D: Device> {
    /// The rows in BF16.
    pub to: ProductRows<'a, D>,
    /// Index of the step's row that corresponds to the first row of `to`.
    pub first: usize,
    /// Whether the results are also stored in F32.
    pub is_read: bool,
}

/// Operands of prefill attention.
#[derive(Debug)]
pub struct PrefillAttention<'a, D: Device> {
    /// The attention of all rows of the step.
    pub attention: Attention<'a, D>,
    /// Arithmetic of the products.
    pub arithmetic: AttentionArithmetic,
    /// First row and number of rows of each tile. The at most [`TILE_ROWS`] rows of a tile are consecutive positions of
    /// one sequence, and their reaches must not decrease. Empty tiles are skipped.
    pub tiles: List<'a, D>, // [n_tiles, 2]
    /// Where the results are rounded to for the next product, if [`rounds_results`] allows it.
    pub results: Option<PrefillResults<'a, D>>,
}

/// Queues prefill attention. The bits of a row depend on its own query and context alone. A tile before the first row
/// of `results` stops the device, which the next call that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match.
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
    // The last arguments of tensor-core kernels say where results are rounded to; F32 kernels take the type instead.
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
    // checks the indices in the lists. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [threads, 1], &arguments) }
}
