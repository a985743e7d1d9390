//! The Hugging Face hub over HTTP: a repository's listing at a revision, and its files.
//!
//! `HF_ENDPOINT` names a mirror. The token is found where the hub's own tools keep it and is sent
//! to the endpoint alone. Of their cache a file is taken instead of a download when it has the
//! SHA-256 that the hub names; nothing is written there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use ureq::http::HeaderValue;

use super::download::{Client, Known, Request, as_sha256, copy_known};
use super::names::{is_relative, relative};
use super::partial::Partial;
use super::url::Url;

const ENDPOINT: &str = "https://huggingface.co";
/// Bytes of a repository's listing, which has some 300 for a file.
const MAX_LISTING: u64 = 32 << 20;
/// Times that an answer or a file is tried for.
const ATTEMPTS: u32 = 4;

/// The hub, or a mirror of it.
pub(super) struct Hub {
    client: Client,
    endpoint: Url,
    authorization: Option<HeaderValue>,
    /// The cache of the hub's own tools.
    cache: Option<PathBuf>,
}

/// The files of a repository at one commit.
#[derive(Debug, PartialEq)]
pub(super) struct Listing {
    pub(super) commit: String,
    /// Those whose names can be paths.
    pub(super) files: Vec<HubFile>,
}

/// A file as the listing describes it.
#[derive(Debug, PartialEq)]
pub(super) struct HubFile {
    pub(super) name: String,
    known: Known,
}

/// `/api/models/OWNER/NAME/revision/REVISION`.
#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
}

impl Hub {
    /// The hub that the environment names, with the token and the cache of the user.
    pub(super) fn from_environment(var: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let var = |name: &str| var(name).filter(|value| !value.trim().is_empty());
        let endpoint = match var("HF_ENDPOINT") {
            Some(text) => Url::parse(text.trim()).context("HF_ENDPOINT")?,
            None => Url::parse(ENDPOINT)?,
        };
        let header = |token: String| {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value =
                value.map_err(|_| anyhow!("the hub token is not a single line of text"))?;
            value.set_sensitive(true);
            anyhow::Ok(value)
        };
        let authorization = token(var).map(header).transpose()?;
        Ok(Self { client: Client::new(), endpoint, authorization, cache: cache_dir(var) })
    }

    /// The files of a repository. All of a model come from the one commit that this names, even
    /// if the branch moves meanwhile.
    pub(super) fn list(&self, repo: &str, revision: &str) -> Result<Listing> {
        let revision = encoded(revision).replace('/', "%2F");
        let path = format!("api/models/{}/revision/{revision}?blobs=true", encoded(repo));
        let url = self.endpoint.below(&path)?;
        let text = self.client.text(&url, self.authorization.as_ref(), MAX_LISTING, ATTEMPTS)?;
        parse_listing(&text).with_context(|| format!("{url}: the listing"))
    }

    /// Downloads a file to `partial`; returns its length and SHA-256.
    pub(super) fn fetch(
        &self,
        repo: &str,
        commit: &str,
        file: &HubFile,
        partial: &Partial,
    ) -> Result<(u64, String)> {
        if partial.len() != file.known.bytes
            && let Some(path) = self.cached(repo, commit, &file.name)
            && copy_known(&path, &file.known, partial)?
        {
            tracing::info!("using {} from {}", file.name, path.display());
        }
        let path = format!("{}/resolve/{commit}/{}", encoded(repo), encoded(&file.name));
        let url = self.endpoint.below(&path)?;
        let label = format!("pulling {}", file.name);
        let known = file.known.clone();
        let authorization = self.authorization.as_ref();
        let request =
            Request { url: &url, authorization, label: &label, known, attempts: ATTEMPTS };
        self.client.file(&request, partial).with_context(|| format!("cannot fetch {}", file.name))
    }

    /// Where the cache of the hub's own tools has a file, if it does.
    fn cached(&self, repo: &str, commit: &str, file: &str) -> Option<PathBuf> {
        let repo = relative(&format!("models--{}", repo.replace('/', "--"))).ok()?;
        let snapshot = self.cache.as_ref()?.join(repo).join("snapshots").join(commit);
        Some(snapshot.join(relative(file).ok()?)).filter(|path| path.is_file())
    }
}

/// Reads a listing. Files whose names cannot be paths are left out.
fn parse_listing(text: &[u8]) -> Result<Listing> {
    let Info { sha: commit, siblings } = serde_json::from_slice(text)?;
    let is_hash = |text: &str| matches!(text.len(), 40 | 64) && is_hex(text);
    if !is_hash(&commit) {
        let shown: String = commit.chars().take(100).collect();
        bail!("expected a commit hash from the hub, found `{}`", shown.escape_debug());
    }
    let (siblings, odd): (Vec<_>, Vec<_>) =
        siblings.into_iter().partition(|file| is_relative(&file.rfilename));
    if !odd.is_empty() {
        tracing::info!("skipping {} files whose names are not valid paths", odd.len());
    }
    let files = siblings.into_iter().map(|file| {
        let sha256 = file.lfs.and_then(|lfs| as_sha256(&lfs.sha256?));
        HubFile { name: file.rfilename, known: Known { bytes: file.size, sha256 } }
    });
    Ok(Listing { commit, files: files.collect() })
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The path of a URL for a name: what has a meaning in URLs is escaped, but for `/`.
fn encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// The token from `HF_TOKEN`, the file `HF_TOKEN_PATH`, `$HF_HOME/token` or
/// `~/.cache/huggingface/token`.
fn token(var: impl Fn(&str) -> Option<String>) -> Option<String> {
    let clean = |text: String| {
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    if let Some(token) = var("HF_TOKEN").and_then(clean) {
        return Some(token);
    }
    let path = if let Some(path) = var("HF_TOKEN_PATH") {
        PathBuf::from(path)
    } else {
        home(&var)?.join("token")
    };
    fs::read_to_string(path).ok().and_then(clean)
}

/// Where the hub's own tools keep repositories.
fn cache_dir(var: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    match var("HF_HUB_CACHE") {
        Some(dir) => Some(PathBuf::from(dir)),
        None => Some(home(&var)?.join("hub")),
    }
}

fn home(var: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    match var("HF_HOME") {
        Some(dir) => Some(PathBuf::from(dir)),
        None => {
            let user = var("HOME").or_else(|| var("USERPROFILE"))?;
            Some(Path::new(&user).join(".cache/huggingface"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_checked() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let sha256 = "A".repeat(64);
        let list = |sha: &str, names: &[&str]| {
            let file = |name: &&str| serde_json::json!({"rfilename": name, "size": 3, "lfs": {"sha256": sha256}});
            let files: Vec<_> = names.iter().map(file).collect();
            parse_listing(serde_json::json!({"sha": sha, "siblings": files}).to_string().as_bytes())
        };
        let odd = ["../x", "/etc/x", "a/../../x", "C:x", "a\\b", "a\0", "", "ok/m.gguf"];
        let listing = list(commit, &odd).expect("a listing");
        let known = Known { bytes: Some(3), sha256: Some("a".repeat(64)) };
        assert_eq!(listing.files, [HubFile { name: "ok/m.gguf".to_owned(), known }]);
        assert_eq!(listing.commit, commit);
        for sha in ["../../x", "/x", "main", "", &"g".repeat(40), &"a".repeat(41), "\u{1b}[2J"] {
            let error = list(sha, &[]).expect_err(sha).to_string();
            assert!(
                error.contains("expected a commit hash") && !error.contains('\u{1b}'),
                "{error}"
            );
        }
        // What is not a checksum is none; a mirror may leave out lengths.
        let text = format!(
            r#"{{"sha":"{commit}","siblings":[{{"rfilename":"a","lfs":{{"sha256":"../x"}}}},
               {{"rfilename":"b","size":null,"lfs":null}}]}}"#
        );
        let listing = parse_listing(text.as_bytes()).expect("a listing");
        assert!(listing.files.iter().all(|file| file.known == Known::default()), "{listing:?}");
        assert!(parse_listing(b"[]").is_err());
    }

    #[test]
    fn names_in_urls() {
        for (name, want) in [
            ("a/b-1_c.~gguf", "a/b-1_c.~gguf"),
            ("a b?c#d%2e", "a%20b%3Fc%23d%252e"),
            ("ü@:", "%C3%BC%40%3A"),
        ] {
            assert_eq!(encoded(name), want);
        }
    }

    #[test]
    fn token_from_the_usual_places() {
        let temp = tempfile::tempdir().expect("temporary directory");
        fs::write(temp.path().join("token"), "from-file\n").expect("write");
        let home = temp.path().display().to_string();
        let check = |vars: &[(&str, &str)], want: Option<&str>| {
            let found = token(|name| {
                vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            });
            assert_eq!(found.as_deref(), want);
        };
        check(&[("HF_TOKEN", " t "), ("HF_HOME", &home)], Some("t"));
        check(&[("HF_TOKEN", ""), ("HF_HOME", &home)], Some("from-file"));
        check(&[("HOME", &home)], None);
    }

    #[test]
    fn what_the_environment_names() {
        let hub = |vars: &'static [(&str, &str)]| {
            Hub::from_environment(|name| {
                let found = vars.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let cache = |vars| hub(vars).expect("a hub").cache;
        assert_eq!(cache(&[]), None);
        assert_eq!(cache(&[("HOME", "/h")]), Some("/h/.cache/huggingface/hub".into()));
        assert_eq!(cache(&[("USERPROFILE", "/u")]), Some("/u/.cache/huggingface/hub".into()));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "/f")]), Some("/f/hub".into()));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), Some("/c".into()));
        for (vars, want) in [
            (&[("HF_ENDPOINT", "http://mirror/")][..], "use https"),
            (&[("HF_ENDPOINT", "mirror")], "is not a URL"),
            (&[("HF_TOKEN", "secret\nX-Header: 1")], "not a single line of text"),
        ] {
            let error = hub(vars).err().expect("an error");
            let error = format!("{error:#}");
            assert!(error.contains(want) && !error.contains("secret"), "{error}");
        }
    }
}
