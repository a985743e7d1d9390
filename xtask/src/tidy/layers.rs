//! The dependency rule: a crate uses only crates of lower layers.

use std::path::Path;

use serde_json::Value;

use super::Finding;

/// Layers from the bottom up; crates of one layer do not know one another.
const LAYERS: &[&[&str]] = &[
    &["realizar-derivre"],
    &["realizar-llguidance"],
    &["realizar-base", "realizar-quant", "realizar-types"],
    &["realizar-formats"],
    &["realizar-kernels-cpu", "realizar-kernels-cuda", "realizar-kernels-wgpu"],
    &["realizar-kvcache"],
    &["realizar-model", "realizar-text"],
    &["realizar-backends"],
    &["realizar-runtime"],
    &["realizar-server"],
    &["realizar"],
];

/// Crates outside the layers: tools of this repository. Tests may use them, and features that are off by default.
const TOOLS: &[&str] =
    &["xtask", "realizar-benches", "realizar-fuzz", "realizar-gpu-tools", "realizar-ptx"];

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|crates| crates.contains(&name))
}

/// Check what `cargo metadata --no-deps` says.
pub(super) fn check(metadata: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let ours = dependencies.filter(|d| d["path"].is_string());
        let beside = |d: &Value| d["kind"] == "dev" || d["optional"] == true;
        let named = ours.filter_map(|d| Some((d["name"].as_str()?, beside(d))));
        let names: Vec<&str> = named
            .filter(|(name, beside)| !(*beside && TOOLS.contains(name)))
            .map(|(name, _)| name)
            .collect();
        findings.extend(
            violations(name, &names).into_iter().map(|m| Finding::new(Path::new(name), 0, m)),
        );
    }
    findings
}

/// What is wrong with crate `name` using `dependencies` of this workspace.
fn violations(name: &str, dependencies: &[&str]) -> Vec<String> {
    if TOOLS.contains(&name) {
        return Vec::new();
    }
    let Some(own) = layer(name) else {
        return vec!["this crate has no place in the layers; add it to tidy's table".to_owned()];
    };
    let wrong = dependencies.iter().filter(|d| layer(d).is_none_or(|other| other >= own));
    wrong.map(|d| format!("must not depend on {d}: only lower layers are allowed")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lower_layers_are_allowed() {
        let cases: [(&str, &[&str], usize); 8] = [
            ("realizar-quant", &[], 0),
            ("realizar-formats", &["realizar-quant"], 0),
            ("realizar-quant", &["realizar-formats"], 1),
            ("realizar-kernels-cuda", &["realizar-kernels-cpu"], 1),
            ("realizar", &["realizar-server", "realizar-runtime"], 0),
            ("realizar-runtime", &["realizar-server", "xtask"], 2),
            ("realizar-unheard-of", &[], 1),
            ("xtask", &["realizar"], 0),
        ];
        for (name, dependencies, expected) in cases {
            assert_eq!(violations(name, dependencies).len(), expected, "{name} {dependencies:?}");
        }
    }

    #[test]
    fn metadata_is_read() {
        let metadata = serde_json::json!({"packages": [{
            "name": "realizar-quant",
            "dependencies": [
                {"name": "half", "path": null},
                {"name": "realizar-ptx", "path": "crates/ptx", "kind": "dev"},
                {"name": "realizar-ptx", "path": "crates/ptx", "kind": null, "optional": true},
                {"name": "realizar-runtime", "path": "crates/runtime"},
            ],
        }]});
        let found = check(&metadata);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("realizar-runtime"));
    }
}
