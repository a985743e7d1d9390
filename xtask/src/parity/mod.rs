//! `cargo xtask parity`: hold the engine against reference outputs, by its command line.
//!
//! [`archs`] compares tiny models with transformers, [`bits`] compares the engine with itself bit
//! by bit, [`tiers`] compares the default arithmetic of the CPU's tiers, [`real`] compares published models with
//! an F32 reference, [`memory`] holds their peak memory against their size, [`models`] writes the table of all
//! architectures.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::lavapipe::{self, Width};
use crate::shell;
use crate::totals::Totals;

mod archs;
mod bits;
mod covering;
mod engine;
mod memory;
mod models;
mod real;
mod tiers;

/// The chunk sizes that a GPU runs with the model loaded once, to compare their bits.
const GPU_CHUNKS: &[usize] = &[1, 7, 16];

/// The tier without vector instructions.
const PLAIN: &str = "scalar";

/// The option that changes no bits.
const DEPENDENT_LAUNCH: &str = "--cuda-dependent-launch";

/// `cargo xtask parity`; without a choice, the tiny models and bit-identity are checked.
#[derive(clap::Args, Clone, Default)]
pub(crate) struct Args {
    /// Compare tiny models of each architecture with transformers.
    #[arg(long)]
    archs: bool,
    /// Compare logits bit by bit over numbers of threads and chunk sizes.
    #[arg(long)]
    bits: bool,
    /// Compare published models with the F32 reference (`cargo xtask setup` fetches them).
    #[arg(long)]
    real: bool,
    /// Compare the default arithmetic of each tier of the CPU with plain Rust's, on few tiny models.
    #[arg(long)]
    tiers: bool,
    /// Hold the peak memory of published models against their size (Linux alone).
    #[arg(long)]
    memory: bool,
    /// Compare the tiny models on the CPU, on lavapipe and on the interpreter of the CUDA kernels, and write
    /// docs/models.md and fixtures/archs/parity.md; with --only, print the figures.
    #[arg(long, conflicts_with_all = ["archs", "bits", "real", "tiers", "memory", "plain", "lavapipe", "tier"])]
    table: bool,
    /// Where the models run: cpu, wgpu, wgpu:N, cuda, cuda:N or cuda-interpreter, which needs an engine with that crate
    /// feature. A GPU is compared with the CPU's references.
    #[arg(long, default_value = "cpu", value_parser = device)]
    device: String,
    /// Use none of the features that a GPU may lack.
    #[arg(long)]
    plain: bool,
    /// Let wgpu see lavapipe (Vulkan on the CPU) alone; it is too slow for perplexities.
    #[arg(long)]
    lavapipe: bool,
    /// Bits of lavapipe's vectors, which make subgroups of 4, 8 or 16.
    #[arg(long, value_enum, requires = "lavapipe")]
    width: Option<Width>,
    /// Run the last N layers and the head on the GPU, the rest on the CPU.
    #[arg(long, value_name = "N")]
    gpu_layers: Option<usize>,
    /// Divide every layer among N cards, or interpreters of their kernels.
    #[arg(long, value_name = "N")]
    tensor_parallel: Option<usize>,
    /// Multiply prompts by the instructions of groups of warps, on cards that have them or the interpreter of the kernels.
    #[arg(long, conflicts_with = "archs")]
    cuda_wgmma: bool,
    /// Launch kernels before those in front of them have ended, and compare with launches that wait.
    #[arg(long, conflicts_with = "archs")]
    cuda_dependent_launch: bool,
    /// Round the activations of generated tokens to BF16.
    #[arg(long, conflicts_with = "archs")]
    cuda_bf16_decode: bool,
    /// Read each tiny model from one of its formats: one from safetensors, the next from GGUF.
    #[arg(long)]
    one_format: bool,
    /// Leave out the tiny models all of whose operations others have too.
    #[arg(long)]
    distinct: bool,
    /// Only some tiny models that have all operations together.
    #[arg(long, conflicts_with_all = ["distinct", "only"])]
    few: bool,
    /// Run only the first N prompts of each published model, and no perplexities.
    #[arg(long, value_name = "N")]
    prompts: Option<usize>,
    /// A folder of tiny models instead of `fixtures/archs`.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Comma-separated names of tiny or real models; all by default.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Tier of the CPU's kernels, or `all` for each that this machine has, one after the other.
    #[arg(long, value_name = "TIER")]
    tier: Option<String>,
    /// An engine to use instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
}

impl Args {
    /// What `cargo xtask test` runs on the committed models.
    pub(crate) fn tiny() -> Self {
        Self { archs: true, bits: true, ..Self::on_cpu() }
    }

    /// The committed models against their goldens alone.
    pub(crate) fn archs() -> Self {
        Self { archs: true, ..Self::on_cpu() }
    }

    /// The first prompt of each published model, for devices that are slow.
    pub(crate) fn first_prompts() -> Self {
        Self { real: true, prompts: Some(1), ..Self::on_cpu() }
    }

    /// The published models against their references and themselves.
    pub(crate) fn published() -> Self {
        Self { real: true, bits: true, ..Self::on_cpu() }
    }

    fn on_cpu() -> Self {
        Self { device: "cpu".to_owned(), ..Self::default() }
    }

    /// What `cargo xtask test` runs on the published models.
    pub(crate) fn real() -> Self {
        Self { memory: true, ..Self::published() }
    }

    /// The same with this engine.
    pub(crate) fn with_engine(self, bin: PathBuf) -> Self {
        Self { bin: Some(bin), ..self }
    }

    /// The same on lavapipe with vectors of `width`.
    pub(crate) fn on_lavapipe(self, width: Width) -> Self {
        Self { device: "wgpu".to_owned(), lavapipe: true, width: Some(width), ..self }
    }

    /// Each model in one of its formats, on the interpreter of the CUDA kernels.
    pub(crate) fn interpreted(self) -> Self {
        Self { device: "cuda-interpreter".to_owned(), ..self }.in_one_format()
    }

    /// The same on the first GPU.
    pub(crate) fn on_wgpu(self) -> Self {
        Self { device: "wgpu".to_owned(), ..self }
    }

    /// The same with none of the features that a GPU may lack.
    pub(crate) fn plainly(self) -> Self {
        Self { plain: true, ..self }
    }

    /// Each model in one of its formats.
    pub(crate) fn in_one_format(self) -> Self {
        Self { one_format: true, ..self }
    }

    /// Models with and without states, and only their last layer on the GPU.
    pub(crate) fn split(self) -> Self {
        let only = ["llama", "gemma3_text", "lfm2"].map(str::to_owned).into();
        Self { gpu_layers: Some(1), only, ..self }
    }

    /// The same without the tiny models all of whose operations others have too.
    pub(crate) fn of_distinct(self) -> Self {
        Self { distinct: true, ..self }
    }

    /// Some of the models, which have all operations together.
    pub(crate) fn of_few(self) -> Self {
        Self { few: true, ..self }
    }

    /// These models.
    fn of_each(self, names: &[&str]) -> Self {
        Self { only: names.iter().map(|name| (*name).to_owned()).collect(), ..self }
    }

    /// The tiers of the CPU against one another.
    pub(crate) fn tiers() -> Self {
        Self { tiers: true, ..Self::on_cpu() }
    }

    /// The same in plain Rust.
    pub(crate) fn in_plain_rust(self) -> Self {
        Self { tier: Some(PLAIN.to_owned()), ..self }
    }

    fn on_gpu(&self) -> bool {
        self.device != "cpu"
    }

    fn on_wgpu_alone(&self) -> bool {
        self.device.starts_with("wgpu")
    }

    /// Models that are computed at the same time. One has a GPU for itself; what pretends to be a GPU uses one
    /// core for much of its work.
    fn n_workers(&self) -> usize {
        let is_pretended = self.lavapipe || self.device == "cuda-interpreter";
        let n_cores = || std::thread::available_parallelism().map_or(1, usize::from);
        if is_pretended { n_cores().min(4) } else { 1 }
    }

    /// The device and how it is used, for headings.
    fn place(&self) -> String {
        let mut place = self.device.clone();
        if let Some(tier) = &self.tier {
            place += &format!(" ({tier})");
        }
        if self.lavapipe {
            place += " (lavapipe";
            if let Some(width) = self.width {
                place += &format!(", {} bits", width.bits());
            }
            place += ")";
        }
        if self.plain {
            place += ", plain";
        }
        if let Some(n) = self.gpu_layers {
            place += &format!(", --gpu-layers {n}");
        }
        if let Some(n) = self.tensor_parallel {
            place += &format!(", --tensor-parallel {n}");
        }
        for option in self.cuda_options() {
            place += ", ";
            place += option;
        }
        place
    }

    /// The binary on the device that was requested.
    fn engine(&self, bin: PathBuf) -> Result<engine::Engine> {
        if !self.on_wgpu_alone() && (self.plain || self.lavapipe) {
            bail!("--plain and --lavapipe are for --device wgpu");
        }
        if !self.on_gpu() && self.gpu_layers.is_some() {
            bail!("--gpu-layers needs a GPU");
        }
        if self.on_gpu() && self.memory {
            bail!("--memory is measured on the CPU alone");
        }
        let mut options = vec!["--device".to_owned(), self.device.clone()];
        options.extend(self.plain.then(|| "--gpu-plain".to_owned()));
        if let Some(n) = self.gpu_layers {
            options.extend(["--gpu-layers".to_owned(), n.to_string()]);
        }
        if let Some(n) = self.tensor_parallel {
            options.extend(["--tensor-parallel".to_owned(), n.to_string()]);
        }
        options.extend(self.cuda_options().map(str::to_owned));
        options.extend(self.tier.iter().flat_map(|tier| ["--cpu-tier".to_owned(), tier.clone()]));
        let environment =
            if self.lavapipe { lavapipe::environment(self.width)? } else { Vec::new() };
        Ok(engine::Engine::new(bin, options, environment))
    }

    /// Options of the CUDA backend.
    fn cuda_options(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.cuda_wgmma, "--cuda-wgmma"),
            (self.cuda_bf16_decode, "--cuda-bf16-decode"),
            (self.cuda_dependent_launch, DEPENDENT_LAUNCH),
        ];
        all.into_iter().filter_map(|(is_on, option)| is_on.then_some(option))
    }

    fn wants(&self, name: &str) -> bool {
        let is_named = self.only.is_empty() || self.only.iter().any(|n| n == name);
        is_named && (!self.few || covering::WIDTHS.contains(&name))
    }
}

/// A device by its name.
fn device(text: &str) -> Result<String, String> {
    let index = text.strip_prefix("wgpu:").or_else(|| text.strip_prefix("cuda:"));
    match (text, index.map(str::parse::<u32>)) {
        ("cpu" | "wgpu" | "cuda" | "cuda-interpreter", _) | (_, Some(Ok(_))) => Ok(text.to_owned()),
        _ => Err("expected cpu, wgpu, wgpu:N, cuda, cuda:N or cuda-interpreter".to_owned()),
    }
}

/// Run the chosen comparisons and print their tables.
pub(crate) fn run(args: &Args) -> Result<Totals> {
    // Programs start in the repository root, so paths relative to the caller are made absolute.
    let absolute = |p: &PathBuf| p.canonicalize().with_context(|| format!("open {}", p.display()));
    let build = if args.table { shell::build_whole_engine } else { shell::build_engine };
    let bin = args.bin.as_ref().map_or_else(build, absolute)?;
    let committed = shell::root().join("fixtures/archs");
    let dir = args.dir.as_ref().map_or(Ok(committed), absolute)?;
    if args.table {
        return models::run(&bin, &dir, args);
    }
    if args.tier.as_deref() == Some("all") {
        let mut totals = Totals::default();
        for tier in available_tiers(&bin)? {
            let bin = Some(bin.clone());
            totals.add(run(&Args { tier: Some(tier), bin, ..args.clone() })?);
        }
        return Ok(totals);
    }
    if args.tiers {
        let tiers = available_tiers(&bin)?;
        ensure!(tiers.first().is_some_and(|tier| tier == PLAIN), "no plain Rust among {tiers:?}");
        if tiers.len() == 1 {
            println!("{PLAIN} is the only tier of this machine: no others are compared");
        }
        return tiers::run(&bin, &dir, &tiers);
    }
    let engine = args.engine(bin)?;
    let all = !(args.archs || args.bits || args.real || args.memory);
    let mut totals = Totals::default();
    if args.archs || all {
        totals.add(archs::run(&engine, &dir, args)?);
    }
    if args.bits || all {
        totals.add(bits::run(&engine, &dir, args)?);
    }
    if args.real {
        totals.add(real::run(&engine, args)?);
    }
    if args.memory {
        totals.add(memory::run(&engine, args)?);
    }
    let elsewhere = args.memory && !cfg!(target_os = "linux");
    if totals == Totals::default() && !elsewhere {
        bail!("parity: nothing was compared");
    }
    Ok(totals)
}

/// The tiers of this machine, the best last.
fn available_tiers(bin: &Path) -> Result<Vec<String>> {
    let report = shell::json(shell::command(bin).args(["doctor", "--json"]))?;
    let tiers = report["tiers"]["available"].as_array().context("no tiers in the report")?;
    Ok(tiers.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_and_their_options_are_passed_on() {
        let good = ["cpu", "wgpu", "wgpu:1", "cuda", "cuda:0", "cuda-interpreter"];
        assert!(good.into_iter().all(|text| device(text).is_ok()));
        assert!(["wgpu:", "cuda:x", "cpu:0", "rocm"].into_iter().all(|text| device(text).is_err()));
        let options = |args: &Args| args.engine(PathBuf::new()).map(|engine| engine.options);
        let tiny = Args::tiny();
        assert_eq!((tiny.place(), tiny.on_gpu()), ("cpu".to_owned(), false));
        assert_eq!(options(&tiny).unwrap(), ["--device", "cpu"]);
        assert!(options(&tiny.clone().plainly()).is_err());
        assert!(options(&tiny.clone().split()).is_err());
        let gpu = tiny.on_wgpu().plainly();
        assert_eq!((gpu.place(), gpu.on_gpu()), ("wgpu, plain".to_owned(), true));
        assert_eq!(options(&gpu).unwrap(), ["--device", "wgpu", "--gpu-plain"]);
        assert!(options(&Args::real().on_wgpu()).is_err());
        let lavapipe = Args::archs().on_lavapipe(Width::W512);
        assert_eq!(lavapipe.place(), "wgpu (lavapipe, 512 bits)");
        let avx2 = Args { tier: Some("avx2".to_owned()), ..Args::archs() };
        assert_eq!(avx2.place(), "cpu (avx2)");
        assert_eq!(options(&avx2).unwrap(), ["--device", "cpu", "--cpu-tier", "avx2"]);
        let early = Args { cuda_dependent_launch: true, cuda_wgmma: true, ..Args::tiny() };
        assert_eq!(options(&early).unwrap()[2..], ["--cuda-wgmma", "--cuda-dependent-launch"]);
        assert_eq!(early.place(), "cpu, --cuda-wgmma, --cuda-dependent-launch");
        let split = Args::archs().split().on_wgpu();
        assert_eq!(split.place(), "wgpu, --gpu-layers 1");
        assert_eq!(options(&split).unwrap(), ["--device", "wgpu", "--gpu-layers", "1"]);
        assert!(split.wants("llama") && split.wants("gemma3_text") && !split.wants("gpt2"));
    }
}
