//! A sequence: one prompt that is prefilled or one answer that is decoded.
//!
//! A request starts as one sequence over its prompt. When the prompt is done, that sequence becomes
//! the first answer and is forked for the others. Preemption frees a sequence's pages and keeps its
//! tokens, from which it is recomputed.

use super::request::PromptLogprob;
use super::speculate::DraftState;
use crate::generate::embedding::Pooler;
use crate::generate::generator::Generator;
use crate::run::{Outputs, Prompt, SeqId};
use realizar_model::checkpoint::Pooling;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of a request, in order of arrival.
pub(super) type RequestId = u64;

/// The rank of a sequence in every queue: by priority, then arrival, then answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SeqKey {
    pub(super) priority: i32,
    pub(super) request: RequestId,
    pub(super) answer: usize,
}

/// What a sequence computes.
#[derive(Debug)]
pub(super) enum Stage {
    /// The prompt, once for all answers of the request.
    Prompt { answers: Vec<Generator>, logprobs: Vec<PromptLogprob> },
    /// One answer, whose prompt was computed before, and is again after preemption.
    Answer(Box<Generator>),
    /// The hidden states of a prompt.
    Embedding(Pooler),
}

/// The output of a prompt's first row alone.
pub(super) const FIRST_ROW: Outputs<'static> = Outputs::At(&[0]);

/// A running or waiting sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) key: SeqKey,
    pub(super) prompt: Arc<Prompt>,
    pub(super) stage: Stage,
    /// The number of most likely tokens to report at each prompt position.
    pub(super) prompt_logprobs: Option<usize>,
    /// Whether its prompt may be taken from the prefix cache.
    pub(super) reuses_prefix: bool,
    /// Its pages in the key-value cache; `None` before its first step and while it waits.
    pub(super) kv: Option<SeqId>,
    /// Tokens whose keys and values are in the cache.
    pub(super) n_computed: usize,
    /// Prompt tokens that the prefix cache had.
    pub(super) n_cached: usize,
    /// The tokens that are scheduled for the next step, draft tokens last.
    pub(super) scheduled: Vec<u32>,
    /// The number of draft tokens in [`Self::scheduled`].
    pub(super) n_drafts: usize,
    pub(super) draft: DraftState,
    /// When its last token was sampled.
    pub(super) last_token: Option<Instant>,
    /// The time that its last grammar mask took.
    pub(super) mask_time: Duration,
    /// The last step that waited for its slow grammar mask.
    pub(super) last_slow_step: u64,
    /// Tokens during which no step is launched ahead, since a shortlist did not decide.
    pub(super) run_ahead_pause: u32,
    /// Left out of this step: slow grammar mask, or a prompt needs all of it.
    pub(super) is_deferred: bool,
}

impl Sequence {
    /// A sequence without computed tokens.
    pub(super) fn new(key: SeqKey, prompt: Arc<Prompt>, stage: Stage) -> Self {
        Self {
            key,
            prompt,
            stage,
            prompt_logprobs: None,
            reuses_prefix: true,
            kv: None,
            n_computed: 0,
            n_cached: 0,
            scheduled: Vec::new(),
            n_drafts: 0,
            draft: DraftState::default(),
            last_token: None,
            mask_time: Duration::ZERO,
            last_slow_step: 0,
            run_ahead_pause: 0,
            is_deferred: false,
        }
    }

    /// A sequence for another answer to the prompt of this one, with the same pages as `kv`.
    pub(super) fn fork(&self, kv: SeqId, answer_idx: usize, answer: Generator) -> Self {
        let key = SeqKey { answer: answer_idx, ..self.key };
        Self {
            kv: Some(kv),
            n_computed: self.n_computed,
            n_cached: self.n_cached,
            last_token: self.last_token,
            draft: self.draft.fork(),
            ..Self::new(key, self.prompt.clone(), Stage::Answer(Box::new(answer)))
        }
    }

    /// The number of answers that it stands for.
    pub(super) fn n_answers(&self) -> usize {
        match &self.stage {
            Stage::Prompt { answers, .. } => answers.len(),
            Stage::Answer(_) | Stage::Embedding(_) => 1,
        }
    }

    /// The generated tokens.
    pub(super) fn generated(&self) -> &[u32] {
        match &self.stage {
            Stage::Prompt { .. } | Stage::Embedding(_) => &[],
            Stage::Answer(answer) => answer.ids(),
        }
    }

    /// The number of tokens that may still be generated.
    pub(super) fn remaining(&self) -> usize {
        match &self.stage {
            Stage::Prompt { .. } | Stage::Embedding(_) => 0,
            Stage::Answer(answer) => answer.remaining(),
        }
    }

    /// The number of its tokens, prompt and generated.
    pub(super) fn n_tokens(&self) -> usize {
        self.prompt.len() + self.generated().len()
    }

    /// Whether it is its request's only sequence, so that the request waits if it waits.
    pub(super) fn is_whole_request(&self) -> bool {
        !matches!(self.stage, Stage::Answer(_))
    }

    /// Whether prompt tokens are left to compute.
    pub(super) fn in_prefill(&self) -> bool {
        self.n_computed < self.prompt.len()
    }

    /// Whether it holds pages and has computed its prompt.
    pub(super) fn in_decode(&self) -> bool {
        self.kv.is_some() && !self.in_prefill()
    }

    /// Whether it holds pages and lacks only its last token, after which tokens can be drafted.
    pub(super) fn at_last_token(&self) -> bool {
        self.kv.is_some() && self.n_computed + 1 == self.n_tokens()
    }

    /// The prompt rows whose output is needed.
    pub(super) fn prompt_outputs(&self) -> Outputs<'static> {
        match &self.stage {
            Stage::Prompt { .. } if self.prompt_logprobs.is_some() => Outputs::All,
            Stage::Prompt { .. } => Outputs::Last,
            Stage::Answer(_) => Outputs::None,
            Stage::Embedding(pooler) => match pooler.pooling() {
                Pooling::Last => Outputs::Last,
                Pooling::Mean => Outputs::All,
                Pooling::Cls => FIRST_ROW,
            },
        }
    }

    /// Frees its pages and everything computed with them; it starts again at its first token.
    pub(super) fn free(&mut self) {
        self.kv = None;
        self.n_computed = 0;
        self.n_cached = 0;
        match &mut self.stage {
            Stage::Prompt { logprobs, .. } => logprobs.clear(),
            Stage::Embedding(pooler) => pooler.clear(),
            Stage::Answer(_) => {}
        }
    }
}
