//! Without a home directory: local files work, and what needs the cache says which variable is missing.

use crate::cli::{Cli, error_line, stdout};
use crate::fixture;
use std::process::Output;

/// Runs without any variable that says where files of the user are.
fn run(cli: &Cli, args: &[&str]) -> Output {
    let mut command = cli.command(args);
    for name in ["HOME", "USERPROFILE", "REALIZAR_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    command.output().expect("the binary starts")
}

#[test]
fn paths_work_and_names_say_what_is_missing() {
    let cli = Cli::new();
    let model = fixture("model-f32.gguf").display().to_string();
    let raw = ["run", &model, "abc", "--raw", "-n", "3", "--greedy"];
    assert_eq!(stdout(&run(&cli, &raw)), stdout(&cli.run(&raw)));
    for args in [&["inspect", &model][..], &["show", &model], &["tokenize", &model, "abc"]] {
        assert_eq!(stdout(&run(&cli, args)), stdout(&cli.run(args)), "{args:?}");
    }
    for args in [
        &["run", "smollm2", "hi"][..],
        &["pull", "smollm2"],
        &["list"],
        &["du"],
        &["rm", "smollm2"],
        &["serve", "--port", "0"],
    ] {
        let error = error_line(&run(&cli, args), 1, &format!("{args:?}"));
        assert!(error.contains("HOME is not set: set HOME or REALIZAR_CACHE"), "{error}");
    }
}
