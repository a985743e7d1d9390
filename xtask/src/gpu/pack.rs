//! Puts all that a run needs into a folder: programs without their symbols, the tiny models, a script, and
//! `pack.json`, which says what was packed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shell;

/// `cargo xtask gpu pack`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder, which is made again.
    dir: PathBuf,
    /// An engine to pack instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
    /// llama.cpp's source folder, to build and measure it there.
    #[arg(long)]
    llama_cpp: Option<PathBuf>,
    /// Also write the folder to this compressed archive (needs tar).
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
}

/// What a folder holds.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Packed {
    /// The commit that was built.
    pub(super) commit: String,
    /// Bytes of all files.
    pub(super) n_bytes: u64,
}

/// The folder of libraries in a packed one.
pub(super) const LIBRARIES: &str = "lib";
/// What Vulkan is loaded by, which a machine with a driver of Vulkan need not have.
const VULKAN: &str = "libvulkan.so.1";

/// The folder of what the tests of the interpreter ran.
pub(super) const OPCODES: &str = "opcodes";

/// The name of the file that says so.
const FILE: &str = "pack.json";

impl Packed {
    /// What `folder` holds.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = fs::read_to_string(&path).with_context(|| {
            format!("{} was not made by `cargo xtask gpu pack`", folder.display())
        })?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }
}

/// The script that a run is started by.
const SCRIPT: &str = "#!/bin/sh\n# Runs the steps of `cargo xtask gpu run` in this folder; `--help` names them.\n\
                      exec \"$(dirname \"$0\")/xtask\" gpu run \"$@\"\n";
/// Folders of llama.cpp's sources that its programs are not built from.
const LEFT_OUT: &[&str] = &[".git", "build", "docs", "media", "models"];

/// Builds and packs.
pub(super) fn run(args: &Args) -> Result<()> {
    let absolute = |p: &PathBuf| p.canonicalize().with_context(|| format!("open {}", p.display()));
    let engine = args.bin.as_ref().map_or_else(shell::build_whole_engine, absolute)?;
    let mut programs = vec![
        ("realizar".to_owned(), engine),
        ("xtask".to_owned(), std::env::current_exe().context("the path of this program")?),
        ("kernels-cuda-tests".to_owned(), kernel_tests()?),
    ];
    for name in ["card_cuda", "matvec_cuda", "opcodes_cuda"] {
        programs.push((name.to_owned(), example(name)?));
    }

    // A folder of another kind is not removed.
    if args.dir.exists() {
        Packed::read(&args.dir)?;
        fs::remove_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    }
    fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    for (name, program) in &programs {
        place_program(program, &args.dir.join(name))?;
    }
    opcodes(&args.dir.join(OPCODES))?;
    let models = Path::new("fixtures/archs");
    copy(&shell::root().join(models), &args.dir.join(models), &[])?;
    match vulkan_loader() {
        Some(library) => {
            fs::create_dir_all(args.dir.join(LIBRARIES))?;
            fs::copy(&library, args.dir.join(LIBRARIES).join(VULKAN))
                .with_context(|| library.display().to_string())?;
        }
        None => println!("{VULKAN} is not here: wgpu finds a card where it is installed"),
    }
    if let Some(sources) = &args.llama_cpp {
        let is_source = sources.join("ggml/src/ggml-cuda").is_dir();
        ensure!(is_source, "{} is not a source folder of llama.cpp", sources.display());
        copy(sources, &args.dir.join("llama.cpp"), LEFT_OUT)?;
    }
    let script = args.dir.join("run.sh");
    fs::write(&script, SCRIPT).with_context(|| script.display().to_string())?;
    executable(&script)?;
    let packed = Packed { commit: commit(), n_bytes: n_bytes(&args.dir)? };
    fs::write(args.dir.join(FILE), serde_json::to_string_pretty(&packed)? + "\n")?;
    println!("{}: {} MiB, commit {}", args.dir.display(), packed.n_bytes >> 20, packed.commit);
    if let Some(archive) = &args.tar {
        let mut tar = std::process::Command::new("tar");
        tar.arg("-czf").arg(archive).arg("-C").arg(&args.dir).arg(".");
        shell::check(&mut tar)?;
        println!("{}: {} MiB", archive.display(), fs::metadata(archive)?.len() >> 20);
    }
    Ok(())
}

/// Builds the tests of the kernels and returns their program.
fn kernel_tests() -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["test", "--package", "realizar-kernels-cuda", "--all-features", "--lib"]);
    let text = shell::output(cargo.args(["--no-run", "--message-format", "json"]))?;
    built(&text).context("cargo names no program of the tests")
}

/// Runs the tests of the interpreter, which write down what they ran.
fn opcodes(to: &Path) -> Result<()> {
    let mut cargo = shell::cargo();
    cargo.args(["test", "--package", "realizar-ptx", "--test", "it", "--quiet"]);
    // The tests run in the folder of their crate.
    let folder = std::path::absolute(to).with_context(|| to.display().to_string())?;
    shell::output(cargo.env("REALIZAR_PTX_CASES", folder))?;
    let n = fs::read_dir(to).with_context(|| to.display().to_string())?.count();
    println!("{}: {n} cases", to.display());
    Ok(())
}

/// Builds an example of the kernels and returns its program.
fn example(name: &str) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--release", "--package", "realizar-kernels-cuda", "--example", name]);
    let text = shell::output(cargo.args(["--message-format", "json"]))?;
    built(&text).with_context(|| format!("cargo names no program of {name}"))
}

/// The last program that cargo's messages name.
fn built(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages.filter_map(|m| Some(PathBuf::from(m["executable"].as_str()?)));
    programs.next_back()
}

/// The loader of Vulkan on this machine.
fn vulkan_loader() -> Option<PathBuf> {
    let listed = shell::output(shell::command("ldconfig").arg("-p")).ok()?;
    library(&listed, VULKAN)
}

/// Where the list of `ldconfig -p` has a library.
fn library(listed: &str, name: &str) -> Option<PathBuf> {
    let of = |line: &str| {
        let (found, path) = line.split_once("=>")?;
        (found.split_whitespace().next()? == name).then(|| PathBuf::from(path.trim()))
    };
    listed.lines().find_map(of)
}

/// Copies a program, without its symbols where there is a `strip`.
fn place_program(from: &Path, to: &Path) -> Result<()> {
    match shell::on_path("strip") {
        Some(strip) => shell::check(std::process::Command::new(strip).arg("-o").arg(to).arg(from)),
        None => {
            fs::copy(from, to).with_context(|| from.display().to_string())?;
            Ok(())
        }
    }
}

/// Copies a folder, but for some of what is in it.
fn copy(from: &Path, to: &Path, left_out: &[&str]) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let (path, name) = entry.map(|e| (e.path(), e.file_name()))?;
        if left_out.iter().any(|&out| name == out) {
            continue;
        }
        // Links to what is elsewhere would lead nowhere on the other machine.
        if path.is_dir() {
            copy(&path, &to.join(name), &[])?;
        } else {
            fs::copy(&path, to.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

fn n_bytes(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        sum += if path.is_dir() { n_bytes(&path)? } else { fs::metadata(&path)?.len() };
    }
    Ok(sum)
}

#[cfg(unix)]
fn executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn executable(_: &Path) -> Result<()> {
    Ok(())
}

/// The commit of the working tree, with a mark where files differ from it.
fn commit() -> String {
    let mut git = shell::command("git");
    let found = shell::output(git.args(["describe", "--always", "--dirty", "--abbrev=12"]));
    found.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_copied_but_for_what_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        for (name, text) in [("a/b/one", "1"), ("a/models/two", "22"), ("models/three", "333")] {
            let path = from.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        copy(&from, &to, &["models"]).unwrap();
        assert_eq!(n_bytes(&to).unwrap(), 3);
        assert!(to.join("a/models/two").is_file() && !to.join("models").exists());
    }

    #[test]
    fn a_folder_says_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", Packed::read(folder.path()).unwrap_err());
        assert!(error.contains("was not made by `cargo xtask gpu pack`"), "{error}");
        fs::write(folder.path().join(FILE), r#"{"commit": "abc", "n_bytes": 7}"#).unwrap();
        let expected = Packed { commit: "abc".to_owned(), n_bytes: 7 };
        assert_eq!(Packed::read(folder.path()).unwrap(), expected);
    }

    #[test]
    fn libraries_are_found_by_their_whole_names() {
        let listed = "2 libs found in cache `/etc/ld.so.cache'\n\tlibvulkan.so.1.3 (libc6) => /lib/a\n\
                      \tlibvulkan.so.1 (libc6,x86-64) => /lib/b\n";
        assert_eq!(library(listed, VULKAN), Some(PathBuf::from("/lib/b")));
        assert_eq!(library(listed, "libcuda.so.1"), None);
    }

    #[test]
    fn the_last_program_of_cargos_messages_is_the_one_that_was_built() {
        let messages = "{\"executable\":\"/x/build-script\"}\nnot JSON\n{\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/x/tests-1\"}\n\
                        {\"reason\":\"build-finished\"}\n";
        assert_eq!(built(messages), Some(PathBuf::from("/x/tests-1")));
        assert_eq!(built("{}"), None);
    }
}
