//! The sizes that the classes of text models have in transformers, for settings inside other settings.
//!
//! transformers leaves out of such settings what the class has anyway. Other defaults are the architectures'.

use super::HfSettings;
use crate::Error;
use serde_json::json;

const KEYS: [&str; 6] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
];

/// Type, and the values of [`KEYS`] in transformers 5.24.
const CLASSES: &[(&str, [usize; 6])] = &[
    ("deepseek_v3", [129_280, 7168, 18_432, 61, 128, 128]),
    ("exaone4", [102_400, 4096, 16_384, 32, 32, 32]),
    ("gemma", [256_000, 3072, 24_576, 28, 16, 16]),
    ("gemma2", [256_000, 2304, 9216, 26, 8, 4]),
    ("gemma3_text", [262_208, 2304, 9216, 26, 8, 4]),
    ("gemma4_text", [262_144, 2304, 9216, 30, 8, 4]),
    ("gemma4_unified_text", [262_144, 2304, 9216, 30, 8, 4]),
    ("glm4v_moe_text", [151_424, 4096, 10_944, 46, 96, 8]),
    ("glm4v_text", [151_552, 4096, 13_696, 40, 32, 2]),
    ("glm_ocr_text", [59_392, 1024, 4096, 16, 16, 8]),
    ("gpt_oss", [201_088, 2880, 2880, 36, 64, 8]),
    ("kimi_k2", [129_280, 7168, 18_432, 61, 128, 128]),
    ("lfm2", [65_536, 2560, 12_288, 32, 32, 8]),
    ("lfm2_moe", [65_536, 2048, 7168, 32, 32, 8]),
    ("llama", [32_000, 4096, 11_008, 32, 32, 32]),
    ("llama4_text", [202_048, 5120, 8192, 48, 40, 8]),
    ("ministral3", [131_072, 4096, 14_336, 34, 32, 8]),
    ("mistral", [32_000, 4096, 14_336, 32, 32, 8]),
    ("mixtral", [32_000, 4096, 14_336, 32, 32, 8]),
    ("phi3", [32_064, 3072, 8192, 32, 32, 32]),
    ("qwen2", [151_936, 4096, 22_016, 32, 32, 32]),
    ("qwen2_5_vl_text", [152_064, 8192, 29_568, 80, 64, 8]),
    ("qwen2_vl_text", [152_064, 8192, 29_568, 80, 64, 8]),
    ("qwen3", [151_936, 4096, 22_016, 32, 32, 32]),
    ("qwen3_5_text", [248_320, 4096, 12_288, 32, 16, 4]),
    ("qwen3_moe", [151_936, 2048, 6144, 24, 32, 4]),
    ("qwen3_vl_moe_text", [151_936, 2048, 5632, 24, 16, 16]),
    ("qwen3_vl_text", [151_936, 4096, 22_016, 32, 32, 32]),
];

/// The settings of a text model inside others, with what its class has where they say nothing.
///
/// # Errors
/// If the type is no string.
pub(super) fn of_text(text: HfSettings) -> Result<HfSettings, Error> {
    let ty = text.opt_str("model_type")?;
    let Some((_, sizes)) = CLASSES.iter().find(|(class, _)| Some(*class) == ty) else {
        return Ok(text);
    };
    let defaults: [_; 6] = std::array::from_fn(|i| (KEYS[i], json!(sizes[i])));
    Ok(text.with_defaults(defaults))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_order() {
        assert!(CLASSES.is_sorted_by_key(|(class, _)| class));
    }
}
