//! Prompts in llama-server's forms: a text, token ids, both in one list, an object around a text, and
//! lists of these.

use crate::answer::prompt::{check, check_length};
use crate::error::ApiError;
use crate::http::extract::Held;
use crate::registry::ModelLease;
use crate::registry::served::ServedModel;
use realizar_runtime::tokenizer::EncodeOptions;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// A part of a prompt. Ids that follow one another are one part: they may be as many as the body has
/// bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Ids(Vec<u32>),
}

/// One prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prompt(Vec<Part>);

/// The prompts of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

impl Prompt {
    fn add(&mut self, item: Item) {
        match (item, self.0.last_mut()) {
            (Item::Id(id), Some(Part::Ids(ids))) => ids.push(id),
            (Item::Id(id), _) => self.0.push(Part::Ids(vec![id])),
            (Item::Text(text), _) => self.0.push(Part::Text(text)),
            (Item::Whole(whole), _) => self.0.extend(whole.0), // only in lists of prompts
        }
    }

    /// Its token ids, which are at least one. The tokens that the model expects around a prompt are
    /// added to the first text alone, if they are wanted and no ids are before it.
    fn encode(self, model: &ServedModel, options: EncodeOptions) -> Result<Vec<u32>, ApiError> {
        let tokenizer = model.tokenizer();
        let mut ids = Vec::new();
        for (idx, part) in self.0.into_iter().enumerate() {
            match part {
                Part::Ids(more) if idx == 0 => ids = more,
                Part::Ids(more) => ids.extend(more),
                Part::Text(text) => {
                    check_length(model, ids.len() + tokenizer.min_tokens(&text))?;
                    let add_special = options.add_special && idx == 0;
                    ids.extend(tokenizer.encode(&text, EncodeOptions { add_special, ..options })?);
                }
            }
        }
        check(model, ids)
    }
}

/// The token ids of each prompt; an error names `param`.
pub(crate) async fn encode(
    held: &Held,
    model: &ModelLease,
    prompts: Vec<Prompt>,
    options: EncodeOptions,
    param: &str,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let model = model.clone();
    let encode = move |prompt: Prompt| prompt.encode(&model, options);
    let ids = held.work(move || prompts.into_iter().map(encode).collect()).await;
    ids.map_err(|error: ApiError| error.renamed(&[("prompt", param)]))
}

/// What stands in a list.
enum Item {
    Text(String),
    Id(u32),
    /// A prompt of its own.
    Whole(Prompt),
}

/// Whether a list may stand where an item is read.
trait Level {
    const EXPECTED: &'static str;
    const HAS_PROMPTS: bool;
}

/// In the list of all prompts.
struct Outer;

/// In one prompt.
struct Inner;

impl Level for Outer {
    const EXPECTED: &'static str =
        "a text, a token id, a list of these or an object with `prompt_string`";
    const HAS_PROMPTS: bool = true;
}

impl Level for Inner {
    const EXPECTED: &'static str = "a text or a token id";
    const HAS_PROMPTS: bool = false;
}

struct ItemOf<L>(Item, PhantomData<L>);

struct ItemVisitor<L>(PhantomData<L>);

impl<'de, L: Level> Visitor<'de> for ItemVisitor<L> {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(L::EXPECTED)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Item, E> {
        Ok(Item::Text(text))
    }

    fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Item, E> {
        let id = u32::try_from(id).map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &self));
        id.map(Item::Id)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        if !L::HAS_PROMPTS {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        let mut prompt = Prompt::default();
        while let Some(ItemOf::<Inner>(item, _)) = list.next_element()? {
            prompt.add(item);
        }
        Ok(Item::Whole(prompt))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Item, A::Error> {
        if !L::HAS_PROMPTS {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        read_object(map).map(Item::Whole)
    }
}

impl<'de, L: Level> Deserialize<'de> for ItemOf<L> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let item = deserializer.deserialize_any(ItemVisitor::<L>(PhantomData))?;
        Ok(Self(item, PhantomData))
    }
}

/// `{"prompt_string": TEXT, "multimodal_data": []}`.
fn read_object<'de, A: MapAccess<'de>>(mut map: A) -> Result<Prompt, A::Error> {
    let mut text = None;
    while let Some(key) = map.next_key::<String>()? {
        match key.as_str() {
            "prompt_string" => text = Some(map.next_value::<String>()?),
            "multimodal_data" => {
                if map.next_value::<Option<Vec<IgnoredAny>>>()?.is_some_and(|data| !data.is_empty())
                {
                    let message =
                        "`multimodal_data` is not supported: prompts are texts and token ids";
                    return Err(A::Error::custom(message));
                }
            }
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
    }
    let text = text.ok_or_else(|| A::Error::missing_field("prompt_string"))?;
    Ok(Prompt(vec![Part::Text(text)]))
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a text, a list of texts and token ids, an object with `prompt_string`, or a list of such",
        )
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts(vec![Prompt(vec![Part::Text(text.to_owned())])]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Prompts, A::Error> {
        Ok(Prompts(vec![read_object(map)?]))
    }

    /// A list with ids is one prompt, one without is a list of prompts.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        // One prompt after the other, where it is no part of a longer one.
        let (mut prompts, mut has_ids, mut has_whole) = (Vec::<Prompt>::new(), false, false);
        while let Some(ItemOf::<Outer>(item, _)) = list.next_element()? {
            has_ids |= matches!(item, Item::Id(_));
            has_whole |= matches!(item, Item::Whole(_));
            if has_ids && has_whole {
                return Err(A::Error::custom("token ids and prompts are mixed in one list"));
            }
            match (item, prompts.last_mut()) {
                (Item::Whole(prompt), _) => prompts.push(prompt),
                (item @ Item::Id(_), Some(last)) => last.add(item),
                (item, _) => {
                    let mut prompt = Prompt::default();
                    prompt.add(item);
                    prompts.push(prompt);
                }
            }
        }
        if has_ids {
            prompts = vec![Prompt(prompts.into_iter().flat_map(|prompt| prompt.0).collect())];
        }
        Ok(Prompts(prompts))
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_in_every_form() {
        let check = |json: &str, want: Result<&[&[Part]], &str>| {
            let got = serde_json::from_str::<Prompts>(json).map_err(|error| error.to_string());
            match (got, want) {
                (Ok(got), Ok(want)) => {
                    let got: Vec<&[Part]> = got.0.iter().map(|prompt| &*prompt.0).collect();
                    assert_eq!(got, want, "{json}");
                }
                (Err(got), Err(want)) => assert!(got.contains(want), "{json}: {got}"),
                (got, want) => panic!("{json}: {got:?} instead of {want:?}"),
            }
        };
        let text = |text: &str| Part::Text(text.to_owned());
        let ids = |ids: &[u32]| Part::Ids(ids.to_vec());
        let [a, b] = ["a", "b\n"].map(text);
        let [only_a, only_b] = [&a, &b].map(std::slice::from_ref);
        check(r#""a""#, Ok(&[only_a]));
        check(r#"["a", "b\n"]"#, Ok(&[only_a, only_b]));
        check("[1, 2]", Ok(&[&[ids(&[1, 2])]]));
        check(r#"[1, 2, "a", 3]"#, Ok(&[&[ids(&[1, 2]), a.clone(), ids(&[3])]]));
        check(r#"["a", "b\n", 3, 4]"#, Ok(&[&[a.clone(), b.clone(), ids(&[3, 4])]]));
        check(r#"[[1, "a"], "b\n", []]"#, Ok(&[&[ids(&[1]), a.clone()], only_b, &[]]));
        check(r#"{"prompt_string": "a", "multimodal_data": []}"#, Ok(&[only_a]));
        check(r#"[[1], {"prompt_string": "a", "x": 1}]"#, Ok(&[&[ids(&[1])], only_a]));
        check("[]", Ok(&[]));
        check(r#"{"prompt_string": "a", "multimodal_data": ["aGk="]}"#, Err("not supported"));
        check(r#"{"multimodal_data": []}"#, Err("`prompt_string`"));
        check("[1, [2]]", Err("mixed in one list"));
        check(r#"[{"prompt_string": "a"}, 1]"#, Err("mixed in one list"));
        check("[[[1]]]", Err("a text or a token id"));
        check("[-1]", Err("a token id"));
        check("[5000000000]", Err("a token id"));
        check("7", Err("a text"));
    }
}
