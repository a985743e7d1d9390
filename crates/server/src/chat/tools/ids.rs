//! Ids of tool calls, which a client sends back with the results.

use std::hash::{BuildHasher, RandomState};

/// How an id looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdStyle {
    /// `call_` and 24 letters and digits, as OpenAI writes them.
    OpenAi,
    /// Nine letters and digits, which the templates of Mistral's models insist on.
    Mistral,
}

/// Makes ids that differ from one another and from those of other requests.
#[derive(Clone, Debug)]
pub struct CallIds {
    style: IdStyle,
    state: u64,
}

impl CallIds {
    /// Ids that cannot be foretold.
    pub fn random(style: IdStyle) -> Self {
        // The standard library keys every `RandomState` from the system's random numbers.
        Self::seeded(style, RandomState::new().hash_one(0))
    }

    /// The ids that follow from `seed`.
    pub fn seeded(style: IdStyle, seed: u64) -> Self {
        Self { style, state: seed }
    }

    /// The next id.
    pub fn next_id(&mut self) -> String {
        let (mut id, n_chars) = match self.style {
            IdStyle::OpenAi => ("call_".to_owned(), 24),
            IdStyle::Mistral => (String::new(), 9),
        };
        id.extend((0..n_chars).map(|_| self.next_char()));
        id
    }

    fn next_char(&mut self) -> char {
        const ALPHABET: &[u8; 62] =
            b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        // SplitMix64 (Steele, Lea, Flood, 2014).
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        char::from(ALPHABET[(z % 62) as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_have_their_style_and_differ() {
        for (style, prefix, len) in [(IdStyle::OpenAi, "call_", 29), (IdStyle::Mistral, "", 9)] {
            let mut ids = CallIds::seeded(style, 7);
            let all: HashSet<String> = (0..1000).map(|_| ids.next_id()).collect();
            assert_eq!(all.len(), 1000);
            for id in &all {
                let tail = id.strip_prefix(prefix).unwrap();
                assert!(id.len() == len && tail.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
            }
            assert_eq!(CallIds::seeded(style, 7).next_id(), CallIds::seeded(style, 7).next_id());
            assert_ne!(CallIds::random(style).next_id(), CallIds::random(style).next_id());
        }
    }
}
