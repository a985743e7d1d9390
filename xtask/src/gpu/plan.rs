//! The steps of `gpu run`: checks and measurements that take longer than one call has.

use clap::ValueEnum;

use super::item::{Found, Item, Work};
use super::outcome::Outcomes;
use super::place::{Model, Place};
use super::quick::{self, sanitized};
use crate::table;

/// The steps, in the order they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Step {
    /// The GPU and its driver; without these nothing else runs.
    Card,
    /// All tests of the kernels with the driver as their device, and again with dependent launches.
    Tests,
    /// Tiny models against transformers.
    Parity,
    /// The same bits over chunks.
    Bits,
    /// The tests of the kernels under compute-sanitizer.
    Sanitizer,
    /// The speed of made-up models of published shapes.
    Bench,
    /// A made-up model that is served, to one client and to many, beside the same model without a server.
    Serve,
    /// Layers that two GPUs share: tiny models against transformers and themselves, and the speed of large ones.
    Ranks,
    /// The same of wgpu on the same GPU, and whether it computes the same.
    Wgpu,
}

/// Shapes and types of the models whose speed is measured, by the size of their files.
const MODELS: &[Model] = &[
    ("1b", "Q4_K_M"),
    ("1b", "Q8_0"),
    ("1b", "BF16"),
    ("8b", "Q4_K_M"),
    ("8b", "Q8_0"),
    ("8b", "BF16"),
];
/// Those of them that wgpu runs.
const FEW_MODELS: &[Model] = &[("1b", "Q4_K_M"), ("8b", "Q4_K_M")];
/// The one of them that is served.
const SERVED: Model = ("8b", "Q4_K_M");
/// Those of them that two GPUs share.
const SHARED_MODELS: &[Model] = &[("8b", "Q8_0"), ("8b", "BF16")];
/// Tiny models whose layers two GPUs share: dense, with windows, with biases, with experts.
const SHARED_TINY: &[&str] = &["llama", "gemma3_text", "gpt2", "qwen2_moe", "qwen3_moe"];

/// What `realizar bench` measures: a name, and arguments.
const MEASURED: &[(&str, &str)] = &[
    ("tokens", "-p 0 -n 128 -b 1,8,32,128"),
    ("tokens after 4096", "-p 0 -n 64 -d 4096"),
    ("prompts", "-p 512,4096 -n 0"),
];

/// compute-sanitizer's tools.
const TOOLS: &[&str] = &["memcheck", "racecheck", "initcheck", "synccheck"];

impl Step {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Seconds that a step has in one call.
    pub(super) fn seconds(self) -> u64 {
        match self {
            Self::Card => 60,
            Self::Tests | Self::Parity | Self::Bits => 240,
            Self::Sanitizer | Self::Bench | Self::Serve | Self::Ranks | Self::Wgpu => 540,
        }
    }

    /// The items of a step; why it has none, where it cannot have any.
    pub(super) fn work(self, place: &Place) -> Result<Work, String> {
        let device = place.device.as_str();
        let few = place.n_cores.clamp(1, 8);
        Ok(match self {
            Self::Card => quick::card(place, &Outcomes::default())?,
            Self::Tests => {
                let plain = place.tests("plain", &[]).log(place.out.join("tests.jsonl"));
                let early = place.tests("early", &[]).log(place.out.join("tests-early.jsonl"));
                Work::alone(vec![plain, early.early()])
            }
            Self::Parity => Work::parallel(
                place.tiny.iter().map(|name| place.parity("archs", name, device)).collect(),
                few,
            ),
            Self::Bits => Work::parallel(
                place.tiny.iter().map(|name| place.parity("bits", name, device)).collect(),
                few,
            ),
            Self::Sanitizer => {
                place.needs_gpu()?;
                let Some(program) = &place.sanitizer else {
                    return Err("compute-sanitizer is not here".to_owned());
                };
                let all =
                    TOOLS.iter().flat_map(|tool| place.tests.iter().map(move |name| (tool, name)));
                let items = all.map(|(tool, name)| sanitized(place, program, tool, name));
                Work::parallel(items.collect(), place.n_cores.clamp(1, 4))
            }
            Self::Bench => {
                is_measurable(place)?;
                Work::alone(
                    MODELS.iter().flat_map(|&model| with_model(place, model, device)).collect(),
                )
            }
            Self::Serve => {
                is_measurable(place)?;
                Work::alone(served(place, device))
            }
            Self::Ranks => Work::alone(ranks(place)?),
            Self::Wgpu => {
                place.needs_gpu()?;
                let Some(path) = &place.libraries else {
                    return Err("the engine has no wgpu: pack it by --wgpu".to_owned());
                };
                let parity = ["llama", "qwen3_moe"].map(|name| place.parity("archs", name, "wgpu"));
                let speeds = FEW_MODELS.iter().flat_map(|&model| with_model(place, model, "wgpu"));
                let path = |item: Item| item.env("LD_LIBRARY_PATH", path.as_str());
                Work::alone(parity.into_iter().chain(speeds).map(path).collect())
            }
        })
    }
}

fn is_measurable(place: &Place) -> Result<(), String> {
    match place.device.as_str() {
        "cuda-interpreter" => Err("the interpreter's speed says nothing about a GPU".to_owned()),
        _ => Ok(()),
    }
}

fn measured(place: &Place, model: Model, device: &str) -> impl Iterator<Item = Item> {
    let (file, (shape, ty)) = (place.model(model), model);
    MEASURED.iter().map(move |(what, args)| {
        place.speed(format!("{shape} {ty} {what}"), &file, device).args("-r 3").args(args)
    })
}

/// The making of a model, then what is measured.
fn with_model(place: &Place, model: Model, device: &str) -> Vec<Item> {
    std::iter::once(place.made(model)).chain(measured(place, model, device)).collect()
}

fn ranks(place: &Place) -> Result<Vec<Item>, String> {
    let device = place.device.as_str();
    place.needs_cuda()?;
    if place.is_gpu() && place.n_gpus < 2 {
        return Err(format!("it needs two GPUs, found {}", place.n_gpus));
    }
    let shared = |item: Item| item.args("--tensor-parallel 2");
    let tiny = ["archs", "bits"].into_iter().flat_map(|kind| {
        SHARED_TINY.iter().map(move |name| {
            let item = shared(place.parity(kind, name, device));
            Item { name: format!("{kind} {name}"), ..item }
        })
    });
    let models = if place.is_gpu() { SHARED_MODELS } else { &[] };
    let speeds = models.iter().flat_map(|&model| {
        std::iter::once(place.made(model)).chain(measured(place, model, device).map(shared))
    });
    Ok(tiny.chain(speeds).collect())
}

/// A model that is served, and the same without a server. It has the tokenizer of a tiny model, whose tokens are
/// letters, so that prompts have some four tokens a word.
fn served(place: &Place, device: &str) -> Vec<Item> {
    let (shape, ty) = SERVED;
    let file = place.models.join(format!("{shape}-{}-served.gguf", ty.to_lowercase()));
    let made = place.made_with(SERVED, place.layers, file.clone());
    let made =
        made.arg("--tokenizer").path(&place.tree.join("fixtures/archs/llama/model-f32.gguf"));
    let made = Item { name: format!("make {shape} {ty} with a tokenizer"), ..made };
    let results = place.root.join("served");
    let bare =
        place.speed(format!("{shape} {ty} alone"), &file, device).args("-r 3 -p 0 -n 128 -b 1,32");
    let served = place
        .xtask(format!("{shape} {ty} served"), "load --streams 1,32 --prompts 8 --shared 0")
        .args("--twice 0 --requests 64 --max-tokens 128 -r 2 --args")
        .arg(format!("--device {device}"))
        .arg("--bin")
        .path(&place.program("realizar"))
        .arg("--model")
        .path(&file)
        .arg("--out")
        .path(&results)
        .needs(&file)
        .result(Found::File(results.join("results.json")));
    vec![made, bare, served]
}

/// What a client got of a model that was served: tokens per second by the median of the times between two tokens, and
/// beside it the share of what the model generates without a server.
pub(super) fn served_table(outcomes: &Outcomes) -> String {
    let mut rows = Vec::new();
    for (name, outcome) in outcomes.steps.get("serve").into_iter().flatten() {
        let Some(model) = name.strip_suffix(" served") else { continue };
        let alone = outcomes.get("serve", &format!("{model} alone"));
        let alone = alone.and_then(|o| o.value["results"].as_array());
        for result in outcome.value["results"].as_array().into_iter().flatten() {
            let case = result["case"].as_str().unwrap_or_default();
            let n_streams = case.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(1);
            let rounds = result["rounds"].as_array().into_iter().flatten();
            let mut times: Vec<f64> =
                rounds.filter_map(|round| round["measures"]["ITL p50 ms"].as_f64()).collect();
            times.sort_by(f64::total_cmp);
            let Some(time) = times.get(times.len() / 2) else { continue };
            let speed = n_streams as f64 * 1e3 / time;
            let bare = alone.into_iter().flatten().find(|test| test["batch"] == n_streams);
            let bare = bare.and_then(|test| test["tokens_per_second"].as_f64());
            let share = bare.map(|bare| format!("{:.0} %", 100.0 * speed / bare));
            rows.push(vec![
                format!("{model} {case}"),
                table::shown(speed),
                share.unwrap_or_else(|| "-".to_owned()),
            ]);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    table::render(&["served", "tokens/s", "of alone"], &rows)
}

#[cfg(all(test, unix))]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gpu::outcome::Outcome;
    use crate::gpu::testing::Folder;

    #[test]
    fn the_steps_of_a_gpu_are_complete() {
        let folder = Folder::new(&[]);
        let place = folder.place("cuda");
        let names = |step: Step| -> Vec<String> {
            step.work(&place).unwrap().items.into_iter().map(|item| item.name).collect()
        };
        assert_eq!(names(Step::Card), ["driver", "nvidia-smi"]);
        assert_eq!(names(Step::Tests), ["plain", "early"]);
        assert_eq!(names(Step::Sanitizer).len(), 4 * 3);
        let sanitized = &Step::Sanitizer.work(&place).unwrap().items[3];
        assert_eq!(sanitized.args[..4], ["--error-exitcode", "9", "--tool", "racecheck"]);
        assert_eq!(sanitized.args[5..], ["--threads", "2", "--exact", "ops::wgmma::tests::a"]);
        assert_eq!(names(Step::Bench).len(), 6 * 4);
        let made = "make 8b Q4_K_M with a tokenizer";
        assert_eq!(names(Step::Serve), [made, "8b Q4_K_M alone", "8b Q4_K_M served"]);
        assert_eq!(names(Step::Wgpu).len(), 2 + 2 * 4);
        let has_path = |item: Item| item.env.contains(&("LD_LIBRARY_PATH", "lib".to_owned()));
        assert!(Step::Wgpu.work(&place).unwrap().items.into_iter().all(has_path));
        assert_eq!(names(Step::Ranks).len(), 2 * 5 + 2 * 4);
        let ranks = Step::Ranks.work(&place).unwrap().items;
        let shares =
            |item: &&Item| item.args.ends_with(&["--tensor-parallel", "2"].map(str::to_owned));
        assert_eq!(ranks.iter().filter(shares).count(), 2 * 5 + 2 * 3);
        let one_gpu = Place { n_gpus: 1, ..place.clone() };
        assert_eq!(Step::Ranks.work(&one_gpu).unwrap_err(), "it needs two GPUs, found 1");
        let parity = &Step::Parity.work(&place).unwrap().items[0];
        let wanted = ["parity", "--archs", "--device", "cuda", "--only", "llama", "--bin"];
        assert_eq!(parity.args[..7], wanted);
        let without = Place { sanitizer: None, ..place.clone() };
        assert!(Step::Sanitizer.work(&without).unwrap_err().ends_with("not here"));
        let without = Place { libraries: None, ..place.clone() };
        assert!(Step::Wgpu.work(&without).unwrap_err().ends_with("pack it by --wgpu"));
    }

    #[test]
    fn steps_that_need_a_gpu_say_so_elsewhere() {
        let folder = Folder::new(&[]);
        let of = |device: &str, step: Step| step.work(&folder.place(device));
        for device in ["cpu", "cuda-interpreter"] {
            for step in [Step::Card, Step::Sanitizer, Step::Wgpu] {
                assert_eq!(of(device, step).unwrap_err(), "it needs a GPU");
            }
        }
        assert!(of("cpu", Step::Bench).is_ok() && of("cuda-interpreter", Step::Bench).is_err());
        assert!(of("cpu", Step::Ranks).is_err());
        assert_eq!(of("cuda-interpreter", Step::Ranks).unwrap().items.len(), 2 * 5);
    }

    #[test]
    fn a_served_stream_stands_beside_the_model_alone() {
        let mut outcomes = Outcomes::default();
        let mut add = |name: &str, value| {
            outcomes.add("serve", name, Outcome { ok: true, value, ..Outcome::default() });
        };
        let alone = json!([{"batch": 1, "tokens_per_second": 600.0}]);
        add("8b Q4_K_M alone", json!({"results": alone}));
        let rounds = json!([{"measures": {"ITL p50 ms": 1.75}}]);
        add("8b Q4_K_M served", json!({"results": [{"case": "1 stream", "rounds": rounds}]}));
        let table = served_table(&outcomes);
        assert_eq!(table.lines().last(), Some("| 8b Q4_K_M 1 stream | 571      | 95 %     |"));
    }
}
