//! The parameters of one request's sampling, with their ranges and defaults.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use super::Error;

/// How the next token is chosen.
///
/// The default is what every way to run a model falls back on where the model itself says nothing:
/// temperature 0.8, `top_k` 40, `top_p` 0.95, `min_p` 0.05, and everything else off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides the logits; 0 always chooses the most likely token.
    pub temperature: f32,
    /// Whether the temperature is applied after the filters, as llama.cpp does, so that what they keep does not
    /// depend on it. Zero always chooses the most likely token, and Mirostat's temperature comes first.
    pub temperature_last: bool,
    /// Only this many of the most likely tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only the most likely tokens that reach this probability together are kept; 1 keeps all.
    pub top_p: f32,
    /// Tokens less likely than this fraction of the most likely one are dropped; 0 keeps all.
    pub min_p: f32,
    /// Only the tokens whose surprise is nearest to the entropy, and that reach this probability
    /// together, are kept; 1 keeps all.
    pub typical_p: f32,
    /// Only tokens whose logit is within this many standard deviations of the best are kept; 0
    /// and below keep all.
    pub top_n_sigma: f32,
    /// How often XTC excludes the top choices but the least likely of them; 0 is never.
    pub xtc_probability: f32,
    /// The probability that makes a token a top choice; above 0.5 there cannot be two, so XTC is
    /// off.
    pub xtc_threshold: f32,
    /// Divides the positive and multiplies the negative logits of recent tokens; 1 is off.
    pub repetition_penalty: f32,
    /// How many of the latest tokens, prompt included, the repetition penalty counts; `usize::MAX` is all.
    pub repeat_last_n: usize,
    /// Subtracted from the logits of tokens that were generated before.
    pub presence_penalty: f32,
    /// Subtracted from the logits of generated tokens once per occurrence.
    pub frequency_penalty: f32,
    /// Whether presence and frequency penalties count the latest `repeat_last_n` tokens, prompt included, as
    /// llama.cpp does, instead of all generated ones, as OpenAI and vLLM do.
    pub penalize_prompt: bool,
    /// Scales DRY's penalty of tokens that would continue a sequence of the text, which is
    /// `dry_multiplier * dry_base^(length - dry_allowed_length)`; 0 is off.
    pub dry_multiplier: f32,
    /// How much the penalty grows with each further token of the sequence.
    pub dry_base: f32,
    /// The length from which on a sequence must not be continued.
    pub dry_allowed_length: usize,
    /// How many of the latest tokens, prompt included, are searched; 0 is off, -1 searches all.
    pub dry_penalty_last_n: i32,
    /// Texts that a sequence does not reach across. A token with one of them in it is not
    /// penalized.
    pub dry_sequence_breakers: Vec<String>,
    /// Mirostat in place of all filters: 0 is off, 2 is its version 2.
    pub mirostat: u8,
    /// The mean surprise that Mirostat aims at, in bits.
    pub mirostat_tau: f32,
    /// How fast Mirostat follows the surprise of what was chosen.
    pub mirostat_eta: f32,
    /// Added to the logits of single tokens; minus infinity bans a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Equal seeds give equal choices on equal logits; without one, a seed is drawn.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            temperature_last: false,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repetition_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalize_prompt: false,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Parameters that always choose the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether DRY can change a logit.
    pub(super) fn uses_dry(&self) -> bool {
        self.dry_multiplier > 0.0 && self.dry_penalty_last_n != 0
    }

    /// Whether XTC can exclude a token.
    pub(super) fn uses_xtc(&self) -> bool {
        self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5
    }

    /// Checks every parameter; the error names the first one out of range.
    pub fn validate(&self) -> Result<(), Error> {
        let check = |name, value: &dyn Display, range, ok: bool| {
            if ok {
                Ok(())
            } else {
                Err(Error::Parameter { name, range, value: value.to_string() })
            }
        };
        for (name, value, high, range) in [
            ("temperature", self.temperature, 100.0, "from 0 to 100"),
            ("min_p", self.min_p, 1.0, "from 0 to 1"),
            ("xtc_probability", self.xtc_probability, 1.0, "from 0 to 1"),
            ("xtc_threshold", self.xtc_threshold, 1.0, "from 0 to 1"),
            ("dry_multiplier", self.dry_multiplier, 100.0, "from 0 to 100"),
            ("mirostat_tau", self.mirostat_tau, 100.0, "from 0 to 100"),
            ("mirostat_eta", self.mirostat_eta, 1.0, "from 0 to 1"),
        ] {
            check(name, &value, range, (0.0..=high).contains(&value))?;
        }
        for (name, value, high, range) in [
            ("top_p", self.top_p, 1.0, "above 0 and at most 1"),
            ("typical_p", self.typical_p, 1.0, "above 0 and at most 1"),
            ("repetition_penalty", self.repetition_penalty, 100.0, "above 0 and at most 100"),
        ] {
            check(name, &value, range, value > 0.0 && value <= high)?;
        }
        for (name, value) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            check(name, &value, "from -2 to 2", (-2.0..=2.0).contains(&value))?;
        }
        let sigma = self.top_n_sigma;
        check("top_n_sigma", &sigma, "from -1 to 100", (-1.0..=100.0).contains(&sigma))?;
        let base = self.dry_base;
        check("dry_base", &base, "from 1 to 100", (1.0..=100.0).contains(&base))?;
        let last_n = self.dry_penalty_last_n;
        check("dry_penalty_last_n", &last_n, "at least -1", last_n >= -1)?;
        let breakers = &self.dry_sequence_breakers;
        let ok = !breakers.iter().any(String::is_empty);
        check(
            "dry_sequence_breakers",
            &format_args!("{breakers:?}"),
            "texts, none of them empty",
            ok,
        )?;
        check("mirostat", &self.mirostat, "0 (off) or 2", matches!(self.mirostat, 0 | 2))?;
        for &(_, bias) in &self.logit_bias {
            let ok = bias == f32::NEG_INFINITY || (-100.0..=100.0).contains(&bias);
            check("logit_bias", &bias, "from -100 to 100, or -inf", ok)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_parameter_and_its_value() {
        let ok = SamplingParams::default();
        assert_eq!(ok.validate(), Ok(()));
        assert_eq!(SamplingParams::greedy().validate(), Ok(()));
        let check = |params: SamplingParams, want: &str| {
            assert_eq!(params.validate().map_err(|e| e.to_string()), Err(want.to_owned()));
        };
        check(
            SamplingParams { temperature: -0.5, ..ok.clone() },
            "`temperature` must be from 0 to 100, but is -0.5",
        );
        check(
            SamplingParams { temperature: f32::NAN, ..ok.clone() },
            "`temperature` must be from 0 to 100, but is NaN",
        );
        check(
            SamplingParams { top_p: 0.0, ..ok.clone() },
            "`top_p` must be above 0 and at most 1, but is 0",
        );
        check(
            SamplingParams { min_p: 1.5, ..ok.clone() },
            "`min_p` must be from 0 to 1, but is 1.5",
        );
        check(
            SamplingParams { frequency_penalty: 3.0, ..ok.clone() },
            "`frequency_penalty` must be from -2 to 2, but is 3",
        );
        check(
            SamplingParams { typical_p: 0.0, ..ok.clone() },
            "`typical_p` must be above 0 and at most 1, but is 0",
        );
        check(
            SamplingParams { top_n_sigma: f32::NAN, ..ok.clone() },
            "`top_n_sigma` must be from -1 to 100, but is NaN",
        );
        check(
            SamplingParams { xtc_probability: 1.5, ..ok.clone() },
            "`xtc_probability` must be from 0 to 1, but is 1.5",
        );
        check(
            SamplingParams { dry_base: 0.5, ..ok.clone() },
            "`dry_base` must be from 1 to 100, but is 0.5",
        );
        check(
            SamplingParams { dry_penalty_last_n: -2, ..ok.clone() },
            "`dry_penalty_last_n` must be at least -1, but is -2",
        );
        check(
            SamplingParams {
                dry_sequence_breakers: vec!["\n".to_owned(), String::new()],
                ..ok.clone()
            },
            r#"`dry_sequence_breakers` must be texts, none of them empty, but is ["\n", ""]"#,
        );
        check(
            SamplingParams { mirostat: 1, ..ok.clone() },
            "`mirostat` must be 0 (off) or 2, but is 1",
        );
        for (bias, shown) in [(101.0, "101"), (f32::INFINITY, "inf"), (f32::NAN, "NaN")] {
            check(
                SamplingParams { logit_bias: vec![(1, bias)], ..ok.clone() },
                &format!("`logit_bias` must be from -100 to 100, or -inf, but is {shown}"),
            );
        }
        let banned = SamplingParams { logit_bias: vec![(1, f32::NEG_INFINITY)], ..ok };
        assert_eq!(banned.validate(), Ok(()));
    }

    #[test]
    fn reads_json_with_defaults_and_rejects_unknown_fields() {
        let params: SamplingParams =
            serde_json::from_str(r#"{"temperature": 0, "logit_bias": [[5, -100]], "seed": 7}"#)
                .unwrap();
        let want = SamplingParams {
            logit_bias: vec![(5, -100.0)],
            seed: Some(7),
            ..SamplingParams::greedy()
        };
        assert_eq!(params, want);
        let params: SamplingParams = serde_json::from_str(
            r#"{"typical_p": 0.9, "top_n_sigma": -1, "xtc_probability": 0.5, "xtc_threshold": 0.2,
                "dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3,
                "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"],
                "mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2, "temperature_last": true}"#,
        )
        .unwrap();
        let want = SamplingParams {
            typical_p: 0.9,
            top_n_sigma: -1.0,
            xtc_probability: 0.5,
            xtc_threshold: 0.2,
            dry_multiplier: 0.8,
            dry_base: 1.5,
            dry_allowed_length: 3,
            dry_penalty_last_n: -1,
            dry_sequence_breakers: vec!["\n".to_owned()],
            mirostat: 2,
            mirostat_tau: 4.0,
            mirostat_eta: 0.2,
            temperature_last: true,
            ..SamplingParams::default()
        };
        assert_eq!(params, want);
        assert_eq!(params.validate(), Ok(()));
        let error = serde_json::from_str::<SamplingParams>(r#"{"topp": 1}"#).unwrap_err();
        assert!(error.to_string().contains("`topp`"));
    }
}
