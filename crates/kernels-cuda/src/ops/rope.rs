//! Rotary position embeddings.

use super::rows::optional;
use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Error, List, Rows};
use realizar_types::RopeStyle;

/// Threads of a block.
const THREADS: u32 = 128;

/// The angles of a rotary embedding.
#[derive(Debug)]
pub struct RopeAngles<'a, D: Device> {
    /// Positions of the rows. Components of a position are in separate lists.
    pub positions: List<'a, D>,
    /// Distance between the lists of two components; ignored for positions with one component.
    pub component_stride: usize,
    /// Angle per position for each pair, `[1, n_pairs]`.
    pub inv_freq: Rows<'a, D>,
    /// The component of the position that each pair uses, 0.0, 1.0 or 2.0, `[1, n_pairs]`; `None` for positions with
    /// one component.
    pub components: Option<Rows<'a, D>>,
    /// Factor on cosines and sines.
    pub mscale: f32,
}

/// Queues a table of the cosines, then the sines, of each row's angles. An angle is the product of position and
/// frequency, rounded to F32; its cosine and sine are within 3e-7 of the exact ones.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match.
pub fn rope_table<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    angles: &RopeAngles<'_, D>,
    out: Rows<'_, D>, // [n_rows, 2 * n_pairs]
) -> Result<(), Error> {
    let &RopeAngles { positions, component_stride, inv_freq, components, mscale } = angles;
    let n_pairs = inv_freq.n_cols();
    inv_freq.check(kernels, "inv_freq", 1, n_pairs);
    if let Some(components) = components {
        components.check(kernels, "components", 1, n_pairs);
    }
    out.check(kernels, "out", out.n_rows(), 2 * n_pairs);
    let before = if components.is_some() { 2 * component_stride } else { 0 };
    positions.check(kernels, "positions", before + out.n_rows());
    let arguments = [
        positions.address(),
        Argument::I32(component_stride as i32),
        inv_freq.address(),
        optional(components)[0],
        Argument::F32(mscale),
        out.address(),
        out.stride(),
        Argument::I32(n_pairs as i32),
    ];
    let grid = [out.n_rows() as u32, 1, 1];
    // SAFETY: the arguments are those of the kernel in order; rows and lists lie inside their buffers, and their shapes
    // were checked; components are 0, 1 or 2, as the caller says. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, &kernels.rope.table, grid, [THREADS, 1], &arguments) }
}

/// Queues the rotation of the first columns of each head by the rows of a table. `out` may be `x`.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match.
pub fn rope<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>,     // [n_rows, n_heads * head_dim]
    table: Rows<'_, D>, // [n_rows, rotary_dim]
    out: Rows<'_, D>,   // [n_rows, n_heads * head_dim]
    head_dim: usize,
    pairs: RopeStyle,
) -> Result<(), Error> {
    let rotary_dim = table.n_cols();
    assert!(head_dim > 0 && x.n_cols().is_multiple_of(head_dim), "heads of {head_dim}");
    assert!(rotary_dim <= head_dim, "{rotary_dim} of {head_dim}");
    assert!(rotary_dim.is_multiple_of(2), "pairs of {rotary_dim} elements");
    x.check(kernels, "x", x.n_rows(), x.n_cols());
    table.check(kernels, "table", x.n_rows(), rotary_dim);
    out.check(kernels, "out", x.n_rows(), x.n_cols());
    let arguments = [
        x.address(),
        x.stride(),
        table.address(),
        table.stride(),
        out.address(),
        out.stride(),
        Argument::I32((x.n_cols() / head_dim) as i32),
        Argument::I32(head_dim as i32),
        Argument::I32(rotary_dim as i32 / 2),
        Argument::I32(i32::from(pairs == RopeStyle::Interleaved)),
    ];
    let grid = [x.n_rows() as u32, 1, 1];
    // SAFETY: as in `rope_table`.
    unsafe { kernels.launch(stream, &kernels.rope.rope, grid, [THREADS, 1], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{Random, kernels, on_device, read};

    #[cfg_attr(test, test)]
    fn tables_hold_the_angles_of_positions() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        // Positions with three components for four rows.
        let positions = [0u32, 1, 77, 1_000_003, 5, 8, 9, 131_071, 2, 3, 4, 16_777_215];
        let at = on_device(device, &stream, &positions);
        let n_pairs = 150;
        let inv_freq: Vec<f32> = (0..n_pairs)
            .map(|pair| 10000f32.powf(-(pair as f32) / n_pairs as f32))
            .chain((0..n_pairs).map(|pair| (pair % 3) as f32))
            .collect();
        let frequencies = on_device(device, &stream, &inv_freq);
        let out = on_device(device, &stream, &[9.0f32; 4 * 304]);
        for has_components in [false, true] {
            let angles = RopeAngles {
                positions: List::all(&at),
                component_stride: 4,
                inv_freq: Rows::vector(&frequencies, n_pairs),
                components: has_components.then(|| Rows::vector_at(&frequencies, n_pairs, n_pairs)),
                mscale: 1.5,
            };
            let rows = Rows::new(&out, 1, 4, 2 * n_pairs, 301);
            rope_table(&kernels, &stream, &angles, rows).unwrap();
            let found = read(&stream, &out, 1 + 4 * 301);
            for row in 0..4 {
                for (pair, frequency) in inv_freq[..n_pairs].iter().enumerate() {
                    let component = if has_components { pair % 3 } else { 0 };
                    let angle = positions[4 * component + row] as f32 * frequency;
                    let (sin, cos) = f64::from(angle).sin_cos();
                    for (i, wanted) in [(pair, cos), (n_pairs + pair, sin)] {
                        let found = f64::from(found[1 + 301 * row + i]);
                        assert!((found - 1.5 * wanted).abs() < 4.5e-7, "{angle}: {found} {wanted}");
                    }
                }
            }
        }
    }

    #[cfg_attr(test, test)]
    fn pairs_turn_by_the_angles_of_their_row() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        for (n_heads, head_dim, rotary_dim) in [(1, 2, 2), (3, 10, 8), (5, 80, 80), (2, 128, 32)] {
            let (half, n_cols, n_rows) = (rotary_dim / 2, n_heads * head_dim, 3);
            let stride = n_cols + 1;
            let mut random = Random(n_cols as u64);
            let x = random.floats(n_rows * stride);
            let angles: Vec<f32> = random.floats(n_rows * half).iter().map(|a| 3.0 * a).collect();
            let table: Vec<f32> = angles
                .chunks(half)
                .flat_map(|row| {
                    row.iter()
                        .map(|a| a.cos())
                        .chain(row.iter().map(|a| a.sin()))
                        .collect::<Vec<_>>()
                })
                .collect();
            let table_at = on_device(device, &stream, &table);
            let table_rows = Rows::new(&table_at, 0, n_rows, rotary_dim, rotary_dim);
            for pairs in [RopeStyle::Interleaved, RopeStyle::Neox] {
                let x_at = on_device(device, &stream, &x);
                let out = on_device(device, &stream, &vec![0.0f32; x.len()]);
                let rows = |buffer| Rows::new(buffer, 0, n_rows, n_cols, stride);
                let turn = |out| {
                    rope(&kernels, &stream, rows(&x_at), table_rows, rows(out), head_dim, pairs)
                        .unwrap();
                };
                turn(&out);
                turn(&x_at);
                let found = read(&stream, &out, x.len());
                let in_place = read(&stream, &x_at, x.len());
                for row in 0..n_rows {
                    let of_row = row * stride..row * stride + n_cols;
                    assert_eq!(found[of_row.clone()], in_place[of_row.clone()]);
                    let mut wanted: Vec<f64> =
                        x[of_row.clone()].iter().map(|&x| x.into()).collect();
                    for start in (0..n_cols).step_by(head_dim) {
                        for pair in 0..half {
                            let (a, b) = match pairs {
                                RopeStyle::Interleaved => (start + 2 * pair, start + 2 * pair + 1),
                                RopeStyle::Neox => (start + pair, start + pair + half),
                            };
                            let cos = f64::from(table[row * rotary_dim + pair]);
                            let sin = f64::from(table[row * rotary_dim + half + pair]);
                            let (u, v) = (wanted[a], wanted[b]);
                            (wanted[a], wanted[b]) = (u * cos - v * sin, u * sin + v * cos);
                        }
                    }
                    for (found, wanted) in found[of_row].iter().zip(&wanted) {
                        assert!((f64::from(*found) - wanted).abs() < 2e-7, "{found} {wanted}");
                    }
                }
            }
        }
    }

    crate::testing::tests![
        tables_hold_the_angles_of_positions,
        pairs_turn_by_the_angles_of_their_row,
    ];
}
