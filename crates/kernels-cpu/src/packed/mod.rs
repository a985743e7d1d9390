//! Quantized weight matrices, packed in the order in which the kernels read them.
//!
//! Groups of sixteen rows are interleaved: for every 32 columns, the values of the sixteen rows are
//! adjacent, with four columns of a row in each 32-bit word. One word of activations is then multiplied
//! with sixteen rows in one or two registers, each lane is a row, and sums need no shuffles.
//!
//! A packed matrix has as many bytes as the file's blocks, except for IQ1, IQ2, IQ3 and TQ1_0. Files of
//! these types have indices of points of 4 or 8 elements, or five elements per byte; packed, each
//! element has two, three or four bits of its own, so that kernels need no tables larger than a
//! register.
//!
//! The bits of a product are the same on every tier and for any number of rows: sums over 16 columns are
//! exact integers, and fused multiply-adds accumulate them in order, with one accumulator per element.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod dot;
mod few_bits;
mod format;
mod pack;
mod panel;
mod points;
mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod scales;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod streams;
mod tiles;
mod types;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_scales;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_scales;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_scales;
#[cfg(target_arch = "x86_64")]
mod pack_avx2;

use std::ops::Range;

use realizar_quant::BlockType;

pub(crate) use panel::PanelGroup;

use crate::quantize::QuantizedRow;
use crate::tiles::Tile;
use crate::{MatrixRef, Pages, QuantizedRows, Team, Tier};
use format::Format;
use types::with_format;

/// Number of rows that are interleaved.
pub const PACKED_ROWS: usize = 16;

/// The name of the packed layout. It must change whenever a byte that [`pack_group`] writes changes, so
/// that stored packed matrices of an older layout are detected.
pub const PACKED_LAYOUT: &str = "x16 1";

/// Columns per step of the kernels; the activations have two scales for them.
pub(crate) const GROUP_LEN: usize = 32;

/// The sums of one activation row with the rows of a group.
pub(crate) type GroupSums = [f32; PACKED_ROWS];

/// Whether matrices of this type can be packed: all quantized types except FP8 (F8_0) and those for
/// activations.
pub const fn packs(ty: BlockType) -> bool {
    types::is_packed(ty)
}

/// Bytes of a packed matrix, with the rows rounded up to whole groups of [`PACKED_ROWS`]. `None` if the
/// type cannot be packed, the columns are not whole blocks, or the size overflows.
pub fn packed_bytes(ty: BlockType, n_rows: usize, n_cols: usize) -> Option<usize> {
    if !packs(ty) || !n_cols.is_multiple_of(ty.block_len()) {
        return None;
    }
    let block_bytes = with_format!(ty, F => <F as Format>::PACKED_BYTES);
    let row_bytes = (n_cols / ty.block_len()).checked_mul(block_bytes)?;
    n_rows.div_ceil(PACKED_ROWS).checked_mul(PACKED_ROWS)?.checked_mul(row_bytes)
}

/// Packs group `group` of a matrix, the sixteen rows from `16 * group` on. Rows past the last one become
/// zeros. The bytes are the same on every tier.
///
/// # Panics
/// If the type cannot be packed, there is no such group, or `out` is not [`packed_bytes`] of sixteen
/// rows long.
pub fn pack_group(tier: Tier, matrix: &MatrixRef<'_>, group: usize, out: &mut [u8]) {
    with_format!(matrix.ty(), F => pack::pack_group::<F>(tier, matrix, group, out));
}

/// Packs a matrix into `out`, on all threads.
///
/// # Panics
/// If `out` is not [`packed_bytes`] long.
pub fn pack(team: &Team, tier: Tier, matrix: &MatrixRef<'_>, out: &mut [u8]) {
    let n_bytes = packed_bytes(matrix.ty(), matrix.n_rows(), matrix.n_cols());
    assert_eq!(n_bytes, Some(out.len()), "bytes of the packed matrix");
    if out.is_empty() {
        return;
    }
    pack_groups(team, tier, matrix, 0, out);
}

/// Packs the groups of a matrix from group `first` on, as many as `out` holds, on all threads. Allocates
/// a list of the groups.
///
/// # Panics
/// If the length of `out` is not that of whole groups, or they are not groups of the matrix.
pub fn pack_groups(team: &Team, tier: Tier, matrix: &MatrixRef<'_>, first: usize, out: &mut [u8]) {
    let group_bytes = packed_bytes(matrix.ty(), PACKED_ROWS, matrix.n_cols());
    let group_bytes = group_bytes.filter(|&n| n > 0).expect("a packed type with columns");
    assert!(out.len().is_multiple_of(group_bytes), "bytes of whole groups");
    let mut groups: Vec<&mut [u8]> = out.chunks_exact_mut(group_bytes).collect();
    team.for_each_mut(&mut groups, |i, group, _| pack_group(tier, matrix, first + i, group));
}

/// An owned packed matrix.
///
/// ```
/// use realizar_kernels_cpu::{MatrixRef, PackedMatrix, Team, Tier};
/// use realizar_quant::BlockType;
///
/// let (ty, n_rows, n_cols) = (BlockType::Q8_0, 20, 64);
/// let blocks = vec![0; n_rows * ty.row_bytes(n_cols)?];
/// let matrix = MatrixRef::new(ty, n_rows, n_cols, &blocks);
/// let packed = PackedMatrix::new(&Team::new(1), Tier::detect(), &matrix).expect("quantized, and small");
/// assert_eq!(packed.view().n_groups(), 2);
/// # Ok::<(), realizar_quant::Error>(())
/// ```
#[derive(Debug)]
pub struct PackedMatrix {
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    data: Pages,
}

impl PackedMatrix {
    /// Packs a matrix on all threads; `None` if its type cannot be packed ([`packs`]) or there is too little
    /// memory.
    pub fn new(team: &Team, tier: Tier, matrix: &MatrixRef<'_>) -> Option<Self> {
        let (ty, n_rows, n_cols) = (matrix.ty(), matrix.n_rows(), matrix.n_cols());
        let mut data = Pages::zeroed(packed_bytes(ty, n_rows, n_cols)?)?;
        pack(team, tier, matrix, &mut data);
        Some(Self { ty, n_rows, n_cols, data })
    }

    /// A view of the matrix.
    pub fn view(&self) -> PackedRef<'_> {
        PackedRef::new(self.ty, self.n_rows, self.n_cols, &self.data)
    }
}

/// A borrowed packed matrix.
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

    /// Number of rows, which are outputs.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of columns, which are inputs.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Number of groups of [`PACKED_ROWS`] rows; the last one may be padded.
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

/// A format with kernels for every tier.
#[cfg(target_arch = "x86_64")]
trait Kernels: avx2_scales::FormatAvx2 + avx512_scales::FormatAvx512 {}
#[cfg(target_arch = "x86_64")]
impl<F: avx2_scales::FormatAvx2 + avx512_scales::FormatAvx512> Kernels for F {}

/// A format with kernels for every tier.
#[cfg(target_arch = "aarch64")]
trait Kernels: neon_scales::FormatNeon {}
#[cfg(target_arch = "aarch64")]
impl<F: neon_scales::FormatNeon> Kernels for F {}

/// A format with kernels for every tier.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
trait Kernels: format::Format {}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl<F: format::Format> Kernels for F {}

/// Maximum number of rows that [`dot_groups`] takes.
pub(crate) const MAX_DIRECT_ROWS: usize = 16;

/// Maximum number of activation rows, where each plane counts, that are multiplied with packed weights
/// directly. For more rows, expanding the weights once is less work. 512-bit registers have room for the
/// sums of four rows at a time, the others for two.
pub(crate) fn direct_rows(tier: Tier) -> usize {
    match tier.vectors() {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512(_) => MAX_DIRECT_ROWS,
        _ => 8,
    }
}

/// Adds the sums of a row's two planes.
pub(crate) fn add_planes(first: &GroupSums, second: &GroupSums) -> GroupSums {
    std::array::from_fn(|i| first[i] + second[i])
}

/// Multiplies at most [`MAX_DIRECT_ROWS`] activation rows, where each plane counts, with the rows of 1 or
/// [`STREAMS`](crate::streams::STREAMS) groups of a matrix.
pub(crate) fn dot_groups(
    tier: Tier,
    ty: BlockType,
    groups: &[&[u8]],
    rows: &[QuantizedRow<'_>],
    out: &mut [GroupSums], // [groups, rows]
) {
    with_format!(ty, F => dot_groups_of::<F>(tier, groups, rows, out));
}

fn dot_groups_of<F: Kernels>(
    tier: Tier,
    groups: &[&[u8]],
    rows: &[QuantizedRow<'_>],
    out: &mut [GroupSums],
) {
    assert_eq!(groups.len() * rows.len(), out.len(), "sums of every group and row");
    assert!((1..=MAX_DIRECT_ROWS).contains(&rows.len()), "{} rows at once", rows.len());
    let n_cols = rows[0].quants.len();
    let n_blocks = n_cols / F::LEN;
    for group in groups {
        assert_eq!(group.len(), n_blocks * PACKED_ROWS * F::PACKED_BYTES, "bytes of a group");
    }
    let is_whole = |x: &QuantizedRow<'_>| x.is_whole() && x.quants.len() == n_cols;
    assert!(rows.iter().all(is_whole), "the parts of a quantized row");
    match tier.vectors() {
        Tier::Scalar => scalar::dot_groups::<F>(groups, rows, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token of this tier exists only if its instructions were
        // detected; the lengths were checked above.
        Tier::Avx2(_) => unsafe { avx2::dot_groups::<F>(groups, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as for AVX2.
        Tier::AvxVnni(_) => unsafe { avx_vnni::dot_groups::<F>(groups, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as for AVX2.
        Tier::Avx512(_) => unsafe { avx512::dot_groups::<F>(groups, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as for AVX2.
        Tier::Neon(_) => unsafe { neon::dot_groups::<F>(groups, rows, out) },
        other => unreachable!("{other} is no tier of vectors"),
    }
}

/// Expands columns of a group from column `col` on to a panel for [`multiply_panels`] on the same tier.
pub(crate) fn expand(
    tier: Tier,
    ty: BlockType,
    group: &[u8],
    col: usize, // a multiple of 256, or of 32 for types with blocks of 32
    panel: &mut [PanelGroup],
) {
    with_format!(ty, F => expand_of::<F>(tier, group, col, panel));
}

fn expand_of<F: Kernels>(tier: Tier, group: &[u8], col: usize, panel: &mut [PanelGroup]) {
    let n_cols = panel.len() * GROUP_LEN;
    assert!(col.is_multiple_of(F::LEN) && n_cols.is_multiple_of(F::LEN), "whole blocks");
    let block_bytes = PACKED_ROWS * F::PACKED_BYTES;
    let bytes = &group[col / F::LEN * block_bytes..][..n_cols / F::LEN * block_bytes];
    match tier.vectors() {
        Tier::Scalar => scalar::expand::<F>(bytes, panel),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token of this tier exists only if its instructions were
        // detected; the lengths were checked above.
        Tier::Avx2(_) => unsafe { avx2::expand::<F>(bytes, panel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as for AVX2.
        Tier::AvxVnni(_) => unsafe { avx_vnni::expand::<F>(bytes, panel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as for AVX2.
        Tier::Avx512(_) => unsafe { avx512::expand::<F>(bytes, panel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as for AVX2.
        Tier::Neon(_) => unsafe { neon::expand::<F>(bytes, panel) },
        other => unreachable!("{other} is no tier of vectors"),
    }
}

/// Maximum number of panels that [`multiply_panels`] takes side by side.
pub(crate) const PANELS: usize = 2;

/// Adds the products of some activation rows with the panels of 1 or [`PANELS`] groups. The panels have
/// the same columns, from column `col` on.
pub(crate) fn multiply_panels(
    tier: Tier,
    ty: BlockType,
    panels: &[&[PanelGroup]], // [n_panels], [columns / 32] each
    x: &QuantizedRows,
    rows: Range<usize>,
    col: usize,
    sums: &mut [GroupSums], // [n_panels, rows]
) {
    with_format!(ty, F => multiply_panels_of::<F>(tier, panels, x, rows, col, sums));
}

fn multiply_panels_of<F: Kernels>(
    tier: Tier,
    panels: &[&[PanelGroup]],
    x: &QuantizedRows,
    rows: Range<usize>,
    col: usize,
    sums: &mut [GroupSums],
) {
    let len = panels.first().map_or(0, |panel| panel.len());
    assert!(panels.iter().all(|panel| panel.len() == len), "panels of one length");
    let cols = col..col + len * GROUP_LEN;
    assert_eq!(panels.len() * rows.len(), sums.len(), "sums of every row");
    assert!(rows.end <= x.n_rows(), "rows of the panels");
    assert!(cols.end <= x.n_cols() && col.is_multiple_of(GROUP_LEN), "columns of the panels");
    if rows.is_empty() {
        return;
    }
    let (tier, first) = (tier.vectors(), rows.start);
    #[cfg(target_arch = "x86_64")]
    if let (Tier::Avx512(_), &[a, b]) = (tier, panels) {
        let (sums_a, sums_b) = sums.split_at_mut(rows.len());
        // SAFETY: the token of this tier exists only if its instructions were
        // detected; the lengths were checked above.
        unsafe { avx512::multiply_two_panels::<F>([a, b], x, first, cols, [sums_a, sums_b]) }
        return;
    }
    for (panel, sums) in panels.iter().zip(sums.chunks_exact_mut(rows.len())) {
        let cols = cols.clone();
        match tier {
            Tier::Scalar => scalar::multiply_panel::<F>(panel, x, first, cols, sums),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token of this tier exists only if its instructions were
            // detected; the lengths were checked above.
            Tier::Avx2(_) => unsafe { avx2::multiply_panel::<F>(panel, x, first, cols, sums) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as for AVX2.
            Tier::AvxVnni(_) => unsafe {
                avx_vnni::multiply_panel::<F>(panel, x, first, cols, sums);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as for AVX2.
            Tier::Avx512(_) => unsafe { avx512::multiply_panel::<F>(panel, x, first, cols, sums) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as for AVX2.
            Tier::Neon(_) => unsafe { neon::multiply_panel::<F>(panel, x, first, cols, sums) },
            other => unreachable!("{other} is no tier of vectors"),
        }
    }
}

/// Widens columns of a group, from column `col` on, to tiles of BF16: one for every 32 columns.
/// The bits are the same on every tier.
pub(crate) fn widen_group<'t>(
    tier: Tier,
    ty: BlockType,
    group: &[u8],
    cols: &Range<usize>, // from and to whole blocks
    out: impl Iterator<Item = &'t mut Tile>,
) {
    with_format!(ty, F => widen_group_of::<F>(tier, group, cols, out));
}

fn widen_group_of<'t, F: Kernels>(
    tier: Tier,
    group: &[u8],
    cols: &Range<usize>,
    out: impl Iterator<Item = &'t mut Tile>,
) {
    assert!(cols.start.is_multiple_of(F::LEN) && cols.end.is_multiple_of(F::LEN), "whole blocks");
    let block_bytes = PACKED_ROWS * F::PACKED_BYTES;
    let bytes = &group[cols.start / F::LEN * block_bytes..cols.end / F::LEN * block_bytes];
    match tier.avx512_bf16() {
        None => tiles::widen::<F>(bytes, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token exists only if the instructions were detected; the bytes are
        // those of whole blocks.
        Some(_) => unsafe { tiles::widen_avx512::<F>(bytes, out) },
    }
}

#[cfg(test)]
mod tests;
