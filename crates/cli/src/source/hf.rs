//! Models of the Hugging Face hub: `hf:owner/repo[:quantization | /file][@revision]`.
//!
//! `hf-hub` downloads (resumable, in the hub's own cache layout below `<cache>/hf`); what lives
//! here is the argument, the choice of files from a repository's listing, and the token, which is
//! found where the hub's own tools keep it. `HF_ENDPOINT` names a mirror.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Cache as HubCache, Repo, RepoType};

use super::cache::{Cache, hash_file, safe_name};
use super::progress::Progress;
use super::{Fetched, belongs_to_directory_model};

/// Quantizations taken from a repository of GGUF files when no file is named, the preferred one
/// first: small with little loss, then nearly lossless.
const PREFERRED: &[&str] = &["Q4_K_M", "Q8_0"];

/// A repository, and optionally a file and a revision of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HfSource {
    repo: String, // owner/name
    /// Part of the name of the file, such as `Q8_0`.
    quantization: Option<String>,
    file: Option<String>,
    revision: Option<String>,
}

/// What a source asks for in its repository.
#[derive(Debug, Clone, Copy)]
enum Wanted<'a> {
    /// The file of this name.
    File(&'a str),
    /// The GGUF file with this in its name.
    Quantization(&'a str),
    /// What suits best.
    Any,
}

/// The files to fetch.
#[derive(Debug, PartialEq)]
enum Selection {
    /// One GGUF or safetensors file, with the other shards of its set; the first is opened.
    Files(Vec<String>),
    /// All files of a directory model.
    Directory(Vec<String>),
}

impl HfSource {
    /// Reads what follows `hf:`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong =
            || anyhow!("`hf:{text}`: expected hf:owner/repo[:quantization | /file][@revision]");
        let (path, revision) = match text.split_once('@') {
            Some((path, revision)) => (path, Some(revision.to_owned())),
            None => (text, None),
        };
        let mut parts = path.splitn(3, '/');
        let owner = parts.next().unwrap_or_default();
        let name = parts.next().unwrap_or_default();
        let file = parts.next().map(str::to_owned);
        let (name, quantization) = match name.split_once(':') {
            Some((name, quantization)) => (name, Some(quantization.to_owned())),
            None => (name, None),
        };
        if !is_safe(owner) || !is_safe(name) || (file.is_some() && quantization.is_some()) {
            return Err(wrong());
        }
        let ok = |text: &Option<String>| text.as_deref().is_none_or(is_safe);
        if !ok(&file) || !ok(&revision) || !ok(&quantization) {
            return Err(wrong());
        }
        Ok(Self { repo: format!("{owner}/{name}"), quantization, file, revision })
    }

    pub(crate) fn key(&self) -> String {
        safe_name(&self.to_string())
    }

    /// Downloads the chosen files into the hub's cache.
    pub(super) fn fetch(&self, cache: &Cache) -> Result<Fetched> {
        let hub = HubCache::new(cache.hub_dir());
        let mut builder = ApiBuilder::from_cache(hub)
            .with_progress(false)
            .with_retries(3)
            .with_token(token(|name| std::env::var(name).ok()));
        if let Ok(endpoint) = std::env::var("HF_ENDPOINT") {
            builder = builder.with_endpoint(endpoint);
        }
        let api = builder.build().context("cannot set up the hub client")?;
        let revision = self.revision.clone().unwrap_or_else(|| "main".to_owned());
        let repo = api.repo(Repo::with_revision(self.repo.clone(), RepoType::Model, revision));
        let info = repo.info().map_err(|e| self.explain(e))?;
        if !is_safe(&info.sha) {
            bail!("hub repository {}: the hub named the revision `{}`", self.repo, info.sha);
        }
        // All files come from the one commit that was listed, even if the branch moves meanwhile.
        let repo =
            api.repo(Repo::with_revision(self.repo.clone(), RepoType::Model, info.sha.clone()));
        let listing: Vec<String> = info.siblings.into_iter().map(|s| s.rfilename).collect();
        let wanted = match (&self.file, &self.quantization) {
            (Some(file), _) => Wanted::File(file),
            (None, Some(quantization)) => Wanted::Quantization(quantization),
            (None, None) => Wanted::Any,
        };
        let selection = select(&self.repo, wanted, &listing)?;
        let (Selection::Files(files) | Selection::Directory(files)) = &selection;
        let mut paths = Vec::new();
        let mut total = 0;
        for file in files {
            let path = match hub_path(cache, &self.repo, &info.sha, file) {
                Some(path) => path,
                None => {
                    let bar = Bar(Progress::bytes(&format!("pulling {file}"), None));
                    repo.download_with_progress(file, bar)
                        .map_err(|e| self.explain(e).context(format!("cannot fetch {file}")))?
                }
            };
            total += fs::metadata(&path)
                .with_context(|| format!("cannot read {}", path.display()))?
                .len();
            paths.push(path);
        }
        let first = paths.first().ok_or_else(|| anyhow!("{} names no file", self.repo))?;
        let (path, sha256) = match &selection {
            Selection::Files(files) if files.len() == 1 => {
                (first.clone(), Some(hash_file(first)?.1))
            }
            Selection::Files(_) => (first.clone(), None),
            Selection::Directory(_) => {
                (first.parent().map(Path::to_owned).unwrap_or_default(), None)
            }
        };
        let path = path
            .strip_prefix(cache.root())
            .with_context(|| format!("{} lies outside the cache", path.display()))?
            .to_owned();
        let file = match &selection {
            Selection::Files(files) => files.first().cloned(),
            Selection::Directory(_) => None,
        };
        Ok(Fetched { file, hub_path: Some(path), bytes: total, sha256 })
    }

    /// Names the repository and says what an HTTP status means there.
    fn explain(&self, error: ApiError) -> anyhow::Error {
        let text = error.to_string();
        let hint = if text.contains("401") || text.contains("403") {
            ": the repository does not exist, or it needs a token (HF_TOKEN) that has access"
        } else if text.contains("404") {
            ": no such repository, revision or file"
        } else {
            ""
        };
        anyhow::Error::new(error).context(format!("hub repository {}{hint}", self.repo))
    }
}

impl fmt::Display for HfSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if let Some(quantization) = &self.quantization {
            write!(f, ":{quantization}")?;
        }
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        Ok(())
    }
}

/// The progress bar as the hub client drives it.
struct Bar(Progress);

impl hf_hub::api::Progress for Bar {
    fn init(&mut self, size: usize, filename: &str) {
        self.0 = Progress::bytes(&format!("pulling {filename}"), Some(size as u64));
    }

    fn update(&mut self, size: usize) {
        self.0.add(size as u64);
    }

    fn finish(&mut self) {
        self.0.done();
    }
}

/// Path components that stay inside the folder they are joined to.
fn is_safe(text: &str) -> bool {
    !text.is_empty()
        && !text.contains('\\')
        && text.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// A file of the revision `commit` that is already in the hub's cache.
fn hub_path(cache: &Cache, repo: &str, commit: &str, file: &str) -> Option<PathBuf> {
    let dir = cache.hub_dir().join(format!("models--{}", repo.replace('/', "--")));
    let path = dir.join("snapshots").join(commit).join(file);
    (is_safe(commit) && is_safe(file) && path.exists()).then_some(path)
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
    } else if let Some(home) = var("HF_HOME") {
        Path::new(&home).join("token")
    } else {
        Path::new(&var("HOME")?).join(".cache/huggingface/token")
    };
    fs::read_to_string(path).ok().and_then(clean)
}

/// Chooses what to fetch from a repository that holds the files `listing`.
fn select(repo: &str, wanted: Wanted<'_>, listing: &[String]) -> Result<Selection> {
    let listing: Vec<&str> =
        listing.iter().map(String::as_str).filter(|name| is_safe(name)).collect();
    if let Wanted::File(file) = wanted {
        if !listing.contains(&file) {
            let models: Vec<&str> = listing.iter().copied().filter(|n| is_model(n)).collect();
            bail!("{repo} has no file {file}; its model files: {}", join(&models));
        }
        return Ok(Selection::Files(shards_of(file, &listing)));
    }
    let is_any = matches!(wanted, Wanted::Any);
    if is_any && listing.contains(&"config.json") && listing.iter().any(|n| is_weight_file(n)) {
        let files = listing
            .iter()
            .filter(|n| is_weight_file(n) || (!n.contains('/') && belongs_to_directory_model(n)));
        return Ok(Selection::Directory(files.map(|n| (*n).to_owned()).collect()));
    }
    // Of a split file only the first shard is a candidate; projectors and calibration data are
    // no language models.
    let candidates: Vec<&str> = listing
        .iter()
        .copied()
        .filter(|n| n.ends_with(".gguf") && !n.contains("mmproj") && !n.contains("imatrix"))
        .filter(|n| shard(n).is_none_or(|(_, index, _)| index == 1))
        .collect();
    let matching = |part: &str| -> Vec<&str> {
        let part = part.to_ascii_uppercase();
        candidates.iter().copied().filter(|n| n.to_ascii_uppercase().contains(&part)).collect()
    };
    if let Wanted::Quantization(quantization) = wanted {
        return match matching(quantization).as_slice() {
            [one] => Ok(Selection::Files(shards_of(one, &listing))),
            [] => bail!("{repo} has no .gguf file of {quantization}: {}", join(&candidates)),
            several => bail!(
                "{repo} has several files of {quantization}, name one as hf:{repo}/FILE: {}",
                join(several)
            ),
        };
    }
    if let [only] = candidates.as_slice() {
        return Ok(Selection::Files(shards_of(only, &listing)));
    }
    for preferred in PREFERRED {
        let matching = matching(preferred);
        if let [one] = matching.as_slice() {
            return Ok(Selection::Files(shards_of(one, &listing)));
        }
    }
    if candidates.is_empty() {
        bail!("{repo} has neither .gguf files nor config.json with model.safetensors");
    }
    bail!("{repo} has several models, name one as hf:{repo}/FILE: {}", join(&candidates))
}

fn join(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn is_model(name: &str) -> bool {
    name.ends_with(".gguf") || name.ends_with(".safetensors")
}

/// `model.safetensors` or one of its shards, at the top of the repository.
fn is_weight_file(name: &str) -> bool {
    name == "model.safetensors"
        || (name.starts_with("model-") && name.ends_with(".safetensors") && shard(name).is_some())
}

/// Splits `stem-00001-of-00003.ext` into (stem, 1, 3).
fn shard(name: &str) -> Option<(&str, u32, u32)> {
    let (stem, _) = name.rsplit_once('.')?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, index) = rest.rsplit_once('-')?;
    Some((stem, index.parse().ok()?, count.parse().ok()?))
}

/// All shards of the set that `file` belongs to, in order; `file` alone when it is no shard.
fn shards_of(file: &str, listing: &[&str]) -> Vec<String> {
    let Some((stem, _, count)) = shard(file) else { return vec![file.to_owned()] };
    let mut set: Vec<(u32, &str)> = listing
        .iter()
        .filter_map(|name| match shard(name) {
            Some((s, index, c)) if s == stem && c == count => Some((index, *name)),
            _ => None,
        })
        .collect();
    set.sort_unstable();
    set.into_iter().map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing() {
        let parse = |text: &str| HfSource::parse(text).map(|s| (s.repo, s.file, s.revision)).ok();
        let some = |r: &str, f: Option<&str>, v: Option<&str>| {
            Some((r.to_owned(), f.map(str::to_owned), v.map(str::to_owned)))
        };
        assert_eq!(parse("o/r"), some("o/r", None, None));
        assert_eq!(parse("o/r@v2"), some("o/r", None, Some("v2")));
        assert_eq!(
            parse("o/r/d/f.gguf@refs/pr/1"),
            some("o/r", Some("d/f.gguf"), Some("refs/pr/1"))
        );
        let source = HfSource::parse("o/r:Q8_0@v2").expect("a quantization");
        assert_eq!((source.repo.as_str(), source.quantization.as_deref()), ("o/r", Some("Q8_0")));
        assert_eq!(source.to_string(), "hf:o/r:Q8_0@v2");
        for wrong in [
            "o/r:",
            "o/:Q8_0",
            "o/r:Q8_0/f.gguf",
            "",
            "o",
            "o/",
            "/r",
            "o/r/",
            "o/r@",
            "o/../x",
            "o/r/../../x",
            "../r",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn selection() {
        let check_wanted = |wanted: Wanted<'_>, listing: &[&str], want: &str| {
            let listing: Vec<String> = listing.iter().map(|n| (*n).to_owned()).collect();
            let got = match select("o/r", wanted, &listing) {
                Ok(Selection::Files(files)) => format!("files {}", files.join(" ")),
                Ok(Selection::Directory(files)) => format!("dir {}", files.join(" ")),
                Err(error) => format!("error {error:#}"),
            };
            assert!(got.starts_with(want), "{listing:?}: {got}");
        };
        let check = |file: Option<&str>, listing: &[&str], want: &str| {
            check_wanted(file.map_or(Wanted::Any, Wanted::File), listing, want);
        };
        let quants = ["README.md", "m.Q2_K.gguf", "m.Q4_K_M.gguf", "m.Q8_0.gguf"];
        check(None, &quants, "files m.Q4_K_M.gguf");
        check(Some("m.Q2_K.gguf"), &quants, "files m.Q2_K.gguf");
        check(
            Some("x"),
            &quants,
            "error o/r has no file x; its model files: m.Q2_K.gguf, m.Q4_K_M",
        );
        for (quantization, want) in [
            ("q2_k", "files m.Q2_K.gguf"),
            ("Q6_K", "error o/r has no .gguf file of Q6_K: m.Q2_K.gguf, m.Q4_K_M.gguf"),
            ("Q", "error o/r has several files of Q, name one as hf:o/r/FILE: m.Q2_K.gguf"),
        ] {
            check_wanted(Wanted::Quantization(quantization), &quants, want);
        }
        let both = ["config.json", "model.safetensors", "m-F16.gguf"];
        check_wanted(Wanted::Quantization("F16"), &both, "files m-F16.gguf");
        check(None, &["m-q2_k.gguf", "m-q8_0.gguf"], "files m-q8_0.gguf");
        check(None, &["m-f16.gguf", "mmproj-m.gguf"], "files m-f16.gguf");
        check(None, &["a.Q2_K.gguf", "b.Q6_K.gguf"], "error o/r has several models");
        check(None, &["a.Q8_0.gguf", "b.Q8_0.gguf"], "error o/r has several models");
        check(None, &["README.md", "pytorch_model.bin"], "error o/r has neither");
        check(
            None,
            &["m-Q4_K_M-00002-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf"],
            "files m-Q4_K_M-00001-of-00002.gguf m-Q4_K_M-00002-of-00002.gguf",
        );
        check(
            None,
            &["config.json", "model.safetensors", "onnx/x.onnx", "tokenizer.json", "README.md"],
            "dir config.json model.safetensors tokenizer.json",
        );
        check(
            None,
            &[
                "config.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
                "../evil/config.json",
            ],
            "dir config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors \
             model.safetensors.index.json",
        );
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
}
