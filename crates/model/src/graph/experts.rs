//! Layers of which a row uses a few experts: their choice, the products with their matrices, and the sum
//! of what they give.

use super::weights::{ExpertWeight, WeightId};
use super::{GraphBuilder, Op, Prologue, ValueId};
use realizar_types::{Groups, Scoring};

/// The choice of each row's experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Route {
    /// How scores become factors.
    pub scoring: Scoring,
    /// Experts to choose from.
    pub n_experts: usize,
    /// Experts of a row.
    pub n_chosen: usize,
    /// A vector that is added to the factors for the choice alone.
    pub choice_bias: Option<WeightId>, // [n_experts]
    /// Groups of the experts, if a row does not choose from all of them.
    pub groups: Option<Groups>,
    /// Whether factors of a row are divided by their sum.
    pub normalize: bool,
    /// Times each factor.
    pub scale: f32,
}

/// The matrices of one part of an [`ExpertLinear`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertPart {
    /// The matrices, `[n_experts, out, n_in]`.
    pub weight: WeightId,
    /// Rows of a matrix.
    pub out: usize,
}

/// Products of each row with the matrices of its experts.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertLinear {
    /// What happens to the input first; no norm.
    pub prologue: Prologue,
    /// The matrices of the parts, which all have the same input.
    pub parts: Vec<ExpertPart>,
    /// Experts to choose from.
    pub n_experts: usize,
    /// Experts of a row.
    pub n_chosen: usize,
    /// Columns of a matrix. The input has as many, which all experts of a row share, or
    /// `n_chosen * n_in`, some for each.
    pub n_in: usize,
}

/// The biases of products with experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertBias {
    /// A vector, those of each expert one after the other.
    pub biases: WeightId, // [n_experts, out]
    /// Experts to choose from.
    pub n_experts: usize,
    /// Experts of a row.
    pub n_chosen: usize,
}

impl GraphBuilder {
    /// The experts of each row, from the scores of its router: `[rows, 2 * n_chosen]`, the indices in
    /// ascending order, which F32 holds exactly, and then their factors.
    pub fn route(&mut self, scores: ValueId, route: Route) -> ValueId {
        assert_eq!(self.width(scores), route.n_experts, "scores of the experts");
        assert!((1..=route.n_experts).contains(&route.n_chosen), "{} experts", route.n_chosen);
        let rows = self.rows(scores);
        self.push(Op::Route(route), &[scores], 2 * route.n_chosen, rows)
    }

    /// `x` times the transposed matrices of each row's experts, the results side by side:
    /// `[rows, n_chosen * out]`.
    pub fn expert_linear(&mut self, x: ValueId, routes: ValueId, weight: &ExpertWeight) -> ValueId {
        let &ExpertWeight { id, n_experts, rows: out, cols: n_in } = weight;
        let n_chosen = self.width(routes) / 2;
        let width = self.width(x);
        assert!([n_in, n_chosen * n_in].contains(&width), "experts on {width} columns");
        let parts = vec![ExpertPart { weight: id, out }];
        let prologue = Prologue::None;
        let linear = ExpertLinear { prologue, parts, n_experts, n_chosen, n_in };
        let rows = self.rows(x);
        self.push(Op::ExpertLinear(linear), &[x, routes], n_chosen * out, rows)
    }

    /// The results of each row's experts, which lie side by side, plus the biases of their experts.
    pub fn expert_bias(
        &mut self,
        x: ValueId,
        routes: ValueId,
        biases: WeightId, // [n_experts, out]
        n_experts: usize,
    ) -> ValueId {
        let n_chosen = self.width(routes) / 2;
        let (width, rows) = (self.width(x), self.rows(x));
        assert!(width.is_multiple_of(n_chosen), "results of {n_chosen} experts");
        let bias = ExpertBias { biases, n_experts, n_chosen };
        self.push(Op::ExpertBias(bias), &[x, routes], width, rows)
    }

    /// The sum of the results of each row's experts by their factors, in the order of the routes.
    pub fn combine(&mut self, x: ValueId, routes: ValueId) -> ValueId {
        let n_chosen = self.width(routes) / 2;
        assert!(self.width(x).is_multiple_of(n_chosen), "results of {n_chosen} experts");
        let (width, rows) = (self.width(x) / n_chosen, self.rows(x));
        self.push(Op::Combine, &[x, routes], width, rows)
    }
}
