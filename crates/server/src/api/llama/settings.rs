//! How tokens are chosen and when an answer ends, under llama-server's names: `generation_settings` of
//! an answer, the defaults of `/props` and the parameters of `/slots`.

use crate::api::digits;
use realizar_runtime::GenerateParams;
use realizar_runtime::sampling::SamplingParams;
use serde_json::{Map, Value, json};

/// What llama-server shows for a seed that is drawn.
const DRAWN_SEED: u32 = u32::MAX;

/// The parameters without texts and biases, for a model with a sampling of its `own`.
pub(super) fn numbers(params: &GenerateParams, own: &SamplingParams) -> Map<String, Value> {
    let GenerateParams { max_tokens, ignore_eos, .. } = params;
    let sampling = params.sampling_or(own);
    let SamplingParams { seed, top_k, repeat_last_n, mirostat, .. } = sampling;
    let max_tokens = max_tokens.map_or(json!(-1), |n| json!(n));
    let last_n = if *repeat_last_n == usize::MAX { json!(-1) } else { json!(repeat_last_n) };
    let settings = json!({
        "seed": seed.unwrap_or(u64::from(DRAWN_SEED)),
        "temperature": digits(sampling.temperature),
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": top_k,
        "top_p": digits(sampling.top_p),
        "min_p": digits(sampling.min_p),
        "top_n_sigma": digits(sampling.top_n_sigma),
        "xtc_probability": digits(sampling.xtc_probability),
        "xtc_threshold": digits(sampling.xtc_threshold),
        "typical_p": digits(sampling.typical_p),
        "repeat_last_n": last_n,
        "repeat_penalty": digits(sampling.repetition_penalty),
        "presence_penalty": digits(sampling.presence_penalty),
        "frequency_penalty": digits(sampling.frequency_penalty),
        "dry_multiplier": digits(sampling.dry_multiplier),
        "dry_base": digits(sampling.dry_base),
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
        "mirostat": mirostat,
        "mirostat_tau": digits(sampling.mirostat_tau),
        "mirostat_eta": digits(sampling.mirostat_eta),
        "adaptive_target": -1.0, // off
        "adaptive_decay": 0.0,
        "max_tokens": max_tokens,
        "n_predict": max_tokens,
        "n_discard": 0,
        "ignore_eos": ignore_eos,
        "n_probs": params.logprobs.unwrap_or(0),
        "min_keep": 0,
        "backend_sampling": false,
        "lora": [],
    });
    match settings {
        Value::Object(settings) => settings,
        _ => Map::new(),
    }
}

/// The parameters with texts and biases. Tokens of `eos_ids` are those that `ignore_eos` bans.
pub(super) fn all(
    params: &GenerateParams,
    own: &SamplingParams,
    eos_ids: &[u32],
) -> Map<String, Value> {
    let mut settings = numbers(params, own);
    let sampling = params.sampling_or(own);
    let banned = eos_ids.iter().filter(|_| params.ignore_eos);
    let biases = sampling.logit_bias.iter().copied();
    let biases = biases.chain(banned.map(|&id| (id, f32::NEG_INFINITY)));
    let biases = biases.map(|(id, bias)| {
        let bias = Some(bias).filter(|bias| bias.is_finite()).map(digits);
        json!({"token": id, "bias": bias})
    });
    settings.insert("logit_bias".to_owned(), biases.collect());
    settings.insert("stop".to_owned(), json!(params.stop));
    let breakers = &sampling.dry_sequence_breakers;
    settings.insert("dry_sequence_breakers".to_owned(), json!(breakers));
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_names_of_llama_server() {
        let sampling = SamplingParams {
            temperature: 0.8,
            repeat_last_n: usize::MAX,
            repetition_penalty: 1.1,
            seed: Some(7),
            logit_bias: vec![(5, -1.5), (6, f32::NEG_INFINITY)],
            ..SamplingParams::default()
        };
        let params = GenerateParams {
            sampling: Some(sampling),
            max_tokens: Some(9),
            stop: vec!["x".to_owned()],
            ignore_eos: true,
            ..GenerateParams::default()
        };
        let settings = all(&params, &SamplingParams::default(), &[2]);
        for (name, want) in [
            ("temperature", json!(0.8)),
            ("repeat_last_n", json!(-1)),
            ("repeat_penalty", json!(1.1)),
            ("seed", json!(7)),
            ("n_predict", json!(9)),
            ("max_tokens", json!(9)),
            ("stop", json!(["x"])),
            (
                "logit_bias",
                json!([
                    {"token": 5, "bias": -1.5},
                    {"token": 6, "bias": null},
                    {"token": 2, "bias": null},
                ]),
            ),
        ] {
            assert_eq!(settings[name], want, "{name}");
        }
        let own = SamplingParams::default();
        let settings = all(&GenerateParams::default(), &own, &[2]);
        assert_eq!(
            (&settings["seed"], &settings["n_predict"]),
            (&json!(4294967295_u32), &json!(-1))
        );
        assert_eq!(settings["logit_bias"], json!([]));
        assert!(numbers(&params, &own).keys().all(|name| settings.contains_key(name)));
    }
}
