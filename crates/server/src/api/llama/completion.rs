//! `POST /completion` and `/completions`: completes prompts.

use super::answer::{Asked, Telling};
use super::prompt::{self, Prompts};
use super::settings;
use crate::answer::generation::Job;
use crate::answer::sse;
use crate::api::openai::refused;
use crate::api::openai::sampling::{
    CommonFields, check_context, check_count, check_logprobs, most_answers,
};
use crate::api::openai::structured::{GrammarFields, Wanted};
use crate::error::ApiError;
use crate::http::extract::{Held, JsonBody};
use crate::registry::ModelLease;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use realizar_runtime::constrain::Grammar;
use realizar_runtime::tokenizer::EncodeOptions;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The prompts.
#[derive(Debug, Deserialize)]
pub(crate) struct PromptField {
    prompt: Option<Prompts>,
}

/// The fields that only llama-server's own endpoints have.
#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    n_cmpl: Option<usize>,
    logprobs: Option<usize>,
    n_keep: Option<i64>,
    t_max_predict_ms: Option<i64>,
    timings_per_token: Option<bool>,
    post_sampling_probs: Option<bool>,
    response_fields: Option<Vec<String>>,
    sse_ping_interval: Option<i64>,
}

/// What a request says beside its prompts.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) common: CommonFields,
    fields: Fields,
    grammar: Option<Wanted>,
}

/// Completes prompts.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let read = |body: &JsonBody| Ok((Request::read(body)?, body.read::<PromptField>()?.prompt));
    let ((request, prompts), held) = body.parse(read).await?;
    let model = state.model(request.common.model.as_deref()).await?;
    let prompts = prompts.map(|prompts| prompts.0).unwrap_or_default();
    let most = state.config().limits.prompts;
    match prompts.len() {
        0 => return Err(ApiError::invalid("prompt", "`prompt` is required")),
        n if n > most => {
            let message = format!("`prompt` has {n} prompts; this server allows {most}");
            return Err(ApiError::invalid("prompt", message));
        }
        _ => {}
    }
    let add_special = request.common.add_special_tokens().unwrap_or(true);
    let options = EncodeOptions { add_special, parse_special: true };
    let prompts = prompt::encode(&held, &model, prompts, options, "prompt").await?;
    request.answer(&state, held, model, prompts, "prompt").await
}

impl Request {
    /// Reads all fields but the prompts.
    pub(super) fn read(body: &JsonBody) -> Result<Self, ApiError> {
        refused::check_llama(body)?;
        let mut common: CommonFields = body.read()?;
        common.penalize_prompt();
        Ok(Self { common, fields: body.read()?, grammar: body.read::<GrammarFields>()?.read()? })
    }

    /// Generates, and answers with the result. Errors of prompts name `param`.
    pub(super) async fn answer(
        self,
        state: &AppState,
        held: Held,
        model: ModelLease,
        prompts: Vec<Vec<u32>>,
        param: &str,
    ) -> Result<Response, ApiError> {
        let Self { common, fields, grammar } = self;
        let limits = &state.config().limits;
        let context = common.context(&model);
        check_context(context, limits, &prompts, param, common.asked_most())?;
        let n = match fields.n_cmpl {
            None => common.answers(&model, limits)?,
            Some(n) => check_count("n_cmpl", n, most_answers(&model, limits))?,
        };
        let usage = common.stream()?;
        let n_probs = match (common.n_probs(), fields.logprobs.filter(|&n| n > 0)) {
            (Some(n), _) => Some(check_logprobs("n_probs", n, limits)?),
            (None, Some(n)) => Some(check_logprobs("logprobs", n, limits)?),
            (None, None) => None,
        };
        let prompt_logprobs = common.prompt_logprobs(limits)?;
        let mut params = common.params(&model, limits, None, n_probs).await?;
        let post_sampling = fields.post_sampling_probs.unwrap_or(false);
        params.logprobs_of_sampling = post_sampling;
        let max_tokens = params.max_tokens;
        common.hold_to_context(&prompts, &mut params);
        let n_keep = at_least("n_keep", fields.n_keep, -1)?.unwrap_or(0);
        let time_limit = at_least("t_max_predict_ms", fields.t_max_predict_ms, -1)?;
        let time_limit = time_limit.and_then(|millis| u64::try_from(millis).ok());
        let ping = at_least("sse_ping_interval", fields.sse_ping_interval, -1)?;
        let interval = match ping {
            None => Some(state.config().keep_alive),
            Some(0) => {
                let message = "`sse_ping_interval` must be at least 1, or -1 for no pings";
                return Err(ApiError::invalid("sse_ping_interval", message));
            }
            Some(seconds) => u64::try_from(seconds).ok().map(Duration::from_secs),
        };
        let mut settings = settings::all(&params, &model.sampling, model.tokenizer().eos_ids());
        let mut set = |name: &str, value: Value| drop(settings.insert(name.to_owned(), value));
        set("n_keep", json!(n_keep));
        set("stream", json!(usage.is_some()));
        set("samplers", json!(common.sampler_names(params.sampling_or(&model.sampling))?));
        set("timings_per_token", json!(fields.timings_per_token.unwrap_or(false)));
        set("post_sampling_probs", json!(post_sampling));
        let text = match grammar.as_ref().map(|wanted| &wanted.grammar) {
            Some(Grammar::Gbnf(text) | Grammar::Lark(text)) => text,
            _ => "",
        };
        set("grammar", json!(text));
        if let Some(wanted) = grammar {
            params.constraint = Some(wanted.compile(&model).await?);
        }
        let shown = {
            let (model, prompts) = (model.clone(), prompts.clone());
            held.work(move || {
                let decode =
                    |ids: &Vec<u32>| Ok((model.tokenizer().decode(ids, false)?, ids.len()));
                prompts.iter().map(decode).collect::<Result<_, ApiError>>()
            })
        };
        let asked = Asked {
            prompts: shown.await?,
            n,
            settings,
            context,
            max_tokens,
            n_probs,
            post_sampling,
            prompt_logprobs,
            as_ids: common.tokens_as_ids(),
            tokens: common.return_tokens(),
            timings: fields.timings_per_token.unwrap_or(false),
            usage,
            time_limit: time_limit.filter(|&millis| millis > 0).map(Duration::from_millis),
            fields: fields.response_fields.unwrap_or_default(),
        };
        let job = Job {
            model: model.clone(),
            prompts,
            params,
            n,
            priority: common.priority(),
            prompt_logprobs,
            include_stop: common.include_stop(),
            reuses_prefix: common.reuses_prefix(),
        };
        let mut telling = Telling::new(model, asked);
        let mut generation = job.start(state)?;
        drop(held);
        if usage.is_some() {
            return Ok(sse::respond_every(state, generation, telling, interval));
        }
        while !telling.is_complete()
            && let Some(progress) = generation.next().await
        {
            telling.read(progress?, generation.usage())?;
        }
        Ok(Json(telling.whole(generation.usage())).into_response())
    }
}

/// A number that is not below `least`.
fn at_least(param: &str, value: Option<i64>, least: i64) -> Result<Option<i64>, ApiError> {
    match value {
        Some(n) if n < least => {
            Err(ApiError::invalid(param, format!("`{param}` must be at least {least}")))
        }
        value => Ok(value),
    }
}
