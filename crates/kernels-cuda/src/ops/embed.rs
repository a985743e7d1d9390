//! Embedding lookups and row selection.

use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::matrix::BLOCK_TYPES;
use crate::{Error, List, Matrix, Rows};

/// Threads of a block for lookups.
const THREADS: u32 = 128;
const COPY_THREADS: u32 = 256;

/// Queues a lookup of rows by index, scaled by `scale`. Rows of `out` whose index is `u32::MAX` are not written. Any
/// other index out of range stops the device, which the next call that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match.
pub fn embed<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    matrix: &Matrix<D>, // [vocab_size, dim]
    ids: List<'_, D>,   // one for each row of `out`
    scale: f32,
    out: Rows<'_, D>, // [n_rows, dim]
) -> Result<(), Error> {
    out.check(kernels, "out", out.n_rows(), matrix.n_cols());
    ids.check(kernels, "ids", out.n_rows());
    kernels.check("the matrix", matrix.buffer(), 0);
    let [main, high, head] = matrix.planes();
    let arguments = [
        main,
        high,
        head,
        ids.address(),
        out.address(),
        out.stride(),
        Argument::I32(matrix.n_rows() as i32),
        Argument::I32(matrix.n_cols() as i32),
        Argument::F32(scale),
    ];
    let grid = [out.n_rows() as u32, 1, 1];
    let index = BLOCK_TYPES.iter().position(|&ty| ty == matrix.ty());
    let function = &kernels.embed.by_type[index.expect("matrices have these types only")];
    // SAFETY: the arguments are those of `embed_*` in order; rows and lists lie inside their buffers, their shapes were
    // checked, and the kernel checks the indices. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }
}

/// Queues a copy of the rows of `x` with these indices. An index out of range stops the device, which the next call
/// that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or rows have more than 16 million elements.
pub fn select_rows<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>, // [n, n_cols]
    numbers: List<'_, D>,
    out: Rows<'_, D>, // [n_rows, n_cols]
) -> Result<(), Error> {
    x.check(kernels, "x", x.n_rows(), out.n_cols());
    out.check(kernels, "out", out.n_rows(), out.n_cols());
    numbers.check(kernels, "numbers", out.n_rows());
    let n_blocks = out.n_cols().div_ceil(COPY_THREADS as usize);
    assert!(n_blocks <= 65535, "rows of {} elements", out.n_cols());
    let arguments = [
        x.address(),
        x.stride(),
        numbers.address(),
        out.address(),
        out.stride(),
        Argument::I32(x.n_rows() as i32),
        Argument::I32(x.n_cols() as i32),
    ];
    let grid = [out.n_rows() as u32, n_blocks as u32, 1];
    // SAFETY: as in `embed`.
    unsafe {
        kernels.launch(stream, &kernels.embed.select_rows, grid, [COPY_THREADS, 1], &arguments)
    }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use realizar_quant::dequantize;

    use super::*;
    use crate::testing::{Random, kernels, on_device, read, weights};

    #[cfg_attr(test, test)]
    fn embeddings_are_the_values_of_their_blocks() {
        for ty in BLOCK_TYPES {
            let (kernels, stream) = kernels();
            let device = kernels.device();
            let n_rows = 5;
            let lengths: &[usize] = if ty.block_len() == 1 { &[1, 9, 1031] } else { &[256, 1280] };
            for &n_cols in lengths {
                let (bytes, _) = weights(ty, n_rows, n_cols, &mut Random(n_cols as u64));
                let row_bytes = ty.row_bytes(n_cols).unwrap();
                let matrix =
                    Matrix::upload(device, &stream, "embeddings", ty, n_rows, n_cols, &bytes);
                let matrix = matrix.unwrap();
                let (ids, stride) = ([4u32, 0, u32::MAX, 4, 2], n_cols + 3);
                let at = on_device(device, &stream, &ids);
                let out = on_device(device, &stream, &vec![9.0f32; ids.len() * stride]);
                let rows = Rows::new(&out, 0, ids.len(), n_cols, stride);
                embed(&kernels, &stream, &matrix, List::all(&at), 1.0, rows).unwrap();
                let found = read(&stream, &out, ids.len() * stride);
                for (id, found) in ids.into_iter().zip(found.chunks(stride)) {
                    let mut expected = vec![9.0; n_cols];
                    if id == u32::MAX {
                        assert_eq!(found[..n_cols], expected, "a row without a number");
                        continue;
                    }
                    let row = &bytes[id as usize * row_bytes..][..row_bytes];
                    dequantize(ty, row, &mut expected).unwrap();
                    assert_eq!(found[..n_cols], expected, "{ty}");
                    assert!(found[n_cols..].iter().all(|&x| x == 9.0));
                }
            }
        }
    }

    #[cfg_attr(test, test)]
    fn numbers_that_a_table_does_not_have_are_reported() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let data = [0; 2 * 34];
        let ty = realizar_quant::BlockType::Q8_0;
        let matrix = Matrix::upload(device, &stream, "w", ty, 2, 32, &data).unwrap();
        let ids = on_device(device, &stream, &[2u32]);
        let out = on_device(device, &stream, &[0.0f32; 32]);
        embed(&kernels, &stream, &matrix, List::all(&ids), 1.0, Rows::vector(&out, 32)).unwrap();
        let message = device.synchronize(&stream).unwrap_err().to_string();
        assert!(message.contains("trap") && message.contains("embed_q8_0"), "{message}");
    }

    #[cfg_attr(test, test)]
    fn rows_are_copied_by_their_numbers() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let x = Random(1).floats(4 * 301);
        let at = on_device(device, &stream, &x);
        let out = on_device(device, &stream, &[9.0f32; 3 * 300]);
        let numbers = on_device(device, &stream, &[8u32, 3, 0, 3]);
        let rows = Rows::new(&at, 1, 4, 300, 301);
        let numbers = List::new(&numbers, 1, 3);
        select_rows(&kernels, &stream, rows, numbers, Rows::new(&out, 0, 3, 300, 300)).unwrap();
        let found = read(&stream, &out, 900);
        for (found, from) in found.chunks(300).zip([3, 0, 3]) {
            assert_eq!(found, &x[1 + 301 * from..][..300]);
        }
    }

    crate::testing::tests![
        embeddings_are_the_values_of_their_blocks,
        numbers_that_a_table_does_not_have_are_reported,
        rows_are_copied_by_their_numbers,
    ];
}
