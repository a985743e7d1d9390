//! The fields that chat and plain completions share: how tokens are chosen, when an answer ends,
//! how many there are, and whether they are streamed.

use super::logit_bias::LogitBias;
use super::samplers::{self, Samplers};
use crate::config::Limits;
use crate::error::ApiError;
use crate::registry::ModelLease;
use crate::registry::served::ServedModel;
use realizar_runtime::GenerateParams;
use realizar_runtime::sampling::SamplingParams;
use serde::Deserialize;

/// Fields of a request for completions of either kind.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct CommonFields {
    pub(crate) model: Option<String>,
    temperature: Option<f32>,
    temperature_last: Option<bool>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    top_n_sigma: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    penalize_prompt: Option<bool>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<usize>,
    dry_penalty_last_n: Option<i32>,
    dry_sequence_breakers: Option<Vec<String>>,
    mirostat: Option<u8>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    samplers: Option<Samplers>,
    logit_bias: Option<LogitBias>,
    seed: Option<i64>,
    stop: Option<OneOrMany>,
    stop_token_ids: Option<Vec<u32>>,
    include_stop_str_in_output: Option<bool>,
    skip_special_tokens: Option<bool>,
    ignore_eos: Option<bool>,
    min_tokens: Option<usize>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    n_predict: Option<i64>,
    strict_max_tokens: Option<bool>,
    max_context_tokens: Option<usize>,
    n_probs: Option<usize>,
    prompt_logprobs: Option<usize>,
    return_tokens: Option<bool>,
    return_tokens_as_token_ids: Option<bool>,
    n: Option<usize>,
    priority: Option<i32>,
    cache_prompt: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    add_special_tokens: Option<bool>,
}

/// What a stream reports in addition to the answer.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct StreamOptions {
    #[serde(default)]
    pub(crate) include_usage: Option<bool>,
    #[serde(default)]
    pub(crate) continuous_usage_stats: Option<bool>,
}

/// When a stream reports the token usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamUsage {
    Never,
    AtEnd,
    Always,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}

/// What an answer has at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MostTokens {
    Tokens(usize),
    /// As many as the context has room for.
    Room,
}

impl CommonFields {
    /// The runtime's parameters, with the maximum number of tokens as asked for or `default_tokens`.
    pub(crate) async fn params(
        &self,
        model: &ModelLease,
        limits: &Limits,
        default_tokens: Option<usize>,
        logprobs: Option<usize>,
    ) -> Result<GenerateParams, ApiError> {
        let base = &model.sampling;
        let breakers = self.dry_sequence_breakers.as_deref().unwrap_or_default();
        check_texts("dry_sequence_breakers", breakers, limits.breakers, limits.breaker_bytes)?;
        let stop = self.stop.as_ref().map_or(&[][..], OneOrMany::texts);
        check_texts("stop", stop, limits.stops, limits.stop_bytes)?;
        let logit_bias = match &self.logit_bias {
            Some(biases) => {
                biases.check(model.engine.model().vocab_size(), limits.bias_bytes)?;
                biases.clone().resolve(model).await?
            }
            None => base.logit_bias.clone(),
        };
        // Clients write "all" as -1 and as 0.
        let top_k = match self.top_k {
            None => base.top_k,
            Some(-1) => 0,
            Some(k) => usize::try_from(k)
                .map_err(|_| ApiError::invalid("top_k", "`top_k` must be at least -1"))?,
        };
        let repeat_last_n = match self.repeat_last_n {
            None => base.repeat_last_n,
            Some(-1) => usize::MAX,
            Some(n) => usize::try_from(n).map_err(|_| {
                ApiError::invalid("repeat_last_n", "`repeat_last_n` must be at least -1")
            })?,
        };
        let mut sampling = SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            temperature_last: self.temperature_last.unwrap_or(base.temperature_last),
            top_k,
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            typical_p: self.typical_p.unwrap_or(base.typical_p),
            top_n_sigma: self.top_n_sigma.unwrap_or(base.top_n_sigma),
            xtc_probability: self.xtc_probability.unwrap_or(base.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(base.xtc_threshold),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            repeat_last_n,
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            penalize_prompt: self.penalize_prompt.unwrap_or(base.penalize_prompt),
            dry_multiplier: self.dry_multiplier.unwrap_or(base.dry_multiplier),
            dry_base: self.dry_base.unwrap_or(base.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(base.dry_allowed_length),
            dry_penalty_last_n: self.dry_penalty_last_n.unwrap_or(base.dry_penalty_last_n),
            dry_sequence_breakers: match &self.dry_sequence_breakers {
                Some(breakers) => breakers.clone(),
                None => base.dry_sequence_breakers.clone(),
            },
            mirostat: self.mirostat.unwrap_or(base.mirostat),
            mirostat_tau: self.mirostat_tau.unwrap_or(base.mirostat_tau),
            mirostat_eta: self.mirostat_eta.unwrap_or(base.mirostat_eta),
            logit_bias,
            seed: match self.seed {
                None => base.seed,
                // A seed is drawn, as in vLLM and llama.cpp.
                Some(-1) => None,
                Some(seed) => Some(seed.cast_unsigned()),
            },
        };
        sampling.validate()?;
        if let Some(samplers) = &self.samplers {
            samplers.apply(&mut sampling)?;
        }
        if stop.iter().any(String::is_empty) {
            return Err(ApiError::invalid("stop", "a stop text is empty"));
        }
        let stop_tokens = self.stop_token_ids.clone().unwrap_or_default();
        if stop_tokens.len() > limits.stop_tokens {
            let message =
                format!("{} tokens; this server allows {}", stop_tokens.len(), limits.stop_tokens);
            return Err(ApiError::invalid("stop_token_ids", message));
        }
        let vocab_size = model.engine.model().vocab_size();
        if let Some(id) = stop_tokens.iter().find(|&&id| id as usize >= vocab_size) {
            let message = format!("token {id} is not in the vocabulary of {vocab_size} tokens");
            return Err(ApiError::invalid("stop_token_ids", message));
        }
        let max_tokens = match self.most_tokens(limits)? {
            Some(MostTokens::Tokens(n)) => Some(n),
            Some(MostTokens::Room) => limits.output_tokens,
            None => default_tokens.or(limits.output_tokens),
        };
        let min_tokens = self.min_tokens.unwrap_or(0);
        if let Some(most) = max_tokens.filter(|&most| min_tokens > most) {
            let message =
                format!("`min_tokens` is {min_tokens}, but the answer is limited to {most} tokens");
            return Err(ApiError::invalid("min_tokens", message));
        }
        Ok(GenerateParams {
            sampling: Some(sampling),
            max_tokens,
            stop: stop.to_vec(),
            stop_tokens,
            min_tokens,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            logprobs,
            shown_tokens: self.special_tokens(model),
            ..GenerateParams::default()
        })
    }

    /// All control tokens, if they are to be written as text.
    pub(crate) fn special_tokens(&self, model: &ServedModel) -> Vec<u32> {
        let tokenizer = model.tokenizer();
        let all = match self.skip_special_tokens {
            None | Some(true) => 0,
            Some(false) => tokenizer.vocab_size() as u32,
        };
        (0..all).filter(|&id| tokenizer.is_special(id)).collect()
    }

    /// The fields that may say how many tokens an answer has at most, by precedence.
    fn asked_tokens(&self) -> [(&'static str, Option<i64>); 3] {
        [
            ("max_completion_tokens", self.max_completion_tokens),
            ("max_tokens", self.max_tokens),
            ("n_predict", self.n_predict),
        ]
    }

    /// That an answer may have tokens at all.
    pub(crate) fn require_tokens(&self) -> Result<(), ApiError> {
        match self.asked_tokens().into_iter().find(|(_, n)| *n == Some(0)) {
            Some((param, _)) => {
                Err(ApiError::invalid(param, format!("`{param}` must be at least 1")))
            }
            None => Ok(()),
        }
    }

    /// The maximum number of tokens that were requested; -1 is llama-server's way to ask for as many as fit.
    fn most_tokens(&self, limits: &Limits) -> Result<Option<MostTokens>, ApiError> {
        let mut most = None;
        for (param, n) in self.asked_tokens() {
            let asked = match n {
                None => continue,
                Some(-1) => MostTokens::Room,
                Some(n) => {
                    let n = usize::try_from(n).map_err(|_| {
                        ApiError::invalid(param, format!("`{param}` must be at least -1"))
                    })?;
                    if let Some(allowed) = limits.output_tokens.filter(|&allowed| n > allowed) {
                        let message =
                            format!("`{param}` is {n}; this server allows {allowed} tokens");
                        return Err(ApiError::invalid(param, message));
                    }
                    MostTokens::Tokens(n)
                }
            };
            most = most.or(Some(asked));
        }
        Ok(most)
    }

    /// The field that set how many tokens must fit, and how many, if the request wants an error
    /// where they do not; else an answer ends where the context does.
    pub(crate) fn asked_most(&self) -> Option<(&'static str, usize)> {
        self.strict_max_tokens.filter(|&strict| strict)?;
        let (param, n) = self.asked_tokens().into_iter().find(|(_, n)| n.is_some())?;
        Some((param, usize::try_from(n?).ok()?))
    }

    /// The maximum number of tokens of a prompt and its answer.
    pub(crate) fn context(&self, model: &ServedModel) -> usize {
        let context = model.engine.model().max_seq_len();
        self.max_context_tokens.map_or(context, |most| most.min(context))
    }

    /// Ends answers where the longest prompt and its answer have as many tokens as the request
    /// allows them together.
    pub(crate) fn hold_to_context(&self, prompts: &[Vec<u32>], params: &mut GenerateParams) {
        let Some(context) = self.max_context_tokens else { return };
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let room = context.saturating_sub(longest);
        params.max_tokens = Some(params.max_tokens.map_or(room, |most| most.min(room)));
    }

    /// How many tokens were requested, whichever field says it.
    pub(crate) fn asked_tokens_most(&self) -> Option<usize> {
        let (_, n) = self.asked_tokens().into_iter().find(|(_, n)| n.is_some())?;
        usize::try_from(n?).ok()
    }

    /// How many likely tokens `n_probs` asks for.
    pub(crate) fn n_probs(&self) -> Option<usize> {
        self.n_probs.filter(|&n| n > 0)
    }

    /// How many likely tokens to report at each position of the prompt.
    pub(crate) fn prompt_logprobs(&self, limits: &Limits) -> Result<Option<usize>, ApiError> {
        let Some(k) = self.prompt_logprobs else { return Ok(None) };
        if self.stream == Some(true) {
            let message = "`prompt_logprobs` cannot be streamed";
            return Err(ApiError::invalid("prompt_logprobs", message));
        }
        check_logprobs("prompt_logprobs", k, limits).map(Some)
    }

    /// Whether answers come with their token ids.
    pub(crate) fn return_tokens(&self) -> bool {
        self.return_tokens.unwrap_or(false)
    }

    /// Whether tokens are written as ids beside their log-probabilities.
    pub(crate) fn tokens_as_ids(&self) -> bool {
        self.return_tokens_as_token_ids.unwrap_or(false)
    }

    /// Answers to each prompt.
    pub(crate) fn answers(&self, model: &ServedModel, limits: &Limits) -> Result<usize, ApiError> {
        check_count("n", self.n.unwrap_or(1), most_answers(model, limits))
    }

    /// Lets presence and frequency penalties count the prompt unless the request says otherwise.
    pub(crate) fn penalize_prompt(&mut self) {
        self.penalize_prompt.get_or_insert(true);
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority.unwrap_or(0)
    }

    /// Whether prompts begin with what the prefix cache has of them.
    pub(crate) fn reuses_prefix(&self) -> bool {
        self.cache_prompt.unwrap_or(true)
    }

    /// The steps of sampling with these parameters, in their order.
    pub(crate) fn sampler_names(
        &self,
        params: &SamplingParams,
    ) -> Result<Vec<&'static str>, ApiError> {
        samplers::names(self.samplers.as_ref(), params)
    }

    pub(crate) fn include_stop(&self) -> bool {
        self.include_stop_str_in_output.unwrap_or(false)
    }

    pub(crate) fn add_special_tokens(&self) -> Option<bool> {
        self.add_special_tokens
    }

    /// Whether to stream, and with which usage.
    pub(crate) fn stream(&self) -> Result<Option<StreamUsage>, ApiError> {
        let streams = self.stream.unwrap_or(false);
        match self.stream_options {
            Some(_) if !streams => {
                let message = "`stream_options` is only allowed when `stream` is true";
                Err(ApiError::invalid("stream_options", message))
            }
            _ if !streams => Ok(None),
            options => {
                let options = options.unwrap_or_default();
                let at_end = options.include_usage.unwrap_or(false);
                let always = options.continuous_usage_stats.unwrap_or(false);
                Ok(Some(match (at_end, always) {
                    (false, _) => StreamUsage::Never,
                    (true, false) => StreamUsage::AtEnd,
                    (true, true) => StreamUsage::Always,
                }))
            }
        }
    }
}

/// The maximum number of answers to one prompt. They share its pages, so the engine runs them together.
pub(crate) fn most_answers(model: &ServedModel, limits: &Limits) -> usize {
    limits.answers.min(model.engine.max_seqs())
}

/// Texts of which there are no more than `most`, none of them longer than `most_bytes`.
fn check_texts(
    param: &str,
    texts: &[String],
    most: usize,
    most_bytes: usize,
) -> Result<(), ApiError> {
    let n = texts.len();
    if n > most {
        return Err(ApiError::invalid(param, format!("{n} texts; this server allows {most}")));
    }
    match texts.iter().position(|text| text.len() > most_bytes) {
        None => Ok(()),
        Some(idx) => {
            let n = texts[idx].len();
            let message = format!("a text of {n} bytes; this server allows {most_bytes}");
            Err(ApiError::invalid(format!("{param}[{idx}]"), message))
        }
    }
}

/// A number of answers within the limit.
pub(crate) fn check_count(param: &str, n: usize, most: usize) -> Result<usize, ApiError> {
    match n {
        0 => Err(ApiError::invalid(param, format!("`{param}` must be at least 1"))),
        n if n > most => {
            Err(ApiError::invalid(param, format!("`{param}` is {n}; this server allows {most}")))
        }
        n => Ok(n),
    }
}

/// The number of likely tokens to report, within the limit.
pub(crate) fn check_logprobs(param: &str, k: usize, limits: &Limits) -> Result<usize, ApiError> {
    if k <= limits.logprobs {
        return Ok(k);
    }
    let message = format!("`{param}` is {k}; this server reports at most {}", limits.logprobs);
    Err(ApiError::invalid(param, message))
}

/// That prompts and the requested answers fit into a context of this many tokens. An answer whose
/// length does not matter needs room for at least one token.
pub(crate) fn check_context(
    context: usize,
    limits: &Limits,
    prompts: &[Vec<u32>],
    prompt_param: &str,
    asked: Option<(&str, usize)>,
) -> Result<(), ApiError> {
    for prompt in prompts {
        let n = prompt.len();
        if let Some(most) = limits.prompt_tokens.filter(|&most| n > most) {
            let error = ApiError::context_length(prompt_param, n, context);
            return Err(error.because(format!(
                "of which this server allows {most} per prompt; the prompt has {n}"
            )));
        }
        let (param, max_tokens) = asked.filter(|_| n <= context).unwrap_or((prompt_param, 1));
        let total = n.saturating_add(max_tokens);
        if total > context {
            let error = ApiError::context_length(param, n, context);
            return Err(match param == prompt_param {
                true if n > context => error,
                true => error.because("and the prompt takes all of them, leaving none to generate"),
                false => error.because(format!(
                    "but {total} were requested: {n} in the prompt and {max_tokens} to generate"
                )),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_checked() {
        let check = |json: &str, want: Result<Option<StreamUsage>, &str>| {
            let got = serde_json::from_str::<CommonFields>(json)
                .map_err(|error| error.to_string())
                .and_then(|fields| fields.stream().map_err(|error| error.to_string()));
            match (got, want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want, "{json}"),
                (Err(got), Err(want)) => assert!(got.contains(want), "{json}: {got}"),
                (got, want) => panic!("{json}: {got:?}, expected {want:?}"),
            }
        };
        check("{}", Ok(None));
        check(r#"{"stream": true, "stream_options": null}"#, Ok(Some(StreamUsage::Never)));
        let options = r#"{"stream": true, "stream_options": {"include_usage": true}}"#;
        check(options, Ok(Some(StreamUsage::AtEnd)));
        check(r#"{"stream_options": {"include_usage": true}}"#, Err("only allowed"));
        check(r#"{"stop": 7}"#, Err("a text or a list of texts"));
        check(r#"{"logit_bias": 1}"#, Err("an object of tokens and biases"));
        check(r#"{"logit_bias": {"5": -100, "7": 0.5}, "seed": -3, "user": "u"}"#, Ok(None));
    }

    #[test]
    fn counts() {
        assert_eq!(check_count("n", 3, 3), Ok(3));
        for (n, want) in [(0, "at least 1"), (4, "allows 3")] {
            let error = check_count("n", n, 3).unwrap_err();
            assert!(error.to_string().contains(want), "{error}");
        }
    }
}
