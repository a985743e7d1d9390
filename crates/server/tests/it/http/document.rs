//! The server's OpenAPI document, to which every answer that a test gets is held.

use super::common::Answer;
use boon::{Compiler, SchemaIndex, Schemas, ValidationError};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The document and the validators of its schemas.
pub(crate) struct Document {
    pub(crate) root: Value,
    /// The components, without room for members of objects that they do not describe.
    closed: Value,
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

/// A compiled schema of draft 2020-12.
struct Validator {
    schemas: Schemas,
    idx: SchemaIndex,
}

impl Validator {
    fn new(schema: Value) -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("schema.json", schema).expect("a name");
        let idx = compiler.compile("schema.json", &mut schemas).expect("a schema");
        Self { schemas, idx }
    }

    /// Where and why `value` is not as the schema says.
    fn errors(&self, value: &Value) -> Vec<String> {
        fn leaves(error: &ValidationError<'_, '_>, out: &mut Vec<String>) {
            if error.causes.is_empty() {
                out.push(format!("{}: {}", error.instance_location, error.kind));
            }
            error.causes.iter().for_each(|cause| leaves(cause, out));
        }
        let mut out = Vec::new();
        if let Err(error) = self.schemas.validate(value, self.idx) {
            leaves(&error, &mut out);
        }
        out
    }
}

impl Document {
    pub(crate) fn new(root: Value) -> Self {
        let mut closed = root["components"].clone();
        close(&mut closed);
        Self { root, closed, validators: Mutex::default() }
    }

    /// The value at the end of its references.
    pub(crate) fn target<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            None => value,
            Some(reference) => {
                let found = reference.strip_prefix('#').and_then(|at| self.root.pointer(at));
                self.target(found.unwrap_or_else(|| panic!("{reference} is nowhere")))
            }
        }
    }

    /// The operation of a request, if it is described.
    fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let path = path.split('?').next().unwrap_or_default();
        let items = self.root["paths"].as_object().expect("paths");
        let item = items.get(path).or_else(|| {
            let parts = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
            // A name may have slashes, an id has none.
            let fits = |template: &str| match template.strip_suffix("{name}") {
                Some(before) => path.len() > before.len() && path.starts_with(before),
                None => {
                    let (template, path) = (parts(template), parts(path));
                    let mut pairs = template.iter().zip(&path);
                    template.len() == path.len()
                        && pairs.all(|(part, found)| part.starts_with('{') || part == found)
                }
            };
            items.iter().find(|(template, _)| fits(template)).map(|(_, item)| item)
        });
        item?.get(method.to_ascii_lowercase())
    }

    /// Fails unless `value` is as a schema says. An answer may have no members beside those that
    /// are described, a request may.
    pub(crate) fn validate(&self, schema: &Value, value: &Value, is_answer: bool, what: &str) {
        let errors = self.errors(schema, value, is_answer);
        assert!(errors.is_empty(), "{what}: {errors:#?} in {value}");
    }

    /// What keeps `value` from being as a schema says.
    pub(crate) fn errors(&self, schema: &Value, value: &Value, is_answer: bool) -> Vec<String> {
        let key = format!("{is_answer} {schema}");
        let mut validators = self.validators.lock().unwrap_or_else(|error| error.into_inner());
        let validator = validators.entry(key).or_insert_with(|| {
            let mut schema = schema.clone();
            if is_answer {
                close(&mut schema);
            }
            let components = if is_answer { &self.closed } else { &self.root["components"] };
            schema["components"] = components.clone();
            Arc::new(Validator::new(schema))
        });
        let validator = validator.clone();
        drop(validators);
        validator.errors(value)
    }

    /// Whether errors of a path have llama-server's shape.
    fn is_llama(&self, path: &str) -> bool {
        let item = self.root["paths"][path].as_object();
        item.is_some_and(|item| {
            item.values().any(|operation| operation["tags"][0] == "llama-server")
        })
    }

    /// Holds an answer to the document, and the request where it was answered as asked.
    pub(crate) fn check(&self, method: &str, path: &str, request: &str, answer: &Answer) {
        let what = format!("{method} {path} {request}: {}", answer.status);
        let Some(operation) = self.operation(method, path) else {
            if method == "OPTIONS" {
                return;
            }
            assert!(matches!(answer.status, 404 | 405), "{what} is not described");
            let shape = match path {
                path if path.starts_with("/v1/messages") => "AnthropicError",
                path if path.starts_with("/api/") => "OllamaError",
                path if self.is_llama(path) => "LlamaError",
                _ => "Error",
            };
            let schema = json!({"$ref": format!("#/components/schemas/{shape}")});
            return self.validate(&schema, &answer.json(), true, &what);
        };
        let response = &operation["responses"][answer.status.to_string()];
        assert!(response.is_object(), "{what} is not described: {}", answer.body);
        let response = self.target(response);
        for (name, _) in response["headers"].as_object().expect("headers") {
            assert!(answer.header(name).is_some(), "{what}: no header {name}");
        }
        let kind = answer.header("content-type").unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default();
        let media = &response["content"][kind];
        assert!(media.is_object(), "{what}: the content type {kind} is not described");
        match kind {
            "application/json" => self.validate(&media["schema"], &answer.json(), true, &what),
            "application/x-ndjson" => {
                for line in answer.body.lines() {
                    let line = serde_json::from_str(line).expect("a line of JSON");
                    self.validate(&media["schema"], &line, true, &what);
                }
            }
            "text/event-stream" => {
                for event in answer.body.split("\n\n").filter_map(event) {
                    self.validate(&media["schema"], &event, true, &what);
                    let Some(data) = event["data"].as_str().filter(|data| *data != "[DONE]") else {
                        continue;
                    };
                    let data = serde_json::from_str(data).expect("an event with JSON");
                    let schema = self.target(&media["schema"]);
                    let schema = content_schema(&schema["properties"]["data"]);
                    self.validate(schema, &data, true, &what);
                }
            }
            _ => {}
        }
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if answer.status == 200 && schema.is_object() {
            let request = serde_json::from_str(request).expect("JSON was answered");
            self.validate(schema, &request, false, &what);
        }
    }
}

/// The fields of an event; none of a comment.
fn event(text: &str) -> Option<Value> {
    let fields = text.lines().filter_map(|line| line.split_once(": "));
    let fields = fields.filter(|(name, _)| !name.is_empty());
    let event: Map<String, Value> =
        fields.map(|(name, value)| (name.to_owned(), json!(value))).collect();
    (!event.is_empty()).then_some(Value::Object(event))
}

/// The schema of the JSON in a text, or in one of the texts that there may be.
fn content_schema(schema: &Value) -> &Value {
    let mut either = schema["anyOf"].as_array().into_iter().flatten();
    let found = either.find_map(|schema| schema.get("contentSchema"));
    found.unwrap_or_else(|| &schema["contentSchema"])
}

/// Takes the room for members that are not described.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.values_mut().for_each(close);
            let is_whole = map.contains_key("properties") && !map.contains_key("allOf");
            if is_whole && map.get("type").is_some_and(|ty| ty.is_string() || ty.is_array()) {
                map.entry("additionalProperties").or_insert(json!(false));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}
