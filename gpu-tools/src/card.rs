//! Opens the first GPU and prints what it is: one JSON object. Without one it prints why, in one line, and fails.

use std::process::ExitCode;

use realizar_kernels_cuda::{Card, Driver};
use serde_json::json;

pub(crate) fn main() -> ExitCode {
    match Driver::open(0) {
        Ok(device) => {
            let Card { name, capability, n_bytes, driver, .. } = device.card();
            let (capability, cuda) = (capability.to_string(), driver.to_string());
            println!(
                "{}",
                json!({"name": name, "capability": capability, "bytes": n_bytes, "cuda": cuda})
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
