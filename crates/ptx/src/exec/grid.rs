//! A launch: the blocks of a grid, one after another, in the order of their numbers.

use crate::fault::Fault;
use crate::{Checks, Statistics};

use super::block::{Context, Warp};
use super::collective::Barriers;
use super::counts::Counter;
use super::lanes::LANES;
use super::mbarrier::Phases;
use super::memory::{Memory, Shared};
use super::program::Program;
use super::races::Clocks;

/// The sizes of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: usize,
    /// Static and dynamic.
    pub(crate) shared_bytes: usize,
}

impl Shape {
    /// The threads of a block.
    pub(crate) fn threads(&self) -> usize {
        self.block.iter().map(|&n| n as usize).product()
    }

    fn blocks(&self) -> usize {
        self.grid.iter().map(|&n| n as usize).product()
    }

    /// The x, y and z of a number.
    pub(super) fn split(number: usize, size: [u32; 3]) -> [u32; 3] {
        let [x, y, _] = size.map(|n| n as usize);
        [number % x, number / x % y, number / x / y].map(|n| n as u32)
    }
}

/// Runs a grid.
pub(crate) fn launch(
    (program, variables): (&Program, &[u64]),
    memory: &mut Memory,
    params: &[u8],
    shape: Shape,
    checks: &Checks,
    (number, is_dependent): (u64, bool),
    counter: Option<&mut Counter>,
) -> Result<Statistics, Box<Fault>> {
    let mut warps: Vec<Warp> = (0..shape.threads().div_ceil(LANES))
        .map(|idx| Warp::new(idx, program, variables, &shape))
        .collect();
    let mut fenced = vec![false; shape.blocks()];
    let mut context = Context {
        program,
        checks,
        memory,
        params,
        shared: Shared::default(),
        clocks: Clocks::default(),
        barriers: Barriers::default(),
        phases: Phases::default(),
        hints: vec![u32::MAX; program.code.len()],
        fenced: &mut fenced,
        launch: number,
        is_dependent,
        shape,
        block: 0,
        at: 0,
        executed: [0; 2],
        counter,
    };
    for block in 0..shape.blocks() {
        context.run(&mut warps, block)?;
    }
    let [instructions, thread_instructions] = context.executed;
    Ok(Statistics { launches: 1, instructions, thread_instructions })
}
