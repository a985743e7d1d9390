//! RMS and layer norms of whole rows or of their heads.

use super::rows::optional;
use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Error, Rows};
use realizar_types::NormKind;

/// Threads of a block.
const THREADS: u32 = 256;
/// The longest run that one warp normalizes, and warps per block.
const WARP_RUN: usize = 256;
const WARPS: usize = 8;

/// A norm over runs of columns.
#[derive(Debug)]
pub struct Norm<'a, D: Device> {
    /// Formula of the norm.
    pub kind: NormKind,
    /// Columns of a run: all columns of a row, or those of one head.
    pub group: usize,
    /// Added under the square root.
    pub eps: f32,
    /// Multiplied with the normalized values, `[1, group]`, or `[1, n_cols]` for a weight per run.
    pub weight: Option<Rows<'a, D>>,
    /// Added last, in the shape of the weight.
    pub bias: Option<Rows<'a, D>>,
}

/// Queues a norm of each run of each row. `out` may be `x`.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or there are more than 65,535 rows.
pub fn norm<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    norm: &Norm<'_, D>,
    x: Rows<'_, D>,   // [n_rows, n_cols]
    out: Rows<'_, D>, // [n_rows, n_cols]
) -> Result<(), Error> {
    let &Norm { kind, group, eps, weight, bias } = norm;
    x.check(kernels, "x", x.n_rows(), x.n_cols());
    out.check(kernels, "out", x.n_rows(), x.n_cols());
    let per_run = weight.or(bias).is_some_and(|vector| vector.n_cols() != group);
    for (what, vector) in [("weight", weight), ("bias", bias)] {
        if let Some(vector) = vector {
            vector.check(kernels, what, 1, if per_run { x.n_cols() } else { group });
        }
    }
    assert!(group > 0 && x.n_cols().is_multiple_of(group), "runs of {group} in {}", x.n_cols());
    assert!(x.n_rows() <= 65535, "{} rows", x.n_rows());
    let n_groups = x.n_cols() / group;
    let functions = match kind {
        NormKind::Rms => &kernels.norm.rms,
        NormKind::Layer => &kernels.norm.layer,
    };
    let (function, n_blocks) = match group <= WARP_RUN {
        true => (&functions[1], n_groups.div_ceil(WARPS)),
        false => (&functions[0], n_groups),
    };
    let arguments = [
        x.address(),
        x.stride(),
        optional(weight)[0],
        optional(bias)[0],
        out.address(),
        out.stride(),
        Argument::I32(group as i32),
        Argument::F32(eps),
        Argument::I32(if per_run { group as i32 } else { 0 }),
        Argument::I32(n_groups as i32),
    ];
    let grid = [n_blocks as u32, x.n_rows() as u32, 1];
    // SAFETY: the arguments are those of the kernels in order; rows lie within their buffers, and their shapes were
    // checked. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{Random, kernels, on_device, read};

    fn close(found: f32, expected: f64, what: &str) {
        let away = (f64::from(found) - expected).abs();
        assert!(away <= 2e-6 * (expected.abs() + 1.0), "{what}: {found} is not {expected}");
    }

    #[cfg_attr(test, test)]
    fn norms() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        // Rows, runs and run lengths: one element, less than a warp, the longest run of a warp, and more than a block.
        for (n_rows, n_groups, group) in
            [(1, 1, 1), (3, 2, 7), (2, 9, 101), (2, 1, 1030), (1, 2, 257)]
        {
            let mut random = Random(group as u64);
            let n_cols = n_groups * group;
            let stride = n_cols + 3;
            let x: Vec<f32> = random.floats(n_rows * stride).iter().map(|x| x + 0.5).collect();
            let [w, b] = [(); 2].map(|()| random.floats(n_cols + 1));
            let put = |values: &[f32]| on_device(device, &stream, values);
            let (x_at, w_at, b_at) = (put(&x), put(&w), put(&b));
            let vectors = |len| [&w_at, &b_at].map(|at| Rows::vector_at(at, 1, len));
            let eps = 1e-5;
            for (kind, with, per_run) in [
                (NormKind::Rms, [true, false], false),
                (NormKind::Rms, [false, false], false),
                (NormKind::Layer, [true, true], false),
                (NormKind::Layer, [true, false], false),
                (NormKind::Layer, [true, true], true),
                (NormKind::Rms, [true, false], true),
            ] {
                let [weight, bias] = vectors(if per_run { n_cols } else { group });
                let out = put(&x);
                let rows = |buffer| Rows::new(buffer, 0, n_rows, n_cols, stride);
                let op = Norm {
                    kind,
                    group,
                    eps,
                    weight: with[0].then_some(weight),
                    bias: with[1].then_some(bias),
                };
                norm(&kernels, &stream, &op, rows(&x_at), rows(&out)).unwrap();
                let found = read(&stream, &out, x.len());
                for (row, found) in found.chunks(stride).enumerate() {
                    assert_eq!(found[n_cols..], x[row * stride + n_cols..(row + 1) * stride]);
                    for (run, found) in found[..n_cols].chunks(group).enumerate() {
                        let at = row * stride + run * group;
                        let values: Vec<f64> = x[at..][..group].iter().map(|&x| x.into()).collect();
                        let mean = |f: &dyn Fn(f64) -> f64| {
                            values.iter().map(|&x| f(x)).sum::<f64>() / group as f64
                        };
                        let center = if kind == NormKind::Layer { mean(&|x| x) } else { 0.0 };
                        let variance = mean(&|x| (x - center) * (x - center));
                        for (i, value) in values.iter().enumerate() {
                            let at = 1 + i + if per_run { run * group } else { 0 };
                            let factor = if with[0] { f64::from(w[at]) } else { 1.0 };
                            let offset = if with[1] { f64::from(b[at]) } else { 0.0 };
                            let root = (variance + f64::from(eps)).sqrt();
                            close(found[i], (value - center) / root * factor + offset, "norm");
                        }
                    }
                }
            }
        }
    }

    #[cfg_attr(test, test)]
    fn rows_of_a_norm_do_not_depend_on_each_other() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (n_rows, n_cols) = (5, 300);
        let x = Random(4).floats(n_rows * n_cols);
        let x_at = on_device(device, &stream, &x);
        let weight = on_device(device, &stream, &x[..n_cols]);
        let weight = Some(Rows::vector(&weight, n_cols));
        let op = Norm { kind: NormKind::Rms, group: n_cols, eps: 1e-6, weight, bias: None };
        let out = on_device(device, &stream, &x);
        let rows = |buffer, from: usize, n| Rows::new(buffer, from * n_cols, n, n_cols, n_cols);
        norm(&kernels, &stream, &op, rows(&x_at, 0, 5), rows(&out, 0, 5)).unwrap();
        let together = read(&stream, &out, x.len());
        // In place, one row at a time.
        for row in 0..n_rows {
            let x = rows(&x_at, row, 1);
            norm(&kernels, &stream, &op, x, x).unwrap();
        }
        assert_eq!(read(&stream, &x_at, x.len()), together);
    }

    #[cfg_attr(test, test)]
    #[cfg_attr(test, should_panic(expected = "weight is on another device"))]
    fn buffers_of_another_device_are_not_taken() {
        let ((kernels, stream), (others, other_stream)) = (kernels(), kernels());
        let x = on_device(kernels.device(), &stream, &[1.0f32; 4]);
        let weight = on_device(others.device(), &other_stream, &[1.0f32; 4]);
        let (x, weight) = (Rows::vector(&x, 4), Some(Rows::vector(&weight, 4)));
        let op = Norm { kind: NormKind::Rms, group: 4, eps: 1e-6, weight, bias: None };
        norm(&kernels, &stream, &op, x, x).unwrap();
    }

    crate::testing::tests![
        norms,
        rows_of_a_norm_do_not_depend_on_each_other,
        buffers_of_another_device_are_not_taken => "weight is on another device",
    ];
}
