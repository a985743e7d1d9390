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

/// A further name of a model, as `--alias` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alias<'a> {
    pub(super) name: &'a str,
    /// The model as it is given or listed; none for the only model.
    of: Option<&'a str>,
}

impl<'a> Alias<'a> {
    pub(super) fn read(given: &'a str) -> Result<Self> {
        let (name, of) = match given.split_once('=') {
            Some((name, of)) => (name, Some(of)),
            None => (given, None),
        };
        match name.is_empty() {
            true => Err(ui::usage(format!("--alias {given}: the name is empty"))),
            false => Ok(Self { name, of }),
        }
    }

    /// True if the alias is for a model with one of these names.
    pub(super) fn is_of<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> bool {
        self.of.is_some_and(|of| names.into_iter().any(|name| name == of))
    }

    /// The error where no model fits it.
    pub(super) fn unknown(&self) -> anyhow::Error {
        ui::usage(match self.of {
            Some(of) => format!("--alias {}={of}: no such model is served", self.name),
            None => format!("--alias {}: with several models, write NAME=MODEL", self.name),
        })
    }
}

/// Of each model its names, the one to show first: that of `NAME=MODEL`, aliases, then what it is called by itself
/// unless it was given a name. And the aliases that are of none of these models.
pub(super) fn names<'a>(
    models: &[String],
    aliases: &'a [String],
) -> Result<(Vec<Vec<String>>, Vec<Alias<'a>>)> {
    let own: Vec<_> = models.iter().map(|model| split_name(model)).collect();
    let mut names: Vec<Vec<String>> =
        own.iter().map(|(name, _)| name.iter().map(|&name| name.to_owned()).collect()).collect();
    let mut others = Vec::new();
    for alias in aliases {
        let alias = Alias::read(alias)?;
        let fits = |idx: usize| {
            let (given, (name, source)) = (&models[idx], own[idx]);
            // A model that has no other name is listed by its own.
            let listed = name.is_none().then(|| own_name(source));
            let source = source.to_owned();
            let others = [given, &source].into_iter().chain(&listed);
            alias.is_of(names[idx].iter().chain(others))
        };
        let of = match alias.of {
            None => (models.len() == 1).then_some(0),
            Some(_) => (0..models.len()).find(|&idx| fits(idx)),
        };
        match of {
            Some(of) => names[of].push(alias.name.to_owned()),
            None => others.push(alias),
        }
    }
    for (names, (name, model)) in names.iter_mut().zip(own) {
        let own = own_name(model);
        if name.is_none() && !names.contains(&own) {
            names.push(own);
        }
    }
    Ok((names, others))
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
            let aliases = owned(aliases);
            let got = names(&owned(models), &aliases).and_then(|(names, others)| {
                others.first().map_or(Ok(names), |alias| Err(alias.unknown()))
            });
            match (got, want) {
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
        check(&["n=a", "b"], &["x=n"], Ok(&[&["n", "x"], &["b"]]));
        check(&["a", "b"], &["x=a", "y=x"], Ok(&[&["x", "y", "a"], &["b"]]));
        check(&["n=a", "b"], &["x="], Err("no such model"));
        check(&["https://u:p@h/m.gguf?token=s"], &[], Ok(&[&["https://h/m.gguf?…"]]));
        check(&["a", "b"], &["x"], Err("NAME=MODEL"));
        check(&["a"], &["x=c"], Err("no such model"));
        check(&["a"], &["=a"], Err("empty"));
    }

    #[test]
    fn a_file_has_an_alias_by_the_name_that_is_listed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        for name in ["one.gguf", "two.Q8_0.gguf"] {
            std::fs::write(path(name), "").expect("written");
        }
        let (models, aliases) =
            ([path("one.gguf"), path("two.Q8_0.gguf")], ["x=two.Q8_0".to_owned()]);
        let (names, others) = names(&models, &aliases).expect("names");
        assert_eq!(names, [vec!["one"], vec!["x", "two.Q8_0"]]);
        assert_eq!(others, []);
    }
}
