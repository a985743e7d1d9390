//! Responses and events of `/v1/responses`.
//!
//! Each part of an answer is one output item: reasoning, a message, or a function call. The events
//! of a stream carry sequence numbers and repeat finished items whole; the last has the response.

use super::tools::ToolNames;
use crate::chat::conversation::{Answer, AnswerPart, EndReason, StreamEvent, TokenUsage};
use crate::chat::delta::ChatDelta;
use crate::chat::tools::CallKind;
use crate::ids;
use serde_json::{Map, Value, json};

/// What is known of a response before its answer.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// Its id.
    pub id: String,
    /// When it was begun, in seconds since 1970.
    pub created_at: u64,
    /// What it repeats of the request: [`super::ResponsesRequest::echo`].
    pub echo: Map<String, Value>,
    /// The tools that lie in namespaces.
    pub tool_names: ToolNames,
}

impl ResponseHead {
    /// The response object with these members.
    fn object(&self, status: &str, output: &[Value], members: Vec<(&str, Value)>) -> Value {
        let mut object = Map::new();
        object.insert("id".to_owned(), json!(self.id));
        object.insert("object".to_owned(), json!("response"));
        object.insert("created_at".to_owned(), json!(self.created_at));
        object.insert("status".to_owned(), json!(status));
        object.insert("error".to_owned(), Value::Null);
        object.insert("incomplete_details".to_owned(), Value::Null);
        object.extend(self.echo.clone());
        object.insert("output".to_owned(), json!(output));
        object.insert("usage".to_owned(), Value::Null);
        object.extend(members.into_iter().map(|(key, value)| (key.to_owned(), value)));
        Value::Object(object)
    }

    /// The response at its end.
    fn ended(&self, output: &[Value], end: &EndReason, usage: TokenUsage) -> Value {
        let mut members = vec![("usage", usage_json(usage))];
        if *end == EndReason::Length {
            members.push(("incomplete_details", json!({"reason": "max_output_tokens"})));
        }
        self.object(status(end), output, members)
    }
}

/// The whole answer as a response.
pub fn response(head: &ResponseHead, answer: &Answer, end: &EndReason, usage: TokenUsage) -> Value {
    let last = answer.parts.len().saturating_sub(1);
    let items = answer.parts.iter().enumerate();
    let output: Vec<Value> = items
        .map(|(idx, part)| {
            let status = if idx == last { status(end) } else { "completed" };
            Item::of(part).json(part, status, &head.tool_names)
        })
        .collect();
    head.ended(&output, end, usage)
}

/// How a response ended, and with it its last item.
fn status(end: &EndReason) -> &'static str {
    if *end == EndReason::Length { "incomplete" } else { "completed" }
}

fn usage_json(usage: TokenUsage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            // Writing to the prefix cache is no work of its own, and is not counted.
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.generated,
    })
}

/// An output item, whose id stays the same from its first event to the last.
#[derive(Debug)]
struct Item {
    id: String,
}

impl Item {
    fn of(part: &AnswerPart) -> Self {
        let prefix = match part {
            AnswerPart::Reasoning(_) => "rs_",
            AnswerPart::Content(_) => "msg_",
            AnswerPart::ToolCall { kind: CallKind::Function, .. } => "fc_",
            AnswerPart::ToolCall { kind: CallKind::Custom, .. } => "ctc_",
        };
        Self { id: ids::new(prefix) }
    }

    /// The item as it is at its end.
    fn json(&self, part: &AnswerPart, status: &str, names: &ToolNames) -> Value {
        match part {
            AnswerPart::Reasoning(_) => json!({
                "id": self.id, "type": "reasoning", "status": status, "summary": [],
                "content": [content_json(part)],
            }),
            AnswerPart::Content(_) => json!({
                "id": self.id, "type": "message", "status": status, "role": "assistant",
                "content": [content_json(part)],
            }),
            AnswerPart::ToolCall { id, name, arguments, kind } => {
                let (ty, member) = match kind {
                    CallKind::Function => ("function_call", "arguments"),
                    CallKind::Custom => ("custom_tool_call", "input"),
                };
                let mut item = json!({
                    "id": self.id, "type": ty, "status": status, "call_id": id, member: arguments,
                });
                names.name_into(name, &mut item);
                item
            }
        }
    }

    /// The item before it has any content.
    fn empty_json(&self, part: &AnswerPart, names: &ToolNames) -> Value {
        let mut item = self.json(part, "in_progress", names);
        match part {
            AnswerPart::ToolCall { kind: CallKind::Function, .. } => item["arguments"] = json!(""),
            AnswerPart::ToolCall { kind: CallKind::Custom, .. } => item["input"] = json!(""),
            AnswerPart::Reasoning(_) | AnswerPart::Content(_) => item["content"] = json!([]),
        }
        item
    }
}

/// The one part of content that an item of text has.
fn content_json(part: &AnswerPart) -> Value {
    match part {
        AnswerPart::Reasoning(text) => json!({"type": "reasoning_text", "text": text}),
        AnswerPart::Content(text) => {
            json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
        }
        AnswerPart::ToolCall { .. } => Value::Null,
    }
}

/// Writes one answer as events: [`Self::start`], then [`Self::delta`] for each piece, then
/// [`Self::finish`] or [`Self::fail`].
#[derive(Debug)]
pub struct ResponseStream {
    head: ResponseHead,
    sequence_number: u64,
    open: Option<(Item, AnswerPart)>,
    output: Vec<Value>, // finished items
}

impl ResponseStream {
    /// A stream of one response.
    pub fn new(head: ResponseHead) -> Self {
        Self { head, sequence_number: 0, open: None, output: Vec::new() }
    }

    /// The first events.
    pub fn start(&mut self) -> Vec<StreamEvent> {
        let response = self.head.object("in_progress", &[], Vec::new());
        let mut events = Vec::new();
        self.event("response.created", json!({"response": response}), &mut events);
        self.event("response.in_progress", json!({"response": response}), &mut events);
        events
    }

    /// The events of one piece of the answer.
    pub fn delta(&mut self, delta: &ChatDelta) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        match delta {
            ChatDelta::Reasoning(text) => {
                if !matches!(self.open, Some((_, AnswerPart::Reasoning(_)))) {
                    self.begin(AnswerPart::Reasoning(String::new()), &mut events);
                }
                self.add(text, &mut events);
            }
            ChatDelta::Content(text) => {
                if !matches!(self.open, Some((_, AnswerPart::Content(_)))) {
                    self.begin(AnswerPart::Content(String::new()), &mut events);
                }
                self.add(text, &mut events);
            }
            ChatDelta::ToolCallStart { id, name, kind, .. } => {
                let (id, name, arguments) = (id.clone(), name.clone(), String::new());
                let call = AnswerPart::ToolCall { id, name, arguments, kind: *kind };
                self.begin(call, &mut events);
            }
            ChatDelta::ToolCallArguments { text, .. } => self.add(text, &mut events),
        }
        events
    }

    /// The last events.
    pub fn finish(mut self, end: &EndReason, usage: TokenUsage) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        self.close(status(end), &mut events);
        let response = self.head.ended(&self.output, end, usage);
        let name = match end {
            EndReason::Length => "response.incomplete",
            EndReason::End | EndReason::StopText(_) => "response.completed",
        };
        self.event(name, json!({"response": response}), &mut events);
        events
    }

    /// The last events of a response that failed: `server_error`, `rate_limit_exceeded`, …
    pub fn fail(mut self, code: &str, message: &str) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        self.close("incomplete", &mut events);
        let error = json!({"code": code, "message": message});
        let response = self.head.object("failed", &self.output, vec![("error", error)]);
        self.event("response.failed", json!({"response": response}), &mut events);
        events
    }

    /// Begins an item.
    fn begin(&mut self, part: AnswerPart, events: &mut Vec<StreamEvent>) {
        self.close("completed", events);
        let item = Item::of(&part);
        let output_index = self.output.len();
        let added = json!({"output_index": output_index, "item": item.empty_json(&part, &self.head.tool_names)});
        self.event("response.output_item.added", added, events);
        if !matches!(part, AnswerPart::ToolCall { .. }) {
            let data = json!({
                "item_id": item.id, "output_index": output_index, "content_index": 0,
                "part": content_json(&part),
            });
            self.event("response.content_part.added", data, events);
        }
        self.open = Some((item, part));
    }

    /// Adds text to the open item.
    fn add(&mut self, text: &str, events: &mut Vec<StreamEvent>) {
        let output_index = self.output.len();
        let Some((item, part)) = &mut self.open else { return };
        let mut data = json!({"item_id": item.id, "output_index": output_index});
        let name = match part {
            AnswerPart::Reasoning(reasoning) => {
                reasoning.push_str(text);
                data["content_index"] = json!(0);
                "response.reasoning_text.delta"
            }
            AnswerPart::Content(content) => {
                content.push_str(text);
                data["content_index"] = json!(0);
                data["logprobs"] = json!([]);
                "response.output_text.delta"
            }
            AnswerPart::ToolCall { arguments, kind, .. } => {
                arguments.push_str(text);
                match kind {
                    CallKind::Function => "response.function_call_arguments.delta",
                    CallKind::Custom => "response.custom_tool_call_input.delta",
                }
            }
        };
        data["delta"] = json!(text);
        self.event(name, data, events);
    }

    /// Ends the open item.
    fn close(&mut self, status: &str, events: &mut Vec<StreamEvent>) {
        let Some((item, part)) = self.open.take() else { return };
        let output_index = self.output.len();
        let mut data = json!({"item_id": item.id, "output_index": output_index});
        let name = match &part {
            AnswerPart::Reasoning(text) => {
                data["content_index"] = json!(0);
                data["text"] = json!(text);
                "response.reasoning_text.done"
            }
            AnswerPart::Content(text) => {
                data["content_index"] = json!(0);
                data["text"] = json!(text);
                data["logprobs"] = json!([]);
                "response.output_text.done"
            }
            AnswerPart::ToolCall { name, arguments, kind: CallKind::Function, .. } => {
                data["name"] = json!(self.head.tool_names.name(name));
                data["arguments"] = json!(arguments);
                "response.function_call_arguments.done"
            }
            AnswerPart::ToolCall { arguments, kind: CallKind::Custom, .. } => {
                data["input"] = json!(arguments);
                "response.custom_tool_call_input.done"
            }
        };
        self.event(name, data, events);
        if !matches!(part, AnswerPart::ToolCall { .. }) {
            let data = json!({
                "item_id": item.id, "output_index": output_index, "content_index": 0,
                "part": content_json(&part),
            });
            self.event("response.content_part.done", data, events);
        }
        let item = item.json(&part, status, &self.head.tool_names);
        let data = json!({"output_index": output_index, "item": item});
        self.event("response.output_item.done", data, events);
        self.output.push(item);
    }

    fn event(&mut self, event: &'static str, members: Value, events: &mut Vec<StreamEvent>) {
        let mut data = Map::new();
        data.insert("type".to_owned(), json!(event));
        data.insert("sequence_number".to_owned(), json!(self.sequence_number));
        if let Value::Object(members) = members {
            data.extend(members);
        }
        self.sequence_number += 1;
        events.push(StreamEvent { event, data: Value::Object(data) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::responses::read_request;

    const USAGE: TokenUsage = TokenUsage { prompt: 10, cached: 4, generated: 7, reasoning: 2 };

    fn head() -> ResponseHead {
        let echo = json!({"model": "m", "store": false});
        let Value::Object(echo) = echo else { unreachable!() };
        let tool_names = ToolNames::default();
        ResponseHead { id: "resp_1".to_owned(), created_at: 5, echo, tool_names }
    }

    fn deltas() -> Vec<ChatDelta> {
        let arguments =
            |text: &str| ChatDelta::ToolCallArguments { index: 0, text: text.to_owned() };
        vec![
            ChatDelta::Reasoning("h".to_owned()),
            ChatDelta::Reasoning("m".to_owned()),
            ChatDelta::Content("a".to_owned()),
            ChatDelta::Content("b".to_owned()),
            ChatDelta::ToolCallStart {
                index: 0,
                id: "call_1".to_owned(),
                name: "f".to_owned(),
                kind: CallKind::Function,
            },
            arguments("{\"x\":"),
            arguments("1}"),
        ]
    }

    /// The value with the ids of items, which are random, replaced by their prefixes.
    fn without_ids(value: &Value) -> Value {
        match value {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| {
                    let id = matches!(key.as_str(), "id" | "item_id").then_some(value.as_str());
                    let prefix = id.flatten().and_then(|id| id.split_once('_'));
                    match prefix {
                        Some((prefix, rest)) if rest.len() == 32 => (key.clone(), json!(prefix)),
                        _ => (key.clone(), without_ids(value)),
                    }
                })
                .collect(),
            Value::Array(values) => values.iter().map(without_ids).collect(),
            value => value.clone(),
        }
    }

    fn items(last: &str) -> [Value; 3] {
        [
            json!({"id": "rs", "type": "reasoning", "status": "completed", "summary": [],
                   "content": [{"type": "reasoning_text", "text": "hm"}]}),
            json!({"id": "msg", "type": "message", "status": "completed", "role": "assistant",
                   "content": [text("ab")]}),
            json!({"id": "fc", "type": "function_call", "status": last, "call_id": "call_1",
                   "name": "f", "arguments": "{\"x\":1}"}),
        ]
    }

    fn text(text: &str) -> Value {
        json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
    }

    fn object(status: &str, output: &[Value], usage: &Value) -> Value {
        let reason = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        json!({
            "id": "resp_1", "object": "response", "created_at": 5, "status": status,
            "error": null, "incomplete_details": reason, "model": "m", "store": false,
            "output": output, "usage": usage,
        })
    }

    fn usage() -> Value {
        json!({
            "input_tokens": 10, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 17,
        })
    }

    #[test]
    fn answers_become_items() {
        for (end, status) in [(EndReason::End, "completed"), (EndReason::Length, "incomplete")] {
            let answer: Answer = deltas().into_iter().collect();
            let got = response(&head(), &answer, &end, USAGE);
            assert_eq!(without_ids(&got), object(status, &items(status), &usage()));
        }
        let empty = response(&head(), &Answer::default(), &EndReason::End, USAGE);
        assert_eq!(empty, object("completed", &[], &usage()));
    }

    #[test]
    fn streams_tell_of_items_and_repeat_them() {
        let mut stream = ResponseStream::new(head());
        let mut events = stream.start();
        events.extend(deltas().iter().flat_map(|delta| stream.delta(delta)));
        events.extend(stream.finish(&EndReason::End, USAGE));
        let begun = object("in_progress", &[], &Value::Null);
        let [rs, msg, fc] = items("completed");
        let empty = |item: &Value, key: &str, value: Value| {
            let mut item = item.clone();
            item["status"] = json!("in_progress");
            item[key] = value;
            item
        };
        let reasoning = |text: &str| json!({"type": "reasoning_text", "text": text});
        let want = [
            ("response.created", json!({"response": begun})),
            ("response.in_progress", json!({"response": begun})),
            (
                "response.output_item.added",
                json!({"output_index": 0, "item": empty(&rs, "content", json!([]))}),
            ),
            (
                "response.content_part.added",
                json!({"item_id": "rs", "output_index": 0, "content_index": 0,
                       "part": reasoning("")}),
            ),
            (
                "response.reasoning_text.delta",
                json!({"item_id": "rs", "output_index": 0, "content_index": 0, "delta": "h"}),
            ),
            (
                "response.reasoning_text.delta",
                json!({"item_id": "rs", "output_index": 0, "content_index": 0, "delta": "m"}),
            ),
            (
                "response.reasoning_text.done",
                json!({"item_id": "rs", "output_index": 0, "content_index": 0, "text": "hm"}),
            ),
            (
                "response.content_part.done",
                json!({"item_id": "rs", "output_index": 0, "content_index": 0,
                       "part": reasoning("hm")}),
            ),
            ("response.output_item.done", json!({"output_index": 0, "item": rs})),
            (
                "response.output_item.added",
                json!({"output_index": 1, "item": empty(&msg, "content", json!([]))}),
            ),
            (
                "response.content_part.added",
                json!({"item_id": "msg", "output_index": 1, "content_index": 0,
                       "part": text("")}),
            ),
            (
                "response.output_text.delta",
                json!({"item_id": "msg", "output_index": 1, "content_index": 0,
                       "logprobs": [], "delta": "a"}),
            ),
            (
                "response.output_text.delta",
                json!({"item_id": "msg", "output_index": 1, "content_index": 0,
                       "logprobs": [], "delta": "b"}),
            ),
            (
                "response.output_text.done",
                json!({"item_id": "msg", "output_index": 1, "content_index": 0,
                       "logprobs": [], "text": "ab"}),
            ),
            (
                "response.content_part.done",
                json!({"item_id": "msg", "output_index": 1, "content_index": 0,
                       "part": text("ab")}),
            ),
            ("response.output_item.done", json!({"output_index": 1, "item": msg})),
            (
                "response.output_item.added",
                json!({"output_index": 2, "item": empty(&fc, "arguments", json!(""))}),
            ),
            (
                "response.function_call_arguments.delta",
                json!({"item_id": "fc", "output_index": 2, "delta": "{\"x\":"}),
            ),
            (
                "response.function_call_arguments.delta",
                json!({"item_id": "fc", "output_index": 2, "delta": "1}"}),
            ),
            (
                "response.function_call_arguments.done",
                json!({"item_id": "fc", "output_index": 2, "name": "f",
                       "arguments": "{\"x\":1}"}),
            ),
            ("response.output_item.done", json!({"output_index": 2, "item": fc})),
            (
                "response.completed",
                json!({"response": object("completed", &[rs, msg, fc], &usage())}),
            ),
        ];
        assert_eq!(events.len(), want.len());
        for (idx, (event, (name, mut data))) in events.iter().zip(want).enumerate() {
            data["type"] = json!(name);
            data["sequence_number"] = json!(idx);
            assert_eq!(event.event, name);
            assert_eq!(without_ids(&event.data), data, "event {idx}");
        }
        // An item has one id in all its events.
        let ids: Vec<&Value> = events[3..8].iter().map(|event| &event.data["item_id"]).collect();
        assert!(ids.iter().all(|&id| *id == events[8].data["item"]["id"]));
    }

    #[test]
    fn calls_are_named_as_the_request_names_them() {
        let function = json!({"type": "function", "name": "f"});
        let custom = json!({"type": "custom", "name": "c"});
        let group = json!({"type": "namespace", "name": "g", "tools": [function, custom]});
        let body = json!({"model": "m", "input": "x", "tools": [custom, group]});
        let request = read_request(body.as_object().unwrap(), &[]).unwrap();
        let head = || ResponseHead { tool_names: request.tool_names.clone(), ..head() };
        let check = |name: &str, kind: CallKind, prefix: &str, want: Value, done: Value| {
            let (index, id) = (0, "call_1".to_owned());
            let start = ChatDelta::ToolCallStart { index, id, name: name.to_owned(), kind };
            let pieces = ["a ", "b"]
                .map(|text| ChatDelta::ToolCallArguments { index, text: text.to_owned() });
            let deltas: Vec<ChatDelta> = [start].into_iter().chain(pieces).collect();
            let answer: Answer = deltas.iter().cloned().collect();
            let whole = response(&head(), &answer, &EndReason::End, USAGE);
            assert_eq!(without_ids(&whole["output"]), json!([want]));
            let mut stream = ResponseStream::new(head());
            let mut events: Vec<StreamEvent> =
                deltas.iter().flat_map(|delta| stream.delta(delta)).collect();
            events.extend(stream.finish(&EndReason::End, USAGE));
            let names: Vec<&str> = events.iter().map(|event| event.event).collect();
            let own = |what: &str| format!("response.{prefix}.{what}");
            let (delta, done_name) = (own("delta"), own("done"));
            let want_names = [
                "response.output_item.added",
                delta.as_str(),
                delta.as_str(),
                done_name.as_str(),
                "response.output_item.done",
                "response.completed",
            ];
            assert_eq!(names, want_names);
            let mut begun = want.clone();
            begun["status"] = json!("in_progress");
            let member = if kind == CallKind::Custom { "input" } else { "arguments" };
            begun[member] = json!("");
            assert_eq!(without_ids(&events[0].data["item"]), begun);
            assert_eq!(events[1].data["delta"], "a ");
            for (key, value) in done.as_object().unwrap() {
                assert_eq!(events[3].data[key], *value);
            }
            assert_eq!(without_ids(&events[4].data["item"]), want);
        };
        let (custom, function) = ("custom_tool_call_input", "function_call_arguments");
        let call = |ty: &str, name: &str, more: Value| {
            let id = if ty == "custom_tool_call" { "ctc" } else { "fc" };
            let mut item = json!({"id": id, "type": ty, "status": "completed", "call_id": "call_1",
                                  "name": name});
            for (key, value) in more.as_object().unwrap() {
                item[key] = value.clone();
            }
            item
        };
        let want = call("custom_tool_call", "c", json!({"input": "a b"}));
        check("c", CallKind::Custom, custom, want, json!({"input": "a b"}));
        let want = call("custom_tool_call", "c", json!({"input": "a b", "namespace": "g"}));
        check("g__c", CallKind::Custom, custom, want, json!({"input": "a b"}));
        let want = call("function_call", "f", json!({"arguments": "a b", "namespace": "g"}));
        check("g__f", CallKind::Function, function, want, json!({"arguments": "a b", "name": "f"}));
    }

    #[test]
    fn streams_that_end_early_say_so() {
        let mut stream = ResponseStream::new(head());
        stream.start();
        stream.delta(&ChatDelta::Content("a".to_owned()));
        let events = stream.finish(&EndReason::Length, USAGE);
        let last = &events[events.len() - 1];
        assert_eq!(last.event, "response.incomplete");
        let reason = &last.data["response"]["incomplete_details"]["reason"];
        assert_eq!(reason, "max_output_tokens");
        assert_eq!(last.data["response"]["output"][0]["status"], "incomplete");

        let events = ResponseStream::new(head()).fail("server_error", "the device is lost");
        assert_eq!(events[0].event, "response.failed");
        let response = &events[0].data["response"];
        assert_eq!(response["error"]["message"], "the device is lost");
        assert_eq!(response["status"], "failed");
    }
}
