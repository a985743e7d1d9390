//! What the step `build` made: programs that other steps run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shell;

/// The tests that a GPU runs: (package, test target).
const GPU_TESTS: &[(&str, &str)] = &[("realizar-kernels-wgpu", "realizar_kernels_wgpu")];

/// Programs of the build that all checks share.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Built {
    /// The binary `realizar` with the checks of debug builds.
    pub(super) engine: PathBuf,
    /// The workspace's commands with the crate feature `all`.
    pub(super) commands: PathBuf,
    pub(super) gpu_tests: Vec<TestProgram>,
}

/// The program of a test target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TestProgram {
    pub(super) name: String,
    pub(super) program: PathBuf,
    /// The package's folder, which tests start in.
    pub(super) folder: PathBuf,
}

impl Built {
    /// Builds what is not built yet.
    pub(super) fn now() -> Result<Self> {
        let mut build = shell::cargo();
        build.args(shell::TESTS).args(["--no-run", "--quiet", "--message-format=json"]);
        let messages = shell::output(&mut build)?;
        let gpu_tests = GPU_TESTS.iter().map(|&(package, target)| {
            let mut found = messages.lines().filter_map(|line| test_program(line, package, target));
            found.next().with_context(|| format!("no test program {target} of {package}"))
        });
        Ok(Self {
            engine: shell::build_tested_engine()?,
            commands: shell::build_all_commands()?,
            gpu_tests: gpu_tests.collect::<Result<_>>()?,
        })
    }

    pub(super) fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        serde_json::from_str(&text).with_context(|| file.display().to_string())
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        fs::write(file, serde_json::to_string(self)?).with_context(|| file.display().to_string())
    }
}

/// The program, if a line of cargo's messages tells of this test target.
fn test_program(line: &str, package: &str, target: &str) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_wanted = message["reason"] == "compiler-artifact"
        && message["profile"]["test"] == true
        && message["target"]["name"] == *target;
    let manifest = Path::new(message["manifest_path"].as_str().filter(|_| is_wanted)?);
    let program = message["executable"].as_str()?.into();
    let is_of_package = message["package_id"].as_str()?.contains(&format!("#{package}@"));
    let folder = manifest.parent().filter(|_| is_of_package)?.to_path_buf();
    Some(TestProgram { name: format!("{package} {target}"), program, folder })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found() {
        let line = |name: &str, test: bool| {
            let message = serde_json::json!({
                "reason": "compiler-artifact",
                "package_id": "path+file:///a/crates/runtime#realizar-runtime@0.1.0",
                "manifest_path": "/a/crates/runtime/Cargo.toml",
                "target": {"name": name},
                "profile": {"test": test},
                "executable": "/a/target/debug/deps/wgpu-1",
            });
            message.to_string()
        };
        let find = |line: &str| test_program(line, "realizar-runtime", "wgpu");
        let expected = TestProgram {
            name: "realizar-runtime wgpu".to_owned(),
            program: "/a/target/debug/deps/wgpu-1".into(),
            folder: "/a/crates/runtime".into(),
        };
        assert_eq!(find(&line("wgpu", true)), Some(expected));
        assert_eq!(find(&line("wgpu", false)), None);
        assert_eq!(find(&line("bits", true)), None);
        assert_eq!(find("not JSON"), None);
        assert_eq!(test_program(&line("wgpu", true), "realizar-kernels-wgpu", "wgpu"), None);
    }
}
