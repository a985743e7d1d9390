//! Documents and results of searches as text: what a model without citations can read of them.

use super::blocks::text;
use crate::fields::{Fields, InvalidRequest};
use serde_json::{Value, json};

/// The text of a document, with its title and its context.
pub(super) fn document(block: &Fields<'_>) -> Result<String, InvalidRequest> {
    let source = Fields::of(block.require("source")?, block.path("source"))?;
    let content = match source.require_str("type")? {
        "text" => {
            source.only("media_type", &[json!("text/plain")])?;
            source.require_str("data")?.to_owned()
        }
        "content" => text(source.require("content")?, &source.path("content"))?,
        other => {
            let found = format!("a document of the source {other:?}");
            let accepted = "\"text\", \"content\"";
            return Err(InvalidRequest::unsupported(source.path("type"), found, accepted));
        }
    };
    no_citations(block)?;
    let parts = [("title", block.str("title")?), ("context", block.str("context")?)];
    Ok(in_tags("document", &parts, &content))
}

/// The text of a result of a search, with its source and its title.
pub(super) fn search_result(block: &Fields<'_>) -> Result<String, InvalidRequest> {
    no_citations(block)?;
    let content = text(block.require("content")?, &block.path("content"))?;
    let parts = [("source", block.str("source")?), ("title", block.str("title")?)];
    Ok(in_tags("search_result", &parts, &content))
}

/// An answer cannot cite.
fn no_citations(block: &Fields<'_>) -> Result<(), InvalidRequest> {
    match block.object("citations")? {
        Some(citations) => citations.only("enabled", &[json!(false)]),
        None => Ok(()),
    }
}

fn in_tags(name: &str, parts: &[(&str, Option<&str>)], content: &str) -> String {
    let mut lines = vec![format!("<{name}>")];
    for (name, text) in parts {
        lines.extend(text.map(|text| format!("<{name}>{text}</{name}>")));
    }
    lines.push(content.to_owned());
    lines.push(format!("</{name}>"));
    lines.join("\n")
}

/// What can be read of the result of a tool that Anthropic's servers ran: its text, or JSON without
/// what is encrypted.
pub(super) fn readable(content: &Value) -> String {
    let text = |block: &Value| match block["type"].as_str() {
        Some("text") => block["text"].as_str().map(str::to_owned),
        _ => None,
    };
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) if blocks.iter().all(|block| text(block).is_some()) => {
            blocks.iter().filter_map(text).collect::<Vec<_>>().join("\n")
        }
        content => {
            let mut content = content.clone();
            strip(&mut content);
            content.to_string()
        }
    }
}

/// Removes members that are encrypted or for a vendor's cache.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, _| !name.starts_with("encrypted_") && name != "cache_control");
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        reader: fn(&Fields<'_>) -> Result<String, InvalidRequest>,
        block: &Value,
    ) -> Result<String, InvalidRequest> {
        reader(&Fields::of(block, "b".to_owned())?)
    }

    #[test]
    fn documents_are_text() {
        let check = |block: Value, want: &str| {
            assert_eq!(read(document, &block).unwrap(), want, "{block}");
        };
        let plain = json!({"type": "text", "media_type": "text/plain", "data": "a\nb"});
        check(json!({"source": plain}), "<document>\na\nb\n</document>");
        check(
            json!({"source": plain, "title": "T", "context": "C", "citations": {"enabled": false}}),
            "<document>\n<title>T</title>\n<context>C</context>\na\nb\n</document>",
        );
        let blocks = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        for (content, want) in [(json!("c"), "c"), (blocks, "a\nb")] {
            let source = json!({"type": "content", "content": content});
            check(json!({"source": source}), &format!("<document>\n{want}\n</document>"));
        }
    }

    #[test]
    fn search_results_are_text() {
        let block =
            json!({"source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]});
        let want = "<search_result>\n<source>s</source>\n<title>t</title>\na\n</search_result>";
        assert_eq!(read(search_result, &block).unwrap(), want);
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |block: Value, param: &str, problem: &str| {
            let error = read(document, &block).unwrap_err();
            assert_eq!(error.param(), param, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        check(json!({}), "b.source", "required");
        let pdf = json!({"type": "base64", "media_type": "application/pdf", "data": ""});
        check(json!({"source": pdf}), "b.source.type", "\"base64\"");
        let html = json!({"type": "text", "media_type": "text/html", "data": ""});
        check(json!({"source": html}), "b.source.media_type", "text/html");
        let image = json!({"type": "content", "content": [{"type": "image"}]});
        check(json!({"source": image}), "b.source.content[0].type", "\"image\"");
        let plain = json!({"type": "text", "media_type": "text/plain", "data": "a"});
        let cited = json!({"source": plain, "citations": {"enabled": true}});
        check(cited, "b.citations.enabled", "true");
    }

    #[test]
    fn results_are_shown_as_far_as_they_can_be_read() {
        let check = |content: Value, want: &str| assert_eq!(readable(&content), want);
        check(json!("a"), "a");
        check(json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "a\nb");
        check(
            json!([{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "x"}]),
            r#"[{"type":"web_search_result","title":"T","url":"u"}]"#,
        );
        check(
            json!({"type": "code_execution_result", "stdout": "1", "content": [{"cache_control": {}}]}),
            r#"{"type":"code_execution_result","stdout":"1","content":[{}]}"#,
        );
    }
}
