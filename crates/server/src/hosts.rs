//! Which hosts and origins a server answers that asks for no key.
//!
//! A page of any site may let a browser send requests here: to the address itself, which its
//! `Origin` gives away, or to a name of its own that its DNS points to this machine (DNS
//! rebinding), which the `Host` gives away. A host that is an IP address cannot be rebound, so all
//! of them are answered: probes of pods and of load balancers, and ports that a container or a
//! router forwards. Names are answered if they name this machine or are allowed.
//!
//! Routes that only use models answer more: names that no site of the internet can have, origins of
//! programs on this machine, and pages of this machine at any port. Which routes these are is said
//! where routes are listed, in `app`. Everything else, what starts programs or changes which models
//! are loaded first of all, is for the server's own pages and those that are allowed.

use crate::config::ServerConfig;
use crate::error::{ApiError, Error};
use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::Authority;
use axum::http::{Extensions, HeaderMap, HeaderValue, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Routes open to anyone: whether the server is up and ready, and nothing else.
pub(crate) const PROBES: [&str; 4] = ["/health", "/live", "/ping", "/ready"];

/// Names below these are given by a local network or by a container's host, never by the DNS of the
/// internet: RFC 6762 for `local`, ICANN's reservation for `internal`.
const LOCAL_DOMAINS: [&str; 2] = [".local", ".internal"];

/// Schemes of pages that a program on this machine brings along.
const PROGRAM_SCHEMES: [&str; 5] = ["app", "file", "tauri", "vscode-file", "vscode-webview"];

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// It only uses models.
    Models,
    /// Everything else.
    Own,
}

/// The routes that only use models.
#[derive(Debug, Clone)]
pub(crate) struct ModelRoutes(Arc<BTreeSet<&'static str>>);

impl ModelRoutes {
    pub(crate) fn new(paths: impl IntoIterator<Item = &'static str>) -> Self {
        Self(Arc::new(paths.into_iter().collect()))
    }

    /// Whether the route that was found for a request is one of them.
    fn has(&self, extensions: &Extensions) -> bool {
        extensions.get::<MatchedPath>().is_some_and(|path| self.0.contains(path.as_str()))
    }

    /// Whether pages of an origin may use the route of a request without being allowed.
    pub(crate) fn admit(&self, origin: &HeaderValue, extensions: &Extensions) -> bool {
        let is_near = origin.to_str().is_ok_and(|origin| is_local(origin) || is_program(origin));
        is_near && self.has(extensions)
    }
}

/// The hosts and origins that are answered.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    rules: Arc<Rules>,
    model_routes: ModelRoutes,
}

#[derive(Debug)]
struct Rules {
    /// Names in small letters; one that begins with a dot stands for all names below it.
    names: Vec<String>,
    /// Further names, for models.
    local_names: Vec<String>,
    any_name: bool,
    /// Origins as `--cors-origin` has them.
    origins: Vec<String>,
}

impl Hosts {
    /// The rules of a server; `None` where a key is requested, which no page of another site has,
    /// and no hosts are listed.
    ///
    /// # Errors
    /// If an allowed host is not a name.
    pub(crate) fn of(
        config: &ServerConfig,
        model_routes: ModelRoutes,
    ) -> Result<Option<Self>, Error> {
        if !config.api_keys.is_empty() && config.allowed_hosts.is_empty() {
            return Ok(None);
        }
        let hostname = hostname::get().unwrap_or_default();
        let rules = Arc::new(Rules::of(config, &hostname.to_string_lossy())?);
        Ok(Some(Self { rules, model_routes }))
    }

    /// Refuses a request that is not of one of the server's own pages, of one that is allowed, or
    /// of a program.
    pub(crate) fn check_own(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        self.rules.check(&Uri::default(), headers, Access::Own)
    }
}

impl Rules {
    /// The rules of a machine with this name.
    fn of(config: &ServerConfig, hostname: &str) -> Result<Self, Error> {
        let any_name = config.allowed_hosts.iter().any(|name| name == "*");
        let mut names = vec!["localhost".to_owned(), ".localhost".to_owned()];
        names.push(config.host.to_ascii_lowercase());
        for name in config.allowed_hosts.iter().filter(|name| *name != "*") {
            let plain = name.strip_prefix('.').unwrap_or(name);
            let parsed = plain.parse::<Authority>();
            let is_name = !plain.contains('*') && parsed.is_ok_and(|a| a.as_str() == a.host());
            if !is_name {
                let reason =
                    format!("`{name}` is not a name: write NAME, .DOMAIN or *, without a port");
                return Err(Error::Config { setting: "allowed_hosts", reason });
            }
            names.push(name.to_ascii_lowercase());
        }
        let mut local_names: Vec<String> =
            LOCAL_DOMAINS.iter().map(|&domain| domain.to_owned()).collect();
        let hostname = hostname.to_ascii_lowercase();
        // The machine's name, and its first part alone.
        let first = hostname.split('.').next().unwrap_or_default();
        local_names.extend([first, &hostname].map(str::to_owned));
        local_names.retain(|name| !name.is_empty());
        Ok(Self { names, local_names, any_name, origins: config.allowed_origins.clone() })
    }

    fn allows_name(&self, host: &str, access: Access) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let fits = |name: &String| match name.strip_prefix('.') {
            None => host == *name,
            Some(_) => host.len() > name.len() && host.ends_with(name.as_str()),
        };
        self.any_name
            || is_address(&host)
            || self.names.iter().any(fits)
            || access == Access::Models && self.local_names.iter().any(fits)
    }

    /// Whether the page of an origin may use this server, which it calls `host`.
    fn allows_origin(
        &self,
        origin: &HeaderValue,
        host: Option<&Authority>,
        access: Access,
    ) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        if access == Access::Models && (is_local(origin) || is_program(origin)) {
            return true;
        }
        let listed = |allowed: &String| {
            allowed == "*" || allowed == origin || allowed == "localhost" && is_local(origin)
        };
        if self.origins.iter().any(listed) {
            return true;
        }
        // Proxies may have turned `https` into `http`, so that the scheme tells nothing.
        let Ok(uri) = origin.parse::<Uri>() else { return false };
        let (Some(scheme), Some(page)) = (uri.scheme_str(), uri.authority()) else { return false };
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return false,
        };
        let is_own = host.is_some_and(|host| {
            let port = |a: &Authority| a.port_u16().unwrap_or(default_port);
            page.host().eq_ignore_ascii_case(host.host()) && port(page) == port(host)
        });
        // A name that is listed as a host stands for its pages at any port, but for those of this
        // machine: other programs serve pages there.
        let name = page.host().to_ascii_lowercase();
        let is_listed = !is_local(origin) && !is_address(&name) && !is_localhost(&name);
        is_own || is_listed && self.allows_name(&name, Access::Own)
    }

    fn check(&self, uri: &Uri, headers: &HeaderMap, access: Access) -> Result<(), ApiError> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (host, other) = (hosts.next(), hosts.next());
        let unknown = |shown: &str| {
            ApiError::forbidden(format!(
                "the host `{shown}` is not a name of this server{}; without API keys it answers \
                 localhost, IP addresses and the names that `--allowed-hosts` lists",
                access.scope()
            ))
        };
        if other.is_some() {
            return Err(ApiError::forbidden("the request has several `host` headers"));
        }
        // Only clients that are not browsers send none, such as probes with HTTP/1.0.
        let host = match host {
            None => uri.authority().cloned(),
            Some(value) => {
                let host = Authority::try_from(value.as_bytes());
                let shown = || String::from_utf8_lossy(value.as_bytes()).into_owned();
                let host = host.ok().filter(is_plain);
                Some(host.ok_or_else(|| unknown(&shown()))?)
            }
        };
        for host in host.iter().chain(uri.authority()) {
            if !self.allows_name(host.host(), access) {
                return Err(unknown(host.host()));
            }
        }
        for origin in headers.get_all(header::ORIGIN) {
            if !self.allows_origin(origin, host.as_ref(), access) {
                let shown = String::from_utf8_lossy(origin.as_bytes());
                return Err(ApiError::forbidden(format!(
                    "pages from `{shown}` may not use this server{}; `--cors-origin` and \
                     `--allowed-hosts` allow them",
                    access.scope()
                )));
            }
        }
        Ok(())
    }
}

impl Access {
    /// What a refusal is about, for its message.
    fn scope(self) -> &'static str {
        match self {
            Self::Models => "",
            Self::Own => " for more than its models",
        }
    }
}

/// Whether an authority is a host and a port and nothing else, as `user@host` and `[::1].name` are.
fn is_plain(authority: &Authority) -> bool {
    let port = authority.as_str().strip_prefix(authority.host());
    port.is_some_and(|port| port.is_empty() || port.starts_with(':'))
}

fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether a host is an IP address, as URLs write it.
fn is_address(host: &str) -> bool {
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match v6 {
        Some(host) => host.parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<IpAddr>().is_ok(),
    }
}

/// Refuses requests for other hosts, and those of other sites' pages.
pub(crate) async fn check(
    State(hosts): State<Hosts>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let is_probe = PROBES.contains(&request.uri().path());
    if !is_probe {
        let access = match hosts.model_routes.has(request.extensions()) {
            true => Access::Models,
            false => Access::Own,
        };
        let checked = hosts.rules.check(request.uri(), request.headers(), access);
        checked.inspect_err(|error| tracing::warn!("refused a request: {error}"))?;
    }
    Ok(next.run(request).await)
}

/// Whether an origin is a page that a program on this machine brings along. `null` is none: any site
/// can have it.
fn is_program(origin: &str) -> bool {
    let scheme = origin.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| PROGRAM_SCHEMES.contains(&scheme.as_str()))
}

/// Whether an origin is a page of this machine, at any port.
pub(crate) fn is_local(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let Some(host) = host else { return false };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let host =
        host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(host, _)| host);
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(hosts: &[&str], origins: &[&str]) -> Rules {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let config = ServerConfig {
            host: "Box.lan".to_owned(),
            allowed_hosts: list(hosts),
            allowed_origins: list(origins),
            ..ServerConfig::default()
        };
        Rules::of(&config, "Desk.example").expect("names")
    }

    fn check(rules: &Rules, access: Access, host: Option<&str>, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_str(value).expect("a value"));
            }
        }
        rules.check(&Uri::from_static("/v1/models"), &headers, access).is_ok()
    }

    #[test]
    fn pages_of_this_machine_are_known_by_their_host() {
        for (origin, local) in [
            ("http://localhost", true),
            ("https://localhost:8443", true),
            ("http://127.0.0.1:3000", true),
            ("http://[::1]", true),
            ("http://[::1]:80", true),
            ("http://localhost.evil", false),
            ("http://localhost:", false),
            ("http://evil:80", false),
            ("http://evil@localhost", false),
            ("file://localhost", false),
            ("localhost", false),
            ("null", false),
        ] {
            assert_eq!(is_local(origin), local, "{origin}");
        }
    }

    #[test]
    fn names_of_this_machine_and_addresses_are_answered() {
        let rules = rules(&["llm.example", ".svc"], &[]);
        for (host, want) in [
            ("localhost:8080", true),
            ("LOCALHOST", true),
            ("a.b.localhost", true),
            ("localhost.:80", true),
            ("127.0.0.1:8080", true),
            ("10.1.2.3", true),
            ("[::1]:8080", true),
            ("box.LAN:1", true),
            ("llm.example", true),
            ("LLM.example:443", true),
            ("x.svc", true),
            ("a.x.svc:8000", true),
            ("svc", false),
            (".svc", false),
            ("xsvc", false),
            ("evil", false),
            ("evil.llm.example", false),
            ("localhost.evil", false),
            ("notlocalhost", false),
            ("127.0.0.1.evil", false),
            ("[::1].evil", false),
            ("2130706433", false),
            ("", false),
            ("a b", false),
            ("localhost@evil", false),
        ] {
            for access in [Access::Own, Access::Models] {
                assert_eq!(check(&rules, access, Some(host), None), want, "{host} {access:?}");
            }
        }
        assert!(check(&rules, Access::Own, None, None), "a probe with HTTP/1.0");
        let other = Uri::from_static("http://evil/v1/models");
        assert!(rules.check(&other, &HeaderMap::new(), Access::Models).is_err());
    }

    #[test]
    fn several_hosts_are_refused() {
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        headers.append(header::HOST, HeaderValue::from_static("evil"));
        let rules = rules(&["*"], &[]);
        let error = rules.check(&Uri::from_static("/"), &headers, Access::Models).unwrap_err();
        assert_eq!(error.status().as_u16(), 403);
    }

    #[test]
    fn pages_of_the_server_and_of_allowed_sites_may_use_it() {
        let closed = rules(&["llm.example"], &["https://chat.example", "null"]);
        for (host, origin, want) in [
            ("localhost:8080", "http://localhost:8080", true),
            ("localhost:8080", "http://LOCALHOST:8080", true),
            ("localhost", "http://localhost", true),
            ("localhost", "http://localhost:80", true),
            ("localhost:8080", "http://localhost:3000", false),
            ("localhost:8080", "http://127.0.0.1:8080", false),
            ("10.0.0.1:8080", "http://10.0.0.1:8080", true),
            ("10.0.0.1:8080", "http://10.0.0.2:8080", false),
            ("llm.example", "https://llm.example", true),
            ("10.0.0.1:8080", "https://llm.example:99", true),
            ("localhost:8080", "https://chat.example", true),
            ("localhost:8080", "http://chat.example", false),
            ("localhost:8080", "null", true),
            ("localhost:8080", "http://evil", false),
            ("localhost:8080", "file://localhost:8080", false),
            ("localhost:8080", "http://localhost:8080@evil", false),
            ("localhost:8080", "", false),
        ] {
            assert_eq!(
                check(&closed, Access::Own, Some(host), Some(origin)),
                want,
                "{host} {origin}"
            );
        }
        let local = rules(&[], &["localhost"]);
        let own = Access::Own;
        assert!(check(&local, own, Some("localhost:8080"), Some("http://127.0.0.1:3000")));
        assert!(!check(&local, own, Some("localhost:8080"), Some("null")));
        let all = rules(&["*"], &["*"]);
        assert!(check(&all, own, Some("evil"), Some("http://evil")));
    }

    #[test]
    fn models_are_for_names_and_programs_of_this_machine_too() {
        let rules = rules(&[], &[]);
        let only_models = |host: &str, origin: Option<&str>, want: bool| {
            let found = check(&rules, Access::Models, Some(host), origin);
            assert_eq!(found, want, "{host} {origin:?}");
            assert!(!check(&rules, Access::Own, Some(host), origin), "{host} {origin:?}");
        };
        for (host, want) in [
            ("host.docker.internal:8080", true),
            ("desk.local", true),
            ("Desk.example:8080", true),
            ("desk", true),
            ("desk.example.", true),
            ("local", false),
            ("internal", false),
            (".local", false),
            ("desk.local.evil", false),
            ("desklocal", false),
            ("x.desk.example", false),
            ("desk2", false),
        ] {
            only_models(host, None, want);
            only_models(host, Some(&format!("http://{host}")), want);
        }
        for (origin, want) in [
            ("app://localhost", true),
            ("app://obsidian.md", true),
            ("file://", true),
            ("tauri://localhost", true),
            ("vscode-webview://1a2b", true),
            ("vscode-file://vscode-app", true),
            ("http://localhost:3000", true),
            ("https://127.0.0.1:8443", true),
            ("http://[::1]:5173", true),
            ("null", false),
            ("http://localhost.evil", false),
            ("https://app", false),
            ("app", false),
            ("apps://x", false),
            ("chrome-extension://x", false),
            ("http://evil", false),
        ] {
            only_models("localhost:8080", Some(origin), want);
            // A name that is not this machine's is refused whatever the page.
            only_models("evil", Some(origin), false);
        }
        // A page of a local name is its own server's, and no page of others.
        only_models("localhost:8080", Some("http://desk.local:8080"), false);
        only_models("desk.local:8080", Some("http://other.local:8080"), false);
    }

    #[test]
    fn a_machine_without_a_name_has_none() {
        let rules = Rules::of(&ServerConfig::default(), "").expect("names");
        assert!(!check(&rules, Access::Models, Some("evil"), None));
        assert!(check(&rules, Access::Models, Some("desk.local"), None));
    }

    #[test]
    fn hosts_are_names_without_ports() {
        for (name, ok) in [
            ("a.example", true),
            (".example", true),
            ("*", true),
            ("10.0.0.1", true),
            ("", false),
            (".", false),
            ("a:80", false),
            ("http://a", false),
            ("a/b", false),
            ("u@a", false),
            ("*.a", false),
        ] {
            let allowed_hosts = vec![name.to_owned()];
            let config = ServerConfig { allowed_hosts, ..ServerConfig::default() };
            assert_eq!(Rules::of(&config, "").is_ok(), ok, "{name}");
        }
        let api_keys = vec!["k".to_owned()];
        let config = ServerConfig { api_keys, ..ServerConfig::default() };
        let hosts = Hosts::of(&config, ModelRoutes::new([])).expect("no names");
        assert!(hosts.is_none());
    }
}
