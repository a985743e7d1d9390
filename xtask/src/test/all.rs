//! The steps that are commands of the crate feature `all`.

use anyhow::{Result, bail};

use super::built::Built;
use super::step::Step;
use crate::lavapipe::Width;
use crate::totals::Totals;
use crate::{load, parity, web};

/// Does a step's work with the engine as the tests build it: what panics in a debug build alone is found
/// here too, and nothing is built twice.
pub(super) fn run(step: Step, built: &Built) -> Result<Totals> {
    let parity_of = |args: parity::Args| parity::run(&args.with_engine(built.engine.clone()));
    match step {
        Step::Parity => {
            let mut totals = parity_of(parity::Args::tiny())?;
            totals.add(parity_of(parity::Args::archs().in_one_format().in_plain_rust())?);
            totals.add(parity_of(parity::Args::tiers())?);
            Ok(totals)
        }
        Step::Real => parity_of(parity::Args::real()),
        Step::CudaParity => parity_of(parity::Args::tiny().of_distinct().interpreted()),
        Step::GpuParity => gpu_parity(parity_of),
        Step::GpuReal if cfg!(target_os = "linux") => {
            parity_of(parity::Args::first_prompts().on_lavapipe(Width::W256))
        }
        Step::GpuReal => parity_of(parity::Args::published().on_wgpu()),
        Step::Hostile if !cfg!(target_os = "linux") => {
            println!("memory and signals are those of Linux: skipped");
            Ok(Totals::default())
        }
        Step::Hostile => load::hostile_checks(built.engine.clone()),
        Step::Web => web::test(&built.engine),
        _ => bail!("{} is no step of the crate feature `all`", step.name()),
    }
}

/// Tiny models on every kind of GPU that this machine can pretend to have.
fn gpu_parity(parity_of: impl Fn(parity::Args) -> Result<Totals>) -> Result<Totals> {
    let mut totals = Totals::default();
    if cfg!(target_os = "linux") {
        // Bits are compared at one width; the goldens compare them too, in F32.
        let tiny = parity::Args::tiny().of_distinct();
        totals.add(parity_of(tiny.on_lavapipe(Width::W256))?);
        for width in [Width::W128, Width::W512] {
            totals
                .add(parity_of(parity::Args::archs().of_few().in_one_format().on_lavapipe(width))?);
        }
        totals.add(parity_of(parity::Args::archs().split().on_lavapipe(Width::W256))?);
    } else {
        totals.add(parity_of(parity::Args::tiny().on_wgpu())?);
        totals.add(parity_of(parity::Args::archs().on_wgpu().plainly())?);
        totals.add(parity_of(parity::Args::archs().split().on_wgpu())?);
    }
    Ok(totals)
}
