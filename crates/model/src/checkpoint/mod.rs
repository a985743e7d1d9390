//! A model on disk: a GGUF file or a Hugging Face directory, behind one face.
//!
//! What differs between the two, names and spellings of settings, stops here
//! and in the name tables (`names.rs`); an architecture sees settings and weights.

mod class;
mod gguf_settings;
mod hf_settings;
mod multimodal;
pub(crate) mod names;
mod ollama;
mod pooling;
mod quantized;
mod unread;

pub use gguf_settings::GgufSettings;
pub use hf_settings::HfSettings;
pub use pooling::Pooling;
pub use quantized::Quantized;
pub(crate) use unread::Asked;

use crate::Error;
use realizar_formats::{Gguf, SafeTensors, Tensor, gguf_file_type_name};
use std::path::Path;

/// An opened model.
#[derive(Debug)]
pub enum Checkpoint {
    /// A GGUF file, or the shards of one.
    Gguf(Gguf),
    /// A directory with config.json and safetensors.
    Hf {
        /// config.json, of a model that reads more than text its `text_config`.
        settings: Box<HfSettings>,
        /// The tensors.
        tensors: SafeTensors,
        /// How its linears are quantized, if they are.
        quantized: Option<Quantized>,
    },
}

impl Checkpoint {
    /// Opens a GGUF file, a directory with config.json, or a directory that
    /// holds exactly one GGUF model.
    ///
    /// # Errors
    /// If the path is none of these, or a file is malformed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let checkpoint = Self::open_all(path)?;
        if let Some(parts) = checkpoint.left_out() {
            tracing::info!("{}: only the text model is run, without {parts}", path.display());
        }
        Ok(checkpoint)
    }

    fn open_all(path: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            if path.join("config.json").is_file() {
                let settings = HfSettings::open(&path.join("config.json"))?.of_text()?;
                let tensors = SafeTensors::open(path)?;
                let quantized = Quantized::open(&settings, &tensors)?;
                return Ok(Self::Hf { settings: Box::new(settings), tensors, quantized });
            }
            return Ok(Self::gguf(Gguf::open(only_gguf_in(path)?)?));
        }
        if path.extension().is_some_and(|e| e == "safetensors") {
            let reason = "a safetensors file has no settings; give the directory that also holds \
                          config.json";
            return Err(Error::NotAModel { path: path.to_owned(), reason: reason.to_owned() });
        }
        Ok(Self::gguf(Gguf::open(path)?))
    }

    /// A GGUF file, whichever program converted it.
    pub fn gguf(gguf: Gguf) -> Self {
        Self::Gguf(ollama::translated(gguf))
    }

    /// The parts beside the text model, which are not run, by the first words of the names of tensors:
    /// `vision_tower (27 tensors)`.
    pub fn left_out(&self) -> Option<String> {
        match self {
            Self::Gguf(gguf) => {
                let names = gguf.tensors().iter().map(|info| info.name.as_str());
                multimodal::left_out(names.filter_map(multimodal::gguf_part_of))
            }
            Self::Hf { settings, tensors, .. } if settings.is_of_text() => {
                let names = tensors.tensors().iter().map(|info| info.name.as_str());
                multimodal::left_out(names.filter_map(multimodal::part_of))
            }
            Self::Hf { .. } => None,
        }
    }

    /// The file that holds the settings, for messages.
    pub fn path(&self) -> &Path {
        match self {
            Self::Gguf(gguf) => gguf.path(),
            Self::Hf { settings, .. } => settings.path(),
        }
    }

    /// The files that say what weights are: those that hold tensors, and the settings where these say
    /// how weights are made of several.
    pub fn file_paths(&self) -> Vec<&Path> {
        match self {
            Self::Gguf(gguf) => gguf.shard_paths().collect(),
            Self::Hf { settings, tensors, quantized } => {
                let settings = quantized.as_ref().map(|_| settings.path());
                tensors.shard_paths().chain(settings).collect()
            }
        }
    }

    /// Fails if pages of a file that holds tensors were lost since it was opened.
    pub fn check_files(&self) -> Result<(), Error> {
        match self {
            Self::Gguf(gguf) => gguf.check_files()?,
            Self::Hf { tensors, .. } => tensors.check_files()?,
        }
        Ok(())
    }

    /// What the file calls its architecture.
    ///
    /// # Errors
    /// If it does not say.
    pub fn architecture(&self) -> Result<&str, Error> {
        match self {
            Self::Gguf(gguf) => GgufSettings::new(gguf).architecture(),
            Self::Hf { settings, .. } => settings.str("model_type"),
        }
    }

    /// Which model the architecture is the text model of, or which text model it has, for an error about it.
    pub(crate) fn relation(&self) -> String {
        match self {
            Self::Gguf(gguf) if matches!(GgufSettings::new(gguf).architecture(), Ok("clip")) => {
                " (a projector of images or audio, which has no text model)".to_owned()
            }
            Self::Gguf(_) => String::new(),
            Self::Hf { settings, .. } => settings.relation(),
        }
    }

    /// The mixture of block types that a GGUF file says it was quantized to.
    pub fn file_type(&self) -> Option<&'static str> {
        let Self::Gguf(gguf) = self else { return None };
        // Nothing depends on it, so a value of another type is none.
        gguf_file_type_name(gguf.metadata().u32("general.file_type").ok()??)
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        match self {
            Self::Gguf(gguf) => gguf.tensor(name),
            Self::Hf { settings, tensors, quantized } => {
                let find = |name: &str| {
                    let made = quantized.as_ref().and_then(|it| it.weight(tensors, name));
                    made.or_else(|| tensors.tensor(name))
                };
                find(name).or_else(|| {
                    let mut names =
                        multimodal::names_of_text(name).filter(|_| settings.is_of_text());
                    names.find_map(|name| find(&name))
                })
            }
        }
    }

    /// The input that each column of a tensor is for, where that is not its own.
    pub(crate) fn order(&self, name: &str) -> Option<Vec<u32>> {
        let Self::Hf { tensors, quantized: Some(quantized), .. } = self else { return None };
        quantized.order(tensors, name)
    }

    /// What the products of a matrix are to be multiplied by: of blocks that are made of several tensors,
    /// what they do not hold themselves.
    pub(crate) fn factor(&self, name: &str) -> f32 {
        let Self::Hf { quantized: Some(quantized), .. } = self else { return 1.0 };
        quantized.factor(name)
    }

    /// A matrix with the factor on its products in it, as F32 if that is not 1.
    pub(crate) fn with_factor(&self, tensor: Tensor) -> Tensor {
        if self.factor(&tensor.name) == 1.0 { tensor } else { self.as_f32(&tensor) }
    }

    /// A matrix as F32, with the factor on its products in it.
    pub(crate) fn as_f32(&self, tensor: &Tensor) -> Tensor {
        let expanded = quantized::with_factor(tensor, self.factor(&tensor.name));
        expanded.unwrap_or_else(|| tensor.clone())
    }

    /// The names of all tensors, in file order, after them those of weights that are made of
    /// several; of a model that reads more than text, those of
    /// the text model.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        let part_of = match self {
            Self::Gguf(_) => multimodal::gguf_part_of,
            Self::Hf { .. } => multimodal::part_of,
        };
        let (infos, is_part, quantized) = match self {
            Self::Gguf(gguf) => (gguf.tensors(), true, None),
            Self::Hf { settings, tensors, quantized } => {
                (tensors.tensors(), settings.is_of_text(), quantized.as_ref())
            }
        };
        let stored = infos.iter().map(|info| info.name.as_str());
        let stored = stored.filter(move |name| !quantized.is_some_and(|it| it.is_part(name)));
        let made = quantized.into_iter().flat_map(Quantized::weights).map(String::as_str);
        let names = stored.chain(made);
        names.filter(move |name| !is_part || part_of(name).is_none())
    }
}

/// The GGUF file in a directory that has one model (a split one counts once).
fn only_gguf_in(dir: &Path) -> Result<std::path::PathBuf, Error> {
    let not_a_model = |reason: String| Error::NotAModel { path: dir.to_owned(), reason };
    let io = |source| Error::Io { path: dir.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let later_shard = name.contains("-of-") && !name.contains("-00001-of-");
        if name.ends_with(".gguf") && !later_shard {
            found.push(path);
        }
    }
    found.sort();
    match found.len() {
        0 => Err(not_a_model("holds neither config.json nor a GGUF file".to_owned())),
        1 => Ok(found.remove(0)),
        n => Err(not_a_model(format!("holds {n} GGUF models; name one of them"))),
    }
}
