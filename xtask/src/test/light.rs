//! The steps that need cargo, other programs and what the step `build` made, and none of the larger commands.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::built::Built;
use super::count::count_tests;
use super::step::Step;
use crate::lavapipe::{self, Width};
use crate::totals::Totals;
use crate::{deny, documents, manifests, packages, platforms, shell, tidy};

/// Does a step's work; only some steps count tests.
pub(super) fn run(step: Step, built: Option<&Built>) -> Result<Totals> {
    let built = || built.context("the step needs what `build` makes");
    match step {
        Step::Fmt => shell::check(shell::cargo().args(["fmt", "--all", "--check"]))?,
        Step::Tidy => tidy::run()?,
        Step::Deny => deny::run()?,
        Step::Clippy => clippy()?,
        Step::Doc => doc()?,
        Step::Platforms => return platforms::run(),
        Step::Build => {
            Built::now()?;
        }
        Step::Tests => {
            let mut tests = shell::cargo();
            if cfg!(target_os = "linux") {
                tests.envs(lavapipe::environment(Some(Width::W256))?);
            }
            tests.args(shell::TESTS).arg("--no-fail-fast");
            tests.env("REALIZAR_VOCAB_DIR", shell::vocab_dir());
            tests.env("REALIZAR_TEMPLATE_DIR", shell::template_dir());
            return count_tests(&mut tests);
        }
        Step::Packages => return packages::run(),
        Step::Manifests => return manifests::run(&built()?.engine),
        Step::Documents if !cfg!(unix) => {
            println!("the documents show commands of a Unix shell: skipped");
        }
        Step::Documents => return documents::run(&built()?.engine),
        Step::GpuTests => return gpu_tests(built()?),
        _ => bail!("{} is a step of the crate feature `all`", step.name()),
    }
    Ok(Totals::default())
}

fn clippy() -> Result<()> {
    shell::check(
        shell::cargo()
            .args(["clippy", "--workspace", "--all-targets", "--all-features"])
            .args(["--quiet", "--", "-D", "warnings"]),
    )?;
    // The engine without its optional features; dependencies keep those that they have
    // in the whole workspace, so that they are not built again.
    shell::check(
        shell::cargo()
            .args(["clippy", "--workspace", "--all-targets", "--no-default-features"])
            .args(["--quiet", "--", "-D", "warnings"]),
    )?;
    // The commands of this program alone, as it was built to run this.
    let mut build = shell::cargo();
    build.args(["build", "--package", "xtask", "--quiet", "--message-format=json"]);
    match warnings(&shell::output(&mut build)?).as_slice() {
        [] => Ok(()),
        warnings => bail!("xtask without its features:\n{}", warnings.concat()),
    }
}

/// Builds the documentation. Its dependencies are checked by clippy's compiler with clippy's arguments, as cargo-clippy
/// hands them over, so that cargo takes what [`clippy`] has checked.
fn doc() -> Result<()> {
    let sysroot = shell::output(shell::command("rustc").args(["--print", "sysroot"]))?;
    let driver = format!("clippy-driver{}", std::env::consts::EXE_SUFFIX);
    let driver = Path::new(sysroot.trim()).join("bin").join(driver);
    let mut doc = shell::cargo();
    doc.args(["doc", "--workspace", "--all-features", "--no-deps", "--quiet"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    if driver.is_file() {
        doc.env("RUSTC_WORKSPACE_WRAPPER", driver);
        doc.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    }
    shell::check(&mut doc)
}

/// The warnings among the messages of cargo, which also repeats those of earlier builds.
fn warnings(messages: &str) -> Vec<String> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let messages = messages.filter(|message| message["message"]["level"] == "warning");
    messages.filter_map(|it| it["message"]["rendered"].as_str().map(str::to_owned)).collect()
}

/// The GPU tests at the widths that the step `tests` leaves out.
fn gpu_tests(built: &Built) -> Result<Totals> {
    let mut totals = Totals::default();
    if !cfg!(target_os = "linux") {
        println!("lavapipe is tested on Linux alone: skipped");
        return Ok(totals);
    }
    for test in &built.gpu_tests {
        for width in [Width::W128, Width::W512] {
            println!("-- {}, vectors of {} bits", test.name, width.bits());
            let mut tests = shell::command(&test.program);
            tests.current_dir(&test.folder).envs(lavapipe::environment(Some(width))?);
            totals.add(count_tests(&mut tests)?);
        }
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_found_among_messages() {
        let messages = "{\"reason\": \"compiler-artifact\"}\n\
            {\"reason\": \"compiler-message\", \"message\": {\"level\": \"warning\", \"rendered\": \"unused\"}}\n\
            {\"reason\": \"compiler-message\", \"message\": {\"level\": \"note\", \"rendered\": \"see\"}}\n";
        assert_eq!(warnings(messages), ["unused"]);
    }
}
