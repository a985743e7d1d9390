//! The compiled kernels as loaded on a device. Images of PTX are embedded in the crate; operations find kernels by
//! index, not by name.
//!
//! Each file holds the functions of one image or family of images, in a struct of its own.

mod attention;
mod elementwise;
mod embed;
mod experts;
mod kv_store;
mod lazy;
mod norm;
mod products;
mod quantize;
mod ranks;
mod recurrent;
mod rope;
mod round;
mod route;
mod shortlist;

pub use attention::AttentionArithmetic;
pub(crate) use attention::{DecodeKernel, HEAD_DIMS};
pub(crate) use elementwise::activation_argument;
pub(crate) use experts::{ExpertTypeKernels, PAIR_TILES};
pub(crate) use products::{
    INT8_COLS, INT8_TILE, LEVELS_FEW, LEVELS_SHARED, LEVELS_TILES, LevelsKernels, MATVEC_COLS,
    PARTS_FEW, PARTS_TILES, ProductKernels, TILES, Tile, enough_blocks, mixed_index,
};
pub use products::{takes_parts, takes_quantized};
pub(crate) use recurrent::KEY_PIECES;
pub(crate) use route::PER_LANE;

use std::cell::Cell;
use std::sync::Arc;

use realizar_quant::BlockType;

use crate::device::{Argument, Device, Launch};
use crate::{Buffer, Error, KvSpec};
use attention::{DecodeKernels, PrefillKernels};
use elementwise::ElementwiseKernels;
use embed::EmbedKernels;
use experts::ExpertKernels;
use kv_store::KvStoreKernels;
use norm::NormKernels;
use products::Products;
use quantize::QuantizeKernels;
use ranks::RankKernels;
use recurrent::RecurrentKernels;
use rope::RopeKernels;
use round::RoundKernels;
use route::RouteKernels;
use shortlist::ShortlistKernels;

thread_local! {
    /// Number of launches that this thread has queued.
    static LAUNCHES: Cell<u64> = const { Cell::new(0) };
}

/// The number of launches that this thread has queued or captured so far, on any device. The difference of two readings
/// is the number of launches of the operations between them.
pub fn launches_of_thread() -> u64 {
    LAUNCHES.get()
}

#[cfg(feature = "bench")]
thread_local! {
    /// Names of the kernels that this thread queues, while they are recorded.
    static NAMES: std::cell::RefCell<Option<Vec<String>>> = const { std::cell::RefCell::new(None) };
}

/// Runs `work` and returns the names of the kernels that it queued.
#[cfg(feature = "bench")]
pub(crate) fn launched_by<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let before = NAMES.replace(Some(Vec::new()));
    let result = work();
    (result, NAMES.replace(before).unwrap_or_default())
}

/// All kernels of a device.
#[derive(Debug)]
pub struct Kernels<D: Device> {
    device: Arc<D>,
    products: Products<D>,
    pub(crate) round: RoundKernels<D>,
    pub(crate) quantize: QuantizeKernels<D>,
    pub(crate) embed: EmbedKernels<D>,
    pub(crate) norm: NormKernels<D>,
    pub(crate) rope: RopeKernels<D>,
    pub(crate) elementwise: ElementwiseKernels<D>,
    pub(crate) kv_store: KvStoreKernels<D>,
    pub(crate) attention_decode: DecodeKernels<D>,
    pub(crate) recurrent: RecurrentKernels<D>,
    pub(crate) route: RouteKernels<D>,
    pub(crate) shortlist: ShortlistKernels<D>,
    pub(crate) attention_prefill: PrefillKernels<D>,
    pub(crate) experts: ExpertKernels<D>,
    pub(crate) ranks: RankKernels<D>,
}

impl<D: Device> Kernels<D> {
    /// Loads all kernels except those of products and attention, which [`prepare`](Self::prepare),
    /// [`prepare_experts`](Self::prepare_experts) and [`prepare_attention`](Self::prepare_attention) load by type. The
    /// driver compiles the images for its GPU and caches the result.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the device rejects one.
    pub fn load(device: &Arc<D>) -> Result<Self, Error> {
        Ok(Self {
            device: Arc::clone(device),
            products: Products::default(),
            round: RoundKernels::load(&**device)?,
            quantize: QuantizeKernels::load(&**device)?,
            embed: EmbedKernels::load(&**device)?,
            norm: NormKernels::load(&**device)?,
            rope: RopeKernels::load(&**device)?,
            elementwise: ElementwiseKernels::load(&**device)?,
            kv_store: KvStoreKernels::load(&**device)?,
            attention_decode: DecodeKernels::default(),
            recurrent: RecurrentKernels::load(&**device)?,
            route: RouteKernels::load(&**device)?,
            shortlist: ShortlistKernels::load(&**device)?,
            attention_prefill: PrefillKernels::default(),
            experts: ExpertKernels::load(&**device)?,
            ranks: RankKernels::load(&**device)?,
        })
    }

    /// Loads the kernels of products with matrices of a block type, unless they are loaded. Operations load them on
    /// first use, which must not happen while a stream is captured.
    ///
    /// # Errors
    /// [`Error::BlockType`] for a type without kernels, [`Error::Kernel`] if the device rejects one.
    pub fn prepare(&self, ty: BlockType) -> Result<(), Error> {
        self.of(ty)?;
        if mixed_index(ty).is_some() {
            self.mixed()?;
        }
        Ok(())
    }

    /// Loads the kernels of products with experts of a block type, unless they are loaded. Operations load them on
    /// first use, which must not happen while a stream is captured.
    ///
    /// # Errors
    /// [`Error::BlockType`] for a type without kernels, [`Error::Kernel`] if the device rejects one.
    pub fn prepare_experts(&self, ty: BlockType) -> Result<(), Error> {
        self.experts_of(ty).map(|_| ())
    }

    /// Loads the kernels of attention for pages of this shape, unless they are loaded: each type of keys and values has
    /// images of its own. Operations load them on first use, which must not happen while a stream is captured.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the device rejects one.
    pub fn prepare_attention(
        &self,
        spec: &KvSpec,
        arithmetic: AttentionArithmetic,
    ) -> Result<(), Error> {
        self.attention_decode.get(&self.device, spec, arithmetic)?;
        self.attention_prefill.get(&self.device, spec, arithmetic)?;
        Ok(())
    }

    /// The kernels of products with matrices of a block type.
    pub(crate) fn of(&self, ty: BlockType) -> Result<&ProductKernels<D>, Error> {
        self.products.of(&self.device, ty)
    }

    /// The kernels of products with matrices of several K types, one for each of [`INT8_COLS`].
    pub(crate) fn mixed(&self) -> Result<&[D::Function; INT8_COLS.len()], Error> {
        self.products.mixed(&self.device)
    }

    /// The kernels of products with experts of a block type.
    pub(crate) fn experts_of(&self, ty: BlockType) -> Result<&ExpertTypeKernels<D>, Error> {
        self.experts.of(&self.device, ty)
    }

    /// The device that holds the kernels.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// Asserts that a buffer is on this device and has at least `n` words of four bytes.
    pub(crate) fn check(&self, what: &str, buffer: &Buffer<D>, n: usize) {
        assert!(Arc::ptr_eq(&self.device, buffer.device()), "{what} is on another device");
        assert!(buffer.n_bytes() / 4 >= n, "{what}: {} bytes for {n} words", buffer.n_bytes());
    }

    /// Queues a launch.
    ///
    /// # Safety
    /// See [`Device::launch`].
    pub(crate) unsafe fn launch(
        &self,
        stream: &D::Stream,
        function: &D::Function,
        grid: [u32; 3],
        block: [u32; 2],
        arguments: &[Argument],
    ) -> Result<(), Error> {
        // SAFETY: as promised by the caller.
        unsafe { self.launch_with_shared(stream, function, grid, block, 0, arguments) }
    }

    /// Queues a launch with dynamic shared memory, which must be [allowed](Device::allow_shared) for the function.
    ///
    /// # Safety
    /// See [`Device::launch`].
    pub(crate) unsafe fn launch_with_shared(
        &self,
        stream: &D::Stream,
        function: &D::Function,
        grid: [u32; 3],
        block: [u32; 2],
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> Result<(), Error> {
        let (block, is_dependent) = ([block[0], block[1], 1], self.device.launches_early());
        let launch = Launch { function, grid, block, shared_bytes, is_dependent, arguments };
        LAUNCHES.set(LAUNCHES.get() + 1);
        #[cfg(feature = "bench")]
        NAMES.with_borrow_mut(|names| {
            if let Some(names) = names {
                names.push(format!("{function:?}"));
            }
        });
        // SAFETY: as promised by the caller.
        unsafe { self.device.launch(stream, &launch) }
    }
}
