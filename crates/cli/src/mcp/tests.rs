//! Servers of a few lines: a shell script, and one that answers over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use super::*;

/// Answers `tools/list` and `tools/call` for two tools, one JSON text a line.
const SCRIPT: &str = r#"
echo "ready in $PWD" >&2
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    case "$line" in
        *'"method":"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}' ;;
        *'"method":"tools/list"'*) result='{"tools":[{"name":"files/read","description":"Reads","inputSchema":{}},{"name":"same","inputSchema":{"type":"object","properties":{"a":{"type":"integer"}}}}]}' ;;
        *'"name":"files/read"'*) result='{"content":[{"type":"text","text":"'$KEPT$REALIZAR_LEAK'"},{"type":"image","data":"AA==","mimeType":"image/png"}]}' ;;
        *'"method":"tools/call"'*) result='{"content":[{"type":"text","text":"no"}],"isError":true}' ;;
        *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

fn script(name: &str, text: &str) -> ServerConfig {
    let transport = Transport::Stdio {
        command: "sh".to_owned(),
        args: vec!["-c".to_owned(), text.to_owned()],
        env: [("KEPT".to_owned(), "yes".to_owned())].into(),
        dir: "/".into(),
    };
    ServerConfig { name: name.to_owned(), transport }
}

fn names(servers: &Servers) -> Vec<&str> {
    servers.tools().iter().map(|tool| tool.function.name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_offer_tools_and_run_them() {
    let broken = script("broken", "echo why not >&2; exit 3");
    let absent = Transport::Stdio {
        command: "no such program".to_owned(),
        args: Vec::new(),
        env: [].into(),
        dir: "/".into(),
    };
    let absent = ServerConfig { name: "absent".to_owned(), transport: absent };
    let configs = vec![script("a", SCRIPT), broken, script("b", SCRIPT), absent];
    let (servers, failed) = Servers::start(configs).await;
    let failed: Vec<_> = failed.iter().map(|f| format!("{}: {:#}", f.server, f.error)).collect();
    let want =
        ["broken: it exited with: why not", "absent: `no such program` was not found in PATH"];
    assert_eq!(failed, want);

    let want = ["a__files_read", "a__same", "b__files_read", "b__same"];
    assert_eq!(names(&servers), want);
    let tool = servers.tool("b__files_read").expect("offered");
    assert_eq!((tool.server.as_str(), tool.function.description.as_deref()), ("b", Some("Reads")));
    assert_eq!(*tool.function.parameters(), json!({"type": "object", "properties": {}}));
    // Of the environment a program has its own variables and the fixed ones.
    let output = servers.call(tool, Map::new()).await.expect("called");
    assert_eq!(output, Output { text: "yes\n[an image, image/png]".to_owned(), is_error: false });
    let tool = servers.tool("a__same").expect("offered");
    let output = servers.call(tool, Map::new()).await.expect("called");
    assert_eq!(output, Output { text: "no".to_owned(), is_error: true });
    assert!(servers.tool("same").is_none());
}

/// Answers requests over HTTP, those for tools with a stream of events. Returns the URL.
fn http_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("its address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let (head, request) = request(&stream);
            stream.write_all(answer(&head, &request).as_bytes()).expect("written");
        }
    });
    url
}

/// The head of a request and its body.
fn request(stream: &TcpStream) -> (String, Value) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).expect("a line") == 0 {
            break;
        }
    }
    let length = head
        .to_lowercase()
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).expect("the body");
    (head, serde_json::from_slice(&body).unwrap_or_default())
}

fn answer(head: &str, request: &Value) -> String {
    let response = |kind: &str, text: &str| {
        let len = text.len();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len}\r\n\
             mcp-session-id: s1\r\nconnection: close\r\n\r\n{text}"
        )
    };
    let closed = |status: &str| {
        format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    };
    if !head.to_lowercase().contains("x-key: k") {
        return closed("401 Unauthorized");
    }
    let result = match request["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "t", "version": "1"},
        }),
        Some("tools/list") => {
            json!({"tools": [{"name": "add", "inputSchema": {"type": "object"}}]})
        }
        Some("tools/call") => {
            assert!(head.to_lowercase().contains("mcp-session-id: s1"), "{head}");
            let sum = &request["params"]["arguments"]["a"];
            json!({"content": [], "structuredContent": {"sum": sum}})
        }
        Some(_) if request["id"].is_null() => return closed("202 Accepted"),
        _ => return closed("405 Method Not Allowed"),
    };
    let message = json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string();
    match request["method"].as_str() {
        Some("initialize") => response("application/json", &message),
        _ => response("text/event-stream", &format!("event: message\ndata: {message}\n\n")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_are_reached_over_http() {
    let url = http_server();
    let config = |name: &str, key: Option<&'static str>| {
        let header = |key| {
            let name = ureq::http::HeaderName::from_static("x-key");
            (name, ureq::http::HeaderValue::from_static(key))
        };
        let headers = key.map(header).into_iter().collect();
        let transport = Transport::Http { url: url.clone(), headers };
        ServerConfig { name: name.to_owned(), transport }
    };
    let configs = vec![config("with", Some("k")), config("without", None)];
    let (servers, failed) = Servers::start(configs).await;
    assert_eq!(failed.len(), 1);
    let text = format!("{:#}", failed[0].error);
    assert!(failed[0].server == "without" && text.contains("401"), "{text}");
    assert_eq!(names(&servers), ["add"]);
    let tool = servers.tool("add").expect("offered");
    let arguments = json!({"a": 41}).as_object().expect("an object").clone();
    let output = servers.call(tool, arguments).await.expect("called");
    assert_eq!(output, Output { text: r#"{"sum":41}"#.to_owned(), is_error: false });
}

/// The script with another result for a method, up to the next one.
fn with_result(method: &str, result: &str) -> String {
    let start = SCRIPT.find(&format!("*'\"method\":\"{method}\"'*)")).expect("a method");
    let end = start + SCRIPT[start..].find(";;").expect("an end");
    format!("{}*'\"method\":\"{method}\"'*) {result} {}", &SCRIPT[..start], &SCRIPT[end..])
}

/// Times in which nothing is answered that a server does not mean to answer.
const SHORT: Times = Times { start: Duration::from_secs(120), call: Duration::from_millis(50) };

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_tools_and_logs_have_an_end() {
    let pages = with_result("tools/list", r#"result='{"tools":[],"nextCursor":"more"}'"#);
    let many = with_result(
        "tools/list",
        r#"result='{"tools":['$(yes '{"name":"a","inputSchema":{}},' | head -n 1000 | tr -d '\n')'{"name":"b","inputSchema":{}}]}'"#,
    );
    let large = with_result(
        "tools/list",
        r#"result='{"tools":[{"name":"a","description":"'$(head -c 5000000 /dev/zero | tr '\0' x)'","inputSchema":{}}]}'"#,
    );
    let log = "head -c 16000000 /dev/zero | tr '\\0' x >&2; exit 3";
    let configs = [("pages", &*pages), ("many", &many), ("large", &large), ("log", log)]
        .map(|(name, text)| script(name, text));
    let (_, failed) = Servers::start(configs.into()).await;
    let failed: Vec<_> = failed.iter().map(|f| format!("{}: {:#}", f.server, f.error)).collect();
    let last = format!("log: it exited with: {}", "x".repeat(limits::MAX_LOG_LINE));
    let want = [
        "pages: the list of its tools has more than 100 pages",
        "many: it has more than 1000 tools",
        "large: the descriptions of its tools are larger than 4 MiB",
        &last,
    ];
    assert_eq!(failed, want);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_floods_and_never_answers_is_not_waited_for() {
    let flood = with_result(
        "tools/call",
        r#"while :; do printf '{"jsonrpc":"2.0","id":1,"method":"ping"}\n{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'; done"#,
    );
    let silent = with_result("tools/call", "continue");
    let configs = vec![script("flood", &flood), script("silent", &silent)];
    let (servers, failed) = Servers::start_within(configs, SHORT).await;
    assert!(failed.is_empty(), "{failed:?}");
    for server in ["flood", "silent"] {
        let tool = servers.tool(&format!("{server}__same")).expect("offered");
        let error = servers.call(tool, Map::new()).await.expect_err("no answer");
        let want = format!("MCP server {server}: a call timed out after 50ms");
        assert_eq!(format!("{error:#}"), want);
    }
}

/// Answers over HTTP but for calls, which it tells of and holds.
fn silent_http_server() -> (String, std::sync::mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("its address"));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let (head, request) = request(&stream);
            if request["method"] == "tools/call" {
                sender.send(stream).expect("the test waits");
            } else {
                stream.write_all(answer(&head, &request).as_bytes()).expect("written");
            }
        }
    });
    (url, receiver)
}

#[test]
fn a_server_that_does_not_answer_delays_no_end() {
    let (url, calls) = silent_http_server();
    let headers =
        [(ureq::http::HeaderName::from_static("x-key"), ureq::http::HeaderValue::from_static("k"))];
    let transport = Transport::Http { url, headers: headers.into() };
    let config = ServerConfig { name: "s".to_owned(), transport };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (servers, failed) = runtime.block_on(Servers::start_within(vec![config.clone()], SHORT));
    assert!(failed.is_empty(), "{failed:?}");
    let tool = servers.tool("add").expect("offered");
    let error = runtime.block_on(servers.call(tool, Map::new())).expect_err("no answer");
    assert_eq!(format!("{error:#}"), "MCP server s: a call timed out after 50ms");
    let first = calls.recv().expect("a call");
    // With time left for the call, the runtime ends at once.
    let (servers, _) = runtime.block_on(Servers::start(vec![config]));
    runtime.spawn(async move {
        let tool = servers.tool("add").expect("offered").clone();
        servers.call(&tool, Map::new()).await
    });
    let second = calls.recv().expect("a call");
    drop(runtime);
    drop((first, second));
}

#[test]
fn names_are_made_for_models() {
    let tool = |name: &str| {
        let tool = json!({"name": name, "inputSchema": {"type": "object"}});
        serde_json::from_value::<TheirTool>(tool).expect("a tool")
    };
    let long = "x".repeat(70);
    let offers = vec![
        ("s".to_owned(), vec![tool("a.b"), tool("a/b"), tool(&long), tool(&format!("{long}y"))]),
        ("t".to_owned(), vec![tool("c")]),
    ];
    let names: Vec<_> = named(offers).into_iter().map(|tool| tool.function.name).collect();
    assert_eq!(&names[..2], ["s__a_b", "s__a_b_2"]);
    assert!(names.iter().all(|name| name.len() <= MAX_NAME), "{names:?}");
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    assert_eq!(names[4], "c");
}

#[test]
fn long_results_are_cut() {
    let text = "é".repeat(MAX_RESULT);
    let result = json!({"content": [{"type": "text", "text": text}]});
    let result: CallToolResult = serde_json::from_value(result).expect("a result");
    let text = output(&result).text;
    let end = format!("[cut: {} bytes in all]", 2 * MAX_RESULT);
    assert!(text.ends_with(&end) && text.len() < MAX_RESULT + 64);
}
