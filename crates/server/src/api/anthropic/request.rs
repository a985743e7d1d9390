//! Requests of `/v1/messages`: everything but their messages and tools.
//!
//! What has no effect here, such as marks for a cache, is in the table of what is
//! [ignored](crate::ignored).

use super::blocks::MessageReader;
use super::tools;
use crate::chat::conversation::{ConversationRequest, ReasoningRequest};
use crate::fields::{Fields, InvalidRequest};
use crate::ignored::{Api, is_ignored};
use realizar_runtime::template::Content;
use serde_json::{Map, Value, json};

/// Reads a request.
///
/// Fails, naming the parameter, on what is malformed and on what is not supported: images, files,
/// conversations that the server keeps, and the like.
pub fn read_request(body: &Map<String, Value>) -> Result<ConversationRequest, InvalidRequest> {
    let body = Fields::root(body);
    body.refuse(&["compaction", "inference_geo", "thread"])?;
    match body.get("container") {
        None | Some(Value::String(_)) => {}
        Some(container @ Value::Object(_)) => {
            let container = Fields::of(container, body.path("container"))?;
            container.only("skills", &[json!([])])?;
        }
        Some(other) => {
            return Err(InvalidRequest::value("container", "a string or an object", other));
        }
    }
    if let Some(management) = body.object("context_management")? {
        for edit in management.objects("edits")? {
            let kind = edit.require_str("type")?;
            if !is_ignored(Api::Messages, "context_management.edits[].type", kind) {
                let found = format!("an edit of the type {kind:?}");
                let accepted =
                    "versions of \"clear_thinking\", \"clear_tool_uses\" and \"compact\"";
                return Err(InvalidRequest::unsupported(edit.path("type"), found, accepted));
            }
        }
    }
    let model = body.require_str("model")?.to_owned();
    body.require("max_tokens")?;
    let mut reader = MessageReader::default();
    if let Some(system) = body.get("system") {
        reader.system(system)?;
    }
    body.require("messages")?;
    reader.messages(&body.objects("messages")?)?;
    let messages = reader.finish();
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
    let continues = messages.last().is_some_and(|last| {
        let has_text =
            matches!(&last.content, Some(Content::Text(text)) if !text.trim().is_empty());
        last.role == "assistant" && has_text && !last.fields.contains_key("tool_calls")
    });
    let reasoning = reasoning(&body, output.as_ref())?;
    if continues && reasoning.enabled == Some(true) {
        let found = "thinking in an answer that the last message prefills";
        let accepted = "{\"type\": \"disabled\"}, or a last message of the user";
        return Err(InvalidRequest::unsupported("thinking", found, accepted));
    }
    Ok(ConversationRequest {
        model,
        messages,
        continues,
        tools: tools::read(&body)?,
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
            let (path, found) = (format.path("type"), format!("the format {other:?}"));
            Err(InvalidRequest::unsupported(path, found, "\"json_schema\""))
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
    use crate::chat::tools::ToolRequest;
    use realizar_runtime::template::Message;

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
    fn hints_are_taken() {
        for members in [
            json!({"mcp_servers": [], "context_management": {"edits": []}, "container": null}),
            json!({"context_management": {}, "container": {"id": "c", "skills": []}}),
            json!({"context_management": {"edits": [
                {"type": "clear_thinking_20251015", "keep": "all"},
                {"type": "clear_tool_uses_20250919"},
            ]}}),
            json!({"thinking": {"type": "adaptive", "display": "omitted"}, "speed": "fast"}),
        ] {
            let plain = read(&json!({})).unwrap();
            assert_eq!(read(&members), Ok(plain), "{members}");
        }
    }

    #[test]
    fn the_account_is_not_in_the_prompt() {
        let system = |blocks: &[&str]| {
            let blocks: Vec<Value> =
                blocks.iter().map(|text| json!({"type": "text", "text": text})).collect();
            json!(read(&json!({"system": blocks})).unwrap().messages)
        };
        let user = json!({"role": "user", "content": "hi"});
        let want = json!([{"role": "system", "content": "a\nb"}, user]);
        for account in ["x-anthropic-billing-header: v=1; c=2;", "x-anthropic-billing-header:"] {
            assert_eq!(system(&[account, "a", "b"]), want);
            assert_eq!(system(&["a", account, "b"]), want);
            assert_eq!(system(&[account]), json!([user]));
        }
        // Other texts stay, and so do messages and a system prompt that is no block.
        let near = "X-anthropic-billing-header: 1";
        assert_eq!(system(&[near, "a"])[0]["content"], format!("{near}\na"));
        let account = "x-anthropic-billing-header: 1";
        let plain = read(&json!({"system": account})).unwrap();
        assert_eq!(json!(plain.messages[0]), json!({"role": "system", "content": account}));
        let blocks = json!([{"type": "text", "text": account}]);
        for role in ["user", "assistant", "system"] {
            let messages = json!([{"role": role, "content": blocks}]);
            let told = read(&json!({"messages": messages})).unwrap().messages;
            assert_eq!(json!(told), json!([{"role": role, "content": account}]));
        }
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
        check(json!({"system": 1}), "system", "a string");
        for name in ["compaction", "thread"] {
            check(json!({name: {"type": "x"}}), name, "not supported");
        }
        check(json!({"inference_geo": "us"}), "inference_geo", "not supported");
        check(json!({"container": true}), "container", "a string or an object");
        let skills = json!({"skills": [{"type": "anthropic", "skill_id": "pptx"}]});
        check(json!({"container": skills}), "container.skills", "not supported");
        let edits = |edit: Value| json!({"context_management": {"edits": [edit]}});
        check(edits(json!({"type": "x"})), "context_management.edits[0].type", "\"x\"");
        check(edits(json!({})), "context_management.edits[0].type", "required");
        check(json!({"stop_sequences": ["a", ""]}), "stop_sequences[1]", "not empty");
        check(json!({"thinking": {"type": "maybe"}}), "thinking.type", "adaptive");
    }
}
