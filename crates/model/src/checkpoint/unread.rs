//! Settings that no code requested.
//!
//! A file may say more than its architecture reads. What would change the result where it is read
//! has a value that changes nothing; any other is an error, as the model would compute something else
//! than its file says. Of the rest, settings that are not known to be without effect are logged.

use super::{GgufSettings, HfSettings};
use crate::Error;
use realizar_formats::Value as GgufValue;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The settings of a file that were requested, by their whole names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked(Arc<Mutex<BTreeSet<String>>>);

impl Asked {
    pub(super) fn add(&self, key: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }

    fn has(&self, key: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    fn has_inside(&self, object: &str) -> bool {
        let start = format!("{object}.");
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.range(start.clone()..).next().is_some_and(|key| key.starts_with(&start))
    }
}

/// The value with which a setting changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neutral {
    /// The number 1, or a list of it.
    One,
    /// Null, false, zero or an empty list.
    Off,
    /// None: the setting says how, not whether.
    Never,
}

impl Neutral {
    fn name(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Off => "null, false or 0",
            Self::Never => "nothing",
        }
    }

    fn is(self, value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(values) if values.is_empty() => true,
            Value::Array(values) => values.iter().all(|value| self.is(value)),
            Value::Bool(value) => self == Self::Off && !value,
            Value::Number(value) => {
                let value = value.as_f64();
                (self == Self::One && value == Some(1.0))
                    || (self == Self::Off && value == Some(0.0))
            }
            Value::String(_) | Value::Object(_) => false,
        }
    }
}

/// Keys of config.json that change the result where a family reads them.
const HF: &[(Neutral, &[&str])] = &[
    (
        Neutral::One,
        &[
            "attention_in_multiplier",
            "attention_out_multiplier",
            "embedding_multiplier",
            "key_multiplier",
            "lm_head_multiplier",
            "logit_scale",
            "logits_scaling",
            "mlp_multipliers",
            "n_group",
            "no_rope_layers",
            "residual_multiplier",
            "rotary_pct",
            "routed_scaling_factor",
            "scale_emb",
            "topk_group",
        ],
    ),
    (
        Neutral::Off,
        &[
            "add_cross_attention",
            "alibi",
            "attention_chunk_size",
            "enable_moe_block",
            "attn_logit_softcapping",
            "attn_temperature_tuning",
            "clip_qkv",
            "final_logit_softcapping",
            "first_k_dense_replace",
            "is_encoder_decoder",
            "kv_lora_rank",
            "moe_num_experts",
            "n_routed_experts",
            "n_shared_experts",
            "new_decoder_architecture",
            "no_rope_layer_interval",
            "num_experts",
            "num_kv_shared_layers",
            "num_local_experts",
            "parallel_attn",
            "qk_layernorm",
            "qk_norm",
            "rope_interleaved",
            "rope_scaling",
            "shared_expert_intermediate_size",
            "use_double_wide_mlp",
            "use_parallel_residual",
            "use_qk_norm",
        ],
    ),
    (
        Neutral::Never,
        &[
            "attention_multiplier",
            "dim_model_base",
            "query_pre_attn_scalar",
            "scale_depth",
            "swiglu_alpha",
            "swiglu_limit",
        ],
    ),
];

/// Keys of GGUF files that change the result where an architecture reads them.
const GGUF: &[(Neutral, &[&str])] = &[
    (
        Neutral::One,
        &[
            "embedding_scale",
            "expert_gating_func",
            "expert_group_count",
            "expert_group_used_count",
            "expert_weights_scale",
            "logit_scale",
            "residual_scale",
        ],
    ),
    (
        Neutral::Off,
        &[
            "attention.clamp_kqv",
            "attention.kv_lora_rank",
            "attention.max_alibi_bias",
            "attention.scale",
            "attention.shared_kv_layers",
            "attention.sliding_window",
            "attention.temperature_scale",
            "attn_logit_softcapping",
            "expert_count",
            "expert_shared_count",
            "final_logit_softcapping",
            "leading_dense_block_count",
            "rope.scaling.yarn_log_multiplier",
            "ssm.conv_kernel",
            "use_parallel_residual",
        ],
    ),
];

/// Keys of config.json that say nothing of the forward pass, or nothing that tensors do not say.
const HF_INERT: &[&str] = &[
    "_name_or_path",
    "_sliding_window_pattern",
    "architectures",
    "attention_bias",
    "attention_dropout",
    "attn_pdrop",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "max_window_layers",
    "mlp_bias",
    "model_type",
    "moe_intermediate_size",
    "n_ctx",
    "num_experts_per_tok",
    "original_max_position_embeddings",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_sliding_window",
];

/// As [`HF_INERT`], of GGUF files.
const GGUF_INERT: &[&str] = &[
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window_pattern",
    "expert_used_count",
    "pooling_type",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "vocab_size",
];

/// What is expected of a setting, if its value changes the result.
fn refused(table: &[(Neutral, &[&str])], key: &str, value: &Value) -> Option<&'static str> {
    let (neutral, _) = table.iter().find(|(_, keys)| keys.contains(&key))?;
    (!neutral.is(value)).then(|| neutral.name())
}

/// Logs the names of unknown settings.
fn log(path: &std::path::Path, unknown: &[String]) {
    if !unknown.is_empty() {
        let (path, names) = (path.display(), unknown.join(", "));
        tracing::info!("{path}: unused settings: {names}");
    }
}

impl HfSettings {
    /// Checks what was not requested, once everything was that `architecture` reads.
    ///
    /// # Errors
    /// If a setting would change the result.
    pub(crate) fn check_unread(&self, architecture: &str) -> Result<(), Error> {
        let mut unknown = Vec::new();
        for (key, value) in self.unread() {
            if let Some(expected) = refused(HF, &key, value) {
                return Err(self.wrong(&key, not_applied(expected, architecture)));
            }
            let is_known = HF.iter().any(|(_, keys)| keys.contains(&key.as_str()));
            if !is_known && !HF_INERT.contains(&key.as_str()) {
                unknown.push(key);
            }
        }
        log(self.path(), &unknown);
        Ok(())
    }

    /// The settings that were not requested, those of objects that were read included.
    fn unread(&self) -> Vec<(String, &Value)> {
        fn walk<'a>(
            asked: &Asked,
            prefix: &str,
            map: &'a Map<String, Value>,
            found: &mut Vec<(String, &'a Value)>,
        ) {
            for (key, value) in map {
                let key = format!("{prefix}{key}");
                match value {
                    _ if !asked.has(&key) => found.push((key, value)),
                    Value::Object(inside) if asked.has_inside(&key) => {
                        walk(asked, &format!("{key}."), inside, found);
                    }
                    _ => {}
                }
            }
        }
        let mut found = Vec::new();
        walk(self.asked(), self.prefix(), self.map(), &mut found);
        let prefix = self.prefix().len();
        found.iter_mut().for_each(|(key, _)| *key = key.split_off(prefix));
        found
    }
}

fn not_applied(expected: &str, architecture: &str) -> String {
    format!("{expected}, as architecture {architecture} does not apply it")
}

/// A value as JSON has it, texts and arrays by the name of their type.
fn as_json(value: &GgufValue) -> Value {
    if let Some(value) = value.as_bool() {
        return Value::from(value);
    }
    match (value.as_int(), value.as_f32()) {
        (Some(value), _) => Value::from(value as i64),
        (None, Some(value)) => Value::from(value),
        (None, None) => Value::from(value.ty().name()),
    }
}

impl GgufSettings<'_> {
    /// As [`HfSettings::check_unread`].
    ///
    /// # Errors
    /// If a setting would change the result.
    pub(crate) fn check_unread(&self, asked: &Asked) -> Result<(), Error> {
        let architecture = self.architecture()?;
        let start = format!("{architecture}.");
        let mut unknown = Vec::new();
        for (whole, value) in self.gguf().metadata().iter() {
            let Some(key) = whole.strip_prefix(&start).filter(|_| !asked.has(whole)) else {
                continue;
            };
            if let Some(expected) = refused(GGUF, key, &as_json(value)) {
                // A float as it was written, not as a wider one has it.
                let float = value.as_f32().map(|value| value.to_string());
                let found = float.unwrap_or_else(|| as_json(value).to_string());
                return Err(self.wrong(key, not_applied(expected, architecture), found));
            }
            let is_known = GGUF.iter().any(|(_, keys)| keys.contains(&key));
            if !is_known && !GGUF_INERT.contains(&key) {
                unknown.push(whole.to_owned());
            }
        }
        log(self.gguf().path(), &unknown);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_neutral_value_changes_nothing() {
        let cases = [
            (Neutral::One, json!(1), true),
            (Neutral::One, json!(1.0), true),
            (Neutral::One, json!([1, 1.0]), true),
            (Neutral::One, json!(0.22), false),
            (Neutral::One, json!(0), false),
            (Neutral::One, json!([1, 0]), false),
            (Neutral::One, json!(true), false),
            (Neutral::Off, json!(0), true),
            (Neutral::Off, json!(false), true),
            (Neutral::Off, json!([]), true),
            (Neutral::Off, json!(true), false),
            (Neutral::Off, json!(8), false),
            (Neutral::Off, json!("gelu"), false),
            (Neutral::Never, json!(null), true),
            (Neutral::Never, json!(1), false),
            (Neutral::Never, json!({}), false),
        ];
        for (neutral, value, expected) in cases {
            assert_eq!(neutral.is(&value), expected, "{neutral:?} {value}");
        }
    }

    #[test]
    fn what_was_not_asked_for_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let text = r#"{"a": 1, "b": 2, "c": {"d": 3, "e": 4}, "f": {"g": 5}, "h": {"i": 6}}"#;
        std::fs::write(&path, text).unwrap();
        let settings = HfSettings::open(&path).unwrap();
        let with_defaults = settings.with_defaults([("z", json!(1))]);
        assert_eq!(with_defaults.usize("a").unwrap(), 1);
        let inside = with_defaults.opt_object("c").unwrap().unwrap();
        assert_eq!(inside.usize("d").unwrap(), 3);
        assert!(settings.has("f"));
        let unread: Vec<String> = settings.unread().into_iter().map(|(key, _)| key).collect();
        assert_eq!(unread, ["b", "c.e", "h"]);
    }
}
