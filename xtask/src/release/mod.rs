//! `cargo xtask release`: what is published for this platform, in one folder.
//!
//! An archive with the program, completions, manual pages and licences; a Debian package; a bill of
//! materials; checksums. The program is then started where there is nothing but it, its libraries and a
//! model, and sizes and start times are printed.

mod debian;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::{setup, shell};

/// Features of the published program: those of every server, none of the tests.
const FEATURES: &str = "kv-events,otel";

/// `cargo xtask release`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Pack this program instead of building one; its features are to be `kv-events` and `otel`.
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// Folder of the result.
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
}

/// What all parts need.
struct Release {
    program: PathBuf,
    version: String,
    host: String,
    out: PathBuf,
    /// Completions and manual pages.
    extras: tempfile::TempDir,
}

/// Shells with the files of their completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "realizar.bash"),
    ("zsh", "_realizar"),
    ("fish", "realizar.fish"),
    ("elvish", "realizar.elv"),
    ("powershell", "_realizar.ps1"),
];

/// Builds and packs; prints what was made.
pub(crate) fn run(args: &Args) -> Result<()> {
    let program = match &args.bin {
        Some(bin) => bin.canonicalize().with_context(|| bin.display().to_string())?,
        None => build()?,
    };
    let out = shell::root().join(&args.out);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    fs::create_dir_all(&out)?;
    let version = shell::output(shell::command(&program).arg("--version"))?;
    let version = version.trim().strip_prefix("realizar ").context("no version")?.to_owned();
    let release =
        Release { program, version, host: shell::host()?, out, extras: tempfile::tempdir()? };
    release.write_extras()?;
    release.archive()?;
    let sbom = release.out.join(format!("{}.cdx.json", release.name()));
    fs::write(sbom, sbom::document(&release.version, &release.host, FEATURES)?)?;
    debian::build(&release)?;
    release.checksums()?;
    release.starts()?;
    Ok(())
}

fn build() -> Result<PathBuf> {
    let mut build = shell::cargo();
    build.args(["build", "--release", "--locked", "--package", "realizar"]);
    build.args(["--features", FEATURES, "--config", "profile.release.strip=\"symbols\""]);
    shell::check(&mut build)?;
    let name = format!("realizar{}", std::env::consts::EXE_SUFFIX);
    Ok(shell::target_dir()?.join("release").join(name))
}

impl Release {
    fn name(&self) -> String {
        format!("realizar-{}-{}", self.version, self.host)
    }

    /// The program writes its own completions and manual pages.
    fn write_extras(&self) -> Result<()> {
        let folder = self.extras.path();
        fs::create_dir_all(folder.join("completions"))?;
        fs::create_dir_all(folder.join("man"))?;
        for (name, file) in COMPLETIONS {
            let text = shell::output(shell::command(&self.program).args(["completions", name]))?;
            fs::write(folder.join("completions").join(file), text)?;
        }
        shell::check(shell::command(&self.program).arg("man").arg(folder.join("man")))
    }

    /// The archive; the same files give the same bytes.
    fn archive(&self) -> Result<()> {
        let stage = tempfile::tempdir()?;
        let folder = stage.path().join(self.name());
        fs::create_dir(&folder)?;
        let program = self.program.file_name().context("a program has a name")?;
        fs::copy(&self.program, folder.join(program))?;
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            fs::copy(shell::root().join(file), folder.join(file))?;
        }
        for part in ["completions", "man"] {
            copy_files(&self.extras.path().join(part), &folder.join(part))?;
        }
        let mut tar = shell::command("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
        tar.args(["--mode=u+w,go=rX", "-I", "gzip -9n", "-cf"]);
        tar.arg(self.out.join(format!("{}.tar.gz", self.name())));
        shell::check(tar.arg("-C").arg(stage.path()).arg(self.name()))
    }

    /// `SHA256SUMS`, and the sizes.
    fn checksums(&self) -> Result<()> {
        let size = |path: &Path| -> Result<String> {
            Ok(format!("{:.1} MB", fs::metadata(path)?.len() as f64 / 1e6))
        };
        println!("release: program, stripped: {}", size(&self.program)?);
        let entries = fs::read_dir(&self.out)?.map(|entry| Ok(entry?.path()));
        let mut files = entries.collect::<Result<Vec<_>>>()?;
        files.sort();
        let mut sums = String::new();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let hash = Sha256::digest(fs::read(&file)?);
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            sums += &format!("{hash}  {name}\n");
            println!("release: {name}: {}", size(&file)?);
        }
        Ok(fs::write(self.out.join("SHA256SUMS"), sums)?)
    }

    /// How long it takes to start, here and where there is nothing else.
    fn starts(&self) -> Result<()> {
        let model = setup::model_file(&self.program, "smollm2").ok();
        let time = |args: &[&str]| -> Result<f64> {
            let mut times = Vec::new();
            for _ in 0..5 {
                let start = Instant::now();
                let mut command = shell::command(&self.program);
                command.args(args).stdin(Stdio::null());
                shell::output(&mut command)?;
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            Ok(times[2] * 1e3)
        };
        println!("release: `--version` takes {:.0} ms, median of 5", time(&["--version"])?);
        let Some(model) = model else {
            println!("release: no model in the cache (cargo xtask setup): no start with one");
            return Ok(());
        };
        let path = model.to_string_lossy().into_owned();
        let first = ["--offline", "run", &path, "--device", "cpu", "-n", "1", "Hi"];
        println!("release: a first token of smollm2 takes {:.0} ms, median of 5", time(&first)?);
        self.starts_alone(&model)
    }

    /// Starts it in a root folder with its libraries and a model: no network, no Python, no shell.
    fn starts_alone(&self, model: &Path) -> Result<()> {
        let is_root =
            shell::output(shell::command("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
        if !cfg!(target_os = "linux") || !is_root || shell::on_path("unshare").is_none() {
            println!("release: it is not started alone, which takes root on Linux");
            return Ok(());
        }
        let root = tempfile::tempdir()?;
        for folder in ["proc", "tmp", "models"] {
            fs::create_dir(root.path().join(folder))?;
        }
        fs::copy(&self.program, root.path().join("realizar"))?;
        fs::copy(model, root.path().join("models/model.gguf"))?;
        let libraries = shell::output(shell::command("ldd").arg(&self.program))?;
        for path in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            let target = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(target.parent().context("a library lies in a folder")?)?;
            fs::copy(path, target)?;
        }
        let mut alone = shell::command("unshare");
        alone.args(["--net", "--mount", "--pid", "--fork", "chroot"]).arg(root.path());
        alone.args(["/realizar", "run", "/models/model.gguf", "-n", "8", "--greedy", "Say hello."]);
        let path = std::env::var_os("PATH").unwrap_or_default();
        alone.env_clear().env("PATH", path).env("REALIZAR_CACHE", "/tmp").stdin(Stdio::null());
        let text = shell::output(&mut alone)?;
        ensure!(!text.trim().is_empty(), "alone, it answers nothing");
        println!("release: alone, without network and Python, it answers: {}", text.trim());
        Ok(())
    }
}

/// Copies the files of a folder into a new one.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
