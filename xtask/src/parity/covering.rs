//! Tiny models that stand for all of them where a run proves little more with each: on the tiers of the CPU
//! between plain Rust and the best one, and on lavapipe's other vector widths.
//!
//! Which operations and formats of weights a model has is read from its settings; a test holds the sets against
//! those of all models.

/// What the tiers of the CPU are compared on in the default arithmetic: a model for each form of weights that
/// kernels have.
pub(super) const TIERS: [&str; 8] = [
    "gemma3n_text",
    "gpt_oss_mxfp4",
    "llama_awq",
    "phi3_gptq",
    "qwen2_gptq",
    "qwen3_e5m2",
    "qwen3_moe_fp4_ct",
    "qwen3_next",
];

/// What lavapipe's other vector widths are compared on: a model for each operation.
pub(super) const WIDTHS: [&str; 8] = [
    "cohere2",
    "deepseek_v3",
    "gemma3n_text",
    "gpt_oss_mxfp4",
    "lfm2",
    "llama4",
    "olmo_gptq",
    "qwen3_next",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell;
    use serde_json::Value;
    use std::collections::BTreeSet;
    use std::fs;

    /// A name, and whether a model's settings have it.
    type Trait = (&'static str, fn(&Value) -> bool);

    /// Operations, by the settings that ask for them.
    const OPERATIONS: &[Trait] = &[
        ("experts", |s| {
            any(s, &["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"])
        }),
        ("shared experts", |s| {
            any(
                s,
                &["n_shared_experts", "shared_expert_intermediate_size", "intermediate_size_mlp"],
            )
        }),
        ("sliding windows", |s| any(s, &["sliding_window"])),
        ("chunked attention", |s| has_layer(s, "chunked_attention")),
        ("linear attention", |s| has_layer(s, "linear_attention")),
        ("short convolutions", |s| has_layer(s, "conv")),
        ("latent keys and values", |s| any(s, &["kv_lora_rank"])),
        ("keys and values of other layers", |s| any(s, &["num_kv_shared_layers"])),
        ("attention sinks", |s| s["model_type"] == "gpt_oss"),
        ("growing queries", |s| any(s, &["attn_temperature_tuning"])),
        ("clamped projections", |s| any(s, &["clip_qkv"])),
        ("capped logits", |s| any(s, &["final_logit_softcapping"])),
        ("scaled logits", |s| any(s, &["logit_scale", "logits_scaling"])),
        ("streams of hidden states", |s| any(s, &["altup_num_inputs"])),
        ("embeddings of layers", |s| any(s, &["hidden_size_per_layer_input"])),
        ("LayerNorm", |s| any(s, &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"])),
    ];

    /// Forms in which kernels read weights, by the settings of what is stored so. What other settings give is
    /// one of these as well.
    const FORMS: &[Trait] = &[
        ("BF16", |s| s.get("quantization_config").is_none()),
        ("Q4_0", |s| is_gptq(s, 4, true)),
        ("Q4_Z", |s| is_gptq(s, 4, false) || method(s) == "awq"),
        ("Q8_0", |s| is_gptq(s, 8, true) || names(s, "\"int-quantized\"")),
        ("MXFP4", |s| method(s) == "mxfp4" || names(s, "mxfp4-pack-quantized")),
        ("NVFP4", |s| method(s) == "modelopt" || names(s, "nvfp4-pack-quantized")),
        ("F8_0", |s| method(s) == "fp8" || names(s, "\"float-quantized\"")),
    ];

    fn any(settings: &Value, names: &[&str]) -> bool {
        names.iter().any(|name| !matches!(settings[*name], Value::Null | Value::Bool(false)))
    }

    fn has_layer(settings: &Value, ty: &str) -> bool {
        settings["layer_types"].as_array().into_iter().flatten().any(|layer| layer == ty)
    }

    fn method(settings: &Value) -> &str {
        settings["quantization_config"]["quant_method"].as_str().unwrap_or_default()
    }

    fn is_gptq(settings: &Value, bits: u64, is_symmetric: bool) -> bool {
        let config = &settings["quantization_config"];
        method(settings) == "gptq" && config["bits"] == bits && config["sym"] == is_symmetric
    }

    fn names(settings: &Value, format: &str) -> bool {
        settings["quantization_config"].to_string().contains(format)
    }

    /// The traits of models, each of which must be there.
    fn traits<'a>(
        of: &[Trait],
        models: impl IntoIterator<Item = &'a str>,
    ) -> BTreeSet<&'static str> {
        let settings = models.into_iter().map(|model| -> Value {
            let path = shell::root().join("fixtures/archs").join(model).join("config.json");
            serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
        });
        let own = |s: Value| of.iter().filter(move |(_, has)| has(&s)).map(|(name, _)| *name);
        settings.flat_map(own).collect()
    }

    #[test]
    fn sets_cover_what_all_models_have() {
        let entries = fs::read_dir(shell::root().join("fixtures/archs")).unwrap();
        let entries = entries.map(|entry| entry.unwrap());
        let folders = entries.filter(|entry| entry.path().join("config.json").is_file());
        let all: Vec<String> =
            folders.map(|folder| folder.file_name().into_string().unwrap()).collect();
        for (of, set) in [(OPERATIONS, &WIDTHS), (FORMS, &TIERS)] {
            let all = traits(of, all.iter().map(String::as_str));
            assert_eq!(all.len(), of.len(), "some model has each: {all:?}");
            assert_eq!(traits(of, set.iter().copied()), all);
        }
        // None of the models for the widths is there in vain.
        let all = traits(OPERATIONS, WIDTHS);
        for left_out in WIDTHS {
            let others = WIDTHS.into_iter().filter(|model| *model != left_out);
            assert_ne!(traits(OPERATIONS, others), all, "{left_out} adds nothing");
        }
    }
}
