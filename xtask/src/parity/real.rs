//! Published models against transformers and llama.cpp on their weights expanded to F32.
//!
//! `fixtures/real/README.md` says how the references were made and what their fields mean.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::engine::{Engine, integers};
use super::{Args, PLAIN, available_tiers};
use crate::totals::Totals;
use crate::{shell, table};

/// A published model of the references.
pub(super) struct Model {
    pub(super) alias: &'static str,
    /// Its name in the references.
    name: &'static str,
    /// How far llama.cpp's log-probabilities may be from those of F32 arithmetic.
    llama_cpp: f64,
    divergence: Divergence,
}

/// Largest allowed mean KL divergence of the default arithmetic from F32.
struct Divergence {
    /// Of prefill rows: all are output rows, and so have more bits in the last layer and the head, as
    /// first rows have everywhere.
    prompt: f64,
    /// Of prefill rows on tiers with tiles, which round to BF16 before the last layer.
    tiles: f64,
    /// Of decode rows.
    generated: f64,
}

impl Divergence {
    fn bound(&self, tier: &str, rows: &str) -> f64 {
        match rows {
            "generated" => self.generated,
            _ if tier.starts_with("amx") => self.tiles,
            _ => self.prompt,
        }
    }
}

pub(super) const MODELS: &[Model] = &[
    Model {
        alias: "smollm2",
        name: "smollm2-135m-instruct-q4_1",
        llama_cpp: 1e-3,
        divergence: Divergence { prompt: 0.00075, tiles: 0.00012, generated: 0.0015 },
    },
    // llama.cpp reads GELU from a table in half precision, which moves it by up to 0.003.
    Model {
        alias: "gemma3:270m",
        name: "gemma-3-270m-q4_k_m",
        llama_cpp: 4e-3,
        divergence: Divergence { prompt: 0.0008, tiles: 0.00012, generated: 0.0012 },
    },
];

/// How many tokens each prompt is continued by.
const TOKENS: usize = 32;
/// The same on lavapipe, where each takes seconds.
const LAVAPIPE_TOKENS: usize = 4;
/// How many of the most likely next tokens are compared.
const TOP: usize = 5;
/// Where the best token leads by less, another correct arithmetic may choose another token.
const NEAR_TIE: f64 = 0.3;
/// Largest allowed difference of the perplexity, relative.
const PERPLEXITY_TOLERANCE: f64 = 0.003;
/// The part of the text on which the divergence is measured: 381 positions.
const DIVERGENCE: &[&str] = &["--ctx", "256", "--chunks", "3", "--json"];

/// A way to run the engine, and how far its log-probabilities may be from the references.
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
    /// Largest difference among the top log-probabilities, from transformers.
    transformers: f64,
    /// The same from llama.cpp.
    llama_cpp: f64,
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
    let (transformers, others) = (read("next_token_transformers.json")?, read("others.json")?);
    let text = folder.join("text.txt");
    let n_tokens = if args.lavapipe { LAVAPIPE_TOKENS } else { TOKENS };
    let mut totals = Totals::default();
    let (mut prompts, mut of_others) = (Vec::new(), Vec::new());
    let (mut perplexities, mut divergences) = (Vec::new(), Vec::new());
    let tiers = tiers(engine, args)?;
    for model in MODELS.iter().filter(|model| args.wants(model.alias)) {
        let Model { alias, name, .. } = model;
        let entries = |references: &Value| -> Result<Vec<Value>> {
            references[name].as_array().cloned().with_context(|| format!("no {name}"))
        };
        let (llama_cpp, transformers) = (entries(&next_token)?, entries(&transformers)?);
        ensure!(llama_cpp.len() == transformers.len(), "{name}: the references differ in prompts");
        let n_prompts = args.prompts.unwrap_or(llama_cpp.len());
        for references in llama_cpp.iter().zip(&transformers).take(n_prompts) {
            for mode in MODES {
                prompts.push(prompt_row(engine, model, references, mode, n_tokens, &mut totals));
            }
        }
        if args.lavapipe || args.prompts.is_some() {
            continue;
        }
        let references = entries(&others)?;
        for mode in MODES {
            of_others.push(others_row(engine, alias, &references, mode, &mut totals));
        }
        let expected = perplexity[name].as_f64().with_context(|| format!("no {name}"))?;
        let file = text.to_string_lossy();
        let found = engine
            .json(&["perplexity", alias, "-f", &file, "--ctx", "512", "--json"])
            .and_then(|json| json["perplexity"].as_f64().context("no `perplexity`"));
        perplexities.push(perplexity_row(alias, found, expected, &mut totals));
        for (tier, rows) in &tiers {
            let base = ["kl-divergence", alias, "-f", &file, "--rows", rows];
            let tier_args: &[&str] = if tier.is_empty() { &[] } else { &["--cpu-tier", tier] };
            let found = engine.json(&[&base[..], DIVERGENCE, tier_args].concat());
            divergences.push(divergence_row(model, tier, rows, found, &mut totals));
        }
    }
    let header =
        ["model", "prompt", "arithmetic", "ids", "transformers", "llama.cpp", "greedy", "result"];
    println!(
        "Next tokens on {}: the top {TOP} log-probabilities' distance from the F32 references\n\n{}",
        args.place(),
        table::render(&header, &prompts)
    );
    if perplexities.is_empty() {
        println!("Perplexities are not measured on lavapipe or with --prompts\n");
        return Ok(totals);
    }
    let header = ["model", "prompts", "arithmetic", "mean", "worst", "behind", "result"];
    println!(
        "Other prompts: the top {TOP} log-probabilities' distance from transformers\n\n{}",
        table::render(&header, &of_others)
    );
    let header = ["model", "reference", "found", "difference", "result"];
    println!("Perplexity at context 512\n\n{}", table::render(&header, &perplexities));
    let header =
        ["model", "tier", "rows", "mean", "99 %", "maximum", "same top", "bound", "result"];
    println!(
        "KL divergence of the default arithmetic from F32\n\n{}",
        table::render(&header, &divergences)
    );
    Ok(totals)
}

fn prompt_row(
    engine: &Engine,
    &Model { alias, llama_cpp: own, .. }: &Model,
    (llama_cpp, transformers): (&Value, &Value),
    mode: &Mode,
    n_tokens: usize,
    totals: &mut Totals,
) -> Vec<String> {
    let prompt = llama_cpp["prompt"].as_str().unwrap_or_default();
    let mut args = vec!["run", alias, "--raw", "--json", "--logprobs", "10"];
    let n = n_tokens.to_string();
    args.extend(["--temp", "0", "-n", &n]);
    args.extend(mode.options);
    args.extend(["--", prompt]);
    let short: String = prompt.escape_debug().take(24).collect();
    let mut row = vec![alias.to_owned(), short, mode.name.to_owned()];
    match engine.json(&args).and_then(|found| compare(&found, llama_cpp, transformers, n_tokens)) {
        Ok(Compared { ids, transformers, llama_cpp, greedy: (equal, needed) }) => {
            let near = transformers <= mode.tolerance && llama_cpp <= mode.tolerance.max(own);
            row.push((if ids { "equal" } else { "differ" }).to_owned());
            row.extend([format!("{transformers:.5}"), format!("{llama_cpp:.5}")]);
            row.push(format!("{equal} (needs {needed})"));
            row.push(totals.count(ids && near && equal >= needed));
        }
        Err(error) => {
            row.extend(std::iter::repeat_n("-".to_owned(), 4));
            row.push(format!("{}: {error:#}", totals.count(false)));
        }
    }
    row
}

/// The prompts that transformers alone continued, by one token.
fn others_row(
    engine: &Engine,
    alias: &str,
    references: &[Value],
    mode: &Mode,
    totals: &mut Totals,
) -> Vec<String> {
    let distance = |reference: &Value| -> Result<(f64, String)> {
        let prompt = reference["prompt"].as_str().context("no `prompt`")?;
        let base = ["run", alias, "--raw", "--json", "--logprobs", "10", "--temp", "0", "-n", "1"];
        let found = engine.json(&[&base, mode.options, &["--", prompt]].concat())?;
        let ids = integers(&found["prompt_ids"], "prompt_ids")?;
        ensure!(ids == integers(&reference["ids"], "ids")?, "{prompt:?}: other ids");
        Ok((apart(&found, reference)?, prompt.escape_debug().take(24).collect()))
    };
    let mut row = vec![alias.to_owned(), references.len().to_string(), mode.name.to_owned()];
    let found: Result<Vec<_>> = references.iter().map(distance).collect();
    let worst = found.and_then(|found| {
        let mean = found.iter().map(|(apart, _)| apart).sum::<f64>() / found.len() as f64;
        let worst = found.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        Ok((mean, worst.context("no prompts")?))
    });
    match worst {
        Ok((mean, (worst, prompt))) => {
            row.extend([format!("{mean:.5}"), format!("{worst:.5}"), prompt]);
            row.push(totals.count(worst <= mode.tolerance));
        }
        Err(error) => {
            row.extend(std::iter::repeat_n("-".to_owned(), 3));
            row.push(format!("{}: {error:#}", totals.count(false)));
        }
    }
    row
}

/// The tiers of the CPU and the roles of rows whose divergence is measured. Plain Rust, which
/// computes the same integers as the others, is left out unless asked for: it takes minutes.
fn tiers(engine: &Engine, args: &Args) -> Result<Vec<(String, &'static str)>> {
    let chosen = if args.on_gpu() || args.tier.is_some() {
        // The options of every command name it.
        vec![String::new()]
    } else {
        let names = available_tiers(&engine.bin)?;
        let vectors: Vec<_> = names.iter().filter(|name| *name != PLAIN).cloned().collect();
        if vectors.is_empty() { names } else { vectors }
    };
    let best = chosen.last().cloned().context("no tier")?;
    let prompts = chosen.into_iter().map(|tier| (tier, "prompt"));
    Ok(prompts.chain([(best, "generated")]).collect())
}

fn divergence_row(
    Model { alias, divergence, .. }: &Model,
    tier: &str,
    rows: &str,
    found: Result<Value>,
    totals: &mut Totals,
) -> Vec<String> {
    let bound = divergence.bound(tier, rows);
    let mut row = vec![(*alias).to_owned(), tier.to_owned(), rows.to_owned()];
    let numbers = found.and_then(|found| {
        let number = |value: &Value, what| value.as_f64().with_context(|| format!("no `{what}`"));
        let divergence = &found["kl_divergence"];
        let [mean, p99, max] = ["mean", "p99", "max"].map(|key| number(&divergence[key], key));
        Ok((mean?, p99?, max?, number(&found["same_top"]["value"], "same_top")?))
    });
    match numbers {
        Ok((mean, p99, max, same_top)) => {
            row.extend([mean, p99, max].map(|x| format!("{x:.5}")));
            row.extend([format!("{:.2} %", same_top * 100.0), format!("{bound:.5}")]);
            row.push(totals.count(mean <= bound));
        }
        Err(error) => {
            row.extend(std::iter::repeat_n("-".to_owned(), 5));
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

/// Hold one answer of `run --json --logprobs`, with up to `n_tokens` new tokens, against the
/// references.
fn compare(
    found: &Value,
    llama_cpp: &Value,
    transformers: &Value,
    n_tokens: usize,
) -> Result<Compared> {
    let wanted = integers(&llama_cpp["ids"], "ids")?;
    ensure!(wanted == integers(&transformers["ids"], "ids")?, "the references differ in ids");
    let ids = integers(&found["prompt_ids"], "prompt_ids")? == wanted;
    let generated = integers(&found["ids"], "ids")?;
    let greedy = integers(&llama_cpp["greedy_ids"], "greedy_ids")?;
    let leads = llama_cpp["top1_minus_top2_logprob"].as_array().context("no leads")?;
    let sure = leads.iter().take_while(|l| l.as_f64().is_some_and(|l| l >= NEAR_TIE)).count();
    let equal = generated.iter().zip(&greedy).take_while(|(a, b)| a == b).count();
    Ok(Compared {
        ids,
        transformers: apart(found, transformers)?,
        llama_cpp: apart(found, llama_cpp)?,
        greedy: (equal, sure.min(greedy.len()).min(n_tokens)),
    })
}

/// Largest difference among the reference's top log-probabilities of the first new token.
fn apart(found: &Value, reference: &Value) -> Result<f64> {
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
    Ok(apart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Log-probabilities 0, -1, …, -9, each lower by `shift`.
    fn reference(shift: f64) -> Value {
        let logprob = |i: i32| -f64::from(i) - shift;
        let top: Vec<Value> = (0..10).map(|i| json!({"id": i, "logprob": logprob(i)})).collect();
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
            (answer(&[1, 2], &[0, 7, 8, 9], -1.0), (true, 0.0, 0.25, (4, 2))),
            (answer(&[1, 2], &[0, 7, 5, 5], -1.5), (true, 0.5, 0.25, (2, 2))),
            (answer(&[1], &[0, 5], -0.75), (false, 0.25, 0.5, (1, 2))),
        ];
        for (found, (ids, llama_cpp, transformers, greedy)) in cases {
            let compared = compare(&found, &reference(0.0), &reference(0.25), 32).unwrap();
            assert_eq!((compared.ids, compared.greedy), (ids, greedy));
            assert_eq!((compared.llama_cpp, compared.transformers), (llama_cpp, transformers));
        }
        // No more is needed than was to be generated.
        let found = answer(&[1, 2], &[0], -1.0);
        let compared = compare(&found, &reference(0.0), &reference(0.25), 1).unwrap();
        assert_eq!(compared.greedy, (1, 1));
    }

    #[test]
    fn a_divergence_is_held_to_its_bound() {
        let divergence = Divergence { prompt: 0.25, tiles: 0.125, generated: 0.5 };
        let model = Model { alias: "a", name: "b", llama_cpp: 0.0, divergence };
        for (tier, rows, mean, passes) in [
            ("avx2", "prompt", 0.25, true),
            ("avx2", "prompt", 0.26, false),
            ("amx-bf16-software", "prompt", 0.125, true),
            ("amx-bf16-software", "prompt", 0.25, false),
            ("amx-bf16-software", "generated", 0.5, true),
            ("", "generated", 0.51, false),
        ] {
            let found = json!({"kl_divergence": {"mean": mean, "p99": 0.5, "max": 1.0},
                "same_top": {"value": 0.75}});
            let mut totals = Totals::default();
            let row = divergence_row(&model, tier, rows, Ok(found), &mut totals);
            assert_eq!(row.last().map(String::as_str), Some(["FAILED", "ok"][usize::from(passes)]));
            assert_eq!(totals.passed, usize::from(passes));
        }
        let mut totals = Totals::default();
        divergence_row(&model, "avx2", "prompt", Ok(json!({})), &mut totals);
        assert_eq!((totals.passed, totals.failed), (0, 1));
    }

    #[test]
    fn references_of_other_ids_are_an_error() {
        let mut other = reference(0.0);
        other["ids"] = json!([1, 3]);
        assert!(compare(&answer(&[1, 2], &[0], -1.0), &reference(0.0), &other, 32).is_err());
    }

    #[test]
    fn a_token_that_is_not_listed_is_an_error() {
        let mut found = answer(&[1, 2], &[0], -1.0);
        found["top_logprobs"][0][3]["id"] = json!(99);
        assert!(compare(&found, &reference(0.0), &reference(0.0), 32).is_err());
    }
}
