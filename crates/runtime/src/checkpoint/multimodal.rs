//! Models that read more than text, of which the text model is run by itself.
//!
//! Their config.json has the settings of the text model under `text_config`, and its tensors have
//! a prefix, by which those of the other parts are told from them.

use super::HfSettings;
use crate::Error;
use serde_json::json;

/// The two layouts that transformers reads: what stands before the names of the text model in
/// place of `model.`, and before its other names.
const PREFIXES: [(&str, &str); 2] =
    [("model.language_model.", ""), ("language_model.model.", "language_model.")];

/// How the names of tensors of the other parts begin.
const OTHER_PARTS: [&str; 4] = [
    "model.multi_modal_projector.",
    "model.vision_tower.",
    "multi_modal_projector.",
    "vision_tower.",
];

impl HfSettings {
    /// The settings of the text model, where these are of a model that reads more; else the same.
    ///
    /// # Errors
    /// If `text_config` is no object.
    pub(super) fn of_text(self) -> Result<Self, Error> {
        let outer = self.opt_str("model_type").unwrap_or_default();
        if !matches!(outer, Some("gemma3" | "mistral3")) {
            return Ok(self);
        }
        let Some(text) = self.opt_object("text_config")? else { return Ok(self) };
        tracing::info!("{}: the text model alone is run", self.path().display());
        // What the class of the text model has where early files say nothing.
        let text = match text.opt_str("model_type")? {
            Some("gemma3_text") => text.with_defaults([
                ("hidden_size", json!(2304)),
                ("intermediate_size", json!(9216)),
                ("num_attention_heads", json!(8)),
                ("num_hidden_layers", json!(26)),
                ("vocab_size", json!(262_208)),
            ]),
            _ => text,
        };
        // The whole model is quantized, or nothing of it.
        Ok(match self.map().get("quantization_config") {
            Some(quantization) => {
                text.with_defaults([("quantization_config", quantization.clone())])
            }
            None => text,
        })
    }

    /// Whether they are those of a model's text part.
    pub(super) fn is_of_text(&self) -> bool {
        !self.prefix().is_empty()
    }
}

/// The names that the tensor `name` of a text model may have beside its own.
pub(super) fn names_of_text(name: &str) -> impl Iterator<Item = String> {
    PREFIXES.iter().map(move |(model, other)| match name.strip_prefix("model.") {
        Some(rest) => format!("{model}{rest}"),
        None => format!("{other}{name}"),
    })
}

/// Whether a tensor is part of the text model.
pub(super) fn is_text(name: &str) -> bool {
    !OTHER_PARTS.iter().any(|part| name.starts_with(part))
}
