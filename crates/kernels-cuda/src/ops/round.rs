//! Conversion of activations to half precision, the operand of tensor-core products.

use std::sync::Arc;

use realizar_quant::BlockType;

use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Buffer, Error, Rows};

/// Threads of a block.
const THREADS: u32 = 256;
/// Rows are padded with zeros to a multiple of this many columns, the step of the products.
const DEPTH: usize = 64;

/// The operand type of half-precision products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfType {
    /// IEEE binary16. Each activation row is scaled by a power of two so that its largest magnitude becomes 2^14 to
    /// 2^15.
    F16,
    /// bfloat16.
    BF16,
}

/// The operand type of half-precision products with weights of a type; none for F32. F16 weights are multiplied
/// unchanged, all other types as BF16.
pub fn half_type(ty: BlockType) -> Option<HalfType> {
    match ty {
        BlockType::F32 => None,
        BlockType::F16 => Some(HalfType::F16),
        _ => Some(HalfType::BF16),
    }
}

/// Device memory for rows in half precision.
#[derive(Debug)]
pub struct HalfRows<D: Device> {
    /// Values, `[max_rows, max_cols]` with `max_cols` a multiple of 64.
    values: Buffer<D>,
    /// Factors on the results of F16 rows, `f32`, `[max_rows]`.
    scales: Buffer<D>,
    max_rows: usize,
    max_cols: usize,
}

impl<D: Device> HalfRows<D> {
    /// Bytes for `max_rows` rows of up to `max_cols` values.
    pub fn bytes(max_rows: usize, max_cols: usize) -> usize {
        max_rows * (max_cols.next_multiple_of(DEPTH) * 2 + 4)
    }

    /// Allocates memory for `max_rows` rows of up to `max_cols` values.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(device: &Arc<D>, max_rows: usize, max_cols: usize) -> Result<Self, Error> {
        let max_cols = max_cols.next_multiple_of(DEPTH);
        let n_bytes = max_rows * max_cols * 2;
        Ok(Self {
            values: Buffer::new(device, "activations in half precision", n_bytes)?,
            scales: Buffer::new(device, "the scales of rows in half precision", max_rows * 4)?,
            max_rows,
            max_cols,
        })
    }

    /// A view of `n_rows` rows of `n_cols` values, beginning at row `first`.
    ///
    /// # Panics
    /// If they exceed the allocated memory.
    pub fn rows(&self, ty: HalfType, first: usize, n_rows: usize, n_cols: usize) -> Halves<'_, D> {
        assert!(
            n_rows > 0 && n_cols > 0 && first + n_rows <= self.max_rows && n_cols <= self.max_cols,
            "rows {first} to {} of {n_cols} values, room for {} of {}",
            first + n_rows,
            self.max_rows,
            self.max_cols
        );
        Halves { room: self, ty, first, n_rows, n_cols }
    }
}

/// A view of rows in half precision.
#[derive(Debug)]
pub struct Halves<'a, D: Device> {
    room: &'a HalfRows<D>,
    ty: HalfType,
    first: usize,
    n_rows: usize,
    n_cols: usize,
}

impl<D: Device> Clone for Halves<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Halves<'_, D> {}

impl<D: Device> Halves<'_, D> {
    /// Type of the values.
    pub fn ty(&self) -> HalfType {
        self.ty
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Values per row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Asserts that the rows are on the kernels' device and have this shape.
    pub(crate) fn check(&self, kernels: &Kernels<D>, what: &str, n_rows: usize, n_cols: usize) {
        kernels.check(what, &self.room.values, 0);
        let found = (self.n_rows, self.n_cols);
        assert_eq!(found, (n_rows, n_cols), "rows and columns of {what}");
    }

    /// Waits for the rows and returns them, including the padding.
    #[cfg(any(test, feature = "tests"))]
    pub(crate) fn read(&self, stream: &D::Stream) -> Vec<Vec<u16>> {
        let of_row = |row: usize| {
            let mut values = vec![0; self.n_cols.next_multiple_of(DEPTH)];
            let at = (self.first + row) * self.room.max_cols * 2;
            self.room.values.read(stream, at, &mut values).unwrap();
            values
        };
        (0..self.n_rows).map(of_row).collect()
    }

    /// Addresses of values and scales, with the row stride in elements between.
    pub(crate) fn arguments(&self) -> [Argument; 3] {
        let at = (self.first * self.room.max_cols * 2) as u64;
        let scales = match self.ty {
            HalfType::F16 => self.room.scales.address() + 4 * self.first as u64,
            HalfType::BF16 => 0,
        };
        [
            Argument::Address(self.room.values.address() + at),
            Argument::I32(self.room.max_cols as i32),
            Argument::Address(scales),
        ]
    }
}

/// Queues the rounding of rows.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match.
pub fn round_rows<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>, // [n_rows, n_cols]
    to: Halves<'_, D>,
) -> Result<(), Error> {
    x.check(kernels, "x", to.n_rows, to.n_cols);
    to.check(kernels, "halves", to.n_rows, to.n_cols);
    let [values, stride, scales] = to.arguments();
    let n_cols = Argument::I32(to.n_cols as i32);
    let arguments = [x.address(), x.stride(), values, stride, scales, n_cols];
    let function = match to.ty {
        HalfType::F16 => &kernels.round.f16,
        HalfType::BF16 => &kernels.round.bf16,
    };
    let grid = [to.n_rows as u32, 1, 1];
    // SAFETY: the arguments are those of the kernels in order; rows lie within their buffers, and their shapes were
    // checked. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }
}

/// Queues the splitting of each row into two BF16 parts, which are consecutive rows of `to`: the rounded values, and
/// the rounded remainders. Together they keep 16 significant bits.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or `to` is not BF16.
pub fn split_rows<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>,    // [n_rows, n_cols]
    to: Halves<'_, D>, // [2 * n_rows, n_cols]
) -> Result<(), Error> {
    x.check(kernels, "x", to.n_rows / 2, to.n_cols);
    to.check(kernels, "parts", 2 * x.n_rows(), to.n_cols);
    assert_eq!(to.ty, HalfType::BF16, "parts");
    let [values, stride, _] = to.arguments();
    let arguments = [x.address(), x.stride(), values, stride, Argument::I32(to.n_cols as i32)];
    let grid = [x.n_rows() as u32, 1, 1];
    // SAFETY: the arguments are those of `split_rows` in order. Rows and room were checked above; a row of the room has
    // whole column steps. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, &kernels.round.split, grid, [THREADS, 1], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{Random, halved, kernels, on_device};

    #[cfg_attr(test, test)]
    fn rows_are_rounded_and_filled_up_with_zeros() {
        let (kernels, stream) = kernels();
        let (n_rows, n_cols, stride) = (4, 69, 71);
        let mut x = Random(3).floats(n_rows * stride);
        x[stride..2 * stride].iter_mut().for_each(|x| *x *= 1e20);
        x[2 * stride..3 * stride].iter_mut().for_each(|x| *x *= 1e-20);
        x[3 * stride..].fill(0.0);
        let at = on_device(kernels.device(), &stream, &x);
        let rows = Rows::new(&at, 0, n_rows, n_cols, stride);
        for ty in [HalfType::F16, HalfType::BF16] {
            let room = HalfRows::new(kernels.device(), n_rows + 1, n_cols).unwrap();
            let n_bytes = room.values.n_bytes() + room.scales.n_bytes();
            assert_eq!(HalfRows::<crate::testing::TestDevice>::bytes(n_rows + 1, n_cols), n_bytes);
            round_rows(&kernels, &stream, rows, room.rows(ty, 1, n_rows, n_cols)).unwrap();
            let (mut values, mut scales) = (vec![0u16; 5 * 128], [0.0f32; 5]);
            // The first row was not written.
            room.values.read(&stream, 256, &mut values[128..]).unwrap();
            if ty == HalfType::F16 {
                room.scales.read(&stream, 4, &mut scales[1..]).unwrap();
            }
            for row in 0..n_rows {
                let x = &x[row * stride..][..n_cols];
                let found = &values[128 * (row + 1)..][..128];
                assert!(found[n_cols..].iter().all(|&v| v == 0));
                let top = x.iter().fold(0.0f32, |top, x| top.max(x.abs()));
                let mut scale = 1.0;
                if ty == HalfType::F16 {
                    scale = scales[row + 1];
                    assert_eq!(scale.to_bits() & 0x7f_ffff, 0, "a power of two");
                    let largest = top / scale;
                    assert!(top == 0.0 || (16384.0..32768.0).contains(&largest), "{largest}");
                }
                for (x, &found) in x.iter().zip(found) {
                    let wanted = match ty {
                        HalfType::F16 => halved(BlockType::F16, x / scale).0,
                        HalfType::BF16 => halved(BlockType::BF16, *x).0,
                    };
                    assert_eq!(found, wanted, "{ty:?} {x}");
                }
            }
        }
    }

    crate::testing::tests![rows_are_rounded_and_filled_up_with_zeros,];
}
