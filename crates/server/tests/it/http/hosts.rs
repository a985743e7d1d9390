//! Names by which the server is called, and the pages that call it.

use super::common::{Answer, TestServer};
use realizar_runtime::engine::EngineOptions;
use realizar_server::ServerConfig;
use serde_json::json;
use std::collections::BTreeSet;

fn server(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
    TestServer::with(change, EngineOptions::default())
}

const ASK: &str = r#"{"prompt": "a", "max_tokens": 1}"#;
const UNLOAD: &str = r#"{"model": "tiny"}"#;
const MESSAGE: &str =
    r#"{"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}"#;

#[test]
fn a_name_that_was_bound_again_drives_nothing() {
    let server = server(|_| {});
    let json = ("content-type", "application/json");
    for (method, path, body) in [
        ("POST", "/v1/completions", ASK),
        ("POST", "/models/unload", UNLOAD),
        ("POST", "/v1/messages", MESSAGE),
        ("GET", "/metrics", ""),
        ("GET", "/v1/models", ""),
        ("GET", "/", ""),
        ("GET", "/openapi.json", ""),
    ] {
        for headers in [
            &[json, ("host", "evil"), ("origin", "http://evil")][..],
            &[json, ("host", "evil:8080")],
            &[json, ("origin", "http://evil")],
            &[json, ("origin", "null")],
        ] {
            let answer = server.request(method, path, headers, body);
            assert_eq!(answer.status, 403, "{method} {path} {headers:?}: {}", answer.body);
        }
    }
    let answer = server.request("GET", "/v1/models", &[("host", "evil")], "").json();
    assert_eq!(answer["error"]["code"], "forbidden");
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.contains("`evil`") && message.contains("--allowed-hosts"), "{message}");
    let answer = server.request("POST", "/v1/messages", &[json, ("host", "evil")], MESSAGE).json();
    assert_eq!(answer["error"]["type"], "permission_error");
    // The model is still there for requests that call this machine by its name.
    let own = format!("http://localhost:{}", server.address.port());
    let host = own.strip_prefix("http://").expect("a host");
    let headers = [json, ("host", host), ("origin", &own)];
    assert_eq!(server.request("POST", "/v1/completions", &headers, ASK).status, 200);
}

#[test]
fn probes_are_answered_whatever_they_call_the_server() {
    let server = server(|config| config.host = "0.0.0.0".to_owned());
    for path in ["/health", "/ready", "/ping", "/live"] {
        for host in ["pod.cluster", "10.1.2.3:8000", "[fd00::1]:8000"] {
            assert_eq!(server.request("GET", path, &[("host", host)], "").status, 200, "{path}");
        }
    }
    // An address is not a name that could be bound again.
    let by_address = [("host", "10.1.2.3:8000")];
    assert_eq!(server.request("GET", "/metrics", &by_address, "").status, 200);
    assert_eq!(server.request("GET", "/metrics", &[("host", "pod.cluster")], "").status, 403);
}

#[test]
fn allowed_hosts_and_origins_are_answered() {
    let server = server(|config| {
        config.allowed_hosts = vec!["llm.example".to_owned(), ".svc".to_owned()];
        config.allowed_origins = vec!["https://chat.example".to_owned()];
    });
    for (host, origin, status) in [
        ("llm.example", "https://llm.example", 200),
        ("realizar.svc:8000", "https://chat.example", 200),
        ("127.0.0.1", "https://chat.example", 200),
        ("127.0.0.1", "https://evil.example", 403),
        ("evil.example", "https://chat.example", 403),
    ] {
        let headers = [("host", host), ("origin", origin)];
        assert_eq!(server.request("GET", "/v1/models", &headers, "").status, status, "{host}");
    }
}

#[test]
fn with_a_key_any_name_will_do_unless_names_are_listed() {
    let key = ("authorization", "Bearer k");
    let open = server(|config| config.api_keys = vec!["k".to_owned()]);
    let headers = [key, ("host", "evil"), ("origin", "http://evil")];
    assert_eq!(open.request("GET", "/v1/models", &headers, "").status, 200);
    assert_eq!(open.request("GET", "/v1/models", &headers[1..], "").status, 401);
    let listed = server(|config| {
        config.api_keys = vec!["k".to_owned()];
        config.allowed_hosts = vec!["llm.example".to_owned()];
    });
    assert_eq!(listed.request("GET", "/v1/models", &headers, "").status, 403);
    let headers = [key, ("host", "llm.example")];
    assert_eq!(listed.request("GET", "/v1/models", &headers, "").status, 200);
}

/// Routes that use models or tell of them.
const MODELS: &[&str] = &[
    "/api/chat",
    "/api/embed",
    "/api/embeddings",
    "/api/generate",
    "/api/ps",
    "/api/show",
    "/api/tags",
    "/api/version",
    "/apply-template",
    "/completion",
    "/completions",
    "/detokenize",
    "/embedding",
    "/embeddings",
    "/get_model_info",
    "/infill",
    "/models",
    "/props",
    "/rerank",
    "/score",
    "/tokenize",
    "/v1/chat/completions",
    "/v1/chat/completions/render",
    "/v1/chat/completions/{id}",
    "/v1/chat/completions/{id}/messages",
    "/v1/completions",
    "/v1/completions/render",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/v1/models/{name}",
    "/v1/rerank",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/responses/{id}",
    "/v1/responses/{id}/input_items",
    "/v1/score",
    "/version",
];

/// Routes that start programs, change which models are loaded, or tell of the server.
const OWN: &[&str] = &[
    "/",
    "/api/pull",
    "/get_load",
    "/get_server_info",
    "/lora-adapters",
    "/mcp/call",
    "/mcp/tools",
    "/metrics",
    "/metrics/history",
    "/models/load",
    "/models/unload",
    "/openapi.json",
    "/page/{file}",
    "/slots",
];

const PROBES: &[&str] = &["/health", "/live", "/ping", "/ready"];

/// All routes with their methods, as the server describes them; its own tests compare that with
/// what it routes.
fn routes(server: &TestServer) -> Vec<(String, String)> {
    let document = server.get("/openapi.json").json();
    let paths = document["paths"].as_object().expect("paths");
    let methods = |path: &String| {
        let methods = document["paths"][path].as_object().expect("methods");
        methods.keys().map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
    };
    paths.keys().flat_map(methods).collect()
}

/// A request that does nothing if it is let in: its body lacks what is required.
fn send(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let path = path.replace("{name}", "tiny").replace("{file}", "none.js");
    let mut headers = headers.to_vec();
    headers.push(("content-type", "application/json"));
    server.request(method, &path, &headers, if method == "POST" { "[]" } else { "" })
}

/// The origins that browsers and programs with pages are told they may read answers for.
fn admitted(server: &TestServer, path: &str, origin: &str) -> bool {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type"),
    ];
    let path = path.replace("{name}", "tiny").replace("{file}", "none.js");
    let answer = server.request("OPTIONS", &path, &headers, "");
    let allowed = answer.header("access-control-allow-origin");
    assert!(allowed.is_none_or(|allowed| allowed == origin), "{path} {origin}: {allowed:?}");
    if allowed.is_some() {
        assert_eq!(answer.header("access-control-allow-headers"), Some("content-type"));
    }
    allowed.is_some()
}

#[test]
fn every_route_is_for_those_that_it_is_for() {
    let server = server(|config| config.allowed_origins = vec!["https://chat.example".to_owned()]);
    let routes = routes(&server);
    let found: BTreeSet<&str> = routes.iter().map(|(_, path)| path.as_str()).collect();
    let listed: BTreeSet<&str> = [MODELS, OWN, PROBES].concat().into_iter().collect();
    assert_eq!(found, listed, "each route is in one of the lists");
    let own_host = format!("localhost:{}", server.address.port());
    let own_page = format!("http://{own_host}");
    let machine = hostname::get().expect("a name").into_string().expect("a text");
    // Hosts and origins, and whether they may use models, and everything else.
    let mut callers = vec![
        (own_host.as_str(), None, true, true),
        (&own_host, Some(own_page.as_str()), true, true),
        (&own_host, Some("https://chat.example"), true, true),
        (&own_host, Some("http://localhost:1"), true, false),
        (&own_host, Some("https://127.0.0.1:3000"), true, false),
        (&own_host, Some("http://[::1]:5173"), true, false),
        (&own_host, Some("app://obsidian.md"), true, false),
        (&own_host, Some("file://"), true, false),
        (&own_host, Some("tauri://localhost"), true, false),
        (&own_host, Some("vscode-webview://1a2b"), true, false),
        (&own_host, Some("vscode-file://vscode-app"), true, false),
        (&own_host, Some("null"), false, false),
        (&own_host, Some("http://evil"), false, false),
        (&own_host, Some("http://desk.local"), false, false),
        ("host.docker.internal:8080", None, true, false),
        ("desk.local", None, true, false),
        ("desk.local", Some("http://desk.local"), true, false),
        ("desk.local", Some("app://obsidian.md"), true, false),
        ("desk.local", Some("http://evil"), false, false),
        ("evil", None, false, false),
        ("evil", Some("http://evil"), false, false),
        ("evil", Some("app://obsidian.md"), false, false),
        ("desk.local.evil", None, false, false),
    ];
    if machine != "localhost" {
        callers.push((&machine, None, true, false));
    }
    for (method, path) in &routes {
        for (host, origin, uses_models, is_own) in &callers {
            let mut headers = vec![("host", *host)];
            headers.extend(origin.map(|origin| ("origin", origin)));
            let may = match path.as_str() {
                path if PROBES.contains(&path) => true,
                path if MODELS.contains(&path) => *uses_models,
                _ => *is_own,
            };
            let answer = send(&server, method, path, &headers);
            let what = format!("{method} {path} {headers:?}: {}", answer.body);
            assert_eq!(answer.status != 403, may, "{what}");
        }
        for (origin, uses_models, is_own) in [
            ("https://chat.example", true, true),
            ("app://obsidian.md", true, false),
            ("file://", true, false),
            ("http://localhost:1", true, false),
            ("null", false, false),
            ("http://evil", false, false),
            ("http://desk.local", false, false),
        ] {
            let may = if MODELS.contains(&path.as_str()) { uses_models } else { is_own };
            assert_eq!(admitted(&server, path, origin), may, "{path} {origin}");
        }
    }
}

#[test]
fn models_are_not_unloaded_for_pages_that_may_use_them() {
    let server = server(|_| {});
    let unload = json!({"model": "tiny", "keep_alive": 0}).to_string();
    let json = ("content-type", "application/json");
    for path in ["/api/chat", "/api/generate"] {
        for headers in [
            [json, ("host", "localhost"), ("origin", "app://obsidian.md")],
            [json, ("host", "localhost"), ("origin", "http://localhost:1")],
            [json, ("host", "desk.local"), ("origin", "http://desk.local")],
        ] {
            let answer = server.request("POST", path, &headers, &unload);
            assert_eq!(answer.status, 403, "{path} {headers:?}: {}", answer.body);
        }
        // A model that came loaded cannot be loaded again, so that this is an error of another kind.
        let own = [json, ("host", "localhost"), ("origin", "http://localhost")];
        assert_eq!(server.request("POST", path, &own, &unload).status, 400, "{path}");
    }
}

#[test]
fn a_page_of_a_program_reads_its_answer() {
    let server = server(|_| {});
    let origin = ("origin", "app://obsidian.md");
    let json = ("content-type", "application/json");
    let answer = server.request("POST", "/v1/messages", &[json, origin], MESSAGE);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("access-control-allow-origin"), Some("app://obsidian.md"));
}
