//! The lock file of the page's packages, and whether its licences are allowed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{BUILT, WEB};
use crate::licences;

/// A lock file of npm, version 3; the one of the installed packages has the same form.
#[derive(Deserialize)]
pub(super) struct Lock {
    pub(super) packages: BTreeMap<String, Package>,
}

#[derive(Deserialize, PartialEq, Debug)]
pub(super) struct Package {
    pub(super) version: Option<String>,
    pub(super) integrity: Option<String>,
    license: Option<String>,
    #[serde(default, rename = "devDependencies")]
    pub(super) dev_dependencies: BTreeMap<String, String>,
}

pub(super) fn read(path: &Path) -> Result<Lock> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
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
    use serde_json::{Value, json};

    fn lock(value: Value) -> Lock {
        serde_json::from_value(Value::from_iter([("packages", value)])).unwrap()
    }

    fn preact(version: &str, hash: &str) -> Value {
        json!({"version": version, "integrity": hash, "license": "MIT"})
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
