//! The phases of a batch's rows, and the arithmetic in which a row of each phase meets packed weights.

use crate::{Arithmetic, Batch};
use realizar_kernels_cpu::{PackedArithmetic, Tier};
use realizar_model::graph::RowDomain;
use std::ops::Range;

/// In what decode rows, and prefill rows, meet packed weights in a step on rows of `domain`.
pub(super) fn packed_arithmetics(
    arithmetic: Arithmetic,
    tier: Tier,
    domain: RowDomain,
) -> [PackedArithmetic; 2] {
    let of_prompts = match (arithmetic, domain) {
        (Arithmetic::Auto, RowDomain::Tokens) => tier.prompt_arithmetic(),
        // Output rows of prefill are few, and have two planes.
        (Arithmetic::Auto, RowDomain::Outputs)
        // No weights are packed, and all rows are multiplied alike.
        | (Arithmetic::F32, _) => PackedArithmetic::Int8,
    };
    [PackedArithmetic::Int8, of_prompts]
}

/// Prefill rows at so many first positions of a sequence have activations of two planes where prefill
/// rows are multiplied with 8-bit activations. They are the sinks of attention, to which all later rows
/// give a large share (Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"),
/// so what rounding does to their keys and values reaches every row.
const FINE_POSITIONS: u32 = 4;

/// The rows of a step, split by phase.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoleRows<'a> {
    /// All rows.
    pub(super) n_rows: usize,
    /// Of these, the first so many are generated tokens.
    pub(super) n_decode: usize,
    /// Rows whose activations have two planes, ascending; none of a generated token.
    pub(super) fine: &'a [Range<usize>],
}

/// The rows of a batch whose activations have two planes, in steps on all rows and in those on output
/// rows.
#[derive(Debug)]
pub(super) struct FineRows {
    tokens: Vec<Range<usize>>, // room for max_tokens
    outputs: Range<usize>,
}

impl FineRows {
    pub(super) fn new(max_tokens: usize) -> Self {
        Self { tokens: Vec::with_capacity(max_tokens), outputs: 0..0 }
    }

    /// Lists those of a batch.
    pub(super) fn begin(&mut self, batch: &Batch, arithmetic: Arithmetic, tier: Tier) {
        self.tokens.clear();
        let [_, of_prompts] = packed_arithmetics(arithmetic, tier, RowDomain::Tokens);
        if of_prompts == PackedArithmetic::Int8 {
            for (row, &position) in batch.positions.iter().enumerate().skip(batch.n_decode) {
                match self.tokens.last_mut() {
                    _ if position >= FINE_POSITIONS => {}
                    Some(last) if last.end == row => last.end += 1,
                    _ => self.tokens.push(row..row + 1),
                }
            }
        }
        self.outputs = batch.n_generated_outputs()..batch.outputs.len();
    }

    /// The rows of a batch in steps on rows of `domain`.
    pub(super) fn of(&self, domain: RowDomain, batch: &Batch) -> RoleRows<'_> {
        let (n_rows, n_decode, fine) = match domain {
            RowDomain::Tokens => (batch.n_rows(), batch.n_decode, self.tokens.as_slice()),
            RowDomain::Outputs => (
                batch.outputs.len(),
                batch.n_generated_outputs(),
                std::slice::from_ref(&self.outputs),
            ),
        };
        RoleRows { n_rows, n_decode, fine }
    }
}

impl RoleRows<'_> {
    /// The rows in runs of one arithmetic: all together where decode rows and prefill
    /// rows have the same, else the decode rows, then the others.
    pub(super) fn runs<A: PartialEq>(
        self,
        [generated, prompt]: [A; 2],
    ) -> impl Iterator<Item = (A, Run)> {
        let Self { n_rows, n_decode, .. } = self;
        let first = if generated == prompt { n_rows } else { n_decode };
        let runs = [(generated, 0..first), (prompt, first..n_rows)];
        let runs = runs.into_iter().filter(|(_, rows)| !rows.is_empty());
        runs.map(move |(arithmetic, rows)| {
            let n_decode = n_decode.clamp(rows.start, rows.end) - rows.start;
            (arithmetic, Run { rows, n_decode })
        })
    }
}

/// Neighbouring rows of a step that are multiplied in one arithmetic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) rows: Range<usize>,
    /// Of these, the first so many are generated tokens.
    pub(super) n_decode: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_positions_of_prompts_are_fine() {
        let mut fine = FineRows::new(64);
        // Two generated tokens, a chunk that begins a prompt, one that continues, and one that passes the
        // last of the first positions.
        let positions = [[3, 90].as_slice(), &[0, 1, 2], &[4, 5], &[2, 3, 4]].concat();
        let n_rows = positions.len();
        let batch = Batch {
            tokens: vec![0; n_rows],
            positions,
            n_decode: 2,
            outputs: vec![0, 1, 4, 9],
            ..Batch::default()
        };
        let mut check = |tier, arithmetic, expected: &[Range<usize>]| {
            fine.begin(&batch, arithmetic, tier);
            let rows = fine.of(RowDomain::Tokens, &batch);
            assert_eq!((rows.n_rows, rows.n_decode, rows.fine), (n_rows, 2, expected));
            let rows = fine.of(RowDomain::Outputs, &batch);
            assert_eq!(
                (rows.n_rows, rows.n_decode, rows.fine),
                (4, 2, std::slice::from_ref(&(2..4)))
            );
        };
        check(Tier::Scalar, Arithmetic::Auto, &[2..5, 7..9]);
        check(Tier::software_tiles(), Arithmetic::Auto, &[]);
        check(Tier::Scalar, Arithmetic::Auto, &[2..5, 7..9]);
    }

    #[test]
    fn rows_are_split_by_role_where_the_arithmetic_is() {
        let check = |n_rows, n_decode, [generated, prompt]: [&'static str; 2], expected: &[_]| {
            let runs: Vec<_> =
                RoleRows { n_rows, n_decode, fine: &[] }.runs([generated, prompt]).collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|&(name, start, end, n_decode)| (name, Run { rows: start..end, n_decode }))
                .collect();
            assert_eq!(runs, expected, "{n_decode} of {n_rows} rows");
        };
        for (n_rows, n_decode) in [(1, 1), (1, 0), (40, 0), (40, 8), (40, 40)] {
            check(n_rows, n_decode, ["a", "a"], &[("a", 0, n_rows, n_decode)]);
        }
        check(40, 8, ["a", "b"], &[("a", 0, 8, 8), ("b", 8, 40, 0)]);
        check(8, 8, ["a", "b"], &[("a", 0, 8, 8)]);
        check(8, 0, ["a", "b"], &[("b", 0, 8, 0)]);
        for arithmetics in [["a", "a"], ["a", "b"]] {
            check(0, 0, arithmetics, &[]);
        }
    }
}
