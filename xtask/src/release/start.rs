//! The packed program, started: here, where there is nothing but it, its libraries and a model, and if it
//! is for another platform, by an emulator, whose answer must be that of this machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::Release;
use crate::{models, shell};

/// How a program of another platform is started here.
struct Emulator {
    /// The first part of the platform's name.
    platform: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    /// The tier with which it has to answer as on this machine, where that has the tier as well.
    tier: Option<&'static str>,
}

const EMULATORS: &[Emulator] = &[
    // From version 8.13 on: older ones lack a library that every program of Rust is linked with.
    Emulator { platform: "x86_64-pc-windows", program: "wine", args: &[], tier: Some("avx2") },
    Emulator {
        platform: "aarch64-unknown-linux",
        program: "qemu-aarch64",
        args: &["-L", "/usr/aarch64-linux-gnu"],
        tier: None,
    },
];

/// What a program says its version is.
pub(super) fn version(program: &mut Command) -> Result<String> {
    let version = shell::output(program.arg("--version"))?;
    Ok(version.trim().strip_prefix("realizar ").context("no version")?.to_owned())
}

impl Release {
    /// Starts it, and prints how long that takes.
    pub(super) fn starts(&self) -> Result<()> {
        if self.triple == shell::host()? { self.starts_here() } else { self.starts_by_emulator() }
    }

    fn starts_here(&self) -> Result<()> {
        let model = models::find(&self.program, "smollm2").ok();
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

    fn starts_by_emulator(&self) -> Result<()> {
        let Some(emulator) = EMULATORS.iter().find(|e| self.triple.starts_with(e.platform)) else {
            println!("release: no emulator for {}: not started", self.triple);
            return Ok(());
        };
        let name = emulator.program;
        if shell::on_path(name).is_none() {
            println!("release: {name} is not installed: not started");
            return Ok(());
        }
        let emulated = || {
            let mut command = shell::command(name);
            command.args(emulator.args).arg(&self.program);
            command
        };
        let version = version(&mut emulated())?;
        ensure!(version == self.version, "it is {version}, that of this machine {}", self.version);
        let Ok(model) = models::find(&self.host_program, "smollm2") else {
            println!("release: no model in the cache (cargo xtask setup): no start with one");
            return Ok(());
        };
        let cache = tempfile::tempdir()?;
        let answer = |mut command: Command| -> Result<String> {
            command.args(["--offline", "run"]).arg(&model).args(["--device", "cpu", "-n", "8"]);
            command.args(emulator.tier.into_iter().flat_map(|tier| ["--cpu-tier", tier]));
            command.args(["--greedy", "Say hello."]).stdin(Stdio::null());
            let text = shell::output(command.env("REALIZAR_CACHE", cache.path()))?;
            Ok(text.trim().to_owned())
        };
        let start = Instant::now();
        let (theirs, seconds) = (answer(emulated())?, start.elapsed().as_secs_f64());
        ensure!(!theirs.is_empty(), "by {name} it answers nothing");
        println!("release: by {name} it answers in {seconds:.1} s: {theirs}");
        let ours = answer(shell::command(&self.host_program))?;
        println!("release: on this machine: {ours}");
        ensure!(emulator.tier.is_none() || theirs == ours, "by {name} it answers otherwise");
        Ok(())
    }
}
