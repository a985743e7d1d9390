//! config.json with one key mutated, for every family, as transformers judges it: the same logits, or an error where
//! it has one, where its numbers are not finite, and where a value is not supported. The snapshot lists the last.
//!
//! The files are those of `fixtures/settings/make_mutations.py`. A program of its own, as it takes both cores.

use realizar_formats::{SafeTensors, SafeTensorsWriter, TensorType};
use realizar_runtime::backend::Arithmetic;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::{LoadOptions, Model};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Largest difference of a logit, as a part of the largest one. Heads of up to 512 columns without a factor on their
/// scores, as some models have, make the most of rounding.
const TOLERANCE: f64 = 3e-4;

/// Keys and values that transformers fails at and that run here: it asks Mixtral's settings for the width of heads,
/// which its class leaves null.
const TAKEN: [(&str, &str, &str); 4] = [
    ("mixtral", "rope_parameters", "dynamic"),
    ("mixtral", "rope_parameters", "yarn"),
    ("mixtral", "rope_scaling", "dynamic"),
    ("mixtral", "rope_scaling", "yarn"),
];

/// The index of a name, and the shape of its tensor, if there is one.
type Change = (usize, Option<Vec<usize>>);

/// A family's file.
#[derive(Deserialize)]
struct Family {
    ids: Vec<u32>,
    positions: Vec<usize>,
    tokens: Vec<usize>,
    base: Vec<f64>,
    /// With `{}` for the layer, and the layers.
    names: Vec<(String, Vec<Option<usize>>)>,
    tensors: Vec<Vec<Change>>,
    keys: BTreeMap<String, Rows>,
}

/// The values of a key, by what comes of them in transformers.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Rows {
    same: Vec<Value>,
    logits: Vec<Row>,
    not_finite: Vec<Value>,
    empty: Vec<Value>,
    refused: Vec<Value>,
}

/// A value with logits of its own and, if it has others than the family, its tensors.
#[derive(Deserialize)]
#[serde(untagged)]
enum Row {
    Own(Value, Vec<f64>),
    WithTensors(Value, Vec<f64>, usize),
}

/// Names and shapes.
type Shapes = BTreeMap<String, Vec<usize>>;

/// The weights of a tensor, by the formula of the script.
fn weights(name: &str, shape: &[usize]) -> Vec<u8> {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    let columns = shape.last().copied().unwrap_or(1).max(1) as f64;
    let matrix = (-(columns.log2() / 2.0).round_ties_even()).exp2() as f32;
    let is_norm = name.contains("norm") || name.contains("ln_");
    let value = |i: u64| {
        let x = seed.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let u = (((x ^ (x >> 31)) >> 40) as i64 - (1 << 23)) as f32 / (1 << 23) as f32;
        match (shape.len() >= 2, is_norm) {
            (true, _) => u * matrix,
            (false, true) => 1.0 + u / 8.0,
            (false, false) => u / 2.0,
        }
    };
    (0..shape.iter().product::<usize>() as u64).flat_map(|i| value(i).to_le_bytes()).collect()
}

fn write(path: &Path, shapes: &Shapes) {
    let data: Vec<Vec<u8>> = shapes.iter().map(|(name, shape)| weights(name, shape)).collect();
    let mut writer = SafeTensorsWriter::new();
    for ((name, shape), data) in shapes.iter().zip(&data) {
        writer.tensor(name, TensorType::F32, shape, data).unwrap();
    }
    writer.write_file(path).unwrap();
}

/// The settings with another value for a dotted key.
fn mutated(config: &Map<String, Value>, key: &str, value: &Value) -> Map<String, Value> {
    let mut config = config.clone();
    let (path, last) = key.rsplit_once('.').map_or(("", key), |(path, last)| (path, last));
    let mut at = &mut config;
    for name in path.split('.').filter(|name| !name.is_empty()) {
        at = at[name].as_object_mut().unwrap();
    }
    match value == "<absent>" {
        true => drop(at.remove(last)),
        false => drop(at.insert(last.to_owned(), value.clone())),
    }
    config
}

/// The outcomes of a family's rows.
#[derive(Default)]
struct Found {
    equal: usize,
    refused_by_both: usize,
    taken: usize,
    /// Of each key and message, the values.
    unsupported: BTreeMap<(String, String, String), Vec<String>>,
    wrong: Vec<String>,
}

/// The text of an error, without the file and the value, which the row has.
fn reason(error: &str) -> String {
    let text = error.split_once("config.json: ").map_or(error, |(_, text)| text);
    let text = text.split_once("model.safetensors: ").map_or(text, |(_, text)| text);
    text.split(", found").next().unwrap_or(text).to_owned()
}

struct Replay<'a> {
    name: &'a str,
    family: Family,
    config: Map<String, Value>,
    shapes: Shapes,
    dir: tempfile::TempDir,
    backend: &'a CpuBackend,
    found: &'a Mutex<Found>,
}

impl Replay<'_> {
    fn logits(&self, dir: &Path, config: Map<String, Value>) -> Result<Vec<f64>, String> {
        std::fs::write(dir.join("config.json"), Value::Object(config).to_string()).unwrap();
        let options = LoadOptions { arithmetic: Arithmetic::F32, ..LoadOptions::default() };
        let Family { ids, positions, tokens, .. } = &self.family;
        let run = || {
            let mut model = Model::load(dir, self.backend, &options)?;
            model.logits(ids, positions, 256)
        };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let rows = caught.unwrap_or_else(|_| panic!("{}: panicked", self.name));
        let rows = rows.map_err(|error| error.to_string())?;
        Ok(rows.iter().flat_map(|row| tokens.iter().map(|&t| f64::from(row[t]))).collect())
    }

    fn row(&self, (key, value): (&str, &Value), expected: Option<&[f64]>, tensors: Option<usize>) {
        let config = mutated(&self.config, key, value);
        let found = match tensors {
            None => self.logits(self.dir.path(), config),
            Some(tensors) => {
                let mut shapes = self.shapes.clone();
                for (name, shape) in &self.family.tensors[tensors] {
                    let (pattern, layers) = &self.family.names[*name];
                    for layer in layers {
                        let layer = layer.map(|layer| layer.to_string()).unwrap_or_default();
                        let name = pattern.replacen("{}", &layer, 1);
                        match shape {
                            Some(shape) => drop(shapes.insert(name, shape.clone())),
                            None => drop(shapes.remove(&name)),
                        }
                    }
                }
                let dir = tempfile::tempdir().unwrap();
                write(&dir.path().join("model.safetensors"), &shapes);
                self.logits(dir.path(), config)
            }
        };
        let mut all = self.found.lock().unwrap();
        match (found, expected) {
            (Err(_), None) => all.refused_by_both += 1,
            (Err(error), Some(_)) => {
                let row = (self.name.to_owned(), key.to_owned(), reason(&error));
                all.unsupported.entry(row).or_default().push(value.to_string());
            }
            (Ok(_), None)
                if TAKEN.iter().any(|&(family, name, ty)| {
                    (family, name) == (self.name, key) && value["rope_type"] == ty
                }) =>
            {
                all.taken += 1;
            }
            (Ok(_), None) => {
                all.wrong.push(format!("{}: {key}: {value}: not refused", self.name));
            }
            (Ok(found), Some(expected)) => {
                let largest = expected.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
                let errors = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
                // Not `f64::max`, which passes over what is no number.
                let most = errors.fold(0.0, |most: f64, x| if x <= most { most } else { x });
                if most <= TOLERANCE * largest {
                    all.equal += 1;
                } else {
                    let text = format!("{}: {key}: {value}: differs by {most:.1e}", self.name);
                    all.wrong.push(text);
                }
            }
        }
    }

    fn run(&self) {
        for (key, rows) in &self.family.keys {
            let Rows { same, logits, not_finite, empty, refused } = rows;
            for value in same {
                self.row((key, value), Some(&self.family.base), None);
            }
            for row in logits {
                match row {
                    Row::Own(value, logits) => self.row((key, value), Some(logits), None),
                    Row::WithTensors(value, logits, tensors) => {
                        self.row((key, value), Some(logits), Some(*tensors));
                    }
                }
            }
            for value in not_finite.iter().chain(empty).chain(refused) {
                self.row((key, value), None, None);
            }
        }
    }
}

/// The directory of a tiny model.
fn tiny(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs").join(name)
}

/// Runs the family of a file.
fn replay(path: &Path, backend: &CpuBackend, found: &Mutex<Found>) {
    let family: Family = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let name = path.file_stem().unwrap().to_str().unwrap();
    let source = tiny(name);
    let config = std::fs::read_to_string(source.join("config.json")).unwrap();
    let file = SafeTensors::open(source).unwrap();
    let shapes: Shapes =
        file.tensors().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("model.safetensors"), &shapes);
    let config = serde_json::from_str(&config).unwrap();
    Replay { name, family, config, shapes, dir, backend, found }.run();
}

#[test]
fn mutated_settings_are_read_as_transformers_reads_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/settings/mutations");
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|ty| ty == "json")).collect();
    files.sort();
    let (queue, found) = (Mutex::new(files), Mutex::new(Found::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let backend = CpuBackend::new(Some(1), None).unwrap();
                while let Some(path) = { queue.lock().unwrap().pop() } {
                    replay(&path, &backend, &found);
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.wrong.sort();
    let n_unsupported: usize = found.unsupported.values().map(Vec::len).sum();
    let mut listed = format!(
        "{} equal, {} refused by both, {} not supported, {} taken where transformers fails\n\n",
        found.equal, found.refused_by_both, n_unsupported, found.taken
    );
    for ((family, key, reason), values) in &found.unsupported {
        listed += &format!("{family} {key} {}: {reason}\n", values.join(" "));
    }
    assert!(found.wrong.is_empty(), "{} rows:\n{}", found.wrong.len(), found.wrong.join("\n"));
    insta::assert_snapshot!("unsupported", listed);
}
