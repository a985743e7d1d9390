//! Collective operations of a group of devices: all-reduce and all-gather.
//!
//! Both exchange unchanged rows, and every rank combines them itself. A sum is computed in the order of the ranks, so
//! it has the same bits on all of them, in every run and for every number of rows.

use std::sync::Arc;

use super::rows::optional;
use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Buffer, Error, Rows};

/// Threads of a block.
const THREADS: u32 = 256;

/// A device's rank in its group, with memory for the rows of all ranks.
#[derive(Debug)]
pub struct RankRows<D: Device> {
    rows: Buffer<D>,
    n_ranks: usize,
    rank: D::Rank,
}

impl<D: Device> RankRows<D> {
    /// Allocates memory for at most `n_values` values of each of `n_ranks` ranks.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(
        device: &Arc<D>,
        rank: D::Rank,
        n_ranks: usize,
        n_values: usize,
    ) -> Result<Self, Error> {
        let rows = Buffer::new(device, "rows of all ranks", Self::bytes(n_ranks, n_values))?;
        Ok(Self { rows, n_ranks, rank })
    }

    /// Bytes for `n_values` values of each of `n_ranks` ranks.
    pub fn bytes(n_ranks: usize, n_values: usize) -> usize {
        n_ranks.saturating_mul(n_values).saturating_mul(size_of::<f32>())
    }

    /// Number of ranks of the group.
    pub fn n_ranks(&self) -> usize {
        self.n_ranks
    }

    /// The device's rank in its group.
    pub fn rank(&self) -> &D::Rank {
        &self.rank
    }

    /// Queues the exchange of all ranks' rows. Returns the number of values per rank.
    fn exchange(
        &self,
        kernels: &Kernels<D>,
        stream: &D::Stream,
        x: &Rows<'_, D>,
    ) -> Result<usize, Error> {
        let n = x.n_values();
        kernels.check("rows of all ranks", &self.rows, self.n_ranks * n);
        assert!(n <= i32::MAX as usize, "{n} values of a rank");
        let Argument::Address(from) = x.address() else { unreachable!("rows have an address") };
        // SAFETY: rows lie inside their buffer and the room was checked; the two are different allocations. As `matvec`
        // says, buffers outlive queued work.
        unsafe {
            let device = kernels.device();
            device.all_gather(
                &self.rank,
                stream,
                self.rows.address(),
                from,
                n * size_of::<f32>(),
            )?;
        }
        Ok(n)
    }
}

/// Queues the sum of `x` over all ranks, in the order of the ranks, plus `residual`. `out` may be `x` or the residual.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match.
pub fn all_reduce<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    ranks: &RankRows<D>,
    x: Rows<'_, D>,                // [n_rows, n_cols]
    residual: Option<Rows<'_, D>>, // [n_rows, n_cols]
    out: Rows<'_, D>,              // [n_rows, n_cols]
) -> Result<(), Error> {
    let (n_rows, n_cols) = (x.n_rows(), x.n_cols());
    x.check(kernels, "x", n_rows, n_cols);
    out.check(kernels, "out", n_rows, n_cols);
    if let Some(residual) = &residual {
        residual.check(kernels, "residual", n_rows, n_cols);
    }
    let n_blocks = n_cols.div_ceil(THREADS as usize);
    assert!(n_blocks <= 65535, "rows of {n_cols} columns");
    let part_len = ranks.exchange(kernels, stream, &x)?;
    let [residual, residual_stride] = optional(residual);
    let arguments = [
        Argument::Address(ranks.rows.address()),
        Argument::I32(part_len as i32),
        x.stride(),
        residual,
        residual_stride,
        out.address(),
        out.stride(),
        Argument::I32(n_cols as i32),
        Argument::I32(ranks.n_ranks as i32),
    ];
    let grid = [n_rows as u32, n_blocks as u32, 1];
    // SAFETY: the arguments are those of the kernel in order; rows lie within their buffers, and their shapes were
    // checked. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, &kernels.ranks.sum, grid, [THREADS, 1], &arguments) }
}

/// Queues the concatenation of the columns of `x` of all ranks, in the order of the ranks.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match.
pub fn all_gather<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    ranks: &RankRows<D>,
    x: Rows<'_, D>,   // [n_rows, n_cols / n_ranks]
    out: Rows<'_, D>, // [n_rows, n_cols]
) -> Result<(), Error> {
    let (n_rows, n_cols) = (x.n_rows(), x.n_cols());
    x.check(kernels, "x", n_rows, n_cols);
    out.check(kernels, "out", n_rows, ranks.n_ranks * n_cols);
    let n_blocks = n_cols.div_ceil(THREADS as usize);
    assert!(n_blocks <= 65535 && ranks.n_ranks <= 65535, "rows of {n_cols} columns");
    let part_len = ranks.exchange(kernels, stream, &x)?;
    let arguments = [
        Argument::Address(ranks.rows.address()),
        Argument::I32(part_len as i32),
        x.stride(),
        out.address(),
        out.stride(),
        Argument::I32(n_cols as i32),
    ];
    let grid = [n_rows as u32, n_blocks as u32, ranks.n_ranks as u32];
    // SAFETY: as in `all_reduce`.
    unsafe { kernels.launch(stream, &kernels.ranks.join, grid, [THREADS, 1], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::Captured;
    use crate::testing::{Random, TestDevice, bench, is_gpu, on_device, read};
    use realizar_ptx as ptx;

    /// Runs `work` for each of `n` ranks, with a device and a thread each, and returns the results.
    fn on_ranks<T: Send>(
        n: usize,
        n_values: usize,
        work: impl Fn(usize, &Arc<Kernels<TestDevice>>, &ptx::Stream, &RankRows<TestDevice>) -> T + Sync,
    ) -> Vec<T> {
        let devices: Vec<_> = (0..n).map(|_| bench()).collect();
        let group: Vec<_> = devices.iter().map(|(device, _)| Arc::clone(device)).collect();
        let ranks = TestDevice::group(&group).unwrap();
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..)
                .zip(devices.into_iter().zip(ranks))
                .map(|(idx, ((device, stream), rank))| {
                    scope.spawn(move || {
                        let kernels = Arc::new(Kernels::load(&device).unwrap());
                        let ranks = RankRows::new(&device, rank, n, n_values).unwrap();
                        work(idx, &kernels, &stream, &ranks)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    const N_ROWS: usize = 3;
    const N_COLS: usize = 300;

    /// The term of a rank, with rows `stride` values apart.
    fn term(rank: usize, stride: usize) -> Vec<f32> {
        Random(rank as u64 + 5).floats(N_ROWS * stride)
    }

    #[cfg_attr(test, test)]
    fn sums_are_added_up_in_the_order_of_the_ranks_on_all_of_them() {
        if is_gpu() {
            return;
        }
        for (n_ranks, has_residual) in [(2, false), (3, true), (4, true)] {
            let (stride, out_stride) = (N_COLS + 9, N_COLS + 2);
            let residual = Random(99).floats(N_ROWS * N_COLS);
            let found = on_ranks(n_ranks, N_ROWS * stride, |rank, kernels, stream, ranks| {
                let device = kernels.device();
                let x = on_device(device, stream, &term(rank, stride));
                let out = on_device(device, stream, &vec![7.0f32; N_ROWS * out_stride]);
                let residual = on_device(device, stream, &residual);
                let x_rows = Rows::new(&x, 0, N_ROWS, N_COLS, stride);
                let residual = Rows::new(&residual, 0, N_ROWS, N_COLS, N_COLS);
                let residual = has_residual.then_some(residual);
                let out_rows = Rows::new(&out, 0, N_ROWS, N_COLS, out_stride);
                let work = || all_reduce(kernels, stream, ranks, x_rows, residual, out_rows);
                // Captured and replayed twice, then run in place.
                let captured = Captured::new(kernels, stream, work).unwrap();
                captured.replay(stream).unwrap();
                captured.replay(stream).unwrap();
                let apart = read(stream, &out, N_ROWS * out_stride);
                all_reduce(kernels, stream, ranks, x_rows, residual, x_rows).unwrap();
                (apart, read(stream, &x, N_ROWS * stride))
            });
            let terms: Vec<_> = (0..n_ranks).map(|rank| term(rank, stride)).collect();
            for (rank, (apart, in_place)) in found.iter().enumerate() {
                for row in 0..N_ROWS {
                    for col in 0..N_COLS {
                        let of = |term: &Vec<f32>| term[row * stride + col];
                        let sum = terms[1..].iter().fold(of(&terms[0]), |sum, term| sum + of(term));
                        let last = if has_residual { residual[row * N_COLS + col] } else { 0.0 };
                        let expected = sum + last;
                        assert_eq!(apart[row * out_stride + col], expected, "rank {rank}");
                        assert_eq!(in_place[row * stride + col], expected, "rank {rank}");
                    }
                    assert_eq!(apart[row * out_stride + N_COLS..][..2], [7.0; 2]);
                    let gap = row * stride + N_COLS..(row + 1) * stride;
                    assert_eq!(in_place[gap.clone()], terms[rank][gap]);
                }
            }
        }
    }

    #[cfg_attr(test, test)]
    fn columns_are_put_side_by_side_in_the_order_of_the_ranks() {
        if is_gpu() {
            return;
        }
        let (n_ranks, stride) = (3, N_COLS + 1);
        let found = on_ranks(n_ranks, N_ROWS * stride, |rank, kernels, stream, ranks| {
            let x = on_device(kernels.device(), stream, &term(rank, stride));
            let out = on_device(kernels.device(), stream, &vec![0.0f32; N_ROWS * n_ranks * N_COLS]);
            let x = Rows::new(&x, 0, N_ROWS, N_COLS, stride);
            let width = n_ranks * N_COLS;
            let out_rows = Rows::new(&out, 0, N_ROWS, width, width);
            all_gather(kernels, stream, ranks, x, out_rows).unwrap();
            read(stream, &out, N_ROWS * width)
        });
        let row = |row: usize| {
            (0..n_ranks).flat_map(move |rank| term(rank, stride)[row * stride..][..N_COLS].to_vec())
        };
        let expected: Vec<f32> = (0..N_ROWS).flat_map(row).collect();
        assert!(found.iter().all(|found| *found == expected));
    }

    crate::testing::tests![
        sums_are_added_up_in_the_order_of_the_ranks_on_all_of_them,
        columns_are_put_side_by_side_in_the_order_of_the_ranks,
    ];
}
