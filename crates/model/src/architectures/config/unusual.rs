//! What few decoders have: latent attention, several streams of hidden states, and queries that grow.

/// Growth of queries with their position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// Times the logarithm.
    pub rate: f32,
    /// Positions after which a query has grown once more.
    pub period: usize,
    /// Added to the position.
    pub offset: usize,
}

impl QueryGrowth {
    /// The factor on the queries at a position (arXiv:2501.19399).
    pub fn factor(&self, position: usize) -> f32 {
        let n_periods = (position + self.offset) / self.period;
        1.0 + self.rate * (n_periods as f32).ln_1p()
    }
}

/// Streams of hidden states of which layers work on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AltUp {
    /// Streams.
    pub n: usize,
    /// The one that layers work on.
    pub active: usize,
    /// Whether its columns have factors before it chooses from the embeddings of a layer.
    pub scales: bool,
    /// Columns of the low-rank residual beside attention.
    pub laurel_rank: usize,
}

/// The sizes of latent attention: all heads of a layer have their keys and values made of one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// Columns of the vector that queries are made of, if they are not made of the hidden state.
    pub q_rank: Option<usize>,
    /// Columns of the vector that keys and values are made of.
    pub kv_rank: usize,
    /// Columns of a head's query and key that are made of it and do not turn.
    pub plain_dim: usize,
    /// Columns of a head's query that turn, and of the key that turns, which all heads share.
    pub rotary_dim: usize,
    /// Columns of a head's value.
    pub v_dim: usize,
    /// Whether neighbouring columns turn together; else those half of the turning ones apart.
    pub turns_neighbours: bool,
    /// Positions from which an indexer chooses all, if there is one: longer contexts are not built.
    pub max_dense: Option<usize>,
}
