//! Names by which the server is called, and the pages that call it.

use super::common::TestServer;
use realizar_runtime::engine::EngineOptions;
use realizar_server::ServerConfig;

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
            &[json, ("origin", "http://localhost:1")],
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
