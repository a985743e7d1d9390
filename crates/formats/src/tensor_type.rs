//! The element types of tensors in both formats: names, ids and sizes.
//!
//! Block types are those of `realizar-quant`. The plain integer, boolean and FP8 types, which occur in
//! files only, are added here.

use std::fmt;

use realizar_quant::BlockType;

use crate::Error;

/// The storage of a tensor's elements in a file, little-endian throughout.
///
/// `F32`, `F16` and `BF16` are block types with blocks of one element. A tensor of an unknown type is
/// listed with its name, shape and place, so that the file can be inspected; readers of its elements must
/// refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// A block type. Some of them do not occur in files.
    Block(BlockType),
    /// 8-bit signed integers.
    I8,
    /// 16-bit signed integers.
    I16,
    /// 32-bit signed integers.
    I32,
    /// 64-bit signed integers.
    I64,
    /// 8-bit unsigned integers.
    U8,
    /// 16-bit unsigned integers.
    U16,
    /// 32-bit unsigned integers.
    U32,
    /// 64-bit unsigned integers.
    U64,
    /// 64-bit floats.
    F64,
    /// One byte per boolean.
    Bool,
    /// FP8 with 4 exponent and 3 mantissa bits, no infinities (OCP `E4M3`).
    F8E4M3,
    /// FP8 with 5 exponent and 2 mantissa bits (OCP `E5M2`).
    F8E5M2,
    /// A GGUF id without a known type: `ggml.h` has removed the type, or added it later.
    Unknown(u32),
}

/// A row of the table of types that are not block types.
struct Row {
    ty: TensorType,
    name: &'static str,
    bytes: usize,
    ggml_id: Option<u32>,
}

const fn row(ty: TensorType, name: &'static str, bytes: usize, ggml_id: Option<u32>) -> Row {
    Row { ty, name, bytes, ggml_id }
}

/// The table. Names are safetensors dtypes; ids are those of `ggml.h`.
const PLAIN: [Row; 12] = [
    row(TensorType::I8, "I8", 1, Some(24)),
    row(TensorType::I16, "I16", 2, Some(25)),
    row(TensorType::I32, "I32", 4, Some(26)),
    row(TensorType::I64, "I64", 8, Some(27)),
    row(TensorType::U8, "U8", 1, None),
    row(TensorType::U16, "U16", 2, None),
    row(TensorType::U32, "U32", 4, None),
    row(TensorType::U64, "U64", 8, None),
    row(TensorType::F64, "F64", 8, Some(28)),
    row(TensorType::Bool, "BOOL", 1, None),
    row(TensorType::F8E4M3, "F8_E4M3", 1, None),
    row(TensorType::F8E5M2, "F8_E5M2", 1, None),
];

/// Names of the types that `ggml.h` has removed; their ids stay reserved.
const REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl TensorType {
    /// 32-bit floats.
    pub const F32: Self = Self::Block(BlockType::F32);
    /// 16-bit floats (IEEE 754 binary16).
    pub const F16: Self = Self::Block(BlockType::F16);
    /// 16-bit floats with the exponent range of `F32`.
    pub const BF16: Self = Self::Block(BlockType::BF16);

    fn plain(self) -> Option<&'static Row> {
        PLAIN.iter().find(|r| r.ty == self)
    }

    /// The block type, if it is one.
    pub fn block_type(self) -> Option<BlockType> {
        match self {
            Self::Block(ty) => Some(ty),
            _ => None,
        }
    }

    /// Whether the type is known: not [`TensorType::Unknown`].
    pub fn is_known(self) -> bool {
        !matches!(self, Self::Unknown(_))
    }

    /// The type's name, such as `Q4_K` or `F8_E4M3`; `unknown` for a type without one, which is displayed as
    /// `type` and its id.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block(ty) => ty.name(),
            Self::Unknown(id) => removed_name(id).unwrap_or("unknown"),
            _ => self.plain().map_or("", |r| r.name),
        }
    }

    /// Elements per block: 1 except for quantized types. Also 1 for unknown types.
    pub fn block_len(self) -> usize {
        self.block_type().map_or(1, BlockType::block_len)
    }

    /// Bytes per block; 1 for unknown types.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Block(ty) => ty.block_bytes(),
            _ => self.plain().map_or(1, |r| r.bytes),
        }
    }

    /// Bytes of `n_elements` elements, such as one row.
    ///
    /// # Errors
    /// If they are not whole blocks, the type is unknown, or the size overflows.
    pub fn size_of(self, n_elements: usize) -> Result<usize, Error> {
        let error = Error::Elements { ty: self, n_elements };
        if !self.is_known() || !n_elements.is_multiple_of(self.block_len()) {
            return Err(error);
        }
        (n_elements / self.block_len()).checked_mul(self.block_bytes()).ok_or(error)
    }

    /// Bytes of a tensor of `shape` (outermost first). Rows, the innermost dimension, are whole blocks; a
    /// scalar (no dimensions) has one element.
    ///
    /// # Errors
    /// If a row is not whole blocks, the type is unknown, or the size overflows. An overflow of the other
    /// dimensions is an error even if one dimension is zero.
    pub fn size_of_shape(self, shape: &[usize]) -> Result<usize, Error> {
        let row_len = shape.last().copied().unwrap_or(1);
        let overflow = Error::Elements { ty: self, n_elements: usize::MAX };
        let mut size = self.size_of(row_len)?;
        let mut bound = size.max(1);
        for &dim in shape.iter().rev().skip(1) {
            bound = match bound.checked_mul(dim.max(1)) {
                Some(bound) => bound,
                None => return Err(overflow),
            };
            size = size.saturating_mul(dim);
        }
        // Slices have at most isize::MAX bytes.
        if isize::try_from(bound).is_err() { Err(overflow) } else { Ok(size) }
    }

    /// The type with this GGUF id, if it is known.
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        let plain = || PLAIN.iter().find(|r| r.ggml_id == Some(id)).map(|r| r.ty);
        BlockType::from_ggml_id(id).map(Self::Block).or_else(plain)
    }

    /// The type's id in GGUF files, if they can store it.
    pub fn ggml_id(self) -> Option<u32> {
        match self {
            Self::Block(ty) => ty.ggml_id(),
            Self::Unknown(id) => Some(id),
            _ => self.plain().and_then(|r| r.ggml_id),
        }
    }

    /// The type of this safetensors dtype.
    pub fn from_dtype(dtype: &str) -> Option<Self> {
        match dtype {
            "F32" => Some(Self::F32),
            "F16" => Some(Self::F16),
            "BF16" => Some(Self::BF16),
            _ => PLAIN.iter().find(|r| r.name == dtype).map(|r| r.ty),
        }
    }

    /// The type's safetensors dtype, if such files can store it.
    pub fn dtype(self) -> Option<&'static str> {
        Self::from_dtype(self.name()).map(Self::name)
    }
}

/// The name of a type that `ggml.h` has removed.
fn removed_name(id: u32) -> Option<&'static str> {
    REMOVED.iter().find(|(removed, _)| *removed == id).map(|(_, name)| *name)
}

impl From<BlockType> for TensorType {
    fn from(ty: BlockType) -> Self {
        Self::Block(ty)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(id) if removed_name(*id).is_none() => f.pad(&format!("type {id}")),
            _ => f.pad(self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_dtypes_lead_back_to_their_type() {
        let blocks = BlockType::all().map(TensorType::Block);
        for ty in blocks.chain(PLAIN.iter().map(|r| r.ty)) {
            if let Some(id) = ty.ggml_id() {
                assert_eq!(TensorType::from_ggml_id(id), Some(ty));
            }
            if let Some(dtype) = ty.dtype() {
                assert_eq!(TensorType::from_dtype(dtype), Some(ty));
            }
            let is_own =
                matches!(ty, TensorType::Block(BlockType::F8_0 | BlockType::Q4_Z | BlockType::F8));
            assert_eq!(ty.ggml_id().is_none() && ty.dtype().is_none(), is_own, "{ty}");
        }
        assert_eq!(TensorType::from_ggml_id(26), Some(TensorType::I32));
        assert_eq!(TensorType::from_ggml_id(4), None);
        for id in 0..64 {
            let read = TensorType::from_ggml_id(id).is_some();
            // ggml has ids up to 42.
            assert_eq!(read ^ removed_name(id).is_some(), id <= 42, "id {id}");
        }
        for (id, name, shown) in [(4, "Q4_2", "Q4_2"), (43, "unknown", "type 43")] {
            let ty = TensorType::Unknown(id);
            assert_eq!((ty.name(), ty.to_string().as_str()), (name, shown));
            assert_eq!((ty.ggml_id(), ty.dtype(), ty.block_type()), (Some(id), None, None));
            assert!(!ty.is_known() && ty.size_of_shape(&[1]).is_err());
        }
        assert_eq!(TensorType::Block(BlockType::Q4_K).dtype(), None);
        assert_eq!(TensorType::U16.ggml_id(), None);
    }

    #[test]
    fn sizes_follow_the_shape() {
        let q4_k = TensorType::Block(BlockType::Q4_K);
        let check = |ty: TensorType, shape: &[usize], size: Option<usize>| {
            assert_eq!(ty.size_of_shape(shape).ok(), size, "{ty} {shape:?}");
        };
        check(TensorType::F32, &[], Some(4));
        check(TensorType::F32, &[3, 5], Some(60));
        check(TensorType::F32, &[0, 5], Some(0));
        check(TensorType::Bool, &[7], Some(7));
        check(TensorType::F64, &[2, 2, 2], Some(64));
        check(q4_k, &[3, 512], Some(3 * 2 * 144));
        check(q4_k, &[256, 3], None);
        check(q4_k, &[], None);
        check(TensorType::F32, &[usize::MAX, 2], None);
        check(TensorType::F32, &[usize::MAX / 4, 1], None);
        check(TensorType::F32, &[0, usize::MAX, usize::MAX], None);
        check(TensorType::U8, &[1 << 32, 1 << 32, 0], None);
    }
}
