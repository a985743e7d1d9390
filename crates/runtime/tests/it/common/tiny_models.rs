//! All tiny models of the repository.

use crate::common::tiny::tiny;
use std::path::PathBuf;

/// Every tiny model, in both formats where there are two.
pub(crate) fn tiny_models() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(tiny("")).expect("the repository has fixtures");
    let both = folders.flat_map(|entry| {
        let path = entry.expect("a readable folder").path();
        [path.join("model-f32.gguf"), path]
    });
    let is_model = |path: &PathBuf| match path.extension() {
        Some(extension) => extension == "gguf" && path.is_file(),
        None => path.join("config.json").is_file(),
    };
    let mut models: Vec<PathBuf> = both.filter(is_model).collect();
    models.sort();
    assert!(models.len() >= 16, "{models:?}");
    models
}
