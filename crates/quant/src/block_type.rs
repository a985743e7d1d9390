//! The table of block types: names, ggml ids, block lengths and sizes.
//!
//! Everything that is true of a type without looking at data lives here; what
//! its bytes mean lives in the type's own module.

use crate::block::{self, Block};
use crate::floats::{BlockBF16, BlockF16, BlockF32};
use crate::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K,
    BlockQ8_0, BlockQ8_1, BlockQ8K, Error,
};

/// How the elements of a tensor are stored: plain floats or quantized blocks.
///
/// Names, ids and sizes are ggml's (`ggml.h`, `ggml-common.h`), which the GGUF
/// format refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the field writes these names with underscores")]
#[allow(missing_docs, reason = "each variant is the type of the same name; see the table below")]
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
}

/// One row of the table: what is true of a type, and the functions over rows of its blocks.
pub(crate) struct Row {
    ty: BlockType,
    name: &'static str,
    ggml_id: u32,
    block_len: usize,
    block_bytes: usize,
    pub(crate) dequantize: fn(&[u8], &mut [f32]),
    pub(crate) quantize: fn(&[f32], &mut [u8]),
    pub(crate) dot: fn(&[u8], &[f32]) -> f64,
}

/// The row of block struct `B`, whose layout is held to the two sizes at compile time.
const fn row<B: Block>(
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
        ggml_id,
        block_len,
        block_bytes,
        dequantize: block::dequantize_row::<B>,
        quantize: block::quantize_row::<B>,
        dot: block::dot_row::<B>,
    }
}

/// In the order of the enum, so that `ty as usize` indexes it.
static TABLE: [Row; 15] = [
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
];

impl BlockType {
    /// Every block type, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|r| r.ty)
    }

    pub(crate) const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The name people know, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The type of that name, in any case (`q4_k`, `Q4_K`).
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|r| r.name.eq_ignore_ascii_case(name)).map(|r| r.ty)
    }

    /// The id that GGUF files store.
    pub const fn ggml_id(self) -> u32 {
        self.row().ggml_id
    }

    /// The type with that GGUF id.
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        TABLE.iter().find(|r| r.ggml_id == id).map(|r| r.ty)
    }

    /// Elements in a block: 1 for plain floats, 32 or 256 for quantized types.
    pub const fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes of a row of `n_elements`.
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
