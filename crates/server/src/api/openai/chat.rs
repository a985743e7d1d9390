//! `POST /v1/chat/completions`: the next message of a conversation.

use super::chat_chunks::ChatChunks;
use super::conversation::{ConversationFields, Rendered};
use super::legacy;
use super::logprobs::{self, ChatLogprobs, Names};
use super::refused;
use super::sampling::{CommonFields, StreamUsage, check_context, check_logprobs};
use super::stored::{Keeper, Kept};
use super::structured::{GrammarFields, Wanted, constraint};
use super::truncation::{self, Room, Truncation};
use super::types::{Body, Head, StreamHead};
use crate::answer::generation::{self, Finish, Job, TokenLogprob};
use crate::answer::prompt::{self, Length};
use crate::answer::sse;
use crate::chat::conversation::{Answer, AnswerPart};
use crate::chat::delta::ChatDelta;
use crate::chat::parser::{ChatParser, ChatParserOptions};
use crate::chat::tools::{CallKind, ToolChoice, ToolFormat, ToolRequest, call_grammar};
use crate::config::Limits;
use crate::error::ApiError;
use crate::http::extract::JsonBody;
use crate::ignored::Api;
use crate::registry::served::ServedModel;
use crate::state::AppState;
use crate::state::stored::Owner;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use realizar_runtime::StopCause;
use realizar_runtime::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The fields that only chat completions have, but for those of the conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    reasoning_format: Option<ReasoningStyle>,
    truncation: Option<Truncation>,
    store: Option<bool>,
    metadata: Option<Map<String, Value>>,
}

/// llama-server's ways to return reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReasoningStyle {
    /// In `reasoning_content`.
    Auto,
    Deepseek,
    /// In `content`, with its marks.
    None,
}

/// A request that was read and found right.
pub(crate) struct Chat {
    pub(crate) job: Job,
    head: Head,
    stream: Option<StreamUsage>,
    shown: Shown,
    /// What is looked for in the answers.
    pub(crate) parser: ChatParserOptions,
    /// What is kept with the answers, if they are.
    kept: Option<Kept>,
}

/// What a request wants to see of its answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    /// Log-probabilities of their tokens.
    pub(super) logprobs: bool,
    /// The ids of their tokens.
    pub(super) ids: bool,
    /// Tokens as ids beside their log-probabilities.
    pub(super) as_ids: bool,
    /// How many likely tokens at each position of the prompt.
    prompt_logprobs: Option<usize>,
    /// A call is told in the form of `functions`.
    pub(super) legacy: bool,
    /// The function was named, so that a call of it is no choice of the model: as OpenAI has it,
    /// the answer then ends with `stop`.
    pub(super) named_call: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Choice {
    index: usize,
    message: MessageBody,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Finish,
    stop_reason: Option<StopCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct MessageBody {
    role: &'static str,
    content: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<CalledFunction>,
    refusal: (),
    annotations: [(); 0],
}

#[derive(Debug, Serialize)]
struct ToolCall {
    id: String,
    #[serde(flatten)]
    called: Called,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Called {
    Function { function: CalledFunction },
    Custom { custom: CalledCustom },
}

#[derive(Debug, Serialize)]
struct CalledFunction {
    name: String,
    arguments: String,
}

#[derive(Debug, Serialize)]
struct CalledCustom {
    name: String,
    input: String,
}

impl Called {
    fn new(kind: CallKind, name: String, text: String) -> Self {
        match kind {
            CallKind::Function => {
                Self::Function { function: CalledFunction { name, arguments: text } }
            }
            CallKind::Custom => Self::Custom { custom: CalledCustom { name, input: text } },
        }
    }
}

/// Answers a request for chat completions.
pub(crate) async fn create(
    State(state): State<AppState>,
    owner: Owner,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let Chat { job, mut head, stream, shown, parser, kept } = read(&state, body).await?;
    let (model, n) = (job.model.clone(), job.n);
    let keeper = kept.map(|kept| Keeper::new(&state, owner, kept));
    let generation = job.start(&state)?;
    if let Some(usage) = stream {
        head.object = "chat.completion.chunk";
        let head = StreamHead { head, usage };
        let chunks = ChatChunks::new(model, head, shown, vec![parser; n], keeper);
        return Ok(sse::respond(&state, generation, chunks));
    }
    let done = generation.collect().await?;
    let tokenizer = model.tokenizer();
    let (mut choices, mut usage) = (Vec::with_capacity(n), done.usage);
    for (index, answer) in done.answers.into_iter().enumerate() {
        let mut parser = ChatParser::new(parser.clone());
        choices.push(choice(index, answer, &mut parser, shown, tokenizer));
        usage.reasoning_tokens += parser.reasoning_tokens();
    }
    let usage = Some(Some(usage.into()));
    let of_prompt = shown.prompt_logprobs.zip(done.prompts.first());
    let prompt_logprobs = of_prompt.map(|(k, own)| logprobs::of_prompt(tokenizer, own, k));
    let body = Body { head: &head, choices, usage, prompt_logprobs };
    if let Some(keeper) = keeper {
        keeper.keep(json!(body));
    }
    Ok(Json(body).into_response())
}

/// Answers with the token ids that a request for chat completions would give the engine.
pub(crate) async fn render(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let Chat { job, head, .. } = read(&state, body).await?;
    let Job { prompts, params, .. } = job;
    let mut sampling_params = json!(params.sampling);
    sampling_params["max_tokens"] = json!(params.max_tokens);
    Ok(Json(json!({
        "request_id": head.id,
        "model": head.model,
        "token_ids": prompts.into_iter().next(),
        "sampling_params": sampling_params,
    })))
}

/// All fields of a request.
struct AllFields {
    common: CommonFields,
    own: Fields,
    conversation: ConversationFields,
    grammar: Option<Wanted>,
    tools: ToolRequest,
    /// The tools of an older client.
    functions: Option<ToolRequest>,
    kept: Option<Kept>,
}

impl AllFields {
    fn read(body: &JsonBody) -> Result<Self, ApiError> {
        body.log_ignored(Api::Chat)?;
        let mut read = Self {
            common: body.read()?,
            own: body.read()?,
            conversation: body.read()?,
            grammar: body.read::<GrammarFields>()?.read()?,
            tools: ToolRequest::from_chat(&body.pick(&ToolRequest::FIELDS)?)?,
            functions: None,
            kept: None,
        };
        read.functions = legacy::tools(&body.pick(&legacy::FIELDS)?, &read.tools)?;
        if read.own.store == Some(true) {
            let metadata = read.own.metadata.take().unwrap_or_default();
            read.kept = Some(Kept { messages: read.conversation.to_json(), metadata });
        }
        refused::check_chat(body)?;
        Ok(read)
    }
}

/// The number of tokens of a request's prompt, which may be longer than the context.
pub(crate) async fn count(state: &AppState, body: JsonBody) -> Result<usize, ApiError> {
    let Chat { job, .. } = read_as_long_as(state, body, Length::Any).await?;
    Ok(job.prompts.iter().map(Vec::len).sum())
}

/// Reads a request and checks it.
pub(crate) async fn read(state: &AppState, body: JsonBody) -> Result<Chat, ApiError> {
    read_as_long_as(state, body, Length::Context).await
}

async fn read_as_long_as(
    state: &AppState,
    body: JsonBody,
    length: Length,
) -> Result<Chat, ApiError> {
    let (fields, held) = body.parse(AllFields::read).await?;
    let AllFields { common, own: fields, conversation, grammar, tools, functions, kept } = fields;
    let legacy = functions.is_some();
    let tools = functions.unwrap_or(tools);
    let model = state.model(common.model.as_deref()).await?;
    let limits = &state.config().limits;
    let logprobs = logprobs_of(&fields, &common, limits)?;
    let mut params = common.params(&model, limits, None, logprobs).await?;
    common.require_tokens()?;
    let (n, stream) = (common.answers(&model, limits)?, common.stream()?);
    let context = common.context(&model);
    // The template writes the special tokens itself.
    let add_special = common.add_special_tokens().unwrap_or(false);
    let for_template = tools.for_template();
    let (conversation, prompt) = match fields.truncation.unwrap_or_default() {
        Truncation::Disabled => {
            let rendered = conversation.render(&held, &model, for_template).await?;
            let text = rendered.text.clone();
            (rendered, prompt::encode_conversation(&held, &model, text, add_special, length).await?)
        }
        Truncation::Auto => {
            let room = Room::new(context, limits.prompt_tokens, params.max_tokens);
            let fitting = truncation::render_fitting;
            fitting(conversation, &held, &model, for_template, add_special, room).await?
        }
    };
    let (mut parser, grammar) = form(&model, &tools, grammar, &conversation)?;
    params.shown_tokens.extend(ChatParser::control_tokens(
        model.tokenizer(),
        parser.tools,
        parser.reasoning,
    ));
    params.constraint = constraint(&model, grammar, &parser, &conversation).await?;
    if fields.reasoning_format == Some(ReasoningStyle::None) {
        if parser.calls_alone && parser.reasoning.is_some() {
            let message = "`reasoning_format` must not be `none` where a tool must be called";
            return Err(ApiError::invalid("reasoning_format", message));
        }
        parser.reasoning = None;
    }
    let prompts = vec![prompt];
    if length == Length::Context {
        check_context(context, limits, &prompts, "messages", common.asked_most())?;
    }
    common.hold_to_context(&prompts, &mut params);
    let prompt_logprobs = common.prompt_logprobs(limits)?;
    let name = common.model.as_deref().filter(|name| !name.is_empty()).unwrap_or(&model.name);
    Ok(Chat {
        head: Head::new("chatcmpl-", "chat.completion", name),
        stream,
        shown: Shown {
            logprobs: logprobs.is_some(),
            ids: common.return_tokens(),
            as_ids: common.tokens_as_ids(),
            prompt_logprobs,
            legacy,
            named_call: matches!(tools.choice, ToolChoice::Function(_)),
        },
        parser,
        kept,
        job: Job {
            prompts,
            params,
            n,
            priority: common.priority(),
            prompt_logprobs,
            include_stop: common.include_stop(),
            reuses_prefix: common.reuses_prefix(),
            model: model.clone(),
        },
    })
}

/// The number of most likely tokens to return at each position, if answers have log-probabilities.
fn logprobs_of(
    fields: &Fields,
    common: &CommonFields,
    limits: &Limits,
) -> Result<Option<usize>, ApiError> {
    match (common.n_probs(), fields.top_logprobs) {
        (Some(n), Some(top)) if n != top => {
            let message = format!("`n_probs` is {n}, and `top_logprobs` is {top}");
            Err(ApiError::invalid("n_probs", message))
        }
        (Some(n), _) => check_logprobs("n_probs", n, limits).map(Some),
        (None, top) if fields.logprobs == Some(true) => {
            check_logprobs("top_logprobs", top.unwrap_or(0), limits).map(Some)
        }
        (None, None | Some(0)) => Ok(None),
        (None, Some(_)) => {
            let message = "`top_logprobs` is only allowed when `logprobs` is true";
            Err(ApiError::invalid("top_logprobs", message))
        }
    }
}

/// What is looked for in an answer to a conversation, and the grammar that it must follow.
fn form(
    model: &ServedModel,
    tools: &ToolRequest,
    grammar: Option<Wanted>,
    conversation: &Rendered,
) -> Result<(ChatParserOptions, Option<Wanted>), ApiError> {
    let side = model.chat_side_for(tools.may_call())?;
    let template = model.chat_template_for(tools.may_call())?.source();
    let content = grammar.as_ref().map(|wanted| &wanted.grammar);
    let calls = call_grammar(side.tools, tools, content, template, model.tokenizer());
    let calls = calls.map_err(|error| ApiError::invalid("tools", error.to_string()))?;
    let call_format = calls.as_ref().map(|(format, _)| *format);
    let additional_properties = grammar.as_ref().and_then(|wanted| wanted.additional_properties);
    let forced = match calls {
        Some((format, calls)) => Some(Wanted {
            // An answer by the request's own grammar may come in the place of calls.
            param: grammar.filter(|_| !tools.must_call()).map_or("tools", |wanted| wanted.param),
            grammar: calls,
            additional_properties,
            begins_message: format == ToolFormat::Harmony,
        }),
        None => grammar,
    };
    let format = match tools.may_call() {
        false => None,
        true => Some(call_format.or(side.tools).unwrap_or(ToolFormat::Json)),
    };
    let parser = ChatParserOptions {
        tools: format,
        functions: tools.functions.clone(),
        calls_alone: tools.must_call(),
        single_call: !tools.parallel,
        reasoning: side.reasoning.filter(|_| forced.is_none() || conversation.may_reason),
        reasoning_open: conversation.is_reasoning,
        id_seed: None,
    };
    Ok((parser, forced))
}

fn choice(
    index: usize,
    answer: generation::Answer,
    parser: &mut ChatParser,
    shown: Shown,
    tokenizer: &Tokenizer,
) -> Choice {
    let (mut deltas, mut start) = (Vec::new(), 0);
    for &end in &answer.ends {
        parser.push_token(&answer.text[start..end], &mut deltas);
        start = end;
    }
    parser.push(&answer.text[start..], &mut deltas);
    end(parser, answer.reason, &mut deltas);
    let finish_reason = finish(answer.reason, parser, shown);
    let ended = Ended { finish_reason, stop_reason: answer.stop, tokens: &answer.tokens };
    Choice::new(index, deltas.into_iter().collect(), ended, shown, tokenizer)
}

/// How an answer ended, and its tokens.
pub(super) struct Ended<'a> {
    pub(super) finish_reason: Finish,
    pub(super) stop_reason: Option<StopCause>,
    pub(super) tokens: &'a [TokenLogprob],
}

impl Choice {
    /// Its number.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// A whole answer.
    pub(super) fn new(
        index: usize,
        answer: Answer,
        ended: Ended<'_>,
        shown: Shown,
        tokenizer: &Tokenizer,
    ) -> Self {
        let (content, reasoning_content) = (answer.content(), answer.reasoning());
        let calls = answer.parts.into_iter().filter_map(|part| match part {
            AnswerPart::ToolCall { id, name, arguments, kind } => {
                Some(ToolCall { id, called: Called::new(kind, name, arguments) })
            }
            AnswerPart::Content(_) | AnswerPart::Reasoning(_) => None,
        });
        let mut tool_calls: Vec<ToolCall> = calls.collect();
        let calls_alone = content.is_empty() && !tool_calls.is_empty();
        let mut function_call = None;
        if shown.legacy {
            let called = tool_calls.drain(..).next().map(|call| call.called);
            function_call = called.and_then(|called| match called {
                Called::Function { function } => Some(function),
                Called::Custom { .. } => None,
            });
        }
        let Ended { finish_reason, stop_reason, tokens } = ended;
        let logprobs = shown
            .logprobs
            .then(|| logprobs::chat(Names { tokenizer, as_ids: shown.as_ids }, tokens));
        Self {
            index,
            message: MessageBody {
                role: "assistant",
                content: (!calls_alone).then_some(content),
                reasoning_content,
                tool_calls,
                function_call,
                refusal: (),
                annotations: [],
            },
            logprobs,
            finish_reason,
            stop_reason,
            tokens: shown.ids.then(|| tokens.iter().map(|token| token.id).collect()),
        }
    }
}

/// Ends an answer.
pub(crate) fn end(parser: &mut ChatParser, reason: Finish, deltas: &mut Vec<ChatDelta>) {
    match reason {
        Finish::Length => parser.finish_cut(deltas),
        Finish::Stop | Finish::ToolCalls | Finish::FunctionCall => parser.finish(deltas),
    }
}

/// Why an answer ended, for the client to act on: its tool calls, if it has any and is whole.
pub(super) fn finish(reason: Finish, parser: &ChatParser, shown: Shown) -> Finish {
    match reason {
        Finish::Stop if parser.has_tool_calls() && !shown.named_call => match shown.legacy {
            true => Finish::FunctionCall,
            false => Finish::ToolCalls,
        },
        reason => reason,
    }
}
