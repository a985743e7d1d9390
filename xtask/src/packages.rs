//! The step `packages`: programs outside of the workspace that use each library crate as it is shipped.
//!
//! `cargo package` packs what would be published. The packages are unpacked, and the programs of
//! `fixtures/packages`, one for each library, are built against them and run. A file that a package lacks, a
//! dependency that is published nowhere or an example that does not compile is found here.
//!
//! Dependencies of other authors are built as the tests build them, with the features that all crates together ask for, so
//! that nothing is built twice. That a crate relies on a feature which only another one asks for is not found.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::lavapipe::{self, Width};
use crate::shell;
use crate::tidy::VENDORED;
use crate::totals::Totals;

/// The programs, a folder each, named as the crate without `realizar-`.
const PROGRAMS: &str = "fixtures/packages";

/// The document that shows parts of the programs.
const DOCUMENT: &str = "docs/library.md";

/// What every package has.
const FILES: &[&str] = &["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// What crates.io takes for a package, in bytes.
const MAX_LEN: u64 = 10 << 20;

/// A crate that is published.
struct Package {
    name: String,
    version: String,
    is_library: bool,
    /// Whether others wrote it, so that it has no program here and its own way of describing itself.
    is_vendored: bool,
}

/// Packs, unpacks, builds, runs.
pub(crate) fn run() -> Result<Totals> {
    let metadata =
        shell::json(shell::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let packages = packages(&metadata);
    let names: BTreeSet<String> = packages.iter().filter_map(Package::program).collect();
    let programs = programs()?;
    ensure!(
        names == programs,
        "{PROGRAMS} has programs for {programs:?}, the libraries are {names:?}"
    );
    check_sources(&programs)?;

    let target = shell::target_dir()?;
    pack(&packages)?;
    let folder = target.join("packages");
    for package in &packages {
        let stem = format!("{}-{}", package.name, package.version);
        let packed = target.join(format!("package/{stem}.crate"));
        unpack(&packed, &folder.join(&package.name), &stem, package.is_vendored)
            .with_context(|| format!("package {stem}"))?;
    }
    let manifest = write_workspace(&folder, &programs, &packages, &metadata)?;
    let mut build = shell::cargo();
    build.args(["build", "--offline", "--quiet", "--workspace", "--manifest-path"]).arg(&manifest);
    shell::check(build.arg("--target-dir").arg(&target))?;

    let model = folder.join("realizar-runtime/examples/alphabet.gguf");
    let mut totals = Totals::default();
    for name in &programs {
        let program = format!("use-{name}{}", std::env::consts::EXE_SUFFIX);
        let mut command = shell::command(target.join("debug").join(program));
        command.current_dir(&folder).arg(&model);
        if cfg!(target_os = "linux") {
            command.envs(lavapipe::environment(Some(Width::W256))?);
        }
        let out = command.output().with_context(|| format!("start use-{name}"))?;
        if out.status.success() {
            let printed = String::from_utf8_lossy(&out.stdout);
            println!("use-{name}: {}", printed.lines().last().unwrap_or_default());
            totals.passed += 1;
        } else {
            let printed = String::from_utf8_lossy(&out.stderr);
            totals.fail(format!("use-{name}: FAILED ({}): {printed}", out.status));
        }
    }
    Ok(totals)
}

impl Package {
    /// The name of the program that uses it, for a library.
    fn program(&self) -> Option<String> {
        let has_program = self.is_library && !self.is_vendored;
        let name = has_program.then(|| self.name.strip_prefix("realizar-"))?;
        name.map(str::to_owned)
    }
}

/// The crates of the workspace that are published.
fn packages(metadata: &Value) -> Vec<Package> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let published = packages.filter(|p| p["publish"].as_array().is_none_or(|to| !to.is_empty()));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let read = |package: &Value| {
        let targets = package["targets"].as_array().into_iter().flatten();
        let mut kinds = targets.filter_map(|target| target["kind"].as_array()).flatten();
        let is_library = kinds.any(|kind| kind == "lib");
        let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent();
        let is_vendored =
            folder.and_then(Path::parent).is_some_and(|path| path.ends_with(VENDORED));
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        Package { name, version, is_library, is_vendored }
    };
    published.map(read).collect()
}

/// The folders of the programs.
fn programs() -> Result<BTreeSet<String>> {
    let folders = fs::read_dir(shell::root().join(PROGRAMS)).context(PROGRAMS)?;
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry?.file_name().into_string();
        name.ok().context("a name that is not Unicode")
    };
    folders.map(name).collect()
}

/// The programs are formatted, and the document shows what is in them.
fn check_sources(programs: &BTreeSet<String>) -> Result<()> {
    let root = shell::root();
    let paths = programs.iter().map(|name| root.join(PROGRAMS).join(name).join("src/main.rs"));
    let paths: Vec<PathBuf> = paths.collect();
    let mut rustfmt = shell::command("rustfmt");
    shell::check(rustfmt.args(["--edition", "2024", "--check"]).args(&paths))?;
    let sources: Result<Vec<String>, _> = paths.iter().map(fs::read_to_string).collect();
    let sources = sources?;
    let document = fs::read_to_string(root.join(DOCUMENT)).context(DOCUMENT)?;
    for block in rust_blocks(&document) {
        let is_shown = sources.iter().any(|source| source.contains(&block));
        ensure!(is_shown, "{DOCUMENT} shows what is in none of the programs:\n{block}");
    }
    Ok(())
}

/// The texts of the blocks of Rust in a document.
fn rust_blocks(text: &str) -> Vec<String> {
    let parts = text.split("```rust\n").skip(1);
    parts.filter_map(|part| part.split_once("```")).map(|(block, _)| block.to_owned()).collect()
}

/// Packs what would be published. What cargo warns of is an error, except that tests stay behind.
fn pack(packages: &[Package]) -> Result<()> {
    let mut cargo = shell::cargo();
    cargo.args(["package", "--offline", "--no-verify", "--allow-dirty"]);
    for package in packages {
        cargo.args(["--package", &package.name]);
    }
    let out = cargo.output().context("start cargo package")?;
    let printed = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "cargo package exited with {}:\n{printed}", out.status);
    match warnings(&printed).as_slice() {
        [] => Ok(()),
        warnings => bail!("cargo package warns:\n{}", warnings.join("\n")),
    }
}

/// The warnings in what `cargo package` printed that are to be heeded.
fn warnings(printed: &str) -> Vec<&str> {
    let left_behind = |line: &&str| {
        line.starts_with("warning: ignoring test ")
            || line.starts_with("warning: ignoring benchmark ")
    };
    let warnings = printed.lines().filter(|line| line.starts_with("warning: "));
    warnings.filter(|line| !left_behind(line)).collect()
}

/// Unpacks a package and checks that it has what a package needs. Files that exist already and have not
/// changed are left alone, so that cargo does not build them again.
fn unpack(package: &Path, to: &Path, stem: &str, is_vendored: bool) -> Result<()> {
    let len = fs::metadata(package)?.len();
    ensure!(len <= MAX_LEN, "it is of {len} bytes; crates.io takes {MAX_LEN}");
    let fresh = tempfile::tempdir()?;
    shell::check(shell::command("tar").arg("-xzf").arg(package).arg("-C").arg(fresh.path()))?;
    let fresh = fresh.path().join(stem);
    if is_vendored {
        return replace(&fresh, to);
    }
    for file in FILES {
        ensure!(fresh.join(file).is_file(), "{file} is missing");
    }
    let manifest = fs::read_to_string(fresh.join("Cargo.toml"))?;
    let manifest: toml::Table = manifest.parse()?;
    for field in ["description", "license", "repository", "keywords", "categories", "readme"] {
        let has = manifest.get("package").is_some_and(|package| package.get(field).is_some());
        ensure!(has, "its manifest has no {field}");
    }
    replace(&fresh, to)
}

/// Makes `to` what `from` is. Only files that differ are written.
fn replace(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        let source = from.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if !source.is_dir() {
                fs::remove_dir_all(entry.path())?;
            }
        } else if !source.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            replace(&entry.path(), &target)?;
        } else {
            replace_file(&entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Makes the file `to` what `from` is. It is written only if it differs.
pub(crate) fn replace_file(from: &Path, to: &Path) -> Result<()> {
    let text = fs::read(from)?;
    if fs::read(to).ok().as_deref() != Some(&*text) {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(to, text)?;
    }
    Ok(())
}

/// Writes a workspace of the programs, in which the packages take the place of published ones, and returns its
/// manifest. Versions, features and profiles of dependencies are those of this workspace.
fn write_workspace(
    folder: &Path,
    programs: &BTreeSet<String>,
    packages: &[Package],
    metadata: &Value,
) -> Result<PathBuf> {
    let root = shell::root();
    let workspace = folder.join("programs");
    for name in programs {
        replace(&root.join(PROGRAMS).join(name), &workspace.join(name))?;
    }
    fs::create_dir_all(workspace.join("dependencies/src"))?;
    fs::write(workspace.join("dependencies/src/lib.rs"), "//! Asks for features.\n")?;
    fs::write(workspace.join("dependencies/Cargo.toml"), dependencies(metadata)?)?;
    let members = programs.iter().map(String::as_str).chain(["dependencies"]);
    let members: Vec<String> = members.map(|name| format!("\"{name}\"")).collect();
    let mut text = format!("[workspace]\nresolver = \"3\"\nmembers = [{}]\n", members.join(", "));
    text += "\n[patch.crates-io]\n";
    for package in packages.iter().filter(|package| package.is_library) {
        text += &format!("{0} = {{ path = \"../{0}\" }}\n", package.name);
    }
    text += &profiles(&fs::read_to_string(root.join("Cargo.toml"))?);
    // The programs do little, so what builds fast is fast enough.
    for package in packages.iter().filter(|package| package.is_library) {
        text += &format!("[profile.dev.package.{}]\nopt-level = 0\n", package.name);
    }
    let manifest = workspace.join("Cargo.toml");
    fs::write(&manifest, text)?;
    fs::copy(root.join("Cargo.lock"), workspace.join("Cargo.lock"))?;
    Ok(manifest)
}

/// The manifest of a crate that asks for all features of other authors' crates that a crate of this workspace asks
/// for.
fn dependencies(metadata: &Value) -> Result<String> {
    let members = metadata["packages"].as_array().into_iter().flatten();
    let asked = members.filter_map(|package| package["dependencies"].as_array()).flatten();
    // By platform and name: the version, whether default features are wanted, features.
    let mut all: BTreeMap<(String, &str), (&str, bool, BTreeSet<&str>)> = BTreeMap::new();
    for asked in asked.filter(|asked| asked["path"].is_null()) {
        let platform = asked["target"].as_str().map(|target| format!("target.'{target}'."));
        let name = asked["name"].as_str().context("a dependency without a name")?;
        let version = asked["req"].as_str().context("a dependency without a version")?;
        let found = all.entry((platform.unwrap_or_default(), name)).or_default();
        found.0 = version;
        found.1 |= asked["uses_default_features"] == true;
        found
            .2
            .extend(asked["features"].as_array().into_iter().flatten().filter_map(Value::as_str));
    }
    let mut text =
        "[package]\nname = \"dependencies\"\nversion = \"0.1.0\"\nedition = \"2024\"\n".to_owned();
    for ((platform, name), (version, is_default, features)) in all {
        text += &format!(
            "[{platform}dependencies.{name}]\nversion = \"{version}\"\n\
             default-features = {is_default}\nfeatures = {:?}\n",
            Vec::from_iter(features)
        );
    }
    Ok(text)
}

/// The profiles of a manifest, without those of our own crates.
fn profiles(manifest: &str) -> String {
    let mut is_profile = false;
    let mut text = String::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            let is_own = line.starts_with("[profile.dev.package.realizar");
            is_profile = line.starts_with("[profile.dev") && !is_own;
        }
        if is_profile {
            text += line;
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_crates_are_found() {
        let metadata = serde_json::json!({"packages": [
            {"name": "realizar", "version": "1.2.3", "publish": null, "targets": [{"kind": ["bin"]}]},
            {"name": "realizar-other", "version": "1.2.3", "publish": null,
             "manifest_path": "/a/vendor/other/Cargo.toml", "targets": [{"kind": ["lib"]}]},
            {"name": "realizar-quant", "version": "1.2.3", "publish": null,
             "manifest_path": "/a/crates/quant/Cargo.toml", "targets": [{"kind": ["lib"]}, {"kind": ["example"]}]},
            {"name": "xtask", "version": "0.0.0", "publish": [], "targets": [{"kind": ["lib"]}]},
        ]});
        let found = packages(&metadata);
        let names: Vec<_> = found.iter().map(|p| (p.name.as_str(), p.program())).collect();
        let quant = ("realizar-quant", Some("quant".to_owned()));
        assert_eq!(names, [("realizar", None), ("realizar-other", None), quant]);
    }

    #[test]
    fn features_are_those_of_all_crates() {
        let of = |features: &[&str], target: Option<&str>, is_default: bool| {
            serde_json::json!({"name": "tokio", "req": "^1.54", "features": features,
                "uses_default_features": is_default, "target": target})
        };
        let own = serde_json::json!({"name": "realizar-quant", "path": "/a", "req": "^0.1"});
        let metadata = serde_json::json!({"packages": [
            {"dependencies": [of(&["net"], None, false), own, of(&["io-std"], Some("cfg(unix)"), true)]},
            {"dependencies": [of(&["macros", "net"], None, false)]},
        ]});
        let text = dependencies(&metadata).unwrap();
        let expected = "[dependencies.tokio]\nversion = \"^1.54\"\ndefault-features = false\n\
                        features = [\"macros\", \"net\"]\n\
                        [target.'cfg(unix)'.dependencies.tokio]\nversion = \"^1.54\"\n\
                        default-features = true\nfeatures = [\"io-std\"]\n";
        assert!(text.ends_with(expected), "{text}");
        assert!(!text.contains("realizar"), "{text}");
    }

    #[test]
    fn warnings_that_matter_are_kept() {
        let printed = "   Packaging a v1\nwarning: ignoring test `it` as `tests/it/main.rs` is not \
                       included in the published package\nwarning: manifest has no documentation\n";
        assert_eq!(warnings(printed), ["warning: manifest has no documentation"]);
    }

    #[test]
    fn profiles_and_blocks_are_cut_out() {
        let manifest = "[workspace]\na = 1\n\n[profile.dev]\nopt-level = 1\n# Why.\n\
                        [profile.dev.package.b]\nopt-level = 3\n[other]\nc = 2\n\
                        [profile.dev.package.realizar-b]\nopt-level = 3\n[profile.release]\n";
        let expected =
            "[profile.dev]\nopt-level = 1\n# Why.\n[profile.dev.package.b]\nopt-level = 3\n";
        assert_eq!(profiles(manifest), expected);
        let document = "a\n```rust\nlet x = 1;\n```\n```sh\nls\n```\n```rust\ny();\n```\n";
        assert_eq!(rust_blocks(document), ["let x = 1;\n", "y();\n"]);
    }

    #[test]
    fn folders_become_alike() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(from.join("same"), "1");
        write(from.join("src/new"), "2");
        write(to.join("same"), "1");
        write(to.join("gone/file"), "3");
        write(to.join("src/gone"), "4");
        let written = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let before = written(&to.join("same"));
        replace(&from, &to).unwrap();
        assert_eq!(written(&to.join("same")), before);
        assert_eq!(fs::read_to_string(to.join("src/new")).unwrap(), "2");
        assert!(!to.join("gone").exists() && !to.join("src/gone").exists());
    }
}
