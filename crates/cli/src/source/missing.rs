//! Families of models that people ask for and that are not supported, and what each of them needs.
//!
//! A family that is supported moves from here to the catalogue.

const MAMBA: &str = "its layers are selective state spaces (Mamba)";
const MAMBA2: &str = "some of its layers are selective state spaces (Mamba-2)";
const INDEXER: &str = "its attention is over positions that an indexer selects";
const KDA: &str = "its linear attention has a decay for each column of the keys (KDA)";
const LIGHTNING: &str = "some of its layers are linear attention with a fixed decay (Lightning)";
const ENCODER: &str = "it is an encoder, and only decoders are run, qwen3-embedding among them";
const AUDIO: &str = "it reads audio, and no audio encoder is built";
const SPEECH: &str = "it produces speech, and no audio decoder is built";
const DIFFUSION: &str =
    "it is a diffusion language model, whose tokens are not sampled one after another";
const NARROW: &str = "its heads have fewer columns of values than of keys";
const OCR: &str = "it reads images of text, and no vision encoder is built";

/// Names as people write them, in order, and what is missing. A name stands for those that continue it with a version
/// or a size too.
const FAMILIES: &[(&str, &str)] = &[
    ("afmoe", "its heads of attention have gates of their own"),
    ("all-minilm", ENCODER),
    ("apertus", "its activation is xIELU"),
    ("arcee", "its feed-forward network has a squared ReLU in place of a gate"),
    ("bakllava", "it reads images, and no vision encoder is built"),
    ("bamba", MAMBA2),
    ("bert", ENCODER),
    ("bge", ENCODER),
    ("bitnet", "it has norms inside attention and feed-forward network"),
    ("chameleon", "it generates images, and no image decoder is built"),
    ("codestral-mamba", MAMBA2),
    ("dbrx", "its attention and experts have the shapes of DBRX"),
    ("deepseek-ocr", OCR),
    (
        "deepseek-v4",
        "it has several residual streams (hyper-connections) and compressed keys and values",
    ),
    ("diffusion-gemma", DIFFUSION),
    ("dots.ocr", OCR),
    ("dream", DIFFUSION),
    ("embeddinggemma", ENCODER),
    ("falcon-h1", MAMBA2),
    ("falcon-mamba", MAMBA),
    ("flan-t5", "it is an encoder with a decoder (T5)"),
    ("glm-5", INDEXER),
    (
        "glm-ocr",
        "its GGUF files have multimodal rotary embeddings; its directory on the hub is run as text",
    ),
    ("granite-speech", AUDIO),
    ("granite4-h", MAMBA2),
    ("grok", "its attention and experts have the shapes of Grok"),
    ("jamba", MAMBA),
    ("kimi-k3", KDA),
    ("kimi-linear", KDA),
    ("laguna", "its heads of attention have gates with softplus"),
    ("ling", LIGHTNING),
    ("llada", DIFFUSION),
    ("llama-vision", "it attends to images in layers of their own (cross-attention)"),
    ("llama3.2-vision", "it attends to images in layers of their own (cross-attention)"),
    (
        "llava",
        "it reads images, and no vision encoder is built; its directory on the hub is run as text",
    ),
    ("mamba", MAMBA),
    ("mimo", NARROW),
    ("minicpm3", "its attention has latent keys and values in a dense model"),
    ("minimax-01", LIGHTNING),
    ("minimax-m1", LIGHTNING),
    ("minimax-m3", "its attention is over blocks of positions that it selects"),
    (
        "mistral-large-3",
        "its architecture, mistral-large3, has latent attention with growing queries",
    ),
    ("mistral-small4", "its architecture, mistral4, has latent attention with growing queries"),
    ("mllama", "it attends to images in layers of their own (cross-attention)"),
    ("moondream", "it reads images, and no vision encoder is built"),
    ("mxbai-embed-large", ENCODER),
    ("nemotron-3", MAMBA2),
    ("nemotron-cascade", MAMBA2),
    ("nemotron-h", MAMBA2),
    ("nemotron3", MAMBA2),
    ("nomic-embed", ENCODER),
    ("orpheus", SPEECH),
    ("paddleocr", OCR),
    ("paligemma", "it sees the whole prompt in both directions"),
    ("parakeet", AUDIO),
    ("paraphrase-multilingual", ENCODER),
    ("plamo", MAMBA2),
    ("qwen2.5-omni", AUDIO),
    ("qwen3-asr", AUDIO),
    ("qwen3-omni", AUDIO),
    ("qwen3-tts", SPEECH),
    ("qwen3.8-flash-next", INDEXER),
    ("qwen4", INDEXER),
    ("ring", LIGHTNING),
    ("rwkv", "its layers have the state of RWKV"),
    ("snowflake-arctic-embed", ENCODER),
    ("step-3.5", NARROW),
    ("step3.5", NARROW),
    ("t5", "it is an encoder with a decoder (T5)"),
    ("trinity", "its heads of attention have gates of their own"),
    ("voxtral", AUDIO),
    ("whisper", AUDIO),
    ("zamba", MAMBA2),
];

/// The missing feature of the family that `text` names, if it is known and not supported.
pub(super) fn find(text: &str) -> Option<&'static str> {
    let lower = text.to_ascii_lowercase();
    let is_of = |name: &str| {
        let rest = lower.strip_prefix(name);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic()))
    };
    // The longest, of `glm-5` and `glm-5-next` the second.
    let found = FAMILIES.iter().filter(|(name, _)| is_of(name));
    found.max_by_key(|(name, _)| name.len()).map(|(_, missing)| *missing)
}

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use super::*;

    #[test]
    fn families_are_in_order_and_not_in_the_catalogue() {
        assert!(FAMILIES.is_sorted_by_key(|(name, _)| name));
        for (name, _) in FAMILIES {
            assert!(matches!(catalogue::find(name), Ok(None)), "{name}");
        }
        for family in catalogue::FAMILIES {
            assert_eq!(find(family.name), None, "{}", family.name);
        }
    }

    #[test]
    fn a_name_stands_for_its_versions_and_sizes() {
        for (text, want) in [
            ("glm-5.2", Some(INDEXER)),
            ("GLM-5:latest", Some(INDEXER)),
            ("kimi-linear:48b", Some(KDA)),
            ("mamba2", Some(MAMBA)),
            ("whisper-large-v3", Some(AUDIO)),
            ("nemotron-3-nano:30b", Some(MAMBA2)),
            ("glm4", None),
            ("mambas", None),
            ("ringtone", None),
        ] {
            assert_eq!(find(text), want, "{text}");
        }
    }
}
