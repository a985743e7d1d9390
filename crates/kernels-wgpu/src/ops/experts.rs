//! Mixture of experts: routing, products with the experts' matrices, and the weighted sum of their results. The
//! routes stay on the device.
//!
//! Decode rows have a workgroup per row and expert. Prefill rows are sorted by expert and multiplied in tiles,
//! so that they share reads of the matrices. In both forms the bits of a row do not depend on other rows.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::ops::matmul::{self, MatmulOptions, Tiled};
use crate::ops::matvec::{self, Target};
use crate::ops::quantize::{BLOCK_LEN, QuantizedRows};
use crate::storage::matrix::Matrix;
use crate::{Buffer, Error, Gpu};
use realizar_types::{Groups, Scoring};

/// Parameters of a router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// The function from scores to factors.
    pub scoring: Scoring,
    /// Number of experts selected per row.
    pub n_chosen: u32,
    /// Index in `vectors` of biases, `[n_experts]`, that are added to the factors for the selection, but not to
    /// the result.
    pub choice_bias: Option<u32>,
    /// Group-limited routing; `None` selects from all experts.
    pub groups: Option<Groups>,
    /// Whether the factors of a row are divided by their sum.
    pub normalize: bool,
    /// Multiplies each factor.
    pub scale: f32,
}

impl Routing {
    /// Maximum number of experts of a router.
    pub const MAX_EXPERTS: u32 = 1024;
}

/// Products of each row with the matrices of its experts: `out[r, i] = x[r, i] W[expert i of r]^T`.
#[derive(Debug, Clone, Copy)]
pub struct ExpertLinear<'a> {
    /// The matrices, from [`Matrix::experts`], `[n_experts * n_outputs, n_inputs]`.
    pub matrix: &'a Matrix,
    /// Rows per matrix.
    pub n_outputs: u32,
    /// Number of experts per row.
    pub n_chosen: u32,
    /// A buffer that is bound but not read.
    pub vectors: &'a Buffer,
    /// `[n_rows, n_inputs]`, or `[n_rows, n_chosen * n_inputs]` with an input per expert.
    pub x: View,
    /// Output of [`route`], `[n_rows, 2 * n_chosen]`.
    pub routes: View,
    /// `[n_rows, n_chosen * n_outputs]`.
    pub out: View,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct RouteParams {
    n_experts: u32,
    n_chosen: u32,
    rows_at: u32,
    scoring: u32,
    flags: u32,
    bias: u32,
    scale: f32,
    n_groups: u32,
    x: [u32; 2], // start, stride
    out: [u32; 2],
    n_open: u32,
    n_best: u32,
    margin: f32,
    _end: u32,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct CombineParams {
    width: u32,
    rows_at: u32,
    n_chosen: u32,
    _pad: u32,
    x: [u32; 2], // start, stride
    routes: [u32; 2],
    out: [u32; 2],
    _end: [u32; 2],
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct LinearParams {
    groups: u32,
    row_words: u32,
    n_outputs: u32,
    n_cols: u32,
    rows_at: u32,
    n_own: u32,
    first_expert: u32,
    n_experts: u32,
    x_blocks: u32,
    max_tiles: u32,
    n_chosen: u32,
    _pad: u32,
    x: [u32; 2], // start, stride
    routes: [u32; 2],
    out: [u32; 2],
    _end: [u32; 2],
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct SortParams {
    n_experts: u32,
    n_chosen: u32,
    rows_at: u32,
    tile_rows: u32,
    max_tiles: u32,
    _pad: u32,
    routes: [u32; 2], // start, stride
}

/// Memory for pairs of a row and an expert, sorted into tiles of one expert each.
#[derive(Debug)]
pub struct ExpertPairs {
    buffer: Buffer,
    max_tiles: u32,
}

impl ExpertPairs {
    /// Maximum number of tiles of `tile_rows` rows for `n_pairs` pairs of `n_experts` experts.
    pub fn n_tiles(n_pairs: u32, n_experts: u32, tile_rows: u32) -> u32 {
        // Every expert may have one partial tile.
        n_pairs / tile_rows + n_experts.min(n_pairs)
    }

    /// Maximum number of tiles, for any tile height.
    pub fn most(n_pairs: u32, n_experts: u32) -> u32 {
        Self::most_places(n_pairs, n_experts).0
    }

    /// Maximum number of tiles, and of places in them, for any tile height.
    fn most_places(n_pairs: u32, n_experts: u32) -> (u32, u64) {
        let of = |few_rows| {
            let rows = MatmulOptions { few_rows, half_tiles: false }.tile_rows();
            let n_tiles = Self::n_tiles(n_pairs, n_experts, rows);
            (n_tiles, u64::from(n_tiles) * u64::from(rows))
        };
        let (few, many) = (of(true), of(false));
        (few.0.max(many.0), few.1.max(many.1))
    }

    /// Bytes on the device, for any tile height.
    pub fn bytes(n_pairs: u32, n_experts: u32) -> u64 {
        let (n_tiles, n_places) = Self::most_places(n_pairs, n_experts);
        4 * (4 + 2 * u64::from(n_tiles) + n_places)
    }

    /// Allocates for up to `n_pairs` pairs of up to `n_experts` experts, for any tile height.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(gpu: &Gpu, n_pairs: u32, n_experts: u32) -> Result<Self, Error> {
        let buffer = gpu.buffer("rows sorted by expert", Self::bytes(n_pairs, n_experts))?;
        Ok(Self { buffer, max_tiles: Self::most(n_pairs, n_experts) })
    }
}

/// Invocations per workgroup of `combine.wgsl`; each computes one element.
const WORKGROUP: u32 = 64;

/// The matrices of the experts of a row.
const EXPERTS: Target =
    Target { name: "experts", parts: &[LINEAR, include_str!("../../shaders/experts/rows.wgsl")] };

/// Tiles of pairs.
const TILES: Tiled = Tiled {
    name: "experts tile",
    parts: &[LINEAR, PAIRS, include_str!("../../shaders/experts/tiles.wgsl")],
    bindings: &[Access::Read, Access::ReadWrite, Access::Read, Access::Read, Access::Read],
};

const LINEAR: &str = include_str!("../../shaders/experts/linear.wgsl");
const PAIRS: &str = include_str!("../../shaders/experts/pairs.wgsl");

fn sort_shader() -> Shader {
    Shader {
        name: "sort by expert".into(),
        parts: vec![PAIRS, include_str!("../../shaders/experts/sort.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite, Access::ReadWrite],
        constants: Vec::new(),
    }
}

fn route_shader() -> Shader {
    Shader {
        name: "route".into(),
        parts: vec![include_str!("../../shaders/experts/route.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite, Access::Read],
        constants: Vec::new(),
    }
}

fn combine_shader() -> Shader {
    Shader {
        name: "combine experts".into(),
        parts: vec![include_str!("../../shaders/experts/combine.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    let own = vec![route_shader(), combine_shader(), sort_shader()];
    [own, matvec::shaders_of(&EXPERTS), matmul::shaders_of(&TILES)].concat()
}

/// Selects the experts of each row from its router's scores, `[n_rows, n_experts]`: writes their indices,
/// ascending, then their factors, `[n_rows, 2 * n_chosen]`. Among equal scores the lower index wins.
///
/// # Errors
/// If the device refuses the kernel.
pub fn route(
    gpu: &Gpu,
    rows: Rows<'_>,
    routing: &Routing,
    vectors: &Buffer,
    scores: View,
    out: View,
) -> Result<Kernel, Error> {
    let Routing { scoring, n_chosen, choice_bias, groups, normalize, scale } = *routing;
    assert!((1..=scores.width).contains(&n_chosen), "{n_chosen} of {} experts", scores.width);
    assert!(scores.width <= Routing::MAX_EXPERTS, "{} experts", scores.width);
    assert_eq!(out.width, 2 * n_chosen, "the width of the routes");
    let params = RouteParams {
        n_experts: scores.width,
        n_chosen,
        rows_at: rows.at.0,
        scoring: match scoring {
            Scoring::Softmax => 0,
            Scoring::Sigmoid => 1,
            Scoring::SoftmaxOfChosen => 2,
            Scoring::SparseMixer { .. } => 3,
        },
        flags: u32::from(choice_bias.is_some()) | u32::from(normalize) << 1,
        bias: choice_bias.unwrap_or(0),
        scale,
        n_groups: groups.map_or(0, |groups| groups.n as u32),
        x: [scores.start, scores.stride],
        out: [out.start, out.stride],
        n_open: groups.map_or(0, |groups| groups.n_open as u32),
        n_best: groups.map_or(0, |groups| groups.n_best as u32),
        margin: match scoring {
            Scoring::SparseMixer { margin } => margin,
            _ => 0.0,
        },
        _end: 0,
    };
    if let Scoring::SparseMixer { .. } = scoring {
        assert!(groups.is_none() && choice_bias.is_none(), "a choice by turns is by scores alone");
    }
    if let Some(Groups { n, n_open, n_best }) = groups {
        let n_experts = scores.width as usize;
        let fits = n > 0 && n_experts.is_multiple_of(n) && n_open <= n;
        assert!(fits && n_open * (n_experts / n) >= n_chosen as usize, "{n} groups");
        assert!([1, 2].contains(&n_best), "groups by their {n_best} best");
    }
    let buffers = [rows.batch, rows.values, vectors];
    gpu.kernel(&route_shader(), &params, &buffers, Grid { x: 1, rows: 1, z: 1 })
}

/// The sum of the results of a row's experts, `[n_rows, n_chosen * n]`, weighted by their factors, in the
/// router's order.
///
/// # Errors
/// If the device refuses the kernel.
pub fn combine(
    gpu: &Gpu,
    rows: Rows<'_>,
    x: View,
    routes: View,
    out: View,
) -> Result<Kernel, Error> {
    let n_chosen = routes.width / 2;
    assert_eq!(x.width, n_chosen * out.width, "results of experts");
    let params = CombineParams {
        width: out.width,
        rows_at: rows.at.0,
        n_chosen,
        _pad: 0,
        x: [x.start, x.stride],
        routes: [routes.start, routes.stride],
        out: [out.start, out.stride],
        _end: [0; 2],
    };
    let grid = Grid { x: out.width.div_ceil(WORKGROUP), rows: 1, z: 1 };
    gpu.kernel(&combine_shader(), &params, &[rows.batch, rows.values], grid)
}

/// Products with f32 activations, with one kernel per piece of the matrices.
///
/// # Errors
/// If the device refuses a kernel.
pub fn expert_matvec(
    gpu: &Gpu,
    rows: Rows<'_>,
    linear: &ExpertLinear<'_>,
) -> Result<Vec<Kernel>, Error> {
    let shader = matvec::f32_shader(&EXPERTS, linear.matrix.ty());
    linear.bind(gpu, rows, &shader, None, linear.grid(matvec::F32_LANES), None)
}

/// Products with quantized activations, with one kernel per piece of the matrices. `x` is `linear.x`, quantized
/// by [`quantize`](crate::quantize()).
///
/// # Errors
/// Unless [`takes_quantized`](crate::takes_quantized) the type, or if the device refuses a kernel.
pub fn expert_matvec_int8(
    gpu: &Gpu,
    rows: Rows<'_>,
    linear: &ExpertLinear<'_>,
    x: &QuantizedRows,
) -> Result<Vec<Kernel>, Error> {
    assert!(linear.x.width <= x.max_cols(), "{} columns of x", linear.x.width);
    let matrix = linear.matrix;
    assert!(matrix.n_cols().is_multiple_of(BLOCK_LEN), "columns of an expert are blocks");
    let lanes = matvec::int8_lanes(linear.n_outputs, matrix.n_groups());
    let shader = matvec::int8_shader(&EXPERTS, matrix.ty(), lanes, gpu.caps().packed_dot)
        .ok_or_else(|| Error::Unsupported(format!("8-bit products of {} weights", matrix.ty())))?;
    linear.bind(gpu, rows, &shader, Some(x), linear.grid(lanes), None)
}

/// Sorts the rows by their experts in `routes`, out of `n_experts`, for [`expert_matmul`] with the same tile
/// height.
///
/// # Errors
/// If the device refuses the kernel.
pub fn sort_by_expert(
    gpu: &Gpu,
    rows: Rows<'_>,
    routes: View,
    n_experts: u32,
    pairs: &ExpertPairs,
    options: MatmulOptions,
) -> Result<Kernel, Error> {
    assert!(n_experts <= Routing::MAX_EXPERTS, "{n_experts} experts");
    let params = SortParams {
        n_experts,
        n_chosen: routes.width / 2,
        rows_at: rows.at.0,
        tile_rows: options.tile_rows(),
        max_tiles: pairs.max_tiles,
        _pad: 0,
        routes: [routes.start, routes.stride],
    };
    let buffers = [rows.batch, rows.values, &pairs.buffer];
    gpu.kernel(&sort_shader(), &params, &buffers, Grid { x: 1, rows: u32::MAX, z: 1 })
}

/// Products of sorted rows with f32 activations, with one kernel per piece of the matrices. Each kernel runs
/// with the maximum number of tiles.
///
/// # Errors
/// If the device refuses a kernel.
pub fn expert_matmul(
    gpu: &Gpu,
    rows: Rows<'_>,
    linear: &ExpertLinear<'_>,
    pairs: &ExpertPairs,
    mut options: MatmulOptions,
) -> Result<Vec<Kernel>, Error> {
    options.half_tiles &= gpu.caps().f16;
    let shader = matmul::shader(&TILES, linear.matrix.ty(), options);
    let x = linear.n_outputs.div_ceil(matmul::TILE_OUTPUTS);
    let grid = Grid { x, rows: 1, z: 1 };
    linear.bind(gpu, rows, &shader, None, grid, Some(pairs))
}

impl ExpertLinear<'_> {
    /// The grid of a matrix-vector kernel.
    fn grid(&self, lanes: u32) -> Grid {
        Grid { x: matvec::chunks(self.n_outputs, lanes), rows: 1, z: self.n_chosen }
    }

    fn bind(
        &self,
        gpu: &Gpu,
        rows: Rows<'_>,
        shader: &Shader,
        quantized: Option<&QuantizedRows>,
        grid: Grid,
        pairs: Option<&ExpertPairs>,
    ) -> Result<Vec<Kernel>, Error> {
        let (matrix, n_outputs) = (self.matrix, self.n_outputs);
        let n_in = matrix.n_cols();
        let is_shared = self.x.width == n_in;
        assert!(is_shared || self.x.width == self.n_chosen * n_in, "the inputs of experts");
        assert_eq!(self.out.width, self.n_chosen * n_outputs, "the outputs of experts");
        assert_eq!(self.routes.width, 2 * self.n_chosen, "the width of the routes");
        let pieces = matrix.pieces().iter();
        let kernels = pieces.map(|piece| {
            let params = LinearParams {
                groups: matrix.n_groups(),
                row_words: matrix.row_words(),
                n_outputs,
                n_cols: n_in,
                rows_at: rows.at.0,
                n_own: if is_shared { 0 } else { n_in },
                first_expert: piece.first_row / n_outputs,
                n_experts: piece.n_rows / n_outputs,
                x_blocks: quantized.map_or(0, |x| x.max_blocks),
                max_tiles: pairs.map_or(0, |pairs| pairs.max_tiles),
                n_chosen: self.n_chosen,
                _pad: 0,
                x: [self.x.start, self.x.stride],
                routes: [self.routes.start, self.routes.stride],
                out: [self.out.start, self.out.stride],
                _end: [0; 2],
            };
            let mut buffers = vec![rows.batch, rows.values, self.vectors, &piece.buffer];
            buffers.extend(quantized.iter().flat_map(|x| [&x.quants, &x.blocks]));
            buffers.extend(pairs.map(|pairs| &pairs.buffer));
            gpu.kernel(shader, &params, &buffers, grid)
        });
        kernels.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};
    use crate::{quantize, takes_quantized};
    use realizar_quant::BlockType;

    fn assert_routes(routing: &Routing, scores: &[f32], ids: &[f32], factors: &[f64]) {
        for gpu in testing::gpus() {
            let n = scores.len() as u32;
            let mut values = vec![0.0; (n + 2 * routing.n_chosen) as usize];
            values[..scores.len()].copy_from_slice(scores);
            let out = View::dense(n, 2 * routing.n_chosen);
            let vectors = testing::filled(&gpu, &[7.0f32, 0.0, 9.0, 0.0, 0.0]);
            let bench = Bench::new(&gpu, &values, &[0, 1]);
            let scores = View::dense(0, n);
            let kernel = route(&gpu, bench.rows(0), routing, &vectors, scores, out).unwrap();
            let found = bench.run(&[(&kernel, 1)]);
            let (found_ids, found) = found[n as usize..].split_at(ids.len());
            assert_eq!(found_ids, ids, "{routing:?}");
            for (found, wanted) in found.iter().zip(factors) {
                assert!((f64::from(*found) - wanted).abs() < 1e-5, "{routing:?}: {found} {wanted}");
            }
        }
    }

    #[test]
    fn scores_become_factors() {
        const PLAIN: Routing = Routing {
            scoring: Scoring::Softmax,
            n_chosen: 2,
            choice_bias: None,
            groups: None,
            normalize: false,
            scale: 1.0,
        };
        // exp of these is 1, 2, 4, 8.
        let scores = [0.0, 1.0, 2.0, 3.0].map(|n| n * std::f32::consts::LN_2);
        assert_routes(&PLAIN, &scores, &[2.0, 3.0], &[4.0 / 15.0, 8.0 / 15.0]);
        let normalized = Routing { normalize: true, scale: 2.5, ..PLAIN };
        assert_routes(&normalized, &scores, &[2.0, 3.0], &[2.5 / 3.0, 5.0 / 3.0]);
        let of_chosen = Routing { scoring: Scoring::SoftmaxOfChosen, ..PLAIN };
        assert_routes(&of_chosen, &scores, &[2.0, 3.0], &[1.0 / 3.0, 2.0 / 3.0]);
        let sigmoid = Routing { scoring: Scoring::Sigmoid, ..PLAIN };
        assert_routes(&sigmoid, &scores, &[2.0, 3.0], &[4.0 / 5.0, 8.0 / 9.0]);
        let mixer = Routing { scoring: Scoring::SparseMixer { margin: 0.1 }, ..PLAIN };
        let part = |other: f64| 1.0 / (1.0 + other.exp());
        assert_routes(&mixer, &[3.7, 0.5, 4.0, 3.4], &[0.0, 2.0], &[part(-0.3), part(-0.3)]);
        assert_routes(&mixer, &[-1.0, -1.1, -1.2], &[0.0, 1.0], &[part(-0.1), part(-0.1)]);
        assert_routes(&mixer, &[9.0, 5.0, 1.0], &[0.0, 1.0], &[1.0, 1.0]);
        let biased = Routing { choice_bias: Some(1), ..sigmoid };
        let factors = [0.119_202_922, 0.880_797_078];
        assert_routes(&biased, &[0.0, -2.0, 1.0, 2.0], &[1.0, 3.0], &factors);
        // Of equal ones the first, also where they are in several lanes.
        assert_routes(&PLAIN, &[1.0; 200], &[0.0, 1.0], &[0.005, 0.005]);
        // The best expert is in a group whose two best are less than another's.
        let scores = [5.0, 0.0, 0.0, 0.0, 3.0, 3.0, 1.0, 1.0];
        let groups = |n, n_open, n_best| Some(Groups { n, n_open, n_best });
        let grouped = Routing { groups: groups(4, 1, 2), ..sigmoid };
        let of = |score: f64| 1.0 / (1.0 + (-score).exp());
        assert_routes(&grouped, &scores, &[4.0, 5.0], &[of(3.0), of(3.0)]);
        let two = Routing { groups: groups(4, 2, 2), n_chosen: 3, ..grouped };
        assert_routes(&two, &scores, &[0.0, 4.0, 5.0], &[of(5.0), of(3.0), of(3.0)]);
        // A bias chooses groups too; of equal groups the first is open.
        let biased = Routing { choice_bias: Some(1), groups: groups(2, 1, 2), ..sigmoid };
        assert_routes(&biased, &[-9.0, 0.0, 4.0, 4.0], &[0.0, 1.0], &[of(-9.0), of(0.0)]);
        // By its best alone the group is open, and the expert beside it is the second.
        let by_best = Routing { groups: groups(4, 1, 1), ..sigmoid };
        assert_routes(&by_best, &scores, &[0.0, 1.0], &[of(5.0), of(0.0)]);
        let single = Routing { groups: groups(200, 3, 2), ..PLAIN };
        assert_routes(&single, &[1.0; 200], &[0.0, 1.0], &[0.005, 0.005]);
        let mut late = [0.0; 200];
        (late[199], late[64], late[70]) = (5.0, 5.0, 6.0);
        let all = 197.0 + 2.0 * 5.0f64.exp() + 6.0f64.exp();
        let factors = [5.0f64.exp() / all, 6.0f64.exp() / all];
        assert_routes(&PLAIN, &late, &[64.0, 70.0], &factors);
    }

    #[test]
    fn results_are_added_by_their_factors() {
        for gpu in testing::gpus() {
            let values = [
                1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0, // x
                0.0, 1.0, 0.5, 0.25, 0.0, 2.0, 2.0, -1.0, // routes
                0.0, 0.0, 0.0, 0.0,
            ];
            let (x, routes, out) = (View::dense(0, 4), View::dense(8, 4), View::dense(16, 2));
            let bench = Bench::new(&gpu, &values, &[0, 2]);
            let kernel = combine(&gpu, bench.rows(0), x, routes, out).unwrap();
            assert_eq!(bench.run(&[(&kernel, 2)])[16..], [3.0, 6.0, -24.0, -32.0]);
        }
    }

    fn same(a: &[f32], b: &[f32]) -> bool {
        a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
    }

    /// Every type, with matrices in one piece and in several, of shared and of own inputs; and each
    /// row alone has the bits that it has among others.
    #[test]
    fn products_with_the_experts_that_rows_chose() {
        const N_EXPERTS: u32 = 5;
        const N_OUT: u32 = 23;
        const N_ROWS: u32 = 6;
        for gpu in testing::gpus() {
            for ty in crate::storage::matrix::TYPES {
                let n_in = if ty.block_len() == 1 { 96 } else { ty.block_len() as u32 * 3 };
                let n_weights = (N_EXPERTS * N_OUT) as usize;
                let data = testing::blocks(ty, n_weights, n_in as usize, 5);
                let weights = testing::dequantized(ty, n_in as usize, &data);
                for (is_shared, per_piece) in [(true, 5), (false, 2)] {
                    let width = if is_shared { n_in } else { 2 * n_in };
                    let x = View { start: 3, stride: width + 5, width };
                    let routes = View::dense(3 + N_ROWS * x.stride, 4);
                    let start = routes.start + N_ROWS * routes.stride;
                    let out = View { start, stride: 2 * N_OUT + 3, width: 2 * N_OUT };
                    let len = out.start + N_ROWS * out.stride;
                    let mut values = testing::noise(len as usize, 9);
                    let ids = |row: u32| [row * 3 % 4, 4].map(|id: u32| id.min(N_EXPERTS - 1));
                    for row in 0..N_ROWS {
                        for (slot, id) in (0..).zip(ids(row)) {
                            values[(routes.start + row * 4 + slot) as usize] = id as f32;
                        }
                    }
                    let row_bytes = crate::packed_row_bytes(ty, n_in as usize) as u64;
                    let piece_bytes = per_piece * u64::from(N_OUT) * row_bytes;
                    let shape = [N_EXPERTS, N_OUT, n_in];
                    let matrix =
                        Matrix::experts_with_piece_bytes(&gpu, "w", ty, shape, piece_bytes)
                            .unwrap();
                    matrix.pack_and_write(&gpu, &data).unwrap();
                    assert_eq!(matrix.pieces().len() as u64, 5u64.div_ceil(per_piece));
                    let linear = ExpertLinear {
                        matrix: &matrix,
                        n_outputs: N_OUT,
                        n_chosen: 2,
                        vectors: &testing::filled(&gpu, &[0.0f32]),
                        x,
                        routes,
                        out,
                    };
                    let pairs = ExpertPairs::new(&gpu, 2 * N_ROWS, N_EXPERTS).unwrap();
                    let run = |first: u32, n: u32, form: &str| {
                        let bench = Bench::new(&gpu, &values, &[first, n]);
                        let rows = bench.rows(0);
                        if let "tiles of 16" | "tiles of 64" = form {
                            let half_tiles = ty == BlockType::F16;
                            let options =
                                MatmulOptions { few_rows: form == "tiles of 16", half_tiles };
                            let n_tiles = ExpertPairs::n_tiles(2 * n, 5, options.tile_rows());
                            let sort =
                                sort_by_expert(&gpu, rows, routes, 5, &pairs, options).unwrap();
                            let kernels =
                                expert_matmul(&gpu, rows, &linear, &pairs, options).unwrap();
                            let products = kernels.iter().map(|k| (k, n_tiles));
                            return bench.run(
                                &[(&sort, n)].into_iter().chain(products).collect::<Vec<_>>(),
                            );
                        }
                        if form == "rows" {
                            let kernels = expert_matvec(&gpu, rows, &linear).unwrap();
                            return bench.run(&kernels.iter().map(|k| (k, n)).collect::<Vec<_>>());
                        }
                        let to = QuantizedRows::new(&gpu, N_ROWS, width + 32).unwrap();
                        let quantized = quantize(&gpu, rows, x, &to).unwrap();
                        let kernels = expert_matvec_int8(&gpu, rows, &linear, &to).unwrap();
                        let products = kernels.iter().map(|k| (k, n));
                        bench
                            .run(&[(&quantized, n)].into_iter().chain(products).collect::<Vec<_>>())
                    };
                    let forms = ["rows", "tiles of 16", "tiles of 64", "int8"];
                    let n_forms = if takes_quantized(ty) { 4 } else { 3 };
                    let mut tiles: Option<Vec<f32>> = None;
                    for form in &forms[..n_forms] {
                        let int8 = *form == "int8";
                        let what = format!("{ty}, shared {is_shared}, {form}");
                        let found = run(0, N_ROWS, form);
                        if form.starts_with("tiles") {
                            let of_first = tiles.get_or_insert_with(|| found.clone());
                            assert!(same(of_first, &found), "{what}: the height of tiles shows");
                        }
                        for row in 0..N_ROWS {
                            let alone = run(row, 1, form);
                            for (slot, id) in (0..).zip(ids(row)) {
                                let own = if is_shared { 0 } else { slot * n_in };
                                let x = &values[(x.start + row * x.stride + own) as usize..];
                                for col in 0..N_OUT {
                                    let at = (id * N_OUT + col) * n_in;
                                    let w = &weights[at as usize..][..n_in as usize];
                                    let products = w.iter().zip(x);
                                    let products =
                                        products.map(|(&w, &x)| f64::from(w) * f64::from(x));
                                    let size = products.clone().map(f64::abs).sum::<f64>();
                                    let wanted: f64 = products.sum();
                                    let at = out.start + row * out.stride + slot * N_OUT + col;
                                    let found = found[at as usize];
                                    let bound = if int8 { 1e-2 } else { 1e-6 } * size;
                                    let apart = (f64::from(found) - wanted).abs();
                                    assert!(apart <= bound, "{what}: {row} {slot} {col}: {found}");
                                    let alone = alone[at as usize];
                                    assert_eq!(found.to_bits(), alone.to_bits(), "{what}, alone");
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
