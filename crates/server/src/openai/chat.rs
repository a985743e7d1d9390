//! `POST /v1/chat/completions`: the next message of a conversation.

use super::chat_chunks::ChatChunks;
use super::conversation::{ConversationFields, Rendered};
use super::logprobs::{self, ChatLogprobs};
use super::refused;
use super::sampling::{CommonFields, StreamUsage, check_context, check_logprobs};
use super::structured::{GrammarFields, Wanted, constraint};
use super::types::{Body, Head, StreamHead};
use crate::chat_parser::{ChatDelta, ChatParser, ChatParserOptions};
use crate::error::ApiError;
use crate::extract::JsonBody;
use crate::generation::{Answer, Finish, Job};
use crate::prompt;
use crate::served::ServedModel;
use crate::sse;
use crate::state::AppState;
use crate::tools::{ToolFormat, ToolRequest, tool_schema};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use realizar_runtime::constrain::Grammar;
use realizar_runtime::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The fields that only chat completions have, but for those of the conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
}

/// A request that was read and found right.
pub(crate) struct Chat {
    pub(crate) job: Job,
    head: Head,
    stream: Option<StreamUsage>,
    logprobs: bool,
    /// What is looked for in the answers.
    pub(crate) parser: ChatParserOptions,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    message: MessageBody,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Finish,
    stop_reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct MessageBody {
    role: &'static str,
    content: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
    refusal: (),
    annotations: [(); 0],
}

#[derive(Debug, Serialize)]
struct ToolCall {
    id: String,
    r#type: &'static str,
    function: CalledFunction,
}

#[derive(Debug, Serialize)]
struct CalledFunction {
    name: String,
    arguments: String,
}

/// Answers a request for chat completions.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let Chat { job, mut head, stream, logprobs, parser } = read(&state, &body).await?;
    let (model, n) = (job.model.clone(), job.n);
    let generation = job.start(&state)?;
    if let Some(usage) = stream {
        head.object = "chat.completion.chunk";
        let head = StreamHead { head, usage };
        let chunks = ChatChunks::new(model, head, logprobs, vec![parser; n]);
        return Ok(sse::respond(&state, generation, chunks));
    }
    let done = generation.collect().await?;
    let tokenizer = model.tokenizer();
    let choices = done.answers.into_iter().enumerate();
    let choices = choices.map(|(index, answer)| {
        choice(index, answer, ChatParser::new(parser.clone()), logprobs, tokenizer)
    });
    let (choices, usage) = (choices.collect(), Some(Some(done.usage.into())));
    Ok(Json(Body { head: &head, choices, usage }).into_response())
}

/// Answers with the token ids that a request for chat completions would give the engine.
pub(crate) async fn render(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let Chat { job, head, .. } = read(&state, &body).await?;
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

/// Reads a request and checks it.
pub(crate) async fn read(state: &AppState, body: &JsonBody) -> Result<Chat, ApiError> {
    let common: CommonFields = body.read()?;
    let fields: Fields = body.read()?;
    let conversation: ConversationFields = body.read()?;
    let grammar = body.read::<GrammarFields>()?.read()?;
    let tools = ToolRequest::from_chat(&body.read()?)?;
    refused::check_chat(body)?;
    let model = state.model(common.model.as_deref()).await?;
    let limits = &state.config().limits;
    let logprobs = fields.logprobs.unwrap_or(false);
    let top = fields.top_logprobs.unwrap_or(0);
    if top > 0 && !logprobs {
        let message = "`top_logprobs` is only allowed when `logprobs` is true";
        return Err(ApiError::invalid("top_logprobs", message));
    }
    let top = check_logprobs("top_logprobs", top, limits)?;
    let mut params = common.params(&model, limits, None, logprobs.then_some(top))?;
    common.require_tokens()?;
    let (n, stream) = (common.answers(&model, limits)?, common.stream()?);
    let conversation = conversation.render(&model, tools.for_template()).await?;
    let (parser, grammar) = form(&model, &tools, grammar, &conversation)?;
    params.shown_tokens =
        ChatParser::control_tokens(model.tokenizer(), parser.tools, parser.reasoning);
    params.constraint = constraint(&model, grammar, &parser, &conversation).await?;
    // The template writes the special tokens itself.
    let add_special = common.add_special_tokens().unwrap_or(false);
    let text = conversation.text;
    let prompts = vec![prompt::encode_conversation(&model, text, add_special).await?];
    let params_of = ("messages", common.max_tokens_param());
    check_context(&model, limits, &prompts, params.max_tokens, params_of)?;
    let name = common.model.as_deref().filter(|name| !name.is_empty()).unwrap_or(&model.name);
    Ok(Chat {
        head: Head::new("chatcmpl-", "chat.completion", name),
        stream,
        logprobs,
        parser,
        job: Job {
            prompts,
            params,
            n,
            priority: common.priority(),
            prompt_logprobs: None,
            include_stop: common.include_stop(),
            model: model.clone(),
        },
    })
}

/// What is looked for in an answer to a conversation, and the grammar that it must follow.
fn form(
    model: &ServedModel,
    tools: &ToolRequest,
    grammar: Option<Wanted>,
    conversation: &Rendered,
) -> Result<(ChatParserOptions, Option<Wanted>), ApiError> {
    let side = model.chat_side()?;
    let forced = match (tool_schema(tools), grammar) {
        (Some(_), Some(Wanted { param, .. })) => {
            let message = format!("`{param}` cannot be followed where a tool must be called");
            return Err(ApiError::invalid(param, message));
        }
        (Some(schema), None) => {
            Some(Wanted { param: "tools", grammar: Grammar::JsonSchema(schema) })
        }
        (None, grammar) => grammar,
    };
    let format = match (tools.may_call(), tools.must_call()) {
        (false, _) => None,
        // A forced call has the form of its grammar.
        (true, true) => Some(ToolFormat::Json),
        (true, false) => Some(side.tools.unwrap_or(ToolFormat::Json)),
    };
    let parser = ChatParserOptions {
        tools: format,
        tool_names: tools.names(),
        single_call: !tools.parallel,
        reasoning: side.reasoning.filter(|_| forced.is_none() || conversation.may_reason),
        reasoning_open: conversation.is_reasoning,
        id_seed: None,
    };
    Ok((parser, forced))
}

fn choice(
    index: usize,
    answer: Answer,
    mut parser: ChatParser,
    logprobs: bool,
    tokenizer: &Tokenizer,
) -> Choice {
    let (mut content, mut reasoning_content) = (String::new(), String::new());
    let (mut tool_calls, mut deltas) = (Vec::<ToolCall>::new(), Vec::new());
    parser.push(&answer.text, &mut deltas);
    parser.finish(&mut deltas);
    for delta in deltas {
        match delta {
            ChatDelta::Content(text) => content.push_str(&text),
            ChatDelta::Reasoning(text) => reasoning_content.push_str(&text),
            ChatDelta::ToolCallStart { id, name, .. } => {
                let function = CalledFunction { name, arguments: String::new() };
                tool_calls.push(ToolCall { id, r#type: "function", function });
            }
            ChatDelta::ToolCallArguments { index, text } => {
                tool_calls[index].function.arguments.push_str(&text);
            }
        }
    }
    let calls_alone = content.is_empty() && !tool_calls.is_empty();
    let finish_reason = finish(answer.reason, &parser);
    Choice {
        index,
        message: MessageBody {
            role: "assistant",
            content: (!calls_alone).then_some(content),
            reasoning_content,
            tool_calls,
            refusal: (),
            annotations: [],
        },
        logprobs: logprobs.then(|| logprobs::chat(tokenizer, &answer.tokens)),
        finish_reason,
        stop_reason: answer.stop,
    }
}

/// Why an answer ended, for who is to act on it: its tool calls, if it has any and is whole.
pub(super) fn finish(reason: Finish, parser: &ChatParser) -> Finish {
    match reason {
        Finish::Stop if parser.has_tool_calls() => Finish::ToolCalls,
        reason => reason,
    }
}
