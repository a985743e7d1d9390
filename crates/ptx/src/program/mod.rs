//! A kernel in the form that runs: registers as indices, branches as places, constants as registers.

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

/// A decoded kernel; device functions that it calls are part of its code.
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) code: Vec<Instruction>,
    pub(crate) n_w32: usize,
    pub(crate) n_w64: usize,
    pub(crate) n_predicates: usize,
    /// The names of the registers of which it is tracked whether they have a value.
    pub(crate) names: Vec<String>,
    /// Registers that hold a number from the start.
    pub(crate) constants: Vec<(Reg, Constant)>,
    /// Registers that hold what the thread is.
    pub(crate) specials: Vec<(Reg, Special)>,
    pub(crate) params: Vec<ParamLayout>,
    pub(crate) param_bytes: usize,
    /// Bytes of shared memory with a fixed size; the dynamic part follows.
    pub(crate) shared_bytes: usize,
    pub(crate) local_bytes: usize,
    /// The bytes of the smallest write to shared and to global memory, the unit of race checks.
    pub(crate) granules: [usize; 2],
    /// It has products of groups of warps.
    pub(crate) has_groups: bool,
    /// `.maxntid` or `.reqntid`, and whether it is exact.
    pub(crate) threads: Option<([u32; 3], bool)>,
}

impl Program {
    /// Without any code yet.
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

/// A number that a register holds from the start.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Constant {
    Value(u64),
    /// So many bytes after the start of a variable of the module, by its number.
    Variable(usize, i64),
}

impl Constant {
    /// The number, where the module's variables lie at `variables`.
    pub(crate) fn value(self, variables: &[u64]) -> u64 {
        match self {
            Self::Value(value) => value,
            Self::Variable(at, offset) => variables[at].wrapping_add_signed(offset),
        }
    }
}

/// Where a parameter of a kernel lies in the bytes that a launch passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamLayout {
    /// From the start of the parameters.
    pub offset: usize,
    /// The parameter's size.
    pub bytes: usize,
}

/// One instruction.
pub(crate) struct Instruction {
    pub(crate) line: u32,
    pub(crate) guard: Option<Guard>,
    pub(crate) op: Op,
    /// For counts.
    pub(crate) work: Work,
    /// Registers that must have a value, and that get one, by their number among those that are tracked.
    pub(crate) reads: Box<[u32]>,
    pub(crate) writes: Box<[u32]>,
    /// It has such registers.
    pub(crate) is_tracked: bool,
    /// A plain move: no value moves as well as a value.
    pub(crate) moves: bool,
}

/// The predicate in front of an instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guard {
    pub(crate) predicate: Reg,
    pub(crate) negated: bool,
}

/// What an instruction does.
pub(crate) enum Op {
    Lanes(LaneFn),
    Branch(usize),
    /// A jump by a table: the lane's index, the places.
    BranchTable(Reg, Box<[usize]>),
    Exit,
    Trap(&'static str),
    Access(Access),
    Atomic(Atomic),
    CopyAsync(CopyAsync),
    /// `cp.async.commit_group`.
    CommitCopies,
    /// `cp.async.wait_group n`; all of them where there is no number.
    WaitCopies(Option<u32>),
    Barrier(Barrier),
    /// On a barrier in shared memory.
    Mbarrier(Mbarrier),
    CopyBulk(CopyBulk),
    Wgmma(Wgmma),
    /// A fence in front of copies and products that the threads do not do themselves: of barriers in shared memory, and
    /// whether also of what was stored there.
    AsyncFence {
        stores: bool,
    },
    Collective(Collective),
    /// `activemask`.
    ActiveMask(Reg),
    Matrix(Matrix),
    /// A fence, and whether other blocks are in its scope.
    Fence(bool),
    Nothing,
    /// Waits for the launch in front of this one.
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

/// Which lanes a lane mask names, beside the lane itself.
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
