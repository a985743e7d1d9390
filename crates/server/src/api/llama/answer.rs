//! Answers in llama-server's shape: events of a stream, or one object for each answer.

use crate::answer::generation::{Finish, Progress, TokenLogprob, Usage};
use crate::answer::sse;
use crate::answer::stream::Chunks;
use crate::api::digits;
use crate::api::openai::logprobs::{self, Logprob, Names};
use crate::api::openai::sampling::StreamUsage;
use crate::api::openai::types::UsageBody;
use crate::error::ApiError;
use crate::registry::ModelLease;
use axum::response::sse::Event;
use realizar_runtime::StopCause;
use realizar_runtime::engine::PromptLogprob;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What answers are to tell.
#[derive(Debug)]
pub(super) struct Asked {
    /// Of each prompt, its text and its number of tokens.
    pub(super) prompts: Vec<(String, usize)>,
    /// Answers to each prompt.
    pub(super) n: usize,
    pub(super) settings: Map<String, Value>,
    pub(super) max_tokens: Option<usize>,
    /// Tokens that a prompt and its answer have at most.
    pub(super) context: usize,
    /// The number of most likely tokens to return for each token.
    pub(super) n_probs: Option<usize>,
    /// Whether they are probabilities by what sampling leaves, not the model's log-probabilities.
    pub(super) post_sampling: bool,
    pub(super) prompt_logprobs: Option<usize>,
    /// Whether tokens are written as ids beside their probabilities.
    pub(super) as_ids: bool,
    /// Whether the ids of tokens are returned if the answer is not streamed.
    pub(super) tokens: bool,
    /// Whether each event has the timings.
    pub(super) timings: bool,
    /// Which usage a stream tells; none if the answer is not streamed.
    pub(super) usage: Option<StreamUsage>,
    /// How long an answer may continue after its first token, once it has a line feed.
    pub(super) time_limit: Option<Duration>,
    /// Of the object, the fields that are returned; all of it if there are none.
    pub(super) fields: Vec<String>,
}

/// Writes the answers of a request.
pub(super) struct Telling {
    model: ModelLease,
    asked: Asked,
    answers: Vec<Answer>,
    n_complete: usize,
}

/// What is known of an answer.
#[derive(Debug, Default)]
struct Answer {
    /// All of the text; nothing of one that is streamed.
    content: String,
    tokens: Vec<u32>,
    probs: Vec<Value>,
    prompt_logprobs: Vec<PromptLogprob>,
    has_new_line: bool,
    n_decoded: usize,
    n_cached: usize,
    prefill: Duration,
    place: usize,
    /// When its first and its last token came.
    times: Option<(Instant, Instant)>,
    /// Why it is complete, and what ended it.
    end: Option<(Stop, String)>,
}

/// Why an answer is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Eos,
    Limit,
    Word,
}

impl Stop {
    fn name(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Limit => "limit",
            Self::Word => "word",
        }
    }
}

impl Telling {
    pub(super) fn new(model: ModelLease, asked: Asked) -> Self {
        let n = asked.prompts.len() * asked.n;
        let answers = std::iter::repeat_with(Answer::default).take(n).collect();
        Self { model, asked, answers, n_complete: 0 }
    }

    /// Whether all answers are complete.
    pub(super) fn is_complete(&self) -> bool {
        self.n_complete == self.answers.len()
    }

    /// The events of a stream for `progress`.
    pub(super) fn read(
        &mut self,
        progress: Progress,
        usage: Usage,
    ) -> Result<Vec<Value>, ApiError> {
        let streams = self.asked.usage.is_some();
        match progress {
            Progress::Prompt { prompt, cached_tokens, prefill, places, logprobs } => {
                let answers = &mut self.answers[prompt * self.asked.n..][..self.asked.n];
                for (answer, place) in answers.iter_mut().zip(places) {
                    (answer.n_cached, answer.prefill) = (cached_tokens, prefill);
                    answer.place = place;
                    answer.prompt_logprobs.clone_from(&logprobs);
                }
                Ok(Vec::new())
            }
            Progress::Token(mut token) => {
                let (index, text) = (token.index, std::mem::take(&mut token.text));
                let n_probs = self.asked.n_probs;
                let (id, prob) = (token.id, n_probs.map(|_| self.prob(&token.into())));
                let now = Instant::now();
                let answer = &mut self.answers[index];
                if answer.end.is_some() {
                    return Ok(Vec::new());
                }
                answer.n_decoded += 1;
                answer.has_new_line |= text.contains('\n');
                let first = answer.times.map_or(now, |(first, _)| first);
                answer.times = Some((first, now));
                let is_late = self.asked.time_limit.is_some_and(|limit| now - first > limit);
                let ends = is_late && answer.has_new_line;
                let mut events = Vec::new();
                if streams {
                    events.push(self.part(index, &text, &[id], prob, usage));
                } else {
                    answer.content.push_str(&text);
                    answer.tokens.extend(self.asked.tokens.then_some(id));
                    answer.probs.extend(prob);
                }
                if ends {
                    events.extend(self.finish(index, Stop::Limit, String::new(), usage));
                }
                Ok(events)
            }
            Progress::Finished { answer: index, reason, tail, stop } => {
                if self.answers[index].end.is_some() {
                    return Ok(Vec::new());
                }
                let mut events = Vec::new();
                self.answers[index].has_new_line |= tail.contains('\n');
                if !streams {
                    self.answers[index].content.push_str(&tail);
                } else if !tail.is_empty() {
                    events.push(self.part(index, &tail, &[], None, usage));
                }
                let (why, word) = match (reason, stop) {
                    (Finish::Length, _) => (Stop::Limit, String::new()),
                    (_, Some(StopCause::Text(word))) => (Stop::Word, word),
                    (_, Some(StopCause::Token(id))) => {
                        (Stop::Word, self.model.tokenizer().token_text(id)?)
                    }
                    (_, None) => (Stop::Eos, String::new()),
                };
                events.extend(self.finish(index, why, word, usage));
                Ok(events)
            }
        }
    }

    /// Notes the end of an answer; the event of a stream for it.
    fn finish(&mut self, index: usize, why: Stop, word: String, usage: Usage) -> Option<Value> {
        self.answers[index].end = Some((why, word));
        self.n_complete += 1;
        self.asked.usage.map(|_| self.object(index, usage))
    }

    /// A piece of an answer.
    fn part(
        &self,
        index: usize,
        text: &str,
        ids: &[u32],
        prob: Option<Value>,
        usage: Usage,
    ) -> Value {
        let answer = &self.answers[index];
        let mut part = json!({
            "index": index,
            "content": text,
            "tokens": ids,
            "stop": false,
            "id_slot": answer.place,
            "tokens_predicted": answer.n_decoded,
            "tokens_evaluated": self.prompt(index).1,
        });
        if self.asked.timings {
            part["timings"] = self.timings(index);
        }
        if let Some(prob) = prob {
            part["completion_probabilities"] = json!([prob]);
        }
        if self.asked.usage == Some(StreamUsage::Always) {
            part["usage"] = json!(UsageBody::from(usage));
        }
        part
    }

    fn prompt(&self, index: usize) -> &(String, usize) {
        &self.asked.prompts[index / self.asked.n]
    }

    /// A complete answer.
    fn object(&self, index: usize, usage: Usage) -> Value {
        let answer = &self.answers[index];
        let (prompt, n_prompt) = self.prompt(index);
        let (stop, word) = answer.end.as_ref().map_or(("none", ""), |(why, w)| (why.name(), w));
        // The context ended it, and not the number of tokens that was requested.
        let is_short = self.asked.max_tokens.is_none_or(|most| answer.n_decoded < most);
        let is_full = n_prompt + answer.n_decoded >= self.asked.context;
        let mut object = json!({
            "index": index,
            "content": answer.content,
            "tokens": answer.tokens,
            "id_slot": answer.place,
            "stop": true,
            "model": self.model.name,
            "tokens_predicted": answer.n_decoded,
            "tokens_evaluated": n_prompt,
            "generation_settings": self.asked.settings,
            "prompt": prompt,
            "has_new_line": answer.has_new_line,
            "truncated": stop == Stop::Limit.name() && is_short && is_full,
            "stop_type": stop,
            "stopping_word": word,
            "tokens_cached": answer.n_cached,
            "timings": self.timings(index),
        });
        match self.asked.usage {
            None => {
                if self.asked.n_probs.is_some() {
                    object["completion_probabilities"] = json!(answer.probs);
                }
            }
            Some(StreamUsage::Never) => {}
            Some(_) => object["usage"] = json!(UsageBody::from(usage)),
        }
        if let Some(k) = self.asked.prompt_logprobs {
            let tokenizer = self.model.tokenizer();
            let told = logprobs::of_prompt(tokenizer, &answer.prompt_logprobs, k);
            object["prompt_logprobs"] = json!(told);
        }
        if self.asked.fields.is_empty() { object } else { pick(&object, &self.asked.fields) }
    }

    /// How long the prompt and the answer took. The first token comes with the prompt, so the others
    /// are what the time of the answer is for.
    fn timings(&self, index: usize) -> Value {
        let answer = &self.answers[index];
        let n_prompt = self.prompt(index).1 - answer.n_cached;
        let prompt = answer.prefill.max(Duration::from_nanos(1)).as_secs_f64();
        let decode = answer.times.map_or(Duration::ZERO, |(first, last)| last - first);
        let decode = decode.as_secs_f64();
        let n_steps = answer.n_decoded.saturating_sub(1) as f64;
        let has_steps = n_steps > 0.0 && decode > 0.0;
        json!({
            "cache_n": answer.n_cached,
            "prompt_n": n_prompt,
            "prompt_ms": 1e3 * prompt,
            "prompt_per_token_ms": 1e3 * prompt / n_prompt.max(1) as f64,
            "prompt_per_second": n_prompt as f64 / prompt,
            "predicted_n": answer.n_decoded,
            "predicted_ms": 1e3 * decode,
            "predicted_per_token_ms": if has_steps { 1e3 * decode / n_steps } else { 0.0 },
            "predicted_per_second": if has_steps { n_steps / decode } else { 0.0 },
        })
    }

    /// How likely a token was, and the likely ones at its place.
    fn prob(&self, token: &TokenLogprob) -> Value {
        let names = Names { tokenizer: self.model.tokenizer(), as_ids: self.asked.as_ids };
        let post_sampling = self.asked.post_sampling;
        let one = |id: u32, logprob: f32| {
            let mut told = json!({"id": id, "token": names.text(id), "bytes": names.bytes(id)});
            match post_sampling {
                true => told["prob"] = json!(digits(logprob.exp())),
                false => told["logprob"] = json!(Logprob::from(logprob).digits()),
            }
            told
        };
        let mut told = one(token.id, token.logprob.unwrap_or(f32::NEG_INFINITY));
        let top = token.top.iter().map(|top| one(top.id, top.logprob));
        told[if post_sampling { "top_probs" } else { "top_logprobs" }] = top.collect();
        told
    }

    /// The answer of a request that is not streamed: an object, or a list if there are several.
    pub(super) fn whole(&self, usage: Usage) -> Value {
        let mut all: Vec<Value> =
            (0..self.answers.len()).map(|index| self.object(index, usage)).collect();
        match all.len() {
            1 => all.remove(0),
            _ => Value::Array(all),
        }
    }
}

/// The places of an object that a request names by paths with slashes, under these names.
fn pick(object: &Value, places: &[String]) -> Value {
    let found = places.iter().filter_map(|place| {
        let value = place.split('/').try_fold(object, |value, name| value.get(name))?;
        Some((place.clone(), value.clone()))
    });
    Value::Object(found.collect())
}

impl Chunks for Telling {
    type Piece = Event;

    fn progress(
        &mut self,
        progress: Progress,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) -> Result<(), ApiError> {
        out.extend(self.read(progress, usage)?.iter().map(sse::json));
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_complete()
    }

    /// The last answer's own event is the last one.
    fn end(&mut self, _: Usage, _: &mut VecDeque<Event>) {}

    fn fail(&mut self, error: &ApiError, out: &mut VecDeque<Event>) {
        out.push_back(sse::json(&error.llama_body()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_an_object() {
        let object = json!({"content": "x", "generation_settings": {"n_predict": 8}, "index": 0});
        let check = |places: &[&str], want: Value| {
            let places: Vec<String> = places.iter().map(|&place| place.to_owned()).collect();
            assert_eq!(pick(&object, &places), want);
        };
        let want = json!({"content": "x", "generation_settings/n_predict": 8});
        check(&["content", "generation_settings/n_predict"], want);
        check(&["nothing", "content/x", "index/"], json!({}));
        check(&["index", "index"], json!({"index": 0}));
    }
}
