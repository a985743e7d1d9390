//! `cargo xtask kernels`: checks the shaders of `kernels-wgpu`, and compiles the CUDA kernels of
//! `kernels-cuda` and of the PTX interpreter's tests.
//!
//! The CUDA compiler comes from Python packages of pinned versions, which are installed below
//! cargo's target folder, and needs gcc. The same sources give the same images, byte for byte, so only those are made whose
//! ingredients changed.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::shell;

pub(crate) mod images;

/// The compiler's packages, and what packs images. Version 13.0 makes PTX 9.0, which drivers from 580 on take.
const COMPILER: &[&str] = &[
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
    "brotli==1.2.1",
];

/// Packs a file: the packages' folder, the file, and what it becomes. A module says the same for each of its block types and sizes,
/// so the window holds all of it: images are 0.55 of what gzip, whose window is 32 KiB, makes of them.
const PACK: &str = "\
import sys
sys.path.insert(0, sys.argv[1])
import brotli
with open(sys.argv[2], 'rb') as text, open(sys.argv[3], 'wb') as packed:
    packed.write(brotli.compress(text.read(), quality=11, lgwin=24))
";

/// Where the interpreter's test kernels lie.
const INTERPRETED: &str = "crates/ptx/tests/kernels";

/// Arguments of `cargo xtask kernels`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the kernels in this language
    language: Option<Language>,
}

/// What kernels are written in.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Language {
    /// The shaders of `kernels-wgpu`
    Wgsl,
    /// The kernels of `kernels-cuda` and of the interpreter's tests
    Cuda,
}

/// Checks or makes what the arguments ask for.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.language != Some(Language::Cuda) {
        let shaders = ["--package", "realizar-kernels-wgpu", "--test", "shaders"];
        shell::check(shell::cargo().arg("test").args(shaders).args(["--", "--nocapture"]))?;
    }
    if args.language != Some(Language::Wgsl) {
        build_images()?;
        build_interpreted()?;
    }
    Ok(())
}

/// The kernels that ship: an image for each source that is not what it would be made to, and the list of hashes.
fn build_images() -> Result<()> {
    let root = shell::root();
    fs::create_dir_all(root.join(images::IMAGES))?;
    // What images are made of is what their sources are before they are compiled.
    let all = images::wanted(&image_sources(&root)?)?;
    let stale: Vec<_> = all.iter().filter(|image| !image.is_current(&root)).collect();
    println!("kernels: {} of {} images are stale", stale.len(), all.len());
    if !stale.is_empty() {
        let compiler = Compiler::install()?;
        let left = Mutex::new(stale.into_iter());
        let next = || left.lock().expect("no thread panics").next();
        // A thread for each core: compilers are programs of one.
        thread::scope(|scope| {
            let work = || -> Result<()> {
                while let Some(image) = next() {
                    build_image(&compiler, &root, &image.source)?;
                }
                Ok(())
            };
            let n_threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
            let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
        })?;
    }
    let path = root.join(images::LIST);
    fs::write(&path, images::list(&root, &all)?).with_context(|| path.display().to_string())
}

/// The sources of images, each with how it is compiled.
pub(crate) fn image_sources(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let sources = sources(&root.join(images::SOURCES))?;
    let recipe = |source: &Path| {
        let (arch, _) = image_archs(source);
        format!("{} {} compute_{arch}", COMPILER.join(" "), IMAGE_OPTIONS.join(" "))
    };
    Ok(sources.into_iter().map(|source| (source.clone(), recipe(&source))).collect())
}

/// Products and sums are not contracted: a sum has the same bits wherever its function was inlined, and sources say where
/// they want `fmaf`.
const IMAGE_OPTIONS: &[&str] = &["-fmad=false"];
/// What an image is compiled for, and the cards that it is assembled for. That is the base of what is supported, but for the
/// products whose instructions only cards of capability 9.0 have.
fn image_archs(source: &Path) -> (&'static str, &'static [&'static str]) {
    if source.ends_with("wgmma.cu") { ("90a", &["90a"]) } else { ("80", &["80", "90"]) }
}

/// The image of a source.
fn build_image(compiler: &Compiler, root: &Path, source: &Path) -> Result<()> {
    let (arch, cards) = image_archs(source);
    let ptx = compiler.compile(source, IMAGE_OPTIONS, arch, cards)?;
    let image = root.join(images::IMAGES).join(images::image_name(source));
    compiler.pack(&ptx, &image)?;
    let len = |file: &Path| Ok::<_, std::io::Error>(fs::metadata(file)?.len());
    println!("{}: {} bytes of PTX, {} packed", source.display(), len(&ptx)?, len(&image)?);
    Ok(())
}

/// The kernels that only tests run, as text with the hash of the source in its first line; those that have it are kept.
fn build_interpreted() -> Result<()> {
    for source in sources(&shell::root().join(INTERPRETED))? {
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let first_line = format!("// source: {name} {}\n", images::hash(&source)?);
        let made = source.with_extension("ptx");
        if fs::read_to_string(&made).is_ok_and(|text| text.starts_with(&first_line)) {
            continue;
        }
        // Dependent launches are not in older instruction sets.
        let arch = if source.ends_with("dependent.cu") { "90" } else { "80" };
        let ptx = Compiler::install()?.compile(&source, &[], arch, &[arch])?;
        let text = [first_line.into_bytes(), fs::read(ptx)?].concat();
        println!("{}: {} bytes of PTX", source.display(), text.len());
        fs::write(made, text)?;
    }
    Ok(())
}

/// The `.cu` files of a folder, by name.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = images::files(folder)?;
    files.retain(|file| file.extension().is_some_and(|e| e == "cu"));
    ensure!(!files.is_empty(), "no .cu files in {}", folder.display());
    Ok(files)
}

/// nvcc and ptxas, and what packs what they make.
struct Compiler {
    packages: PathBuf,
    scratch: PathBuf,
}

impl Compiler {
    /// Installs the packages, unless they are there in the pinned versions.
    fn install() -> Result<Self> {
        let folder = shell::target_dir()?.join("cuda-compiler");
        let (packages, stamp) = (folder.join("packages"), folder.join("installed"));
        let wanted = COMPILER.join("\n");
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(Self { packages, scratch: folder });
        }
        println!("kernels: install {}", COMPILER.join(" "));
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let mut pip = shell::command("python3");
        pip.args(["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        shell::check(pip.args(["--no-deps", "--target"]).arg(&packages).args(COMPILER))?;
        fs::write(stamp, wanted)?;
        Ok(Self { packages, scratch: folder })
    }

    /// A program of the compiler.
    fn program(&self, name: &str) -> Command {
        shell::command(self.packages.join("nvidia/cu13/bin").join(name))
    }

    /// The file with the PTX of a source for a compute capability, ten times which is `arch`.
    ///
    /// nvcc passes inline assembly on unread, so ptxas assembles the text for each of `cards`; what it
    /// makes is not kept.
    fn compile(
        &self,
        source: &Path,
        options: &[&str],
        arch: &str,
        cards: &[&str],
    ) -> Result<PathBuf> {
        let folder = source.parent().context("a source has a folder")?;
        let name = source.file_name().context("a source has a name")?;
        let made = |extension| self.scratch.join(name).with_extension(extension);
        let (ptx, cubin) = (made("ptx"), made("cubin"));
        let mut nvcc = self.program("nvcc");
        nvcc.current_dir(folder).args(["-ptx", "-O3", "-Werror", "all-warnings"]);
        nvcc.args(options).arg(format!("-arch=compute_{arch}")).arg(name).arg("-o").arg(&ptx);
        shell::check(&mut nvcc).with_context(|| source.display().to_string())?;
        for card in cards {
            let mut ptxas = self.program("ptxas");
            ptxas.args(["--warning-as-error", &format!("-arch=sm_{card}")]);
            shell::check(ptxas.arg(&ptx).arg("-o").arg(&cubin))
                .with_context(|| source.display().to_string())?;
        }
        Ok(ptx)
    }

    /// Packs a file, and names what it becomes.
    fn pack(&self, file: &Path, packed: &Path) -> Result<()> {
        let mut python = shell::command("python3");
        python.args(["-I", "-c", PACK]).arg(&self.packages).args([file, packed]);
        shell::check(&mut python).with_context(|| packed.display().to_string())
    }
}
