//! Kernels of products with experts. Each block type has its own image, which is loaded on first use or by
//! [`Kernels::prepare_experts`](super::Kernels::prepare_experts).

use std::sync::OnceLock;

use realizar_quant::BlockType;

use super::lazy::get_or_load;
use super::products::{shared_kernels, takes_quantized};
use crate::Error;
use crate::device::Device;
use crate::image::Image;
use crate::matrix::BLOCK_TYPES;

const SORT: &[u8] = include_bytes!("../../image/sort_by_expert.ptx.br");
/// Images in the order of [`BLOCK_TYPES`].
const IMAGES: [&[u8]; BLOCK_TYPES.len()] = [
    include_bytes!("../../image/experts_f32.ptx.br"),
    include_bytes!("../../image/experts_f16.ptx.br"),
    include_bytes!("../../image/experts_bf16.ptx.br"),
    include_bytes!("../../image/experts_q4_0.ptx.br"),
    include_bytes!("../../image/experts_q4_1.ptx.br"),
    include_bytes!("../../image/experts_q5_0.ptx.br"),
    include_bytes!("../../image/experts_q5_1.ptx.br"),
    include_bytes!("../../image/experts_q8_0.ptx.br"),
    include_bytes!("../../image/experts_q4_k.ptx.br"),
    include_bytes!("../../image/experts_q5_k.ptx.br"),
    include_bytes!("../../image/experts_q6_k.ptx.br"),
    include_bytes!("../../image/experts_q2_k.ptx.br"),
    include_bytes!("../../image/experts_q3_k.ptx.br"),
    include_bytes!("../../image/experts_iq4_nl.ptx.br"),
    include_bytes!("../../image/experts_iq4_xs.ptx.br"),
    include_bytes!("../../image/experts_mxfp4.ptx.br"),
    include_bytes!("../../image/experts_q4_z.ptx.br"),
    include_bytes!("../../image/experts_f8_0.ptx.br"),
    include_bytes!("../../image/experts_iq1_s.ptx.br"),
    include_bytes!("../../image/experts_iq1_s.ptx.br"),
    include_bytes!("../../image/experts_iq2_s.ptx.br"),
    include_bytes!("../../image/experts_iq2_s.ptx.br"),
    include_bytes!("../../image/experts_iq2_s.ptx.br"),
    include_bytes!("../../image/experts_iq3_xxs.ptx.br"),
    include_bytes!("../../image/experts_iq3_s.ptx.br"),
    include_bytes!("../../image/experts_tq2_0.ptx.br"),
    include_bytes!("../../image/experts_tq2_0.ptx.br"),
    include_bytes!("../../image/experts_nvfp4.ptx.br"),
    include_bytes!("../../image/experts_q1_0.ptx.br"),
    include_bytes!("../../image/experts_q2_0.ptx.br"),
];

/// Pairs per read of the weights for decode rows, one kernel each.
const COLS: [usize; 2] = [1, 4];
/// Tile sizes for prefill rows, one kernel each.
pub(crate) const PAIR_TILES: [PairTile; 2] = [
    PairTile { pairs: 32, w_rows: 64, threads: 128 },
    PairTile { pairs: 64, w_rows: 128, threads: 256 },
];

/// A tile size: pairs, rows of weights, and threads of its block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairTile {
    pub(crate) pairs: usize,
    pub(crate) w_rows: usize,
    pub(crate) threads: u32,
}

/// The kernels of a block type.
#[derive(Debug)]
pub(crate) struct ExpertTypeKernels<D: Device> {
    pub(crate) matvec: [D::Function; COLS.len()],
    pub(crate) matmul: D::Function,
    /// None for F32.
    pub(crate) half: Option<[D::Function; PAIR_TILES.len()]>,
    /// Only for types with integer levels.
    pub(crate) int8: Option<ExpertInt8Kernels<D>>,
}

/// The kernels of a block type for 8-bit activations.
#[derive(Debug)]
pub(crate) struct ExpertInt8Kernels<D: Device> {
    pub(crate) matvec: [D::Function; COLS.len()],
    pub(crate) matmul: [D::Function; PAIR_TILES.len()],
}

impl<D: Device> ExpertTypeKernels<D> {
    fn load(device: &D, index: usize) -> Result<Self, Error> {
        let ty = BLOCK_TYPES[index];
        let name = ty.name().to_lowercase();
        let image = Image::load(device, &format!("experts_{name}"), IMAGES[index])?;
        let matvec = |what: &str| image.functions(COLS, |cols| format!("{what}_{name}_{cols}"));
        let tiles = |what: &str| {
            image.functions(PAIR_TILES, |tile| format!("{what}_{name}_{}", tile.pairs))
        };
        let int8 = || {
            let matmul = tiles("expert_matmul_int8")?;
            Ok(ExpertInt8Kernels { matvec: matvec("expert_matvec_int8")?, matmul })
        };
        Ok(Self {
            matvec: matvec("expert_matvec")?,
            matmul: image.function(&format!("expert_matmul_{name}"))?,
            half: (ty != BlockType::F32).then(|| tiles("expert_matmul_half")).transpose()?,
            int8: takes_quantized(ty).then(int8).transpose()?,
        })
    }
}

/// The sorting kernel, and the kernels of each block type as they are loaded.
#[derive(Debug)]
pub(crate) struct ExpertKernels<D: Device> {
    pub(crate) sort: D::Function,
    by_type: [OnceLock<ExpertTypeKernels<D>>; BLOCK_TYPES.len()],
}

impl<D: Device> ExpertKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let sort = Image::load(device, "sort_by_expert", SORT)?.function("sort_by_expert")?;
        Ok(Self { sort, by_type: [const { OnceLock::new() }; BLOCK_TYPES.len()] })
    }

    /// The kernels of a block type.
    pub(super) fn of(&self, device: &D, ty: BlockType) -> Result<&ExpertTypeKernels<D>, Error> {
        let shared = shared_kernels(ty);
        let index = BLOCK_TYPES.iter().position(|&t| t == shared).ok_or(Error::BlockType(ty))?;
        get_or_load(&self.by_type[index], || ExpertTypeKernels::load(device, index))
    }
}
