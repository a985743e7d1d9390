//! `cargo xtask loom`: the models of the thread team, in every order of its threads' accesses that
//! loom finds.

use anyhow::Result;

use crate::shell;

/// Build the models with loom's types, in a target folder of their own, and run them.
pub(crate) fn run() -> Result<()> {
    let models = ["--package", "realizar-kernels-cpu", "--lib", "team::model"];
    shell::check(
        shell::cargo()
            .arg("test")
            .args(models)
            .arg("--target-dir")
            .arg(shell::root().join("target").join("loom"))
            .env("RUSTFLAGS", "--cfg loom"),
    )
}
