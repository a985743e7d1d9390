//! Published models against llama.cpp on their weights expanded to F32.
//!
//! `fixtures/real/README.md` says how the reference was made and what its fields mean.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::engine::{Engine, integers};
use super::{Args, Totals};
use crate::{shell, table};

/// (alias, name in the reference)
pub(super) const MODELS: &[(&str, &str)] =
    &[("smollm2", "smollm2-135m-instruct-q4_1"), ("gemma3:270m", "gemma-3-270m-q4_k_m")];

/// How many of the most likely next tokens are compared.
const TOP: usize = 5;
/// Where the best token leads by less, another correct arithmetic may choose another token.
const NEAR_TIE: f64 = 0.3;
/// Largest allowed difference of the perplexity, relative.
const PERPLEXITY_TOLERANCE: f64 = 0.003;

/// A way to run the engine, and how far its log-probabilities may be from the reference.
struct Mode {
    name: &'static str,
    options: &'static [&'static str],
    tolerance: f64,
}

const MODES: &[Mode] = &[
    Mode { name: "f32", options: &["--arithmetic", "f32", "--kv-type", "f32"], tolerance: 1e-3 },
    Mode { name: "default", options: &[], tolerance: 0.15 },
];

/// What one prompt showed.
struct Compared {
    /// Are the prompt's ids the reference's?
    ids: bool,
    /// Largest difference among the top log-probabilities.
    apart: f64,
    /// Greedy ids that are equal, and how many have to be.
    greedy: (usize, usize),
}

/// Compare every model and print the tables.
pub(super) fn run(engine: &Engine, args: &Args) -> Result<Totals> {
    let folder = shell::root().join("fixtures/real");
    let read = |name: &str| -> Result<Value> {
        let text = fs::read_to_string(folder.join(name)).with_context(|| name.to_owned())?;
        serde_json::from_str(&text).with_context(|| name.to_owned())
    };
    let (next_token, perplexity) = (read("next_token.json")?, read("perplexity.json")?);
    let text = folder.join("text.txt");
    let mut totals = Totals::default();
    let (mut prompts, mut perplexities) = (Vec::new(), Vec::new());
    for (alias, name) in MODELS.iter().filter(|(alias, _)| args.wants(alias)) {
        let references = next_token[name].as_array().with_context(|| format!("no {name}"))?;
        for (reference, mode) in references.iter().flat_map(|r| MODES.iter().map(move |m| (r, m))) {
            prompts.push(prompt_row(engine, alias, reference, mode, &mut totals));
        }
        let expected = perplexity[name].as_f64().with_context(|| format!("no {name}"))?;
        let file = text.to_string_lossy();
        let found = engine
            .json(&["perplexity", alias, "-f", &file, "--ctx", "512", "--json"])
            .and_then(|json| json["perplexity"].as_f64().context("no `perplexity`"));
        perplexities.push(perplexity_row(alias, found, expected, &mut totals));
    }
    let header = ["model", "prompt", "arithmetic", "ids", "top 5 apart", "greedy", "result"];
    println!("Next tokens against the F32 reference\n\n{}", table::render(&header, &prompts));
    let header = ["model", "reference", "found", "difference", "result"];
    println!("Perplexity at context 512\n\n{}", table::render(&header, &perplexities));
    Ok(totals)
}

fn prompt_row(
    engine: &Engine,
    alias: &str,
    reference: &Value,
    mode: &Mode,
    totals: &mut Totals,
) -> Vec<String> {
    let prompt = reference["prompt"].as_str().unwrap_or_default();
    let mut args = vec!["run", alias, "--raw", "--json", "--logprobs", "10"];
    args.extend(["--temp", "0", "-n", "32"]);
    args.extend(mode.options);
    args.extend(["--", prompt]);
    let short: String = prompt.escape_debug().take(24).collect();
    let mut row = vec![alias.to_owned(), short, mode.name.to_owned()];
    match engine.json(&args).and_then(|found| compare(&found, reference)) {
        Ok(Compared { ids, apart, greedy: (equal, needed) }) => {
            let ok = ids && apart <= mode.tolerance && equal >= needed;
            row.push((if ids { "equal" } else { "differ" }).to_owned());
            row.extend([format!("{apart:.5}"), format!("{equal} (needs {needed})")]);
            row.push(totals.count(ok));
        }
        Err(error) => {
            row.extend(["-".to_owned(), "-".to_owned(), "-".to_owned()]);
            row.push(format!("{}: {error:#}", totals.count(false)));
        }
    }
    row
}

fn perplexity_row(
    alias: &str,
    found: Result<f64>,
    expected: f64,
    totals: &mut Totals,
) -> Vec<String> {
    let mut row = vec![alias.to_owned(), format!("{expected:.4}")];
    match found {
        Ok(found) => {
            let difference = found / expected - 1.0;
            row.extend([format!("{found:.4}"), format!("{:+.3} %", difference * 100.0)]);
            row.push(totals.count(difference.abs() <= PERPLEXITY_TOLERANCE));
        }
        Err(error) => {
            row.extend(["-".to_owned(), "-".to_owned()]);
            row.push(format!("{}: {error:#}", totals.count(false)));
        }
    }
    row
}

/// Hold one answer of `run --json --logprobs` against the reference.
fn compare(found: &Value, reference: &Value) -> Result<Compared> {
    let ids = integers(&found["prompt_ids"], "prompt_ids")? == integers(&reference["ids"], "ids")?;
    let first = found["top_logprobs"][0].as_array().context("no `top_logprobs`")?;
    let wanted = reference["next_top10"].as_array().context("no `next_top10`")?;
    ensure!(wanted.len() >= TOP, "the reference has {} next tokens", wanted.len());
    let mut apart = 0.0f64;
    for token in &wanted[..TOP] {
        let same = first.iter().find(|t| t["id"] == token["id"]);
        let same = same.with_context(|| format!("token {} is not among the top", token["id"]))?;
        let (a, b) = (same["logprob"].as_f64(), token["logprob"].as_f64());
        apart = apart.max((a.context("no logprob")? - b.context("no logprob")?).abs());
    }
    let generated = integers(&found["ids"], "ids")?;
    let greedy = integers(&reference["greedy_ids"], "greedy_ids")?;
    let leads = reference["top1_minus_top2_logprob"].as_array().context("no leads")?;
    let sure = leads.iter().take_while(|l| l.as_f64().is_some_and(|l| l >= NEAR_TIE)).count();
    let equal = generated.iter().zip(&greedy).take_while(|(a, b)| a == b).count();
    Ok(Compared { ids, apart, greedy: (equal, sure.min(greedy.len())) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reference() -> Value {
        let top: Vec<Value> = (0..10).map(|i| json!({"id": i, "logprob": -f64::from(i)})).collect();
        json!({"prompt": "a", "ids": [1, 2], "next_top10": top, "greedy_ids": [0, 7, 8, 9],
            "top1_minus_top2_logprob": [1.0, 0.5, 0.1, 2.0]})
    }

    fn answer(ids: &[usize], generated: &[usize], second: f64) -> Value {
        let top = [0.0, second, -2.0, -3.0, -4.0];
        let top: Vec<Value> =
            top.iter().enumerate().map(|(i, p)| json!({"id": i, "logprob": p})).collect();
        json!({"prompt_ids": ids, "ids": generated, "top_logprobs": [top]})
    }

    #[test]
    fn greedy_ids_count_up_to_the_first_near_tie() {
        let cases = [
            (answer(&[1, 2], &[0, 7, 8, 9], -1.0), (true, 0.0, (4, 2))),
            (answer(&[1, 2], &[0, 7, 5, 5], -1.5), (true, 0.5, (2, 2))),
            (answer(&[1], &[0, 5], -0.75), (false, 0.25, (1, 2))),
        ];
        for (found, (ids, apart, greedy)) in cases {
            let compared = compare(&found, &reference()).unwrap();
            assert_eq!((compared.ids, compared.apart, compared.greedy), (ids, apart, greedy));
        }
    }

    #[test]
    fn a_token_that_is_not_listed_is_an_error() {
        let mut found = answer(&[1, 2], &[0], -1.0);
        found["top_logprobs"][0][3]["id"] = json!(99);
        assert!(compare(&found, &reference()).is_err());
    }
}
