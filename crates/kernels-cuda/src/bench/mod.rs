//! `bench_cuda`: measures each kernel of decode and prefill steps at the shapes of models, against the ceilings of the
//! GPU.
//!
//! Launches rotate over copies of weights, keys and values that no cache can hold, so these are read from memory.
//! Activations are those that the launch before has read, as in a step. A time is the median over replays of a graph,
//! divided by its launches, so it includes the gap to the next launch. On the PTX interpreter the same code runs small
//! shapes and reports no times.

mod attention;
mod between;
mod case;
mod ceiling;
mod device;
mod experts;
mod host;
mod measure;
mod options;
mod products;
mod random;
mod report;
mod routes;
mod shape;

use std::io::Write;
use std::time::Instant;

use realizar_ptx::Checks;

use self::case::{Case, Op, plan};
use self::device::{Bench, Target};
use self::options::{Action, Options};
use self::report::{Object, Report, label};
use self::shape::Sizes;
use crate::device::{Driver, Interpreter};
use crate::{BenchError, Error};

/// Runs the program with its arguments (without its name) and writes the output for people to `out`; `--help` lists the
/// arguments.
///
/// # Errors
/// Unknown arguments, and any error of the device. The failure of a single case is written as a row instead.
pub fn run(args: impl IntoIterator<Item = String>, out: &mut dyn Write) -> Result<(), BenchError> {
    let options = Options::parse(args)?;
    let mut report = Report::new(out, options.json.as_deref(), &options.only, options.seconds)?;
    let sizes = if options.interpreter { Sizes::small() } else { Sizes::real() };
    match options.action {
        Action::Help => return report.say(options::HELP),
        Action::List => {
            let cases = plan(&sizes, &options.types);
            return cases.iter().try_for_each(|case| report.say(&label(case, "")));
        }
        Action::Describe => return report.say(&described(&Driver::open(options.gpu)?)),
        Action::Load | Action::Measure => {}
    }
    let done = measured(&sizes, &options, &mut report);
    match &done {
        Err(error @ BenchError::Device(_)) => {
            report.record(&Object::new("error").text("reason", &error.to_string()).end())?;
            done
        }
        _ => done,
    }
}

/// Opens the device with plain and with dependent launches, and measures.
fn measured(sizes: &Sizes, options: &Options, report: &mut Report<'_>) -> Result<(), BenchError> {
    if options.interpreter {
        let open = || Interpreter::new(Checks::FAST, usize::MAX);
        let dependent = open().with_early_launches();
        return session(vec![open(), dependent], sizes, options, report);
    }
    let mut devices = vec![Driver::open(options.gpu)?];
    match Driver::open(options.gpu)?.with_early_launches() {
        Ok(dependent) => devices.push(dependent),
        Err(error @ Error::NoEarlyLaunches { .. }) => report.say(&error.to_string())?,
        Err(error) => return Err(error.into()),
    }
    session(devices, sizes, options, report)
}

/// Describes a GPU as JSON.
fn described(device: &Driver) -> String {
    let gpu = device.info();
    let mut object = Object::new("gpu");
    object.text("name", &gpu.name).text("capability", &gpu.capability.to_string());
    object.text("driver", &gpu.driver.to_string()).number("bytes", Some(gpu.n_bytes));
    object.end()
}

/// Measures everything on a device, once for each launch mode.
fn session<D: Target>(
    devices: Vec<D>,
    sizes: &Sizes,
    options: &Options,
    report: &mut Report<'_>,
) -> Result<(), BenchError> {
    let start = Instant::now();
    let cases = plan(sizes, &options.types);
    let benches = devices.into_iter().map(|device| Bench::new(device, sizes));
    let benches = benches.collect::<Result<Vec<_>, _>>()?;
    let mut n_wanted = 0;
    for bench in &benches {
        let wanted: Vec<&Case> = wanted(report, bench, &cases).collect();
        n_wanted += wanted.len();
        bench.prepare(&wanted)?;
    }
    let mut object = Object::new("run");
    object.text("device", &benches[0].device.name()).flag("measured", D::IS_GPU);
    object.text("version", env!("CARGO_PKG_VERSION")).number("cases", Some(n_wanted));
    object.float("load_s", Some(start.elapsed().as_secs_f64()));
    let object = object.end();
    report.record(&object)?;
    report.say(&object)?;
    if options.action == Action::Load {
        return Ok(());
    }
    if n_wanted == 0 {
        return Err(BenchError::Usage("no case has all the words of --only".to_owned()));
    }
    ceiling::memory(&benches[0], report)?;
    benches.iter().try_for_each(|bench| ceiling::launches(bench, report))?;
    for group in cases.chunk_by(Case::is_like) {
        for bench in &benches {
            let wanted: Vec<&Case> = wanted(report, bench, group).collect();
            if !wanted.is_empty() {
                let first = label(wanted[0], bench.launch_mode());
                let done = of_group(bench, report, &wanted);
                report.unless_fatal(&first, done)?;
            }
        }
    }
    if D::IS_GPU && options.only.is_empty() && options.types.is_empty() {
        for bench in &benches {
            if report.has_time() {
                host::run(bench, report)?;
            }
        }
    }
    report.end(n_wanted, start.elapsed().as_secs_f64())
}

/// The cases of a list that are selected in a bench's launch mode and that it has kernels for.
fn wanted<'a, D: Target>(
    report: &Report<'_>,
    bench: &Bench<D>,
    cases: &'a [Case],
) -> impl Iterator<Item = &'a Case> {
    let mode = bench.launch_mode();
    cases.iter().filter(move |case| bench.has_kernels(case) && report.wants(case, mode))
}

fn of_group<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    cases: &[&Case],
) -> Result<(), BenchError> {
    if !report.has_time() {
        return Ok(());
    }
    match cases[0].op {
        op if op.is_product() => products::run(bench, report, cases),
        Op::Attention | Op::RopeStore => attention::run(bench, report, cases),
        Op::Norm | Op::Activation | Op::Greedy | Op::Shortlist => {
            between::run(bench, report, cases)
        }
        _ => experts::run(bench, report, cases),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program and returns its output.
    fn run_with(args: &[&str]) -> Result<String, BenchError> {
        let mut out = Vec::new();
        run(args.iter().map(|&arg| arg.to_owned()), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    /// Every case launches and has finite results, and dependent launches wait where they must.
    #[test]
    fn every_case_runs_on_the_interpreter() {
        let plan = plan(&Sizes::small(), &[]);
        let found = run_with(&["--interpreter", "--seconds", "600", "--only", "plain"]).unwrap();
        let end = format!("\"rows\": {}, \"failed\": 0, \"left\": 0", plan.len());
        assert!(found.contains(&end) && found.contains("gated_int8_q4_k_1\n"), "{found}");
        let only = "8b dependent batch=8";
        let found = run_with(&["--interpreter", "--seconds", "600", "--only", only]).unwrap();
        let n = plan.iter().filter(|case| case.shape.name == "8B" && case.batch == 8).count();
        assert!(found.contains(&format!("\"rows\": {n}, \"failed\": 0, \"left\": 0")), "{found}");
    }

    #[test]
    fn other_types_run_on_the_interpreter() {
        let types = ["--interpreter", "--types", "F16,F8_0,Q3_K", "--seconds", "600"];
        let only = ["--only", "plain batch=1 ", "--only", "plain prefill"];
        let found = run_with(&[types.as_slice(), &only].concat()).unwrap();
        assert!(found.contains("\"failed\": 0, \"left\": 0"), "{found}");
        assert!(found.contains("matmul_wgmma_f16_128\n") && found.contains("matvec_levels_q3_k"));
    }

    #[test]
    fn filters_without_cases_are_errors() {
        let error = run_with(&["--interpreter", "--only", "decode q3_x"]).unwrap_err();
        assert_eq!(error.to_string(), "no case has all the words of --only (see --help)");
        let found = run_with(&["--interpreter", "--only", "8b greedy batch=8 plain"]).unwrap();
        assert!(found.contains("\"rows\": 1, \"failed\": 0, \"left\": 0"), "{found}");
    }

    #[test]
    fn a_run_without_time_names_what_it_left() {
        let found = run_with(&["--interpreter", "--only", "8b greedy", "--seconds", "0"]).unwrap();
        assert!(found.contains("\"rows\": 0, \"failed\": 0, \"left\": 6"), "{found}");
    }
}
