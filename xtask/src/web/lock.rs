//! The lock file of the page's packages: what it must say, and that what is installed is what it says.
//!
//! npm takes other versions than those of a lock file that does not fit its `package.json`, and changes the file.
//! (`npm ci` does not, but refuses a file without the optional packages of other platforms.) So both are
//! compared here, before and after.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::{BUILT, WEB};
use crate::licences;

/// A lock file of npm, version 3; the one of the installed packages has the same form.
#[derive(Deserialize)]
struct Lock {
    packages: BTreeMap<String, Package>,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Package {
    version: Option<String>,
    integrity: Option<String>,
    license: Option<String>,
    #[serde(default, rename = "devDependencies")]
    dev_dependencies: BTreeMap<String, String>,
}

impl Package {
    /// What was installed: version and hash.
    fn content(&self) -> (Option<&str>, Option<&str>) {
        (self.version.as_deref(), self.integrity.as_deref())
    }
}

fn read(path: &Path) -> Result<Lock> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// The lock file is that of `package.json`, with a hash for every package.
pub(super) fn check(root: &Path) -> Result<()> {
    let web = root.join(WEB);
    let manifest: Value = serde_json::from_str(&fs::read_to_string(web.join("package.json"))?)?;
    check_against(&read(&web.join("package-lock.json"))?, &manifest)
}

fn check_against(lock: &Lock, manifest: &Value) -> Result<()> {
    const UPDATE: &str = "run `npm install --package-lock-only`";
    let own = lock.packages.get("").context("package-lock.json does not name the page itself")?;
    let empty = serde_json::json!({});
    let wanted = manifest.get("devDependencies").unwrap_or(&empty);
    ensure!(
        serde_json::to_value(&own.dev_dependencies)? == *wanted
            && manifest.get("dependencies").is_none(),
        "package-lock.json is not that of package.json; {UPDATE}"
    );
    for (name, version) in &own.dev_dependencies {
        let locked = lock.packages.get(&format!("node_modules/{name}"));
        let locked = locked.and_then(|package| package.version.as_deref());
        ensure!(
            locked == Some(version),
            "package.json has {name} {version}, package-lock.json {}; {UPDATE}",
            locked.unwrap_or("none")
        );
    }
    for (path, package) in lock.packages.iter().filter(|(path, _)| !path.is_empty()) {
        ensure!(package.integrity.is_some(), "package-lock.json has no hash for {path}");
    }
    Ok(())
}

/// What npm has installed is what the lock file says.
pub(super) fn check_installed(web: &Path) -> Result<()> {
    let lock = read(&web.join("package-lock.json"))?;
    let installed = read(&web.join("node_modules/.package-lock.json"))?;
    check_against_installed(&lock, &installed)
}

fn check_against_installed(lock: &Lock, installed: &Lock) -> Result<()> {
    for (path, package) in &installed.packages {
        let locked = lock.packages.get(path);
        ensure!(
            locked.is_some_and(|locked| locked.content() == package.content()),
            "npm has installed {path} {}, package-lock.json has {}",
            package.version.as_deref().unwrap_or("none"),
            locked.and_then(|locked| locked.version.as_deref()).unwrap_or("none")
        );
    }
    Ok(())
}

/// The licences of all packages are allowed, and the list that the page shows has the versions and the licences
/// of those that it is made of.
pub(crate) fn check_licences(root: &Path, allowed: &[String]) -> Result<usize> {
    let lock = read(&root.join(WEB).join("package-lock.json"))?;
    let list = root.join(BUILT).join("licenses.txt");
    let list = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    for (path, package) in lock.packages.iter().filter(|(path, _)| !path.is_empty()) {
        let licence =
            package.license.as_deref().with_context(|| format!("{path} names no licence"))?;
        licences::check(licence, allowed).with_context(|| path.clone())?;
    }
    check_list(&list, &lock)?;
    Ok(lock.packages.len() - 1)
}

fn check_list(list: &str, lock: &Lock) -> Result<()> {
    let mut n_listed = 0;
    for title in titles(list) {
        let (name, rest) = title.split_once(' ').context("a title without a version")?;
        let package = lock.packages.get(&format!("node_modules/{name}"));
        let package =
            package.with_context(|| format!("licenses.txt has {name}, the lock file not"))?;
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        let wanted = format!("{} ({})", of(&package.version), of(&package.license));
        ensure!(
            rest == wanted,
            "licenses.txt has {title}, the lock file {name} {wanted}: cargo xtask web"
        );
        n_listed += 1;
    }
    ensure!(n_listed > 0, "licenses.txt names no package");
    Ok(())
}

/// The first lines of the parts of the list, which dashes divide.
fn titles(list: &str) -> impl Iterator<Item = &str> {
    let is_line = |line: &&str| line.len() == 80 && line.bytes().all(|byte| byte == b'-');
    let mut at_start = true;
    list.lines().filter(move |line| {
        if is_line(line) {
            at_start = true;
            return false;
        }
        let is_title = at_start && !line.is_empty();
        at_start &= line.is_empty();
        is_title
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lock(value: Value) -> Lock {
        serde_json::from_value(Value::from_iter([("packages", value)])).unwrap()
    }

    fn preact(version: &str, hash: &str) -> Value {
        json!({"version": version, "integrity": hash, "license": "MIT"})
    }

    #[test]
    fn a_lock_file_that_differs_is_refused() {
        let check = |found: Value, wanted: Value, hash: Option<&str>| {
            let locked = json!({"version": "11.2.0", "integrity": hash, "license": "MIT"});
            let own = json!({"devDependencies": found});
            let lock = lock(json!({"": own, "node_modules/preact": locked}));
            let manifest = json!({"devDependencies": wanted});
            check_against(&lock, &manifest).map_err(|error| error.to_string())
        };
        let is = |version: &str| json!({"preact": version});
        assert_eq!(check(is("11.2.0"), is("11.2.0"), Some("x")), Ok(()));
        let differs = check(is("11.2.0"), is("11.2.1"), Some("x")).unwrap_err();
        assert!(differs.starts_with("package-lock.json is not that of package.json"), "{differs}");
        let ranges = check(is("^11.2.0"), is("^11.2.0"), Some("x")).unwrap_err();
        assert!(ranges.contains("has preact ^11.2.0, package-lock.json 11.2.0"), "{ranges}");
        let without = check(is("11.2.0"), is("11.2.0"), None).unwrap_err();
        assert_eq!(without, "package-lock.json has no hash for node_modules/preact");
    }

    #[test]
    fn what_is_installed_is_compared() {
        let locked = lock(json!({
            "node_modules/preact": preact("11.2.0", "x"), "node_modules/other": preact("1.0.0", "y"),
        }));
        let check = |version: &str, hash: &str| {
            let installed = lock(json!({"node_modules/preact": preact(version, hash)}));
            check_against_installed(&locked, &installed).map_err(|error| error.to_string())
        };
        // Packages of other platforms are not installed.
        assert_eq!(check("11.2.0", "x"), Ok(()));
        let error = "npm has installed node_modules/preact 11.3.0, package-lock.json has 11.2.0";
        assert_eq!(check("11.3.0", "x"), Err(error.to_owned()));
        assert!(check("11.2.0", "z").is_err());
        let installed = lock(json!({"node_modules/new": preact("1.0.0", "x")}));
        let error = check_against_installed(&locked, &installed).unwrap_err().to_string();
        assert_eq!(error, "npm has installed node_modules/new 1.0.0, package-lock.json has none");
    }

    #[test]
    fn the_list_of_licences_has_the_locked_versions() {
        let locked = lock(json!({"node_modules/preact": preact("11.2.0", "x")}));
        let line = "-".repeat(80);
        let check = |list: &str| check_list(list, &locked).map_err(|error| error.to_string());
        let text = |version: &str| format!("preact {version} (MIT)\n\nAll rights.\n\n{line}\n\n");
        assert_eq!(check(&text("11.2.0")), Ok(()));
        let error = check(&text("11.1.0")).unwrap_err();
        let expected = "licenses.txt has preact 11.1.0 (MIT), the lock file preact 11.2.0 (MIT)";
        assert!(error.starts_with(expected), "{error}");
        let other = format!("{}gone 1.0.0 (MIT)\n", text("11.2.0"));
        assert_eq!(check(&other), Err("licenses.txt has gone, the lock file not".to_owned()));
        assert_eq!(check(""), Err("licenses.txt names no package".to_owned()));
    }
}
