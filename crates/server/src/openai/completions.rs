//! `POST /v1/completions`: goes on from a text or from token ids.

use super::logprobs::{self, ListLogprobs};
use super::refused;
use super::sampling::{
    CommonFields, StreamUsage, check_context, check_count, check_logprobs, most_answers,
};
use super::structured::GrammarFields;
use super::types::{Body, Head, StreamHead};
use crate::error::ApiError;
use crate::extract::JsonBody;
use crate::generation::{Answer, Finish, Job, Progress, TokenLogprob, Usage};
use crate::prompt::{self, Prompt, Prompts};
use crate::registry::ModelLease;
use crate::sse::{self, Chunks};
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use realizar_runtime::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Tokens of an answer unless the request says how many, as OpenAI defines it.
const DEFAULT_TOKENS: usize = 16;

/// The fields that only plain completions have.
#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    prompt: Option<Prompts>,
    suffix: Option<String>,
    echo: Option<bool>,
    logprobs: Option<usize>,
    best_of: Option<usize>,
}

/// A request that was read and found right.
struct Completion {
    job: Job,
    head: Head,
    stream: Option<StreamUsage>,
    /// Of each prompt the text, if answers begin with it.
    echo: Option<Vec<String>>,
    /// Whether answers have log-probabilities.
    logprobs: bool,
    /// Answers to tell of each prompt, at most as many as are generated.
    n: usize,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<ListLogprobs>,
    finish_reason: Option<Finish>,
    stop_reason: Option<String>,
}

/// Answers a request for completions.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let completion = read(&state, &body).await?;
    let Completion { job, head, stream, echo, logprobs, n } = completion;
    let model = job.model.clone();
    let first_ids: Vec<u32> = job.prompts.iter().map(|prompt| prompt[0]).collect();
    let generated = job.n;
    let generation = job.start(&state)?;
    if let Some(usage) = stream {
        let states = vec![AnswerState::default(); first_ids.len() * n];
        let head = StreamHead { head, usage };
        let chunks = CompletionChunks { model, head, echo, first_ids, logprobs, n, states };
        return Ok(sse::respond(&state, generation, chunks));
    }
    let done = generation.collect().await?;
    let tokenizer = model.tokenizer();
    let mut choices = Vec::new();
    let mut answers = done.answers.into_iter();
    for (p, (first_id, prompt_logprobs)) in first_ids.into_iter().zip(done.prompts).enumerate() {
        let echoed = EchoedPrompt { first_id, logprobs: prompt_logprobs };
        for answer in best(answers.by_ref().take(generated).collect(), n) {
            let mut text = echo.as_ref().map_or_else(String::new, |echo| echo[p].clone());
            let mut offset = 0;
            text.push_str(&answer.text);
            let logprobs = logprobs.then(|| {
                let mut tokens = Vec::new();
                if echo.is_some() {
                    tokens.extend(echoed.tokens());
                }
                tokens.extend(answer.tokens);
                logprobs::lists(tokenizer, &tokens, &mut offset)
            });
            let (finish_reason, stop_reason) = (Some(answer.reason), answer.stop);
            let index = choices.len();
            choices.push(Choice { index, text, logprobs, finish_reason, stop_reason });
        }
    }
    let usage = Some(Some(done.usage.into()));
    Ok(Json(Body { head: &head, choices, usage }).into_response())
}

/// Answers with the token ids that a request for completions would give the engine.
pub(crate) async fn render(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let Completion { job, head, .. } = read(&state, &body).await?;
    let Job { prompts, params, .. } = job;
    let rendered = prompts.iter().map(|token_ids| {
        let mut sampling_params = json!(params.sampling);
        sampling_params["max_tokens"] = json!(params.max_tokens);
        json!({
            "request_id": head.id,
            "model": head.model,
            "token_ids": token_ids,
            "sampling_params": sampling_params,
        })
    });
    Ok(Json(rendered.collect()))
}

async fn read(state: &AppState, body: &JsonBody) -> Result<Completion, ApiError> {
    let common: CommonFields = body.read()?;
    let fields: Fields = body.read()?;
    let grammar = body.read::<GrammarFields>()?.read()?;
    refused::check_completion(body)?;
    let model = state.model(common.model.as_deref()).await?;
    let limits = &state.config().limits;
    let n = common.answers(&model, limits)?;
    let stream = common.stream()?;
    let generated = match fields.best_of {
        None => n,
        Some(best_of) => check_count("best_of", best_of, most_answers(&model, limits))?,
    };
    if generated < n {
        let message = format!("`best_of` is {generated}, less than `n`, which is {n}");
        return Err(ApiError::invalid("best_of", message));
    }
    if generated > n && stream.is_some() {
        let message = "`best_of` above `n` cannot be streamed: the best is known at the end";
        return Err(ApiError::invalid("best_of", message));
    }
    let asked = fields.logprobs;
    let asked = asked.map(|k| check_logprobs("logprobs", k, limits)).transpose()?;
    // The best answer is found by log-probabilities.
    let logprobs = asked.or((generated > n).then_some(0));
    let mut params = common.params(&model, limits, Some(DEFAULT_TOKENS), logprobs)?;
    if let Some(wanted) = grammar {
        params.constraint = Some(wanted.compile(&model).await?);
    }
    let echo = fields.echo.unwrap_or(false);
    let prompts = fields.prompt.map(|prompts| prompts.0).unwrap_or_default();
    let prompts = match prompts.len() {
        0 => return Err(ApiError::invalid("prompt", "a prompt is needed")),
        n if n > limits.prompts => {
            let message = format!("{n} prompts are more than the {} allowed", limits.prompts);
            return Err(ApiError::invalid("prompt", message));
        }
        _ => prompts,
    };
    let given: Option<Vec<Prompt>> = echo.then(|| prompts.clone());
    let add_special = common.add_special_tokens().unwrap_or(true);
    let prompts = match fields.suffix.filter(|suffix| !suffix.is_empty()) {
        None => {
            let options = EncodeOptions { add_special, parse_special: true };
            prompt::encode(&model, prompts, options).await?
        }
        Some(_) if echo => {
            let message = "`suffix` and `echo` exclude one another";
            return Err(ApiError::invalid("suffix", message));
        }
        Some(suffix) => prompt::encode_gaps(&model, prompts, suffix, add_special).await?,
    };
    let params_of = ("prompt", common.max_tokens_param());
    check_context(&model, limits, &prompts, params.max_tokens, params_of)?;
    let text = |prompt| match prompt {
        Prompt::Text(text) => Ok(text),
        Prompt::Ids(ids) => model.tokenizer().decode(&ids, true),
    };
    let echo =
        given.map(|given| given.into_iter().map(text).collect::<Result<_, _>>()).transpose()?;
    let name = common.model.as_deref().filter(|name| !name.is_empty()).unwrap_or(&model.name);
    Ok(Completion {
        head: Head::new("cmpl-", "text_completion", name),
        stream,
        logprobs: asked.is_some(),
        n,
        job: Job {
            prompt_logprobs: asked.filter(|_| echo.is_some()),
            prompts,
            n: generated,
            priority: common.priority(),
            include_stop: common.include_stop(),
            params,
            model: model.clone(),
        },
        echo,
    })
}

/// The `n` answers with the highest log-probability per token, best first.
fn best(mut answers: Vec<Answer>, n: usize) -> Vec<Answer> {
    if answers.len() > n {
        let score = |answer: &Answer| {
            let sum: f32 = answer.tokens.iter().filter_map(|token| token.logprob).sum();
            match answer.tokens.len() {
                0 => f32::NEG_INFINITY,
                len => sum / len as f32,
            }
        };
        answers.sort_by(|a, b| score(b).total_cmp(&score(a)));
        answers.truncate(n);
    }
    answers
}

/// A prompt that answers begin with.
struct EchoedPrompt {
    first_id: u32,
    logprobs: Vec<realizar_runtime::engine::PromptLogprob>,
}

impl EchoedPrompt {
    /// Its tokens. Nothing is known of how likely the first one was.
    fn tokens(&self) -> impl Iterator<Item = TokenLogprob> {
        let first = TokenLogprob { id: self.first_id, logprob: None, top: Vec::new() };
        std::iter::once(first).chain(self.logprobs.iter().cloned().map(TokenLogprob::from))
    }
}

/// The chunks of a stream of completions.
struct CompletionChunks {
    model: ModelLease,
    head: StreamHead,
    echo: Option<Vec<String>>,
    first_ids: Vec<u32>,
    logprobs: bool,
    n: usize,
    states: Vec<AnswerState>,
}

#[derive(Clone, Default)]
struct AnswerState {
    /// Tokens that have made no text certain yet.
    held: Vec<TokenLogprob>,
    /// Characters of the tokens that were told.
    offset: usize,
}

impl CompletionChunks {
    fn chunk(
        &mut self,
        index: usize,
        text: String,
        finish: Option<(Finish, Option<String>)>,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) -> Result<(), ApiError> {
        let state = &mut self.states[index];
        let held = std::mem::take(&mut state.held);
        let logprobs = match self.logprobs {
            true => Some(logprobs::lists(self.model.tokenizer(), &held, &mut state.offset)),
            false => None,
        };
        let (finish_reason, stop_reason) = finish.unzip();
        let stop_reason = stop_reason.flatten();
        let choice = Choice { index, text, logprobs, finish_reason, stop_reason };
        out.push_back(self.head.chunk(choice, usage));
        Ok(())
    }
}

impl Chunks for CompletionChunks {
    fn progress(
        &mut self,
        progress: Progress,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) -> Result<(), ApiError> {
        match progress {
            Progress::Prompt { prompt, logprobs } => {
                let Some(echo) = &self.echo else { return Ok(()) };
                let text = echo[prompt].clone();
                let echoed = EchoedPrompt { first_id: self.first_ids[prompt], logprobs };
                for answer in prompt * self.n..(prompt + 1) * self.n {
                    self.states[answer].held.extend(echoed.tokens());
                    self.chunk(answer, text.clone(), None, usage, out)?;
                }
                Ok(())
            }
            Progress::Token(mut token) => {
                let (answer, text) = (token.index, std::mem::take(&mut token.text));
                self.states[answer].held.push(token.into());
                match text.is_empty() {
                    true => Ok(()),
                    false => self.chunk(answer, text, None, usage, out),
                }
            }
            Progress::Finished { answer, reason, tail, stop } => {
                self.chunk(answer, tail, Some((reason, stop)), usage, out)
            }
        }
    }

    fn end(&mut self, usage: Usage, out: &mut VecDeque<Event>) {
        self.head.end(usage, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_answers_have_the_most_likely_tokens() {
        let answer = |text: &str, logprobs: &[f32]| Answer {
            text: text.to_owned(),
            tokens: logprobs
                .iter()
                .map(|&logprob| TokenLogprob { id: 0, logprob: Some(logprob), top: Vec::new() })
                .collect(),
            reason: Finish::Stop,
            stop: None,
        };
        let answers =
            || vec![answer("a", &[-2.0, -2.0]), answer("b", &[]), answer("c", &[-1.0, -0.5, -1.0])];
        let check = |n: usize, want: &[&str]| {
            let texts: Vec<String> = best(answers(), n).into_iter().map(|a| a.text).collect();
            assert_eq!(texts, want);
        };
        check(1, &["c"]);
        check(2, &["c", "a"]);
        check(3, &["a", "b", "c"]);
    }
}
