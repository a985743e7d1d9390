//! Greedy selection: the best token of each row and nothing else, the end of decode steps in which no request asks for
//! more.

use std::sync::Arc;

use super::{CHUNK, Shortlists, THREADS};
use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Buffer, Error, List, Rows};

/// The token of a row that has no best one.
pub const NO_TOKEN: u32 = u32::MAX;

/// Memory for the best tokens of a step's rows.
///
/// The launch depends only on the number of rows, so a captured decode step can end with it. The tokens can also be
/// written to a list on the device. If that is the input of the step, the graph can be replayed without the host, which
/// reads the tokens later. Launches with the same memory must be in one stream.
#[derive(Debug)]
pub struct Greedy<D: Device> {
    max_rows: usize,
    best: Buffer<D>,     // [max_rows] of 64 bits, zero between launches
    counters: Buffer<D>, // [max_rows], zero between launches
    chosen: Buffer<D>,   // [max_rows, 2]
}

impl<D: Device> Greedy<D> {
    /// Bytes on the device for `max_rows` rows.
    pub fn bytes(max_rows: usize) -> u64 {
        20 * max_rows as u64
    }

    /// Allocates memory for `max_rows` rows.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or any error of the driver.
    pub fn new(device: &Arc<D>, stream: &D::Stream, max_rows: usize) -> Result<Self, Error> {
        let what = "the best tokens of rows";
        Ok(Self {
            max_rows,
            best: Buffer::with(device, stream, what, &vec![0u64; max_rows])?,
            counters: Buffer::with(device, stream, what, &vec![0u32; max_rows])?,
            chosen: Buffer::new(device, what, 8 * max_rows)?,
        })
    }

    /// Queues the selection of each row's best token. Ties choose the lowest id, and zeros of both signs are equal.
    /// With `tokens`, the token of row `i` is also written to index `i` of that list, or 0 if the row has none.
    ///
    /// # Errors
    /// Any error of the driver.
    ///
    /// # Panics
    /// If shapes or devices do not match, or there are more rows than allocated.
    pub fn queue(
        &self,
        kernels: &Kernels<D>,
        stream: &D::Stream,
        logits: Rows<'_, D>, // [n_rows, n_logits]
        n_tokens: usize,     // what a row has after them is of none
        tokens: Option<List<'_, D>>,
    ) -> Result<(), Error> {
        let (n_rows, n_logits) = (logits.n_rows(), logits.n_cols());
        assert!(n_logits <= Shortlists::<D>::MAX_LOGITS as usize, "{n_logits} logits");
        assert!((1..=n_logits).contains(&n_tokens), "{n_tokens} of {n_logits} logits");
        assert!(n_rows <= self.max_rows, "{n_rows} rows, room for {}", self.max_rows);
        assert!(n_rows <= Shortlists::<D>::MAX_ROWS, "{n_rows} rows");
        logits.check(kernels, "logits", n_rows, n_logits);
        kernels.check("chosen", &self.chosen, 2 * n_rows);
        if let Some(tokens) = tokens {
            tokens.check(kernels, "tokens", n_rows);
        }
        let [best, counters, chosen] =
            [&self.best, &self.counters, &self.chosen].map(|b| Argument::Address(b.address()));
        let arguments = [
            logits.address(),
            logits.stride(),
            Argument::I32(n_tokens as i32),
            best,
            counters,
            chosen,
            tokens.map_or(Argument::Address(0), |tokens| tokens.address()),
        ];
        let grid = [(n_tokens as u32).div_ceil(CHUNK), n_rows as u32, 1];
        // SAFETY: the arguments are those of `shortlist_greedy` in order; rows and the list lie inside their buffers,
        // and there is room for the rows. As `matvec` says, buffers outlive queued work.
        unsafe { kernels.launch(stream, &kernels.shortlist.greedy, grid, [THREADS, 1], &arguments) }
    }

    /// Waits for the choices of the first rows: the token and the bits of its logit. A row with a NaN or infinite logit
    /// has [`NO_TOKEN`] and the bits of such a logit. A row whose logits are all minus infinity has [`NO_TOKEN`] and
    /// minus infinity.
    ///
    /// # Errors
    /// Any error of the driver, including that of earlier work.
    ///
    /// # Panics
    /// If there are more rows than allocated.
    pub fn read(&self, stream: &D::Stream, chosen: &mut [[u32; 2]]) -> Result<(), Error> {
        self.chosen.read(stream, 0, chosen)
    }
}
