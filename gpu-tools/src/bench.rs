//! The times of single kernels, and what the GPU is.

use std::process::ExitCode;

use realizar_kernels_cuda::bench;

/// Measures: see `bench-cuda --help`.
pub(crate) fn main() -> ExitCode {
    run(std::env::args().skip(1))
}

/// Writes which GPU there is, as one JSON object; without one why, in one line, and fails.
pub(crate) fn card() -> ExitCode {
    run(["--describe".to_owned()])
}

fn run(args: impl IntoIterator<Item = String>) -> ExitCode {
    match bench::run(args, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
