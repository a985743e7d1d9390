//! A model file behind an `https://` URL.
//!
//! An interrupted download stays in the cache's staging folder and the next pull continues it with
//! a range request, provided that the server named a validator (ETag or Last-Modified) and still
//! has the same file. Plain `http://` is accepted for this machine only.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use realizar_runtime::ByteSize;
use ureq::http::{HeaderMap, StatusCode, header};

use super::cache::{Staging, create_dir, hash_file, hex, safe_name};
use super::progress::Progress;
use super::{Expected, Fetched};
use sha2::{Digest, Sha256};

/// A URL, and the file name at its end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HttpsSource {
    url: String,
    file: String,
}

impl HttpsSource {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| anyhow!("`{url}` is not a URL"))?;
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        match scheme {
            "https" => {}
            "http" if is_local(host) => {}
            "http" => bail!("`{url}`: plain http is not accepted, use https"),
            _ => bail!("`{url}`: unknown scheme {scheme}, expected https, hf: or pip:"),
        }
        let file = path.rsplit('/').next().unwrap_or_default();
        if host.is_empty() || file.is_empty() {
            bail!("`{url}`: expected https://host/…/file.gguf");
        }
        Ok(Self { url: url.to_owned(), file: safe_name(file) })
    }

    /// The file name, made unique by a hash of the URL.
    pub(crate) fn key(&self) -> String {
        let hash = hex(&Sha256::digest(self.url.as_bytes()));
        format!("url-{}-{}", &hash[..8], self.file)
    }

    /// Downloads into `partial`, then moves the whole file into the staging folder.
    pub(super) fn fetch(
        &self,
        staging: &Staging,
        partial: &Path,
        expected: Option<Expected>,
    ) -> Result<Fetched> {
        if let Some(dir) = partial.parent() {
            create_dir(dir)?;
        }
        self.download(partial)?;
        let (bytes, sha256) = hash_file(partial)?;
        let file = expected.map_or_else(|| self.file.clone(), |e| e.file.to_owned());
        let to = staging.model_dir().join(&file);
        fs::rename(partial, &to)
            .with_context(|| format!("cannot move {} to {}", partial.display(), to.display()))?;
        remove(&validator_file(partial));
        Ok(Fetched { file: Some(file), hub_path: None, bytes, sha256: Some(sha256) })
    }

    fn download(&self, partial: &Path) -> Result<()> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .https_only(self.url.starts_with("https:"))
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .user_agent(concat!("realizar/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        let resume = resume_point(partial);
        let mut request = agent.get(&self.url).header("Accept-Encoding", "identity");
        if let Some((offset, validator)) = &resume {
            request = request
                .header("Range", format!("bytes={offset}-"))
                .header("If-Range", validator.as_str());
        }
        let response = request.call().with_context(|| format!("cannot fetch {}", self.url))?;
        let headers = response.headers().clone();
        let offset = match (response.status(), &resume) {
            (StatusCode::OK, _) => 0,
            (StatusCode::PARTIAL_CONTENT, Some((offset, _))) => {
                if range_start(&headers) != Some(*offset) {
                    bail!("{}: the server sent another range than the one asked for", self.url);
                }
                *offset
            }
            (StatusCode::RANGE_NOT_SATISFIABLE, Some(_)) => {
                remove(partial);
                remove(&validator_file(partial));
                bail!("{}: the partial download does not fit; pull again to start over", self.url);
            }
            (status, _) => bail!("{}: the server answered {status}", self.url),
        };
        let length = text(&headers, header::CONTENT_LENGTH).and_then(|s| s.parse::<u64>().ok());
        let total = length.map(|length| length.saturating_add(offset));
        let mut out = open_partial(partial, offset, &headers)?;
        let progress = Progress::bytes(&format!("pulling {}", self.file), total);
        progress.set(offset);
        let mut reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        let got = copy(&mut reader, (&mut out, partial), &self.url, &progress)?;
        out.sync_all().with_context(|| format!("cannot write {}", partial.display()))?;
        if let Some(total) = total
            && offset + got != total
        {
            bail!(
                "{}: the connection ended after {} of {}; pull again to resume",
                self.url,
                ByteSize(offset + got),
                ByteSize(total)
            );
        }
        progress.done();
        Ok(())
    }
}

impl fmt::Display for HttpsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// True for names of this machine, with or without a port.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    matches!(name, "localhost" | "127.0.0.1" | "::1")
}

/// The validator of a partial download lies beside it.
fn validator_file(partial: &Path) -> PathBuf {
    partial.with_extension("validator")
}

/// Length of the partial download and its validator, when it can be continued.
fn resume_point(partial: &Path) -> Option<(u64, String)> {
    let offset = fs::metadata(partial).ok()?.len();
    let validator = fs::read_to_string(validator_file(partial)).ok()?;
    (offset > 0 && !validator.is_empty()).then_some((offset, validator))
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

/// Opens the partial file at `offset`; a new download notes its validator first.
fn open_partial(partial: &Path, offset: u64, headers: &HeaderMap) -> Result<File> {
    let context = || format!("cannot write {}", partial.display());
    if offset > 0 {
        return File::options().append(true).open(partial).with_context(context);
    }
    let file = File::create(partial).with_context(context)?;
    match validator(headers) {
        Some(text) => fs::write(validator_file(partial), text).with_context(context)?,
        None => remove(&validator_file(partial)),
    }
    Ok(file)
}

fn copy(
    reader: &mut dyn Read,
    (out, path): (&mut File, &Path),
    url: &str,
    progress: &Progress,
) -> Result<u64> {
    let mut buffer = vec![0u8; 1 << 18];
    let mut total = 0;
    loop {
        let n = match reader.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => {
                return Err(e).with_context(|| format!("{url}: interrupted; pull again to resume"));
            }
        };
        out.write_all(&buffer[..n]).with_context(|| format!("cannot write {}", path.display()))?;
        total += n as u64;
        progress.add(n as u64);
    }
}

fn remove(path: &Path) {
    if let Err(e) = fs::remove_file(path)
        && e.kind() != std::io::ErrorKind::NotFound
    {
        tracing::debug!("cannot remove {}: {e}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Source, Sources, cache::Cache};
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    #[test]
    fn parsing() {
        let file = |url: &str| HttpsSource::parse(url).map(|s| s.file).ok();
        for (url, want) in [
            ("https://h/a/m.gguf", Some("m.gguf")),
            ("https://h/a/m.gguf?download=true", Some("m.gguf")),
            ("http://127.0.0.1:80/m.gguf", Some("m.gguf")),
            ("http://[::1]:80/m.gguf", Some("m.gguf")),
            ("http://h/m.gguf", None),
            ("ftp://h/m.gguf", None),
            ("https://h/", None),
            ("https:///m.gguf", None),
        ] {
            assert_eq!(file(url).as_deref(), want, "{url}");
        }
        let key = |url: &str| HttpsSource::parse(url).expect(url).key();
        assert!(key("https://h/a/m.gguf").ends_with("-m.gguf"));
        assert_ne!(key("https://h/a/m.gguf"), key("https://h/b/m.gguf"));
    }

    /// Answers one request after another with these texts and returns the request heads.
    fn serve(answers: Vec<String>) -> (String, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let url = format!("http://{}/m.gguf", listener.local_addr().expect("address"));
        let thread = std::thread::spawn(move || {
            let mut heads = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("accept");
                let mut head = String::new();
                let mut reader = BufReader::new(stream.try_clone().expect("clone"));
                while !head.ends_with("\r\n\r\n") {
                    assert!(reader.read_line(&mut head).expect("read") > 0);
                }
                heads.push(head.to_ascii_lowercase());
                stream.write_all(answer.as_bytes()).expect("write");
            }
            heads
        });
        (url, thread)
    }

    #[test]
    fn an_interrupted_download_is_resumed() {
        let answers = vec![
            "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 10\r\nConnection: close\r\n\r\n01234"
                .to_owned(),
            "HTTP/1.1 206 Partial Content\r\nETag: \"v1\"\r\nContent-Range: bytes 5-9/10\r\n\
             Content-Length: 5\r\nConnection: close\r\n\r\n56789"
                .to_owned(),
        ];
        let (url, server) = serve(answers);
        let temp = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::locate(Some(temp.path())).expect("cache");
        let sources = Sources { cache, offline: false };
        let source = Source::parse(&url).expect("source");
        let error = sources.pull(&source, false).map(|e| e.path).expect_err("cut off");
        assert!(format!("{error:#}").contains("resume"), "{error:#}");
        let entry = sources.pull(&source, false).expect("resumed");
        assert_eq!(fs::read(&entry.path).expect("read"), b"0123456789");
        assert_eq!(entry.manifest.bytes, 10);
        let heads = server.join().expect("server");
        assert!(!heads[0].contains("range:"), "{}", heads[0]);
        assert!(heads[1].contains("\r\nrange: bytes=5-\r\n"), "{}", heads[1]);
        assert!(heads[1].contains("\r\nif-range: \"v1\"\r\n"), "{}", heads[1]);
        // A second use starts no connection.
        assert_eq!(sources.resolve(&url).expect("cached"), entry.path);
        assert_eq!(fs::read_dir(temp.path().join("staging")).expect("read").count(), 0);
    }

    #[test]
    fn a_changed_file_starts_over_and_a_status_is_an_error() {
        let cut =
            "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 9\r\nConnection: close\r\n\r\nold";
        let new =
            "HTTP/1.1 200 OK\r\nETag: \"v2\"\r\nContent-Length: 3\r\nConnection: close\r\n\r\nnew";
        let gone = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let (url, server) = serve([cut, new, gone].map(str::to_owned).to_vec());
        let temp = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::locate(Some(temp.path())).expect("cache");
        let sources = Sources { cache, offline: false };
        let source = Source::parse(&url).expect("source");
        assert!(sources.pull(&source, false).is_err());
        let entry = sources.pull(&source, false).expect("second");
        assert_eq!(fs::read(&entry.path).expect("read"), b"new");
        let error = sources.pull(&source, true).map(|e| e.path).expect_err("gone");
        assert!(format!("{error:#}").contains("404"), "{error:#}");
        server.join().expect("server");
    }
}
