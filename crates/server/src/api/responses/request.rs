//! Requests of `/v1/responses`.
//!
//! Nothing is stored, so what refers to earlier responses is refused. Reasoning comes back in plain
//! text, so a wish for its encrypted form needs no answer and is taken without effect.

use std::collections::HashMap;

use realizar_runtime::template::{Content, Message};
use serde_json::{Map, Value, json};

use crate::chat::conversation::{ConversationRequest, ReasoningRequest};
use crate::chat::tools::{FunctionAt, ToolRequest};
use crate::fields::{Fields, InvalidRequest, objects, show};
use crate::ignored::{Api, is_ignored};

/// What a request asks for, and what the response repeats of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponsesRequest {
    /// The conversation to continue with.
    pub conversation: ConversationRequest,
    /// Members of every response object.
    pub echo: Map<String, Value>,
}

/// Reads a request.
///
/// Fails, naming the parameter, on what is malformed and on what is not supported: stored
/// responses, work in the background, tools that run on OpenAI's side, input that is not text.
pub fn read_request(body: &Map<String, Value>) -> Result<ResponsesRequest, InvalidRequest> {
    let fields = Fields::root(body);
    fields.refuse(&[
        "previous_response_id",
        "conversation",
        "prompt",
        "max_tool_calls",
        "context_management",
        "moderation",
    ])?;
    for key in ["background", "store"] {
        if fields.bool(key)? == Some(true) {
            return Err(InvalidRequest::unsupported(key, "true", "false"));
        }
    }
    fields.only("truncation", &[json!("disabled"), json!("auto")])?;
    fields.only("top_logprobs", &[json!(0)])?;
    fields.object("metadata")?;
    for (idx, value) in fields.array("include")?.unwrap_or_default().iter().enumerate() {
        if !value.as_str().is_some_and(|v| is_ignored(Api::Responses, "include[]", v)) {
            let path = format!("include[{idx}]");
            let accepted = "\"reasoning.encrypted_content\"";
            return Err(InvalidRequest::unsupported(path, show(value), accepted));
        }
    }
    let model = fields.require_str("model")?.to_owned();
    let mut messages = Vec::new();
    if let Some(instructions) = fields.str("instructions")? {
        messages.push(Message::new("system", instructions));
    }
    match fields.require("input")? {
        Value::String(text) => messages.push(Message::new("user", text.as_str())),
        Value::Array(items) => {
            let mut reader = ItemReader { messages, ..ItemReader::default() };
            for item in objects(items, "input")? {
                reader.read(&item)?;
            }
            messages = reader.finish();
        }
        value => return Err(InvalidRequest::value("input", "a string or an array", value)),
    }
    let tools = ToolRequest::read(&fields, FunctionAt::Itself)?;
    let reasoning = reasoning(&fields)?;
    let conversation = ConversationRequest {
        model,
        messages,
        continues: false,
        tools,
        max_tokens: fields.count("max_output_tokens")?,
        temperature: fields.number("temperature")?,
        top_p: fields.number("top_p")?,
        top_k: fields.count("top_k")?,
        stop: Vec::new(),
        stream: fields.bool("stream")?.unwrap_or(false),
        response_format: text_format(&fields)?,
        reasoning,
        user: fields.str("user")?.map(str::to_owned),
    };
    let echo = echo(&fields, &conversation);
    Ok(ResponsesRequest { conversation, echo })
}

/// What a response repeats of its request, with the defaults of what was not said, but for sampling: its defaults are
/// those of the model.
fn echo(fields: &Fields<'_>, conversation: &ConversationRequest) -> Map<String, Value> {
    let or = |key: &str, default: Value| fields.get(key).cloned().unwrap_or(default);
    let effort = &conversation.reasoning.effort;
    let members = [
        ("background", json!(false)),
        ("instructions", or("instructions", Value::Null)),
        ("max_output_tokens", or("max_output_tokens", Value::Null)),
        ("max_tool_calls", Value::Null),
        ("metadata", or("metadata", json!({}))),
        ("model", json!(conversation.model)),
        ("parallel_tool_calls", json!(conversation.tools.parallel)),
        ("previous_response_id", Value::Null),
        ("reasoning", json!({"effort": effort, "summary": null})),
        ("service_tier", json!("default")),
        ("store", json!(false)),
        ("text", or("text", json!({"format": {"type": "text"}}))),
        ("tool_choice", or("tool_choice", json!("auto"))),
        ("tools", or("tools", json!([]))),
        ("top_logprobs", json!(0)),
        ("truncation", or("truncation", json!("disabled"))),
    ];
    let mut echo: Map<String, Value> =
        members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    // OpenAI's own shape has no null for it.
    echo.extend(fields.get("user").map(|user| ("user".to_owned(), user.clone())));
    echo
}

/// Turns items into messages. What the assistant did between two other messages is one message:
/// its reasoning, its text and its calls.
#[derive(Default)]
struct ItemReader {
    messages: Vec<Message>,
    assistant: Option<Message>,     // that items still add to
    names: HashMap<String, String>, // of the functions of earlier calls, by id
}

impl ItemReader {
    fn finish(mut self) -> Vec<Message> {
        self.close();
        self.messages
    }

    fn close(&mut self) {
        self.messages.extend(self.assistant.take());
    }

    /// The assistant's message, begun if there is none.
    fn assistant(&mut self) -> &mut Message {
        self.assistant.get_or_insert_with(|| Message {
            role: "assistant".to_owned(),
            content: Some(Content::Null),
            fields: Map::new(),
        })
    }

    fn read(&mut self, item: &Fields<'_>) -> Result<(), InvalidRequest> {
        match item.str("type")?.unwrap_or("message") {
            "message" => self.message(item),
            "reasoning" => self.reasoning(item),
            "function_call" => self.function_call(item),
            "function_call_output" => {
                let id = item.require_str("call_id")?;
                let output = text(item.require("output")?, &item.path("output"), TEXT)?;
                self.close();
                let mut message = Message::new("tool", output);
                message.fields.insert("tool_call_id".to_owned(), json!(id));
                if let Some(name) = self.names.get(id) {
                    message.fields.insert("name".to_owned(), json!(name));
                }
                self.messages.push(message);
                Ok(())
            }
            other => {
                let found = format!("an item of the type {other:?}");
                let accepted = "messages, reasoning, function calls and their outputs";
                Err(InvalidRequest::unsupported(item.path("type"), found, accepted))
            }
        }
    }

    fn message(&mut self, item: &Fields<'_>) -> Result<(), InvalidRequest> {
        let role = item.require_str("role")?;
        let content = text(item.require("content")?, &item.path("content"), TEXT)?;
        match role {
            "user" | "system" | "developer" => {
                self.close();
                self.messages.push(Message::new(role, content));
            }
            "assistant" => {
                // Text after text or calls is another message.
                let follows = self.assistant.as_ref().is_some_and(|message| {
                    message.content != Some(Content::Null)
                        || message.fields.contains_key("tool_calls")
                });
                if follows {
                    self.close();
                }
                self.assistant().content = Some(Content::Text(content));
            }
            other => {
                let expected = "\"user\", \"assistant\", \"system\" or \"developer\"";
                return Err(InvalidRequest::value(item.path("role"), expected, &json!(other)));
            }
        }
        Ok(())
    }

    fn reasoning(&mut self, item: &Fields<'_>) -> Result<(), InvalidRequest> {
        let read = |key: &str| match item.get(key) {
            None => Ok(String::new()),
            Some(value) => text(value, &item.path(key), &["reasoning_text", "summary_text"]),
        };
        let (content, summary) = (read("content")?, read("summary")?);
        let reasoning = if content.is_empty() { summary } else { content };
        self.close();
        if !reasoning.is_empty() {
            let fields = &mut self.assistant().fields;
            fields.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        Ok(())
    }

    fn function_call(&mut self, item: &Fields<'_>) -> Result<(), InvalidRequest> {
        let (id, name) = (item.require_str("call_id")?, item.require_str("name")?);
        let arguments = item.require_str("arguments")?;
        self.names.insert(id.to_owned(), name.to_owned());
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        let calls = self.assistant().fields.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
        Ok(())
    }
}

/// The types of parts that are text.
const TEXT: &[&str] = &["input_text", "output_text", "text", "refusal"];

/// A string, or the text of parts of these types.
fn text(value: &Value, path: &str, types: &[&str]) -> Result<String, InvalidRequest> {
    let parts = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => objects(parts, path)?,
        value => return Err(InvalidRequest::value(path, "a string or an array", value)),
    };
    let mut texts = Vec::new();
    for part in &parts {
        let kind = part.require_str("type")?;
        if !types.contains(&kind) {
            let found = format!("content of the type {kind:?}");
            let accepted = types.join(", ");
            return Err(InvalidRequest::unsupported(part.path("type"), found, accepted));
        }
        texts.push(part.require_str(if kind == "refusal" { "refusal" } else { "text" })?);
    }
    Ok(texts.join("\n"))
}

/// `text.format` as the chat API's `response_format`.
fn text_format(fields: &Fields<'_>) -> Result<Option<Value>, InvalidRequest> {
    let Some(text) = fields.object("text")? else { return Ok(None) };
    text.only("verbosity", &[json!("medium")])?;
    let Some(format) = text.object("format")? else { return Ok(None) };
    match format.require_str("type")? {
        "text" => Ok(None),
        "json_object" => Ok(Some(json!({"type": "json_object"}))),
        "json_schema" => {
            format.require("schema")?;
            format.object("schema")?;
            format.str("name")?;
            format.str("description")?;
            format.bool("strict")?;
            let mut schema = Map::new();
            for key in ["name", "description", "schema", "strict"] {
                if let Some(value) = format.get(key) {
                    schema.insert(key.to_owned(), value.clone());
                }
            }
            Ok(Some(json!({"type": "json_schema", "json_schema": schema})))
        }
        other => {
            let found = format!("the format {other:?}");
            let accepted = "\"text\", \"json_object\", \"json_schema\"";
            Err(InvalidRequest::unsupported(format.path("type"), found, accepted))
        }
    }
}

fn reasoning(fields: &Fields<'_>) -> Result<ReasoningRequest, InvalidRequest> {
    let Some(reasoning) = fields.object("reasoning")? else {
        return Ok(ReasoningRequest::default());
    };
    // The reasoning itself is given, which "auto" allows.
    for key in ["summary", "generate_summary"] {
        reasoning.only(key, &[json!("auto")])?;
    }
    let effort = reasoning.str("effort")?.map(str::to_owned);
    let enabled = (effort.as_deref() == Some("none")).then_some(false);
    Ok(ReasoningRequest { enabled, budget_tokens: None, effort })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::tools::{Function, ToolChoice, ToolInput};

    /// A request with these members beside the required ones.
    fn read(members: &Value) -> Result<ResponsesRequest, InvalidRequest> {
        let mut body = json!({"model": "m", "input": "hi"});
        for (key, value) in members.as_object().unwrap() {
            body[key] = value.clone();
        }
        read_request(body.as_object().unwrap())
    }

    #[test]
    fn parameters_are_carried_over() {
        let tool = json!({"type": "function", "name": "f", "strict": true,
                          "parameters": {"type": "object"}});
        let request = read(&json!({
            "instructions": "i", "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.9,
            "stream": true, "user": "u", "store": false, "background": false,
            "truncation": "disabled", "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "none", "summary": "auto"}, "metadata": {"k": "v"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": true}},
            "tools": [tool], "tool_choice": {"type": "function", "name": "f"},
            "parallel_tool_calls": false, "previous_response_id": null, "unknown": 1,
        }))
        .unwrap();
        let schema = json!({"name": "n", "schema": {}, "strict": true});
        let function = Function {
            name: "f".to_owned(),
            description: None,
            input: ToolInput::Parameters(json!({"type": "object"})),
            strict: true,
        };
        let want = ConversationRequest {
            model: "m".to_owned(),
            messages: vec![Message::new("system", "i"), Message::new("user", "hi")],
            continues: false,
            tools: ToolRequest {
                functions: vec![function],
                choice: ToolChoice::Function("f".to_owned()),
                parallel: false,
            },
            max_tokens: Some(9),
            temperature: Some(0.5),
            top_p: Some(0.9),
            top_k: None,
            stop: Vec::new(),
            stream: true,
            response_format: Some(json!({"type": "json_schema", "json_schema": schema})),
            reasoning: ReasoningRequest {
                enabled: Some(false),
                budget_tokens: None,
                effort: Some("none".to_owned()),
            },
            user: Some("u".to_owned()),
        };
        assert_eq!(request.conversation, want);
        for (key, value) in [
            ("instructions", json!("i")),
            ("max_output_tokens", json!(9)),
            ("metadata", json!({"k": "v"})),
            ("tools", json!([tool])),
            ("parallel_tool_calls", json!(false)),
            ("previous_response_id", Value::Null),
            ("store", json!(false)),
        ] {
            assert_eq!(request.echo[key], value, "{key}");
        }
    }

    #[test]
    fn items_become_messages() {
        let check = |input: Value, want: Value| {
            let request = read(&json!({"input": input})).unwrap();
            assert_eq!(json!(request.conversation.messages), want);
        };
        let call = |id: &str, name: &str| {
            json!({"type": "function_call", "id": "fc", "call_id": id, "name": name,
                   "arguments": "{\"a\":1}", "status": "completed"})
        };
        let chat_call = |id: &str, name: &str| {
            json!({"id": id, "type": "function",
                   "function": {"name": name, "arguments": "{\"a\":1}"}})
        };
        check(
            json!([
                {"role": "developer", "content": "d"},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
                {"type": "reasoning", "id": "rs", "summary": [],
                 "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "id": "msg", "status": "completed",
                 "content": [{"type": "output_text", "text": "c", "annotations": []}]},
                call("1", "f"),
                call("2", "g"),
                {"type": "function_call_output", "call_id": "1", "output": "r"},
                {"type": "function_call_output", "call_id": "2",
                 "output": [{"type": "input_text", "text": "s"}]},
                call("3", "f"),
                {"role": "assistant", "content": "e"},
                {"role": "assistant", "content": "f"},
            ]),
            json!([
                {"role": "developer", "content": "d"},
                {"role": "user", "content": "a\nb"},
                {"role": "assistant", "content": "c", "reasoning_content": "hm",
                 "tool_calls": [chat_call("1", "f"), chat_call("2", "g")]},
                {"role": "tool", "content": "r", "tool_call_id": "1", "name": "f"},
                {"role": "tool", "content": "s", "tool_call_id": "2", "name": "g"},
                {"role": "assistant", "content": null, "tool_calls": [chat_call("3", "f")]},
                {"role": "assistant", "content": "e"},
                {"role": "assistant", "content": "f"},
            ]),
        );
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |members: Value, param: &str, problem: &str| {
            let error = read(&members).unwrap_err();
            assert_eq!(error.param(), param, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        check(json!({"model": null}), "model", "required");
        check(json!({"input": null}), "input", "required");
        check(json!({"input": 1}), "input", "a string");
        check(json!({"previous_response_id": "r"}), "previous_response_id", "not supported");
        check(json!({"conversation": "c"}), "conversation", "not supported");
        check(json!({"background": true}), "background", "true is not supported");
        check(json!({"store": true}), "store", "true is not supported");
        check(json!({"truncation": "some"}), "truncation", "\"some\" is not");
        check(json!({"include": ["file_search_call.results"]}), "include[0]", "file_search");
        check(json!({"top_logprobs": 3}), "top_logprobs", "3 is not");
        check(json!({"text": {"verbosity": "low"}}), "text.verbosity", "\"low\"");
        check(json!({"text": {"format": {"type": "xml"}}}), "text.format.type", "\"xml\"");
        check(
            json!({"text": {"format": {"type": "json_schema"}}}),
            "text.format.schema",
            "required",
        );
        for (name, want) in [("name", "a string"), ("description", "a string"), ("strict", "true")]
        {
            let mut format = json!({"type": "json_schema", "schema": {}});
            format[name] = json!({});
            check(json!({"text": {"format": format}}), &format!("text.format.{name}"), want);
        }
        check(json!({"metadata": 1}), "metadata", "an object");
        check(json!({"reasoning": {"summary": "detailed"}}), "reasoning.summary", "detailed");
        check(
            json!({"tools": [{"type": "web_surf"}]}),
            "tools[0].type",
            "the tool type \"web_surf\"",
        );
        check(json!({"tools": [{"type": "function"}]}), "tools[0].name", "required");
        check(json!({"tool_choice": "required"}), "tool_choice", "tools");
        check(
            json!({"tool_choice": {"type": "function", "name": "f"}}),
            "tool_choice.name",
            "function in tools",
        );
        check(json!({"tool_choice": {"type": "mcp"}}), "tool_choice.type", "mcp");
        let input = |item: Value| json!({"input": [{"role": "user", "content": "a"}, item]});
        check(input(json!({"type": "item_reference", "id": "x"})), "input[1].type", "reference");
        check(input(json!({"role": "tool", "content": "x"})), "input[1].role", "\"user\"");
        check(
            input(json!({"role": "user", "content": [{"type": "input_image"}]})),
            "input[1].content[0].type",
            "\"input_image\"",
        );
        check(
            input(json!({"type": "function_call", "call_id": "1", "name": "f"})),
            "input[1].arguments",
            "required",
        );
    }
}
