//! `cargo xtask parity`: hold the release binary against reference outputs, as a user would.
//!
//! [`archs`] compares tiny models with transformers, [`bits`] compares the engine with itself bit
//! by bit, [`real`] compares published models with an F32 reference, [`memory`] holds their peak
//! memory against their size.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::shell;

mod archs;
mod bits;
mod engine;
mod memory;
mod real;

/// `cargo xtask parity`; without a choice, the tiny models and bit-identity are checked.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Compare tiny models of each architecture with transformers.
    #[arg(long)]
    archs: bool,
    /// Compare logits bit by bit over numbers of threads and chunk sizes.
    #[arg(long)]
    bits: bool,
    /// Compare published models with the F32 reference (`cargo xtask setup` fetches them).
    #[arg(long)]
    real: bool,
    /// Hold the peak memory of published models against their size (Linux alone).
    #[arg(long)]
    memory: bool,
    /// A folder of tiny models instead of `fixtures/archs`.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Comma-separated names of tiny or real models; all by default.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// An engine to use instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
}

impl Args {
    /// What `cargo xtask test` runs on the committed models.
    pub(crate) fn tiny() -> Self {
        Self { archs: true, bits: true, ..Self::default() }
    }

    /// What `cargo xtask test` runs on the published models.
    pub(crate) fn real() -> Self {
        Self { real: true, bits: true, memory: true, ..Self::default() }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|n| n == name)
    }
}

/// How many comparisons held.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Comparisons that held.
    pub(crate) passed: usize,
    /// Comparisons that did not.
    pub(crate) failed: usize,
}

impl Totals {
    /// Count one comparison and give back the word for its table.
    fn count(&mut self, ok: bool) -> String {
        *(if ok { &mut self.passed } else { &mut self.failed }) += 1;
        (if ok { "ok" } else { "FAILED" }).to_owned()
    }

    /// Add other counts to these.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// An error when something failed.
    pub(crate) fn into_result(self) -> Result<()> {
        println!("{self}");
        if self.failed > 0 {
            bail!("parity: {} comparisons failed", self.failed);
        }
        Ok(())
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Run the chosen comparisons and print their tables.
pub(crate) fn run(args: &Args) -> Result<Totals> {
    // Programs start in the repository root, so paths relative to the caller are made absolute.
    let absolute = |p: &PathBuf| p.canonicalize().with_context(|| format!("open {}", p.display()));
    let bin = args.bin.as_ref().map_or_else(shell::build_engine, absolute)?;
    let engine = engine::Engine::new(bin);
    let committed = shell::root().join("fixtures/archs");
    let dir = args.dir.as_ref().map_or(Ok(committed), absolute)?;
    let all = !(args.archs || args.bits || args.real || args.memory);
    let mut totals = Totals::default();
    if args.archs || all {
        totals.add(archs::run(&engine, &dir, args)?);
    }
    if args.bits || all {
        totals.add(bits::run(&engine, &dir, args)?);
    }
    if args.real {
        totals.add(real::run(&engine, args)?);
    }
    if args.memory {
        totals.add(memory::run(&engine, args)?);
    }
    let elsewhere = args.memory && !cfg!(target_os = "linux");
    if totals == Totals::default() && !elsewhere {
        bail!("parity: nothing was compared");
    }
    Ok(totals)
}
