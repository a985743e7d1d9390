//! `cargo xtask kernels`: checks the shaders of `kernels-wgpu`, and compiles the CUDA kernels of
//! `kernels-cuda` and of the PTX interpreter's tests.
//!
//! The CUDA compiler comes from Python packages of pinned versions, which are installed below
//! cargo's target folder, and needs gcc. The same sources give the same images, byte for byte, so only those are made whose
//! ingredients changed. A report beside the images has the resources that each kernel takes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::compiler::{COMPILER, Compiler, in_parallel};
use crate::shell;

mod compiler;
pub(crate) mod images;
pub(crate) mod resources;
mod sass;

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
        resources::update(&shell::root())?;
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
        in_parallel(stale, |image| build_image(&compiler, &root, &image.source))?;
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
