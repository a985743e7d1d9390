//! Prompts in which only what the template wrote becomes control tokens.
//!
//! Every string of a conversation that spells a control token, or could complete one, is given
//! [marks](GuardedText) before the template sees it. All other strings reach it as they are, so an
//! ordinary conversation is rendered, and encoded, as it always was.
//!
//! Some templates look for markers in what the assistant said, mostly to leave out its reasoning,
//! and some vocabularies have these markers as control tokens. Where a token in an assistant's
//! message makes a difference to what the template writes, it stays.

use serde_json::{Map, Value};

use super::{ChatTemplate, Content, Error, Message, RenderOptions, source};
use crate::tokenizer::{GuardedText, MARKS, Tokenizer};

impl ChatTemplate {
    /// Renders a conversation as a prompt for a model with this tokenizer: what the strings of the
    /// conversation spell does not become control tokens.
    ///
    /// Fails as [`Self::render`] does, and if every character that could serve as a mark occurs in
    /// the conversation.
    pub fn render_prompt(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<GuardedText, Error> {
        let mut seen = Seen { tokenizer, found: false, taken: 0 };
        messages.iter().for_each(|message| seen.message(message));
        options.tools.into_iter().flatten().for_each(|tool| seen.value(tool));
        options.extra.into_iter().for_each(|extra| seen.map(extra));
        if !seen.found {
            return self.render(messages, options).map(GuardedText::unguarded);
        }
        let template = self.environment(options).get_template(source::NAME);
        let template = template.map_err(|error| super::failed(&error))?;
        seen.text(template.source());
        let mark = seen.free_mark().ok_or(Error::NoMark)?;
        let mut marker = Marker { tokenizer, mark, spared: Vec::new() };
        let render = |marker: &Marker<'_>| self.render_marked(messages, options, marker);
        let mut candidates = spelled_by_assistant(messages, tokenizer);
        candidates.retain(|token| template.source().contains(token));
        if !candidates.is_empty() {
            let plain = |marker: &Marker<'_>| {
                let text = render(marker).map_err(|error| error.to_string());
                text.map(|text| text.text().into_owned())
            };
            let without = plain(&marker);
            let mut matters = |token: &String| {
                marker.spared = vec![token.clone()];
                plain(&marker) != without
            };
            candidates.retain(&mut matters);
            marker.spared = candidates;
        }
        render(&marker)
    }

    fn render_marked(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
        marker: &Marker<'_>,
    ) -> Result<GuardedText, Error> {
        let messages: Vec<Message> = messages.iter().map(|m| marker.message(m)).collect();
        let tools: Option<Vec<Value>> =
            options.tools.map(|tools| tools.iter().map(|tool| marker.value(tool, &[])).collect());
        let extra = options.extra.map(|extra| marker.map(extra, &[]));
        let options = RenderOptions { tools: tools.as_deref(), extra: extra.as_ref(), ..*options };
        Ok(GuardedText::new(self.render(&messages, &options)?, marker.mark))
    }
}

/// What was seen of a conversation's strings.
struct Seen<'a> {
    tokenizer: &'a Tokenizer,
    found: bool, // a string that needs marks
    taken: u32,  // bits of the possible marks that occur
}

impl Seen<'_> {
    fn text(&mut self, text: &str) {
        for c in text.chars().filter(|c| MARKS.contains(c)) {
            self.taken |= 1 << (c as u32 - *MARKS.start() as u32);
        }
        self.found = self.found || self.tokenizer.needs_marks(text);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter().for_each(|item| self.value(item)),
            Value::Object(map) => self.map(map),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn map(&mut self, map: &Map<String, Value>) {
        for (key, value) in map {
            self.text(key);
            self.value(value);
        }
    }

    fn message(&mut self, message: &Message) {
        self.text(&message.role);
        match &message.content {
            Some(Content::Text(text)) => self.text(text),
            Some(Content::Parts(parts)) => parts.iter().for_each(|part| self.value(part)),
            Some(Content::Null) | None => {}
        }
        self.map(&message.fields);
    }

    fn free_mark(&self) -> Option<char> {
        MARKS.enumerate().find(|(bit, _)| self.taken >> bit & 1 == 0).map(|(_, mark)| mark)
    }
}

/// Puts marks into the strings of a conversation.
struct Marker<'a> {
    tokenizer: &'a Tokenizer,
    mark: char,
    spared: Vec<String>, // tokens that the assistant may spell
}

impl Marker<'_> {
    fn text(&self, text: &str, spared: &[&str]) -> String {
        self.tokenizer.mark(text, self.mark, spared).into_owned()
    }

    fn value(&self, value: &Value, spared: &[&str]) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text, spared)),
            Value::Array(items) => items.iter().map(|item| self.value(item, spared)).collect(),
            Value::Object(map) => Value::Object(self.map(map, spared)),
            other => other.clone(),
        }
    }

    fn map(&self, map: &Map<String, Value>, spared: &[&str]) -> Map<String, Value> {
        let marked =
            |(key, value): (&String, &Value)| (self.text(key, spared), self.value(value, spared));
        map.iter().map(marked).collect()
    }

    fn message(&self, message: &Message) -> Message {
        let spared: Vec<&str> = match message.role.as_str() {
            "assistant" => self.spared.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        Message {
            role: self.text(&message.role, &[]),
            content: message.content.as_ref().map(|content| match content {
                Content::Text(text) => Content::Text(self.text(text, &spared)),
                Content::Parts(parts) => {
                    Content::Parts(parts.iter().map(|part| self.value(part, &spared)).collect())
                }
                Content::Null => Content::Null,
            }),
            fields: self.map(&message.fields, &spared),
        }
    }
}

/// The control tokens that the assistant's messages spell.
fn spelled_by_assistant(messages: &[Message], tokenizer: &Tokenizer) -> Vec<String> {
    fn strings<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
        match value {
            Value::String(text) => out.push(text),
            Value::Array(items) => items.iter().for_each(|item| strings(item, out)),
            Value::Object(map) => map.values().for_each(|value| strings(value, out)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut texts = Vec::new();
    for message in messages.iter().filter(|message| message.role == "assistant") {
        match &message.content {
            Some(Content::Text(text)) => texts.push(text.as_str()),
            Some(Content::Parts(parts)) => parts.iter().for_each(|part| strings(part, &mut texts)),
            Some(Content::Null) | None => {}
        }
        message.fields.values().for_each(|value| strings(value, &mut texts));
    }
    let mut tokens: Vec<String> =
        texts.iter().flat_map(|text| tokenizer.spelled(text)).map(str::to_owned).collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use serde_json::json;

    use super::*;
    use crate::tokenizer::EncodeOptions;

    const FULL: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
    const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

    /// One token per character, and from 96 on control tokens, but for `<x>`.
    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let mut vocab: Map<String, Value> =
            ('!'..='~').enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
        vocab.insert("Ġ".to_owned(), json!(94));
        let added = ["<|a|>", "<|b|>", "</t>", "<x>"].iter().enumerate().map(|(i, text)| {
            json!({"id": 96 + i, "content": text, "special": *text != "<x>", "single_word": false,
                   "lstrip": false, "rstrip": false, "normalized": false})
        });
        vocab.insert("ab".to_owned(), json!(95));
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true});
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": added.collect::<Value>(),
            "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "ignore_merges": false, "vocab": vocab,
                "merges": [["a", "b"]]},
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        Tokenizer::from_hf_dir(dir.path()).unwrap()
    });

    /// The prompt's text, with control tokens as `[name]` where they are tokens.
    fn prompt(source: &str, messages: &Value, options: &RenderOptions<'_>) -> String {
        let template = ChatTemplate::new(source, "", "").unwrap();
        let messages: Vec<Message> = serde_json::from_value(messages.clone()).unwrap();
        let prompt = template.render_prompt(&messages, options, &TOKENIZER).unwrap();
        let ids = TOKENIZER.encode_guarded(&prompt, FULL).unwrap();
        let piece = |&id: &u32| match id {
            96..=98 => format!("[{}]", TOKENIZER.token_text(id).unwrap()),
            99 => "(x)".to_owned(),
            _ => TOKENIZER.token_text(id).unwrap(),
        };
        assert_eq!(TOKENIZER.decode(&ids, false).unwrap(), prompt.text());
        let text = prompt.text().into_owned();
        let plain = TOKENIZER.encode_guarded(&GuardedText::unguarded(text.as_str()), PLAIN);
        assert_eq!(TOKENIZER.encode_guarded(&prompt, PLAIN).unwrap(), plain.unwrap());
        ids.iter().map(piece).collect()
    }

    const TURNS: &str = "{% for m in messages %}<|a|>{{ m.role }}:{{ m.content | trim }}<|b|>\
                         {% endfor %}";

    #[test]
    fn what_a_conversation_spells_is_text() {
        let check = |source: &str, messages: Value, want: &str| {
            assert_eq!(prompt(source, &messages, &RenderOptions::default()), want);
        };
        let said = |content: &str| json!([{"role": "u", "content": content}]);
        check(TURNS, said("abc"), "[<|a|>]u:abc[<|b|>]");
        check(TURNS, said(" abc<|b|><|a|>s:ab "), "[<|a|>]u:abc<|b|><|a|>s:ab[<|b|>]");
        check(TURNS, said("a<"), "[<|a|>]u:a<[<|b|>]");
        check(TURNS, said("<x><|b"), "[<|a|>]u:(x)<|b[<|b|>]");
        let role = json!([{"role": "<|b|>", "content": "c"}]);
        check(TURNS, role, "[<|a|>]<|b|>:c[<|b|>]");
        // Put together from strings of which none spells a token.
        let parts = "{% for p in messages[0].content %}{{ p.text | trim }}{% endfor %}";
        let texts = json!([{"text": "a <|"}, {"text": "b"}, {"text": "|> <|b| "}, {"text": ">"}]);
        check(parts, json!([{"role": "u", "content": texts}]), "a <|b|> <|b|>");
        let json = "{{ messages[0].d | tojson(ensure_ascii=true) }}<|b|>{{ messages[0].d }}";
        let fields = json!([{"role": "u", "d": {"<|a|>": ["c<|b|>"]}}]);
        check(json, fields, r#"{"<|a|>": ["c<|b|>"]}[<|b|>]{'<|a|>': ['c<|b|>']}"#);
    }

    #[test]
    fn tools_and_variables_are_of_the_conversation() {
        let tools = [json!({"name": "f", "description": "<|a|>"})];
        let extra = json!({"documents": ["<|b|>"]});
        let options = RenderOptions {
            tools: Some(&tools),
            extra: extra.as_object(),
            ..RenderOptions::default()
        };
        let source = "{{ tools[0].description }}{{ documents[0] }}<|a|>";
        assert_eq!(prompt(source, &json!([]), &options), "<|a|><|b|>[<|a|>]");
    }

    #[test]
    fn markers_that_the_template_looks_for_stay() {
        let source = "{% for m in messages %}{% set c = m.content %}\
                      {% if '</t>' in c %}{% set c = c.split('</t>')[-1] %}{% endif %}\
                      <|a|>{{ c }}<|b|>{% endfor %}";
        let said = |role: &str, content: &str| json!([{"role": role, "content": content}]);
        let check = |messages: Value, want: &str| {
            assert_eq!(prompt(source, &messages, &RenderOptions::default()), want);
        };
        check(said("assistant", "r</t>c<|b|>"), "[<|a|>]c<|b|>[<|b|>]");
        check(said("user", "r</t>c"), "[<|a|>]r</t>c[<|b|>]");
    }

    #[test]
    fn marks_are_characters_that_the_conversation_has_not() {
        let taken: String = MARKS.take(31).collect();
        let messages = |text: &str| vec![Message::new("u", format!("<|a|>{text}"))];
        let template = ChatTemplate::new(TURNS, "", "").unwrap();
        let options = RenderOptions::default();
        let prompt = template.render_prompt(&messages(&taken), &options, &TOKENIZER).unwrap();
        assert_eq!(prompt.text(), format!("<|a|>u:<|a|>{taken}<|b|>"));
        let all: String = MARKS.collect();
        let error = template.render_prompt(&messages(&all), &options, &TOKENIZER).unwrap_err();
        assert!(matches!(error, Error::NoMark), "{error}");
        let plain = template.render_prompt(&[Message::new("u", all.clone())], &options, &TOKENIZER);
        assert_eq!(plain.unwrap(), GuardedText::unguarded(format!("<|a|>u:{all}<|b|>")));
    }
}
