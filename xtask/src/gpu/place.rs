//! The machine of a run: where programs, models and tools are, and the items that all plans are made of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use super::item::{Found, Item, PART};
use super::pack::{LIBRARIES, LLAMA};
use crate::shell;

/// What a run is told about its machine.
#[derive(clap::Args)]
pub(super) struct PlaceArgs {
    /// Where the models run: on the GPU; or elsewhere, to try the script without one.
    #[arg(long, default_value = "cuda", value_parser = ["cuda", "cuda-interpreter", "cpu"])]
    device: String,
    /// Where results go; by default the folder that the variable OUT names, or `results` in the packed folder.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Where made-up models go (40 GB); by default in memory where there is room, or in the packed folder.
    #[arg(long)]
    models: Option<PathBuf>,
    /// Layers of made-up models, instead of those of their shapes.
    #[arg(long)]
    layers: Option<u32>,
    /// The packed folder, instead of the one that this program is in.
    #[arg(long)]
    root: Option<PathBuf>,
    /// The tree of the packed commit, whose fixtures are used; the working directory by default.
    #[arg(long)]
    tree: Option<PathBuf>,
}

/// Where things are on the machine of a run.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The packed folder.
    pub(super) root: PathBuf,
    /// The tree.
    pub(super) tree: PathBuf,
    /// Where results go.
    pub(super) out: PathBuf,
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
    /// compute-sanitizer and ncu, where they are.
    pub(super) sanitizer: Option<PathBuf>,
    pub(super) ncu: Option<PathBuf>,
    /// llama.cpp's programs, where they were packed.
    pub(super) llama: Option<PathBuf>,
    /// The search path of libraries, where the engine has wgpu.
    pub(super) libraries: Option<String>,
    pub(super) n_cores: usize,
    /// GPUs that the driver finds.
    pub(super) n_gpus: usize,
}

/// By this variable the tests of the kernels launch them early.
const EARLY: &str = "REALIZAR_CUDA_EARLY_LAUNCHES";

/// Folder in memory, and the bytes that all models take there.
const MEMORY: &str = "/dev/shm";
const MODELS_BYTES: u64 = 45_000_000_000;

/// Shape and type of a made-up model.
pub(super) type Model = (&'static str, &'static str);

impl Place {
    /// What is on this machine.
    pub(super) fn find(args: &PlaceArgs) -> Result<Self> {
        let here = std::env::current_exe().context("the path of this program")?;
        let here = here.parent().context("a folder of this program")?;
        let absolute =
            |path: &Path| path.canonicalize().with_context(|| format!("open {}", path.display()));
        let root = absolute(args.root.as_deref().unwrap_or(here))?;
        let tree = absolute(args.tree.as_deref().unwrap_or(Path::new(".")))?;
        let archs = tree.join("fixtures/archs");
        ensure!(
            archs.is_dir(),
            "{} has no fixtures: start in the tree of the packed commit, or name it by --tree",
            tree.display()
        );
        let mut tiny = Vec::new();
        for entry in fs::read_dir(&archs).with_context(|| archs.display().to_string())? {
            let entry = entry?;
            if entry.path().join("expected.json").is_file() {
                tiny.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        tiny.sort();
        let out = args.out.clone().or_else(|| std::env::var_os("OUT").map(PathBuf::from));
        let out = out.unwrap_or_else(|| root.join("results"));
        fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
        let models = match &args.models {
            Some(models) => models.clone(),
            None => models_folder(&root)?,
        };
        fs::create_dir_all(&models).with_context(|| models.display().to_string())?;
        let toolkit = |name: &str| {
            let installed = Path::new("/usr/local/cuda/bin").join(name);
            shell::on_path(name).or_else(|| Some(installed).filter(|path| path.is_file()))
        };
        let mut place = Self {
            tests: Vec::new(),
            tiny,
            out: absolute(&out)?,
            models: absolute(&models)?,
            device: args.device.clone(),
            layers: args.layers,
            sanitizer: toolkit("compute-sanitizer"),
            ncu: toolkit("ncu"),
            llama: Some(root.join(LLAMA)).filter(|folder| folder.is_dir()),
            libraries: libraries(&root.join(LIBRARIES)),
            n_cores: thread::available_parallelism()?.get(),
            n_gpus: n_gpus(),
            root,
            tree,
        };
        place.tests = place.listed_tests()?;
        Ok(place)
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(super) fn is_gpu(&self) -> bool {
        self.device == "cuda"
    }

    /// An error for what only a GPU does.
    pub(super) fn needs_gpu(&self) -> Result<(), String> {
        if self.is_gpu() { Ok(()) } else { Err("it needs a GPU".to_owned()) }
    }

    /// An error for what the CPU has no part in.
    pub(super) fn needs_cuda(&self) -> Result<(), String> {
        if self.device == "cpu" { Err("it needs a CUDA device".to_owned()) } else { Ok(()) }
    }

    /// The names that the program of the tests lists for the device.
    fn listed_tests(&self) -> Result<Vec<String>> {
        let item = self.tests("list", &[]);
        let mut command = Command::new(&item.program);
        command.arg("--list").envs(item.env.iter().map(|(name, value)| (name, value)));
        let json = shell::json(&mut command)?;
        serde_json::from_value(json).context("the list of tests")
    }

    /// A command of the packed xtask.
    pub(super) fn xtask(&self, name: impl Into<String>, args: &str) -> Item {
        let tree = self.tree.to_string_lossy();
        Item::new(name, self.program("xtask"), args).env("REALIZAR_ROOT", tree)
    }

    /// A tiny model's parity of a kind.
    pub(super) fn parity(&self, kind: &str, model: &str, device: &str) -> Item {
        self.xtask(model, &format!("parity --{kind} --device {device} --only {model} --bin"))
            .path(&self.program("realizar"))
    }

    /// The kernels' tests with these parts of names, in one process.
    pub(super) fn tests(&self, name: &str, filters: &[&str]) -> Item {
        let item = Item::new(name, self.program("kernel-tests"), "--threads")
            .arg(self.n_cores.clamp(1, 8).to_string())
            .args(&filters.join(" "))
            .result(Found::Tests);
        if self.is_gpu() { item.env("REALIZAR_CUDA_DEVICE", "driver") } else { item }
    }

    /// One of the tests.
    pub(super) fn test(&self, name: &str) -> Item {
        let item = self.tests(name, &["--exact", name]);
        Item { result: Found::Text, ..item }
    }

    pub(super) fn model(&self, (shape, ty): Model) -> PathBuf {
        self.models.join(format!("{shape}-{}.gguf", ty.to_lowercase()))
    }

    /// The making of a model, which is left out where it is there or nothing asks for it.
    pub(super) fn made(&self, model: Model) -> Item {
        self.made_with(model, self.layers, self.model(model))
    }

    pub(super) fn made_with(&self, (shape, ty): Model, layers: Option<u32>, file: PathBuf) -> Item {
        let mut item =
            self.xtask(format!("make {shape} {ty}"), &format!("synth {shape} {PART} --ty {ty}"));
        if let Some(n) = layers {
            item = item.arg("--layers").arg(n.to_string());
        }
        item.makes(file).seconds(420)
    }

    /// The speed of a model's file.
    pub(super) fn speed(&self, name: String, file: &Path, device: &str) -> Item {
        Item::new(name, self.program("realizar"), "bench")
            .path(file)
            .args(&format!("--device {device} --json"))
            .needs(file)
            .result(Found::Json)
    }
}

impl Item {
    /// The same with dependent launches of the kernels' tests.
    pub(super) fn early(self) -> Self {
        self.env(EARLY, "1")
    }
}

/// Where models go: in memory where all of them fit, or beside the programs.
fn models_folder(root: &Path) -> Result<PathBuf> {
    let memory = Path::new(MEMORY);
    let is_large = memory.is_dir() && free_bytes(memory)? > MODELS_BYTES;
    Ok(if is_large { memory.join("realizar-models") } else { root.join("models") })
}

#[cfg(unix)]
fn free_bytes(folder: &Path) -> Result<u64> {
    let about = rustix::fs::statvfs(folder).with_context(|| folder.display().to_string())?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Result<u64> {
    Ok(0)
}

/// The GPUs that nvidia-smi lists, a line for each; none where it is not there.
fn n_gpus() -> usize {
    let listed = Command::new("nvidia-smi").arg("--list-gpus").output();
    let listed = listed.ok().filter(|output| output.status.success());
    listed.map_or(0, |output| String::from_utf8_lossy(&output.stdout).lines().count())
}

/// The search path of libraries with those of a folder in front, if there is one.
fn libraries(folder: &Path) -> Option<String> {
    let own = folder.is_dir().then(|| folder.to_string_lossy().into_owned())?;
    let others = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    Some(if others.is_empty() { own } else { format!("{own}:{others}") })
}
