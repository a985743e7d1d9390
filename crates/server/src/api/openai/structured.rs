//! The fields that say what an answer must look like: OpenAI's `response_format`, vLLM's
//! `structured_outputs` and `guided_*`, llama-server's `grammar` and `json_schema`.

use super::conversation::Rendered;
use crate::answer::compile::compile;
use crate::chat::parser::ChatParserOptions;
use crate::chat::tools::harmony::before_a_call;
use crate::error::ApiError;
use crate::http::work::blocking;
use crate::registry::ModelLease;
use realizar_runtime::constrain::{AdditionalProperties, Constraint, Grammar};
use serde::Deserialize;
use serde_json::Value;

/// The fields, of which a request may set one.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct GrammarFields {
    response_format: Option<ResponseFormat>,
    structured_outputs: Option<StructuredOutputs>,
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    guided_choice: Option<Vec<String>>,
    guided_grammar: Option<String>,
    grammar: Option<String>,
    json_schema: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject {
        /// As llama-server takes it.
        schema: Option<Value>,
    },
    JsonSchema {
        json_schema: JsonSchema,
    },
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct JsonSchema {
    schema: Option<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct StructuredOutputs {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
    disable_additional_properties: Option<bool>,
}

/// A grammar, and the parameter that asks for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) param: &'static str,
    pub(crate) grammar: Grammar,
    /// In place of what the server says.
    pub(crate) additional_properties: Option<AdditionalProperties>,
    /// It begins where a message in channels does, with its head.
    pub(crate) begins_message: bool,
}

/// A schema; some clients send it as text.
fn schema(value: Value) -> Grammar {
    match value.as_str().and_then(|text| serde_json::from_str(text).ok()) {
        Some(parsed) => Grammar::JsonSchema(parsed),
        None => Grammar::JsonSchema(value),
    }
}

/// A grammar in the format of llama.cpp, or in Lark's: only the former defines by `::=`.
fn grammar(text: String) -> Grammar {
    if text.contains("::=") { Grammar::Gbnf(text) } else { Grammar::Lark(text) }
}

impl GrammarFields {
    /// The grammar that the request asks for, if any.
    pub(crate) fn read(self) -> Result<Option<Wanted>, ApiError> {
        let format = match self.response_format {
            None | Some(ResponseFormat::Text) => None,
            Some(ResponseFormat::JsonObject { schema: None }) => {
                Some(("response_format", Grammar::JsonObject))
            }
            Some(ResponseFormat::JsonObject { schema: Some(value) }) => {
                Some(("response_format.schema", schema(value)))
            }
            Some(ResponseFormat::JsonSchema { json_schema: JsonSchema { schema: value } }) => {
                let param = "response_format.json_schema.schema";
                let value =
                    value.ok_or_else(|| ApiError::invalid(param, "a schema is required"))?;
                Some((param, schema(value)))
            }
        };
        let outputs = self.structured_outputs.unwrap_or_default();
        let additional_properties =
            outputs.disable_additional_properties.map(|disabled| match disabled {
                true => AdditionalProperties::Closed,
                false => AdditionalProperties::Allowed,
            });
        let text = |param, text: Option<String>| {
            text.filter(|text| !text.is_empty()).map(|text| (param, grammar(text)))
        };
        let all = [
            format,
            outputs.json.map(|value| ("structured_outputs.json", schema(value))),
            outputs.regex.map(|regex| ("structured_outputs.regex", Grammar::Regex(regex))),
            outputs.choice.map(|texts| ("structured_outputs.choice", Grammar::Choice(texts))),
            text("structured_outputs.grammar", outputs.grammar),
            outputs
                .json_object
                .filter(|&wanted| wanted)
                .map(|_| ("structured_outputs.json_object", Grammar::JsonObject)),
            self.guided_json.map(|value| ("guided_json", schema(value))),
            self.guided_regex.map(|regex| ("guided_regex", Grammar::Regex(regex))),
            self.guided_choice.map(|texts| ("guided_choice", Grammar::Choice(texts))),
            text("guided_grammar", self.guided_grammar),
            text("grammar", self.grammar),
            self.json_schema.map(|value| ("json_schema", schema(value))),
        ];
        let mut wanted = all.into_iter().flatten();
        let Some((param, grammar)) = wanted.next() else { return Ok(None) };
        match wanted.next() {
            None => {
                Ok(Some(Wanted { param, grammar, additional_properties, begins_message: false }))
            }
            Some((other, _)) => {
                let message = format!("`{other}` and `{param}` are mutually exclusive");
                Err(ApiError::invalid(other, message))
            }
        }
    }
}

impl Wanted {
    /// Compiles the grammar for a model.
    pub(crate) async fn compile(self, model: &ModelLease) -> Result<Constraint, ApiError> {
        let Self { param, grammar, additional_properties, .. } = self;
        compile(model, grammar, additional_properties, param).await
    }
}

/// What an answer to a conversation must follow: the grammar after the reasoning, and the limit of
/// the reasoning itself.
pub(crate) async fn constraint(
    model: &ModelLease,
    wanted: Option<Wanted>,
    parser: &ChatParserOptions,
    conversation: &Rendered,
) -> Result<Option<Constraint>, ApiError> {
    let begins_message = wanted.as_ref().is_some_and(|wanted| wanted.begins_message);
    let grammar = match wanted {
        Some(wanted) => Some(wanted.compile(model).await?),
        None => None,
    };
    let budget = conversation.thinking_budget;
    let format = parser.reasoning.filter(|_| conversation.may_reason);
    let Some(format) = format.filter(|_| grammar.is_some() || budget.is_some()) else {
        return Ok(grammar);
    };
    let reasoning = format.limited(conversation.is_reasoning, budget);
    let reasoning = if begins_message { before_a_call(reasoning) } else { reasoning };
    let model = model.clone();
    let made =
        blocking(move || Ok(Constraint::after_reasoning(grammar, &reasoning, model.tokenizer())));
    made.await.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_spelling_is_read() {
        let check = |body: Value, want: Result<Option<(&str, Grammar)>, &str>| {
            let fields: GrammarFields = serde_json::from_value(body.clone()).expect("fields");
            let got = fields.read().map(|wanted| wanted.map(|w| (w.param, w.grammar)));
            let got = got.map_err(|error| error.body()["error"]["param"].clone());
            assert_eq!(got, want.map_err(Value::from), "{body}");
        };
        let object = json!({"type": "object"});
        let by_schema = || Grammar::JsonSchema(object.clone());
        check(json!({}), Ok(None));
        check(json!({"response_format": {"type": "text"}, "grammar": ""}), Ok(None));
        let body = json!({"response_format": {"type": "json_object"}});
        check(body, Ok(Some(("response_format", Grammar::JsonObject))));
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": object}});
        let path = "response_format.json_schema.schema";
        check(json!({"response_format": format}), Ok(Some((path, by_schema()))));
        let format = json!({"type": "json_schema", "json_schema": {"name": "n"}});
        check(json!({"response_format": format}), Err(path));
        let text = object.to_string();
        check(json!({"guided_json": text}), Ok(Some(("guided_json", by_schema()))));
        check(json!({"json_schema": object}), Ok(Some(("json_schema", by_schema()))));
        let body = json!({"structured_outputs": {"choice": ["a", "b"]}});
        let choice = Grammar::Choice(vec!["a".to_owned(), "b".to_owned()]);
        check(body, Ok(Some(("structured_outputs.choice", choice))));
        let gbnf = r#"root ::= "a""#;
        let wanted = Grammar::Gbnf(gbnf.to_owned());
        check(json!({"grammar": gbnf}), Ok(Some(("grammar", wanted))));
        for (disabled, want) in
            [(true, AdditionalProperties::Closed), (false, AdditionalProperties::Allowed)]
        {
            let outputs = json!({"json": object, "disable_additional_properties": disabled});
            let fields = json!({"structured_outputs": outputs});
            let fields: GrammarFields = serde_json::from_value(fields).expect("fields");
            let wanted = fields.read().expect("a grammar").expect("a grammar");
            assert_eq!(wanted.additional_properties, Some(want));
        }
        let lark = r#"start: "a""#;
        let wanted = Grammar::Lark(lark.to_owned());
        check(json!({"guided_grammar": lark}), Ok(Some(("guided_grammar", wanted))));
        check(json!({"guided_regex": "a+", "guided_json": {}}), Err("guided_regex"));
    }
}
