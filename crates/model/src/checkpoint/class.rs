//! The meaning of a key of config.json that is absent, null or present: that of the class of the model's type in
//! transformers.
//!
//! A key that is absent has the class's default. Null is a value like any other: the class takes it or not, and what
//! it makes of it is the architecture's to read. A value of another type than the class takes is an error, for keys
//! without effect too. Types that transformers has no class for keep their settings as they are.
//!
//! `classes.json` is made of the classes by `fixtures/settings/make_classes.py`.

use super::HfSettings;
use crate::Error;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The settings of a class.
#[derive(Debug, Deserialize)]
struct Class {
    /// By key: the types that it takes, with bars between them, and the default, if there is one.
    fields: BTreeMap<String, Vec<Value>>,
    /// Other names of keys.
    #[serde(default)]
    aliases: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Classes {
    classes: BTreeMap<String, Class>,
}

static CLASSES: LazyLock<Classes> = LazyLock::new(|| {
    serde_json::from_str(include_str!("classes.json")).expect("the table is committed")
});

/// Types of models that another type's class is for.
const SAME: &[(&str, &str)] =
    &[("kimi_k2", "deepseek_v3"), ("qwen2_5_vl", "qwen2_5_vl_text"), ("qwen2_vl", "qwen2_vl_text")];

impl HfSettings {
    /// The settings as the class of the model's type has them: with its defaults, and keys by its own names.
    ///
    /// # Errors
    /// If a value is of a type that the class does not take, or two names of a key have different values.
    pub(crate) fn as_class(&self) -> Result<Self, Error> {
        let ty = self.opt_str("model_type")?.unwrap_or_default();
        let ty = SAME.iter().find(|(name, _)| *name == ty).map_or(ty, |(_, class)| class);
        let Some(class) = CLASSES.classes.get(ty) else { return Ok(self.clone()) };
        let mut settings = self.clone();
        for (alias, key) in &class.aliases {
            settings.take_alias(alias, key)?;
        }
        for (key, field) in &class.fields {
            let types = field.first().and_then(Value::as_str).unwrap_or_default();
            let value = settings.map().get(key);
            // Inside other settings, a file may say that its head is the embedding by having none.
            let is_open = self.is_of_text && key == "tie_word_embeddings";
            let default = field.get(1).filter(|value| !(is_open && **value == false));
            let Some(used) = value.or(default) else { continue };
            if !types.split('|').any(|ty| is_of(used, ty)) {
                return Err(settings.wrong(key, expected(types)));
            }
            if value.is_none() {
                settings = settings.with_value(key, used.clone());
            }
        }
        Ok(settings)
    }
}

/// Whether a value is of a type. A whole number is a number with a fraction too, though not in transformers.
fn is_of(value: &Value, ty: &str) -> bool {
    if let Some(inner) = ty.strip_prefix("list") {
        let inner = inner.trim_matches(['[', ']']);
        let is_item = |item| inner.is_empty() || inner.split(',').any(|ty| is_of(item, ty));
        return value.as_array().is_some_and(|items| items.iter().all(is_item));
    }
    match ty {
        "null" => value.is_null(),
        "bool" => value.is_boolean(),
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_number(),
        "str" => value.is_string(),
        "dict" => value.is_object(),
        _ => true,
    }
}

/// The types in words.
fn expected(types: &str) -> String {
    let word = |ty: &str| match ty {
        "bool" => "true or false".to_owned(),
        "int" => "a whole number".to_owned(),
        "float" => "a number".to_owned(),
        "str" => "a string".to_owned(),
        "dict" => "an object".to_owned(),
        ty if ty.starts_with("list") => {
            match ty.trim_start_matches("list").trim_matches(['[', ']']) {
                "int" => "a list of whole numbers".to_owned(),
                "float" => "a list of numbers".to_owned(),
                "str" => "a list of strings".to_owned(),
                _ => "a list".to_owned(),
            }
        }
        ty => ty.to_owned(),
    };
    let words: Vec<String> = types.split('|').map(word).collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn open(text: &str) -> HfSettings {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, text).unwrap();
        HfSettings::open(&path).unwrap()
    }

    #[test]
    fn absent_null_and_present_differ() {
        let of = |text: &str| open(text).as_class().unwrap();
        let absent = of(r#"{"model_type": "deepseek_v3"}"#);
        assert_eq!(absent.map()["norm_topk_prob"], json!(true));
        assert_eq!(absent.map()["q_lora_rank"], json!(1536));
        let null =
            of(r#"{"model_type": "deepseek_v3", "norm_topk_prob": null, "q_lora_rank": null}"#);
        assert_eq!(null.map()["norm_topk_prob"], json!(null));
        assert_eq!(null.opt_usize("q_lora_rank").unwrap(), None);
        let unknown = of(r#"{"model_type": "baichuan"}"#);
        assert_eq!(unknown.map().len(), 1);
    }

    #[test]
    fn types_are_those_of_the_class() {
        let check = |key: &str, value: &str, expected: Option<&str>| {
            let text = format!(r#"{{"model_type": "llama", "{key}": {value}}}"#);
            let found = open(&text).as_class().map(drop).map_err(|error| error.to_string());
            match expected {
                None => assert_eq!(found, Ok(()), "{key} {value}"),
                Some(expected) => {
                    let text = format!("config.json: {key}: expected {expected}, found {value}");
                    assert!(found.clone().unwrap_err().ends_with(&text), "{found:?}");
                }
            }
        };
        check("hidden_size", "null", Some("a whole number"));
        check("hidden_size", "true", Some("a whole number"));
        check("hidden_size", "64.5", Some("a whole number"));
        check("head_dim", "null", None);
        check("head_dim", "\"x\"", Some("a whole number or null"));
        check("rms_norm_eps", "1", None);
        check("rms_norm_eps", "null", Some("a number"));
        check("use_cache", "1", Some("true or false"));
        check("eos_token_id", "[1, 2]", None);
        check("eos_token_id", "[1,null]", Some("a whole number, a list of whole numbers or null"));
        check("rope_parameters", "[]", Some("an object or null"));
        check("made_up", "null", None);
    }

    #[test]
    fn a_key_has_several_names() {
        let text = |rest: &str| format!(r#"{{"model_type": "gpt_oss", {rest}}}"#);
        let settings = open(&text(r#""num_experts": 4"#)).as_class().unwrap();
        assert_eq!(settings.usize("num_local_experts").unwrap(), 4);
        let error = settings.wrong("num_local_experts", "5").to_string();
        assert!(error.ends_with("config.json: num_experts: expected 5, found 4"), "{error}");
        assert!(open(&text(r#""num_experts": 4, "num_local_experts": 4"#)).as_class().is_ok());
        let both = open(&text(r#""num_experts": 4, "num_local_experts": 5"#)).as_class();
        let error = both.unwrap_err().to_string();
        let expected = "num_experts: expected 5, as `num_local_experts` says, found 4";
        assert!(error.ends_with(expected), "{error}");
    }
}
