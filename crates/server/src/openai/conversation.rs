//! Conversations: the messages of a request, checked and rendered by the model's chat template.

use crate::error::ApiError;
use crate::prompt::blocking;
use crate::registry::ModelLease;
use crate::served::ChatSide;
use realizar_runtime::template::{ChatTemplate, Content, Message, RenderOptions};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Roles that every template is taken to know in one way or another.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Variables of a template that are not for a request to set by `chat_template_kwargs`.
const RESERVED: [&str; 7] = [
    "add_generation_prompt",
    "bos_token",
    "documents",
    "eos_token",
    "messages",
    "strftime_now",
    "tools",
];

/// The fields that say how a conversation becomes a text.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ConversationFields {
    messages: Option<Vec<Message>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    documents: Option<Value>,
    reasoning_effort: Option<Value>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
}

impl ConversationFields {
    /// Whether there are messages at all.
    pub(crate) fn has_messages(&self) -> bool {
        self.messages.is_some()
    }

    /// The text of the conversation, in which the model may be told of tools.
    pub(crate) async fn render(
        self,
        model: &ModelLease,
        tools: Option<Vec<Value>>,
    ) -> Result<String, ApiError> {
        let model = model.clone();
        blocking(move || {
            self.render_with(model.chat_template()?, model.chat_side()?, tools.as_deref())
        })
        .await
    }

    fn render_with(
        self,
        template: &ChatTemplate,
        side: ChatSide,
        tools: Option<&[Value]>,
    ) -> Result<String, ApiError> {
        let continues = self.continue_final_message.unwrap_or(false);
        if continues && self.add_generation_prompt == Some(true) {
            let message = "`continue_final_message` goes on with the last message, \
                           `add_generation_prompt` begins a new one";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        let extra = self.variables(template)?;
        let messages = self.messages.unwrap_or_default();
        if messages.is_empty() {
            return Err(ApiError::invalid("messages", "at least one message is needed"));
        }
        messages.iter().enumerate().try_for_each(|(i, message)| check(i, message, template))?;
        let mut messages = side.traits.prepare(&messages)?;
        let mut in_template = tools;
        if let Some(tools) = tools.filter(|_| !side.tells_of_tools) {
            tell_of_tools(&mut messages, tools);
            in_template = None;
        }
        let options = RenderOptions {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!continues),
            tools: in_template,
            extra: Some(&extra),
            now: None,
        };
        let text = template.render(&messages, &options).map_err(realizar_runtime::Error::from)?;
        if continues { up_to_content(text, &messages) } else { Ok(text) }
    }

    /// The further variables of the template. Those that have a field of their own are refused
    /// where the template does not look at them.
    fn variables(&self, template: &ChatTemplate) -> Result<Map<String, Value>, ApiError> {
        let mut extra = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(name) = RESERVED.iter().find(|name| extra.contains_key(**name)) {
            let param = format!("chat_template_kwargs.{name}");
            return Err(ApiError::invalid(param, format!("`{name}` is set by the server")));
        }
        for (name, value) in
            [("documents", &self.documents), ("reasoning_effort", &self.reasoning_effort)]
        {
            let Some(value) = value else { continue };
            if template.source().contains(name) {
                extra.insert(name.to_owned(), value.clone());
            } else if value != "none" {
                return Err(ApiError::unsupported(name));
            }
        }
        Ok(extra)
    }
}

/// A message that has a role which the model may know, and content where that is needed.
fn check(i: usize, message: &Message, template: &ChatTemplate) -> Result<(), ApiError> {
    let Message { role, content, fields } = message;
    let known = |role: &str| template.source().contains(role);
    if role.is_empty() || !ROLES.contains(&role.as_str()) && !known(role) {
        let roles = ROLES.join(", ");
        let message = format!("`{role}` is not a role of this model; expected one of {roles}");
        return Err(ApiError::invalid(format!("messages[{i}].role"), message));
    }
    if matches!(content, None | Some(Content::Null)) && role != "assistant" {
        let message = format!("a message of role `{role}` needs content");
        return Err(ApiError::invalid(format!("messages[{i}].content"), message));
    }
    if role == "tool" && !fields.get("tool_call_id").is_some_and(Value::is_string) {
        let message = "a message of role `tool` needs the `tool_call_id` of the call it answers";
        return Err(ApiError::invalid(format!("messages[{i}].tool_call_id"), message));
    }
    Ok(())
}

/// Tells a model of tools whose template has no place for them: in a message of the system, with
/// the form in which it is to call one.
fn tell_of_tools(messages: &mut Vec<Message>, tools: &[Value]) {
    let list: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
    let text = format!(
        "You can call these functions:\n{}\nTo call one, answer with nothing but JSON of the form \
         {{\"name\": the function, \"arguments\": {{its arguments}}}}.",
        list.join("\n")
    );
    match messages.first_mut() {
        Some(Message { role, content: Some(Content::Text(own)), .. }) if role == "system" => {
            own.push_str("\n\n");
            own.push_str(&text);
        }
        _ => messages.insert(0, Message::new("system", text)),
    }
}

/// The text up to the end of the last message's content, without what the template puts after it.
fn up_to_content(mut text: String, messages: &[Message]) -> Result<String, ApiError> {
    let content = match messages.last().map(|message| &message.content) {
        Some(Some(Content::Text(content))) if !content.trim().is_empty() => content,
        _ => {
            let message = "the last message has no content to go on with";
            return Err(ApiError::invalid("continue_final_message", message));
        }
    };
    // Templates may trim what they are given.
    let end = match text.rfind(content.as_str()) {
        Some(at) => Some(at + content.len()),
        None => text.rfind(content.trim()).map(|at| at + content.trim().len()),
    };
    let Some(end) = end else {
        let message = "the chat template does not show the last message as it is";
        return Err(ApiError::invalid("continue_final_message", message));
    };
    text.truncate(end);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::TemplateTraits;
    use serde_json::json;

    const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}\
                         {% if add_generation_prompt %}<assistant>{% endif %}";

    fn render(template: &str, json: &str) -> Result<String, ApiError> {
        let template = ChatTemplate::new(template, "", "").expect("a template");
        let fields: ConversationFields = serde_json::from_str(json).expect("fields");
        fields.render_with(&template, side(&template), None)
    }

    fn side(template: &ChatTemplate) -> ChatSide {
        let (tools, reasoning) = (None, None);
        let tells_of_tools = template.source().contains("tools");
        ChatSide { traits: TemplateTraits::of(template), tools, reasoning, tells_of_tools }
    }

    #[test]
    fn a_model_hears_of_tools_in_its_template_or_beside_it() {
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        let check = |template: &str, json: &str, want: &str| {
            let template = ChatTemplate::new(template, "", "").expect("a template");
            let fields: ConversationFields = serde_json::from_str(json).expect("fields");
            let text = fields.render_with(&template, side(&template), Some(&tools)).expect(json);
            assert!(text.starts_with(want), "{text}");
        };
        let user = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
        check("{{ tools | length }}{{ messages | length }}", user, "11");
        let told = "<system>You can call these functions:\n{\"name\":\"f\"}\nTo call one, ";
        check(PLAIN, user, told);
        let system = r#"{"messages": [{"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"}]}"#;
        check(PLAIN, system, "<system>Be kind.\n\nYou can call these functions:");
    }

    #[test]
    fn conversations_become_texts() {
        let check = |template: &str, json: &str, want: &str| {
            assert_eq!(render(template, json).expect(json), want, "{json}");
        };
        let user = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
        check(PLAIN, user, "<user>Hi</><assistant>");
        let parts = r#"{"messages": [{"role": "developer", "content":
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            "add_generation_prompt": false}"#;
        check(PLAIN, parts, "<system>a\nb</>");
        let knows = "{{ messages[0].role }} {{ messages[0].content }}{# developer #}";
        check(knows, parts, "developer a\nb");
        let prefill = r#"{"messages": [{"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes, "}], "continue_final_message": true}"#;
        check(PLAIN, prefill, "<user>Hi</><assistant>Yes,");
        let calls = r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": [
            {"function": {"name": "f", "arguments": "{\"a\": 1}"}}]}]}"#;
        let template = "{{ messages[0].tool_calls[0].function.arguments.a + 1 }}";
        check(template, calls, "2");
        let kwargs = r#"{"messages": [{"role": "user", "content": "x"}],
            "chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low"}"#;
        check("{{ enable_thinking }} {{ reasoning_effort }}", kwargs, "False low");
    }

    #[test]
    fn what_cannot_be_rendered_names_its_place() {
        let check = |json: &str, param: &str| {
            let error = render(PLAIN, json).expect_err(json);
            assert_eq!(error.body()["error"]["param"], param, "{error}");
        };
        let with = |message: &str| format!(r#"{{"messages": [{message}]}}"#);
        check("{}", "messages");
        check(r#"{"messages": []}"#, "messages");
        check(&with(r#"{"role": "wizard", "content": "x"}"#), "messages[0].role");
        check(&with(r#"{"role": "", "content": "x"}"#), "messages[0].role");
        check(&with(r#"{"role": "user"}"#), "messages[0].content");
        check(&with(r#"{"role": "user", "content": null}"#), "messages[0].content");
        check(&with(r#"{"role": "tool", "content": "x"}"#), "messages[0].tool_call_id");
        let number = r#"{"role": "tool", "content": "x", "tool_call_id": 1}"#;
        check(&with(number), "messages[0].tool_call_id");
        let image = r#"{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}"#;
        check(&with(image), "messages[0].content[0].type");
        let text = r#"{"role": "user", "content": [{"type": "text"}]}"#;
        check(&with(text), "messages[0].content[0].text");
        let user = r#""messages": [{"role": "user", "content": "x"}]"#;
        check(&format!(r#"{{{user}, "reasoning_effort": "high"}}"#), "reasoning_effort");
        check(&format!(r#"{{{user}, "documents": []}}"#), "documents");
        let kwargs = format!(r#"{{{user}, "chat_template_kwargs": {{"messages": []}}}}"#);
        check(&kwargs, "chat_template_kwargs.messages");
        let both =
            format!(r#"{{{user}, "continue_final_message": true, "add_generation_prompt": true}}"#);
        check(&both, "continue_final_message");
        let calls = r#"{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}"#;
        check(&with(calls), "messages[0].tool_calls[0].function.name");
        let error = render("{{ raise_exception('no') }}", &format!("{{{user}}}")).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "messages");
    }
}
