//! Tests of both products: values against f64, tiers against each other, and the
//! same bits for every number of rows, threads and matrices.

use super::*;
use crate::testing::{random, random_weights};
use crate::vec_dot::widen;
use crate::{Team, Tier, supports_rows};

/// What a case multiplies.
struct Case {
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    w: Vec<u8>,
    x: Vec<f32>,
    n_tokens: usize,
}

impl Case {
    fn new(ty: BlockType, n_rows: usize, n_cols: usize, n_tokens: usize) -> Self {
        let mut seed = (n_cols * 31 + ty as usize * 7 + 1) as u64;
        let w = random_weights(&mut seed, ty, n_rows, n_cols);
        let x = random(&mut seed, n_tokens * n_cols);
        Self { ty, n_rows, n_cols, w, x, n_tokens }
    }

    fn matrix(&self) -> MatrixRef<'_> {
        MatrixRef::new(self.ty, self.n_rows, self.n_cols, &self.w)
    }

    fn x(&self) -> Rows<'_> {
        Rows::new(&self.x, self.n_tokens, self.n_cols)
    }

    /// The product by one of the arithmetics.
    fn run(&self, arithmetic: Arithmetic, tier: Tier, n_threads: usize, x: Rows<'_>) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.n_rows() * self.n_rows];
        let view = RowsMut::new(&mut out, x.n_rows(), self.n_rows);
        arithmetic.run(
            tier,
            &Team::new(n_threads),
            &[self.matrix()],
            x,
            view,
            &Epilogue::default(),
        );
        out
    }
}

#[derive(Clone, Copy, Debug)]
enum Arithmetic {
    Rows,
    Float,
}

impl Arithmetic {
    fn run(
        self,
        tier: Tier,
        team: &Team,
        parts: &[MatrixRef<'_>],
        x: Rows<'_>,
        out: RowsMut<'_>,
        epilogue: &Epilogue<'_>,
    ) {
        match self {
            Self::Rows => matmul_rows(team, tier, parts, x, out, epilogue),
            Self::Float => {
                matmul_f32(team, tier, parts, x, out, &PanelScratch::new(team), epilogue);
            }
        }
    }

    /// The kernels that take a type of weights.
    fn of(ty: BlockType) -> &'static [Self] {
        if supports_rows(ty) { &[Self::Rows, Self::Float] } else { &[Self::Float] }
    }
}

fn weight_types() -> impl Iterator<Item = BlockType> {
    BlockType::all().filter(|&ty| supports_weights(ty))
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

/// Columns that leave every kind of remainder, for a type.
fn lengths(ty: BlockType) -> Vec<usize> {
    match ty.block_len() {
        1 => vec![1, 7, 8, 31, 45, 512, 1037],
        32 => vec![32, 96, 512, 1056],
        64 => vec![64, 192, 512, 1088],
        _ => vec![256, 768, 1280],
    }
}

#[test]
fn products_are_close_to_f64_on_every_tier() {
    for ty in weight_types() {
        for n_cols in lengths(ty) {
            let case = Case::new(ty, 7, n_cols, 5);
            let weights = {
                let mut v = vec![0.0; 7 * n_cols];
                widen(ty, Tier::Scalar, &case.w, &mut v);
                v
            };
            for tier in Tier::available() {
                for &arithmetic in Arithmetic::of(ty) {
                    let out = case.run(arithmetic, tier, 2, case.x());
                    for (i, &value) in out.iter().enumerate() {
                        let (token, n) = (i / 7, i % 7);
                        let w = &weights[n * n_cols..][..n_cols];
                        let x = case.x().row(token);
                        let products = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                        let expected: f64 = products.sum();
                        let terms = w.iter().zip(x).map(|(w, x)| (w.abs() + 0.1) * x.abs() * 2e-6);
                        let bound: f64 = terms.map(f64::from).sum();
                        assert!(
                            (f64::from(value) - expected).abs() <= bound + 1e-6,
                            "{ty} {n_cols} {tier} {arithmetic:?}: {value}, not {expected} ± {bound}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn tiers_agree_within_rounding() {
    for ty in weight_types() {
        for n_cols in lengths(ty) {
            let case = Case::new(ty, 9, n_cols, 3);
            for &arithmetic in Arithmetic::of(ty) {
                let scalar = case.run(arithmetic, Tier::Scalar, 1, case.x());
                let scale = scalar.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                for tier in Tier::available() {
                    let out = case.run(arithmetic, tier, 1, case.x());
                    for (a, b) in out.iter().zip(&scalar) {
                        assert!(
                            (a - b).abs() <= 2e-6 * scale.max(1.0),
                            "{ty} {n_cols} {tier}: {a} {b}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn widened_weights_are_equal_on_every_tier() {
    for ty in weight_types() {
        let case = Case::new(ty, 1, 1280, 1);
        let [mut scalar, mut other] = [vec![0.0; 1280], vec![0.0; 1280]];
        widen(ty, Tier::Scalar, &case.w, &mut scalar);
        for tier in Tier::available() {
            widen(ty, tier, &case.w, &mut other);
            assert_eq!(scalar, other, "{ty} {tier}");
        }
    }
}

#[test]
fn bits_depend_on_neither_rows_nor_threads() {
    for ty in weight_types() {
        let n_cols = if ty.block_len() == 1 { 1029 } else { 768 };
        let case = Case::new(ty, 70, n_cols, 9);
        for tier in Tier::available() {
            for &arithmetic in Arithmetic::of(ty) {
                let alone: Vec<u32> = (0..9)
                    .flat_map(|r| {
                        bits(&case.run(arithmetic, tier, 1, case.x().slice_rows(r..r + 1)))
                    })
                    .collect();
                for n_tokens in 1..=9 {
                    for n_threads in 1..=3 {
                        let x = case.x().slice_rows(0..n_tokens);
                        let out = case.run(arithmetic, tier, n_threads, x);
                        assert_eq!(
                            bits(&out),
                            alone[..70 * n_tokens],
                            "{ty} {tier} {arithmetic:?}: {n_tokens} rows, {n_threads} threads"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn parts_are_side_by_side_and_the_epilogue_is_added() {
    let cases = [
        Case::new(BlockType::Q4_K, 33, 512, 3),
        Case::new(BlockType::F16, 5, 512, 3),
        Case::new(BlockType::Q6_K, 18, 512, 3),
    ];
    let parts: Vec<_> = cases.iter().map(Case::matrix).collect();
    let (x, n) = (cases[0].x(), 56);
    let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let residual: Vec<f32> = (0..3 * n).map(|i| i as f32 * 100.0).collect();
    for tier in Tier::available() {
        for arithmetic in [Arithmetic::Float] {
            let apart: Vec<_> = cases.iter().map(|c| c.run(arithmetic, tier, 1, x)).collect();
            let mut out = vec![1000.0; 3 * (n + 2)];
            let view = RowsMut::with_stride(&mut out, 3, n, n + 2);
            let epilogue =
                Epilogue { bias: Some(&bias), residual: Some(Rows::new(&residual, 3, n)) };
            arithmetic.run(tier, &Team::new(2), &parts, x, view, &epilogue);
            for (r, row) in out.chunks(n + 2).enumerate() {
                assert_eq!(row[n..], [1000.0; 2], "the gap between rows is untouched");
                let products = cases
                    .iter()
                    .zip(&apart)
                    .flat_map(|(case, out)| &out[r * case.n_rows..][..case.n_rows]);
                for (i, (value, product)) in row.iter().zip(products).enumerate() {
                    let expected = product + (bias[i] + residual[r * n + i]);
                    let error = (value - expected).abs() / expected.abs();
                    assert!(error < 1e-6, "{tier} {arithmetic:?}: {value}, not {expected}");
                }
            }
        }
    }
}
