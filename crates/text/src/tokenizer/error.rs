//! Errors of loading a tokenizer and of encoding or decoding with it.

use std::path::PathBuf;

/// What can go wrong with a tokenizer. Every variant names the key, file, token or id at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The metadata of a model file could not be read.
    #[error(transparent)]
    Metadata(#[from] realizar_formats::Error),
    /// A key that a tokenizer needs is not in the file.
    #[error("the model file has no `{key}`, which its tokenizer needs")]
    MissingKey {
        /// The metadata key.
        key: &'static str,
    },
    /// The tokenizer is of a kind that is not supported.
    #[error("tokenizer model `{model}` is not supported (supported: {supported})")]
    UnsupportedModel {
        /// The model type found.
        model: String,
        /// The model types that can be read.
        supported: &'static str,
    },
    /// The pre-tokenizer that the file names is not known.
    #[error("`tokenizer.ggml.pre` names the unknown pre-tokenizer `{name}`")]
    UnknownPreTokenizer {
        /// The name found.
        name: String,
    },
    /// Two arrays of the vocabulary do not have the same length.
    #[error("`{key}` has {found} entries, but the vocabulary has {expected}")]
    Length {
        /// The metadata key.
        key: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The number of entries found.
        found: usize,
    },
    /// The vocabulary is too large to be indexed, or is empty.
    #[error("a vocabulary of {found} is not supported: {problem}")]
    VocabSize {
        /// What was found, with its unit.
        found: String,
        /// Why it cannot be used.
        problem: &'static str,
    },
    /// A token of the vocabulary is malformed.
    #[error("token {id} (`{text}`) is malformed: {problem}")]
    Token {
        /// The token's id.
        id: u32,
        /// The token's text in the file.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// The encoder failed on a text, because the file that it was made from is damaged.
    #[error(
        "`tokenizer.json` is damaged: a text cannot be encoded with it: {}",
        realizar_formats::printable::one_line(problem)
    )]
    Broken {
        /// The message of the encoder.
        problem: String,
    },
    /// A BPE merge is malformed.
    #[error("merge {rank} (`{text}`) is malformed: {problem}")]
    Merge {
        /// The position of the merge in the list.
        rank: usize,
        /// The merge in the file.
        text: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A special token id points outside the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {vocab_size} tokens")]
    SpecialId {
        /// The key that holds the id.
        key: String,
        /// The id found.
        id: u64,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// A special token that the file asks to add is not defined by it.
    #[error("the tokenizer asks to add a {name} token but does not define one")]
    UndefinedSpecial {
        /// The role of the token: `bos` or `eos`.
        name: &'static str,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {id} is out of range: the vocabulary has {vocab_size} tokens")]
    IdOutOfRange {
        /// The id found.
        id: u32,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// The text has a byte for which the vocabulary has neither a token nor an unknown token.
    #[error("the vocabulary has no token for byte 0x{byte:02X} of the text")]
    NoTokenForByte {
        /// The byte.
        byte: u8,
    },
    /// A pre-tokenizer expression does not compile or exceeded its limit of backtracking.
    #[error("pre-tokenizer `{name}`: {source}")]
    Regex {
        /// The name of the pre-tokenizer.
        name: String,
        /// The error of the expression.
        source: Box<fancy_regex::Error>,
    },
    /// The special tokens cannot be searched for.
    #[error("special tokens: {0}")]
    SpecialTokens(#[from] aho_corasick::BuildError),
    /// A model directory holds no tokenizer.
    #[error("{}: the model has no tokenizer (tokenizer.json is missing)", dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is not the JSON that was expected.
    #[error("{}: {problem}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A `tokenizer.json` tokenizer failed to encode a text.
    #[error("cannot encode the text: {problem}")]
    Encode {
        /// What is wrong.
        problem: String,
    },
}
