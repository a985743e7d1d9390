//! `image/RESOURCES`: what each kernel of the images takes on three generations of GPUs, as ptxas reports it and as its
//! machine code shows.
//!
//! Each image stands with its hash, so that `cargo xtask tidy` finds what was written for another one without any CUDA tool,
//! and only images that changed are assembled again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};

use super::compiler::{COMPILER, Compiler, DISASSEMBLER, Disassembler, in_parallel};
use super::images::RESOURCES;
use super::{images, sass};

/// What kernels are assembled for, ten times the compute capability: A100, H100, and the Blackwell of workstations.
const TARGETS: [u32; 3] = [80, 90, 120];

/// The columns of a target, in order, with their widths.
const COLUMNS: [(&str, usize); 6] =
    [("regs", 6), ("spills", 9), ("stack", 6), ("tensor", 7), ("loop", 6), ("tensor", 7)];
const NAME_WIDTH: usize = 30;

/// What a kernel takes on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Resources {
    registers: u32,
    spills: Spills,
    stack: u32,
    code: sass::Code,
}

/// Bytes that a thread spills: of stores, and of loads, each counted where it stands in the code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Spills {
    stores: u32,
    loads: u32,
}

/// Kernels by name, with what each takes on [`TARGETS`]; none where its image is not made for one.
type Kernels = BTreeMap<String, [Option<Resources>; TARGETS.len()]>;

/// The part of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Image {
    hash: String,
    kernels: Kernels,
}

/// The report: images by their files' names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report(BTreeMap<String, Image>);

/// The lines in front of the images. Another head is another report: all of it is made again.
fn head() -> String {
    let text = "\
        # Registers, spills, stack and tensor instructions of every kernel, written by `cargo xtask kernels cuda`.\n\
        #\n\
        # An image's file and its SHA-256 stand before its kernels. Each has six columns for each of three targets, or dashes\n\
        # where the image is not made for the target (`wgmma` is for sm_90a alone, whose columns are under sm_90):\n\
        #   regs    registers of a thread\n\
        #   spills  bytes that a thread spills, of stores / of loads in the code; 0 without any\n\
        #   stack   bytes of a thread's stack frame\n\
        #   tensor  tensor instructions in the code\n\
        #   loop    instructions of the main loop, a dash without a loop\n\
        #   tensor  tensor instructions of the main loop\n\
        # The main loop is the one with the most tensor instructions, or with the most reads of global memory where there are\n\
        # none. The drivers' own compilers may choose otherwise.\n\
        #\n";
    let mut head = text.to_owned();
    let tools: Vec<&str> = COMPILER[..1].iter().chain(DISASSEMBLER).copied().collect();
    let _ = writeln!(head, "# {}\n#", tools.join(", "));
    let group: usize = COLUMNS.iter().map(|(_, width)| width).sum();
    let _ = write!(head, "# {:<1$}", "", NAME_WIDTH);
    for target in TARGETS {
        let _ = write!(head, " |{:^group$}", format!("sm_{target}"));
    }
    let end = head.trim_end().len();
    head.truncate(end);
    let _ = write!(head, "\n# {:<1$}", "kernel", NAME_WIDTH);
    for _ in TARGETS {
        head += " |";
        for (name, width) in COLUMNS {
            let _ = write!(head, "{name:>width$}");
        }
    }
    head.push('\n');
    head
}

impl Spills {
    fn parse(word: &str) -> Option<Self> {
        if word == "0" {
            return Some(Self::default());
        }
        let (stores, loads) = word.split_once('/')?;
        Some(Self { stores: stores.parse().ok()?, loads: loads.parse().ok()? })
    }

    fn text(self) -> String {
        let Self { stores, loads } = self;
        if self == Self::default() { "0".to_owned() } else { format!("{stores}/{loads}") }
    }
}

/// The words of a kernel's columns on a target.
fn words(of: Option<Resources>) -> [String; COLUMNS.len()] {
    let dash = || "-".to_owned();
    let Some(of) = of else { return std::array::from_fn(|_| dash()) };
    let main_loop = of.code.main_loop;
    [
        of.registers.to_string(),
        of.spills.text(),
        of.stack.to_string(),
        of.code.n_tensor.to_string(),
        main_loop.map_or_else(dash, |of| of.len.to_string()),
        main_loop.map_or_else(dash, |of| of.n_tensor.to_string()),
    ]
}

/// What the words of a target's columns say.
fn read(words: &[&str]) -> Option<Option<Resources>> {
    if words.iter().all(|&word| word == "-") {
        return Some(None);
    }
    let [registers, spills, stack, n_tensor, len, in_loop] = words else { return None };
    let main_loop = match (*len, *in_loop) {
        ("-", "-") => None,
        (len, n) => Some(sass::Loop { len: len.parse().ok()?, n_tensor: n.parse().ok()? }),
    };
    Some(Some(Resources {
        registers: registers.parse().ok()?,
        spills: Spills::parse(spills)?,
        stack: stack.parse().ok()?,
        code: sass::Code { n_tensor: n_tensor.parse().ok()?, main_loop },
    }))
}

impl Report {
    /// Reads a report; none with another head.
    fn parse(text: &str) -> Result<Option<Self>> {
        let Some(text) = text.strip_prefix(&head()) else { return Ok(None) };
        let mut report = BTreeMap::new();
        let mut open: Option<(String, Image)> = None;
        for line in text.lines() {
            let broken = || format!("{RESOURCES}: `{line}` is neither an image nor a kernel");
            let mut words: Vec<&str> = line.split_whitespace().filter(|&w| w != "|").collect();
            if let Some(name) = words.first().and_then(|word| word.strip_prefix("image/")) {
                ensure!(words.len() == 2, broken());
                let image = Image { hash: words[1].to_owned(), kernels: Kernels::new() };
                report.extend(open.replace((name.to_owned(), image)));
                continue;
            }
            let Some((_, image)) = &mut open else { anyhow::bail!(broken()) };
            ensure!(words.len() == 1 + TARGETS.len() * COLUMNS.len(), broken());
            let name = words.remove(0).to_owned();
            let mut of_targets = [None; TARGETS.len()];
            for (of, words) in of_targets.iter_mut().zip(words.chunks(COLUMNS.len())) {
                *of = read(words).with_context(broken)?;
            }
            ensure!(image.kernels.insert(name, of_targets).is_none(), broken());
        }
        report.extend(open);
        Ok(Some(Self(report)))
    }

    fn text(&self) -> String {
        let mut text = head();
        for (name, Image { hash, kernels }) in &self.0 {
            let _ = writeln!(text, "image/{name} {hash}");
            for (name, of_targets) in kernels {
                let _ = write!(text, "  {name:<NAME_WIDTH$}");
                for of in of_targets {
                    text += " |";
                    for (word, (_, width)) in words(*of).iter().zip(COLUMNS) {
                        let _ = write!(text, "{word:>width$}");
                    }
                }
                text.push('\n');
            }
        }
        text
    }

    /// The report that is there, if it can be read.
    fn open(root: &Path) -> Option<Self> {
        let text = fs::read_to_string(root.join(RESOURCES)).ok()?;
        Self::parse(&text).ok().flatten()
    }

    /// For each target: kernels, those that spill, those with a stack frame, and the largest frame.
    fn summary(&self) -> String {
        let kernels = || self.0.values().flat_map(|image| image.kernels.values());
        let mut text = String::new();
        for (at, target) in TARGETS.iter().enumerate() {
            let of: Vec<Resources> = kernels().filter_map(|kernel| kernel[at]).collect();
            let n = |is: fn(&&Resources) -> bool| of.iter().filter(is).count();
            let (n_spilling, n_framed) =
                (n(|of| of.spills != Spills::default()), n(|of| of.stack > 0));
            let largest = of.iter().map(|of| of.stack).max().unwrap_or(0);
            let _ = writeln!(
                text,
                "kernels: sm_{target}: {n_spilling} of {} spill, {n_framed} have a stack frame, of {largest} bytes at most",
                of.len()
            );
        }
        text
    }
}

/// Brings the report up to date with the images that are there.
pub(super) fn update(root: &Path) -> Result<()> {
    let mut report = Report::open(root).unwrap_or_default();
    let files = images::packed(root)?;
    let mut stale = Vec::new();
    let mut current = BTreeMap::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let hash = images::hash(&file)?;
        match report.0.remove(&name) {
            Some(image) if image.hash == hash => _ = current.insert(name, image),
            _ => stale.push((name, hash, file)),
        }
    }
    report.0 = current;
    println!("kernels: {} images are not in {RESOURCES} as they are", stale.len());
    if !stale.is_empty() {
        let tools = (Compiler::install()?, Disassembler::install()?);
        // An image at a time is written, so that a run that is cut off is not for nothing.
        let report = Mutex::new(&mut report);
        in_parallel(stale, |(name, hash, file): (String, String, PathBuf)| {
            let kernels = measured(&tools, &file).with_context(|| name.clone())?;
            let mut report = report.lock().expect("no thread panics");
            report.0.insert(name, Image { hash, kernels });
            write(root, &report)
        })?;
    }
    write(root, &report)?;
    print!("{}", report.summary());
    Ok(())
}

fn write(root: &Path, report: &Report) -> Result<()> {
    let path = root.join(RESOURCES);
    fs::write(&path, report.text()).with_context(|| path.display().to_string())
}

/// The kernels of an image, assembled for each target.
fn measured((compiler, disassembler): &(Compiler, Disassembler), image: &Path) -> Result<Kernels> {
    let text = images::unpacked(image)?;
    let name = image.file_stem().unwrap_or_default().to_string_lossy();
    let ptx = disassembler.scratch(&name);
    fs::write(&ptx, &text).with_context(|| ptx.display().to_string())?;
    let names = images::kernels(&text);
    let mut kernels: Kernels =
        names.iter().map(|name| ((*name).to_owned(), [None; TARGETS.len()])).collect();
    for (at, target) in TARGETS.into_iter().enumerate() {
        let Some(card) = card(&text, target)? else { continue };
        let cubin = ptx.with_extension("cubin");
        let report = usage(&compiler.assemble(&ptx, &card, &cubin)?)?;
        let code = sass::kernels(&disassembler.disassemble(&cubin)?)?;
        for (name, of) in &mut kernels {
            let missing = || format!("nothing about `{name}` for sm_{card}");
            let &(registers, spills, stack) = report.get(name).with_context(missing)?;
            let code = *code.get(name).with_context(missing)?;
            of[at] = Some(Resources { registers, spills, stack, code });
        }
    }
    Ok(kernels)
}

/// What PTX is assembled as for a target; none if it is for another one alone, or for newer ones.
fn card(ptx: &str, target: u32) -> Result<Option<String>> {
    let line = ptx.lines().find_map(|line| line.strip_prefix(".target sm_"));
    let arch = line.context("no target")?.split(',').next().unwrap_or_default().trim();
    let number = arch.trim_end_matches('a');
    let made_for: u32 = number.parse().with_context(|| format!("target sm_{arch}"))?;
    let fits = if number == arch { made_for <= target } else { made_for == target };
    Ok(fits.then(|| format!("{target}{}", &arch[number.len()..])))
}

/// The kernels of a report of `ptxas --verbose`: registers, spills and stack.
fn usage(report: &str) -> Result<BTreeMap<String, (u32, Spills, u32)>> {
    let mut found = BTreeMap::new();
    // The kernel that lines are about, and its stack and spills when its registers are still to come.
    let (mut kernel, mut frame) = (None, None);
    let mut is_own = false;
    for line in report.lines() {
        let text = line.strip_prefix("ptxas info    : ").unwrap_or(line).trim();
        if let Some(rest) = text.strip_prefix("Compiling entry function '") {
            (kernel, frame) = (rest.split('\'').next(), None);
        } else if let Some(name) = text.strip_prefix("Function properties for ") {
            is_own = kernel == Some(name.trim());
        } else if text.contains("bytes stack frame") && is_own {
            let numbers = numbers(text);
            let [stack, stores, loads] = numbers[..] else {
                anyhow::bail!("three numbers of bytes: `{line}`")
            };
            frame = Some((Spills { stores, loads }, stack));
        } else if text.starts_with("Used ") && text.contains(" registers") {
            let registers = *numbers(text).first().with_context(|| line.to_owned())?;
            let name = kernel.take().with_context(|| format!("registers of what: `{line}`"))?;
            let (spills, stack) = frame.with_context(|| format!("no stack of `{name}`"))?;
            found.insert(name.to_owned(), (registers, spills, stack));
        }
    }
    Ok(found)
}

/// The words of a line that are numbers.
fn numbers(line: &str) -> Vec<u32> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Differences between the report and the images that are there.
pub(crate) fn stale(root: &Path) -> Result<Vec<String>> {
    let Ok(text) = fs::read_to_string(root.join(RESOURCES)) else {
        return Ok(vec!["there is no such file".to_owned()]);
    };
    let report = match Report::parse(&text) {
        Ok(Some(report)) => report,
        Ok(None) => return Ok(vec!["its head is of another version".to_owned()]),
        Err(error) => return Ok(vec![error.to_string()]),
    };
    let mut found = BTreeMap::new();
    for file in images::packed(root)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = images::unpacked(&file)?;
        let kernels = images::kernels(&text).into_iter().map(str::to_owned).collect();
        found.insert(name, (images::hash(&file)?, kernels));
    }
    Ok(differences(&report, &found))
}

/// Differences between a report and images: the hash of each, and its kernels.
fn differences(report: &Report, found: &BTreeMap<String, (String, Vec<String>)>) -> Vec<String> {
    let mut messages = Vec::new();
    for name in report.0.keys().filter(|&name| !found.contains_key(name)) {
        messages.push(format!("there is no image `{name}`"));
    }
    for (name, (hash, kernels)) in found {
        match report.0.get(name) {
            None => messages.push(format!("`{name}` is missing")),
            Some(image) if image.hash != *hash => {
                messages.push(format!("it was written for another `{name}`"));
            }
            Some(image) => {
                let missing = kernels.iter().filter(|&kernel| !image.kernels.contains_key(kernel));
                messages.extend(missing.map(|kernel| format!("`{kernel}` of `{name}` is missing")));
                let unknown = image.kernels.keys().filter(|&kernel| !kernels.contains(kernel));
                messages.extend(unknown.map(|kernel| format!("`{name}` has no `{kernel}`")));
            }
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(registers: u32, stores: u32, main_loop: Option<(usize, usize)>) -> Resources {
        let main_loop = main_loop.map(|(len, n_tensor)| sass::Loop { len, n_tensor });
        let spills = Spills { stores, loads: 2 * stores };
        let code = sass::Code { n_tensor: 72, main_loop };
        Resources { registers, spills, stack: stores + 8, code }
    }

    fn image(hash: &str, kernels: &[(&str, [Option<Resources>; 3])]) -> Image {
        let kernels = kernels.iter().map(|&(name, of)| (name.to_owned(), of)).collect();
        Image { hash: hash.to_owned(), kernels }
    }

    fn report() -> Report {
        let all = [80, 90, 120].map(|n| Some(taken(n, n - 80, Some((404, 8)))));
        let a = image("aa", &[("one", all), ("two", [Some(taken(255, 0, None)), None, None])]);
        let b = image("bb", &[("three", [None, Some(taken(168, 0, Some((9, 0)))), None])]);
        Report(BTreeMap::from([("a.ptx.br".to_owned(), a), ("b.ptx.br".to_owned(), b)]))
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let text = report().text();
        assert_eq!(Report::parse(&text).unwrap(), Some(report()));
        let line = "  three                          |     -        -     -      -     -      - \
                    |   168        0     8     72     9      0 |     -        -     -      -     -      -";
        assert!(text.lines().any(|found| found == line), "{text}");
        assert!(text.lines().all(|line| !line.ends_with(' ')));
        assert_eq!(Report::parse(&text.replace("main loop", "first loop")).unwrap(), None);
        for broken in ["one 1 2 3", "image/c.ptx.br", "  one - -", "<<<<<<<"] {
            assert!(Report::parse(&format!("{text}{broken}\n")).is_err(), "{broken}");
        }
    }

    #[test]
    fn what_a_report_lacks_or_has_in_excess_is_named() {
        let found = |hash: &str, kernels: &[&str], others: &[&str]| {
            let of = |hash: &str, kernels: &[&str]| {
                (hash.to_owned(), kernels.iter().map(|&kernel| kernel.to_owned()).collect())
            };
            let mut images = BTreeMap::from([("a.ptx.br".to_owned(), of(hash, kernels))]);
            images.extend(others.iter().map(|&name| (name.to_owned(), of("bb", &["three"]))));
            differences(&report(), &images)
        };
        let b = &["b.ptx.br"][..];
        assert!(found("aa", &["two", "one"], b).is_empty());
        assert_eq!(found("ab", &["one", "two"], b), ["it was written for another `a.ptx.br`"]);
        let expected = ["`four` of `a.ptx.br` is missing", "`a.ptx.br` has no `two`"];
        assert_eq!(found("aa", &["one", "four"], b), expected);
        assert_eq!(found("aa", &["one", "two"], &[]), ["there is no image `b.ptx.br`"]);
        let expected = ["`c.ptx.br` is missing"];
        assert_eq!(found("aa", &["one", "two"], &["b.ptx.br", "c.ptx.br"]), expected);
    }

    #[test]
    fn a_summary_counts_spills_and_frames() {
        let text = report().summary();
        let lines: Vec<&str> = text.lines().collect();
        let expected = [
            "kernels: sm_80: 0 of 2 spill, 2 have a stack frame, of 8 bytes at most",
            "kernels: sm_90: 1 of 2 spill, 2 have a stack frame, of 18 bytes at most",
            "kernels: sm_120: 1 of 1 spill, 1 have a stack frame, of 48 bytes at most",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn images_are_assembled_for_their_target_and_newer_ones() {
        let cases = [("sm_80", ["80", "90", "120"]), ("sm_90", ["", "90", "120"])];
        for (target, expected) in cases.into_iter().chain([("sm_90a", ["", "90a", ""])]) {
            let text = format!(".version 9.0\n.target {target}\n.address_size 64\n");
            let found = TARGETS.map(|of| card(&text, of).unwrap().unwrap_or_default());
            assert_eq!(found, expected, "{target}");
        }
        assert!(card(".version 9.0\n", 90).is_err());
    }

    #[test]
    fn the_assemblers_report_is_read() {
        let report = "\
ptxas info    : 0 bytes gmem, 16 bytes cmem[3]
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
    40 bytes stack frame, 36 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size, 9216 bytes smem
ptxas info    : Compile time = 90.100 ms
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers
ptxas info    : Function properties for called
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
";
        let found = usage(report).unwrap();
        let one = (255, Spills { stores: 36, loads: 44 }, 40);
        let expected = [("one", one), ("two", (32, Spills::default(), 0))];
        assert_eq!(found, expected.map(|(name, of)| (name.to_owned(), of)).into());
        assert!(usage("ptxas info    : Used 32 registers, used 1 barriers\n").is_err());
    }
}
