//! Packs what a run needs beside the tree: one program under the names of several and the cases of the interpreter's tests, in an
//! archive, with a script that unpacks and starts it. Models and references are read from the tree.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::archive::{self, Sizes};
use crate::shell;

/// `cargo xtask gpu pack`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder, which is made again. One inside of the tree should be ignored by git.
    dir: PathBuf,
    /// A program of several to pack instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
    /// Build the engine with wgpu as well, for the step `wgpu` of `gpu run`, and pack the loader of Vulkan.
    #[arg(long)]
    wgpu: bool,
    /// A folder with llama.cpp's programs and libraries, built for the GPU, for `gpu second`.
    #[arg(long, value_name = "FOLDER")]
    llama: Option<PathBuf>,
    /// MiB that the tree and an archive may have together.
    #[arg(long, value_name = "MIB", default_value = "64")]
    limit: u64,
}

/// What an archive holds.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Packed {
    /// The commit that was built.
    pub(super) commit: String,
    /// Bytes of all files.
    pub(super) n_bytes: u64,
}

/// The names under which the one program is packed.
pub const PROGRAMS: [&str; 7] =
    ["realizar", "xtask", "kernel-tests", "card", "bench-cuda", "compile", "opcodes"];

/// The folder of libraries in a packed one whose engine has wgpu.
pub(super) const LIBRARIES: &str = "lib";
/// What Vulkan is loaded by, which a machine with a driver of Vulkan need not have.
const VULKAN: &str = "libvulkan.so.1";

/// The folder of what the tests of the interpreter ran.
pub(super) const CASES: &str = "cases";

/// The folder of llama.cpp's programs.
pub(super) const LLAMA: &str = "llama";

/// The name of the file that says what was packed.
const FILE: &str = "pack.json";
/// The script that a run is started by.
const SCRIPT: &str = "start.sh";

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

/// Builds and packs.
pub(super) fn run(args: &Args) -> Result<()> {
    let absolute = |p: &PathBuf| p.canonicalize().with_context(|| format!("open {}", p.display()));
    let program = args.bin.as_ref().map_or_else(|| build(args.wgpu), absolute)?;
    let stage = tempfile::tempdir()?;
    let packed = stage_programs(&program, stage.path(), args.wgpu)?;
    // A folder of another kind is not removed.
    if args.dir.exists() {
        Packed::read(&args.dir)?;
        fs::remove_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    }
    fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    let dir = absolute(&args.dir)?;

    fs::write(dir.join(FILE), serde_json::to_string_pretty(&packed)? + "\n")?;
    let archive = archive::compress(stage.path(), &dir.join("programs.tar.xz"))?;
    println!("programs: {} MiB, compressed {archive}", packed.n_bytes >> 20);
    let mut archives = vec![("the programs", archive)];
    if let Some(llama) = &args.llama {
        let bench = llama.join("llama-bench");
        ensure!(bench.is_file(), "{} is missing", bench.display());
        let stage = tempfile::tempdir()?;
        copy(llama, &stage.path().join(LLAMA))?;
        let archive = archive::compress(stage.path(), &dir.join("llama.tar.xz"))?;
        archives.push(("llama.cpp", archive));
    }
    let script = dir.join(SCRIPT);
    fs::write(&script, archive::script(&dir.join("programs.tar.xz"))?)
        .with_context(|| script.display().to_string())?;
    executable(&script)?;
    let sizes = Sizes { tree: archive::tree_size(&dir)?, limit: args.limit << 20 };
    println!("{}: commit {}", args.dir.display(), packed.commit);
    sizes.check(&archives)
}

/// Builds the program. It has none of the server's optional features, which a GPU has no part in.
fn build(wgpu: bool) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--release", "--package", "realizar-gpu-tools"]);
    if wgpu {
        cargo.args(["--features", "wgpu"]);
    }
    let text = shell::output(cargo.args(["--message-format", "json"]))?;
    built(&text).context("cargo names no program")
}

/// Puts what the archive of programs has into a folder.
fn stage_programs(program: &Path, to: &Path, wgpu: bool) -> Result<Packed> {
    let [first, others @ ..] = PROGRAMS;
    place_program(program, &to.join(first))?;
    for name in others {
        fs::hard_link(to.join(first), to.join(name)).with_context(|| name.to_owned())?;
    }
    opcodes(&to.join(CASES))?;
    if wgpu {
        fs::create_dir_all(to.join(LIBRARIES))?;
        match vulkan_loader() {
            Some(library) => drop(
                fs::copy(&library, to.join(LIBRARIES).join(VULKAN))
                    .with_context(|| library.display().to_string())?,
            ),
            None => println!("{VULKAN} is not here: wgpu finds a GPU where it is installed"),
        }
    }
    let links = fs::metadata(to.join(first))?.len() * others.len() as u64;
    let packed = Packed { commit: commit(), n_bytes: n_bytes(to)? - links };
    fs::write(to.join(FILE), serde_json::to_string_pretty(&packed)? + "\n")?;
    Ok(packed)
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

/// Copies a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let (path, name) = entry.map(|e| (e.path(), e.file_name()))?;
        // Links to what is elsewhere would lead nowhere on the other machine.
        if path.is_dir() {
            copy(&path, &to.join(name))?;
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
    fn folders_are_copied_with_what_is_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        for (name, text) in [("a/b/one", "1"), ("a/models/two", "22"), ("models/three", "333")] {
            let path = from.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        copy(&from, &to).unwrap();
        assert_eq!(n_bytes(&to).unwrap(), 6);
        assert!(to.join("a/models/two").is_file());
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
