//! What a run consists of: steps, and the items of each. An item is one process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;

use super::pack::OPCODES;

/// The steps, in the order they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Step {
    /// The card and its driver; without these nothing else runs.
    Card,
    /// What the card does at best: copies, launches, products with each type of weights. It is also what compiles the
    /// kernels for the card; the processes after it find them in the driver's cache.
    Rates,
    /// What the tests of the interpreter ran, bit by bit, and the tests of the kernels with the driver as their device.
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
    /// Launches that start before the one in front of them has ended: the tests of the kernels, and the speed of some models,
    /// which stands beside that of the step before.
    Early,
    /// Prompts by the instructions of groups of warps: the kernels' tests of them, the same bits over chunks, and the speed of
    /// prompts, which stands beside that of the bench.
    Wgmma,
    /// Decode rows in BF16: the kernels' tests of them, and the speed of sequences, which stands beside that of the bench.
    Bf16,
    /// Layers that two cards share: tiny models against transformers and themselves, and the speed of large ones.
    Ranks,
    /// The same of wgpu on the same card, and whether it computes the same.
    Wgpu,
    /// The same of llama.cpp, which is built there.
    Llama,
}

impl Step {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Items of a step that run side by side. What is measured runs alone.
    pub(super) fn n_parallel(self, n_cores: usize) -> usize {
        match self {
            Self::Tests | Self::Parity | Self::Bits => n_cores.clamp(1, 8),
            Self::Sanitizer => n_cores.clamp(1, 4),
            _ => 1,
        }
    }

    /// Seconds that a step has in one call.
    pub(super) fn seconds(self) -> u64 {
        match self {
            Self::Card => 60,
            Self::Tests | Self::Parity | Self::Bits => 240,
            Self::Rates | Self::Wgmma => 400,
            Self::Sanitizer
            | Self::Bench
            | Self::Serve
            | Self::Early
            | Self::Bf16
            | Self::Ranks
            | Self::Wgpu
            | Self::Llama => 540,
        }
    }
}

/// One process of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(&'static str, String)>,
    pub(super) limit: Duration,
    /// Whether what it prints is JSON, to be kept.
    pub(super) json: bool,
    /// A file of JSON that it writes, to be kept.
    pub(super) result: Option<PathBuf>,
    /// Files that it needs, which other items make.
    pub(super) needs: Vec<PathBuf>,
    /// A file that it makes. Its `PART` argument is the name that the file has until then.
    pub(super) makes: Option<PathBuf>,
}

/// In the arguments of an item that makes a file: where it writes.
pub(super) const PART: &str = "PART";

impl Item {
    fn new(name: impl Into<String>, program: impl Into<PathBuf>, args: &str) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: args.split_whitespace().map(str::to_owned).collect(),
            env: Vec::new(),
            limit: Duration::from_secs(300),
            json: false,
            result: None,
            needs: Vec::new(),
            makes: None,
        }
    }

    fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    fn seconds(mut self, n: u64) -> Self {
        self.limit = Duration::from_secs(n);
        self
    }

    fn json(mut self) -> Self {
        self.json = true;
        self
    }

    fn result(mut self, file: PathBuf) -> Self {
        self.result = Some(file);
        self
    }

    fn needs(mut self, file: &Path) -> Self {
        self.needs.push(file.to_owned());
        self
    }

    fn makes(mut self, file: PathBuf) -> Self {
        self.makes = Some(file);
        self
    }
}

/// Where things are on the machine of a run.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The packed folder.
    pub(super) root: PathBuf,
    /// Where made-up models go.
    pub(super) models: PathBuf,
    /// `cuda`, or `cpu` or `cuda-interpreter` to try the script itself.
    pub(super) device: String,
    /// Layers of made-up models, instead of those of their shapes.
    pub(super) layers: Option<u32>,
    /// Names of the kernels' tests.
    pub(super) tests: Vec<String>,
    /// Names of the tiny models.
    pub(super) tiny: Vec<String>,
    /// compute-sanitizer, where it is.
    pub(super) sanitizer: Option<PathBuf>,
    /// llama.cpp's sources, and whether nvcc and cmake are there to build them.
    pub(super) llama: Option<PathBuf>,
    /// The search path of libraries, where the loader of Vulkan was packed.
    pub(super) libraries: Option<String>,
    pub(super) n_cores: usize,
    /// Cards that the driver finds.
    pub(super) n_cards: usize,
}

/// Shapes and types of the models whose speed is measured, by the size of their files.
const MODELS: &[(&str, &str)] = &[
    ("1b", "Q4_K_M"),
    ("1b", "Q8_0"),
    ("1b", "BF16"),
    ("8b", "Q4_K_M"),
    ("8b", "Q8_0"),
    ("8b", "BF16"),
];
/// Those of them that wgpu runs, and that llama.cpp runs beside.
const FEW_MODELS: &[(&str, &str)] = &[("1b", "Q4_K_M"), ("8b", "Q4_K_M")];

/// By this variable the tests of the kernels launch them early.
const EARLY: &str = "REALIZAR_CUDA_EARLY_LAUNCHES";

/// Types of weights whose products are timed, those of the models first.
const BLOCK_TYPES: &[&str] = &[
    "Q4_K", "Q6_K", "Q8_0", "BF16", "F16", "F8_0", "Q5_K", "Q4_0", "MXFP4", "NVFP4", "IQ4_XS",
    "IQ4_NL", "Q2_K", "Q3_K", "Q4_1", "Q5_0", "Q5_1", "Q4_Z", "IQ1_S", "IQ1_M", "IQ2_XXS",
    "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "F32",
];
/// Tiny models in the types of files that have kernels of groups of warps.
const WGMMA_TINY: &[&str] = &["llama", "gemma3_text", "gpt2", "qwen2_moe"];

/// What names of tests have that stop the device on purpose, or read the crate's sources.
const NOT_ON_A_CARD: &[&str] = &["reported", "every_kernel_of_every_image"];

/// The one of them that is served.
const SERVED: (&str, &str) = ("8b", "Q4_K_M");

/// Those of them that two cards share.
const SHARED_MODELS: &[(&str, &str)] = &[("8b", "Q8_0"), ("8b", "BF16")];
/// Tiny models whose layers two cards share: dense, with windows, with biases, with experts.
const SHARED_TINY: &[&str] = &["llama", "gemma3_text", "gpt2", "qwen2_moe", "qwen3_moe"];

/// What `realizar bench` measures: a name, and arguments.
const MEASURED: &[(&str, &str)] = &[
    ("tokens", "-p 0 -n 128 -b 1,8,32,128"),
    ("tokens after 4096", "-p 0 -n 64 -d 4096"),
    ("prompts", "-p 512,4096 -n 0"),
];

/// compute-sanitizer's tools.
const TOOLS: &[&str] = &["memcheck", "racecheck", "initcheck", "synccheck"];

impl Place {
    fn program(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn is_card(&self) -> bool {
        self.device == "cuda"
    }

    /// A command of the packed xtask.
    fn xtask(&self, name: impl Into<String>, args: &str) -> Item {
        let root = self.root.to_string_lossy();
        Item::new(name, self.program("xtask"), args).env("REALIZAR_ROOT", root)
    }

    fn parity(&self, kind: &str, model: &str, device: &str) -> Item {
        let engine = self.program("realizar").to_string_lossy().into_owned();
        self.xtask(model, &format!("parity --{kind} --device {device} --only {model} --bin"))
            .arg(engine)
    }

    /// The tests that the device runs. Those of [`NOT_ON_A_CARD`] are for the interpreter and the sources.
    fn tests(&self) -> impl Iterator<Item = &String> {
        let is_left_out = |name: &String| NOT_ON_A_CARD.iter().any(|part| name.contains(part));
        self.tests.iter().filter(move |name| !self.is_card() || !is_left_out(name))
    }

    fn test(&self, name: &str) -> Item {
        let item = Item::new(name, self.program("kernels-cuda-tests"), "--exact").arg(name);
        if self.is_card() { item.env("REALIZAR_CUDA_DEVICE", "driver") } else { item }
    }

    fn model(&self, (shape, ty): (&str, &str)) -> PathBuf {
        self.models.join(format!("{shape}-{}.gguf", ty.to_lowercase()))
    }

    /// A model that is served, and the same without a server. It has the tokenizer of a tiny model, whose tokens are
    /// letters, so that prompts have some four tokens a word.
    fn served(&self, device: &str) -> Vec<Item> {
        let (shape, ty) = SERVED;
        let file = self.models.join(format!("{shape}-{}-served.gguf", ty.to_lowercase()));
        let tokenizer = self.root.join("fixtures/archs/llama/model-f32.gguf");
        let made = self.made(SERVED).arg("--tokenizer").arg(tokenizer.to_string_lossy());
        let made = Item { name: format!("make {shape} {ty} with a tokenizer"), ..made };
        let results = self.root.join("served");
        let bare = Item::new(format!("{shape} {ty} alone"), self.program("realizar"), "bench")
            .arg(file.to_string_lossy())
            .args(&format!("--device {device} --json -r 3 -p 0 -n 128 -b 1,32"))
            .needs(&file)
            .json();
        let served = self
            .xtask(format!("{shape} {ty} served"), "load --streams 1,32 --prompts 8 --shared 0")
            .args("--twice 0 --requests 64 --max-tokens 128 -r 2 --args")
            .arg(format!("--device {device}"))
            .args("--bin")
            .arg(self.program("realizar").to_string_lossy())
            .args("--model")
            .arg(file.to_string_lossy())
            .args("--out")
            .arg(results.to_string_lossy())
            .needs(&file)
            .result(results.join("results.json"));
        vec![made.makes(file), bare, served]
    }

    /// The making of a model, which is left out where it is there or nothing asks for it.
    fn made(&self, model: (&str, &str)) -> Item {
        let (shape, ty) = model;
        let mut item =
            self.xtask(format!("make {shape} {ty}"), &format!("synth {shape} {PART} --ty {ty}"));
        if let Some(n) = self.layers {
            item = item.arg("--layers").arg(n.to_string());
        }
        item.makes(self.model(model)).seconds(420)
    }

    fn measured(&self, model: (&str, &str), device: &str) -> impl Iterator<Item = Item> {
        let file = self.model(model);
        MEASURED.iter().map(move |(what, args)| {
            let (shape, ty) = model;
            Item::new(format!("{shape} {ty} {what}"), self.program("realizar"), "bench")
                .arg(file.to_string_lossy())
                .args(&format!("--device {device} --json -r 3 {args}"))
                .needs(&file)
                .json()
        })
    }

    /// The items of a step; why it has none, where it cannot have any.
    pub(super) fn items(&self, step: Step) -> Result<Vec<Item>, String> {
        let device = self.device.as_str();
        if !self.is_card() && matches!(step, Step::Card | Step::Rates | Step::Wgpu | Step::Llama) {
            return Err("it needs a GPU".to_owned());
        }
        if device == "cpu" && step == Step::Ranks {
            return Err("it needs a GPU".to_owned());
        }
        if device == "cuda-interpreter" && matches!(step, Step::Bench | Step::Serve) {
            return Err("the interpreter's speed says nothing about a GPU".to_owned());
        }
        Ok(match step {
            Step::Card => vec![
                Item::new("driver", self.program("card_cuda"), "").json(),
                Item::new("nvidia-smi", "nvidia-smi", NVIDIA_SMI),
            ],
            Step::Tests => {
                // What the interpreter's own tests gave, beside the card.
                let opcodes = Item::new("opcodes", self.program("opcodes_cuda"), "")
                    .arg(self.root.join(OPCODES).to_string_lossy())
                    .seconds(180);
                let tests = self.tests().map(|name| self.test(name));
                self.is_card().then_some(opcodes).into_iter().chain(tests).collect()
            }
            Step::Rates => {
                let card = |what: &str| Item::new(what, self.program("card_cuda"), what).json();
                let products = |ty: &&str| {
                    let program = self.program("matvec_cuda");
                    Item::new(format!("products {ty}"), program, "0").arg(*ty).seconds(120)
                };
                let all = BLOCK_TYPES.iter().map(products);
                [card("rates"), card("launches")].into_iter().chain(all).collect()
            }
            Step::Parity => {
                self.tiny.iter().map(|name| self.parity("archs", name, device)).collect()
            }
            Step::Bits => self.tiny.iter().map(|name| self.parity("bits", name, device)).collect(),
            Step::Sanitizer => {
                let Some(program) = &self.sanitizer else {
                    return Err("compute-sanitizer is not here".to_owned());
                };
                let all = TOOLS.iter().flat_map(|tool| self.tests().map(move |name| (tool, name)));
                all.map(|(tool, name)| self.sanitized(program, tool, name)).collect()
            }
            Step::Bench => {
                MODELS.iter().flat_map(|&model| self.with_model(model, device)).collect()
            }
            Step::Serve => self.served(device),
            Step::Early => {
                if device == "cpu" {
                    return Err("it needs a GPU".to_owned());
                }
                let early = |item: Item| item.args("--cuda-dependent-launch");
                let tests = self.tests().map(|name| self.test(name).env(EARLY, "1"));
                let models = if self.is_card() { FEW_MODELS } else { &[] };
                let speeds = models.iter().flat_map(|&model| {
                    std::iter::once(self.made(model)).chain(self.measured(model, device).map(early))
                });
                tests.chain(speeds).collect()
            }
            Step::Wgmma => {
                if device == "cpu" {
                    return Err("it needs a GPU".to_owned());
                }
                let by_wgmma = |item: Item| item.args("--cuda-wgmma");
                let tests = self.tests().filter(|name| name.contains("wgmma"));
                let tests = tests.map(|name| self.test(name));
                let bits = self.tiny.iter().filter(|name| WGMMA_TINY.contains(&name.as_str()));
                let bits = bits.map(|name| by_wgmma(self.parity("bits", name, device)));
                let models = if self.is_card() { MODELS } else { &[] };
                let speeds = models.iter().flat_map(|&model| {
                    let prompts =
                        self.measured(model, device).filter(|item| item.name.ends_with("prompts"));
                    std::iter::once(self.made(model)).chain(prompts.map(by_wgmma))
                });
                tests.chain(bits).chain(speeds).collect()
            }
            Step::Bf16 => {
                if device == "cpu" {
                    return Err("it needs a GPU".to_owned());
                }
                let in_bf16 = |item: Item| item.args("--cuda-bf16-decode");
                let tests = self.tests().filter(|name| name.contains("levels"));
                let tests = tests.map(|name| self.test(name));
                let models = if self.is_card() { FEW_MODELS } else { &[] };
                let speeds = models.iter().flat_map(|&model| {
                    let tokens =
                        self.measured(model, device).filter(|item| !item.name.ends_with("prompts"));
                    std::iter::once(self.made(model)).chain(tokens.map(in_bf16))
                });
                tests.chain(speeds).collect()
            }
            Step::Ranks => {
                if self.is_card() && self.n_cards < 2 {
                    return Err(format!("it needs two GPUs, found {}", self.n_cards));
                }
                let shared = |item: Item| item.args("--tensor-parallel 2");
                let tiny = ["archs", "bits"].into_iter().flat_map(|kind| {
                    SHARED_TINY.iter().map(move |name| {
                        let item = shared(self.parity(kind, name, device));
                        Item { name: format!("{kind} {name}"), ..item }
                    })
                });
                let models = if self.is_card() { SHARED_MODELS } else { &[] };
                let speeds = models.iter().flat_map(|&model| {
                    let measured = self.measured(model, device).map(shared);
                    std::iter::once(self.made(model)).chain(measured)
                });
                tiny.chain(speeds).collect()
            }
            Step::Wgpu => {
                let parity = ["llama", "qwen3_moe"].map(|name| self.parity("archs", name, "wgpu"));
                let speeds = FEW_MODELS.iter().flat_map(|&model| self.with_model(model, "wgpu"));
                let path = |item: Item| match &self.libraries {
                    Some(path) => item.env("LD_LIBRARY_PATH", path.as_str()),
                    None => item,
                };
                parity.into_iter().chain(speeds).map(path).collect()
            }
            Step::Llama => {
                let Some(sources) = &self.llama else {
                    return Err("llama.cpp's sources, nvcc or cmake are not here".to_owned());
                };
                self.llama_items(sources)
            }
        })
    }

    /// The making of a model, then what is measured.
    fn with_model(&self, model: (&'static str, &'static str), device: &str) -> Vec<Item> {
        std::iter::once(self.made(model)).chain(self.measured(model, device)).collect()
    }

    fn sanitized(&self, program: &Path, tool: &str, test: &str) -> Item {
        let plain = self.test(test);
        let mut item = Item::new(format!("{tool} {test}"), program, "--error-exitcode 9 --tool")
            .arg(tool)
            .arg(plain.program.to_string_lossy());
        item.args.extend(plain.args);
        item.env = plain.env;
        item
    }

    fn llama_items(&self, sources: &Path) -> Vec<Item> {
        let build = self.root.join("llama-build");
        let (bench, batched) =
            (build.join("bin/llama-bench"), build.join("bin/llama-batched-bench"));
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let configure = Item::new("configure", "cmake", "-G")
            .arg("Unix Makefiles")
            .arg("-S")
            .arg(text(sources))
            .arg("-B")
            .arg(text(&build))
            .args("-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DCMAKE_BUILD_TYPE=Release")
            .args("-DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF")
            .makes(build.join("Makefile"));
        let make = Item::new("build", "cmake", "--build")
            .arg(text(&build))
            .args("--target llama-bench llama-batched-bench --parallel")
            .arg(self.n_cores.to_string())
            .needs(&build.join("Makefile"))
            .makes(batched.clone())
            .seconds(540);
        let mut items = vec![configure, make];
        for &model in FEW_MODELS {
            let ((shape, ty), file) = (model, self.model(model));
            items.push(self.made(model));
            items.push(
                Item::new(format!("{shape} {ty} alone"), &bench, "-ngl 99 -fa 1 -o json -r 3")
                    .args("-p 512,4096 -n 128 -m")
                    .arg(text(&file))
                    .needs(&file)
                    .needs(&batched)
                    .json(),
            );
            // Every sequence has 128 tokens and generates as many.
            items.push(
                Item::new(format!("{shape} {ty} batches"), &batched, "-ngl 99 -fa 1 -c 32768")
                    .args("-b 2048 -ub 512 -npp 128 -ntg 128 -npl 1,8,32,128 -m")
                    .arg(text(&file))
                    .needs(&file)
                    .needs(&batched),
            );
        }
        items
    }
}

impl Item {
    fn args(mut self, args: &str) -> Self {
        self.args.extend(args.split_whitespace().map(str::to_owned));
        self
    }

    /// Whether the file that it makes is written under another name first.
    pub(super) fn has_part(&self) -> bool {
        self.args.iter().any(|arg| arg == PART)
    }
}

/// What nvidia-smi is queried for.
const NVIDIA_SMI: &str = "--format=csv --query-gpu=name,driver_version,memory.total,memory.used,\
                          clocks.max.sm,clocks.max.memory,power.limit,pcie.link.gen.current";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use realizar_quant::BlockType;

    use super::*;

    #[test]
    fn products_are_timed_of_types_that_there_are_each_once() {
        let types = BLOCK_TYPES.iter().map(|name| BlockType::from_name(name));
        let types: Option<BTreeSet<_>> = types.map(|ty| Some(ty?.name())).collect();
        assert_eq!(types.map(|types| types.len()), Some(BLOCK_TYPES.len()));
    }
}
