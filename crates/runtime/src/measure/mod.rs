//! Measurements of a loaded model, as the command line offers them: how fast it is, how well it
//! predicts a text, and how far it is from a base.

mod bench;
mod kl_divergence;
mod perplexity;

pub use bench::BenchTest;
pub use kl_divergence::{Estimate, KlDivergence};
pub use perplexity::Perplexity;
