//! Several programs in one, so that the kernels' images are in it once: `cargo xtask gpu pack` packs it under the name of each.
//! The name of the file decides which one runs.

use std::path::Path;
use std::process::ExitCode;

mod bench;
mod compile;
mod kernel_tests;
mod opcodes;

/// Runs a program with the arguments of the process.
type Program = fn() -> ExitCode;

/// The programs by their names.
const PROGRAMS: &[(&str, Program)] = &[
    ("realizar", realizar::main),
    ("xtask", xtask::main),
    ("kernel-tests", kernel_tests::main),
    ("card", bench::card),
    ("bench-cuda", bench::main),
    ("compile", compile::main),
    ("opcodes", opcodes::main),
];

fn main() -> ExitCode {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_stem().unwrap_or_default();
    match PROGRAMS.iter().find(|(own, _)| name == *own) {
        Some((_, program)) => program(),
        None => {
            let names: Vec<&str> = PROGRAMS.iter().map(|(own, _)| *own).collect();
            println!("this file has to be called by the name of a program: {}", names.join(", "));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pack_has_a_name_for_each_program() {
        let names: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, xtask::GPU_PROGRAMS);
    }

    #[test]
    fn the_tests_that_are_named_for_a_sanitizer_are_there() {
        for name in xtask::GPU_SANITIZED {
            let found = realizar_kernels_cuda::tests::list(&[name.to_owned()]);
            assert!(found.iter().any(|test| test.name() == name), "{name}");
        }
    }
}
