//! `cargo xtask web`: builds the server's page from `crates/server/web`, and tests it.
//!
//! What is built is committed, so that nobody needs Node to build the server. `SHA256SUMS` beside it
//! ties the files to their sources: `cargo xtask tidy` tells when either has changed alone.

mod browser;
mod built;
mod lock;
mod node;
mod stub;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell;
use crate::totals::Totals;
use node::Node;

pub(crate) use browser::install as install_browser;
pub(crate) use built::{FOLDER as BUILT, stale};
pub(crate) use lock::check_licences;

/// The sources.
const WEB: &str = "crates/server/web";

/// `cargo xtask web`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Take new screenshots as those that the tests compare with.
    #[arg(long)]
    screenshots: bool,
    /// The program `realizar` to take them with; by default it is built as the tests build it.
    #[arg(long, value_name = "PATH", requires = "screenshots")]
    bin: Option<PathBuf>,
}

/// Build the page and write it where the server includes it from.
pub(crate) fn run(args: &Args) -> Result<()> {
    let node = Node::ready()?;
    let folder = tempfile::tempdir()?;
    shell::check(node.script("build.mjs").arg(folder.path()))?;
    built::write(&shell::root(), folder.path())?;
    for (name, bytes) in built::sizes(&shell::root())? {
        println!("web: {name}, {bytes} bytes");
    }
    if args.screenshots {
        browser::install()?;
        let totals = in_browser(&node, args.bin.as_deref(), true)?;
        ensure!(totals.failed == 0, "the tests in the browser fail: {totals}");
    }
    Ok(())
}

/// Types, unit tests, whether the committed files are what their sources give, and the page in a
/// browser.
pub(crate) fn test() -> Result<Totals> {
    let node = Node::ready()?;
    shell::check(node.program("tsc").arg("--noEmit"))?;
    let folder = tempfile::tempdir()?;
    shell::check(node.script("build.mjs").arg(folder.path()))?;
    let differing = built::differing(&shell::root(), folder.path())?;
    ensure!(differing.is_empty(), "{} is not what is built: cargo xtask web", differing.join(", "));
    shell::check(node.script("build.mjs").arg("--tests"))?;
    let mut totals = node.tests("build/tests/*.test.js", |_| {})?;
    totals.add(in_browser(&node, None, false)?);
    Ok(totals)
}

/// The page in a browser, on a server whose models say what the tests expect.
fn in_browser(node: &Node, engine: Option<&Path>, takes_screenshots: bool) -> Result<Totals> {
    let Some(browser) = browser::find() else {
        println!("web: no Chromium is installed; {}: skipped", browser::how());
        return Ok(Totals::default());
    };
    let engine = match engine {
        Some(engine) => engine.canonicalize()?,
        None => shell::build_tested_engine()?,
    };
    let models = tempfile::tempdir()?;
    for (name, context) in [("stub", 131_072), ("small", 384)] {
        let path = models.path().join(format!("{name}.gguf"));
        stub::write(&path, context).with_context(|| path.display().to_string())?;
    }
    let shots = models.path().join("screenshots");
    fs::create_dir(&shots)?;
    node.tests("e2e/*.test.mjs", |tests| {
        tests.env("ENGINE", &engine).env("BROWSER", &browser).env("MODELS", models.path());
        tests.env("SHOTS", &shots);
        if takes_screenshots {
            tests.env("TAKE_SCREENSHOTS", "1");
        }
    })
}
