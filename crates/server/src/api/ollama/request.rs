//! Requests of `/api/chat` and `/api/generate`.
//!
//! Options of devices, which are chosen when this server starts, and options that Ollama has removed
//! are in the table of what is [ignored](crate::ignored). Others that it does not know are taken
//! without effect, as Ollama takes them.

use crate::chat::conversation::{ConversationRequest, ReasoningRequest};
use crate::chat::tools::{Function, ToolChoice, ToolRequest};
use crate::fields::{Fields, InvalidRequest, NO_VALUE};
use crate::registry::KeepAlive;
use realizar_runtime::template::{Content, Message};
use serde_json::{Map, Value, json};

/// Options of sampling and of length, and what chat completions call them.
const OPTIONS: &[(&str, &str)] = &[
    ("frequency_penalty", "frequency_penalty"),
    ("min_p", "min_p"),
    ("mirostat", "mirostat"),
    ("mirostat_eta", "mirostat_eta"),
    ("mirostat_tau", "mirostat_tau"),
    ("num_predict", "n_predict"),
    ("presence_penalty", "presence_penalty"),
    ("repeat_last_n", "repeat_last_n"),
    ("repeat_penalty", "repetition_penalty"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("typical_p", "typical_p"),
];

/// Parameters of chat completions, and what Ollama calls them.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("chat_template_kwargs", "think"),
    ("frequency_penalty", "options.frequency_penalty"),
    ("max_context_tokens", "options.num_ctx"),
    ("min_p", "options.min_p"),
    ("mirostat", "options.mirostat"),
    ("mirostat_eta", "options.mirostat_eta"),
    ("mirostat_tau", "options.mirostat_tau"),
    ("n_predict", "options.num_predict"),
    ("presence_penalty", "options.presence_penalty"),
    ("reasoning_effort", "think"),
    ("repeat_last_n", "options.repeat_last_n"),
    ("repetition_penalty", "options.repeat_penalty"),
    ("response_format", "format"),
    ("response_format.json_schema.schema", "format"),
    ("seed", "options.seed"),
    ("stop", "options.stop"),
    ("temperature", "options.temperature"),
    ("top_k", "options.top_k"),
    ("top_p", "options.top_p"),
    ("typical_p", "options.typical_p"),
];

/// What a request for a chat or a text says.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) prompt: Prompt,
    pub(super) reasoning: ReasoningRequest,
    pub(super) tools: ToolRequest,
    pub(super) format: Option<Value>,
    /// Further fields of completions of either kind.
    pub(super) more: Map<String, Value>,
    /// The number of most likely tokens to return for each token.
    pub(super) logprobs: Option<usize>,
    /// The oldest turns of a conversation that does not fit are left out.
    pub(super) truncate: bool,
    /// How long the model is to stay after the request.
    pub(super) keep_alive: Option<KeepAlive>,
}

/// What the model continues from.
#[derive(Debug, Default)]
pub(super) enum Prompt {
    /// Nothing: the model is loaded or unloaded.
    #[default]
    None,
    Messages(Vec<Message>),
    /// A text as it is, and what comes after the answer.
    Text {
        text: String,
        suffix: Option<String>,
    },
}

impl Asked {
    /// As a conversation with this model.
    pub(super) fn into_conversation(
        self,
        model: String,
        messages: Vec<Message>,
    ) -> (ConversationRequest, Map<String, Value>) {
        let Self { stream, reasoning, tools, format, mut more, logprobs, truncate, .. } = self;
        if truncate {
            more.insert("truncation".to_owned(), json!("auto"));
        }
        if let Some(n) = logprobs {
            more.extend([
                ("logprobs".to_owned(), json!(true)),
                ("top_logprobs".to_owned(), json!(n)),
            ]);
        }
        let continues = messages.last().is_some_and(|message| message.role == "assistant")
            && messages.last().is_some_and(|message| !message.fields.contains_key("tool_calls"));
        let request = ConversationRequest {
            model,
            messages,
            continues,
            tools,
            stream,
            response_format: format,
            reasoning,
            ..ConversationRequest::default()
        };
        (request, more)
    }

    /// As the body of a request for plain completions.
    pub(super) fn into_completion(
        self,
        model: &str,
        text: &str,
        suffix: Option<String>,
    ) -> Map<String, Value> {
        let mut body = self.more;
        let mut set = |name: &str, value: Value| {
            body.insert(name.to_owned(), value);
        };
        set("model", json!(model));
        set("prompt", json!(text));
        suffix.into_iter().for_each(|suffix| set("suffix", json!(suffix)));
        self.format.into_iter().for_each(|format| set("response_format", format));
        self.logprobs.into_iter().for_each(|n| set("logprobs", json!(n)));
        // Completions have 16 tokens unless they are told otherwise.
        body.entry("n_predict").or_insert(json!(-1));
        body
    }
}

/// Reads a request of `/api/chat`.
///
/// # Errors
/// Naming the parameter, on what is malformed and on what is not supported.
pub(crate) fn read_chat(body: &Map<String, Value>) -> Result<Asked, InvalidRequest> {
    let root = Fields::root(body);
    let mut messages = Vec::new();
    let mut calls = Calls::default();
    for message in root.objects("messages")? {
        messages.push(read_message(&message, &mut calls)?);
    }
    let mut functions = Vec::new();
    for tool in root.objects("tools")? {
        tool.only("type", &[json!("function")])?;
        let function = Fields::of(tool.require("function")?, tool.path("function"))?;
        functions.push(Function::read(&function, "parameters")?);
    }
    let tools = ToolRequest::new(functions, ToolChoice::Auto, true, "tools", "tools", "tools")?;
    let prompt = if messages.is_empty() { Prompt::None } else { Prompt::Messages(messages) };
    Ok(Asked { prompt, tools, ..common(&root)? })
}

/// Reads a request of `/api/generate`.
///
/// # Errors
/// As [`read_chat`].
pub(crate) fn read_generate(body: &Map<String, Value>) -> Result<Asked, InvalidRequest> {
    let root = Fields::root(body);
    root.only("images", &[json!([])])?;
    root.only("context", &[json!([])])?;
    root.only("template", &[json!("")])?;
    root.refuse(&["width", "height", "steps"])?;
    let text = root.str("prompt")?.unwrap_or_default();
    let suffix = root.str("suffix")?.filter(|suffix| !suffix.is_empty());
    let system = root.str("system")?.filter(|system| !system.is_empty());
    let raw = root.bool("raw")?.unwrap_or(false);
    let prompt = if text.is_empty() && suffix.is_none() {
        Prompt::None
    } else if raw || suffix.is_some() {
        if system.is_some() {
            let found = "a system message beside `raw` or `suffix`";
            return Err(InvalidRequest::unsupported("system", found, NO_VALUE));
        }
        Prompt::Text { text: text.to_owned(), suffix: suffix.map(str::to_owned) }
    } else {
        let system = system.map(|system| Message::new("system", system));
        Prompt::Messages(system.into_iter().chain([Message::new("user", text)]).collect())
    };
    Ok(Asked { prompt, ..common(&root)? })
}

/// The fields that both have.
fn common(root: &Fields<'_>) -> Result<Asked, InvalidRequest> {
    let more = options(root)?;
    let reasoning = match root.get("think") {
        None => ReasoningRequest::default(),
        Some(Value::Bool(enabled)) => {
            ReasoningRequest { enabled: Some(*enabled), ..ReasoningRequest::default() }
        }
        Some(Value::String(effort)) => {
            ReasoningRequest { effort: Some(effort.clone()), ..ReasoningRequest::default() }
        }
        Some(value) => {
            let expected = "true, false or an effort such as \"low\"";
            return Err(InvalidRequest::value(root.path("think"), expected, value));
        }
    };
    let format = match root.get("format") {
        None => None,
        Some(Value::String(name)) if name.is_empty() => None,
        Some(Value::String(name)) if name == "json" => Some(json!({"type": "json_object"})),
        Some(schema @ Value::Object(_)) => Some(
            json!({"type": "json_schema", "json_schema": {"name": "format", "schema": schema}}),
        ),
        Some(value) => {
            let expected = "\"json\" or a JSON schema";
            return Err(InvalidRequest::value(root.path("format"), expected, value));
        }
    };
    let top = root.count("top_logprobs")?;
    let logprobs = match root.bool("logprobs")?.unwrap_or(false) {
        true => Some(top.unwrap_or(0)),
        false if top.is_some_and(|n| n > 0) => {
            let expected = "0 unless `logprobs` is true";
            return Err(InvalidRequest::value(root.path("top_logprobs"), expected, &json!(top)));
        }
        false => None,
    };
    Ok(Asked {
        model: root.require_str("model")?.to_owned(),
        stream: root.bool("stream")?.unwrap_or(true),
        reasoning,
        format,
        more,
        logprobs,
        truncate: root.bool("truncate")?.unwrap_or(true),
        keep_alive: keep_alive(root)?,
        ..Asked::default()
    })
}

/// The options that become fields of completions.
fn options(root: &Fields<'_>) -> Result<Map<String, Value>, InvalidRequest> {
    // As in llama.cpp, penalties count the prompt.
    let mut more = Map::from_iter([("penalize_prompt".to_owned(), json!(true))]);
    let Some(options) = root.object("options")? else { return Ok(more) };
    for &(name, ours) in OPTIONS {
        if let Some(value) = options.get(name) {
            // -2 fills the context, as -1 does where the context does not move on.
            let all = name == "num_predict" && *value == -2;
            more.insert(ours.to_owned(), if all { json!(-1) } else { value.clone() });
        }
    }
    if let Some(num_ctx) = options.count("num_ctx")?.filter(|&n| n > 0) {
        more.insert("max_context_tokens".to_owned(), json!(num_ctx));
    }
    Ok(more)
}

/// How long the model is to stay after the request: seconds, or a duration as Go writes it.
pub(super) fn keep_alive(root: &Fields<'_>) -> Result<Option<KeepAlive>, InvalidRequest> {
    let value = root.get("keep_alive");
    let read = match value {
        None => return Ok(None),
        Some(Value::Number(seconds)) => seconds.as_f64().and_then(KeepAlive::from_seconds),
        Some(Value::String(text)) => text.parse().ok(),
        Some(_) => None,
    };
    let expected = "seconds, or a duration such as \"5m\"";
    let value = value.unwrap_or(&Value::Null);
    let invalid = || InvalidRequest::value(root.path("keep_alive"), expected, value);
    read.map(Some).ok_or_else(invalid)
}

/// The calls of earlier messages, whose ids Ollama's clients need not know.
#[derive(Default)]
struct Calls {
    n: usize,
    /// Ids and names of calls without a result.
    open: Vec<(String, String)>,
}

fn read_message(message: &Fields<'_>, calls: &mut Calls) -> Result<Message, InvalidRequest> {
    let role = message.require_str("role")?;
    message.only("images", &[json!([])])?;
    let content = message.str("content")?.unwrap_or_default();
    let mut read = Message::new(role, content);
    if let Some(thinking) = message.str("thinking")?.filter(|thinking| !thinking.is_empty()) {
        read.fields.insert("reasoning_content".to_owned(), json!(thinking));
    }
    let mut told = Vec::new();
    for call in message.objects("tool_calls")? {
        let function = call.require("function")?;
        let function = Fields::of(function, call.path("function"))?;
        let name = function.require_str("name")?;
        // Arguments are text in the chat API, as they come from a model.
        let arguments = match function.object("arguments")? {
            Some(_) => function.require("arguments")?.to_string(),
            None => "{}".to_owned(),
        };
        calls.n += 1;
        let id = call.str("id")?.filter(|id| !id.is_empty());
        let id = id.map_or_else(|| format!("call_{}", calls.n), str::to_owned);
        let function = json!({"name": name, "arguments": arguments});
        told.push(json!({"id": id, "type": "function", "function": function}));
        calls.open.push((id, name.to_owned()));
    }
    if !told.is_empty() {
        if content.is_empty() {
            read.content = Some(Content::Null);
        }
        read.fields.insert("tool_calls".to_owned(), json!(told));
    }
    let (name, id) = (message.str("tool_name")?, message.str("tool_call_id")?);
    if role == "tool" {
        // The result of the call with this id, else of the first call of this function without one.
        let is_of = |(of, called): &(String, String)| match id {
            Some(id) => id == of,
            None => name.is_none_or(|name| name == called),
        };
        let found = calls.open.iter().position(is_of).map(|at| calls.open.remove(at));
        let (id, name) = match (found, id) {
            (Some((id, called)), _) => (id, Some(called)),
            (None, Some(id)) => (id.to_owned(), name.map(str::to_owned)),
            (None, None) => ("call_0".to_owned(), name.map(str::to_owned)),
        };
        read.fields.insert("tool_call_id".to_owned(), json!(id));
        read.fields.extend(name.map(|name| ("name".to_owned(), json!(name))));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(value: &Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn results_of_tools_find_their_calls() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}}});
        let asked = read_chat(&body(&json!({"model": "m", "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call("f"), call("g")]},
            {"role": "tool", "content": "of g", "tool_name": "g"},
            {"role": "tool", "content": "of f"},
        ]})));
        let Prompt::Messages(messages) = asked.expect("a request").prompt else {
            panic!("messages")
        };
        assert_eq!(messages[1].content, Some(Content::Null));
        let calls = &messages[1].fields["tool_calls"];
        assert_eq!(calls[0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!(messages[2].fields["tool_call_id"], calls[1]["id"]);
        assert_eq!(messages[3].fields["tool_call_id"], calls[0]["id"]);
        assert_eq!(messages[3].fields["name"], "f");
    }

    #[test]
    fn options_have_the_names_of_completions() {
        let options = json!({"temperature": 0.5, "repeat_penalty": 1.1, "num_predict": -2,
            "num_ctx": 100, "stop": ["a"], "use_mlock": true, "num_keep": 5, "top_k": null});
        let asked = read_generate(&body(&json!({"model": "m", "prompt": "x", "options": options})));
        let asked = asked.expect("a request");
        let want = json!({"temperature": 0.5, "repetition_penalty": 1.1, "n_predict": -1,
            "max_context_tokens": 100, "stop": ["a"], "penalize_prompt": true});
        assert_eq!(Value::Object(asked.more), want);
        assert!(asked.truncate);
        assert!(asked.stream && asked.keep_alive.is_none());
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let check = |more: &Value, param: &str| {
            let mut all = body(&json!({"model": "m", "prompt": "x"}));
            all.extend(body(more));
            let error = read_generate(&all).expect_err(param);
            assert_eq!(error.param(), param, "{error}");
        };
        check(&json!({"images": ["aGk="]}), "images");
        check(&json!({"context": [1]}), "context");
        check(&json!({"template": "{{ .Prompt }}"}), "template");
        check(&json!({"keep_alive": [5]}), "keep_alive");
        check(&json!({"keep_alive": "soon"}), "keep_alive");
        check(&json!({"format": "xml"}), "format");
        check(&json!({"think": 1}), "think");
        check(&json!({"raw": true, "system": "x"}), "system");
        let images =
            json!({"model": "m", "messages": [{"role": "user", "content": "x", "images": ["a"]}]});
        assert_eq!(read_chat(&body(&images)).expect_err("images").param(), "messages[0].images");
    }
}
