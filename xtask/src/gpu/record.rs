//! `gpu record`: puts what a run left into `benches/runs`, with a page that shows it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::outcome::Outcomes;
use super::quick::{QUICK, SECOND};
use super::results;
use crate::{machine, shell};

/// `cargo xtask gpu record`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of a call's results.
    from: PathBuf,
    /// The folder, instead of one in `benches/runs` with the day and the GPU in its name.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The end of that name, such as `-second`.
    #[arg(long, default_value = "")]
    ending: String,
}

/// The largest file that is committed.
const MAX_BYTES: u64 = 4 << 20;

/// Copies the files and writes the page.
pub(super) fn run(args: &Args) -> Result<()> {
    let outcomes = Outcomes::read(&args.from)?;
    let name = format!("{}-{}{}", outcomes.date, machine::slug(&gpu(&outcomes)), args.ending);
    let to = args.out.clone().unwrap_or_else(|| shell::root().join("benches/runs").join(name));
    ensure!(!to.exists(), "{} is there: --ending gives another name", to.display());
    fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
    let mut names = Vec::new();
    for entry in fs::read_dir(&args.from).with_context(|| args.from.display().to_string())? {
        let entry = entry?;
        let (path, about) = (entry.path(), entry.metadata()?);
        let name = entry.file_name().to_string_lossy().into_owned();
        if !about.is_file() || about.len() > MAX_BYTES {
            println!("{name}: left out, no file of at most {} MiB", MAX_BYTES >> 20);
            continue;
        }
        fs::copy(&path, to.join(&name)).with_context(|| path.display().to_string())?;
        names.push(name);
    }
    names.sort();
    write_page(&to, &outcomes, &names)?;
    println!("{}", to.display());
    Ok(())
}

/// The name of the GPU, or of the device that stood for one.
fn gpu(outcomes: &Outcomes) -> String {
    let driver = outcomes.get("card", "driver");
    let name = driver.and_then(|outcome| outcome.value["name"].as_str());
    name.unwrap_or(&outcomes.device).to_owned()
}

fn write_page(to: &Path, outcomes: &Outcomes, names: &[String]) -> Result<()> {
    let mut page = format!("# {}, {}\n\n", gpu(outcomes), outcomes.date);
    let is_second = outcomes.notes.contains_key("llama");
    let (command, steps) = if is_second { ("second", SECOND) } else { ("quick", QUICK) };
    writeln!(
        page,
        "`cargo xtask gpu {command}` at {}. Speeds are those of both rounds.\n",
        outcomes.commit
    )?;
    let steps = steps.iter().map(|step| (step.name, Some(step.seconds)));
    let mut tables = vec![results::step_table(steps, outcomes)];
    if is_second {
        tables.push(results::peer_table("llama", outcomes));
    } else {
        tables.push(results::verdict_table(&results::verdicts(outcomes)));
        tables.push(results::speed_table(&results::speeds(outcomes)));
    }
    for table in tables.iter().filter(|table| !table.is_empty()) {
        writeln!(page, "{table}")?;
    }
    page += "Files:\n\n";
    for name in names {
        writeln!(page, "- [{name}]({name})")?;
    }
    let path = to.join("README.md");
    fs::write(&path, page).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gpu::outcome::Outcome;

    #[test]
    fn a_run_is_kept_with_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir(&from).unwrap();
        let mut outcomes = Outcomes {
            device: "cuda".to_owned(),
            date: "2026-11-30".to_owned(),
            ..Outcomes::default()
        };
        let value = json!({"name": "NVIDIA H100"});
        outcomes.add("card", "driver", Outcome { ok: true, value, ..Outcome::default() });
        outcomes.save(&from).unwrap();
        fs::write(from.join("opcodes.log"), "all the same\n").unwrap();
        let args = Args { from, out: Some(to.clone()), ending: String::new() };
        run(&args).unwrap();
        let page = fs::read_to_string(to.join("README.md")).unwrap();
        assert!(page.starts_with("# NVIDIA H100, 2026-11-30\n\n`cargo xtask gpu quick`"), "{page}");
        assert!(
            page.contains("| --cuda-wgmma ")
                && page.ends_with("- [opcodes.log](opcodes.log)\n- [results.json](results.json)\n")
        );
        assert_eq!(fs::read_to_string(to.join("opcodes.log")).unwrap(), "all the same\n");
        // A run that is there is not written over.
        assert!(run(&args).unwrap_err().to_string().contains("--ending"));
    }
}
