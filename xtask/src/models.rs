//! The files of models that `cargo xtask setup` pulled.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

/// A file, or the path of a model that `xtask setup` pulled, as `realizar list --json` gives it.
pub(crate) fn find(engine: &Path, model: &str) -> Result<PathBuf> {
    if let Ok(path) = Path::new(model).canonicalize() {
        return Ok(path);
    }
    let mut list = shell::command(engine);
    let list =
        shell::json(list.args(["list", "--json"]).env("REALIZAR_CACHE", shell::model_dir()))?;
    let entries = list.as_array().or_else(|| list["models"].as_array());
    let entry = entries.into_iter().flatten().find(|m| m["name"] == *model);
    let path = entry.and_then(|m| m["path"].as_str());
    path.map(PathBuf::from).with_context(|| format!("{model} is not cached; run `xtask setup`"))
}
