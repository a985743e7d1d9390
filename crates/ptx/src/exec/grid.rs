//! Execution of a launch: the blocks of a grid, one after another in ascending order.

use super::barriers::Barriers;
use super::counts::Counter;
use super::memory::{Memory, Shared};
use super::phases::Phases;
use super::races::Clocks;
use super::state::{Context, Shape, Warp};
use crate::fault::Fault;
use crate::program::Program;
use crate::program::lanes::LANES;
use crate::{Checks, Statistics};

/// A launch with its inputs.
pub(crate) struct Grid<'a> {
    pub(crate) program: &'a Program,
    /// Addresses of the module's variables.
    pub(crate) variables: &'a [u64],
    pub(crate) params: &'a [u8],
    pub(crate) shape: Shape,
    /// Number of the launch on its device.
    pub(crate) number: u64,
    pub(crate) is_dependent: bool,
}

/// Runs a grid.
pub(crate) fn launch(
    grid: &Grid<'_>,
    memory: &mut Memory,
    checks: &Checks,
    counter: Option<&mut Counter>,
) -> Result<Statistics, Box<Fault>> {
    let &Grid { program, variables, params, shape, number, is_dependent } = grid;
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
