//! Measurements of a loaded model, as the command line offers them: how fast it is, how well it
//! predicts a text, and how far it is from a base.

mod bench;
mod estimate;
mod kl_divergence;
mod perplexity;

pub use bench::BenchTest;
pub use estimate::Estimate;
pub use kl_divergence::KlDivergence;
pub use perplexity::Perplexity;
