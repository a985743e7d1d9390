//! Items of `input` become messages.
//!
//! What the assistant did between two other messages is one message: its reasoning, its text and
//! its calls. Calls that other servers and clients ran become calls and results that the model can
//! read; items without text are left out by the table of what is ignored.

use super::tools::flat_name;
use crate::fields::{Fields, InvalidRequest, objects};
use crate::ids;
use crate::ignored::{Api, is_ignored};
use realizar_runtime::template::{Content, Message};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Calls of tools that are described elsewhere: the type of the item, the tool, and the member that
/// says what is called.
const CALLS: &[(&str, &str, &str)] = &[
    ("apply_patch_call", "apply_patch", "operation"),
    ("code_interpreter_call", "code_interpreter", "code"),
    ("local_shell_call", "local_shell", "action"),
    ("program", "program", "code"),
    ("shell_call", "shell", "action"),
];

/// Results of these calls: the type of the item, and the member with what was returned.
const RESULTS: &[(&str, &str)] = &[
    ("apply_patch_call_output", "output"),
    ("local_shell_call_output", "output"),
    ("program_output", "result"),
    ("shell_call_output", "output"),
];

/// The types of parts that are text.
const TEXT: &[&str] = &["input_text", "output_text", "text", "refusal"];

/// Turns items into messages.
#[derive(Default)]
pub(super) struct ItemReader {
    messages: Vec<Message>,
    assistant: Option<Message>,     // that items still add to
    names: HashMap<String, String>, // of the tools of earlier calls, by id
}

impl ItemReader {
    /// A reader of the items that follow these messages.
    pub(super) fn after(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }

    /// All messages.
    pub(super) fn finish(mut self) -> Vec<Message> {
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

    /// Reads one item.
    pub(super) fn read(&mut self, item: &Fields<'_>) -> Result<(), InvalidRequest> {
        let kind = kind(item)?;
        if let Some((_, tool, member)) = CALLS.iter().find(|(name, ..)| *name == kind) {
            return self.past_call(item, tool, member);
        }
        if let Some((_, member)) = RESULTS.iter().find(|(name, _)| *name == kind) {
            let id = call_id(item)?;
            // A patch that was applied may have returned nothing.
            let output = item.get(member).map_or_else(String::new, shown);
            self.result(id, output);
            return Ok(());
        }
        match kind {
            "message" => self.message(item),
            "reasoning" => self.reasoning(item),
            "function_call" => self.function_call(item),
            "custom_tool_call" => self.custom_call(item),
            "function_call_output" | "custom_tool_call_output" => {
                let id = item.require_str("call_id")?;
                let output = text(item.require("output")?, &item.path("output"), TEXT)?;
                self.result(id, output);
                Ok(())
            }
            "mcp_call" => self.mcp_call(item),
            // They are read with the tools.
            "additional_tools" => Ok(()),
            kind if is_ignored(Api::Responses, "input[].type", kind) => Ok(()),
            other => {
                let found = format!("an item of the type {other:?}");
                let accepted = "messages, reasoning, calls and their results";
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
        let (id, name) = (item.require_str("call_id")?, called(item)?);
        self.call(id, &name, item.require_str("arguments")?);
        Ok(())
    }

    fn custom_call(&mut self, item: &Fields<'_>) -> Result<(), InvalidRequest> {
        let (id, name) = (item.require_str("call_id")?, called(item)?);
        let custom = json!({"name": name, "input": item.require_str("input")?});
        self.add_call(id, name, json!({"id": id, "type": "custom", "custom": custom}));
        Ok(())
    }

    /// A call of a tool that this request need not describe.
    fn past_call(
        &mut self,
        item: &Fields<'_>,
        tool: &str,
        member: &str,
    ) -> Result<(), InvalidRequest> {
        let id = call_id(item)?;
        // A text wherever it is there, also where another member says what is called.
        item.str("code")?;
        let arguments = json!({member: item.require(member)?}).to_string();
        self.call(id, tool, &arguments);
        let mut logs = Vec::new();
        for output in item.objects("outputs")? {
            // The others are images.
            if output.require_str("type")? == "logs" {
                logs.push(output.require_str("logs")?);
            }
        }
        if item.get("outputs").is_some() {
            self.result(id, logs.join("\n"));
        }
        Ok(())
    }

    /// A call of a tool of an MCP server, which has its result in itself.
    fn mcp_call(&mut self, item: &Fields<'_>) -> Result<(), InvalidRequest> {
        let id = item.require_str("id")?;
        let name = flat_name(item.require_str("server_label")?, item.require_str("name")?);
        self.call(id, &name, item.require_str("arguments")?);
        let returned = item.get("output").or_else(|| item.get("error"));
        if let Some(returned) = returned {
            self.result(id, shown(returned));
        }
        Ok(())
    }

    fn call(&mut self, id: &str, name: &str, arguments: &str) {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.add_call(id, name.to_owned(), call);
    }

    fn add_call(&mut self, id: &str, name: String, call: Value) {
        self.names.insert(id.to_owned(), name);
        let calls = self.assistant().fields.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
    }

    fn result(&mut self, id: &str, output: String) {
        self.close();
        let mut message = Message::new("tool", output);
        message.fields.insert("tool_call_id".to_owned(), json!(id));
        if let Some(name) = self.names.get(id) {
            message.fields.insert("name".to_owned(), json!(name));
        }
        self.messages.push(message);
    }
}

/// The type of an item, which messages need not say.
pub(super) fn kind<'a>(item: &Fields<'a>) -> Result<&'a str, InvalidRequest> {
    Ok(item.str("type")?.unwrap_or("message"))
}

/// The name of a called tool, as the model knows it.
fn called(item: &Fields<'_>) -> Result<String, InvalidRequest> {
    let name = item.require_str("name")?;
    Ok(match item.str("namespace")? {
        Some(namespace) => flat_name(namespace, name),
        None => name.to_owned(),
    })
}

/// The id of a call, which some items have as their own.
fn call_id<'a>(item: &Fields<'a>) -> Result<&'a str, InvalidRequest> {
    // Both are checked, whichever counts.
    match (item.str("call_id")?, item.str("id")?) {
        (Some(id), _) | (None, Some(id)) => Ok(id),
        (None, None) => item.require_str("id"),
    }
}

/// A text as it is, anything else as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

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

/// The items of `input` as they are kept: each with an id and a type, texts in parts.
pub(super) fn kept(input: &Value) -> Vec<Value> {
    let message = |text: &Value| json!({"type": "message", "role": "user", "content": text});
    let items = match input {
        Value::Array(items) => items.clone(),
        text => vec![message(text)],
    };
    items.into_iter().map(kept_item).collect()
}

fn kept_item(mut item: Value) -> Value {
    let Value::Object(fields) = &mut item else { return item };
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    if kind == "message"
        && let Some(text @ Value::String(_)) = fields.get("content")
    {
        let part = match fields.get("role").is_some_and(|role| role == "assistant") {
            true => json!({"type": "output_text", "text": text, "annotations": []}),
            false => json!({"type": "input_text", "text": text}),
        };
        fields.insert("content".to_owned(), json!([part]));
    }
    let prefix = match kind.as_str() {
        "message" => "msg_",
        "reasoning" => "rs_",
        "function_call" => "fc_",
        "function_call_output" => "fco_",
        "custom_tool_call" => "ctc_",
        "custom_tool_call_output" => "ctco_",
        _ => "item_",
    };
    if !fields.get("id").is_some_and(Value::is_string) {
        fields.insert("id".to_owned(), json!(ids::new(prefix)));
    }
    fields.insert("type".to_owned(), json!(kind));
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(items: &Value) -> Result<Value, InvalidRequest> {
        let mut reader = ItemReader::after(Vec::new());
        for item in objects(items.as_array().expect("a list"), "input")? {
            reader.read(&item)?;
        }
        Ok(json!(reader.finish()))
    }

    fn call(id: &str, name: &str) -> Value {
        json!({"type": "function_call", "id": "fc", "call_id": id, "name": name,
               "arguments": "{\"a\":1}", "status": "completed"})
    }

    fn chat_call(id: &str, name: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    #[test]
    fn items_become_messages() {
        let arguments = "{\"a\":1}";
        let items = json!([
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
        ]);
        let want = json!([
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "c", "reasoning_content": "hm",
             "tool_calls": [chat_call("1", "f", arguments), chat_call("2", "g", arguments)]},
            {"role": "tool", "content": "r", "tool_call_id": "1", "name": "f"},
            {"role": "tool", "content": "s", "tool_call_id": "2", "name": "g"},
            {"role": "assistant", "content": null, "tool_calls": [chat_call("3", "f", arguments)]},
            {"role": "assistant", "content": "e"},
            {"role": "assistant", "content": "f"},
        ]);
        assert_eq!(messages(&items).unwrap(), want);
    }

    #[test]
    fn calls_that_ran_elsewhere_are_calls_that_the_model_can_read() {
        let check = |items: Value, name: &str, arguments: &str, result: Option<&str>| {
            let mut want = vec![json!({"role": "assistant", "content": null,
                                       "tool_calls": [chat_call("1", name, arguments)]})];
            want.extend(result.map(
                |text| json!({"role": "tool", "content": text, "tool_call_id": "1", "name": name}),
            ));
            assert_eq!(messages(&items).unwrap(), json!(want), "{items}");
        };
        let mut nested = call("1", "f");
        nested["namespace"] = json!("group");
        check(json!([nested]), "group__f", "{\"a\":1}", None);
        check(
            json!([
                {"type": "local_shell_call", "id": "ls", "call_id": "1",
                 "action": {"type": "exec", "command": ["ls"]}},
                {"type": "local_shell_call_output", "id": "1", "output": "{\"output\":\"a\"}"},
            ]),
            "local_shell",
            r#"{"action":{"type":"exec","command":["ls"]}}"#,
            Some("{\"output\":\"a\"}"),
        );
        check(
            json!([
                {"type": "shell_call", "call_id": "1", "action": {"commands": ["ls"]}},
                {"type": "shell_call_output", "call_id": "1", "output": [{"stdout": "a"}]},
            ]),
            "shell",
            r#"{"action":{"commands":["ls"]}}"#,
            Some(r#"[{"stdout":"a"}]"#),
        );
        check(
            json!([
                {"type": "apply_patch_call", "call_id": "1", "operation": {"path": "a"}},
                {"type": "apply_patch_call_output", "call_id": "1", "status": "completed"},
            ]),
            "apply_patch",
            r#"{"operation":{"path":"a"}}"#,
            Some(""),
        );
        let mut interpreted = json!({"type": "code_interpreter_call", "id": "1", "code": "x",
            "outputs": [{"type": "logs", "logs": "a"}, {"type": "image", "url": "u"},
                        {"type": "logs", "logs": "b"}]});
        check(json!([interpreted]), "code_interpreter", "{\"code\":\"x\"}", Some("a\nb"));
        interpreted["outputs"] = Value::Null;
        check(json!([interpreted]), "code_interpreter", "{\"code\":\"x\"}", None);
        let mcp = |member: &str| {
            json!([{"type": "mcp_call", "id": "1", "server_label": "docs", "name": "find",
                    "arguments": "{}", member: "r"}])
        };
        check(mcp("output"), "docs__find", "{}", Some("r"));
        check(mcp("error"), "docs__find", "{}", Some("r"));
        check(mcp("more"), "docs__find", "{}", None);
        check(
            json!([{"type": "program", "id": "p", "call_id": "1", "code": "x"},
                   {"type": "program_output", "id": "o", "call_id": "1", "result": "2"}]),
            "program",
            "{\"code\":\"x\"}",
            Some("2"),
        );
    }

    #[test]
    fn calls_of_custom_tools_keep_their_texts() {
        let call = |namespace: Value| {
            json!({"type": "custom_tool_call", "id": "ctc", "call_id": "1", "name": "patch",
                   "input": "*** a\n", "namespace": namespace})
        };
        let output = json!({"type": "custom_tool_call_output", "call_id": "1", "output": "r"});
        for (namespace, name) in [(Value::Null, "patch"), (json!("g"), "g__patch")] {
            let custom = json!({"name": name, "input": "*** a\n"});
            let want = json!([
                {"role": "assistant", "content": null,
                 "tool_calls": [{"id": "1", "type": "custom", "custom": custom}]},
                {"role": "tool", "content": "r", "tool_call_id": "1", "name": name},
            ]);
            assert_eq!(messages(&json!([call(namespace), output])).unwrap(), want);
        }
    }

    #[test]
    fn items_without_text_are_left_out() {
        let items = json!([
            {"role": "user", "content": "a"},
            {"type": "web_search_call", "id": "ws", "status": "completed",
             "action": {"type": "search", "query": "q"}},
            {"type": "image_generation_call", "id": "ig", "result": "AAAA"},
            {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
            {"type": "additional_tools", "role": "developer", "tools": []},
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        ]);
        assert_eq!(messages(&items).unwrap(), json!([{"role": "user", "content": "a"}]));
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |item: Value, param: &str, problem: &str| {
            let error = messages(&json!([{"role": "user", "content": "a"}, item])).unwrap_err();
            assert_eq!(error.param(), param, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        check(json!({"type": "compaction", "encrypted_content": "x"}), "input[1].type", "compact");
        check(json!({"role": "tool", "content": "x"}), "input[1].role", "\"user\"");
        check(
            json!({"role": "user", "content": [{"type": "input_image"}]}),
            "input[1].content[0].type",
            "\"input_image\"",
        );
        check(
            json!({"type": "function_call", "call_id": "1", "name": "f"}),
            "input[1].arguments",
            "required",
        );
        for (kind, member) in [("apply_patch_call", "operation"), ("shell_call_output", "output")] {
            let item = json!({"type": kind, "call_id": "1", "id": {}, member: "x"});
            check(item, "input[1].id", "a string, found {}");
            check(json!({"type": kind, member: "x"}), "input[1].id", "required");
        }
        let item = json!({"type": "shell_call", "call_id": "1", "action": "x", "code": 5});
        check(item, "input[1].code", "5");
        let mut nested = call("1", "f");
        nested["namespace"] = json!(1);
        check(nested, "input[1].namespace", "a string");
        check(json!({"type": "shell_call", "action": {}}), "input[1].id", "required");
        check(json!({"type": "shell_call", "call_id": "1"}), "input[1].action", "required");
    }

    #[test]
    fn kept_items_have_ids_and_parts() {
        let without_ids = |input: &Value| {
            let mut items = kept(input);
            for item in &mut items {
                let id = item["id"].take();
                let (prefix, rest) = id.as_str().and_then(|id| id.split_once('_')).expect("an id");
                item["id"] = if rest.len() == 32 { json!(prefix) } else { id };
            }
            json!(items)
        };
        let part = json!([{"type": "input_text", "text": "hi"}]);
        let user = json!([{"type": "message", "role": "user", "content": part, "id": "msg"}]);
        assert_eq!(without_ids(&json!("hi")), user);
        assert_eq!(without_ids(&json!([{"role": "user", "content": "hi"}])), user);
        let items = json!([
            {"role": "assistant", "content": "a", "id": "msg_1"},
            {"type": "function_call_output", "call_id": "1", "output": "r"},
        ]);
        let want = json!([
            {"role": "assistant", "id": "msg_1", "type": "message",
             "content": [{"type": "output_text", "text": "a", "annotations": []}]},
            {"type": "function_call_output", "call_id": "1", "output": "r", "id": "fco"},
        ]);
        assert_eq!(without_ids(&items), want);
    }
}
