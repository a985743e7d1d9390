//! Sessions on disk: the prefill rows of a session, with their keys and values. Rows that are embeddings
//! are stored as their symbols, by which a prompt is compared.
//!
//! | bytes | content |
//! |---|---|
//! | 16 | the name of the format |
//! | 8 | the length of the header, little-endian |
//! | | the header, in JSON |
//! | | the pages of each key-value group by position, in the backend's layout; the recurrent state |
//! | 32 | the SHA-256 of everything before |
//!
//! The header has the [fingerprint](Fingerprint) of the model. A file of another model is an error that
//! names the difference, and so is a damaged file, since wrong keys and values give answers that look
//! right. The hash detects damage, not intent; a file that others may write to is refused (see
//! `own_file.rs`).

use super::Session;
use crate::Error;
use crate::run::{Model, Offsets, Saved};
use realizar_backends::Fingerprint;
use realizar_base::own_file::{self, Refusal};
use realizar_kvcache::Symbol;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::path::Path;

/// The first bytes of a file.
const MAGIC: [u8; 16] = *b"realizar session";
const VERSION: u32 = 3;
/// Longer than the header of a context of millions of tokens.
const MAX_HEADER_LEN: u64 = 256 << 20;
const HASH_LEN: usize = 32;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    model: Fingerprint,
    /// The symbol of each row; that of a token is its id.
    rows: Vec<u64>,
    /// Positions, and the offset of rotary positions from there on.
    offsets: Vec<(usize, i64)>,
    /// The number of released pages at the front of each group, by a sliding window.
    first_pages: Vec<usize>,
}

/// The part of the header that all versions share.
#[derive(Deserialize)]
struct OfVersion {
    version: u32,
}

impl Session {
    /// Writes the session's prefill rows to a file, which appears when it is complete. Generated tokens
    /// are not part of it; they are recomputed when they come back in a prompt.
    ///
    /// # Errors
    /// If the file cannot be written or the device fails.
    pub fn save(&mut self, model: &mut Model, path: &Path) -> Result<(), Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let fingerprint = model.fingerprint().clone();
        let runner = model.runner();
        let (seq, prompt) = self.parts();
        let offsets = runner.offsets(seq).clone();
        let mut len = runner.truncate(seq, prompt.len());
        if len == 0 {
            len = runner.adopt_again(seq, prompt, &offsets);
        }
        prompt.truncate(len);
        let Saved { first_pages, mut pages, state } = runner.save(seq)?;
        pages.extend_from_slice(&state);
        let header = Header {
            version: VERSION,
            model: fingerprint,
            rows: prompt.iter().map(|&symbol| symbol.into()).collect(),
            offsets: runner.offsets(seq).as_list().to_vec(),
            first_pages,
        };
        let header = serde_json::to_vec(&header).map_err(|e| io(e.into()))?;
        let mut bytes = Vec::with_capacity(24 + header.len() + pages.len() + HASH_LEN);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&pages);
        let hash = Sha256::digest(&bytes);
        bytes.extend_from_slice(&hash);
        own_file::write(path, 0o600, |file| file.write_all(&bytes)).map_err(io)
    }
}

impl Model {
    /// Restores a session from a file. It continues as if it had never ended.
    ///
    /// # Errors
    /// If the file cannot be read, is not a session or is damaged, if it is from another model, or if it
    /// does not fit the context or the cache.
    pub fn restore_session(&mut self, path: &Path) -> Result<Session, Error> {
        let refuse = |reason: String| Error::SessionFile { path: path.to_owned(), reason };
        let io = |source| Error::Io { path: path.to_owned(), source };
        let mut file = own_file::open(path).map_err(|refusal| match refusal {
            Refusal::Io(source) => io(source),
            Refusal::Writable(reason) => refuse(reason),
        })?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let (header, pages) = parse(&bytes).map_err(refuse)?;
        if let Some([what, kept, here]) = self.fingerprint().difference(&header.model) {
            let reason = format!("it was made with {what}: {kept}; this model has {here}");
            return Err(refuse(reason));
        }
        let runner = self.runner();
        let (n, max) = (header.rows.len(), runner.max_seq_len());
        if n > max {
            return Err(refuse(format!("its {n} tokens do not fit the context of {max}")));
        }
        let vocab_size = runner.vocab_size();
        let symbol = |&number: &u64| match Symbol::try_from(number) {
            Ok(symbol) if symbol.token().is_none_or(|id| (id as usize) < vocab_size) => Ok(symbol),
            _ => Err(refuse(format!("token {number} is not in the vocabulary of {vocab_size}"))),
        };
        let symbols: Vec<Symbol> = header.rows.iter().map(symbol).collect::<Result<_, _>>()?;
        let Some(offsets) = Offsets::from_list(&header.offsets, n) else {
            return Err(refuse("its offsets do not match its rows".to_owned()));
        };
        match runner.restore((n, &offsets), &header.first_pages, pages)? {
            Some(seq) => Ok(Session::with_prompt(seq, symbols)),
            None => Err(refuse("its pages do not match its tokens".to_owned())),
        }
    }
}

/// The header and the pages of a file, or the reason why it is refused.
fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), String> {
    let Some(rest) = bytes.strip_prefix(&MAGIC) else {
        return Err("it is not a session file".to_owned());
    };
    let cut = || "it is truncated".to_owned();
    let (body, hash) = bytes.split_last_chunk::<HASH_LEN>().ok_or_else(cut)?;
    if Sha256::digest(body).as_slice() != hash {
        return Err("it is damaged: its hash does not match its contents".to_owned());
    }
    let rest = &rest[..rest.len() - HASH_LEN];
    let (len, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER_LEN || len > rest.len() as u64 {
        return Err(cut());
    }
    let (header, pages) = rest.split_at(len as usize);
    let malformed = |error: serde_json::Error| format!("its header: {error}");
    let OfVersion { version } = serde_json::from_slice(header).map_err(malformed)?;
    if version != VERSION {
        return Err(format!("its version is {version}, expected {VERSION}"));
    }
    Ok((serde_json::from_slice(header).map_err(malformed)?, pages))
}
