//! Biases of expert products: each row gets the biases of its experts.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::{Buffer, Error, Gpu};

/// Invocations per workgroup; each computes one element.
const WORKGROUP: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    width: u32,
    rows_at: u32,
    n_outputs: u32,
    biases: u32,
    x: [u32; 2], // start, stride
    routes: [u32; 2],
    out: [u32; 2],
    _end: [u32; 2],
}

fn shader() -> Shader {
    Shader {
        name: "biases of experts".into(),
        parts: vec![include_str!("../../shaders/experts/bias.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite, Access::Read],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    vec![shader()]
}

/// Adds the experts' biases, `[n_experts, n]` from element `biases` of `vectors` on, to the results of each
/// row's experts, `[n_rows, n_chosen * n]`. `out` may be `x`.
///
/// # Errors
/// If the device refuses the kernel.
pub fn expert_bias(
    gpu: &Gpu,
    rows: Rows<'_>,
    vectors: &Buffer,
    biases: u32,
    x: View,
    routes: View,
    out: View,
) -> Result<Kernel, Error> {
    let n_chosen = routes.width / 2;
    assert_eq!(x.width, out.width, "widths of operand and result");
    assert!(n_chosen > 0 && x.width.is_multiple_of(n_chosen), "results of {n_chosen} experts");
    let params = Params {
        width: out.width,
        rows_at: rows.at.0,
        n_outputs: out.width / n_chosen,
        biases,
        x: [x.start, x.stride],
        routes: [routes.start, routes.stride],
        out: [out.start, out.stride],
        _end: [0; 2],
    };
    let grid = Grid { x: out.width.div_ceil(WORKGROUP), rows: 1, z: 1 };
    gpu.kernel(&shader(), &params, &[rows.batch, rows.values, vectors], grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};

    #[test]
    fn results_get_the_biases_of_their_experts() {
        for gpu in testing::gpus() {
            // Results of two experts for each row, wider than a workgroup, and routes after them.
            let (n, n_rows, n_experts) = (37, 3, 5);
            let x = View { start: 3, stride: 2 * n + 5, width: 2 * n };
            let routes = View::dense(3 + n_rows * x.stride, 4);
            let len = routes.start + n_rows * 4;
            let mut values = testing::noise(len as usize, 9);
            let ids = [[0, 4], [3, 1], [2, 3]];
            for (row, ids) in (0..).zip(ids) {
                for (slot, id) in (0..).zip(ids) {
                    values[(routes.start + row * 4 + slot) as usize] = id as f32;
                }
            }
            let biases = testing::noise((2 + n_experts * n) as usize, 4);
            let vectors = testing::filled(&gpu, &biases);
            // The first row takes no part.
            let bench = Bench::new(&gpu, &values, &[1, n_rows - 1]);
            let kernel = expert_bias(&gpu, bench.rows(0), &vectors, 2, x, routes, x).unwrap();
            let found = bench.run(&[(&kernel, n_rows - 1)]);
            let mut wanted = values.clone();
            for (row, ids) in (0..).zip(ids).skip(1) {
                for (slot, id) in (0..).zip(ids) {
                    for col in 0..n {
                        let at = x.start + row * x.stride + slot * n + col;
                        wanted[at as usize] += biases[(2 + id * n + col) as usize];
                    }
                }
            }
            assert_eq!(found, wanted);
        }
    }
}
