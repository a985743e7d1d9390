//! Models that read more than text, of which the text model is run by itself.
//!
//! Their config.json has the settings of the text model under `text_config`, and its tensors have
//! a prefix, by which those of the other parts are told from them. Early files have both without.

use super::HfSettings;
use crate::Error;
use serde_json::json;

/// The two layouts that transformers reads: what stands before the names of the text model in
/// place of `model.`, and before its other names.
const PREFIXES: [(&str, &str); 2] =
    [("model.language_model.", ""), ("language_model.model.", "language_model.")];

/// How the names of tensors of the other parts begin.
const OTHER_PARTS: [&str; 12] = [
    "model.audio_tower.",
    "model.embed_audio.",
    "model.embed_vision.",
    "model.multi_modal_projector.",
    "model.vision_embedder.",
    "model.vision_tower.",
    "model.visual.",
    "mtp.",
    "multi_modal_projector.",
    "vision_model.",
    "vision_tower.",
    "visual.",
];

impl HfSettings {
    /// The settings of the text model, where these are of a model that reads more; else the same.
    ///
    /// # Errors
    /// If `text_config` is not an object.
    pub(super) fn of_text(mut self) -> Result<Self, Error> {
        let outer = self.opt_str("model_type").unwrap_or_default();
        let is_qwen = matches!(outer, Some("qwen2_vl" | "qwen2_5_vl" | "qwen3_5" | "qwen3_5_moe"));
        if !is_qwen
            && !matches!(outer, Some("gemma3" | "gemma3n" | "gemma4" | "llama4" | "mistral3"))
        {
            return Ok(self);
        }
        let Some(mut text) = self.opt_object("text_config")? else {
            // Early files of Qwen2-VL have the settings of the text model beside the others.
            self.is_of_text = is_qwen && self.has("vision_config");
            return Ok(self);
        };
        text.is_of_text = true;
        if is_qwen && self.bool_or("tie_word_embeddings", false)? {
            text = text.with_defaults([("tie_word_embeddings", json!(true))]);
        }
        tracing::info!("{}: running the text model only", self.path().display());
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
        self.is_of_text
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
