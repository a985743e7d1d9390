//! `POST /v1/completions`: completes a text or token ids.

use super::logprobs::{self, ListLogprobs, Names, PromptLogprobs};
use super::refused;
use super::sampling::{
    CommonFields, StreamUsage, check_context, check_count, check_logprobs, most_answers,
};
use super::structured::GrammarFields;
use super::text_offset::TextOffsets;
use super::types::{Body, Head, StreamHead};
use crate::answer::generation::{Answer, Finish, Job, Progress, TokenLogprob, Usage};
use crate::answer::prompt::{self, Prompt, Prompts};
use crate::answer::sse;
use crate::answer::stream::Chunks;
use crate::error::ApiError;
use crate::http::extract::JsonBody;
use crate::registry::ModelLease;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use realizar_runtime::StopCause;
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
pub(crate) struct Completion {
    pub(crate) job: Job,
    head: Head,
    stream: Option<StreamUsage>,
    /// Of each prompt the text, if answers begin with it.
    echo: Option<Vec<String>>,
    /// The number of most likely tokens to return at each position, if answers have log-probabilities.
    logprobs: Option<usize>,
    /// The number of most likely tokens to return at each position of the prompt.
    prompt_logprobs: Option<usize>,
    /// Whether answers have the ids of their tokens.
    ids: bool,
    /// Whether tokens are written as ids beside their log-probabilities.
    as_ids: bool,
    /// Answers to return for each prompt, at most as many as are generated.
    n: usize,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<ListLogprobs>,
    finish_reason: Option<Finish>,
    stop_reason: Option<StopCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

/// Answers a request for completions.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let completion = read(&state, body).await?;
    let Completion {
        job,
        head,
        stream,
        echo,
        logprobs,
        prompt_logprobs: of_prompt,
        ids,
        as_ids,
        n,
    } = completion;
    let model = job.model.clone();
    let first_ids: Vec<u32> = job.prompts.iter().map(|prompt| prompt[0]).collect();
    let mut offsets = offsets(&job, echo.as_deref(), n, logprobs.is_some());
    let generated = job.n;
    let generation = job.start(&state)?;
    if let Some(usage) = stream {
        let (head, logprobs) = (StreamHead { head, usage }, logprobs.unwrap_or(0));
        let begin = |offsets| AnswerState { echoed: Vec::new(), held: Vec::new(), offsets };
        let states = offsets.map(begin).collect();
        let chunks =
            CompletionChunks { model, head, echo, first_ids, logprobs, ids, as_ids, n, states };
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
            text.push_str(&answer.text);
            let tokens = ids.then(|| answer.tokens.iter().map(|token| token.id).collect());
            let logprobs = match (logprobs, offsets.next().flatten()) {
                (Some(k), Some(mut offsets)) => {
                    let echoed = echo.iter().flat_map(|_| echoed.tokens(k));
                    let tokens: Vec<TokenLogprob> = echoed.chain(answer.tokens).collect();
                    Some(logprobs::lists(Names { tokenizer, as_ids }, &tokens, &mut offsets)?)
                }
                _ => None,
            };
            choices.push(Choice {
                index: choices.len(),
                text,
                logprobs,
                finish_reason: Some(answer.reason),
                stop_reason: answer.stop,
                tokens,
                prompt_logprobs: of_prompt
                    .map(|k| logprobs::of_prompt(tokenizer, &echoed.logprobs, k)),
            });
        }
    }
    let (usage, prompt_logprobs) = (Some(Some(done.usage.into())), None);
    Ok(Json(Body { head: &head, choices, usage, prompt_logprobs }).into_response())
}

/// Of each answer that is returned, in their order, where its tokens begin; none if that is not
/// `wanted`.
fn offsets(
    job: &Job,
    echo: Option<&[String]>,
    n: usize,
    wanted: bool,
) -> impl Iterator<Item = Option<TextOffsets>> + use<> {
    let (tokenizer, shown) = (job.model.engine.model().tokenizer(), &job.params.shown_tokens);
    let of = |(p, prompt): (usize, &Vec<u32>)| {
        let echo = echo.map(|echo| (echo[p].as_str(), prompt.len()));
        (0..n).map(move |_| wanted.then(|| TextOffsets::new(tokenizer, shown, echo)))
    };
    let all: Vec<Option<TextOffsets>> = job.prompts.iter().enumerate().flat_map(of).collect();
    all.into_iter()
}

/// Answers with the token ids that a request for completions would give the engine.
pub(crate) async fn render(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let Completion { job, head, .. } = read(&state, body).await?;
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

pub(crate) async fn read(state: &AppState, body: JsonBody) -> Result<Completion, ApiError> {
    let read = |body: &JsonBody| {
        let (common, fields) = (body.read::<CommonFields>()?, body.read::<Fields>()?);
        let grammar = body.read::<GrammarFields>()?.read()?;
        refused::check_completion(body)?;
        Ok((common, fields, grammar))
    };
    let ((common, fields, grammar), held) = body.parse(read).await?;
    let model = state.model(common.model.as_deref()).await?;
    let limits = &state.config().limits;
    let n = common.answers(&model, limits)?;
    let stream = common.stream()?;
    let generated = match fields.best_of {
        None => n,
        Some(best_of) => check_count("best_of", best_of, most_answers(&model, limits))?,
    };
    if generated < n {
        let message = format!("`best_of` is {generated}; it must be at least `n`, which is {n}");
        return Err(ApiError::invalid("best_of", message));
    }
    if generated > n && stream.is_some() {
        let message = "`best_of` above `n` cannot be streamed: the best completions are known \
                       only at the end";
        return Err(ApiError::invalid("best_of", message));
    }
    let asked = match (fields.logprobs, common.n_probs()) {
        (Some(k), Some(n)) if k != n => {
            let message = format!("`n_probs` is {n}, and `logprobs` is {k}");
            return Err(ApiError::invalid("n_probs", message));
        }
        (None, Some(n)) => Some(check_logprobs("n_probs", n, limits)?),
        (k, _) => k.map(|k| check_logprobs("logprobs", k, limits)).transpose()?,
    };
    let prompt_logprobs = common.prompt_logprobs(limits)?;
    // The best answer is found by log-probabilities.
    let logprobs = asked.or((generated > n).then_some(0));
    let mut params = common.params(&model, limits, Some(DEFAULT_TOKENS), logprobs).await?;
    if let Some(wanted) = grammar {
        params.constraint = Some(wanted.compile(&model).await?);
    }
    let echo = fields.echo.unwrap_or(false);
    let prompts = fields.prompt.map(|prompts| prompts.0).unwrap_or_default();
    let prompts = match prompts.len() {
        0 => return Err(ApiError::invalid("prompt", "`prompt` is required")),
        n if n > limits.prompts => {
            let message =
                format!("`prompt` has {n} prompts; this server allows {}", limits.prompts);
            return Err(ApiError::invalid("prompt", message));
        }
        _ => prompts,
    };
    let given: Option<Vec<Prompt>> = echo.then(|| prompts.clone());
    let add_special = common.add_special_tokens().unwrap_or(true);
    let prompts = match fields.suffix.filter(|suffix| !suffix.is_empty()) {
        None => {
            let options = EncodeOptions { add_special, parse_special: true };
            prompt::encode(&held, &model, prompts, options).await?
        }
        Some(_) if echo => {
            let message = "`suffix` and `echo` are mutually exclusive";
            return Err(ApiError::invalid("suffix", message));
        }
        Some(suffix) => prompt::encode_gaps(&held, &model, prompts, suffix, add_special).await?,
    };
    check_context(common.context(&model), limits, &prompts, "prompt", common.asked_most())?;
    common.hold_to_context(&prompts, &mut params);
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
        logprobs: asked,
        prompt_logprobs,
        ids: common.return_tokens(),
        as_ids: common.tokens_as_ids(),
        n,
        job: Job {
            prompt_logprobs: asked.filter(|_| echo.is_some()).max(prompt_logprobs),
            prompts,
            n: generated,
            priority: common.priority(),
            include_stop: common.include_stop(),
            reuses_prefix: common.reuses_prefix(),
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
    /// Its tokens, each with the `k` most likely ones at its place. Nothing is known of how likely
    /// the first one was.
    fn tokens(&self, k: usize) -> impl Iterator<Item = TokenLogprob> {
        let first = TokenLogprob { id: self.first_id, logprob: None, top: Vec::new() };
        std::iter::once(first).chain(self.logprobs.iter().cloned().map(move |token| {
            let mut token = TokenLogprob::from(token);
            token.top.truncate(k);
            token
        }))
    }
}

/// The chunks of a stream of completions.
struct CompletionChunks {
    model: ModelLease,
    head: StreamHead,
    echo: Option<Vec<String>>,
    first_ids: Vec<u32>,
    /// The number of most likely tokens to return at each position of a prompt that answers begin with.
    logprobs: usize,
    ids: bool,
    as_ids: bool,
    n: usize,
    states: Vec<AnswerState>,
}

struct AnswerState {
    /// Prompt tokens that were not returned yet.
    echoed: Vec<TokenLogprob>,
    /// Tokens that have made no text certain yet.
    held: Vec<TokenLogprob>,
    /// Where tokens begin, if answers have log-probabilities.
    offsets: Option<TextOffsets>,
}

impl CompletionChunks {
    fn chunk(
        &mut self,
        index: usize,
        text: String,
        finish: Option<(Finish, Option<StopCause>)>,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) -> Result<(), ApiError> {
        let state = &mut self.states[index];
        let held = std::mem::take(&mut state.held);
        let tokens = self.ids.then(|| held.iter().map(|token| token.id).collect());
        let mut told = std::mem::take(&mut state.echoed);
        told.extend(held);
        let names = Names { tokenizer: self.model.tokenizer(), as_ids: self.as_ids };
        let lists = |offsets| logprobs::lists(names, &told, offsets);
        let logprobs = state.offsets.as_mut().map(lists).transpose()?;
        let (finish_reason, stop_reason) = finish.unzip();
        let choice = Choice {
            index,
            text,
            logprobs,
            finish_reason,
            stop_reason: stop_reason.flatten(),
            tokens,
            prompt_logprobs: None,
        };
        out.push_back(self.head.chunk(choice, usage));
        Ok(())
    }
}

impl Chunks for CompletionChunks {
    type Piece = Event;

    fn progress(
        &mut self,
        progress: Progress,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) -> Result<(), ApiError> {
        match progress {
            Progress::Prompt { prompt, logprobs, .. } => {
                let Some(echo) = &self.echo else { return Ok(()) };
                let text = echo[prompt].clone();
                let echoed = EchoedPrompt { first_id: self.first_ids[prompt], logprobs };
                for answer in prompt * self.n..(prompt + 1) * self.n {
                    self.states[answer].echoed.extend(echoed.tokens(self.logprobs));
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

    fn fail(&mut self, error: &ApiError, out: &mut VecDeque<Event>) {
        out.push_back(sse::failure(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_answers_have_the_most_likely_tokens() {
        let answer = |text: &str, logprobs: &[f32]| Answer {
            text: text.to_owned(),
            ends: Vec::new(),
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
