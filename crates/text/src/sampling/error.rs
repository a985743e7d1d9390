//! Errors of sampling: parameters out of range and logits that cannot be sampled from.

/// What can go wrong when a token is chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is outside its range.
    #[error("`{name}` must be {range}, but is {value}")]
    Parameter {
        /// The name of the parameter.
        name: &'static str,
        /// The values it may take.
        range: &'static str,
        /// The value found.
        value: String,
    },
    /// A logit bias names a token outside the vocabulary.
    #[error("`logit_bias` names token {id}, but the vocabulary has {vocab_size} tokens")]
    BiasId {
        /// The token id.
        id: u32,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// There are not as many logits as tokens.
    #[error("{found} logits for a vocabulary of {expected} tokens")]
    Length {
        /// The size of the vocabulary.
        expected: usize,
        /// The number of logits.
        found: usize,
    },
    /// The model produced a logit that is not a number or is plus infinity.
    #[error("the logit of token {id} is {value}: the model's weights or settings are corrupt")]
    Logit {
        /// The token id.
        id: usize,
        /// The value found.
        value: f32,
    },
    /// Every token is excluded.
    #[error("every logit is minus infinity: no token can be chosen")]
    NoToken,
    /// There are sequence breakers, which are texts, and no tokenizer to read tokens with.
    #[error("`dry_sequence_breakers` cannot be found in tokens without a tokenizer")]
    NoTokenizer,
    /// No automaton can be built that finds the sequence breakers.
    #[error("`dry_sequence_breakers` cannot be searched for: {0}")]
    Breakers(String),
    /// A stop string is empty.
    #[error("stop string {idx} is empty")]
    EmptyStop {
        /// Its position in the list.
        idx: usize,
    },
}
