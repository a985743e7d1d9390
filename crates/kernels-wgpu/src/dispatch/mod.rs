//! From a shader to work on the device: kernels bound to their buffers, which rows they work on,
//! command buffers, and the time that each run takes.

mod kernel;
mod recorder;
mod rows;
pub mod shader;
mod timer;

pub use kernel::{Grid, Kernel};
pub use recorder::Recorder;
pub use rows::{Rows, RowsAt, View};
pub use timer::Timer;
