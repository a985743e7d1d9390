//! Conversations in other words: `POST /v1/messages`, its token count, and what
//! `POST /v1/responses` has in common with it.
//!
//! A request becomes one for chat completions, is read and checked as such, and its answer is
//! written in the words of its own API.

use crate::answer::generation::{Finish, Progress, Usage};
use crate::answer::sse;
use crate::answer::stream::Chunks;
use crate::api::anthropic::{self, MessageStream};
use crate::api::openai::chat::{self, Chat};
use crate::api::{llama, ollama};
use crate::chat::conversation::{Answer, ConversationRequest, EndReason, StreamEvent, TokenUsage};
use crate::chat::delta::ChatDelta;
use crate::chat::parser::ChatParser;
use crate::error::ApiError;
use crate::http::extract::{Held, JsonBody};
use crate::ids;
use crate::ignored::Api;
use crate::state::AppState;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use realizar_runtime::StopCause;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;

/// Parameters of chat completions, and what the messages API calls them.
const MESSAGES_NAMES: &[(&str, &str)] = &[
    ("max_completion_tokens", "max_tokens"),
    ("reasoning_effort", "output_config.effort"),
    ("response_format.json_schema.schema", "output_config.format.schema"),
    ("stop", "stop_sequences"),
    ("thinking_budget_tokens", "thinking.budget_tokens"),
];

/// Whether a path belongs to Anthropic's API.
pub(crate) fn is_anthropic(path: &str) -> bool {
    path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Writes the errors of Anthropic's, Ollama's and llama-server's APIs in their own shape, whatever found
/// them.
pub(crate) async fn with_own_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let (is_anthropic, is_ollama) = (is_anthropic(path), ollama::is_ollama(path));
    let is_llama = llama::is_llama(path);
    let mut response = next.run(request).await;
    let body = match response.extensions().get::<ApiError>() {
        Some(error) if is_anthropic => {
            MessageStream::error(error_kind(error), &error.to_string()).data
        }
        Some(error) if is_ollama => error.ollama_body(),
        Some(error) if is_llama => error.llama_body(),
        _ => return response,
    };
    *response.body_mut() = body.to_string().into();
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response
}

/// Answers a request of Anthropic's messages API.
pub(crate) async fn messages(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let read_body =
        |body: &JsonBody| Ok(anthropic::read_request(&body.read_request(Api::Messages)?)?);
    let (request, held) = body.parse(read_body).await?;
    let (stream, name) = (request.stream, request.model.clone());
    let chat = read(&state, request, held, Map::new(), MESSAGES_NAMES).await?;
    let id = ids::new("msg_");
    if stream {
        return respond(&state, chat, MessageStream::new(id, name));
    }
    let (answer, end, usage) = collect(&state, chat).await?;
    Ok(Json(anthropic::message(&id, &name, &answer, &end, usage)).into_response())
}

/// What Anthropic calls a failure.
fn error_kind(error: &ApiError) -> &'static str {
    match error.status().as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

/// Answers with the number of tokens that a request's prompt has.
pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let read_body = |body: &JsonBody| {
        let mut fields = body.read_request(Api::Messages)?;
        // The count needs none, and a message does.
        fields.insert("max_tokens".to_owned(), json!(1));
        Ok(anthropic::read_request(&fields)?)
    };
    let (request, held) = body.parse(read_body).await?;
    let n_tokens = count(&state, request, held, Map::new(), MESSAGES_NAMES).await?;
    Ok(Json(json!({"input_tokens": n_tokens})))
}

/// Reads a conversation, with `more` fields of chat completions, as a request for these. Errors name its parameters as its own
/// API does.
pub(super) async fn read(
    state: &AppState,
    request: ConversationRequest,
    held: Held,
    more: Map<String, Value>,
    names: &[(&str, &str)],
) -> Result<Chat, ApiError> {
    let read = async {
        let body = chat_body(state, request, held, more).await?;
        chat::read(state, body).await
    };
    read.await.map_err(|error| error.renamed(names))
}

/// The number of tokens of a conversation's prompt, which may be longer than the context. Parameters are those of
/// [`read`].
pub(super) async fn count(
    state: &AppState,
    request: ConversationRequest,
    held: Held,
    more: Map<String, Value>,
    names: &[(&str, &str)],
) -> Result<usize, ApiError> {
    let count = async {
        let body = chat_body(state, request, held, more).await?;
        chat::count(state, body).await
    };
    count.await.map_err(|error| error.renamed(names))
}

/// The body of a request for chat completions.
async fn chat_body(
    state: &AppState,
    request: ConversationRequest,
    held: Held,
    more: Map<String, Value>,
) -> Result<JsonBody, ApiError> {
    let model = state.model(Some(&request.model)).await?;
    let mut body = more;
    let mut set = |name: &str, value: Option<Value>| {
        body.extend(value.map(|value| (name.to_owned(), value)));
    };
    set("model", Some(json!(request.model)));
    let messages = request.messages;
    let messages = held.work(move || Ok(json!(messages))).await?;
    set("messages", Some(messages));
    if !request.tools.functions.is_empty() {
        let tools: Vec<Value> = request.tools.functions.iter().map(|f| f.to_chat()).collect();
        set("tools", Some(json!(tools)));
        set("tool_choice", Some(request.tools.choice_to_chat()));
        set("parallel_tool_calls", Some(json!(request.tools.parallel)));
    }
    set("max_completion_tokens", request.max_tokens.map(|n| json!(n)));
    set("temperature", request.temperature.map(|x| json!(x)));
    set("top_p", request.top_p.map(|x| json!(x)));
    set("top_k", request.top_k.map(|n| json!(n)));
    set("stop", (!request.stop.is_empty()).then(|| json!(request.stop)));
    set("response_format", request.response_format);
    set("continue_final_message", request.continues.then(|| json!(true)));
    set("reasoning_effort", request.reasoning.effort.map(|effort| json!(effort)));
    let mut budget = request.reasoning.budget_tokens;
    if let Some(enabled) = request.reasoning.enabled {
        let side = model.chat_side_for(request.tools.may_call())?;
        match side.traits.thinking_variable {
            Some(name) => set("chat_template_kwargs", Some(json!({name: enabled}))),
            // As with an effort, a model without reasoning answers as it would without.
            None if side.reasoning.is_none() => budget = None,
            // A model that always reasons is stopped before it begins.
            None if !enabled => budget = Some(0),
            None => {}
        }
    }
    set("thinking_budget_tokens", budget.map(|n| json!(n)));
    JsonBody::of(body, held).await
}

/// The reason and the text that ended an answer.
fn end(reason: Finish, stop: Option<StopCause>) -> EndReason {
    match (reason, stop) {
        (Finish::Length, _) => EndReason::Length,
        (_, Some(StopCause::Text(text))) => EndReason::StopText(text),
        (_, Some(StopCause::Token(_)) | None) => EndReason::End,
    }
}

fn tokens(usage: Usage, reasoning: usize) -> TokenUsage {
    let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = usage;
    let (prompt, cached, generated) = (prompt_tokens, cached_tokens, completion_tokens);
    TokenUsage { prompt, cached, generated, reasoning }
}

/// The whole answer.
pub(super) async fn collect(
    state: &AppState,
    chat: Chat,
) -> Result<(Answer, EndReason, TokenUsage), ApiError> {
    let mut parser = Parsed::new(ChatParser::new(chat.parser));
    let mut generation = chat.job.start(state)?;
    let (mut answer, mut ended) = (Answer::default(), EndReason::End);
    while let Some(progress) = generation.next().await {
        let (deltas, finished) = parser.read(progress?);
        deltas.into_iter().for_each(|delta| answer.push(delta));
        ended = finished.unwrap_or(ended);
    }
    Ok((answer, ended, tokens(generation.usage(), parser.parser.reasoning_tokens())))
}

/// An answer's parser.
pub(super) struct Parsed {
    parser: ChatParser,
}

impl Parsed {
    pub(super) fn new(parser: ChatParser) -> Self {
        Self { parser }
    }

    /// The pieces that `progress` makes certain, and the end of the answer.
    pub(super) fn read(&mut self, progress: Progress) -> (Vec<ChatDelta>, Option<EndReason>) {
        let mut deltas = Vec::new();
        match progress {
            Progress::Prompt { .. } => (deltas, None),
            Progress::Token(token) => {
                self.parser.push_token(&token.text, &mut deltas);
                (deltas, None)
            }
            Progress::Finished { reason, tail, stop, .. } => {
                self.parser.push(&tail, &mut deltas);
                chat::end(&mut self.parser, reason, &mut deltas);
                (deltas, Some(end(reason, stop)))
            }
        }
    }
}

/// The events of an API's streams.
pub(super) trait Dialect: Sized + Send + 'static {
    fn start(&mut self, usage: TokenUsage) -> Vec<StreamEvent>;
    fn delta(&mut self, delta: &ChatDelta) -> Vec<StreamEvent>;
    fn finish(self, end: &EndReason, usage: TokenUsage) -> Vec<StreamEvent>;
    fn fail(self, error: &ApiError) -> Vec<StreamEvent>;
}

impl Dialect for MessageStream {
    fn start(&mut self, usage: TokenUsage) -> Vec<StreamEvent> {
        vec![Self::start(self, usage)]
    }

    fn delta(&mut self, delta: &ChatDelta) -> Vec<StreamEvent> {
        self.delta(delta)
    }

    fn finish(self, end: &EndReason, usage: TokenUsage) -> Vec<StreamEvent> {
        self.finish(end, usage)
    }

    fn fail(self, error: &ApiError) -> Vec<StreamEvent> {
        vec![Self::error(error_kind(error), &error.to_string())]
    }
}

/// Answers with the events of a dialect.
pub(super) fn respond(
    state: &AppState,
    chat: Chat,
    dialect: impl Dialect,
) -> Result<Response, ApiError> {
    let parsed = Parsed::new(ChatParser::new(chat.parser));
    let generation = chat.job.start(state)?;
    let told = Told { dialect: Some(dialect), parsed, ended: EndReason::End };
    Ok(sse::respond(state, generation, told))
}

/// What of an answer was emitted in a dialect.
struct Told<D> {
    dialect: Option<D>,
    parsed: Parsed,
    ended: EndReason,
}

fn event(StreamEvent { event, data }: StreamEvent) -> Event {
    Event::default().event(event).data(data.to_string())
}

impl<D: Dialect> Chunks for Told<D> {
    type Piece = Event;

    fn progress(
        &mut self,
        progress: Progress,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) -> Result<(), ApiError> {
        let Some(dialect) = &mut self.dialect else { return Ok(()) };
        if matches!(progress, Progress::Prompt { .. }) {
            out.extend(dialect.start(tokens(usage, 0)).into_iter().map(event));
        }
        let (deltas, ended) = self.parsed.read(progress);
        out.extend(deltas.iter().flat_map(|delta| dialect.delta(delta)).map(event));
        if let Some(ended) = ended {
            self.ended = ended;
        }
        Ok(())
    }

    fn end(&mut self, usage: Usage, out: &mut VecDeque<Event>) {
        if let Some(dialect) = self.dialect.take() {
            let usage = tokens(usage, self.parsed.parser.reasoning_tokens());
            out.extend(dialect.finish(&self.ended, usage).into_iter().map(event));
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut VecDeque<Event>) {
        if let Some(dialect) = self.dialect.take() {
            out.extend(dialect.fail(error).into_iter().map(event));
        }
    }
}
