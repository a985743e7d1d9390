//! Elementwise operations on rows.

use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Activation, Error, Rows};

/// Threads of a block.
const THREADS: u32 = 256;

/// An elementwise operation on `x`.
#[derive(Debug)]
pub enum Elementwise<'a, D: Device> {
    /// `act(x)`.
    Act(Activation),
    /// `act(x) * y`.
    Gated(Activation, Rows<'a, D>),
    /// `x + y`.
    Add(Rows<'a, D>),
    /// `x * y`.
    Mul(Rows<'a, D>),
    /// `x` times a constant.
    Scale(f32),
    /// `cap * tanh(x / cap)`.
    Softcap(f32),
    /// `x`, limited to the range between both constants.
    Clamp(f32, f32),
}

/// Queues an operation on each element. `out` may be `x` or the other operand.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or rows have more than 16 million elements.
pub fn elementwise<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    op: &Elementwise<'_, D>,
    x: Rows<'_, D>,   // [n_rows, n_cols]
    out: Rows<'_, D>, // [n_rows, n_cols]
) -> Result<(), Error> {
    let (n_rows, n_cols) = (x.n_rows(), x.n_cols());
    x.check(kernels, "x", n_rows, n_cols);
    out.check(kernels, "out", n_rows, n_cols);
    let n_blocks = n_cols.div_ceil(THREADS as usize);
    assert!(n_blocks <= 65535, "rows of {n_cols} elements");
    let grid = [n_rows as u32, n_blocks as u32, 1];
    let launch = |function: &D::Function, arguments: &[Argument]| {
        // SAFETY: the arguments are those of the kernels in order; rows lie within their buffers, and their shapes were
        // checked. As `matvec` says, buffers outlive queued work.
        unsafe { kernels.launch(stream, function, grid, [THREADS, 1], arguments) }
    };
    let n_cols = Argument::I32(n_cols as i32);
    let of_one = |function, a: f32, b: f32| {
        let [a, b] = [a, b].map(Argument::F32);
        launch(function, &[x.address(), x.stride(), out.address(), out.stride(), n_cols, a, b])
    };
    let of_two = |function, y: &Rows<'_, D>| {
        y.check(kernels, "y", n_rows, x.n_cols());
        let [y, y_stride] = [y.address(), y.stride()];
        launch(
            function,
            &[x.address(), x.stride(), y, y_stride, out.address(), out.stride(), n_cols],
        )
    };
    let of_kernels = &kernels.elementwise;
    match op {
        Elementwise::Act(act) => of_one(&of_kernels.act[*act as usize], 0.0, 0.0),
        Elementwise::Gated(act, y) => of_two(&of_kernels.gated[*act as usize], y),
        Elementwise::Add(y) => of_two(&of_kernels.add, y),
        Elementwise::Mul(y) => of_two(&of_kernels.mul, y),
        Elementwise::Scale(factor) => of_one(&of_kernels.scale, *factor, 0.0),
        Elementwise::Softcap(cap) => of_one(&of_kernels.softcap, *cap, 0.0),
        Elementwise::Clamp(min, max) => of_one(&of_kernels.clamp, *min, *max),
    }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{Random, kernels, on_device, read};

    fn act(act: Activation, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match act {
            Activation::Silu => x * sigmoid(x),
            Activation::Gelu => 0.5 * x * erfc(-x / std::f64::consts::SQRT_2),
            Activation::GeluTanh => {
                let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + y.tanh())
            }
            Activation::GeluQuick => x * sigmoid(1.702 * x),
            Activation::Relu => x.max(0.0),
            Activation::ReluSquared => x.max(0.0) * x.max(0.0),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => sigmoid(x),
            Activation::Mish => x * x.exp().ln_1p().tanh(),
        }
    }

    #[cfg_attr(test, test)]
    fn elements_are_what_the_operation_says() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        // One element, fewer than a warp's, more than a block's.
        for (n_rows, n_cols) in [(1, 1), (2, 101), (2, 300)] {
            let mut random = Random(n_cols as u64);
            let strides = [n_cols + 3, n_cols + 8];
            let x: Vec<f32> = random.floats(n_rows * strides[0]).iter().map(|x| 30.0 * x).collect();
            let y = random.floats(n_rows * strides[1]);
            let [x_at, y_at] = [&x, &y].map(|values| on_device(device, &stream, values));
            let [x_rows, y_rows] = [(&x_at, 0), (&y_at, 1)]
                .map(|(buffer, i)| Rows::new(buffer, 0, n_rows, n_cols, strides[i]));
            let mut cases: Vec<(Elementwise<'_, _>, Function)> = vec![
                (Elementwise::Add(y_rows), Box::new(|x, y| x + y)),
                (Elementwise::Mul(y_rows), Box::new(|x, y| x * y)),
                (Elementwise::Scale(0.3), Box::new(|x, _| x * f64::from(0.3f32))),
                (Elementwise::Softcap(12.0), Box::new(|x, _| 12.0 * (x / 12.0).tanh())),
                (Elementwise::Clamp(-3.0, 4.0), Box::new(|x, _| x.clamp(-3.0, 4.0))),
            ];
            for of in Activation::ALL {
                cases.push((Elementwise::Act(of), Box::new(move |x, _| act(of, x))));
                cases.push((Elementwise::Gated(of, y_rows), Box::new(move |x, y| act(of, x) * y)));
            }
            for (op, function) in cases {
                let out = on_device(device, &stream, &x);
                let to = Rows::new(&out, 0, n_rows, n_cols, strides[0]);
                elementwise(&kernels, &stream, &op, x_rows, to).unwrap();
                let found = read(&stream, &out, x.len());
                for row in 0..n_rows {
                    for i in 0..n_cols {
                        let second = f64::from(y[row * strides[1] + i]);
                        let wanted = function(f64::from(x[row * strides[0] + i]), second);
                        let found = f64::from(found[row * strides[0] + i]);
                        let away = (found - wanted).abs();
                        assert!(away <= 2e-6 * wanted.abs() + 1e-6, "{op:?}: {found} {wanted}");
                    }
                    let between = row * strides[0] + n_cols..(row + 1) * strides[0];
                    assert_eq!(found[between.clone()], x[between]);
                }
            }
        }
    }

    /// The reference of an operation.
    type Function = Box<dyn Fn(f64, f64) -> f64>;

    /// The complementary error function by Simpson's rule, with an error far below 1e-9.
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

    crate::testing::tests![elements_are_what_the_operation_says,];
}
