//! Execution of warp-group products (`wgmma`).
//!
//! A product is queued when it is issued, with its fragments of A, and computed when the warp waits for its group, the
//! latest moment that PTX allows. Shared memory that is overwritten too early and sums that are read too early thus
//! show in results and race checks. Each warp computes its own 16 of the 64 rows. When the block ends, all four warps
//! of a group must have issued the same products. Products and sums are computed as in `matrix`.
//!
//! A matrix in shared memory is given by a descriptor. Its rows (rows of A, columns of B) have 16 elements of 16 bits,
//! in two pieces of 16 bytes. Without swizzling, the pieces of eight rows are contiguous (128 bytes), groups of eight
//! rows are a stride apart, and the second piece of a row is a leading offset away. With swizzling, rows of 32, 64 or
//! 128 bytes are contiguous, groups of eight rows are a stride apart, and the address bits of a piece within its row
//! are XORed with those of the row.

use super::matrix::a_place;
use super::products::Queued;
use super::state::{Context, Warp};
use crate::fault::{Checked, FaultKind, LaneFault};
use crate::numeric::format::{F16, Format, f16_to_f32};
use crate::program::Op;
use crate::program::access::SHARED_BASE;
use crate::program::lanes::{LANES, Reg};
use crate::program::wgmma::{GroupProduct, Source, Wgmma};

/// Columns of A.
const K: usize = 16;
/// Rows of A per warp.
const M: usize = 16;
/// The maximum number of columns of B.
const MAX_N: usize = 256;

/// Location of a matrix in shared memory.
#[derive(Debug, Clone, Copy)]
struct Layout {
    start: usize,
    leading: usize,
    stride: usize,
    row_bytes: usize,
}

impl Layout {
    /// Decodes a descriptor.
    fn of(descriptor: u64) -> Result<Self, String> {
        let field = |first: u32| ((descriptor >> first & 0x3fff) << 4) as usize;
        let row_bytes = [16, 128, 64, 32][(descriptor >> 62) as usize];
        let layout = Self { start: field(0), leading: field(16), stride: field(32), row_bytes };
        let unused = descriptor & !(0x3fff | 0x3fff << 16 | 0x3fff << 32 | 7 << 49 | 3 << 62);
        if unused != 0 {
            return Err(format!("the descriptor {descriptor:#x} has bits that mean nothing"));
        }
        let is_aligned = layout.start % (8 * row_bytes) < row_bytes || row_bytes == 16;
        if descriptor >> 49 & 7 != 0 || !is_aligned {
            return Err(format!(
                "the descriptor {descriptor:#x} begins inside of a pattern, which is not interpreted"
            ));
        }
        Ok(layout)
    }

    /// Address of a piece of a row.
    fn piece(&self, row: usize, piece: usize) -> usize {
        let Self { start, leading, stride, row_bytes } = *self;
        let step = if row_bytes == 16 { leading } else { 16 };
        let at = start + row / 8 * stride + row % 8 * row_bytes + piece * step;
        at ^ (at >> 3 & (row_bytes - 16))
    }
}

impl Context<'_> {
    pub(super) fn wgmma(&mut self, warp: &mut Warp, wgmma: &Wgmma, at: usize) -> Checked {
        if (warp.idx / 4 + 1) * 4 * LANES > self.shape.threads() {
            let message = "an instruction of a group of four warps, of which the block lacks some";
            return Err(LaneFault::new(FaultKind::Divergence, 0, message));
        }
        if warp.alive != u32::MAX {
            let lane = warp.alive.trailing_ones() as usize;
            let message = "an instruction of whole warps, of which this thread has exited";
            return Err(LaneFault::new(FaultKind::Divergence, lane, message));
        }
        warp.products.note(at as u64);
        match wgmma {
            // Its effect on ordering was checked when the kernel was decoded.
            Wgmma::Fence => Ok(()),
            Wgmma::Product(product) => queue(warp, product, at),
            Wgmma::Commit => {
                warp.products.groups += 1;
                Ok(())
            }
            Wgmma::Wait(left) => {
                let end = warp.products.groups.saturating_sub(*left);
                let queue = std::mem::take(&mut warp.products.queue);
                let (done, rest): (Vec<_>, _) = queue.into_iter().partition(|q| q.group < end);
                warp.products.queue = rest;
                done.iter().try_for_each(|queued| self.compute(warp, queued))
            }
        }
    }

    /// Checks that all products were waited for before a warp's threads exit.
    pub(super) fn check_products(&self, warp: &Warp) -> Checked {
        if warp.products.queue.is_empty() {
            return Ok(());
        }
        let message = "the thread ends before it has waited for its products";
        Err(LaneFault::new(FaultKind::Uninitialised, 0, message))
    }

    /// Checks that the warps of each group have issued the same products.
    pub(super) fn check_groups(&self, warps: &[Warp]) -> Result<(), (usize, LaneFault)> {
        for group in warps.chunks(4) {
            let differs = |warp: &&Warp| warp.products.trace != group[0].products.trace;
            if let Some(warp) = group.iter().find(differs) {
                let message = "the four warps of a group have not begun the same products";
                return Err((warp.idx, LaneFault::new(FaultKind::Divergence, 0, message)));
            }
        }
        Ok(())
    }

    fn compute(&mut self, warp: &mut Warp, queued: &Queued) -> Checked {
        let Op::Wgmma(Wgmma::Product(product)) = &self.program.code[queued.at].op else {
            unreachable!("a product was queued")
        };
        let &GroupProduct { n, format, negates, .. } = product;
        let mut a = vec![0.0; M * K]; // [M, K]
        match &queued.a {
            Some(words) => {
                for (r, words) in words.iter().enumerate() {
                    for (lane, word) in words.iter().enumerate() {
                        for i in 0..2 {
                            let (row, col) = a_place(lane, r, i, 2);
                            a[row * K + col] = widen(format, (word >> (16 * i)) as u16);
                        }
                    }
                }
            }
            None => {
                let first = warp.idx % 4 * M;
                let columns = self.matrix_in_shared(warp, queued.a_at, first, M, format)?;
                for (k, column) in columns.chunks(M).enumerate() {
                    column.iter().enumerate().for_each(|(row, x)| a[row * K + k] = *x);
                }
            }
        }
        let b = self.matrix_in_shared(warp, queued.b_at, 0, n, format)?; // [K, n]
        let place =
            |lane: usize, i: usize| (lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2);
        let r = &mut warp.registers;
        let mut sums = vec![0.0; M * n]; // [M, n]
        if queued.adds {
            for (i, &reg) in product.d.iter().enumerate() {
                for (lane, &bits) in r.word(reg).iter().enumerate() {
                    let (row, col) = place(lane, i);
                    sums[row * n + col] = f64::from(f32::from_bits(bits));
                }
            }
        }
        for (a, sums) in a.chunks(K).zip(sums.chunks_mut(n)) {
            for (a, b) in a.iter().zip(b.chunks(n)) {
                let a = if negates { -a } else { *a };
                sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
            }
        }
        for (i, &reg) in product.d.iter().enumerate() {
            let out = std::array::from_fn(|lane| {
                let (row, col) = place(lane, i);
                crate::numeric::canonical(sums[row * n + col] as f32)
            });
            r.set_word(reg, u32::MAX, &out);
        }
        Ok(())
    }

    /// Reads rows of a matrix from `first` on, as [K, n_rows].
    fn matrix_in_shared(
        &mut self,
        warp: &Warp,
        descriptor: u64,
        first: usize,
        n_rows: usize,
        format: Format,
    ) -> Checked<Vec<f64>> {
        let layout = Layout::of(descriptor)
            .map_err(|message| LaneFault::new(FaultKind::Operand, 0, message))?;
        let mut out = vec![0.0; K * n_rows];
        // One 16-byte piece per lane.
        for start in (0..2 * n_rows).step_by(LANES) {
            let n = (2 * n_rows - start).min(LANES);
            let place = |i: usize| ((start + i) / 2, (start + i) % 2);
            let at = std::array::from_fn(|lane| {
                let (row, piece) = place(lane.min(n - 1));
                layout.piece(first + row, piece) as u64
            });
            let mask = u32::MAX >> (LANES - n);
            let offsets = self.read_shared(warp, &at, mask, 16)?;
            for (lane, &offset) in offsets.iter().enumerate().take(n) {
                let range = offset..offset + 16;
                if self.shared.unfenced[range.clone()].iter().any(|warp| *warp != 0) {
                    let message = format!(
                        "a product reads shared memory at {:#x}, which was stored without \
                         `fence.proxy.async` behind it",
                        SHARED_BASE as usize + offset
                    );
                    return Err(LaneFault::new(FaultKind::Race, lane, message));
                }
                let (row, piece) = place(lane);
                for (i, bytes) in self.shared.bytes[range].chunks(2).enumerate() {
                    let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
                    out[(8 * piece + i) * n_rows + row] = widen(format, bits);
                }
            }
        }
        Ok(out)
    }
}

fn widen(format: Format, bits: u16) -> f64 {
    match format {
        F16 => f64::from(f16_to_f32(u32::from(bits))),
        _ => f64::from(f32::from_bits(u32::from(bits) << 16)),
    }
}

/// Queues a product of a warp.
fn queue(warp: &mut Warp, product: &GroupProduct, at: usize) -> Checked {
    debug_assert!(product.n <= MAX_N);
    let r = &warp.registers;
    let uniform = |reg: Reg, what: &str| {
        let first = r.lane(reg, 0);
        match (1..LANES).find(|&lane| r.lane(reg, lane) != first) {
            None => Ok(first),
            Some(lane) => {
                let message = format!("lanes of a warp give a product different {what}");
                Err(LaneFault::new(FaultKind::Operand, lane, message))
            }
        }
    };
    let (a, a_at) = match &product.a {
        Source::Registers(regs) => (Some(regs.iter().map(|&reg| *r.word(reg)).collect()), 0),
        Source::Shared(reg) => (None, uniform(*reg, "descriptors")?),
    };
    let b_at = uniform(product.b, "descriptors")?;
    let adds = uniform(product.adds, "predicates")? == 1;
    [a_at, b_at, u64::from(adds)].into_iter().for_each(|number| warp.products.note(number));
    let group = warp.products.groups;
    warp.products.queue.push(Queued { at, a, a_at, b_at, adds, group });
    Ok(())
}
