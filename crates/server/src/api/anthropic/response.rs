//! Messages and events of `/v1/messages`.

use serde_json::{Map, Value, json};

use crate::chat::conversation::{Answer, AnswerPart, EndReason, StreamEvent, TokenUsage};
use crate::chat::delta::ChatDelta;

/// The whole answer as a message.
///
/// A call whose arguments are not a JSON object, because the answer was cut off within them, cannot
/// be written as `tool_use`; what the model wrote comes as text.
pub fn message(
    id: &str,
    model: &str,
    answer: &Answer,
    end: &EndReason,
    usage: TokenUsage,
) -> Value {
    let block = |part: &AnswerPart| match part {
        AnswerPart::Reasoning(text) => {
            json!({"type": "thinking", "thinking": text, "signature": ""})
        }
        AnswerPart::Content(text) => json!({"type": "text", "text": text}),
        AnswerPart::ToolCall { id, name, arguments, .. } => {
            match serde_json::from_str::<Map<String, Value>>(arguments) {
                Ok(input) => json!({"type": "tool_use", "id": id, "name": name, "input": input}),
                Err(_) => json!({"type": "text", "text": format!("{name}: {arguments}")}),
            }
        }
    };
    let content: Vec<Value> = answer.parts.iter().map(block).collect();
    let called = content.iter().any(|block| block["type"] == "tool_use");
    let (stop_reason, stop_sequence) = stop_reason(end, called);
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": usage_json(usage, usage.generated),
    })
}

fn stop_reason(end: &EndReason, called: bool) -> (&'static str, Option<&str>) {
    match end {
        EndReason::Length => ("max_tokens", None),
        EndReason::StopText(text) => ("stop_sequence", Some(text)),
        EndReason::End if called => ("tool_use", None),
        EndReason::End => ("end_turn", None),
    }
}

/// Anthropic counts the tokens that were in the cache apart.
fn usage_json(usage: TokenUsage, generated: usize) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": generated,
    })
}

/// A block that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// Writes one answer as events: [`Self::start`], then [`Self::delta`] for each piece, then
/// [`Self::finish`]. A [`Self::ping`] may come anywhere after the start.
#[derive(Debug)]
pub struct MessageStream {
    id: String,
    model: String,
    open: Option<Block>,
    n_blocks: usize, // closed
    called: bool,
}

impl MessageStream {
    /// A stream of the message `id`.
    pub fn new(id: impl Into<String>, model: impl Into<String>) -> Self {
        let (id, model) = (id.into(), model.into());
        Self { id, model, open: None, n_blocks: 0, called: false }
    }

    /// The first event, once the prompt has been run.
    pub fn start(&self, usage: TokenUsage) -> StreamEvent {
        let message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage_json(usage, 0),
        });
        event("message_start", json!({"message": message}))
    }

    /// A sign of life.
    pub fn ping() -> StreamEvent {
        event("ping", json!({}))
    }

    /// An error that ends the stream: `overloaded_error`, `api_error`, …
    pub fn error(kind: &str, message: &str) -> StreamEvent {
        event("error", json!({"error": {"type": kind, "message": message}}))
    }

    /// The events of one piece of the answer.
    pub fn delta(&mut self, delta: &ChatDelta) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        let (block, start, delta) = match delta {
            ChatDelta::Reasoning(text) => (
                Block::Thinking,
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                json!({"type": "thinking_delta", "thinking": text}),
            ),
            ChatDelta::Content(text) => (
                Block::Text,
                json!({"type": "text", "text": ""}),
                json!({"type": "text_delta", "text": text}),
            ),
            ChatDelta::ToolCallStart { id, name, .. } => {
                self.called = true;
                self.close(&mut events);
                let start = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.open(Block::ToolUse, &start, &mut events);
                return events;
            }
            ChatDelta::ToolCallArguments { text, .. } => {
                let delta = json!({"type": "input_json_delta", "partial_json": text});
                events.push(self.block_delta(&delta));
                return events;
            }
        };
        if self.open != Some(block) {
            self.close(&mut events);
            self.open(block, &start, &mut events);
        }
        events.push(self.block_delta(&delta));
        events
    }

    /// The last events.
    pub fn finish(mut self, end: &EndReason, usage: TokenUsage) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        self.close(&mut events);
        let (stop_reason, stop_sequence) = stop_reason(end, self.called);
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        let usage = usage_json(usage, usage.generated);
        events.push(event("message_delta", json!({"delta": delta, "usage": usage})));
        events.push(event("message_stop", json!({})));
        events
    }

    fn open(&mut self, block: Block, start: &Value, events: &mut Vec<StreamEvent>) {
        self.open = Some(block);
        let data = json!({"index": self.n_blocks, "content_block": start});
        events.push(event("content_block_start", data));
    }

    fn block_delta(&self, delta: &Value) -> StreamEvent {
        event("content_block_delta", json!({"index": self.n_blocks, "delta": delta}))
    }

    fn close(&mut self, events: &mut Vec<StreamEvent>) {
        if self.open.take().is_some() {
            events.push(event("content_block_stop", json!({"index": self.n_blocks})));
            self.n_blocks += 1;
        }
    }
}

/// An event, whose data repeats its name.
fn event(name: &'static str, members: Value) -> StreamEvent {
    let mut data = Map::new();
    data.insert("type".to_owned(), json!(name));
    if let Value::Object(members) = members {
        data.extend(members);
    }
    StreamEvent { event: name, data: Value::Object(data) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::tools::CallKind;

    const USAGE: TokenUsage = TokenUsage { prompt: 10, cached: 4, generated: 7, reasoning: 0 };

    fn call(index: usize, name: &str, arguments: &[&str]) -> Vec<ChatDelta> {
        let (id, name, kind) = (format!("call_{index}"), name.to_owned(), CallKind::Function);
        let start = ChatDelta::ToolCallStart { index, id, name, kind };
        let pieces = arguments
            .iter()
            .map(|text| ChatDelta::ToolCallArguments { index, text: (*text).to_owned() });
        std::iter::once(start).chain(pieces).collect()
    }

    fn content(text: &str) -> ChatDelta {
        ChatDelta::Content(text.to_owned())
    }

    #[test]
    fn streams_have_blocks_one_after_another() {
        let mut deltas = vec![ChatDelta::Reasoning("h".into()), ChatDelta::Reasoning("m".into())];
        deltas.extend([content("a"), content("b")]);
        deltas.extend(call(0, "f", &["{\"x\":", "1}"]));
        deltas.extend(call(1, "g", &["{}"]));
        let mut stream = MessageStream::new("msg_1", "m");
        let mut events = vec![stream.start(USAGE), MessageStream::ping()];
        events.extend(deltas.iter().flat_map(|delta| stream.delta(delta)));
        events.extend(stream.finish(&EndReason::End, USAGE));
        let usage = |generated| {
            json!({
                "input_tokens": 6,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 4,
                "output_tokens": generated,
            })
        };
        let start = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
        let delta = |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
        let want = [
            json!({"type": "message_start", "message": {
                "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
                "stop_reason": null, "stop_sequence": null, "usage": usage(0),
            }}),
            json!({"type": "ping"}),
            start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
            delta(0, json!({"type": "thinking_delta", "thinking": "h"})),
            delta(0, json!({"type": "thinking_delta", "thinking": "m"})),
            stop(0),
            start(1, json!({"type": "text", "text": ""})),
            delta(1, json!({"type": "text_delta", "text": "a"})),
            delta(1, json!({"type": "text_delta", "text": "b"})),
            stop(1),
            start(2, json!({"type": "tool_use", "id": "call_0", "name": "f", "input": {}})),
            delta(2, json!({"type": "input_json_delta", "partial_json": "{\"x\":"})),
            delta(2, json!({"type": "input_json_delta", "partial_json": "1}"})),
            stop(2),
            start(3, json!({"type": "tool_use", "id": "call_1", "name": "g", "input": {}})),
            delta(3, json!({"type": "input_json_delta", "partial_json": "{}"})),
            stop(3),
            json!({"type": "message_delta", "usage": usage(7),
                   "delta": {"stop_reason": "tool_use", "stop_sequence": null}}),
            json!({"type": "message_stop"}),
        ];
        let got: Vec<Value> = events.iter().map(|event| event.data.clone()).collect();
        assert_eq!(got, want);
        assert!(events.iter().all(|event| event.data["type"] == event.event));
    }

    #[test]
    fn an_empty_answer_has_no_blocks() {
        let stream = MessageStream::new("msg_1", "m");
        let names: Vec<&str> =
            stream.finish(&EndReason::End, USAGE).iter().map(|event| event.event).collect();
        assert_eq!(names, ["message_delta", "message_stop"]);
    }

    #[test]
    fn messages_say_why_they_end() {
        let check = |deltas: Vec<ChatDelta>, end: EndReason, blocks: Value, reason: Value| {
            let answer: Answer = deltas.into_iter().collect();
            let got = message("msg_1", "m", &answer, &end, USAGE);
            assert_eq!(got["content"], blocks);
            assert_eq!(json!([got["stop_reason"], got["stop_sequence"]]), reason);
            assert_eq!(got["usage"]["output_tokens"], 7);
        };
        let text = json!({"type": "text", "text": "a"});
        check(vec![content("a")], EndReason::End, json!([text]), json!(["end_turn", null]));
        check(vec![content("a")], EndReason::Length, json!([text]), json!(["max_tokens", null]));
        check(
            vec![content("a")],
            EndReason::StopText("x".to_owned()),
            json!([text]),
            json!(["stop_sequence", "x"]),
        );
        let mut deltas = vec![ChatDelta::Reasoning("h".to_owned())];
        deltas.extend(call(0, "f", &["{\"z\": 1,", "\"a\": 2}"]));
        let input = json!({"z": 1, "a": 2});
        let blocks = json!([
            {"type": "thinking", "thinking": "h", "signature": ""},
            {"type": "tool_use", "id": "call_0", "name": "f", "input": input},
        ]);
        check(deltas, EndReason::End, blocks, json!(["tool_use", null]));
        let cut = json!([{"type": "text", "text": "f: {\"z\": "}]);
        check(call(0, "f", &["{\"z\": "]), EndReason::Length, cut, json!(["max_tokens", null]));
    }
}
