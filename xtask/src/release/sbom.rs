//! A bill of materials of the program, as CycloneDX 1.5: every crate that is linked into it, with
//! licence, checksum and what it depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::shell;

/// The document for the program of this version and platform.
pub(super) fn document(version: &str, host: &str) -> Result<String> {
    let mut command = shell::cargo();
    command.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host]);
    command.args(["--manifest-path", "crates/cli/Cargo.toml"]);
    let metadata = shell::json(&mut command)?;
    let lock = fs::read_to_string(shell::root().join("Cargo.lock"))?;
    let lock: toml::Table = toml::from_str(&lock).context("Cargo.lock")?;
    let mut sums = BTreeMap::new();
    for package in lock.get("package").and_then(|p| p.as_array()).into_iter().flatten() {
        let text = |key: &str| package.get(key).and_then(|v| v.as_str()).map(str::to_owned);
        if let (Some(name), Some(version), Some(sum)) =
            (text("name"), text("version"), text("checksum"))
        {
            sums.insert((name, version), sum);
        }
    }
    let mut document = compose(&metadata, &sums).context("cargo metadata")?;
    document["metadata"]["component"]["version"] = version.into();
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The document from what `cargo metadata` prints and the checksums of the lock file.
fn compose(metadata: &Value, sums: &BTreeMap<(String, String), String>) -> Option<Value> {
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()?
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()?
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let (root, _) = packages.iter().find(|(_, package)| package["name"] == "realizar")?;
    // What is linked: neither tests nor what runs at build time alone.
    let linked = |id: &str| -> BTreeSet<&str> {
        let deps = nodes.get(id).and_then(|node| node["deps"].as_array());
        let is_linked = |dep: &&Value| {
            let mut kinds = dep["dep_kinds"].as_array().into_iter().flatten();
            kinds.any(|kind| kind["kind"].is_null())
        };
        deps.into_iter().flatten().filter(is_linked).filter_map(|dep| dep["pkg"].as_str()).collect()
    };
    let (mut seen, mut open) = (BTreeSet::new(), vec![*root]);
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            open.extend(linked(id));
        }
    }
    let reference = |id: &str| -> Option<String> {
        let package = packages.get(id)?;
        Some(format!("pkg:cargo/{}@{}", package["name"].as_str()?, package["version"].as_str()?))
    };
    let component = |id: &str| -> Option<Value> {
        let package = packages.get(id)?;
        let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
        let mut component = json!({
            "type": if id == *root { "application" } else { "library" },
            "bom-ref": reference(id)?,
            "name": name,
            "version": version,
            "purl": reference(id)?,
        });
        if let Some(licence) = package["license"].as_str() {
            let expression = licence.replace('/', " OR ");
            component["licenses"] = json!([{ "expression": expression }]);
        }
        if let Some(sum) = sums.get(&(name.to_owned(), version.to_owned())) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        Some(component)
    };
    let others = seen.iter().filter(|&id| id != root);
    let edges = seen.iter().filter_map(|id| {
        let on: Vec<_> = linked(id).into_iter().filter_map(reference).collect();
        Some(json!({ "ref": reference(id)?, "dependsOn": on }))
    });
    Some(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(root)? },
        "components": others.filter_map(|id| component(id)).collect::<Vec<_>>(),
        "dependencies": edges.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed() {
        let dep = |pkg: &str, kind: Value| json!({ "pkg": pkg, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [
                { "id": "r", "name": "realizar", "version": "0.1.0", "license": "MIT" },
                { "id": "a", "name": "a", "version": "1.0.0", "license": "MIT/Apache-2.0" },
                { "id": "b", "name": "b", "version": "2.0.0", "license": "Zlib" },
                { "id": "t", "name": "t", "version": "3.0.0", "license": "MIT" },
            ],
            "resolve": { "nodes": [
                { "id": "r", "deps": [dep("a", Value::Null), dep("t", json!("dev"))] },
                { "id": "a", "deps": [dep("b", Value::Null), dep("t", json!("build"))] },
                { "id": "b", "deps": [] },
                { "id": "t", "deps": [] },
            ] },
        });
        let sums = [(("a".to_owned(), "1.0.0".to_owned()), "00ff".to_owned())].into();
        let document = compose(&metadata, &sums).unwrap();
        let names = |part: &str, key: &str| -> Vec<String> {
            let all = document[part].as_array().unwrap().iter();
            all.map(|one| one[key].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("components", "name"), ["a", "b"]);
        assert_eq!(document["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["components"][0]["hashes"][0]["content"], "00ff");
        assert_eq!(document["dependencies"][0]["dependsOn"], json!(["pkg:cargo/b@2.0.0"]));
        assert_eq!(document["metadata"]["component"]["name"], "realizar");
    }
}
