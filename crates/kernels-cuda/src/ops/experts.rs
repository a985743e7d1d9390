//! Products of rows with the matrices of their experts. The device reads the experts from the routes of each row.
//!
//! A row and one of its experts form a pair. Decode rows are multiplied pair by pair, or, with enough pairs, sorted by
//! expert so that a read of a matrix serves several; the bits are the same either way. Prefill rows are sorted and
//! multiplied in tiles.

use std::sync::Arc;

use super::quantize::{BLOCK_LEN, QuantType};
use crate::device::{Argument, Arguments, Device};
use crate::kernels::{ExpertTypeKernels, Kernels, PAIR_TILES};
use crate::{Buffer, Error, Halves, Matrix, Quantized, Routing, Rows, half_type};

/// Threads of the sorting kernel.
const SORT_THREADS: u32 = 1024;
/// Pairs of a tile for decode rows.
const DECODE_PAIRS: usize = 4;
/// Warps of a block for decode rows, and matrix rows per warp of each kernel.
const WARPS: usize = 4;
const ROWS: [usize; 2] = [4, 2];
const INT8_ROWS: [usize; 2] = [2, 2];
/// Matrix rows of a block for prefill rows with F32 activations, and its threads.
const F32_ROWS: usize = 128;
const F32_THREADS: u32 = 128;
/// Columns that half-precision products process at a time.
const DEPTH: usize = 64;
/// Bytes of a tile entry: expert, first place, number of pairs, and an unused word. The number of tiles precedes them
/// in an entry of the same size.
const TILE_BYTES: usize = 16;

/// Memory for pairs of rows and experts, sorted by expert.
#[derive(Debug)]
pub struct ExpertPairs<D: Device> {
    /// Tile entries, then the sorted pairs.
    buffer: Buffer<D>,
    max_pairs: usize,
    max_tiles: usize,
}

impl<D: Device> ExpertPairs<D> {
    /// The maximum number of tiles of up to `tile_rows` rows that this many pairs form.
    fn n_tiles(n_pairs: usize, n_experts: usize, tile_rows: usize) -> usize {
        // Each expert may have a partial tile.
        n_pairs / tile_rows + n_experts.min(n_pairs)
    }

    /// Bytes for up to `max_pairs` pairs with up to `max_experts` experts.
    pub fn bytes(max_pairs: usize, max_experts: usize) -> usize {
        (1 + Self::n_tiles(max_pairs, max_experts, DECODE_PAIRS)) * TILE_BYTES + 4 * max_pairs
    }

    /// Allocates memory for up to `max_pairs` pairs with up to `max_experts` experts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(device: &Arc<D>, max_pairs: usize, max_experts: usize) -> Result<Self, Error> {
        let n_bytes = Self::bytes(max_pairs, max_experts);
        let buffer = Buffer::new(device, "pairs of rows and experts", n_bytes)?;
        Ok(Self {
            buffer,
            max_pairs,
            max_tiles: Self::n_tiles(max_pairs, max_experts, DECODE_PAIRS),
        })
    }

    /// Addresses of the tiles and of the sorted pairs.
    fn arguments(&self) -> [Argument; 2] {
        let order = (1 + self.max_tiles) * TILE_BYTES;
        [0, order].map(|at| Argument::Address(self.buffer.address() + at as u64))
    }
}

/// Pairs of a step, sorted by [`sort_by_expert`].
#[derive(Debug)]
pub struct SortedPairs<'a, D: Device> {
    room: &'a ExpertPairs<D>,
    n_pairs: usize,
    n_experts: usize,
    tiles: PairTiles,
}

impl<D: Device> Clone for SortedPairs<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for SortedPairs<'_, D> {}

/// The products that pairs are sorted for, which determines the number of pairs per tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PairTiles {
    /// Decode rows: [`expert_matvec`] and [`expert_matvec_int8`].
    Decode,
    /// All other products, with few pairs per expert. The choice between this and `LargePrefill` does not affect bits.
    SmallPrefill,
    /// All other products, with many pairs per expert.
    LargePrefill,
}

impl PairTiles {
    /// The better choice for this many pairs of prefill rows.
    pub fn for_prefill(n_pairs: usize, n_experts: usize) -> Self {
        let [small, _] = PAIR_TILES;
        // Larger tiles read a matrix less often, which pays off if most of them are full.
        if n_pairs < 3 * small.pairs / 2 * n_experts {
            Self::SmallPrefill
        } else {
            Self::LargePrefill
        }
    }

    /// Pairs of a tile.
    fn pairs(self) -> usize {
        match self {
            Self::Decode => DECODE_PAIRS,
            Self::SmallPrefill => PAIR_TILES[0].pairs,
            Self::LargePrefill => PAIR_TILES[1].pairs,
        }
    }
}

/// Whether enough of this many pairs of decode rows share an expert for sorting to pay off before [`expert_matvec`] and
/// [`expert_matvec_int8`].
pub fn is_worth_sorting(n_pairs: usize, n_experts: usize) -> bool {
    2 * n_pairs >= n_experts
}

/// Queues the sorting of pairs by expert. The result serves all products with the same routes until `room` is used
/// again. The pairs of an expert keep their order. An expert that does not exist stops the device, which the next call
/// that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or `room` is too small.
pub fn sort_by_expert<'a, D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    routes: Rows<'_, D>, // [n_rows, 2 * n_experts_used]
    n_experts: usize,
    tiles: PairTiles,
    room: &'a ExpertPairs<D>,
) -> Result<SortedPairs<'a, D>, Error> {
    let n_experts_used = routes.n_cols() / 2;
    let n_pairs = routes.n_rows() * n_experts_used;
    routes.check(kernels, "routes", routes.n_rows(), 2 * n_experts_used);
    kernels.check("the pairs", &room.buffer, 0);
    assert!((1..=Routing::<D>::MAX_EXPERTS).contains(&n_experts), "{n_experts} experts");
    let n_tiles = ExpertPairs::<D>::n_tiles(n_pairs, n_experts, tiles.pairs());
    assert!(
        n_pairs > 0 && n_pairs <= room.max_pairs && n_tiles <= room.max_tiles,
        "{n_pairs} pairs of {n_experts} experts, room for {} in {} tiles",
        room.max_pairs,
        room.max_tiles
    );
    let [tiles_at, order] = room.arguments();
    let arguments = [
        routes.address(),
        routes.stride(),
        Argument::I32(n_pairs as i32),
        Argument::I32(n_experts_used as i32),
        Argument::I32(n_experts as i32),
        Argument::I32(tiles.pairs() as i32),
        tiles_at,
        order,
        Argument::I32(room.max_tiles as i32),
    ];
    let function = &kernels.experts.sort;
    // SAFETY: the arguments are those of `sort_by_expert` in order; rows lie inside their buffer, there is room for the
    // pairs and tiles, and the kernel checks the routes. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, [1, 1, 1], [SORT_THREADS, 1], &arguments) }?;
    Ok(SortedPairs { room, n_pairs, n_experts, tiles })
}

/// Products of each row with the matrices of its experts. For each matrix, the results of a row's experts are
/// concatenated in the order of the routes. Results of expert -1 are not written.
#[derive(Debug)]
pub struct ExpertLinear<'a, D: Device, X> {
    /// One or several matrices, each with those of all experts stacked by rows, `[n_experts * n_outputs, n_cols]`.
    /// Their types and numbers of outputs may differ.
    pub matrices: &'a [&'a Matrix<D>],
    /// Number of experts.
    pub n_experts: usize,
    /// Activations, `[n_rows, n_cols]`, or `[n_rows, n_experts_used * n_cols]` with separate columns for each expert of
    /// a row.
    pub x: X,
    /// The result of [`route`](crate::route()), `[n_rows, 2 * n_experts_used]`.
    pub routes: Rows<'a, D>,
    /// The result, `[n_rows, n_experts_used * (sum of all n_outputs)]`.
    pub out: Rows<'a, D>,
}

/// Dimensions of a product whose shapes were checked.
struct Checked {
    n_cols: usize,
    n_experts_used: usize,
    /// Columns of x per expert of a row; 0 if its experts share all of them.
    n_own: usize,
}

impl<D: Device, X> ExpertLinear<'_, D, X> {
    /// Asserts that shapes and devices match.
    fn check(
        &self,
        kernels: &Kernels<D>,
        x_cols: usize,
        sorted: Option<SortedPairs<'_, D>>,
    ) -> Checked {
        let (n_rows, n_experts_used) = (self.routes.n_rows(), self.routes.n_cols() / 2);
        let n_cols = self.matrices.first().map_or(0, |matrix| matrix.n_cols());
        self.routes.check(kernels, "routes", n_rows, 2 * n_experts_used);
        let mut n_outputs = 0;
        for matrix in self.matrices {
            kernels.check("the matrix", matrix.buffer(), 0);
            assert_eq!(matrix.n_cols(), n_cols, "columns of the matrices");
            n_outputs += self.n_outputs(matrix);
        }
        self.out.check(kernels, "out", n_rows, n_experts_used * n_outputs);
        let n_own = if x_cols == n_cols { 0 } else { n_cols };
        assert!(
            n_own == 0 || x_cols == n_experts_used * n_cols,
            "{x_cols} columns of x, and experts take {n_cols}"
        );
        if let Some(sorted) = sorted {
            kernels.check("the pairs", &sorted.room.buffer, 0);
            let found = (sorted.n_pairs, sorted.n_experts);
            assert_eq!(
                found,
                (n_rows * n_experts_used, self.n_experts),
                "sorted pairs, and experts"
            );
        }
        Checked { n_cols, n_experts_used, n_own }
    }

    /// Number of outputs of each expert.
    fn n_outputs(&self, matrix: &Matrix<D>) -> usize {
        let (n_rows, n) = (matrix.n_rows(), self.n_experts);
        assert!(n > 0 && n_rows.is_multiple_of(n), "{n_rows} rows of {n} experts");
        n_rows / n
    }

    /// Queues one launch per two consecutive matrices of a type.
    fn launch(
        &self,
        kernels: &Kernels<D>,
        stream: &D::Stream,
        checked: &Checked,
        sorted: Option<SortedPairs<'_, D>>,
        how: &ExpertKernel<'_, D>,
    ) -> Result<(), Error> {
        let &Checked { n_cols, n_experts_used, .. } = checked;
        let n_pairs = self.routes.n_rows() * n_experts_used;
        let n_groups = match sorted {
            Some(sorted) => {
                ExpertPairs::<D>::n_tiles(n_pairs, self.n_experts, sorted.tiles.pairs())
            }
            None => n_pairs,
        };
        assert!(n_groups <= 65535, "{n_pairs} pairs of rows and experts");
        let none = Argument::Address(0);
        let number = |n: usize| Argument::I32(n as i32);
        let pairs = sorted.map_or([none; 2], |sorted| sorted.room.arguments());
        let last = [n_cols, how.n_own, n_experts_used, self.n_experts].map(number);
        let routes = [self.routes.address(), self.routes.stride()];
        let mut first_col = 0;
        let of_a_type = self.matrices.chunk_by(|a, b| a.ty() == b.ty());
        for matrices in of_a_type.flat_map(|matrices| matrices.chunks(2)) {
            let second = matrices.get(1);
            let n_outputs = [Some(&matrices[0]), second]
                .map(|matrix| matrix.map_or(0, |matrix| self.n_outputs(matrix)));
            let width = n_experts_used * (n_outputs[0] + n_outputs[1]);
            let out = self.out.columns(first_col, width);
            first_col += width;
            let arguments = Arguments::of(&[
                &matrices[0].planes(),
                &second.map_or([none; 3], |matrix| matrix.planes()),
                &n_outputs.map(number),
                how.x,
                if how.takes_routes { &routes } else { &[] },
                &pairs,
                &[out.address(), out.stride()],
                if how.takes_routes { &last } else { &last[..3] },
            ]);
            let n_blocks: usize = n_outputs.iter().map(|n| n.div_ceil(how.block_rows)).sum();
            let grid = [n_blocks as u32, n_groups as u32, 1];
            let ty = matrices[0].ty();
            let function = (how.function)(kernels.experts_of(ty)?);
            let function = function.unwrap_or_else(|| panic!("no such products of {ty}"));
            // SAFETY: the arguments are those of `expert_*` in order. The planes are those of the matrices, rows were
            // checked to be within their buffers when they were made, their shapes in `check`, and the kernels check
            // the routes. As `matvec` says, buffers outlive queued work.
            unsafe { kernels.launch(stream, function, grid, how.block, &arguments) }?;
        }
        Ok(())
    }
}

/// The parameters in which the kernels of products differ.
struct ExpertKernel<'a, D: Device> {
    /// Selects the kernel of a type, if it has one.
    function: &'a dyn Fn(&ExpertTypeKernels<D>) -> Option<&D::Function>,
    /// Threads of a block, and its matrix rows.
    block: [u32; 2],
    block_rows: usize,
    /// Arguments for x.
    x: &'a [Argument],
    /// Columns of x per expert of a row, in the kernel's unit; 0 if its experts share all of them.
    n_own: usize,
    /// Whether the kernel takes routes and the number of experts.
    takes_routes: bool,
}

/// Index of the decode kernel for sorted or unsorted pairs.
fn which<D: Device>(sorted: Option<SortedPairs<'_, D>>) -> usize {
    let Some(sorted) = sorted else { return 0 };
    assert_eq!(sorted.tiles, PairTiles::Decode, "what pairs were sorted for");
    1
}

/// Index of the prefill kernel for sorted pairs.
fn tile<D: Device>(sorted: SortedPairs<'_, D>) -> usize {
    match sorted.tiles {
        PairTiles::Decode => panic!("pairs were sorted for generated rows"),
        PairTiles::SmallPrefill => 0,
        PairTiles::LargePrefill => 1,
    }
}

/// Asserts that F32 rows and the columns of each expert are aligned to 16 bytes.
fn check_four<D: Device>(x: Rows<'_, D>, checked: &Checked) {
    x.check_aligned("x");
    assert!(checked.n_own.is_multiple_of(4), "{} columns of each expert", checked.n_own);
}

/// Queues products of F32 decode rows. The bits of a row's results depend on its own values alone, and not on whether
/// its pairs were sorted.
///
/// # Errors
/// Any error of the driver, including [`Error::Kernel`] if it rejects kernels that were not
/// [prepared](Kernels::prepare_experts).
///
/// # Panics
/// If shapes or devices do not match, rows or the columns of each expert are not aligned to 16 bytes, or there are more
/// than 65,535 pairs.
pub fn expert_matvec<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &ExpertLinear<'_, D, Rows<'_, D>>,
    sorted: Option<SortedPairs<'_, D>>,
) -> Result<(), Error> {
    let x = linear.x;
    x.check(kernels, "x", linear.routes.n_rows(), x.n_cols());
    let checked = linear.check(kernels, x.n_cols(), sorted);
    check_four(x, &checked);
    let which = which(sorted);
    let how = ExpertKernel {
        function: &|of| Some(&of.matvec[which]),
        block: [32, WARPS as u32],
        block_rows: WARPS * ROWS[which],
        x: &[x.address(), x.stride()],
        n_own: checked.n_own,
        takes_routes: true,
    };
    linear.launch(kernels, stream, &checked, sorted, &how)
}

/// Queues products of 8-bit decode rows. The bits of a row's results depend on its own values alone, and not on whether
/// its pairs were sorted.
///
/// # Errors
/// As [`expert_matvec`].
///
/// # Panics
/// If shapes or devices do not match, [`takes_quantized`](crate::takes_quantized) does not hold for a type, or there
/// are more than 65,535 pairs.
pub fn expert_matvec_int8<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &ExpertLinear<'_, D, Quantized<'_, D>>,
    sorted: Option<SortedPairs<'_, D>>,
) -> Result<(), Error> {
    let x = linear.x;
    let checked = check_blocks(kernels, linear, sorted);
    let which = which(sorted);
    let how = ExpertKernel {
        function: &|of| of.int8.as_ref().map(|int8| &int8.matvec[which]),
        block: [32, WARPS as u32],
        block_rows: WARPS * INT8_ROWS[which],
        x: &x.arguments(),
        n_own: checked.n_own / BLOCK_LEN,
        takes_routes: true,
    };
    linear.launch(kernels, stream, &checked, sorted, &how)
}

/// Asserts that shapes and devices of 8-bit products match.
fn check_blocks<D: Device>(
    kernels: &Kernels<D>,
    linear: &ExpertLinear<'_, D, Quantized<'_, D>>,
    sorted: Option<SortedPairs<'_, D>>,
) -> Checked {
    let x = linear.x;
    x.check(kernels, "x", linear.routes.n_rows(), x.n_cols());
    x.check_type("x", QuantType::Int8);
    let checked = linear.check(kernels, x.n_cols(), sorted);
    let n_own = checked.n_own;
    assert!(n_own.is_multiple_of(BLOCK_LEN), "{n_own} columns of each expert are not blocks");
    checked
}

/// Queues products of F32 prefill rows with sorted pairs. The bits of a row's results depend on its own values alone.
///
/// # Errors
/// As [`expert_matvec`].
///
/// # Panics
/// If shapes or devices do not match, rows or the columns of each expert are not aligned to 16 bytes, or there are more
/// than 65,535 tiles.
pub fn expert_matmul<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &ExpertLinear<'_, D, Rows<'_, D>>,
    sorted: SortedPairs<'_, D>,
) -> Result<(), Error> {
    let x = linear.x;
    x.check(kernels, "x", linear.routes.n_rows(), x.n_cols());
    let checked = linear.check(kernels, x.n_cols(), Some(sorted));
    check_four(x, &checked);
    // One kernel supports both tile sizes.
    tile(sorted);
    let how = ExpertKernel {
        function: &|of| Some(&of.matmul),
        block: [F32_THREADS, 1],
        block_rows: F32_ROWS,
        x: &[x.address(), x.stride()],
        n_own: checked.n_own,
        takes_routes: true,
    };
    linear.launch(kernels, stream, &checked, Some(sorted), &how)
}

/// Whether [`expert_matmul_half`] supports experts with this many separate columns: those of each must begin at a
/// column step of the kernel.
pub fn takes_own_halves(n_cols: usize) -> bool {
    n_cols.is_multiple_of(DEPTH)
}

/// Queues products of half-precision prefill rows on tensor cores with F32 sums. The bits of a row's results depend on
/// its own values alone.
///
/// # Errors
/// As [`expert_matvec`].
///
/// # Panics
/// If shapes, types or devices do not match, [`takes_own_halves`] does not hold for separate columns of experts, or
/// there are more than 65,535 tiles.
pub fn expert_matmul_half<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &ExpertLinear<'_, D, Halves<'_, D>>,
    sorted: SortedPairs<'_, D>,
) -> Result<(), Error> {
    let x = linear.x;
    x.check(kernels, "x", linear.routes.n_rows(), x.n_cols());
    let checked = linear.check(kernels, x.n_cols(), Some(sorted));
    for matrix in linear.matrices {
        assert_eq!(half_type(matrix.ty()), Some(x.ty()), "weights of {}", matrix.ty());
    }
    assert!(takes_own_halves(checked.n_own), "{} columns of each expert", checked.n_own);
    let [values, stride, scales] = x.arguments();
    check_numbers(x.n_rows(), stride);
    let tile = tile(sorted);
    let how = ExpertKernel {
        function: &|of| of.half.as_ref().map(|half| &half[tile]),
        block: [PAIR_TILES[tile].threads, 1],
        block_rows: PAIR_TILES[tile].w_rows,
        x: &[values, stride, scales],
        n_own: checked.n_own,
        takes_routes: false,
    };
    linear.launch(kernels, stream, &checked, Some(sorted), &how)
}

/// Queues products of 8-bit prefill rows on tensor cores. The bits of a row's results depend on its own values alone.
///
/// # Errors
/// As [`expert_matvec`].
///
/// # Panics
/// If shapes or devices do not match, [`takes_quantized`](crate::takes_quantized) does not hold for a type, or there
/// are more than 65,535 tiles.
pub fn expert_matmul_int8<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &ExpertLinear<'_, D, Quantized<'_, D>>,
    sorted: SortedPairs<'_, D>,
) -> Result<(), Error> {
    let x = linear.x;
    let checked = check_blocks(kernels, linear, Some(sorted));
    let x_at = x.arguments();
    check_numbers(x.n_rows(), x_at[2]);
    let tile = tile(sorted);
    let how = ExpertKernel {
        function: &|of| of.int8.as_ref().map(|int8| &int8.matmul[tile]),
        block: [PAIR_TILES[tile].threads, 1],
        block_rows: PAIR_TILES[tile].w_rows,
        x: &x_at,
        n_own: checked.n_own / BLOCK_LEN,
        takes_routes: false,
    };
    linear.launch(kernels, stream, &checked, Some(sorted), &how)
}

/// Asserts that 32-bit indices suffice for the elements of x.
fn check_numbers(n_rows: usize, stride: Argument) {
    let Argument::I32(stride) = stride else { unreachable!("a number") };
    let fits = n_rows.checked_mul(stride as usize).is_some_and(|n| u32::try_from(n).is_ok());
    assert!(fits, "{n_rows} rows, {stride} apart");
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::matrix::BLOCK_TYPES;
    use crate::testing::{Random, TestDevice, halved, kernels, on_device, read, rounded, weights};
    use crate::{HalfRows, QuantizedRows, quantize, round_rows, takes_quantized};
    use realizar_ptx::Stream;
    use realizar_quant::BlockType;

    type On = (Kernels<TestDevice>, Stream);

    /// Routes of rows with the given experts.
    fn routes(chosen: &[&[f32]]) -> Vec<f32> {
        chosen.iter().flat_map(|row| [*row, &vec![0.25; row.len()]].concat()).collect()
    }

    /// Sorts on the device and reads tiles and pairs.
    fn sorted(
        (kernels, stream): &On,
        routes: &[f32],
        n_experts_used: usize,
        n_experts: usize,
        tiles: PairTiles,
    ) -> (Vec<[u32; 3]>, Vec<u32>) {
        let device = kernels.device();
        let n_rows = routes.len() / (2 * n_experts_used);
        let routes = on_device(device, stream, routes);
        let routes = Rows::new(&routes, 0, n_rows, 2 * n_experts_used, 2 * n_experts_used);
        let room = ExpertPairs::new(device, n_rows * n_experts_used, n_experts).unwrap();
        sort_by_expert(kernels, stream, routes, n_experts, tiles, &room).unwrap();
        let mut words = vec![0u32; room.buffer.n_bytes() / 4];
        room.buffer.read(stream, 0, &mut words).unwrap();
        let n_tiles = words[0] as usize;
        let tiles: Vec<[u32; 3]> =
            words[4..][..4 * n_tiles].chunks(4).map(|t| [t[0], t[1], t[2]]).collect();
        let order = words[4 * (1 + room.max_tiles)..].to_vec();
        (tiles, order)
    }

    #[cfg_attr(test, test)]
    fn pairs_are_sorted_by_expert_and_keep_their_order() {
        let on = kernels();
        // Numbers of experts around the kernel's limits, pairs that divide evenly and not, and rows without experts.
        for (n_rows, n_experts_used, n_experts) in
            [(1, 1, 1), (5, 2, 3), (70, 3, 8), (400, 4, 60), (130, 8, 300), (90, 2, 1024)]
        {
            let mut random = Random(n_experts as u64);
            let mut all = Vec::new();
            for row in 0..n_rows {
                let id = |x: f32| ((x + 1.0) / 2.0 * n_experts as f32).min(n_experts as f32 - 1.0);
                let ids: Vec<f32> = random
                    .floats(n_experts_used)
                    .into_iter()
                    .map(|x| id(x * x * x).floor())
                    .collect();
                let ids = if row % 9 == 4 { vec![-1.0; n_experts_used] } else { ids };
                all.extend([ids, vec![0.5; n_experts_used]].concat());
            }
            let id = |pair: usize| {
                all[pair / n_experts_used * 2 * n_experts_used + pair % n_experts_used]
            };
            let mut wanted: Vec<usize> =
                (0..n_rows * n_experts_used).filter(|&pair| id(pair) >= 0.0).collect();
            wanted.sort_by_key(|&pair| id(pair) as usize);
            for (height, tile_rows) in [
                (PairTiles::Decode, 4),
                (PairTiles::SmallPrefill, 32),
                (PairTiles::LargePrefill, 64),
            ] {
                let (tiles, order) = sorted(&on, &all, n_experts_used, n_experts, height);
                let found: Vec<usize> =
                    order[..wanted.len()].iter().map(|&pair| pair as usize).collect();
                assert_eq!(found, wanted, "{n_experts} experts");
                // Each tile has one expert, and tiles follow one another.
                let mut place = 0;
                for (i, &[expert, first, n]) in tiles.iter().enumerate() {
                    assert_eq!(first as usize, place);
                    assert!((1..=tile_rows).contains(&n));
                    place += n as usize;
                    let of_tile = &wanted[first as usize..place];
                    assert!(of_tile.iter().all(|&pair| id(pair) == expert as f32));
                    let next = tiles.get(i + 1);
                    assert!(n == tile_rows || next.is_none_or(|next| next[0] > expert), "full");
                }
                assert_eq!(place, wanted.len(), "all pairs are in tiles");
            }
        }
    }

    #[cfg_attr(test, test)]
    fn experts_that_do_not_exist_are_reported() {
        for id in [3.0, f32::NAN] {
            let (kernels, stream) = kernels();
            let device = kernels.device();
            let values = on_device(device, &stream, &routes(&[&[0.0, id]]));
            let routes = Rows::vector(&values, 4);
            let room = ExpertPairs::new(device, 2, 3).unwrap();
            sort_by_expert(&kernels, &stream, routes, 3, PairTiles::Decode, &room).unwrap();
            let message = device.synchronize(&stream).unwrap_err().to_string();
            assert!(message.contains("trap") && message.contains("sort_by_expert"), "{message}");
        }
    }

    const N_EXPERTS: usize = 5;
    const N_CHOSEN: usize = 2;

    /// The experts of a row. All rows but one share an expert, which has several tiles, and the fourth expert has none.
    fn ids(row: usize) -> [f32; N_CHOSEN] {
        if row == 3 { [-1.0; 2] } else { [(row % 3) as f32, 4.0] }
    }

    /// ExpertKernel pairs are multiplied.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Form {
        Pairs,
        Int8,
        Tiles(PairTiles),
        HalfTiles(PairTiles),
        Int8Tiles(PairTiles),
    }

    impl Form {
        /// Weights and activations after rounding.
        fn multiplied(self, ty: BlockType, w: &[f32], x: &[f32]) -> (Vec<f64>, Vec<f64>) {
            let plain = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect();
            let bf16 =
                |x: &[f32]| x.iter().map(|&x| f64::from(halved(BlockType::BF16, x).1)).collect();
            match self {
                Self::Pairs | Self::Tiles(_) => (plain(w), plain(x)),
                Self::Int8 | Self::Int8Tiles(_) => (plain(w), rounded(x)),
                // `slack` allows for the rounding of activations to F16.
                Self::HalfTiles(_) if ty == BlockType::F16 => (plain(w), plain(x)),
                Self::HalfTiles(_) => (bf16(w), bf16(x)),
            }
        }

        /// Tolerance of a sum, relative to the sum of magnitudes.
        fn slack(self, ty: BlockType) -> f64 {
            match self {
                Self::HalfTiles(_) if ty == BlockType::F16 => 5e-4,
                _ => 2e-6,
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    struct Case {
        ty: BlockType,
        n_rows: usize,
        n_in: usize,
        /// Outputs of the first and of the second matrix.
        n_out: [usize; 2],
        is_shared: bool,
        form: Form,
    }

    /// Checks the results, and that single rows and sorted pairs give the same bits. Returns the bits of all rows.
    fn check(on: &On, case: Case) -> Vec<u32> {
        let (kernels, stream) = on;
        let device = kernels.device();
        let Case { ty, n_rows, n_in, n_out: n_outs, is_shared, form } = case;
        let mut random = Random(n_in as u64);
        let parts = n_outs.map(|n_out| weights(ty, N_EXPERTS * n_out, n_in, &mut random));
        let matrices: Vec<_> = parts
            .iter()
            .zip(n_outs)
            .map(|((bytes, _), n_out)| {
                Matrix::upload(device, stream, "w", ty, N_EXPERTS * n_out, n_in, bytes).unwrap()
            })
            .collect();
        let matrices: &[&Matrix<_>] = &matrices.iter().collect::<Vec<_>>();
        let halves = HalfRows::new(device, n_rows, 2 * n_in + 1).unwrap();
        let x_cols = if is_shared { n_in } else { N_CHOSEN * n_in };
        let x_stride = x_cols.next_multiple_of(4) + 4;
        let x = random.floats(n_rows * x_stride);
        let all_ids: Vec<_> = (0..n_rows).map(ids).collect();
        let route_values =
            routes(&all_ids.iter().map(<[f32; N_CHOSEN]>::as_slice).collect::<Vec<_>>());
        let n_out: usize = n_outs.iter().sum();
        let out_stride = N_CHOSEN * n_out + 3;
        let put = |values: &[f32]| on_device(device, stream, values);
        let (x_at, routes_at) = (put(&x), put(&route_values));
        let room = ExpertPairs::new(device, n_rows * N_CHOSEN, N_EXPERTS).unwrap();
        let run = |first: usize, n: usize, is_sorted: bool| {
            let out = put(&vec![7.5; n_rows * out_stride]);
            let routes = Rows::new(&routes_at, first * 2 * N_CHOSEN, n, 2 * N_CHOSEN, 2 * N_CHOSEN);
            let sort =
                |tiles| sort_by_expert(kernels, stream, routes, N_EXPERTS, tiles, &room).unwrap();
            let sorted = is_sorted.then(|| sort(PairTiles::Decode));
            let x = Rows::new(&x_at, first * x_stride, n, x_cols, x_stride);
            let to = Rows::new(&out, first * out_stride, n, N_CHOSEN * n_out, out_stride);
            let linear = ExpertLinear { matrices, n_experts: N_EXPERTS, x, routes, out: to };
            // Rows in a buffer with more columns.
            let quants = QuantizedRows::new(device, QuantType::Int8, n_rows, x_cols + 32).unwrap();
            let quantized = || {
                let quants = quants.rows(first, n, x_cols);
                quantize(kernels, stream, x, quants).unwrap();
                ExpertLinear { matrices, n_experts: N_EXPERTS, x: quants, routes, out: to }
            };
            match form {
                Form::Pairs => expert_matvec(kernels, stream, &linear, sorted),
                Form::Int8 => expert_matvec_int8(kernels, stream, &quantized(), sorted),
                Form::Tiles(tiles) => expert_matmul(kernels, stream, &linear, sort(tiles)),
                Form::Int8Tiles(tiles) => {
                    expert_matmul_int8(kernels, stream, &quantized(), sort(tiles))
                }
                Form::HalfTiles(tiles) => {
                    let halves = halves.rows(half_type(ty).unwrap(), first, n, x_cols);
                    round_rows(kernels, stream, x, halves).unwrap();
                    let (n_experts, x) = (N_EXPERTS, halves);
                    let linear = ExpertLinear { matrices, n_experts, x, routes, out: to };
                    expert_matmul_half(kernels, stream, &linear, sort(tiles))
                }
            }
            .unwrap();
            device.synchronize(stream).unwrap();
            read(stream, &out, n_rows * out_stride)
        };
        let all = run(0, n_rows, false);
        let found = &all;
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let is_generated = matches!(form, Form::Pairs | Form::Int8);
        if is_generated {
            assert_eq!(bits(&run(0, n_rows, true)), bits(found), "{case:?}: sorted");
        }
        let some = if is_generated { &[0, 3, n_rows - 1][..] } else { &[n_rows - 1] };
        for &row in some {
            let alone = run(row, 1, row == n_rows - 1);
            let range = row * out_stride..(row + 1) * out_stride;
            assert_eq!(bits(&alone[range.clone()]), bits(&found[range]), "{case:?}: alone");
        }
        for row in 0..n_rows {
            let found = &found[row * out_stride..][..out_stride];
            assert_eq!(found[N_CHOSEN * n_out..], [7.5; 3], "{case:?}: behind a row");
            let mut first_col = 0;
            for ((_, values), n_out) in parts.iter().zip(n_outs) {
                for (slot, id) in ids(row).into_iter().enumerate() {
                    let own = if is_shared { 0 } else { slot * n_in };
                    let x = &x[row * x_stride + own..][..n_in];
                    for col in 0..n_out {
                        let found = found[first_col + slot * n_out + col];
                        if id < 0.0 {
                            assert_eq!(found, 7.5, "{case:?}: a row that takes no part");
                            continue;
                        }
                        let w = &values[(id as usize * n_out + col) * n_in..][..n_in];
                        let (w, x) = form.multiplied(ty, w, x);
                        let products = w.iter().zip(&x).map(|(w, x)| w * x);
                        let size: f64 = products.clone().map(f64::abs).sum();
                        let away = (f64::from(found) - products.sum::<f64>()).abs();
                        let slack = form.slack(ty) * size + 1e-6;
                        assert!(away <= slack, "{case:?}: {row} {slot} {col}: {away:e}");
                    }
                }
                first_col += N_CHOSEN * n_out;
            }
        }
        bits(&all)
    }

    const SMALL: Case = Case {
        ty: BlockType::F32,
        n_rows: 6,
        n_in: 100,
        n_out: [19, 6],
        is_shared: true,
        form: Form::Pairs,
    };

    #[cfg_attr(test, test)]
    fn products_with_the_experts_that_rows_chose() {
        let on = kernels();
        for (i, ty) in BLOCK_TYPES.into_iter().enumerate() {
            let n_in = if ty.block_len() == 1 { 100 } else { 96.max(ty.block_len()) };
            let n_in = n_in.next_multiple_of(ty.block_len());
            check(&on, Case { ty, n_in, is_shared: i % 2 == 0, ..SMALL });
        }
        // Rows longer than a step of a warp.
        check(&on, Case { ty: BlockType::F16, n_in: 601, ..SMALL });
        check(&on, Case { ty: BlockType::Q4_0, n_in: 1056, is_shared: false, ..SMALL });
    }

    #[cfg_attr(test, test)]
    fn products_of_8_bit_integers() {
        let on = kernels();
        for (i, ty) in BLOCK_TYPES.into_iter().filter(|&ty| takes_quantized(ty)).enumerate() {
            let case = Case { ty, form: Form::Int8, ..SMALL };
            check(
                &on,
                Case {
                    n_in: 96_usize.next_multiple_of(ty.block_len()),
                    is_shared: i % 2 == 0,
                    ..case
                },
            );
            if ty.block_len() == 32 {
                check(&on, Case { n_in: 256, is_shared: i % 2 == 1, ..case });
            }
        }
        let n_in = 1056;
        check(&on, Case { ty: BlockType::Q4_0, form: Form::Int8, n_in, is_shared: false, ..SMALL });
    }

    #[cfg_attr(test, test)]
    fn products_for_prefill() {
        let on = kernels();
        let case = Case { form: Form::Tiles(PairTiles::SmallPrefill), ..SMALL };
        for (i, ty) in BLOCK_TYPES.into_iter().enumerate() {
            let n_in = if ty.block_len() == 1 { 100 } else { 96.max(ty.block_len()) };
            let n_in = n_in.next_multiple_of(ty.block_len());
            check(&on, Case { ty, n_in, is_shared: i % 2 == 0, ..case });
        }
        // Partial blocks of rows, and full, mostly full and mostly empty tiles.
        let case = Case { form: Form::Tiles(PairTiles::LargePrefill), ..SMALL };
        check(&on, Case { ty: BlockType::BF16, n_in: 29, n_rows: 110, ..case });
        check(&on, Case { ty: BlockType::Q4_1, n_in: 32, n_rows: 78, n_out: [130, 7], ..case });
        // Rows shorter than a step.
        for (ty, n_in) in [(BlockType::F32, 3), (BlockType::F32, 16), (BlockType::F16, 8)] {
            check(&on, Case { ty, n_in, is_shared: n_in == 3, ..case });
        }
    }

    #[cfg_attr(test, test)]
    fn products_for_prefill_in_half_precision() {
        let on = kernels();
        let case = Case { form: Form::HalfTiles(PairTiles::SmallPrefill), ..SMALL };
        for (i, ty) in BLOCK_TYPES.into_iter().filter(|&ty| ty != BlockType::F32).enumerate() {
            let n_in = 128.max(ty.block_len());
            check(&on, Case { ty, n_in, is_shared: i % 2 == 0, ..case });
        }
        check(&on, Case { ty: BlockType::F16, n_in: 100, n_rows: 40, n_out: [70, 3], ..case });
        let case = Case { form: Form::HalfTiles(PairTiles::LargePrefill), ..SMALL };
        check(&on, Case { ty: BlockType::Q8_0, n_in: 96, n_rows: 70, n_out: [130, 7], ..case });
    }

    #[cfg_attr(test, test)]
    fn products_for_prefill_of_8_bit_integers() {
        let on = kernels();
        let case = Case { form: Form::Int8Tiles(PairTiles::SmallPrefill), ..SMALL };
        for (i, ty) in BLOCK_TYPES.into_iter().filter(|&ty| takes_quantized(ty)).enumerate() {
            check(
                &on,
                Case {
                    ty,
                    n_in: 96_usize.next_multiple_of(ty.block_len()),
                    is_shared: i % 2 == 0,
                    ..case
                },
            );
        }
        check(&on, Case { ty: BlockType::Q5_1, n_in: 64, n_rows: 40, n_out: [70, 3], ..case });
        let case = Case { form: Form::Int8Tiles(PairTiles::LargePrefill), ..SMALL };
        check(&on, Case { ty: BlockType::Q4_0, n_in: 96, n_rows: 70, n_out: [130, 7], ..case });
    }

    #[cfg_attr(test, test)]
    fn tiles_of_either_size_have_the_same_bits() {
        assert_eq!(PairTiles::for_prefill(1000, 20), PairTiles::LargePrefill);
        assert_eq!(PairTiles::for_prefill(1000, 40), PairTiles::SmallPrefill);
        let on = kernels();
        for (ty, forms) in [
            (BlockType::F32, [PairTiles::SmallPrefill, PairTiles::LargePrefill].map(Form::Tiles)),
            (
                BlockType::Q4_K,
                [PairTiles::SmallPrefill, PairTiles::LargePrefill].map(Form::HalfTiles),
            ),
            (
                BlockType::Q6_K,
                [PairTiles::SmallPrefill, PairTiles::LargePrefill].map(Form::Int8Tiles),
            ),
        ] {
            let case = Case { ty, n_in: 256, n_rows: 38, ..SMALL };
            let [small, large] = forms.map(|form| check(&on, Case { form, ..case }));
            assert_eq!(small, large, "{ty}");
        }
    }

    #[cfg_attr(test, test)]
    fn matrices_of_different_types_are_multiplied_one_after_the_other() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let mut random = Random(5);
        let types = [BlockType::F32, BlockType::Q8_0, BlockType::Q8_0, BlockType::Q8_0];
        let parts = types.map(|ty| weights(ty, 2 * 3, 32, &mut random));
        let matrices: Vec<_> = (types.iter().zip(&parts))
            .map(|(&ty, (bytes, _))| {
                Matrix::upload(device, &stream, "w", ty, 6, 32, bytes).unwrap()
            })
            .collect();
        let matrices: Vec<&Matrix<_>> = matrices.iter().collect();
        let x = random.floats(32);
        let values = on_device(device, &stream, &[&x[..], &routes(&[&[1.0]])].concat());
        let out = on_device(device, &stream, &[0.0f32; 12]);
        let linear = ExpertLinear {
            matrices: &matrices,
            n_experts: 2,
            x: Rows::vector(&values, 32),
            routes: Rows::vector_at(&values, 32, 2),
            out: Rows::vector(&out, 12),
        };
        expert_matvec(&kernels, &stream, &linear, None).unwrap();
        let found = read(&stream, &out, 12);
        for (i, found) in found.iter().enumerate() {
            let w = &parts[i / 3].1[(3 + i % 3) * 32..][..32];
            let wanted: f64 = w.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            assert!((f64::from(*found) - wanted).abs() < 1e-5, "{i}: {found} {wanted}");
        }
    }

    crate::testing::tests![
        pairs_are_sorted_by_expert_and_keep_their_order,
        experts_that_do_not_exist_are_reported,
        products_with_the_experts_that_rows_chose,
        products_of_8_bit_integers,
        products_for_prefill,
        products_for_prefill_in_half_precision,
        products_for_prefill_of_8_bit_integers,
        tiles_of_either_size_have_the_same_bits,
        matrices_of_different_types_are_multiplied_one_after_the_other,
    ];
}
