//! The engine as a program: command lines in, JSON out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::shell;

/// Logits by position: position -> values over the vocabulary.
pub(super) type Logits = BTreeMap<usize, Vec<f64>>;

/// The binary under test, and where it runs models.
pub(super) struct Engine {
    /// The path of `realizar`.
    pub(super) bin: PathBuf,
    /// What every command that runs a model gets, such as `--device cpu`.
    pub(super) options: Vec<String>,
    /// What its environment has in addition.
    pub(super) environment: Vec<(&'static str, OsString)>,
}

impl Engine {
    /// Run `realizar ARGS` and parse what it prints. Models come from the cache of `xtask setup`.
    pub(super) fn json(&self, args: &[&str]) -> Result<Value> {
        shell::json(&mut self.command(args))
    }

    /// `realizar ARGS`, not yet started, with the models of `xtask setup` on the device.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = shell::command(&self.bin);
        // The first is the subcommand; a `--` may follow anywhere after it.
        command.args(&args[..1]);
        if args[0] != "inspect" {
            command.args(&self.options);
        }
        command.args(&args[1..]).env("REALIZAR_CACHE", shell::model_dir());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The same without one of its options; `None` if it has not got it.
    pub(super) fn without(&self, option: &str) -> Option<Self> {
        let options: Vec<String> =
            self.options.iter().filter(|own| *own != option).cloned().collect();
        let (bin, environment) = (self.bin.clone(), self.environment.clone());
        (options.len() < self.options.len()).then_some(Self { bin, options, environment })
    }

    /// `realizar logits` for some positions of a prompt.
    pub(super) fn logits(
        &self,
        model: &Path,
        ids: &[usize],
        positions: &[usize],
        extra: &[&str],
    ) -> Result<Logits> {
        Ok(self.logits_in_chunks(model, ids, positions, &[], extra)?.0)
    }

    /// The same, and once more for each chunk size, all with the model loaded once. A GPU is
    /// opened and its kernels are compiled at every load.
    pub(super) fn logits_in_chunks(
        &self,
        model: &Path,
        ids: &[usize],
        positions: &[usize],
        chunks: &[usize],
        extra: &[&str],
    ) -> Result<(Logits, Vec<Logits>)> {
        let json = self.logits_json(model, ids, positions, chunks, extra)?;
        Ok((logits_from(&json)?, chunks_from(&json, chunks)?))
    }

    /// The same, and as generated tokens and in a batch.
    pub(super) fn logits_in_all_ways(
        &self,
        model: &Path,
        ids: &[usize],
        positions: &[usize],
        chunks: &[usize],
        extra: &[&str],
    ) -> Result<AllWays> {
        let extra = [&["--also-mixed"], extra].concat();
        let json = self.logits_json(model, ids, positions, chunks, &extra)?;
        let of = |key: &str| logits_from(&json!({"values": json[key]})).context(key.to_owned());
        Ok(AllWays {
            whole: logits_from(&json)?,
            chunks: chunks_from(&json, chunks)?,
            generated: of("generated")?,
            batched: of("batched")?,
        })
    }

    fn logits_json(
        &self,
        model: &Path,
        ids: &[usize],
        positions: &[usize],
        chunks: &[usize],
        extra: &[&str],
    ) -> Result<Value> {
        let (ids, positions, sizes) = (join(ids), join(positions), join(chunks));
        let model = model.to_string_lossy();
        let mut args = vec!["logits", &model, "--ids", &ids, "--positions", &positions, "--json"];
        if !chunks.is_empty() {
            args.extend(["--also-chunks", &sizes]);
        }
        args.extend(extra);
        self.json(&args)
    }
}

/// The logits of one prompt in all ways to them.
pub(super) struct AllWays {
    /// The prompt in one chunk.
    pub(super) whole: Logits,
    /// In chunks of each size.
    pub(super) chunks: Vec<Logits>,
    /// Token by token.
    pub(super) generated: Logits,
    /// Beside other sequences.
    pub(super) batched: Logits,
}

/// The logits in chunks of each of these sizes.
fn chunks_from(json: &Value, chunks: &[usize]) -> Result<Vec<Logits>> {
    let again = chunks.iter().map(|chunk| {
        let again = json!({"values": json["chunks"][chunk.to_string()]});
        logits_from(&again).with_context(|| format!("chunks of {chunk}"))
    });
    again.collect()
}

/// Read `{"values": {"0": […], …}}`.
pub(super) fn logits_from(json: &Value) -> Result<Logits> {
    let values = json["values"].as_object().context("no `values` object")?;
    let mut logits = Logits::new();
    for (position, row) in values {
        let row = row.as_array().with_context(|| format!("values of {position} are no list"))?;
        let numbers: Option<Vec<f64>> = row.iter().map(Value::as_f64).collect();
        let numbers = numbers.with_context(|| format!("values of {position} are no numbers"))?;
        ensure!(!numbers.is_empty(), "values of {position} are empty");
        logits.insert(position.parse()?, numbers);
    }
    ensure!(!logits.is_empty(), "`values` is empty");
    Ok(logits)
}

/// A JSON list of whole numbers.
pub(super) fn integers(json: &Value, what: &str) -> Result<Vec<usize>> {
    let list = json.as_array().with_context(|| format!("`{what}` is not a list"))?;
    let numbers = list.iter().map(|v| v.as_u64().and_then(|n| usize::try_from(n).ok()));
    numbers.collect::<Option<_>>().with_context(|| format!("`{what}` has other than integers"))
}

/// Largest difference over largest reference value, over all positions of the reference.
///
/// More values than the reference has are allowed: a GGUF vocabulary may be padded.
pub(super) fn relative_error(found: &Logits, reference: &Logits) -> Result<f64> {
    let mut worst = 0.0f64;
    for (position, wanted) in reference {
        let row = found.get(position).with_context(|| format!("no logits at {position}"))?;
        ensure!(
            row.len() >= wanted.len(),
            "expected {} logits at {position}, found {}",
            wanted.len(),
            row.len()
        );
        let scale = wanted.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let apart = row.iter().zip(wanted).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
        worst = worst.max(apart / scale);
        ensure!(apart.is_finite(), "logits at {position} are not finite");
    }
    Ok(worst)
}

/// Are both the same, to the last bit?
pub(super) fn same_bits(a: &Logits, b: &Logits) -> bool {
    let bits = |l: &Logits| -> Vec<(usize, Vec<u64>)> {
        l.iter().map(|(&p, row)| (p, row.iter().map(|x| x.to_bits()).collect())).collect()
    };
    bits(a) == bits(b)
}

fn join(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_loses_an_option_that_it_has() {
        let options = ["--device", "cuda", "--cuda-wgmma"].map(str::to_owned).to_vec();
        let engine = Engine { bin: PathBuf::new(), options, environment: Vec::new() };
        assert_eq!(engine.without("--cuda-wgmma").unwrap().options, ["--device", "cuda"]);
        assert!(engine.without("--cuda-dependent-launch").is_none());
    }

    #[test]
    fn logits_are_read_and_compared() {
        let a = logits_from(&json!({"values": {"0": [1.0, -4.0], "5": [2.0, 0.0]}})).unwrap();
        let b = logits_from(&json!({"values": {"0": [1.0, -4.0], "5": [2.0, 0.002]}})).unwrap();
        let padded = logits_from(&json!({"values": {"0": [1.0, -4.0, 9.0], "5": [2.0, 0.0, 9.0]}}));
        assert_eq!(relative_error(&b, &a).unwrap(), 0.001);
        assert_eq!(relative_error(&padded.unwrap(), &a).unwrap(), 0.0);
        assert!(same_bits(&a, &a.clone()) && !same_bits(&a, &b));
    }

    #[test]
    fn what_is_missing_is_an_error() {
        let cases = [
            json!({}),
            json!({"values": {}}),
            json!({"values": {"0": []}}),
            json!({"values": {"0": [null]}}),
            json!({"values": {"x": [1.0]}}),
        ];
        for case in cases {
            assert!(logits_from(&case).is_err(), "{case}");
        }
        let reference = logits_from(&json!({"values": {"3": [1.0, 2.0]}})).unwrap();
        let short = logits_from(&json!({"values": {"3": [1.0]}})).unwrap();
        let other = logits_from(&json!({"values": {"4": [1.0, 2.0]}})).unwrap();
        assert!(relative_error(&short, &reference).is_err());
        assert!(relative_error(&other, &reference).is_err());
    }
}
