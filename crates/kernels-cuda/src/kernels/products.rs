//! The kernels of the products with each block type. A type has an image of its own, which is loaded when a matrix of
//! that type is first multiplied or [`Kernels::prepare`] asks for it: a model has few types, and a driver takes its
//! time to compile an image that it has not seen.

use std::sync::OnceLock;

use realizar_quant::BlockType;

use super::lazy::get_or_load;
use crate::Error;
use crate::device::Device;
use crate::image::Image;
use crate::matrix::{BLOCK_TYPES, INTEGER_TYPES};

/// The images, in the order of [`BLOCK_TYPES`]; see [`shared_kernels`].
const IMAGES: [&[u8]; BLOCK_TYPES.len()] = [
    include_bytes!("../../image/type_f32.ptx.br"),
    include_bytes!("../../image/type_f16.ptx.br"),
    include_bytes!("../../image/type_bf16.ptx.br"),
    include_bytes!("../../image/type_q4_0.ptx.br"),
    include_bytes!("../../image/type_q4_1.ptx.br"),
    include_bytes!("../../image/type_q5_0.ptx.br"),
    include_bytes!("../../image/type_q5_1.ptx.br"),
    include_bytes!("../../image/type_q8_0.ptx.br"),
    include_bytes!("../../image/type_q4_k.ptx.br"),
    include_bytes!("../../image/type_q5_k.ptx.br"),
    include_bytes!("../../image/type_q6_k.ptx.br"),
    include_bytes!("../../image/type_q2_k.ptx.br"),
    include_bytes!("../../image/type_q3_k.ptx.br"),
    include_bytes!("../../image/type_iq4_nl.ptx.br"),
    include_bytes!("../../image/type_iq4_xs.ptx.br"),
    include_bytes!("../../image/type_mxfp4.ptx.br"),
    include_bytes!("../../image/type_q4_z.ptx.br"),
    include_bytes!("../../image/type_f8_0.ptx.br"),
    include_bytes!("../../image/type_iq1_s.ptx.br"),
    include_bytes!("../../image/type_iq1_s.ptx.br"),
    include_bytes!("../../image/type_iq2_s.ptx.br"),
    include_bytes!("../../image/type_iq2_s.ptx.br"),
    include_bytes!("../../image/type_iq2_s.ptx.br"),
    include_bytes!("../../image/type_iq3_xxs.ptx.br"),
    include_bytes!("../../image/type_iq3_s.ptx.br"),
    include_bytes!("../../image/type_tq2_0.ptx.br"),
    include_bytes!("../../image/type_tq2_0.ptx.br"),
    include_bytes!("../../image/type_nvfp4.ptx.br"),
    include_bytes!("../../image/type_q1_0.ptx.br"),
    include_bytes!("../../image/type_q2_0.ptx.br"),
];
/// Products of several types at once.
const MIXED: &[u8] = include_bytes!("../../image/matvec_mixed.ptx.br");

/// Rows of activations that a read of F32 weights serves in decode steps: a kernel for each.
pub(crate) const MATVEC_COLS: [usize; 2] = [1, 4];
/// The same of 8-bit activations.
pub(crate) const INT8_COLS: [usize; 3] = [1, 2, 4];
/// Rows of activations and of weights, alike, that a tile of them has where there are many.
pub(crate) const INT8_TILE: usize = 32;
/// Rows of activations and of weights that a tile has: a kernel for each, with these threads.
pub(crate) const TILES: [Tile; 2] = [
    Tile { x_rows: 128, w_rows: 128, threads: 256 },
    Tile { x_rows: 32, w_rows: 32, threads: 128 },
];

/// Rows of weights and of activations of a block of decode rows in parts, where these are few: a kernel for each.
pub(crate) const PARTS_FEW: [Tile; 3] = [
    Tile { x_rows: 4, w_rows: 16, threads: 256 },
    Tile { x_rows: 4, w_rows: 32, threads: 256 },
    Tile { x_rows: 8, w_rows: 32, threads: 256 },
];
/// The same of tiles for many: an activation has two parts, so that they have twice as many columns.
pub(crate) const PARTS_TILES: [Tile; 4] = [
    Tile { x_rows: 32, w_rows: 32, threads: 128 },
    Tile { x_rows: 32, w_rows: 64, threads: 128 },
    Tile { x_rows: 64, w_rows: 64, threads: 128 },
    Tile { x_rows: 64, w_rows: 128, threads: 256 },
];

/// The same of decode rows in BF16 by levels, where these are few.
pub(crate) const LEVELS_FEW: [Tile; 3] = [
    Tile { x_rows: 8, w_rows: 16, threads: 256 },
    Tile { x_rows: 8, w_rows: 32, threads: 256 },
    Tile { x_rows: 32, w_rows: 32, threads: 256 },
];
/// The same of tiles for many, and their dynamic shared memory: `tile_bytes` of `cuda/matvec_levels.cuh`.
pub(crate) const LEVELS_TILES: [Tile; 2] =
    [Tile { x_rows: 64, w_rows: 64, threads: 256 }, Tile { x_rows: 64, w_rows: 128, threads: 256 }];
pub(crate) const LEVELS_SHARED: u32 = 96 * 1024;

/// A size of tiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) x_rows: usize,
    pub(crate) w_rows: usize,
    pub(crate) threads: u32,
}

/// Blocks that keep a large card's processors busy: tiles are as large as there are this many.
pub(crate) const MIN_BLOCKS: usize = 108;

impl Tile {
    /// Blocks of weight rows and of activation rows.
    pub(crate) fn n_blocks(self, n_rows: usize, n_batch: usize) -> [usize; 2] {
        [n_rows.div_ceil(self.w_rows), n_batch.div_ceil(self.x_rows)]
    }

    /// The grid of a kernel for few rows of activations.
    pub(crate) fn grid_of_few(self, n_rows: usize, n_batch: usize) -> [u32; 3] {
        let [w, x] = self.n_blocks(n_rows, n_batch);
        assert!(x <= 65535, "{x} blocks of rows");
        [w as u32, x as u32, 1]
    }

    /// The grid of a kernel for many: neighbours share weights.
    pub(crate) fn grid_of_many(self, n_rows: usize, n_batch: usize) -> [u32; 3] {
        let [w, x] = self.n_blocks(n_rows, n_batch);
        assert!(w <= 65535, "{w} blocks of rows");
        [x as u32, w as u32, 1]
    }
}

/// The kernels of a block type.
#[derive(Debug)]
pub(crate) struct ProductKernels<D: Device> {
    pub(crate) matvec: [D::Function; MATVEC_COLS.len()],
    pub(crate) matmul: D::Function,
    /// Of all types but F32.
    pub(crate) matmul_half: Option<[D::Function; TILES.len()]>,
    /// Of types of integer levels.
    pub(crate) int8: Option<Int8Kernels<D>>,
    /// Of types of integer levels, with activations in BF16.
    pub(crate) levels: Option<LevelsKernels<D>>,
    /// Of types that take activations in parts.
    pub(crate) parts: Option<PartsKernels<D>>,
}

/// The kernels of a block type with activations in parts.
#[derive(Debug)]
pub(crate) struct PartsKernels<D: Device> {
    pub(crate) few: [D::Function; PARTS_FEW.len()],
    pub(crate) tiles: [D::Function; PARTS_TILES.len()],
}

/// The kernels of a block type of levels with activations in BF16.
#[derive(Debug)]
pub(crate) struct LevelsKernels<D: Device> {
    pub(crate) few: [D::Function; LEVELS_FEW.len()],
    /// With a gated activation after two matrices.
    pub(crate) gated: D::Function,
    pub(crate) tiles: [D::Function; LEVELS_TILES.len()],
}

/// The kernels of a block type with 8-bit activations.
#[derive(Debug)]
pub(crate) struct Int8Kernels<D: Device> {
    pub(crate) matvec: [D::Function; INT8_COLS.len()],
    /// With a gated activation after two matrices.
    pub(crate) gated: [D::Function; INT8_COLS.len()],
    /// For many rows of decode steps, with the bits of `matvec`; not of types with units of 64 columns.
    pub(crate) matvec_tiles: Option<D::Function>,
    pub(crate) matmul: [D::Function; TILES.len()],
}

impl<D: Device> ProductKernels<D> {
    fn load(device: &D, index: usize) -> Result<Self, Error> {
        let ty = BLOCK_TYPES[index];
        let name = ty.name().to_lowercase();
        let image = Image::load(device, &format!("type_{name}"), IMAGES[index])?;
        let tiles =
            |what: &str| image.functions(TILES, |tile| format!("{what}_{name}_{}", tile.x_rows));
        let int8 = || {
            let matvec = image.functions(INT8_COLS, |cols| format!("matvec_int8_{name}_{cols}"))?;
            let gated = image.functions(INT8_COLS, |cols| format!("gated_int8_{name}_{cols}"))?;
            let tiled = !has_long_units(ty);
            let tile = || image.function(&format!("matvec_int8_{name}_{INT8_TILE}"));
            let matvec_tiles = tiled.then(tile).transpose()?;
            Ok(Int8Kernels { matvec, gated, matvec_tiles, matmul: tiles("matmul_int8")? })
        };
        let levels = || {
            let few = |t: Tile| format!("matvec_levels_{name}_{}x{}", t.w_rows / 16, t.x_rows / 8);
            let tiles = |t: Tile| format!("matmul_levels_{name}_{}", t.w_rows);
            let tiles = image.functions(LEVELS_TILES, tiles)?;
            for tile in &tiles {
                device.allow_shared(tile, LEVELS_SHARED)?;
            }
            let gated = image.function(&format!("gated_levels_{name}"))?;
            Ok::<_, Error>(LevelsKernels { few: image.functions(LEVELS_FEW, few)?, gated, tiles })
        };
        let parts = || {
            let few = |t: Tile| format!("matvec_parts_{name}_{}x{}", t.w_rows / 16, t.x_rows / 4);
            let tiles = |t: Tile| format!("matmul_parts_{name}_{}x{}", t.w_rows, 2 * t.x_rows);
            let (few, tiles) =
                (image.functions(PARTS_FEW, few)?, image.functions(PARTS_TILES, tiles)?);
            Ok::<_, Error>(PartsKernels { few, tiles })
        };
        Ok(Self {
            matvec: image.functions(MATVEC_COLS, |cols| format!("matvec_{name}_{cols}"))?,
            matmul: image.function(&format!("matmul_f32_{name}"))?,
            matmul_half: (ty != BlockType::F32).then(|| tiles("matmul_half")).transpose()?,
            int8: takes_quantized(ty).then(int8).transpose()?,
            levels: takes_quantized(ty).then(levels).transpose()?,
            parts: takes_parts(ty).then(parts).transpose()?,
        })
    }
}

/// The type whose kernels multiply a type: those that are packed alike, with levels of the same numbers, share them.
pub(super) const fn shared_kernels(ty: BlockType) -> BlockType {
    match ty {
        BlockType::IQ1_M => BlockType::IQ1_S,
        BlockType::IQ2_XXS | BlockType::IQ2_XS => BlockType::IQ2_S,
        BlockType::TQ1_0 => BlockType::TQ2_0,
        ty => ty,
    }
}

/// Whether a unit of a type of integer levels has 64 columns: those of two and three bits.
const fn has_long_units(ty: BlockType) -> bool {
    matches!(
        ty,
        BlockType::Q2_K
            | BlockType::Q3_K
            | BlockType::IQ1_S
            | BlockType::IQ1_M
            | BlockType::IQ2_XXS
            | BlockType::IQ2_XS
            | BlockType::IQ2_S
            | BlockType::TQ1_0
            | BlockType::TQ2_0
            | BlockType::Q1_0
            | BlockType::Q2_0
    )
}

/// Whether products with matrices of this type can take quantized activations: all types of integer levels do.
pub fn takes_quantized(ty: BlockType) -> bool {
    INTEGER_TYPES.contains(&ty)
}

/// Whether products with matrices of this type can take activations in parts: those of floats of 8 or 16 bits do.
pub fn takes_parts(ty: BlockType) -> bool {
    matches!(ty, BlockType::F16 | BlockType::BF16 | BlockType::F8_0)
}

/// The kernels of all products, as far as they were loaded.
#[derive(Debug)]
pub(crate) struct Products<D: Device> {
    by_type: [OnceLock<ProductKernels<D>>; BLOCK_TYPES.len()],
    mixed: OnceLock<[D::Function; INT8_COLS.len()]>,
}

impl<D: Device> Default for Products<D> {
    fn default() -> Self {
        Self { by_type: [const { OnceLock::new() }; BLOCK_TYPES.len()], mixed: OnceLock::new() }
    }
}

impl<D: Device> Products<D> {
    /// The kernels of a block type.
    pub(super) fn of(&self, device: &D, ty: BlockType) -> Result<&ProductKernels<D>, Error> {
        let shared = shared_kernels(ty);
        let index = BLOCK_TYPES.iter().position(|&t| t == shared).ok_or(Error::BlockType(ty))?;
        get_or_load(&self.by_type[index], || ProductKernels::load(device, index))
    }

    /// The kernels of products with matrices of several K types.
    pub(super) fn mixed(&self, device: &D) -> Result<&[D::Function; INT8_COLS.len()], Error> {
        get_or_load(&self.mixed, || {
            let image = Image::load(device, "matvec_mixed", MIXED)?;
            image.functions(INT8_COLS, |cols| format!("matvec_int8_mixed_{cols}"))
        })
    }
}

/// The number of a type for products of several types: its place in `FOR_EACH_K_TYPE`.
pub(crate) fn mixed_index(ty: BlockType) -> Option<usize> {
    [BlockType::Q2_K, BlockType::Q3_K, BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K]
        .iter()
        .position(|&t| t == ty)
}
