//! Rotary position embedding (arXiv:2104.09864): the table of cosines and sines
//! for the rows of a batch, and the rotation of heads.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::{Buffer, Error, Gpu};
use realizar_types::RopeStyle;

/// The angles of a table: `position * inv_freq[j]` for each pair `j`. If positions have several components,
/// each pair uses one of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeAngles {
    /// Pairs per head.
    pub n_pairs: u32,
    /// Index in `vectors` of the `n_pairs` frequencies, in radians per position.
    pub inv_freq: u32,
    /// Factor of the cosines and sines.
    pub mscale: f32,
    /// The position of row `r` is `batch[positions_at + r]`.
    pub positions_at: u32,
    /// 0 for positions of one component. Otherwise component `c` of the position is
    /// `batch[positions_at + c * component_stride + r]`, and the index of each pair's component, as a float, follows
    /// the frequencies in `vectors`.
    pub component_stride: u32,
}

/// Invocations per workgroup; each computes one pair.
const WORKGROUP: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct TableParams {
    n_pairs: u32,
    inv_freq: u32,
    mscale: f32,
    positions_at: u32,
    rows_at: u32,
    component_stride: u32,
    out: [u32; 2], // start, stride
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct RopeParams {
    head_dim: u32,
    n_pairs: u32,
    width: u32,
    interleaved: u32,
    x: [u32; 2], // start, stride
    out: [u32; 2],
    table: [u32; 2],
    rows_at: u32,
    n_copies: u32,
}

fn table_shader() -> Shader {
    Shader {
        name: "rope table".into(),
        parts: vec![include_str!("../../shaders/rope_table.wgsl")],
        bindings: &[Access::Read, Access::Read, Access::ReadWrite],
        constants: Vec::new(),
    }
}

fn rope_shader() -> Shader {
    Shader {
        name: "rope".into(),
        parts: vec![include_str!("../../shaders/rope.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    vec![table_shader(), rope_shader()]
}

/// Fills each row of `out` with the cosines and then the sines of its angles,
/// times `mscale`.
///
/// Angles are f32 products, as in `transformers`. The error of cosines and sines is at most about 1.5e-7 for
/// angles of any size.
///
/// # Errors
/// If the device refuses the kernel.
///
/// # Panics
/// If `out` does not have the width of a table, or there are no pairs.
pub fn rope_table(
    gpu: &Gpu,
    rows: Rows<'_>,
    vectors: &Buffer,
    angles: &RopeAngles,
    out: View, // [n_rows, 2 * n_pairs]
) -> Result<Kernel, Error> {
    assert!(angles.n_pairs > 0 && out.width == 2 * angles.n_pairs, "a table of {out:?}");
    let params = TableParams {
        n_pairs: angles.n_pairs,
        inv_freq: angles.inv_freq,
        mscale: angles.mscale,
        positions_at: angles.positions_at,
        rows_at: rows.at.0,
        component_stride: angles.component_stride,
        out: [out.start, out.stride],
    };
    let grid = Grid { x: angles.n_pairs.div_ceil(WORKGROUP), rows: 1, z: 1 };
    gpu.kernel(&table_shader(), &params, &[rows.batch, vectors, rows.values], grid)
}

/// Rotates the first `table.width` elements of each head of `x` and copies the others. `out` is `x`, or does not
/// overlap it.
///
/// # Errors
/// If the device refuses the kernel.
///
/// # Panics
/// If the widths disagree, are not whole heads, or the table is empty, odd or wider
/// than a head.
pub fn rope(
    gpu: &Gpu,
    rows: Rows<'_>,
    x: View,     // [n_rows, n_heads * head_dim]
    table: View, // [n_rows, 2 * n_pairs] from `rope_table`
    out: View,   // [n_rows, n_heads * head_dim]
    head_dim: u32,
    style: RopeStyle,
) -> Result<Kernel, Error> {
    assert_eq!(x.width, out.width, "widths of operand and result");
    let whole = head_dim > 0 && x.width.is_multiple_of(head_dim);
    assert!(whole, "{} columns are not whole heads of {head_dim}", x.width);
    let fits = table.width > 0 && table.width <= head_dim && table.width.is_multiple_of(2);
    assert!(fits, "{} rotary elements of a head of {head_dim}", table.width);
    let n_copies = if x == out { 0 } else { head_dim - table.width };
    let params = RopeParams {
        head_dim,
        n_pairs: table.width / 2,
        width: x.width,
        interleaved: u32::from(style == RopeStyle::Interleaved),
        x: [x.start, x.stride],
        out: [out.start, out.stride],
        table: [table.start, table.stride],
        rows_at: rows.at.0,
        n_copies,
    };
    let n_items = x.width / head_dim * (table.width / 2 + n_copies);
    let grid = Grid { x: n_items.div_ceil(WORKGROUP), rows: 1, z: 1 };
    gpu.kernel(&rope_shader(), &params, &[rows.batch, rows.values], grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};

    #[test]
    fn the_table_holds_accurate_cosines_and_sines() {
        // Angles of every size, some of them negative.
        let n_pairs = 67;
        let mut vectors = vec![9.0; 2];
        vectors.extend((0..64).map(|i| 500_000_f32.powf(-i as f32 / 64.0)));
        vectors.extend([-0.37, 2.5, std::f32::consts::FRAC_PI_4]);
        let positions = [0, 1, 2, 3, 511, 4097, 103_993, 131_071, 1_048_575, 16_777_213, u32::MAX];
        let n_rows = positions.len() as u32;
        let batch = [&[0, n_rows, 7, 7, 7], &positions[..]].concat();
        let out = View { start: 3, stride: 2 * n_pairs + 5, width: 2 * n_pairs };
        let values = vec![7.0; (out.start + n_rows * out.stride) as usize];
        let Some(gpu) = testing::gpu() else { return };
        for mscale in [1.0, 1.5] {
            let bench = Bench::new(&gpu, &values, &batch);
            let vectors_on_gpu = testing::filled(&gpu, &vectors);
            let angles =
                RopeAngles { n_pairs, inv_freq: 2, mscale, positions_at: 5, component_stride: 0 };
            let kernel = rope_table(&gpu, bench.rows(0), &vectors_on_gpu, &angles, out).unwrap();
            let found = bench.run(&[(&kernel, n_rows)]);
            for (r, &position) in positions.iter().enumerate() {
                let row = &found[out.start as usize + r * out.stride as usize..];
                for (j, &f) in vectors[2..].iter().enumerate() {
                    let angle = f64::from(position as f32 * f);
                    let (cos, sin) = (row[j], row[n_pairs as usize + j]);
                    let scale = f64::from(mscale);
                    let bound = 1.5e-7 * scale;
                    let apart = (f64::from(cos) - angle.cos() * scale).abs();
                    assert!(apart < bound, "cos {position} * {f}: {cos} {apart:e}");
                    let apart = (f64::from(sin) - angle.sin() * scale).abs();
                    assert!(apart < bound, "sin {position} * {f}: {sin} {apart:e}");
                }
                assert_eq!(row[out.width as usize..][..5], [7.0; 5]);
            }
        }
    }

    #[test]
    fn pairs_take_the_component_that_is_theirs() {
        let (n_pairs, n_rows) = (5, 3);
        let frequencies = [1.0, 0.5, 0.25, 0.125, 0.3];
        let components = [0, 2, 1, 1, 0];
        let vectors = [&frequencies[..], &components.map(|c| c as f32)].concat();
        // Rows of each component, with a word between them.
        let positions = [7, 4, 1000, 9, 8, 4, 17, 9, 90, 4, 3, 9];
        let batch = [&[0, n_rows, 7], &positions[..]].concat();
        let out = View { start: 0, stride: 2 * n_pairs, width: 2 * n_pairs };
        let Some(gpu) = testing::gpu() else { return };
        let bench = Bench::new(&gpu, &vec![0.0; (n_rows * out.stride) as usize], &batch);
        let vectors = testing::filled(&gpu, &vectors);
        let run = |positions_at, component_stride| {
            let mscale = 1.5;
            let angles =
                RopeAngles { n_pairs, inv_freq: 0, mscale, positions_at, component_stride };
            let kernel = rope_table(&gpu, bench.rows(0), &vectors, &angles, out).unwrap();
            bench.run(&[(&kernel, n_rows)])
        };
        let found = run(3, 4);
        // Each pair has the bits that the component alone gives.
        let alone = [3, 7, 11].map(|at| run(at, 0));
        for (i, x) in found.iter().enumerate() {
            let component = components[i % out.width as usize % n_pairs as usize];
            assert_eq!(*x, alone[component][i], "{i}");
        }
        assert_ne!(found, alone[0]);
    }

    /// The rotation of a head as a product of complex numbers, in f64.
    fn reference(x: &[f32], table: &[f32], style: RopeStyle) -> Vec<f64> {
        let half = table.len() / 2;
        let input: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let mut out = input.clone();
        for i in 0..half {
            let (j, k) = match style {
                RopeStyle::Neox => (i, i + half),
                RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            };
            let (cos, sin) = (f64::from(table[i]), f64::from(table[half + i]));
            out[j] = input[j] * cos - input[k] * sin;
            out[k] = input[j] * sin + input[k] * cos;
        }
        out
    }

    #[test]
    fn rotations_match_f64_in_place_and_elsewhere() {
        let shapes = [(1, 2, 2), (3, 64, 64), (2, 80, 32), (5, 21, 10), (9, 96, 96)];
        let n_rows = 3;
        let Some(gpu) = testing::gpu() else { return };
        for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
            for (n_heads, head_dim, rotary_dim) in shapes {
                let width = n_heads * head_dim;
                let x = View { start: 1, stride: width + 6, width };
                let start = x.start + n_rows * x.stride;
                let table = View { start, stride: rotary_dim + 1, width: rotary_dim };
                let start = table.start + n_rows * table.stride;
                let out = View { start, stride: width + 2, width };
                let n = out.start + n_rows * out.stride;
                let values: Vec<f32> =
                    (0..n).map(|i| ((i * 53) % 97) as f32 / 20.0 - 2.0).collect();
                // All rows elsewhere; row 1 alone in place.
                let bench = Bench::new(&gpu, &values, &[0, n_rows, 1, 1]);
                let away = rope(&gpu, bench.rows(0), x, table, out, head_dim, style).unwrap();
                let here = rope(&gpu, bench.rows(2), x, table, x, head_dim, style).unwrap();
                let found = bench.run(&[(&away, n_rows), (&here, 1)]);
                let at = |v: View, r: u32| {
                    let start = (v.start + r * v.stride) as usize;
                    start..start + v.width as usize
                };
                for r in 0..n_rows {
                    let heads = values[at(x, r)].chunks(head_dim as usize);
                    let wanted =
                        heads.flat_map(|head| reference(head, &values[at(table, r)], style));
                    for (found, wanted) in found[at(out, r)].iter().zip(wanted) {
                        let apart = (f64::from(*found) - wanted).abs();
                        assert!(apart < 2e-6, "{style:?} of {head_dim}: {found} {wanted}");
                    }
                }
                assert_eq!(found[at(x, 0)], values[at(x, 0)]);
                assert_eq!(found[at(x, 1)], found[at(out, 1)]);
                assert_eq!(found[at(x, 2)], values[at(x, 2)]);
            }
        }
    }
}
