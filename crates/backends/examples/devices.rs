//! Prints the CPU backend of this machine: `devices`.

use realizar_backends::Backend;
use realizar_backends::cpu::CpuBackend;

fn main() -> Result<(), realizar_backends::Error> {
    let backend = CpuBackend::new(None, None)?;
    println!("{}: {} rows of a prompt per step", backend.name(), backend.step_rows());
    if let Some(free) = backend.free_memory() {
        println!("{} free", realizar_base::ByteSize::from(free.bytes));
    }
    Ok(())
}
