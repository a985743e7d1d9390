//! Products with prefill rows by `wgmma`, the warp-group instructions of compute capability 9.0. Activations are loaded
//! by bulk copies, and weights are passed in registers.
//!
//! These kernels are only used by code that loads [`WgmmaKernels`], because their bits differ from those of
//! [`matmul_half`](super::matmul_half). Tests compare them with that and with exact sums.

use std::sync::Arc;

use realizar_quant::BlockType;

use super::round::{HalfType, half_type};
use super::rows::optional;
use crate::device::{Argument, Device};
use crate::image::Image;
use crate::kernels::{Kernels, activation_argument, enough_blocks};
use crate::{Activation, Buffer, Error, Matrix, Rows};

const IMAGE: &[u8] = include_bytes!("../../image/wgmma.ptx.br");
const GROUP_IMAGE: &[u8] = include_bytes!("../../image/group_rows.ptx.br");
/// Weight types with kernels.
const TYPES: [BlockType; 5] =
    [BlockType::F16, BlockType::BF16, BlockType::Q8_0, BlockType::Q4_K, BlockType::Q6_K];
/// Activation rows of a tile, one kernel each.
const X_ROWS: [usize; 2] = [128, 256];
/// Weight rows of a tile.
const W_ROWS: usize = 128;
/// Threads of a tile: two warp groups that multiply and one that copies.
const THREADS: u32 = 384;
/// Dynamic shared memory of a tile: `tile_bytes` of `cuda/matmul_wgmma.cuh`, and two barriers per stage.
const SHARED_BYTES: u32 = 20 * 8192 + 16 * 10;
/// Columns of a span. Rows are padded with zeros to a multiple of it.
const SPAN: usize = 128;
/// Columns of a stage, which are contiguous in memory for each row.
#[cfg(any(test, feature = "tests", feature = "bench"))]
const STAGE: usize = 64;
/// Rows and columns of a block of the packing kernels, and its warps.
const GROUPED_AT_ONCE: [usize; 2] = [8, 512];
const GROUP_WARPS: u32 = 8;

/// The kernels of a weight type, by [`X_ROWS`].
#[derive(Debug)]
struct OfType<D: Device> {
    plain: [D::Function; X_ROWS.len()],
    /// With a gated epilogue; none for F16, whose results would need a scale per row.
    gated: Option<[D::Function; X_ROWS.len()]>,
}

/// The `wgmma` kernels of a GPU of compute capability 9.0.
#[derive(Debug)]
pub struct WgmmaKernels<D: Device> {
    group: GroupKernels<D>,
    by_type: [OfType<D>; TYPES.len()],
}

/// The kernels that pack activations in the layout of `wgmma`. They run on any device.
#[derive(Debug)]
struct GroupKernels<D: Device> {
    f16: D::Function,
    bf16: D::Function,
}

impl<D: Device> GroupKernels<D> {
    fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "group_rows", GROUP_IMAGE)?;
        let [f16, bf16] = image.functions(["f16", "bf16"], |ty| format!("group_rows_{ty}"))?;
        Ok(Self { f16, bf16 })
    }

    fn queue(
        &self,
        kernels: &Kernels<D>,
        stream: &D::Stream,
        x: Rows<'_, D>,
        to: Grouped<'_, D>,
    ) -> Result<(), Error> {
        x.check(kernels, "x", to.n_rows, to.n_cols);
        x.check_aligned("x");
        to.check(kernels);
        let [values, room_rows, scales] = to.arguments();
        let [n_rows, n_cols] = [to.n_rows, to.n_cols].map(|n| Argument::I32(n as i32));
        let arguments = [x.address(), x.stride(), values, room_rows, scales, n_rows, n_cols];
        let function = match to.ty {
            HalfType::F16 => &self.f16,
            HalfType::BF16 => &self.bf16,
        };
        let [rows, cols] = GROUPED_AT_ONCE;
        let grid = [to.n_rows.div_ceil(rows) as u32, to.n_cols.div_ceil(cols) as u32, 1];
        // SAFETY: the arguments are those of `group_rows_*` in order. Rows and room were checked above; as `matvec`
        // says, buffers outlive queued work.
        unsafe { kernels.launch(stream, function, grid, [32, GROUP_WARPS], &arguments) }
    }
}

impl<D: Device> WgmmaKernels<D> {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the device rejects them, as all but GPUs of compute capability 9.0 do.
    pub fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "wgmma", IMAGE)?;
        let of_type = |ty: BlockType| {
            let name = ty.name().to_lowercase();
            let of = |what| image.functions(X_ROWS, |rows| format!("{what}_wgmma_{name}_{rows}"));
            let has_gate = half_type(ty) == Some(HalfType::BF16);
            let gated = has_gate.then(|| of("gated")).transpose()?;
            Ok(OfType { plain: of("matmul")?, gated })
        };
        let by_type: Result<Vec<_>, Error> = TYPES.into_iter().map(of_type).collect();
        let by_type = by_type?;
        for OfType { plain, gated } in &by_type {
            for function in plain.iter().chain(gated.iter().flatten()) {
                device.allow_shared(function, SHARED_BYTES)?;
            }
        }
        let Ok(by_type) = by_type.try_into() else { unreachable!("one for each type") };
        Ok(Self { group: GroupKernels::load(device)?, by_type })
    }

    /// Weight types with kernels.
    pub const TYPES: [BlockType; 5] = TYPES;

    /// Whether the type has kernels.
    pub fn takes(ty: BlockType) -> bool {
        TYPES.contains(&ty)
    }
}

/// Device memory for half-precision rows in the layout of `wgmma`.
#[derive(Debug)]
pub struct GroupedRows<D: Device> {
    /// For each stage of columns, `max_rows` rows of 128 swizzled bytes.
    values: Buffer<D>,
    /// Factors on the results of F16 rows, `f32`, `[max_rows]`.
    scales: Buffer<D>,
    max_rows: usize,
    max_cols: usize,
}

impl<D: Device> GroupedRows<D> {
    /// Bytes for `max_rows` rows of up to `max_cols` values.
    pub fn bytes(max_rows: usize, max_cols: usize) -> usize {
        max_rows.next_multiple_of(X_ROWS[1]) * (max_cols.next_multiple_of(SPAN) * 2 + 4)
    }

    /// Allocates memory for `max_rows` rows of up to `max_cols` values.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(device: &Arc<D>, max_rows: usize, max_cols: usize) -> Result<Self, Error> {
        let (max_rows, max_cols) =
            (max_rows.next_multiple_of(X_ROWS[1]), max_cols.next_multiple_of(SPAN));
        let n_bytes = max_rows * max_cols * 2;
        Ok(Self {
            values: Buffer::new(device, "activations in half precision", n_bytes)?,
            scales: Buffer::new(device, "the scales of rows in half precision", max_rows * 4)?,
            max_rows,
            max_cols,
        })
    }

    /// A view of the first `n_rows` rows, with `n_cols` values each.
    ///
    /// # Panics
    /// If they exceed the allocated memory.
    pub fn rows(&self, ty: HalfType, n_rows: usize, n_cols: usize) -> Grouped<'_, D> {
        assert!(
            n_rows > 0 && n_cols > 0 && n_rows <= self.max_rows && n_cols <= self.max_cols,
            "{n_rows} rows of {n_cols} values, room for {} of {}",
            self.max_rows,
            self.max_cols
        );
        Grouped { room: self, ty, n_rows, n_cols }
    }
}

/// A view of half-precision rows in the layout of `wgmma`.
#[derive(Debug)]
pub struct Grouped<'a, D: Device> {
    room: &'a GroupedRows<D>,
    ty: HalfType,
    n_rows: usize,
    n_cols: usize,
}

impl<D: Device> Clone for Grouped<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Grouped<'_, D> {}

impl<D: Device> Grouped<'_, D> {
    /// Type of the values.
    pub fn ty(&self) -> HalfType {
        self.ty
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Values per row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Asserts that the rows are on the kernels' device.
    pub(crate) fn check(&self, kernels: &Kernels<D>) {
        kernels.check("rows in half precision", &self.room.values, 0);
    }

    /// Waits for the rows and returns them by stages, including the padding.
    #[cfg(any(test, feature = "tests", feature = "bench"))]
    pub(crate) fn read(&self, stream: &D::Stream) -> Vec<Vec<u16>> {
        let of_stage = |stage: usize| {
            let mut values = vec![0; self.n_rows * STAGE];
            let at = stage * self.room.max_rows * STAGE * 2;
            self.room.values.read(stream, at, &mut values).unwrap();
            values
        };
        (0..self.n_cols.next_multiple_of(SPAN) / STAGE).map(of_stage).collect()
    }

    /// Addresses of values and scales, with the number of allocated rows between.
    pub(crate) fn arguments(&self) -> [Argument; 3] {
        let scales = match self.ty {
            HalfType::F16 => self.room.scales.address(),
            HalfType::BF16 => 0,
        };
        [
            Argument::Address(self.room.values.address()),
            Argument::I32(self.room.max_rows as i32),
            Argument::Address(scales),
        ]
    }
}

/// Queues the conversion of rows to half precision in the layout of `wgmma`.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or rows of `x` are not aligned to 16 bytes.
pub fn group_rows<D: Device>(
    kernels: &Kernels<D>,
    wgmma: &WgmmaKernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>, // [n_rows, n_cols]
    to: Grouped<'_, D>,
) -> Result<(), Error> {
    wgmma.group.queue(kernels, stream, x, to)
}

/// `out = matrix * x + bias + residual` by rows, with the product in half precision.
#[derive(Debug)]
pub struct LinearGrouped<'a, D: Device> {
    /// The weights, `[n_rows, n_cols]`.
    pub matrix: &'a Matrix<D>,
    /// Activations in the weights' [`half_type`], `[n_batch, n_cols]`.
    pub x: Grouped<'a, D>,
    /// Added to every row, `[1, n_rows]`.
    pub bias: Option<Rows<'a, D>>,
    /// Added by rows, `[n_batch, n_rows]`; it may be `out`.
    pub residual: Option<Rows<'a, D>>,
    /// The result, `[n_batch, n_rows]`.
    pub out: Rows<'a, D>,
}

/// Queues a product with F32 sums. The bits of a result row depend on its own activation row alone, and differ from
/// those of [`matmul_half`](super::matmul_half).
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes, types or devices do not match, or the matrix's type has no kernels.
pub fn matmul_wgmma<D: Device>(
    kernels: &Kernels<D>,
    wgmma: &WgmmaKernels<D>,
    stream: &D::Stream,
    linear: &LinearGrouped<'_, D>,
) -> Result<(), Error> {
    let tile = tile(kernels, linear.matrix.n_rows(), linear.x.n_rows);
    launch(kernels, wgmma, stream, linear, tile)
}

/// [`matmul_wgmma`] with a given kernel.
fn launch<D: Device>(
    kernels: &Kernels<D>,
    wgmma: &WgmmaKernels<D>,
    stream: &D::Stream,
    linear: &LinearGrouped<'_, D>,
    tile: usize,
) -> Result<(), Error> {
    let LinearGrouped { matrix, x, bias, residual, out } = linear;
    let (n_batch, n_rows) = (x.n_rows, matrix.n_rows());
    let of_type = wgmma.of(kernels, matrix, x);
    out.check(kernels, "out", n_batch, n_rows);
    if let Some(bias) = bias {
        bias.check(kernels, "bias", 1, n_rows);
    }
    if let Some(residual) = residual {
        residual.check(kernels, "residual", n_batch, n_rows);
    }
    let [main, high, head] = matrix.planes();
    let [values, room_rows, scales] = x.arguments();
    let [residual, residual_stride] = optional(*residual);
    let arguments = [
        main,
        high,
        head,
        values,
        room_rows,
        scales,
        optional(*bias)[0],
        residual,
        residual_stride,
        out.address(),
        out.stride(),
        Argument::I32(n_rows as i32),
        Argument::I32(matrix.n_cols() as i32),
        Argument::I32(n_batch as i32),
    ];
    let (function, grid) = (&of_type.plain[tile], grid(n_rows.div_ceil(W_ROWS), n_batch, tile));
    let block = [THREADS, 1];
    // SAFETY: the arguments are those of `matmul_wgmma_*` in order, and so is the shared memory. The room has whole
    // tiles of rows and whole spans of columns, and otherwise as in `matvec`.
    unsafe { kernels.launch_with_shared(stream, function, grid, block, SHARED_BYTES, &arguments) }
}

fn grid(n_tiles: usize, n_batch: usize, tile: usize) -> [u32; 3] {
    assert!(n_tiles <= 65535, "{n_tiles} tiles of weights");
    [n_batch.div_ceil(X_ROWS[tile]) as u32, n_tiles as u32, 1]
}

impl<D: Device> WgmmaKernels<D> {
    /// The kernels for a matrix, after asserting that its shape and type match the activations.
    fn of(&self, kernels: &Kernels<D>, matrix: &Matrix<D>, x: &Grouped<'_, D>) -> &OfType<D> {
        let ty = matrix.ty();
        let Some(idx) = TYPES.iter().position(|&of| of == ty) else {
            panic!("no kernel for weights of {ty}")
        };
        assert_eq!(half_type(ty), Some(x.ty), "weights of {ty}");
        assert_eq!(x.n_cols, matrix.n_cols(), "columns of x");
        x.check(kernels);
        kernels.check("the matrix", matrix.buffer(), 0);
        &self.by_type[idx]
    }
}

/// `to = act(gate * x) * (up * x)` by rows. Each product includes its half of the bias.
#[derive(Debug)]
pub struct GatedGrouped<'a, D: Device> {
    /// The gate rows, then as many up rows, `[2 * n_rows, n_cols]`; not F16.
    pub matrix: &'a Matrix<D>,
    /// Whether the up rows are first instead.
    pub up_first: bool,
    /// Added to the products before the activation, `[1, 2 * n_rows]`.
    pub bias: Option<Rows<'a, D>>,
    /// Activations in BF16, `[n_batch, n_cols]`.
    pub x: Grouped<'a, D>,
    /// The gate's activation.
    pub act: Activation,
    /// The result in BF16, `[n_batch, n_rows]`, not in the memory of `x`.
    pub to: Grouped<'a, D>,
}

/// Queues a gated product of prefill rows in one launch. The bits are those of [`matmul_wgmma`] followed by
/// [`quantize_activated`](crate::quantize_activated).
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes, types or devices do not match, the matrix's type has no kernels, or `to` is in the memory of `x`.
pub fn gated_wgmma<D: Device>(
    kernels: &Kernels<D>,
    wgmma: &WgmmaKernels<D>,
    stream: &D::Stream,
    gated: &GatedGrouped<'_, D>,
) -> Result<(), Error> {
    let tile = tile(kernels, gated.matrix.n_rows(), gated.x.n_rows);
    launch_gated(kernels, wgmma, stream, gated, tile)
}

/// [`gated_wgmma`] with a given kernel.
fn launch_gated<D: Device>(
    kernels: &Kernels<D>,
    wgmma: &WgmmaKernels<D>,
    stream: &D::Stream,
    gated: &GatedGrouped<'_, D>,
    tile: usize,
) -> Result<(), Error> {
    let GatedGrouped { matrix, up_first, bias, x, act, to } = gated;
    let (n_batch, n_rows) = (x.n_rows, to.n_cols);
    let Some(functions) = &wgmma.of(kernels, matrix, x).gated else {
        panic!("no gated products with weights of {}", matrix.ty())
    };
    assert_eq!(matrix.n_rows(), 2 * n_rows, "rows of a gate and of what it lets through");
    assert_eq!((to.ty, to.n_rows), (x.ty, n_batch), "the results");
    assert!(!std::ptr::eq(to.room, x.room), "the activations are where the results go");
    to.check(kernels);
    if let Some(bias) = bias {
        bias.check(kernels, "bias", 1, 2 * n_rows);
    }
    let [main, high, head] = matrix.planes();
    let ([values, room_rows, _], [to_values, to_rows, _]) = (x.arguments(), to.arguments());
    let arguments = [
        main,
        high,
        head,
        values,
        room_rows,
        optional(*bias)[0],
        Argument::I32(i32::from(*up_first)),
        activation_argument(*act),
        to_values,
        to_rows,
        Argument::I32(n_rows as i32),
        Argument::I32(matrix.n_cols() as i32),
        Argument::I32(n_batch as i32),
    ];
    // Both halves of a tile belong to the same results, so a span of results takes two tiles.
    let grid = grid(2 * n_rows.div_ceil(SPAN), n_batch, tile);
    let (function, block) = (&functions[tile], [THREADS, 1]);
    // SAFETY: the arguments are those of `gated_wgmma_*` in order, and otherwise as in `launch`; the room of the
    // results has whole spans of columns, too.
    unsafe { kernels.launch_with_shared(stream, function, grid, block, SHARED_BYTES, &arguments) }
}

/// The kernel for a shape on the device. The choice does not affect bits.
fn tile<D: Device>(kernels: &Kernels<D>, n_rows: usize, n_batch: usize) -> usize {
    tile_for(n_rows, n_batch, kernels.device().n_multiprocessors())
}

/// The larger tile where it yields enough blocks.
fn tile_for(n_rows: usize, n_batch: usize, n_multiprocessors: usize) -> usize {
    let n_blocks = n_rows.div_ceil(W_ROWS) * n_batch.div_ceil(X_ROWS[1]);
    usize::from(n_batch > X_ROWS[0] && n_blocks >= enough_blocks(n_multiprocessors))
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{
        Random, TestDevice, halved, is_gpu, kernels, on_device, read, weights, wgmma_kernels,
    };
    use crate::{HalfRows, LinearHalf, ProductRows, matmul_half, quantize_activated, round_rows};

    #[cfg_attr(test, test)]
    fn rows_are_rounded_in_the_order_of_the_products() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let group = GroupKernels::load(&**device).unwrap();
        let (n_rows, n_cols, stride) = (11, 165, 168);
        let mut x = Random(8).floats(n_rows * stride);
        x[3 * stride..4 * stride].iter_mut().for_each(|x| *x *= 1e20);
        let at = on_device(device, &stream, &x);
        for (half, ty) in [(HalfType::F16, BlockType::F16), (HalfType::BF16, BlockType::BF16)] {
            let room = GroupedRows::new(device, n_rows, n_cols).unwrap();
            let n_bytes = room.values.n_bytes() + room.scales.n_bytes();
            assert_eq!(GroupedRows::<crate::testing::TestDevice>::bytes(n_rows, n_cols), n_bytes);
            let rows = Rows::new(&at, 0, n_rows, n_cols, stride);
            group.queue(&kernels, &stream, rows, room.rows(half, n_rows, n_cols)).unwrap();
            let mut scales = [0.0f32; 11];
            if half == HalfType::F16 {
                room.scales.read(&stream, 0, &mut scales).unwrap();
            }
            for stage in 0..2 * SPAN / STAGE {
                let mut found = vec![0u16; n_rows * STAGE];
                room.values.read(&stream, stage * X_ROWS[1] * STAGE * 2, &mut found).unwrap();
                for row in 0..n_rows {
                    let x = &x[row * stride..][..n_cols];
                    let scale = match half {
                        HalfType::F16 => {
                            let top = x.iter().fold(0.0f32, |top, x| top.max(x.abs()));
                            let scale = (14.0 - top.log2().floor()).exp2();
                            assert_eq!(scales[row], 1.0 / scale);
                            scale
                        }
                        HalfType::BF16 => 1.0,
                    };
                    for (i, &found) in found[row * STAGE..][..STAGE].iter().enumerate() {
                        // Pairs of four columns that are 32 columns apart: the first in even groups of eight, the
                        // second in odd ones. Groups of eight are swizzled.
                        let (eight, place) = (stage * 8 + ((i / 8) ^ (row % 8)), i % 8);
                        let (span, step) = (eight / 16 * SPAN, eight % 16 / 2 * 4);
                        let col = span + place / 2 * 32 + step + eight % 2 * 2 + place % 2;
                        let expected = x.get(col).map_or(0, |x| halved(ty, scale * x).0);
                        assert_eq!(found, expected, "{half:?} {row} {col}");
                    }
                }
            }
        }
    }

    #[cfg_attr(test, test)]
    fn tiles_are_larger_where_there_are_enough() {
        let shapes = [(4096, 512), (4096, 1024), (28672, 512), (28672, 128)];
        for (n_multiprocessors, expected) in [(132, [0, 1, 1, 0]), (148, [0, 0, 1, 0])] {
            let found =
                shapes.map(|(n_rows, n_batch)| tile_for(n_rows, n_batch, n_multiprocessors));
            assert_eq!(found, expected, "{n_multiprocessors}");
        }
    }

    /// A product that is computed with each kernel.
    struct Case {
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        n_batch: usize,
        tile: usize,
    }

    #[cfg_attr(test, test)]
    fn products_are_those_of_other_tensor_cores() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let Some(wgmma) = wgmma_kernels(device) else { return };
        for (i, ty) in TYPES.into_iter().enumerate() {
            // Partial tiles, spans and units; then more steps than stages and more than one tile.
            let cols = match ty.block_len() {
                1 => [45, 520],
                32 => [96, 544],
                _ => [256, 768],
            };
            let shapes = [(70, cols[0], 3), (200, cols[1], 257)];
            for tile in 0..X_ROWS.len() {
                let (n_rows, n_cols, n_batch) = shapes[(i + tile) % 2];
                check(&wgmma, &kernels, &stream, &Case { ty, n_rows, n_cols, n_batch, tile });
            }
            if is_gpu() {
                let (n_rows, n_cols, n_batch) = (24000, cols[1], 130);
                let tile = super::tile(&kernels, n_rows, n_batch);
                check(&wgmma, &kernels, &stream, &Case { ty, n_rows, n_cols, n_batch, tile });
            }
        }
    }

    #[cfg_attr(test, test)]
    fn gated_products_are_those_of_single_launches() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let Some(wgmma) = wgmma_kernels(device) else { return };
        let types = TYPES.into_iter().filter(|&ty| half_type(ty) == Some(HalfType::BF16));
        for (i, ty) in types.enumerate() {
            for tile in 0..X_ROWS.len() {
                // Partial tiles and spans of results, and several of each.
                let (n_rows, n_batch) = [(32, 3), (160, 131)][(i + tile) % 2];
                let (n_cols, up_first) = (256, i % 2 == 1);
                let mut random = Random(21);
                let (bytes, _) = weights(ty, 2 * n_rows, n_cols, &mut random);
                let matrix =
                    Matrix::upload(device, &stream, "w", ty, 2 * n_rows, n_cols, &bytes).unwrap();
                let x = random.floats(n_batch * n_cols);
                let bias = random.floats(2 * n_rows);
                let [x, bias] = [&x, &bias].map(|of| on_device(device, &stream, of));
                let bias = (i < 2).then(|| Rows::vector(&bias, 2 * n_rows));
                let room = GroupedRows::new(device, n_batch, n_cols).unwrap();
                let of_x = room.rows(HalfType::BF16, n_batch, n_cols);
                let x = Rows::new(&x, 0, n_batch, n_cols, n_cols);
                group_rows(&kernels, &wgmma, &stream, x, of_x).unwrap();

                let rooms = [0, 1].map(|_| GroupedRows::new(device, n_batch, n_rows).unwrap());
                let to = |i: usize| rooms[i].rows(HalfType::BF16, n_batch, n_rows);
                let both = on_device(device, &stream, &vec![0.0f32; n_batch * 2 * n_rows]);
                let half = |first| Rows::new(&both, first, n_batch, n_rows, 2 * n_rows);
                let out = Rows::new(&both, 0, n_batch, 2 * n_rows, 2 * n_rows);
                let linear = LinearGrouped { matrix: &matrix, x: of_x, bias, residual: None, out };
                launch(&kernels, &wgmma, &stream, &linear, tile).unwrap();
                let (gate, up) = if up_first { (n_rows, 0) } else { (0, n_rows) };
                let (gate, up, act) = (half(gate), Some(half(up)), Activation::Silu);
                let expected = ProductRows::Grouped(to(0));
                quantize_activated(&kernels, &stream, act, gate, up, None, expected).unwrap();

                let gated =
                    GatedGrouped { matrix: &matrix, up_first, bias, x: of_x, act, to: to(1) };
                launch_gated(&kernels, &wgmma, &stream, &gated, tile).unwrap();
                assert_eq!(to(1).read(&stream), to(0).read(&stream), "{ty} {n_rows} by {n_batch}");
            }
        }
    }

    fn check(
        wgmma: &WgmmaKernels<TestDevice>,
        kernels: &Kernels<TestDevice>,
        stream: &realizar_ptx::Stream,
        case: &Case,
    ) {
        let &Case { ty, n_rows, n_cols, n_batch, tile } = case;
        let device = kernels.device();
        let mut random = Random(4);
        let (bytes, values) = weights(ty, n_rows, n_cols, &mut random);
        let matrix = Matrix::upload(device, stream, "w", ty, n_rows, n_cols, &bytes).unwrap();
        let x_stride = n_cols.next_multiple_of(4);
        let x = random.floats(n_batch * x_stride);
        let x_at = on_device(device, stream, &x);
        let (bias, first) = (random.floats(n_rows), random.floats(n_batch * n_rows));
        let bias_at = on_device(device, stream, &bias);
        let bias = Some(Rows::vector(&bias_at, n_rows));
        let half = half_type(ty).unwrap();
        let outs = [0, 1, 2].map(|_| on_device(device, stream, &first));
        let rows = |from: usize, n: usize| Rows::new(&x_at, from * x_stride, n, n_cols, x_stride);
        let product = |from: usize, n: usize, out: &Buffer<_>| {
            let room = GroupedRows::new(device, n, n_cols).unwrap();
            let to = room.rows(half, n, n_cols);
            group_rows(kernels, wgmma, stream, rows(from, n), to).unwrap();
            let out = Rows::new(out, from * n_rows, n, n_rows, n_rows);
            let linear = LinearGrouped { matrix: &matrix, x: to, bias, residual: Some(out), out };
            launch(kernels, wgmma, stream, &linear, tile).unwrap();
            device.synchronize(stream).unwrap();
        };
        product(0, n_batch, &outs[0]);
        product(n_batch - 1, 1, &outs[1]);
        let room = HalfRows::new(device, n_batch, n_cols).unwrap();
        let to = room.rows(half, 0, n_batch, n_cols);
        round_rows(kernels, stream, rows(0, n_batch), to).unwrap();
        let out = Rows::new(&outs[2], 0, n_batch, n_rows, n_rows);
        let linear = LinearHalf { matrix: &matrix, x: to, bias, residual: Some(out), out };
        matmul_half(kernels, stream, &linear).unwrap();
        let [found, alone, other] = outs.each_ref().map(|out| read(stream, out, n_batch * n_rows));
        let last = (n_batch - 1) * n_rows..n_batch * n_rows;
        let mut pairs = found[last.clone()].iter().zip(&alone[last]);
        let name = format!("{ty} [{n_rows}, {n_cols}] x {n_batch}, {} at once", X_ROWS[tile]);
        assert!(pairs.all(|(a, b)| a.to_bits() == b.to_bits()), "{name}: alone");
        let bias = read(stream, &bias_at, n_rows);
        for (i, (a, b)) in found.iter().zip(&other).enumerate() {
            let (row, w) = (&x[i / n_rows * x_stride..][..n_cols], i % n_rows);
            let reach: f32 = row.iter().map(|x| x.abs()).sum();
            assert!((a - b).abs() <= 2e-6 * reach, "{name}, {i}: {a} {b}");
            // Some results are compared in F64, from weights and activations that are rounded as in the kernel.
            if i % 41 == 0 && half == HalfType::BF16 {
                let bf16 = |x: f32| f64::from(halved(BlockType::BF16, x).1);
                let w = &values[w * n_cols..][..n_cols];
                let dot: f64 = w.iter().zip(row).map(|(w, x)| bf16(*w) * bf16(*x)).sum();
                let exact = dot + f64::from(bias[i % n_rows]) + f64::from(first[i]);
                let away = (f64::from(*a) - exact).abs();
                assert!(away <= 1e-6 * f64::from(reach) + 4e-7, "{name}, {i}: {a} {exact}");
            }
        }
    }

    crate::testing::tests![
        rows_are_rounded_in_the_order_of_the_products,
        tiles_are_larger_where_there_are_enough,
        products_are_those_of_other_tensor_cores,
        gated_products_are_those_of_single_launches,
    ];
}
