//! The requests that are sent: made-up English-like text from a seed, in a mix of lengths, with or
//! without a beginning that all share.

use std::fmt::Write;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

/// A seeded source of choices; equal seeds and streams give equal choices.
pub(crate) struct Dice(ChaCha8Rng);

impl Dice {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        Self(random)
    }

    /// A number below `n`, which is at least 1.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Words that most vocabularies have as one token.
const WORDS: &str = "\
    the a of and to in that it was for on with as his her they at be this from have or by one had \
    not but what all were when we there can an your which their said if do will each about how up \
    out them then she many some so these would other into has more two like him see time could no \
    make than first been its who now people my made over did down only way find use may water long \
    little very after words called just where most know get through back much before go good new \
    write our used me man too any day same right look think also around another came come work \
    three word must because does part even place well such here take why things help put years \
    different away again off went old number great tell men say small every found still between \
    name should home big give air line set own under read last never us left end along while might \
    next sound below saw something thought both few those always looked show large often together \
    asked house world going want school important until form food keep children feet land side \
    without boy once animals life enough took sometimes four head above kind began almost live page \
    got earth need far hand high year mother light parts country father let night following picture \
    being study second eyes soon times story boys since white days ever paper hard near sentence \
    better best across during today others however sure means knew try told young miles sun ways \
    thing whole hear example heard several change answer room sea against top turned learn point \
    city play toward five using himself usually";

/// About `n_tokens` tokens of sentences. A word and a full stop count as one token each.
pub(crate) fn text(dice: &mut Dice, n_tokens: usize) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut text = String::new();
    let mut left = n_tokens;
    while left > 0 {
        let n_words = (6 + dice.below(9)).min(left);
        for idx in 0..n_words {
            let word = dice.pick(&words);
            if !text.is_empty() {
                text.push(' ');
            }
            if idx == 0 {
                text.extend(word.chars().next().map(|c| c.to_ascii_uppercase()));
                text.push_str(&word[1..]);
            } else {
                text.push_str(word);
            }
        }
        left -= n_words;
        if left > 0 {
            text.push('.');
            left -= 1;
        }
    }
    text
}

/// The API that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Completions,
    Chat,
}

impl Api {
    /// Where its requests go.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// A request: where it goes and what it says, without the model's name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    pub(crate) api: Api,
    pub(crate) body: Value,
}

impl Ask {
    /// A streamed greedy request that generates exactly `max_tokens` tokens. `shared` is a system
    /// message, or the beginning of the text.
    pub(crate) fn greedy(api: Api, shared: &str, prompt: &str, max_tokens: usize) -> Self {
        let mut body = json!({
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        match api {
            Api::Completions => {
                let mut whole = shared.to_owned();
                if !whole.is_empty() {
                    whole.push_str(".\n\n");
                }
                body["prompt"] = (whole + prompt).into();
            }
            Api::Chat => {
                let user = json!({"role": "user", "content": prompt});
                body["messages"] = if shared.is_empty() {
                    json!([user])
                } else {
                    json!([{"role": "system", "content": shared}, user])
                };
            }
        }
        Self { api, body }
    }

    /// With another field, or another value of one.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.body[key] = value.into();
        self
    }

    /// Without a field.
    pub(crate) fn without(mut self, key: &str) -> Self {
        if let Some(body) = self.body.as_object_mut() {
            body.remove(key);
        }
        self
    }

    /// The body as it is sent.
    pub(crate) fn bytes(&self, model: &str) -> Vec<u8> {
        let mut body = self.body.clone();
        body["model"] = model.into();
        body.to_string().into_bytes()
    }
}

/// Requests of one kind.
pub(crate) struct Workload<'a> {
    pub(crate) api: Api,
    pub(crate) seed: u64,
    /// Lengths of prompts in tokens, which take turns.
    pub(crate) prompts: &'a [usize],
    /// Tokens of the beginning that all requests share.
    pub(crate) shared: usize,
    pub(crate) max_tokens: usize,
}

impl Workload<'_> {
    /// `n` requests of the `part`-th part of a run; no two parts have a text in common.
    pub(crate) fn asks(&self, part: u64, n: usize) -> Vec<Ask> {
        let mut dice = Dice::new(self.seed, part);
        let shared = text(&mut dice, self.shared);
        (0..n)
            .map(|idx| {
                // The number makes even the first tokens after the shared part differ.
                let mut prompt = String::new();
                let _ = write!(prompt, "{} ", 100 + dice.below(900));
                prompt += &text(&mut dice, self.prompts[idx % self.prompts.len()]);
                Ask::greedy(self.api, &shared, &prompt, self.max_tokens)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn texts_have_their_length_and_end_in_a_word() {
        for n_tokens in [0, 1, 7, 32, 128, 600] {
            let text = text(&mut Dice::new(7, 0), n_tokens);
            let stops = text.matches('.').count();
            assert_eq!(text.split_whitespace().count() + stops, n_tokens, "{text}");
        }
        assert_eq!(text(&mut Dice::new(7, 0), 5), text(&mut Dice::new(7, 0), 5));
        assert_ne!(text(&mut Dice::new(7, 0), 5), text(&mut Dice::new(7, 1), 5));
        assert_ne!(text(&mut Dice::new(7, 0), 5), text(&mut Dice::new(8, 0), 5));
    }

    #[test]
    fn a_part_is_the_same_every_time_and_shares_only_its_beginning() {
        let workload = Workload {
            api: Api::Completions,
            seed: 1,
            prompts: &[8, 40],
            shared: 20,
            max_tokens: 9,
        };
        let asks = workload.asks(3, 6);
        assert_eq!(asks, workload.asks(3, 6));
        let texts: Vec<&str> = asks.iter().map(|a| a.body["prompt"].as_str().unwrap()).collect();
        let shared = texts[0].split_once("\n\n").unwrap().0;
        assert!(texts.iter().all(|t| t.starts_with(shared)));
        let own: HashSet<&str> = texts.iter().map(|t| t.split_once("\n\n").unwrap().1).collect();
        assert_eq!(own.len(), 6);
        assert!(texts[1].len() > texts[0].len() && texts[3].len() > texts[2].len());
        let others = workload.asks(4, 6);
        assert!(!others[0].body["prompt"].as_str().unwrap().starts_with(shared));
    }

    #[test]
    fn both_apis_have_their_fields() {
        let plain = Ask::greedy(Api::Completions, "", "Hi", 4);
        assert_eq!((plain.api.path(), &plain.body["prompt"]), ("/v1/completions", &json!("Hi")));
        let chat = Ask::greedy(Api::Chat, "Be kind", "Hi", 4).with("seed", 5);
        assert_eq!(chat.api.path(), "/v1/chat/completions");
        assert_eq!(chat.body["messages"][1]["content"], "Hi");
        assert_eq!(chat.body["messages"][0]["role"], "system");
        let body: Value = serde_json::from_slice(&chat.bytes("m")).unwrap();
        assert_eq!((&body["model"], &body["seed"]), (&json!("m"), &json!(5)));
    }
}
