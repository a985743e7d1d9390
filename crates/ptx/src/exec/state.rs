//! State of a launch: its dimensions, the warps of a block, and the state that these share.

use super::barriers::Barriers;
use super::counts::Counter;
use super::memory::{Memory, Shared};
use super::phases::Phases;
use super::products::Products;
use super::races::Clocks;
use crate::Checks;
use crate::fault::{FaultKind, LaneFault};
use crate::program::lanes::{LANES, Registers};
use crate::program::{Order, Program, Special};

/// Dimensions of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: usize,
    /// Static and dynamic.
    pub(crate) shared_bytes: usize,
}

impl Shape {
    /// Threads per block.
    pub(crate) fn threads(&self) -> usize {
        self.block.iter().map(|&n| n as usize).product()
    }

    pub(super) fn blocks(&self) -> usize {
        self.grid.iter().map(|&n| n as usize).product()
    }

    /// Splits a linear index into x, y and z.
    pub(super) fn split(number: usize, size: [u32; 3]) -> [u32; 3] {
        let [x, y, _] = size.map(|n| n as usize);
        [number % x, number / x % y, number / x / y].map(|n| n as u32)
    }
}

/// Threads of a warp that are at the same instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    pub(super) at: usize,
    pub(super) mask: u32,
    pub(super) wait: Wait,
    /// The turn of the warp in which it last ran.
    pub(super) turn: u64,
}

/// The event that a split waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    /// For other lanes of the warp.
    Lanes,
    /// For other threads of the block, at this barrier.
    Barrier(usize),
    /// For a phase of a barrier in shared memory.
    Phase,
}

/// A `cp.async` of a warp in flight.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    /// The lanes that have not waited for it.
    pub(super) mask: u32,
    /// For each lane the group, the offset in shared memory and the data.
    pub(super) groups: [u32; LANES],
    pub(super) offsets: [usize; LANES],
    pub(super) bytes: usize,
    pub(super) data: [[u8; 16]; LANES],
}

/// A warp of 32 threads.
#[derive(Debug, Default)]
pub(crate) struct Warp {
    pub(super) idx: usize,
    pub(super) registers: Registers,
    pub(super) splits: Vec<Split>,
    /// Lanes that hold a thread that has not exited.
    pub(super) alive: u32,
    /// Lanes that still have to wait for the launch before.
    pub(super) early: u32,
    /// Local memory of the threads, one after another.
    pub(super) local: Vec<u8>,
    /// Copies in flight, and each lane's current group.
    pub(super) copies: Vec<Pending>,
    pub(super) groups: [u32; LANES],
    /// Warp-group products in flight.
    pub(super) products: Products,
    pub(super) turns: u64,
    /// Whether a split has used up its slice, so that the least recently run split is next.
    pub(super) yields: bool,
}

/// The state that the warps of a block share.
pub(crate) struct Context<'a> {
    pub(super) program: &'a Program,
    pub(super) checks: &'a Checks,
    pub(super) memory: &'a mut Memory,
    pub(super) params: &'a [u8],
    pub(super) shared: Shared,
    pub(super) clocks: Clocks,
    pub(super) barriers: Barriers,
    pub(super) phases: Phases,
    /// For each instruction, the allocation that it used last.
    pub(super) hints: Vec<u32>,
    /// For each block of the grid, whether it has run a fence for the device.
    pub(super) fenced: &'a mut [bool],
    /// Number of the launch.
    pub(super) launch: u64,
    /// Whether the launch may start before the launch before it has ended.
    pub(super) is_dependent: bool,
    pub(super) shape: Shape,
    pub(super) block: usize,
    /// Index of the current instruction.
    pub(super) at: usize,
    /// Executed warp instructions and thread instructions.
    pub(super) executed: [u64; 2],
    pub(super) counter: Option<&'a mut Counter>,
}

impl Warp {
    /// Creates a warp with registers for a program.
    pub(crate) fn new(idx: usize, program: &Program, variables: &[u64], shape: &Shape) -> Self {
        let mut registers = Registers {
            w32: vec![[0; LANES]; program.n_w32],
            w64: vec![[0; LANES]; program.n_w64],
            predicates: vec![0; program.n_predicates],
            defined: vec![0; program.names.len()],
        };
        for &(reg, constant) in &program.constants {
            let value = constant.value(variables);
            (0..LANES).for_each(|lane| registers.set_lane(reg, lane, value));
        }
        let mut warp = Self { idx, registers, ..Self::default() };
        // Special registers that do not depend on the block.
        for &(reg, special) in &program.specials {
            let values: [u32; LANES] =
                std::array::from_fn(|lane| warp.special(special, shape, 0, lane));
            warp.registers.set_word(reg, u32::MAX, &values);
        }
        warp
    }

    /// Prepares the warp for a new block.
    pub(super) fn start(
        &mut self,
        program: &Program,
        shape: &Shape,
        block: usize,
        is_dependent: bool,
    ) {
        let threads = shape.threads();
        let n = threads.saturating_sub(self.idx * LANES).min(LANES);
        self.alive = if n == LANES { u32::MAX } else { (1 << n) - 1 };
        self.early = if is_dependent { self.alive } else { 0 };
        self.splits.clear();
        self.splits.push(Split { at: 0, mask: self.alive, wait: Wait::Nothing, turn: 0 });
        self.registers.defined.fill(0);
        for &(reg, special) in &program.specials {
            if let Special::Ctaid(axis) = special {
                let value = Shape::split(block, shape.grid)[axis];
                self.registers.set_word(reg, u32::MAX, &[value; LANES]);
            }
        }
        self.local.clear();
        self.local.resize(program.local_bytes * LANES, 0xcd);
        self.copies.clear();
        self.groups = [0; LANES];
        self.products = Products::default();
        self.yields = false;
    }

    fn special(&self, special: Special, shape: &Shape, block: usize, lane: usize) -> u32 {
        let lower = (1u32 << lane) - 1;
        match special {
            Special::Tid(axis) => Shape::split(self.idx * LANES + lane, shape.block)[axis],
            Special::Ntid(axis) => shape.block[axis],
            Special::Ctaid(axis) => Shape::split(block, shape.grid)[axis],
            Special::Nctaid(axis) => shape.grid[axis],
            Special::Lane => lane as u32,
            Special::Warp => self.idx as u32,
            Special::Warps => shape.threads().div_ceil(LANES) as u32,
            Special::LaneMask(Order::Equal) => 1 << lane,
            Special::LaneMask(Order::Less) => lower,
            Special::LaneMask(Order::LessOrEqual) => lower | 1 << lane,
            Special::LaneMask(Order::Greater) => !(lower | 1 << lane),
            Special::LaneMask(Order::GreaterOrEqual) => !lower,
            Special::DynamicShared => shape.dynamic_shared as u32,
            Special::TotalShared => shape.shared_bytes as u32,
        }
    }

    /// Adds a split at an instruction.
    pub(super) fn put(&mut self, at: usize, mask: u32, wait: Wait) {
        if mask != 0 {
            self.splits.push(Split { at, mask, wait, turn: self.turns });
        }
    }

    /// Wakes lanes that wait for others of their warp.
    pub(super) fn wake(&mut self) {
        for split in self.splits.iter_mut().filter(|s| s.wait == Wait::Lanes) {
            split.wait = Wait::Nothing;
        }
    }

    /// Takes the split to run next.
    pub(super) fn take(&mut self) -> Option<Split> {
        let runnable = self.splits.iter().enumerate().filter(|(_, s)| s.wait == Wait::Nothing);
        let at = if self.yields {
            runnable.min_by_key(|(_, s)| s.turn)
        } else {
            runnable.min_by_key(|(_, s)| s.at)
        };
        let at = at?.0;
        Some(self.splits.swap_remove(at))
    }

    /// Takes the lanes that are at instruction `at` out of their splits.
    pub(super) fn join(&mut self, at: usize) -> u32 {
        let mut mask = 0;
        self.splits.retain(|s| {
            let meets = s.at == at && !matches!(s.wait, Wait::Barrier(_));
            mask |= if meets { s.mask } else { 0 };
            !meets
        });
        mask
    }
}

/// Checks that no lane of `early` does `what` before it has waited for the launch before.
pub(super) fn check_waited(early: u32, what: &str) -> Result<(), LaneFault> {
    if early == 0 {
        return Ok(());
    }
    let message = format!("{what} before it has waited for the launch in front of this one");
    Err(LaneFault::new(FaultKind::Dependence, early.trailing_zeros() as usize, message))
}
