//! Prompts with segments of embeddings, and what transformers computes for them.

use super::tiny::tiny;
use realizar_runtime::backend::{Arithmetic, Backend, Phase};
use realizar_runtime::{
    Chunk, Embeddings, Error, LoadOptions, Model, OutputRows, Outputs, Prompt, Rows,
};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A case of `fixtures/segments`.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) json: Value,
    /// The tiny model with the settings of the case.
    dir: tempfile::TempDir,
}

fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let number = |x: &Value| x.as_u64().and_then(|x| T::try_from(x).ok());
    value.as_array().unwrap().iter().map(|x| number(x).unwrap()).collect()
}

/// Rows of embeddings by the formula of the script.
pub(crate) fn embeddings(first: usize, n: usize, dim: usize) -> Embeddings {
    let value = |row: usize, col: usize| {
        let x = (row * 7919 + col * 104_729 + row * col * 31) % 257;
        (x as f32 - 128.0) / 128.0
    };
    let values = (first..first + n).flat_map(|row| (0..dim).map(move |col| value(row, col)));
    Embeddings::new(values.collect(), dim).unwrap()
}

impl Case {
    pub(crate) fn read(name: &'static str) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/segments");
        let text = std::fs::read_to_string(fixtures.join(format!("{name}.json"))).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let model = tiny(json["model"].as_str().unwrap());
        let config = std::fs::read_to_string(model.join("config.json")).unwrap();
        let mut config: Map<String, Value> = serde_json::from_str(&config).unwrap();
        config.extend(json["config"].as_object().unwrap().clone());
        let dir = tempfile::tempdir().unwrap();
        let config = serde_json::to_string(&config).unwrap();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        std::fs::copy(model.join("model.safetensors"), dir.path().join("model.safetensors"))
            .unwrap();
        Self { name, json, dir }
    }

    /// The directory of its model.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    pub(crate) fn load(&self, backend: &dyn Backend, arithmetic: Arithmetic) -> Model {
        let options = LoadOptions {
            arithmetic,
            max_seq_len: Some(200),
            chunk: Some(128),
            max_outputs: 128,
            max_seqs: 4,
            ..LoadOptions::default()
        };
        Model::load(&self.path(), backend, &options).unwrap()
    }

    /// Its prompt, in which each segment of embeddings is as `change` makes it.
    pub(crate) fn prompt_with(&self, change: impl Fn(Embeddings, &Value) -> Embeddings) -> Prompt {
        let config = std::fs::read_to_string(self.path().join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        let dim = config["hidden_size"].as_u64().unwrap() as usize;
        let mut prompt = Prompt::default();
        for segment in self.json["segments"].as_array().unwrap() {
            if let Some(ids) = segment.get("ids") {
                prompt.push_tokens(&numbers::<u32>(ids));
                continue;
            }
            let rows = numbers::<usize>(&segment["rows"]);
            let rows = embeddings(rows[0], rows[1], dim);
            prompt.push_embeddings(Arc::new(change(rows, segment)));
        }
        prompt
    }

    pub(crate) fn prompt(&self) -> Prompt {
        self.prompt_with(|rows, segment| {
            let rows = match segment.get("positions") {
                Some(Value::Array(positions)) => {
                    let positions = positions.iter().map(|x| numbers(x).try_into().unwrap());
                    rows.with_positions(positions.collect()).unwrap()
                }
                _ => rows,
            };
            match segment.get("bidirectional") {
                Some(_) => rows.bidirectional(),
                None => rows,
            }
        })
    }

    /// The tokens that transformers continues with.
    pub(crate) fn greedy(&self) -> Vec<u32> {
        numbers(&self.json["greedy"])
    }

    /// Compares the logits of all rows with those of transformers.
    pub(crate) fn check(&self, found: &[Vec<f32>], device: &str) {
        let expected = self.json["logits"].as_array().unwrap();
        assert_eq!(found.len(), expected.len());
        for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
            let expected: Vec<f64> =
                expected.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
            let largest = expected.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
            let apart = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs());
            let apart = apart.fold(0.0_f64, f64::max);
            let name = self.name;
            assert!(apart <= 1e-3 * largest, "{name} on {device}, row {row}: {apart} of {largest}");
        }
    }
}

/// The logits of all rows, which are run in chunks of up to `chunk` where they can be cut.
pub(crate) fn logits(model: &mut Model, rows: Rows<'_>, chunk: usize) -> Vec<Vec<f32>> {
    let runner = model.runner();
    let seq = runner.new_sequence();
    let (mut all, mut done) = (Vec::new(), 0);
    while done < rows.len() {
        let rest = rows.slice(done..rows.len());
        let n = (1..=rest.len()).rev().find(|&n| n <= chunk && rest.cut(n) == n);
        let n = n.unwrap_or_else(|| (1..=rest.len()).find(|&n| rest.cut(n) == n).unwrap());
        let step = Chunk {
            seq: &seq,
            rows: rest.slice(0..n),
            phase: Phase::Prefill,
            outputs: Outputs::All,
        };
        let found = runner.step(&[step]).unwrap();
        all.extend((0..n).map(|i| found.row(0, i).to_vec()));
        done += n;
    }
    all
}

pub(crate) fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Runs rows in a step of their own, of a new sequence.
pub(crate) fn refused(model: &mut Model, rows: Rows<'_>, phase: Phase) -> String {
    let runner = model.runner();
    let seq = runner.new_sequence();
    let step: Result<OutputRows<'_>, Error> =
        runner.step(&[Chunk { seq: &seq, rows, phase, outputs: Outputs::Last }]);
    step.unwrap_err().to_string()
}
