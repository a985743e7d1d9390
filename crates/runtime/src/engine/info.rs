//! Model metadata.

use crate::Error;
use crate::generate::chat_prompt;
use crate::generate::embedding::{EmbedParams, Pooler};
use crate::run::{Model, PromptRules, Runner};
use realizar_backends::MemoryUse;
use realizar_model::architectures::ModelOutput;
use realizar_model::architectures::config::Config;
use realizar_model::checkpoint::Pooling;
use realizar_text::sampling::SamplingParams;
use realizar_text::template::{ChatTemplate, Message};
use realizar_text::tokenizer::Tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Model metadata.
#[derive(Debug)]
pub struct ModelInfo {
    path: PathBuf,
    architecture: &'static str,
    backend: String,
    config: Config,
    max_seq_len: usize,
    output: ModelOutput,
    output_width: usize,
    pooling: Pooling,
    sampling: SamplingParams,
    vocab_size: usize,
    pub(super) rules: PromptRules,
    n_params: usize,
    quantization: String,
    weight_bytes: usize,
    memory: MemoryUse,
    tokenizer: Arc<Tokenizer>,
    template: Result<Option<Arc<ChatTemplate>>, Error>,
}

impl ModelInfo {
    /// The metadata of `model`, without what only its runner knows: see [`Self::limit_to`].
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub(super) fn new(model: &Model, draft_model: Option<&Model>) -> Result<Self, Error> {
        Ok(Self {
            path: model.path().to_owned(),
            architecture: model.architecture(),
            backend: model.backend().to_owned(),
            config: model.config().clone(),
            max_seq_len: model.max_seq_len(),
            output: model.output(),
            output_width: 0,
            pooling: model.default_pooling(),
            sampling: model.sampling().clone(),
            vocab_size: 0,
            rules: model.rules(),
            n_params: model.n_params(),
            quantization: model.quantization().to_owned(),
            weight_bytes: model.weight_bytes(),
            memory: model.memory() + draft_model.map(Model::memory).unwrap_or_default(),
            tokenizer: model.tokenizer()?.clone(),
            template: model.chat_template().map(Option::<&_>::cloned),
        })
    }

    /// Sets the widths of the runner's output, and limits the context to what the cache holds for a
    /// sequence that is alone in it.
    pub(super) fn limit_to(&mut self, runner: &Runner) {
        self.vocab_size = runner.vocab_size();
        self.output_width = runner.output_width();
        while self.max_seq_len > 0 && !runner.could_hold(self.max_seq_len) {
            self.max_seq_len -= 1;
        }
    }

    /// The path that the model was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the architecture, as GGUF files spell it.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// The backend that the model runs on; `first + last` for several.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The model's dimensions and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The maximum number of tokens of a prompt and its answer.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// The output that the model was loaded for: text or embeddings.
    pub fn output(&self) -> ModelOutput {
        self.output
    }

    /// The default pooling of embeddings and the number of their elements; `None` if the model was
    /// not loaded for embeddings.
    pub fn embedding(&self) -> Option<(Pooling, usize)> {
        (self.output == ModelOutput::Embeddings).then_some((self.pooling, self.output_width))
    }

    /// A pooler for an embedding of the model.
    pub(super) fn pooler(&self, params: &EmbedParams) -> Result<Pooler, Error> {
        Pooler::new(params, self.pooling, self.output_width)
    }

    /// The sampling parameters of the model's files; see [`Model::sampling`].
    pub fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// The number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The number of elements of all weights.
    pub fn n_params(&self) -> usize {
        self.n_params
    }

    /// The type of the weights; see [`Model::quantization`].
    pub fn quantization(&self) -> &str {
        &self.quantization
    }

    /// The size of all weights as they are stored, in bytes.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The memory that the model and its draft model take on their devices.
    pub fn memory(&self) -> MemoryUse {
        self.memory
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The chat template, if the model came with one.
    ///
    /// # Errors
    /// If the template cannot be read.
    pub fn chat_template(&self) -> Result<Option<&Arc<ChatTemplate>>, &Error> {
        self.template.as_ref().map(Option::as_ref)
    }

    /// The prompt of a conversation by the chat template; see [`Model::chat_prompt`].
    ///
    /// # Errors
    /// If the model has no chat template, the template cannot be read, or it refuses the conversation.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        let template = match &self.template {
            Ok(template) => template.as_ref(),
            Err(Error::Template { path, source }) => {
                return Err(Error::Template { path: path.clone(), source: source.clone() });
            }
            Err(error) => return Err(Error::Request(error.to_string())),
        };
        let template = template.ok_or_else(|| Error::NoChatTemplate { path: self.path.clone() })?;
        chat_prompt(template, &self.tokenizer, messages)
    }
}
