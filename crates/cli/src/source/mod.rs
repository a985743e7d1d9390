//! Model sources: what a model argument may be, and how it becomes a path on this machine.
//!
//! [`Source::parse`] reads the argument and touches nothing; [`Sources::resolve`] returns the
//! path, fetching the model first where that is needed and allowed. One file per kind of source
//! lives beside this one; the cache's layout is in `cache.rs`.

pub(crate) mod alias;
pub(crate) mod cache;
mod download;
mod hf;
mod https;
mod hub;
mod names;
mod partial;
mod pip;
pub(crate) mod progress;
mod url;
mod wheel;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use realizar_runtime::ByteSize;

use alias::Alias;
use cache::{Cache, Entry, FileOf, Manifest};
use partial::Partial;

/// A model argument, parsed.
#[derive(Debug)]
pub(crate) enum Source {
    /// A file or directory on this machine.
    Path(PathBuf),
    /// A row of the alias table.
    Alias(&'static Alias),
    /// A model inside one or several Python packages.
    Pip(pip::PipSource),
    /// A file or repository of the model hub.
    Hf(hf::HfSource),
    /// A file behind a URL.
    Https(https::HttpsSource),
}

impl Source {
    /// Reads a model argument: a scheme decides first, then the alias table; everything else is a
    /// path (`./smollm2` is a path even though `smollm2` is an alias).
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            bail!("the model argument is empty");
        }
        if let Some(rest) = text.strip_prefix("pip:") {
            return pip::PipSource::parse(rest).map(Self::Pip);
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            return hf::HfSource::parse(rest).map(Self::Hf);
        }
        if text.contains("://") {
            return https::HttpsSource::parse(text).map(Self::Https);
        }
        Ok(match alias::find(text) {
            Some(alias) => Self::Alias(alias),
            None => Self::Path(PathBuf::from(text)),
        })
    }

    /// Name of the cache folder; `None` for a path.
    fn key(&self) -> Option<String> {
        match self {
            Self::Path(_) => None,
            Self::Alias(alias) => Some(names::safe_name(alias.name)),
            Self::Pip(source) => Some(source.key()),
            Self::Hf(source) => Some(source.key()),
            Self::Https(source) => Some(source.key()),
        }
    }
}

impl Source {
    /// Name of the cache folder of a model of one file, without the hash of the whole source: earlier
    /// builds had such names.
    fn earlier_key(&self) -> Option<String> {
        match self {
            Self::Path(_) | Self::Alias(_) | Self::Hf(_) => None,
            Self::Pip(source) => Some(names::safe_name(&source.to_string())),
            Self::Https(source) => Some(source.earlier_key()),
        }
    }
}

/// What may be shown of a model argument: without the name, password and query of a URL.
pub(crate) fn shown(text: &str) -> String {
    if text.contains("://") { url::redacted(text) } else { text.to_owned() }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Alias(alias) => f.write_str(alias.name),
            Self::Pip(source) => write!(f, "{source}"),
            Self::Hf(source) => write!(f, "{source}"),
            Self::Https(source) => write!(f, "{source}"),
        }
    }
}

/// What the final file of a pull must be; known for aliases only.
#[derive(Clone, Copy)]
struct Expected {
    file: &'static str,
    bytes: u64,
    sha256: &'static str,
}

/// What a fetcher left in the staging folder.
struct Fetched {
    /// File in the model folder; `None` when the folder is the model.
    file: Option<String>,
    /// All files, where there may be several.
    files: Vec<FileOf>,
    bytes: u64,
    sha256: Option<String>,
}

/// Resolves model arguments against one cache.
pub(crate) struct Sources {
    pub(crate) cache: Cache,
    /// When set, no process and no connection is started.
    pub(crate) offline: bool,
}

impl Sources {
    /// The path of the model that `text` names, pulled into the cache if it is not there.
    pub(crate) fn resolve(&self, text: &str) -> Result<PathBuf> {
        match Source::parse(text)? {
            Source::Path(path) => {
                check_path(&path)?;
                Ok(path)
            }
            source => self.pull(&source, false).map(|entry| entry.path),
        }
    }

    /// The cache entry of a remote source, fetched when it is missing or when `force` is set.
    pub(crate) fn pull(&self, source: &Source, force: bool) -> Result<Entry> {
        if let Source::Path(path) = source {
            check_path(path)?;
        }
        let key = source
            .key()
            .ok_or_else(|| anyhow!("{source} is a path; only remote models are pulled"))?;
        if !force && let Some(entry) = self.cache.get(&key) {
            return Ok(entry);
        }
        if self.offline {
            bail!(
                "{source} is not in the cache {} and --offline forbids fetching it; \
                 run `realizar pull {source}` while online",
                self.cache.root().display()
            );
        }
        let _lock = self.cache.lock(&key, || {
            crate::ui::note(&format!("waiting for another process that pulls {source}"));
        })?;
        if !force {
            if let Some(entry) = self.cache.get(&key) {
                return Ok(entry);
            }
            if let Some(earlier) = source.earlier_key()
                && let Some(entry) = self.cache.adopt(&earlier, &key, &source.to_string())?
            {
                return Ok(entry);
            }
        }
        match source {
            Source::Alias(alias) => self.pull_alias(alias, &key),
            _ => self.fetch(source, &key, None).with_context(|| format!("cannot pull {source}")),
        }
    }

    /// Tries the sources of an alias in order; the error tells what became of each.
    fn pull_alias(&self, alias: &'static Alias, key: &str) -> Result<Entry> {
        let expected = Expected { file: alias.file, bytes: alias.bytes, sha256: alias.sha256 };
        let mut failures = Vec::new();
        for text in alias.sources {
            let source = Source::parse(text)?;
            tracing::info!("pulling {} from {source}", alias.name);
            match self.fetch(&source, key, Some((alias, expected))) {
                Ok(entry) => return Ok(entry),
                Err(error) => failures.push(format!("from {source}: {error:#}")),
            }
        }
        bail!("cannot pull {}: {}", alias.name, failures.join("; "))
    }

    /// Fetches one remote source into staging, checks it and moves it into place.
    fn fetch(
        &self,
        source: &Source,
        key: &str,
        alias: Option<(&'static Alias, Expected)>,
    ) -> Result<Entry> {
        let expected = alias.map(|(_, expected)| expected);
        let staging = self.cache.stage(key)?;
        let fetched = match source {
            Source::Pip(pip) => pip.fetch(&staging, expected)?,
            Source::Hf(hf) => hf.fetch(&staging, &self.cache.partial_dir(key))?,
            Source::Https(https) => {
                https.fetch(&staging, &Partial::new(self.cache.partial_file(key)), expected)?
            }
            Source::Path(_) | Source::Alias(_) => bail!("{source} is not a remote source"),
        };
        if let Some(expected) = expected {
            check_sum(&fetched, &expected)?;
        }
        let manifest = Manifest {
            name: alias.map_or_else(|| source.to_string(), |(alias, _)| alias.name.to_owned()),
            source: source.to_string(),
            file: fetched.file,
            files: fetched.files,
            bytes: fetched.bytes,
            sha256: fetched.sha256,
            licence: alias.map(|(alias, _)| alias.licence.to_owned()),
            pulled_at: cache::now(),
        };
        self.cache.install(&staging, &manifest)
    }
}

/// Compares length and checksum with the alias table. The staged file goes with the staging
/// folder when this fails.
fn check_sum(fetched: &Fetched, expected: &Expected) -> Result<()> {
    let file = expected.file;
    match &fetched.sha256 {
        Some(sha256) if sha256 == expected.sha256 => Ok(()),
        Some(sha256) => bail!(
            "SHA-256 of {file} ({}) is {sha256}, expected {} ({}); the file was removed",
            ByteSize(fetched.bytes),
            expected.sha256,
            ByteSize(expected.bytes)
        ),
        None => bail!("the source of {file} gave a folder, expected one file"),
    }
}

/// Says clearly why a path is no model, and lists the aliases when it could have been one.
fn check_path(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let text = path.display();
            if path.components().count() == 1 && path.extension().is_none() {
                bail!(
                    "no model `{text}`: there is no such file and no such alias (aliases: {}; \
                     other sources start with hf:, pip: or https://)",
                    alias::names()
                );
            }
            bail!("{text}: no such file or directory")
        }
        Err(e) => Err(e).with_context(|| format!("cannot open {}", path.display())),
    }
}

/// True for the names of files that make up a model of safetensors files.
fn belongs_to_directory_model(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "model.safetensors.index.json",
    ];
    NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> String {
        match Source::parse(text) {
            Ok(Source::Path(path)) => format!("path {}", path.display()),
            Ok(Source::Alias(alias)) => format!("alias {}", alias.name),
            Ok(source) => format!("{source}"),
            Err(error) => format!("error {error:#}"),
        }
    }

    #[test]
    fn arguments() {
        for (text, want) in [
            ("smollm2", "alias smollm2"),
            ("gemma3:270m", "alias gemma3:270m"),
            ("./smollm2", "path ./smollm2"),
            ("models/a.gguf", "path models/a.gguf"),
            ("pip:a==1", "pip:a==1"),
            ("pip:a==1/x/y.gguf+b==2", "pip:a==1/x/y.gguf+b==2"),
            ("hf:o/r", "hf:o/r"),
            ("hf:o/r/q.gguf@v1", "hf:o/r/q.gguf@v1"),
            ("https://h/x/m.gguf", "https://h/x/m.gguf"),
            ("", "error the model argument is empty"),
        ] {
            assert_eq!(kind(text), want, "{text}");
        }
        for text in ["pip:", "pip:a", "hf:o", "ftp://h/a.gguf", "http://example.org/a.gguf"] {
            assert!(kind(text).starts_with("error "), "{text}: {}", kind(text));
        }
    }

    #[test]
    fn offline_says_what_is_missing() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::locate(Some(temp.path())).expect("cache");
        let sources = Sources { cache, offline: true };
        for text in ["smollm2", "pip:a==1", "hf:o/r", "https://h/m.gguf"] {
            let error = format!("{:#}", sources.resolve(text).expect_err(text));
            assert!(error.starts_with(&format!("{text} is not in the cache")), "{error}");
            assert!(error.contains("--offline"), "{error}");
        }
        assert_eq!(fs::read_dir(temp.path()).expect("read").count(), 0);
    }

    #[test]
    fn a_wrong_checksum_is_an_error() {
        let expected = Expected { file: "m.gguf", bytes: 3, sha256: "aa" };
        let fetched = |sha: Option<&str>| Fetched {
            file: Some("m.gguf".to_owned()),
            files: Vec::new(),
            bytes: 3,
            sha256: sha.map(str::to_owned),
        };
        assert!(check_sum(&fetched(Some("aa")), &expected).is_ok());
        let error = check_sum(&fetched(Some("bb")), &expected).expect_err("mismatch").to_string();
        assert!(error.contains("is bb, expected aa") && error.contains("removed"), "{error}");
        assert!(check_sum(&fetched(None), &expected).is_err());
    }
}
