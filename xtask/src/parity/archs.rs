//! Tiny models of each architecture against transformers, from safetensors and from GGUF.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::engine::{Engine, Logits, each, integers, logits_from, relative_error, same_bits};
use super::{Args, GPU_CHUNKS};
use crate::table;
use crate::totals::Totals;

/// Largest allowed difference of a logit, relative to the largest logit of its row.
const TOLERANCE: f64 = 1e-3;
/// The same on a GPU, whose functions need not be as exact as the CPU's.
const GPU_TOLERANCE: f64 = 2e-3;
/// The chunk size whose logits must be the whole prompt's, to the last bit.
const CHUNK: &str = "7";

/// Models all of whose operations others have too, in other orders. Where every run costs much, they say
/// nothing of a device that the others do not.
const ALIKE: [&str; 15] = [
    "baichuan",
    "deepseek_v2",
    "ernie4_5",
    "falcon",
    "glm",
    "gpt_neox",
    "gptj",
    "internlm2",
    "minicpm",
    "ministral3",
    "olmo3",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
];

/// Models that only the CPU runs; GPUs refuse them.
const CPU_ALONE: [&str; 1] = ["baichuan_alibi"];

/// Whether a model is compared where `args` say.
pub(super) fn runs_on(args: &Args, name: &str) -> bool {
    let on_gpu = ["wgpu", "cuda"].iter().any(|device| args.device.starts_with(device));
    !on_gpu || !CPU_ALONE.contains(&name)
}

/// A tiny model with what transformers computes for it.
pub(super) struct Golden {
    /// Folder name.
    pub(super) name: String,
    /// The folder, and the GGUF twin where there is one: (format, path).
    pub(super) files: Vec<(&'static str, PathBuf)>,
    /// The prompt.
    pub(super) ids: Vec<usize>,
    /// Positions whose logits are known.
    pub(super) positions: Vec<usize>,
    values: Logits,
}

impl Golden {
    /// The reference's logits at these positions.
    pub(super) fn values(&self) -> &Logits {
        &self.values
    }
}

/// All models of a folder that the arguments ask for.
pub(super) fn goldens(dir: &Path, args: &Args) -> Result<Vec<Golden>> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    let mut folders = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("expected.json").is_file() {
            folders.push(path);
        }
    }
    folders.sort();
    let mut goldens = Vec::new();
    for (idx, folder) in folders.iter().enumerate() {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_left_out = args.distinct && ALIKE.contains(&name.as_str());
        if args.wants(&name) && runs_on(args, &name) && !is_left_out {
            let mut golden = read(folder, name).with_context(|| folder.display().to_string())?;
            if args.one_format {
                let format = idx % golden.files.len();
                golden.files = vec![golden.files.swap_remove(format)];
            }
            goldens.push(golden);
        }
    }
    ensure!(!goldens.is_empty(), "no tiny models in {}", dir.display());
    Ok(goldens)
}

fn read(folder: &Path, name: String) -> Result<Golden> {
    let json: Value = serde_json::from_str(&fs::read_to_string(folder.join("expected.json"))?)?;
    let mut files = vec![("safetensors", folder.to_path_buf())];
    let twin = folder.join("model-f32.gguf");
    if twin.is_file() {
        files.push(("gguf", twin));
    }
    Ok(Golden {
        name,
        files,
        ids: integers(&json["ids"], "ids")?,
        positions: integers(&json["positions"], "positions")?,
        values: logits_from(&json)?,
    })
}

/// Compare every model and print the table.
pub(super) fn run(engine: &Engine, dir: &Path, args: &Args) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut rows = Vec::new();
    let tolerance = if args.on_gpu() { GPU_TOLERANCE } else { TOLERANCE };
    let goldens = goldens(dir, args)?;
    let files =
        goldens.iter().flat_map(|golden| golden.files.iter().map(move |file| (golden, file)));
    let files: Vec<_> = files.collect();
    let compared = each(engine, args.n_workers(), &files, |engine, (golden, (_, path))| {
        compare(engine, golden, path, args.on_gpu())
    });
    for ((golden, (format, _)), compared) in files.into_iter().zip(compared) {
        let mut row = vec![golden.name.clone(), (*format).to_owned()];
        match compared {
            Ok((error, chunked)) => {
                let same = if chunked { "same bits" } else { "differs" };
                row.extend([format!("{error:.2e}"), same.to_owned()]);
                row.push(totals.count(error <= tolerance && chunked));
            }
            Err(error) => {
                row.extend(["-".to_owned(), "-".to_owned()]);
                row.push(format!("{}: {error:#}", totals.count(false)));
            }
        }
        rows.push(row);
    }
    let formats = if args.one_format { ", formats in turn" } else { "" };
    println!(
        "Logits against transformers on {}{formats} (relative error at most {tolerance:e})\n",
        args.place()
    );
    println!("{}", table::render(&["model", "format", "error", "in chunks", "result"], &rows));
    Ok(totals)
}

/// (relative error, whether a chunked prompt gives the same bits)
fn compare(engine: &Engine, golden: &Golden, path: &Path, on_gpu: bool) -> Result<(f64, bool)> {
    let Golden { ids, positions, .. } = golden;
    let exact = ["--arithmetic", "f32"];
    let (whole, chunked) = if on_gpu {
        engine.logits_in_chunks(path, ids, positions, GPU_CHUNKS, &exact)?
    } else {
        let chunked = ["--arithmetic", "f32", "--chunk", CHUNK];
        let chunked = engine.logits(path, ids, positions, &chunked)?;
        (engine.logits(path, ids, positions, &exact)?, vec![chunked])
    };
    let same = chunked.iter().all(|chunked| same_bits(&whole, chunked));
    Ok((relative_error(&whole, &golden.values)?, same))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell;

    /// Whether a model is there as GGUF too.
    fn has_twin(name: &str) -> bool {
        !["baichuan_alibi", "gptj", "llama4_chunks", "llama4_growth", "mistral"].contains(&name)
            && !["_ao", "_awq", "_bnb", "_ct", "_e5m2", "_fp8", "_gptq", "_mo"]
                .iter()
                .any(|end| name.ends_with(end))
    }

    #[test]
    fn committed_models_are_complete() {
        let dir = shell::root().join("fixtures/archs");
        let goldens = goldens(&dir, &Args::default()).unwrap();
        let names: Vec<&str> = goldens.iter().map(|g| g.name.as_str()).collect();
        let expected = [
            "baichuan",
            "baichuan_alibi",
            "cohere",
            "cohere2",
            "deepseek_v2",
            "deepseek_v3",
            "ernie4_5",
            "ernie4_5_moe",
            "exaone4",
            "falcon",
            "gemma",
            "gemma2",
            "gemma3_text",
            "gemma3n_text",
            "gemma4_moe",
            "gemma4_text",
            "glm",
            "glm4",
            "glm4_moe",
            "gpt2",
            "gpt_neox",
            "gpt_oss",
            "gpt_oss_mxfp4",
            "gptj",
            "granite",
            "granitemoeshared",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "internlm2",
            "lfm2",
            "lfm2_moe",
            "llama",
            "llama4",
            "llama4_chunks",
            "llama4_growth",
            "llama_awq",
            "llama_fp8",
            "llama_fp8_ao",
            "llama_gptq",
            "llama_int4_ao",
            "llama_int4_ct",
            "llama_int8_ao",
            "llama_nf4_bnb",
            "llama_rope3",
            "llama_yarn",
            "minicpm",
            "minimax_m2",
            "ministral3",
            "mistral",
            "mixtral",
            "nemotron",
            "olmo",
            "olmo2",
            "olmo2_gptq",
            "olmo3",
            "olmo_gptq",
            "olmoe",
            "phi",
            "phi3",
            "phi3_gptq",
            "phimoe",
            "qwen2",
            "qwen2_fp4_bnb",
            "qwen2_gptq",
            "qwen2_int4_ct",
            "qwen2_int8_bnb",
            "qwen2_int8_ct",
            "qwen2_moe",
            "qwen3",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_e5m2",
            "qwen3_fp4_ct",
            "qwen3_fp8",
            "qwen3_moe",
            "qwen3_moe_fp4_ct",
            "qwen3_next",
            "qwen3_nvfp4_mo",
            "seed_oss",
            "smollm3",
            "stablelm",
            "starcoder2",
        ];
        assert_eq!(names, expected);
        for golden in goldens {
            assert_eq!(golden.ids.len(), 44, "{}", golden.name);
            assert_eq!(golden.positions, [0, 5, 22, 43], "{}", golden.name);
            assert!(golden.values.values().all(|row| row.len() == 288), "{}", golden.name);
            let twins = usize::from(has_twin(&golden.name));
            assert_eq!(golden.files.len(), 1 + twins, "{}", golden.name);
        }
    }

    #[test]
    fn alike_models_are_left_out_where_that_is_asked_for() {
        let dir = shell::root().join("fixtures/archs");
        assert!(ALIKE.iter().all(|name| dir.join(name).is_dir()));
        let all = goldens(&dir, &Args::archs()).unwrap().len();
        let distinct = goldens(&dir, &Args::archs().of_distinct()).unwrap();
        assert_eq!(distinct.len(), all - ALIKE.len());
        assert!(distinct.iter().all(|golden| !ALIKE.contains(&golden.name.as_str())));
    }

    #[test]
    fn models_of_the_cpu_alone_are_left_out_on_gpus() {
        let dir = shell::root().join("fixtures/archs");
        let names = |args: &Args| -> Vec<String> {
            goldens(&dir, args).unwrap().into_iter().map(|golden| golden.name).collect()
        };
        let (cpu, gpu) = (names(&Args::archs()), names(&Args::archs().interpreted()));
        assert!(CPU_ALONE.iter().all(|name| cpu.iter().any(|other| other == name)));
        assert_eq!(gpu.len() + CPU_ALONE.len(), cpu.len());
        assert!(gpu.iter().all(|name| !CPU_ALONE.contains(&name.as_str())));
    }

    #[test]
    fn formats_take_turns() {
        let dir = shell::root().join("fixtures/archs");
        let args = Args::archs().in_one_format();
        let formats = |args: &Args| -> Vec<&str> {
            let goldens = goldens(&dir, args).unwrap();
            assert!(goldens.iter().all(|golden| golden.files.len() == 1));
            goldens.iter().map(|golden| golden.files[0].0).collect()
        };
        let (folder, twin) = ("safetensors", "gguf");
        let all = goldens(&dir, &Args::default()).unwrap();
        let turns: Vec<&str> = all
            .iter()
            .zip([folder, twin].into_iter().cycle())
            .map(|(golden, turn)| if has_twin(&golden.name) { turn } else { folder })
            .collect();
        // The second has no twin.
        assert!(turns[..4] == [folder, folder, folder, twin]);
        assert_eq!(formats(&args), turns);
        let cohere2 = Args { only: vec!["cohere2".to_owned()], ..args };
        assert_eq!(formats(&cohere2), [twin]);
    }
}
