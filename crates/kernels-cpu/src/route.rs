//! Expert routing: selects the experts of each row from a router's scores, and computes their factors.

use crate::{Groups, Rows, RowsMut, Scoring, Team, math};

/// Parameters of a router.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// The function from scores to factors.
    pub scoring: Scoring,
    /// Number of experts selected per row.
    pub n_chosen: usize,
    /// Added to the factors for the selection, but not to the result.
    pub choice_bias: Option<&'a [f32]>, // [n_experts]
    /// Group-limited routing; `None` selects from all experts.
    pub groups: Option<Groups>,
    /// Whether the factors of a row are divided by their sum.
    pub normalize: bool,
    /// Multiplies each factor.
    pub scale: f32,
}

/// Maximum number of experts of a router, which bounds the stack memory of a row.
pub const MAX_EXPERTS: usize = 1024;

/// Writes the indices of each row's experts, ascending, and then their factors. Among equal scores the
/// lower index wins. If a score of a row is NaN, so are its factors.
///
/// # Panics
/// If shapes or numbers of experts do not fit each other.
pub fn route(
    team: &Team,
    routing: &Routing<'_>,
    scores: Rows<'_>, // [n_rows, n_experts]
    out: RowsMut<'_>, // [n_rows, 2 * n_chosen]
) {
    let n_experts = scores.n_cols();
    let Routing { n_chosen, choice_bias, groups, .. } = *routing;
    assert!((1..=n_experts).contains(&n_chosen) && n_experts <= MAX_EXPERTS, "{n_experts} experts");
    assert_eq!(
        (out.n_rows(), out.n_cols()),
        (scores.n_rows(), 2 * n_chosen),
        "shape of the routes"
    );
    assert!(choice_bias.is_none_or(|bias| bias.len() == n_experts), "biases of the choice");
    if let Some(Groups { n, n_open, n_best }) = groups {
        let fits = n > 0 && n_experts.is_multiple_of(n) && n_open <= n;
        assert!(fits && n_open * (n_experts / n) >= n_chosen, "{n} groups");
        assert!([1, 2].contains(&n_best), "groups by their {n_best} best");
    }
    team.for_each_row_mut(out, 16, |row, out, _thread| route_row(routing, scores.row(row), out));
}

fn route_row(routing: &Routing<'_>, scores: &[f32], out: &mut [f32]) {
    let n = scores.len();
    let mut factors = [0.0; MAX_EXPERTS];
    let factors = &mut factors[..n];
    match routing.scoring {
        Scoring::Softmax => softmax(scores, factors),
        Scoring::Sigmoid => {
            factors.iter_mut().zip(scores).for_each(|(f, &s)| *f = math::sigmoid(s));
        }
        Scoring::SoftmaxOfChosen | Scoring::SparseMixer { .. } => factors.copy_from_slice(scores),
    }
    let mut keys = [0.0; MAX_EXPERTS];
    let keys = &mut keys[..n];
    keys.copy_from_slice(factors);
    if let Some(bias) = routing.choice_bias {
        keys.iter_mut().zip(bias).for_each(|(key, bias)| *key += bias);
    }
    if let Some(groups) = routing.groups {
        close_groups(keys, groups);
    }
    let (chosen, chosen_factors) = out.split_at_mut(routing.n_chosen);
    let mut is_chosen = [false; MAX_EXPERTS];
    for _ in 0..routing.n_chosen {
        let best = best(keys, &is_chosen[..n]);
        if let Scoring::SparseMixer { margin } = routing.scoring {
            factors[best] = part_of_near(scores, &is_chosen[..n], best, margin);
        }
        is_chosen[best] = true;
    }
    let indices = (0..n).filter(|&i| is_chosen[i]);
    for ((i, chosen), factor) in indices.zip(chosen).zip(&mut *chosen_factors) {
        // Indices are below 2^24, so they are exact in f32.
        (*chosen, *factor) = (i as f32, factors[i]);
    }
    if routing.scoring == Scoring::SoftmaxOfChosen {
        let mut raw = [0.0; MAX_EXPERTS];
        let raw = &mut raw[..routing.n_chosen];
        raw.copy_from_slice(chosen_factors);
        softmax(raw, chosen_factors);
    }
    let sum: f32 = chosen_factors.iter().sum();
    let factor = if routing.normalize { routing.scale / sum } else { routing.scale };
    chosen_factors.iter_mut().for_each(|f| *f *= factor);
    if scores.iter().any(|s| s.is_nan()) {
        chosen_factors.fill(f32::NAN);
    }
}

/// The index of the largest key that is not taken; the first among equals. NaN is below all numbers.
fn best(keys: &[f32], taken: &[bool]) -> usize {
    let free = (0..keys.len()).filter(|&i| !taken[i]);
    let better = |best: usize, i: usize| {
        if keys[i] > keys[best] || (keys[best].is_nan() && !keys[i].is_nan()) { i } else { best }
    };
    free.reduce(better).expect("fewer experts are chosen than there are")
}

/// The term of expert `best` in a softmax over the remaining experts near it ([`Scoring::SparseMixer`]).
fn part_of_near(scores: &[f32], is_chosen: &[bool], best: usize, margin: f32) -> f32 {
    let top = scores[best];
    let left = scores.iter().zip(is_chosen).filter(|(_, is_chosen)| !**is_chosen);
    let is_far = |s: f32| (top - s) / s.abs().max(top) > margin;
    let near = left.filter(|(s, _)| !is_far(**s));
    1.0 / near.map(|(&s, _)| math::exp(s - top)).sum::<f32>()
}

fn softmax(scores: &[f32], out: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    out.iter_mut().zip(scores).for_each(|(out, &s)| *out = math::exp(s - max));
    let sum: f32 = out.iter().sum();
    out.iter_mut().for_each(|out| *out /= sum);
}

/// Excludes all experts outside the best groups.
fn close_groups(keys: &mut [f32], groups: Groups) {
    let Groups { n: n_groups, n_open, n_best } = groups;
    let len = keys.len() / n_groups;
    let mut totals = [0.0; MAX_EXPERTS];
    for (total, group) in totals.iter_mut().zip(keys.chunks_exact(len)) {
        let mut two = [f32::NEG_INFINITY; 2];
        for &key in group {
            if key > two[0] {
                two = [key, two[0]];
            } else if key > two[1] {
                two[1] = key;
            }
        }
        *total = if len.min(n_best) == 1 { two[0] } else { two[0] + two[1] };
    }
    let mut is_open = [false; MAX_EXPERTS];
    for _ in 0..n_open {
        let best = best(&totals[..n_groups], &is_open[..n_groups]);
        is_open[best] = true;
    }
    for (group, keys) in keys.chunks_exact_mut(len).enumerate() {
        if !is_open[group] {
            keys.fill(f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Routing<'_> = Routing {
        scoring: Scoring::Softmax,
        n_chosen: 2,
        choice_bias: None,
        groups: None,
        normalize: false,
        scale: 1.0,
    };

    fn run(routing: &Routing<'_>, scores: &[f32]) -> (Vec<usize>, Vec<f32>) {
        let mut out = vec![0.0; 2 * routing.n_chosen];
        let (scores, n) = (Rows::new(scores, 1, scores.len()), out.len());
        route(&Team::new(1), routing, scores, RowsMut::new(&mut out, 1, n));
        let (ids, factors) = out.split_at(routing.n_chosen);
        (ids.iter().map(|&id| id as usize).collect(), factors.to_vec())
    }

    fn assert_factors(got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{got:?} for {want:?}");
        }
    }

    #[test]
    fn scores_become_factors() {
        // exp of these is 1, 2, 4, 8.
        let ln2 = std::f32::consts::LN_2;
        let scores = [0.0, 1.0, 2.0, 3.0].map(|n| n * ln2);
        let (ids, factors) = run(&PLAIN, &scores);
        assert_eq!(ids, [2, 3]);
        assert_factors(&factors, &[4.0 / 15.0, 8.0 / 15.0]);
        let normalized = Routing { normalize: true, scale: 2.5, ..PLAIN };
        assert_factors(&run(&normalized, &scores).1, &[2.5 / 3.0, 5.0 / 3.0]);
        let of_chosen = Routing { scoring: Scoring::SoftmaxOfChosen, ..PLAIN };
        assert_factors(&run(&of_chosen, &scores).1, &[1.0 / 3.0, 2.0 / 3.0]);
        let sigmoid = Routing { scoring: Scoring::Sigmoid, ..PLAIN };
        assert_factors(&run(&sigmoid, &scores).1, &[4.0 / 5.0, 8.0 / 9.0]);
    }

    #[test]
    fn each_turn_weighs_what_is_near_the_best_that_is_left() {
        let mixer = Routing { scoring: Scoring::SparseMixer { margin: 0.1 }, ..PLAIN };
        // The first has one near it, which is the second, and that one near it again.
        let (ids, factors) = run(&mixer, &[3.7, 0.5, 4.0, 3.4]);
        assert_eq!(ids, [0, 2]);
        let part = |others: f64| 1.0 / (1.0 + others);
        assert_factors(&factors, &[part((-0.3_f64).exp()), part((-0.3_f64).exp())]);
        // Below zero the absolute value counts.
        let (ids, factors) = run(&mixer, &[-1.0, -1.1, -1.2]);
        assert_eq!(ids, [0, 1]);
        assert_factors(&factors, &[part((-0.1_f64).exp()), part((-0.1_f64).exp())]);
        assert_eq!(run(&mixer, &[9.0, 5.0, 1.0]), (vec![0, 1], vec![1.0, 1.0]));
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let bias = [0.0, 9.0, 0.0, 0.0];
        let biased = Routing { scoring: Scoring::Sigmoid, choice_bias: Some(&bias), ..PLAIN };
        let (ids, factors) = run(&biased, &[0.0, -2.0, 1.0, 2.0]);
        assert_eq!(ids, [1, 3]);
        assert_factors(&factors, &[0.119_202_922, 0.880_797_078]);
    }

    #[test]
    fn experts_of_the_best_groups_are_chosen() {
        // The best expert is in a group whose two best are less than another's.
        let scores = [5.0, 0.0, 0.0, 0.0, 3.0, 3.0, 1.0, 1.0];
        let groups = |n_open, n_best| Some(Groups { n: 4, n_open, n_best });
        let grouped = Routing { scoring: Scoring::Sigmoid, groups: groups(1, 2), ..PLAIN };
        assert_eq!(run(&grouped, &scores).0, [4, 5]);
        let two = Routing { groups: groups(2, 2), n_chosen: 3, ..grouped };
        assert_eq!(run(&two, &scores).0, [0, 4, 5]);
        // By its best alone the group is open, and the expert beside it is the second.
        let by_best = Routing { groups: groups(1, 1), ..PLAIN };
        let (ids, factors) = run(&by_best, &scores);
        assert_eq!(ids, [0, 1]);
        let sum = 5.0_f64.exp() + 3.0 + 2.0 * 3.0_f64.exp() + 2.0 * 1.0_f64.exp();
        assert_factors(&factors, &[5.0_f64.exp() / sum, 1.0 / sum]);
    }

    #[test]
    fn equal_scores_choose_the_first_and_nan_shows() {
        assert_eq!(run(&PLAIN, &[1.0; 4]).0, [0, 1]);
        let (ids, factors) = run(&PLAIN, &[1.0, f32::NAN, 3.0, 2.0]);
        assert!(ids.iter().all(|&id| id < 4) && factors.iter().all(|f| f.is_nan()));
    }
}
