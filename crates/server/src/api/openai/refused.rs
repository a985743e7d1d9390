//! Parameters that are known and cannot be honoured. A request that sets one to a value that asks
//! for something is refused with its name; a value that asks for nothing is accepted, as clients
//! and routers send defaults.

use crate::error::ApiError;
use crate::fields::NO_VALUE;
use crate::http::extract::JsonBody;
use serde_json::Value;

/// A name and whether a value of it asks for nothing; an error says which values do.
pub(crate) type Row = (&'static str, fn(&Value) -> Result<(), &'static str>);

/// Of both kinds of completions.
pub(crate) const COMMON: &[Row] = &[
    ("allowed_token_ids", nothing),
    ("bad_words", empty),
    ("dynatemp_range", zero),
    ("ebnf", empty),
    ("id_slot", any_slot),
    ("kv_transfer_params", nothing),
    ("length_penalty", one),
    ("logits_processors", empty),
    ("lora", empty),
    ("lora_adapters", empty),
    ("lora_path", empty),
    ("min_keep", zero),
    ("n_indent", zero),
    ("regex", empty),
    ("return_hidden_states", no),
    ("structural_tag", empty),
    ("tfs_z", one),
    ("truncate_prompt_tokens", nothing),
    ("use_beam_search", no),
];

/// What only llama-server's own endpoints honour.
pub(crate) const OPENAI: &[Row] =
    &[("post_sampling_probs", no), ("response_fields", empty), ("t_max_predict_ms", no_time)];

/// Of llama-server's own endpoints.
pub(crate) const LLAMA: &[Row] = &[
    ("adaptive_target", negative),
    ("continue_final_message", no),
    ("echo", no),
    ("generation_prompt", empty),
    ("grammar_lazy", no),
    ("grammar_triggers", empty),
    ("n_cache_reuse", zero),
    ("n_discard", zero),
    ("preserved_tokens", empty),
    ("reasoning_budget_tokens", any_slot),
    ("reasoning_control", no),
    ("reasoning_format", as_it_is),
    ("return_progress", no),
];

/// Of llama-server's own embeddings.
pub(crate) const EMBEDDING: &[Row] = &[("dimensions", nothing), ("encoding_format", floats)];

/// Of chat completions.
pub(crate) const CHAT: &[Row] = &[
    ("audio", nothing),
    ("best_of", one),
    ("chat_template", nothing),
    ("echo", no),
    ("modalities", only_text),
    ("web_search_options", nothing),
];

/// Of plain completions.
pub(crate) const COMPLETIONS: &[Row] =
    &[("prompt_embeds", nothing), ("reasoning_format", as_it_is)];

/// Checks the body of a chat completion.
pub(crate) fn check_chat(body: &JsonBody) -> Result<(), ApiError> {
    check(body, &[COMMON, OPENAI, CHAT])
}

/// Checks the body of a plain completion.
pub(crate) fn check_completion(body: &JsonBody) -> Result<(), ApiError> {
    check(body, &[COMMON, OPENAI, COMPLETIONS])
}

/// Checks the body of llama-server's own embeddings.
pub(crate) fn check_embedding(body: &JsonBody) -> Result<(), ApiError> {
    check(body, &[EMBEDDING])
}

/// Checks the body of one of llama-server's own endpoints.
pub(crate) fn check_llama(body: &JsonBody) -> Result<(), ApiError> {
    check(body, &[COMMON, LLAMA])
}

fn is(asks_for_nothing: bool, accepted: &'static str) -> Result<(), &'static str> {
    if asks_for_nothing { Ok(()) } else { Err(accepted) }
}

fn nothing(_: &Value) -> Result<(), &'static str> {
    Err(NO_VALUE)
}

fn empty(value: &Value) -> Result<(), &'static str> {
    let is_empty = match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    is(is_empty, "an empty value")
}

fn no(value: &Value) -> Result<(), &'static str> {
    is(*value == Value::Bool(false), "false")
}

fn zero(value: &Value) -> Result<(), &'static str> {
    is(value.as_f64() == Some(0.0), "0")
}

/// A target below zero turns the sampler off.
fn negative(value: &Value) -> Result<(), &'static str> {
    is(value.as_f64().is_some_and(|target| target < 0.0), "a number below 0")
}

fn any_slot(value: &Value) -> Result<(), &'static str> {
    is(value.as_f64() == Some(-1.0), "-1")
}

/// llama-server sets no limit for a time that is not positive.
fn no_time(value: &Value) -> Result<(), &'static str> {
    is(value.as_f64().is_some_and(|millis| millis <= 0.0), "a number that is not positive")
}

/// The text of an answer is not parsed.
fn as_it_is(value: &Value) -> Result<(), &'static str> {
    is(value == "none" || value == "auto", "\"none\", \"auto\"")
}

fn floats(value: &Value) -> Result<(), &'static str> {
    is(value == "float", "\"float\"")
}

fn one(value: &Value) -> Result<(), &'static str> {
    is(value.as_f64() == Some(1.0), "1")
}

fn only_text(value: &Value) -> Result<(), &'static str> {
    let is_text = value.as_array().is_some_and(|list| list.iter().all(|kind| kind == "text"));
    is(is_text, "[\"text\"]")
}

/// Looks for the first parameter that asks for something.
fn check(body: &JsonBody, tables: &[&[Row]]) -> Result<(), ApiError> {
    let rows = || tables.iter().copied().flatten();
    let names: Vec<&str> = rows().map(|(name, _)| *name).collect();
    for (found, value) in body.pick(&names)? {
        let row = rows().find(|(name, _)| *name == found).filter(|_| !value.is_null());
        if let Some((name, asks_for_nothing)) = row {
            asks_for_nothing(&value)
                .map_err(|accepted| ApiError::unsupported(*name, &value, accepted))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asks_for_something_is_named() {
        let check = |json: &str, want: Option<&str>| {
            let error =
                check(&JsonBody::from_text(json), &[COMMON, OPENAI, LLAMA, CHAT, COMPLETIONS])
                    .err();
            let param = error.map(|error| error.body()["error"]["param"].clone());
            assert_eq!(param.as_ref().and_then(Value::as_str), want, "{json}");
        };
        check("{}", None);
        check(r#"{"unknown": {"a": [1]}, "user": "u", "metadata": {}}"#, None);
        check(r#"{"audio": null, "echo": false, "modalities": ["text"]}"#, None);
        check(r#"{"audio": {"voice": "x"}}"#, Some("audio"));
        check(r#"{"modalities": ["text", "audio"]}"#, Some("modalities"));
        check(r#"{"web_search_options": {}}"#, Some("web_search_options"));
        check(r#"{"prompt_embeds": "x"}"#, Some("prompt_embeds"));
        check(r#"{"id_slot": -1, "lora": [], "t_max_predict_ms": 0, "tfs_z": 1}"#, None);
        check(r#"{"id_slot": 0}"#, Some("id_slot"));
        check(r#"{"lora": [{"id": 0, "scale": 1}]}"#, Some("lora"));
        check(r#"{"t_max_predict_ms": 5}"#, Some("t_max_predict_ms"));
        check(r#"{"tfs_z": 0.5, "prompt_embeds": "x"}"#, Some("tfs_z"));
    }

    #[test]
    fn errors_say_what_is_accepted() {
        let all = [COMMON, OPENAI, LLAMA, EMBEDDING, CHAT, COMPLETIONS];
        let error = |json: &str| check(&JsonBody::from_text(json), &all).unwrap_err().to_string();
        for (json, want) in [
            (
                r#"{"audio": {"voice": "x"}}"#,
                r#"`audio`: {"voice":"x"} is not supported; accepted: no value, so leave it out"#,
            ),
            (r#"{"lora": [1]}"#, "`lora`: [1] is not supported; accepted: an empty value"),
            (r#"{"echo": true}"#, "`echo`: true is not supported; accepted: false"),
            (
                r#"{"modalities": ["audio"]}"#,
                r#"`modalities`: ["audio"] is not supported; accepted: ["text"]"#,
            ),
            (r#"{"id_slot": 3}"#, "`id_slot`: 3 is not supported; accepted: -1"),
        ] {
            assert_eq!(error(json), want);
        }
    }
}
