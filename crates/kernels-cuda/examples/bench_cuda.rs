//! Times each kernel of a step on a GPU, beside the rate at which it reads memory: see `bench_cuda --help`. Without a GPU it prints
//! why, in one line, and fails.

use std::process::ExitCode;

use realizar_kernels_cuda::bench;

fn main() -> ExitCode {
    match bench::run(std::env::args().skip(1), &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
