//! The byte-level alphabet of GPT-2: one printable character for each of the 256 byte values.
//!
//! Printable bytes of Latin-1 stand for themselves; the other 68 take U+0100 onward in order.

/// The character that stands for `byte`.
#[cfg(test)]
pub(super) fn char_of(byte: u8) -> char {
    let offset = match byte {
        0..=0x20 => byte as u32, // 33 control characters and the space
        0x7F..=0xA0 => byte as u32 - 0x7F + 33, // 34 of DEL to NBSP
        0xAD => 67,              // the soft hyphen
        _ => return byte as char,
    };
    char::from_u32(0x100 + offset).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that `c` stands for, if it is in the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121) as u8 + 0x7F),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// Appends the bytes that `text` stands for to `out`, or leaves `out` alone and returns false
/// when a character is outside the alphabet.
pub(super) fn decode_into(text: &str, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte), "byte {byte:#04x}");
        }
        for (byte, c) in [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'a', 'a'), (0xAD, 'Ń'), (0xFF, 'ÿ')] {
            assert_eq!(char_of(byte), c);
        }
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('\u{144}'), None);
    }
}
