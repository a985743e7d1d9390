//! What weights are to a graph: matrices as their file has them, vectors as F32, and the handles
//! by which operations name them.
//!
//! How they are found in a checkpoint is the matter of the architectures' loader.

use super::LinearPart;
use realizar_formats::{Bytes, FileWatch};
use realizar_quant::BlockType;

/// The index of a weight in its graph and in [`Weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

impl WeightId {
    /// The index as a `usize`.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// A matrix as an architecture handles it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    /// Its index.
    pub id: WeightId,
    /// Rows, the outputs of a linear.
    pub rows: usize,
    /// Columns, the inputs of a linear.
    pub cols: usize,
}

/// The matrices of a layer's experts as an architecture handles them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertWeight {
    /// Their index.
    pub id: WeightId,
    /// Matrices.
    pub n_experts: usize,
    /// Rows of a matrix, the outputs of a linear.
    pub rows: usize,
    /// Columns of a matrix, the inputs of a linear.
    pub cols: usize,
}

/// A matrix with its bias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// The matrix.
    pub weight: Weight,
    /// The bias, as long as the matrix has rows.
    pub bias: Option<WeightId>,
    /// A vector of the input that each column of the matrix is for, if that is not its own.
    pub order: Option<WeightId>,
    /// What the result, bias included, is multiplied by.
    pub factor: f32,
}

/// The vectors of a normalization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormWeights {
    /// Scale.
    pub weight: Option<WeightId>,
    /// Offset.
    pub bias: Option<WeightId>,
    /// Columns that are normalized together.
    pub len: usize,
}

/// The data of one weight.
#[derive(Debug, Clone)]
pub enum WeightData {
    /// Row-major blocks, `[rows, cols]`.
    Matrix {
        /// The block type.
        ty: BlockType,
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// The blocks, in the file's map unless they are made of other tensors or had to be rearranged.
        data: Bytes,
    },
    /// Matrices of one type and shape, `[n_experts, rows, cols]`.
    Experts {
        /// The block type.
        ty: BlockType,
        /// Rows of a matrix.
        rows: usize,
        /// Columns of a matrix.
        cols: usize,
        /// The blocks of each matrix, where its file has them.
        data: Vec<Bytes>, // [n_experts]
    },
    /// Plain numbers.
    Vector(Vec<f32>),
}

impl WeightData {
    /// The blocks of its matrices: one, those of the experts, or none of a vector.
    pub fn blocks(&self) -> &[Bytes] {
        match self {
            Self::Matrix { data, .. } => std::slice::from_ref(data),
            Self::Experts { data, .. } => data,
            Self::Vector(_) => &[],
        }
    }

    /// The block type, rows and columns of its matrices; `None` for a vector.
    pub fn matrix_shape(&self) -> Option<(BlockType, usize, usize)> {
        match *self {
            Self::Matrix { ty, rows, cols, .. } | Self::Experts { ty, rows, cols, .. } => {
                Some((ty, rows, cols))
            }
            Self::Vector(_) => None,
        }
    }

    /// The block type; none of plain numbers.
    pub fn block_type(&self) -> Option<BlockType> {
        match self {
            Self::Matrix { ty, .. } | Self::Experts { ty, .. } => Some(*ty),
            Self::Vector(_) => None,
        }
    }

    /// Elements of the data.
    pub fn n_elements(&self) -> usize {
        match self {
            Self::Matrix { rows, cols, .. } => rows * cols,
            Self::Experts { rows, cols, data, .. } => data.len() * rows * cols,
            Self::Vector(values) => values.len(),
        }
    }

    /// Bytes of the data.
    pub fn n_bytes(&self) -> usize {
        match self {
            Self::Matrix { data, .. } => data.len(),
            Self::Experts { data, .. } => data.iter().map(|data| data.len()).sum(),
            Self::Vector(values) => size_of_val(values.as_slice()),
        }
    }
}

/// What a rank has of a weight, where layers are divided among ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Slice {
    /// All of it.
    Whole,
    /// A run of its rows, of each expert's where it has several, or of the numbers of a vector; the same in so many
    /// neighbouring ranks.
    Rows {
        /// Ranks with the same rows.
        copies: usize,
    },
    /// A run of the columns of a matrix.
    Columns,
    /// A vector that is all zeros but in the first rank.
    FirstRank,
}

impl Slice {
    /// The shape of the part of a weight of `shape`.
    pub(crate) fn cut_shape(self, shape: &mut [usize], n_ranks: usize) {
        let n = shape.len();
        match self {
            Self::Rows { copies } => shape[n.saturating_sub(2)] /= n_ranks / copies,
            Self::Columns => shape[n - 1] /= n_ranks,
            Self::Whole | Self::FirstRank => {}
        }
    }
}

impl WeightData {
    /// What `rank` of `n_ranks` has of it.
    ///
    /// # Panics
    /// If it cannot be divided evenly, or has no such parts.
    pub(crate) fn sliced(&self, slice: Slice, rank: usize, n_ranks: usize) -> Self {
        match (self, slice) {
            (_, Slice::Whole) => self.clone(),
            (Self::Vector(values), Slice::FirstRank) => {
                Self::Vector(if rank == 0 { values.clone() } else { vec![0.0; values.len()] })
            }
            (Self::Vector(values), Slice::Rows { copies }) => {
                let n = shared_by(values.len(), n_ranks / copies);
                Self::Vector(values[rank / copies * n..][..n].to_vec())
            }
            (Self::Matrix { ty, rows, cols, data }, slice) => {
                let (rows, cols, cut) = cut_of(*ty, (*rows, *cols), slice, rank, n_ranks);
                Self::Matrix { ty: *ty, rows, cols, data: cut(data) }
            }
            (Self::Experts { ty, rows, cols, data }, slice) => {
                let (rows, cols, cut) = cut_of(*ty, (*rows, *cols), slice, rank, n_ranks);
                Self::Experts { ty: *ty, rows, cols, data: data.iter().map(cut).collect() }
            }
            (Self::Vector(_), Slice::Columns) => panic!("a vector has no columns"),
        }
    }
}

/// What each of `n_shares` has of `n`.
fn shared_by(n: usize, n_shares: usize) -> usize {
    assert!(n.is_multiple_of(n_shares), "{n} in {n_shares} shares");
    n / n_shares
}

/// Rows and columns of a rank's part of a matrix, and what takes its blocks out of those of the whole.
fn cut_of(
    ty: BlockType,
    (rows, cols): (usize, usize),
    slice: Slice,
    rank: usize,
    n_ranks: usize,
) -> (usize, usize, impl Fn(&Bytes) -> Bytes) {
    let row_bytes = |cols| ty.row_bytes(cols).expect("a row has whole blocks");
    let whole_row = row_bytes(cols);
    let (own_rows, own_cols, first) = match slice {
        Slice::Rows { copies } => {
            let own = shared_by(rows, n_ranks / copies);
            (own, cols, rank / copies * own)
        }
        Slice::Columns => (rows, shared_by(cols, n_ranks), 0),
        Slice::Whole | Slice::FirstRank => panic!("a matrix is divided by rows or by columns"),
    };
    let own_row = row_bytes(own_cols);
    let cut = move |data: &Bytes| {
        if own_cols == cols {
            return data.slice(first * whole_row..(first + own_rows) * whole_row);
        }
        let source = data.clone();
        Bytes::made(vec![data.clone()], own_rows * own_row, move || {
            let source = source.for_once();
            let rows = source.chunks_exact(whole_row);
            rows.flat_map(|row| &row[rank * own_row..][..own_row]).copied().collect()
        })
    };
    (own_rows, own_cols, cut)
}

/// The weights of a model, indexed by [`WeightId`].
#[derive(Debug, Clone, Default)]
pub struct Weights(pub Vec<WeightData>);

impl Weights {
    /// The mapped files that matrices lie in, or are made of, at least one for each matrix.
    pub fn files(&self) -> impl Iterator<Item = FileWatch> {
        self.0.iter().flat_map(WeightData::blocks).flat_map(Bytes::watches)
    }

    /// Makes the blocks of matrices that are made of other tensors.
    pub fn make(&self) {
        self.0.iter().flat_map(WeightData::blocks).for_each(Bytes::make);
    }

    /// Fails if pages of one of these files were lost.
    pub fn check_files(&self) -> Result<(), realizar_formats::Error> {
        self.files().try_for_each(|file| file.check())
    }

    /// The data of a weight.
    pub fn get(&self, id: WeightId) -> &WeightData {
        &self.0[id.idx()]
    }

    /// The numbers of a vector.
    ///
    /// # Panics
    /// If the weight is a matrix.
    pub fn vector(&self, id: WeightId) -> &[f32] {
        match self.get(id) {
            WeightData::Vector(values) => values,
            _ => panic!("weight {} is a matrix", id.0),
        }
    }

    /// The biases of a linear's parts side by side, zero where a part has none;
    /// `None` when no part has one.
    pub fn stacked_bias(&self, parts: &[LinearPart]) -> Option<Vec<f32>> {
        parts.iter().any(|part| part.bias.is_some()).then(|| {
            let of_part = |part: &LinearPart| match part.bias {
                Some(id) => self.vector(id).to_vec(),
                None => vec![0.0; part.out],
            };
            parts.iter().flat_map(of_part).collect()
        })
    }
}
