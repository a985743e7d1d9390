//! Conversations: the messages of a request, checked and rendered by the model's chat template.

use super::legacy;
use crate::chat::reasoning::ReasoningFormat;
use crate::error::ApiError;
use crate::http::extract::Held;
use crate::registry::ModelLease;
use crate::registry::served::ChatSide;
use realizar_runtime::template::{ChatTemplate, Content, Message, RenderOptions};
use realizar_runtime::tokenizer::{GuardedText, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

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

/// The efforts of reasoning that OpenAI's API has, and those that routers add.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The fields that say how a conversation becomes a text.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ConversationFields {
    messages: Option<Vec<Message>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    documents: Option<Value>,
    reasoning_effort: Option<String>,
    verbosity: Option<Verbosity>,
    thinking_budget_tokens: Option<usize>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
}

/// How long answers should be, for templates that use the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verbosity {
    Low,
    Medium,
    High,
}

/// A conversation as a model reads it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rendered {
    pub(crate) text: GuardedText,
    /// The text ends inside reasoning.
    pub(crate) is_reasoning: bool,
    /// The answer may have reasoning.
    pub(crate) may_reason: bool,
    /// The maximum number of tokens of reasoning.
    pub(crate) thinking_budget: Option<usize>,
}

impl ConversationFields {
    /// Whether there are messages at all.
    pub(crate) fn has_messages(&self) -> bool {
        self.messages.is_some()
    }

    /// The messages, each as JSON.
    pub(super) fn to_json(&self) -> Vec<Value> {
        self.messages.as_deref().unwrap_or_default().iter().map(|message| json!(message)).collect()
    }

    /// Where turns begin, but for the first: the indices of the user's messages.
    pub(super) fn later_turns(&self) -> Vec<usize> {
        let messages = self.messages.as_deref().unwrap_or_default().iter().enumerate();
        messages.filter(|(_, message)| message.role == "user").map(|(i, _)| i).skip(1).collect()
    }

    /// The conversation without what was said before the message `start`, but for the system.
    pub(super) fn since(&self, start: usize) -> Self {
        let mut since = self.clone();
        let mut messages = since.messages.take().unwrap_or_default();
        let mut i = 0;
        messages.retain(|message| {
            i += 1;
            i > start || matches!(message.role.as_str(), "system" | "developer")
        });
        since.messages = Some(messages);
        since
    }

    /// The text of the conversation, which may show the model tools.
    pub(crate) async fn render(
        self,
        held: &Held,
        model: &ModelLease,
        tools: Option<Vec<Value>>,
    ) -> Result<Rendered, ApiError> {
        let model = model.clone();
        held.work(move || {
            let side = model.chat_side_for(tools.is_some())?;
            let template = model.chat_template_for(tools.is_some())?;
            self.render_with(template, model.tokenizer(), side, tools.as_deref())
        })
        .await
    }

    fn render_with(
        self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        side: ChatSide,
        tools: Option<&[Value]>,
    ) -> Result<Rendered, ApiError> {
        let continues = self.continue_final_message.unwrap_or(false);
        if continues && self.add_generation_prompt == Some(true) {
            let message = "`continue_final_message` and `add_generation_prompt` are mutually \
                           exclusive: the first continues the last message, the second begins a \
                           new one";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        let mut extra = self.variables(template)?;
        let thinking_budget = self.reasoning(template, side, &mut extra)?;
        let messages = legacy::modern(self.messages.unwrap_or_default())?;
        if messages.is_empty() {
            return Err(ApiError::invalid("messages", "at least one message is required"));
        }
        messages.iter().enumerate().try_for_each(|(i, message)| check(i, message, template))?;
        let mut messages = side.traits.prepare(messages)?;
        let in_template =
            tools.and_then(|tools| side.traits.tell_of_tools(tools, &mut messages, &mut extra));
        let options = RenderOptions {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!continues),
            tools: in_template,
            extra: Some(&extra),
            now: None,
        };
        let text = template.render_prompt(&messages, &options, tokenizer);
        let mut text = text.map_err(realizar_runtime::Error::from)?;
        if continues {
            let end = end_of_content(&text.text(), &messages)?;
            text.truncate(end);
        }
        let is = |place: fn(ReasoningFormat, &str) -> bool| {
            side.reasoning.is_some_and(|format| place(format, &text.text()))
        };
        let is_reasoning = is(ReasoningFormat::is_open_in);
        // What is gone on with has begun, and what the template has closed is over.
        let may_begin = !continues && !is(ReasoningFormat::is_closed_in);
        let may_reason = is_reasoning || side.reasoning.is_some() && may_begin;
        Ok(Rendered { text, is_reasoning, may_reason, thinking_budget })
    }

    /// Puts a wish for more or less reasoning into the variables; returns the maximum number of tokens of it.
    ///
    /// An effort is for templates that know the word. Others are told whether to reason at all, and
    /// where a model always does, `none` ends its reasoning before it begins. Beyond that an effort
    /// is a hint, and a model that cannot take it answers as it would without.
    fn reasoning(
        &self,
        template: &ChatTemplate,
        side: ChatSide,
        extra: &mut Map<String, Value>,
    ) -> Result<Option<usize>, ApiError> {
        let param = "reasoning_effort";
        let mut budget = self.thinking_budget_tokens;
        if budget.is_some() && side.reasoning.is_none() {
            let message = "the model's chat template does not mark reasoning, so its length \
                           cannot be limited";
            return Err(ApiError::invalid("thinking_budget_tokens", message));
        }
        let Some(effort) = self.reasoning_effort.as_deref() else { return Ok(budget) };
        let knows_effort = template.source().contains(param);
        if knows_effort {
            extra.insert(param.to_owned(), Value::from(effort));
        } else if !EFFORTS.contains(&effort) {
            let message = format!("expected one of {}, found `{effort}`", EFFORTS.join(", "));
            return Err(ApiError::invalid(param, message));
        }
        let wants = effort != "none" && (knows_effort || effort != "minimal");
        match side.traits.thinking_variable {
            Some(name) => {
                let set = extra.entry(name).or_insert_with(|| Value::from(wants));
                if effort == "none" && *set == true {
                    let message = format!("`none` contradicts `chat_template_kwargs.{name}`");
                    return Err(ApiError::invalid(param, message));
                }
            }
            None if effort == "none" && !knows_effort && side.reasoning.is_some() => {
                budget = Some(0);
            }
            None => {}
        }
        Ok(budget)
    }

    /// The further variables of the template. Documents are refused where the template does not
    /// look at them.
    fn variables(&self, template: &ChatTemplate) -> Result<Map<String, Value>, ApiError> {
        let mut extra = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(name) = RESERVED.iter().find(|name| extra.contains_key(**name)) {
            let param = format!("chat_template_kwargs.{name}");
            return Err(ApiError::invalid(param, format!("`{name}` is set by the server")));
        }
        if let Some(documents) = &self.documents {
            if !template.source().contains("documents") {
                let accepted = "no value, as the model's chat template has no place for documents";
                return Err(ApiError::unsupported("documents", documents, accepted));
            }
            extra.insert("documents".to_owned(), documents.clone());
        }
        if let Some(verbosity) = self.verbosity
            && template.source().contains("verbosity")
        {
            extra.entry("verbosity").or_insert_with(|| json!(verbosity));
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

/// Where the last message's content ends in the text, before what the template puts after it.
fn end_of_content(text: &str, messages: &[Message]) -> Result<usize, ApiError> {
    let content = match messages.last().map(|message| &message.content) {
        Some(Some(Content::Text(content))) if !content.trim().is_empty() => content,
        _ => {
            let message = "the last message has no content to continue";
            return Err(ApiError::invalid("continue_final_message", message));
        }
    };
    // Templates may trim what they are given.
    let end = match text.rfind(content.as_str()) {
        Some(at) => Some(at + content.len()),
        None => text.rfind(content.trim()).map(|at| at + content.trim().len()),
    };
    end.ok_or_else(|| {
        let message = "the chat template does not render the last message verbatim";
        ApiError::invalid("continue_final_message", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::messages::TemplateTraits;
    use realizar_runtime::tokenizer::EncodeOptions;
    use std::sync::LazyLock;

    const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}\
                         {% if add_generation_prompt %}<assistant>{% endif %}";

    /// One token per character, and `<|end|>` as a control token.
    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let vocab: Map<String, Value> =
            ('!'..='~').enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
        let added = json!([{"id": 94, "content": "<|end|>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}]);
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true});
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
        });
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).expect("a file");
        Tokenizer::from_hf_dir(dir.path()).expect("a tokenizer")
    });

    fn rendered(template: &str, json: &str, tools: Option<&[Value]>) -> Result<Rendered, ApiError> {
        let template = ChatTemplate::new(template, "", "").expect("a template");
        let fields: ConversationFields = serde_json::from_str(json).expect("fields");
        let side = ChatSide {
            traits: TemplateTraits::of(&template),
            tools: None,
            reasoning: ReasoningFormat::detect(template.source()),
        };
        fields.render_with(&template, &TOKENIZER, side, tools)
    }

    fn render(template: &str, json: &str) -> Result<String, ApiError> {
        rendered(template, json, None).map(|rendered| rendered.text.text().into_owned())
    }

    #[test]
    fn a_model_hears_of_tools_in_its_template_or_beside_it() {
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        let check = |template: &str, json: &str, want: &str| {
            let text = rendered(template, json, Some(&tools)).expect(json).text;
            assert!(text.text().starts_with(want), "{text:?}");
        };
        let user = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
        check("{{ tools | length }}{{ messages | length }}", user, "11");
        check("{{ xml_tools | length }}{{ messages | length }}", user, "11");
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
        let brief = r#"{"messages": [{"role": "user", "content": "x"}], "verbosity": "low"}"#;
        check("{{ verbosity }}", brief, "low");
        check("{{ messages[0].content }}", brief, "x");
        let legacy = r#"{"messages": [{"role": "function", "name": "f", "content": "r"}]}"#;
        check("{{ messages[0].role }} {{ messages[0].tool_call_id }}", legacy, "tool call00000");
    }

    #[test]
    fn an_effort_reaches_what_the_template_knows() {
        let check = |template: &str, more: &str, want: (&str, bool, bool, Option<usize>)| {
            let json = format!(r#"{{"messages": [{{"role": "user", "content": "x"}}], {more}}}"#);
            let got = rendered(template, &json, None).expect(more);
            let Rendered { text, is_reasoning, may_reason, thinking_budget } = got;
            let text = text.text();
            assert_eq!((&*text, is_reasoning, may_reason, thinking_budget), want, "{more}");
        };
        let effort = |effort: &str| format!(r#""reasoning_effort": "{effort}""#);
        let words = "{{ reasoning_effort }}";
        check(words, &effort("low"), ("low", false, false, None));
        check(words, &effort("own word"), ("own word", false, false, None));
        let switch = "{% if enable_thinking %}<think>{% else %}</think>{% endif %}";
        check(switch, &effort("high"), ("<think>", true, true, None));
        check(switch, &effort("minimal"), ("</think>", false, false, None));
        check(switch, &effort("none"), ("</think>", false, false, None));
        let off = r#""chat_template_kwargs": {"enable_thinking": false}"#;
        check(switch, &format!("{off}, {}", effort("high")), ("</think>", false, false, None));
        let always = "{# </think> #}<think>";
        check(always, &effort("none"), ("<think>", true, true, Some(0)));
        check(always, &effort("minimal"), ("<think>", true, true, None));
        check(always, r#""thinking_budget_tokens": 7"#, ("<think>", true, true, Some(7)));
        check("{# </think> #}a", r#""reasoning_effort": null"#, ("a", false, true, None));
        check("a", &effort("high"), ("a", false, false, None));
        check("a", &effort("none"), ("a", false, false, None));
        let on = r#""chat_template_kwargs": {"enable_thinking": true}"#;
        let user = r#""messages": [{"role": "user", "content": "x"}]"#;
        let error = rendered(switch, &format!("{{{user}, {on}, {}}}", effort("none")), None);
        assert_eq!(error.unwrap_err().body()["error"]["param"], "reasoning_effort");
    }

    #[test]
    fn a_conversation_writes_no_control_tokens() {
        let json = r#"{"messages": [{"role": "user", "content": "a<|end|>"},
            {"role": "assistant", "content": "<|end|>b"}], "continue_final_message": true}"#;
        let template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}";
        let text = rendered(template, json, None).expect("a text").text;
        assert_eq!(text.text(), "a<|end|><|end|><|end|>b");
        let options = EncodeOptions { add_special: false, parse_special: true };
        let ids = TOKENIZER.encode_guarded(&text, options).expect("ids");
        let places: Vec<usize> = (0..ids.len()).filter(|&at| ids[at] == 94).collect();
        assert_eq!((ids.len(), places), (1 + 7 + 1 + 7 + 1, vec![8]));
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
        check(&format!(r#"{{{user}, "reasoning_effort": "all"}}"#), "reasoning_effort");
        check(&format!(r#"{{{user}, "thinking_budget_tokens": 9}}"#), "thinking_budget_tokens");
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
