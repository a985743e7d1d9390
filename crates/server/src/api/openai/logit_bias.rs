//! `logit_bias` in every spelling: OpenAI's object of token ids, and llama-server's object or list
//! of pairs, in which a token may also be given by a text and `false` bans it.

use crate::error::ApiError;
use crate::http::work::blocking;
use crate::registry::ModelLease;
use realizar_runtime::tokenizer::EncodeOptions;
use serde::de::{Error as _, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// Biases in their order, as a request gives them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LogitBias(Vec<(Tokens, f32)>);

/// The tokens that a bias is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tokens {
    Id(u32),
    /// Every token of this text.
    Text(String),
}

impl LogitBias {
    /// That there are no more biases than `most`, and no more than `most_bytes` of texts.
    pub(crate) fn check(&self, most: usize, most_bytes: usize) -> Result<(), ApiError> {
        let n = self.0.len();
        if n > most {
            let message = format!("{n} biases for a vocabulary of {most} tokens");
            return Err(ApiError::invalid("logit_bias", message));
        }
        let len = |(tokens, _): &(Tokens, f32)| match tokens {
            Tokens::Id(_) => 0,
            Tokens::Text(text) => text.len(),
        };
        let n_bytes: usize = self.0.iter().map(len).sum();
        if n_bytes > most_bytes {
            let message =
                format!("the texts have {n_bytes} bytes in total; this server allows {most_bytes}");
            return Err(ApiError::invalid("logit_bias", message));
        }
        Ok(())
    }

    /// The bias of each token.
    pub(crate) async fn resolve(self, model: &ModelLease) -> Result<Vec<(u32, f32)>, ApiError> {
        let model = model.clone();
        blocking(move || {
            let options = EncodeOptions { add_special: false, parse_special: false };
            let mut biases = Vec::new();
            for (tokens, bias) in self.0 {
                match tokens {
                    Tokens::Id(id) => biases.push((id, bias)),
                    Tokens::Text(text) => {
                        let ids = model.tokenizer().encode(&text, options)?;
                        if ids.is_empty() {
                            let message = format!("the text `{text}` encodes to no tokens");
                            return Err(ApiError::invalid("logit_bias", message));
                        }
                        biases.extend(ids.into_iter().map(|id| (id, bias)));
                    }
                }
            }
            Ok(biases)
        })
        .await
    }
}

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokensVisitor;
        impl Visitor<'_> for TokensVisitor {
            type Value = Tokens;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id or a text")
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Tokens, E> {
                let id = u32::try_from(id);
                id.map(Tokens::Id)
                    .map_err(|_| E::custom("expected a token id, found a larger number"))
            }

            /// A text that is a number is an id: keys of objects are always texts.
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Tokens, E> {
                match text.parse::<i128>() {
                    Err(_) => Ok(Tokens::Text(text.to_owned())),
                    Ok(id) => u32::try_from(id)
                        .map(Tokens::Id)
                        .map_err(|_| E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(TokensVisitor)
    }
}

/// A bias, or `false`, which bans.
struct Bias(f32);

impl<'de> Deserialize<'de> for Bias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BiasVisitor;
        impl Visitor<'_> for BiasVisitor {
            type Value = Bias;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or `false`")
            }

            fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Bias, E> {
                match value {
                    false => Ok(Bias(f32::NEG_INFINITY)),
                    true => Err(E::invalid_value(Unexpected::Bool(value), &self)),
                }
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Bias, E> {
                Ok(Bias(value as f32))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Bias, E> {
                Ok(Bias(value as f32))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Bias, E> {
                Ok(Bias(value as f32))
            }
        }
        deserializer.deserialize_any(BiasVisitor)
    }
}

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Biases;
        impl<'de> Visitor<'de> for Biases {
            type Value = LogitBias;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tokens and biases, or a list of such pairs")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
                let mut biases = Vec::new();
                while let Some((tokens, Bias(bias))) = map.next_entry()? {
                    biases.push((tokens, bias));
                }
                Ok(LogitBias(biases))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LogitBias, A::Error> {
                let mut biases = Vec::new();
                while let Some(pair) = list.next_element::<Pair>()? {
                    biases.push((pair.0, pair.1.0));
                }
                Ok(LogitBias(biases))
            }
        }
        deserializer.deserialize_any(Biases)
    }
}

/// One entry of a list.
struct Pair(Tokens, Bias);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairVisitor;
        impl<'de> Visitor<'de> for PairVisitor {
            type Value = Pair;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pair of a token and its bias")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Pair, A::Error> {
                let tokens =
                    pair.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
                let bias =
                    pair.next_element()?.ok_or_else(|| A::Error::invalid_length(1, &self))?;
                match pair.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(Pair(tokens, bias)),
                    Some(_) => Err(A::Error::invalid_length(3, &self)),
                }
            }
        }
        deserializer.deserialize_seq(PairVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_read() {
        let id = |id, bias| (Tokens::Id(id), bias);
        let text = |text: &str, bias| (Tokens::Text(text.to_owned()), bias);
        let check = |json: &str, want: &[(Tokens, f32)]| {
            let got: LogitBias = serde_json::from_str(json).expect(json);
            assert_eq!(got.0, want, "{json}");
        };
        check("{}", &[]);
        check("[]", &[]);
        check(r#"{"5": -100, "7": 0.5}"#, &[id(5, -100.0), id(7, 0.5)]);
        check(r#"{" the ": -100, "9": false}"#, &[text(" the ", -100.0), id(9, f32::NEG_INFINITY)]);
        check(
            r#"[[5, 1.5], ["6", -2], ["Hello, World!", -0.5], [7, false]]"#,
            &[id(5, 1.5), id(6, -2.0), text("Hello, World!", -0.5), id(7, f32::NEG_INFINITY)],
        );
    }

    #[test]
    fn what_is_no_bias_is_refused() {
        let check = |json: &str, want: &str| {
            let error = serde_json::from_str::<LogitBias>(json).unwrap_err().to_string();
            assert!(error.contains(want), "{json}: {error}");
        };
        check("7", "an object of tokens and biases, or a list of such pairs");
        check(r#"{"5": true}"#, "a number or `false`");
        check(r#"{"5": "1"}"#, "a number or `false`");
        check(r#"{"-1": 1}"#, "a token id or a text");
        check(r#"{"4294967296": 1}"#, "a token id or a text");
        check("[[4294967296, 1]]", "a token id");
        check("[[-1, 1]]", "a token id or a text");
        check("[[1]]", "a pair of a token and its bias");
        check("[[1, 2, 3]]", "a pair of a token and its bias");
        check("[1, 2]", "a pair of a token and its bias");
    }
}
