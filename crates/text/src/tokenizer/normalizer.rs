//! Normalizers of a `tokenizer.json`: what they may put in, and how much longer a text may become by
//! all of them, one after another.
//!
//! The `tokenizers` crate normalizes without a limit, so a text that may become too long is refused
//! before.

use serde_json::Value;

use super::Error;

/// Normalizers of a sequence.
const MAX_NORMALIZERS: usize = 256;
/// Bytes that a normalizer puts in for a match.
const MAX_REPLACEMENT: usize = 64;
/// Bytes that a text may have once it is normalized.
const MAX_NORMALIZED: usize = 128 << 20;

/// How many times its bytes a text may have once it is normalized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth(f64);

impl Growth {
    /// The growth by a `normalizer`.
    ///
    /// # Errors
    /// If one of them would allocate more than its text by itself.
    pub(super) fn of(value: &Value) -> Result<Self, String> {
        let steps = value["normalizers"].as_array().map_or(&[][..], Vec::as_slice);
        if steps.len() > MAX_NORMALIZERS {
            return Err(format!(
                "{} normalizers, at most {MAX_NORMALIZERS} are supported",
                steps.len()
            ));
        }
        for key in ["content", "prepend"] {
            let len = value[key].as_str().map_or(0, str::len);
            if len > MAX_REPLACEMENT {
                return Err(format!(
                    "a normalizer inserts {len} bytes; at most {MAX_REPLACEMENT} are allowed"
                ));
            }
        }
        let mut growth = Self::of_one(value)?;
        for step in steps {
            growth *= Self::of(step)?.0;
        }
        Ok(Self(growth))
    }

    /// That of a single normalizer, as its type says.
    fn of_one(value: &Value) -> Result<f64, String> {
        Ok(match value["type"].as_str().unwrap_or_default() {
            "Replace" => {
                let pattern = &value["pattern"];
                let content = value["content"].as_str().map_or(0, str::len) as f64;
                match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
                    (Some(""), _) | (_, Some("")) => {
                        return Err("a normalizer replaces the empty text".to_owned());
                    }
                    (Some(text), _) => (content / text.len() as f64).max(1.0),
                    // It may match at every place, and nothing there.
                    _ => 1.0 + content,
                }
            }
            // Unicode Standard Annex #15: the worst case in UTF-8.
            "NFC" | "NFD" | "StripAccents" => 3.0,
            "NFKC" | "NFKD" => 11.0,
            // Spaces around a character of three bytes, after its decomposition.
            "BertNormalizer" => 5.0,
            // U+0130 has three bytes in small letters.
            "Lowercase" => 1.5,
            "ByteLevel" => 2.0,
            "Precompiled" => longest_entry(value)?,
            _ => 1.0,
        })
    }

    /// Refuses a text that may become too long.
    pub(super) fn check(self, text: &str) -> Result<(), Error> {
        let becomes = text.len() as f64 * self.0;
        if becomes <= MAX_NORMALIZED as f64 {
            return Ok(());
        }
        let problem = format!(
            "the normalizers may turn its {} bytes into {becomes:.0}, at most {MAX_NORMALIZED} are \
             allowed",
            text.len()
        );
        Err(Error::Encode { problem })
    }
}

/// Bytes of the longest text that a character map puts in for a character, at least 1.
fn longest_entry(value: &Value) -> Result<f64, String> {
    let Some(map) = value["precompiled_charsmap"].as_str() else { return Ok(1.0) };
    let map = from_base64(map).ok_or("the `precompiled_charsmap` is not in base64")?;
    // A length in bytes, a table of that length, and zero-terminated strings.
    let head = map.first_chunk().map_or(0, |head| u32::from_le_bytes(*head) as usize);
    let Some(texts) = map.get(4..).and_then(|rest| rest.get(head..)) else {
        return Err(format!(
            "the `precompiled_charsmap` of {} bytes has a table of {head}",
            map.len()
        ));
    };
    Ok(texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1) as f64)
}

/// Bytes in base64 (RFC 4648, section 4).
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits =
            group.iter().try_fold(0, |bits, &byte| Some(bits << 6 | u32::from(digit(byte)?)))?;
        let bits = bits << (6 * (4 - group.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn base64_is_read() {
        for (text, want) in [
            ("", &b""[..]),
            ("AA==", b"\0"),
            ("AAE=", b"\0\x01"),
            ("/P///w==", b"\xfc\xff\xff\xff"),
            ("Zm9vYmFy", b"foobar"),
        ] {
            assert_eq!(from_base64(text).as_deref(), Some(want), "{text}");
        }
        assert_eq!(from_base64("a-"), None);
    }

    #[test]
    fn chains_of_normalizers_multiply() {
        let check = |value: Value, want: f64| {
            assert_eq!(Growth::of(&value), Ok(Growth(want)), "{value}");
        };
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let chain = |steps: &[Value]| json!({"type": "Sequence", "normalizers": steps});
        let space = replace(json!({"String": " "}), "\u{2581}");
        check(Value::Null, 1.0);
        check(space.clone(), 3.0);
        check(chain(&[json!({"type": "Prepend", "prepend": "\u{2581}"}), space.clone()]), 3.0);
        check(replace(json!({"String": "``"}), "\""), 1.0);
        let double = replace(json!({"String": "a"}), "aa");
        check(chain(&vec![double; 20]), 1_048_576.0);
        check(chain(&[replace(json!({"Regex": "b*"}), "xy"), space]), 9.0);
        // An empty table, and entries of one and of three bytes.
        check(json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAGEAYmNkAA=="}), 3.0);
    }

    #[test]
    fn texts_that_may_become_too_long_are_refused() {
        let growth = Growth(1024.0);
        assert!(growth.check(&"a".repeat(MAX_NORMALIZED / 1024)).is_ok());
        let error = growth.check(&"a".repeat(MAX_NORMALIZED / 1024 + 1)).unwrap_err().to_string();
        assert!(error.contains("may turn its 131073 bytes into 134218752"), "{error}");
    }
}
