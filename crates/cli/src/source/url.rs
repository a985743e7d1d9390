//! URLs as the HTTP client reads them: which are fetched, where a redirect leads, and what of a
//! URL may be shown and kept.
//!
//! A name and password, and a query, are often secrets. They are sent to their host and appear in
//! no message, log or file.

use std::fmt;

use anyhow::{Context, Result, anyhow, bail};
use ureq::http::Uri;

/// Stands for a query that is left out.
const LEFT_OUT: &str = "?…";

/// An `https` URL, or an `http` URL of this machine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Url {
    uri: Uri,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let shown = redacted(text);
        if text.ends_with(LEFT_OUT) {
            bail!("`{shown}`: the query is not shown, as it may hold a secret; give the whole URL");
        }
        let uri: Uri = text.parse().map_err(|e| anyhow!("`{shown}` is not a URL: {e}"))?;
        let Some((scheme, authority)) = uri.scheme_str().zip(uri.authority()) else {
            bail!("`{shown}` is not a URL");
        };
        let host = authority.host();
        // What the parser of the client leaves open: where the host and the port end.
        let place = authority.as_str().rsplit('@').next().unwrap_or_default();
        let port = place.strip_prefix(host).unwrap_or(place);
        let is_port = |text: &str| {
            text.is_empty()
                || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
        };
        if host.is_empty() || !is_port(port) {
            bail!("`{shown}`: expected a host, and a port from 0 to 65535 if there is one");
        }
        match scheme {
            "https" => {}
            "http" if is_local(host) => {}
            "http" => bail!("`{shown}`: plain http is not accepted, use https"),
            _ => bail!("`{shown}`: unknown scheme {scheme}, expected https, hf: or pip:"),
        }
        Ok(Self { uri })
    }

    /// The URL that a redirect from here names (RFC 3986, section 5.2.2).
    pub(super) fn join(&self, location: &str) -> Result<Self> {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let path = self.uri.path();
        let location = location.split('#').next().unwrap_or_default();
        let has_scheme = location.split_once(':').is_some_and(|(scheme, _)| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        });
        let text = if has_scheme {
            location.to_owned()
        } else if location.starts_with("//") {
            format!("{scheme}:{location}")
        } else if location.starts_with('/') {
            format!("{scheme}://{authority}{location}")
        } else if location.is_empty() || location.starts_with('?') {
            format!("{scheme}://{authority}{path}{location}")
        } else {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{location}")
        };
        let joined = Self::parse(&text).context("the server redirects to an unsupported URL")?;
        if self.is_https() && !joined.is_https() {
            bail!("the server redirects to {joined}, and plain http is not accepted");
        }
        if joined.user_info().is_some() && joined.user_info() != self.user_info() {
            bail!("the server redirects to {joined} with a name and password of its own");
        }
        Ok(joined)
    }

    /// The URL of a resource below this one; `path` is encoded where it has to be.
    pub(super) fn below(&self, path: &str) -> Result<Self> {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let base = self.uri.path().trim_end_matches('/');
        Self::parse(&format!("{scheme}://{authority}{base}/{path}"))
    }

    /// The same scheme, host and port: where credentials for one may go to the other.
    pub(super) fn same_origin(&self, other: &Self) -> bool {
        let origin = |url: &Self| {
            let is_https = url.uri.scheme_str() == Some("https");
            let port = url.uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
            (is_https, url.uri.host().unwrap_or_default().to_ascii_lowercase(), port)
        };
        origin(self) == origin(other)
    }

    pub(super) fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// What follows the last `/` of the path.
    pub(super) fn file_name(&self) -> &str {
        self.uri.path().rsplit('/').next().unwrap_or_default()
    }

    /// All of it but the name and password: two resources have two of these.
    pub(super) fn identity(&self) -> String {
        self.without_user_info(self.uri.query().map(|query| format!("?{query}")))
    }

    /// All of it, for the client.
    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    fn user_info(&self) -> Option<&str> {
        Some(self.uri.authority()?.as_str().rsplit_once('@')?.0)
    }

    fn without_user_info(&self, query: Option<String>) -> String {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let place = authority.rsplit('@').next().unwrap_or_default();
        format!("{scheme}://{place}{}{}", self.uri.path(), query.unwrap_or_default())
    }
}

impl fmt::Display for Url {
    /// Without the name and password, and with a mark for a query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_user_info(self.uri.query().map(|_| LEFT_OUT.to_owned())))
    }
}

/// Names of this machine, as the client spells the host of a URL.
pub(crate) fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || matches!(host, "127.0.0.1" | "[::1]")
}

/// What may be shown of a text that was meant to be a URL.
pub(super) fn redacted(text: &str) -> String {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let left_out = if text[end..].starts_with('?') { LEFT_OUT } else { "" };
    let text = &text[..end];
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let separator = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{separator}{rest}{left_out}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_for_this_machine_only() {
        let check = |text: &str, want: &str| match Url::parse(text) {
            Ok(url) => assert_eq!(url.to_string(), want, "{text}"),
            Err(error) => {
                let error = format!("{error:#}");
                assert!(
                    want.starts_with("error ") && error.contains(&want[6..]),
                    "{text}: {error}"
                );
            }
        };
        for url in [
            "https://h/a/m.gguf",
            "https://h:8443/m.gguf",
            "http://127.0.0.1:80/m.gguf",
            "http://[::1]:80/m.gguf",
            "http://localhost/m.gguf",
        ] {
            check(url, url);
        }
        check("https://h/m.gguf#part", "https://h/m.gguf");
        // Secrets are not shown.
        check("https://u:p@h/m.gguf?token=s", "https://h/m.gguf?…");
        check("http://u:p@localhost:1/m.gguf", "http://localhost:1/m.gguf");
        for (text, want) in [
            ("http://h/m.gguf", "error use https"),
            // The host is what the client connects to.
            ("http://localhost:x@host/m.gguf", "error `http://host/m.gguf`: plain http"),
            ("http://localhost@host/m.gguf", "error `http://host/m.gguf`: plain http"),
            ("http://127.0.0.1:80@host:80/m.gguf", "error `http://host:80/m.gguf`: plain http"),
            ("http://[::1]@host/m.gguf", "error `http://host/m.gguf`: plain http"),
            ("http://localhost.host/m.gguf", "error plain http"),
            ("http://localhost:x/m.gguf", "error a port"),
            ("http://localhost:99999/m.gguf", "error "),
            ("http://host\\@localhost/m.gguf", "error is not a URL"),
            ("http://127.0.0.1#@host/m.gguf?s", "http://127.0.0.1/"),
            ("ftp://u:s3cret@h/m.gguf?s3cret", "error unknown scheme ftp"),
            ("https:///m.gguf", "error "),
            ("https://h/m.gguf?…", "error give the whole URL"),
        ] {
            check(text, want);
            if let Err(error) = Url::parse(text) {
                assert!(!format!("{error:#}").contains("s3cret"), "{error:#}");
            }
        }
    }

    #[test]
    fn redirects_are_resolved_and_checked() {
        let base = Url::parse("https://u:p@h/a/b?q=1").expect("a URL");
        let check = |location: &str, want: Option<&str>| {
            let joined = base.join(location).map(|url| url.uri.to_string());
            assert_eq!(joined.ok().as_deref(), want, "{location}");
        };
        check("https://cdn/x?y=1", Some("https://cdn/x?y=1"));
        check("//cdn/x", Some("https://cdn/x"));
        check("/x", Some("https://u:p@h/x"));
        check("c/d?e", Some("https://u:p@h/a/c/d?e"));
        check("?e", Some("https://u:p@h/a/b?e"));
        check("http://cdn/x", None);
        // A server elsewhere sends nobody to this machine.
        check("http://127.0.0.1/x", None);
        check("http://localhost:x@cdn/x", None);
        check("file:///etc/passwd", None);
        check("https://x:y@cdn/x", None);
        let local = Url::parse("http://127.0.0.1:1/a").expect("a URL");
        assert!(local.join("http://cdn/x").is_err());
        assert!(local.join("//cdn/x").is_err());
        assert!(local.join("https://cdn/x").is_ok());
    }

    #[test]
    fn origins() {
        let url = |text: &str| Url::parse(text).expect(text);
        let base = url("https://H/a");
        assert!(base.same_origin(&url("https://h:443/b?c")));
        for other in ["https://h:444/a", "https://h.x/a", "https://x.h/a"] {
            assert!(!base.same_origin(&url(other)), "{other}");
        }
        assert!(!url("http://localhost/").same_origin(&url("https://localhost/")));
    }
}
