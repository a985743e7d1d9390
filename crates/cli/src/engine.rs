//! The runtime as the commands see it: loading, prompts, generation, measurements.
//!
//! This file alone names the runtime's types; a command never does.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::options::{ArithmeticArg, GenerateArgs, KvTypeArg, LoadArgs};

/// A loaded model.
pub(crate) struct Model;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    pub(crate) role: &'static str,
    pub(crate) content: String,
}

/// One generated token, as it arrives.
pub(crate) struct Token<'a> {
    /// The text that became complete with this token; may be empty.
    pub(crate) text: &'a str,
}

/// A likely token at one step.
pub(crate) struct TopLogprob {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
}

/// The result of one generation.
pub(crate) struct Generation {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    /// `stop`, `length` or `cancelled`.
    pub(crate) finish_reason: &'static str,
    pub(crate) prompt_tokens: usize,
    pub(crate) prompt_ms: f64,
    pub(crate) generated_tokens: usize,
    pub(crate) generate_ms: f64,
    pub(crate) top_logprobs: Vec<Vec<TopLogprob>>, // one list per generated token
}

/// The result of a perplexity measurement.
pub(crate) struct Perplexity {
    pub(crate) value: f64,
    pub(crate) error: f64,
    pub(crate) n_tokens: usize,
    pub(crate) n_chunks: usize,
}

impl Model {
    /// Loads the model at `path`.
    pub(crate) fn load(_path: &Path, _load: &LoadArgs, _ctx: Option<usize>) -> Result<Self> {
        bail!("the runtime is not connected")
    }

    pub(crate) fn encode(&self, _text: &str, _special: bool, _parse: bool) -> Result<Vec<u32>> {
        bail!("the runtime is not connected")
    }

    pub(crate) fn decode(&self, _ids: &[u32]) -> Result<String> {
        bail!("the runtime is not connected")
    }

    /// The text of one token as its vocabulary entry spells it.
    pub(crate) fn token_text(&self, _id: u32) -> String {
        String::new()
    }

    /// Renders a conversation with the template file, or with the model's template.
    pub(crate) fn render(&self, _messages: &[Message], _template: Option<&Path>) -> Result<String> {
        bail!("the runtime is not connected")
    }

    pub(crate) fn generate(
        &mut self,
        _ids: &[u32],
        _args: &GenerateArgs,
        _seed: u64,
        _logprobs: Option<usize>,
        _each: &mut dyn FnMut(Token<'_>) -> ControlFlow<()>,
    ) -> Result<Generation> {
        bail!("the runtime is not connected")
    }

    /// Logits at `positions` of the prompt `ids`: one row of `vocab_size` values per position.
    pub(crate) fn logits(
        &mut self,
        _ids: &[u32],
        _positions: &[usize],
        _chunk: usize,
    ) -> Result<Vec<Vec<f32>>> {
        bail!("the runtime is not connected")
    }

    pub(crate) fn perplexity(
        &mut self,
        _ids: &[u32],
        _ctx: usize,
        _progress: &mut dyn FnMut(usize, usize, f64),
    ) -> Result<Perplexity> {
        bail!("the runtime is not connected")
    }

    pub(crate) fn bench_prompt(&mut self, _n_tokens: usize) -> Result<Duration> {
        bail!("the runtime is not connected")
    }

    pub(crate) fn bench_generate(&mut self, _n_tokens: usize) -> Result<Duration> {
        bail!("the runtime is not connected")
    }

    pub(crate) fn architecture(&self) -> &str {
        ""
    }

    pub(crate) fn n_params(&self) -> u64 {
        0
    }

    pub(crate) fn weight_bytes(&self) -> u64 {
        0
    }

    pub(crate) fn backend(&self) -> String {
        String::new()
    }

    pub(crate) fn n_threads(&self) -> usize {
        0
    }

    pub(crate) fn print_graph(&self) -> String {
        String::new()
    }
}

#[expect(dead_code, reason = "used once the runtime is connected")]
fn kinds(_: ArithmeticArg, _: KvTypeArg) {}
