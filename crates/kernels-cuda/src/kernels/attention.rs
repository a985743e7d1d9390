//! Attention kernels. Each type of keys and values has its own images, which are loaded on first use.

use std::sync::OnceLock;

use realizar_quant::BlockType;

use super::lazy::get_or_load;
use crate::device::Device;
use crate::image::Image;
use crate::{Error, KvSpec};

/// Types of keys and values with tensor-core kernels.
const TENSOR_TYPES: [BlockType; 5] =
    [BlockType::F16, BlockType::BF16, BlockType::Q8_0, BlockType::Q4_0, BlockType::F8];

/// Tensor-core images of decode attention, by [`TENSOR_TYPES`].
const DECODE_IMAGES: [&[u8]; TENSOR_TYPES.len()] = [
    include_bytes!("../../image/attention_decode_f16.ptx.br"),
    include_bytes!("../../image/attention_decode_bf16.ptx.br"),
    include_bytes!("../../image/attention_decode_q8_0.ptx.br"),
    include_bytes!("../../image/attention_decode_q4_0.ptx.br"),
    include_bytes!("../../image/attention_decode_f8.ptx.br"),
];
const DECODE_F32_IMAGE: &[u8] = include_bytes!("../../image/attention_decode_f32.ptx.br");
/// Tensor-core images of prefill attention, by [`TENSOR_TYPES`].
const PREFILL_IMAGES: [&[u8]; TENSOR_TYPES.len()] = [
    include_bytes!("../../image/attention_prefill_f16.ptx.br"),
    include_bytes!("../../image/attention_prefill_bf16.ptx.br"),
    include_bytes!("../../image/attention_prefill_q8_0.ptx.br"),
    include_bytes!("../../image/attention_prefill_q4_0.ptx.br"),
    include_bytes!("../../image/attention_prefill_f8.ptx.br"),
];
const PREFILL_F32_IMAGE: &[u8] = include_bytes!("../../image/attention_prefill_f32.ptx.br");
/// Head dimensions of the kernels, each the maximum that its kernel takes.
pub(crate) const HEAD_DIMS: [usize; 3] = [64, 128, 256];
const F32_HEAD_DIMS: [usize; 5] = [64, 128, 256, 512, 576];

/// The arithmetic of the products of queries with keys, and of weights with values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionArithmetic {
    /// Tensor cores for heads of at most 256 elements whose keys and values are F16, BF16, F8 or blocks (whose elements
    /// are rounded to F16); F32 for others. A query is split into two numbers of the keys' type. An attention weight is
    /// two numbers in decode steps and one in prefill.
    Tensor,
    /// F32.
    F32,
}

impl AttentionArithmetic {
    /// Indices of the type and of the head dimension, among `dims`, of the tensor-core kernel; `None` if there is none.
    pub(crate) fn tensor(self, spec: &KvSpec, dims: &[usize]) -> Option<(usize, usize)> {
        let ty = TENSOR_TYPES.iter().position(|&ty| ty == spec.ty && self == Self::Tensor)?;
        Some((ty, dims.iter().position(|&dim| spec.head_dim <= dim)?))
    }
}

/// Kernels of decode attention, loaded on first use.
#[derive(Debug)]
pub(crate) struct DecodeKernels<D: Device> {
    /// By type of keys and values, and by [`HEAD_DIMS`].
    tensor: [OnceLock<[D::Function; HEAD_DIMS.len()]>; TENSOR_TYPES.len()],
    /// By [`F32_HEAD_DIMS`].
    f32: OnceLock<[D::Function; F32_HEAD_DIMS.len()]>,
}

impl<D: Device> Default for DecodeKernels<D> {
    fn default() -> Self {
        Self { tensor: [const { OnceLock::new() }; TENSOR_TYPES.len()], f32: OnceLock::new() }
    }
}

/// A kernel of decode attention.
pub(crate) struct DecodeKernel<'a, D: Device> {
    pub(crate) function: &'a D::Function,
    pub(crate) dim: usize,
    pub(crate) is_tensor: bool,
}

impl<D: Device> DecodeKernels<D> {
    /// The kernel for pages of this shape, on tensor cores if possible.
    pub(crate) fn get(
        &self,
        device: &D,
        spec: &KvSpec,
        arithmetic: AttentionArithmetic,
    ) -> Result<DecodeKernel<'_, D>, Error> {
        if let Some((ty, which)) = arithmetic.tensor(spec, &HEAD_DIMS) {
            let functions = get_or_load(&self.tensor[ty], || {
                let name = TENSOR_TYPES[ty].name().to_lowercase();
                let image =
                    Image::load(device, &format!("attention_decode_{name}"), DECODE_IMAGES[ty])?;
                image.functions(HEAD_DIMS, |dim| format!("attention_{name}_{dim}"))
            })?;
            let (function, dim) = (&functions[which], HEAD_DIMS[which]);
            return Ok(DecodeKernel { function, dim, is_tensor: true });
        }
        let functions = get_or_load(&self.f32, || {
            let image = Image::load(device, "attention_decode_f32", DECODE_F32_IMAGE)?;
            image.functions(F32_HEAD_DIMS, |dim| format!("attention_in_f32_{dim}"))
        })?;
        let which = F32_HEAD_DIMS.iter().position(|&dim| spec.head_dim <= dim);
        let which = which.expect("pages have no larger heads");
        Ok(DecodeKernel {
            function: &functions[which],
            dim: F32_HEAD_DIMS[which],
            is_tensor: false,
        })
    }
}

/// Kernels of prefill attention, loaded on first use.
#[derive(Debug)]
pub(crate) struct PrefillKernels<D: Device> {
    /// By type of keys and values, and by [`HEAD_DIMS`].
    tensor: [OnceLock<[D::Function; HEAD_DIMS.len()]>; TENSOR_TYPES.len()],
    /// By [`F32_HEAD_DIMS`].
    f32: OnceLock<[D::Function; F32_HEAD_DIMS.len()]>,
}

impl<D: Device> Default for PrefillKernels<D> {
    fn default() -> Self {
        Self { tensor: [const { OnceLock::new() }; TENSOR_TYPES.len()], f32: OnceLock::new() }
    }
}

impl<D: Device> PrefillKernels<D> {
    /// The kernel for pages of this shape, and whether it uses tensor cores.
    pub(crate) fn get(
        &self,
        device: &D,
        spec: &KvSpec,
        arithmetic: AttentionArithmetic,
    ) -> Result<(&D::Function, bool), Error> {
        if let Some((ty, which)) = arithmetic.tensor(spec, &HEAD_DIMS) {
            let functions = get_or_load(&self.tensor[ty], || {
                let name = TENSOR_TYPES[ty].name().to_lowercase();
                let image =
                    Image::load(device, &format!("attention_prefill_{name}"), PREFILL_IMAGES[ty])?;
                image.functions(HEAD_DIMS, |dim| format!("attention_prefill_{name}_{dim}"))
            })?;
            return Ok((&functions[which], true));
        }
        let functions = get_or_load(&self.f32, || {
            let image = Image::load(device, "attention_prefill_f32", PREFILL_F32_IMAGE)?;
            image.functions(F32_HEAD_DIMS, |dim| format!("attention_prefill_{dim}"))
        })?;
        let which = F32_HEAD_DIMS.iter().position(|&dim| spec.head_dim <= dim);
        Ok((&functions[which.expect("pages have no larger heads")], false))
    }
}
