//! A model's properties, read from its files without loading its weights.

use crate::Error;
use crate::run::model::{Recorded, main_type, sizes, text_side};
use crate::run::options::LoadOptions;
use realizar_model::architectures::ModelOutput;
use realizar_model::architectures::config::Config;
use realizar_model::checkpoint::Checkpoint;
use realizar_text::template::ChatTemplate;
use realizar_text::tokenizer::Tokenizer;
use std::path::{Path, PathBuf};

/// A model that is not loaded, as its files describe it.
///
/// Reading one maps the files and checks the names and the shapes of all tensors, as a load does.
#[derive(Debug)]
pub struct ModelCard {
    path: PathBuf,
    architecture: &'static str,
    config: Config,
    max_seq_len: usize,
    n_params: usize,
    weight_bytes: usize,
    quantization: String,
    is_gguf: bool,
}

/// The text side of a model that is not loaded.
#[derive(Debug)]
pub struct CardText {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if there is one.
    pub template: Option<ChatTemplate>,
}

impl ModelCard {
    /// Reads the card of a GGUF file or a Hugging Face directory.
    ///
    /// # Errors
    /// If a file is malformed, or the model is of a kind that is not built.
    pub fn read(path: &Path, output: ModelOutput) -> Result<Self, Error> {
        let options = LoadOptions { output, ..LoadOptions::default() };
        let (checkpoint, recorded) = Recorded::open(path, &options)?;
        let (n_params, weight_bytes) = sizes(&recorded.weights);
        let quantization = checkpoint.file_type().or_else(|| main_type(&recorded.weights));
        Ok(Self {
            path: path.to_owned(),
            architecture: recorded.architecture,
            max_seq_len: recorded.max_seq_len,
            n_params,
            weight_bytes,
            quantization: quantization.unwrap_or_default().to_owned(),
            is_gguf: matches!(checkpoint, Checkpoint::Gguf(_)),
            config: recorded.config,
        })
    }

    /// Reads the tokenizer and the chat template, which takes longer than the rest.
    ///
    /// # Errors
    /// If one of them is malformed.
    pub fn read_text(&self) -> Result<CardText, Error> {
        let (tokenizer, template) = text_side(&Checkpoint::open(&self.path)?, &self.path);
        let failed = |source| Error::Template { path: self.path.clone(), source };
        Ok(CardText {
            tokenizer: tokenizer?,
            template: template.map_err(|error| failed(error.into()))?,
        })
    }

    /// The name of its architecture.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tokens of its context, unless an option of the load changes it.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Elements of all weights.
    pub fn n_params(&self) -> usize {
        self.n_params
    }

    /// Bytes of all weights as they are stored.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The type of the weights, as [`Model::quantization`](crate::Model::quantization).
    pub fn quantization(&self) -> &str {
        &self.quantization
    }

    /// Whether it is a GGUF file, and not a Hugging Face directory.
    pub fn is_gguf(&self) -> bool {
        self.is_gguf
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use realizar_backends::cpu::CpuBackend;

    #[test]
    fn a_card_says_what_the_loaded_model_says() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs/llama");
        for (path, is_gguf) in [(folder.join("model-f32.gguf"), true), (folder, false)] {
            let card = ModelCard::read(&path, ModelOutput::Logits).unwrap();
            let backend = CpuBackend::new(Some(1), None).unwrap();
            let model = Model::load(&path, &backend, &LoadOptions::default()).unwrap();
            assert_eq!(card.is_gguf(), is_gguf);
            assert_eq!(card.architecture(), model.architecture());
            assert_eq!(card.config(), model.config());
            assert_eq!(card.max_seq_len(), model.max_seq_len());
            assert_eq!(card.n_params(), model.n_params());
            assert_eq!(card.weight_bytes(), model.weight_bytes());
            assert_eq!(card.quantization(), model.quantization());
            // The directory has no tokenizer.
            let (Ok(text), Ok(tokenizer)) = (card.read_text(), model.tokenizer()) else {
                assert!(!is_gguf);
                continue;
            };
            let own = model.chat_template().unwrap().map(|own| own.source().to_owned());
            assert_eq!(text.template.map(|template| template.source().to_owned()), own);
            assert_eq!(text.tokenizer.vocab_size(), tokenizer.vocab_size());
        }
    }

    #[test]
    fn a_file_that_is_no_model_has_no_card() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let error = ModelCard::read(&path, ModelOutput::Logits).unwrap_err();
        assert!(error.to_string().contains("Cargo.toml"), "{error}");
    }
}
