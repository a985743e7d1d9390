//! Runs the cases of the interpreter's tests on a card, and compares what it gives with what the interpreter gave: bit by
//! bit, but for instructions whose results PTX leaves open within bounds.
//!
//! Usage: `opcodes FOLDER [card|interpreter [FIRST]]`. The folder is made by the tests of `realizar-ptx` with
//! `REALIZAR_PTX_CASES`. A process continues after a case that stopped the card, which does nothing more for the one that it
//! was stopped by.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use realizar_kernels_cuda::{Argument, Buffer, Device, Driver, Launch};

/// What is in a file.
#[derive(Default)]
struct Case {
    kernel: String,
    grid: [u32; 3],
    block: [u32; 3],
    buffers: Vec<Vec<u8>>,
    arguments: Vec<Given>,
    /// The buffer that is read, and its first bytes after the launch.
    expected: (usize, Vec<u8>),
    ptx: String,
}

#[derive(Clone, Copy)]
enum Given {
    Word(u32),
    Long(u64),
    /// A buffer and an offset in it.
    Address(usize, u64),
}

/// Words of a case's results that are printed where they differ.
const SHOWN: usize = 4;

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Same,
    /// Other bits of instructions that may give them.
    Near,
    Different,
}

/// Why a case gave nothing.
struct Failed {
    reason: String,
    /// Whether it may have stopped the device.
    is_final: bool,
}

impl Failed {
    /// Before the launch: the driver's compiler refuses a module, for one.
    fn before(reason: &dyn ToString) -> Self {
        Self { reason: reason.to_string(), is_final: false }
    }

    fn launched(reason: &dyn ToString) -> Self {
        Self { reason: reason.to_string(), is_final: true }
    }
}

pub(crate) fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let ended = {
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let run = match words[..] {
            [folder] | [folder, "card"] => on_card(Path::new(folder), 0),
            [folder, "card", from] => number(from).and_then(|n| on_card(Path::new(folder), n)),
            [folder, "interpreter"] => on_interpreter(Path::new(folder), 0),
            [folder, "interpreter", from] => {
                number(from).and_then(|n| on_interpreter(Path::new(folder), n))
            }
            _ => Err("usage: opcodes FOLDER [card|interpreter [FIRST]]".to_owned()),
        };
        let device = if words.get(1) == Some(&"interpreter") { "interpreter" } else { "card" };
        run.and_then(|(is_good, next)| {
            let Some(next) = next else { return Ok(is_good) };
            // A device that was stopped does nothing more for this process; another one continues.
            args.truncate(1);
            args.extend([device.to_owned(), next.to_string()]);
            let program = std::env::current_exe().map_err(|e| e.to_string())?;
            let rest = std::process::Command::new(program).args(&args).status();
            rest.map(|_| false).map_err(|e| e.to_string())
        })
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text} is not the number of a case"))
}

fn on_card(folder: &Path, from: usize) -> Result<Run, String> {
    run_all(&Arc::new(Driver::open(0).map_err(|e| e.to_string())?), folder, from)
}

/// What it is held to was made by itself.
fn on_interpreter(folder: &Path, from: usize) -> Result<Run, String> {
    use realizar_ptx::Checks;
    let checks =
        Checks { float_atomics: true, exited_threads_leave_barriers: true, ..Checks::FAST };
    let device = realizar_kernels_cuda::Interpreter::new(checks, usize::MAX);
    run_all(&Arc::new(device), folder, from)
}

/// Whether no case failed, and the next one after one that stopped the device.
type Run = (bool, Option<usize>);

/// Runs the cases of a folder from one on.
fn run_all<D: Device>(device: &Arc<D>, folder: &Path, from: usize) -> Result<Run, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "case"));
    files.sort();
    if files.is_empty() {
        return Err(format!("{}: no cases", folder.display()));
    }
    let (mut n_same, mut n_near, mut n_failed, mut next) = (0, 0, 0, None);
    for (i, file) in files.iter().enumerate().skip(from) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(file).map_err(|e| format!("{name}: {e}"))?;
        let case = parse(&text).ok_or_else(|| format!("{name}: not a case"))?;
        match run(device, &case) {
            Ok((Ended::Same, _)) => n_same += 1,
            Ok((Ended::Near, what)) => {
                n_near += 1;
                println!("{name}: near, {what}");
            }
            Ok((Ended::Different, what)) => {
                n_failed += 1;
                println!("{name}: DIFFERENT, {what}");
            }
            Err(Failed { reason, is_final }) => {
                n_failed += 1;
                println!("{name}: FAILED: {reason}; {}", instruction(&case.ptx));
                if is_final {
                    next = Some(i + 1);
                    break;
                }
            }
        }
    }
    let left = next.map_or(0, |next| files.len() - next);
    println!(
        "{n_same} the same, {n_near} within what PTX leaves open, {n_failed} failed, {left} left"
    );
    Ok((n_failed == 0, next.filter(|_| left > 0)))
}

fn parse(text: &str) -> Option<Case> {
    let (facts, ptx) = text.split_once("\nptx\n")?;
    let mut case = Case { ptx: ptx.to_owned(), ..Case::default() };
    let three = |rest: &str| -> Option<[u32; 3]> {
        let numbers: Option<Vec<_>> = rest.split(' ').map(|n| n.parse().ok()).collect();
        numbers?.try_into().ok()
    };
    for line in facts.lines() {
        let (what, rest) = line.split_once(' ')?;
        match what {
            "buffer" => case.buffers.push(bytes(rest)?),
            "kernel" => rest.clone_into(&mut case.kernel),
            "grid" => case.grid = three(rest)?,
            "block" => case.block = three(rest)?,
            "word" => case.arguments.push(Given::Word(rest.parse().ok()?)),
            "long" => case.arguments.push(Given::Long(rest.parse().ok()?)),
            "address" => {
                let (buffer, offset) = rest.split_once(' ')?;
                case.arguments.push(Given::Address(buffer.parse().ok()?, offset.parse().ok()?));
            }
            "expected" => {
                let (buffer, hex) = rest.split_once(' ')?;
                case.expected = (buffer.parse().ok()?, bytes(hex)?);
            }
            _ => return None,
        }
    }
    (case.expected.0 < case.buffers.len()).then_some(case)
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|d| d as u8);
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

fn run<D: Device>(device: &Arc<D>, case: &Case) -> Result<(Ended, String), Failed> {
    let stream = device.stream().map_err(|e| Failed::before(&e))?;
    let module = device.load("a case", &case.ptx).map_err(|e| Failed::before(&e))?;
    let function = device.function(&module, &case.kernel).map_err(|e| Failed::before(&e))?;
    let put = |bytes: &Vec<u8>| Buffer::with(device, &stream, "a case", bytes);
    let buffers: Vec<_> =
        case.buffers.iter().map(put).collect::<Result<_, _>>().map_err(|e| Failed::before(&e))?;
    let given = |given: &Given| match *given {
        Given::Word(word) => Ok(Argument::I32(word as i32)),
        // Whatever it is, it has the size of an address.
        Given::Long(value) => Ok(Argument::Address(value)),
        Given::Address(buffer, offset) => {
            let buffer = buffers.get(buffer).ok_or("a buffer that is not there")?;
            Ok(Argument::Address(buffer.address() + offset))
        }
    };
    let arguments = case.arguments.iter().map(given).collect::<Result<Vec<_>, &str>>();
    let arguments = arguments.map_err(|e| Failed::before(&e))?;
    let (grid, block) = (case.grid, case.block);
    let launch = Launch {
        function: &function,
        grid,
        block,
        shared_bytes: 0,
        is_dependent: false,
        arguments: &arguments,
    };
    // SAFETY: the arguments are those that the kernel was given when the case was written, with buffers of the same sizes,
    // which live until the stream has been waited for below.
    unsafe { device.launch(&stream, &launch) }.map_err(|e| Failed::launched(&e))?;
    let (from, expected) = &case.expected;
    let mut found = vec![0u8; expected.len()];
    buffers[*from].read(&stream, 0, &mut found).map_err(|e| Failed::launched(&e))?;
    device.synchronize(&stream).map_err(|e| Failed::launched(&e))?;
    let differing = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    if differing == 0 {
        return Ok((Ended::Same, String::new()));
    }
    let what = format!(
        "{differing} of {} bytes differ{}; {}",
        expected.len(),
        words(&found, expected),
        instruction(&case.ptx)
    );
    Ok((if is_open(&case.ptx) { Ended::Near } else { Ended::Different }, what))
}

/// The first words that differ, each with its place.
fn words(found: &[u8], expected: &[u8]) -> String {
    let word = |bytes: &[u8]| {
        bytes.iter().rev().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    };
    let pairs = found.chunks(4).zip(expected.chunks(4)).enumerate().filter(|(_, (a, b))| a != b);
    let shown = pairs.take(SHOWN).map(|(i, (found, expected))| {
        format!(", word {i} is {} for {}", word(found), word(expected))
    });
    shown.collect()
}

/// Whether a module has instructions whose results PTX leaves open: approximate ones, and sums of floats in products of
/// matrices.
fn is_open(ptx: &str) -> bool {
    let opcodes = ptx.split([';', '{', '}', '\n']).map(str::trim);
    opcodes.filter_map(|statement| statement.split_whitespace().next()).any(|opcode| {
        let is_product = opcode.starts_with("mma.") || opcode.starts_with("wgmma.mma_async");
        opcode.contains(".approx")
            || opcode.starts_with("div.full")
            || opcode.contains(".ftz.full")
            || is_product && !opcode.contains(".s32.")
    })
}

/// The statement that a case is about: the longest opcode of its module.
fn instruction(ptx: &str) -> String {
    let statements = ptx.split([';', '\n']).map(str::trim).filter(|s| !s.starts_with(['.', '/']));
    let longest = statements.max_by_key(|s| s.split_whitespace().next().map_or(0, str::len));
    longest.unwrap_or_default().chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_differ_are_printed_with_their_places() {
        let expected = [1, 0, 0, 0, 2, 0, 0, 0, 0xff];
        assert_eq!(words(&expected, &expected), "");
        let found = [1, 0, 0, 0, 3, 0, 0, 0x80, 0xfe];
        assert_eq!(
            words(&found, &expected),
            ", word 1 is 80000003 for 00000002, word 2 is fe for ff"
        );
    }

    #[test]
    fn a_case_is_read_and_run() {
        let ptx = ".version 8.0\n.target sm_80\n.address_size 64\n\
                   .visible .entry one(.param .u64 a, .param .u32 b) {\n\
                   .reg .b64 %d<2>; .reg .b32 %r<2>;\nld.param.u64 %d1, [a];\nld.param.u32 %r1, [b];\n\
                   st.global.u32 [%d1], %r1;\nret;\n}\n";
        let case = |expected: &str| {
            let text = format!(
                "buffer 00000000\nkernel one\ngrid 1 1 1\nblock 1 1 1\naddress 0 0\nword 258\n\
                 expected 0 {expected}\nptx\n{ptx}"
            );
            let folder =
                std::env::temp_dir().join(format!("case-{}-{expected}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("a.case"), text).unwrap();
            let ended = on_interpreter(&folder, 0);
            std::fs::remove_dir_all(&folder).unwrap();
            ended.unwrap()
        };
        assert_eq!(case("02010000"), (true, None));
        assert_eq!(case("02010001"), (false, None));
    }
}
