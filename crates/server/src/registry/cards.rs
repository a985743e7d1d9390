//! What the files of models that are not loaded say of them, kept until the files change.

use super::Models;
use super::entry::ModelStatus;
use crate::chat::messages::TemplateTraits;
use crate::chat::reasoning::ReasoningFormat;
use crate::chat::tools::ToolFormat;
use realizar_runtime::template::ChatTemplate;
use realizar_runtime::{ModelCard, ModelOutput};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

/// A model that is not loaded.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) model: ModelCard,
    text: OnceLock<CardText>,
}

/// What a model's tokenizer and template show, where they can be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CardText {
    /// The source of the chat template.
    pub(crate) template: Option<String>,
    /// Whether it can be shown tools.
    pub(crate) tools: bool,
    /// Whether it marks reasoning.
    pub(crate) thinking: bool,
    /// Whether there are tokens for filling in the middle.
    pub(crate) infill: bool,
}

impl Card {
    /// What the text side shows, read the first time, which may take a second.
    pub(crate) fn text(&self) -> &CardText {
        self.text.get_or_init(|| match self.model.read_text() {
            Ok(text) => {
                let template = text.template.as_ref();
                let source = template.map(|template| template.source().to_owned());
                let has_tools = |template: &ChatTemplate| {
                    let template = template.for_tools();
                    TemplateTraits::of(template).tools_variable.is_some()
                        || ToolFormat::detect(template.source()).is_some()
                };
                let thinking = source.as_deref().and_then(ReasoningFormat::detect).is_some();
                CardText {
                    tools: template.is_some_and(has_tools),
                    thinking,
                    infill: text.tokenizer.infill().is_some(),
                    template: source,
                }
            }
            Err(error) => {
                tracing::debug!("the text side of a model cannot be read: {error}");
                CardText::default()
            }
        })
    }
}

/// The cards that were read, by the files that they are of, with the time of their last change.
#[derive(Debug, Default)]
pub(super) struct Cards(Mutex<HashMap<(PathBuf, ModelOutput), Kept>>);

/// A card, or that there is none.
type Kept = (Option<SystemTime>, Option<Arc<Card>>);

impl Cards {
    /// The card of a model at a path; `None` of one that cannot be read.
    fn get(&self, path: &Path, output: ModelOutput) -> Option<Arc<Card>> {
        let changed = std::fs::metadata(path).and_then(|file| file.modified()).ok();
        let key = (path.to_owned(), output);
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, card)) = lock().get(&key)
            && *of == changed
        {
            return card.clone();
        }
        // Others need not wait for it.
        let card = match ModelCard::read(path, output) {
            Ok(model) => Some(Arc::new(Card { model, text: OnceLock::new() })),
            Err(error) => {
                tracing::debug!("a model that is not loaded cannot be read: {error}");
                None
            }
        };
        lock().insert(key, (changed, card.clone()));
        card
    }
}

/// A model with what is known of it, loaded or not.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) status: ModelStatus,
    /// What its files say, of a model that is not loaded.
    pub(crate) card: Option<Arc<Card>>,
}

impl Known {
    /// Where its files are, if they are on this machine.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.status {
            ModelStatus { model: Some(model), .. } => Some(model.engine.model().path()),
            ModelStatus { files, .. } => files.as_ref().map(|files| files.path.as_path()),
        }
    }
}

impl Models {
    /// Reads the files of those of these models that are not loaded. It may take long.
    pub(crate) fn look_up(&self, statuses: Vec<ModelStatus>) -> Vec<Known> {
        let known = |status: ModelStatus| {
            let card = match (&status.model, &status.files) {
                (None, Some(files)) => self.0.cards.get(&files.path, status.output),
                _ => None,
            };
            Known { status, card }
        };
        statuses.into_iter().map(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_again_when_its_file_changes() {
        let fixture =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs/llama/model-f32.gguf");
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("m.gguf");
        let cards = Cards::default();
        let get = || cards.get(&path, ModelOutput::Logits);
        assert!(get().is_none());
        std::fs::copy(&fixture, &path).expect("copied");
        let first = get().expect("a card");
        assert!(Arc::ptr_eq(&first, &get().expect("the same")));
        assert_eq!(first.model.architecture(), "llama");
        let file = std::fs::File::options().write(true).open(&path).expect("opened");
        file.set_modified(SystemTime::UNIX_EPOCH).expect("set");
        assert!(!Arc::ptr_eq(&first, &get().expect("another")));
    }
}
