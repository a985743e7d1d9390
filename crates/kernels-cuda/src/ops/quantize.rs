//! Quantization of activations in blocks of 32, as 8-bit integers or BF16, for products with integer-level weights.
//! Norms and activations can write the operands of all products in the same launch.
//!
//! Both formats serve every weight type. An integer block has an F32 scale, and the sums of its halves for types whose
//! levels have an offset. A BF16 block has two sums for types with minimums.

use super::round::{HalfType, Halves};
use super::rows::optional;
use super::wgmma::Grouped;
use crate::device::{Argument, Device};
use crate::kernels::{Kernels, activation_argument};
use crate::{Activation, Buffer, Error, Norm, NormKind, Rows};
use std::sync::Arc;

/// Values that share a scale.
pub(crate) const BLOCK_LEN: usize = 32;
/// Threads of a block, and of one that normalizes a whole row. Each processes four columns at a time.
const THREADS: u32 = 128;
const NORM_THREADS: u32 = 512;
/// Rows of BF16 are padded to a multiple of this many columns.
const BF16_COLS: usize = 512;

/// The format of quantized activations. Products with each have different bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantType {
    /// 8-bit integers: `x[i] ≈ scale[i / 32] * q[i]`. The scale is the block's largest magnitude over 127, and quants
    /// round to nearest, ties to even. A block with a non-finite value has a non-finite scale, so that every product
    /// with it is non-finite.
    Int8,
    /// BF16, rounded to nearest, ties to even.
    Bf16,
}

impl QuantType {
    /// Bytes of the values of a block.
    fn block_bytes(self) -> usize {
        match self {
            Self::Int8 => BLOCK_LEN,
            Self::Bf16 => 2 * BLOCK_LEN,
        }
    }

    /// Blocks of a row, including its zero padding.
    fn n_blocks(self, n_cols: usize) -> usize {
        match self {
            Self::Int8 => n_cols.div_ceil(BLOCK_LEN),
            Self::Bf16 => n_cols.next_multiple_of(BF16_COLS) / BLOCK_LEN,
        }
    }
}

/// Device memory for rows of quantized activations.
#[derive(Debug)]
pub struct QuantizedRows<D: Device> {
    ty: QuantType,
    /// Values in blocks of 32, `i8` or BF16, `[max_rows, max_blocks]`.
    quants: Buffer<D>,
    /// Heads of the blocks, `[max_rows, max_blocks]`. An integer block has an `f32` scale and the sums of its first and
    /// last 16 quants as `i16`. A BF16 block has the sums of all and of its first 16 values, each as two BF16 parts.
    blocks: Buffer<D>,
    max_rows: usize,
    max_blocks: usize,
}

impl<D: Device> QuantizedRows<D> {
    /// Bytes for `max_rows` rows of up to `max_cols` values.
    pub fn bytes(ty: QuantType, max_rows: usize, max_cols: usize) -> usize {
        max_rows * ty.n_blocks(max_cols) * (ty.block_bytes() + 8)
    }

    /// Allocates memory for `max_rows` rows of up to `max_cols` values.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(
        device: &Arc<D>,
        ty: QuantType,
        max_rows: usize,
        max_cols: usize,
    ) -> Result<Self, Error> {
        let max_blocks = ty.n_blocks(max_cols);
        let n = max_rows * max_blocks;
        Ok(Self {
            ty,
            quants: Buffer::new(device, "quantized activations", n * ty.block_bytes())?,
            blocks: Buffer::new(device, "the heads of quantized activations", n * 8)?,
            max_rows,
            max_blocks,
        })
    }

    /// A view of `n_rows` rows of `n_cols` values, beginning at row `first`.
    ///
    /// # Panics
    /// If they exceed the allocated memory, or `n_cols` is not a multiple of 32.
    pub fn rows(&self, first: usize, n_rows: usize, n_cols: usize) -> Quantized<'_, D> {
        assert!(n_cols.is_multiple_of(BLOCK_LEN), "{n_cols} columns are not blocks of 32");
        assert!(
            n_rows > 0 && n_cols > 0 && first + n_rows <= self.max_rows,
            "rows {first} to {} of {n_cols} values, room for {}",
            first + n_rows,
            self.max_rows
        );
        assert!(n_cols <= self.max_blocks * BLOCK_LEN, "{n_cols} columns");
        Quantized { room: self, first, n_rows, n_cols }
    }
}

/// A view of rows of quantized activations.
#[derive(Debug)]
pub struct Quantized<'a, D: Device> {
    room: &'a QuantizedRows<D>,
    first: usize,
    n_rows: usize,
    n_cols: usize,
}

impl<D: Device> Clone for Quantized<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Quantized<'_, D> {}

impl<D: Device> Quantized<'_, D> {
    /// Format of the activations.
    pub fn ty(&self) -> QuantType {
        self.room.ty
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
        kernels.check(what, &self.room.quants, 0);
        let found = (self.n_rows, self.n_cols);
        assert_eq!(found, (n_rows, n_cols), "rows and columns of {what}");
    }

    /// Asserts the format of the activations.
    pub(crate) fn check_type(&self, what: &str, ty: QuantType) {
        assert_eq!(self.ty(), ty, "the type of {what}");
    }

    /// Whether both views are of the same memory.
    pub(crate) fn is_in_room_of(&self, other: &Self) -> bool {
        std::ptr::eq(self.room, other.room)
    }

    /// Waits for the rows and returns the words of each row's quants and of its heads, including the padding.
    #[cfg(any(test, feature = "tests"))]
    pub(crate) fn read(&self, stream: &D::Stream) -> Vec<[Vec<u32>; 2]> {
        let (ty, room) = (self.room.ty, self.room);
        let n = ty.n_blocks(self.n_cols);
        let of_row = |row: usize| {
            let at = (self.first + row) * room.max_blocks;
            let mut words = [vec![0; n * ty.block_bytes() / 4], vec![0; n * 2]];
            room.quants.read(stream, at * ty.block_bytes(), &mut words[0]).unwrap();
            room.blocks.read(stream, at * 8, &mut words[1]).unwrap();
            words
        };
        (0..self.n_rows).map(of_row).collect()
    }

    /// Arguments of a launch that stores no quantized rows.
    pub(crate) const NULL: [Argument; 4] =
        [Argument::Address(0), Argument::Address(0), Argument::I32(0), Argument::I32(0)];

    /// Addresses of quants and heads, and the row stride in blocks.
    pub(crate) fn arguments(&self) -> [Argument; 3] {
        let at = self.first * self.room.max_blocks;
        let bytes = at * self.ty().block_bytes();
        [
            Argument::Address(self.room.quants.address() + bytes as u64),
            Argument::Address(self.room.blocks.address() + (at * 8) as u64),
            Argument::I32(self.room.max_blocks as i32),
        ]
    }

    /// Arguments of kernels that store quantized rows: as `arguments`, then whether the format is BF16, which is also
    /// the number of the operand's form.
    pub(crate) fn target(&self) -> [Argument; 4] {
        let [quants, blocks, stride] = self.arguments();
        let in_bf16 = self.ty() == QuantType::Bf16;
        [quants, blocks, stride, Argument::I32(i32::from(in_bf16))]
    }
}

/// Rows in one of the formats that products take as operands.
#[derive(Debug)]
pub enum ProductRows<'a, D: Device> {
    /// Quantized in blocks.
    Quantized(Quantized<'a, D>),
    /// BF16, row-major.
    Halves(Halves<'a, D>),
    /// BF16 in the layout of `wgmma`.
    Grouped(Grouped<'a, D>),
}

impl<D: Device> Clone for ProductRows<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for ProductRows<'_, D> {}

impl<'a, D: Device> From<Quantized<'a, D>> for ProductRows<'a, D> {
    fn from(rows: Quantized<'a, D>) -> Self {
        Self::Quantized(rows)
    }
}

impl<D: Device> ProductRows<'_, D> {
    pub(crate) fn n_rows(&self) -> usize {
        match self {
            Self::Quantized(rows) => rows.n_rows,
            Self::Halves(rows) => rows.n_rows(),
            Self::Grouped(rows) => rows.n_rows(),
        }
    }

    pub(crate) fn n_cols(&self) -> usize {
        match self {
            Self::Quantized(rows) => rows.n_cols,
            Self::Halves(rows) => rows.n_cols(),
            Self::Grouped(rows) => rows.n_cols(),
        }
    }

    /// Asserts that the rows are on the kernels' device, are whole blocks, and need no scales.
    pub(crate) fn check(&self, kernels: &Kernels<D>) {
        let what = "rows for a product";
        let ty = match self {
            Self::Quantized(rows) => return rows.check(kernels, what, rows.n_rows, rows.n_cols),
            Self::Halves(rows) => {
                rows.check(kernels, what, rows.n_rows(), rows.n_cols());
                rows.ty()
            }
            Self::Grouped(rows) => {
                rows.check(kernels);
                rows.ty()
            }
        };
        assert_eq!(ty, HalfType::BF16, "{what}");
        assert!(self.n_cols().is_multiple_of(BLOCK_LEN), "{} columns", self.n_cols());
    }

    /// Addresses of values and heads, the row stride or the number of allocated rows, and the number of the form in
    /// `cuda/quantize.cu`.
    pub(crate) fn target(&self) -> [Argument; 4] {
        let (none, form) = (Argument::Address(0), Argument::I32);
        match self {
            Self::Quantized(rows) => rows.target(),
            Self::Halves(rows) => {
                let [values, stride, _] = rows.arguments();
                [values, none, stride, form(2)]
            }
            Self::Grouped(rows) => {
                let [values, n_rows, _] = rows.arguments();
                [values, none, n_rows, form(3)]
            }
        }
    }

    /// The grid of elementwise kernels.
    fn grid(&self) -> [u32; 3] {
        let n_blocks = self.n_cols().div_ceil(4 * THREADS as usize);
        assert!(n_blocks <= 65535, "rows of {} elements", self.n_cols());
        [self.n_rows() as u32, n_blocks as u32, 1]
    }
}

/// Queues the quantization of rows.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or rows are not aligned to 16 bytes.
pub fn quantize<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    x: Rows<'_, D>, // [n_rows, n_cols]
    to: Quantized<'_, D>,
) -> Result<(), Error> {
    x.check(kernels, "x", to.n_rows, to.n_cols);
    x.check_aligned("x");
    to.check(kernels, "quantized rows", to.n_rows, to.n_cols);
    let [quants, blocks, stride, in_bf16] = to.target();
    let n_cols = Argument::I32(to.n_cols as i32);
    let arguments = [x.address(), x.stride(), quants, blocks, stride, in_bf16, n_cols];
    let (function, grid) = (&kernels.quantize.plain, ProductRows::from(to).grid());
    // SAFETY: the arguments are those of the kernel in order; rows lie within their buffers, and their shapes and
    // alignment were checked. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }
}

/// Queues the computation of `act(gate) * up`, or of `act(gate)` without `up`, and its conversion to the format of
/// `to`. The F32 values are also stored in `out`, if present, which may be `gate` or `up`.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or rows are not aligned to 16 bytes.
pub fn quantize_activated<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    act: Activation,
    gate: Rows<'_, D>,        // [n_rows, n_cols]
    up: Option<Rows<'_, D>>,  // [n_rows, n_cols]
    out: Option<Rows<'_, D>>, // [n_rows, n_cols]
    to: ProductRows<'_, D>,
) -> Result<(), Error> {
    for (what, rows) in [("gate", Some(gate)), ("up", up), ("out", out)] {
        if let Some(rows) = rows {
            rows.check(kernels, what, to.n_rows(), to.n_cols());
            rows.check_aligned(what);
        }
    }
    to.check(kernels);
    let ([up, up_stride], [out, out_stride]) = (optional(up), optional(out));
    let [values, heads, stride, form] = to.target();
    let arguments = [
        gate.address(),
        gate.stride(),
        up,
        up_stride,
        activation_argument(act),
        out,
        out_stride,
        values,
        heads,
        stride,
        form,
        Argument::I32(to.n_cols() as i32),
    ];
    let function = &kernels.quantize.activated;
    // SAFETY: as in `quantize`.
    unsafe { kernels.launch(stream, function, to.grid(), [THREADS, 1], &arguments) }
}

/// Queues a norm of whole rows and the conversion of its results to the format of `to`. The F32 values are also stored
/// in `out`, if present, which may be `x`.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, the norm is not over whole rows, or rows are not aligned to 16 bytes.
pub fn quantize_norm<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    norm: &Norm<'_, D>,
    x: Rows<'_, D>,           // [n_rows, n_cols]
    out: Option<Rows<'_, D>>, // [n_rows, n_cols]
    to: ProductRows<'_, D>,
) -> Result<(), Error> {
    let &Norm { kind, group, eps, weight, bias } = norm;
    assert_eq!(group, to.n_cols(), "columns of a run and of a row");
    for (what, rows) in [("x", Some(x)), ("out", out)] {
        if let Some(rows) = rows {
            rows.check(kernels, what, to.n_rows(), to.n_cols());
            rows.check_aligned(what);
        }
    }
    for (what, vector) in [("weight", weight), ("bias", bias)] {
        if let Some(vector) = vector {
            vector.check(kernels, what, 1, group);
        }
    }
    to.check(kernels);
    let [out, out_stride] = optional(out);
    let [values, heads, stride, form] = to.target();
    let arguments = [
        x.address(),
        x.stride(),
        optional(weight)[0],
        optional(bias)[0],
        Argument::F32(eps),
        out,
        out_stride,
        values,
        heads,
        stride,
        form,
        Argument::I32(to.n_cols() as i32),
    ];
    let function = match kind {
        NormKind::Rms => &kernels.quantize.rms,
        NormKind::Layer => &kernels.quantize.layer,
    };
    let grid = [to.n_rows() as u32, 1, 1];
    // SAFETY: as in `quantize`.
    unsafe { kernels.launch(stream, function, grid, [NORM_THREADS, 1], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{
        Random, TestDevice, halved, kernels, on_device, quantized_block, read, wgmma_kernels,
    };
    use crate::{GroupedRows, HalfRows, group_rows, round_rows};
    use realizar_ptx as ptx;
    use realizar_quant::BlockType;

    /// Asserts that quantized rows match `x`, and that memory around them was not written.
    fn check(stream: &ptx::Stream, room: &QuantizedRows<TestDevice>, first: usize, x: &[Vec<f32>]) {
        let n = room.max_rows * room.max_blocks;
        let (mut quants, mut blocks) = (vec![0i8; n * 32], vec![[0u32; 2]; n]);
        room.quants.read(stream, 0, &mut quants).unwrap();
        room.blocks.read(stream, 0, &mut blocks).unwrap();
        for i in 0..n {
            let (row, block) = (i / room.max_blocks, i % room.max_blocks);
            let (found, [scale, sums]) = (&quants[32 * i..][..32], blocks[i]);
            let values = row.checked_sub(first).and_then(|row| x.get(row));
            let Some(values) = values.and_then(|row| row.get(32 * block..32 * block + 32)) else {
                assert!(found.iter().all(|&q| q == 77) && scale == 77, "row {row}, block {block}");
                continue;
            };
            let wanted = quantized_block(values);
            assert_eq!(found, wanted.0, "row {row}, block {block}");
            match f32::from_bits(wanted.1).is_nan() {
                true => assert!(f32::from_bits(scale).is_nan()),
                false => assert_eq!(scale, wanted.1, "row {row}, block {block}"),
            }
            assert_eq!([sums as i16, (sums >> 16) as i16], wanted.2);
        }
    }

    /// Memory for seven rows of 13 blocks, filled with a marker.
    fn room(device: &Arc<TestDevice>, stream: &ptx::Stream) -> QuantizedRows<TestDevice> {
        let room = QuantizedRows::new(device, QuantType::Int8, 7, 400).unwrap();
        assert_eq!(
            QuantizedRows::<TestDevice>::bytes(QuantType::Int8, 7, 400),
            room.quants.n_bytes() + room.blocks.n_bytes()
        );
        room.quants.write(stream, 0, &[77i8; 7 * 13 * 32]).unwrap();
        room.blocks.write(stream, 0, &[77u32; 7 * 13 * 2]).unwrap();
        room
    }

    fn rows_of(values: &[f32], stride: usize, n_cols: usize) -> Vec<Vec<f32>> {
        values.chunks(stride).map(|row| row[..n_cols].to_vec()).collect()
    }

    #[cfg_attr(test, test)]
    fn blocks_are_those_of_the_definition() {
        let (kernels, stream) = kernels();
        let (n_rows, n_cols, stride) = (4, 320, 332);
        let mut values = Random(3).floats(n_rows * stride);
        // Blocks of extremes in row 2: ties, zeros, subnormal, huge and non-finite values.
        let special = &mut values[2 * stride..][..192];
        special.fill(0.0);
        special[..7].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0]);
        special[64..96].fill(f32::MIN_POSITIVE / 2.0);
        special[96..128].fill(-f32::MAX);
        special[130] = f32::NEG_INFINITY;
        special[161] = f32::NAN;
        special[162] = 3.0;
        let x = on_device(kernels.device(), &stream, &values);
        let room = room(kernels.device(), &stream);
        let x = Rows::new(&x, 0, n_rows, n_cols, stride);
        quantize(&kernels, &stream, x, room.rows(2, n_rows, n_cols)).unwrap();
        check(&stream, &room, 2, &rows_of(&values, stride, n_cols));
    }

    #[cfg_attr(test, test)]
    fn activations_and_norms_are_quantized() {
        let (kernels, stream) = kernels();
        let (n_rows, n_cols, stride) = (3, 352, 356);
        let mut random = Random(5);
        let [a, b, w, v] = [n_rows * stride, n_rows * stride, n_cols, n_cols]
            .map(|n| random.floats(n).iter().map(|x| 3.0 * x + 0.5).collect::<Vec<f32>>());
        let put = |values: &[f32]| on_device(kernels.device(), &stream, values);
        let (a_at, b_at, w_at, v_at, out) = (put(&a), put(&b), put(&w), put(&v), put(&a));
        let rows = |buffer| Rows::new(buffer, 0, n_rows, n_cols, stride);
        let found = |room: &QuantizedRows<TestDevice>| {
            let found = read(&stream, &out, a.len());
            check(&stream, room, 1, &rows_of(&found, stride, n_cols));
            found
        };
        let silu = |x: f64| x / (1.0 + (-x).exp());
        for has_up in [true, false] {
            let room = room(kernels.device(), &stream);
            let to = room.rows(1, n_rows, n_cols);
            let up = has_up.then(|| rows(&b_at));
            let act = Activation::Silu;
            quantize_activated(
                &kernels,
                &stream,
                act,
                rows(&a_at),
                up,
                Some(rows(&out)),
                to.into(),
            )
            .unwrap();
            for (i, found) in found(&room).iter().enumerate().filter(|(i, _)| i % stride < n_cols) {
                let expected = silu(f64::from(a[i])) * if has_up { f64::from(b[i]) } else { 1.0 };
                assert!((f64::from(*found) - expected).abs() < 2e-6, "{found} {expected}");
            }
        }
        for (kind, vectors) in [(NormKind::Rms, 1), (NormKind::Layer, 2), (NormKind::Rms, 0)] {
            let room = room(kernels.device(), &stream);
            let to = room.rows(1, n_rows, n_cols);
            let norm = Norm {
                kind,
                group: n_cols,
                eps: 1e-5,
                weight: (vectors > 0).then(|| Rows::vector(&w_at, n_cols)),
                bias: (vectors > 1).then(|| Rows::vector(&v_at, n_cols)),
            };
            quantize_norm(&kernels, &stream, &norm, rows(&a_at), Some(rows(&out)), to.into())
                .unwrap();
            let found = found(&room);
            for row in 0..n_rows {
                let x: Vec<f64> = a[row * stride..][..n_cols].iter().map(|&x| x.into()).collect();
                let mean = |f: &dyn Fn(f64) -> f64| x.iter().map(|&x| f(x)).sum::<f64>() / 352.0;
                let center = if kind == NormKind::Layer { mean(&|x| x) } else { 0.0 };
                let deviation = (mean(&|x| (x - center).powi(2)) + 1e-5).sqrt();
                for (i, x) in x.iter().enumerate() {
                    let w = if vectors > 0 { f64::from(w[i]) } else { 1.0 };
                    let v = if vectors > 1 { f64::from(v[i]) } else { 0.0 };
                    let expected = (x - center) / deviation * w + v;
                    let found = f64::from(found[row * stride + i]);
                    assert!((found - expected).abs() < 4e-6, "{kind:?}: {found} {expected}");
                }
            }
        }
    }

    #[cfg_attr(test, test)]
    fn rows_of_bf16_have_sums_and_end_with_zeros() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (n_rows, n_cols) = (2, 544);
        let mut values = Random(7).floats(n_rows * n_cols);
        values[3] = f32::INFINITY;
        let x = on_device(device, &stream, &values);
        let room = QuantizedRows::new(device, QuantType::Bf16, n_rows + 1, n_cols).unwrap();
        room.quants.write(&stream, 0, &vec![77u8; room.quants.n_bytes()]).unwrap();
        let to = room.rows(1, n_rows, n_cols);
        quantize(&kernels, &stream, Rows::new(&x, 0, n_rows, n_cols, n_cols), to).unwrap();
        let half = |word: u32, upper: bool| {
            f32::from_bits(if upper { word & 0xffff_0000 } else { word << 16 })
        };
        for (x, [quants, sums]) in values.chunks(n_cols).zip(to.read(&stream)) {
            assert_eq!((quants.len(), sums.len()), (1024 / 2, 1024 / 32 * 2));
            let rounded: Vec<f32> = x.iter().map(|&x| halved(BlockType::BF16, x).1).collect();
            for (i, &word) in quants.iter().enumerate() {
                // Piece c of a block has elements 4 c, 4 c + 2, 4 c + 1, 4 c + 3, and the same ones plus 16.
                let (block, c, pair) = (i / 16, i / 4 % 4, i % 4);
                let at = 32 * block + 4 * c + pair / 2 * 16 + pair % 2;
                let expected = [at, at + 2].map(|i| rounded.get(i).copied().unwrap_or(0.0));
                assert_eq!([half(word, false), half(word, true)], expected, "word {i}");
            }
            for (block, sums) in sums.chunks(2).enumerate() {
                let of = |n| -> f64 {
                    rounded.iter().skip(32 * block).take(n).map(|&x| f64::from(x)).sum()
                };
                for (&word, expected) in sums.iter().zip([of(32), of(16)]) {
                    let found = f64::from(half(word, false)) + f64::from(half(word, true));
                    let is_right = (found - expected).abs() <= 2e-5 * expected.abs() + 1e-6;
                    assert!(is_right || found == expected, "block {block}: {found}, {expected}");
                }
            }
        }
    }

    /// The operands that norms and activations write for products are the rounding of their results.
    #[cfg_attr(test, test)]
    fn prefill_rows_are_rounded_where_they_are_made() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let wgmma = wgmma_kernels(device);
        // Partial spans and partial column steps, and more columns than a thread keeps in registers.
        for (n_rows, n_cols) in [(11, 96), (2, 4128)] {
            let mut random = Random(12);
            let values = [0, 1].map(|_| random.floats(n_rows * n_cols));
            let [a_at, b_at] = [0, 1].map(|i| on_device(device, &stream, &values[i]));
            let out = on_device(device, &stream, &vec![0.0f32; n_rows * n_cols]);
            let [a, b, out] = [&a_at, &b_at, &out].map(|x| Rows::new(x, 0, n_rows, n_cols, n_cols));
            let b_row = Rows::vector(&b_at, n_cols);
            let rooms = [0, 1].map(|_| HalfRows::new(device, n_rows + 1, n_cols).unwrap());
            let groups = [0, 1].map(|_| GroupedRows::new(device, n_rows, n_cols).unwrap());
            let half = |i: usize| rooms[i].rows(HalfType::BF16, 1, n_rows, n_cols);
            let group = |i: usize| groups[i].rows(HalfType::BF16, n_rows, n_cols);
            let norm = |kind| {
                let (weight, bias) = (Some(b_row), None);
                Norm { kind, group: n_cols, eps: 1e-5, weight, bias }
            };
            let made = |which: usize, out, to| match which {
                0 => quantize_activated(&kernels, &stream, Activation::Silu, a, Some(b), out, to),
                1 => quantize_activated(&kernels, &stream, Activation::Gelu, a, None, out, to),
                2 => quantize_norm(&kernels, &stream, &norm(NormKind::Rms), a, out, to),
                _ => quantize_norm(&kernels, &stream, &norm(NormKind::Layer), a, out, to),
            };
            for which in 0..4 {
                made(which, Some(out), ProductRows::Halves(half(0))).unwrap();
                round_rows(&kernels, &stream, out, half(1)).unwrap();
                assert_eq!(half(0).read(&stream), half(1).read(&stream), "{which} row by row");
                let Some(wgmma) = &wgmma else { continue };
                made(which, None, ProductRows::Grouped(group(0))).unwrap();
                group_rows(&kernels, wgmma, &stream, out, group(1)).unwrap();
                assert_eq!(group(0).read(&stream), group(1).read(&stream), "{which} in groups");
            }
        }
    }

    #[cfg_attr(test, test)]
    #[cfg_attr(test, should_panic(expected = "33 columns are not blocks of 32"))]
    fn rows_are_whole_blocks() {
        let (kernels, stream) = kernels();
        room(kernels.device(), &stream).rows(0, 1, 33);
    }

    crate::testing::tests![
        blocks_are_those_of_the_definition,
        activations_and_norms_are_quantized,
        rows_of_bf16_have_sums_and_end_with_zeros,
        prefill_rows_are_rounded_where_they_are_made,
        rows_are_whole_blocks => "33 columns are not blocks of 32",
    ];
}
