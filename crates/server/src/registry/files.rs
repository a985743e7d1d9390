//! The files of a model on this machine: what they are and how large, without reading them.

use std::fs;
use std::path::{Path, PathBuf};

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelFiles {
    /// The file, of several the first one, or the directory.
    pub(crate) path: PathBuf,
    pub(crate) format: FileFormat,
    /// Bytes of all files with weights.
    pub(crate) bytes: u64,
}

/// The format of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Gguf,
    Safetensors,
}

impl FileFormat {
    /// Its name, as Ollama and others write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gguf => "gguf",
            Self::Safetensors => "safetensors",
        }
    }
}

impl ModelFiles {
    /// The files of the model at `path`: a GGUF file with its further shards, or a directory with a model. `None`
    /// if there is no such file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let is_dir = fs::metadata(path).ok()?.is_dir();
        let (dir, format) = match is_dir {
            false => (path.parent()?, FileFormat::Gguf),
            true if path.join("config.json").is_file() => (path, FileFormat::Safetensors),
            true => (path, FileFormat::Gguf),
        };
        let stem = shards(path.file_stem()?.to_str()?);
        let belongs = |file: &Path| {
            let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            let is_format = file.extension().is_some_and(|end| end == format.name());
            match (is_dir, stem) {
                // What projects images is no part of the text model.
                (true, _) => is_format && !name.starts_with("mmproj"),
                (false, None) => file == path,
                (false, Some(stem)) => is_format && shards(name) == Some(stem),
            }
        };
        let listed = fs::read_dir(if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
        let files = listed.ok()?.flatten().map(|entry| dir.join(entry.file_name()));
        let sizes = files.filter(|file| belongs(file)).filter_map(|file| fs::metadata(file).ok());
        let bytes = sizes.map(|file| file.len()).sum();
        Some(Self { path: path.to_owned(), format, bytes })
    }
}

/// What the names of all shards of a model begin with: `m` of `m-00001-of-00003`.
fn shards(stem: &str) -> Option<&str> {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let (head, _) = stem.rsplit_once("-of-").filter(|(_, n)| is_number(n))?;
    head.rsplit_once('-').filter(|(_, n)| is_number(n)).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_and_sizes() {
        let dir = tempfile::tempdir().expect("a directory");
        for (file, n) in [
            ("a.gguf", 3),
            ("b-00001-of-00002.gguf", 10),
            ("b-00002-of-00002.gguf", 20),
            ("c-00001-of-00002.gguf", 100),
            ("hf/config.json", 1),
            ("hf/model-00001-of-00002.safetensors", 40),
            ("hf/model-00002-of-00002.safetensors", 50),
            ("one/d.gguf", 7),
            ("one/mmproj-d.gguf", 1000),
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("created");
            fs::write(path, vec![0; n]).expect("written");
        }
        for (name, want) in [
            ("a.gguf", Some((FileFormat::Gguf, 3))),
            ("b-00001-of-00002.gguf", Some((FileFormat::Gguf, 30))),
            ("hf", Some((FileFormat::Safetensors, 90))),
            ("one", Some((FileFormat::Gguf, 7))),
            ("none.gguf", None),
        ] {
            let found = ModelFiles::of(&dir.path().join(name));
            assert_eq!(found.map(|files| (files.format, files.bytes)), want, "{name}");
        }
    }
}
