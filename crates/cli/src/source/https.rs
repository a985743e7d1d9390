//! A model file behind an `https://` URL.
//!
//! An interrupted download stays in the cache's staging folder and the next pull continues it with
//! a range request, provided that the server named a validator (ETag or Last-Modified) and still
//! has the same file. Plain `http://` is accepted for this machine only.

use std::fmt;

use anyhow::{Result, bail};
use sha2::{Digest, Sha256};

use super::cache::{Staging, hex};
use super::download::{Client, Known, Request};
use super::names::{safe_name, unique_key};
use super::partial::Partial;
use super::url::Url;
use super::{Expected, Fetched};

/// A URL, and the file name at its end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HttpsSource {
    url: Url,
    file: String,
}

impl HttpsSource {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let url = Url::parse(text)?;
        if url.file_name().is_empty() {
            bail!("`{url}`: expected https://host/…/file.gguf");
        }
        let file = safe_name(url.file_name());
        Ok(Self { url, file })
    }

    /// The file name, made unique by a hash of the URL.
    pub(crate) fn key(&self) -> String {
        unique_key(&format!("url-{}", self.file), &self.url.identity())
    }

    /// The key without the hash that makes it unique.
    pub(super) fn earlier_key(&self) -> String {
        let hash = hex(&Sha256::digest(self.url.identity()));
        format!("url-{}-{}", &hash[..8], self.file)
    }

    /// Downloads into `partial`, then moves the whole file into the staging folder.
    pub(super) fn fetch(
        &self,
        staging: &Staging,
        partial: &Partial,
        expected: Option<Expected>,
    ) -> Result<Fetched> {
        let known = expected.map_or_else(Known::default, |expected| Known {
            bytes: Some(expected.bytes),
            sha256: Some(expected.sha256.to_owned()),
        });
        let label = format!("pulling {}", self.file);
        let request =
            Request { url: &self.url, authorization: None, label: &label, known, attempts: 1 };
        let (bytes, sha256) = Client::new().file(&request, partial)?;
        let file = expected.map_or_else(|| self.file.clone(), |e| e.file.to_owned());
        partial.finish(&staging.model_dir().join(&file))?;
        Ok(Fetched { file: Some(file), files: Vec::new(), bytes, sha256: Some(sha256) })
    }
}

impl fmt::Display for HttpsSource {
    /// Without what may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Source, Sources, cache::Cache};
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
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
        assert!(key("https://h/a/m.gguf").starts_with("url-m.gguf-"));
        assert_ne!(key("https://h/a/m.gguf"), key("https://h/b/m.gguf"));
        // A query may choose the file, a password does not.
        assert_ne!(key("https://h/m.gguf?a"), key("https://h/m.gguf?b"));
        assert_eq!(key("https://u:p@h/m.gguf?a"), key("https://h/m.gguf?a"));
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
        let sources = Sources::new(Ok(cache), false);
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
        let sources = Sources::new(Ok(cache), false);
        let source = Source::parse(&url).expect("source");
        assert!(sources.pull(&source, false).is_err());
        let entry = sources.pull(&source, false).expect("second");
        assert_eq!(fs::read(&entry.path).expect("read"), b"new");
        let error = sources.pull(&source, true).map(|e| e.path).expect_err("gone");
        assert!(format!("{error:#}").contains("404"), "{error:#}");
        server.join().expect("server");
    }
}
