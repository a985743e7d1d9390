//! `cargo xtask fuzz TARGET`: libFuzzer, on the stable toolchain, looks for bytes that break a target of
//! the crate `fuzz`.
//!
//! What it learns stays in `.cache/fuzz/TARGET/`; an input that breaks the target is written to
//! `.cache/fuzz/found/` and belongs, made small, into `fixtures/fuzz/TARGET/` with the change that
//! mends it.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::shell;

/// `cargo xtask fuzz`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The target, by the name of its folder in `fixtures/fuzz/`.
    target: String,
    /// How long to look.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Processes that look at the same time, and share what they learn.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Make this input as small as it breaks the target, instead of looking for one.
    #[arg(long, value_name = "FILE")]
    minimize: Option<PathBuf>,
}

/// LLVM's instrumentation, which cargo-fuzz asks for as well, and checks that a release lacks.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Cdebug-assertions -Coverflow-checks -Ccodegen-units=4";

/// The longest input, in bytes: what breaks something is seldom longer, and long ones are slow.
const MAX_LEN: usize = 16 << 10;

/// Memory beyond which an input is a finding, in MiB.
const MEMORY: usize = 2048;

/// Seconds after which an input is a finding.
const TIMEOUT: usize = 20;

/// Build the target with instrumentation, in a target folder of its own, and run it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let seeds = shell::root().join("fixtures/fuzz").join(&args.target);
    seeds.read_dir().with_context(|| format!("`{}` is not a target", args.target))?;
    let target_dir = shell::root().join("target/fuzz");
    let host = shell::host()?;
    // With `--target`, so that build scripts and macros are not instrumented.
    shell::check(
        shell::cargo()
            .args(["build", "--release", "--package", "realizar-fuzz", "--target", &host])
            .arg("--target-dir")
            .arg(&target_dir)
            .env("RUSTFLAGS", FLAGS),
    )?;
    let learned = shell::cache_dir().join("fuzz").join(&args.target);
    let found = shell::cache_dir().join("fuzz/found");
    for folder in [&learned, &found] {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let program = target_dir.join(host).join("release/realizar-fuzz");
    let mut command = std::process::Command::new(program);
    command.env("REALIZAR_FUZZ_TARGET", &args.target);
    command.arg(format!("-artifact_prefix={}/{}-", found.display(), args.target));
    command.args([format!("-rss_limit_mb={MEMORY}"), format!("-timeout={TIMEOUT}")]);
    command.arg(format!("-max_total_time={}", args.seconds));
    match &args.minimize {
        Some(file) => command.arg("-minimize_crash=1").arg(file),
        None => {
            command.args([format!("-max_len={MAX_LEN}"), format!("-fork={}", args.jobs)]);
            command.args(["-print_final_stats=1", "-ignore_crashes=0"]).arg(&learned).arg(&seeds)
        }
    };
    shell::check(&mut command)
}
