//! Cases of MoE layers: routing, products with experts, and the operations between them.

use super::case::{Case, Form, Op, Phase};
use super::device::{Bench, Target};
use super::products::{first, rows};
use super::report::Report;
use super::routes::{n_sets, routes};
use super::shape::Experts;
use crate::{
    Activation, BenchError, Buffer, Elementwise, Error, ExpertLinear, ExpertPairs, HalfRows,
    HalfType, Matrix, PairTiles, QuantType, QuantizedRows, Routing, Rows, Scoring, SortedPairs,
    combine, elementwise, expert_matmul, expert_matmul_half, expert_matvec, expert_matvec_int8,
    half_type, is_worth_sorting, quantize, round_rows, route, sort_by_expert,
};

/// Measures cases of one operation that share weights.
pub(super) fn run<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    cases: &[&Case],
) -> Result<(), BenchError> {
    if !cases[0].op.is_of_experts() {
        return report
            .each(cases, bench.launch_mode(), |report, case| between(bench, report, case));
    }
    let copies = bench.copies(cases[0])?;
    report.each(cases, bench.launch_mode(), |report, case| product(bench, report, case, &copies))
}

/// The tiles that the pairs of a step are sorted into; none if few decode rows share an expert.
fn tiles(case: &Case, of: &Experts) -> Option<PairTiles> {
    let n_pairs = case.batch * of.n_experts_used;
    match case.phase {
        Phase::Decode => is_worth_sorting(n_pairs, of.n_experts).then_some(PairTiles::Decode),
        Phase::Prefill => Some(PairTiles::for_prefill(n_pairs, of.n_experts)),
    }
}

/// Measures a product, rotating over copies of the matrices and sets of routes. Pairs are sorted beforehand.
fn product<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    case: &Case,
    copies: &[Vec<Matrix<D>>],
) -> Result<(), BenchError> {
    let of = case.shape.experts.expect("a model of experts");
    let (kernels, stream, device) = (&*bench.kernels, &bench.stream, &bench.device);
    let (b, n_experts, n_experts_used) = (case.batch, of.n_experts, of.n_experts_used);
    let is_down = case.op == Op::ExpertDown;
    let x_cols = if is_down { n_experts_used * case.n_cols() } else { case.n_cols() };
    let out_cols = n_experts_used * case.n_rows();
    let (x_at, out_at) = (bench.values(b * x_cols)?, bench.results(b * out_cols)?);
    let (x, out) = (rows(&x_at, b, x_cols), rows(&out_at, b, out_cols));
    let n_sets = n_sets(&of, b);
    let of_set = |set| Buffer::with(device, stream, "routes", &routes(&of, b, set));
    let route_lists: Vec<Buffer<D>> = (0..n_sets).map(of_set).collect::<Result<_, _>>()?;
    let routes = |set: usize| rows(&route_lists[set], b, 2 * n_experts_used);
    let room = |_| ExpertPairs::new(device, b * n_experts_used, n_experts);
    let rooms: Vec<ExpertPairs<D>> = (0..n_sets).map(room).collect::<Result<_, _>>()?;
    let sort = |(set, room)| -> Result<Option<SortedPairs<'_, D>>, Error> {
        let Some(tiles) = tiles(case, &of) else { return Ok(None) };
        sort_by_expert(kernels, stream, routes(set), n_experts, tiles, room).map(Some)
    };
    let sorted: Vec<_> = rooms.iter().enumerate().map(sort).collect::<Result<_, _>>()?;
    let n_turns = copies.len() * n_sets;
    let found = || first(bench, &out_at);
    let turn = |turn: usize| {
        let set = turn / copies.len() % n_sets;
        (copies[turn % copies.len()].iter().collect::<Vec<_>>(), routes(set), sorted[set])
    };
    match case.form {
        Form::Int8 => {
            let room = QuantizedRows::new(device, QuantType::Int8, b, x_cols)?;
            let x_to = room.rows(0, b, x_cols);
            quantize(kernels, stream, x, x_to)?;
            let launch = |i: usize| {
                let (matrices, routes, sorted) = turn(i);
                let matrices = &matrices[..];
                let linear = ExpertLinear { matrices, n_experts, x: x_to, routes, out };
                expert_matvec_int8(kernels, stream, &linear, sorted)
            };
            bench.measure(report, case, n_turns, &launch, &found)
        }
        Form::Half => {
            let room = HalfRows::new(device, b, x_cols)?;
            let half = half_type(copies[0][0].ty()).expect("weights other than F32");
            let x_to = room.rows(half, 0, b, x_cols);
            round_rows(kernels, stream, x, x_to)?;
            let launch = |i: usize| {
                let (matrices, routes, sorted) = turn(i);
                let matrices = &matrices[..];
                let linear = ExpertLinear { matrices, n_experts, x: x_to, routes, out };
                expert_matmul_half(kernels, stream, &linear, sorted.expect("prompts are sorted"))
            };
            bench.measure(report, case, n_turns, &launch, &found)
        }
        _ => {
            let launch = |i: usize| {
                let (matrices, routes, sorted) = turn(i);
                let matrices = &matrices[..];
                let linear = ExpertLinear { matrices, n_experts, x, routes, out };
                match (case.phase, sorted) {
                    (Phase::Prefill, Some(sorted)) => {
                        expert_matmul(kernels, stream, &linear, sorted)
                    }
                    _ => expert_matvec(kernels, stream, &linear, sorted),
                }
            };
            bench.measure(report, case, n_turns, &launch, &found)
        }
    }
}

/// Measures routing, sorting, the activation or the combination of results.
fn between<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    case: &Case,
) -> Result<(), BenchError> {
    let of = case.shape.experts.expect("a model of experts");
    let (kernels, stream, device) = (&*bench.kernels, &bench.stream, &bench.device);
    let (b, n_experts, n_experts_used) = (case.batch, of.n_experts, of.n_experts_used);
    let routes_at = Buffer::with(device, stream, "routes", &routes(&of, b, 0))?;
    let routes = rows(&routes_at, b, 2 * n_experts_used);
    match case.op {
        Op::Route => {
            let (scores, out) =
                (bench.values(b * n_experts)?, bench.results(b * 2 * n_experts_used)?);
            let routing = Routing {
                scoring: Scoring::Softmax,
                n_experts_used,
                choice_bias: None,
                groups: None,
                normalize: true,
                scale: 1.0,
                active: None,
            };
            let (scores, to) = (rows(&scores, b, n_experts), rows(&out, b, 2 * n_experts_used));
            let launch = |_: usize| route(kernels, stream, &routing, scores, to);
            bench.measure(report, case, 1, &launch, &|| first(bench, &out))
        }
        Op::Sort => {
            let tiles = tiles(case, &of).expect("pairs that are sorted");
            let room = ExpertPairs::new(device, b * n_experts_used, n_experts)?;
            let launch = |_: usize| {
                sort_by_expert(kernels, stream, routes, n_experts, tiles, &room).map(|_| ())
            };
            bench.measure(report, case, 1, &launch, &|| Ok(Vec::new()))
        }
        Op::ExpertActivation => {
            let n = n_experts_used * of.hidden_dim;
            let (both, out) = (bench.values(b * 2 * n)?, bench.results(b * n)?);
            let both = rows(&both, b, 2 * n);
            let ([gate, up], to) = ([0, n].map(|at| both.columns(at, n)), rows(&out, b, n));
            let quantized = QuantizedRows::new(device, QuantType::Int8, b, n)?;
            let halves = HalfRows::new(device, b, n)?;
            let launch = |_: usize| {
                let gated = Elementwise::Gated(Activation::Silu, up);
                elementwise(kernels, stream, &gated, gate, to)?;
                match case.form {
                    Form::Int8 => quantize(kernels, stream, to, quantized.rows(0, b, n)),
                    Form::Half => {
                        round_rows(kernels, stream, to, halves.rows(HalfType::BF16, 0, b, n))
                    }
                    _ => Ok(()),
                }
            };
            bench.measure(report, case, 1, &launch, &|| first(bench, &out))
        }
        Op::Combine => {
            let dim = case.shape.dim;
            let (x, out) = (bench.values(b * n_experts_used * dim)?, bench.results(b * dim)?);
            let (x, to): (Rows<'_, D>, _) = (rows(&x, b, n_experts_used * dim), rows(&out, b, dim));
            let launch = |_: usize| combine(kernels, stream, x, routes, to);
            bench.measure(report, case, 1, &launch, &|| first(bench, &out))
        }
        op => unreachable!("{} is none of experts", op.name()),
    }
}
