//! Connections themselves: TLS, how many there may be, and those that say nothing.

use super::common::TestServer;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use realizar_runtime::engine::EngineOptions;
use realizar_server::{ServerConfig, TlsFiles};
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

fn server(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
    TestServer::with(change, EngineOptions::default())
}

/// All that the server says before it closes the connection.
fn until_closed(mut connection: TcpStream) -> String {
    let mut text = String::new();
    connection.read_to_string(&mut text).expect("the server closes it");
    text
}

/// Waits until a connection that has left no longer counts.
fn wait_for_room(server: &TestServer) {
    let start = Instant::now();
    while server.post("/tokenize", &json!({"content": "a"})).status != 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "the connection that left still counts");
    }
}

/// Writes a new certificate for these names, and its key; also the root that trusts it.
fn certificate(dir: &Path, names: &[&str]) -> (TlsFiles, Certificate<'static>) {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(names).expect("a certificate");
    let files = TlsFiles::new(dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&files.key, signing_key.serialize_pem()).expect("write");
    std::fs::write(&files.cert, cert.pem()).expect("write");
    (files, Certificate::from_der(cert.der()).to_owned())
}

#[test]
fn tls() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (files, root) = certificate(dir.path(), &["localhost"]);
    let mut server = server(|config| {
        config.tls = Some(files);
        config.shutdown_grace = Duration::from_secs(60);
    });
    // Stalled handshakes, and bytes that are none, block no other connection.
    let silent = server.connect();
    let mut plain = server.connect();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("write");
    let agent = |roots: RootCerts| -> ureq::Agent {
        let tls = TlsConfig::builder().root_certs(roots).build();
        ureq::Agent::config_builder().tls_config(tls).build().into()
    };
    let trusting = agent(RootCerts::new_with_certs(&[root]));
    let url = format!("https://localhost:{}", server.address.port());
    let mut answer = trusting.get(format!("{url}/health")).call().expect("an answer");
    assert_eq!(answer.body_mut().read_to_string().expect("a body"), r#"{"status":"ok"}"#);
    assert!(agent(RootCerts::WebPki).get(format!("{url}/health")).call().is_err());
    assert!(!until_closed(plain).contains("HTTP"), "nothing is told without encryption");
    let ask = json!({"prompt": "abc", "max_tokens": 50, "ignore_eos": true, "stream": true});
    let mut answer = trusting
        .post(format!("{url}/v1/completions"))
        .header("content-type", "application/json")
        .send(ask.to_string())
        .expect("an answer");
    server.begin_to_stop();
    let text = answer.body_mut().read_to_string().expect("a body");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    server.wait();
    drop(silent);
}

#[test]
fn a_new_certificate_is_taken_while_the_server_runs() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let write = |name: &str| {
        let (files, root) = certificate(dir.path(), &["localhost", name]);
        let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[root])).build();
        let agent: ureq::Agent = ureq::Agent::config_builder().tls_config(tls).build().into();
        (files, agent)
    };
    let (files, first) = write("a.example");
    let cert_path = files.cert.clone();
    let server =
        server(|config| config.tls = Some(TlsFiles { renewal: Duration::from_millis(5), ..files }));
    let url = format!("https://localhost:{}/live", server.address.port());
    assert!(first.get(&url).call().is_ok());
    let (_, second) = write("a-longer-name.example");
    let start = Instant::now();
    while second.get(&url).call().is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "the new certificate is not taken");
    }
    // Connections that are open stay, and new ones have the new certificate.
    assert!(first.get(&url).call().is_ok());
    // What is not a certificate is not taken.
    std::fs::write(&cert_path, "damaged").expect("write");
    for _ in 0..20 {
        let fresh = second.clone();
        assert!(fresh.get(&url).header("connection", "close").call().is_ok());
    }
}

#[test]
fn handshakes_that_take_too_long_are_closed() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (files, _) = certificate(dir.path(), &["localhost"]);
    let server = server(|config| {
        config.tls = Some(files);
        config.connections.handshake_timeout = Duration::from_millis(50);
    });
    assert_eq!(until_closed(server.connect()), "");
}

#[test]
fn connections_of_one_address_are_limited() {
    let server = server(|config| config.connections.per_address = 1);
    let first = server.connect();
    let answer = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "too_many_connections");
    drop(first);
    wait_for_room(&server);
}

#[test]
fn a_head_that_is_too_long_is_refused() {
    let server = server(|_| {});
    let limit = 64 << 10;
    for (n_bytes, want) in [
        (limit, "200"),
        (limit + 1, "431"),
        (100_000, "431"),
        (2 * limit, "431"),
        (4 * limit, "431"),
    ] {
        let mut connection = server.connect();
        let (start, end) = ("GET /live HTTP/1.1\r\nhost: localhost\r\nx: ", "\r\n\r\n");
        let head = format!("{start}{}{end}", "a".repeat(n_bytes - start.len() - end.len()));
        // The server may close before it has read all.
        let _ = connection.write_all(head.as_bytes());
        let mut answer = [0; 12];
        connection.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, format!("HTTP/1.1 {want}").as_bytes(), "{n_bytes} bytes");
    }
}

#[test]
fn connections_that_say_nothing_are_closed() {
    let server = server(|config| config.connections.idle_timeout = Duration::from_millis(50));
    assert_eq!(until_closed(server.connect()), "");
    let mut half = server.connect();
    half.write_all(b"GET /health HTTP/1.1\r\nhost: te").expect("write");
    assert_eq!(until_closed(half), "");
    let mut idle = server.connect();
    idle.write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("write");
    let text = until_closed(idle);
    assert!(
        text.starts_with("HTTP/1.1 200 OK\r\n") && !text.contains("connection: close"),
        "{text}"
    );
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let server = server(|config| config.connections.open = 1);
    let first = server.connect();
    let answer = server.post("/v1/completions", &json!({"prompt": "a".repeat(1 << 20)}));
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(answer.json()["error"]["code"], "too_many_connections");
    // Probes are answered all the same.
    for path in ["/health", "/ready", "/ping", "/live"] {
        assert_eq!(server.get(path).json(), json!({"status": "ok"}), "{path}");
    }
    drop(first);
    wait_for_room(&server);
}

#[test]
fn of_more_connections_than_can_be_refused_the_oldest_are_closed() {
    let server = server(|config| config.connections.open = 0);
    let mut silent: Vec<_> = (0..64).map(|_| server.connect()).collect();
    // Whoever asks is answered, however many say nothing.
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
    assert_eq!(until_closed(silent.remove(0)), "");
}

#[test]
fn clients_behind_a_trusted_proxy_are_not_limited_as_one() {
    let server = server(|config| {
        config.connections.per_address = 1;
        config.connections.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    });
    let _open = [server.connect(), server.connect(), server.connect()];
    assert_eq!(server.get("/version").status, 200);
}
