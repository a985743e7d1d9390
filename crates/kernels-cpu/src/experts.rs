//! Mixture of experts: sorting rows by expert, gathering the experts' inputs, combining their results.
//!
//! [`route`](crate::route) selects a row's experts. The rows of an expert are consecutive after sorting,
//! so its matrices are read once for all of them; the products are in `matmul/experts.rs`. Nothing here
//! sums over rows, so the bits do not depend on the other rows of an expert.

use std::ops::Range;

use crate::elementwise::{add_piece_in_place, for_each_piece};
use crate::{
    Activation, Bf16Rows, QuantizedRows, Rows, RowsMut, Team, Tier, activate_row, gated_row,
};

/// Rows per block of [`Bf16Rows`]. A block has rows of one expert only.
pub(crate) const BLOCK_ROWS: usize = crate::tiles::PAIR_LEN;

/// A row and one of its experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) row: u32,
    /// Index of the expert among those of the row.
    pub(crate) slot: u32,
}

/// The rows of one expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpertRun {
    pub(crate) expert: usize,
    /// The expert's pairs.
    pub(crate) pairs: Range<usize>,
    /// Index of its first block.
    pub(crate) first_block: usize,
}

/// The pairs of rows and their experts, sorted by expert.
#[derive(Debug)]
pub struct ExpertRows {
    n_rows: usize,
    n_chosen: usize,
    pairs: Vec<Pair>,          // by expert, then by row
    runs: Vec<ExpertRun>,      // of the experts that were chosen
    blocks: Vec<Range<usize>>, // pairs of every 32 rows of an expert
    ends: Vec<usize>,          // [n_experts]
    max_pairs: usize,
    max_experts: usize,
}

/// The input of the experts. A row has either as many columns as the matrices, which all its experts
/// share, or so many for each of its experts, side by side.
#[derive(Clone, Copy, Debug)]
pub enum ExpertInput<'a> {
    /// The row as it is.
    Plain(Rows<'a>),
    /// `activation(x)`.
    Act(Activation, Rows<'a>),
    /// `activation(gate) * up`.
    Gated(Activation, Rows<'a>, Rows<'a>),
}

impl ExpertInput<'_> {
    /// Columns per row.
    fn n_cols(&self) -> usize {
        match self {
            Self::Plain(x) | Self::Act(_, x) | Self::Gated(_, x, _) => x.n_cols(),
        }
    }

    /// Computes the columns of a row from `col` on.
    fn write(&self, tier: Tier, row: usize, col: usize, out: &mut [f32]) {
        let cols = col..col + out.len();
        match self {
            Self::Plain(x) => out.copy_from_slice(&x.row(row)[cols]),
            Self::Act(act, x) => {
                out.copy_from_slice(&x.row(row)[cols]);
                activate_row(tier, *act, out);
            }
            Self::Gated(act, gate, up) => {
                gated_row(tier, *act, &gate.row(row)[cols.clone()], &up.row(row)[cols], out);
            }
        }
    }
}

impl ExpertRows {
    /// Allocates for `max_rows` rows with `max_chosen` of `max_experts` experts each.
    pub fn with_capacity(max_rows: usize, max_chosen: usize, max_experts: usize) -> Self {
        let max_pairs = max_rows.saturating_mul(max_chosen);
        Self {
            n_rows: 0,
            n_chosen: 0,
            pairs: Vec::with_capacity(max_pairs),
            runs: Vec::with_capacity(max_experts.min(max_pairs)),
            blocks: Vec::with_capacity(Self::max_blocks(max_pairs, max_experts)),
            ends: Vec::with_capacity(max_experts),
            max_pairs,
            max_experts,
        }
    }

    fn max_blocks(max_pairs: usize, max_experts: usize) -> usize {
        max_pairs / BLOCK_ROWS + max_experts.min(max_pairs)
    }

    /// Number of rows that [`Bf16Rows`] must have room for to hold `max_pairs` pairs: every expert begins a
    /// new block.
    pub fn max_bf16_rows(max_pairs: usize, max_experts: usize) -> usize {
        Self::max_blocks(max_pairs, max_experts).saturating_mul(BLOCK_ROWS)
    }

    /// Replaces the pairs by those of `routes`, which [`route`](crate::route) wrote for `n_experts` experts.
    ///
    /// # Panics
    /// If there are more rows or experts than there is room for, or an expert is out of range.
    pub fn sort(
        &mut self,
        routes: Rows<'_>, // [n_rows, 2 * n_chosen]
        n_experts: usize,
    ) {
        let n_chosen = routes.n_cols() / 2;
        let n_pairs = routes.n_rows() * n_chosen;
        assert!(n_pairs <= self.max_pairs, "{n_pairs} pairs, room for {}", self.max_pairs);
        assert!(n_experts <= self.max_experts, "{n_experts} experts");
        (self.n_rows, self.n_chosen) = (routes.n_rows(), n_chosen);
        let chosen = |row: usize| routes.row(row)[..n_chosen].iter().map(|&id| id as usize);
        // Prefix sums turn counts into starts; sorting turns starts into ends.
        self.ends.clear();
        self.ends.resize(n_experts, 0);
        (0..routes.n_rows()).flat_map(chosen).for_each(|expert| self.ends[expert] += 1);
        let mut first = 0;
        for end in &mut self.ends {
            (*end, first) = (first, first + *end);
        }
        self.pairs.clear();
        self.pairs.resize(n_pairs, Pair::default());
        for row in 0..routes.n_rows() {
            for (slot, expert) in chosen(row).enumerate() {
                let at = &mut self.ends[expert];
                // Rows and experts are far fewer than 2^32.
                self.pairs[*at] = Pair { row: row as u32, slot: slot as u32 };
                *at += 1;
            }
        }
        self.runs.clear();
        self.blocks.clear();
        let mut first = 0;
        for (expert, &end) in self.ends.iter().enumerate() {
            if end > first {
                let first_block = self.blocks.len();
                self.runs.push(ExpertRun { expert, pairs: first..end, first_block });
                let blocks = (first..end).step_by(BLOCK_ROWS);
                self.blocks.extend(blocks.map(|pair| pair..end.min(pair + BLOCK_ROWS)));
            }
            first = end;
        }
    }

    /// Number of rows.
    pub(crate) const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of experts per row.
    pub(crate) const fn n_chosen(&self) -> usize {
        self.n_chosen
    }

    /// Number of pairs.
    pub const fn n_pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The experts that have rows.
    pub(crate) fn runs(&self) -> &[ExpertRun] {
        &self.runs
    }

    /// A pair.
    pub(crate) fn pair(&self, i: usize) -> Pair {
        self.pairs[i]
    }

    /// Returns a function from a pair's index to its row in `input` and its first column there.
    fn source(&self, input: &ExpertInput<'_>, n_in: usize) -> impl Fn(usize) -> (usize, usize) {
        let n_cols = input.n_cols();
        let is_shared = n_cols == n_in;
        assert!(is_shared || n_cols == n_in * self.n_chosen, "{n_cols} columns of the input");
        move |i| {
            let Pair { row, slot } = self.pairs[i];
            (row as usize, if is_shared { 0 } else { slot as usize * n_in })
        }
    }

    /// Quantizes the input of each pair, in order. The bytes are those of [`QuantizedRows::quantize`].
    ///
    /// # Panics
    /// If rows have neither `n_in` columns nor so many per expert, or these are not whole blocks of 32, or
    /// `out` has too little room.
    pub fn quantize(
        &self,
        team: &Team,
        tier: Tier,
        input: &ExpertInput<'_>,
        n_in: usize,
        out: &mut QuantizedRows, // [n_pairs, n_in]
    ) {
        let source = self.source(input, n_in);
        out.arrange(self.n_pairs(), n_in, &[]);
        out.fill(team, |i, mut out| {
            let (row, first) = source(i);
            match input {
                ExpertInput::Plain(x) => out.quantize(tier, 0, &x.row(row)[first..first + n_in]),
                _ => out.produce(tier, 0, n_in, |cols, out| {
                    input.write(tier, row, first + cols.start, out);
                }),
            }
        });
    }

    /// Writes the input of each pair, in order.
    ///
    /// # Panics
    /// If rows have neither `n_in` columns nor so many per expert, or `out` has another shape.
    pub fn gather(
        &self,
        team: &Team,
        tier: Tier,
        input: &ExpertInput<'_>,
        out: RowsMut<'_>, // [n_pairs, n_in]
    ) {
        assert_eq!(out.n_rows(), self.n_pairs(), "rows of the pairs");
        let source = self.source(input, out.n_cols());
        for_each_piece(team, out, |i, col, out| {
            let (row, first) = source(i);
            input.write(tier, row, first + col, out);
        });
    }

    /// Rounds the rows that [`Self::gather`] wrote to BF16. Every expert begins a new block of 32 rows.
    ///
    /// # Panics
    /// If the number of rows is not that of the pairs, or `out` has too little room.
    pub fn pack(
        &self,
        team: &Team,
        tier: Tier,
        x: Rows<'_>, // [n_pairs, n_in]
        out: &mut Bf16Rows,
    ) {
        assert_eq!(x.n_rows(), self.n_pairs(), "rows of the pairs");
        out.fill(team, tier, self.blocks.len() * BLOCK_ROWS, x.n_cols(), |i| {
            let block = &self.blocks[i / BLOCK_ROWS];
            (i % BLOCK_ROWS < block.len()).then(|| x.row(block.start + i % BLOCK_ROWS))
        });
    }
}

/// Adds the experts' biases to the results of each row's experts, which are side by side.
///
/// # Panics
/// If the shapes do not match, or an expert has no biases.
pub fn add_expert_biases_in_place(
    team: &Team,
    tier: Tier,
    x: RowsMut<'_>,   // [n_rows, n_chosen * n]
    routes: Rows<'_>, // [n_rows, 2 * n_chosen]
    biases: &[f32],   // [n_experts, n]
) {
    let n_chosen = routes.n_cols() / 2;
    assert!(n_chosen > 0 && x.n_cols().is_multiple_of(n_chosen), "results of {n_chosen} experts");
    let n = x.n_cols() / n_chosen;
    assert_eq!(routes.n_rows(), x.n_rows(), "rows of the routes");
    assert!(biases.len().is_multiple_of(n.max(1)), "biases of experts with {n} results");
    for_each_piece(team, x, |row, mut col, mut out: &mut [f32]| {
        let experts = routes.row(row);
        while !out.is_empty() {
            let at = col % n;
            let (part, rest) = out.split_at_mut(out.len().min(n - at));
            let first = experts[col / n] as usize * n + at;
            add_piece_in_place(tier, part, &biases[first..first + part.len()]);
            (col, out) = (col + part.len(), rest);
        }
    });
}

/// Computes `out[r] = Σ factor[i] * x[r][i * n..][..n]` over the experts of a row, in the router's order.
/// The sum begins with the first product, not with zero.
///
/// # Panics
/// If the shapes do not match.
pub fn combine(
    team: &Team,
    x: Rows<'_>,      // [n_rows, n_chosen * n]
    routes: Rows<'_>, // [n_rows, 2 * n_chosen]
    out: RowsMut<'_>, // [n_rows, n]
) {
    let (n, n_chosen) = (out.n_cols(), routes.n_cols() / 2);
    assert_eq!((x.n_rows(), x.n_cols()), (out.n_rows(), n_chosen * n), "results of experts");
    assert_eq!(routes.n_rows(), x.n_rows(), "rows of the routes");
    assert!(n_chosen > 0, "a row has experts");
    for_each_piece(team, out, |row, col, out| {
        let factors = &routes.row(row)[n_chosen..];
        let part = |i: usize| &x.row(row)[i * n + col..][..out.len()];
        let first = part(0);
        out.iter_mut().zip(first).for_each(|(out, x)| *out = factors[0] * x);
        for (i, factor) in factors.iter().enumerate().skip(1) {
            let part = &x.row(row)[i * n + col..][..out.len()];
            out.iter_mut().zip(part).for_each(|(out, x)| *out += factor * x);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_expert() {
        let mut rows = ExpertRows::with_capacity(4, 2, 5);
        // Of each row its experts, then their factors.
        let routes = [[0.0, 3.0], [3.0, 4.0], [0.0, 3.0]].map(|[a, b]| [a, b, 0.5, 0.5]);
        rows.sort(Rows::new(routes.as_flattened(), 3, 4), 5);
        let pairs: Vec<_> = rows.pairs.iter().map(|pair| (pair.row, pair.slot)).collect();
        assert_eq!(pairs, [(0, 0), (2, 0), (0, 1), (1, 0), (2, 1), (1, 1)]);
        let runs: Vec<_> = rows
            .runs()
            .iter()
            .map(|run| (run.expert, run.pairs.clone(), run.first_block))
            .collect();
        assert_eq!(runs, [(0, 0..2, 0), (3, 2..5, 1), (4, 5..6, 2)]);
        assert_eq!(rows.blocks, [0..2, 2..5, 5..6]);
        // Sorting again discards the earlier order.
        rows.sort(Rows::new(&routes[1], 1, 4), 5);
        assert_eq!((rows.n_rows(), rows.n_pairs(), rows.runs().len()), (1, 2, 2));
    }

    #[test]
    fn each_pair_gets_its_row_or_its_part_of_it() {
        let mut rows = ExpertRows::with_capacity(2, 2, 3);
        rows.sort(Rows::new(&[1.0, 2.0, 0.5, 0.5, 0.0, 1.0, 0.5, 0.5], 2, 4), 3);
        let team = Team::new(2);
        // The pairs are (1, 0), (0, 0), (1, 1), (0, 1).
        let gather = |input: &ExpertInput<'_>| {
            let mut out = [0.0; 8];
            rows.gather(&team, Tier::Scalar, input, RowsMut::new(&mut out, 4, 2));
            out
        };
        let shared = [1.0, 2.0, 3.0, 4.0];
        let shared = Rows::new(&shared, 2, 2);
        assert_eq!(gather(&ExpertInput::Plain(shared)), [3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
        let own = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0];
        let own = Rows::new(&own, 2, 4);
        assert_eq!(gather(&ExpertInput::Plain(own)), [5.0, 6.0, 1.0, 2.0, 7.0, -8.0, 3.0, 4.0]);
        let relu = ExpertInput::Act(Activation::Relu, own);
        assert_eq!(gather(&relu), [5.0, 6.0, 1.0, 2.0, 7.0, 0.0, 3.0, 4.0]);
        let gated = ExpertInput::Gated(Activation::Relu, own, own);
        assert_eq!(gather(&gated), [25.0, 36.0, 1.0, 4.0, 49.0, 0.0, 9.0, 16.0]);
    }

    #[test]
    fn quantized_pairs_are_quantized_rows() {
        let team = Team::new(2);
        let mut seed = 3;
        let (n_rows, n_in) = (3, 64);
        let [gate, up] = [0, 1].map(|_| crate::testing::random(&mut seed, n_rows * 2 * n_in));
        let [gate, up] = [&gate, &up].map(|x| Rows::new(x, n_rows, 2 * n_in));
        let routes = [[0.0, 1.0], [1.0, 2.0], [0.0, 2.0]].map(|[a, b]| [a, b, 0.5, 0.5]);
        let mut rows = ExpertRows::with_capacity(n_rows, 2, 3);
        rows.sort(Rows::new(routes.as_flattened(), n_rows, 4), 3);
        for tier in Tier::available() {
            let inputs = [ExpertInput::Plain(gate), ExpertInput::Gated(Activation::Silu, gate, up)];
            for input in inputs {
                let mut floats = vec![0.0; 6 * n_in];
                rows.gather(&team, tier, &input, RowsMut::new(&mut floats, 6, n_in));
                let mut expected = QuantizedRows::with_capacity(6, n_in);
                expected.quantize(&team, tier, Rows::new(&floats, 6, n_in));
                let mut found = QuantizedRows::with_capacity(6, n_in);
                rows.quantize(&team, tier, &input, n_in, &mut found);
                for i in 0..6 {
                    assert_eq!(found.quants(i), expected.quants(i), "{tier}");
                    assert_eq!(found.scales(i), expected.scales(i), "{tier}");
                }
            }
        }
    }

    #[test]
    fn results_get_the_biases_of_their_experts() {
        // Rows that pieces and vectors do not divide, strided, and experts in no order.
        let (n, n_rows, stride) = (3001, 3, 2 * 3001 + 5);
        let mut seed = 5;
        let biases = crate::testing::random(&mut seed, 4 * n);
        let before = crate::testing::random(&mut seed, n_rows * stride);
        let routes = [[0.0, 3.0, 0.5, 0.5], [2.0, 1.0, 0.5, 0.5], [3.0, 3.0, 0.5, 0.5]];
        let mut expected = before.clone();
        for (row, route) in routes.iter().enumerate() {
            for (slot, &expert) in route[..2].iter().enumerate() {
                for i in 0..n {
                    expected[row * stride + slot * n + i] += biases[expert as usize * n + i];
                }
            }
        }
        for tier in Tier::available() {
            for n_threads in [1, 3] {
                let mut x = before.clone();
                let rows = RowsMut::with_stride(&mut x, n_rows, 2 * n, stride);
                let routes = Rows::new(routes.as_flattened(), n_rows, 4);
                add_expert_biases_in_place(&Team::new(n_threads), tier, rows, routes, &biases);
                assert!(x == expected, "{tier}, {n_threads} threads");
            }
        }
    }

    #[test]
    fn results_are_added_by_their_factors() {
        let x = [1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0];
        let routes = [0.0, 1.0, 0.5, 0.25, 0.0, 2.0, 2.0, -1.0];
        let mut out = [0.0; 4];
        let (x, routes) = (Rows::new(&x, 2, 4), Rows::new(&routes, 2, 4));
        combine(&Team::new(2), x, routes, RowsMut::new(&mut out, 2, 2));
        assert_eq!(out, [3.0, 6.0, -24.0, -32.0]);
    }
}
