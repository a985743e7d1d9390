//! Quantized weight matrices in the order in which the kernels read them.
//!
//! Sixteen rows lie interleaved: of every 32 columns, the values of all sixteen rows
//! are neighbours, four columns of a row to a 32-bit word. One word of activations
//! then meets sixteen rows in a register or two, sums need no shuffles, and every
//! lane is a row. A packed matrix has exactly the bytes of the file's blocks.
//!
//! The bits of a product are the same on every tier and for any number of rows:
//! within 32 columns (16 where a type has scales for 16) sums are exact integers, and
//! the blocks are added in order with fused multiply-adds, one accumulator an element.

mod format;
mod pack;
mod panel;
mod scalar;
mod types;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_scales;
#[cfg(target_arch = "x86_64")]
mod pack_avx2;

use realizar_quant::BlockType;

pub(crate) use panel::PanelGroup;

use crate::quantize::QuantizedRow;
use crate::{MatrixRef, Tier};
use format::Format;
use types::with_format;

/// Rows that lie interleaved.
pub const PACKED_ROWS: usize = 16;

/// The name of the packed layout. It changes with any byte of what [`pack_group`] makes,
/// so that packed matrices that were stored are not mistaken for those of today.
pub const PACKED_LAYOUT: &str = "x16 1";

/// Columns that share a scale of the activations.
pub(crate) const GROUP_LEN: usize = 32;

/// The sums of one activation row with the rows of a group.
pub(crate) type GroupSums = [f32; PACKED_ROWS];

/// Whether matrices of this type can be packed: the quantized types of weights.
pub const fn packs(ty: BlockType) -> bool {
    types::is_packed(ty)
}

/// Bytes of a packed matrix: those of its blocks, with the rows rounded up to whole
/// groups of [`PACKED_ROWS`]. `None` if the type cannot be packed, the columns are not
/// whole blocks, or the size overflows.
pub fn packed_bytes(ty: BlockType, n_rows: usize, n_cols: usize) -> Option<usize> {
    let row_bytes = packs(ty).then(|| ty.row_bytes(n_cols).ok())??;
    n_rows.div_ceil(PACKED_ROWS).checked_mul(PACKED_ROWS)?.checked_mul(row_bytes)
}

/// Packs group `group` of a matrix: its rows from `16 * group` on. Rows past the last
/// one become zeros. The bytes are the same on every tier.
///
/// # Panics
/// If the type cannot be packed, there is no such group, or `out` is not the bytes of
/// sixteen rows.
pub fn pack_group(tier: Tier, matrix: &MatrixRef<'_>, group: usize, out: &mut [u8]) {
    with_format!(matrix.ty(), F => pack::pack_group::<F>(tier, matrix, group, out));
}

/// A packed matrix in memory.
///
/// ```
/// use realizar_kernels_cpu::{MatrixRef, PackedRef, Tier, pack_group, packed_bytes};
/// use realizar_quant::BlockType;
///
/// let (ty, n_rows, n_cols) = (BlockType::Q8_0, 20, 64);
/// let blocks = vec![0; n_rows * ty.row_bytes(n_cols)?];
/// let matrix = MatrixRef::new(ty, n_rows, n_cols, &blocks);
///
/// let mut packed = vec![0; packed_bytes(ty, n_rows, n_cols).unwrap()];
/// let group_bytes = packed.len() / 2;
/// for (i, group) in packed.chunks_mut(group_bytes).enumerate() {
///     pack_group(Tier::detect(), &matrix, i, group);
/// }
/// assert_eq!(PackedRef::new(ty, n_rows, n_cols, &packed).n_groups(), 2);
/// # Ok::<(), realizar_quant::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PackedRef<'a> {
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    group_bytes: usize,
    data: &'a [u8], // [n_groups * group_bytes]
}

impl<'a> PackedRef<'a> {
    /// A packed matrix of `n_rows` outputs and `n_cols` inputs.
    ///
    /// # Panics
    /// If `data` is not [`packed_bytes`] long.
    pub fn new(ty: BlockType, n_rows: usize, n_cols: usize, data: &'a [u8]) -> Self {
        let n_bytes = packed_bytes(ty, n_rows, n_cols);
        assert_eq!(n_bytes, Some(data.len()), "bytes of {n_rows} x {n_cols} packed {ty} weights");
        let group_bytes = data.len().checked_div(n_rows.div_ceil(PACKED_ROWS)).unwrap_or(0);
        Self { ty, n_rows, n_cols, group_bytes, data }
    }

    /// The type of the blocks.
    pub const fn ty(&self) -> BlockType {
        self.ty
    }

    /// Number of rows: outputs.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of columns: inputs.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Number of groups of [`PACKED_ROWS`] rows, the last one padded.
    pub const fn n_groups(&self) -> usize {
        self.n_rows.div_ceil(PACKED_ROWS)
    }

    /// The bytes of a group.
    ///
    /// # Panics
    /// If there is no such group.
    pub(crate) fn group(&self, i: usize) -> &'a [u8] {
        &self.data[i * self.group_bytes..][..self.group_bytes]
    }
}

/// Groups that [`dot_groups`] reads side by side.
pub(crate) const STREAMS: usize = 4;

/// The products of one activation row with the rows of 1 or [`STREAMS`] groups of a
/// matrix. Memory serves several streams faster than one.
pub(crate) fn dot_groups(
    tier: Tier,
    ty: BlockType,
    groups: &[&[u8]],
    x: QuantizedRow<'_>,
    out: &mut [GroupSums], // [groups.len()]
) {
    assert_eq!(groups.len(), out.len(), "sums of every group");
    with_format!(ty, F => {
        for group in groups {
            let n_blocks = x.quants.len() / F::LEN;
            assert_eq!(group.len(), n_blocks * PACKED_ROWS * F::BYTES, "bytes of a group");
        }
        assert!(x.is_whole(), "the parts of a quantized row");
        match tier.avx2() {
            None => scalar::dot_groups::<F>(groups, x, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token of this tier exists only if its instructions were
            // detected; the lengths were checked above.
            Some(_) => unsafe { avx2::dot_groups::<F>(groups, x, out) },
        }
    });
}

/// Expands columns of a group, from block `block` on, into a panel that
/// [`multiply_panel`] takes.
pub(crate) fn expand(
    tier: Tier,
    ty: BlockType,
    group: &[u8],
    col: usize, // a multiple of 256, or of 32 for types with blocks of 32
    panel: &mut [PanelGroup],
) {
    with_format!(ty, F => {
        let n_cols = panel.len() * GROUP_LEN;
        assert!(col.is_multiple_of(F::LEN) && n_cols.is_multiple_of(F::LEN), "whole blocks");
        let block_bytes = PACKED_ROWS * F::BYTES;
        let bytes = &group[col / F::LEN * block_bytes..][..n_cols / F::LEN * block_bytes];
        match tier.avx2() {
            None => scalar::expand::<F>(bytes, panel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token of this tier exists only if its instructions were
            // detected; the lengths were checked above.
            Some(_) => unsafe { avx2::expand::<F>(bytes, panel) },
        }
    });
}

/// Adds the products of activation rows with a panel to `sums`. The rows are given in
/// the columns of the panel.
pub(crate) fn multiply_panel(
    tier: Tier,
    ty: BlockType,
    panel: &[PanelGroup],
    x: &[QuantizedRow<'_>], // 1, 2 or 4 rows
    sums: &mut [GroupSums], // [x.len()]
) {
    assert_eq!(x.len(), sums.len(), "sums of every row");
    for x in x {
        assert_eq!(x.quants.len(), panel.len() * GROUP_LEN, "columns of the panel");
        assert!(x.is_whole(), "the parts of a quantized row");
    }
    with_format!(ty, F => match tier.avx2() {
        None => scalar::multiply_panel::<F>(panel, x, sums),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token of this tier exists only if its instructions were
        // detected; the lengths were checked above.
        Some(_) => unsafe { avx2::multiply_panel::<F>(panel, x, sums) },
    });
}

#[cfg(test)]
mod tests;
