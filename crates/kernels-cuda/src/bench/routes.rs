//! Routes of rows to experts, spread over the experts as by the router of a trained model.

use super::random::Random;
use super::shape::Experts;

/// Sets of routes over which launches of several rows rotate.
const N_SETS: usize = 4;

/// The experts of each row of a set, ascending. The sets of a single row use every expert once before any is used
/// again.
fn chosen(of: &Experts, n_rows: usize, set: usize) -> Vec<Vec<usize>> {
    let shuffled = |random: &mut Random| {
        let mut all: Vec<usize> = (0..of.n_experts).collect();
        random.shuffle(&mut all);
        all
    };
    let sorted = |mut some: Vec<usize>| {
        some.sort_unstable();
        some
    };
    if n_rows == 1 {
        let all = shuffled(&mut Random(19));
        return vec![sorted(all[set * of.n_experts_used..][..of.n_experts_used].to_vec())];
    }
    let mut random = Random(23 + set as u64);
    (0..n_rows).map(|_| sorted(shuffled(&mut random)[..of.n_experts_used].to_vec())).collect()
}

/// Number of sets of routes for steps of `n_rows` rows.
pub(super) fn n_sets(of: &Experts, n_rows: usize) -> usize {
    if n_rows == 1 { of.n_experts / of.n_experts_used } else { N_SETS }
}

/// Mean number of experts that a step uses, over its sets of routes.
pub(super) fn mean_used(of: &Experts, n_rows: usize) -> f64 {
    let used = |set: usize| {
        let mut all = chosen(of, n_rows, set).concat();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    let n = n_sets(of, n_rows);
    (0..n).map(used).sum::<usize>() as f64 / n as f64
}

/// Routes in the format of [`route`](crate::route()), with equal factors.
pub(super) fn routes(of: &Experts, n_rows: usize, set: usize) -> Vec<f32> {
    let of_row = |row: Vec<usize>| {
        let factors = std::iter::repeat_n(1.0 / of.n_experts_used as f32, of.n_experts_used);
        row.into_iter().map(|expert| expert as f32).chain(factors).collect::<Vec<_>>()
    };
    chosen(of, n_rows, set).into_iter().flat_map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::shape::EXPERTS;
    use super::*;

    #[test]
    fn rows_choose_different_experts_and_single_rows_all_in_turn() {
        let of = EXPERTS.experts.unwrap();
        let mut seen: Vec<usize> = (0..16).flat_map(|set| chosen(&of, 1, set).concat()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..128).collect::<Vec<_>>());
        for row in chosen(&of, 32, 1) {
            assert!(row.len() == 8 && row.is_sorted_by(|a, b| a < b), "{row:?}");
        }
        assert_eq!(mean_used(&of, 1), 8.0);
        // The expectation is 1 - (120 / 128)^8 of 128 experts, 51.6. Many rows use all of them.
        assert!((48.0..55.0).contains(&mean_used(&of, 8)), "{}", mean_used(&of, 8));
        assert!(mean_used(&of, 512) > 127.9);
        assert_eq!(routes(&of, 1, 0)[8..], [0.125; 8]);
    }
}
