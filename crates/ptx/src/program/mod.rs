//! Decoded kernels: registers and branch targets are indices, and constants are registers.

pub(crate) mod access;
pub(crate) mod collective;
pub(crate) mod lanes;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod wgmma;
pub(crate) mod wide;
pub(crate) mod work;

use self::access::{Access, Atomic, CopyAsync};
use self::collective::{Barrier, Collective};
use self::lanes::{LaneFn, Reg};
use self::matrix::Matrix;
use self::mbarrier::{CopyBulk, Mbarrier};
use self::wgmma::Wgmma;
use self::work::Work;

/// A decoded kernel, with the device functions that it calls inlined.
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) code: Vec<Instruction>,
    pub(crate) n_w32: usize,
    pub(crate) n_w64: usize,
    pub(crate) n_predicates: usize,
    /// Names of the tracked registers.
    pub(crate) names: Vec<String>,
    /// Registers with an initial value.
    pub(crate) constants: Vec<(Reg, Constant)>,
    /// Registers that hold special registers.
    pub(crate) specials: Vec<(Reg, Special)>,
    pub(crate) params: Vec<ParamLayout>,
    pub(crate) param_bytes: usize,
    /// Bytes of static shared memory. Dynamic shared memory follows.
    pub(crate) shared_bytes: usize,
    pub(crate) local_bytes: usize,
    /// Bytes of the smallest write to shared and to global memory, the granularity of race checks.
    pub(crate) granules: [usize; 2],
    /// Whether it contains warp-group products.
    pub(crate) has_groups: bool,
    /// `.maxntid` or `.reqntid`, and whether it is exact.
    pub(crate) threads: Option<([u32; 3], bool)>,
}

impl Program {
    /// A program without code.
    pub(crate) fn new(name: String, threads: Option<([u32; 3], bool)>) -> Self {
        Self {
            name,
            code: Vec::new(),
            n_w32: 0,
            n_w64: 0,
            n_predicates: 0,
            names: Vec::new(),
            constants: Vec::new(),
            specials: Vec::new(),
            params: Vec::new(),
            param_bytes: 0,
            shared_bytes: 0,
            local_bytes: 0,
            granules: [4; 2],
            has_groups: false,
            threads,
        }
    }
}

/// The initial value of a register.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Constant {
    Value(u64),
    /// A byte offset from a variable of the module, given by its number.
    Variable(usize, i64),
}

impl Constant {
    /// The value, given the addresses of the module's variables.
    pub(crate) fn value(self, variables: &[u64]) -> u64 {
        match self {
            Self::Value(value) => value,
            Self::Variable(at, offset) => variables[at].wrapping_add_signed(offset),
        }
    }
}

/// Location of a kernel parameter in the parameter memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamLayout {
    /// Byte offset in the parameter memory.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
}

/// An instruction.
pub(crate) struct Instruction {
    pub(crate) line: u32,
    pub(crate) guard: Option<Guard>,
    pub(crate) op: Op,
    /// Its arithmetic, for counts.
    pub(crate) work: Work,
    /// Tracked registers that must be defined, and that the instruction defines.
    pub(crate) reads: Box<[u32]>,
    pub(crate) writes: Box<[u32]>,
    /// Whether there are such registers.
    pub(crate) is_tracked: bool,
    /// Whether it is a plain move, which may move an undefined value.
    pub(crate) moves: bool,
}

/// The predicate of an instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guard {
    pub(crate) predicate: Reg,
    pub(crate) negated: bool,
}

/// The operation of an instruction.
pub(crate) enum Op {
    Lanes(LaneFn),
    Branch(usize),
    /// An indexed jump: the register of the index, and the targets.
    BranchTable(Reg, Box<[usize]>),
    Exit,
    Trap(&'static str),
    Access(Access),
    Atomic(Atomic),
    CopyAsync(CopyAsync),
    /// `cp.async.commit_group`.
    CommitCopies,
    /// `cp.async.wait_group n`; `wait_all` without a number.
    WaitCopies(Option<u32>),
    Barrier(Barrier),
    /// An operation on a barrier in shared memory.
    Mbarrier(Mbarrier),
    CopyBulk(CopyBulk),
    Wgmma(Wgmma),
    /// A fence for asynchronous copies and products: for barriers in shared memory, and optionally for stores.
    AsyncFence {
        stores: bool,
    },
    Collective(Collective),
    /// `activemask`.
    ActiveMask(Reg),
    Matrix(Matrix),
    /// A fence, and whether its scope includes other blocks.
    Fence(bool),
    Nothing,
    /// Waits for the launch before this one.
    WaitForLaunch,
}

/// A special register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
    Warp,
    Warps,
    LaneMask(Order),
    DynamicShared,
    TotalShared,
}

/// The lanes of a lane mask register, relative to the own lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Special {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (base, axis) = name.split_once('.').unwrap_or((name, ""));
        let axis = match axis {
            "x" => Some(0),
            "y" => Some(1),
            "z" => Some(2),
            _ => None,
        };
        Some(match (base, axis) {
            ("%tid", Some(axis)) => Self::Tid(axis),
            ("%ntid", Some(axis)) => Self::Ntid(axis),
            ("%ctaid", Some(axis)) => Self::Ctaid(axis),
            ("%nctaid", Some(axis)) => Self::Nctaid(axis),
            ("%laneid", None) => Self::Lane,
            ("%warpid", None) => Self::Warp,
            ("%nwarpid", None) => Self::Warps,
            ("%lanemask_eq", None) => Self::LaneMask(Order::Equal),
            ("%lanemask_lt", None) => Self::LaneMask(Order::Less),
            ("%lanemask_le", None) => Self::LaneMask(Order::LessOrEqual),
            ("%lanemask_gt", None) => Self::LaneMask(Order::Greater),
            ("%lanemask_ge", None) => Self::LaneMask(Order::GreaterOrEqual),
            ("%dynamic_smem_size", None) => Self::DynamicShared,
            ("%total_smem_size", None) => Self::TotalShared,
            _ => return None,
        })
    }
}
