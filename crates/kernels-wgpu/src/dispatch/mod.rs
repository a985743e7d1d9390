//! Shaders, kernels bound to buffers, the rows that they work on, command buffers, and timing.

mod kernel;
mod recorder;
mod rows;
pub mod shader;
mod timer;

pub use kernel::{Grid, Kernel};
pub use recorder::Recorder;
pub use rows::{Rows, RowsAt, View};
pub use timer::Timer;
