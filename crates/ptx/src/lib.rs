//! An interpreter of PTX modules: it runs what a CUDA compiler made, on any machine, and reports
//! what kernels must not do.
//!
//! A [`Device`] loads modules, holds memory, and runs launches in the order of their streams. Grids run
//! with the semantics of the PTX ISA: warps of 32 threads with places of their own, shared memory,
//! barriers, collectives of the lanes that a mask names, asynchronous copies that write when they are
//! waited for, products of fragments. An opcode, modifier or type that is not known is an error when
//! the module is loaded, and names its line. What a launch does wrong ends it with a [`Fault`]: see
//! [`FaultKind`] for what is looked for.
//!
//! Results have the same bits in every run. They are those of a card, except for instructions whose
//! result PTX leaves open within bounds: approximate functions, and the order of sums in matrix
//! products.
//!
//! ```
//! use realizar_ptx::{Checks, Device, Launch};
//!
//! let ptx = ".version 8.0\n.target sm_80\n.address_size 64\n
//!     .visible .entry double_all(.param .u64 x) {
//!         .reg .b32 %r<3>; .reg .b64 %rd<4>;
//!         ld.param.u64 %rd1, [x];
//!         mov.u32 %r1, %tid.x;
//!         mad.wide.u32 %rd2, %r1, 4, %rd1;
//!         ld.global.u32 %r2, [%rd2];
//!         shl.b32 %r2, %r2, 1;
//!         st.global.u32 [%rd2], %r2;
//!         ret;
//!     }";
//! let mut device = Device::new(Checks::default());
//! let module = device.load(ptx)?;
//! let stream = device.stream();
//! let x = device.allocate(8)?;
//! device.copy_to_device(stream, x, &[1, 0, 0, 0, 2, 0, 0, 0])?;
//! device.launch(stream, &Launch {
//!     function: device.function(module, "double_all")?,
//!     grid: [1, 1, 1],
//!     block: [2, 1, 1],
//!     dynamic_shared: 0, is_dependent: false,
//!     arguments: &[&x.to_le_bytes()],
//! })?;
//! let mut out = [0; 8];
//! device.copy_to_host(stream, &mut out, x)?;
//! assert_eq!(out, [2, 0, 0, 0, 4, 0, 0, 0]);
//!
//! // A third thread would be outside of the allocation.
//! device.launch(stream, &Launch {
//!     function: device.function(module, "double_all")?,
//!     grid: [1, 1, 1],
//!     block: [3, 1, 1],
//!     dynamic_shared: 0, is_dependent: false,
//!     arguments: &[&x.to_le_bytes()],
//! })?;
//! let fault = device.synchronize(stream).unwrap_err().to_string();
//! assert!(fault.contains("thread (2, 0, 0)") && fault.contains("offset 8 of an allocation of 8 bytes"));
//! # Ok::<(), realizar_ptx::Error>(())
//! ```

mod decode;
mod device;
mod error;
mod exec;
mod fault;
mod module;
mod numeric;
mod program;
mod ranks;
mod streams;
mod syntax;

pub use device::{Address, Device, Function, FunctionInfo, Launch, ModuleId};
pub use error::Error;
pub use exec::counts::Counts;
pub use fault::{Fault, FaultKind};
pub use program::ParamLayout;
pub use ranks::Rank;
pub use streams::{Event, Graph, Stream};

/// What launches are checked for.
///
/// Always checked: accesses are inside of allocations and aligned, lanes arrive at collectives, threads at
/// barriers, numbers of lanes and barriers exist. What the others cost is in `docs/architecture.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// Report reads of registers and of shared memory that have no value yet.
    pub uninitialised: bool,
    /// Report races in shared memory.
    pub shared_races: bool,
    /// Report races in global memory. Threads of two blocks that have both run a fence for the whole
    /// device are taken to have agreed on an order.
    pub global_races: bool,
    /// Allow atomic additions of floats, whose results depend on the order of threads.
    pub float_atomics: bool,
    /// A barrier does not wait for threads that have exited. Cards behave so; PTX does not promise it.
    pub exited_threads_leave_barriers: bool,
    /// The maximum number of instructions of warps that one launch may run.
    pub max_instructions: u64,
}

impl Checks {
    /// Everything, for tests of kernels.
    pub const ALL: Self = Self {
        uninitialised: true,
        shared_races: true,
        global_races: true,
        float_atomics: false,
        exited_threads_leave_barriers: false,
        max_instructions: 1 << 40,
    };

    /// Everything but races, for runs of whole models through kernels whose tests look for them.
    pub const FAST: Self = Self { shared_races: false, global_races: false, ..Self::ALL };
}

impl Default for Checks {
    fn default() -> Self {
        Self::ALL
    }
}

/// What ran on a device so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Grids.
    pub launches: u64,
    /// Instructions, counted once for all threads of a warp that run them together.
    pub instructions: u64,
    /// Instructions of threads.
    pub thread_instructions: u64,
}
