//! Downloads over HTTP: the only way in which models, and a hub's information about them, arrive here.
//!
//! Everything that a server answers is hostile: redirects are followed by hand and stay with
//! https, credentials are sent only to their host, lengths are bounded and checksums are
//! compared. No name and no header of an answer becomes a path here.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use realizar_formats::open_regular;
use realizar_runtime::ByteSize;
use ureq::http::{HeaderMap, HeaderValue, StatusCode, header};
use ureq::{Agent, Body};

use super::cache::hash_file;
use super::partial::Partial;
use super::progress::Progress;
use super::url::Url;

/// Redirects from a URL to the resource.
const MAX_REDIRECTS: usize = 10;
/// Bytes of one file.
pub(super) const MAX_FILE: u64 = 1 << 40;
/// How long a server may pause in the middle of a response.
const STALL: Duration = Duration::from_secs(60);
/// Wait before the second attempt; before each further one it is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// What a file must be, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Known {
    pub(super) bytes: Option<u64>,
    /// Lower-case hexadecimal.
    pub(super) sha256: Option<String>,
}

/// A file to fetch.
pub(super) struct Request<'a> {
    pub(super) url: &'a Url,
    /// Sent to the URL's own origin, never further.
    pub(super) authorization: Option<&'a HeaderValue>,
    /// What the progress bar says.
    pub(super) label: &'a str,
    pub(super) known: Known,
    /// Times to try when the connection fails; each continues where the last one ended.
    pub(super) attempts: u32,
}

/// The status of an answer that is not the file.
#[derive(Debug)]
pub(super) struct StatusError {
    url: String,
    pub(super) status: StatusCode,
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the server answered {}", self.url, self.status)
    }
}

impl std::error::Error for StatusError {}

/// An attempt that failed.
enum Failure {
    /// The next one may do better.
    Passing(anyhow::Error),
    Final(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Final(error)
    }
}

/// What came back for a URL.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Body,
    /// What the origin of the URL says about the file; a hub does so while it redirects.
    linked: Known,
}

/// The HTTP client, for hosts elsewhere and for this machine.
pub(super) struct Client {
    remote: Agent,
    /// No proxy stands between this machine and itself.
    local: Agent,
}

impl Client {
    pub(super) fn new() -> Self {
        Self::with_stall(STALL)
    }

    /// A client that waits so long for the next bytes of an answer.
    fn with_stall(stall: Duration) -> Self {
        let config = || {
            Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .timeout_connect(Some(Duration::from_secs(30)))
                .timeout_recv_response(Some(Duration::from_secs(60)))
                .timeout_per_read(Some(stall))
                .user_agent(concat!("realizar/", env!("CARGO_PKG_VERSION")))
        };
        Self {
            remote: config().https_only(true).build().into(),
            local: config().proxy(None).build().into(),
        }
    }

    /// The body of a small resource, at most `max_bytes` long.
    pub(super) fn text(
        &self,
        url: &Url,
        authorization: Option<&HeaderValue>,
        max_bytes: u64,
        attempts: u32,
    ) -> Result<Vec<u8>> {
        retry(attempts, || {
            let answer = self.get(url, authorization, None)?;
            if answer.status != StatusCode::OK {
                return Err(refused(url, answer.status));
            }
            let mut text = Vec::new();
            let mut body = answer.body.into_with_config().limit(u64::MAX).reader();
            body.by_ref()
                .take(max_bytes)
                .read_to_end(&mut text)
                .map_err(|e| interrupted(url, e))?;
            let more = body.read(&mut [0]).map_err(|e| interrupted(url, e))?;
            if more > 0 {
                Err(anyhow!("{url}: the answer is longer than {}", ByteSize(max_bytes)))?;
            }
            Ok(text)
        })
    }

    /// Downloads a file to `partial`, continuing what is there; returns its length and SHA-256,
    /// which are what is known of it.
    pub(super) fn file(&self, request: &Request<'_>, partial: &Partial) -> Result<(u64, String)> {
        let mut known = request.known.clone();
        if known.sha256.is_none() || known.bytes.is_none() || partial.len() != known.bytes {
            let linked = retry(request.attempts, || self.attempt(request, partial))?;
            known = known.and(linked).with_context(|| request.url.to_string())?;
        }
        let (bytes, sha256) = hash_file(partial.path())?;
        let is_as_known = known.bytes.is_none_or(|known| known == bytes)
            && known.sha256.as_ref().is_none_or(|known| *known == sha256);
        if !is_as_known {
            partial.discard();
            bail!(
                "{}: SHA-256 is {sha256} ({}), expected {} ({}); the file was removed",
                request.url,
                ByteSize(bytes),
                known.sha256.as_deref().unwrap_or("any"),
                known.bytes.map_or_else(|| "any length".to_owned(), |n| ByteSize(n).to_string()),
            );
        }
        Ok((bytes, sha256))
    }

    /// One connection's worth of a file; returns what the origin says about it.
    fn attempt(&self, request: &Request<'_>, partial: &Partial) -> Result<Known, Failure> {
        let url = request.url;
        let resume = partial.len().zip(partial.validator());
        let answer = self.get(url, request.authorization, resume.as_ref())?;
        let offset = match (answer.status, &resume) {
            (StatusCode::OK, _) => 0,
            (StatusCode::PARTIAL_CONTENT, Some((offset, _))) => {
                if range_start(&answer.headers) != Some(*offset) {
                    partial.discard();
                    Err(anyhow!("{url}: the server sent a range other than the one requested"))?;
                }
                *offset
            }
            (StatusCode::RANGE_NOT_SATISFIABLE, Some((offset, _))) => {
                // Nothing is missing if the whole is as long as the partial file.
                if range_total(&answer.headers) == Some(*offset) {
                    return Ok(answer.linked);
                }
                partial.discard();
                Err(anyhow!("{url}: the partial download does not fit; pull again to start over"))?
            }
            (status, _) => return Err(refused(url, status)),
        };
        let length = text(&answer.headers, header::CONTENT_LENGTH);
        let length = length.and_then(|text| text.parse::<u64>().ok());
        let total = length.map(|length| length.saturating_add(offset));
        let known = request.known.clone().and(answer.linked.clone());
        let known = known.with_context(|| url.to_string())?;
        if let (Some(total), Some(known)) = (total, known.bytes)
            && total != known
        {
            partial.discard();
            let (total, known) = (ByteSize(total), ByteSize(known));
            Err(anyhow!("{url}: the file should have {known}, but the server sends {total}"))?;
        }
        let max = known.bytes.unwrap_or(MAX_FILE);
        if total.is_some_and(|total| total > max) {
            Err(anyhow!("{url}: the file is larger than {}", ByteSize(max)))?;
        }
        let mut out = partial.open(offset, validator(&answer.headers).as_deref())?;
        let progress = Progress::bytes(request.label, total.or(known.bytes));
        progress.set(offset);
        let mut body = answer.body.into_with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0u8; 1 << 18];
        let mut at = offset;
        loop {
            let n = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(interrupted(url, e)),
            };
            at += n as u64;
            if at > max {
                partial.discard();
                Err(anyhow!("{url}: the file is larger than {}", ByteSize(max)))?;
            }
            out.write_all(&buffer[..n])
                .with_context(|| format!("cannot write {}", partial.path().display()))?;
            progress.add(n as u64);
        }
        out.sync_all().with_context(|| format!("cannot write {}", partial.path().display()))?;
        if let Some(total) = total.or(known.bytes)
            && at < total
        {
            return Err(Failure::Passing(anyhow!(
                "{url}: the connection ended after {} of {}; pull again to resume",
                ByteSize(at),
                ByteSize(total)
            )));
        }
        progress.done();
        Ok(answer.linked)
    }

    /// Follows redirects to an answer. `resume` is a length and a validator.
    fn get(
        &self,
        start: &Url,
        authorization: Option<&HeaderValue>,
        resume: Option<&(u64, String)>,
    ) -> Result<Answer, Failure> {
        let mut url = start.clone();
        let mut linked = Known::default();
        let mut is_at_origin = true;
        for _ in 0..=MAX_REDIRECTS {
            is_at_origin &= url.same_origin(start);
            let agent = if url.is_https() { &self.remote } else { &self.local };
            let mut request = agent.get(url.uri()).header("Accept-Encoding", "identity");
            if let Some(value) = authorization.filter(|_| is_at_origin) {
                request = request.header(header::AUTHORIZATION, value);
            }
            if let Some((offset, validator)) = resume {
                request = request
                    .header("Range", format!("bytes={offset}-"))
                    .header("If-Range", validator.as_str());
            }
            let response = request.call().map_err(|e| {
                Failure::Passing(anyhow::Error::new(e).context(format!("cannot fetch {start}")))
            })?;
            let (parts, body) = response.into_parts();
            if is_at_origin {
                linked = linked.or(linked_file(&parts.headers));
            }
            let is_redirect = matches!(parts.status.as_u16(), 301 | 302 | 303 | 307 | 308);
            if !is_redirect {
                return Ok(Answer { status: parts.status, headers: parts.headers, body, linked });
            }
            let location = text(&parts.headers, header::LOCATION)
                .ok_or_else(|| anyhow!("{start}: the server redirects to no readable URL"))?;
            url = url.join(&location).with_context(|| start.to_string())?;
        }
        Err(anyhow!("{start}: more than {MAX_REDIRECTS} redirects"))?
    }
}

impl Known {
    /// What either knows; an error where they differ.
    fn and(self, other: Self) -> Result<Self> {
        let differ = |a: &Option<String>, b: &Option<String>| a.is_some() && b.is_some() && a != b;
        let bytes = |known: &Self| known.bytes.map(|n| n.to_string());
        if differ(&self.sha256, &other.sha256) || differ(&bytes(&self), &bytes(&other)) {
            bail!("the server gives two lengths or checksums for one file");
        }
        Ok(self.or(other))
    }

    fn or(self, other: Self) -> Self {
        Self { bytes: self.bytes.or(other.bytes), sha256: self.sha256.or(other.sha256) }
    }
}

/// What a hub says about a large file in the answer that redirects to it.
fn linked_file(headers: &HeaderMap) -> Known {
    let named = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let sha256 = named("x-linked-etag").map(|etag| etag.trim_matches('"')).and_then(as_sha256);
    let bytes = named("x-linked-size").and_then(|size| size.parse().ok());
    // Without a checksum of the file, the length may be that of something else.
    Known { bytes: bytes.filter(|_| sha256.is_some()), sha256 }
}

/// A SHA-256 in hexadecimal, in lower case.
pub(super) fn as_sha256(text: &str) -> Option<String> {
    (text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| text.to_ascii_lowercase())
}

/// Tries until it succeeds, fails permanently, or `attempts` were made.
fn retry<T>(attempts: u32, mut once: impl FnMut() -> Result<T, Failure>) -> Result<T> {
    let mut wait = FIRST_WAIT;
    for left in (0..attempts).rev() {
        match once() {
            Ok(value) => return Ok(value),
            Err(Failure::Passing(error)) if left > 0 => tracing::info!("{error:#}; trying again"),
            Err(Failure::Passing(error) | Failure::Final(error)) => return Err(error),
        }
        thread::sleep(wait);
        wait *= 2;
    }
    bail!("no download was attempted")
}

fn refused(url: &Url, status: StatusCode) -> Failure {
    let error = anyhow::Error::new(StatusError { url: url.to_string(), status });
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        Failure::Passing(error)
    } else {
        Failure::Final(error)
    }
}

fn interrupted(url: &Url, error: io::Error) -> Failure {
    let error = anyhow::Error::new(error);
    Failure::Passing(error.context(format!("{url}: interrupted; pull again to resume")))
}

/// A strong ETag, else the time of the last change.
fn validator(headers: &HeaderMap) -> Option<String> {
    text(headers, header::ETAG)
        .filter(|etag| !etag.starts_with("W/"))
        .or_else(|| text(headers, header::LAST_MODIFIED))
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// First byte of `Content-Range: bytes 5-9/10`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let text = text(headers, header::CONTENT_RANGE)?;
    text.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

/// Length of the whole in `Content-Range: bytes */10`.
fn range_total(headers: &HeaderMap) -> Option<u64> {
    text(headers, header::CONTENT_RANGE)?.rsplit_once('/')?.1.trim().parse().ok()
}

/// Copies a file that is as long and has the SHA-256 that are known to `partial`; false where it
/// is another.
pub(super) fn copy_known(from: &std::path::Path, known: &Known, partial: &Partial) -> Result<bool> {
    let len = fs::metadata(from).ok().filter(fs::Metadata::is_file).map(|info| info.len());
    if known.sha256.is_none() || known.bytes.is_none() || len != known.bytes {
        return Ok(false);
    }
    if hash_file(from).ok().map(|(_, sha256)| sha256) != known.sha256 {
        return Ok(false);
    }
    let context = || format!("cannot copy {} to {}", from.display(), partial.path().display());
    let mut source = open_regular(from).with_context(context)?;
    let mut out = partial.open(0, None)?;
    io::copy(&mut source, &mut out).with_context(context)?;
    out.sync_all().with_context(context)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    #[test]
    fn a_server_that_sends_no_more_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let url = format!("http://{}/m.gguf", listener.local_addr().expect("address"));
        let (over, wait) = channel::<()>();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut reader = BufReader::new(stream.try_clone().expect("clone"));
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(reader.read_line(&mut head).expect("read") > 0);
            }
            let answer = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 9\r\n\r\nabc";
            stream.write_all(answer.as_bytes()).expect("write");
            // The connection stays until the client has given it up.
            let _ = wait.recv();
        });
        let dir = tempfile::tempdir().expect("a folder");
        let partial = Partial::new(dir.path().join("p"));
        let url = Url::parse(&url).expect("a URL");
        let request = Request {
            url: &url,
            authorization: None,
            label: "",
            known: Known::default(),
            attempts: 1,
        };
        let error = Client::with_stall(Duration::from_millis(50)).file(&request, &partial);
        let error = format!("{:#}", error.expect_err("nothing came any more"));
        assert!(error.contains("pull again to resume") && error.contains("timeout"), "{error}");
        assert_eq!(partial.len(), Some(3));
        drop(over);
        server.join().expect("the server");
    }
}
