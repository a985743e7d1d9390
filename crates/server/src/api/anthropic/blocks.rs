//! Messages of blocks become messages of the chat API.
//!
//! Turns of the same role that follow each other are one turn, as Anthropic has it. Results of tools
//! are messages of their own, also those of tools that Anthropic's servers ran in an earlier turn:
//! their calls and results are shown to the model like any others.

use super::documents::{document, readable, search_result};
use crate::fields::{Fields, InvalidRequest, objects};
use crate::ignored::{Api, is_ignored};
use realizar_runtime::template::{Content, Message};
use serde_json::{Value, json};
use std::collections::HashMap;

/// The types of results of tools that Anthropic's servers ran.
const SERVER_RESULTS: [&str; 8] = [
    "advisor_tool_result",
    "bash_code_execution_tool_result",
    "code_execution_tool_result",
    "mcp_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "web_fetch_tool_result",
    "web_search_tool_result",
];

/// How a client begins the system block that names its account and changes with every conversation.
const BILLING: &str = "x-anthropic-billing-header:";

/// Reads the messages of a request after its system prompt.
#[derive(Default)]
pub(super) struct MessageReader {
    messages: Vec<Message>,
    user: Vec<String>,              // texts of the user's turn that is not over
    assistant: Option<Assistant>,   // the assistant's turn that is not over
    names: HashMap<String, String>, // of the functions of earlier calls, by id
}

/// A turn of the assistant.
#[derive(Default)]
struct Assistant {
    texts: Vec<String>,
    thoughts: Vec<String>,
    calls: Vec<Value>,
}

impl MessageReader {
    /// Reads the top-level system prompt. A block with the client's account is left out, so that
    /// conversations begin alike.
    pub(super) fn system(&mut self, system: &Value) -> Result<(), InvalidRequest> {
        let text = match system {
            Value::Array(blocks) => {
                let mut texts = texts(&objects(blocks, "system")?)?;
                let n_blocks = texts.len();
                texts.retain(|text| !text.starts_with(BILLING));
                if texts.is_empty() && n_blocks > 0 {
                    return Ok(());
                }
                texts.join("\n")
            }
            system => text(system, "system")?,
        };
        self.messages.push(Message::new("system", text));
        Ok(())
    }

    /// Reads the messages.
    pub(super) fn messages(&mut self, messages: &[Fields<'_>]) -> Result<(), InvalidRequest> {
        let mut last_user = None;
        for (idx, message) in messages.iter().enumerate() {
            if message.str("role")? == Some("user") {
                last_user = Some(idx);
            }
        }
        for (idx, message) in messages.iter().enumerate() {
            let has_later_user = last_user.is_some_and(|last| last > idx);
            self.message(message, has_later_user)?;
        }
        Ok(())
    }

    /// The messages that were read.
    pub(super) fn finish(mut self) -> Vec<Message> {
        self.end_turns();
        self.messages
    }

    fn message(
        &mut self,
        message: &Fields<'_>,
        has_later_user: bool,
    ) -> Result<(), InvalidRequest> {
        let role = message.require_str("role")?;
        let content = message.require("content")?;
        match role {
            "user" => self.end_assistant(),
            "assistant" => self.end_user(),
            "system" => return self.later_system(message, content, has_later_user),
            _ => {
                let expected = "\"user\", \"assistant\" or \"system\"";
                return Err(InvalidRequest::value(message.path("role"), expected, &json!(role)));
            }
        }
        let path = message.path("content");
        let blocks = match content {
            Value::String(text) if role == "user" => {
                self.user.push(text.clone());
                return Ok(());
            }
            Value::String(text) => {
                self.assistant().texts.push(text.clone());
                return Ok(());
            }
            Value::Array(blocks) => objects(blocks, &path)?,
            value => return Err(InvalidRequest::value(path, "a string or an array", value)),
        };
        if role == "assistant" {
            // A turn without content is one.
            self.assistant();
        }
        for block in &blocks {
            let kind = block.require_str("type")?;
            if is_ignored(Api::Messages, "messages[].content[].type", kind) {
                continue;
            }
            match role {
                "user" => self.user_block(block, kind)?,
                _ => self.assistant_block(block, kind)?,
            }
        }
        Ok(())
    }

    /// A system message among the others. One that is only for the turn before it is left out once
    /// there is a later turn of the user.
    fn later_system(
        &mut self,
        message: &Fields<'_>,
        content: &Value,
        has_later_user: bool,
    ) -> Result<(), InvalidRequest> {
        message.only("output_config", &[json!({})])?;
        message.only("clear_at", &[json!("next_user_message"), json!("never")])?;
        let text = text(content, &message.path("content"))?;
        if message.str("clear_at")? == Some("next_user_message") && has_later_user {
            return Ok(());
        }
        self.end_turns();
        self.messages.push(Message::new("system", text));
        Ok(())
    }

    fn user_block(&mut self, block: &Fields<'_>, kind: &str) -> Result<(), InvalidRequest> {
        match kind {
            "text" => self.user.push(block.require_str("text")?.to_owned()),
            "document" => self.user.push(document(block)?),
            "search_result" => self.user.push(search_result(block)?),
            "compaction" => self.user.extend(summary(block)?),
            "tool_result" => {
                self.end_user();
                self.tool_result(block)?;
            }
            other => return Err(unsupported_block(block, other, USER_BLOCKS)),
        }
        Ok(())
    }

    fn assistant_block(&mut self, block: &Fields<'_>, kind: &str) -> Result<(), InvalidRequest> {
        match kind {
            "text" => {
                let text = block.require_str("text")?.to_owned();
                self.assistant().texts.push(text);
            }
            "compaction" => {
                let summary = summary(block)?;
                self.assistant().texts.extend(summary);
            }
            "thinking" => {
                let thinking = block.require_str("thinking")?.to_owned();
                self.assistant().thoughts.push(thinking);
            }
            "tool_use" | "server_tool_use" | "mcp_tool_use" => self.tool_use(block)?,
            kind if SERVER_RESULTS.contains(&kind) => {
                self.end_assistant();
                let content = readable(block.require("content")?);
                self.push_result(block, content)?;
            }
            other => return Err(unsupported_block(block, other, ASSISTANT_BLOCKS)),
        }
        Ok(())
    }

    fn tool_use(&mut self, block: &Fields<'_>) -> Result<(), InvalidRequest> {
        let (id, name) = (block.require_str("id")?, block.require_str("name")?);
        block.require("input")?;
        block.object("input")?;
        self.names.insert(id.to_owned(), name.to_owned());
        // Arguments are text in the chat API, as they come from a model.
        let arguments = block.require("input")?.to_string();
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.assistant().calls.push(call);
        Ok(())
    }

    fn tool_result(&mut self, block: &Fields<'_>) -> Result<(), InvalidRequest> {
        let path = block.path("content");
        let content = match block.get("content") {
            None => String::new(),
            Some(Value::Array(blocks)) => {
                let blocks = objects(blocks, &path)?;
                blocks.iter().map(result_text).collect::<Result<Vec<_>, _>>()?.join("\n")
            }
            Some(content) => text(content, &path)?,
        };
        self.push_result(block, content)
    }

    fn push_result(&mut self, block: &Fields<'_>, content: String) -> Result<(), InvalidRequest> {
        let id = block.require_str("tool_use_id")?;
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

    /// The assistant's turn, begun if there is none.
    fn assistant(&mut self) -> &mut Assistant {
        self.assistant.get_or_insert_default()
    }

    fn end_turns(&mut self) {
        self.end_user();
        self.end_assistant();
    }

    fn end_user(&mut self) {
        if !self.user.is_empty() {
            self.messages.push(Message::new("user", self.user.join("\n")));
            self.user.clear();
        }
    }

    fn end_assistant(&mut self) {
        let Some(Assistant { texts, thoughts, calls }) = self.assistant.take() else { return };
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
    }
}

const USER_BLOCKS: &str = "text, document, search_result and tool_result blocks";
const ASSISTANT_BLOCKS: &str =
    "text, thinking, tool_use and server_tool_use blocks with their results";
const RESULT_BLOCKS: &str = "text, document, search_result and tool_reference blocks";

/// A string, or the text of text blocks.
pub(super) fn text(value: &Value, path: &str) -> Result<String, InvalidRequest> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => Ok(texts(&objects(blocks, path)?)?.join("\n")),
        value => Err(InvalidRequest::value(path, "a string or an array", value)),
    }
}

fn texts(blocks: &[Fields<'_>]) -> Result<Vec<String>, InvalidRequest> {
    let text = |block: &Fields<'_>| match block.require_str("type")? {
        "text" => Ok(block.require_str("text")?.to_owned()),
        other => Err(unsupported_block(block, other, "text blocks")),
    };
    blocks.iter().map(text).collect()
}

/// The text of a block in a tool's result.
fn result_text(block: &Fields<'_>) -> Result<String, InvalidRequest> {
    match block.require_str("type")? {
        "text" => Ok(block.require_str("text")?.to_owned()),
        "document" => document(block),
        "search_result" => search_result(block),
        "tool_reference" => {
            // All tools are in the prompt from the start.
            Ok(format!("The tool `{}` is available.", block.require_str("tool_name")?))
        }
        other => Err(unsupported_block(block, other, RESULT_BLOCKS)),
    }
}

/// The summary of what was said before, unless the summary failed.
fn summary(block: &Fields<'_>) -> Result<Option<String>, InvalidRequest> {
    Ok(block.str("content")?.map(str::to_owned))
}

fn unsupported_block(block: &Fields<'_>, kind: &str, accepted: &str) -> InvalidRequest {
    let found = format!("a block of the type {kind:?}");
    InvalidRequest::unsupported(block.path("type"), found, accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: &Value) -> Result<Value, InvalidRequest> {
        let mut reader = MessageReader::default();
        reader.messages(&objects(messages.as_array().unwrap(), "messages")?)?;
        Ok(json!(reader.finish()))
    }

    #[track_caller]
    fn check(messages: &Value, want: &Value) {
        assert_eq!(&read(messages).unwrap(), want);
    }

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    #[test]
    fn blocks_become_messages() {
        check(
            &json!([
                {"role": "user", "content": [text("a"), text("b")]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    text("c"),
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"z": 1, "a": 2}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "r"},
                    {"type": "tool_result", "tool_use_id": "2", "is_error": true, "content": [text("bad")]},
                    text("d"),
                ]},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "3", "name": "g", "input": {}},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "3"}]},
                {"role": "assistant", "content": "e"},
            ]),
            &json!([
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
    fn turns_of_a_role_are_one() {
        let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": id});
        check(
            &json!([
                {"role": "user", "content": "a"},
                {"role": "user", "content": [text("b"), result("1")]},
                {"role": "user", "content": [result("2"), text("c")]},
                {"role": "user", "content": "d"},
                {"role": "assistant", "content": "e"},
                {"role": "assistant", "content": [text("f")]},
            ]),
            &json!([
                {"role": "user", "content": "a\nb"},
                {"role": "tool", "content": "1", "tool_call_id": "1"},
                {"role": "tool", "content": "2", "tool_call_id": "2"},
                {"role": "user", "content": "c\nd"},
                {"role": "assistant", "content": "e\nf"},
            ]),
        );
        check(
            &json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": []}]),
            &json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]),
        );
    }

    #[test]
    fn system_messages_stay_in_their_places() {
        let passing = json!({"role": "system", "content": "p", "clear_at": "next_user_message"});
        let user = |content: &str| json!({"role": "user", "content": content});
        let system = json!({"role": "system", "content": "s"});
        let blocks = json!({"role": "system", "content": [text("s")], "output_config": {}});
        check(&json!([user("a"), blocks, user("b")]), &json!([user("a"), system, user("b")]));
        let shown = json!({"role": "system", "content": "p"});
        check(&json!([user("a"), passing]), &json!([user("a"), shown]));
        // It is gone after the next turn, which then is the same as the one before.
        check(&json!([user("a"), passing, user("b")]), &json!([user("a\nb")]));
        let effort = json!({"role": "system", "content": "s", "output_config": {"effort": "low"}});
        let error = read(&json!([user("a"), effort])).unwrap_err();
        assert_eq!(error.param(), "messages[1].output_config");
    }

    #[test]
    fn what_the_vendor_ran_is_shown_as_calls_and_results() {
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        check(
            &json!([
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [
                    text("b"),
                    {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {"query": "q"}},
                    {"type": "web_search_tool_result", "tool_use_id": "1", "content": [
                        {"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "x"},
                    ]},
                    {"type": "mcp_tool_use", "id": "2", "name": "m", "server_name": "s", "input": {}},
                    {"type": "mcp_tool_result", "tool_use_id": "2", "is_error": false, "content": [text("r")]},
                    text("c"),
                ]},
            ]),
            &json!([
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b",
                 "tool_calls": [call("1", "web_search", "{\"query\":\"q\"}")]},
                {"role": "tool", "tool_call_id": "1", "name": "web_search",
                 "content": "[{\"type\":\"web_search_result\",\"title\":\"T\",\"url\":\"u\"}]"},
                {"role": "assistant", "content": null, "tool_calls": [call("2", "m", "{}")]},
                {"role": "tool", "content": "r", "tool_call_id": "2", "name": "m"},
                {"role": "assistant", "content": "c"},
            ]),
        );
    }

    #[test]
    fn documents_and_references_are_text() {
        let source = json!({"type": "text", "media_type": "text/plain", "data": "d"});
        let document = json!({"type": "document", "source": source});
        let found =
            json!({"type": "search_result", "source": "s", "title": "t", "content": [text("f")]});
        let reference = json!({"type": "tool_reference", "tool_name": "g"});
        let shown = "<document>\nd\n</document>";
        let found_shown =
            "<search_result>\n<source>s</source>\n<title>t</title>\nf\n</search_result>";
        let result = json!({"type": "tool_result", "tool_use_id": "1", "content": [document, reference, found]});
        check(
            &json!([{"role": "user", "content": [document, found, text("a"), result]}]),
            &json!([
                {"role": "user", "content": format!("{shown}\n{found_shown}\na")},
                {"role": "tool", "tool_call_id": "1",
                 "content": format!("{shown}\nThe tool `g` is available.\n{found_shown}")},
            ]),
        );
    }

    #[test]
    fn what_only_the_vendor_reads_is_left_out() {
        check(
            &json!([
                {"role": "user", "content": [{"type": "compaction", "content": "so far"}, text("a")]},
                {"role": "assistant", "content": [
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "fallback", "from": {}, "to": {}},
                    {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []},
                    {"type": "compaction", "content": null},
                    text("b"),
                ]},
            ]),
            &json!([{"role": "user", "content": "so far\na"}, {"role": "assistant", "content": "b"}]),
        );
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |role: &str, block: Value, param: &str, problem: &str| {
            let messages = json!([{"role": role, "content": [text("a"), block]}]);
            let error = read(&messages).unwrap_err();
            assert_eq!(error.param(), format!("messages[0].content[1].{param}"), "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        check("user", json!({"type": "image", "source": {}}), "type", "\"image\"");
        check("user", json!({"type": "document"}), "source", "required");
        check("user", json!({"type": "container_upload"}), "type", "\"container_upload\"");
        check("user", json!({"type": "tool_use"}), "type", "tool_result blocks");
        check("assistant", json!({"type": "tool_result"}), "type", "\"tool_result\"");
        check("system", json!({"type": "tool_addition", "tool": {}}), "type", "\"tool_addition\"");
        let image =
            json!({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]});
        check("user", image, "content[0].type", "\"image\"");
        let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": "{}"});
        check("assistant", call, "input", "an object");
        let role = read(&json!([{"role": "tool", "content": "x"}])).unwrap_err();
        assert_eq!(role.param(), "messages[0].role");
    }
}
