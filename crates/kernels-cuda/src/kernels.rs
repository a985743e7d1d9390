//! The compiled kernels: images of PTX in the crate, loaded once on a device, found by index and not by name.

use std::io::Read;
use std::sync::Arc;

use flate2::read::GzDecoder;
use realizar_quant::BlockType;

use crate::device::{Argument, Device, Launch};
use crate::matrix::BLOCK_TYPES;
use crate::pages::KV_TYPES;
use crate::{Buffer, Error};

/// Products with weights.
const MATVEC: &[u8] = include_bytes!("../image/matvec.ptx.gz");
/// Operations on rows.
const ROWS: &[u8] = include_bytes!("../image/rows.ptx.gz");
/// Attention, and the pages that it reads.
const ATTENTION: &[u8] = include_bytes!("../image/attention.ptx.gz");
/// Query heads of a block of attention: a kernel for each.
pub(crate) const ATTENTION_HEADS: [usize; 3] = [1, 4, 8];

/// The kernels, loaded on a device.
pub struct Kernels<D: Device> {
    device: Arc<D>,
    pub(crate) by_type: [ByType<D::Function>; BLOCK_TYPES.len()],
    pub(crate) rms_norm: D::Function,
    pub(crate) layer_norm: D::Function,
    pub(crate) rope: D::Function,
    pub(crate) add: D::Function,
    pub(crate) glu: [D::Function; 3],
    pub(crate) by_kv_type: [ByKvType<D::Function>; KV_TYPES.len()],
    pub(crate) attention_merge: D::Function,
}

/// The kernels of a block type.
pub(crate) struct ByType<F> {
    /// For one row of activations.
    pub(crate) matvec_1: F,
    /// For several, four of them at a time.
    pub(crate) matvec_4: F,
    pub(crate) embed: F,
}

/// The kernels of a type of keys and values.
pub(crate) struct ByKvType<F> {
    pub(crate) store: F,
    /// One for each of [`ATTENTION_HEADS`].
    pub(crate) attention: [F; ATTENTION_HEADS.len()],
}

impl<D: Device> Kernels<D> {
    /// Loads all kernels; the driver compiles them for its card, and keeps what it made.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the device does not take one.
    pub fn load(device: &Arc<D>) -> Result<Self, Error> {
        let matvec = device.load("matvec", &text("matvec", MATVEC)?)?;
        let rows = device.load("rows", &text("rows", ROWS)?)?;
        let mut by_type = Vec::with_capacity(BLOCK_TYPES.len());
        for ty in BLOCK_TYPES {
            let name = ty.name().to_lowercase();
            by_type.push(ByType {
                matvec_1: device.function(&matvec, &format!("matvec_{name}_1"))?,
                matvec_4: device.function(&matvec, &format!("matvec_{name}_4"))?,
                embed: device.function(&rows, &format!("embed_{name}"))?,
            });
        }
        let Ok(by_type) = by_type.try_into() else { unreachable!("one for each type") };
        let attention = device.load("attention", &text("attention", ATTENTION)?)?;
        let of_kv = |ty: BlockType| {
            let name = ty.name().to_lowercase();
            let [a, b, c] = ATTENTION_HEADS
                .map(|heads| device.function(&attention, &format!("attention_{name}_{heads}")));
            let store = device.function(&attention, &format!("kv_store_{name}"))?;
            Ok(ByKvType { store, attention: [a?, b?, c?] })
        };
        let [f32, f16, bf16] = KV_TYPES.map(of_kv);
        let row = |name| device.function(&rows, name);
        Ok(Self {
            device: Arc::clone(device),
            by_type,
            rms_norm: row("rms_norm")?,
            layer_norm: row("layer_norm")?,
            rope: row("rope")?,
            add: row("add")?,
            glu: [row("swiglu")?, row("geglu_tanh")?, row("geglu_erf")?],
            by_kv_type: [f32?, f16?, bf16?],
            attention_merge: device.function(&attention, "attention_merge")?,
        })
    }

    /// The device that they are loaded on.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    pub(crate) fn of(&self, ty: BlockType) -> &ByType<D::Function> {
        let index = BLOCK_TYPES.iter().position(|&t| t == ty);
        &self.by_type[index.expect("matrices have these types only")]
    }

    pub(crate) fn of_kv(&self, ty: BlockType) -> &ByKvType<D::Function> {
        let index = KV_TYPES.iter().position(|&t| t == ty);
        &self.by_kv_type[index.expect("pages have these types only")]
    }

    /// Asserts that a buffer is on this device and has `n` words of four bytes.
    pub(crate) fn check(&self, what: &str, buffer: &Buffer<D>, n: usize) {
        assert!(Arc::ptr_eq(&self.device, buffer.device()), "{what} is on another device");
        assert!(buffer.n_bytes() / 4 >= n, "{what}: {} bytes for {n} words", buffer.n_bytes());
    }

    /// Queues a launch.
    ///
    /// # Safety
    /// As of [`Device::launch`].
    pub(crate) unsafe fn launch(
        &self,
        stream: &D::Stream,
        function: &D::Function,
        grid: [u32; 3],
        block: [u32; 2],
        arguments: &[Argument],
    ) -> Result<(), Error> {
        let launch = Launch { function, grid, block: [block[0], block[1], 1], arguments };
        // SAFETY: the caller's promise.
        unsafe { self.device.launch(stream, &launch) }
    }
}

/// An image as text.
fn text(name: &str, image: &[u8]) -> Result<String, Error> {
    let mut text = String::new();
    let read = GzDecoder::new(image).read_to_string(&mut text);
    let refused =
        |e: std::io::Error| Error::Kernel { kernel: name.to_owned(), reason: e.to_string() };
    read.map_err(refused)?;
    Ok(text)
}

/// Rows of F32 values in a buffer.
#[derive(Debug)]
pub struct Rows<'a, D: Device> {
    buffer: &'a Buffer<D>,
    offset: usize,
    n_rows: usize,
    n_cols: usize,
    stride: usize,
}

impl<D: Device> Clone for Rows<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Rows<'_, D> {}

impl<'a, D: Device> Rows<'a, D> {
    /// `n_rows` rows of `n_cols` values, the first of them `offset` values behind the buffer's start, each
    /// `stride` values behind the one in front of it.
    ///
    /// # Panics
    /// If they are not inside of the buffer, `n_cols` is zero or more than `stride`, or a number does not
    /// fit in 31 bits. `offset` and `stride` are multiples of 4, as kernels read 16 bytes at a time.
    pub fn new(
        buffer: &'a Buffer<D>,
        offset: usize,
        n_rows: usize,
        n_cols: usize,
        stride: usize,
    ) -> Self {
        assert!(offset.is_multiple_of(4) && stride.is_multiple_of(4), "{offset} and {stride}");
        assert!(n_rows > 0 && n_cols > 0 && n_cols <= stride, "{n_rows} rows of {n_cols}");
        assert!(n_rows <= i32::MAX as usize && stride <= i32::MAX as usize, "too many rows");
        let end = (n_rows - 1).checked_mul(stride).and_then(|n| n.checked_add(offset + n_cols));
        let n_bytes = end.and_then(|n| n.checked_mul(4));
        assert!(
            n_bytes.is_some_and(|n| n <= buffer.n_bytes()),
            "{n_rows} rows of {n_cols} values at {offset}, {stride} apart, in {} bytes",
            buffer.n_bytes()
        );
        Self { buffer, offset, n_rows, n_cols, stride }
    }

    /// One row that begins where the buffer does, such as the weights of a norm.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn vector(buffer: &'a Buffer<D>, n_cols: usize) -> Self {
        Self::new(buffer, 0, 1, n_cols, n_cols.next_multiple_of(4))
    }

    /// Rows that there are.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Values of a row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Asserts that they are on the device of the kernels and have a shape.
    pub(crate) fn check(&self, kernels: &Kernels<D>, what: &str, n_rows: usize, n_cols: usize) {
        kernels.check(what, self.buffer, 0);
        let found = (self.n_rows, self.n_cols);
        assert_eq!(found, (n_rows, n_cols), "rows and columns of {what}");
    }

    pub(crate) fn address(&self) -> Argument {
        Argument::Address(self.buffer.address() + 4 * self.offset as u64)
    }

    pub(crate) fn stride(&self) -> Argument {
        Argument::I32(self.stride as i32)
    }
}

/// Address and stride of rows that may be absent.
pub(crate) fn optional<D: Device>(rows: Option<Rows<'_, D>>) -> [Argument; 2] {
    rows.map_or([Argument::Address(0), Argument::I32(0)], |rows| [rows.address(), rows.stride()])
}
