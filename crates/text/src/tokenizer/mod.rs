//! Tokenizers: text to token ids and back.
//!
//! A [`Tokenizer`] comes from the metadata of a GGUF file or from the files of a Hugging Face
//! model. GGUF vocabularies are encoded by this module's own merge loops, because they must live
//! beside a mapped model in little memory; `tokenizer.json` goes through the `tokenizers` crate.
//! Decoding is the same for both: every token stands for some bytes, see [`StreamDecoder`].
//!
//! ```
//! use realizar_formats::Gguf;
//! use realizar_text::tokenizer::{EncodeOptions, Tokenizer};
//!
//! // A vocabulary of the letters from `a`, which is token 4.
//! let gguf = Gguf::open("examples/alphabet.gguf")?;
//! let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
//! let options = EncodeOptions { add_special: true, parse_special: false };
//! let ids = tokenizer.encode("cab", options)?;
//! assert_eq!(ids, [6, 4, 5]);
//! assert_eq!(tokenizer.decode(&ids, true)?, "cab");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bpe;
mod buckets;
mod byte_level;
mod error;
mod gguf;
mod guard;
mod hf;
mod index;
mod infill;
mod joints;
mod normalizer;
mod postprocessor;
mod pretokenizer;
mod special;
mod spm;
mod stream;
mod vocab;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use realizar_formats::Metadata;

use bpe::{Bpe, Scratch};
pub use error::Error;
use guard::Guard;
pub use guard::GuardedText;
pub use guard::MARKS;
pub use infill::Infill;
use special::{Fragment, SpecialTokens};
use spm::Spm;
pub use stream::StreamDecoder;
use vocab::Vocab;

/// What [`Tokenizer::encode`] does beyond the text itself.
///
/// The default is for a text by itself, whoever wrote it: with the tokens around it, and no control token in it.
///
/// ```
/// use realizar_text::tokenizer::EncodeOptions;
///
/// let options = EncodeOptions::default();
/// assert_eq!(options, EncodeOptions { add_special: true, parse_special: false });
/// // A chat template writes the tokens around a text itself.
/// let options = EncodeOptions { add_special: false, ..options };
/// assert!(!options.add_special && !options.parse_special);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the tokens that the model expects around a text (beginning, sometimes end of text).
    pub add_special: bool,
    /// Read the spellings of control tokens in the text as those tokens. Without it they are
    /// ordinary text, as they should be in text from a user.
    pub parse_special: bool,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { add_special: true, parse_special: false }
    }
}

/// A vocabulary with its encoder.
pub struct Tokenizer {
    vocab: Arc<Vocab>,
    encoder: Encoder,
    guard: Guard,
    bos: Option<u32>,
    eos: Option<u32>,
    end_ids: Vec<u32>,                      // sorted
    infill: [Option<u32>; infill::N_ROLES], // that the file names
    add_bos: bool,
    add_eos: bool,
    strips_leading_space: bool,
    /// The maximum number of bytes of a text that one token may stand for, where that is known.
    longest: Option<NonZeroUsize>,
}

enum Encoder {
    Native { specials: SpecialTokens, native: Box<Native>, add_space_prefix: bool },
    HuggingFace(Box<hf::HfEncoder>),
}

enum Native {
    Bpe(Bpe),
    Spm(Spm),
}

impl Tokenizer {
    /// Reads the tokenizer from the `tokenizer.ggml.*` keys of a GGUF file.
    ///
    /// Fails on a missing key, a tokenizer model or pre-tokenizer that is not known, arrays of
    /// different lengths, malformed tokens or merges, and special ids outside the vocabulary.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, Error> {
        gguf::load(metadata)
    }

    /// Reads `tokenizer.json` in `dir`, and the special tokens from the other tokenizer and
    /// configuration files beside it.
    ///
    /// Fails, naming the file, if `tokenizer.json` is missing or a file is malformed.
    pub fn from_hf_dir(dir: &Path) -> Result<Self, Error> {
        hf::load(dir)
    }

    /// The token ids of `text`.
    ///
    /// Fails if the text has a byte that the vocabulary cannot express, or if a pre-tokenizer
    /// expression exceeds its limit of steps.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, Error> {
        self.encode_marked(text, None, options)
    }

    /// The token ids of `text` without the character `mark`, which no special token has: those
    /// with a mark inside are not found.
    fn encode_marked(
        &self,
        text: &str,
        mark: Option<char>,
        options: EncodeOptions,
    ) -> Result<Vec<u32>, Error> {
        let (specials, native, add_space_prefix) = match &self.encoder {
            Encoder::HuggingFace(encoder) => {
                return match mark {
                    Some(mark) => encoder.encode_marked(text, mark, options.add_special),
                    None => encoder.encode(text, options),
                };
            }
            Encoder::Native { specials, native, add_space_prefix } => {
                (specials, &**native, *add_space_prefix)
            }
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special && self.add_bos {
            ids.extend(self.bos);
        }
        let mut scratch = Scratch::default();
        let mut after_special = true;
        for fragment in specials.split(&self.vocab, text, options.parse_special) {
            let range = match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    after_special = true;
                    continue;
                }
                Fragment::Text(range) => range,
            };
            let fragment = &*guard::without(&text[range], mark);
            if fragment.is_empty() {
                continue;
            }
            match native {
                Native::Bpe(bpe) if bpe.pre.characters => {
                    let text = fragment.replace('\u{2581}', " ");
                    bpe.encode(&self.vocab, &text, &mut scratch, &mut ids)?;
                }
                Native::Bpe(bpe) => bpe.encode(&self.vocab, fragment, &mut scratch, &mut ids)?,
                Native::Spm(spm) => {
                    let mut text = fragment.replace('\u{2581}', " ");
                    if add_space_prefix && after_special {
                        text.insert(0, ' ');
                    }
                    spm.encode(&self.vocab, &text, &mut ids)?;
                }
            }
            after_special = false;
        }
        if options.add_special && self.add_eos {
            ids.extend(self.eos);
        }
        Ok(ids)
    }

    /// A lower bound on the number of tokens that [`Self::encode`] returns for `text`, without encoding it; 0
    /// where nothing is known, as for a `tokenizer.json`.
    pub fn min_tokens(&self, text: &str) -> usize {
        self.min_tokens_of(std::iter::once(text))
    }

    /// That of a text in parts.
    fn min_tokens_of<'a>(&self, parts: impl Iterator<Item = &'a str>) -> usize {
        let (Some(longest), Encoder::Native { native, .. }) = (self.longest, &self.encoder) else {
            return 0;
        };
        let n: usize = match &**native {
            // Bytes without a token are left out.
            Native::Bpe(bpe) if !bpe.pre.characters => {
                let is_kept = |byte: &u8| bpe.byte_ids[usize::from(*byte)].is_some();
                parts.map(|part| part.as_bytes().iter().filter(|byte| is_kept(byte)).count()).sum()
            }
            // Characters may be replaced by shorter ones.
            Native::Bpe(_) | Native::Spm(_) => parts.map(|part| part.chars().count()).sum(),
        };
        n.div_ceil(longest.get())
    }

    /// The text of `ids`; with `skip_special` without control tokens. Bytes that do not form a
    /// character become U+FFFD.
    ///
    /// A tokenizer that puts a space before every text drops that space again here. Fails on an
    /// id outside the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Error> {
        let decoder = StreamDecoder::new(self);
        if skip_special { decoder } else { decoder.with_special() }.decode_all(ids)
    }

    /// A decoder that takes ids one at a time and leaves out control tokens.
    pub fn stream(&self) -> StreamDecoder<&Self> {
        StreamDecoder::new(self)
    }

    /// The bytes that a token stands for; those of a control token spell its name.
    ///
    /// Fails on an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], Error> {
        self.vocab.check(id)?;
        Ok(self.vocab.piece(id))
    }

    /// The bytes of all tokens, for keeping beside the tokenizer.
    pub fn all_bytes(&self) -> TokenBytes {
        TokenBytes(self.vocab.clone())
    }

    /// The bytes of a token as text for display, with U+FFFD for what is not a whole character.
    ///
    /// Fails on an id outside the vocabulary.
    pub fn token_text(&self, id: u32) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(self.token_bytes(id)?).into_owned())
    }

    /// The number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The token that begins a text, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if the model has one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// All tokens that end an answer, in ascending order: the end of text, of a turn, of a
    /// message.
    pub fn eos_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Whether a token ends an answer.
    pub fn is_eos(&self, id: u32) -> bool {
        self.end_ids.binary_search(&id).is_ok()
    }

    /// Whether a token marks structure and is left out of plain text; false outside the
    /// vocabulary.
    pub fn is_special(&self, id: u32) -> bool {
        (id as usize) < self.vocab.len() && self.vocab.kind(id).is_special()
    }

    /// The token with exactly this text: `"<|im_end|>"`, or `" the"` with its space.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        let special = match &self.encoder {
            Encoder::Native { specials, .. } => specials.find(&self.vocab, text.as_bytes()),
            Encoder::HuggingFace(encoder) => encoder.id_of(text),
        };
        special.or_else(|| self.vocab.find(text.as_bytes()))
    }

    /// Whether [`EncodeOptions::add_special`] puts the beginning-of-text token first.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }
}

/// The bytes that each token of a tokenizer stands for.
#[derive(Clone)]
pub struct TokenBytes(Arc<Vocab>);

impl TokenBytes {
    /// The bytes of token `id`; none outside the vocabulary.
    pub fn get(&self, id: u32) -> &[u8] {
        if (id as usize) < self.0.len() { self.0.piece(id) } else { &[] }
    }

    /// Tokens that stand for these texts.
    #[cfg(test)]
    pub fn of(texts: &[&str]) -> Self {
        let mut vocab = Vocab::with_capacity(texts.len());
        for text in texts {
            vocab.push(vocab::TokenKind::Normal, true, |out| out.extend(text.bytes())).unwrap();
        }
        Self(Arc::new(vocab))
    }
}

impl std::fmt::Debug for TokenBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenBytes").field("vocab_size", &self.0.len()).finish()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.encoder {
            Encoder::Native { native, .. } => match **native {
                Native::Bpe(_) => "byte-pair",
                Native::Spm(_) => "SentencePiece",
            },
            Encoder::HuggingFace(_) => "tokenizer.json",
        };
        f.debug_struct("Tokenizer")
            .field("kind", &kind)
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("eos_ids", &self.end_ids)
            .finish_non_exhaustive()
    }
}
