//! Building the page and testing it, with Node.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::node::Node;
use super::{browser, files, stub};
use crate::shell;
use crate::totals::Totals;

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
    files::write(&shell::root(), folder.path())?;
    for (name, bytes) in files::sizes(&shell::root())? {
        println!("web: {name}, {bytes} bytes");
    }
    if args.screenshots {
        browser::install()?;
        let engine = match &args.bin {
            Some(engine) => engine.canonicalize()?,
            None => shell::build_tested_engine()?,
        };
        let totals = in_browser(&node, &engine, true)?;
        ensure!(totals.failed == 0, "the tests in the browser fail: {totals}");
    }
    Ok(())
}

/// Types, unit tests, whether the committed files are what their sources give, and the page in a
/// browser.
pub(crate) fn test(engine: &Path) -> Result<Totals> {
    let node = Node::ready()?;
    shell::check(node.program("tsc").arg("--noEmit"))?;
    let folder = tempfile::tempdir()?;
    shell::check(node.script("build.mjs").arg(folder.path()))?;
    let differing = files::differing(&shell::root(), folder.path())?;
    ensure!(differing.is_empty(), "{} is not what is built: cargo xtask web", differing.join(", "));
    shell::check(node.script("build.mjs").arg("--tests"))?;
    let mut totals = node.tests("build/tests/*.test.js", |_| {})?;
    totals.add(in_browser(&node, engine, false)?);
    Ok(totals)
}

/// The page in a browser, on a server whose models say what the tests expect.
fn in_browser(node: &Node, engine: &Path, takes_screenshots: bool) -> Result<Totals> {
    let Some(browser) = browser::find() else {
        println!("web: no Chromium is installed; {}: skipped", browser::how());
        return Ok(Totals::default());
    };
    let models = tempfile::tempdir()?;
    for (name, context) in [("stub", 131_072), ("small", 384)] {
        let path = models.path().join(format!("{name}.gguf"));
        stub::write(&path, context).with_context(|| path.display().to_string())?;
    }
    let shots = models.path().join("screenshots");
    fs::create_dir(&shots)?;
    node.tests("e2e/*.test.mjs", |tests| {
        tests.env("ENGINE", engine).env("BROWSER", &browser).env("MODELS", models.path());
        tests.env("SHOTS", &shots);
        if takes_screenshots {
            tests.env("TAKE_SCREENSHOTS", "1");
        }
    })
}
