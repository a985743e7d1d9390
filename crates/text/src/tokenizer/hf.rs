//! Tokenizers of Hugging Face models: `tokenizer.json` and the files beside it.
//!
//! The `tokenizers` crate encodes. For decoding, the token texts are turned into bytes once, as
//! the file's decoder spells them, so that streaming works as for every other tokenizer.
//!
//! The crate trusts its file: what is damaged there shows as a panic, at once or with some text.
//! These are caught and become errors. What it would allocate without looking is checked before,
//! because that cannot be caught.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use realizar_formats::read_regular;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::{Model as _, OffsetType, PreTokenizer as _};

use super::guard::Guard;
use super::infill::N_ROLES;
use super::normalizer::Growth;
use super::postprocessor;
use super::special::{END_OF_GENERATION, END_OF_INFILL};
use super::vocab::{TokenKind, Vocab};
use super::{EncodeOptions, Encoder, Error, Tokenizer, byte_level};
use realizar_base::{MAX_JSON, panics};

/// Bytes of a `tokenizer.json`.
const MAX_FILE: usize = 64 << 20;
/// Ids above this indicate a damaged file rather than a vocabulary.
const MAX_VOCAB: usize = 1 << 24;
/// Holes that the numbering of a small vocabulary may have.
const MAX_HOLES: usize = 1 << 16;

/// Encodes through the `tokenizers` crate.
///
/// Whether control tokens are read from text is a setting of the tokenizer there, so texts that
/// must not be read so take the lock for writing.
pub(super) struct HfEncoder {
    inner: RwLock<tokenizers::Tokenizer>,
    growth: Growth,
}

impl HfEncoder {
    pub(super) fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, Error> {
        self.growth.check(text)?;
        if options.parse_special {
            let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
            ids(|| inner.encode_fast(text, options.add_special))
        } else {
            let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
            inner.set_encode_special_tokens(true);
            let encoded = ids(|| inner.encode_fast(text, options.add_special));
            inner.set_encode_special_tokens(false);
            encoded
        }
    }

    /// The ids of a text without the character `mark`; an added token with a mark inside is not
    /// found.
    ///
    /// These are the steps of `encode_fast`, and between the first two the marks are taken out.
    pub(super) fn encode_marked(
        &self,
        text: &str,
        mark: char,
        add_special: bool,
    ) -> Result<Vec<u32>, Error> {
        self.growth.check(text)?;
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let encode = || {
            let mut parts =
                inner.get_added_vocabulary().extract_and_normalize(inner.get_normalizer(), text);
            parts.split(|_, mut part| {
                part.filter(|c| c != mark);
                Ok(Some(part))
            })?;
            if let Some(pre_tokenizer) = inner.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut parts)?;
            }
            parts.tokenize(|part| inner.get_model().tokenize(part.get()))?;
            let encoding = parts.into_encoding(None, 0, OffsetType::None)?;
            inner.post_process(encoding, None, add_special)
        };
        ids(encode)
    }

    pub(super) fn id_of(&self, text: &str) -> Option<u32> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).token_to_id(text)
    }
}

/// The ids of what is encoded; a panic is an error.
fn ids(
    encode: impl FnOnce() -> tokenizers::Result<tokenizers::Encoding>,
) -> Result<Vec<u32>, Error> {
    match panics::caught(encode) {
        Ok(Ok(encoding)) => Ok(encoding.get_ids().to_vec()),
        Ok(Err(error)) => Err(Error::Encode { problem: error.to_string() }),
        Err(panic) => Err(Error::Broken { problem: panic }),
    }
}

/// How the decoder of a `tokenizer.json` turns tokens into text.
struct Decoder {
    byte_level: bool,
    byte_fallback: bool,
    strips_leading_space: bool,
}

impl Decoder {
    /// Reads the `decoder` object; an unknown step is an error that names it.
    fn parse(value: &Value, file: &Path) -> Result<Self, Error> {
        let mut decoder =
            Self { byte_level: false, byte_fallback: false, strips_leading_space: false };
        decoder.add(value, file)?;
        Ok(decoder)
    }

    fn add(&mut self, value: &Value, file: &Path) -> Result<(), Error> {
        match value["type"].as_str() {
            Some("Sequence") => {
                for step in value["decoders"].as_array().into_iter().flatten() {
                    self.add(step, file)?;
                }
            }
            Some("ByteLevel") => self.byte_level = true,
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Metaspace") => {
                let scheme = value["prepend_scheme"].as_str();
                self.strips_leading_space =
                    scheme != Some("never") && value["add_prefix_space"].as_bool() != Some(false);
            }
            Some("Strip") => {
                self.strips_leading_space |= value["start"].as_u64().is_some_and(|n| n > 0);
            }
            Some("Fuse") => {}
            Some("Replace") if value["pattern"]["String"].as_str() == Some("\u{2581}") => {}
            other => {
                let name = other.unwrap_or("none");
                return Err(json_error(file, format!("the decoder `{name}` is not supported")));
            }
        }
        Ok(())
    }

    fn write(&self, text: &str, out: &mut Vec<u8>) {
        if self.byte_level {
            if !byte_level::decode_into(text, out) {
                out.extend_from_slice(text.as_bytes());
            }
        } else if let (true, Some(byte)) = (self.byte_fallback, fallback_byte(text)) {
            out.push(byte);
        } else {
            out.extend_from_slice(text.replace('\u{2581}', " ").as_bytes());
        }
    }
}

fn fallback_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The part of a `tokenizer.json` that is read here.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    model: Model,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    post_processor: Value,
}

/// What is read of its model: the rest is for the `tokenizers` crate.
#[derive(Default, Deserialize)]
struct Model {
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    merges: Value,
}

impl Model {
    /// The prefix that second parts of merges must have, if one of them has it not. The
    /// `tokenizers` crate cuts that many bytes off without looking.
    fn wrong_merge(&self) -> Option<&str> {
        let prefix = self.continuing_subword_prefix.as_deref().filter(|p| !p.is_empty())?;
        let mut merges = self.merges.as_array()?.iter();
        // A merge is a pair, or in older files one text with a space.
        let second = |merge: &Value| match merge {
            Value::String(pair) => pair.split_once(' ').map(|(_, b)| b.to_owned()),
            _ => merge[1].as_str().map(str::to_owned),
        };
        merges.any(|m| !second(m).is_some_and(|b| b.starts_with(prefix))).then_some(prefix)
    }
}

/// Reads the tokenizer of a model directory.
pub(super) fn load(dir: &Path) -> Result<Tokenizer, Error> {
    panics::caught(|| read(dir)).unwrap_or_else(|panic| {
        let problem = format!("the `tokenizers` crate cannot use it: {panic}");
        Err(json_error(&dir.join("tokenizer.json"), problem))
    })
}

fn read(dir: &Path) -> Result<Tokenizer, Error> {
    let path = dir.join("tokenizer.json");
    let bytes = read_regular(&path, MAX_FILE).map_err(|source| match source.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Error::Missing { dir: dir.to_owned() },
        _ => Error::File { path: path.clone(), source },
    })?;
    let document: Document =
        serde_json::from_slice(&bytes).map_err(|error| json_error(&path, error.to_string()))?;
    let decoder = Decoder::parse(&document.decoder, &path)?;
    if let Some(prefix) = document.model.wrong_merge() {
        let problem = format!("a merge's second part does not begin with the prefix {prefix:?}");
        return Err(json_error(&path, problem));
    }
    let growth = Growth::of(&document.normalizer).map_err(|problem| json_error(&path, problem))?;
    postprocessor::check(&document.post_processor).map_err(|problem| json_error(&path, problem))?;
    let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)
        .map_err(|error| json_error(&path, error.to_string()))?;
    drop(bytes);
    // Limits on length are the engine's business, not the tokenizer's.
    inner.with_padding(None);
    inner.with_truncation(None).map_err(|error| json_error(&path, error.to_string()))?;

    let mut vocab = load_vocab(&inner, &decoder, &path)?;
    let config = optional_json(dir, "tokenizer_config.json")?;
    let special_map = optional_json(dir, "special_tokens_map.json")?;
    let generation = optional_json(dir, "generation_config.json")?;
    let model = optional_json(dir, "config.json")?;

    let named = |role: &str| {
        [&config, &special_map].into_iter().find_map(|file| {
            let token = &file[role];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            inner.token_to_id(text)
        })
    };
    let numbered = |key: &str| -> Vec<u32> {
        let ids = [&generation, &model]
            .into_iter()
            .flat_map(|file| match &file[key] {
                Value::Array(ids) => ids.iter().filter_map(Value::as_u64).collect(),
                id => id.as_u64().into_iter().collect::<Vec<_>>(),
            })
            .filter(|&id| id < vocab.len() as u64);
        ids.map(|id| id as u32).collect()
    };
    // Qwen's files say that there is no such token, though the model's configuration has an id.
    let no_bos = config.get("bos_token").is_some_and(Value::is_null);
    let bos = named("bos_token")
        .or_else(|| numbered("bos_token_id").first().copied().filter(|_| !no_bos));
    let eos = named("eos_token").or_else(|| numbered("eos_token_id").first().copied());
    let mut end_ids: Vec<u32> = eos.into_iter().chain(numbered("eos_token_id")).collect();
    let texts: Vec<&str> = END_OF_GENERATION.iter().chain(END_OF_INFILL).copied().collect();
    let channels = ["<|return|>", "<|call|>"].iter().all(|t| inner.token_to_id(t).is_some());
    for id in inner.get_added_tokens_decoder().keys().copied() {
        if (id as usize) < vocab.len()
            && texts.iter().any(|text| text.as_bytes() == vocab.piece(id))
            && !(channels && vocab.piece(id) == b"<|end|>")
        {
            vocab.set_kind(id, TokenKind::Control);
            end_ids.push(id);
        }
    }
    end_ids.sort_unstable();
    end_ids.dedup();

    let guard = Guard::new(&vocab)?;
    let encoder = HfEncoder { inner: RwLock::new(inner), growth };
    let around = encoder.encode("", EncodeOptions { add_special: true, parse_special: true })?;
    Ok(Tokenizer {
        add_bos: bos.is_some() && around.first() == bos.as_ref(),
        add_eos: eos.is_some() && around.len() > 1 && around.last() == eos.as_ref(),
        strips_leading_space: decoder.strips_leading_space,
        longest: None,
        encoder: Encoder::HuggingFace(Box::new(encoder)),
        guard,
        vocab: Arc::new(vocab),
        bos,
        eos,
        end_ids,
        infill: [None; N_ROLES],
    })
}

fn load_vocab(
    inner: &tokenizers::Tokenizer,
    decoder: &Decoder,
    file: &Path,
) -> Result<Vocab, Error> {
    let mut tokens: Vec<(u32, String)> =
        inner.get_vocab(true).into_iter().map(|(text, id)| (id, text)).collect();
    tokens.sort_unstable();
    let n_tokens = tokens.last().map_or(0, |(id, _)| *id as usize + 1);
    // Some vocabularies have holes, but not many more of them than tokens.
    let most = MAX_VOCAB.min(tokens.len().saturating_mul(2).saturating_add(MAX_HOLES));
    if n_tokens == 0 || n_tokens > most {
        return Err(json_error(
            file,
            format!("{} tokens have ids up to {}", tokens.len(), n_tokens.saturating_sub(1)),
        ));
    }
    let added = inner.get_added_tokens_decoder();
    let mut vocab = Vocab::with_capacity(n_tokens);
    for (id, text) in tokens {
        while vocab.len() < id as usize {
            vocab.push(TokenKind::Unused, false, |_| ())?; // a hole in the numbering
        }
        if vocab.len() > id as usize {
            continue; // two texts share an id; the first stands
        }
        match added.get(&id) {
            Some(token) if token.special => {
                vocab
                    .push(TokenKind::Control, true, |out| out.extend_from_slice(text.as_bytes()))?;
            }
            Some(_) => vocab.push(TokenKind::UserDefined, true, |out| decoder.write(&text, out))?,
            None => vocab.push(TokenKind::Normal, true, |out| decoder.write(&text, out))?,
        }
    }
    Ok(vocab)
}

fn json_error(path: &Path, problem: String) -> Error {
    Error::Json { path: path.to_owned(), problem }
}

/// The JSON document in a file that may be absent (`Null` then).
fn optional_json(dir: &Path, name: &str) -> Result<Value, Error> {
    let path = dir.join(name);
    match read_regular(&path, MAX_JSON) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|error| json_error(&path, error.to_string()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(source) => Err(Error::File { path, source }),
    }
}
