//! `cargo xtask deny`: what the dependency tree may hold, by `deny.toml`.
//!
//! `cargo deny` does it where it is installed, with advisories if their database can be had.
//! Elsewhere licences and sources are checked here, by the same file: building cargo deny takes
//! longer than the tests. The packages that the server's page is made of are checked by the same list.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{licences, shell, web};

/// The source of packages that come from crates.io, as cargo names it.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The parts of `deny.toml` that are read here.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

/// What `cargo metadata` tells.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// None of a package of this workspace.
    source: Option<String>,
}

/// Check the dependency tree; prints what was checked.
pub(crate) fn run() -> Result<()> {
    let n_packages = web::check_licences(&shell::root(), &rules()?.licenses.allow)?;
    println!("deny: licences of the page's {n_packages} packages are allowed");
    let mut version = shell::cargo();
    version.args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if version.status().is_ok_and(|status| status.success()) {
        return cargo_deny();
    }
    println!(
        "deny: cargo-deny is not installed (cargo install cargo-deny): licences and sources are \
         checked, advisories are not"
    );
    licences_and_sources()
}

fn cargo_deny() -> Result<()> {
    shell::check(shell::cargo().args(["deny", "check", "bans", "licenses", "sources"]))?;
    let mut fetch = shell::cargo();
    fetch.args(["deny", "fetch", "db"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !fetch.status().context("cargo deny fetch")?.success() {
        println!("deny: the advisory database cannot be fetched: advisories are not checked");
        return Ok(());
    }
    shell::check(shell::cargo().args(["deny", "check", "advisories"]))
}

fn rules() -> Result<Rules> {
    let path = shell::root().join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

fn licences_and_sources() -> Result<()> {
    let rules = rules()?;
    let mut command: Command = shell::cargo();
    command.args(["metadata", "--format-version", "1", "--all-features", "--locked"]);
    let Metadata { packages } = serde_json::from_str(&shell::output(&mut command)?)?;
    let mut faults = BTreeMap::new();
    for package in &packages {
        if let Err(fault) = check(package, &rules.licenses.allow) {
            faults.insert(format!("{} {}", package.name, package.version), fault);
        }
    }
    for (package, fault) in &faults {
        println!("deny: {package}: {fault}");
    }
    if !faults.is_empty() {
        bail!("{} packages are not as deny.toml allows", faults.len());
    }
    println!("deny: licences and sources of {} packages are allowed", packages.len());
    Ok(())
}

/// Fails, saying why, if a package is of a licence or from a place that is not allowed.
fn check(package: &Package, allowed: &[String]) -> Result<()> {
    if let Some(source) = package.source.as_deref().filter(|&source| source != CRATES_IO) {
        bail!("it comes from {source}");
    }
    licences::check(package.license.as_deref().context("it names no licence")?, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_and_sources_have_to_be_allowed() {
        let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception", "Zlib"].map(str::to_owned);
        let fault = |license: &str, source: Option<&str>| {
            let package = Package {
                name: "a".to_owned(),
                version: "1.0.0".to_owned(),
                license: (!license.is_empty()).then(|| license.to_owned()),
                source: source.map(str::to_owned),
            };
            check(&package, &allowed).err().map(|error| error.to_string())
        };
        let crates_io = Some(CRATES_IO);
        for license in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "MIT AND Zlib",
            "(GPL-2.0-only OR Zlib) AND MIT",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert_eq!(fault(license, crates_io), None, "{license}");
        }
        for license in ["Apache-2.0", "MIT AND GPL-3.0-only", "GPL-3.0-only OR Apache-2.0"] {
            let text = format!("its licence `{license}` is not allowed");
            assert_eq!(fault(license, crates_io), Some(text));
        }
        assert_eq!(fault("", crates_io).as_deref(), Some("it names no licence"));
        assert_eq!(fault("MIT", None), None, "of this workspace");
        let git = fault("MIT", Some("git+https://example.com/a"));
        assert_eq!(git.as_deref(), Some("it comes from git+https://example.com/a"));
    }
}
