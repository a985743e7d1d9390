//! `cargo xtask` with all its commands, under a name of its own beside the program that starts it.

fn main() -> std::process::ExitCode {
    xtask::main()
}
