//! An interpreter of PTX modules: it runs the output of CUDA compilers on any machine and reports errors of kernels.
//!
//! A [`Device`] loads modules, allocates memory, and runs launches in the order of their streams. Grids run with the
//! semantics of the PTX ISA: warps of 32 threads that diverge and reconverge, shared memory, barriers, collectives of
//! masked lanes, asynchronous copies that complete when they are waited for, and matrix products of fragments. An
//! unsupported opcode, modifier or type is an error when the module is loaded, with its line. An error of a launch ends
//! it with a [`Fault`]; [`FaultKind`] lists the errors that are detected.
//!
//! Results have the same bits in every run. They equal those of a GPU, except where PTX leaves a result open within
//! bounds: approximate functions, and the order of sums in matrix products.
//!
//! | modules | what they hold |
//! |---|---|
//! | `syntax`, `module` | words, statements and functions of a module, with their lines; modules parsed once per process |
//! | `decode` | from a statement to an instruction, a file per family; calls become the bodies of their functions |
//! | `program` | decoded kernels, and functions of 32 lanes |
//! | `exec` | warps, barriers, memory and its checks, asynchronous copies and products, which complete at the latest moment that PTX allows |
//! | `numeric` | rounding, formats of 16 and 8 bits, approximate functions |
//! | `device`, `streams`, `ranks` | memory, launches, streams, events, recorded graphs and exchanges, with the calls of a driver |
//!
//! Nothing that ships depends on this crate, except through features that are off by default.
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

/// Optional checks of launches.
///
/// Always checked: accesses are aligned and inside allocations, lanes arrive at collectives, threads at barriers, and
/// lane and barrier numbers exist. The cost of the optional checks, in millions of warp instructions per second on one
/// core of an EPYC 9004 (`tests/it/bench.rs`):
///
/// | checked | product of Q8 weights by dp4a | softmax of rows |
/// |---|---|---|
/// | all | 8.2 | 17 |
/// | all but races in shared memory | 8.7 | 18 |
/// | all but races in global memory | 18 | 37 |
/// | no races | 19 | 38 |
/// | no races, no uninitialized reads | 19 | 38 |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// Report reads of uninitialized registers and shared memory.
    pub uninitialised: bool,
    /// Report races in shared memory.
    pub shared_races: bool,
    /// Report races in global memory. Two blocks that have both run a fence for the whole device are considered
    /// ordered.
    pub global_races: bool,
    /// Allow float atomic additions, whose results depend on the order of threads.
    pub float_atomics: bool,
    /// Barriers do not wait for threads that have exited. GPUs behave so, but PTX does not guarantee it.
    pub exited_threads_leave_barriers: bool,
    /// The maximum number of warp instructions per launch.
    pub max_instructions: u64,
}

impl Checks {
    /// All checks, for tests of kernels.
    pub const ALL: Self = Self {
        uninitialised: true,
        shared_races: true,
        global_races: true,
        float_atomics: false,
        exited_threads_leave_barriers: false,
        max_instructions: 1 << 40,
    };

    /// All checks except races, for whole models whose kernels have tests of their own.
    pub const FAST: Self = Self { shared_races: false, global_races: false, ..Self::ALL };
}

impl Default for Checks {
    fn default() -> Self {
        Self::ALL
    }
}

/// Statistics of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Number of launches.
    pub launches: u64,
    /// Warp instructions: counted once for all threads that run them together.
    pub instructions: u64,
    /// Thread instructions.
    pub thread_instructions: u64,
}
