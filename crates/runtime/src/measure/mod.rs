//! Measurements of a loaded model, as the command line offers them: how fast it is, and how well it
//! predicts a text.

mod bench;
mod perplexity;

pub use bench::BenchTest;
pub use perplexity::Perplexity;
