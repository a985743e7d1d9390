//! Vectors of texts by the engine, for all endpoints that need some.

use crate::answer::prompt::{self, Prompt};
use crate::error::ApiError;
use crate::http::extract::Held;
use crate::record;
use crate::registry::ModelLease;
use crate::state::AppState;
use realizar_runtime::engine::{EmbeddingRequest, EngineEvent, SubmitError, Ticket};
use realizar_runtime::tokenizer::EncodeOptions;
use realizar_runtime::{EmbedParams, Error, ModelOutput};
use serde::Serialize;
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// Texts of one request that the engine is given at once; the others follow as these are done, so
/// that a long list does not fill the queue.
const AT_ONCE: usize = 64;

/// The tokens of a request for embeddings.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl EmbeddingUsage {
    /// The tokens of all texts.
    fn of(texts: &[Vec<u32>]) -> Self {
        let prompt_tokens = texts.iter().map(Vec::len).sum();
        Self { prompt_tokens, total_tokens: prompt_tokens }
    }

    /// How many there are.
    pub(crate) fn tokens(self) -> usize {
        self.total_tokens
    }
}

/// How texts become vectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The parameter that has the texts, which errors name.
    pub(crate) param: &'a str,
    pub(crate) params: EmbedParams,
    pub(crate) priority: Option<i32>,
    /// The number of tokens that longer texts are cut to; without it, they are an error.
    pub(crate) truncate: Option<usize>,
    /// The maximum number of tokens per text, if less than the model's context.
    pub(crate) context: Option<usize>,
}

/// What `truncate_prompt_tokens` asks for, as vLLM has it: -1 is as many tokens as a text may have.
pub(crate) fn truncation(asked: Option<i64>) -> Result<Option<usize>, ApiError> {
    let most = match asked {
        None => return Ok(None),
        Some(-1) => Ok(usize::MAX),
        Some(n) => usize::try_from(n).ok().filter(|&n| n > 0).ok_or(n),
    };
    most.map(Some).map_err(|n| {
        let message = format!("`truncate_prompt_tokens` is {n}; it must be -1 or at least 1");
        ApiError::invalid("truncate_prompt_tokens", message)
    })
}

/// The model that is named; without a name, the first one for embeddings.
pub(crate) async fn model(state: &AppState, name: Option<&str>) -> Result<ModelLease, ApiError> {
    let model = state.model_for(ModelOutput::Embeddings, name).await?;
    if model.engine.model().embedding().is_some() {
        return Ok(model);
    }
    let message = format!("the model `{}` was loaded for text, not for embeddings", model.name);
    Err(ApiError::invalid("model", message))
}

/// The token ids of texts, each of which the model takes.
async fn encode(
    state: &AppState,
    held: &Held,
    model: &ModelLease,
    texts: Vec<Prompt>,
    wanted: Wanted<'_>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let (limits, param) = (&state.config().limits, wanted.param);
    if texts.is_empty() || texts.len() > limits.texts {
        let message = format!("expected 1 to {} texts, found {}", limits.texts, texts.len());
        return Err(ApiError::invalid(param, message));
    }
    let options = EncodeOptions { add_special: true, parse_special: false };
    let context = model.engine.model().max_seq_len();
    let context = wanted.context.map_or(context, |n| n.min(context));
    let most = limits.prompt_tokens.unwrap_or(context).min(context);
    let texts = match wanted.truncate {
        None => prompt::encode(held, model, texts, options).await,
        Some(n) => prompt::encode_beginnings(held, model, texts, options, n.min(most)).await,
    };
    let texts = texts.map_err(|error| error.renamed(&[("prompt", param)]))?;
    if let Some(long) = texts.iter().find(|ids| ids.len() > most) {
        let error = ApiError::context_length(param, long.len(), context);
        return Err(match most < context {
            true => error.because(format!(
                "of which this server allows {most} per text; one has {}",
                long.len()
            )),
            false => error.because(format!("but a text has {}", long.len())),
        });
    }
    Ok(texts)
}

/// The vectors of texts, in their order, and the tokens that they took.
pub(crate) async fn embed(
    state: &AppState,
    held: &Held,
    model: &ModelLease,
    texts: Vec<Prompt>,
    wanted: Wanted<'_>,
) -> Result<(Vec<Vec<f32>>, EmbeddingUsage), ApiError> {
    let texts = encode(state, held, model, texts, wanted).await?;
    let (params, priority) = (wanted.params, wanted.priority.unwrap_or(0));
    let usage = EmbeddingUsage::of(&texts);
    if let Some(recorder) = record::current() {
        recorder.note(|record| record.input_tokens = usage.prompt_tokens);
    }
    let work = async {
        let mut vectors = Vec::with_capacity(texts.len());
        let mut pending: VecDeque<Pending> = VecDeque::new();
        for prompt in texts {
            if pending.len() == AT_ONCE {
                vectors.extend(next(model, &mut pending).await?);
            }
            let request = EmbeddingRequest { prompt: prompt.into(), params, priority };
            loop {
                match submit(model, request.clone()) {
                    Ok(submitted) => {
                        pending.push_back(submitted);
                        break;
                    }
                    // There is room again once a text of this request is done.
                    Err(SubmitError::QueueFull { .. }) if !pending.is_empty() => {
                        vectors.extend(next(model, &mut pending).await?);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        while !pending.is_empty() {
            vectors.extend(next(model, &mut pending).await?);
        }
        Ok((vectors, usage))
    };
    match state.config().request_timeout {
        None => work.await,
        Some(limit) => match tokio::time::timeout(limit, work).await {
            Ok(result) => result,
            Err(_) => Err(ApiError::timeout(limit)),
        },
    }
}

/// A text that the engine was given.
struct Pending {
    _ticket: Ticket,
    vector: oneshot::Receiver<Result<Vec<f32>, Error>>,
}

fn submit(model: &ModelLease, request: EmbeddingRequest) -> Result<Pending, SubmitError> {
    let (sender, vector) = oneshot::channel();
    let mut sender = Some(sender);
    let sink = Box::new(move |event| {
        let result = match event {
            EngineEvent::Embedding { values, .. } => Ok(values),
            EngineEvent::Failed(error) => Err(error),
            _ => return,
        };
        if let Some(sender) = sender.take() {
            // Nobody listens to a request that was dropped.
            drop(sender.send(result));
        }
    });
    let ticket = model.engine.submit_embedding(request, sink)?;
    Ok(Pending { _ticket: ticket, vector })
}

/// The vector of the text that was given first.
async fn next(
    model: &ModelLease,
    pending: &mut VecDeque<Pending>,
) -> Result<Option<Vec<f32>>, ApiError> {
    let Some(first) = pending.pop_front() else { return Ok(None) };
    // A sender that is gone went with the engine.
    let result = first.vector.await.unwrap_or(Err(Error::Ended));
    result.map(Some).map_err(|error| model.failure(error))
}

/// The cosine of the angle between two vectors; 0 where one of them has no direction.
pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths).clamp(-1.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines() {
        for (a, b, want) in [
            ([3.0, 4.0], [6.0, 8.0], 1.0),
            ([3.0, 4.0], [-4.0, 3.0], 0.0),
            ([1.0, 0.0], [-2.0, 0.0], -1.0),
            ([0.0, 0.0], [1.0, 0.0], 0.0),
        ] {
            assert_eq!(cosine(&a, &b), want, "{a:?} {b:?}");
        }
        assert!((cosine(&[1.0, 0.0], &[1.0, 1.0]) - 0.5_f64.sqrt()).abs() < 1e-12);
    }
}
