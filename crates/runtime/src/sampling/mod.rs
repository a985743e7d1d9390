//! Choosing the next token: sampling parameters, the sampler, log-probabilities, stop strings.
//!
//! Order of the steps, the same for every request:
//!
//! 1. logit bias is added;
//! 2. the repetition penalty, then presence and frequency penalties;
//! 3. temperature (zero chooses the best token here and ends);
//! 4. top-k, on the logits;
//! 5. top-p, on the distribution that top-k left;
//! 6. min-p, relative to the most likely token;
//! 7. one draw from what is left.
//!
//! Temperature comes before the filters, as in transformers and vLLM and as clients of the OpenAI
//! API expect: a high temperature widens the nucleus that top-p keeps. llama.cpp applies it last.

mod error;
pub mod logprobs;
mod params;
mod sampler;
mod scan;
mod stop;

pub use error::Error;
pub use params::SamplingParams;
pub use sampler::Sampler;
pub use stop::{StopMatcher, StopOutcome};
