//! How hidden states become an embedding, and what a checkpoint says of it: a key of the metadata in a GGUF file,
//! the folders of sentence-transformers in a Hugging Face directory.

use super::{Checkpoint, GgufSettings, HfSettings};
use crate::Error;
use realizar_base::MAX_JSON;
use realizar_formats::read_regular;
use serde::Deserialize;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// How the hidden states of a text become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// That of the last token, which has seen all others.
    Last,
    /// The mean of all.
    Mean,
    /// That of the first token.
    Cls,
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Last => "last",
            Self::Mean => "mean",
            Self::Cls => "cls",
        })
    }
}

/// The list of what a model of sentence-transformers does, one after the other.
const MODULES: &str = "modules.json";

/// The folder of the pooling's settings where there is no such list.
const POOLING_DIR: &str = "1_Pooling";

/// A row of [`MODULES`].
#[derive(Deserialize)]
struct Module {
    path: PathBuf,
    #[serde(rename = "type")]
    ty: String,
}

impl Checkpoint {
    /// How the files say that embeddings are pooled, if they do.
    ///
    /// # Errors
    /// If a file is malformed, or says to do what is not supported.
    pub fn pooling(&self) -> Result<Option<Pooling>, Error> {
        match self {
            Self::Gguf(gguf) => of_gguf(GgufSettings::new(gguf)),
            Self::Hf { settings, .. } => of_dir(settings.path().parent().unwrap_or(Path::new(""))),
        }
    }
}

/// `pooling_type` by the numbers of llama.cpp's `llama_pooling_type`.
fn of_gguf(s: GgufSettings<'_>) -> Result<Option<Pooling>, Error> {
    Ok(match s.opt_usize("pooling_type")? {
        // 0 leaves it to the reader of the hidden states.
        None | Some(0) => None,
        Some(1) => Some(Pooling::Mean),
        Some(2) => Some(Pooling::Cls),
        Some(3) => Some(Pooling::Last),
        Some(4) => return Err(s.unsupported("the pooling type of rerankers (`pooling_type` 4)")),
        Some(n) => return Err(s.wrong("pooling_type", "a number from 0 to 4", n.to_string())),
    })
}

fn of_dir(dir: &Path) -> Result<Option<Pooling>, Error> {
    let list = dir.join(MODULES);
    if !list.is_file() {
        let config = dir.join(POOLING_DIR).join("config.json");
        return if config.is_file() { of_config(&config).map(Some) } else { Ok(None) };
    }
    let text =
        read_regular(&list, MAX_JSON).map_err(|source| Error::Io { path: list.clone(), source })?;
    let modules: Vec<Module> = serde_json::from_slice(&text)
        .map_err(|source| Error::Json { path: list.clone(), source })?;
    let mut pooling = None;
    for module in modules {
        // The types are Python classes with the modules that they are in.
        match module.ty.rsplit('.').next().unwrap_or_default() {
            "Transformer" | "Normalize" => {}
            "Pooling" => {
                // A list that came with a model does not read files elsewhere.
                let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
                if !module.path.components().all(inside) {
                    let (key, found) = ("path".to_owned(), module.path.display().to_string());
                    let expected = "a folder of the model".to_owned();
                    return Err(Error::Setting { path: list, key, expected, found });
                }
                pooling = Some(of_config(&dir.join(module.path).join("config.json"))?);
            }
            _ => {
                let feature = format!("the module `{}`", module.ty);
                return Err(Error::Unsupported { path: list, feature });
            }
        }
    }
    Ok(pooling)
}

/// The settings of a pooling: a mode by name, or a truth value for each, of which a sole one must
/// be true. As in sentence-transformers, the mean is the default.
fn of_config(path: &Path) -> Result<Pooling, Error> {
    let s = HfSettings::open(path)?;
    let modes = [
        ("cls", "pooling_mode_cls_token"),
        ("mean", "pooling_mode_mean_tokens"),
        ("max", "pooling_mode_max_tokens"),
        ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
        ("weightedmean", "pooling_mode_weightedmean_tokens"),
        ("lasttoken", "pooling_mode_lasttoken"),
    ];
    let mode = match s.opt_str("pooling_mode")? {
        Some(mode) => mode.to_owned(),
        None => {
            let mut on = Vec::new();
            for (mode, key) in modes {
                if s.bool_or(key, mode == "mean")? {
                    on.push(mode);
                }
            }
            on.join("+")
        }
    };
    match mode.as_str() {
        "cls" => Ok(Pooling::Cls),
        "mean" => Ok(Pooling::Mean),
        "lasttoken" => Ok(Pooling::Last),
        _ => {
            let feature = format!("pooling `{mode}` (`pooling_mode`)");
            Err(s.unsupported_value(feature, &["cls", "mean", "lasttoken"]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_formats::{Gguf, GgufWriter};
    use std::fs;

    #[test]
    fn a_gguf_file_has_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let read = |number: Option<u32>| {
            let mut writer = GgufWriter::new();
            writer.set("general.architecture", "qwen3").unwrap();
            if let Some(number) = number {
                writer.set("qwen3.pooling_type", number).unwrap();
            }
            writer.write_file(&path).unwrap();
            Checkpoint::Gguf(Gguf::open(&path).unwrap()).pooling()
        };
        for (number, want) in [
            (None, None),
            (Some(0), None),
            (Some(1), Some(Pooling::Mean)),
            (Some(2), Some(Pooling::Cls)),
            (Some(3), Some(Pooling::Last)),
        ] {
            assert_eq!(read(number).unwrap(), want, "{number:?}");
        }
        for (number, want) in [(4, "`pooling_type` 4"), (5, "expected a number from 0 to 4")] {
            let error = read(Some(number)).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn a_directory_has_the_folders_of_sentence_transformers() {
        let check = |files: &[(&str, &str)], want: Result<Option<Pooling>, &str>| {
            let dir = tempfile::tempdir().unwrap();
            for (name, text) in files {
                let path = dir.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            match (of_dir(dir.path()), want) {
                (Ok(found), Ok(want)) => assert_eq!(found, want, "{files:?}"),
                (Err(error), Err(want)) => {
                    assert!(error.to_string().contains(want), "{files:?}: {error}");
                }
                (found, want) => panic!("{files:?}: {found:?}, not {want:?}"),
            }
        };
        let last = r#"{"pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true}"#;
        check(&[], Ok(None));
        check(&[("1_Pooling/config.json", last)], Ok(Some(Pooling::Last)));
        check(&[("1_Pooling/config.json", "{}")], Ok(Some(Pooling::Mean)));
        let cls = r#"{"pooling_mode": "cls", "pooling_mode_mean_tokens": true}"#;
        check(&[("1_Pooling/config.json", cls)], Ok(Some(Pooling::Cls)));
        let both = r#"{"pooling_mode_lasttoken": true}"#;
        check(&[("1_Pooling/config.json", both)], Err("pooling `mean+lasttoken`"));
        check(&[("1_Pooling/config.json", r#"{"pooling_mode": 3}"#)], Err("expected a string"));

        let class = |name: &str, path: &str| {
            format!(r#"{{"path": "{path}", "type": "sentence_transformers.models.{name}"}}"#)
        };
        let list = |modules: &[String]| format!("[{}]", modules.join(", "));
        let [first, norm] = [class("Transformer", ""), class("Normalize", "2_Normalize")];
        let modules = list(&[first.clone(), class("Pooling", "p"), norm]);
        check(&[("modules.json", &modules), ("p/config.json", last)], Ok(Some(Pooling::Last)));
        check(&[("modules.json", &modules)], Err("config.json"));
        let dense = list(&[first, class("Dense", "2_Dense")]);
        check(&[("modules.json", &dense)], Err("models.Dense` is not supported"));
        for path in ["..", "/tmp", "p/../../q"] {
            let modules = list(&[class("Pooling", path)]);
            check(&[("modules.json", &modules)], Err("expected a folder of the model"));
        }
        check(&[("modules.json", "{}")], Err("modules.json"));
    }
}
