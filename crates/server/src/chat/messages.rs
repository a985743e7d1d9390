//! Messages as clients send them become messages as chat templates read them.
//!
//! Templates differ in what they can read: content in parts or only as a string, arguments as
//! objects or as strings, the role `developer` or not. A template is asked by rendering small
//! conversations with it, once, when it is loaded.

use realizar_runtime::template::{ChatTemplate, Content, Message, RenderOptions, TurnTraits};
use serde_json::{Map, Value, json};
use std::time::SystemTime;

use crate::chat::tools::INPUT;
use crate::fields::{Fields, InvalidRequest};

/// What a chat template can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateTraits {
    /// Content that is a string.
    pub string_content: bool,
    /// Content that is a list of parts.
    pub parts_content: bool,
    /// Null content beside tool calls.
    pub null_content: bool,
    /// Arguments of tool calls that are objects.
    pub object_arguments: bool,
    /// The role `developer`.
    pub developer_role: bool,
    /// The order of messages.
    pub turns: TurnTraits,
    /// The variable that holds the tools.
    pub tools_variable: Option<&'static str>,
    /// The variable, true or false, that turns reasoning on and off.
    pub thinking_variable: Option<&'static str>,
}

/// Fields of a message that templates read as text.
const TEXT_FIELDS: [&str; 4] = ["name", "reasoning", "reasoning_content", "tool_call_id"];

/// Names of the variable that holds a template's tools.
const TOOLS_VARIABLES: [&str; 2] = ["tools", "xml_tools"];

/// Names of the variable by which templates turn reasoning on and off.
const THINKING_VARIABLES: [&str; 2] = ["enable_thinking", "thinking"];

const NEEDLE: &str = "zqneedlezq";

impl TemplateTraits {
    /// Asks a template what it can read.
    pub fn of(template: &ChatTemplate) -> Self {
        let shown = |messages: Value, needle: &str| {
            let text = render(template, messages)?;
            // A list or a map that a template prints as it is shows its strings in quotes.
            let raw = ['\'', '"'].iter().any(|quote| text.contains(&format!("{quote}{NEEDLE}")));
            (text.contains(needle) && !raw).then_some(text)
        };
        let part = json!([{"type": "text", "text": NEEDLE}]);
        let parts_content = shown(json!([{"role": "user", "content": part}]), NEEDLE).is_some();
        let string_content =
            !parts_content || shown(json!([{"role": "user", "content": NEEDLE}]), NEEDLE).is_some();
        let developer = json!([
            {"role": "developer", "content": if string_content { json!(NEEDLE) } else { part }},
            {"role": "user", "content": if string_content { json!("x") } else { json!([]) }},
        ]);
        let developer_role =
            template.source().contains("developer") && shown(developer, NEEDLE).is_some();

        let called = |content: Value, arguments: Value| {
            let function = json!({"name": "probe", "arguments": arguments});
            render(
                template,
                json!([
                    {"role": "user", "content": "x"},
                    {
                        "role": "assistant",
                        "content": content,
                        // Mistral's templates insist on ids of nine letters and digits.
                        "tool_calls": [{"id": "call12345", "type": "function", "function": function}],
                    },
                    {"role": "tool", "tool_call_id": "call12345", "name": "probe", "content": "x"},
                ]),
            )
        };
        let object = || json!({"zqkey": "zqvalue"});
        let string = || json!(object().to_string());
        let reads = |text: &Option<String>| {
            text.as_ref().is_some_and(|text| {
                text.contains("zqvalue") && !text.contains("'zqkey'") && !text.contains("\\\"zqkey")
            })
        };
        let object_arguments =
            reads(&called(json!(""), object())) || !reads(&called(json!(""), string()));
        let arguments = if object_arguments { object() } else { string() };
        let null_content =
            called(Value::Null, arguments).is_some_and(|text| !text.contains("None"));
        let user = if string_content { json!("x") } else { json!([{"type": "text", "text": "x"}]) };
        let text = |text: &str| {
            if string_content { json!(text) } else { json!([{"type": "text", "text": text}]) }
        };
        Self {
            string_content,
            parts_content,
            null_content,
            object_arguments,
            developer_role,
            turns: TurnTraits::of(template, developer_role, text),
            tools_variable: variable(
                template,
                &user,
                TOOLS_VARIABLES,
                &[json!([tool()]), json!(null)],
            ),
            thinking_variable: variable(
                template,
                &user,
                THINKING_VARIABLES,
                &[json!(true), json!(false)],
            ),
        }
    }

    /// The messages of a request as the template reads them.
    ///
    /// Fails, naming the parameter, if there are none, on parts that are not text, and on malformed
    /// tool calls.
    pub fn prepare(self, messages: Vec<Message>) -> Result<Vec<Message>, InvalidRequest> {
        if messages.is_empty() {
            let found = &Value::Array(Vec::new());
            return Err(InvalidRequest::value("messages", "at least one message", found));
        }
        let messages = messages.into_iter().enumerate();
        let messages = messages
            .map(|(idx, message)| self.message(message, &format!("messages[{idx}]")))
            .collect::<Result<_, _>>()?;
        Ok(self.turns.arrange(messages))
    }

    /// Shows the model tools in the form of a chat request. A template that reads them
    /// from the variable `tools` gets what is returned; another variable is put into `extra`, and
    /// where there is none, the system message says how a call is written.
    pub fn tell_of_tools<'a>(
        self,
        tools: &'a [Value],
        messages: &mut Vec<Message>,
        extra: &mut Map<String, Value>,
    ) -> Option<&'a [Value]> {
        match self.tools_variable {
            Some("tools") => return Some(tools),
            Some(name) => {
                extra.entry(name).or_insert_with(|| Value::from(tools));
            }
            None => {
                add_to_system(messages, tools);
                *messages = self.turns.arrange(std::mem::take(messages));
            }
        }
        None
    }

    fn message(self, mut message: Message, path: &str) -> Result<Message, InvalidRequest> {
        if message.role == "developer" && !self.developer_role {
            "system".clone_into(&mut message.role);
        }
        message.content = match message.content {
            Some(Content::Parts(parts)) => Some(self.parts(&parts, &format!("{path}.content"))?),
            Some(Content::Text(text)) if !self.string_content => {
                Some(Content::Parts(vec![json!({"type": "text", "text": text})]))
            }
            None | Some(Content::Null) if !self.null_content => Some(Content::Text(String::new())),
            content => content,
        };
        for name in TEXT_FIELDS {
            match message.fields.get(name) {
                None | Some(Value::Null | Value::String(_)) => {}
                Some(other) => {
                    return Err(InvalidRequest::value(format!("{path}.{name}"), "a string", other));
                }
            }
        }
        if let Some(reasoning) = message.fields.get("reasoning").filter(|r| r.is_string()) {
            let reasoning = reasoning.clone();
            message.fields.entry("reasoning_content").or_insert(reasoning);
        }
        match message.fields.get_mut("tool_calls") {
            None => {}
            // Templates ask whether there are tool calls by asking for the field.
            Some(Value::Null) => {
                message.fields.shift_remove("tool_calls");
            }
            Some(Value::Array(calls)) if calls.is_empty() => {
                message.fields.shift_remove("tool_calls");
            }
            Some(Value::Array(calls)) => {
                for (idx, call) in calls.iter_mut().enumerate() {
                    self.call(call, format!("{path}.tool_calls[{idx}]"))?;
                }
            }
            Some(other) => {
                let path = format!("{path}.tool_calls");
                return Err(InvalidRequest::value(path, "an array", other));
            }
        }
        Ok(message)
    }

    /// Content in parts, all of which must be text.
    fn parts(self, parts: &[Value], path: &str) -> Result<Content, InvalidRequest> {
        let mut texts = Vec::new();
        for part in crate::fields::objects(parts, path)? {
            let key = match part.require_str("type")? {
                "text" => "text",
                "refusal" => "refusal",
                other => {
                    let found = format!("content of the type {other:?}");
                    let accepted = "\"text\", \"refusal\"";
                    return Err(InvalidRequest::unsupported(part.path("type"), found, accepted));
                }
            };
            texts.push(part.require_str(key)?);
        }
        Ok(if self.parts_content {
            let part = |text: &&str| json!({"type": "text", "text": text});
            Content::Parts(texts.iter().map(part).collect())
        } else {
            Content::Text(texts.join("\n"))
        })
    }

    /// A tool call of the assistant: its arguments come as a JSON string. One of a custom tool is a call of a
    /// function with its input, as the template is shown these tools.
    fn call(self, call: &mut Value, path: String) -> Result<(), InvalidRequest> {
        let fields = Fields::of(call, path)?;
        fields.str("id")?;
        fields.only("type", &[json!("function"), json!("custom")])?;
        if fields.str("type")? == Some("custom") {
            let custom = Fields::of(fields.require("custom")?, fields.path("custom"))?;
            let (name, input) = (custom.require_str("name")?, custom.require_str("input")?);
            let input = json!({INPUT: input});
            let arguments = if self.object_arguments { input } else { json!(input.to_string()) };
            let function = json!({"name": name, "arguments": arguments});
            let mut members = json!({"id": fields.get("id"), "type": "function"});
            members["function"] = function;
            *call = members;
            return Ok(());
        }
        let function = Fields::of(fields.require("function")?, fields.path("function"))?;
        function.require_str("name")?;
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) if self.object_arguments => {
                let text = if text.trim().is_empty() { "{}" } else { text };
                serde_json::from_str::<Map<String, Value>>(text).ok().map(Value::Object)
            }
            Some(Value::Object(arguments)) if !self.object_arguments => {
                Some(Value::String(json!(arguments).to_string()))
            }
            Some(Value::String(_) | Value::Object(_)) | None => None,
            Some(other) => {
                let path = function.path("arguments");
                return Err(InvalidRequest::value(path, "a string with JSON", other));
            }
        };
        if let Some(arguments) = arguments {
            call["function"]["arguments"] = arguments;
        }
        Ok(())
    }
}

/// Which of these variables makes a difference between two values to what the template writes. One
/// that it names is taken to, where it refuses to write anything.
fn variable(
    template: &ChatTemplate,
    user: &Value,
    names: [&'static str; 2],
    values: &[Value; 2],
) -> Option<&'static str> {
    let turn = |role: &str| json!({"role": role, "content": user});
    let conversations = [json!([turn("user")]), json!([turn("system"), turn("user")])];
    let differs = |name: &str| {
        let mut all_refused = true;
        for messages in &conversations {
            let [one, other] = [&values[0], &values[1]].map(|value| {
                let messages: Vec<Message> = serde_json::from_value(messages.clone()).ok()?;
                let extra = json!({name: value});
                let options = RenderOptions {
                    add_generation_prompt: true,
                    tools: value.as_array().filter(|_| name == "tools").map(Vec::as_slice),
                    extra: extra.as_object().filter(|_| name != "tools"),
                    now: Some(SystemTime::UNIX_EPOCH),
                };
                template.render(&messages, &options).ok()
            });
            all_refused &= one.is_none() && other.is_none();
            if one != other {
                return true;
            }
        }
        all_refused
    };
    names.into_iter().find(|name| has_word(template.source(), name) && differs(name))
}

/// Whether a text has a word that is not a part of a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(in_word) && !text[at + word.len()..].starts_with(in_word)
    })
}

fn tool() -> Value {
    let parameters = json!({"type": "object", "properties": {"zqkey": {"type": "string"}}});
    json!({"type": "function", "function": {"name": "probe", "description": "x", "parameters": parameters}})
}

/// What a template makes of a conversation; `None` if it refuses it.
fn render(template: &ChatTemplate, messages: Value) -> Option<String> {
    let messages: Vec<Message> = serde_json::from_value(messages).ok()?;
    // One with another beside it for tools gets none.
    let tools = (!template.has_tool_use()).then(|| [tool()]);
    let tools = tools.as_ref().map(<[Value; 1]>::as_slice);
    let options = RenderOptions { tools, ..RenderOptions::default() };
    template.render(&messages, &options).ok()
}

/// Describes tools in the system message, in the words of [`ToolFormat::Json`](crate::ToolFormat::Json).
fn add_to_system(messages: &mut Vec<Message>, tools: &[Value]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const STRINGS: TemplateTraits = TemplateTraits {
        string_content: true,
        parts_content: false,
        null_content: false,
        object_arguments: true,
        developer_role: false,
        turns: TurnTraits {
            system: true,
            several_system: true,
            late_system: true,
            user_runs: true,
        },
        tools_variable: None,
        thinking_variable: None,
    };

    #[test]
    fn templates_are_asked_what_they_read() {
        let check = |source: &str, want: TemplateTraits| {
            let template = ChatTemplate::new(source, "", "").unwrap();
            assert_eq!(TemplateTraits::of(&template), want, "{source}");
        };
        let calls = |arguments: &str| {
            format!(
                "{{% for m in messages %}}{{{{ m.role + m.content }}}}{{% if m.tool_calls %}}\
                 {{{{ '<' + m.tool_calls[0].function.{arguments} }}}}{{% endif %}}{{% endfor %}}"
            )
        };
        check(&calls("arguments|tojson"), STRINGS);
        check(&calls("arguments"), TemplateTraits { object_arguments: false, ..STRINGS });
        check(&calls("name"), STRINGS);
        let prints = "{% for m in messages %}{{ m.content }}{% endfor %}";
        // A content that is null is left out, and what is missing prints as nothing.
        let printing = TemplateTraits { null_content: true, ..STRINGS };
        check(prints, printing);
        let or = "{% for m in messages %}{{ m.content or '' }}{% endfor %}";
        check(or, printing);
        let parts = "{% for m in messages %}{% if m.content is string %}{{ m.content }}\
                     {% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}\
                     {% endfor %}";
        let both = TemplateTraits { parts_content: true, null_content: true, ..STRINGS };
        check(parts, both);
        let only = "{% for m in messages %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}\
                    {% endfor %}";
        check(only, TemplateTraits { string_content: false, ..both });
        let developer =
            "{# developer #}{% for m in messages %}{{ m.role + m.content }}{% endfor %}";
        check(developer, TemplateTraits { developer_role: true, ..STRINGS });
        let more = |more: &str| format!("{prints}{more}");
        let traits = |tools_variable, thinking_variable| TemplateTraits {
            tools_variable,
            thinking_variable,
            ..printing
        };
        check(&more("{% if tools %}T{% endif %}"), traits(Some("tools"), None));
        check(&more("{{ xml_tools }}{# tools #}"), traits(Some("xml_tools"), None));
        let needs = ChatTemplate::new("{{ xml_tools | length }}", "", "").unwrap();
        assert_eq!(TemplateTraits::of(&needs).tools_variable, Some("xml_tools"));
        check(&more("no tools, no thinking"), printing);
        let thinks = "{% if enable_thinking is defined and not enable_thinking %}N{% endif %}";
        check(&more(thinks), traits(None, Some("enable_thinking")));
        check(&more("{{ thinking | default(false) }}"), traits(None, Some("thinking")));
        let refuses = "{{ raise_exception('no') }}{{ tools }}";
        assert_eq!(
            TemplateTraits::of(&ChatTemplate::new(refuses, "", "").unwrap()).tools_variable,
            Some("tools")
        );
    }

    fn prepare(traits: TemplateTraits, messages: &Value) -> Result<Value, InvalidRequest> {
        let messages: Vec<Message> = serde_json::from_value(messages.clone()).unwrap();
        traits.prepare(messages).map(|messages| json!(messages))
    }

    #[test]
    fn messages_take_the_form_that_the_template_reads() {
        let check = |traits, message: Value, want: Value| {
            assert_eq!(prepare(traits, &json!([message])).unwrap(), json!([want]));
        };
        let all = TemplateTraits { parts_content: true, null_content: true, ..STRINGS };
        let all = TemplateTraits { developer_role: true, ..all };
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let sent = json!({"role": "developer", "content": parts});
        check(STRINGS, sent.clone(), json!({"role": "system", "content": "a\nb"}));
        check(all, sent.clone(), sent);
        check(
            TemplateTraits { string_content: false, ..all },
            json!({"role": "user", "content": "a"}),
            json!({"role": "user", "content": [{"type": "text", "text": "a"}]}),
        );
        let call = |arguments: Value| {
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ]})
        };
        let text = |arguments: Value| {
            let mut message = call(arguments);
            message["content"] = json!("");
            message
        };
        check(STRINGS, call(json!("{\"b\": 1, \"a\": 2}")), text(json!({"b": 1, "a": 2})));
        check(STRINGS, call(json!("")), text(json!({})));
        check(STRINGS, call(json!("{\"a\": ")), text(json!("{\"a\": ")));
        check(STRINGS, call(json!({"a": 1})), text(json!({"a": 1})));
        check(all, call(json!("{}")), call(json!({})));
        let strings = TemplateTraits { object_arguments: false, ..STRINGS };
        check(strings, call(json!({"a": 1})), text(json!("{\"a\":1}")));
        check(strings, call(json!("{}")), text(json!("{}")));
        let custom = json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "custom", "custom": {"name": "f", "input": "a\n\"b\""}},
        ]});
        check(STRINGS, custom.clone(), text(json!({"input": "a\n\"b\""})));
        check(strings, custom, text(json!("{\"input\":\"a\\n\\\"b\\\"\"}")));
        check(
            STRINGS,
            json!({"role": "assistant", "content": "a", "tool_calls": [], "reasoning": "r"}),
            json!({"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}),
        );
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |messages: Value, param: &str, problem: &str| {
            let error = prepare(STRINGS, &messages).unwrap_err();
            assert_eq!(error.param(), param, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        check(json!([]), "messages", "at least one");
        let user = json!({"role": "user", "content": "a"});
        let content = |part: Value| json!([user, {"role": "user", "content": [part]}]);
        check(
            content(json!({"type": "image_url", "image_url": {"url": "x"}})),
            "messages[1].content[0].type",
            "\"image_url\" is not supported",
        );
        check(content(json!({"type": "text"})), "messages[1].content[0].text", "required");
        check(content(json!(1)), "messages[1].content[0]", "an object");
        let calls = |calls: Value| json!([{"role": "assistant", "tool_calls": calls}]);
        check(calls(json!({})), "messages[0].tool_calls", "an array");
        check(calls(json!([{}])), "messages[0].tool_calls[0].function", "required");
        let call = |name: &str, value: Value| {
            let mut call = json!({"function": {"name": "f"}});
            call[name] = value;
            calls(json!([call]))
        };
        check(call("id", json!(1)), "messages[0].tool_calls[0].id", "a string");
        check(call("type", json!("x")), "messages[0].tool_calls[0].type", "\"x\" is not");
        let custom = |custom: Value| calls(json!([{"type": "custom", "custom": custom}]));
        let path = "messages[0].tool_calls[0].custom";
        check(custom(Value::Null), path, "required");
        check(custom(json!({"name": "f"})), &format!("{path}.input"), "required");
        for name in TEXT_FIELDS {
            let mut message = user.clone();
            message[name] = json!({});
            check(json!([message]), &format!("messages[0].{name}"), "a string");
        }
        check(
            calls(json!([{"function": {"name": "f", "arguments": 1}}])),
            "messages[0].tool_calls[0].function.arguments",
            "a string with JSON",
        );
    }
}
