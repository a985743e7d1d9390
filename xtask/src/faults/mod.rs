//! `cargo xtask faults`: deliberate faults, each of which a named check must find.
//!
//! They are made in a copy of the tree, one after the other, in code that the whole runs of `cargo xtask test`
//! once covered more often than they do. A check that fails to compile has found nothing.

mod list;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::totals::Totals;
use crate::{lavapipe, packages, shell, table, tidy};
use list::{Check, FAULTS, Fault};

/// `cargo xtask faults`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the faults whose names contain this text.
    #[arg(default_value = "")]
    only: String,
}

/// Where the copy and its build are, in cargo's target folder.
const FOLDER: &str = "faults";

/// Kernels are tested here for what they compute, not how fast.
const PROFILE: &str = "profile.dev.package.realizar-kernels-cpu.opt-level=1";

/// Make each fault, and tell which check found it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = shell::target_dir()?.join(FOLDER);
    let tree = folder.join("tree");
    let sources = copy(&tree)?;
    let mut rows = Vec::new();
    let mut totals = Totals::default();
    let mut sound: Vec<Check> = Vec::new();
    for fault in FAULTS.iter().filter(|fault| fault.name.contains(&args.only)) {
        let found = find(&tree, &sources, fault.text).and_then(|file| {
            if !sound.contains(&fault.check) {
                ensure!(passes(&tree, fault.check)?, "the check fails without the fault");
                sound.push(fault.check);
            }
            with_fault(&file, fault, || passes(&tree, fault.check))
        });
        let result = match found {
            Ok(false) => {
                totals.passed += 1;
                "found".to_owned()
            }
            Ok(true) => {
                totals.fail(format!("faults: {}: not found", fault.name));
                "NOT FOUND".to_owned()
            }
            Err(error) => {
                totals.fail(format!("faults: {}: {error:#}", fault.name));
                format!("FAILED: {error:#}")
            }
        };
        println!("{}: {result}", fault.name);
        rows.push(vec![fault.name.to_owned(), show(fault.check), result]);
    }
    println!("\n{}", table::render(&["fault", "check", "result"], &rows));
    println!("{totals}");
    if totals.failed > 0 {
        bail!("{} faults were not found", totals.failed);
    }
    Ok(())
}

/// Copies what is committed, or would be, and returns the sources that may have a fault.
fn copy(tree: &Path) -> Result<Vec<PathBuf>> {
    let root = shell::root();
    let files = tidy::all_files()?;
    let files: Vec<PathBuf> = files.into_iter().filter(|file| root.join(file).is_file()).collect();
    for file in &files {
        packages::replace_file(&root.join(file), &tree.join(file))?;
    }
    let is_source = |file: &PathBuf| {
        let is_code = file.extension().is_some_and(|it| it == "rs" || it == "wgsl");
        is_code && file.starts_with("crates")
    };
    Ok(files.into_iter().filter(is_source).collect())
}

/// The only file with a text, which stands in it once.
fn find(tree: &Path, sources: &[PathBuf], text: &str) -> Result<PathBuf> {
    let mut found = None;
    for file in sources {
        let path = tree.join(file);
        let n = fs::read_to_string(&path)?.matches(text).count();
        ensure!(n <= 1 && (n == 0 || found.is_none()), "`{text}` stands more than once");
        found = found.or((n == 1).then_some(path));
    }
    found.with_context(|| format!("`{text}` stands nowhere"))
}

/// Calls `check` while a file has the fault.
fn with_fault(file: &Path, fault: &Fault, check: impl FnOnce() -> Result<bool>) -> Result<bool> {
    let sound = fs::read_to_string(file)?;
    fs::write(file, sound.replace(fault.text, fault.fault))?;
    let outcome = check();
    fs::write(file, sound)?;
    outcome
}

/// Whether the tests of a check pass; an error where they do not compile.
fn passes(tree: &Path, check: Check) -> Result<bool> {
    let test = |more: &[&str]| -> Result<bool> {
        let mut cargo = shell::cargo();
        cargo.current_dir(tree).args(["test", "--quiet", "--config", PROFILE]);
        cargo.args(["--package", check.package]).args(check.target).args(more);
        cargo.env("CARGO_TARGET_DIR", tree.with_file_name("build"));
        if check.width.is_some() {
            cargo.envs(lavapipe::environment(check.width)?);
        }
        let out = cargo.output().with_context(|| format!("start {}", shell::show(&cargo)))?;
        Ok(out.status.success())
    };
    ensure!(test(&["--no-run"])?, "the tests of {} do not compile", check.package);
    test(&["--", check.filter])
}

/// The command line of a check.
fn show(check: Check) -> String {
    let width = check.width.map(|width| format!("LP_NATIVE_VECTOR_WIDTH={} ", width.bits()));
    let target = check.target.join(" ");
    let line = format!("cargo test -p {} {target} {}", check.package, check.filter);
    width.unwrap_or_default() + line.trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_one_place() {
        let root = shell::root();
        let files = tidy::all_files().unwrap().into_iter().filter(|file| {
            let is_code = file.extension().is_some_and(|it| it == "rs" || it == "wgsl");
            is_code && file.starts_with("crates") && root.join(file).is_file()
        });
        let files: Vec<PathBuf> = files.collect();
        for fault in FAULTS {
            assert_ne!(fault.text, fault.fault);
            find(&root, &files, fault.text).unwrap();
        }
    }

    #[test]
    fn a_fault_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.rs");
        let fault = &FAULTS[0];
        fs::write(&file, fault.text).unwrap();
        let has_fault = || Ok(fs::read_to_string(&file).unwrap() == fault.fault);
        assert!(with_fault(&file, fault, has_fault).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), fault.text);
    }
}
