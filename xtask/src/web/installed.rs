//! The packages of the page: the lock file is that of its `package.json`, and what is installed is what it says.
//!
//! npm takes other versions than those of a lock file that does not fit its `package.json`, and changes the file.
//! (`npm ci` does not, but refuses a file without the optional packages of other platforms.) So both are
//! compared here, before and after.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::WEB;
use super::lock::{Lock, Package, read};

impl Package {
    /// What was installed: version and hash.
    fn content(&self) -> (Option<&str>, Option<&str>) {
        (self.version.as_deref(), self.integrity.as_deref())
    }
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
}
