//! Counts of a launch: bytes moved and arithmetic executed.

use std::collections::HashMap;

use crate::program::lanes::{LANES, lanes_of};
use crate::program::work::Work;

/// Bytes of the smallest memory access of a GPU.
const SECTOR: usize = 32;

/// Counts of a launch. Instructions are those of PTX; a GPU may execute more or fewer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Name of the kernel.
    pub kernel: String,
    /// Number of threads.
    pub threads: u64,
    /// Warp instructions: counted once for all threads that run them together.
    pub instructions: u64,
    /// Bytes of global memory that threads requested.
    pub loaded: u64,
    /// Bytes of global memory that threads wrote.
    pub stored: u64,
    /// Bytes of the 32-byte sectors that were read, each counted once: a lower bound on memory traffic.
    pub read_once: u64,
    /// Bytes of the 32-byte sectors that were written, each counted once.
    pub written_once: u64,
    /// Float operations of threads. A fused multiply-add counts as two.
    pub flops: u64,
    /// Integer operations of `dp4a` and `dp2a`, multiplications and additions.
    pub dot_ops: u64,
    /// Float operations of matrix products, multiplications and additions.
    pub tensor_flops: u64,
    /// Integer operations of matrix products.
    pub tensor_int_ops: u64,
}

/// The accessed sectors of an allocation, as a bit set.
#[derive(Debug, Default)]
struct Sectors(Vec<u64>);

impl Sectors {
    fn mark(&mut self, start: usize, bytes: usize) {
        for sector in start / SECTOR..=(start + bytes - 1) / SECTOR {
            if self.0.len() <= sector / 64 {
                self.0.resize(sector / 64 + 1, 0);
            }
            self.0[sector / 64] |= 1 << (sector % 64);
        }
    }

    fn bytes(&self) -> u64 {
        let sectors: u64 = self.0.iter().map(|word| u64::from(word.count_ones())).sum();
        sectors * SECTOR as u64
    }
}

/// The counts of a running launch.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    counts: Counts,
    /// Read and written sectors of each allocation.
    sectors: HashMap<usize, [Sectors; 2]>,
}

impl Counter {
    pub(crate) fn new(kernel: &str, threads: u64) -> Self {
        let counts = Counts { kernel: kernel.to_owned(), threads, ..Counts::default() };
        Self { counts, ..Self::default() }
    }

    /// Counts an instruction of the active lanes.
    pub(super) fn instruction(&mut self, work: Work, active: u32) {
        self.counts.instructions += 1;
        let lanes = u64::from(active.count_ones());
        match work {
            Work::None => {}
            Work::Flops(n) => self.counts.flops += u64::from(n) * lanes,
            Work::Dot(n) => self.counts.dot_ops += u64::from(n) * lanes,
            Work::Tensor(n) => self.counts.tensor_flops += u64::from(n),
            Work::TensorInt(n) => self.counts.tensor_int_ops += u64::from(n),
        }
    }

    /// Counts an access to global memory by the lanes of `mask`.
    pub(super) fn access(
        &mut self,
        allocation: usize,
        offsets: &[usize; LANES],
        mask: u32,
        bytes: usize,
        [reads, writes]: [bool; 2],
    ) {
        let all = u64::from(mask.count_ones()) * bytes as u64;
        self.counts.loaded += if reads { all } else { 0 };
        self.counts.stored += if writes { all } else { 0 };
        let sectors = self.sectors.entry(allocation).or_default();
        for (is_used, sectors) in [reads, writes].into_iter().zip(sectors) {
            if is_used {
                lanes_of(mask).for_each(|lane| sectors.mark(offsets[lane], bytes));
            }
        }
    }

    pub(crate) fn done(mut self) -> Counts {
        for [read, written] in self.sectors.values() {
            self.counts.read_once += read.bytes();
            self.counts.written_once += written.bytes();
        }
        self.counts
    }
}
