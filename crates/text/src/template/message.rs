//! The messages of a conversation, as the OpenAI API and chat templates know them.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// One message. Fields that are not named here are kept and reach the template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The speaker: `system`, `user`, `assistant`, `tool`, or what the template knows.
    pub role: String,
    /// What is said; a template does not see a null.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub content: Option<Content>,
    /// All other fields: `tool_calls`, `tool_call_id`, `name`, `reasoning_content`, …
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Content {
    /// Nothing, as beside tool calls.
    Null,
    /// Plain text.
    Text(String),
    /// Parts with a `type`, such as `{"type": "text", "text": "…"}`.
    Parts(Vec<Value>),
}

/// Read as what it is: serde's own way for untagged enums keeps a second copy of a long text.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of parts")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Content, E> {
        Ok(Content::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = list.next_element()? {
            parts.push(part);
        }
        Ok(Content::Parts(parts))
    }
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Content::Text(text.into())), fields: Map::new() }
    }

    /// The instructions for the model before the conversation.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new("system", text)
    }

    /// What a person says.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new("user", text)
    }

    /// What the model has answered.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new("assistant", text)
    }
}

/// The names of a message's reasoning, the first of which counts.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A message as transformers hands it to a template: fields that are null are left out, and the
/// reasoning is there as `reasoning_content`, and as `thinking` unless that is taken.
pub(super) struct ForTemplate<'a>(pub(super) &'a Message);

impl Serialize for ForTemplate<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Message { role, content, fields } = self.0;
        let said = |value: &&Value| !value.is_null();
        let reasoning = REASONING.iter().find_map(|name| fields.get(*name).filter(said));
        let [first, second, _] = REASONING;
        let mut map = serializer.serialize_map(None)?;
        if let Some(reasoning) = reasoning
            && fields.get(second).is_none_or(Value::is_null)
        {
            map.serialize_entry(second, reasoning)?;
        }
        map.serialize_entry("role", role)?;
        if let Some(content) = content
            && *content != Content::Null
        {
            map.serialize_entry("content", content)?;
        }
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            if name != first {
                map.serialize_entry(name, value)?;
            }
        }
        if let Some(reasoning) = reasoning {
            map.serialize_entry(first, reasoning)?;
        }
        map.end()
    }
}

/// Keeps an explicit null apart from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Content>, D::Error> {
    Content::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_get_reasoning_by_its_names_and_no_nulls() {
        let check = |message: Value, want: &str| {
            let message: Message = serde_json::from_value(message).unwrap();
            assert_eq!(serde_json::to_string(&ForTemplate(&message)).unwrap(), want);
        };
        check(json!({"role": "a", "content": null, "name": null}), r#"{"role":"a"}"#);
        let want =
            r#"{"thinking":"t","role":"a","content":"x","reasoning":"t","reasoning_content":"t"}"#;
        check(json!({"role": "a", "content": "x", "reasoning": "t"}), want);
        let want = r#"{"role":"a","thinking":"u","reasoning_content":"t"}"#;
        check(json!({"role": "a", "reasoning_content": "t", "thinking": "u"}), want);
        let want = r#"{"role":"a","thinking":"u","reasoning_content":"u"}"#;
        check(json!({"role": "a", "reasoning_content": null, "thinking": "u"}), want);
    }

    #[test]
    fn keeps_nulls_parts_and_unknown_fields() {
        for json in [
            r#"{"role":"user","content":"hi"}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"b":1,"a":2}]}"#,
            r#"{"role":"assistant"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x"}],"name":"n"}"#,
        ] {
            let message: Message = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&message).unwrap(), json);
        }
        for json in [r#"{"role":"user","content":7}"#, r#"{"role":"user","content":{}}"#] {
            let error = serde_json::from_str::<Message>(json).unwrap_err().to_string();
            assert!(error.contains("expected a text or a list of parts"), "{error}");
        }
        let text: Message = serde_json::from_str(r#"{"role":"user","content":"hi"}"#).unwrap();
        assert_eq!(text, Message::new("user", "hi"));
    }
}
