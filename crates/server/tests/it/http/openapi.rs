//! The OpenAPI document and the server: places, methods, parameters and their values are the same
//! in both. Answers are held to the document in every test.

use super::common::TestServer;
use super::mcp::Adder;
use realizar_runtime::engine::EngineOptions;
use serde_json::{Map, Value, json};
use std::sync::Arc;

#[test]
fn the_document_is_open_to_everyone() {
    let keys =
        |config: &mut realizar_server::ServerConfig| config.api_keys = vec!["key".to_owned()];
    let server = TestServer::with(keys, EngineOptions::default());
    let document = server.get("/openapi.json").json();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(server.get("/version").status, 401);
}

#[test]
fn paths_take_the_methods_that_are_described() {
    let server = TestServer::start();
    let document = server.document();
    for (path, item) in document.root["paths"].as_object().expect("paths") {
        let answer = server.request("PATCH", &path.replace("{name}", "tiny"), &[], "");
        let allowed = answer.header("allow").unwrap_or_else(|| panic!("{path}: {answer:?}"));
        let mut allowed: Vec<String> =
            allowed.split(',').map(str::to_ascii_lowercase).filter(|m| m != "head").collect();
        allowed.sort();
        let mut described: Vec<&String> = item.as_object().expect("operations").keys().collect();
        described.sort();
        assert_eq!(allowed.iter().collect::<Vec<_>>(), described, "{path}");
    }
}

/// A server that answers all of them.
fn server() -> TestServer {
    // Its model reasons, so that no field is refused for want of reasoning.
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}{# </think> #}";
    let tools =
        |config: &mut realizar_server::ServerConfig| config.tool_host = Some(Arc::new(Adder));
    let server = TestServer::with_template_and(template, tools);
    server.add_embedder();
    server
}

/// The operations with a body: path, schema, whether it streams. Loads and unloads, which change
/// what the others find, are tried in `registry`.
fn operations(server: &TestServer) -> Vec<(&str, &Value, bool)> {
    let paths = server.document().root["paths"].as_object().expect("paths");
    paths
        .iter()
        .filter(|(path, _)| !path.starts_with("/models/") && *path != "/api/pull")
        .filter(|(_, item)| item["post"]["requestBody"].is_object())
        .map(|(path, item)| {
            let schema = &item["post"]["requestBody"]["content"]["application/json"]["schema"];
            let content = &item["post"]["responses"]["200"]["content"];
            (path.as_str(), schema, content["text/event-stream"].is_object())
        })
        .collect()
}

/// The first list of examples of a schema or of those that it is made of.
fn examples<'a>(server: &'a TestServer, schema: &'a Value) -> &'a [Value] {
    let schema = server.document().target(schema);
    match schema["examples"].as_array() {
        Some(examples) => examples,
        None => schema["allOf"].as_array().map_or(&[], |list| examples(server, &list[0])),
    }
}

#[test]
fn examples_are_answered() {
    let server = server();
    for (path, schema, streams) in operations(&server) {
        let examples = examples(&server, schema);
        assert!(!examples.is_empty(), "{path} has no example");
        for example in examples {
            server.ok(path, example);
            if streams {
                let mut example = example.clone();
                example["stream"] = json!(true);
                let answer = server.post(path, &example);
                assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{path}");
            }
        }
    }
}

/// The properties of a schema and of those that it is made of, each with all that the document says of it.
fn properties(server: &TestServer, schema: &Value) -> Map<String, Value> {
    let schema = server.document().target(schema);
    let mut found = Map::new();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        found.extend(properties(server, part));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let known = found.entry(name.clone()).or_insert_with(|| json!({}));
        for (key, value) in property.as_object().expect("a schema") {
            known[key] = value.clone();
        }
    }
    found
}

/// Sends `example` with a member, and what that depends on.
fn send(
    server: &TestServer,
    path: &str,
    example: &Value,
    name: &str,
    value: &Value,
) -> (u16, Value) {
    let (status, body) = answer(server, path, example, name, value);
    (status, body["error"]["param"].clone())
}

/// As [`send`], with all that is answered.
fn answer(
    server: &TestServer,
    path: &str,
    example: &Value,
    name: &str,
    value: &Value,
) -> (u16, Value) {
    let mut body = example.clone();
    match name {
        "top_logprobs" if path != "/v1/responses" => body["logprobs"] = json!(true),
        "content" => drop(body.as_object_mut().expect("an object").remove("prompt")),
        _ => {}
    }
    body[name] = value.clone();
    let answer = server.post(path, &body);
    (answer.status, answer.json())
}

/// What an error says, in the shape of its API.
fn message(body: &Value) -> &str {
    let error = &body["error"];
    error["message"].as_str().or(error.as_str()).expect("a message")
}

/// Whether a message names a type of this server's source in place of one of JSON.
fn names_rust(message: &str) -> bool {
    let word = |c: char| !c.is_alphanumeric();
    let types =
        ["f32", "f64", "i32", "i64", "u8", "u32", "u64", "usize", "struct", "enum", "variant"];
    message.split(word).any(|word| types.contains(&word))
}

/// Whether an error names a parameter. Those of Anthropic's API name none apart.
fn names(found: &Value, name: &str) -> bool {
    let Some(found) = found.as_str() else { return found.is_null() };
    found.starts_with(name) || (name, found) == ("repeat_penalty", "repetition_penalty")
}

#[test]
fn values_that_the_document_refuses_are_refused() {
    let server = server();
    let wrong = [
        json!(null),
        json!(true),
        json!(1.5),
        json!("wrong"),
        json!([[[0]]]),
        json!({"wrong": {}}),
    ];
    for (path, schema, _) in operations(&server) {
        let example = &examples(&server, schema)[0];
        for (name, property) in properties(&server, schema) {
            for value in &wrong {
                if server.document().errors(&property, value, false).is_empty() {
                    continue;
                }
                let (status, found) = answer(&server, path, example, &name, value);
                let what = format!("{path}: {name}: {value}: {status} {found}");
                assert_eq!(status, 400, "{what}");
                assert!(names(&found["error"]["param"], &name), "{what}");
                let message = message(&found);
                assert!(!names_rust(message), "{what}");
            }
        }
    }
}

#[test]
fn bodies_that_are_no_objects_are_refused_in_words_of_json() {
    let server = server();
    let json = [("content-type", "application/json")];
    for (path, ..) in operations(&server) {
        for body in ["[]", "7", "null", "\"a\""] {
            let answer = server.request("POST", path, &json, body);
            assert_eq!(answer.status, 400, "{path} {body}");
            let body = answer.json();
            let message = message(&body);
            assert!(!names_rust(message), "{path} {body}: {message}");
        }
    }
}

#[test]
fn ranges_are_those_of_the_document() {
    let server = server();
    let mut n_ranges = 0;
    for (path, schema, _) in operations(&server) {
        let example = &examples(&server, schema)[0];
        for (name, property) in properties(&server, schema) {
            let is_whole = property["type"].to_string().contains("integer");
            let step = if is_whole { 1.0 } else { 0.25 };
            // A bound, the value at it if that is allowed, and the next one outside.
            let bounds = [
                ("minimum", true, -step),
                ("maximum", true, step),
                ("exclusiveMinimum", false, 0.0),
                ("exclusiveMaximum", false, 0.0),
            ];
            for (keyword, is_allowed, outside) in bounds {
                // Bounds of 64-bit numbers are not exact here.
                let bound = property[keyword].as_f64().filter(|bound| bound.abs() < 1e12);
                let Some(bound) = bound else { continue };
                n_ranges += 1;
                let number = |x: f64| if is_whole { json!(x as i64) } else { json!(x) };
                let what = format!("{path}: {name}: {keyword} {bound}");
                if is_allowed {
                    let (status, found) = send(&server, path, example, &name, &number(bound));
                    assert!(status == 200 || !names(&found, &name), "{what}: {status} {found}");
                }
                let beyond = number(bound + outside);
                let (status, found) = send(&server, path, example, &name, &beyond);
                assert_eq!(status, 400, "{what}: {beyond}");
                assert!(names(&found, &name), "{what}: {found}");
            }
        }
    }
    assert!(n_ranges > 100, "{n_ranges}");
}
