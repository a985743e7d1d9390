//! `cargo xtask release`: what is published for a platform, in one folder.
//!
//! An archive with the program, completions, manual pages and licences; a Debian package; a bill of
//! materials; checksums. The program is then started where there is nothing but it, its libraries and a
//! model, and sizes and start times are printed. One for another platform is started by an emulator.

mod archive;
mod debian;
mod sbom;
mod start;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::platforms::{self, Platform};
use crate::{processor, shell};

/// `cargo xtask release`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build for this platform, on any other (needs rustup and pip; for macOS, `SDKROOT` names
    /// Apple's SDK if it is there).
    #[arg(long, value_name = "TRIPLE", value_parser = platforms())]
    target: Option<String>,
    /// Pack this program, built with default features, instead of building one.
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// With `--target`: the same program for this machine, which writes completions and manual pages
    /// [default: it is built].
    #[arg(long, value_name = "PATH", requires = "target")]
    host_bin: Option<PathBuf>,
    /// Folder of the result [default: target/dist, or target/dist-TRIPLE].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn platforms() -> clap::builder::PossibleValuesParser {
    Platform::triples().collect::<Vec<_>>().into()
}

/// What all parts need.
struct Release {
    program: PathBuf,
    /// The same program for this machine.
    host_program: PathBuf,
    version: String,
    triple: String,
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
    let platform = args.target.as_deref().and_then(Platform::find);
    let given = |path: &PathBuf| path.canonicalize().with_context(|| path.display().to_string());
    let program = match &args.bin {
        Some(bin) => given(bin)?,
        None => build(platform)?,
    };
    let host_program = match (&args.host_bin, platform) {
        (Some(bin), _) => given(bin)?,
        (None, Some(_)) => build(None)?,
        (None, None) => program.clone(),
    };
    let folder = platform.map_or("dist".to_owned(), |p| format!("dist-{}", p.triple));
    let out = args.out.clone().unwrap_or_else(|| Path::new("target").join(folder));
    let out = shell::root().join(out);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    fs::create_dir_all(&out)?;
    let version = start::version(&mut shell::command(&host_program))?;
    let triple = platform.map_or_else(shell::host, |platform| Ok(platform.triple.to_owned()))?;
    let extras = tempfile::tempdir()?;
    let release = Release { program, host_program, version, triple, out, extras };
    release.write_extras()?;
    release.archive()?;
    let sbom = release.out.join(format!("{}.cdx.json", release.name()));
    fs::write(sbom, sbom::document(&release.version, &release.triple)?)?;
    debian::build(&release)?;
    release.checksums()?;
    release.starts()?;
    Ok(())
}

/// Builds the program, for this machine or another platform.
fn build(platform: Option<Platform>) -> Result<PathBuf> {
    let strip = "profile.release.strip=\"symbols\"";
    let args = ["--release", "--locked", "--package", "realizar"];
    let args = [&args[..], &["--config", strip]].concat();
    if let Some(platform) = platform {
        return platforms::build(platform, &args);
    }
    let before = processor::seconds();
    shell::check(shell::cargo().arg("build").args(args))?;
    if let (Some(before), Some(after)) = (before, processor::seconds()) {
        println!("release: the build took {:.0} s of processor time", after - before);
    }
    let name = format!("realizar{}", std::env::consts::EXE_SUFFIX);
    Ok(shell::target_dir()?.join("release").join(name))
}

impl Release {
    fn name(&self) -> String {
        format!("realizar-{}-{}", self.version, self.triple)
    }

    fn is_windows(&self) -> bool {
        self.triple.contains("windows")
    }

    /// The program writes its own completions and manual pages; Windows has no use for the latter.
    fn write_extras(&self) -> Result<()> {
        let folder = self.extras.path();
        fs::create_dir_all(folder.join("completions"))?;
        for (name, file) in COMPLETIONS {
            let mut completions = shell::command(&self.host_program);
            let text = shell::output(completions.args(["completions", name]))?;
            fs::write(folder.join("completions").join(file), text)?;
        }
        if self.is_windows() {
            return Ok(());
        }
        fs::create_dir_all(folder.join("man"))?;
        shell::check(shell::command(&self.host_program).arg("man").arg(folder.join("man")))
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
}
