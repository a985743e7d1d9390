//! Parameters of a generation, and its possible ends.

use realizar_text::constrain::Constraint;
use realizar_text::sampling::SamplingParams;
use serde::Serialize;

/// Parameters of a generation.
#[derive(Debug, Clone, Default)]
pub struct GenerateParams {
    /// Sampling parameters; `None` is those of the model's files, see
    /// [`Model::sampling`](crate::Model::sampling).
    pub sampling: Option<SamplingParams>,
    /// The maximum number of tokens to generate; `None` is the rest of the context.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation. They are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the generation, even with `ignore_eos`. They are not part of it.
    pub stop_tokens: Vec<u32>,
    /// The minimum number of tokens: before, no end-of-generation token and none of `stop_tokens` is
    /// sampled, and `stop` is not searched for. A constraint may complete the answer earlier.
    pub min_tokens: usize,
    /// Whether end-of-generation tokens are never sampled.
    pub ignore_eos: bool,
    /// The number of most likely tokens to report with each token.
    pub logprobs: Option<usize>,
    /// Whether log-probabilities are those of the distribution after all sampling parameters, not of
    /// the model's.
    pub logprobs_of_sampling: bool,
    /// Control tokens that appear in the text; all others are left out.
    pub shown_tokens: Vec<u32>,
    /// A grammar in its start state, which is cloned for each answer. The answer ends when it is
    /// complete; before, only `max_tokens`, a stop text or the caller can end it.
    pub constraint: Option<Constraint>,
}

impl GenerateParams {
    /// The sampling parameters, or `default` if there are none.
    pub fn sampling_or<'s>(&'s self, default: &'s SamplingParams) -> &'s SamplingParams {
        self.sampling.as_ref().unwrap_or(default)
    }
}

/// The stop text or stop token that ended a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopCause {
    /// One of [`GenerateParams::stop`].
    Text(String),
    /// One of [`GenerateParams::stop_tokens`].
    Token(u32),
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-generation token, a stop text, a stop token, or a complete grammar.
    Stop,
    /// The maximum number of tokens, or the end of the context.
    Length,
    /// The caller cancelled it.
    Cancelled,
}

/// A likely token at a position.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TopLogprob {
    /// The token id.
    pub id: u32,
    /// Its log-probability by the model, or after all sampling parameters with
    /// [`GenerateParams::logprobs_of_sampling`].
    pub logprob: f32,
}
