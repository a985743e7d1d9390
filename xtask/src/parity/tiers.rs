//! The default arithmetic on the tiers of the CPU: activations of 8 bits, packed weights, states and caches in
//! half precision, against the same in plain Rust.
//!
//! With F32 arithmetic the tiers differ from one another less than from the references, which the best one and
//! plain Rust are compared with; [`TIERS`] has a model for each form of weights that kernels read.

use std::path::Path;

use anyhow::Result;

use super::archs::{self, Golden};
use super::covering::TIERS;
use super::engine::{AllWays, Engine, relative_error};
use super::{Args, GPU_CHUNKS};
use crate::table;
use crate::totals::Totals;

/// Largest difference of a logit from plain Rust's, relative to the largest logit of its row. An activation that
/// another order of a sum rounds to another integer moves logits by less.
const TOLERANCE: f64 = 5e-3;
/// The same on tiers that round the activations of prompts to BF16.
const TILES_TOLERANCE: f64 = 3e-2;

/// Compare the tiers with the first of them, and print the table.
pub(super) fn run(bin: &Path, dir: &Path, tiers: &[String]) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut rows = Vec::new();
    let Some((plain, others)) = tiers.split_first() else { return Ok(totals) };
    let on = |tier: &str| Args { tier: Some(tier.to_owned()), ..Args::archs() }.of_each(&TIERS);
    let engine = |tier: &str| on(tier).engine(bin.to_path_buf());
    let plain = engine(plain)?;
    let others: Vec<(&String, Engine)> =
        others.iter().map(|tier| Ok((tier, engine(tier)?))).collect::<Result<_>>()?;
    for golden in archs::goldens(dir, &Args::archs().of_each(&TIERS))? {
        let expected = logits(&plain, &golden);
        for (tier, engine) in &others {
            let tolerance = if tier.starts_with("amx") { TILES_TOLERANCE } else { TOLERANCE };
            let mut row = vec![golden.name.clone(), (*tier).clone()];
            let found = logits(engine, &golden);
            let errors = match (&expected, found) {
                (Ok(expected), Ok(found)) => errors(expected, &found),
                (Err(error), _) => Err(anyhow::anyhow!("plain Rust: {error:#}")),
                (_, Err(error)) => Err(error),
            };
            match errors {
                Ok(errors) => {
                    row.extend(errors.map(|error| format!("{error:.1e}")));
                    row.push(totals.count(errors.iter().all(|error| *error <= tolerance)));
                }
                Err(error) => {
                    row.extend(["-"; 4].map(str::to_owned));
                    row.push(format!("{}: {error:#}", totals.count(false)));
                }
            }
            rows.push(row);
        }
    }
    println!(
        "Logits in the default arithmetic against plain Rust (relative error at most {TOLERANCE:e}, \
         {TILES_TOLERANCE:e} with tiles)\n"
    );
    let header = ["model", "tier", "whole", "chunks", "generated", "batch", "result"];
    println!("{}", table::render(&header, &rows));
    Ok(totals)
}

fn logits(engine: &Engine, golden: &Golden) -> Result<AllWays> {
    // The first has the weights in their own form.
    let (_, path) = &golden.files[0];
    engine.logits_in_all_ways(path, &golden.ids, &golden.positions, GPU_CHUNKS, &[])
}

/// The relative errors of the whole prompt, its chunks, generation and a batch.
fn errors(expected: &AllWays, found: &AllWays) -> Result<[f64; 4]> {
    let mut chunked = 0.0_f64;
    for (expected, found) in expected.chunks.iter().zip(&found.chunks) {
        chunked = chunked.max(relative_error(found, expected)?);
    }
    Ok([
        relative_error(&found.whole, &expected.whole)?,
        chunked,
        relative_error(&found.generated, &expected.generated)?,
        relative_error(&found.batched, &expected.batched)?,
    ])
}
