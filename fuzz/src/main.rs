//! One fuzz target. Built by `cargo xtask fuzz`, libFuzzer with the target that `REALIZAR_FUZZ_TARGET`
//! names; otherwise a program that runs a target on files: `realizar-fuzz TARGET FILE…`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod fuzzer {
    use realizar_fuzz::Target;
    use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
    use std::sync::OnceLock;

    fn chosen() -> &'static Target {
        static CHOSEN: OnceLock<&Target> = OnceLock::new();
        CHOSEN.get_or_init(|| {
            // Panics of libraries are caught and become errors; only what comes out of the target
            // is a finding. The default hook of the fuzzer ends the process at every panic.
            set_hook(Box::new(|panic| println!("{panic}")));
            let name = std::env::var("REALIZAR_FUZZ_TARGET").unwrap_or_default();
            realizar_fuzz::target(&name).unwrap_or_else(|| panic!("`{name}` is no target"))
        })
    }

    libfuzzer_sys::fuzz_target!(|data: &[u8]| {
        let target = chosen();
        if catch_unwind(AssertUnwindSafe(|| (target.run)(data))).is_err() {
            std::process::abort();
        }
    });
}

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    use std::process::ExitCode;

    let fail = |text: &str, code: u8| {
        println!("{text}");
        ExitCode::from(code)
    };
    let mut args = std::env::args_os().skip(1);
    let name = args.next().unwrap_or_default();
    let Some(target) = name.to_str().and_then(realizar_fuzz::target) else {
        let names: Vec<_> = realizar_fuzz::TARGETS.iter().map(|target| target.name).collect();
        let text = format!("usage: realizar-fuzz TARGET FILE…\ntargets: {}", names.join(", "));
        return fail(&text, 2);
    };
    for file in args {
        match std::fs::read(&file) {
            Ok(data) => (target.run)(&data),
            Err(error) => return fail(&format!("{}: {error}", file.display()), 1),
        }
    }
    ExitCode::SUCCESS
}
