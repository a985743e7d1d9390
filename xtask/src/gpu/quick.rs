//! The steps of `gpu quick` and `gpu second`: what a quarter of an hour on a GPU decides, the most decisive first.

use std::path::Path;

use super::item::{Found, Item, Work};
use super::outcome::Outcomes;
use super::pack::CASES;
use super::place::{Model, Place};
use super::reading::TestRun;
use super::verdict::ROUNDS;

/// A step with the seconds that it has, beside what the steps before it leave.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) seconds: u64,
    /// Its items; why it has none, where it cannot have any.
    pub(super) work: fn(&Place, &Outcomes) -> Result<Work, String>,
}

const fn step(
    name: &'static str,
    seconds: u64,
    work: fn(&Place, &Outcomes) -> Result<Work, String>,
) -> Step {
    Step { name, seconds, work }
}

/// The first call, of 8 minutes: with the machine's start it is done within 9.5.
pub(super) const QUICK: &[Step] = &[
    step("card", 10, card),
    step("prepare", 45, prepare),
    step(TESTS, 50, tests),
    step(ALONE, 20, alone),
    step("opcodes", 25, opcodes),
    step(BITS, 30, bits),
    step("kernels", 85, kernels),
    step(SPEED, 155, speed),
    step("ncu", 60, ncu),
];

/// A second call, of 3.5 minutes, on the machine that still has the models.
pub(super) const SECOND: &[Step] = &[
    step("card", 5, card),
    step("models", 30, models),
    step("llama", 100, llama),
    step("sanitizer", 75, sanitizer),
];

/// Names that verdicts look for.
pub(super) const TESTS: &str = "tests";
pub(super) const ALONE: &str = "alone";
pub(super) const BITS: &str = "bits";
pub(super) const SPEED: &str = "speed";

const DENSE: Model = ("8b", "Q4_K_M");
const WHOLE: Model = ("8b", "BF16");
const EXPERTS: Model = ("30b-a3b", "Q4_K_M");

/// Options of the engine that are compared.
pub(super) const VARIANTS: &[(&str, &str)] = &[
    ("plain", ""),
    ("early", "--cuda-dependent-launch"),
    ("wgmma", "--cuda-wgmma"),
    ("wgmma+early", "--cuda-wgmma --cuda-dependent-launch"),
    ("bf16", "--cuda-bf16-decode"),
    ("all", "--cuda-wgmma --cuda-dependent-launch --cuda-bf16-decode"),
];

/// Those whose bits are compared over chunks.
pub(super) const BITS_OF: &[&str] = &["plain", "wgmma", "early", "bf16", "all"];

/// Which of them run which model, in the order of a round, and the tests that are timed.
const MEASURED: &[(Model, &[&str], &str)] = &[
    (
        DENSE,
        &["plain", "early", "wgmma", "wgmma+early", "all"],
        "pp512,pp4096,tg64,tg64 x8,tg64 x32,tg64 x128,tg64 @ d8000",
    ),
    (WHOLE, &["plain", "wgmma+early"], "pp512,pp4096,tg64,tg64 x8,tg64 x32,tg64 x128"),
    (EXPERTS, &["plain", "all"], "pp512,tg64,tg64 x8,tg64 x32"),
];

/// Parts of the names of tests of what has changed most, mixed products (`matvec_quantized`) among them.
const FILTERS: &[&str] = &["wgmma", "levels", "attention", "gated", "quantize", "round"];

/// Tiny models whose bits are compared: dense, with windows, with biases, with experts.
const TINY: &[&str] = &["llama", "gemma3_text", "gpt2", "qwen2_moe"];

/// Images that the models above need first: the driver takes seconds for each of the large ones.
const IMAGES: &str = "type_q4_k,type_q6_k,type_bf16,wgmma,attention_decode_f16,attention_prefill_f16,\
                      experts_q4_k,experts_q6_k,matvec_mixed,shortlist,quantize,round,norm,rope,kv_store";

/// Tests under compute-sanitizer: one or two of each kind of kernel.
pub const SANITIZED: [&str; 12] = [
    "ops::matvec_quantized::tests::tiles_have_the_bits_of_single_rows",
    "ops::matvec_quantized::tests::matrices_of_different_types_in_one_launch",
    "ops::gated::tests::rows_have_the_bits_that_they_have_alone",
    "ops::levels::tests::rows_longer_and_shorter_than_a_step",
    "ops::attention::tests::decode::decode_splits_and_spans_are_added",
    "ops::attention::tests::prefill::prefill_windows",
    "ops::wgmma::tests::products_are_those_of_other_tensor_cores",
    "ops::wgmma::tests::gated_products_are_those_of_single_launches",
    "ops::quantize::tests::activations_and_norms_are_quantized",
    "ops::norm::tests::norms",
    "ops::shortlist::tests::lists_feed_the_next_step",
    "ops::experts::tests::products_for_prefill_of_8_bit_integers",
];

/// compute-sanitizer's tools, the one that finds more first.
const TOOLS: [&str; 2] = ["racecheck", "memcheck"];

/// What nvidia-smi is queried for.
pub(super) const NVIDIA_SMI: &str = "--format=csv --query-gpu=name,driver_version,memory.total,memory.used,\
                          clocks.max.sm,clocks.max.memory,power.limit,pcie.link.gen.current";

/// What ncu counts of each kernel: time, memory, caches, issue slots, tensor cores, bank conflicts, and what warps wait for.
const METRICS: &str = "gpu__time_duration.sum,dram__bytes_read.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,\
    lts__throughput.avg.pct_of_peak_sustained_elapsed,lts__t_sectors_op_read.sum,\
    sm__issue_active.avg.pct_of_peak_sustained_elapsed,sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active,\
    sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed,sm__warps_active.avg.pct_of_peak_sustained_active,\
    l1tex__data_bank_conflicts_pipe_lsu.sum,\
    smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio,\
    smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio,\
    smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio,\
    smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio,\
    smsp__average_warps_issue_stalled_wait_per_issue_active.ratio,\
    smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio,launch__registers_per_thread";

/// The GPU and its driver; without these nothing else runs.
pub(super) fn card(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_gpu()?;
    Ok(Work::alone(vec![
        Item::new("driver", place.program("card"), "").result(Found::Json),
        Item::new("nvidia-smi", "nvidia-smi", NVIDIA_SMI),
    ]))
}

/// Models, by the cores that the driver's compiler leaves, while eight processes compile.
fn prepare(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_gpu()?;
    const N: usize = 8;
    let compiled = (1..=N).map(|i| {
        Item::new(format!("compile {i} of {N}"), place.program("compile"), "")
            .path(&place.tree.join("crates/kernels-cuda/image"))
            .args(&format!("{i} {N} {IMAGES}"))
            .result(Found::Json)
    });
    let items: Vec<Item> = compiled.chain(all_models(place)).collect();
    let n = items.len();
    Ok(Work::parallel(items, n))
}

/// The models where they are missing, as on another machine than that of the first call.
fn models(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_gpu()?;
    Ok(Work::parallel(vec![place.made(DENSE).for_later(), place.made(WHOLE).for_later()], 2))
}

fn all_models(place: &Place) -> Vec<Item> {
    let short = place.made_with(DENSE, Some(2), two_layers(place));
    let short = Item { name: "make two layers".to_owned(), ..short };
    let whole = [DENSE, WHOLE, EXPERTS].map(|model| place.made(model));
    std::iter::once(short).chain(whole).map(Item::for_later).collect()
}

/// The file of two layers, whose kernels are those of all.
fn two_layers(place: &Place) -> std::path::PathBuf {
    place.models.join("two-layers.gguf")
}

/// The kernels' tests in one process, and again with dependent launches.
fn tests(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_cuda()?;
    let filters: &[&str] = if place.is_gpu() { FILTERS } else { &["ops::round", "ops::norm"] };
    let plain = place.tests("plain", filters).log(place.out.join("tests.jsonl"));
    let early = place.tests("early", filters).log(place.out.join("tests-early.jsonl"));
    Ok(Work::alone(vec![plain.seconds(40), early.early().seconds(40)]))
}

/// Tests that failed or did not end, each in a process of its own.
fn alone(place: &Place, outcomes: &Outcomes) -> Result<Work, String> {
    place.needs_cuda()?;
    let mut items = Vec::new();
    for run in ["plain", "early"] {
        let Some(outcome) = outcomes.get(TESTS, run) else { continue };
        let Some(tests) = TestRun::from_value(&outcome.value) else { continue };
        for name in tests.doubtful() {
            let item = place.tests(&format!("{run} {name}"), &["--exact", &name]).seconds(20);
            items.push(if run == "early" { item.early() } else { item });
        }
    }
    if items.is_empty() {
        return Err("no test failed beside others".to_owned());
    }
    Ok(Work::parallel(items, place.n_cores.clamp(1, 8)))
}

/// The interpreter's cases, bit by bit; the log has each that differs.
fn opcodes(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_cuda()?;
    let device = if place.is_gpu() { "card" } else { "interpreter" };
    let item = Item::new("opcodes", place.program("opcodes"), "")
        .path(&place.root.join(CASES))
        .arg(device)
        .result(Found::Cases)
        .log(place.out.join("opcodes.log"));
    Ok(Work::alone(vec![item]))
}

/// The same bits over chunks, with each set of options; dependent launches also give the bits of those that are not.
fn bits(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_cuda()?;
    let tiny: Vec<&str> =
        TINY.iter().copied().filter(|name| place.tiny.iter().any(|own| own == name)).collect();
    // The interpreter takes most of a minute for a model.
    let tiny = if place.is_gpu() { &tiny[..] } else { &tiny[..1.min(tiny.len())] };
    let variants = VARIANTS.iter().filter(|(name, _)| BITS_OF.contains(name));
    let items = variants.flat_map(|(variant, options)| {
        tiny.iter().map(move |model| {
            let item = place.parity("bits", model, &place.device).args(options);
            Item { name: format!("{model} {variant}"), ..item }
        })
    });
    Ok(Work::parallel(items.collect(), place.n_cores.clamp(1, 8)))
}

/// Every kernel at the shapes of the models, beside what the GPU does at best.
fn kernels(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_cuda()?;
    let json = place.out.join("bench_cuda.jsonl");
    let item = Item::new("bench_cuda", place.program("bench-cuda"), "").seconds(120);
    let item = item.args("--json").path(&json).args("--seconds 75");
    Ok(Work::alone(vec![if place.is_gpu() { item } else { item.args("--interpreter") }]))
}

/// The name of a measurement.
pub(super) fn speed_name((shape, ty): Model, variant: &str, round: u32) -> String {
    format!("{shape} {ty} {variant} round {round}")
}

/// The variants in turn, one round after the other.
fn speed(place: &Place, _: &Outcomes) -> Result<Work, String> {
    if !place.is_gpu() {
        return Ok(tried_speed(place));
    }
    let mut items = Vec::new();
    for (model, variants, tests) in MEASURED {
        // Only where the step that makes it was cut off.
        items.push(place.made(*model));
        for round in ROUNDS {
            for variant in *variants {
                let name = speed_name(*model, variant, round);
                items.push(measured(place, name, &place.model(*model), variant, tests));
            }
        }
    }
    Ok(Work::alone(items))
}

fn measured(place: &Place, name: String, file: &Path, variant: &str, tests: &str) -> Item {
    let options =
        VARIANTS.iter().find(|(own, _)| *own == variant).map_or("", |(_, options)| options);
    let item = place.speed(name, file, &place.device).args("-r 1 --tests").arg(tests);
    item.args(options).seconds(60)
}

/// A tiny model in place of the large ones, to try the script: its speeds say nothing.
fn tried_speed(place: &Place) -> Work {
    let file = place.tree.join("fixtures/archs/llama/model-f32.gguf");
    let (model, variants, _) = MEASURED[0];
    let variants = if place.device == "cpu" { &variants[..1] } else { variants };
    let items = ROUNDS.iter().flat_map(|&round| {
        let file = &file;
        variants.iter().map(move |variant| {
            measured(place, speed_name(model, variant, round), file, variant, "pp8,tg2,tg2 x2")
        })
    });
    Work::alone(items.collect())
}

/// Counters of the kernels of one token and of a step of 1024 prefill rows.
fn ncu(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_gpu()?;
    let Some(program) = &place.ncu else { return Err("ncu is not here".to_owned()) };
    let wgmma = "--cuda-wgmma --cuda-dependent-launch";
    let of = |name: &str, tests: &str, options: &str| {
        Item::new(
            name,
            program,
            "--graph-profiling node --clock-control none --cache-control none --csv",
        )
        .args("--page raw --launch-count 150 --metrics")
        .arg(METRICS)
        .path(&place.program("realizar"))
        .arg("bench")
        .path(&two_layers(place))
        .args(&format!("--device {} -r 1 --no-warmup --tests", place.device))
        .arg(tests)
        .args(options)
        .needs(&two_layers(place))
        .log(place.out.join("ncu.csv"))
        .seconds(45)
    };
    Ok(Work::alone(vec![
        of("one token", "tg2", ""),
        of("1024 rows, wgmma", "pp1024", wgmma),
        of("1024 rows", "pp1024", ""),
        of("32 rows", "tg2 x32", ""),
    ]))
}

/// llama.cpp and the engine in turn, with the same files.
fn llama(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_gpu()?;
    let Some(folder) = &place.llama else {
        return Err("llama.cpp is not here: pack it by --llama".to_owned());
    };
    let (file, whole) = (place.model(DENSE), place.model(WHOLE));
    let theirs = |name: String, program: &str, args: &str, file: &Path| {
        Item::new(name, folder.join(program), args)
            .path(file)
            .env("LD_LIBRARY_PATH", folder.to_string_lossy())
            .needs(file)
            .seconds(40)
    };
    let mut items = Vec::new();
    let tests = "pp512,pp4096,tg64,tg64 x8,tg64 x32,tg64 x128";
    for round in ROUNDS {
        let name = |what: &str| format!("{what} round {round}");
        let alone = "-ngl 99 -fa 1 -o json -r 1 -p 512,4096 -n 64 -m";
        let batches = "-ngl 99 -fa 1 -c 16384 -b 2048 -ub 512 -npp 64 -ntg 64 -npl 8,32,128 \
                       --output-format jsonl -m";
        items.push(
            theirs(name("8b Q4_K_M llama.cpp"), "llama-bench", alone, &file).result(Found::Json),
        );
        items.push(measured(place, name("8b Q4_K_M plain"), &file, "plain", tests));
        items.push(theirs(
            name("8b Q4_K_M llama.cpp batches"),
            "llama-batched-bench",
            batches,
            &file,
        ));
        items.push(measured(place, name("8b Q4_K_M all"), &file, "all", tests));
        items.push(
            theirs(name("8b BF16 llama.cpp"), "llama-bench", alone, &whole).result(Found::Json),
        );
        items.push(measured(place, name("8b BF16 all"), &whole, "all", "pp512,pp4096,tg64"));
    }
    Ok(Work::alone(items))
}

/// Some tests under compute-sanitizer.
fn sanitizer(place: &Place, _: &Outcomes) -> Result<Work, String> {
    place.needs_gpu()?;
    let Some(program) = &place.sanitizer else {
        return Err("compute-sanitizer is not here".to_owned());
    };
    let items = TOOLS.iter().flat_map(|tool| {
        SANITIZED.iter().map(move |test| sanitized(place, program, tool, test).seconds(60))
    });
    Ok(Work::parallel(items.collect(), place.n_cores.clamp(1, 8)))
}

/// A test under one of the tools.
pub(super) fn sanitized(place: &Place, program: &Path, tool: &str, test: &str) -> Item {
    let plain = place.test(test);
    let mut item = Item::new(format!("{tool} {test}"), program, "--error-exitcode 9 --tool")
        .arg(tool)
        .path(&plain.program);
    item.args.extend(plain.args);
    item.env = plain.env;
    item
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::gpu::outcome::Outcome;
    use crate::gpu::testing::Folder;

    fn names(work: Result<Work, String>) -> Vec<String> {
        work.unwrap().items.into_iter().map(|item| item.name).collect()
    }

    #[test]
    fn a_gpu_has_items_in_every_step() {
        let folder = Folder::new(&[]);
        let (place, none) = (folder.place("cuda"), Outcomes::default());
        assert_eq!(names(card(&place, &none)), ["driver", "nvidia-smi"]);
        let prepared = prepare(&place, &none).unwrap();
        assert_eq!((prepared.items.len(), prepared.n_parallel), (8 + 4, 12));
        assert!(prepared.items[8..].iter().all(|item| item.for_later && item.makes.is_some()));
        assert_eq!(names(tests(&place, &none)), ["plain", "early"]);
        assert_eq!(names(opcodes(&place, &none)), ["opcodes"]);
        // The two tiny models that are here.
        assert_eq!(names(bits(&place, &none)).len(), 5 * 2);
        assert_eq!(names(kernels(&place, &none)), ["bench_cuda"]);
        let measured = names(speed(&place, &none));
        assert_eq!(measured.len(), 3 + 2 * (5 + 2 + 2));
        let first = ["make 8b Q4_K_M", "8b Q4_K_M plain round 1", "8b Q4_K_M early round 1"];
        assert_eq!(
            (&measured[..3], measured[6].as_str()),
            (&first.map(str::to_owned)[..], "8b Q4_K_M plain round 2")
        );
        assert_eq!(names(ncu(&place, &none)).len(), 4);
        assert_eq!(names(llama(&place, &none)).len(), 2 * 6);
        assert_eq!(names(sanitizer(&place, &none)).len(), 2 * 12);
        assert_eq!(names(models(&place, &none)), ["make 8b Q4_K_M", "make 8b BF16"]);
    }

    #[test]
    fn what_is_not_here_is_named() {
        let folder = Folder::new(&[]);
        let none = Outcomes::default();
        let place = Place { ncu: None, llama: None, sanitizer: None, ..folder.place("cuda") };
        for (step, reason) in [
            (ncu as fn(&Place, &Outcomes) -> Result<Work, String>, "ncu is not here"),
            (llama, "llama.cpp is not here: pack it by --llama"),
            (sanitizer, "compute-sanitizer is not here"),
        ] {
            assert_eq!(step(&place, &none).unwrap_err(), reason);
        }
        // On the interpreter only what a GPU has to do is left out.
        let place = folder.place("cuda-interpreter");
        let left_out =
            |step: &&Step| (step.work)(&place, &none).is_err_and(|why| why == "it needs a GPU");
        let names: Vec<&str> = QUICK.iter().filter(left_out).map(|step| step.name).collect();
        assert_eq!(names, ["card", "prepare", "ncu"]);
        assert!(SECOND.iter().all(|step| left_out(&step)));
    }

    #[test]
    fn tests_that_fail_beside_others_run_again_alone() {
        let folder = Folder::new(&[]);
        let (place, mut outcomes) = (folder.place("cuda"), Outcomes::default());
        let run = TestRun {
            failed: [("a".to_owned(), "off".to_owned())].into(),
            unfinished: vec!["b".to_owned()],
            ..TestRun::default()
        };
        let value = serde_json::to_value(&run).unwrap();
        outcomes.add(TESTS, "early", Outcome { value, ..Outcome::default() });
        let again = alone(&place, &outcomes).unwrap();
        assert_eq!(again.items[0].name, "early a");
        assert!(again.items[0].args.ends_with(&["--exact", "a"].map(str::to_owned)));
        assert!(again.items[1].env.contains(&("REALIZAR_CUDA_EARLY_LAUNCHES", "1".to_owned())));
        let none = alone(&place, &Outcomes::default()).unwrap_err();
        assert_eq!(none, "no test failed beside others");
    }
}
