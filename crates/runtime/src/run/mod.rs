//! A loaded model that computes rows: from a device's name to a backend, from a checkpoint to the
//! parts of a model on their backends, and from chunks of sequences to rows of output.

mod angles;
#[cfg(test)]
mod attention_tests;
mod card;
mod chunk;
mod context;
pub mod device;
mod drafting;
mod kv_room;
mod model;
mod model_sampling;
mod options;
mod output;
mod placement;
mod prompt;
mod results;
mod rules;
mod runner;
mod seq_id;

pub(crate) use angles::Offsets;
pub use card::{CardText, ModelCard};
pub use chunk::{Chunk, OutputRows, Outputs};
pub use context::default_context;
pub use drafting::DraftHead;
pub(crate) use drafting::likeliest;
pub use kv_room::POOL_SEQ_LEN;
pub use model::Model;
pub use options::LoadOptions;
pub(crate) use output::require_output;
pub use placement::{DeviceLayers, PlacedPart, Placement};
pub use prompt::{Embeddings, Prompt, Rows};
pub use realizar_model::graph::DraftBytes;
pub(crate) use results::{GivenList, Results, RowRequests};
pub(crate) use rules::PromptRules;
pub use runner::Runner;
pub(crate) use runner::Saved;
pub use seq_id::SeqId;
