//! `GET /`: a page to chat with the models and to watch the metrics, and `GET /page/…`: the
//! parts of it that few visits need.
//!
//! The files are built from `web/` by `cargo xtask web`. They load nothing from elsewhere, and the
//! page's policy would not let them.

use crate::error::ApiError;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const PAGE: &str = include_str!("page/index.html");

/// Of the libraries that are built into the page.
const LICENSES: &str = include_str!("page/licenses.txt");

/// Modules beside the page, compressed by gzip: the worker that formats answers, and what it and the
/// page import when they need it to render formulas and to read PDFs.
const MODULES: [(&str, &[u8]); 3] = [
    ("markdown.js", include_bytes!("page/markdown.js.gz")),
    ("math.js", include_bytes!("page/math.js.gz")),
    ("pdf.js", include_bytes!("page/pdf.js.gz")),
];

/// A worker has a policy of its own: it loads modules of this server and nothing else.
const POLICY_OF_MODULES: &str = "default-src 'none'; script-src 'self'";

/// The page may load from and talk to only this server; what runs and styles it are the
/// two elements that it was built with, and modules of this server.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; script-src 'self' {}; worker-src 'self'; style-src {}; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source(PAGE, "<script type=\"module\">", "</script>"),
        source(PAGE, "<style>", "</style>"),
    );
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The hash by which a policy allows the text between two tags.
fn source(page: &str, open: &str, close: &str) -> String {
    let text = page.split_once(open).and_then(|(_, rest)| rest.split_once(close));
    let text = text.map_or("", |(text, _)| text);
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// What holds for all files of the page.
fn headers() -> [(HeaderName, HeaderValue); 3] {
    [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ]
}

/// Answers with the page.
pub(crate) async fn get() -> impl IntoResponse {
    (headers(), [(header::CONTENT_SECURITY_POLICY, POLICY.clone())], Html(PAGE))
}

/// Answers with another file of the page.
pub(crate) async fn module(
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name?;
    if name == "licenses.txt" {
        return Ok((headers(), LICENSES).into_response());
    }
    let module = MODULES.iter().find(|(own, _)| *own == name);
    let Some((_, bytes)) = module else {
        return Err(ApiError::unknown_url("GET", &format!("/page/{name}")));
    };
    let kind = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY_OF_MODULES)),
        (header::CONTENT_TYPE, HeaderValue::from_static("text/javascript; charset=utf-8")),
        (header::CONTENT_ENCODING, HeaderValue::from_static("gzip")),
    ];
    Ok((headers(), kind, *bytes).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest page, in bytes.
    const LIMIT: usize = 300_000;

    #[test]
    fn the_page_is_small_and_needs_nothing_from_elsewhere() {
        assert!(PAGE.starts_with("<!doctype html>"));
        assert!(PAGE.len() < LIMIT, "{} bytes", PAGE.len());
        let markup = PAGE.split_once("<style>").expect("a style").0;
        for absent in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!markup.contains(absent), "{absent}");
        }
        // Of what the script itself adds the policy takes care.
        assert_eq!(PAGE.matches("\n<script").count(), 1);
    }

    #[test]
    fn the_policy_names_the_texts_by_their_hashes() {
        let hash = source("<a>abc</a>", "<a>", "</a>");
        // NIST's example of SHA-256.
        assert_eq!(hash, "'sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0='");
        let policy = POLICY.to_str().expect("a text");
        assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("; worker-src 'self';"), "{policy}");
    }
}
