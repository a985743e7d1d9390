//! A loaded model that computes rows: from a device's name to a backend, from a checkpoint to the
//! parts of a model on their backends, and from chunks of sequences to rows of output.

pub mod device;
mod model;
mod placement;
mod runner;

pub use model::{DEFAULT_MAX_SEQ_LEN, LoadOptions, Model};
pub use placement::{LayerSplit, PlacedPart, Placement};
pub(crate) use runner::Saved;
pub use runner::{Chunk, OutputRows, Outputs, Runner, SeqId};
