//! NVIDIA's compiler, assembler and disassembler, from Python packages of pinned versions below cargo's target folder.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};

use crate::shell;

/// The compiler's packages, and what packs images. Version 13.0 makes PTX 9.0, which drivers from 580 on take. The list is an
/// ingredient of every image, so what images are not made with is not in it.
pub(super) const COMPILER: &[&str] = &[
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
    "brotli==1.2.1",
];
/// The disassembler, in the oldest version that has a package.
pub(super) const DISASSEMBLER: &[&str] = &["nvidia-cuda-nvdisasm==13.2.51"];

/// Packs a file: the packages' folder, the file, and what it becomes. A module says the same for each of its block types and sizes,
/// so the window holds all of it: images are 0.55 of what gzip, whose window is 32 KiB, makes of them.
const PACK: &str = "\
import sys
sys.path.insert(0, sys.argv[1])
import brotli
with open(sys.argv[2], 'rb') as text, open(sys.argv[3], 'wb') as packed:
    packed.write(brotli.compress(text.read(), quality=11, lgwin=24))
";

/// Installs packages in a folder below cargo's target folder, unless they are there in the pinned versions.
fn install(name: &str, wanted: &[&str]) -> Result<PathBuf> {
    let folder = shell::target_dir()?.join(name);
    let stamp = folder.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted.join("\n")) {
        return Ok(folder);
    }
    println!("kernels: install {}", wanted.join(" "));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let mut pip = shell::command("python3");
    pip.args(["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    shell::check(pip.args(["--no-deps", "--target"]).arg(folder.join("packages")).args(wanted))?;
    fs::write(stamp, wanted.join("\n"))?;
    Ok(folder)
}

/// A program of the packages in a folder.
fn program(folder: &Path, name: &str) -> Command {
    shell::command(folder.join("packages/nvidia/cu13/bin").join(name))
}

/// nvcc and ptxas, and what packs what they make.
pub(super) struct Compiler {
    folder: PathBuf,
}

impl Compiler {
    /// Installs the packages, unless they are there.
    pub(super) fn install() -> Result<Self> {
        Ok(Self { folder: install("cuda-compiler", COMPILER)? })
    }

    /// The file with the PTX of a source for a compute capability, ten times which is `arch`.
    ///
    /// nvcc passes inline assembly on unread, so ptxas assembles the text for each of `cards`; what it
    /// makes is not kept.
    pub(super) fn compile(
        &self,
        source: &Path,
        options: &[&str],
        arch: &str,
        cards: &[&str],
    ) -> Result<PathBuf> {
        let folder = source.parent().context("a source has a folder")?;
        let name = source.file_name().context("a source has a name")?;
        let made = |extension| self.folder.join(name).with_extension(extension);
        let (ptx, cubin) = (made("ptx"), made("cubin"));
        let mut nvcc = program(&self.folder, "nvcc");
        nvcc.current_dir(folder).args(["-ptx", "-O3", "-Werror", "all-warnings"]);
        nvcc.args(options).arg(format!("-arch=compute_{arch}")).arg(name).arg("-o").arg(&ptx);
        shell::check(&mut nvcc).with_context(|| source.display().to_string())?;
        for card in cards {
            self.assemble(&ptx, card, &cubin).with_context(|| source.display().to_string())?;
        }
        Ok(ptx)
    }

    /// Assembles PTX for a GPU, and returns the report of `ptxas -v`.
    pub(super) fn assemble(&self, ptx: &Path, card: &str, cubin: &Path) -> Result<String> {
        let mut ptxas = program(&self.folder, "ptxas");
        ptxas.args(["--verbose", "--warning-as-error", &format!("-arch=sm_{card}")]);
        let out = ptxas.arg(ptx).arg("-o").arg(cubin).output();
        let out = out.with_context(|| format!("start {}", shell::show(&ptxas)))?;
        let report = String::from_utf8_lossy(&out.stderr).into_owned();
        if !out.status.success() {
            bail!("{} exited with {}\n{report}", shell::show(&ptxas), out.status);
        }
        // An instruction of a group of warps that waits for the one before it.
        if let Some(line) = report.lines().find(|line| line.contains("Potential Performance Loss"))
        {
            bail!("{} for sm_{card}: {line}", ptx.display());
        }
        Ok(report)
    }

    /// Packs a file, and names what it becomes.
    pub(super) fn pack(&self, file: &Path, packed: &Path) -> Result<()> {
        let mut python = shell::command("python3");
        python.args(["-I", "-c", PACK]).arg(self.folder.join("packages")).args([file, packed]);
        shell::check(&mut python).with_context(|| packed.display().to_string())
    }
}

/// nvdisasm.
pub(super) struct Disassembler {
    folder: PathBuf,
}

impl Disassembler {
    /// Installs the package, unless it is there.
    pub(super) fn install() -> Result<Self> {
        Ok(Self { folder: install("cuda-disassembler", DISASSEMBLER)? })
    }

    /// The file of that name in a folder for what is made on the way.
    pub(super) fn scratch(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The code of a cubin as text.
    pub(super) fn disassemble(&self, cubin: &Path) -> Result<String> {
        shell::output(program(&self.folder, "nvdisasm").arg("--print-code").arg(cubin))
    }
}

/// Does `work` with each item, on a thread for each core: compilers are programs of one.
pub(super) fn in_parallel<T: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let left = Mutex::new(items.into_iter());
    let next = || left.lock().expect("no thread panics").next();
    thread::scope(|scope| {
        let run = || -> Result<()> {
            while let Some(item) = next() {
                work(item)?;
            }
            Ok(())
        };
        let n_threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}
