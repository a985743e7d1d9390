//! The user's own names for models, from `[names]` of the config file: each with its source, and if wanted the
//! SHA-256 that the file must have.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use toml::{Table, Value};

use super::Source;

/// The section of the config file.
pub(crate) const SECTION: &str = "names";

/// A name and what it stands for.
#[derive(Debug)]
pub(crate) struct OwnName {
    pub(crate) name: String,
    pub(crate) source: Box<Source>,
    /// SHA-256 of the file, lower-case hexadecimal.
    pub(crate) sha256: Option<String>,
}

impl fmt::Display for OwnName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

static NAMES: OnceLock<Vec<OwnName>> = OnceLock::new();

/// Makes these names known for the rest of the program's run.
pub(crate) fn set(names: Vec<OwnName>) {
    // The program reads its config file once.
    let _ = NAMES.set(names);
}

/// All names, in order.
pub(crate) fn all() -> &'static [OwnName] {
    NAMES.get().map_or(&[], Vec::as_slice)
}

/// The name `text`, if the config file has it.
pub(crate) fn find(text: &str) -> Option<&'static OwnName> {
    all().iter().find(|own| own.name == text)
}

/// Reads the section; `folder` is that of the file, which relative paths are in.
///
/// # Errors
/// A description of the invalid entry.
pub(crate) fn parse(section: &Table, folder: &Path) -> Result<Vec<OwnName>, String> {
    section.iter().map(|(name, value)| parse_one(name, value, folder)).collect()
}

fn parse_one(name: &str, value: &Value, folder: &Path) -> Result<OwnName, String> {
    let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:".contains(&b));
    if !is_name {
        let expected = "letters, digits, `.`, `_`, `-` and `:`, a letter or a digit first";
        return Err(format!("`{name}` cannot be a name: expected {expected}"));
    }
    let (text, sha256) = match value {
        Value::String(text) => (text, None),
        Value::Table(entry) => {
            if let Some(key) =
                entry.keys().find(|key| !["source", "sha256"].contains(&key.as_str()))
            {
                return Err(format!("`{name}`: unknown key `{key}`, expected source or sha256"));
            }
            let text = |key: &str| match entry.get(key) {
                None => Ok(None),
                Some(Value::String(text)) => Ok(Some(text)),
                Some(_) => Err(format!("`{name}`: `{key}` must be a string")),
            };
            let source = text("source")?.ok_or_else(|| format!("`{name}` has no source"))?;
            (source, text("sha256")?)
        }
        _ => return Err(format!("`{name}` must be a source, or a table with source and sha256")),
    };
    let sha256 = sha256.map(|text| text.to_ascii_lowercase());
    if let Some(text) = &sha256
        && (text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err(format!("`{name}`: `sha256` must be 64 hexadecimal digits"));
    }
    let source = match Source::parse_known(text).map_err(|error| format!("`{name}`: {error:#}"))? {
        Source::Path(path) if sha256.is_some() => {
            let path = path.display();
            return Err(format!("`{name}`: `sha256` is for downloads, and {path} is a path"));
        }
        Source::Path(path) => Source::Path(in_folder(&path, folder)),
        source => source,
    };
    Ok(OwnName { name: name.to_owned(), source: Box::new(source), sha256 })
}

/// A path of the config file: `~` is the home directory, and a relative path is in the file's folder.
fn in_folder(path: &Path, folder: &Path) -> PathBuf {
    let home = || std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE"));
    match path.strip_prefix("~").ok().zip(home()) {
        Some((rest, home)) => Path::new(&home).join(rest),
        None => folder.join(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<OwnName>, String> {
        parse(&text.parse::<Table>().expect("TOML"), Path::new("/etc/r"))
    }

    #[test]
    fn names_have_sources() {
        let sha256 = "AB".repeat(32);
        let text = format!(
            "fast = \"hf:o/r:Q8_0\"\n\"my:7b\" = {{ source = \"https://h/m.gguf\", sha256 = \"{sha256}\" }}\n\
             small = \"smollm2\"\nlocal = \"models/m.gguf\"\nabsolute = \"/m.gguf\""
        );
        let names = parsed(&text).expect("names");
        let shown = |own: &OwnName| (own.name.clone(), own.source.to_string(), own.sha256.clone());
        let find = |name: &str| names.iter().find(|own| own.name == name).map(shown);
        for (name, source, sha256) in [
            ("fast", "hf:o/r:Q8_0", None),
            ("my:7b", "https://h/m.gguf", Some("ab".repeat(32))),
            ("small", "smollm2", None),
            ("local", "/etc/r/models/m.gguf", None),
            ("absolute", "/m.gguf", None),
        ] {
            assert_eq!(find(name), Some((name.to_owned(), source.to_owned(), sha256)));
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, want) in [
            ("\"a/b\" = \"smollm2\"", "`a/b` cannot be a name"),
            ("\"-a\" = \"smollm2\"", "`-a` cannot be a name"),
            ("a = 3", "`a` must be a source"),
            ("a = { sha256 = \"x\" }", "`a` has no source"),
            ("a = { source = \"smollm2\", sum = \"x\" }", "`a`: unknown key `sum`"),
            ("a = { source = 3 }", "`a`: `source` must be a string"),
            ("a = { source = \"smollm2\", sha256 = \"x\" }", "64 hexadecimal digits"),
            ("a = \"ftp://h/x\"", "`a`: "),
            (
                &format!("a = {{ source = \"m.gguf\", sha256 = \"{}\" }}", "a".repeat(64)),
                "m.gguf is a path",
            ),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains(want), "{error}, not {want}");
        }
    }
}
