//! Requests of `/v1/messages`.
//!
//! Hints that ask for nothing are taken without effect: `cache_control`, since equal beginnings of
//! prompts are always cached, and signatures of earlier thinking, which is not verified. Thinking
//! that was redacted cannot be read here and is left out.

use std::collections::HashMap;

use realizar_runtime::template::{Content, Message};
use serde_json::{Map, Value, json};

use crate::chat::conversation::{ConversationRequest, ReasoningRequest};
use crate::chat::tools::{Function, ToolChoice, ToolRequest};
use crate::fields::{Fields, InvalidRequest, objects};

/// Reads a request.
///
/// Fails, naming the parameter, on what is malformed and on what is not supported: blocks that are
/// not text, tools that run on Anthropic's side, containers and the like.
pub fn read_request(body: &Map<String, Value>) -> Result<ConversationRequest, InvalidRequest> {
    let body = Fields::root(body);
    body.refuse(&["container", "inference_geo"])?;
    body.only("mcp_servers", &[json!([])])?;
    if let Some(management) = body.object("context_management")? {
        management.only("edits", &[json!([])])?;
    }
    body.only("service_tier", &[json!("auto"), json!("standard_only")])?;
    let model = body.require_str("model")?.to_owned();
    body.require("max_tokens")?;
    let mut messages = Vec::new();
    if let Some(system) = body.get("system") {
        messages.push(Message::new("system", text(system, "system")?));
    }
    body.require("messages")?;
    let mut reader = MessageReader { messages, names: HashMap::new() };
    for message in body.objects("messages")? {
        reader.read(&message)?;
    }
    let metadata = body.object("metadata")?;
    let output = body.object("output_config")?;
    let response_format = match &output {
        Some(output) => output.object("format")?,
        None => None,
    };
    let response_format = match response_format {
        Some(format) => Some(format),
        None => body.object("output_format")?,
    };
    let mut stop = Vec::new();
    for (idx, value) in body.array("stop_sequences")?.unwrap_or_default().iter().enumerate() {
        match value.as_str() {
            Some(text) if !text.is_empty() => stop.push(text.to_owned()),
            _ => {
                let path = format!("stop_sequences[{idx}]");
                return Err(InvalidRequest::value(path, "a string that is not empty", value));
            }
        }
    }
    // An assistant's message at the end is the beginning of the answer.
    let continues = reader.messages.last().is_some_and(|last| {
        let has_text =
            matches!(&last.content, Some(Content::Text(text)) if !text.trim().is_empty());
        last.role == "assistant" && has_text && !last.fields.contains_key("tool_calls")
    });
    let reasoning = reasoning(&body, output.as_ref())?;
    if continues && reasoning.enabled == Some(true) {
        let what = "thinking in an answer that the last message prefills";
        return Err(InvalidRequest::unsupported("thinking", what));
    }
    Ok(ConversationRequest {
        model,
        messages: reader.messages,
        continues,
        tools: tools(&body)?,
        max_tokens: body.count("max_tokens")?,
        temperature: body.number("temperature")?,
        top_p: body.number("top_p")?,
        top_k: body.count("top_k")?,
        stop,
        stream: body.bool("stream")?.unwrap_or(false),
        response_format: response_format.as_ref().map(schema_format).transpose()?,
        reasoning,
        user: match metadata {
            Some(metadata) => metadata.str("user_id")?.map(str::to_owned),
            None => None,
        },
    })
}

/// A string, or the text of text blocks.
fn text(value: &Value, path: &str) -> Result<String, InvalidRequest> {
    let blocks = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(blocks) => objects(blocks, path)?,
        value => return Err(InvalidRequest::value(path, "a string or an array", value)),
    };
    let mut texts = Vec::new();
    for block in &blocks {
        match block.require_str("type")? {
            "text" => texts.push(block.require_str("text")?),
            other => return Err(unsupported_block(block, other)),
        }
    }
    Ok(texts.join("\n"))
}

fn unsupported_block(block: &Fields<'_>, kind: &str) -> InvalidRequest {
    InvalidRequest::unsupported(block.path("type"), format!("a block of the type {kind:?}"))
}

/// Turns messages of blocks into messages of the chat API, where results of tools are messages of
/// their own.
struct MessageReader {
    messages: Vec<Message>,
    names: HashMap<String, String>, // of the functions of earlier calls, by id
}

impl MessageReader {
    fn read(&mut self, message: &Fields<'_>) -> Result<(), InvalidRequest> {
        let role = message.require_str("role")?;
        if !matches!(role, "user" | "assistant") {
            let expected = "\"user\" or \"assistant\"";
            return Err(InvalidRequest::value(message.path("role"), expected, &json!(role)));
        }
        match message.require("content")? {
            Value::String(text) => {
                self.messages.push(Message::new(role, text.as_str()));
                Ok(())
            }
            Value::Array(blocks) => {
                let blocks = objects(blocks, &message.path("content"))?;
                if role == "user" { self.user(&blocks) } else { self.assistant(&blocks) }
            }
            value => {
                let path = message.path("content");
                Err(InvalidRequest::value(path, "a string or an array", value))
            }
        }
    }

    fn user(&mut self, blocks: &[Fields<'_>]) -> Result<(), InvalidRequest> {
        let mut texts = Vec::new();
        for block in blocks {
            match block.require_str("type")? {
                "text" => texts.push(block.require_str("text")?),
                "tool_result" => {
                    self.push_user(&mut texts);
                    self.tool_result(block)?;
                }
                other => return Err(unsupported_block(block, other)),
            }
        }
        self.push_user(&mut texts);
        Ok(())
    }

    fn push_user(&mut self, texts: &mut Vec<&str>) {
        if !texts.is_empty() {
            self.messages.push(Message::new("user", texts.join("\n")));
            texts.clear();
        }
    }

    fn tool_result(&mut self, block: &Fields<'_>) -> Result<(), InvalidRequest> {
        let id = block.require_str("tool_use_id")?;
        let content = match block.get("content") {
            None => String::new(),
            Some(content) => text(content, &block.path("content"))?,
        };
        let mut message = Message::new("tool", content);
        message.fields.insert("tool_call_id".to_owned(), json!(id));
        if let Some(name) = self.names.get(id) {
            message.fields.insert("name".to_owned(), json!(name));
        }
        if block.bool("is_error")? == Some(true) {
            message.fields.insert("is_error".to_owned(), json!(true));
        }
        self.messages.push(message);
        Ok(())
    }

    fn assistant(&mut self, blocks: &[Fields<'_>]) -> Result<(), InvalidRequest> {
        let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for block in blocks {
            match block.require_str("type")? {
                "text" => texts.push(block.require_str("text")?),
                "thinking" => thoughts.push(block.require_str("thinking")?),
                "redacted_thinking" => {
                    block.require_str("data")?;
                }
                "tool_use" => {
                    let (id, name) = (block.require_str("id")?, block.require_str("name")?);
                    block.require("input")?;
                    block.object("input")?;
                    self.names.insert(id.to_owned(), name.to_owned());
                    // Arguments are text in the chat API, as they come from a model.
                    let arguments = block.require("input")?.to_string();
                    let function = json!({"name": name, "arguments": arguments});
                    calls.push(json!({"id": id, "type": "function", "function": function}));
                }
                other => return Err(unsupported_block(block, other)),
            }
        }
        let mut message = Message::new("assistant", texts.join("\n"));
        if texts.is_empty() && !calls.is_empty() {
            message.content = Some(Content::Null);
        }
        if !thoughts.is_empty() {
            let reasoning = json!(thoughts.join("\n"));
            message.fields.insert("reasoning_content".to_owned(), reasoning);
        }
        if !calls.is_empty() {
            message.fields.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        self.messages.push(message);
        Ok(())
    }
}

fn tools(body: &Fields<'_>) -> Result<ToolRequest, InvalidRequest> {
    let mut functions = Vec::new();
    for tool in body.objects("tools")? {
        match tool.str("type")? {
            None | Some("custom") => {}
            Some(other) => {
                let what = format!("the tool type {other:?}");
                return Err(InvalidRequest::unsupported(tool.path("type"), what));
            }
        }
        tool.require("input_schema")?;
        functions.push(Function::read(&tool, "input_schema")?);
    }
    let (mut choice, mut parallel) = (ToolChoice::Auto, true);
    if let Some(fields) = body.object("tool_choice")? {
        choice = match fields.require_str("type")? {
            "auto" => ToolChoice::Auto,
            "any" => ToolChoice::Required,
            "none" => ToolChoice::None,
            "tool" => ToolChoice::Function(fields.require_str("name")?.to_owned()),
            other => {
                let expected = "\"auto\", \"any\", \"tool\" or \"none\"";
                return Err(InvalidRequest::value(fields.path("type"), expected, &json!(other)));
            }
        };
        parallel = !fields.bool("disable_parallel_tool_use")?.unwrap_or(false);
    }
    ToolRequest::new(functions, choice, parallel, "tools", "tool_choice", "tool_choice.name")
}

/// A form of the answer, as the chat API has it.
fn schema_format(format: &Fields<'_>) -> Result<Value, InvalidRequest> {
    match format.require_str("type")? {
        "json_schema" => {
            format.require("schema")?;
            format.object("schema")?;
            let schema = json!({"name": "answer", "schema": format.require("schema")?});
            Ok(json!({"type": "json_schema", "json_schema": schema}))
        }
        other => {
            let what = format!("the format {other:?}");
            Err(InvalidRequest::unsupported(format.path("type"), what))
        }
    }
}

fn reasoning(
    body: &Fields<'_>,
    output: Option<&Fields<'_>>,
) -> Result<ReasoningRequest, InvalidRequest> {
    let mut reasoning = ReasoningRequest::default();
    if let Some(thinking) = body.object("thinking")? {
        reasoning.enabled = match thinking.require_str("type")? {
            "enabled" => Some(true),
            "disabled" => Some(false),
            "adaptive" => None,
            other => {
                let expected = "\"enabled\", \"disabled\" or \"adaptive\"";
                return Err(InvalidRequest::value(thinking.path("type"), expected, &json!(other)));
            }
        };
        reasoning.budget_tokens = thinking.count("budget_tokens")?;
    }
    if let Some(output) = output {
        reasoning.effort = output.str("effort")?.map(str::to_owned);
    }
    Ok(reasoning)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with these members beside the required ones.
    fn read(members: &Value) -> Result<ConversationRequest, InvalidRequest> {
        let mut body = json!({
            "model": "m",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": "hi"}],
        });
        for (key, value) in members.as_object().unwrap() {
            body[key] = value.clone();
        }
        read_request(body.as_object().unwrap())
    }

    #[test]
    fn parameters_are_carried_over() {
        let request = read(&json!({
            "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                       {"type": "text", "text": "b"}],
            "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stream": true,
            "stop_sequences": ["x"], "metadata": {"user_id": "u"}, "unknown": 1,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
            "service_tier": "auto",
        }));
        let schema = json!({"name": "answer", "schema": {}});
        let want = ConversationRequest {
            model: "m".to_owned(),
            messages: vec![Message::new("system", "a\nb"), Message::new("user", "hi")],
            continues: false,
            max_tokens: Some(5),
            temperature: Some(0.5),
            top_p: Some(0.9),
            top_k: Some(3),
            stop: vec!["x".to_owned()],
            stream: true,
            response_format: Some(json!({"type": "json_schema", "json_schema": schema})),
            reasoning: ReasoningRequest {
                enabled: Some(true),
                budget_tokens: Some(1024),
                effort: Some("low".to_owned()),
            },
            user: Some("u".to_owned()),
            tools: ToolRequest::default(),
        };
        assert_eq!(request.unwrap(), want);
    }

    #[test]
    fn blocks_become_messages() {
        let check = |messages: Value, want: Value| {
            let request = read(&json!({"messages": messages})).unwrap();
            assert_eq!(json!(request.messages), want);
        };
        check(
            json!([
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "c"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"z": 1, "a": 2}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "r"},
                    {"type": "tool_result", "tool_use_id": "2", "is_error": true,
                     "content": [{"type": "text", "text": "bad"}]},
                    {"type": "text", "text": "d"},
                ]},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "3", "name": "g", "input": {}},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "3"}]},
                {"role": "assistant", "content": "e"},
            ]),
            json!([
                {"role": "user", "content": "a\nb"},
                {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": [
                    {"id": "1", "type": "function",
                     "function": {"name": "f", "arguments": "{\"z\":1,\"a\":2}"}},
                ]},
                {"role": "tool", "content": "r", "tool_call_id": "1", "name": "f"},
                {"role": "tool", "content": "bad", "tool_call_id": "2", "is_error": true},
                {"role": "user", "content": "d"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "3", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ]},
                {"role": "tool", "content": "", "tool_call_id": "3", "name": "g"},
                {"role": "assistant", "content": "e"},
            ]),
        );
    }

    #[test]
    fn an_answer_that_was_begun_is_gone_on_with() {
        let begun = |content: Value| {
            let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]);
            read(&json!({"messages": messages})).unwrap().continues
        };
        assert!(begun(json!("Yes")));
        assert!(begun(json!([{"type": "redacted_thinking", "data": "x"},
                             {"type": "text", "text": "Yes"}])));
        assert!(!begun(json!(" \n")));
        let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": {}});
        assert!(!begun(json!([{"type": "text", "text": "Yes"}, call])));
        assert!(!read(&json!({})).unwrap().continues);
        let messages = json!([{"role": "assistant", "content": "Yes"}]);
        let thinking = json!({"type": "enabled", "budget_tokens": 1024});
        let error = read(&json!({"messages": messages, "thinking": thinking})).unwrap_err();
        assert_eq!(error.param(), "thinking");
    }

    #[test]
    fn what_asks_for_nothing_is_taken() {
        for members in [
            json!({"mcp_servers": [], "context_management": {"edits": []}, "container": null}),
            json!({"context_management": {}}),
        ] {
            assert!(read(&members).is_ok(), "{members}");
        }
        for (members, param) in [
            (json!({"mcp_servers": [{"type": "url"}]}), "mcp_servers"),
            (json!({"context_management": {"edits": [{"type": "x"}]}}), "context_management.edits"),
        ] {
            assert_eq!(read(&members).unwrap_err().param(), param);
        }
    }

    #[test]
    fn tools_become_functions() {
        let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object"}});
        let check = |choice: Value, want: ToolChoice, parallel: bool| {
            let request = read(&json!({"tools": [tool], "tool_choice": choice})).unwrap();
            let function = Function {
                name: "f".to_owned(),
                description: Some("d".to_owned()),
                parameters: json!({"type": "object"}),
                strict: false,
            };
            let want = ToolRequest { functions: vec![function], choice: want, parallel };
            assert_eq!(request.tools, want);
        };
        check(Value::Null, ToolChoice::Auto, true);
        check(json!({"type": "auto"}), ToolChoice::Auto, true);
        check(json!({"type": "none"}), ToolChoice::None, true);
        check(
            json!({"type": "any", "disable_parallel_tool_use": true}),
            ToolChoice::Required,
            false,
        );
        check(json!({"type": "tool", "name": "f"}), ToolChoice::Function("f".to_owned()), true);
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |members: Value, param: &str, problem: &str| {
            let error = read(&members).unwrap_err();
            assert_eq!(error.param(), param, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        check(json!({"model": null}), "model", "required");
        check(json!({"max_tokens": null}), "max_tokens", "required");
        check(json!({"max_tokens": 1.5}), "max_tokens", "whole number");
        check(json!({"messages": null}), "messages", "required");
        check(
            json!({"messages": [{"role": "system", "content": "x"}]}),
            "messages[0].role",
            "user",
        );
        check(json!({"system": 1}), "system", "a string");
        check(json!({"container": "c"}), "container", "not supported");
        check(json!({"mcp_servers": [{}]}), "mcp_servers", "not supported");
        check(json!({"stop_sequences": ["a", ""]}), "stop_sequences[1]", "not empty");
        check(json!({"thinking": {"type": "maybe"}}), "thinking.type", "adaptive");
        let block = |role: &str, block: Value| {
            let text = json!({"type": "text", "text": "a"});
            json!({"messages": [{"role": role, "content": [text, block]}]})
        };
        let path = "messages[0].content[1].type";
        check(block("user", json!({"type": "image", "source": {}})), path, "\"image\"");
        check(block("user", json!({"type": "document"})), path, "\"document\"");
        let data = "messages[0].content[1].data";
        check(block("assistant", json!({"type": "redacted_thinking"})), data, "required");
        check(
            block(
                "user",
                json!({"type": "tool_result", "tool_use_id": "1", "content": [
                {"type": "image"}]}),
            ),
            "messages[0].content[1].content[0].type",
            "\"image\"",
        );
        check(
            block("assistant", json!({"type": "tool_use", "id": "1", "name": "f", "input": "{}"})),
            "messages[0].content[1].input",
            "an object",
        );
        let tools = |tool: Value| json!({"tools": [tool]});
        check(
            tools(json!({"type": "web_search_20250305", "name": "web_search"})),
            "tools[0].type",
            "web_search_20250305",
        );
        check(tools(json!({"name": "f"})), "tools[0].input_schema", "required");
        check(tools(json!({"name": "a b", "input_schema": {}})), "tools[0].name", "letters");
        check(json!({"tool_choice": {"type": "any"}}), "tool_choice", "tools");
        check(
            json!({"tool_choice": {"type": "tool", "name": "f"}}),
            "tool_choice.name",
            "function",
        );
    }
}
