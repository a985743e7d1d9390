//! Where templates come from: GGUF metadata and the files of a Hugging Face model.

use std::borrow::Cow;
use std::path::Path;

use realizar_formats::{Metadata, read_regular_text};
use serde_json::Value;

use super::{ChatTemplate, Error};
use crate::tokenizer::Tokenizer;
use realizar_base::MAX_JSON;

/// The name of the template in its environment and in messages about it.
pub(super) const NAME: &str = "chat_template";

impl ChatTemplate {
    /// The template in `tokenizer.chat_template`, with the one for tools if there is one; `None`
    /// if the file has none.
    ///
    /// Fails if the template does not parse.
    pub fn from_gguf(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Option<Self>, Error> {
        let Some(source) = metadata.str("tokenizer.chat_template")? else { return Ok(None) };
        let tool_use = metadata.str("tokenizer.chat_template.tool_use")?;
        compile(source, tool_use, tokenizer).map(Some)
    }

    /// The template of a model directory: `chat_template.jinja`, `chat_template.json`, or
    /// `chat_template` in `tokenizer_config.json` as a text or a list of named texts; `None` if
    /// there is none.
    ///
    /// Fails if a file is malformed, if a template does not parse, or if none of several is named
    /// `default`.
    pub fn from_hf_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>, Error> {
        if let Some(source) = read(dir, "chat_template.jinja")? {
            let tool_use = read(&dir.join("additional_chat_templates"), "tool_use.jinja")?;
            return compile(&source, tool_use.as_deref(), tokenizer).map(Some);
        }
        for name in ["chat_template.json", "tokenizer_config.json"] {
            let Some(text) = read(dir, name)? else { continue };
            let json_error = |problem: String| Error::Json { path: dir.join(name), problem };
            let document: Value =
                serde_json::from_str(&text).map_err(|error| json_error(error.to_string()))?;
            match &document["chat_template"] {
                Value::Null => {}
                Value::String(source) => return compile(source, None, tokenizer).map(Some),
                Value::Array(list) => {
                    let named = |wanted: &str| {
                        list.iter()
                            .find(|entry| entry["name"].as_str() == Some(wanted))
                            .and_then(|entry| entry["template"].as_str())
                    };
                    let source = named("default").ok_or_else(|| Error::NoDefault {
                        names: list
                            .iter()
                            .filter_map(|entry| entry["name"].as_str())
                            .map(|name| format!("`{name}`"))
                            .collect::<Vec<_>>()
                            .join(", "),
                    })?;
                    return compile(source, named("tool_use"), tokenizer).map(Some);
                }
                _ => {
                    let problem = "`chat_template` is neither a text nor a list".to_owned();
                    return Err(json_error(problem));
                }
            }
        }
        Ok(None)
    }
}

fn compile(
    source: &str,
    tool_use: Option<&str>,
    tokenizer: &Tokenizer,
) -> Result<ChatTemplate, Error> {
    let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id)).transpose();
    ChatTemplate::with_tools(source, tool_use, text(tokenizer.bos())?, text(tokenizer.eos())?)
}

fn read(dir: &Path, name: &str) -> Result<Option<String>, Error> {
    let path = dir.join(name);
    match read_regular_text(&path, MAX_JSON) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { path, source }),
    }
}

/// Replaces what transformers' Jinja knows and this one does not: `generation` blocks, which mark an
/// answer for training and print their content, and lists of a namespace that are changed in place,
/// which are set afresh. White space control stays as it is.
pub(super) fn with_known_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let len = tag.find("%}").map_or(tag.len(), |end| end + 2);
        out.push_str(&replace_tag(&tag[..len]));
        rest = &tag[len..];
    }
    out.push_str(rest);
    out
}

fn replace_tag(tag: &str) -> Cow<'_, str> {
    let name = tag.trim_start_matches("{%").trim_end_matches("%}");
    let name = name.trim_matches(['-', '+']).trim();
    match name {
        "generation" => Cow::Owned(tag.replacen("generation", "if true", 1)),
        "endgeneration" => Cow::Owned(tag.replacen("endgeneration", "endif", 1)),
        _ => match set_anew(name) {
            Some(statement) => Cow::Owned(tag.replacen(name, &statement, 1)),
            None => Cow::Borrowed(tag),
        },
    }
}

/// `set _ = space.list.append(x)` and `set x = space.list.pop(0)` as statements without methods that
/// change a list.
fn set_anew(statement: &str) -> Option<String> {
    let (target, value) = statement.strip_prefix("set ")?.split_once('=')?;
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let is_member = |list: &str| {
        list.split_once('.').is_some_and(|(space, name)| is_word(space) && is_word(name))
    };
    let (target, value) = (target.trim(), value.trim());
    if let Some((list, item)) = value.strip_suffix(')')?.split_once(".append(") {
        return is_member(list).then(|| format!("set {list} = {list} + [{item}]"));
    }
    let list = value.strip_suffix(".pop(0)").filter(|list| is_member(list))?;
    Some(format!("set {target} = {list}[0] -%}}{{%- set {list} = {list}[1:]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_become_known_ones() {
        for (source, want) in [
            ("{%- set _ = q.ids.append(f(x)) -%}", "{%- set q.ids = q.ids + [f(x)] -%}"),
            ("{% set id = q.ids.pop(0) %}", "{% set id = q.ids[0] -%}{%- set q.ids = q.ids[1:] %}"),
            ("{% set _ = ids.append(x) %}", "{% set _ = ids.append(x) %}"),
            ("{% set x = f(1) %}", "{% set x = f(1) %}"),
            ("a{%- generation -%}b{% endgeneration %}", "a{%- if true -%}b{% endif %}"),
            (
                "{% set generation = 1 %}{{ generation }}",
                "{% set generation = 1 %}{{ generation }}",
            ),
            ("no tags {% open", "no tags {% open"),
        ] {
            assert_eq!(with_known_tags(source), want);
        }
    }
}
