//! The `realizar` binary; the library of this crate is the program itself.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    realizar::main()
}
