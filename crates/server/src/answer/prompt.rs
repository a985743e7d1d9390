//! Prompts: texts, token ids and conversations become the token ids that the engine is given.

use crate::error::ApiError;
use crate::http::extract::Held;
use crate::registry::ModelLease;
use crate::registry::served::ServedModel;
use realizar_runtime::tokenizer::{EncodeOptions, GuardedText, Infill, Tokenizer};
use serde::de::{Error as _, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// One prompt, as a request gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A text, a list of texts, a list of token ids, or a list of such lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

/// What stands in a list: the lists are read without a detour over JSON values, which would take
/// many times the memory of the ids.
enum Item {
    Prompt(Prompt),
    Id(u32),
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token id or a list of token ids")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Prompt(Prompt::Text(text.to_owned())))
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Item, E> {
        Ok(Item::Prompt(Prompt::Text(text)))
    }

    fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Item, E> {
        let id = u32::try_from(id).map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &self));
        id.map(Item::Id)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(Item::Prompt(Prompt::Ids(ids)))
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of texts, a list of token ids or a list of such lists")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        let (mut prompts, mut ids) = (Vec::new(), Vec::new());
        while let Some(item) = list.next_element()? {
            match item {
                Item::Prompt(prompt) => prompts.push(prompt),
                Item::Id(id) => ids.push(id),
            }
        }
        match (prompts.is_empty(), ids.is_empty()) {
            (_, true) => Ok(Prompts(prompts)),
            (true, false) => Ok(Prompts(vec![Prompt::Ids(ids)])),
            (false, false) => Err(A::Error::custom("token ids and prompts are mixed in one list")),
        }
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

impl Prompt {
    /// Its first token ids, at most `most` of them; what the tokenizer puts at the end of a text
    /// stays there.
    fn encode_beginning(
        self,
        model: &ServedModel,
        options: EncodeOptions,
        most: usize,
    ) -> Result<Vec<u32>, ApiError> {
        let tokenizer = model.tokenizer();
        let (mut ids, around) = match self {
            Self::Text(text) => {
                let ids = tokenizer.encode(beginning(tokenizer, &text, most), options)?;
                (ids, tokenizer.encode("", options)?)
            }
            Self::Ids(ids) => (ids, Vec::new()),
        };
        cut(&mut ids, &around, most);
        check(model, ids)
    }

    /// Its token ids, which are at least one.
    fn encode(self, model: &ServedModel, options: EncodeOptions) -> Result<Vec<u32>, ApiError> {
        let ids = match self {
            Self::Text(text) => {
                check_length(model, model.tokenizer().min_tokens(&text))?;
                model.tokenizer().encode(&text, options)?
            }
            Self::Ids(ids) => ids,
        };
        check(model, ids)
    }
}

/// The text, or a beginning of it that has more than `most` tokens for certain, as encoding may
/// take many times the time and the memory of a text.
fn beginning<'a>(tokenizer: &Tokenizer, text: &'a str, most: usize) -> &'a str {
    // A word that is cut has other tokens, so there are some to spare.
    let enough = most.saturating_add(64);
    let (mut low, mut high) = (0, text.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let end = text.ceil_char_boundary(middle);
        match tokenizer.min_tokens(&text[..end]) > enough {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    &text[..text.ceil_char_boundary(low)]
}

/// Leaves the first ids, with those at the end that surround every text: `around` are the ids of an
/// empty one.
fn cut(ids: &mut Vec<u32>, around: &[u32], most: usize) {
    if ids.len() <= most {
        return;
    }
    let ends = |n: &usize| ids.ends_with(&around[around.len() - n..]);
    let n_last = (0..=around.len()).rev().find(ends).unwrap_or(0);
    let last = ids.split_off(ids.len() - n_last);
    ids.truncate(most.saturating_sub(n_last));
    ids.extend(last);
    ids.truncate(most);
}

/// Refuses a text that has more tokens than the context, before it is encoded: that would take many
/// times the time and the memory of the text.
pub(crate) fn check_length(model: &ServedModel, min_tokens: usize) -> Result<(), ApiError> {
    let context = model.engine.model().max_seq_len();
    if min_tokens <= context {
        return Ok(());
    }
    let error = ApiError::context_length("prompt", min_tokens, context);
    Err(error.because(format!("but the prompt has at least {min_tokens}")))
}

/// Token ids that the model has, at least one.
pub(crate) fn check(model: &ServedModel, ids: Vec<u32>) -> Result<Vec<u32>, ApiError> {
    let vocab_size = model.engine.model().vocab_size();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
        let message = format!("token {id} is not in the vocabulary of {vocab_size} tokens");
        return Err(ApiError::invalid("prompt", message));
    }
    match ids.is_empty() {
        true => Err(ApiError::invalid("prompt", "the prompt has no tokens")),
        false => Ok(ids),
    }
}

/// How long a prompt may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// It has to fit into the context.
    Context,
    /// It is only counted.
    Any,
}

/// The token ids of a conversation that was rendered; errors are those of `messages`.
pub(crate) async fn encode_conversation(
    held: &Held,
    model: &ModelLease,
    text: GuardedText,
    add_special: bool,
    length: Length,
) -> Result<Vec<u32>, ApiError> {
    let model = model.clone();
    let ids = held.work(move || {
        let options = EncodeOptions { add_special, parse_special: true };
        if length == Length::Context {
            check_length(&model, model.tokenizer().min_tokens_guarded(&text))?;
        }
        check(&model, model.tokenizer().encode_guarded(&text, options)?)
    });
    ids.await.map_err(|error| error.renamed(&[("prompt", "messages")]))
}

/// The token ids of each prompt.
pub(crate) async fn encode(
    held: &Held,
    model: &ModelLease,
    prompts: Vec<Prompt>,
    options: EncodeOptions,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let model = model.clone();
    let encode = move |prompt: Prompt| prompt.encode(&model, options);
    held.work(move || prompts.into_iter().map(encode).collect()).await
}

/// The first token ids of each prompt, at most `most` of them.
pub(crate) async fn encode_beginnings(
    held: &Held,
    model: &ModelLease,
    prompts: Vec<Prompt>,
    options: EncodeOptions,
    most: usize,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let model = model.clone();
    let encode = move |prompt: Prompt| prompt.encode_beginning(&model, options, most);
    held.work(move || prompts.into_iter().map(encode).collect()).await
}

/// The token ids of prompts for infilling: of each, what is generated stands between it and
/// `suffix`.
pub(crate) async fn encode_gaps(
    held: &Held,
    model: &ModelLease,
    prompts: Vec<Prompt>,
    suffix: String,
    add_special: bool,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let Some(Infill { prefix, suffix: before_suffix, middle, .. }) = model.tokenizer().infill()
    else {
        let message = format!(
            "the model `{}` has no fill-in-the-middle tokens, which `suffix` needs",
            model.name
        );
        return Err(ApiError::invalid("suffix", message));
    };
    let model = model.clone();
    held.work(move || {
        let tokenizer = model.tokenizer();
        let bos = tokenizer.bos().filter(|_| add_special && tokenizer.add_bos());
        let plain = EncodeOptions { add_special: false, parse_special: false };
        check_length(&model, tokenizer.min_tokens(&suffix))?;
        let suffix = tokenizer.encode(&suffix, plain)?;
        let gap = |prompt: Prompt| {
            // The text before the gap may be empty.
            let before = match prompt {
                Prompt::Text(text) if text.is_empty() => Vec::new(),
                prompt => prompt.encode(&model, plain)?,
            };
            let mut ids: Vec<u32> = bos.into_iter().collect();
            ids.push(prefix);
            ids.extend(before);
            ids.push(before_suffix);
            ids.extend(&suffix);
            ids.push(middle);
            Ok(ids)
        };
        prompts.into_iter().map(gap).collect()
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_what_ends_them() {
        let check = |ids: &[u32], around: &[u32], most, want: &[u32]| {
            let mut ids = ids.to_vec();
            cut(&mut ids, around, most);
            assert_eq!(ids, want, "{around:?} {most}");
        };
        check(&[1, 5, 6, 7, 2], &[1, 2], 5, &[1, 5, 6, 7, 2]);
        check(&[1, 5, 6, 7, 2], &[1, 2], 4, &[1, 5, 6, 2]);
        check(&[1, 5, 6, 7, 2], &[1, 2], 1, &[2]);
        check(&[1, 5, 6, 7], &[1], 2, &[1, 5]);
        check(&[5, 6, 7, 3, 2], &[3, 2], 3, &[5, 3, 2]);
        check(&[5, 6, 7], &[], 2, &[5, 6]);
    }

    #[test]
    fn prompts_in_every_form() {
        let check = |json: &str, want: Option<Vec<Prompt>>| {
            let got = serde_json::from_str::<Prompts>(json);
            assert_eq!(got.as_ref().ok().map(|p| &p.0), want.as_ref(), "{json}: {got:?}");
        };
        let text = |text: &str| Prompt::Text(text.to_owned());
        check(r#""a""#, Some(vec![text("a")]));
        check(r#""a\n""#, Some(vec![text("a\n")]));
        check(r#"["a", "b\t"]"#, Some(vec![text("a"), text("b\t")]));
        check("[1, 2]", Some(vec![Prompt::Ids(vec![1, 2])]));
        check("[[1], [2, 3]]", Some(vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]));
        check("[]", Some(vec![]));
        check("[[]]", Some(vec![Prompt::Ids(vec![])]));
        check("[1, \"a\"]", None);
        check("[-1]", None);
        check("[1.5]", None);
        check("[5000000000]", None);
        check("7", None);
        check("[[[1]]]", None);
        check("{}", None);
    }
}
