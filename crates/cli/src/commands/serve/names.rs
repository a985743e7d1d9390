//! What the models of a server are called.

use std::path::Path;

use anyhow::Result;

use crate::source::shown;
use crate::ui;

/// The two parts of `NAME=MODEL`, or a model alone: what stands after a scheme belongs to a source, as
/// in `https://host/m.gguf?x=y` and `pip:package==1.0`, and a path may have an equals sign.
pub(super) fn split_name(given: &str) -> (Option<&str>, &str) {
    if Path::new(given).exists() {
        return (None, given);
    }
    let is_source =
        |text: &str| text.contains("://") || text.starts_with("pip:") || text.starts_with("hf:");
    match given.split_once('=') {
        Some((name, model)) if !is_source(name) && !name.is_empty() => (Some(name), model),
        _ => (None, given),
    }
}

/// Of each model its names, the one to show first: that of `NAME=MODEL`, aliases, then what it is called by itself
/// unless it was given a name.
pub(super) fn names(models: &[String], aliases: &[String]) -> Result<Vec<Vec<String>>> {
    let own: Vec<_> = models.iter().map(|model| split_name(model)).collect();
    let mut names: Vec<Vec<String>> =
        own.iter().map(|(name, _)| name.iter().map(|&name| name.to_owned()).collect()).collect();
    for alias in aliases {
        let (name, of) = match alias.split_once('=') {
            Some((name, model)) => (
                name,
                models.iter().zip(&own).position(|(m, (_, own))| m == model || *own == model),
            ),
            None if models.len() == 1 => (alias.as_str(), Some(0)),
            None => {
                let text = format!("--alias {alias}: with several models, write NAME=MODEL");
                return Err(ui::usage(text));
            }
        };
        let Some(of) = of else {
            return Err(ui::usage(format!("--alias {alias}: no such model is served")));
        };
        if name.is_empty() {
            return Err(ui::usage(format!("--alias {alias}: the name is empty")));
        }
        names[of].push(name.to_owned());
    }
    for (names, (name, model)) in names.iter_mut().zip(own) {
        let own = own_name(model);
        if name.is_none() && !names.contains(&own) {
            names.push(own);
        }
    }
    Ok(names)
}

/// A file's name without its extension, a directory's name, or the source as it was written,
/// without what may be a secret.
pub(super) fn own_name(model: &str) -> String {
    let path = Path::new(model);
    let name = if path.is_dir() {
        path.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_owned()))
    } else if path.is_file() {
        path.file_stem().map(ToOwned::to_owned)
    } else {
        None
    };
    name.map_or_else(|| shown(model), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_may_have_an_equals_sign() {
        for (given, want) in [
            ("m.gguf", (None, "m.gguf")),
            ("e=m.gguf", (Some("e"), "m.gguf")),
            ("org/e=hf:o/r", (Some("org/e"), "hf:o/r")),
            ("https://h/m.gguf?x=y", (None, "https://h/m.gguf?x=y")),
            ("e=https://h/m.gguf?x=y", (Some("e"), "https://h/m.gguf?x=y")),
            ("pip:p==1/m.gguf", (None, "pip:p==1/m.gguf")),
            ("e=pip:p==1", (Some("e"), "pip:p==1")),
            ("hf:o/r/a=b.gguf", (None, "hf:o/r/a=b.gguf")),
            ("=m.gguf", (None, "=m.gguf")),
        ] {
            assert_eq!(split_name(given), want, "{given}");
        }
    }

    #[test]
    fn names_of_models() {
        let check = |models: &[&str], aliases: &[&str], want: Result<&[&[&str]], &str>| {
            let owned = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
            match (names(&owned(models), &owned(aliases)), want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want),
                (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{got}"),
                (got, want) => panic!("{got:?}, expected {want:?}"),
            }
        };
        check(&["smollm2"], &[], Ok(&[&["smollm2"]]));
        check(&["a"], &["x", "y"], Ok(&[&["x", "y", "a"]]));
        check(&["a", "b"], &["x=b"], Ok(&[&["a"], &["x", "b"]]));
        check(&["a"], &["a"], Ok(&[&["a"]]));
        check(&["n=a", "b"], &[], Ok(&[&["n"], &["b"]]));
        check(&["n=a", "b"], &["x=a", "y=b"], Ok(&[&["n", "x"], &["y", "b"]]));
        check(&["n=a"], &["x"], Ok(&[&["n", "x"]]));
        check(&["https://u:p@h/m.gguf?token=s"], &[], Ok(&[&["https://h/m.gguf?…"]]));
        check(&["a", "b"], &["x"], Err("NAME=MODEL"));
        check(&["a"], &["x=c"], Err("no such model"));
        check(&["a"], &["=a"], Err("empty"));
    }
}
