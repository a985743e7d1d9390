//! Options that say how tokens are chosen. What is not given is the model's own.

use clap::Args;
use realizar_runtime::sampling::SamplingParams;

use super::{not_empty, number, whole};

/// How tokens are chosen.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SamplingArgs {
    /// Always take the most likely token; the same as --temp 0
    #[arg(long, conflicts_with = "temp")]
    #[arg(hide_short_help = true)]
    greedy: bool,
    /// Temperature; 0 takes the most likely token [default: the model's, or 0.8]
    #[arg(long, visible_alias = "temperature", value_name = "T", value_parser = range(0.0, 100.0))]
    #[arg(allow_negative_numbers = true)]
    temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default: the model's, or 40]
    #[arg(long, value_name = "K", value_parser = whole, allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Keep the most likely tokens up to this probability; 1 keeps all [default: the model's, or
    /// 0.95]
    #[arg(long, value_name = "P", value_parser = above_zero(1.0), allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Drop tokens below P times the best probability; 0 keeps all [default: the model's, or 0.05]
    #[arg(long, value_name = "P", value_parser = range(0.0, 1.0), allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Locally typical sampling: keep tokens up to this probability; 1 keeps all [default: the
    /// model's, or 1]
    #[arg(long, visible_alias = "typical-p", value_name = "P", value_parser = above_zero(1.0))]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    typical: Option<f32>,
    /// Keep tokens with a logit within N standard deviations of the best; 0 and -1 keep all
    /// [default: 0]
    #[arg(long, visible_alias = "top-n-sigma", value_name = "N", value_parser = range(-1.0, 100.0))]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    top_nsigma: Option<f32>,
    /// Apply the temperature after the filters, as llama.cpp does
    #[arg(long, hide_short_help = true)]
    temperature_last: bool,
    /// XTC: how often all top choices except the least likely one are removed; 0 is never [default:
    /// the model's, or 0]
    #[arg(long, value_name = "P", value_parser = range(0.0, 1.0))]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    xtc_probability: Option<f32>,
    /// XTC: minimum probability of a top choice; above 0.5 is off [default: the model's, or 0.1]
    #[arg(long, value_name = "P", value_parser = range(0.0, 1.0))]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    xtc_threshold: Option<f32>,
    /// Penalty for repeated tokens; 1 is none [default: the model's, or 1]
    #[arg(long, value_name = "X", value_parser = above_zero(100.0), allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// Window of the penalties in tokens, prompt included [default: the model's, or 64]
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    repeat_last_n: Option<usize>,
    /// Subtracted once from the logit of a token that occurred [default: 0]
    #[arg(long, value_name = "X", value_parser = range(-2.0, 2.0), allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    presence_penalty: Option<f32>,
    /// Subtracted per occurrence from the logit of a token [default: 0]
    #[arg(long, value_name = "X", value_parser = range(-2.0, 2.0), allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    frequency_penalty: Option<f32>,
    /// DRY: penalty for tokens that extend a repeated sequence; 0 is off [default: 0]
    #[arg(long, value_name = "X", value_parser = range(0.0, 100.0))]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    dry_multiplier: Option<f32>,
    /// DRY: factor per further token of the repetition [default: 1.75]
    #[arg(long, value_name = "X", value_parser = range(1.0, 100.0))]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    dry_base: Option<f32>,
    /// DRY: longest repetition that is not penalized [default: 2]
    #[arg(long, value_name = "N", value_parser = whole)]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    dry_allowed_length: Option<usize>,
    /// DRY: number of last tokens that are searched; -1 is all of them [default: 64]
    #[arg(long, value_name = "N", value_parser = last_n)]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    dry_penalty_last_n: Option<i32>,
    /// DRY: sequence breaker, replacing \n : " *; may be given several times, and `none` means no
    /// breakers
    #[arg(long, value_name = "TEXT", value_parser = not_empty, allow_hyphen_values = true)]
    #[arg(hide_short_help = true)]
    dry_sequence_breaker: Vec<String>,
    /// Mirostat instead of top-k, top-p and the other filters: 0 (off) or 2 (Mirostat 2.0)
    /// [default: the model's, or 0]
    #[arg(long, value_name = "N", value_parser = mirostat)]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    mirostat: Option<u8>,
    /// Mirostat: learning rate, eta [default: the model's, or 0.1]
    #[arg(long, value_name = "X", value_parser = range(0.0, 1.0))]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    mirostat_lr: Option<f32>,
    /// Mirostat: target entropy in bits, tau [default: the model's, or 5]
    #[arg(long, value_name = "BITS", value_parser = range(0.0, 100.0))]
    #[arg(allow_negative_numbers = true, hide_short_help = true)]
    mirostat_ent: Option<f32>,
    /// Seed of the sampler; the same seed gives the same text [default: random]
    #[arg(short, long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
}

impl SamplingArgs {
    /// What is given, over a model's own parameters.
    pub(crate) fn over(&self, own: &SamplingParams) -> SamplingParams {
        let temp = if self.greedy { Some(0.0) } else { self.temp };
        SamplingParams {
            temperature: temp.unwrap_or(own.temperature),
            temperature_last: self.temperature_last || own.temperature_last,
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            typical_p: self.typical.unwrap_or(own.typical_p),
            top_n_sigma: self.top_nsigma.unwrap_or(own.top_n_sigma),
            xtc_probability: self.xtc_probability.unwrap_or(own.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(own.xtc_threshold),
            repetition_penalty: self.repeat_penalty.unwrap_or(own.repetition_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(own.repeat_last_n),
            presence_penalty: self.presence_penalty.unwrap_or(own.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(own.frequency_penalty),
            penalize_prompt: own.penalize_prompt,
            dry_multiplier: self.dry_multiplier.unwrap_or(own.dry_multiplier),
            dry_base: self.dry_base.unwrap_or(own.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(own.dry_allowed_length),
            dry_penalty_last_n: self.dry_penalty_last_n.unwrap_or(own.dry_penalty_last_n),
            dry_sequence_breakers: match &self.dry_sequence_breaker[..] {
                [] => own.dry_sequence_breakers.clone(),
                given => given.iter().filter(|text| *text != "none").map(|t| unescape(t)).collect(),
            },
            mirostat: self.mirostat.unwrap_or(own.mirostat),
            mirostat_tau: self.mirostat_ent.unwrap_or(own.mirostat_tau),
            mirostat_eta: self.mirostat_lr.unwrap_or(own.mirostat_eta),
            logit_bias: own.logit_bias.clone(),
            seed: self.seed.or(own.seed),
        }
    }
}

/// Writes `\n`, `\t`, `\r`, `\"`, `\'` and `\\` as what they stand for, as shells pass them on;
/// any other backslash is itself.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let mut ahead = rest.clone();
        let escaped = match ahead.next() {
            Some('n') => Some('\n'),
            Some('t') => Some('\t'),
            Some('r') => Some('\r'),
            Some(c @ ('\\' | '"' | '\'')) => Some(c),
            _ => None,
        };
        match escaped.filter(|_| c == '\\') {
            Some(escaped) => {
                out.push(escaped);
                rest = ahead;
            }
            None => out.push(c),
        }
    }
    out
}

fn last_n(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(n) if n >= -1 => Ok(n),
        _ => Err("must be a whole number of at least -1".to_owned()),
    }
}

/// A seed of 64 bits without a sign.
fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("must be a whole number from 0 to {}", u64::MAX))
}

fn mirostat(text: &str) -> Result<u8, String> {
    match text {
        "0" => Ok(0),
        "2" => Ok(2),
        "1" => {
            Err("Mirostat version 1 is not supported; use 2, or 0 to turn Mirostat off".to_owned())
        }
        _ => Err("must be 0 or 2".to_owned()),
    }
}

// The ranges are those of the runtime's sampling parameters.

fn range(low: f32, high: f32) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync {
    move |text: &str| match number(text) {
        Ok(x) if (low..=high).contains(&x) => Ok(x),
        _ => Err(format!("must be a number from {low} to {high}")),
    }
}

fn above_zero(high: f32) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync {
    move |text: &str| match number(text) {
        Ok(x) if x > 0.0 && x <= high => Ok(x),
        _ => Err(format!("must be a number above 0 and at most {high}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    fn over(args: &[&str], own: &SamplingParams) -> SamplingParams {
        let all = ["x"].iter().chain(args);
        Only::try_parse_from(all).expect("good options").sampling.over(own)
    }

    #[test]
    fn what_is_not_given_is_the_models() {
        let own = SamplingParams {
            temperature: 0.6,
            top_k: 20,
            repetition_penalty: 1.05,
            ..SamplingParams::default()
        };
        let check = |args: &[&str], want: SamplingParams| {
            assert_eq!(over(args, &own), want, "{args:?}");
        };
        check(&[], own.clone());
        check(
            &["--temp", "0.8", "--min-p", "0"],
            SamplingParams { temperature: 0.8, min_p: 0.0, ..own.clone() },
        );
        check(&["--greedy"], SamplingParams { temperature: 0.0, ..own.clone() });
        check(
            &["--top-k=0", "--repeat-penalty=1", "--mirostat=2", "--mirostat-ent=3"],
            SamplingParams {
                top_k: 0,
                repetition_penalty: 1.0,
                mirostat: 2,
                mirostat_tau: 3.0,
                ..own.clone()
            },
        );
        let rest = [
            "--top-p=0.9",
            "--typical=0.8",
            "--top-nsigma=2",
            "--xtc-probability=0.5",
            "--xtc-threshold=0.2",
            "--repeat-last-n=32",
            "--presence-penalty=0.1",
            "--frequency-penalty=0.2",
            "--dry-multiplier=0.3",
            "--dry-base=2",
            "--dry-allowed-length=3",
            "--dry-penalty-last-n=-1",
            "--mirostat-lr=0.4",
        ];
        check(
            &rest,
            SamplingParams {
                top_p: 0.9,
                typical_p: 0.8,
                top_n_sigma: 2.0,
                xtc_probability: 0.5,
                xtc_threshold: 0.2,
                repeat_last_n: 32,
                presence_penalty: 0.1,
                frequency_penalty: 0.2,
                dry_multiplier: 0.3,
                dry_base: 2.0,
                dry_allowed_length: 3,
                dry_penalty_last_n: -1,
                mirostat_eta: 0.4,
                ..own.clone()
            },
        );
    }

    #[test]
    fn sequence_breakers_replace_the_usual_ones() {
        let check = |given: &[&str], want: &[&str]| {
            let args: Vec<_> =
                given.iter().flat_map(|text| ["--dry-sequence-breaker", text]).collect();
            let params = over(&args, &SamplingParams::default());
            assert_eq!(params.dry_sequence_breakers, want, "{given:?}");
        };
        check(&[], &["\n", ":", "\"", "*"]);
        check(&["none"], &[]);
        check(&["a", "\n", "- "], &["a", "\n", "- "]);
        check(&[r"\n", r"\t\r|", r#"\\\"\'"#], &["\n", "\t\r|", "\\\"'"]);
        check(&[r"\", r"\x\\n", r"n\"], &[r"\", r"\x\n", r"n\"]);
    }
}
