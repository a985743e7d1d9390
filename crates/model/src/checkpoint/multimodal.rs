//! Models that read more than text, of which the text model is run by itself.
//!
//! Their config.json has the settings of the text model in an object of its own, and its tensors have
//! a prefix, by which those of the other parts are told from them. Early files have both without. GGUF files
//! may have all parts in one file; their names tell them as well.

use super::HfSettings;
use crate::Error;
use serde_json::json;
use std::collections::BTreeMap;

/// The key of the text model's settings, and the types of config.json that have it, as transformers or the code
/// next to the files names them. What they compute for text alone is what the text model computes.
const WRAPPERS: [(&str, &[&str]); 2] = [
    (
        "text_config",
        &[
            "audioflamingo3",
            "exaone4_5",
            "gemma3",
            "gemma3n",
            "gemma4",
            "gemma4_unified",
            "glm46v",
            "glm4v",
            "glm4v_moe",
            "glm_ocr",
            "idefics2",
            "idefics3",
            "internvl",
            "janus",
            "kimi_k25",
            "lfm2_vl",
            "lighton_ocr",
            "llama4",
            "llava",
            "llava_next",
            "llava_next_video",
            "llava_onevision",
            "minicpmv4_6",
            "minicpmv4_7",
            "mistral3",
            "ovis2",
            "qwen2_5_vl",
            "qwen2_audio",
            "qwen2_vl",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_vl",
            "qwen3_vl_moe",
            "smolvlm",
            "video_llama_3",
            "vipllava",
            "voxtral",
        ],
    ),
    ("llm_config", &["internvl_chat"]),
];

/// Keys under which wrappers that are not in the table keep the settings of a text model.
const TEXT_KEYS: [&str; 4] = ["text_config", "llm_config", "language_config", "thinker_config"];

/// Prefixes of the text model's names in place of `model.`, and of its other names.
const PREFIXES: [(&str, &str); 3] = [
    ("model.language_model.", ""),
    ("language_model.model.", "language_model."),
    ("model.text_model.", ""),
];

/// How the names of tensors of the other parts begin, with or without `model.` before them.
const OTHER_PARTS: [&str; 23] = [
    "aligner",
    "audio_tower",
    "connector",
    "embed_audio",
    "embed_vision",
    "generation_aligner",
    "generation_embeddings",
    "generation_head",
    "image_newline",
    "merger",
    "mlp1",
    "mm_projector",
    "mtp",
    "multi_modal_projector",
    "projector",
    "vision_embedder",
    "vision_encoder",
    "vision_model",
    "vision_projection",
    "vision_tower",
    "visual",
    "visual_embeddings_table",
    "vqmodel",
];

/// The same of tensors in GGUF files that have all parts: audio and vision encoders, and what projects their
/// results.
const GGUF_PARTS: [&str; 4] = ["a", "mm", "s", "v"];

impl HfSettings {
    /// The settings of the text model, where these are of a model that reads more; else the same.
    ///
    /// # Errors
    /// If those of the text model are no object.
    pub(super) fn of_text(mut self) -> Result<Self, Error> {
        let outer = self.opt_str("model_type")?.unwrap_or_default().to_owned();
        let row = WRAPPERS.iter().find(|(_, types)| types.contains(&outer.as_str()));
        let Some((key, _)) = row else {
            for key in TEXT_KEYS {
                let inner = self.raw(key).and_then(|inner| inner.get("model_type"));
                self.text_type = inner.and_then(|ty| ty.as_str()).map(str::to_owned);
                if self.text_type.is_some() {
                    break;
                }
            }
            return Ok(self);
        };
        let Some(mut text) = self.opt_object(key)? else {
            // Early files of Qwen2-VL have the settings of the text model beside the others.
            self.is_of_text = outer.starts_with("qwen2") && self.has("vision_config");
            return Ok(self);
        };
        text.is_of_text = true;
        text.outer_type = Some(outer);
        if self.bool_or("tie_word_embeddings", false)? {
            text = text.with_defaults([("tie_word_embeddings", json!(true))]);
        }
        // The whole model is quantized, or nothing of it.
        Ok(match self.map().get("quantization_config") {
            Some(quantization) => {
                text.with_defaults([("quantization_config", quantization.clone())])
            }
            None => text,
        })
    }

    /// Which model these are the text part of, or which text model they wrap.
    pub(super) fn relation(&self) -> String {
        match (&self.outer_type, &self.text_type) {
            (Some(outer), _) => format!(", the text model of `{outer}`,"),
            (None, Some(text)) => format!(", whose text model is `{text}`,"),
            (None, None) => String::new(),
        }
    }

    /// Whether they are those of a model's text part.
    pub(crate) fn is_of_text(&self) -> bool {
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

/// The part that a tensor of a directory belongs to, if that is not the text model.
pub(super) fn part_of(name: &str) -> Option<&str> {
    first_word(name.strip_prefix("model.").unwrap_or(name), &OTHER_PARTS)
}

/// As [`part_of`], of a tensor in a GGUF file.
pub(super) fn gguf_part_of(name: &str) -> Option<&str> {
    first_word(name, &GGUF_PARTS)
}

fn first_word<'a>(name: &'a str, words: &[&str]) -> Option<&'a str> {
    let first = name.split('.').next()?;
    words.contains(&first).then_some(first)
}

/// The parts of a file that are left out, by name: `vision_tower (27 tensors)`. The layers that draft
/// tokens are no such part.
pub(super) fn left_out<'a>(parts: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for part in parts.filter(|part| *part != "mtp") {
        *counts.entry(part).or_default() += 1;
    }
    let plural = |n| if n == 1 { "" } else { "s" };
    let named = |(part, n)| format!("{part} ({n} tensor{})", plural(n));
    let names: Vec<_> = counts.into_iter().map(named).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_by_the_first_word_of_a_name() {
        for (name, part) in [
            ("model.visual.blocks.0.attn.qkv.weight", Some("visual")),
            ("visual.merger.ln_q.weight", Some("visual")),
            ("model.image_newline", Some("image_newline")),
            ("image_newline", Some("image_newline")),
            ("mlp1.0.weight", Some("mlp1")),
            ("model.layers.0.mlp.up_proj.weight", None),
            ("model.language_model.layers.0.mlp.up_proj.weight", None),
            ("model.visualizer.weight", None),
            ("lm_head.weight", None),
        ] {
            assert_eq!(part_of(name), part, "{name}");
        }
        for (name, part) in [
            ("v.blk.0.attn_q.weight", Some("v")),
            ("mm.0.bias", Some("mm")),
            ("a.blk.0.conv_dw.weight", Some("a")),
            ("blk.0.attn_v.weight", None),
            ("output.weight", None),
        ] {
            assert_eq!(gguf_part_of(name), part, "{name}");
        }
    }

    #[test]
    fn what_is_left_out_is_named_once() {
        let parts = ["visual", "connector", "visual", "mtp"];
        let text = "connector (1 tensor), visual (2 tensors)";
        assert_eq!(left_out(parts.into_iter()).as_deref(), Some(text));
        assert_eq!(left_out(["mtp"].into_iter()), None);
    }
}
