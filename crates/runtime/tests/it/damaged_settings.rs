//! GGUF files of every architecture with one of their settings left out, of another type, zero or
//! huge: an error that names the setting or the tensor that does not fit it, and never a panic or an
//! allocation of what the setting says.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::tiny_models::tiny_models;
use realizar_formats::{Array, Gguf, GgufWriter, Tensor, Value};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::{DeviceLayers, LoadOptions, Model};

/// Settings that some architecture does not read, although files of it have them.
const UNREAD: &[&str] = &["attention.layer_norm_rms_epsilon", "tensor_data_layout", "vocab_size"];

/// Settings whose error names the one that takes its place or that is made of it.
const RELATED: &[(&str, &str)] = &[
    ("expert_count", "expert_group_count"),
    ("expert_count", "leading_dense_block_count"),
    ("expert_feed_forward_length", "feed_forward_length"),
    ("expert_group_count", "expert_group_used_count"),
    ("expert_shared_count", "expert_shared_feed_forward_length"),
    ("rope.", "rope: "),
];

/// Ways to damage a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Missing,
    OtherType,
    Zero,
    Huge,
    Negative,
    Short,
}

impl Damage {
    const ALL: [Self; 6] =
        [Self::Missing, Self::OtherType, Self::Zero, Self::Huge, Self::Negative, Self::Short];

    /// The value with which a setting is damaged; `None` if it is left out, or if the damage is
    /// not for such a value.
    fn apply(self, value: &Value) -> Option<Value> {
        let is_float = matches!(value, Value::F32(_) | Value::F64(_));
        let list = value.as_array().map(Array::len);
        Some(match (self, value) {
            (Self::Missing, _) => return None,
            (Self::OtherType, Value::Str(_)) => Value::U32(7),
            (Self::OtherType, _) => Value::from("seven"),
            (_, Value::Str(_) | Value::Bool(_)) => return None,
            (Self::Zero, _) if list.is_some() => Value::from(Array::from([0_u32; 4].as_slice())),
            (Self::Huge, _) if list.is_some() => {
                Value::from(Array::from(vec![u32::MAX; list.unwrap_or(0)].as_slice()))
            }
            (Self::Short, _) if list.is_some() => Value::from(Array::from([1_u32].as_slice())),
            (Self::Negative, _) if list.is_some() => {
                Value::from(Array::from(vec![-1_i32; list.unwrap_or(0)].as_slice()))
            }
            (Self::Short, _) => return None,
            (Self::Zero, _) if is_float => Value::F32(0.0),
            (Self::Huge, _) if is_float => Value::F32(f32::INFINITY),
            (Self::Negative, _) if is_float => Value::F32(-1.0),
            (Self::Zero, _) => Value::U32(0),
            (Self::Huge, _) => Value::U32(u32::MAX),
            (Self::Negative, _) => Value::I32(-1),
        })
    }
}

/// The file with one setting damaged.
fn write(gguf: &Gguf, tensors: &[Tensor], key: &str, value: Option<&Value>, path: &Path) {
    let mut writer = GgufWriter::new();
    for (name, original) in gguf.metadata().iter() {
        let changed = if name == key { value } else { Some(original) };
        if let Some(value) = changed {
            writer.set(name, value.clone()).unwrap();
        }
    }
    for tensor in tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
    }
    writer.write_file(path).unwrap();
}

#[test]
fn damaged_settings_are_errors_that_name_them() {
    let backend = CpuBackend::new(Some(1), None).expect("one thread");
    let devices = [DeviceLayers::rest(&backend)];
    let options = LoadOptions { chunk: Some(8), max_seq_len: Some(64), ..LoadOptions::default() };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.gguf");
    let (mut wrong, mut unread, mut n_files) = (Vec::new(), BTreeMap::new(), 0);
    let mut n_settings = 0;
    for model in tiny_models().iter().filter(|path| path.extension().is_some()) {
        let gguf = Gguf::open(model).unwrap();
        let tensors: Vec<Tensor> =
            gguf.tensors().iter().map(|info| gguf.tensor(&info.name).unwrap()).collect();
        let architecture = gguf.metadata().str("general.architecture").unwrap().unwrap().to_owned();
        let prefix = format!("{architecture}.");
        let name = model.parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
        let own = |key: &str| key.starts_with(&prefix) || key == "general.architecture";
        let settings = gguf.metadata().iter().filter(|(key, _)| own(key));
        for (key, value) in settings {
            let short = key.strip_prefix(&prefix).unwrap_or(key);
            n_settings += 1;
            for damage in Damage::ALL {
                let changed = damage.apply(value);
                if changed.is_none() && damage != Damage::Missing {
                    continue;
                }
                write(&gguf, &tensors, key, changed.as_ref(), &path);
                n_files += 1;
                let load = || Model::memory_needed(&path, &devices, &options).map(drop);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(load));
                let case = format!("{name}: {short} {damage:?}");
                match result {
                    Err(_) => wrong.push(format!("{case}: panicked")),
                    Ok(Ok(())) if damage == Damage::OtherType => {
                        unread.entry(short.to_owned()).or_insert_with(|| name.clone());
                    }
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        let text = error.to_string();
                        let names = [short, ".weight", ".bias", "general.architecture"];
                        // An unknown architecture is known by its name alone.
                        let mut related = RELATED.iter().filter(|(key, _)| short.starts_with(key));
                        let is_related = related.any(|(_, named)| text.contains(named));
                        if !is_related && !names.iter().any(|name| text.contains(name)) {
                            wrong.push(format!("{case}: {text}"));
                        }
                    }
                }
            }
        }
    }
    println!("{n_settings} settings, {n_files} files");
    assert!(n_files > 3000);
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    let unread: Vec<&str> = unread.keys().map(String::as_str).collect();
    assert_eq!(unread, UNREAD);
}
