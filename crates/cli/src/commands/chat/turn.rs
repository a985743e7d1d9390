//! A turn of a conversation: the answer to the last message, and the calls of tools in it.

use std::ops::ControlFlow;

use anyhow::Result;
use realizar_runtime::template::Message;
use realizar_runtime::{Event, FinishReason, GenerateParams};
use realizar_server::conversation::{Answer, AnswerPart};
use serde_json::json;

use super::Chat;
use super::tools::{self, Call};
use crate::commands::run::timing_line;
use crate::engine::Engine;
use crate::interrupt;
use crate::terminal::{self, Printer};
use crate::ui;

impl Chat<'_> {
    /// Answers the last message. Where the model asks for tools, those that the user lets run do, and it
    /// continues with what they say.
    pub(super) fn turn(&mut self, engine: &mut Engine) -> Result<()> {
        loop {
            let mut params = self.params(engine)?;
            let (values, thinks) = (self.tools.values(), self.thinks);
            let prompt = |messages: &[Message]| engine.chat_prompt(messages, values, thinks);
            let context = engine.model.max_seq_len();
            let (ids, n_dropped) = self.conversation.fit(context, params.max_tokens, prompt)?;
            tell_of_dropped(n_dropped);
            let (answer, mut is_stopped) = self.answer(engine, &ids, &mut params)?;
            let (message, calls) = message_of(answer);
            self.conversation.messages.push(message);
            if calls.is_empty() {
                return Ok(());
            }
            for call in calls {
                // A call without a result is no conversation that a template knows.
                let result =
                    if is_stopped { None } else { self.tools.run(&call, &mut self.input)? };
                is_stopped |= result.is_none();
                let result = result.unwrap_or_else(|| tools::STOPPED.to_owned());
                let mut message = Message::new("tool", result);
                message.fields.insert("tool_call_id".to_owned(), call.id.into());
                message.fields.insert("name".to_owned(), call.name.into());
                self.conversation.messages.push(message);
            }
            if is_stopped {
                return Ok(());
            }
        }
    }

    /// Streams the answer to a conversation of these tokens and returns it, and whether it was stopped.
    fn answer(
        &self,
        engine: &mut Engine,
        ids: &[u32],
        params: &mut GenerateParams,
    ) -> Result<(Answer, bool)> {
        let guard = interrupt::Guard::new();
        let mut out = ui::out();
        let mut failed = None;
        let functions = self.tools.functions();
        // Reasoning is told apart only where that is seen, or calls are.
        let parser = match terminal::is_drawn(self.markdown) || !functions.is_empty() {
            true => engine.answer_parser(ids, functions)?,
            false => None,
        };
        let parser = parser.map(|(parser, shown)| {
            params.shown_tokens = shown;
            parser
        });
        let mut printer = Printer::new(self.markdown, parser);
        let generation = engine.generate(ids, params, &mut |event| {
            if let Event::Token(token) = event {
                failed = printer.push(&mut out, token.text).err();
            }
            if guard.asked() || failed.is_some() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        printer.push(&mut out, &generation.tail)?;
        printer.finish(&mut out, if guard.asked() { " [stopped]" } else { "" })?;
        if generation.finish_reason == FinishReason::Length {
            let n = generation.ids.len();
            ui::note(&match params.max_tokens.is_some_and(|most| n >= most) {
                true => format!("the answer was cut off after {n} tokens (-n)"),
                false => "the answer was cut off: the context is full (-c)".to_owned(),
            });
        }
        let timings = timing_line(&generation, params.sampling_or(engine.model.sampling()));
        if self.is_verbose {
            ui::dim(&timings);
        } else {
            tracing::info!("{timings}");
        }
        Ok((printer.into_answer(), guard.asked()))
    }
}

/// An answer as a message of the conversation, and the calls in it.
fn message_of(answer: Answer) -> (Message, Vec<Call>) {
    let mut message = Message::assistant(answer.content());
    let reasoning = answer.reasoning();
    if !reasoning.is_empty() {
        message.fields.insert("reasoning_content".to_owned(), reasoning.into());
    }
    let calls = answer.parts.into_iter().filter_map(|part| match part {
        AnswerPart::ToolCall { id, name, arguments, .. } => Some(Call { id, name, arguments }),
        AnswerPart::Reasoning(_) | AnswerPart::Content(_) => None,
    });
    let calls: Vec<Call> = calls.collect();
    if !calls.is_empty() {
        let values = calls.iter().map(|call| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        });
        message.fields.insert("tool_calls".to_owned(), values.collect());
    }
    (message, calls)
}

fn tell_of_dropped(n_turns: usize) {
    match n_turns {
        0 => {}
        1 => ui::note(
            "the context is full: the oldest turn was dropped; /clear clears the conversation",
        ),
        n => ui::note(&format!(
            "the context is full: the {n} oldest turns were dropped; /clear clears the conversation"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_server::tools::CallKind;

    #[test]
    fn calls_are_a_part_of_the_message() {
        let call = |id: &str| AnswerPart::ToolCall {
            id: id.to_owned(),
            name: "add".to_owned(),
            arguments: r#"{"a": 1}"#.to_owned(),
            kind: CallKind::Function,
        };
        let parts = vec![
            AnswerPart::Reasoning("r".to_owned()),
            call("x"),
            AnswerPart::Content("c".to_owned()),
        ];
        let (message, calls) = message_of(Answer { parts });
        let want = json!({
            "role": "assistant",
            "content": "c",
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}},
            ],
        });
        assert_eq!(serde_json::to_value(&message).expect("JSON"), want);
        assert_eq!(calls.len(), 1);
    }
}
