//! The seam between models and devices: no model file names a device, no backend or kernel file
//! names a model.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Finding;
use super::lexer::code_only;

const ARCHITECTURES: &str = "crates/model/src/architectures";
/// Where no model may be named.
const DEVICES: &[&str] = &["crates/backends/src", "crates/kernels-"];
/// Words that only code for a device has.
const DEVICE_WORDS: &[&str] = &["backend", "cpu", "gpu", "cuda", "wgpu", "kernels"];
/// How the names of the kernels' crates begin.
const DEVICE_CRATES: &str = "realizar_kernels";
/// Files of that folder that are not architectures.
const SHARED: &[&str] = &["config", "experts", "hf", "loader", "mod", "output", "pieces", "rope"];

/// The names of the architectures: the files of their folder, but not of folders inside of it.
pub(super) fn architectures(files: &[PathBuf]) -> BTreeSet<String> {
    let of_models = files.iter().filter(|file| file.parent() == Some(Path::new(ARCHITECTURES)));
    let stems = of_models.filter_map(|file| file.file_stem()?.to_str());
    stems.filter(|stem| !SHARED.contains(stem)).map(str::to_owned).collect()
}

/// Check one shader; its comments may name architectures, as those of Rust files may.
pub(super) fn check_shader(
    file: &Path,
    text: &str,
    architectures: &BTreeSet<String>,
) -> Vec<Finding> {
    if !DEVICES.iter().any(|prefix| file.to_string_lossy().starts_with(prefix)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (idx, line) in text.lines().enumerate() {
        let code = line.split_once("//").map_or(line, |(code, _)| code);
        for word in words(code).filter(|word| architectures.contains(word)) {
            let message = format!("`{word}`: a device does not know models");
            findings.push(Finding::new(file, idx + 1, message));
        }
    }
    findings
}

/// Check one Rust file; `architectures` are the names that devices do not know.
pub(super) fn check(file: &Path, text: &str, architectures: &BTreeSet<String>) -> Vec<Finding> {
    let path = file.to_string_lossy();
    let is_model = file.starts_with(ARCHITECTURES);
    let is_device = DEVICES.iter().any(|prefix| path.starts_with(prefix));
    if !is_model && !is_device {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (idx, line) in code_only(text).lines().enumerate() {
        for word in words(line) {
            let is_of_device = DEVICE_WORDS.contains(&&*word) || word.starts_with(DEVICE_CRATES);
            if is_model && is_of_device {
                let message = format!("`{word}`: a model does not know devices");
                findings.push(Finding::new(file, idx + 1, message));
            }
            if is_device && (architectures.contains(&word) || word == "architectures") {
                let message = format!("`{word}`: a device does not know models");
                findings.push(Finding::new(file, idx + 1, message));
            }
        }
    }
    findings
}

/// The identifiers of a line, in lower case.
fn words(line: &str) -> impl Iterator<Item = String> {
    let ends = |c: char| !c.is_alphanumeric() && c != '_';
    line.split(ends).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_knows_only_its_own() {
        let files = ["mod", "pieces", "rope/hf", "llama", "gpt2"]
            .map(|f| format!("{ARCHITECTURES}/{f}.rs").into());
        let names = architectures(&files);
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), ["gpt2", "llama"]);
        let backend = "crates/backends/src/cpu/mod.rs";
        let cases = [
            ("crates/model/src/architectures/llama.rs", "use crate::backend::cpu;\n", 2),
            ("crates/model/src/architectures/llama.rs", "use realizar_kernels_wgpu::Gpu;\n", 2),
            ("crates/model/src/architectures/llama.rs", "use realizar_kernels_metal::X;\n", 1),
            ("crates/model/src/architectures/llama.rs", "// Not for the cpu.\nfn llama() {}\n", 0),
            (backend, "use crate::architectures::llama;\n", 2),
            (backend, "fn f(backend: Gpt2) {}\n", 1),
            (backend, "fn gpu(\"llama\": &str) {}\n", 0),
            ("crates/kernels-wgpu/src/rope.rs", "/// As in llama.\nenum Llama {}\n", 1),
            ("crates/runtime/src/run/model.rs", "use crate::{architectures, backend};\n", 0),
        ];
        for (file, text, expected) in cases {
            assert_eq!(check(Path::new(file), text, &names).len(), expected, "{file} {text}");
        }
        let shader = "crates/kernels-wgpu/shaders/rope.wgsl";
        let cases = [
            (shader, "let x = 1; // as in llama\n", 0),
            (shader, "fn rotate() {}\nfn llama() {} // gpt2\n", 1),
            ("fixtures/rope.wgsl", "fn llama() {}\n", 0),
        ];
        for (file, text, expected) in cases {
            let found = check_shader(Path::new(file), text, &names);
            assert_eq!(found.len(), expected, "{file} {text}");
        }
    }
}
