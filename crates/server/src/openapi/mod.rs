//! `GET /openapi.json`: what the server takes and answers, as an OpenAPI 3.1 document.
//!
//! The document is written as data in the files beside this one: `frame.json` has what all
//! operations share, each other file the paths and schemas of one API. What follows from the kind
//! of an operation (its id in headers, the errors of keys and of bodies) is added here. The tests
//! below and those over HTTP hold it to the routes, to what requests are read by, and to the
//! answers.

use crate::api::{dialects, llama, ollama};
use crate::error::ApiError;
use crate::hosts::PROBES;
use axum::http::header;
use axum::response::IntoResponse;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// The document without its paths.
const FRAME: &str = include_str!("frame.json");

/// The paths and what they refer to.
const PARTS: [&str; 14] = [
    include_str!("chat.json"),
    include_str!("completions.json"),
    include_str!("conversation.json"),
    include_str!("embeddings.json"),
    include_str!("llama.json"),
    include_str!("mcp.json"),
    include_str!("messages.json"),
    include_str!("models.json"),
    include_str!("ollama.json"),
    include_str!("responses.json"),
    include_str!("sampling.json"),
    include_str!("scores.json"),
    include_str!("server.json"),
    include_str!("tokens.json"),
];

/// Errors of an operation that takes a body.
const BODY_ERRORS: [u16; 5] = [400, 408, 413, 415, 503];

/// What one file adds to the document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    #[serde(default)]
    paths: Map<String, Value>,
    #[serde(default)]
    schemas: Map<String, Value>,
    #[serde(default)]
    responses: Map<String, Value>,
}

/// Answers with the document.
pub(crate) async fn get() -> Result<impl IntoResponse, ApiError> {
    static DOCUMENT: LazyLock<Result<String, serde_json::Error>> =
        LazyLock::new(|| document().map(|document| document.to_string()));
    match &*DOCUMENT {
        Ok(text) => Ok(([(header::CONTENT_TYPE, "application/json")], text.as_str())),
        Err(error) => Err(ApiError::internal(error.to_string())),
    }
}

/// The document, put together from its files.
fn document() -> Result<Value, serde_json::Error> {
    let mut document: Value = serde_json::from_str(FRAME)?;
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    for part in PARTS {
        let Part { paths, schemas, responses } = serde_json::from_str(part)?;
        extend(&mut document["paths"], paths);
        extend(&mut document["components"]["schemas"], schemas);
        extend(&mut document["components"]["responses"], responses);
    }
    let responses = &mut document["components"]["responses"];
    let errors: Vec<(String, Value)> = members(responses)
        .filter(|(name, _)| name.starts_with("Error"))
        .flat_map(|(name, error)| {
            let own = error_response(error.clone(), "Error");
            let anthropic = error_response(error.clone(), "AnthropicError");
            let ollama = error_response(error.clone(), "OllamaError");
            let llama = error_response(error.clone(), "LlamaError");
            let named = |api: &str| format!("{api}{name}");
            [
                (name.clone(), own),
                (named("Anthropic"), anthropic),
                (named("Ollama"), ollama),
                (named("Llama"), llama),
            ]
        })
        .collect();
    extend(responses, errors);
    members(responses).for_each(|(_, response)| name_request(response));
    for (path, item) in members(&mut document["paths"]) {
        let prefix = match path {
            path if dialects::is_anthropic(path) => "Anthropic",
            path if ollama::is_ollama(path) => "Ollama",
            path if llama::is_llama(path) => "Llama",
            _ => "",
        };
        let is_probe = PROBES.contains(&path.as_str());
        members(item).for_each(|(_, operation)| complete(operation, prefix, is_probe));
    }
    Ok(document)
}

/// Adds to an operation what all of its kind have.
fn complete(operation: &mut Value, prefix: &str, is_probe: bool) {
    let parameters = operation["parameters"].take();
    let mut parameters = parameters.as_array().cloned().unwrap_or_default();
    parameters.push(json!({"$ref": "#/components/parameters/RequestId"}));
    let is_open = operation["security"].is_array();
    let mut errors = vec![500];
    errors.extend((!is_open).then_some(401));
    errors.extend((!is_probe).then_some(403));
    if operation["requestBody"].is_object() {
        errors.extend(BODY_ERRORS);
    }
    let responses = &mut operation["responses"];
    members(responses)
        .filter(|(_, response)| response.get("$ref").is_none())
        .for_each(|(_, response)| name_request(response));
    let reference =
        |status| json!({"$ref": format!("#/components/responses/{prefix}Error{status}")});
    extend(responses, errors.into_iter().map(|status| (status.to_string(), reference(status))));
    if let Value::Object(responses) = responses {
        responses.sort_keys();
    }
    operation["parameters"] = json!(parameters);
}

/// A response whose body is an error.
fn error_response(mut response: Value, schema: &str) -> Value {
    let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
    response["content"] = json!({"application/json": {"schema": schema}});
    response
}

/// Adds the header with the request's id to a response.
fn name_request(response: &mut Value) {
    response["headers"]["x-request-id"] = json!({"$ref": "#/components/headers/RequestId"});
}

fn members(object: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    object.as_object_mut().into_iter().flatten()
}

fn extend(object: &mut Value, members: impl IntoIterator<Item = (String, Value)>) {
    if let Value::Object(object) = object {
        object.extend(members);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::llama::{completion, embedding, infill, models as loads, tokens};
    use crate::api::openai::{
        chat, completions, conversation, embeddings, legacy, refused, sampling, structured,
    };
    use crate::api::scores::{rerank, score};
    use crate::api::{anthropic, responses};
    use crate::app;
    use crate::chat::tools::ToolRequest;
    use crate::fields::asked;
    use serde::de::Visitor;
    use serde::{Deserializer, forward_to_deserialize_any};
    use std::collections::BTreeSet;

    fn loaded() -> Value {
        document().expect("the files are JSON")
    }

    /// Calls `f` with every object of the document and its place.
    fn walk(value: &Value, place: &str, f: &mut impl FnMut(&str, &Map<String, Value>)) {
        match value {
            Value::Object(map) => {
                f(place, map);
                for (key, value) in map {
                    walk(value, &format!("{place}/{key}"), f);
                }
            }
            Value::Array(list) => {
                for (idx, value) in list.iter().enumerate() {
                    walk(value, &format!("{place}/{idx}"), f);
                }
            }
            _ => {}
        }
    }

    fn keys(value: &Value) -> BTreeSet<String> {
        value.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
    }

    /// The schema at the end of its references.
    fn target<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            None => schema,
            Some(reference) => {
                let found = reference.strip_prefix('#').and_then(|place| document.pointer(place));
                target(document, found.unwrap_or_else(|| panic!("{reference} is nowhere")))
            }
        }
    }

    /// The paths of all properties that a schema describes, as [`asked`] writes them.
    fn described(document: &Value, schema: &Value, path: &str, out: &mut BTreeSet<String>) {
        let schema = target(document, schema);
        for list in ["allOf", "anyOf", "oneOf"] {
            for schema in schema[list].as_array().into_iter().flatten() {
                described(document, schema, path, out);
            }
        }
        if schema["items"].is_object() {
            described(document, &schema["items"], &format!("{path}[]"), out);
        }
        for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            described(document, schema, &path, out);
            out.insert(path);
        }
    }

    fn properties(document: &Value, schema: &str) -> BTreeSet<String> {
        keys(&document["components"]["schemas"][schema]["properties"])
    }

    #[test]
    fn the_routes_are_those_of_the_server() {
        let document = loaded();
        let routed = |routes: app::Routes| -> BTreeSet<String> {
            routes.into_iter().map(|(path, _)| path.replace("{*", "{")).collect()
        };
        let described = |is_open: bool| -> BTreeSet<String> {
            let paths = document["paths"].as_object().expect("paths");
            let item_is_open = |item: &Value| {
                let open = |operation: &Value| operation["security"] == json!([]);
                item.as_object().expect("operations").values().all(open)
            };
            let paths = paths.iter().filter(|(_, item)| item_is_open(item) == is_open);
            paths.map(|(path, _)| path.clone()).collect()
        };
        assert_eq!(described(true), routed(app::open()));
        let mut guarded = routed(app::guarded());
        guarded.extend(routed(app::models()));
        guarded.extend(routed(app::administered()));
        assert_eq!(described(false), guarded);
    }

    #[test]
    fn names_are_defined_once_and_used() {
        let document = loaded();
        let (mut n_paths, mut n_schemas) = (0, 2); // two schemas are in the frame
        for part in PARTS {
            let part: Part = serde_json::from_str(part).expect("a part");
            (n_paths, n_schemas) = (n_paths + part.paths.len(), n_schemas + part.schemas.len());
        }
        assert_eq!(keys(&document["paths"]).len(), n_paths);
        assert_eq!(keys(&document["components"]["schemas"]).len(), n_schemas);

        let mut used = BTreeSet::new();
        walk(&document, "", &mut |place, map| {
            let Some(reference) = map.get("$ref").and_then(Value::as_str) else { return };
            let found = reference.strip_prefix('#').and_then(|place| document.pointer(place));
            assert!(found.is_some(), "{place}: {reference} is nowhere");
            used.insert(reference.to_owned());
        });
        for kind in ["schemas", "parameters", "headers", "responses"] {
            for name in keys(&document["components"][kind]) {
                let reference = format!("#/components/{kind}/{name}");
                assert!(used.contains(&reference), "{reference} is not used");
            }
        }
        let mut ids = BTreeSet::new();
        walk(&document, "", &mut |place, map| {
            if let Some(id) = map.get("operationId") {
                assert!(ids.insert(id.to_string()), "{place}: {id} is there twice");
            }
        });
    }

    /// What of OpenAPI 3.1 the document uses; more is a mistake until it is added here.
    fn shape() -> Value {
        let closed = |required: Value, properties: Value| {
            json!({
                "type": "object", "required": required, "properties": properties,
                "additionalProperties": false,
            })
        };
        let text = json!({"type": "string", "minLength": 1});
        let map = |of: &str| json!({"type": "object", "additionalProperties": {"$ref": format!("#/$defs/{of}")}});
        let reference = closed(json!(["$ref"]), json!({"$ref": text}));
        let or_reference =
            |shape: Value| json!({"if": {"required": ["$ref"]}, "then": reference, "else": shape});
        let list = |of: &str| json!({"type": "array", "items": {"$ref": format!("#/$defs/{of}")}});
        let schema = json!({"$ref": "https://json-schema.org/draft/2020-12/schema"});
        let media = closed(json!(["schema"]), json!({"schema": schema}));
        let content = json!({"type": "object", "additionalProperties": media, "minProperties": 1});
        json!({
            "type": "object",
            "required": ["openapi", "info", "paths", "components"],
            "properties": {
                "openapi": {"const": "3.1.0"},
                "info": closed(json!(["title", "version"]), json!({
                    "title": text, "version": text, "summary": text, "description": text,
                    "license": closed(json!(["name"]), json!({"name": text, "identifier": text})),
                })),
                "servers": {"type": "array", "items": closed(json!(["url"]), json!({"url": text}))},
                "security": list("security"),
                "tags": {
                    "type": "array",
                    "items": closed(json!(["name"]), json!({"name": text, "description": text})),
                },
                "paths": {
                    "type": "object",
                    "propertyNames": {"pattern": "^/"},
                    "additionalProperties": closed(json!([]), json!({
                        "get": {"$ref": "#/$defs/operation"}, "post": {"$ref": "#/$defs/operation"},
                        "delete": {"$ref": "#/$defs/operation"},
                    })),
                },
                "components": closed(json!([]), json!({
                    "securitySchemes": {
                        "type": "object",
                        "additionalProperties": {"oneOf": [
                            closed(json!(["type", "scheme"]), json!({
                                "type": {"const": "http"}, "scheme": text, "description": text,
                            })),
                            closed(json!(["type", "in", "name"]), json!({
                                "type": {"const": "apiKey"}, "in": {"const": "header"}, "name": text,
                                "description": text,
                            })),
                        ]},
                    },
                    "parameters": map("parameter"),
                    "headers": map("header"),
                    "responses": map("response"),
                    "schemas": {
                        "type": "object",
                        "propertyNames": {"pattern": "^[A-Za-z0-9]+$"},
                        "additionalProperties": schema,
                    },
                })),
            },
            "additionalProperties": false,
            "$defs": {
                "security": {"type": "object", "additionalProperties": {"type": "array", "maxItems": 0}},
                "operation": closed(json!(["operationId", "summary", "tags", "responses"]), json!({
                    "operationId": text,
                    "summary": text,
                    "tags": {"type": "array", "items": text, "minItems": 1},
                    "security": list("security"),
                    "parameters": list("parameter"),
                    "requestBody": closed(
                        json!(["content", "required"]),
                        json!({"content": content, "required": {"const": true}}),
                    ),
                    "responses": {
                        "type": "object",
                        "required": ["500"],
                        "propertyNames": {"pattern": "^[2-5][0-9][0-9]$"},
                        "additionalProperties": {"$ref": "#/$defs/response"},
                    },
                })),
                "parameter": or_reference(closed(json!(["name", "in", "schema"]), json!({
                    "name": text, "in": {"enum": ["path", "query", "header"]}, "description": text,
                    "required": {"type": "boolean"}, "schema": schema,
                }))),
                "header": or_reference(closed(
                    json!(["description", "schema"]),
                    json!({"description": text, "schema": schema}),
                )),
                "response": or_reference(closed(json!(["description", "content", "headers"]), json!({
                    "description": text, "content": content, "headers": map("header"),
                }))),
            },
        })
    }

    /// What keeps `value` from being as a schema of draft 2020-12 says.
    fn validate(schema: Value, value: &Value) -> Result<(), String> {
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler.add_resource("schema.json", schema).expect("a name");
        let idx = compiler.compile("schema.json", &mut schemas).expect("a schema");
        schemas.validate(value, idx).map_err(|error| error.to_string())
    }

    #[test]
    fn it_has_the_shape_of_openapi() {
        let document = loaded();
        assert_eq!(validate(shape(), &document), Ok(()));
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let tags = document["tags"].as_array().expect("tags");
        for (path, item) in document["paths"].as_object().expect("paths") {
            for (method, operation) in item.as_object().expect("operations") {
                let tag = &operation["tags"][0];
                assert!(tags.iter().any(|known| known["name"] == *tag), "{method} {path}: {tag}");
                let mut names = operation["parameters"].as_array().expect("parameters").iter();
                let named = names.any(|p| p["in"] == "path");
                assert_eq!(named, path.contains('{'), "{method} {path}: parameters");
            }
        }
    }

    #[test]
    fn examples_and_defaults_are_valid() {
        let document = loaded();
        walk(&document, "", &mut |place, map| {
            let default = map.get("default").into_iter();
            let examples = map.get("examples").and_then(Value::as_array).into_iter().flatten();
            for example in default.chain(examples) {
                let mut schema = Value::Object(map.clone());
                schema["components"] = document["components"].clone();
                assert_eq!(validate(schema, example), Ok(()), "{place}: {example}");
            }
        });
    }

    /// A deserializer that only hears which fields a type asks for.
    struct Listener<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Listener<'_> {
        type Error = serde::de::value::Error;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("there is nothing to read"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
            unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    /// The fields that a type is read from, with their other names.
    fn fields<T: for<'de> Deserialize<'de>>() -> BTreeSet<String> {
        let mut fields = &[][..];
        assert!(T::deserialize(Listener(&mut fields)).is_err(), "there was nothing to read");
        fields.iter().map(|&field| field.to_owned()).collect()
    }

    #[test]
    fn the_fields_of_requests_are_those_that_are_read() {
        let document = loaded();
        let check = |schema: &str, read: BTreeSet<String>| {
            assert_eq!(properties(&document, schema), read, "{schema}");
        };
        check("ChatFields", fields::<chat::Fields>());
        check("CommonFields", fields::<sampling::CommonFields>());
        check("CompletionFields", fields::<completions::Fields>());
        check("ConversationFields", fields::<conversation::ConversationFields>());
        check("DetokenizeRequest", fields::<tokens::DetokenizeFields>());
        check("EmbeddingRequest", fields::<embeddings::Fields>());
        check("InfillFields", fields::<infill::Fields>());
        check("LlamaEmbeddingFields", fields::<embedding::Fields>());
        check("LlamaFields", fields::<completion::Fields>());
        check("LlamaPromptField", fields::<completion::PromptField>());
        check("LoadRequest", fields::<loads::Fields>());
        check("RerankRequest", fields::<rerank::Fields>());
        check("ScoreRequest", fields::<score::Fields>());
        check("GrammarFields", fields::<structured::GrammarFields>());
        check("StreamOptions", fields::<sampling::StreamOptions>());
        check("StructuredOutputs", fields::<structured::StructuredOutputs>());
        check("TokenizeFields", fields::<tokens::TokenizeFields>());
        let format = &document["components"]["schemas"]["ResponseFormat"]["oneOf"][2];
        let format = keys(&format["properties"]["json_schema"]["properties"]);
        assert_eq!(format, fields::<structured::JsonSchema>());

        // A request has the fields of all that it is read as, and restricts some of them.
        let parts = |schema: &str| {
            let mut found = BTreeSet::new();
            described(&document, &document["components"]["schemas"][schema], "", &mut found);
            found.into_iter().filter(|path| !path.contains(['.', '['])).collect::<BTreeSet<_>>()
        };
        let union = |sets: &[BTreeSet<String>]| -> BTreeSet<String> {
            sets.iter().flatten().cloned().collect()
        };
        let names = |tables: &[&[refused::Row]]| -> BTreeSet<String> {
            tables.iter().copied().flatten().map(|(name, _)| (*name).to_owned()).collect()
        };
        let tools = properties(&document, "ToolFields");
        let conversation = fields::<conversation::ConversationFields>();
        let common =
            union(&[fields::<sampling::CommonFields>(), fields::<structured::GrammarFields>()]);
        let chat = [
            common.clone(),
            fields::<chat::Fields>(),
            conversation.clone(),
            tools.clone(),
            properties(&document, "LegacyToolFields"),
            names(&[refused::COMMON, refused::OPENAI, refused::CHAT]),
        ];
        assert_eq!(parts("ChatRequest"), union(&chat));
        let llama = |own: BTreeSet<String>| {
            let refused = names(&[refused::COMMON, refused::LLAMA]);
            union(&[common.clone(), fields::<completion::Fields>(), own, refused])
        };
        assert_eq!(parts("LlamaCompletionRequest"), llama(fields::<completion::PromptField>()));
        assert_eq!(parts("InfillRequest"), llama(fields::<infill::Fields>()));
        let completion = [
            common,
            fields::<completions::Fields>(),
            names(&[refused::COMMON, refused::OPENAI, refused::COMPLETIONS]),
        ];
        assert_eq!(parts("CompletionRequest"), union(&completion));
        let template = [fields::<tokens::ModelField>(), conversation.clone(), tools.clone()];
        assert_eq!(parts("TemplateRequest"), union(&template));
        let tokenize = [fields::<tokens::TokenizeFields>(), conversation, tools];
        assert_eq!(parts("TokenizeRequest"), union(&tokenize));
    }

    #[test]
    fn requests_that_are_read_by_hand_are_described_to_the_last_field() {
        let document = loaded();
        let schemas = &document["components"]["schemas"];
        let check = |schema: &str, examples: &[Value], read: &dyn Fn(&Map<String, Value>)| {
            let mut found = BTreeSet::new();
            described(&document, &schemas[schema], "", &mut found);
            let asked = asked::during(|| {
                examples.iter().for_each(|example| read(example.as_object().expect("an object")));
            });
            assert_eq!(found, asked, "{schema}");
        };
        let examples = |schema: &str| schemas[schema]["examples"].as_array().expect("examples");
        check("MessagesRequest", examples("MessagesFields"), &|body| {
            anthropic::read_request(body).expect("an example");
        });
        check("ResponsesRequest", examples("ResponsesFields"), &|body| {
            responses::read_request(body, &[]).expect("an example");
        });
        check("OllamaChatRequest", examples("OllamaChatRequest"), &|body| {
            ollama::read_chat(body).expect("an example");
        });
        check("OllamaGenerateRequest", examples("OllamaGenerateRequest"), &|body| {
            ollama::read_generate(body).expect("an example");
        });
        check("OllamaEmbedRequest", examples("OllamaEmbedRequest"), &|body| {
            ollama::embed::read_embed(body).expect("an example");
        });
        check("OllamaEmbeddingsRequest", examples("OllamaEmbeddingsRequest"), &|body| {
            ollama::embed::read_embeddings(body).expect("an example");
        });
        check("OllamaModelRequest", examples("OllamaModelRequest"), &|body| {
            ollama::models::named(body).expect("an example");
        });
        let legacy =
            json!({"functions": [{"name": "f", "parameters": {}}], "function_call": {"name": "f"}});
        check("LegacyToolFields", &[legacy], &|body| {
            legacy::tools(body, &ToolRequest::default()).expect("functions");
        });
        let function = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let choice = json!({"type": "function", "function": {"name": "f"}});
        let named = json!({"type": "custom", "custom": {"name": "c"}});
        let some = json!({"mode": "auto", "tools": [choice, named]});
        let some = json!({"type": "allowed_tools", "allowed_tools": some});
        let custom = json!({"type": "custom", "custom": {"name": "c", "format": {
            "type": "grammar", "grammar": {"syntax": "regex", "definition": "a"}}}});
        let examples = [choice, named, some]
            .map(|one| json!({"tools": [function, custom], "tool_choice": one}));
        check("ToolFields", &examples, &|body| {
            ToolRequest::from_chat(body).expect("tools");
        });
    }

    #[test]
    fn what_cannot_be_honoured_is_described_as_it_is_checked() {
        let document = loaded();
        let tables = [
            ("RefusedCommon", refused::COMMON),
            ("RefusedChat", refused::CHAT),
            ("RefusedLlama", refused::LLAMA),
            ("RefusedLlamaEmbedding", refused::EMBEDDING),
            ("RefusedOpenAi", refused::OPENAI),
            ("RefusedCompletions", refused::COMPLETIONS),
        ];
        let probes = json!([
            null, false, true, 0, 0.0, 1, 1.0, 0.5, -1, "", "x", "none", "auto", "medium", "low", [],
            [0], ["text"], ["audio"], ["text", "audio"], {}, {"a": 1},
        ]);
        for (schema, table) in tables {
            let names: BTreeSet<String> =
                table.iter().map(|(name, _)| (*name).to_owned()).collect();
            assert_eq!(properties(&document, schema), names, "{schema}");
            for (name, asks_for_nothing) in table {
                let schema = &document["components"]["schemas"][schema]["properties"][name];
                for probe in probes.as_array().expect("probes") {
                    let accepted = probe.is_null() || asks_for_nothing(probe).is_ok();
                    let described = validate(schema.clone(), probe).is_ok();
                    assert_eq!(described, accepted, "{name}: {probe}");
                }
            }
        }
    }

    #[test]
    fn operations_have_the_errors_of_their_kind() {
        let document = loaded();
        let check = |path: &str, method: &str, want: &[&str]| {
            let operation = &document["paths"][path][method];
            let statuses: Vec<String> = keys(&operation["responses"]).into_iter().collect();
            assert_eq!(statuses, want, "{method} {path}");
        };
        let all =
            ["200", "400", "401", "403", "404", "408", "413", "415", "429", "500", "503", "504"];
        check("/v1/chat/completions", "post", &all);
        check("/v1/messages", "post", &all);
        check("/v1/models", "get", &["200", "401", "403", "500"]);
        check("/", "get", &["200", "403", "500"]);
        check("/health", "get", &["200", "500", "503"]);
        let response = |path: &str| &document["paths"][path]["post"]["responses"]["401"]["$ref"];
        assert_eq!(*response("/v1/messages"), "#/components/responses/AnthropicError401");
        assert_eq!(*response("/v1/responses"), "#/components/responses/Error401");
        let anthropic = &document["components"]["responses"]["AnthropicError401"];
        let schema = &anthropic["content"]["application/json"]["schema"]["$ref"];
        assert_eq!(*schema, "#/components/schemas/AnthropicError");
        assert_eq!(keys(&anthropic["headers"]).len(), 2);
    }
}
