//! A device under measurement: its kernels, memory filled with realistic values, and the names of the kernels that an
//! operation launches.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::thread;

use realizar_quant::BlockType;

use super::case::{Case, Form, Op};
use super::random::Random;
use super::shape::Sizes;
use crate::device::{Device, Driver, Interpreter};
use crate::kernels::launched_by;
use crate::{
    AttentionArithmetic, BenchError, Buffer, Error, Kernels, KvSpec, Matrix, WgmmaKernels,
    pack_rows, packed_row_bytes,
};

/// Positions of a page, as in the runtime.
pub(super) const PAGE_LEN: usize = 32;
/// Distinct rows of weights, and rows that are uploaded. The remaining rows are copies made on the device.
const DISTINCT_ROWS: usize = 16;
const UPLOADED_ROWS: usize = 256;
/// Period of the pattern that activations and results repeat.
pub(super) const DISTINCT_VALUES: usize = 1 << 16;

/// A device on which kernels are measured, or only run.
pub(super) trait Target: Device {
    /// Whether it is a GPU. On other devices times are meaningless.
    const IS_GPU: bool;

    /// Checks that the device has the instructions of [`WgmmaKernels`].
    fn check_wgmma(&self) -> Result<(), Error>;

    /// Runs work and returns the names of the kernels that it launched.
    fn launched(
        &self,
        stream: &Self::Stream,
        work: &dyn Fn() -> Result<(), Error>,
    ) -> Result<Vec<String>, Error>;
}

impl Target for Driver {
    const IS_GPU: bool = true;

    fn check_wgmma(&self) -> Result<(), Error> {
        self.check_wgmma()
    }

    fn launched(
        &self,
        stream: &Self::Stream,
        work: &dyn Fn() -> Result<(), Error>,
    ) -> Result<Vec<String>, Error> {
        let (done, names) = launched_by(work);
        done?;
        self.synchronize(stream)?;
        Ok(names)
    }
}

impl Target for Interpreter {
    const IS_GPU: bool = false;

    /// The copying warp group has threads that end without a wait, which a GPU allows and the interpreter reports.
    fn check_wgmma(&self) -> Result<(), Error> {
        if self.launches_early() {
            let (kernel, reason) = ("wgmma".to_owned(), "some threads do not wait".to_owned());
            return Err(Error::Kernel { kernel, reason });
        }
        Ok(())
    }

    fn launched(
        &self,
        stream: &Self::Stream,
        work: &dyn Fn() -> Result<(), Error>,
    ) -> Result<Vec<String>, Error> {
        self.synchronize(stream)?;
        self.start_counting();
        work()?;
        self.synchronize(stream)?;
        Ok(self.take_counts().into_iter().map(|counts| counts.kernel).collect())
    }
}

/// Packed rows of weights by type, number of columns and number of rows.
type Packed = RefCell<HashMap<(BlockType, usize, usize), Rc<Vec<u8>>>>;

/// Kernels on a device, with plain or with dependent launches.
pub(super) struct Bench<D: Target> {
    pub(super) device: Arc<D>,
    pub(super) kernels: Arc<Kernels<D>>,
    /// Whether the device has the instructions of `wgmma`.
    has_wgmma: bool,
    wgmma: OnceLock<WgmmaKernels<D>>,
    pub(super) stream: D::Stream,
    pub(super) sizes: Sizes,
    packed: Packed,
}

impl<D: Target> Bench<D> {
    pub(super) fn new(device: D, sizes: &Sizes) -> Result<Self, Error> {
        let device = Arc::new(device);
        let kernels = Arc::new(Kernels::load(&device)?);
        let (stream, has_wgmma) = (device.stream()?, device.check_wgmma().is_ok());
        let (wgmma, packed) = (OnceLock::new(), RefCell::default());
        Ok(Self { device, kernels, has_wgmma, wgmma, stream, sizes: sizes.clone(), packed })
    }

    /// How launches relate to the launch before them, as named in the rows.
    pub(super) fn launch_mode(&self) -> &'static str {
        if self.device.launches_early() { "dependent" } else { "plain" }
    }

    /// Whether the device can run a case.
    pub(super) fn has_kernels(&self, case: &Case) -> bool {
        case.form != Form::Wgmma || self.has_wgmma
    }

    /// The `wgmma` kernels, which [`Self::prepare`] has loaded.
    pub(super) fn wgmma(&self) -> &WgmmaKernels<D> {
        self.wgmma.get().expect("the cases that take them were prepared")
    }

    /// Loads the kernels of the cases, each image in its own thread because the driver may have to compile it.
    pub(super) fn prepare(&self, cases: &[&Case]) -> Result<(), Error> {
        let (mut types, mut of_experts, mut specs) = (Vec::new(), Vec::new(), Vec::new());
        for case in cases {
            let to = if case.op.is_of_experts() { &mut of_experts } else { &mut types };
            to.extend(
                case.types
                    .iter()
                    .copied()
                    .filter(|_| case.op.is_product() || case.op.is_of_experts()),
            );
            if case.op == Op::Attention {
                specs.push(self.kv_spec(case, 1));
            }
        }
        for types in [&mut types, &mut of_experts] {
            types.sort_unstable_by_key(|ty| ty.name());
            types.dedup();
        }
        specs.dedup();
        let by_wgmma = cases.iter().any(|case| case.form == Form::Wgmma);
        let (kernels, device, wgmma) = (&*self.kernels, &*self.device, &self.wgmma);
        thread::scope(|scope| {
            let types = types.into_iter().map(|ty| scope.spawn(move || kernels.prepare(ty)));
            let types: Vec<_> = types.collect();
            let experts = of_experts.into_iter();
            let experts: Vec<_> =
                experts.map(|ty| scope.spawn(move || kernels.prepare_experts(ty))).collect();
            let attention = specs.into_iter().map(|spec| {
                scope.spawn(move || kernels.prepare_attention(&spec, AttentionArithmetic::Tensor))
            });
            let attention: Vec<_> = attention.collect();
            let load = move || {
                WgmmaKernels::load(device).map(|loaded| {
                    wgmma.get_or_init(|| loaded);
                })
            };
            let by_wgmma = by_wgmma.then(|| scope.spawn(load));
            let mut all = types.into_iter().chain(experts).chain(attention).chain(by_wgmma);
            all.try_for_each(|thread| thread.join().expect("no thread panics"))
        })
    }

    /// The F16 keys and values of an attention or key-value store case.
    pub(super) fn kv_spec(&self, case: &Case, n_pages: usize) -> KvSpec {
        KvSpec {
            ty: BlockType::F16,
            n_kv_heads: case.shape.n_kv_heads,
            head_dim: case.shape.head_dim,
            page_len: PAGE_LEN,
            n_pages,
            values_are_keys: false,
        }
    }

    /// Number of copies of `n_bytes` over which launches rotate, so that each reads from memory instead of a cache.
    pub(super) fn n_copies(&self, n_bytes: usize) -> usize {
        self.sizes.rotated_bytes.div_ceil(n_bytes.max(1)).max(1)
    }

    /// Fills memory with a pattern, which is uploaded once and repeated by copies on the device.
    pub(super) fn fill(&self, buffer: &Buffer<D>, pattern: &[u8]) -> Result<(), Error> {
        let n_bytes = buffer.n_bytes();
        let mut done = pattern.len().min(n_bytes);
        buffer.write(&self.stream, 0, &pattern[..done])?;
        while done < n_bytes {
            let n = done.min(n_bytes - done);
            let at = buffer.address();
            // SAFETY: both ranges lie inside the buffer, and the second begins at or after the end of the first.
            unsafe { self.device.copy(&self.stream, at + done as u64, at, n) }?;
            done += n;
        }
        Ok(())
    }

    /// `n` values from -1 to 1.
    pub(super) fn values(&self, n: usize) -> Result<Buffer<D>, Error> {
        let buffer = Buffer::new(&self.device, "activations", 4 * n)?;
        let values = Random(11).floats(DISTINCT_VALUES.min(n));
        self.fill(&buffer, bytemuck::cast_slice(&values))?;
        Ok(buffer)
    }

    /// A buffer for `n` results, filled with NaN.
    pub(super) fn results(&self, n: usize) -> Result<Buffer<D>, Error> {
        let buffer = Buffer::new(&self.device, "results", 4 * n)?;
        self.fill(&buffer, &vec![0xff; 4 * DISTINCT_VALUES.min(n)])?;
        Ok(buffer)
    }

    /// A list of numbers on the device.
    pub(super) fn numbers(&self, numbers: &[u32]) -> Result<Buffer<D>, Error> {
        Buffer::with(&self.device, &self.stream, "a list", numbers)
    }

    /// A matrix of random weights.
    pub(super) fn matrix(
        &self,
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Matrix<D>, BenchError> {
        let matrix = Matrix::new(&self.device, "weights", ty, n_rows, n_cols)?;
        let n = n_rows.min(UPLOADED_ROWS);
        matrix.write_rows(&self.stream, 0, &self.packed(ty, n, n_cols)?)?;
        matrix.repeat_rows(&self.stream, n)?;
        Ok(matrix)
    }

    /// Copies of a case's matrices, over which its launches rotate.
    pub(super) fn copies(&self, case: &Case) -> Result<Vec<Vec<Matrix<D>>>, BenchError> {
        let of = |(ty, n)| self.matrix(ty, n, case.n_cols());
        let make = |_| case.matrices().into_iter().map(of).collect();
        (0..self.n_copies(case.weight_bytes())).map(make).collect()
    }

    /// The packed distinct rows of a matrix.
    fn packed(
        &self,
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Rc<Vec<u8>>, BenchError> {
        let key = (ty, n_rows, n_cols);
        if let Some(found) = self.packed.borrow().get(&key) {
            return Ok(Rc::clone(found));
        }
        let wrong = |e: realizar_quant::Error| Error::Matrix {
            what: "weights".to_owned(),
            message: e.to_string(),
        };
        let row_bytes = ty.row_bytes(n_cols).map_err(wrong)?;
        let n = n_rows.min(DISTINCT_ROWS);
        let mut rows = vec![0; n * row_bytes];
        let mut random = Random(7 + n_cols as u64);
        for row in rows.chunks_exact_mut(row_bytes) {
            // Keeps sums of products in the range of activations.
            let values: Vec<f32> =
                (0..n_cols).map(|_| random.float() / (n_cols as f32).sqrt()).collect();
            realizar_quant::quantize(ty, &values, row).map_err(wrong)?;
        }
        let all: Vec<u8> = rows.iter().copied().cycle().take(n_rows * row_bytes).collect();
        let mut packed = vec![0; n_rows * packed_row_bytes(ty, n_cols)];
        pack_rows(ty, n_cols, &all, &mut packed);
        let packed = Rc::new(packed);
        self.packed.borrow_mut().insert(key, Rc::clone(&packed));
        Ok(packed)
    }

    /// Random F16 values as bytes, for keys and values.
    pub(super) fn f16_pattern(&self) -> Vec<u8> {
        let values = Random(13).floats(DISTINCT_VALUES);
        values.iter().flat_map(|&x| realizar_quant::half_bytes::f32_to_f16(x)).collect()
    }
}
