//! A reader of little-endian fields that checks every length before use.

use crate::error::Fault;

/// A position in a file's bytes.
pub(crate) struct Cursor<'a> {
    data: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data, pos: 0 }
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn remaining(&self) -> usize {
        self.data.len() - self.pos
    }

    /// The next `n` bytes.
    #[inline]
    pub(crate) fn take(&mut self, n: u64) -> Result<&'a [u8], Fault> {
        match usize::try_from(n) {
            Ok(n) if n <= self.remaining() => {
                let bytes = &self.data[self.pos..self.pos + n];
                self.pos += n;
                Ok(bytes)
            }
            _ => Err(self.truncated(n)),
        }
    }

    #[cold]
    fn truncated(&self, n: u64) -> Fault {
        Fault::new(
            format_args!("{n} bytes at offset {}", self.pos),
            format_args!("{} bytes to the end of the file", self.remaining()),
        )
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a count of items that take at least `min_bytes` each, and fails if so many cannot fit the
    /// remaining bytes.
    pub(crate) fn count(&mut self, min_bytes: usize) -> Result<usize, Fault> {
        let n = self.u64()?;
        let most = self.remaining() / min_bytes;
        match usize::try_from(n) {
            Ok(n) if n <= most => Ok(n),
            _ => Err(Fault::new(format_args!("a count of at most {most} in this file"), n)),
        }
    }

    /// The bytes of a string: a 64-bit length, then the text.
    #[inline]
    pub(crate) fn string_bytes(&mut self) -> Result<&'a [u8], Fault> {
        let len = self.u64()?;
        self.take(len)
    }

    /// A string that is valid UTF-8.
    pub(crate) fn str(&mut self) -> Result<&'a str, Fault> {
        let bytes = self.string_bytes()?;
        std::str::from_utf8(bytes).map_err(|e| {
            Fault::new("valid UTF-8", format_args!("an invalid byte at {}", e.valid_up_to()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked_before_use() {
        let mut bytes = 3u64.to_le_bytes().to_vec();
        bytes.extend(b"abc");
        assert_eq!(Cursor::new(&bytes).str().ok(), Some("abc"));
        assert_eq!(Cursor::new(&bytes).count(1).ok(), Some(3));
        assert!(Cursor::new(&bytes).count(2).is_err());
        for len in [4, 1 << 32, u64::MAX - 7, u64::MAX] {
            bytes[..8].copy_from_slice(&u64::to_le_bytes(len));
            assert!(Cursor::new(&bytes).str().is_err(), "length {len}");
        }
        for len in 0..8 {
            assert!(Cursor::new(&bytes[..len]).u64().is_err(), "{len} bytes");
        }
    }
}
