//! Operations on rows of values between the products.

use crate::device::{Argument, Device};
use crate::kernels::{Kernels, Rows, optional};
use crate::{Buffer, Error, Matrix};

/// Threads of a block: of the norms, of rope and embeddings, and of operations on single elements.
const NORM_THREADS: u32 = 256;
const ROW_THREADS: u32 = 128;
const ELEMENT_THREADS: u32 = 256;

/// Queues `out = x / sqrt(mean(x^2) + eps) * weight`, row by row. `out` may be `x`.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit.
pub fn rms_norm<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>,      // [n_rows, n_cols]
    weight: Rows<'_, D>, // [1, n_cols]
    eps: f32,
    out: Rows<'_, D>, // [n_rows, n_cols]
) -> Result<(), Error> {
    x.check(kernels, "x", x.n_rows(), x.n_cols());
    weight.check(kernels, "weight", 1, x.n_cols());
    out.check(kernels, "out", x.n_rows(), x.n_cols());
    let arguments = [
        x.address(),
        x.stride(),
        weight.address(),
        out.address(),
        out.stride(),
        Argument::I32(x.n_cols() as i32),
        Argument::F32(eps),
    ];
    let grid = [x.n_rows() as u32, 1, 1];
    // SAFETY: the arguments are those of the kernel in order; rows are inside of their buffers, and their
    // shapes were checked. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, &kernels.rms_norm, grid, [NORM_THREADS, 1], &arguments) }
}

/// Queues `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`, row by row. `out` may be `x`.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit.
pub fn layer_norm<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>,            // [n_rows, n_cols]
    weight: Rows<'_, D>,       // [1, n_cols]
    bias: Option<Rows<'_, D>>, // [1, n_cols]
    eps: f32,
    out: Rows<'_, D>, // [n_rows, n_cols]
) -> Result<(), Error> {
    x.check(kernels, "x", x.n_rows(), x.n_cols());
    weight.check(kernels, "weight", 1, x.n_cols());
    if let Some(bias) = bias {
        bias.check(kernels, "bias", 1, x.n_cols());
    }
    out.check(kernels, "out", x.n_rows(), x.n_cols());
    let arguments = [
        x.address(),
        x.stride(),
        weight.address(),
        optional(bias)[0],
        out.address(),
        out.stride(),
        Argument::I32(x.n_cols() as i32),
        Argument::F32(eps),
    ];
    let grid = [x.n_rows() as u32, 1, 1];
    // SAFETY: as in `rms_norm`.
    unsafe { kernels.launch(stream, &kernels.layer_norm, grid, [NORM_THREADS, 1], &arguments) }
}

/// Which elements of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Elements `2 * i` and `2 * i + 1`.
    Neighbours,
    /// Elements `i` and `i + rotary_dim / 2`.
    Halves,
}

/// Rotary position embeddings of heads.
#[derive(Debug)]
pub struct Rope<'a, D: Device> {
    /// Turned in place, `[n_rows, n_heads * head_dim]`.
    pub x: Rows<'a, D>,
    /// The position of each row, `u32`.
    pub positions: &'a Buffer<D>,
    /// Cosine and sine of the angle of each pair, `f32`, `[n_positions, rotary_dim / 2, 2]`.
    pub angles: &'a Buffer<D>,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a head that turn, the first ones.
    pub rotary_dim: usize,
    /// Which elements turn together.
    pub pairs: Pairs,
}

/// Queues rope. A position that the table does not have stops the device: the next call that waits reports it.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit.
pub fn rope<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    rope: &Rope<'_, D>,
) -> Result<(), Error> {
    let &Rope { x, positions, angles, head_dim, rotary_dim, pairs } = rope;
    assert!(head_dim > 0 && x.n_cols().is_multiple_of(head_dim), "heads of {head_dim}");
    assert!(rotary_dim > 0 && rotary_dim <= head_dim, "{rotary_dim} of {head_dim}");
    assert!(rotary_dim.is_multiple_of(2), "pairs of {rotary_dim} elements");
    let n_positions = (angles.n_bytes() / 4 / rotary_dim).min(i32::MAX as usize);
    x.check(kernels, "x", x.n_rows(), x.n_cols());
    kernels.check("positions", positions, x.n_rows());
    kernels.check("angles", angles, 0);
    let arguments = [
        x.address(),
        x.stride(),
        Argument::Address(positions.address()),
        Argument::Address(angles.address()),
        Argument::I32(n_positions as i32),
        Argument::I32((x.n_cols() / head_dim) as i32),
        Argument::I32(head_dim as i32),
        Argument::I32(rotary_dim as i32),
        Argument::I32(i32::from(pairs == Pairs::Neighbours)),
    ];
    let grid = [x.n_rows() as u32, 1, 1];
    // SAFETY: as in `rms_norm`; the kernel checks positions, which only the device knows.
    unsafe { kernels.launch(stream, &kernels.rope, grid, [ROW_THREADS, 1], &arguments) }
}

/// Queues a look-up of rows by their numbers. A number that the matrix does not have stops the device: the next
/// call that waits reports it.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit.
pub fn embed<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    matrix: &Matrix<D>, // [vocab_size, dim]
    ids: &Buffer<D>,    // `u32`, one for each row of `out`
    out: Rows<'_, D>,   // [n_rows, dim]
) -> Result<(), Error> {
    out.check(kernels, "out", out.n_rows(), matrix.n_cols());
    kernels.check("ids", ids, out.n_rows());
    kernels.check("the matrix", matrix.buffer(), 0);
    let [main, high, head] = matrix.planes();
    let arguments = [
        main,
        high,
        head,
        Argument::Address(ids.address()),
        out.address(),
        out.stride(),
        Argument::I32(matrix.n_rows() as i32),
        Argument::I32(matrix.n_cols() as i32),
    ];
    let grid = [out.n_rows() as u32, 1, 1];
    let function = &kernels.of(matrix.ty()).embed;
    // SAFETY: as in `rms_norm`; the kernel checks ids, which only the device knows.
    unsafe { kernels.launch(stream, function, grid, [ROW_THREADS, 1], &arguments) }
}

/// The gate of a gated linear unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gated {
    /// SwiGLU: `x / (1 + exp(-x))`.
    Silu,
    /// GeGLU by the approximation with tanh.
    GeluTanh,
    /// GeGLU by the error function.
    Gelu,
}

/// Queues `out = gate(x) * up`, element by element. `out` may be `x` or `up`.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit, or rows have more than 16 million elements.
pub fn glu<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    gate: Gated,
    x: Rows<'_, D>,   // [n_rows, n_cols]
    up: Rows<'_, D>,  // [n_rows, n_cols]
    out: Rows<'_, D>, // [n_rows, n_cols]
) -> Result<(), Error> {
    let function = match gate {
        Gated::Silu => &kernels.glu[0],
        Gated::GeluTanh => &kernels.glu[1],
        Gated::Gelu => &kernels.glu[2],
    };
    of_two(kernels, stream, function, [x, up, out])
}

/// Queues `out = x + y`, element by element. `out` may be `x` or `y`.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit, or rows have more than 16 million elements.
pub fn add<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>,   // [n_rows, n_cols]
    y: Rows<'_, D>,   // [n_rows, n_cols]
    out: Rows<'_, D>, // [n_rows, n_cols]
) -> Result<(), Error> {
    of_two(kernels, stream, &kernels.add, [x, y, out])
}

/// Queues an operation on the elements of two inputs and a result.
fn of_two<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    function: &D::Function,
    [x, y, out]: [Rows<'_, D>; 3],
) -> Result<(), Error> {
    x.check(kernels, "the first input", x.n_rows(), x.n_cols());
    y.check(kernels, "the second input", x.n_rows(), x.n_cols());
    out.check(kernels, "out", x.n_rows(), x.n_cols());
    let n_blocks = x.n_cols().div_ceil(ELEMENT_THREADS as usize);
    assert!(n_blocks <= 65535, "rows of {} elements", x.n_cols());
    let arguments = [
        x.address(),
        x.stride(),
        y.address(),
        y.stride(),
        out.address(),
        out.stride(),
        Argument::I32(x.n_cols() as i32),
    ];
    let grid = [x.n_rows() as u32, n_blocks as u32, 1];
    // SAFETY: as in `rms_norm`.
    unsafe { kernels.launch(stream, function, grid, [ELEMENT_THREADS, 1], &arguments) }
}

#[cfg(test)]
mod tests {
    use realizar_quant::dequantize;

    use super::*;
    use crate::matrix::BLOCK_TYPES;
    use crate::testing::{Random, kernels, on_device, read};

    /// Rows and columns: one element, fewer than a warp's, not a multiple of it, more than a block's.
    const SHAPES: [(usize, usize); 4] = [(1, 1), (3, 7), (2, 101), (2, 1030)];

    fn stride(n_cols: usize) -> usize {
        n_cols.next_multiple_of(4) + 4
    }

    fn close(found: f32, expected: f64, what: &str) {
        let away = (f64::from(found) - expected).abs();
        assert!(away <= 2e-6 * (expected.abs() + 1.0), "{what}: {found} is not {expected}");
    }

    #[test]
    fn norms() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        for (n_rows, n_cols) in SHAPES {
            let mut random = Random(n_cols as u64);
            let stride = stride(n_cols);
            let x: Vec<f32> = random.floats(n_rows * stride).iter().map(|x| x + 0.5).collect();
            let [weight, bias] = [(); 2].map(|()| random.floats(n_cols));
            let put = |values: &[f32]| on_device(device, &stream, values);
            let (x_at, weight_at, bias_at, out) = (put(&x), put(&weight), put(&bias), put(&x));
            let rows = |buffer| Rows::new(buffer, 0, n_rows, n_cols, stride);
            let weights = Rows::vector(&weight_at, n_cols);
            let biases = Rows::vector(&bias_at, n_cols);
            let eps = 1e-5;

            rms_norm(&kernels, &stream, rows(&x_at), weights, eps, rows(&out)).unwrap();
            let rms = read(&stream, &out, x.len());
            layer_norm(&kernels, &stream, rows(&x_at), weights, None, eps, rows(&out)).unwrap();
            let plain = read(&stream, &out, x.len());
            layer_norm(&kernels, &stream, rows(&x_at), weights, Some(biases), eps, rows(&out))
                .unwrap();
            let biased = read(&stream, &out, x.len());
            for row in 0..n_rows {
                let at = row * stride;
                let values: Vec<f64> = x[at..][..n_cols].iter().map(|&x| f64::from(x)).collect();
                let mean = |f: &dyn Fn(f64) -> f64| {
                    values.iter().map(|&x| f(x)).sum::<f64>() / n_cols as f64
                };
                let center = mean(&|x| x);
                let variance = mean(&|x| (x - center) * (x - center));
                let squares = mean(&|x| x * x);
                for (i, value) in values.iter().enumerate() {
                    let (w, b) = (f64::from(weight[i]), f64::from(bias[i]));
                    let eps = f64::from(eps);
                    close(rms[at + i], value / (squares + eps).sqrt() * w, "rms_norm");
                    let normed = (value - center) / (variance + eps).sqrt() * w;
                    close(plain[at + i], normed, "layer_norm");
                    close(biased[at + i], normed + b, "layer_norm with a bias");
                }
                assert_eq!(biased[at + n_cols..at + stride], x[at + n_cols..at + stride]);
            }
        }
    }

    #[test]
    fn rows_of_a_norm_do_not_depend_on_each_other() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (n_rows, n_cols) = (5, 300);
        let x = Random(4).floats(n_rows * n_cols);
        let x_at = on_device(device, &stream, &x);
        let weight = on_device(device, &stream, &x[..n_cols]);
        let weight = Rows::vector(&weight, n_cols);
        let out = on_device(device, &stream, &x);
        let rows = |buffer, from: usize, n| Rows::new(buffer, from * n_cols, n, n_cols, n_cols);
        rms_norm(&kernels, &stream, rows(&x_at, 0, 5), weight, 1e-6, rows(&out, 0, 5)).unwrap();
        let together = read(&stream, &out, x.len());
        // In place, one row at a time.
        for row in 0..n_rows {
            let x = rows(&x_at, row, 1);
            rms_norm(&kernels, &stream, x, weight, 1e-6, x).unwrap();
        }
        assert_eq!(read(&stream, &x_at, x.len()), together);
    }

    #[test]
    #[should_panic(expected = "weight is on another device")]
    fn buffers_of_another_device_are_not_taken() {
        let ((kernels, stream), (others, other_stream)) = (kernels(), kernels());
        let x = on_device(kernels.device(), &stream, &[1.0f32; 4]);
        let weight = on_device(others.device(), &other_stream, &[1.0f32; 4]);
        let (x, weight) = (Rows::vector(&x, 4), Rows::vector(&weight, 4));
        rms_norm(&kernels, &stream, x, weight, 1e-6, x).unwrap();
    }

    #[test]
    fn rope_turns_pairs_by_the_angle_of_a_position() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        for (n_heads, head_dim, rotary_dim) in [(1, 2, 2), (3, 10, 8), (5, 80, 80), (2, 128, 32)] {
            let positions = [0u32, 7, 30];
            let (half, n_cols) = (rotary_dim / 2, n_heads * head_dim);
            let stride = stride(n_cols);
            let angle = |position: u32, pair: usize| {
                f64::from(position) * 10000f64.powf(-(pair as f64) / half as f64)
            };
            let table: Vec<f32> = (0..31)
                .flat_map(|position| (0..half).map(move |pair| angle(position, pair)))
                .flat_map(|angle| [angle.cos() as f32, angle.sin() as f32])
                .collect();
            let x = Random(n_cols as u64).floats(positions.len() * stride);
            let angles = on_device(device, &stream, &table);
            let at = on_device(device, &stream, &positions);
            for pairs in [Pairs::Neighbours, Pairs::Halves] {
                let turned = on_device(device, &stream, &x);
                let launch = Rope {
                    x: Rows::new(&turned, 0, positions.len(), n_cols, stride),
                    positions: &at,
                    angles: &angles,
                    head_dim,
                    rotary_dim,
                    pairs,
                };
                rope(&kernels, &stream, &launch).unwrap();
                let found = read(&stream, &turned, x.len());
                let mut expected: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                for (row, &position) in positions.iter().enumerate() {
                    for head in 0..n_heads {
                        for pair in 0..half {
                            let start = row * stride + head * head_dim;
                            let (a, b) = match pairs {
                                Pairs::Neighbours => (start + 2 * pair, start + 2 * pair + 1),
                                Pairs::Halves => (start + pair, start + pair + half),
                            };
                            let (sin, cos) = angle(position, pair).sin_cos();
                            let (u, v) = (expected[a], expected[b]);
                            (expected[a], expected[b]) = (u * cos - v * sin, u * sin + v * cos);
                        }
                    }
                }
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((f64::from(*found) - expected).abs() < 3e-7, "{found} {expected}");
                }
            }
        }
    }

    #[test]
    fn embeddings_are_the_values_of_their_blocks() {
        for ty in BLOCK_TYPES {
            let (kernels, stream) = kernels();
            let device = kernels.device();
            let n_rows = 5;
            let lengths: &[usize] = if ty.block_len() == 1 { &[1, 9, 1031] } else { &[256, 1280] };
            for &n_cols in lengths {
                let values = Random(n_cols as u64).floats(n_rows * n_cols);
                let row_bytes = ty.row_bytes(n_cols).unwrap();
                let mut bytes = vec![0; n_rows * row_bytes];
                for (values, bytes) in values.chunks(n_cols).zip(bytes.chunks_mut(row_bytes)) {
                    realizar_quant::quantize(ty, values, bytes).unwrap();
                }
                let matrix =
                    Matrix::upload(device, &stream, "embeddings", ty, n_rows, n_cols, &bytes);
                let matrix = matrix.unwrap();
                let (ids, stride) = ([4u32, 0, 4, 2], stride(n_cols));
                let at = on_device(device, &stream, &ids);
                let out = on_device(device, &stream, &vec![9.0f32; ids.len() * stride]);
                let rows = Rows::new(&out, 0, ids.len(), n_cols, stride);
                embed(&kernels, &stream, &matrix, &at, rows).unwrap();
                let found = read(&stream, &out, ids.len() * stride);
                for (id, found) in ids.into_iter().zip(found.chunks(stride)) {
                    let mut expected = vec![0.0; n_cols];
                    let row = &bytes[id as usize * row_bytes..][..row_bytes];
                    dequantize(ty, row, &mut expected).unwrap();
                    assert_eq!(found[..n_cols], expected, "{ty}");
                    assert!(found[n_cols..].iter().all(|&x| x == 9.0));
                }
            }
        }
    }

    #[test]
    fn numbers_that_a_table_does_not_have_are_reported() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let data = [0; 2 * 34];
        let ty = realizar_quant::BlockType::Q8_0;
        let matrix = Matrix::upload(device, &stream, "w", ty, 2, 32, &data).unwrap();
        let ids = on_device(device, &stream, &[2u32]);
        let out = on_device(device, &stream, &[0.0f32; 32]);
        embed(&kernels, &stream, &matrix, &ids, Rows::vector(&out, 32)).unwrap();
        let message = device.synchronize(&stream).unwrap_err().to_string();
        assert!(message.contains("trap") && message.contains("embed_q8_0"), "{message}");
    }

    #[test]
    fn sums_and_gated_activations() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        for (n_rows, n_cols) in SHAPES {
            let mut random = Random(n_cols as u64);
            let strides = [stride(n_cols), stride(n_cols) + 8];
            let x: Vec<f32> = random.floats(n_rows * strides[0]).iter().map(|x| 30.0 * x).collect();
            let y = random.floats(n_rows * strides[1]);
            let [x_at, y_at] = [&x, &y].map(|values| on_device(device, &stream, values));
            let cases: [(_, Function<'_>); 4] = [
                (None, &|x| x),
                (Some(Gated::Silu), &|x| x / (1.0 + (-x).exp())),
                (Some(Gated::GeluTanh), &|x| {
                    let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                    0.5 * x * (1.0 + y.tanh())
                }),
                (Some(Gated::Gelu), &|x| 0.5 * x * erfc(-x / std::f64::consts::SQRT_2)),
            ];
            for (gate, function) in cases {
                let out = on_device(device, &stream, &x);
                let [a, b, to] = [(&x_at, 0), (&y_at, 1), (&out, 0)]
                    .map(|(buffer, i)| Rows::new(buffer, 0, n_rows, n_cols, strides[i]));
                match gate {
                    None => add(&kernels, &stream, a, b, to).unwrap(),
                    Some(gate) => glu(&kernels, &stream, gate, a, b, to).unwrap(),
                }
                let found = read(&stream, &out, x.len());
                for row in 0..n_rows {
                    for i in 0..n_cols {
                        let first = function(f64::from(x[row * strides[0] + i]));
                        let second = f64::from(y[row * strides[1] + i]);
                        let expected = if gate.is_none() { first + second } else { first * second };
                        let found = f64::from(found[row * strides[0] + i]);
                        let away = (found - expected).abs();
                        assert!(
                            away <= 2e-6 * expected.abs() + 1e-6,
                            "{gate:?}: {found} {expected}"
                        );
                    }
                    let between = row * strides[0] + n_cols..(row + 1) * strides[0];
                    assert_eq!(found[between.clone()], x[between]);
                }
            }
        }
    }

    /// What a gate should do; none is a sum.
    type Function<'a> = &'a dyn Fn(f64) -> f64;

    /// The complementary error function: Simpson's rule over its integral, which is far below 1e-9 off.
    fn erfc(x: f64) -> f64 {
        let (n, end) = (20_000, 9.0f64);
        if x < 0.0 {
            return 2.0 - erfc(-x);
        }
        if x >= end {
            return 0.0;
        }
        let step = (end - x) / f64::from(n);
        let sum: f64 = (0..=n)
            .map(|i| {
                let t = x + step * f64::from(i);
                let weight = if i == 0 || i == n { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
                weight * (-t * t).exp()
            })
            .sum();
        sum * step / 3.0 * 2.0 / std::f64::consts::PI.sqrt()
    }
}
