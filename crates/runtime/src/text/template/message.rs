//! The messages of a conversation, as the OpenAI API and chat templates know them.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// One message. Fields that are not named here are kept and reach the template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what the template knows.
    pub role: String,
    /// What is said. Absent and null are different things to a template.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub content: Option<Content>,
    /// All other fields: `tool_calls`, `tool_call_id`, `name`, `reasoning_content`, …
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of parts")]
pub enum Content {
    /// Nothing, as beside tool calls.
    Null,
    /// Plain text.
    Text(String),
    /// Parts with a `type`, such as `{"type": "text", "text": "…"}`.
    Parts(Vec<Value>),
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Content::Text(text.into())), fields: Map::new() }
    }
}

/// Keeps an explicit null apart from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Content>, D::Error> {
    Content::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let text: Message = serde_json::from_str(r#"{"role":"user","content":"hi"}"#).unwrap();
        assert_eq!(text, Message::new("user", "hi"));
    }
}
