//! Model sources: what a model argument may be, and how it becomes a path on this machine.
//!
//! [`Source::parse`] reads the argument and touches nothing; [`Sources::resolve`] returns the
//! path, fetching the model first where that is needed and allowed. One file per kind of source
//! lives beside this one; the cache's layout is in `cache.rs`.

pub(crate) mod alias;
pub(crate) mod cache;
pub(crate) mod catalogue;
mod download;
mod hf;
mod https;
mod hub;
mod missing;
mod names;
pub(crate) mod own;
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

use alias::{ALIASES, Alias};
use cache::{Cache, Entry, FileOf, Manifest};
use catalogue::{FAMILIES, Named};
use own::OwnName;
use partial::Partial;
pub(crate) use url::is_local;

/// A model argument, parsed.
#[derive(Debug)]
pub(crate) enum Source {
    /// A file or directory on this machine.
    Path(PathBuf),
    /// A name of the config file.
    Own(&'static OwnName),
    /// A row of the alias table.
    Alias(&'static Alias),
    /// A model of the catalogue.
    Named(Named),
    /// A model inside one or several Python packages.
    Pip(pip::PipSource),
    /// A file or repository of the model hub.
    Hf(hf::HfSource),
    /// A file behind a URL.
    Https(https::HttpsSource),
}

impl Source {
    /// Reads a model argument: a name of the config file, or what is known without it.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match own::find(text) {
            Some(own) => Ok(Self::Own(own)),
            None => Self::parse_known(text),
        }
    }

    /// Reads a model argument: a scheme decides first, then the alias table and the catalogue, then whether it is
    /// written as a repository of the hub; everything else is a path (`./smollm2` is a path even though
    /// `smollm2` is an alias).
    fn parse_known(text: &str) -> Result<Self> {
        if text.is_empty() {
            bail!("the model argument is empty");
        }
        if let Some(rest) = text.strip_prefix("pip:") {
            return pip::PipSource::parse(rest).map(Self::Pip);
        }
        if let Some(rest) = text.strip_prefix("hf:").or_else(|| on_hub_site(text)) {
            return hf::HfSource::parse(rest).map(Self::Hf);
        }
        if text.contains("://") {
            return https::HttpsSource::parse(text).map(Self::Https);
        }
        if let Some(alias) = alias::find(text) {
            return Ok(Self::Alias(alias));
        }
        if let Some(named) = catalogue::find(text)? {
            return Ok(Self::Named(named));
        }
        if is_repository(text) && !is_here(text) {
            return hf::HfSource::parse(text).map(Self::Hf);
        }
        Ok(Self::Path(PathBuf::from(text)))
    }

    /// Name of the cache folder; `None` for a path.
    fn key(&self) -> Option<String> {
        match self {
            Self::Path(_) => None,
            Self::Own(own) => own.source.key(),
            Self::Alias(alias) => Some(names::safe_name(alias.name)),
            Self::Named(named) => Some(named.source.key()),
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
            Self::Path(_) | Self::Alias(_) | Self::Named(_) | Self::Hf(_) => None,
            Self::Own(own) => own.source.earlier_key(),
            Self::Pip(source) => Some(names::safe_name(&source.to_string())),
            Self::Https(source) => Some(source.earlier_key()),
        }
    }
}

/// What names a model in `text` if it is the address of a repository's page, with or without `https://`.
fn on_hub_site(text: &str) -> Option<&str> {
    let text = text.strip_prefix("https://").unwrap_or(text);
    let rest = ["hf.co/", "huggingface.co/"].iter().find_map(|site| text.strip_prefix(site))?;
    let rest = rest.trim_end_matches('/');
    // The address of a file is fetched as it is.
    (rest.split('/').count() == 2).then_some(rest)
}

/// Whether `text` is written as `owner/repo`, with or without a quantization or a revision, and as no file.
fn is_repository(text: &str) -> bool {
    let name = text.split(['@', ':']).next().unwrap_or_default();
    let is_file = [".gguf", ".safetensors", ".json"].iter().any(|end| name.ends_with(end));
    let is_word = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    !is_file && name.split_once('/').is_some_and(|(owner, repo)| is_word(owner) && is_word(repo))
}

/// Whether a path, or the folder that it begins with, exists on this machine.
fn is_here(text: &str) -> bool {
    let folder = text.split('/').next().unwrap_or_default();
    Path::new(text).exists() || Path::new(folder).is_dir()
}

/// Whether a model argument is a name of the alias table or the catalogue.
pub(crate) fn is_name(text: &str) -> bool {
    matches!(Source::parse(text), Ok(Source::Alias(_) | Source::Named(_)))
}

/// What may be shown of a model argument: without the name, password and query of a URL.
pub(crate) fn shown(text: &str) -> String {
    if text.contains("://") { url::redacted(text) } else { text.to_owned() }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Own(own) => write!(f, "{own}"),
            Self::Alias(alias) => f.write_str(alias.name),
            Self::Named(named) => f.write_str(&named.name),
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
    /// Or why there is none; a path needs none.
    cache: Result<Cache, String>,
    /// When set, no process and no connection is started.
    pub(crate) offline: bool,
}

impl Sources {
    /// Sources over a cache, if there is one.
    pub(crate) fn new(cache: Result<Cache>, offline: bool) -> Self {
        Self { cache: cache.map_err(|error| format!("{error:#}")), offline }
    }

    /// The cache, which every model but that of a path needs.
    pub(crate) fn cache(&self) -> Result<&Cache> {
        self.cache.as_ref().map_err(|problem| anyhow!("{problem}"))
    }

    /// The cached model of a source.
    fn cached(&self, source: &Source) -> Option<Entry> {
        self.cache.as_ref().ok()?.get(&source.key()?)
    }

    /// The path of the model that `text` names, pulled into the cache if it is not there.
    pub(crate) fn resolve(&self, text: &str) -> Result<PathBuf> {
        match Source::parse(text)? {
            Source::Path(path) => {
                check_path(&path)?;
                Ok(path)
            }
            Source::Own(OwnName { name, source, .. }) if matches!(**source, Source::Path(_)) => {
                let path = PathBuf::from(source.to_string());
                check_path(&path).with_context(|| format!("`{name}` of the config file"))?;
                Ok(path)
            }
            source => {
                self.announce(&source);
                self.pull(&source, false).map(|entry| entry.path)
            }
        }
    }

    /// Says that a model will be fetched where no progress bar does.
    fn announce(&self, source: &Source) {
        let Ok(cache) = &self.cache else { return };
        let is_here = self.cached(source).is_some();
        if is_here || self.offline || crate::screen::stderr_is_terminal() {
            return;
        }
        let size = match source {
            Source::Alias(alias) => format!(" ({})", ByteSize(alias.bytes)),
            _ => String::new(),
        };
        let root = cache.root().display();
        crate::ui::note(&format!("downloading {source}{size} into {root}; later runs have it"));
    }

    /// The path of the model that `text` names, if it is on this machine.
    pub(crate) fn find(&self, text: &str) -> Option<PathBuf> {
        let source = Source::parse(text).ok()?;
        let of_own = match &source {
            Source::Own(own) => &own.source,
            source => source,
        };
        match of_own {
            Source::Path(path) => path.exists().then(|| path.clone()),
            source => self.cached(source).map(|entry| entry.path),
        }
    }

    /// Names of models: of those in the cache, of the alias table and of the families of the catalogue.
    pub(crate) fn known_names(&self) -> Vec<String> {
        // Without a cache that can be read there are still the other names.
        let pulled = self.cache().and_then(Cache::list).unwrap_or_default();
        let pulled = pulled.into_iter().map(|entry| entry.manifest.name);
        let known = ALIASES.iter().map(|alias| alias.name);
        let known = known.chain(FAMILIES.iter().map(|family| family.name));
        pulled.chain(known.map(str::to_owned)).collect()
    }

    /// Removes the model that `text` names from the cache: by the name that it is listed under, or as a model
    /// argument. None if it is not there.
    pub(crate) fn remove(&self, text: &str) -> Result<Option<Manifest>> {
        let cache = self.cache()?;
        let mut keys = cache.keys_of(text)?;
        if keys.is_empty() {
            keys.extend(Source::parse(text)?.key());
        }
        let mut removed = None;
        for key in keys {
            let _lock = cache.lock(&key, || {
                crate::ui::note(&format!("waiting for another process that is pulling {text}"));
            })?;
            removed = cache.remove(&key)?.or(removed);
        }
        Ok(removed)
    }

    /// The cache entry of a remote source, fetched when it is missing or when `force` is set.
    pub(crate) fn pull(&self, source: &Source, force: bool) -> Result<Entry> {
        if let Source::Own(own) = source {
            let entry = self.pull(&own.source, force);
            let entry = entry.with_context(|| format!("`{own}` of the config file"))?;
            check_own(own, &entry.manifest)?;
            return Ok(entry);
        }
        if let Source::Path(path) = source {
            check_path(path)?;
        }
        let key = source
            .key()
            .ok_or_else(|| anyhow!("{source} is a path; only remote models can be pulled"))?;
        let cache = self.cache()?;
        if !force && let Some(entry) = cache.get(&key) {
            return Ok(entry);
        }
        if self.offline {
            bail!(
                "{source} is not in the cache {} and --offline forbids fetching it; \
                 run `realizar pull {source}` while online",
                cache.root().display()
            );
        }
        let _lock = cache.lock(&key, || {
            crate::ui::note(&format!("waiting for another process that is pulling {source}"));
        })?;
        if !force {
            if let Some(entry) = cache.get(&key) {
                return Ok(entry);
            }
            if let Some(earlier) = source.earlier_key()
                && let Some(entry) = cache.adopt(&earlier, &key, &source.to_string())?
            {
                return Ok(entry);
            }
        }
        match source {
            Source::Alias(alias) => self.pull_alias(alias, &key),
            Source::Named(Named { name, licence, source }) => {
                let source = Source::Hf(source.clone());
                let fetched = self.fetch(&source, &key, Some((name, licence)), None);
                fetched.with_context(|| format!("cannot pull {name} from {source}"))
            }
            _ => {
                let fetched = self.fetch(source, &key, None, None);
                fetched.with_context(|| format!("cannot pull {source}"))
            }
        }
    }

    /// Tries the sources of an alias in order; the error says what became of each.
    fn pull_alias(&self, alias: &'static Alias, key: &str) -> Result<Entry> {
        let expected = Expected { file: alias.file, bytes: alias.bytes, sha256: alias.sha256 };
        let mut failures = Vec::new();
        let known = alias.sources.iter().map(|text| (text, Some(expected)));
        for (text, expected) in known.chain(alias.others.iter().map(|text| (text, None))) {
            let source = Source::parse(text)?;
            tracing::info!("pulling {} from {source}", alias.name);
            match self.fetch(&source, key, Some((alias.name, alias.licence)), expected) {
                Ok(entry) => {
                    if !failures.is_empty() {
                        crate::ui::note(&format!(
                            "pulled from {source}; failed: {}",
                            failures.join("; ")
                        ));
                    }
                    return Ok(entry);
                }
                Err(error) => failures.push(format!("from {source}: {error:#}")),
            }
        }
        bail!("cannot pull {}: {}", alias.name, failures.join("; "))
    }

    /// Fetches one remote source into staging, checks it and moves it into place, under the name and with the
    /// licence that the tables know.
    fn fetch(
        &self,
        source: &Source,
        key: &str,
        known: Option<(&str, &str)>,
        expected: Option<Expected>,
    ) -> Result<Entry> {
        let cache = self.cache()?;
        let staging = cache.stage(key)?;
        let fetched = match source {
            Source::Pip(pip) => pip.fetch(&staging, expected)?,
            Source::Hf(hf) => hf.fetch(&staging, &cache.partial_dir(key))?,
            Source::Https(https) => {
                https.fetch(&staging, &Partial::new(cache.partial_file(key)), expected)?
            }
            Source::Path(_) | Source::Own(_) | Source::Alias(_) | Source::Named(_) => {
                bail!("{source} is not a remote source")
            }
        };
        if let Some(expected) = expected {
            check_sum(&fetched, &expected)?;
        }
        let manifest = Manifest {
            name: known.map_or_else(|| source.to_string(), |(name, _)| name.to_owned()),
            source: source.to_string(),
            file: fetched.file,
            files: fetched.files,
            bytes: fetched.bytes,
            sha256: fetched.sha256,
            licence: known.map(|(_, licence)| licence.to_owned()),
            pulled_at: cache::now(),
        };
        cache.install(&staging, &manifest)
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
        None => bail!("the source of {file} has a folder, expected one file"),
    }
}

/// Compares the checksum of a pulled file with that of the config file.
fn check_own(own: &OwnName, manifest: &Manifest) -> Result<()> {
    match (&own.sha256, &manifest.sha256) {
        (None, _) => Ok(()),
        (Some(expected), Some(found)) if expected == found => Ok(()),
        (Some(expected), Some(found)) => bail!(
            "`{own}` of the config file: SHA-256 of {} is {found}, expected {expected}; \
             `realizar rm {own}` removes it",
            own.source
        ),
        (Some(_), None) => {
            bail!("`{own}` of the config file: {} is a folder, which has no SHA-256", own.source)
        }
    }
}

/// Says clearly why a path is not a model, and which names are close where it could have been one.
fn check_path(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let text = path.display().to_string();
            if path.components().count() == 1 && path.extension().is_none_or(|end| end != "gguf") {
                if let Some(missing) = missing::find(&text) {
                    bail!("`{text}` is not supported: {missing}");
                }
                let close = close_names(&text);
                let hint = match close.as_slice() {
                    [] => "`realizar list --available` shows the known names".to_owned(),
                    close => format!("did you mean {}?", close.join(" or ")),
                };
                bail!("unknown model `{text}`: {hint}");
            }
            bail!("{text}: no such file or directory")
        }
        Err(e) => Err(e).with_context(|| format!("cannot open {}", path.display())),
    }
}

/// Whether `text` is a family of models that is known and not supported.
pub(crate) fn is_unsupported(text: &str) -> bool {
    missing::find(text).is_some()
}

/// Up to three names that are spelled almost as `text`, the closest first.
pub(crate) fn close_names(text: &str) -> Vec<&'static str> {
    let lower = text.to_ascii_lowercase();
    let family = lower.split(':').next().unwrap_or_default();
    let likeness = |name: &str| {
        let plain = name.replace(['.', '-'], "");
        let same = plain == family.replace(['.', '-', '_', ' '], "");
        if same { 1.0 } else { strsim::jaro_winkler(family, name) }
    };
    let names = own::all().iter().map(|own| own.name.as_str());
    let names = names.chain(ALIASES.iter().map(|alias| alias.name));
    let names = names.chain(FAMILIES.iter().map(|family| family.name));
    let mut close: Vec<(f64, &str)> = names.map(|name| (likeness(name), name)).collect();
    close.retain(|(likeness, _)| *likeness >= 0.85);
    close.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    close.dedup_by_key(|(_, name)| *name);
    close.into_iter().take(3).map(|(_, name)| name).collect()
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
            Ok(Source::Named(named)) => format!("named {} {}", named.name, named.source),
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
            ("qwq", "named qwq:32b hf:bartowski/Qwen_QwQ-32B-GGUF:Q4_K_M"),
            ("owner/repo", "hf:owner/repo"),
            ("owner/repo:Q8_0@v2", "hf:owner/repo:Q8_0@v2"),
            ("hf.co/owner/repo:Q4_K_M", "hf:owner/repo:Q4_K_M"),
            ("https://huggingface.co/owner/repo/", "hf:owner/repo"),
            (
                "https://huggingface.co/o/r/resolve/main/m.gguf",
                "https://huggingface.co/o/r/resolve/main/m.gguf",
            ),
            ("owner/repo/x.gguf", "path owner/repo/x.gguf"),
            // A folder that exists is one.
            ("src/x", "path src/x"),
            ("/owner/repo", "path /owner/repo"),
            ("../repo", "path ../repo"),
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
    fn close_names_are_offered() {
        for (text, want) in [
            ("lama3.2", "llama3.2"),
            ("llama32:1b", "llama3.2"),
            ("smolm2", "smollm2"),
            ("qwen-2.5", "qwen2.5"),
            ("gemma5", "gemma2"),
            ("granite-4.0", "granite4"),
        ] {
            assert_eq!(close_names(text).first(), Some(&want), "{text}");
        }
        assert!(close_names("xyz").is_empty());
        let error = |text: &str| check_path(Path::new(text)).expect_err(text).to_string();
        let found = error("smolm2");
        assert!(found.starts_with("unknown model `smolm2`: did you mean smollm2"), "{found}");
        let found = error("kimi-linear:48b");
        let want = "`kimi-linear:48b` is not supported: its linear attention has a decay";
        assert!(found.starts_with(want), "{found}");
    }

    #[test]
    fn offline_says_what_is_missing() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::locate(Some(temp.path())).expect("cache");
        let sources = Sources::new(Ok(cache), true);
        for text in ["smollm2", "pip:a==1", "hf:o/r", "https://h/m.gguf"] {
            let error = format!("{:#}", sources.resolve(text).expect_err(text));
            assert!(error.starts_with(&format!("{text} is not in the cache")), "{error}");
            assert!(error.contains("--offline"), "{error}");
        }
        assert_eq!(fs::read_dir(temp.path()).expect("read").count(), 0);
    }

    #[test]
    fn a_name_of_the_config_file_holds_its_checksum() {
        let own = |sha256: Option<&str>| OwnName {
            name: "fast".to_owned(),
            source: Box::new(Source::parse_known("hf:o/r:Q8_0").expect("a source")),
            sha256: sha256.map(str::to_owned),
        };
        let manifest = |sha256: Option<&str>| Manifest {
            name: "fast".to_owned(),
            source: "hf:o/r:Q8_0".to_owned(),
            file: None,
            files: Vec::new(),
            bytes: 3,
            sha256: sha256.map(str::to_owned),
            licence: None,
            pulled_at: 0,
        };
        assert!(check_own(&own(None), &manifest(None)).is_ok());
        assert!(check_own(&own(Some("aa")), &manifest(Some("aa"))).is_ok());
        for (found, want) in [
            (
                Some("bb"),
                "SHA-256 of hf:o/r:Q8_0 is bb, expected aa; `realizar rm fast` removes it",
            ),
            (None, "hf:o/r:Q8_0 is a folder, which has no SHA-256"),
        ] {
            let error = check_own(&own(Some("aa")), &manifest(found)).expect_err(want).to_string();
            assert!(error.ends_with(want), "{error}");
        }
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
