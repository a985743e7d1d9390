//! Prompts of the tiny models with the logits that transformers computes for them.

use realizar_runtime::Model;
use serde_json::Value;
use std::path::Path;

/// The largest allowed difference of a logit, relative to the largest of its row.
pub(crate) const TOLERANCE: f32 = 2e-3;

/// The largest difference of two rows, relative to the largest number of the second.
pub(crate) fn difference(found: &[f32], expected: &[f32]) -> f32 {
    let scale = expected.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0_f32, |m, (a, b)| m.max((a - b).abs())) / scale
}

/// Numbers of a JSON list.
pub(crate) fn numbers<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// A tiny model's prompt and what transformers computes for it.
pub(crate) struct Golden {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<usize>,
    values: Value,
}

impl Golden {
    pub(crate) fn read(folder: &Path) -> Self {
        let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        Self {
            ids: numbers(&golden["ids"]),
            positions: numbers(&golden["positions"]),
            values: golden["values"].clone(),
        }
    }

    /// The logits are transformers', and the same bits in chunks.
    pub(crate) fn check(&self, model: &mut Model, case: &str) {
        let whole = model.logits(&self.ids, &self.positions, 256).unwrap();
        for (pos, row) in self.positions.iter().zip(&whole) {
            let expected: Vec<f32> = numbers(&self.values[pos.to_string()]);
            let apart = difference(row, &expected);
            assert!(apart <= TOLERANCE, "{case} at {pos}: {apart:e}");
        }
        let chunked = model.logits(&self.ids, &self.positions, 7).unwrap();
        assert!(chunked == whole, "{case} in chunks");
    }
}
