//! Keys of the prefix cache: the symbols that a prompt's rows are compared by, and model variants.

/// The identity of one prompt row: a token id, or a hash of a row of embeddings. Within a
/// [`Variant`], prompts with equal symbols have equal keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol(u64);

/// The bit that is set in the symbols of embedding rows and clear in those of tokens.
const EMBEDDED: u64 = 1 << 63;

impl Symbol {
    /// The symbol of row `idx` of an embedding matrix. `content` is a cryptographic hash of the whole
    /// matrix.
    pub fn embedded(content: [u8; 32], idx: usize) -> Self {
        let word =
            |i: usize| content[8 * i..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        // All 256 bits enter every row, so a page of rows compares more of them than the 63 bits of
        // one symbol. The mixing is that of SplitMix64 (Steele et al., 2014).
        let mut mixed = (idx as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for i in 0..4 {
            mixed = (mixed ^ word(i)).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
        }
        Self(mixed | EMBEDDED)
    }

    /// The token id; `None` for an embedding row.
    pub fn token(self) -> Option<u32> {
        u32::try_from(self.0).ok()
    }
}

impl From<Symbol> for u64 {
    fn from(symbol: Symbol) -> Self {
        symbol.0
    }
}

impl TryFrom<u64> for Symbol {
    type Error = u64;

    /// The inverse of `u64::from(symbol)`; the error is the number, if no symbol converts to it.
    fn try_from(number: u64) -> Result<Self, u64> {
        let is_symbol = number & EMBEDDED != 0 || u32::try_from(number).is_ok();
        if is_symbol { Ok(Self(number)) } else { Err(number) }
    }
}

impl From<u32> for Symbol {
    fn from(token: u32) -> Self {
        Self(token.into())
    }
}

/// An id for everything besides the prompt that changes keys, values and states, such as an adapter.
/// Sequences of different variants never share pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_tell_tokens_rows_and_contents_apart() {
        let row = |first: u8, last: u8, idx| {
            let mut content = [7; 32];
            (content[0], content[31]) = (first, last);
            Symbol::embedded(content, idx)
        };
        assert_eq!(Symbol::from(7).token(), Some(7));
        assert_eq!(Symbol::from(u32::MAX).token(), Some(u32::MAX));
        assert_eq!(row(1, 1, 0), row(1, 1, 0));
        assert_eq!(row(1, 1, 0).token(), None);
        for symbol in [Symbol::from(7), u32::MAX.into(), row(1, 1, 0)] {
            assert_eq!(Symbol::try_from(u64::from(symbol)), Ok(symbol));
        }
        assert_eq!(Symbol::try_from(1_u64 << 32), Err(1 << 32));
        let mut all: Vec<_> = (0..100).map(|i| row(1, 1, i)).collect();
        all.extend((2..100).map(|i| row(i, 1, 0)));
        all.extend((2..100).map(|i| row(1, i, 0)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 296);
    }
}
