//! Models of the Hugging Face hub: `hf:owner/repo[:quantization | /file][@revision]`.
//!
//! What lives here is the argument and the choice of files from a repository's listing; how the
//! hub is asked is in `hub.rs`.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use sha2::{Digest, Sha256};

use super::cache::{FileOf, Staging, create_dir, hex};
use super::download::StatusError;
use super::hub::{Hub, HubFile, Listing};
use super::names::{is_relative, relative, unique_key};
use super::partial::Partial;
use super::{Fetched, belongs_to_directory_model};

/// Files of one model.
const MAX_FILES: usize = 1000;

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
        let is_one = |text: &str| is_relative(text) && !text.contains('/');
        if !is_one(owner) || !is_one(name) || (file.is_some() && quantization.is_some()) {
            return Err(wrong());
        }
        let ok = |text: &Option<String>| text.as_deref().is_none_or(is_relative);
        if !ok(&file) || !ok(&revision) || !ok(&quantization) {
            return Err(wrong());
        }
        Ok(Self { repo: format!("{owner}/{name}"), quantization, file, revision })
    }

    pub(crate) fn key(&self) -> String {
        let text = self.to_string();
        unique_key(&text, &text)
    }

    /// Downloads the chosen files into the staging folder. Those that are complete stay in
    /// `parts` until all are.
    pub(super) fn fetch(&self, staging: &Staging, parts: &Path) -> Result<Fetched> {
        let hub = Hub::from_environment(|name| std::env::var(name).ok())?;
        let revision = self.revision.as_deref().unwrap_or("main");
        let Listing { commit, files: listed } =
            hub.list(&self.repo, revision).map_err(|e| self.explain(e))?;
        let names: Vec<&str> = listed.iter().map(|file| file.name.as_str()).collect();
        let wanted = match (&self.file, &self.quantization) {
            (Some(file), _) => Wanted::File(file),
            (None, Some(quantization)) => Wanted::Quantization(quantization),
            (None, None) => Wanted::Any,
        };
        let selection = select(&self.repo, wanted, &names)?;
        let (Selection::Files(names) | Selection::Directory(names)) = &selection;
        if names.is_empty() || names.len() > MAX_FILES {
            bail!("{}: expected 1 to {MAX_FILES} files, found {}", self.repo, names.len());
        }
        let chosen = names.iter().filter_map(|name| listed.iter().find(|file| file.name == *name));
        // A download is resumed only where the same file of the same commit was begun.
        let id = |file: &HubFile| {
            let text = format!("{}\n{commit}\n{}", self.repo, file.name);
            format!("{}.partial", &hex(&Sha256::digest(text))[..32])
        };
        let chosen: Vec<(&HubFile, Partial)> =
            chosen.map(|file| (file, Partial::new(parts.join(id(file))))).collect();
        keep_only(parts, |path| {
            chosen.iter().any(|(_, partial)| path.file_stem() == partial.path().file_stem())
        })?;
        let mut fetched = Vec::new();
        for (file, partial) in &chosen {
            let (bytes, sha256) =
                hub.fetch(&self.repo, &commit, file, partial).map_err(|e| self.explain(e))?;
            fetched.push((FileOf { name: file.name.clone(), bytes }, sha256));
        }
        for (file, partial) in &chosen {
            let to = staging.model_dir().join(relative(&file.name)?);
            if let Some(dir) = to.parent() {
                create_dir(dir)?;
            }
            partial.finish(&to)?;
        }
        keep_only(parts, |_| false)?;
        let bytes = fetched.iter().map(|(file, _)| file.bytes).sum();
        let sha256 = match fetched.as_slice() {
            [(_, sha256)] if matches!(selection, Selection::Files(_)) => Some(sha256.clone()),
            _ => None,
        };
        let file = match &selection {
            Selection::Files(files) => files.first().cloned(),
            Selection::Directory(_) => None,
        };
        let files = fetched.into_iter().map(|(file, _)| file).collect();
        Ok(Fetched { file, files, bytes, sha256 })
    }

    /// Names the repository and says what an HTTP status means there.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let status = error.downcast_ref::<StatusError>().map(|error| error.status.as_u16());
        let hint = match status {
            Some(401 | 403) => {
                ": the repository does not exist, or it needs a token (HF_TOKEN) that has access"
            }
            Some(404) => ": no such repository, revision or file",
            _ => "",
        };
        error.context(format!("hub repository {}{hint}", self.repo))
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

/// Removes the files of `dir` that are not to be kept, and `dir` when none is left.
fn keep_only(dir: &Path, keep: impl Fn(&Path) -> bool) -> Result<()> {
    let context = || format!("cannot clear {}", dir.display());
    let read = match fs::read_dir(dir) {
        Ok(read) => read,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).with_context(context),
    };
    let mut is_empty = true;
    for item in read {
        let path = item.with_context(context)?.path();
        if keep(&path) {
            is_empty = false;
        } else {
            fs::remove_file(&path).with_context(context)?;
        }
    }
    if is_empty { fs::remove_dir(dir).with_context(context) } else { Ok(()) }
}

/// Chooses what to fetch from a repository that holds the files `listing`.
fn select(repo: &str, wanted: Wanted<'_>, listing: &[&str]) -> Result<Selection> {
    let listing: Vec<&str> = listing.iter().copied().filter(|name| is_relative(name)).collect();
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
        let has = |name: &&str| name.to_ascii_uppercase().contains(&part);
        let found: Vec<&str> = candidates.iter().copied().filter(has).collect();
        // `Q6_K` is also in the name of a file of `Q6_K_L`, and of `UD-Q6_K`, which is another recipe.
        let exact = |part: &str| -> Vec<&str> {
            found.iter().copied().filter(|name| ends_with(name, part)).collect()
        };
        let others = exact(&format!("UD-{part}"));
        let mut exact = exact(&part);
        if exact.len() > 1 {
            exact.retain(|name| !others.contains(name));
        }
        if exact.len() == 1 { exact } else { found }
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

/// Whether a file's name, without what follows it, ends with `quantization` as a word of its own.
fn ends_with(name: &str, quantization: &str) -> bool {
    let stem = match shard(name) {
        Some((stem, _, _)) => stem,
        None => name.strip_suffix(".gguf").unwrap_or(name),
    };
    let upper = stem.to_ascii_uppercase();
    let rest = upper.strip_suffix(quantization);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_', '/']))
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
            let got = match select("o/r", wanted, listing) {
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
        let close =
            ["m-Q6_K.gguf", "m-Q6_K_L.gguf", "m-Q4_K_S-00001-of-00001.gguf", "m-Q4_K_L.gguf"];
        for (quantization, want) in [
            ("q6_k", "files m-Q6_K.gguf"),
            ("Q6_K_L", "files m-Q6_K_L.gguf"),
            ("q4_k_s", "files m-Q4_K_S-00001-of-00001.gguf"),
            ("Q4_K", "error o/r has several files of Q4_K"),
        ] {
            check_wanted(Wanted::Quantization(quantization), &close, want);
        }
        let dynamic = ["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "m-UD-Q6_K.gguf"];
        for (quantization, want) in [
            ("Q4_K_M", "files m-Q4_K_M.gguf"),
            ("UD-Q4_K_M", "files m-UD-Q4_K_M.gguf"),
            ("Q6_K", "files m-UD-Q6_K.gguf"),
        ] {
            check_wanted(Wanted::Quantization(quantization), &dynamic, want);
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
}
