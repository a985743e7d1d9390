//! The parameters of one request's sampling, with their ranges and defaults.

use serde::{Deserialize, Serialize};

use super::Error;

/// How the next token is chosen. The default samples at temperature 0.8 from the 40 best tokens
/// within 95 % of the probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides the logits; 0 always chooses the most likely token.
    pub temperature: f32,
    /// Only this many of the most likely tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only the most likely tokens that reach this probability together are kept; 1 keeps all.
    pub top_p: f32,
    /// Tokens less likely than this fraction of the most likely one are dropped; 0 keeps all.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of recent tokens; 1 is off.
    pub repetition_penalty: f32,
    /// How many of the latest tokens, prompt included, the repetition penalty looks at.
    pub repeat_last_n: usize,
    /// Subtracted from the logits of tokens that were generated before.
    pub presence_penalty: f32,
    /// Subtracted from the logits of generated tokens once per occurrence.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens; minus infinity bans a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Equal seeds give equal choices on equal logits; without one, a seed is drawn.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
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

    /// Checks every parameter; the error names the first one out of range.
    pub fn validate(&self) -> Result<(), Error> {
        let check = |name, value: f32, range, ok: bool| {
            if ok {
                Ok(())
            } else {
                Err(Error::Parameter { name, range, value: value.to_string() })
            }
        };
        let Self { temperature, top_p, min_p, repetition_penalty, .. } = *self;
        let Self { presence_penalty, frequency_penalty, .. } = *self;
        check("temperature", temperature, "from 0 to 100", (0.0..=100.0).contains(&temperature))?;
        check("top_p", top_p, "above 0 and at most 1", top_p > 0.0 && top_p <= 1.0)?;
        check("min_p", min_p, "from 0 to 1", (0.0..=1.0).contains(&min_p))?;
        check(
            "repetition_penalty",
            repetition_penalty,
            "above 0 and at most 100",
            repetition_penalty > 0.0 && repetition_penalty <= 100.0,
        )?;
        for (name, value) in
            [("presence_penalty", presence_penalty), ("frequency_penalty", frequency_penalty)]
        {
            check(name, value, "from -2 to 2", (-2.0..=2.0).contains(&value))?;
        }
        for &(_, bias) in &self.logit_bias {
            let ok = bias == f32::NEG_INFINITY || (-100.0..=100.0).contains(&bias);
            check("logit_bias", bias, "from -100 to 100, or -inf", ok)?;
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
        let error = serde_json::from_str::<SamplingParams>(r#"{"topp": 1}"#).unwrap_err();
        assert!(error.to_string().contains("`topp`"));
    }
}
