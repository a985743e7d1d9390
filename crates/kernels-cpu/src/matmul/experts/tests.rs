//! Every product against that of each row alone with each of its matrices, bit by bit.

use realizar_quant::BlockType;

use super::*;
use crate::testing::{next, random, random_weights, tile_tiers};
use crate::{
    Epilogue, ExpertInput, PackedMatrix, matmul_bf16, matmul_f32, matmul_packed, matmul_rows,
    packs, supports_weights,
};

const N_EXPERTS: usize = 5;
const N_CHOSEN: usize = 2;
/// Weight rows of the parts: whole groups and tiles, and not.
const OUTS: [usize; 2] = [37, 64];

/// The matrices of a type, one for each part and expert.
struct Matrices {
    ty: BlockType,
    n_cols: usize,
    bytes: Vec<Vec<u8>>,               // [2 * N_EXPERTS]
    packed: Vec<Option<PackedMatrix>>, // [2 * N_EXPERTS]
}

impl Matrices {
    fn new(ty: BlockType, n_cols: usize) -> Self {
        let mut seed = 7 + ty as u64;
        let shapes = (0..2 * N_EXPERTS).map(|i| OUTS[i / N_EXPERTS]);
        let bytes: Vec<_> = shapes.map(|out| random_weights(&mut seed, ty, out, n_cols)).collect();
        let packed = bytes.iter().enumerate().map(|(i, bytes)| {
            let matrix = MatrixRef::new(ty, OUTS[i / N_EXPERTS], n_cols, bytes);
            PackedMatrix::new(&Team::new(1), Tier::Scalar, &matrix)
        });
        Self { ty, n_cols, packed: packed.collect(), bytes }
    }

    fn plain(&self, part: usize, expert: usize) -> MatrixRef<'_> {
        let bytes = &self.bytes[part * N_EXPERTS + expert];
        MatrixRef::new(self.ty, OUTS[part], self.n_cols, bytes)
    }

    fn packed(&self, part: usize, expert: usize) -> PackedRef<'_> {
        self.packed[part * N_EXPERTS + expert].as_ref().expect("a packed type").view()
    }

    fn weights(&self, part: usize, expert: usize) -> WeightsRef<'_> {
        match packs(self.ty) {
            true => WeightsRef::Packed(self.packed(part, expert)),
            false => WeightsRef::Float(self.plain(part, expert)),
        }
    }
}

/// The experts of each row and their factors; most rows choose expert 1, and none expert 3.
fn routes(n_rows: usize) -> Vec<f32> {
    let mut seed = 5;
    let mut row = |_| match next(&mut seed) % 8 {
        0 => [0.0, 2.0, 0.5, 0.5],
        1 => [2.0, 4.0, 0.5, 0.5],
        2..5 => [0.0, 1.0, 0.5, 0.5],
        _ => [1.0, 4.0, 0.5, 0.5],
    };
    (0..n_rows).flat_map(&mut row).collect()
}

/// Runs `experts` for `n_rows` rows that each have a part for each expert, and compares some with what
/// `alone` gives for a row and a matrix.
fn check(
    n_threads: usize,
    n_rows: usize,
    n_cols: usize,
    experts: impl Fn(&Team, &ExpertRows, &ExpertInput<'_>, RowsMut<'_>),
    alone: impl Fn(&Team, usize, usize, Rows<'_>) -> Vec<f32>, // (part, expert) -> [out]
    case: &str,
) {
    let team = Team::new(n_threads);
    let x = random(&mut 11, n_rows * N_CHOSEN * n_cols);
    let routes = routes(n_rows);
    let routes = Rows::new(&routes, n_rows, 2 * N_CHOSEN);
    let mut rows = ExpertRows::with_capacity(n_rows, N_CHOSEN, N_EXPERTS);
    rows.sort(routes, N_EXPERTS);
    let width = N_CHOSEN * OUTS.iter().sum::<usize>();
    let mut out = vec![f32::NAN; n_rows * width];
    let input = ExpertInput::Plain(Rows::new(&x, n_rows, N_CHOSEN * n_cols));
    experts(&team, &rows, &input, RowsMut::new(&mut out, n_rows, width));
    assert!(out.iter().all(|v| !v.is_nan()), "{case}: every element is written");
    // Of many rows some.
    for (r, out) in out.chunks_exact(width).enumerate().step_by(n_rows.div_ceil(9)) {
        let mut at = 0;
        for (part, n) in OUTS.into_iter().enumerate() {
            for slot in 0..N_CHOSEN {
                let x = &x[(r * N_CHOSEN + slot) * n_cols..][..n_cols];
                let expert = routes.row(r)[slot] as usize;
                let expected = alone(&team, part, expert, Rows::new(x, 1, n_cols));
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let found = &out[at..at + n];
                assert!(bits(found) == bits(&expected), "{case}: row {r}, part {part}, {expert}");
                at += n;
            }
        }
    }
}

/// Numbers of threads and of rows.
const CASES: [(usize, usize); 3] = [(1, 1), (2, 7), (3, 75)];

#[test]
fn packed_weights() {
    for ty in BlockType::all().filter(|&ty| packs(ty)) {
        let n_cols = if ty.block_len() == 32 { 800 } else { 1024 };
        let matrices = Matrices::new(ty, n_cols);
        for tier in Tier::available() {
            for (n_threads, n_rows) in CASES {
                let experts =
                    |team: &Team, rows: &ExpertRows, x: &ExpertInput<'_>, out: RowsMut<'_>| {
                        let mut quantized = QuantizedRows::with_capacity(rows.n_pairs(), n_cols);
                        rows.quantize(team, tier, x, n_cols, &mut quantized);
                        let parts =
                            ExpertParts { outs: &OUTS, matrix: &|p, e| matrices.packed(p, e) };
                        let scratch = PackedScratch::new(team, rows.n_rows());
                        experts_packed(team, tier, parts, rows, &quantized, out, &scratch);
                    };
                let alone = |team: &Team, part: usize, expert, x: Rows<'_>| {
                    let mut quantized = QuantizedRows::with_capacity(1, n_cols);
                    quantized.quantize(team, tier, x);
                    let mut out = vec![0.0; OUTS[part]];
                    let view = RowsMut::new(&mut out, 1, OUTS[part]);
                    let (scratch, weights) =
                        (PackedScratch::new(team, 1), matrices.packed(part, expert));
                    let epilogue = Epilogue::default();
                    matmul_packed(team, tier, &[weights], &quantized, view, &scratch, &epilogue);
                    out
                };
                let case = format!("{ty} on {tier}, {n_rows} rows");
                check(n_threads, n_rows, n_cols, experts, alone, &case);
            }
        }
    }
}

/// The pairs of the rows as floats.
fn gathered(team: &Team, rows: &ExpertRows, x: &ExpertInput<'_>, n_cols: usize) -> Vec<f32> {
    let mut floats = vec![0.0; rows.n_pairs() * n_cols];
    let view = RowsMut::new(&mut floats, rows.n_pairs(), n_cols);
    rows.gather(team, Tier::Scalar, x, view);
    floats
}

#[test]
fn float_weights_and_widened_blocks() {
    for ty in BlockType::all().filter(|&ty| supports_weights(ty)) {
        let n_cols = ty.block_len() * 520_usize.div_ceil(ty.block_len());
        let matrices = Matrices::new(ty, n_cols);
        let parts = ExpertParts { outs: &OUTS, matrix: &|p, e| matrices.plain(p, e) };
        for tier in Tier::available() {
            for (n_threads, n_rows) in CASES {
                let case = format!("{ty} on {tier}, {n_rows} rows");
                let widened =
                    |team: &Team, rows: &ExpertRows, x: &ExpertInput<'_>, out: RowsMut<'_>| {
                        let floats = gathered(team, rows, x, n_cols);
                        let x = Rows::new(&floats, rows.n_pairs(), n_cols);
                        let (panels, scratch) =
                            (PanelScratch::new(team), ExpertScratch::new(team, rows.n_rows()));
                        experts_f32(team, tier, parts, rows, x, out, &panels, &scratch);
                    };
                let alone = |team: &Team, part: usize, expert, x: Rows<'_>| {
                    let mut out = vec![0.0; OUTS[part]];
                    let view = RowsMut::new(&mut out, 1, OUTS[part]);
                    let (panels, epilogue) = (PanelScratch::new(team), Epilogue::default());
                    let weights = [matrices.plain(part, expert)];
                    matmul_f32(team, tier, &weights, x, view, &panels, &epilogue);
                    out
                };
                check(n_threads, n_rows, n_cols, widened, alone, &case);
                if !supports_rows(ty) {
                    continue;
                }
                let read =
                    |team: &Team, rows: &ExpertRows, x: &ExpertInput<'_>, out: RowsMut<'_>| {
                        let floats = gathered(team, rows, x, n_cols);
                        let x = Rows::new(&floats, rows.n_pairs(), n_cols);
                        experts_rows(team, tier, parts, rows, x, out);
                    };
                let alone = |team: &Team, part: usize, expert, x: Rows<'_>| {
                    let mut out = vec![0.0; OUTS[part]];
                    let view = RowsMut::new(&mut out, 1, OUTS[part]);
                    let weights = [matrices.plain(part, expert)];
                    matmul_rows(team, tier, &weights, x, view, &Epilogue::default());
                    out
                };
                check(n_threads, n_rows, n_cols, read, alone, &case);
            }
        }
    }
}

#[test]
fn weights_on_tiles() {
    for ty in BlockType::all().filter(|&ty| packs(ty) || supports_rows(ty)) {
        // More columns than a panel has, so that sums continue from one to the next.
        let n_cols = ty.block_len() * 2060_usize.div_ceil(ty.block_len());
        let matrices = Matrices::new(ty, n_cols);
        for tier in tile_tiers() {
            for (n_threads, n_rows) in [(2, 1), (3, 56)] {
                let experts = |team: &Team,
                               rows: &ExpertRows,
                               x: &ExpertInput<'_>,
                               out: RowsMut<'_>| {
                    let floats = gathered(team, rows, x, n_cols);
                    let n_pairs = rows.n_pairs();
                    let max_rows = ExpertRows::max_bf16_rows(n_pairs, N_EXPERTS);
                    let mut packed = Bf16Rows::with_capacity(max_rows, n_cols).expect("small rows");
                    rows.pack(team, tier, Rows::new(&floats, n_pairs, n_cols), &mut packed);
                    let parts = ExpertParts { outs: &OUTS, matrix: &|p, e| matrices.weights(p, e) };
                    let panels = Bf16Scratch::new(team).expect("some mebibytes");
                    let scratch = ExpertScratch::new(team, rows.n_rows());
                    experts_bf16(team, tier, parts, rows, &packed, out, &panels, &scratch);
                };
                let alone = |team: &Team, part: usize, expert, x: Rows<'_>| {
                    let mut rows = Bf16Rows::with_capacity(1, n_cols).expect("a row");
                    rows.pack(team, tier, x);
                    let mut out = vec![0.0; OUTS[part]];
                    let view = RowsMut::new(&mut out, 1, OUTS[part]);
                    let panels = Bf16Scratch::new(team).expect("some mebibytes");
                    let weights = [matrices.weights(part, expert)];
                    let epilogue = Epilogue::default();
                    matmul_bf16(team, tier, &weights, &rows, view, &panels, &epilogue);
                    out
                };
                let case = format!("{ty} on {tier}, {n_rows} rows");
                check(n_threads, n_rows, n_cols, experts, alone, &case);
            }
        }
    }
}
