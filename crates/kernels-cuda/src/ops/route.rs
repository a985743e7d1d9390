//! Routing of rows to experts, and combination of the experts' results.
//!
//! Routes, `[n_rows, 2 * n_experts_used]`, are the indices of a row's experts in ascending order, followed by their
//! factors. A padding row has index -1 for each expert.

use crate::device::{Argument, Device};
use crate::kernels::{Kernels, PER_LANE};
use crate::{Error, List, Rows};
use realizar_types::{Groups, Scoring};

/// Rows of a block of the routing kernel, one per warp.
const WARPS: usize = 4;
/// Threads of a block of elementwise kernels.
const THREADS: u32 = 128;
/// Number of elements from which threads process four each. Fewer elements would leave too many threads idle.
const FOUR_FROM: usize = 1 << 17;

/// Parameters of the router.
#[derive(Debug)]
pub struct Routing<'a, D: Device> {
    /// Function from scores to factors.
    pub scoring: Scoring,
    /// Experts per row.
    pub n_experts_used: usize,
    /// Added to the factors for selection only, `[1, n_experts]`.
    pub choice_bias: Option<Rows<'a, D>>,
    /// Groups of experts, if selection is limited to the best ones.
    pub groups: Option<Groups>,
    /// Whether the factors of a row are normalized to a sum of 1.
    pub normalize: bool,
    /// Multiplied with each factor.
    pub scale: f32,
    /// A word per row, `u32::MAX` for padding rows, such as the row's key-value slot. Without it, all rows are active.
    pub active: Option<List<'a, D>>,
}

impl<D: Device> Routing<'_, D> {
    /// The maximum number of experts of a router.
    pub const MAX_EXPERTS: usize = 1024;
}

/// Queues the selection of each row's experts. Ties choose the lower index. A row with a NaN score has NaN factors.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or there are more than [`Routing::MAX_EXPERTS`].
pub fn route<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    routing: &Routing<'_, D>,
    scores: Rows<'_, D>, // [n_rows, n_experts]
    out: Rows<'_, D>,    // [n_rows, 2 * n_experts_used]
) -> Result<(), Error> {
    let &Routing { scoring, n_experts_used, choice_bias, groups, normalize, scale, active } =
        routing;
    let (n_rows, n_experts) = (scores.n_rows(), scores.n_cols());
    assert!((1..=n_experts).contains(&n_experts_used), "{n_experts_used} of {n_experts} experts");
    let per_lane = PER_LANE.iter().position(|n| n_experts <= 32 * n);
    let per_lane = per_lane.unwrap_or_else(|| panic!("{n_experts} experts"));
    scores.check(kernels, "scores", n_rows, n_experts);
    out.check(kernels, "routes", n_rows, 2 * n_experts_used);
    if let Some(bias) = choice_bias {
        bias.check(kernels, "the bias of the choice", 1, n_experts);
    }
    if let Some(active) = active {
        active.check(kernels, "rows that take part", n_rows);
    }
    if let Some(Groups { n, n_open, n_best }) = groups {
        let fits = n > 0 && n_experts.is_multiple_of(n) && n_open <= n;
        assert!(fits && n_open * (n_experts / n) >= n_experts_used, "{n_open} of {n} groups");
        assert!([1, 2].contains(&n_best), "groups by their {n_best} best");
    }
    let Groups { n: n_groups, n_open, n_best } =
        groups.unwrap_or(Groups { n: 0, n_open: 0, n_best: 0 });
    let (scoring, margin) = match scoring {
        Scoring::Softmax => (0, 0.0),
        Scoring::Sigmoid => (1, 0.0),
        Scoring::SoftmaxOfChosen => (2, 0.0),
        Scoring::SparseMixer { margin } => {
            assert!(choice_bias.is_none() && groups.is_none(), "turns are by scores alone");
            (3, margin)
        }
    };
    let arguments = [
        scores.address(),
        scores.stride(),
        choice_bias.map_or(Argument::Address(0), |bias| bias.address()),
        active.map_or(Argument::Address(0), |active| active.address()),
        out.address(),
        out.stride(),
        Argument::I32(n_rows as i32),
        Argument::I32(n_experts as i32),
        Argument::I32(n_experts_used as i32),
        Argument::I32(scoring),
        Argument::I32(n_groups as i32),
        Argument::I32(n_open as i32),
        Argument::I32(n_best as i32),
        Argument::I32(i32::from(normalize)),
        Argument::F32(scale),
        Argument::F32(margin),
    ];
    let grid = [n_rows.div_ceil(WARPS) as u32, 1, 1];
    let function = &kernels.route.route[per_lane];
    // SAFETY: the arguments are those of `route_*` in order; rows and lists lie within their buffers, and their shapes
    // were checked. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [32, WARPS as u32], &arguments) }
}

/// Queues the weighted sum of the results of each row's experts, in the order of the routes. Results of expert -1 are
/// not read.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or rows have more than 8 million elements.
pub fn combine<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>,      // [n_rows, n_experts_used * n_cols]
    routes: Rows<'_, D>, // [n_rows, 2 * n_experts_used]
    out: Rows<'_, D>,    // [n_rows, n_cols]
) -> Result<(), Error> {
    let (n_rows, n_cols, n_experts_used) = (out.n_rows(), out.n_cols(), routes.n_cols() / 2);
    x.check(kernels, "results of experts", n_rows, n_experts_used * n_cols);
    routes.check(kernels, "routes", n_rows, 2 * n_experts_used);
    out.check(kernels, "out", n_rows, n_cols);
    // Both kernels have the same bits.
    let is_aligned = x.is_aligned() && out.is_aligned() && n_cols.is_multiple_of(4);
    let which = usize::from(is_aligned && n_rows * n_cols >= FOUR_FROM);
    let arguments = [
        x.address(),
        x.stride(),
        routes.address(),
        routes.stride(),
        out.address(),
        out.stride(),
        Argument::I32(n_experts_used as i32),
        Argument::I32(n_cols as i32),
    ];
    let grid = grid(n_rows, n_cols, [1, 4][which]);
    // SAFETY: as in `route`, for `combine_*`.
    unsafe { kernels.launch(stream, &kernels.route.combine[which], grid, [THREADS, 1], &arguments) }
}

/// Queues the addition of the experts' biases to the concatenated results of each row's experts. Results of expert -1
/// are not written. An expert without biases stops the device, which the next call that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or rows have more than 8 million elements.
pub fn expert_bias<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    biases: Rows<'_, D>, // [1, n_experts * n]
    x: Rows<'_, D>,      // [n_rows, n_experts_used * n]
    routes: Rows<'_, D>, // [n_rows, 2 * n_experts_used]
    out: Rows<'_, D>,    // [n_rows, n_experts_used * n], which may be `x`
) -> Result<(), Error> {
    let (n_rows, n_cols, n_experts_used) = (x.n_rows(), x.n_cols(), routes.n_cols() / 2);
    assert!(
        n_experts_used > 0 && n_cols.is_multiple_of(n_experts_used),
        "results of {n_experts_used} experts"
    );
    let width = n_cols / n_experts_used;
    let n_experts = biases.n_cols() / width.max(1);
    biases.check(kernels, "biases of experts", 1, n_experts * width);
    x.check(kernels, "results of experts", n_rows, n_cols);
    routes.check(kernels, "routes", n_rows, 2 * n_experts_used);
    out.check(kernels, "out", n_rows, n_cols);
    let arguments = [
        x.address(),
        x.stride(),
        routes.address(),
        routes.stride(),
        biases.address(),
        out.address(),
        out.stride(),
        Argument::I32(n_cols as i32),
        Argument::I32(width as i32),
        Argument::I32(n_experts as i32),
    ];
    let grid = grid(n_rows, n_cols, 1);
    // SAFETY: as in `route`, for `expert_bias`, which checks the experts.
    unsafe { kernels.launch(stream, &kernels.route.bias, grid, [THREADS, 1], &arguments) }
}

/// Queues a selection or permutation of columns: column `c` of `out` is column `order[c]` of `x`. An index out of range
/// stops the device, which the next call that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or rows have more than 8 million elements.
pub fn reorder<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    order: Rows<'_, D>, // [1, n_cols], whole numbers
    x: Rows<'_, D>,     // [n_rows, n_from]
    out: Rows<'_, D>,   // [n_rows, n_cols], which shares nothing with `x`
) -> Result<(), Error> {
    let (n_rows, n_from, n_cols) = (x.n_rows(), x.n_cols(), out.n_cols());
    order.check(kernels, "the order", 1, n_cols);
    x.check(kernels, "x", n_rows, n_from);
    out.check(kernels, "out", n_rows, n_cols);
    let arguments = [
        x.address(),
        x.stride(),
        Argument::I32(n_from as i32),
        order.address(),
        out.address(),
        out.stride(),
        Argument::I32(n_cols as i32),
    ];
    let grid = grid(n_rows, n_cols, 1);
    // SAFETY: as in `route`, for `reorder`, which checks the order.
    unsafe { kernels.launch(stream, &kernels.route.reorder, grid, [THREADS, 1], &arguments) }
}

/// Grid with blocks over the columns of each row.
fn grid(n_rows: usize, n_cols: usize, per_thread: usize) -> [u32; 3] {
    let n_blocks = n_cols.div_ceil(per_thread * THREADS as usize);
    assert!(n_blocks <= 65535, "rows of {n_cols} elements");
    [n_rows as u32, n_blocks as u32, 1]
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{Random, TestDevice, kernels, on_device, read};
    use realizar_ptx::Stream;

    /// Parameters of a router for the reference.
    #[derive(Clone, Copy, Debug)]
    struct Choice {
        scoring: Scoring,
        n_experts_used: usize,
        groups: Option<Groups>,
        normalize: bool,
        scale: f32,
    }

    const PLAIN: Choice = Choice {
        scoring: Scoring::Softmax,
        n_experts_used: 2,
        groups: None,
        normalize: false,
        scale: 1.0,
    };

    /// The definition in F64: experts and factors of a row.
    fn expected(choice: &Choice, bias: Option<&[f32]>, scores: &[f32]) -> (Vec<usize>, Vec<f64>) {
        let softmax = |x: &[f64]| -> Vec<f64> {
            let sum: f64 = x.iter().map(|x| x.exp()).sum();
            x.iter().map(|x| x.exp() / sum).collect()
        };
        let scores: Vec<f64> = scores.iter().map(|&s| f64::from(s)).collect();
        let factors = match choice.scoring {
            Scoring::Softmax => softmax(&scores),
            Scoring::Sigmoid => scores.iter().map(|s| 1.0 / (1.0 + (-s).exp())).collect(),
            Scoring::SoftmaxOfChosen | Scoring::SparseMixer { .. } => scores.clone(),
        };
        let key = |e: usize| factors[e] + bias.map_or(0.0, |bias| f64::from(bias[e]));
        let first_of = |mut all: Vec<usize>, key: &dyn Fn(usize) -> f64, n: usize| {
            // The sort is stable, so ties keep their order.
            all.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
            all.truncate(n);
            all.sort_unstable();
            all
        };
        let mut open: Vec<usize> = (0..scores.len()).collect();
        if let Some(Groups { n: n_groups, n_open, n_best }) = choice.groups {
            let len = scores.len() / n_groups;
            let total = |g: usize| {
                let mut keys: Vec<f64> = (g * len..(g + 1) * len).map(key).collect();
                keys.sort_by(|a, b| b.total_cmp(a));
                keys.iter().take(n_best).sum()
            };
            let groups = first_of((0..n_groups).collect(), &total, n_open);
            open.retain(|e| groups.contains(&(e / len)));
        }
        let chosen = first_of(open, &key, choice.n_experts_used);
        let mut of_chosen: Vec<f64> = chosen.iter().map(|&e| factors[e]).collect();
        if let Scoring::SparseMixer { margin } = choice.scoring {
            let part = |e: usize| {
                let top = scores[e];
                // Earlier choices have larger scores, or equal scores and lower indices.
                let is_left = |o: &usize| scores[*o] < top || (scores[*o] == top && *o >= e);
                let left = (0..scores.len()).filter(is_left).map(|o| scores[o]);
                let is_near = |s: &f64| (top - s) / s.abs().max(top) <= f64::from(margin);
                1.0 / left.filter(is_near).map(|s| (s - top).exp()).sum::<f64>()
            };
            of_chosen = chosen.iter().map(|&e| part(e)).collect();
        }
        if choice.scoring == Scoring::SoftmaxOfChosen {
            of_chosen = softmax(&of_chosen);
        }
        let sum: f64 = if choice.normalize { of_chosen.iter().sum() } else { 1.0 };
        let factors = of_chosen.iter().map(|f| f / sum * f64::from(choice.scale)).collect();
        (chosen, factors)
    }

    type On = (Kernels<TestDevice>, Stream);

    /// Routes computed on the device. `active` has a word per row.
    fn found(
        (kernels, stream): &On,
        choice: &Choice,
        bias: Option<&[f32]>,
        scores: &[f32],
        n_experts: usize,
        active: Option<&[u32]>,
    ) -> Vec<f32> {
        let device = kernels.device();
        let n_rows = scores.len() / n_experts;
        let stride = 2 * choice.n_experts_used + 1;
        let scores = on_device(device, stream, scores);
        let out = on_device(device, stream, &vec![7.5f32; n_rows * stride]);
        let bias = bias.map(|bias| on_device(device, stream, bias));
        let active = active.map(|active| on_device(device, stream, active));
        let routing = Routing {
            scoring: choice.scoring,
            n_experts_used: choice.n_experts_used,
            choice_bias: bias.as_ref().map(|bias| Rows::vector(bias, n_experts)),
            groups: choice.groups,
            normalize: choice.normalize,
            scale: choice.scale,
            active: active.as_ref().map(List::all),
        };
        let scores = Rows::new(&scores, 0, n_rows, n_experts, n_experts);
        let to = Rows::new(&out, 0, n_rows, 2 * choice.n_experts_used, stride);
        route(kernels, stream, &routing, scores, to).unwrap();
        let all = read(stream, &out, n_rows * stride);
        let rows = all.chunks(stride).flat_map(|row| {
            assert_eq!(row[stride - 1], 7.5, "behind a row");
            row[..stride - 1].to_vec()
        });
        rows.collect()
    }

    fn assert_routes(
        on: &On,
        choice: &Choice,
        bias: Option<&[f32]>,
        scores: &[f32],
        n_experts: usize,
    ) {
        let found = found(on, choice, bias, scores, n_experts, None);
        for (row, found) in scores.chunks(n_experts).zip(found.chunks(2 * choice.n_experts_used)) {
            let (ids, factors) = expected(choice, bias, row);
            let (found_ids, found) = found.split_at(choice.n_experts_used);
            let found_ids: Vec<usize> = found_ids.iter().map(|&id| id as usize).collect();
            assert_eq!(found_ids, ids, "{choice:?}");
            for (found, wanted) in found.iter().zip(factors) {
                let away = (f64::from(*found) - wanted).abs();
                assert!(away < 1e-6 * wanted.abs().max(1.0), "{choice:?}: {found} {wanted}");
            }
        }
    }

    #[cfg_attr(test, test)]
    fn scores_become_factors() {
        let on = kernels();
        // exp of these is 1, 2, 4, 8.
        let scores = [0.0, 1.0, 2.0, 3.0].map(|n| n * std::f32::consts::LN_2);
        let sigmoid = Choice { scoring: Scoring::Sigmoid, ..PLAIN };
        let of_chosen = Choice { scoring: Scoring::SoftmaxOfChosen, ..PLAIN };
        for choice in [
            PLAIN,
            Choice { normalize: true, scale: 2.5, ..PLAIN },
            of_chosen,
            sigmoid,
            Choice { n_experts_used: 4, normalize: true, ..sigmoid },
        ] {
            assert_routes(&on, &choice, None, &scores, 4);
            assert_routes(&on, &choice, Some(&[0.0, 9.0, 0.0, -1.0]), &scores, 4);
        }
        let mixer = Choice { scoring: Scoring::SparseMixer { margin: 0.1 }, ..PLAIN };
        assert_routes(&on, &mixer, None, &[3.7, 0.5, 4.0, 3.4], 4);
        assert_routes(&on, &mixer, None, &[-1.0, -1.1, -1.2, -9.0], 4);
        let many: Vec<f32> = (0..90).map(|i| 5.0 + (i * 37 % 90) as f32 / 60.0).collect();
        assert_routes(&on, &Choice { n_experts_used: 4, ..mixer }, None, &many, 90);
        // Large scores do not overflow, and the bias selects an expert far below the best.
        let large = [-300.0, 200.0, 0.0, 199.0];
        assert_routes(&on, &of_chosen, Some(&[900.0, 0.0, 600.0, 0.0]), &large, 4);
        assert_routes(&on, &sigmoid, None, &large, 4);
        // Ties choose the first, including zeros of both signs.
        assert_routes(&on, &PLAIN, None, &[1.0; 200], 200);
        let zeros: Vec<f32> = (0..40).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
        assert_routes(&on, &Choice { n_experts_used: 5, ..of_chosen }, None, &zeros, 40);
    }

    #[cfg_attr(test, test)]
    fn any_number_of_experts() {
        let on = kernels();
        for (n_experts, n_experts_used, groups) in [
            (1, 1, None),
            (8, 2, Some((4, 1))),
            (33, 4, None),
            (60, 6, Some((20, 7))),
            (128, 8, Some((8, 4))),
            (256, 8, Some((8, 2))),
            (300, 3, Some((300, 9))),
            (512, 10, None),
            (1024, 40, Some((2, 1))),
        ] {
            let mut random = Random(n_experts as u64);
            let scores: Vec<f32> = random.floats(3 * n_experts).iter().map(|x| 4.0 * x).collect();
            let bias = random.floats(n_experts);
            let groups = |n_best| groups.map(|(n, n_open)| Groups { n, n_open, n_best });
            let choice = Choice { n_experts_used, groups: groups(2), normalize: true, ..PLAIN };
            assert_routes(
                &on,
                &Choice { scoring: Scoring::Sigmoid, ..choice },
                Some(&bias),
                &scores,
                n_experts,
            );
            assert_routes(&on, &Choice { groups: groups(1), ..choice }, None, &scores, n_experts);
            assert_routes(&on, &Choice { groups: None, ..choice }, None, &scores, n_experts);
        }
    }

    #[cfg_attr(test, test)]
    fn rows_alone_and_rows_that_take_no_part() {
        let on = kernels();
        let scores = Random(8).floats(7 * 70);
        let choice = Choice { n_experts_used: 3, ..PLAIN };
        let all = found(&on, &choice, None, &scores, 70, None);
        for row in 0..7 {
            let alone = found(&on, &choice, None, &scores[row * 70..][..70], 70, None);
            assert_eq!(alone, all[row * 6..][..6]);
        }
        let part =
            found(&on, &choice, None, &scores, 70, Some(&[0, u32::MAX, 2, 3, u32::MAX, 5, 6]));
        for row in 0..7 {
            let wanted = match row {
                1 | 4 => &[-1.0, -1.0, -1.0, 0.0, 0.0, 0.0],
                _ => &all[row * 6..][..6],
            };
            assert_eq!(&part[row * 6..][..6], wanted, "row {row}");
        }
    }

    #[cfg_attr(test, test)]
    fn what_is_no_number_shows() {
        let on = kernels();
        let mut scores = [0.5; 40];
        (scores[3], scores[7], scores[11]) = (f32::NAN, 1.0, f32::NEG_INFINITY);
        for scoring in [Scoring::Softmax, Scoring::Sigmoid, Scoring::SoftmaxOfChosen] {
            let found = found(&on, &Choice { scoring, ..PLAIN }, None, &scores, 40, None);
            assert!(found[..2].iter().all(|id| (0.0..40.0).contains(id)), "{found:?}");
            assert!(found[2..].iter().all(|factor| factor.is_nan()), "{found:?}");
        }
    }

    /// Combines random results by given routes, in rows with gaps between them.
    fn sums(
        (kernels, stream): &On,
        routes: &[f32],
        x: &[f32],
        n_experts_used: usize,
        n_cols: usize,
        first: usize,
        n: usize,
    ) -> Vec<f32> {
        let put = |values: &[f32]| on_device::<f32>(kernels.device(), stream, values);
        let stride = n_cols + 4;
        let (routes, x, out) = (put(routes), put(x), put(&vec![7.5; n * stride]));
        let [x_cols, route_cols] = [n_experts_used * n_cols, 2 * n_experts_used];
        let x = Rows::new(&x, first * x_cols, n, x_cols, x_cols);
        let routes = Rows::new(&routes, first * route_cols, n, route_cols, route_cols);
        let to = Rows::new(&out, 0, n, n_cols, stride);
        combine(kernels, stream, x, routes, to).unwrap();
        let found = read(stream, &out, n * stride);
        assert!(found.chunks(stride).all(|row| row[n_cols..] == [7.5; 4]), "between the rows");
        found.chunks(stride).flat_map(|row| row[..n_cols].to_vec()).collect()
    }

    #[cfg_attr(test, test)]
    fn results_are_added_by_their_factors() {
        let on = kernels();
        // Enough elements for four per thread, and a padding row with NaN results.
        for (n_rows, n_experts_used, n_cols) in [(3, 2, 5), (2, 1, 131), (4, 9, 16), (70, 3, 1900)]
        {
            let mut random = Random(n_cols as u64);
            let mut x = random.floats(n_rows * n_experts_used * n_cols);
            x[n_experts_used * n_cols..][..n_experts_used * n_cols].fill(f32::NAN);
            let mut routes = Vec::new();
            for row in 0..n_rows {
                let id = |i: usize| if row == 1 { -1.0 } else { i as f32 };
                routes.extend((0..n_experts_used).map(id));
                routes.extend(random.floats(n_experts_used));
            }
            let found = sums(&on, &routes, &x, n_experts_used, n_cols, 0, n_rows);
            for (row, found) in found.chunks(n_cols).enumerate() {
                if row == 1 {
                    assert!(found.iter().all(|&x| x == 0.0));
                    continue;
                }
                for (col, found) in found.iter().enumerate() {
                    let of = |i: usize| {
                        let factor = routes[row * 2 * n_experts_used + n_experts_used + i];
                        f64::from(factor) * f64::from(x[(row * n_experts_used + i) * n_cols + col])
                    };
                    let wanted: f64 = (0..n_experts_used).map(of).sum();
                    assert!((f64::from(*found) - wanted).abs() < 1e-6, "{found} {wanted}");
                }
            }
            let last = n_rows - 1;
            assert_eq!(
                sums(&on, &routes, &x, n_experts_used, n_cols, last, 1),
                found[last * n_cols..],
                "alone"
            );
        }
    }

    #[cfg_attr(test, test)]
    fn results_get_the_biases_of_their_experts() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        for (n_experts_used, width) in [(2, 5), (3, 131), (1, 64)] {
            let (n_rows, n_experts, n_cols) = (3, 4, n_experts_used * width);
            let stride = n_cols + 3;
            let mut random = Random(width as u64);
            let (x, biases) = (random.floats(n_rows * stride), random.floats(n_experts * width));
            // The middle row is padding.
            let id = |row: usize, i: usize| [Some((3 + i) % 4), None, Some(i)][row];
            let ids = |row: usize| {
                (0..2 * n_experts_used).map(move |i| id(row, i).map_or(-1.0, |id| id as f32))
            };
            let routes: Vec<f32> = (0..n_rows).flat_map(ids).collect();
            let mut wanted = x.clone();
            for row in 0..n_rows {
                for col in 0..n_cols {
                    if let Some(expert) = id(row, col / width) {
                        wanted[row * stride + col] += biases[expert * width + col % width];
                    }
                }
            }
            let put = |values: &[f32]| on_device::<f32>(device, &stream, values);
            let (x, biases, routes) = (put(&x), put(&biases), put(&routes));
            let rows = Rows::new(&x, 0, n_rows, n_cols, stride);
            let routes = Rows::new(&routes, 0, n_rows, 2 * n_experts_used, 2 * n_experts_used);
            let biases = Rows::vector(&biases, n_experts * width);
            expert_bias(&kernels, &stream, biases, rows, routes, rows).unwrap();
            assert_eq!(read(&stream, &x, n_rows * stride), wanted, "{n_experts_used} of {width}");
        }
    }

    #[cfg_attr(test, test)]
    fn columns_land_where_they_belong() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        for n_cols in [1, 64, 131] {
            let (n_rows, stride) = (3, n_cols + 3);
            let x: Vec<f32> = (0..n_rows * stride).map(|i| i as f32).collect();
            let order: Vec<usize> = (0..n_cols).map(|c| (c * 7 + 3) % n_cols).collect();
            let floats: Vec<f32> = order.iter().map(|&c| c as f32).collect();
            let order_at = on_device(device, &stream, &floats);
            let (x_at, out) = (on_device(device, &stream, &x), on_device(device, &stream, &x));
            let rows = |buffer| Rows::new(buffer, 0, n_rows, n_cols, stride);
            let order_at = Rows::vector(&order_at, n_cols);
            reorder(&kernels, &stream, order_at, rows(&x_at), rows(&out)).unwrap();
            let mut wanted = x.clone();
            for row in 0..n_rows {
                for (col, from) in order.iter().enumerate() {
                    wanted[row * stride + col] = x[row * stride + from];
                }
            }
            assert_eq!(read(&stream, &out, x.len()), wanted);
        }
    }

    #[cfg_attr(test, test)]
    fn columns_may_be_left_out() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let x: Vec<f32> = (0..8).map(|i| i as f32).collect();
        let (x, out) = (on_device(device, &stream, &x), on_device(device, &stream, &[9.0_f32; 4]));
        let order = on_device(device, &stream, &[3.0_f32, 1.0]);
        let order = Rows::vector(&order, 2);
        let from = Rows::new(&x, 0, 2, 4, 4);
        reorder(&kernels, &stream, order, from, Rows::new(&out, 0, 2, 2, 2)).unwrap();
        assert_eq!(read(&stream, &out, 4), [3.0, 1.0, 7.0, 5.0]);
    }

    #[cfg_attr(test, test)]
    fn a_column_that_does_not_exist_is_reported() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let x = on_device(device, &stream, &[3.0f32; 6]);
        let [order, from, to] = [0, 2, 4].map(|at| Rows::vector_at(&x, at, 2));
        reorder(&kernels, &stream, order, from, to).unwrap();
        let message = device.synchronize(&stream).unwrap_err().to_string();
        assert!(message.contains("trap") && message.contains("reorder"), "{message}");
    }

    crate::testing::tests![
        scores_become_factors,
        any_number_of_experts,
        rows_alone_and_rows_that_take_no_part,
        what_is_no_number_shows,
        results_are_added_by_their_factors,
        results_get_the_biases_of_their_experts,
        columns_land_where_they_belong,
        columns_may_be_left_out,
        a_column_that_does_not_exist_is_reported,
    ];
}
