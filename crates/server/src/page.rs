//! `GET /`: a page to chat with the models and to watch the metrics, in one file without any
//! resources from elsewhere.

use axum::http::{HeaderName, header};
use axum::response::{Html, IntoResponse};

/// The page may load nothing and talk to nobody but this server.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Answers with the page.
pub(crate) async fn get() -> impl IntoResponse {
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(include_str!("page/index.html")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = include_str!("page/index.html");
        assert!(page.starts_with("<!doctype html>"));
        for absent in ["http://", "https://", "src=", "@import", "url("] {
            // The name space of SVG is a name, not a place.
            let page = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(absent), "{absent}");
        }
    }
}
