//! How a checkpoint says that its tokens are to be chosen: keys of the metadata in a GGUF file,
//! `generation_config.json` of a Hugging Face directory.

use crate::Error;
use realizar_formats::Gguf;
use realizar_model::Error as LoadError;
use realizar_model::checkpoint::{Checkpoint, HfSettings};
use realizar_text::sampling::{Error as Refused, SamplingParams};
use std::path::Path;

/// What the keys of a GGUF file begin with.
const GGUF_PREFIX: &str = "general.sampling.";

/// The file of a Hugging Face directory.
const HF_FILE: &str = "generation_config.json";

/// The sampling parameters that the model's files state, over [`SamplingParams::default`].
///
/// # Errors
/// If a value has the wrong type or is out of range.
pub(super) fn model_sampling(checkpoint: &Checkpoint) -> Result<SamplingParams, Error> {
    match checkpoint {
        Checkpoint::Gguf(gguf) => of_gguf(gguf),
        Checkpoint::Hf { settings, .. } => {
            of_dir(settings.path().parent().unwrap_or(Path::new("")))
        }
    }
}

/// The keys that llama.cpp reads, but for `sequence`: the order of the steps is fixed.
fn of_gguf(gguf: &Gguf) -> Result<SamplingParams, Error> {
    let metadata = gguf.metadata();
    let key = |name: &str| format!("{GGUF_PREFIX}{name}");
    let mut params = SamplingParams::default();
    for (name, param) in [
        ("temp", &mut params.temperature),
        ("top_p", &mut params.top_p),
        ("min_p", &mut params.min_p),
        ("xtc_probability", &mut params.xtc_probability),
        ("xtc_threshold", &mut params.xtc_threshold),
        ("penalty_repeat", &mut params.repetition_penalty),
        ("mirostat_tau", &mut params.mirostat_tau),
        ("mirostat_eta", &mut params.mirostat_eta),
    ] {
        if let Some(value) = metadata.f32(&key(name))? {
            *param = value;
        }
    }
    let wrong = |name: &str, expected: &str, found: String| LoadError::Setting {
        path: gguf.path().to_owned(),
        key: key(name),
        expected: expected.to_owned(),
        found,
    };
    for (name, param, all) in
        [("top_k", &mut params.top_k, 0), ("penalty_last_n", &mut params.repeat_last_n, usize::MAX)]
    {
        if let Some(value) = metadata.i32(&key(name))? {
            *param = count(value.into(), all)
                .ok_or_else(|| wrong(name, AT_LEAST_ALL, value.to_string()))?;
        }
    }
    if let Some(value) = metadata.i32(&key("mirostat"))? {
        params.mirostat = match value {
            0 => 0,
            2 => 2,
            _ => return Err(wrong("mirostat", "0 (off) or 2", value.to_string()).into()),
        };
    }
    if metadata.get(&key("sequence")).is_some() {
        let path = gguf.path().display();
        tracing::info!("{path}: {GGUF_PREFIX}sequence: the order of the steps is fixed");
    }
    check(params, gguf.path(), |name| {
        key(match name {
            "temperature" => "temp",
            "repetition_penalty" => "penalty_repeat",
            name => name,
        })
    })
}

/// The fields of transformers' `GenerationConfig` that the sampler has.
fn of_dir(dir: &Path) -> Result<SamplingParams, Error> {
    let path = dir.join(HF_FILE);
    let mut params = SamplingParams::default();
    if !path.is_file() {
        return Ok(params);
    }
    let s = HfSettings::open(&path)?;
    for (key, param) in [
        ("temperature", &mut params.temperature),
        ("top_p", &mut params.top_p),
        ("min_p", &mut params.min_p),
        ("typical_p", &mut params.typical_p),
        ("repetition_penalty", &mut params.repetition_penalty),
    ] {
        if let Some(value) = s.opt_f32(key)? {
            *param = value;
        }
    }
    if let Some(value) = s.raw("top_k") {
        let k = value.as_i64().and_then(|k| count(k, 0));
        params.top_k = k.ok_or_else(|| s.wrong("top_k", AT_LEAST_ALL))?;
    }
    let params = check(params, &path, str::to_owned)?;
    // Without sampling, transformers takes the most likely token, whatever else the file says.
    // Null is what a file has for a value that it does not set.
    let draws = !s.has("do_sample") || s.bool("do_sample")?;
    Ok(if draws { params } else { SamplingParams { temperature: 0.0, ..params } })
}

/// What [`count`] takes.
const AT_LEAST_ALL: &str = "a whole number of at least -1";

/// A number of tokens, of which -1 stands for `all`.
fn count(value: i64, all: usize) -> Option<usize> {
    if value == -1 { Some(all) } else { usize::try_from(value).ok() }
}

/// The parameters, if all are in range; the error has the key that `key` makes of a parameter.
fn check(
    params: SamplingParams,
    path: &Path,
    key: impl Fn(&str) -> String,
) -> Result<SamplingParams, Error> {
    match params.validate() {
        Ok(()) => Ok(params),
        Err(Refused::Parameter { name, range, value }) => Err(LoadError::Setting {
            path: path.to_owned(),
            key: key(name),
            expected: range.to_owned(),
            found: value,
        }
        .into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_formats::{GgufWriter, Value};
    use std::fs;

    fn gguf_with(set: impl FnOnce(&mut GgufWriter<'_>)) -> Result<SamplingParams, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", "qwen3").unwrap();
        set(&mut writer);
        writer.write_file(&path).unwrap();
        let checkpoint = Checkpoint::Gguf(Gguf::open(&path).unwrap());
        let place = path.display().to_string();
        model_sampling(&checkpoint).map_err(|error| error.to_string().replace(&place, "FILE"))
    }

    #[test]
    fn a_gguf_file_has_keys_of_sampling() {
        assert_eq!(gguf_with(|_| ()), Ok(SamplingParams::default()));
        let some = gguf_with(|writer| {
            writer.set("general.sampling.temp", 0.6_f32).unwrap();
            writer.set("general.sampling.top_k", 20_i32).unwrap();
        });
        let want = SamplingParams { temperature: 0.6, top_k: 20, ..SamplingParams::default() };
        assert_eq!(some, Ok(want));
        let all = gguf_with(|writer| {
            for (key, value) in [
                ("temp", 0.7_f32),
                ("top_p", 0.9),
                ("min_p", 0.01),
                ("xtc_probability", 0.5),
                ("xtc_threshold", 0.2),
                ("penalty_repeat", 1.1),
                ("mirostat_tau", 4.0),
                ("mirostat_eta", 0.2),
            ] {
                writer.set(&format!("general.sampling.{key}"), value).unwrap();
            }
            for (key, value) in [("top_k", -1), ("penalty_last_n", -1), ("mirostat", 2_i32)] {
                writer.set(&format!("general.sampling.{key}"), value).unwrap();
            }
            writer.set("general.sampling.sequence", "top_k;temperature").unwrap();
        });
        let want = SamplingParams {
            temperature: 0.7,
            top_k: 0,
            top_p: 0.9,
            min_p: 0.01,
            xtc_probability: 0.5,
            xtc_threshold: 0.2,
            repetition_penalty: 1.1,
            repeat_last_n: usize::MAX,
            mirostat: 2,
            mirostat_tau: 4.0,
            mirostat_eta: 0.2,
            ..SamplingParams::default()
        };
        assert_eq!(all, Ok(want));
    }

    fn refused(key: &str, value: impl Into<Value>, want: &str) {
        let key = format!("general.sampling.{key}");
        let read = gguf_with(|writer| writer.set(&key, value).unwrap());
        assert_eq!(read, Err(format!("FILE: {key}: expected {want}")));
    }

    #[test]
    fn values_that_a_gguf_file_cannot_have_are_refused_by_their_key() {
        refused("temp", -1.0_f32, "from 0 to 100, found -1");
        refused("temp", f32::NAN, "from 0 to 100, found NaN");
        refused("top_p", 0.0_f32, "above 0 and at most 1, found 0");
        refused(
            "penalty_repeat",
            1e30_f32,
            "above 0 and at most 100, found 1000000000000000000000000000000",
        );
        refused("xtc_threshold", f32::INFINITY, "from 0 to 1, found inf");
        refused("top_k", -2_i32, "a whole number of at least -1, found -2");
        refused("penalty_last_n", i32::MIN, "a whole number of at least -1, found -2147483648");
        refused("mirostat", 1_i32, "0 (off) or 2, found 1");
        refused("mirostat", 258_i32, "0 (off) or 2, found 258");
        for key in ["temp", "top_k", "mirostat"] {
            let key = format!("general.sampling.{key}");
            let error = gguf_with(|writer| writer.set(key.as_str(), "0.5").unwrap()).unwrap_err();
            assert!(error.starts_with("FILE: ") && error.contains(&key), "{error}");
        }
    }

    #[test]
    fn a_directory_has_a_generation_config() {
        let read = |text: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            if let Some(text) = text {
                fs::write(dir.path().join(HF_FILE), text).unwrap();
            }
            let place = dir.path().display().to_string();
            of_dir(dir.path()).map_err(|error| error.to_string().replace(&place, "DIR"))
        };
        let check = |text: &str, want: SamplingParams| {
            assert_eq!(read(Some(text)), Ok(want), "{text}");
        };
        let default = SamplingParams::default();
        assert_eq!(read(None), Ok(default.clone()));
        check(r#"{"eos_token_id": 2, "top_k": null}"#, default.clone());
        check(
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0,
                "typical_p": 0.9, "repetition_penalty": 1.05}"#,
            SamplingParams {
                temperature: 0.6,
                top_k: 20,
                top_p: 0.95,
                min_p: 0.0,
                typical_p: 0.9,
                repetition_penalty: 1.05,
                ..default.clone()
            },
        );
        check(r#"{"top_k": -1}"#, SamplingParams { top_k: 0, ..default.clone() });
        check(
            r#"{"do_sample": false, "temperature": 0.6, "top_p": 0.9}"#,
            SamplingParams { temperature: 0.0, top_p: 0.9, ..default },
        );
        for (text, want) in [
            (r#"{"temperature": -0.5}"#, "temperature: expected from 0 to 100, found -0.5"),
            (r#"{"temperature": 1e300}"#, "temperature: expected from 0 to 100, found inf"),
            (r#"{"temperature": "hot"}"#, "temperature: expected a number, found \"hot\""),
            (r#"{"top_p": 1.5}"#, "top_p: expected above 0 and at most 1, found 1.5"),
            (r#"{"top_k": 2.5}"#, "top_k: expected a whole number of at least -1, found 2.5"),
            (r#"{"top_k": -7}"#, "top_k: expected a whole number of at least -1, found -7"),
            (
                r#"{"repetition_penalty": 0}"#,
                "repetition_penalty: expected above 0 and at most 100, found 0",
            ),
            (r#"{"do_sample": 1}"#, "do_sample: expected true or false, found 1"),
        ] {
            let want = format!("DIR/generation_config.json: {want}");
            assert_eq!(read(Some(text)), Err(want), "{text}");
        }
        for text in ["[]", "null", "{", ""] {
            let error = read(Some(text)).unwrap_err();
            assert!(error.starts_with("DIR/generation_config.json: "), "{text}: {error}");
        }
    }
}
