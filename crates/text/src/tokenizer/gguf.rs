//! Tokenizers from GGUF metadata: SentencePiece (`llama`) and byte-pair (`gpt2`, `gemma4`)
//! vocabularies under `tokenizer.ggml.*`.
//!
//! Defaults for keys that a file leaves out follow llama.cpp, and so do the rules by which tokens
//! end an answer; see the GGUF specification for the keys. GGUF has no key for a normalizer: where
//! a `tokenizer.json` composes characters first (NFC, as Qwen's does), decomposed text gets other
//! ids from it than from here and from llama.cpp.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::Arc;

use realizar_formats::Metadata;

use super::bpe::{Bpe, Merges, fallback_bytes};
use super::guard::Guard;
use super::infill::N_ROLES;
use super::joints::Joints;
use super::pretokenizer::PreTokenizer;
use super::special::{END_OF_GENERATION, END_OF_INFILL, SpecialTokens};
use super::spm::Spm;
use super::vocab::{TokenKind, Vocab};
use super::{Encoder, Error, Native, Tokenizer, byte_level};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// How the texts of a vocabulary spell bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// One character of the byte-level alphabet per byte.
    ByteLevel,
    /// Plain text, with spaces as U+2581 and bytes as `<0xXX>`.
    Metaspace,
}

impl Spelling {
    /// The bytes that the text of an ordinary token stands for.
    fn bytes_of<'a>(self, text: &'a str) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::ByteLevel => {
                let mut bytes = Vec::with_capacity(text.len());
                byte_level::decode_into(text, &mut bytes).then_some(Cow::Owned(bytes))
            }
            Self::Metaspace if text.contains('\u{2581}') => {
                Some(Cow::Owned(text.replace('\u{2581}', " ").into_bytes()))
            }
            Self::Metaspace => Some(Cow::Borrowed(text.as_bytes())),
        }
    }
}

/// Reads the tokenizer of a model file.
pub(super) fn load(metadata: &Metadata) -> Result<Tokenizer, Error> {
    let model = metadata.str(MODEL)?.ok_or(Error::MissingKey { key: MODEL })?;
    let (spelling, defaults) = match model {
        "llama" => (Spelling::Metaspace, SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0) }),
        "gpt2" => (Spelling::ByteLevel, SpecialIds { bos: Some(11), eos: Some(11), unk: None }),
        "gemma4" => (Spelling::Metaspace, SpecialIds::default()),
        _ => {
            return Err(Error::UnsupportedModel {
                model: model.to_owned(),
                supported: "llama (SentencePiece BPE), gpt2 (byte-level BPE), gemma4",
            });
        }
    };
    let pre = match model {
        "llama" => None,
        "gemma4" => Some(PreTokenizer::new("gemma4")?),
        _ => {
            let name = metadata.str(PRE)?.unwrap_or_else(|| {
                tracing::warn!("the model file names no pre-tokenizer; using `default`");
                "default"
            });
            Some(PreTokenizer::new(name)?)
        }
    };
    // A byte-level vocabulary may also be declared with a pre-tokenizer that merges characters.
    let spelling = match &pre {
        Some(pre) if pre.characters => Spelling::Metaspace,
        _ => spelling,
    };

    let mut vocab = load_vocab(metadata, spelling, pre.is_none())?;
    let mut ids = SpecialIds::load(metadata, defaults, vocab.len())?;
    if matches!(metadata.str(PRE)?, Some("chatglm-bpe" | "glm4" | "glm5"))
        && metadata.u64("tokenizer.ggml.bos_token_id")?.is_none()
    {
        ids.bos = None;
    }
    let flag = |key: &str, default: bool| metadata.bool(key).map(|v| v.unwrap_or(default));
    let add_bos = flag("tokenizer.ggml.add_bos_token", pre.as_ref().is_none_or(|pre| pre.add_bos))?;
    let add_eos = flag("tokenizer.ggml.add_eos_token", false)?;
    let add_space_prefix = flag("tokenizer.ggml.add_space_prefix", pre.is_none())?;

    let encoder = match pre {
        Some(pre) => {
            let byte_ids = match spelling {
                Spelling::ByteLevel => byte_level_ids(metadata)?,
                Spelling::Metaspace => fallback_bytes(&vocab),
            };
            let merges = load_merges(metadata, &vocab, spelling)?;
            Native::Bpe(Bpe { merges, pre, byte_ids, unk: ids.unk })
        }
        None => {
            let scores = metadata.f32_array(SCORES)?.ok_or(Error::MissingKey { key: SCORES })?;
            check_len(SCORES, vocab.len(), scores.len())?;
            let (byte_ids, joints) = (fallback_bytes(&vocab), Joints::of(&vocab));
            Native::Spm(Spm { scores, byte_ids, unk: ids.unk, joints })
        }
    };

    let end_ids = end_ids(metadata, &mut vocab, ids)?;
    let infill = infill_ids(metadata, vocab.len())?;
    let strips = rstrip_tokens(metadata, &vocab)?;
    let specials = SpecialTokens::new(&vocab, |id| strips.contains(&id))?;
    if add_bos && ids.bos.is_none() {
        return Err(Error::UndefinedSpecial { name: "bos" });
    }
    if add_eos && ids.eos.is_none() {
        return Err(Error::UndefinedSpecial { name: "eos" });
    }
    let longest = (0..vocab.len() as u32).map(|id| vocab.piece(id).len()).max();
    // A token that swallows white space may stand for any text of it.
    let longest = longest.filter(|_| strips.is_empty()).and_then(NonZeroUsize::new);
    Ok(Tokenizer {
        longest,
        guard: Guard::new(&vocab)?,
        vocab: Arc::new(vocab),
        encoder: Encoder::Native { specials, native: Box::new(encoder), add_space_prefix },
        bos: ids.bos,
        eos: ids.eos,
        end_ids,
        infill,
        add_bos,
        add_eos,
        strips_leading_space: add_space_prefix,
    })
}

/// The tokens of infilling that the file names.
fn infill_ids(metadata: &Metadata, vocab_size: usize) -> Result<[Option<u32>; N_ROLES], Error> {
    let id = |role| {
        let key = format!("tokenizer.ggml.fim_{role}_token_id");
        special_id(metadata, &key, vocab_size)
    };
    Ok([id("pre")?, id("suf")?, id("mid")?, id("rep")?, id("sep")?])
}

/// Reads tokens and types. With `spm`, control tokens cannot come from joining pieces.
fn load_vocab(metadata: &Metadata, spelling: Spelling, spm: bool) -> Result<Vocab, Error> {
    let tokens = metadata.str_array(TOKENS)?.ok_or(Error::MissingKey { key: TOKENS })?;
    let types = metadata.i32_array(TOKEN_TYPE)?;
    if let Some(types) = &types {
        check_len(TOKEN_TYPE, tokens.len(), types.len())?;
    }
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (id, text) in tokens.iter().enumerate() {
        let kind =
            types.as_ref().map_or(TokenKind::Normal, |types| TokenKind::from_ggml(types[id]));
        match kind {
            TokenKind::Byte => {
                let byte = parse_byte(text).ok_or_else(|| Error::Token {
                    id: id as u32,
                    text: text.to_owned(),
                    problem: "a byte token must be spelled `<0xXX>`".to_owned(),
                })?;
                vocab.push(kind, false, |out| out.push(byte))?;
            }
            TokenKind::Normal | TokenKind::Unused => match spelling.bytes_of(text) {
                // A plain space in a text is not the same as a space written in the spelling.
                Some(bytes) => {
                    let indexed = spelling == Spelling::ByteLevel || !text.contains(' ');
                    vocab.push(kind, indexed, |out| out.extend_from_slice(&bytes))?;
                }
                None => vocab.push(kind, false, |out| out.extend_from_slice(text.as_bytes()))?,
            },
            TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => {
                let plain = !text.contains(' ')
                    && spelling.bytes_of(text).is_some_and(|bytes| *bytes == *text.as_bytes());
                let indexed = plain && !(spm && kind.is_special());
                vocab.push(kind, indexed, |out| out.extend_from_slice(text.as_bytes()))?;
            }
        }
    }
    if vocab.len() == 0 {
        return Err(Error::VocabSize { found: "0 tokens".to_owned(), problem: "it is empty" });
    }
    Ok(vocab)
}

fn parse_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn check_len(key: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Length { key, expected, found }) }
}

/// The token of each single byte: the one spelled with that byte's character.
fn byte_level_ids(metadata: &Metadata) -> Result<Box<[Option<u32>; 256]>, Error> {
    let mut ids = Box::new([None; 256]);
    let tokens = metadata.str_array(TOKENS)?.ok_or(Error::MissingKey { key: TOKENS })?;
    for (id, text) in tokens.iter().enumerate() {
        let mut chars = text.chars();
        if let (Some(c), None) = (chars.next(), chars.next())
            && let Some(byte) = byte_level::byte_of(c)
        {
            ids[byte as usize].get_or_insert(id as u32);
        }
    }
    Ok(ids)
}

/// Reads the merges. A merge whose parts or result are not tokens can never apply and is an error.
fn load_merges(metadata: &Metadata, vocab: &Vocab, spelling: Spelling) -> Result<Merges, Error> {
    let list = metadata.str_array(MERGES)?.ok_or(Error::MissingKey { key: MERGES })?;
    let mut merges = Merges::with_capacity(list.len());
    let mut whole = Vec::new();
    for (rank, text) in list.iter().enumerate() {
        let malformed = |problem| Error::Merge { rank, text: text.to_owned(), problem };
        // The first part has at least one character, which may itself be a space.
        let first = text.chars().next().map_or(0, char::len_utf8);
        let (left, right) = text
            .get(first..)
            .and_then(|rest| rest.find(' '))
            .map(|at| (&text[..first + at], &text[first + at + 1..]))
            .ok_or_else(|| malformed("two parts separated by a space are expected"))?;
        let (Some(left), Some(right)) = (spelling.bytes_of(left), spelling.bytes_of(right)) else {
            return Err(malformed("a character is outside the byte-level alphabet"));
        };
        whole.clear();
        whole.extend_from_slice(&left);
        whole.extend_from_slice(&right);
        let find = |bytes: &[u8], problem| vocab.find(bytes).ok_or_else(|| malformed(problem));
        merges.push(
            find(&left, "the left part is not a token")?,
            find(&right, "the right part is not a token")?,
            find(&whole, "the result is not a token")?,
        );
    }
    Ok(merges)
}

/// The tokens with a role in every text.
#[derive(Clone, Copy, Default)]
struct SpecialIds {
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
}

impl SpecialIds {
    fn load(metadata: &Metadata, defaults: Self, vocab_size: usize) -> Result<Self, Error> {
        let id = |key: &str, default: Option<u32>| {
            let default = default.filter(|&id| (id as usize) < vocab_size);
            special_id(metadata, key, vocab_size).map(|id| id.or(default))
        };
        Ok(Self {
            bos: id("tokenizer.ggml.bos_token_id", defaults.bos)?,
            eos: id("tokenizer.ggml.eos_token_id", defaults.eos)?,
            unk: id("tokenizer.ggml.unknown_token_id", defaults.unk)?,
        })
    }
}

fn special_id(metadata: &Metadata, key: &str, vocab_size: usize) -> Result<Option<u32>, Error> {
    match metadata.u64(key)? {
        Some(id) if id < vocab_size as u64 => Ok(Some(id as u32)),
        Some(id) => Err(Error::SpecialId { key: key.to_owned(), id, vocab_size }),
        None => Ok(None),
    }
}

/// The tokens that end an answer: those the file names and those known by their text. They are
/// made control tokens, so that they never show in decoded text.
fn end_ids(metadata: &Metadata, vocab: &mut Vocab, ids: SpecialIds) -> Result<Vec<u32>, Error> {
    let mut end_ids: Vec<u32> = ids.eos.into_iter().collect();
    for role in ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
        let key = format!("tokenizer.ggml.{role}_token_id");
        end_ids.extend(special_id(metadata, &key, vocab.len())?);
    }
    let mut named = Vec::new();
    for id in 0..vocab.len() as u32 {
        let piece = vocab.piece(id);
        let Some(text) =
            END_OF_GENERATION.iter().chain(END_OF_INFILL).find(|text| text.as_bytes() == piece)
        else {
            continue;
        };
        named.push((*text, id));
    }
    let has = |text: &str| named.iter().any(|(other, _)| *other == text);
    // Channel-based formats end a message, not an answer, with `<|end|>`.
    let channels = has("<|call|>") && has("<|return|>") || has("<|calls|>") && has("<|flush|>");
    let plain_s = has("<|tool_response>");
    named.retain(|(text, _)| !(channels && *text == "<|end|>" || plain_s && *text == "</s>"));
    for (_, id) in named {
        vocab.set_kind(id, TokenKind::Control);
        end_ids.push(id);
    }
    end_ids.sort_unstable();
    end_ids.dedup();
    Ok(end_ids)
}

/// Tokens that swallow the white space after them. The file does not say; Phi-3 has such tokens.
fn rstrip_tokens(metadata: &Metadata, vocab: &Vocab) -> Result<Vec<u32>, Error> {
    let name = metadata.str("general.name")?.unwrap_or_default().to_lowercase();
    if !(name.contains("phi-3") || name.contains("phi3")) {
        return Ok(Vec::new());
    }
    Ok((0..vocab.len() as u32)
        .filter(|&id| {
            let text = vocab.piece(id);
            let special = vocab.kind(id).is_special() || vocab.kind(id) == TokenKind::UserDefined;
            special && ![b"<unk>".as_slice(), b"<s>", b"<|endoftext|>"].contains(&text)
        })
        .collect())
}
