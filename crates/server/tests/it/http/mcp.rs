//! The tools that a server was given: `/mcp/tools` and `/mcp/call`.

use super::common::TestServer;
use realizar_runtime::engine::EngineOptions;
use realizar_server::tools::Function;
use realizar_server::{
    ServerConfig, ToolCallError, ToolCallFuture, ToolHost, ToolOutput, ToolSource,
};
use serde_json::{Map, Value, json};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::Notify;

/// Has a tool that adds, and one that its source does not answer for.
#[derive(Debug)]
pub(super) struct Adder;

impl ToolHost for Adder {
    fn sources(&self) -> Vec<ToolSource> {
        let mut add = Function::new("add", json!({"type": "object", "properties": {}}));
        add.description = Some("Adds".to_owned());
        let lost = Function::new("lost", json!({"type": "object"}));
        let source = |name: &str, tools, error| ToolSource { name: name.to_owned(), tools, error };
        vec![
            source("numbers", vec![add.to_chat(), lost.to_chat()], None),
            source("broken", Vec::new(), Some("it ended".to_owned())),
        ]
    }

    fn call(&self, name: &str, arguments: Map<String, Value>) -> ToolCallFuture<'_> {
        let name = name.to_owned();
        Box::pin(async move {
            let number = |key: &str| arguments.get(key).and_then(Value::as_i64);
            match (name.as_str(), number("a").zip(number("b"))) {
                ("add", Some((a, b))) => {
                    Ok(ToolOutput { content: (a + b).to_string(), is_error: false })
                }
                ("add", None) => Ok(ToolOutput { content: "two numbers".into(), is_error: true }),
                ("lost", _) => Err(ToolCallError::Failed("the connection is closed".to_owned())),
                _ => Err(ToolCallError::Unknown(name)),
            }
        })
    }
}

fn with(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
    let change = |config: &mut ServerConfig| {
        config.tool_host = Some(Arc::new(Adder));
        change(config);
    };
    TestServer::with(change, EngineOptions::default())
}

#[test]
fn tools_are_listed_and_called() {
    let server = with(|_| {});
    let listed: Value = serde_json::from_str(&server.get("/mcp/tools").body).expect("JSON");
    let function = json!({
        "name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {}},
    });
    assert_eq!(listed["servers"][0]["name"], "numbers");
    assert_eq!(listed["servers"][0]["tools"][0], json!({"type": "function", "function": function}));
    assert_eq!(listed["servers"][0]["error"], Value::Null);
    assert_eq!(listed["servers"][1], json!({"name": "broken", "tools": [], "error": "it ended"}));

    let call = |body: Value| {
        let answer = server.post("/mcp/call", &body);
        (answer.status, serde_json::from_str::<Value>(&answer.body).expect("JSON"))
    };
    let sum = call(json!({"name": "add", "arguments": {"a": 2, "b": 40}}));
    assert_eq!(sum, (200, json!({"content": "42", "is_error": false})));
    let failed = call(json!({"name": "add"}));
    assert_eq!(failed, (200, json!({"content": "two numbers", "is_error": true})));
    for (body, status, message) in [
        (json!({"name": "lost"}), 503, "the connection is closed"),
        (json!({"name": "none"}), 400, "unknown tool `none`"),
        (json!({"arguments": {}}), 400, "`name` is required"),
    ] {
        let (found, answer) = call(body);
        assert_eq!((found, answer["error"]["message"].as_str()), (status, Some(message)));
    }
}

#[test]
fn a_server_without_tools_has_none() {
    let server = TestServer::start();
    let listed: Value = serde_json::from_str(&server.get("/mcp/tools").body).expect("JSON");
    assert_eq!(listed, json!({"servers": []}));
    assert_eq!(server.post("/mcp/call", &json!({"name": "add"})).status, 400);
}

#[test]
fn tools_are_for_those_who_may_load_models() {
    let call = |server: &TestServer, key: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        let body = json!({"name": "add", "arguments": {"a": 1, "b": 1}}).to_string();
        server.request("POST", "/mcp/call", &headers, &body).status
    };
    let server = with(|config| {
        config.api_keys = vec!["user".to_owned()];
        config.admin_keys = vec!["admin".to_owned()];
    });
    assert_eq!([call(&server, "user"), call(&server, "admin")], [401, 200]);
    let server = with(|config| config.api_keys = vec!["user".to_owned()]);
    assert_eq!([call(&server, "other"), call(&server, "user")], [401, 200]);
    // Anyone could reach it.
    let server = with(|config| "0.0.0.0".clone_into(&mut config.host));
    assert_eq!(call(&server, ""), 403);
    assert_eq!(server.get("/mcp/tools").status, 403);
}

/// Has a tool that tells of its call and ends once it is let.
#[derive(Debug)]
struct Held {
    begun: mpsc::Sender<()>,
    end: Arc<Notify>,
}

impl ToolHost for Held {
    fn sources(&self) -> Vec<ToolSource> {
        Vec::new()
    }

    fn call(&self, _: &str, _: Map<String, Value>) -> ToolCallFuture<'_> {
        Box::pin(async {
            self.begun.send(()).expect("the test waits");
            self.end.notified().await;
            Ok(ToolOutput { content: "done".to_owned(), is_error: false })
        })
    }
}

#[test]
fn calls_have_the_time_of_requests_when_the_server_ends() {
    for (grace, ends, status, text) in
        [(60, true, "200", "done"), (0, false, "503", "the server is shutting down")]
    {
        let (begun, begins) = mpsc::channel();
        let end = Arc::new(Notify::new());
        let host = Held { begun, end: Arc::clone(&end) };
        let mut server = with(|config| {
            config.tool_host = Some(Arc::new(host));
            config.shutdown_grace = Duration::from_secs(grace);
        });
        let call = server.open("/mcp/call", &json!({"name": "held"}));
        begins.recv().expect("it begins");
        server.begin_to_stop();
        while !server.state.is_closing() {
            std::thread::yield_now();
        }
        if ends {
            end.notify_one();
        }
        server.wait();
        let answer = call.rest();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{grace}: {answer}");
        assert!(answer.contains(text), "{grace}: {answer}");
    }
}
