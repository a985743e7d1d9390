//! `cargo xtask fixtures`: make the fixture files again by running the scripts beside them.
//!
//! Not part of the tests: it needs a Python with torch, transformers and sentencepiece, and
//! llama.cpp's source tree for the GGUF twins.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// `cargo xtask fixtures`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The Python that has torch and transformers.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// llama.cpp's source folder; without it the GGUF twins stay as they are.
    #[arg(long)]
    llama_cpp: Option<PathBuf>,
    /// Comma-separated names of tiny models; all by default.
    #[arg(long)]
    names: Option<String>,
}

/// Run the scripts.
pub(crate) fn run(args: &Args) -> Result<()> {
    let names = args.names.as_ref().map(|n| format!("--names={n}"));
    let mut make = shell::command(&args.python);
    make.arg("fixtures/archs/make_archs.py").arg("fixtures/archs").args(["--seed", "11"]);
    shell::check(make.args(["--size", "small"]).args(&names))?;
    match &args.llama_cpp {
        Some(source) => {
            let mut convert = shell::command(&args.python);
            convert.arg("fixtures/archs/make_gguf.py").arg(source).arg("fixtures/archs");
            shell::check(convert.args(&names))?;
        }
        None => println!("fixtures: no --llama-cpp, so the GGUF twins were not made"),
    }
    for (file, set) in
        [("expected.json", "all"), ("dense.json", "dense"), ("unusual.json", "unusual")]
    {
        let mut settings = shell::command(&args.python);
        settings.arg("fixtures/settings/make_settings.py").arg("fixtures/archs");
        shell::check(settings.arg(format!("fixtures/settings/{file}")).args(["--set", set]))?;
    }
    let mut mutations = shell::command(&args.python);
    mutations.arg("fixtures/settings/make_mutations.py").arg("fixtures/archs");
    shell::check(mutations.arg("fixtures/settings/mutations"))?;
    let mut classes = shell::command(&args.python);
    classes.arg("fixtures/settings/make_classes.py");
    shell::check(classes.arg("crates/model/src/checkpoint/classes.json"))?;
    Ok(())
}
