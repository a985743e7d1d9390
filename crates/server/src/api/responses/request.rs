//! Requests of `/v1/responses`.

use super::items::{self, ItemReader};
use super::tools::{self, ToolNames};
use crate::chat::conversation::{ConversationRequest, ReasoningRequest};
use crate::fields::{Fields, InvalidRequest, objects, show};
use crate::ignored::{Api, is_ignored};
use realizar_runtime::template::Message;
use serde_json::{Map, Value, json};

/// What a request asks for, and what the response repeats of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponsesRequest {
    /// The conversation to continue with.
    pub conversation: ConversationRequest,
    /// How long answers should be: `low`, `medium` or `high`.
    pub verbosity: Option<String>,
    /// The tools that lie in namespaces.
    pub tool_names: ToolNames,
    /// Whether the response is to be kept.
    pub store: bool,
    /// Members of every response object.
    pub echo: Map<String, Value>,
}

/// Reads a request. `earlier` are the items of the response that it continues, if it names one.
///
/// Fails, naming the parameter, on what is malformed and on what is not supported: conversations
/// and prompts that OpenAI keeps, work in the background, input that is not text.
pub fn read_request(
    body: &Map<String, Value>,
    earlier: &[Value],
) -> Result<ResponsesRequest, InvalidRequest> {
    let fields = Fields::root(body);
    check(&fields)?;
    let model = fields.require_str("model")?.to_owned();
    let mut items = objects(earlier, "previous_response_id")?;
    let mut text = None;
    match fields.require("input")? {
        Value::String(input) => text = Some(Message::new("user", input.as_str())),
        Value::Array(input) => items.extend(objects(input, "input")?),
        value => return Err(InvalidRequest::value("input", "a string or an array", value)),
    }
    let instructions = fields.str("instructions")?;
    let instructions = instructions.map(|text| Message::new("system", text));
    let mut reader = ItemReader::after(instructions.into_iter().collect());
    let mut additional = Vec::new();
    for item in items {
        reader.read(&item)?;
        if items::kind(&item)? == "additional_tools" {
            additional.push(item);
        }
    }
    let mut messages = reader.finish();
    messages.extend(text);
    let (tools, tool_names) = tools::read(&fields, &additional)?;
    let reasoning = reasoning(&fields)?;
    let (response_format, verbosity) = text_options(&fields)?;
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
        response_format,
        reasoning,
        user: fields.str("user")?.map(str::to_owned),
    };
    let store = fields.bool("store")?.unwrap_or(true);
    let echo = echo(&fields, &conversation, store);
    Ok(ResponsesRequest { conversation, verbosity, tool_names, store, echo })
}

/// Checks the parameters that ask for nothing here, or for what the server does not have.
fn check(fields: &Fields<'_>) -> Result<(), InvalidRequest> {
    fields.refuse(&["conversation", "prompt", "context_management", "moderation"])?;
    if fields.bool("background")? == Some(true) {
        return Err(InvalidRequest::unsupported("background", "true", "false"));
    }
    fields.only("truncation", &[json!("disabled"), json!("auto")])?;
    fields.only("top_logprobs", &[json!(0)])?;
    fields.object("metadata")?;
    fields.str("previous_response_id")?;
    // It limits the tools that a server runs, and this one runs none.
    if fields.count("max_tool_calls")? == Some(0) {
        let found = &json!(0);
        return Err(InvalidRequest::value("max_tool_calls", "a number above 0", found));
    }
    for (idx, value) in fields.array("include")?.unwrap_or_default().iter().enumerate() {
        if !value.as_str().is_some_and(|v| is_ignored(Api::Responses, "include[]", v)) {
            let path = format!("include[{idx}]");
            let accepted = "\"reasoning.encrypted_content\"";
            return Err(InvalidRequest::unsupported(path, show(value), accepted));
        }
    }
    // All else in it is a hint; this asks for no answer.
    if let Some(options) = fields.object("prompt_cache_options")?
        && options.bool("prewarm")? == Some(true)
    {
        return Err(InvalidRequest::unsupported(options.path("prewarm"), "true", "false"));
    }
    Ok(())
}

/// What a response repeats of its request, with the defaults of what was not said, but for sampling: its defaults are
/// those of the model.
fn echo(
    fields: &Fields<'_>,
    conversation: &ConversationRequest,
    store: bool,
) -> Map<String, Value> {
    let or = |key: &str, default: Value| fields.get(key).cloned().unwrap_or(default);
    let effort = &conversation.reasoning.effort;
    let members = [
        ("background", json!(false)),
        ("instructions", or("instructions", Value::Null)),
        ("max_output_tokens", or("max_output_tokens", Value::Null)),
        ("max_tool_calls", or("max_tool_calls", Value::Null)),
        ("metadata", or("metadata", json!({}))),
        ("model", json!(conversation.model)),
        ("parallel_tool_calls", json!(conversation.tools.parallel)),
        ("previous_response_id", or("previous_response_id", Value::Null)),
        ("reasoning", json!({"effort": effort, "summary": null})),
        ("service_tier", json!("default")),
        ("store", json!(store)),
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

/// How long answers should be.
const VERBOSITIES: [&str; 3] = ["low", "medium", "high"];

/// `text.format` as the chat API's `response_format`, and `text.verbosity`.
fn text_options(fields: &Fields<'_>) -> Result<(Option<Value>, Option<String>), InvalidRequest> {
    let Some(text) = fields.object("text")? else { return Ok((None, None)) };
    text.only("verbosity", &VERBOSITIES.map(Value::from))?;
    let verbosity = text.str("verbosity")?.map(str::to_owned);
    let format = text.object("format")?.map(|format| text_format(&format)).transpose()?;
    Ok((format.flatten(), verbosity))
}

/// A format of text as the chat API's `response_format`.
fn text_format(format: &Fields<'_>) -> Result<Option<Value>, InvalidRequest> {
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
    for key in ["summary", "generate_summary"] {
        reasoning.only(key, &["auto", "concise", "detailed", "none"].map(Value::from))?;
    }
    reasoning.only("context", &["auto", "current_turn", "all_turns"].map(Value::from))?;
    reasoning.only("mode", &[json!("standard")])?;
    let effort = reasoning.str("effort")?.map(str::to_owned);
    let enabled = (effort.as_deref() == Some("none")).then_some(false);
    Ok(ReasoningRequest { enabled, budget_tokens: None, effort })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::tools::{Function, ToolChoice, ToolInput, ToolRequest};

    /// A request with these members beside the required ones.
    fn read(members: &Value) -> Result<ResponsesRequest, InvalidRequest> {
        let mut body = json!({"model": "m", "input": "hi"});
        for (key, value) in members.as_object().unwrap() {
            body[key] = value.clone();
        }
        read_request(body.as_object().unwrap(), &[])
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
    fn a_response_is_continued_with_new_instructions() {
        let body = json!({"model": "m", "input": "more", "instructions": "new",
                          "previous_response_id": "resp_1"});
        let earlier = [
            json!({"type": "message", "role": "user", "content": "hi"}),
            json!({"type": "message", "role": "assistant", "content": "hello"}),
        ];
        let request = read_request(body.as_object().unwrap(), &earlier).unwrap();
        let want = [("system", "new"), ("user", "hi"), ("assistant", "hello"), ("user", "more")];
        assert_eq!(
            request.conversation.messages,
            want.map(|(role, text)| Message::new(role, text))
        );
        assert_eq!(request.echo["previous_response_id"], "resp_1");
    }

    #[test]
    fn responses_are_kept_unless_told_otherwise() {
        for (store, want) in [(Value::Null, true), (json!(true), true), (json!(false), false)] {
            let request = read(&json!({"store": store})).unwrap();
            assert_eq!((request.store, &request.echo["store"]), (want, &json!(want)));
        }
    }

    #[test]
    fn hints_are_taken() {
        for verbosity in VERBOSITIES {
            let request = read(&json!({"text": {"verbosity": verbosity}})).unwrap();
            assert_eq!(request.verbosity.as_deref(), Some(verbosity));
        }
        let hints = json!({
            "reasoning": {"summary": "concise", "generate_summary": "none", "context": "all_turns",
                          "mode": "standard"},
            "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
            "max_tool_calls": 3, "prompt_cache_key": "k", "service_tier": "flex",
            "prompt_cache_options": {"ttl": "30m"}, "client_metadata": {"session": "s"},
        });
        let request = read(&hints).unwrap();
        assert_eq!(request.echo["max_tool_calls"], 3);
        assert_eq!(request.echo["service_tier"], "default");
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
        check(json!({"previous_response_id": 1}), "previous_response_id", "a string");
        check(json!({"conversation": "c"}), "conversation", "not supported");
        check(json!({"background": true}), "background", "true is not supported");
        check(json!({"store": 1}), "store", "true or false");
        check(json!({"max_tool_calls": 0}), "max_tool_calls", "above 0");
        let prewarm = json!({"prompt_cache_options": {"prewarm": true}});
        check(prewarm, "prompt_cache_options.prewarm", "true is not supported");
        check(json!({"truncation": "some"}), "truncation", "\"some\" is not");
        check(json!({"include": ["message.output_text.logprobs"]}), "include[0]", "logprobs");
        check(json!({"top_logprobs": 3}), "top_logprobs", "3 is not");
        check(json!({"text": {"verbosity": "mute"}}), "text.verbosity", "\"mute\"");
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
        check(json!({"reasoning": {"summary": "long"}}), "reasoning.summary", "long");
        check(json!({"reasoning": {"mode": "pro"}}), "reasoning.mode", "pro");
        check(json!({"tools": [{"type": "function"}]}), "tools[0].name", "required");
        check(json!({"tool_choice": "required"}), "tool_choice", "tools");
        check(
            json!({"tool_choice": {"type": "function", "name": "f"}}),
            "tool_choice.name",
            "function in tools",
        );
        let item = json!({"type": "item_reference", "id": "x"});
        check(json!({"input": [item]}), "input[0].type", "reference");
    }
}
