//! The table of block types: names, ggml ids, block lengths and sizes.
//!
//! The table has a type's properties that do not depend on data. The type's own module has the meaning
//! of its bytes.

use crate::block::{self, Block, Quantize};
use crate::floats::{BlockBF16, BlockF16, BlockF32};
use crate::{
    BlockF8, BlockF8_0, BlockIQ1M, BlockIQ1S, BlockIQ2S, BlockIQ2XS, BlockIQ2XXS, BlockIQ3S,
    BlockIQ3XXS, BlockIQ4NL, BlockIQ4XS, BlockMXFP4, BlockNVFP4, BlockQ1_0, BlockQ2_0, BlockQ2K,
    BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ4Z, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K,
    BlockQ8_0, BlockQ8_1, BlockQ8K, BlockTQ1_0, BlockTQ2_0, Error,
};

/// The storage of a tensor's elements: plain floats or quantized blocks.
///
/// Names, ids and sizes are those of ggml (`ggml.h`, `ggml-common.h`), which the GGUF format refers to.
/// The last types have no id, because GGUF files cannot store them: tensors that other formats store in
/// several parts are converted to them when they are read, and `F8` is for keys and values only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the field writes these names with underscores")]
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    TQ1_0,
    TQ2_0,
    Q1_0,
    Q2_0,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    F8_0,
    Q4_Z,
    F8,
}

/// Quantizes a row of values to the bytes of its blocks.
type Quantizer = fn(&[f32], &mut [u8]);

/// A row of the table: a type's properties, and the functions over rows of its blocks.
pub(crate) struct Row {
    ty: BlockType,
    name: &'static str,
    ggml_id: Option<u32>,
    block_len: usize,
    block_bytes: usize,
    pub(crate) dequantize: fn(&[u8], &mut [f32]),
    pub(crate) quantize: Option<Quantizer>,
    pub(crate) dot: fn(&[u8], &[f32]) -> f64,
}

/// The row of block struct `B`. The struct's layout is checked against the sizes at compile time.
const fn row<B: Quantize>(
    ty: BlockType,
    name: &'static str,
    ggml_id: u32,
    block_len: usize,
    block_bytes: usize,
) -> Row {
    let row = read_only::<B>(ty, name, ggml_id, block_len, block_bytes);
    Row { quantize: Some(block::quantize_row::<B>), ..row }
}

/// As [`row`], for a type that cannot be quantized to.
const fn read_only<B: Block>(
    ty: BlockType,
    name: &'static str,
    ggml_id: u32,
    block_len: usize,
    block_bytes: usize,
) -> Row {
    assert!(B::LEN == block_len && block_len <= block::MAX_LEN);
    assert!(size_of::<B>() == block_bytes);
    assert!(align_of::<B>() == 1);
    Row {
        ty,
        name,
        ggml_id: Some(ggml_id),
        block_len,
        block_bytes,
        dequantize: block::dequantize_row::<B>,
        quantize: None,
        dot: block::dot_row::<B>,
    }
}

/// As [`row`], for a type that GGUF files cannot store.
const fn own<B: Quantize>(
    ty: BlockType,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
) -> Row {
    Row { ggml_id: None, ..row::<B>(ty, name, 0, block_len, block_bytes) }
}

/// In the order of the enum, so that `ty as usize` indexes it.
static TABLE: [Row; 33] = [
    row::<BlockF32>(BlockType::F32, "F32", 0, 1, 4),
    row::<BlockF16>(BlockType::F16, "F16", 1, 1, 2),
    row::<BlockBF16>(BlockType::BF16, "BF16", 30, 1, 2),
    row::<BlockQ4_0>(BlockType::Q4_0, "Q4_0", 2, 32, 18),
    row::<BlockQ4_1>(BlockType::Q4_1, "Q4_1", 3, 32, 20),
    row::<BlockQ5_0>(BlockType::Q5_0, "Q5_0", 6, 32, 22),
    row::<BlockQ5_1>(BlockType::Q5_1, "Q5_1", 7, 32, 24),
    row::<BlockQ8_0>(BlockType::Q8_0, "Q8_0", 8, 32, 34),
    row::<BlockQ8_1>(BlockType::Q8_1, "Q8_1", 9, 32, 36),
    row::<BlockQ2K>(BlockType::Q2_K, "Q2_K", 10, 256, 84),
    row::<BlockQ3K>(BlockType::Q3_K, "Q3_K", 11, 256, 110),
    row::<BlockQ4K>(BlockType::Q4_K, "Q4_K", 12, 256, 144),
    row::<BlockQ5K>(BlockType::Q5_K, "Q5_K", 13, 256, 176),
    row::<BlockQ6K>(BlockType::Q6_K, "Q6_K", 14, 256, 210),
    row::<BlockQ8K>(BlockType::Q8_K, "Q8_K", 15, 256, 292),
    row::<BlockIQ4NL>(BlockType::IQ4_NL, "IQ4_NL", 20, 32, 18),
    row::<BlockIQ4XS>(BlockType::IQ4_XS, "IQ4_XS", 23, 256, 136),
    row::<BlockMXFP4>(BlockType::MXFP4, "MXFP4", 39, 32, 17),
    row::<BlockNVFP4>(BlockType::NVFP4, "NVFP4", 40, 64, 36),
    row::<BlockTQ1_0>(BlockType::TQ1_0, "TQ1_0", 34, 256, 54),
    row::<BlockTQ2_0>(BlockType::TQ2_0, "TQ2_0", 35, 256, 66),
    row::<BlockQ1_0>(BlockType::Q1_0, "Q1_0", 41, 128, 18),
    row::<BlockQ2_0>(BlockType::Q2_0, "Q2_0", 42, 64, 18),
    read_only::<BlockIQ1S>(BlockType::IQ1_S, "IQ1_S", 19, 256, 50),
    read_only::<BlockIQ1M>(BlockType::IQ1_M, "IQ1_M", 29, 256, 56),
    read_only::<BlockIQ2XXS>(BlockType::IQ2_XXS, "IQ2_XXS", 16, 256, 66),
    read_only::<BlockIQ2XS>(BlockType::IQ2_XS, "IQ2_XS", 17, 256, 74),
    read_only::<BlockIQ2S>(BlockType::IQ2_S, "IQ2_S", 22, 256, 82),
    read_only::<BlockIQ3XXS>(BlockType::IQ3_XXS, "IQ3_XXS", 18, 256, 98),
    read_only::<BlockIQ3S>(BlockType::IQ3_S, "IQ3_S", 21, 256, 110),
    own::<BlockF8_0>(BlockType::F8_0, "F8_0", 64, 68),
    own::<BlockQ4Z>(BlockType::Q4_Z, "Q4_Z", 32, 20),
    own::<BlockF8>(BlockType::F8, "F8", 1, 1),
];

impl BlockType {
    /// Every block type, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|r| r.ty)
    }

    pub(crate) const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The type's name, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The type of this name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|r| r.name.eq_ignore_ascii_case(name)).map(|r| r.ty)
    }

    /// The type's id in GGUF files; `None` if they cannot store it.
    pub const fn ggml_id(self) -> Option<u32> {
        self.row().ggml_id
    }

    /// The type with this GGUF id.
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        TABLE.iter().find(|r| r.ggml_id == Some(id)).map(|r| r.ty)
    }

    /// Elements per block: 1 for plain floats, 32 to 256 for quantized types.
    pub const fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Whether [`quantize`](crate::quantize) supports this type. It does not support the IQ1, IQ2 and IQ3
    /// types.
    pub const fn can_quantize(self) -> bool {
        self.row().quantize.is_some()
    }

    /// Bytes of a row of `n_elements` elements.
    ///
    /// # Errors
    /// If `n_elements` is not a whole number of blocks, or the size overflows.
    pub fn row_bytes(self, n_elements: usize) -> Result<usize, Error> {
        if !n_elements.is_multiple_of(self.block_len()) {
            return Err(Error::PartialBlock { ty: self, n_elements });
        }
        (n_elements / self.block_len())
            .checked_mul(self.block_bytes())
            .ok_or(Error::PartialBlock { ty: self, n_elements })
    }
}

impl std::fmt::Display for BlockType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
