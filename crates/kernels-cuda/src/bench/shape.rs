//! The measured shapes: an 8B dense model, a 30B MoE model, and small ones for the interpreter.

/// The dimensions of a model that determine its kernels' shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) dim: usize,
    /// Rows of the gate matrix; 0 if all feed-forward layers are MoE.
    pub(super) hidden_dim: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) vocab_size: usize,
    /// Whether query and key heads are normalized.
    pub(super) has_head_norms: bool,
    pub(super) experts: Option<Experts>,
}

/// The experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Experts {
    pub(super) n_experts: usize,
    pub(super) n_experts_used: usize,
    /// Rows of the gate matrix of one expert.
    pub(super) hidden_dim: usize,
}

impl Shape {
    /// Columns of all query heads.
    pub(super) fn q_cols(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of all key heads.
    pub(super) fn kv_cols(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

/// Llama 3 8B.
pub(super) const DENSE: Shape = Shape {
    name: "8B",
    dim: 4096,
    hidden_dim: 14336,
    n_heads: 32,
    n_kv_heads: 8,
    head_dim: 128,
    vocab_size: 128_256,
    has_head_norms: false,
    experts: None,
};

/// Qwen3 30B-A3B.
pub(super) const EXPERTS: Shape = Shape {
    name: "30B-A3B",
    dim: 2048,
    hidden_dim: 0,
    n_heads: 32,
    n_kv_heads: 4,
    head_dim: 128,
    vocab_size: 151_936,
    has_head_norms: true,
    experts: Some(Experts { n_experts: 128, n_experts_used: 8, hidden_dim: 768 }),
};

/// The models and the sizes at which they are measured.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    pub(super) dense: Shape,
    pub(super) experts: Shape,
    /// Batch sizes of decode steps.
    pub(super) batches: Vec<usize>,
    /// Row counts of prefill steps.
    pub(super) prefill: Vec<usize>,
    /// Context lengths of attention.
    pub(super) positions: Vec<usize>,
    /// Bytes over which launches rotate before the same memory is read again.
    pub(super) rotated_bytes: usize,
    /// Bytes that the ceilings read and copy.
    pub(super) ceiling_bytes: usize,
}

impl Sizes {
    /// The sizes for GPUs. Rotated bytes are ten times the 50 MB of an H100's L2.
    pub(super) fn real() -> Self {
        Self {
            dense: DENSE,
            experts: EXPERTS,
            batches: vec![1, 8, 32, 128],
            prefill: vec![512, 1024],
            positions: vec![256, 4096, 32768],
            rotated_bytes: 512 << 20,
            ceiling_bytes: 2 << 30,
        }
    }

    /// Small sizes for the interpreter, which select the same kernels except for large tiles.
    pub(super) fn small() -> Self {
        Self {
            dense: Shape {
                dim: 256,
                hidden_dim: 256,
                n_heads: 2,
                n_kv_heads: 1,
                vocab_size: 96,
                ..DENSE
            },
            experts: Shape {
                dim: 256,
                n_heads: 2,
                n_kv_heads: 1,
                vocab_size: 96,
                experts: Some(Experts { n_experts: 4, n_experts_used: 2, hidden_dim: 256 }),
                ..EXPERTS
            },
            batches: vec![1, 8, 33],
            prefill: vec![9],
            positions: vec![40],
            rotated_bytes: 1,
            ceiling_bytes: 1 << 17,
        }
    }
}
