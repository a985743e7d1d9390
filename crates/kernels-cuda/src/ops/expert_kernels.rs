//! The kernels of the products with experts. Each block type has an image of its own, which is loaded when experts of
//! that type are first multiplied or [`Kernels::prepare_experts`] asks for it.

use std::sync::OnceLock;

use realizar_quant::BlockType;

use super::kernels::Kernels;
use super::products::shared_kernels;
use super::takes_quantized;
use crate::Error;
use crate::device::Device;
use crate::image::Image;
use crate::matrix::BLOCK_TYPES;

const SORT: &[u8] = include_bytes!("../../image/sort_by_expert.ptx.br");
/// The images of the types, in the order of [`BLOCK_TYPES`].
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

/// Pairs that a read of weights serves for decode rows: a kernel for each.
pub(super) const COLS: [usize; 2] = [1, 4];
/// Pairs of a tile and rows of weights of its block, in prompts: a kernel for each, with these threads.
pub(super) const TILES: [Tile; 2] =
    [Tile { pairs: 32, w_rows: 64, threads: 128 }, Tile { pairs: 64, w_rows: 128, threads: 256 }];

/// A size of tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile {
    pub(super) pairs: usize,
    pub(super) w_rows: usize,
    pub(super) threads: u32,
}

/// The kernels of a block type.
#[derive(Debug)]
pub(super) struct OfType<D: Device> {
    pub(super) matvec: [D::Function; COLS.len()],
    pub(super) matmul: D::Function,
    /// Of all types but F32.
    pub(super) half: Option<[D::Function; TILES.len()]>,
    /// Of types of integer levels.
    pub(super) int8: Option<Int8<D>>,
}

/// The kernels of a block type with 8-bit activations.
#[derive(Debug)]
pub(super) struct Int8<D: Device> {
    pub(super) matvec: [D::Function; COLS.len()],
    pub(super) matmul: [D::Function; TILES.len()],
}

impl<D: Device> OfType<D> {
    fn load(device: &D, index: usize) -> Result<Self, Error> {
        let ty = BLOCK_TYPES[index];
        let name = ty.name().to_lowercase();
        let image = Image::load(device, &format!("experts_{name}"), IMAGES[index])?;
        let matvec = |what: &str| image.functions(COLS, |cols| format!("{what}_{name}_{cols}"));
        let tiles =
            |what: &str| image.functions(TILES, |tile| format!("{what}_{name}_{}", tile.pairs));
        let int8 = || {
            let matmul = tiles("expert_matmul_int8")?;
            Ok(Int8 { matvec: matvec("expert_matvec_int8")?, matmul })
        };
        Ok(Self {
            matvec: matvec("expert_matvec")?,
            matmul: image.function(&format!("expert_matmul_{name}"))?,
            half: (ty != BlockType::F32).then(|| tiles("expert_matmul_half")).transpose()?,
            int8: takes_quantized(ty).then(int8).transpose()?,
        })
    }
}

/// The kernels, those of types as far as they were loaded.
#[derive(Debug)]
pub(crate) struct ExpertKernels<D: Device> {
    pub(super) sort: D::Function,
    by_type: [OnceLock<OfType<D>>; BLOCK_TYPES.len()],
}

impl<D: Device> ExpertKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let sort = Image::load(device, "sort_by_expert", SORT)?.function("sort_by_expert")?;
        Ok(Self { sort, by_type: [const { OnceLock::new() }; BLOCK_TYPES.len()] })
    }
}

impl<D: Device> Kernels<D> {
    /// Loads the kernels of the products with experts of a block type, unless they are. Operations do so, too, but a
    /// stream that is captured is no place for it.
    ///
    /// # Errors
    /// [`Error::BlockType`] for a type that has none, [`Error::Kernel`] if the device does not take one.
    pub fn prepare_experts(&self, ty: BlockType) -> Result<(), Error> {
        self.experts_of(ty).map(|_| ())
    }

    pub(super) fn experts_of(&self, ty: BlockType) -> Result<&OfType<D>, Error> {
        let shared = shared_kernels(ty);
        let index = BLOCK_TYPES.iter().position(|&t| t == shared).ok_or(Error::BlockType(ty))?;
        let lock = &self.experts.by_type[index];
        if let Some(found) = lock.get() {
            return Ok(found);
        }
        let made = OfType::load(&**self.device(), index)?;
        Ok(lock.get_or_init(|| made))
    }
}
