//! What a generation is to do, and how it may end.

use crate::text::constrain::Constraint;
use crate::text::sampling::SamplingParams;
use serde::Serialize;

/// What is wanted of a generation.
#[derive(Debug, Clone, Default)]
pub struct GenerateParams {
    /// How tokens are chosen; `None` is the model's own sampling, see [`Model::sampling`](crate::Model::sampling).
    pub sampling: Option<SamplingParams>,
    /// The maximum number of tokens to generate; `None` continues to the end of the context.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation; they are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the generation, as the end-of-generation token does, also with
    /// `ignore_eos`; they are not part of it.
    pub stop_tokens: Vec<u32>,
    /// Tokens before which nothing ends the generation: no end-of-generation token and none of
    /// `stop_tokens` is chosen, and `stop` is looked for only from the last of them on. An answer
    /// that its constraint completes earlier ends there.
    pub min_tokens: usize,
    /// Never chooses an end-of-generation token.
    pub ignore_eos: bool,
    /// How many of the most likely tokens to report at each step.
    pub logprobs: Option<usize>,
    /// Whether these are by what sampling leaves of the distribution, and not by the model's own.
    pub logprobs_of_sampling: bool,
    /// Control tokens that are written as text; all others are left out.
    pub shown_tokens: Vec<u32>,
    /// What the answer must look like: the beginning of an answer, which is cloned for each. The
    /// answer ends where nothing can follow; short of that it may only be cut by `max_tokens`, a
    /// stop text or the caller.
    pub constraint: Option<Constraint>,
}

impl GenerateParams {
    /// How tokens are chosen, of a model whose own sampling is `own`.
    pub fn sampling_or<'s>(&'s self, own: &'s SamplingParams) -> &'s SamplingParams {
        self.sampling.as_ref().unwrap_or(own)
    }
}

/// What of a request ended a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopCause {
    /// One of the texts.
    Text(String),
    /// One of the tokens.
    Token(u32),
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model's end-of-generation token, a stop text or a stop token.
    Stop,
    /// The maximum number of tokens, or the end of the context.
    Length,
    /// The caller.
    Cancelled,
}

/// A likely token at one step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TopLogprob {
    /// The token.
    pub id: u32,
    /// Its log-probability: before any sampling parameter, unless
    /// [`GenerateParams::logprobs_of_sampling`] asks for it after all of them.
    pub logprob: f32,
}
