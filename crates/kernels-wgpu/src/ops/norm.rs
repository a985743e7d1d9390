//! RMS and layer normalization of runs of columns.
//!
//! A workgroup normalizes one run of one row with f32 sums, whose order depends on the length of the run alone.

use crate::dispatch::shader::{self, Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::{Buffer, Error, Gpu};
use realizar_types::NormKind;

/// A normalization of each run of `group` columns of a row: the whole row, or `head_dim` columns to normalize
/// each head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// The kind.
    pub kind: NormKind,
    /// Columns per run.
    pub group: u32,
    /// Added to the mean square or to the variance.
    pub eps: f32,
    /// Index in `vectors` of the `group` factors.
    pub weight: Option<u32>,
    /// Index in `vectors` of the `group` biases.
    pub bias: Option<u32>,
    /// Whether every run has factors and biases of its own, which follow one another.
    pub per_run: bool,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    group: u32,
    layer: u32,
    eps: f32,
    rows_at: u32,
    x: [u32; 2], // start, stride
    out: [u32; 2],
    weight: u32,
    bias: u32,
    step: u32, // from the vectors of a run to those of the next
    _pad: u32,
}

/// The index of an absent vector.
const NONE: u32 = u32::MAX;

/// Longer runs use the larger workgroup.
const SHORT: u32 = 512;

fn shader(subgroups: bool, group: u32) -> Shader {
    let (size, workgroup) = if group <= SHORT {
        (64, "const WORKGROUP: u32 = 64u;\n")
    } else {
        (256, "const WORKGROUP: u32 = 256u;\n")
    };
    let how = if subgroups { "subgroup" } else { "plain" };
    Shader {
        name: format!("norm {size} {how}").into(),
        parts: vec![workgroup, shader::reduce(subgroups), include_str!("../../shaders/norm.wgsl")],
        bindings: &[Access::Read, Access::Read, Access::ReadWrite],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    [false, true].into_iter().flat_map(|s| [shader(s, SHORT), shader(s, SHORT + 1)]).collect()
}

/// Normalizes each run of `norm.group` columns of `x` to `out`, which has the same width and may be `x`.
/// `vectors` has factors and biases, f32.
///
/// # Errors
/// If the device refuses the kernel.
///
/// # Panics
/// If the widths differ or are not whole runs.
pub fn norm(
    gpu: &Gpu,
    rows: Rows<'_>,
    norm: &Norm,
    vectors: &Buffer,
    x: View,
    out: View,
) -> Result<Kernel, Error> {
    assert_eq!(x.width, out.width, "widths of operand and result");
    let whole = norm.group > 0 && x.width.is_multiple_of(norm.group);
    assert!(whole, "{} columns are not whole runs of {}", x.width, norm.group);
    let params = Params {
        group: norm.group,
        layer: u32::from(norm.kind == NormKind::Layer),
        eps: norm.eps,
        rows_at: rows.at.0,
        x: [x.start, x.stride],
        out: [out.start, out.stride],
        weight: norm.weight.unwrap_or(NONE),
        bias: norm.bias.unwrap_or(NONE),
        step: if norm.per_run { norm.group } else { 0 },
        _pad: 0,
    };
    let grid = Grid { x: x.width / norm.group, rows: 1, z: 1 };
    let shader = shader(gpu.caps().subgroups, norm.group);
    gpu.kernel(&shader, &params, &[rows.batch, vectors, rows.values], grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};

    /// One run, in f64.
    fn reference(kind: NormKind, eps: f32, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f64> {
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let n = x.len() as f64;
        let mean = match kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => x.iter().sum::<f64>() / n,
        };
        let square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (square + f64::from(eps)).sqrt();
        let all = x.iter().zip(weight).zip(bias);
        all.map(|((x, &w), &b)| (x - mean) * scale * f64::from(w) + f64::from(b)).collect()
    }

    #[test]
    fn norms_match_f64_alone_and_in_a_batch() {
        let shapes = [(4, 3), (63, 1), (64, 5), (96, 2), (577, 1), (2048, 2), (16384, 1)];
        for gpu in testing::gpus() {
            for (i, (group, n_groups)) in shapes.into_iter().enumerate() {
                let (kind, weight, bias) = [
                    (NormKind::Rms, Some(3), None),
                    (NormKind::Layer, Some(3), Some(3 + group)),
                    (NormKind::Layer, None, None),
                    (NormKind::Rms, Some(3), Some(3 + group)),
                ][i % 4];
                for kind in [kind, NormKind::Rms] {
                    let per_run = i == 3;
                    let bias = bias.map(|at| if per_run { 3 + group * n_groups } else { at });
                    let op = Norm { kind, group, eps: 1e-5, weight, bias, per_run };
                    check(&gpu, op, group * n_groups);
                }
            }
        }
    }

    fn check(gpu: &Gpu, op: Norm, width: u32) {
        let n_rows = 3;
        // Far from zero, so that a variance from squares would be wrong.
        let shift = if op.kind == NormKind::Layer { 40.0 } else { 0.1 };
        let value = |i: u32| ((i * 37) % 211) as f32 / 50.0 - 2.0 + shift;
        let x = View { start: 5, stride: width + 7, width };
        let out = View { start: 5 + n_rows * x.stride, stride: width + 3, width };
        let n = out.start + n_rows * out.stride;
        let values: Vec<f32> = (0..n).map(value).collect();
        let vectors: Vec<f32> =
            (0..3 + 2 * width).map(|i| ((i * 29) % 31) as f32 / 16.0 - 0.9).collect();
        let vectors_on_gpu = testing::filled(gpu, &vectors);
        let part = |start: Option<u32>, run: usize, else_: f32| match start {
            Some(start) => {
                let at = start as usize + if op.per_run { run * op.group as usize } else { 0 };
                vectors[at..][..op.group as usize].to_vec()
            }
            None => vec![else_; op.group as usize],
        };

        // Rows 0..3, then row 1 alone, then in place.
        let bench = Bench::new(gpu, &values, &[0, n_rows, 1, 1]);
        let kernel = |at, out| norm(gpu, bench.rows(at), &op, &vectors_on_gpu, x, out).unwrap();
        let found = bench.run(&[(&kernel(0, out), n_rows)]);
        let row = |all: &[f32], v: View, r: u32| {
            all[(v.start + r * v.stride) as usize..][..width as usize].to_vec()
        };
        for r in 0..n_rows {
            let (inputs, found) = (row(&values, x, r), row(&found, out, r));
            let size = op.group as usize;
            for (i, (run, found)) in inputs.chunks(size).zip(found.chunks(size)).enumerate() {
                let (weight, bias) = (part(op.weight, i, 1.0), part(op.bias, i, 0.0));
                let wanted = reference(op.kind, op.eps, run, &weight, &bias);
                for (found, wanted) in found.iter().zip(wanted) {
                    let apart = (f64::from(*found) - wanted).abs();
                    let bound = 1e-5 * wanted.abs().max(1.0);
                    assert!(apart <= bound, "{op:?}: {found} {wanted} {apart:e}");
                }
            }
        }
        let again = Bench::new(gpu, &values, &[1, 1, 0, n_rows]);
        let alone = norm(gpu, again.rows(0), &op, &vectors_on_gpu, x, out).unwrap();
        let after = again.run(&[(&alone, 1)]);
        assert_eq!(row(&after, out, 1), row(&found, out, 1), "alone: {op:?}");
        assert_eq!(row(&after, out, 0), row(&values, out, 0), "another row: {op:?}");
        let in_place = norm(gpu, again.rows(2), &op, &vectors_on_gpu, x, x).unwrap();
        let after = again.run(&[(&in_place, n_rows)]);
        for r in 0..n_rows {
            assert_eq!(row(&after, x, r), row(&found, out, r), "in place: {op:?}");
        }
        assert_eq!(after[(x.start + width) as usize], values[(x.start + width) as usize]);
    }
}
