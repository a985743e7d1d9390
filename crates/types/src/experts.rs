//! Routing of mixture-of-experts layers: scores to factors, and limits on groups of experts.

/// How the scores of a router become factors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scoring {
    /// A softmax over all experts.
    Softmax,
    /// A sigmoid of each score (DeepSeek-V3, arXiv:2412.19437).
    Sigmoid,
    /// A softmax over the scores of the chosen experts alone.
    SoftmaxOfChosen,
    /// SparseMixer (arXiv:2409.12136): experts are chosen one after another, each time the best that is left. Its
    /// factor is its part of a softmax over the remaining experts whose scores differ from it by at most `margin`
    /// times the larger of its score and their absolute value.
    SparseMixer {
        /// The largest relative difference.
        margin: f32,
    },
}

/// Group-limited routing: experts are chosen from the best groups of neighbouring experts only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// The number of groups.
    pub n: usize,
    /// The number of groups that experts are chosen from.
    pub n_open: usize,
    /// A group's score is the sum of its `n_best` largest: 1 (`group_limited_greedy` of DeepSeek-V2,
    /// arXiv:2405.04434) or 2 (`noaux_tc` of DeepSeek-V3, arXiv:2412.19437).
    pub n_best: usize,
}
