//! Kernels of matrix products. Each block type has its own image, which is loaded on first use or by
//! [`Kernels::prepare`](super::Kernels::prepare): a model uses few types, and the driver takes long to compile an image
//! that it has not cached.

use std::sync::OnceLock;

use realizar_quant::BlockType;

use super::lazy::get_or_load;
use crate::Error;
use crate::device::Device;
use crate::image::Image;
use crate::matrix::{BLOCK_TYPES, INTEGER_TYPES};

/// Images in the order of [`BLOCK_TYPES`]; see [`shared_kernels`].
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
/// Image of products with matrices of several K types in one launch.
const MIXED: &[u8] = include_bytes!("../../image/matvec_mixed.ptx.br");

/// Activation rows per read of the weights in decode steps with F32 activations, one kernel each.
pub(crate) const MATVEC_COLS: [usize; 2] = [1, 4];
/// Activation rows per read of the weights in decode steps with 8-bit activations, one kernel each.
pub(crate) const INT8_COLS: [usize; 3] = [1, 2, 4];
/// Activation rows and weight rows of a tile for larger decode steps with 8-bit activations.
pub(crate) const INT8_TILE: usize = 32;
/// Tile sizes for prefill rows, one kernel each.
pub(crate) const TILES: [Tile; 2] = [
    Tile { x_rows: 128, w_rows: 128, threads: 256 },
    Tile { x_rows: 32, w_rows: 32, threads: 128 },
];

/// Block sizes for few decode rows with activations in two parts, one kernel each.
pub(crate) const PARTS_FEW: [Tile; 3] = [
    Tile { x_rows: 4, w_rows: 16, threads: 256 },
    Tile { x_rows: 4, w_rows: 32, threads: 256 },
    Tile { x_rows: 8, w_rows: 32, threads: 256 },
];
/// Tile sizes for more decode rows with activations in two parts. The parts double the number of columns.
pub(crate) const PARTS_TILES: [Tile; 4] = [
    Tile { x_rows: 32, w_rows: 32, threads: 128 },
    Tile { x_rows: 32, w_rows: 64, threads: 128 },
    Tile { x_rows: 64, w_rows: 64, threads: 128 },
    Tile { x_rows: 64, w_rows: 128, threads: 256 },
];

/// Block sizes for few decode rows with BF16 activations and integer levels.
pub(crate) const LEVELS_FEW: [Tile; 3] = [
    Tile { x_rows: 8, w_rows: 16, threads: 256 },
    Tile { x_rows: 8, w_rows: 32, threads: 256 },
    Tile { x_rows: 32, w_rows: 32, threads: 256 },
];
/// Tile sizes for more decode rows with BF16 activations, and their dynamic shared memory: `tile_bytes` of
/// `cuda/matvec_levels.cuh`.
pub(crate) const LEVELS_TILES: [Tile; 2] =
    [Tile { x_rows: 64, w_rows: 64, threads: 256 }, Tile { x_rows: 64, w_rows: 128, threads: 256 }];
pub(crate) const LEVELS_SHARED: u32 = 96 * 1024;

/// A tile size: activation rows, weight rows, and threads of its block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) x_rows: usize,
    pub(crate) w_rows: usize,
    pub(crate) threads: u32,
}

/// The number of blocks that keeps a GPU's multiprocessors busy, by which tiles are chosen. All tiles give the same bits,
/// so results do not depend on the GPU. Nine tenths are enough: 4096 rows, as many matrices have, are 128 blocks, and an
/// H100 has 132 multiprocessors.
pub(crate) fn enough_blocks(n_multiprocessors: usize) -> usize {
    n_multiprocessors * 9 / 10
}

impl Tile {
    /// Whether a shape yields [`enough_blocks`].
    pub(crate) fn keeps_busy(
        self,
        n_rows: usize,
        n_batch: usize,
        n_multiprocessors: usize,
    ) -> bool {
        let n_blocks: usize = self.n_blocks(n_rows, n_batch).iter().product();
        n_blocks >= enough_blocks(n_multiprocessors)
    }

    /// Number of blocks in the dimension of weight rows and in that of activation rows.
    pub(crate) fn n_blocks(self, n_rows: usize, n_batch: usize) -> [usize; 2] {
        [n_rows.div_ceil(self.w_rows), n_batch.div_ceil(self.x_rows)]
    }

    /// Grid of a kernel for few activation rows.
    pub(crate) fn grid_of_few(self, n_rows: usize, n_batch: usize) -> [u32; 3] {
        let [w, x] = self.n_blocks(n_rows, n_batch);
        assert!(x <= 65535, "{x} blocks of rows");
        [w as u32, x as u32, 1]
    }

    /// Grid of a kernel for many activation rows. Neighbouring blocks share weights.
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
    /// None for F32.
    pub(crate) matmul_half: Option<[D::Function; TILES.len()]>,
    /// Only for types with integer levels.
    pub(crate) int8: Option<Int8Kernels<D>>,
    /// Only for types with integer levels, for BF16 activations.
    pub(crate) levels: Option<LevelsKernels<D>>,
    /// Only for [`takes_parts`] types.
    pub(crate) parts: Option<PartsKernels<D>>,
}

/// The kernels of a block type for activations in two parts.
#[derive(Debug)]
pub(crate) struct PartsKernels<D: Device> {
    pub(crate) few: [D::Function; PARTS_FEW.len()],
    pub(crate) tiles: [D::Function; PARTS_TILES.len()],
}

/// The kernels of a block type with integer levels for BF16 activations.
#[derive(Debug)]
pub(crate) struct LevelsKernels<D: Device> {
    pub(crate) few: [D::Function; LEVELS_FEW.len()],
    /// Product of gate and up matrices with a gated activation.
    pub(crate) gated: D::Function,
    pub(crate) tiles: [D::Function; LEVELS_TILES.len()],
}

/// The kernels of a block type for 8-bit activations.
#[derive(Debug)]
pub(crate) struct Int8Kernels<D: Device> {
    pub(crate) matvec: [D::Function; INT8_COLS.len()],
    /// Product of gate and up matrices with a gated activation.
    pub(crate) gated: [D::Function; INT8_COLS.len()],
    /// Tiles for larger decode steps, with the same bits as `matvec`. None for types with units of 64 columns.
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

/// The type whose kernels a type uses. Types share kernels if they are packed alike and have the same level values.
pub(super) const fn shared_kernels(ty: BlockType) -> BlockType {
    match ty {
        BlockType::IQ1_M => BlockType::IQ1_S,
        BlockType::IQ2_XXS | BlockType::IQ2_XS => BlockType::IQ2_S,
        BlockType::TQ1_0 => BlockType::TQ2_0,
        ty => ty,
    }
}

/// Whether a unit of an integer-level type has 64 columns, as those with two or three bits do.
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

/// Whether products with matrices of this type support quantized activations. All types with integer levels do.
pub fn takes_quantized(ty: BlockType) -> bool {
    INTEGER_TYPES.contains(&ty)
}

/// Whether products with matrices of this type support activations in two BF16 parts. Float types of 8 or 16 bits do.
pub fn takes_parts(ty: BlockType) -> bool {
    matches!(ty, BlockType::F16 | BlockType::BF16 | BlockType::F8_0)
}

/// The kernels of all products, loaded on first use.
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

/// Number of a type in products with several types, its position in `FOR_EACH_K_TYPE`.
pub(crate) fn mixed_index(ty: BlockType) -> Option<usize> {
    [BlockType::Q2_K, BlockType::Q3_K, BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K]
        .iter()
        .position(|&t| t == ty)
}
