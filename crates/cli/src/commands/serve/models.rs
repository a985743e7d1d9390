//! Which models a server has: those of the command line, those in a directory, or those that have been pulled.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use realizar_runtime::ModelOutput;
use realizar_server::ModelSpec;

use super::args::Args;
use super::names::{Alias, names, own_name, split_name};
use crate::options::DraftHeadArg;
use crate::source::cache::Cache;
use crate::ui;

/// A model of the server.
#[derive(Debug)]
pub(super) struct Configured {
    pub(super) spec: ModelSpec,
    /// Whether it is loaded when the server starts.
    pub(super) at_start: bool,
    /// Whether it is named on the command line: then it stays loaded.
    pub(super) is_named: bool,
}

/// Whether the server offers what has been pulled: no model is named, and no directory.
pub(super) fn offers_pulled(args: &Args) -> bool {
    args.models.models.is_empty()
        && args.models.embedding_model.is_empty()
        && args.models.models_dir.is_none()
}

/// The models that have been pulled, with their files as sources: nothing is fetched for a request.
/// And those of `aliases` that are of none of them.
pub(super) fn pulled<'a>(
    cache: &Cache,
    aliases: &'a [String],
) -> Result<(Vec<ModelSpec>, Vec<Alias<'a>>)> {
    let entries = cache.list()?.into_iter();
    let specs = entries.map(|entry| ModelSpec {
        name: entry.manifest.name,
        aliases: Vec::new(),
        source: entry.path.to_string_lossy().into_owned(),
        output: ModelOutput::Logits,
    });
    let mut specs: Vec<_> = specs.collect();
    let aliases = aliases.iter().map(|alias| Alias::read(alias)).collect::<Result<Vec<_>>>()?;
    let unknown = add_aliases(specs.iter_mut(), aliases);
    Ok((specs, unknown))
}

/// Adds aliases to the models that they are of, and returns the others.
fn add_aliases<'s, 'a>(
    specs: impl IntoIterator<Item = &'s mut ModelSpec>,
    mut aliases: Vec<Alias<'a>>,
) -> Vec<Alias<'a>> {
    let mut specs: Vec<_> = specs.into_iter().collect();
    aliases.retain(|alias| {
        let fits = |spec: &&mut &mut ModelSpec| {
            alias.is_of(spec.aliases.iter().chain([&spec.name, &spec.source]))
        };
        match specs.iter_mut().find(fits) {
            Some(spec) => spec.aliases.push(alias.name.to_owned()),
            None => return true,
        }
        false
    });
    aliases
}

/// All models, the named ones first.
pub(super) fn configured(args: &Args) -> Result<Vec<Configured>> {
    if args.models.models.len() != 1 || args.models.models_dir.is_some() {
        for (is_given, flag) in [
            (args.chat.template.is_some(), "--template"),
            (args.chat.tool_parser.is_some(), "--tool-parser"),
            (args.chat.reasoning_parser.is_some(), "--reasoning-parser"),
            (args.draft.draft_model.is_some(), "--draft-model"),
            (args.observability.kv_events.is_some(), "--kv-events"),
        ] {
            if is_given {
                return Err(ui::usage(format!("{flag} needs exactly one text-generation model")));
            }
        }
    }
    if args.draft.draft_model.is_some() && args.draft.draft_head == DraftHeadArg::On {
        let reason = "--draft-model and --draft-head on are mutually exclusive";
        return Err(ui::usage(reason.to_owned()));
    }
    let at_start = !args.models.lazy;
    let mut all: Vec<Configured> = Vec::new();
    let (of_models, other_aliases) = names(&args.models.models, &args.models.alias)?;
    for (source, mut names) in args.models.models.iter().zip(of_models) {
        let (name, output) = (names.remove(0), ModelOutput::Logits);
        let source = split_name(source).1.to_owned();
        let spec = ModelSpec { name, aliases: names, source, output };
        all.push(Configured { spec, at_start, is_named: true });
    }
    for given in &args.models.embedding_model {
        let (name, source) = match split_name(given) {
            (Some(name), source) => (name.to_owned(), source),
            (None, source) => (own_name(source), source),
        };
        let name = if is_taken(&all, &name) { name + "-embedding" } else { name };
        let (source, output) = (source.to_owned(), ModelOutput::Embeddings);
        let spec = ModelSpec { name, aliases: Vec::new(), source, output };
        all.push(Configured { spec, at_start, is_named: true });
    }
    if let Some(dir) = &args.models.models_dir {
        for path in models_in(dir)? {
            let source = path.to_string_lossy().into_owned();
            let name = own_name(&source);
            // A model that is also named has the options of its name.
            if is_taken(&all, &name) {
                tracing::info!("{source} is not served: another model has the name {name}");
                continue;
            }
            let output = ModelOutput::Logits;
            let spec = ModelSpec { name, aliases: Vec::new(), source, output };
            all.push(Configured { spec, at_start: false, is_named: false });
        }
    }
    if let Some(dir) = args.models.models_dir.as_ref().filter(|_| all.is_empty()) {
        anyhow::bail!("{}: no model in this directory", dir.display());
    }
    // Pulled models get their aliases where they are listed.
    if !offers_pulled(args) {
        let specs = all.iter_mut().map(|configured| &mut configured.spec);
        if let Some(alias) = add_aliases(specs, other_aliases).first() {
            return Err(alias.unknown());
        }
    }
    Ok(all)
}

fn is_taken(all: &[Configured], name: &str) -> bool {
    all.iter().any(|c| c.spec.name == name || c.spec.aliases.iter().any(|alias| alias == name))
}

/// The models in a directory, by name: GGUF files, of which further shards and projectors are no
/// models of their own, and directories with a model.
fn models_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let context = || format!("cannot read the model directory {}", dir.display());
    let mut models = Vec::new();
    for entry in fs::read_dir(dir).with_context(context)? {
        let path = entry.with_context(context)?.path();
        let is_model = match path.is_dir() {
            false => is_gguf_model(&path),
            true => {
                path.join("config.json").is_file()
                    || fs::read_dir(&path)
                        .with_context(context)?
                        .any(|entry| entry.is_ok_and(|entry| is_gguf_model(&entry.path())))
            }
        };
        if is_model {
            models.push(path);
        }
    }
    models.sort();
    Ok(models)
}

fn is_gguf_model(path: &Path) -> bool {
    let is_gguf = path.extension().is_some_and(|extension| extension == "gguf");
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    is_gguf && path.is_file() && !stem.starts_with("mmproj") && !is_further_shard(&stem)
}

/// Whether a name ends in `-00002-of-00003` or another shard after the first.
fn is_further_shard(stem: &str) -> bool {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let split = stem.rsplit_once("-of-").filter(|(_, of)| is_number(of));
    let number = split.and_then(|(head, _)| head.rsplit_once('-')).map(|(_, number)| number);
    number.is_some_and(|number| is_number(number) && number != "00001")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_of_any_listed_model() {
        let spec = |name: &str, source: &str| ModelSpec {
            name: name.to_owned(),
            aliases: Vec::new(),
            source: source.to_owned(),
            output: ModelOutput::Logits,
        };
        let with = |given: &[&str]| {
            let mut specs = [spec("a", "/m/a.gguf"), spec("b", "/m/b.gguf")];
            let aliases = given.iter().map(|alias| Alias::read(alias).expect("a name")).collect();
            let unknown = add_aliases(specs.iter_mut(), aliases);
            match unknown.first() {
                None => Ok(specs.map(|spec| spec.aliases)),
                Some(alias) => Err(alias.unknown().to_string()),
            }
        };
        let none = Vec::<String>::new;
        let x = || vec!["x".to_owned()];
        assert_eq!(with(&["x=b"]), Ok([none(), x()]));
        assert_eq!(with(&["x=/m/a.gguf"]), Ok([x(), none()]));
        assert_eq!(with(&["x=a", "y=x"]), Ok([vec!["x".to_owned(), "y".to_owned()], none()]));
        assert_eq!(with(&["x=c"]), Err("--alias x=c: no such model is served".to_owned()));
        let several = "--alias x: with several models, write NAME=MODEL".to_owned();
        assert_eq!(with(&["x"]), Err(several));
    }

    #[test]
    fn a_directory_offers_its_models() {
        let dir = tempfile::tempdir().expect("a directory");
        for file in [
            "b.gguf",
            "notes.txt",
            "mmproj-b.gguf",
            "c-00001-of-00002.gguf",
            "c-00002-of-00002.gguf",
            "hf/config.json",
            "shards/d-00001-of-00002.gguf",
            "empty/readme",
            "a-of-things.gguf",
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("created");
            fs::write(path, "").expect("written");
        }
        let found = models_in(dir.path()).expect("readable");
        let names: Vec<_> = found.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        let want = ["a-of-things.gguf", "b.gguf", "c-00001-of-00002.gguf", "hf", "shards"];
        assert_eq!(names, want);
        let error = models_in(&dir.path().join("none")).expect_err("it is not there").to_string();
        assert!(error.contains("none"), "{error}");
    }
}
