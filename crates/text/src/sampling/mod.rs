//! Choosing the next token: sampling parameters, the sampler, log-probabilities, stop strings.
//!
//! Order of the steps:
//!
//! 1. logit bias is added;
//! 2. the repetition penalty, then presence and frequency penalties;
//! 3. DRY, the penalty of repeated sequences;
//! 4. temperature (zero chooses the best token here and ends);
//! 5. top-n-sigma, on the logits of the whole vocabulary;
//! 6. top-k, on the logits;
//! 7. typical-p, on the distribution that these left;
//! 8. top-p, on the distribution that typical-p left;
//! 9. min-p, relative to the most likely token that is left;
//! 10. XTC, with a draw of its own, on the distribution that min-p left;
//! 11. one draw from what is left.
//!
//! Temperature comes before the filters, as in transformers and vLLM and as clients of the OpenAI
//! API expect: a high temperature widens the nucleus that top-p keeps. llama.cpp applies it last, between
//! steps 10 and 11, and so does this sampler with [`SamplingParams::temperature_last`]; the rest of the
//! order is llama.cpp's. Penalties come first, since they are in units of the
//! model's logits. Top-n-sigma needs the spread of all logits, so no filter may come before it;
//! temperature makes no difference to it. XTC comes last, so that it never raises to a choice what
//! a filter would drop. It spares no token, not even the end of the text: that one is excluded
//! like any other top choice.
//!
//! Mirostat takes the place of steps 5 to 10: it alone decides what is left.
//!
//! ```
//! use realizar_text::sampling::{Sampler, SamplingParams};
//!
//! // Logits of four tokens, from any engine.
//! let logits = [0.5, 3.0, 2.9, -1.0];
//! let mut greedy = Sampler::new(SamplingParams::greedy(), logits.len())?;
//! assert_eq!(greedy.sample(&mut logits.clone())?, 1);
//!
//! // Only tokens 1 and 2 are within 90 % of the probability; equal seeds give equal choices.
//! let params = SamplingParams { top_p: 0.9, seed: Some(7), ..SamplingParams::default() };
//! let draw = |params: &SamplingParams| -> Result<Vec<u32>, realizar_text::sampling::Error> {
//!     let mut sampler = Sampler::new(params.clone(), logits.len())?;
//!     (0..50).map(|_| sampler.sample(&mut logits.clone())).collect()
//! };
//! let ids = draw(&params)?;
//! assert!(ids.contains(&1) && ids.contains(&2) && !ids.contains(&0) && !ids.contains(&3));
//! assert_eq!(ids, draw(&params)?);
//! # Ok::<(), realizar_text::sampling::Error>(())
//! ```

mod candidates;
mod dry;
mod error;
mod filters;
pub mod logprobs;
mod mirostat;
mod params;
mod penalties;
mod sampler;
mod scan;
mod stop;

pub use candidates::{Candidates, Deciding, Weighed};
pub use error::Error;
pub use params::SamplingParams;
pub use realizar_types::{DrawOfBest, NextToken};
pub use sampler::Sampler;
pub use stop::{StopMatcher, StopOutcome};
