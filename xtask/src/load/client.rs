//! A client of OpenAI's API on blocking sockets: sends a request, reads the answer whole or as a
//! stream, and notes when what came.

use std::fmt;
use std::io::{BufReader, Read};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use ureq::Agent;

use super::sse::Events;
use super::workload::{Api, Ask};

/// The maximum number of bytes of an error's body that are kept.
const ERROR_BYTES: u64 = 4096;

/// A server as a client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: Agent,
    /// Without a slash at the end.
    url: String,
    /// The name that requests give as their model.
    pub(crate) model: String,
}

/// An answer that came whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) finish: String,
    /// One entry per generated token, as the server told it.
    pub(crate) logprobs: Vec<Value>,
    pub(crate) usage: Option<Usage>,
    /// When each chunk with text came, since the request was sent.
    pub(crate) arrivals: Vec<Duration>,
    /// When the answer ended, since the request was sent.
    pub(crate) total: Duration,
}

impl Reply {
    /// As the server counted, or else one per chunk with text.
    pub(crate) fn tokens(&self) -> usize {
        self.usage.map_or(self.arrivals.len(), |usage| usage.completion)
    }
}

/// The server's counts of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
    /// Tokens of the prompt that were in a cache.
    pub(crate) cached: usize,
}

/// Why there is no whole answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Another status than 200.
    Status { status: u16, retry_after: Option<String>, body: String, after: Duration },
    /// No connection, a connection that broke, or an answer that makes no sense.
    Broken(String),
    /// The caller wanted no more of it.
    Left,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { status, body, .. } => write!(f, "status {status}: {}", body.trim()),
            Self::Broken(why) => f.write_str(why),
            Self::Left => f.write_str("left by the client"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(format!("reading the answer: {error}"))
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Broken(format!("JSON of the answer: {error}"))
    }
}

impl Client {
    /// A client that asks the server for the name of its first model. No request may take longer
    /// than `limit`.
    pub(crate) fn new(url: &str, limit: Duration) -> Result<Self> {
        let mut client = Self::named(url, "", limit);
        let models: Value = serde_json::from_str(&client.get("/v1/models")?)?;
        let name = models["data"][0]["id"].as_str();
        client.model = name.context("/v1/models has no data[0].id")?.to_owned();
        Ok(client)
    }

    /// A client that names a model. No request may take longer than `limit`.
    pub(crate) fn named(url: &str, model: &str, limit: Duration) -> Self {
        // A connection per request: what a pool does to a connection that a server closed is not
        // what is measured.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_idle_connections(0)
            .timeout_global(Some(limit))
            .build();
        let url = url.trim_end_matches('/').to_owned();
        Self { agent: config.into(), url, model: model.to_owned() }
    }

    /// The same client with another limit on the time of a request.
    pub(crate) fn limited(&self, limit: Duration) -> Self {
        Self::named(&self.url, &self.model, limit)
    }

    /// Where the server is, without a slash at the end.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The body of a page; an error for another status than 200.
    pub(crate) fn get(&self, path: &str) -> Result<String> {
        let url = format!("{}{path}", self.url);
        let mut response = self.agent.get(&url).call().with_context(|| url.clone())?;
        let text = response.body_mut().read_to_string().with_context(|| url.clone())?;
        let status = response.status();
        anyhow::ensure!(status == 200, "{url}: status {status}: {}", text.trim());
        Ok(text)
    }

    /// Sends a request and reads the answer to its end.
    pub(crate) fn ask(&self, ask: &Ask) -> Result<Reply, Failure> {
        self.ask_while(ask, |_| ControlFlow::Continue(()))
    }

    /// Sends a request; `seen` gets what there is of the answer after each chunk with text and may
    /// end it, which closes the connection.
    pub(crate) fn ask_while(
        &self,
        ask: &Ask,
        mut seen: impl FnMut(&Reply) -> ControlFlow<()>,
    ) -> Result<Reply, Failure> {
        let url = format!("{}{}", self.url, ask.api.path());
        let body = ask.bytes(&self.model);
        let start = Instant::now();
        let request = self.agent.post(&url).header("content-type", "application/json");
        let mut response =
            request.send(&body[..]).map_err(|error| Failure::Broken(error.to_string()))?;
        let header = |name: &str| {
            response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned)
        };
        let (status, retry_after) = (response.status().as_u16(), header("retry-after"));
        let streams = header("content-type").is_some_and(|t| t.starts_with("text/event-stream"));
        let mut reader = BufReader::new(response.body_mut().as_reader());
        if status != 200 {
            let mut body = Vec::new();
            let read = (&mut reader).take(ERROR_BYTES).read_to_end(&mut body);
            let after = start.elapsed();
            let body = match read {
                Ok(_) => String::from_utf8_lossy(&body).into_owned(),
                Err(error) => format!("(no body: {error})"),
            };
            return Err(Failure::Status { status, retry_after, body, after });
        }
        let mut reply = Reply::default();
        if !streams {
            let whole: Value = serde_json::from_reader(reader)?;
            reply.take(ask.api, &whole, start.elapsed())?;
        } else {
            let mut done = false;
            for event in Events::new(reader) {
                let event = event?;
                if event == "[DONE]" {
                    done = true;
                    continue;
                }
                let before = reply.arrivals.len();
                reply.take(ask.api, &serde_json::from_str(&event)?, start.elapsed())?;
                if reply.arrivals.len() > before && seen(&reply).is_break() {
                    return Err(Failure::Left);
                }
            }
            if !done {
                return Err(Failure::Broken("the stream ended without [DONE]".to_owned()));
            }
        }
        reply.total = start.elapsed();
        if reply.finish.is_empty() {
            return Err(Failure::Broken("the answer has no finish_reason".to_owned()));
        }
        Ok(reply)
    }
}

impl Reply {
    /// Adds a chunk of a stream, or the whole answer.
    fn take(&mut self, api: Api, chunk: &Value, at: Duration) -> Result<(), Failure> {
        if let Some(error) = chunk.get("error").filter(|e| !e.is_null()) {
            return Err(Failure::Broken(format!("error in the answer: {error}")));
        }
        let count = |value: &Value| value.as_u64().map(|n| n as usize);
        let usage = &chunk["usage"];
        if let (Some(prompt), Some(completion)) =
            (count(&usage["prompt_tokens"]), count(&usage["completion_tokens"]))
        {
            let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0);
            self.usage = Some(Usage { prompt, completion, cached });
        }
        let choice = &chunk["choices"][0];
        let text = match api {
            Api::Completions => &choice["text"],
            Api::Chat if choice["delta"].is_object() => &choice["delta"]["content"],
            Api::Chat => &choice["message"]["content"],
        };
        if let Some(text) = text.as_str().filter(|t| !t.is_empty()) {
            self.text += text;
            self.arrivals.push(at);
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            finish.clone_into(&mut self.finish);
        }
        self.logprobs.extend(logprobs(&choice["logprobs"]));
        Ok(())
    }
}

/// One entry per token, from the form of chats or the older one of completions.
fn logprobs(value: &Value) -> Vec<Value> {
    if let Some(content) = value["content"].as_array() {
        return content.clone();
    }
    let tokens = value["tokens"].as_array().into_iter().flatten().enumerate();
    tokens
        .map(|(idx, token)| {
            json!([token, value["token_logprobs"][idx], value["top_logprobs"][idx]])
        })
        .collect()
}

/// Keeps `streams` requests under way until all of `asks` are answered. The time is from the first
/// request to the end of the last answer; answers are in the order of the requests.
pub(crate) fn drive(
    client: &Client,
    streams: usize,
    asks: &[Ask],
) -> (Duration, Vec<Result<Reply, Failure>>) {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    let work = || {
        let mut answers = Vec::new();
        while let Some((idx, ask)) = {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            asks.get(idx).map(|ask| (idx, ask))
        } {
            answers.push((idx, client.ask(ask)));
        }
        answers
    };
    let mut answers: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..streams).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(joined).collect()
    });
    let wall = start.elapsed();
    answers.sort_by_key(|(idx, _)| *idx);
    (wall, answers.into_iter().map(|(_, answer)| answer).collect())
}

/// The result of a thread; its panic is resumed here.
pub(crate) fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    /// Answers connections one after the other with `answers`, each in parts. Before each part but
    /// the first it waits for a word of the client.
    fn serve(answers: Vec<Vec<String>>) -> (String, mpsc::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (word, words) = mpsc::channel();
        thread::spawn(move || {
            for parts in answers {
                let mut stream = listener.accept().unwrap().0;
                request(&stream);
                for (idx, part) in parts.iter().enumerate() {
                    if idx > 0 && words.recv_timeout(Duration::from_secs(20)).is_err() {
                        break;
                    }
                    stream.write_all(part.as_bytes()).unwrap();
                }
            }
        });
        (url, word)
    }

    /// Reads a request to the end of its body.
    fn request(stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        let mut body_len = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(len) = line.strip_prefix("content-length:") {
                body_len = len.trim().parse().unwrap();
            }
        }
        reader.read_exact(&mut vec![0; body_len]).unwrap();
    }

    fn whole(status: &str, kind: &str, body: &str) -> String {
        let len = body.len();
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n\r\n{body}")
    }

    fn chunk(data: &str) -> String {
        let event = format!("data: {data}\n\n");
        format!("{:x}\r\n{event}\r\n", event.len())
    }

    fn answers(answers: Vec<Vec<String>>) -> (Client, mpsc::Sender<()>) {
        let models = whole("200 OK", "application/json", r#"{"data": [{"id": "m"}]}"#);
        let (url, word) = serve(std::iter::once(vec![models]).chain(answers).collect());
        (Client::new(&url, Duration::from_secs(30)).unwrap(), word)
    }

    const STREAM: &str =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

    #[test]
    fn a_stream_is_read_chunk_by_chunk() {
        let text = |t: &str| chunk(&json!({"choices": [{"text": t}]}).to_string());
        let last = json!({"choices": [{"text": "", "finish_reason": "length"}]}).to_string();
        let usage = json!({"choices": [], "usage": {
            "prompt_tokens": 5, "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 4}}});
        let end = chunk(&last) + &chunk(&usage.to_string()) + &chunk("[DONE]") + "0\r\n\r\n";
        let stream = vec![STREAM.to_owned() + &text("a"), text("b"), end];
        let (client, word) = answers(vec![stream]);
        assert_eq!(client.model, "m");
        // The server continues only when the client has seen a chunk: nothing may wait in a buffer.
        let reply = client.ask_while(&Ask::greedy(Api::Completions, "", "x", 2), |_| {
            word.send(()).unwrap();
            ControlFlow::Continue(())
        });
        let reply = reply.unwrap();
        assert_eq!((&*reply.text, &*reply.finish, reply.tokens()), ("ab", "length", 2));
        assert_eq!(reply.usage, Some(Usage { prompt: 5, completion: 2, cached: 4 }));
        assert_eq!(reply.arrivals.len(), 2);
        assert!(reply.arrivals[0] <= reply.arrivals[1] && reply.arrivals[1] <= reply.total);
    }

    #[test]
    fn what_is_no_answer_is_a_failure() {
        let ask = Ask::greedy(Api::Chat, "", "x", 2);
        let delta = |d: Value| chunk(&json!({"choices": [d]}).to_string());
        let cut = STREAM.to_owned() + &delta(json!({"delta": {"content": "a"}})) + "0\r\n\r\n";
        let error = STREAM.to_owned() + &chunk(r#"{"error": {"message": "no memory"}}"#);
        let open = whole("200 OK", "application/json", r#"{"choices": [{"message": {}}]}"#);
        for (answer, want) in [
            (cut, "without [DONE]"),
            (error, "no memory"),
            (open, "finish_reason"),
            (whole("200 OK", "application/json", "{"), "JSON"),
            (whole("400 Bad Request", "application/json", "why"), "status 400: why"),
        ] {
            let failure = answers(vec![vec![answer]]).0.ask(&ask).unwrap_err().to_string();
            assert!(failure.contains(want), "{want}: {failure}");
        }
        let busy = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n";
        match answers(vec![vec![busy.to_owned()]]).0.ask(&ask) {
            Err(Failure::Status { status: 429, retry_after: Some(after), .. }) => {
                assert_eq!(after, "3");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_are_answered_in_their_order() {
        let answer = |text: usize| {
            let choice = json!({"message": {"content": text.to_string()}, "finish_reason": "stop",
                "logprobs": {"content": [{"token": "1", "logprob": -0.5}]}});
            whole("200 OK", "application/json", &json!({"choices": [choice]}).to_string())
        };
        let client = answers((0..3).map(|n| vec![answer(n)]).collect()).0;
        let ask = Ask::greedy(Api::Chat, "", "x", 2).with("stream", false);
        let (_, replies) = drive(&client, 1, &[ask.clone(), ask.clone(), ask]);
        let texts: Vec<String> = replies.iter().map(|r| r.as_ref().unwrap().text.clone()).collect();
        assert_eq!(texts, ["0", "1", "2"]);
        let logprobs = &replies[0].as_ref().unwrap().logprobs;
        assert_eq!(logprobs, &[json!({"token": "1", "logprob": -0.5})]);
    }

    #[test]
    fn both_forms_of_logprobs_have_an_entry_per_token() {
        let old = json!({"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0],
            "top_logprobs": [{"a": -1.0}, null]});
        assert_eq!(logprobs(&old), [json!(["a", -1.0, {"a": -1.0}]), json!(["b", -2.0, null])]);
        assert_eq!(logprobs(&json!({"content": [1, 2]})), [json!(1), json!(2)]);
        assert!(logprobs(&Value::Null).is_empty());
    }
}
