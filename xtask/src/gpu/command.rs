//! The commands that run a plan: `gpu quick` and `gpu second`, whose steps have their time in one call, and `gpu run`, whose
//! steps may take several.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::call::{Call, run_item};
use super::outcome::Outcomes;
use super::pack::Packed;
use super::place::{Place, PlaceArgs};
use super::quick::{self, QUICK, SECOND, Step};
use super::{plan, results};

/// `cargo xtask gpu quick`, `cargo xtask gpu second`
#[derive(clap::Args)]
pub(crate) struct OneCallArgs {
    /// Run these steps alone; all by default.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds that this call has, instead of the sum of its steps'.
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u64>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// `cargo xtask gpu run`
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// Run these steps alone; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<plan::Step>,
    /// Seconds that this call has, whatever its steps have.
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u64>,
    /// Do the steps again, instead of what is left of them.
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Runs the steps of the first call, and says what follows for each option.
pub(super) fn quick(args: &OneCallArgs) -> Result<ExitCode> {
    one_call(args, QUICK, |outcomes| {
        let verdicts = results::verdicts(outcomes);
        let json = serde_json::to_string_pretty(&verdicts)? + "\n";
        let speeds = results::speed_table(&results::speeds(outcomes));
        Ok((vec![speeds, results::verdict_table(&verdicts)], Some(("verdict.json", json))))
    })
}

/// Runs the steps of the second call.
pub(super) fn second(args: &OneCallArgs) -> Result<ExitCode> {
    one_call(args, SECOND, |outcomes| Ok((vec![results::peer_table("llama", outcomes)], None)))
}

/// What a call ends with: tables, and a file.
type End = (Vec<String>, Option<(&'static str, String)>);

fn one_call(
    args: &OneCallArgs,
    steps: &[Step],
    end: impl Fn(&Outcomes) -> Result<End>,
) -> Result<ExitCode> {
    let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
    if let Some(unknown) = args.only.iter().find(|only| !names.contains(&only.as_str())) {
        bail!("--only: `{unknown}` is not one of {}", names.join(", "));
    }
    let place = Place::find(&args.place)?;
    let outcomes = Outcomes::open(&place.out, &Packed::read(&place.root)?.commit, &place.device)?;
    let planned: u64 = steps.iter().map(|step| step.seconds).sum();
    let budget = args.budget.unwrap_or(planned);
    let call = Call::new(&place, outcomes);
    let mut until = 0;
    for step in steps {
        // Each step may use what those before it have left of theirs.
        until += step.seconds * budget / planned;
        if !args.only.is_empty() && !args.only.iter().any(|only| only == step.name) {
            call.leave_out(step.name, "not among --only")?;
            continue;
        }
        let work = (step.work)(&place, &call.outcomes());
        match work {
            Ok(work) => call.step(step.name, &work, call.at(until))?,
            Err(reason) => call.leave_out(step.name, &reason)?,
        }
        let reason = no_gpu_in(&call.outcomes());
        if let (true, Some(reason)) = (step.name == "card" && place.is_gpu(), reason) {
            println!("gpu: no GPU to run on: {reason}");
            return Ok(ExitCode::FAILURE);
        }
        print_end(&call.outcomes(), steps, &place, &end, false)?;
    }
    let outcomes = call.finish()?;
    print_end(&outcomes, steps, &place, &end, true)?;
    Ok(status(&outcomes))
}

/// Writes the tables and the file of a call, and at its end prints them: a call that is broken off keeps those of its last
/// step.
fn print_end(
    outcomes: &Outcomes,
    steps: &[Step],
    place: &Place,
    end: &impl Fn(&Outcomes) -> Result<End>,
    prints: bool,
) -> Result<()> {
    let rows = steps.iter().map(|step| (step.name, Some(step.seconds)));
    let (tables, file) = end(outcomes)?;
    let tables = std::iter::once(results::step_table(rows, outcomes)).chain(tables);
    let text = tables.filter(|table| !table.is_empty()).collect::<Vec<_>>().join("\n");
    let files = file.into_iter().chain([("table.txt", text.clone())]);
    for (name, text) in files {
        let path = place.out.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    if prints {
        println!("\n{text}\n{}", place.out.display());
    }
    Ok(())
}

/// Why the driver opened no GPU, where it did not.
fn no_gpu_in(outcomes: &Outcomes) -> Option<String> {
    match outcomes.get("card", "driver") {
        Some(outcome) => (!outcome.ok).then(|| outcome.text.trim().to_owned()),
        None => Some("the driver was not asked".to_owned()),
    }
}

fn status(outcomes: &Outcomes) -> ExitCode {
    let failed = outcomes.steps.values().flat_map(|step| step.values()).any(|o| !o.ok);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs the steps of `gpu run`.
pub(super) fn run(args: &RunArgs) -> Result<ExitCode> {
    let place = Place::find(&args.place)?;
    let mut outcomes =
        Outcomes::open(&place.out, &Packed::read(&place.root)?.commit, &place.device)?;
    let all = plan::Step::value_variants().iter().copied();
    let steps: Vec<plan::Step> =
        all.filter(|step| args.only.is_empty() || args.only.contains(step)).collect();
    if args.again {
        steps.iter().for_each(|step| outcomes.forget(&step.name()));
    }
    if place.is_gpu()
        && let Some(reason) = no_gpu(&place, &mut outcomes)?
    {
        outcomes.save(&place.out)?;
        println!("gpu: no GPU to run on: {reason}");
        return Ok(ExitCode::FAILURE);
    }
    let call = Call::new(&place, outcomes);
    let end = args.budget.map(|n| call.at(n));
    for step in &steps {
        let step_end = std::time::Instant::now() + Duration::from_secs(step.seconds());
        match step.work(&place) {
            Ok(work) => {
                let end = end.map_or(step_end, |end| end.min(step_end));
                call.step(&step.name(), &work, end)?;
            }
            Err(reason) => call.leave_out(&step.name(), &reason)?,
        }
    }
    let outcomes = call.finish()?;
    let names: Vec<(String, u64)> =
        steps.iter().map(|step| (step.name(), step.seconds())).collect();
    let rows = names.iter().map(|(name, seconds)| (name.as_str(), Some(*seconds)));
    println!("\n{}", results::step_table(rows, &outcomes));
    for step in ["bench", "ranks", "wgpu"] {
        let table = results::peer_table(step, &outcomes);
        if !table.is_empty() {
            println!("{step}\n\n{table}");
        }
    }
    let served = plan::served_table(&outcomes);
    if !served.is_empty() {
        println!("{served}");
    }
    println!("{}", Outcomes::path(&place.out).display());
    Ok(status(&outcomes))
}

/// Why nothing can run on a GPU; `None` if the driver opens one.
fn no_gpu(place: &Place, outcomes: &mut Outcomes) -> Result<Option<String>> {
    let work = quick::card(place, outcomes).map_err(anyhow::Error::msg)?;
    let driver = work.items.first().context("an item that opens the driver")?;
    let (outcome, _) = run_item(driver, driver.limit)?;
    outcomes.add("card", &driver.name, outcome);
    Ok(no_gpu_in(outcomes))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::gpu::testing::Folder;

    #[test]
    fn a_machine_without_a_gpu_is_told_in_one_line() {
        let folder = Folder::new(&[("card", "echo 'no CUDA driver: not found'; exit 1")]);
        let mut outcomes = Outcomes::default();
        assert_eq!(no_gpu_in(&outcomes).as_deref(), Some("the driver was not asked"));
        let reason = no_gpu(&folder.place("cuda"), &mut outcomes).unwrap();
        assert_eq!(reason.as_deref(), Some("no CUDA driver: not found"));
        drop(folder);
        let folder = Folder::new(&[("card", r#"echo '{"name": "A GPU"}'"#)]);
        assert_eq!(no_gpu(&folder.place("cuda"), &mut outcomes).unwrap(), None);
        assert_eq!(outcomes.get("card", "driver").unwrap().value["name"], "A GPU");
        assert_eq!(no_gpu_in(&outcomes), None);
        // What is not JSON is no answer.
        drop(folder);
        let folder = Folder::new(&[("card", "echo fine")]);
        let reason = no_gpu(&folder.place("cuda"), &mut outcomes).unwrap().unwrap();
        assert!(reason.contains("no JSON"), "{reason}");
    }

    #[test]
    fn calls_fit_their_time() {
        let sum = |steps: &[Step]| -> u64 { steps.iter().map(|step| step.seconds).sum() };
        // Beside the start of a machine and the unpacking of the archive.
        assert_eq!((sum(QUICK), sum(SECOND)), (480, 210));
    }
}
