//! The vocabulary as the tree of bytes along which masks are computed.
//!
//! Control tokens and those that end an answer stand in it under a byte that no text has, so that
//! no text of a grammar can be spelled with them.

use std::sync::Arc;

use toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use super::Error;
use crate::tokenizer::Tokenizer;

/// The longest token that the tree takes; longer ones are never allowed.
const MAX_TOKEN_BYTES: usize = 1000;
/// The maximum number of bytes of all tokens together, which bounds the nodes of the tree.
const MAX_BYTES: usize = 1 << 22;
/// The maximum number of tokens: the tree has 24 bits for an id.
const MAX_TOKENS: usize = (1 << 24) - 1;

/// The tree of a tokenizer's vocabulary.
pub(super) fn environment(tokenizer: &Tokenizer) -> Result<TokEnv, Error> {
    let n_tokens = tokenizer.vocab_size();
    if n_tokens >= MAX_TOKENS {
        let problem = format!("it has {n_tokens} tokens, at most {MAX_TOKENS} are supported");
        return Err(Error::Vocabulary(problem));
    }
    let words =
        (0..n_tokens as u32).map(|id| word(tokenizer, id)).collect::<Result<Vec<_>, _>>()?;
    let n_bytes: usize = words.iter().map(Vec::len).sum();
    if n_bytes >= MAX_BYTES {
        let problem = format!("its tokens have {n_bytes} bytes, at most {MAX_BYTES} are supported");
        return Err(Error::Vocabulary(problem));
    }
    let eos_ids = tokenizer.eos_ids();
    let first = eos_ids.first().copied().unwrap_or(INVALID_TOKEN);
    let mut trie = TokTrie::from(&TokRxInfo::new(n_tokens as u32, first), &words);
    if !eos_ids.is_empty() {
        trie = trie.with_eos_tokens(eos_ids);
    }
    // The tokenizer is not asked for the usual tokens of a text that must follow: the model
    // chooses among all spellings of it.
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// The bytes of a token in the tree; none for a token that is never allowed.
fn word(tokenizer: &Tokenizer, id: u32) -> Result<Vec<u8>, Error> {
    let bytes = tokenizer.token_bytes(id).map_err(|e| Error::Vocabulary(e.to_string()))?;
    let usable = !bytes.is_empty()
        && bytes.len() <= MAX_TOKEN_BYTES
        && bytes[0] != TokTrie::SPECIAL_TOKEN_MARKER;
    if !usable {
        return Ok(Vec::new());
    }
    if tokenizer.is_special(id) || tokenizer.is_eos(id) {
        return Ok([&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat());
    }
    Ok(bytes.to_vec())
}
