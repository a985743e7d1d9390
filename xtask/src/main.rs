//! `cargo xtask`; the library of this crate is the program itself.

fn main() -> std::process::ExitCode {
    xtask::main()
}
