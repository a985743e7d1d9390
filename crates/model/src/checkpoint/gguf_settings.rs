//! The settings in a GGUF file's metadata, under the architecture's prefix.

use super::unread::Asked;
use crate::Error;
use realizar_formats::Gguf;

/// The settings of a GGUF model: keys are given without the prefix, so
/// `block_count` reads `llama.block_count`.
#[derive(Debug, Clone, Copy)]
pub struct GgufSettings<'a> {
    gguf: &'a Gguf,
    asked: Option<&'a Asked>,
}

impl<'a> GgufSettings<'a> {
    /// The settings of `gguf`.
    pub fn new(gguf: &'a Gguf) -> Self {
        Self { gguf, asked: None }
    }

    /// The settings of `gguf`; what is requested is noted in `asked`.
    pub(crate) fn noting(gguf: &'a Gguf, asked: &'a Asked) -> Self {
        Self { gguf, asked: Some(asked) }
    }

    /// The file.
    pub fn gguf(&self) -> &'a Gguf {
        self.gguf
    }

    /// `general.architecture`.
    ///
    /// # Errors
    /// If it is missing or no string.
    pub fn architecture(&self) -> Result<&'a str, Error> {
        let key = "general.architecture";
        let name = self.gguf.metadata().str(key)?;
        name.ok_or_else(|| self.setting(key.to_owned(), "a string", "nothing"))
    }

    fn key(&self, key: &str) -> Result<String, Error> {
        let key = format!("{}.{key}", self.architecture()?);
        if let Some(asked) = self.asked {
            asked.add(key.clone());
        }
        Ok(key)
    }

    fn setting(&self, key: String, expected: &str, found: &str) -> Error {
        let path = self.gguf.path().to_owned();
        Error::Setting { path, key, expected: expected.to_owned(), found: found.to_owned() }
    }

    /// The error for a key whose value is not as expected.
    pub fn wrong(&self, key: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        let key = self.key(key).unwrap_or_else(|_| key.to_owned());
        self.setting(key, &expected.into(), &found.into())
    }

    /// An error for a feature that is not built.
    pub fn unsupported(&self, feature: impl Into<String>) -> Error {
        Error::Unsupported { path: self.gguf.path().to_owned(), feature: feature.into() }
    }

    /// An error for a value of a setting that is not one of those that are built.
    pub fn unsupported_value(&self, feature: impl Into<String>, supported: &[&str]) -> Error {
        let (path, supported) = (self.gguf.path().to_owned(), supported.join(", "));
        Error::UnsupportedValue { path, feature: feature.into(), supported }
    }

    /// A whole number.
    ///
    /// # Errors
    /// If it is missing or no whole number.
    pub fn usize(&self, key: &str) -> Result<usize, Error> {
        self.opt_usize(key)?.ok_or_else(|| self.wrong(key, "a whole number", "nothing"))
    }

    /// A whole number that may be missing.
    ///
    /// # Errors
    /// If it is no whole number of 32 bits.
    pub fn opt_usize(&self, key: &str) -> Result<Option<usize>, Error> {
        Ok(self.gguf.metadata().u32(&self.key(key)?)?.map(|n| n as usize))
    }

    /// A list of whole numbers that may be missing.
    ///
    /// # Errors
    /// If it is no list of whole numbers of 32 bits.
    pub fn opt_usizes(&self, key: &str) -> Result<Option<Vec<usize>>, Error> {
        let list = self.gguf.metadata().u32_array(&self.key(key)?)?;
        Ok(list.map(|list| list.into_iter().map(|n| n as usize).collect()))
    }

    /// Whole numbers of each of `n_layers` layers, given as one for all or as a list.
    ///
    /// # Errors
    /// If there are more or fewer in the list, or they are no whole numbers.
    pub fn opt_per_layer(&self, key: &str, n_layers: usize) -> Result<Option<Vec<usize>>, Error> {
        let full = self.key(key)?;
        let metadata = self.gguf.metadata();
        if metadata.get(&full).is_none_or(|value| value.as_array().is_none()) {
            return Ok(self.opt_usize(key)?.map(|n| vec![n; n_layers]));
        }
        let list = metadata.u32_array(&full)?.unwrap_or_default();
        if list.len() != n_layers {
            let found = format!("a list of {}", list.len());
            return Err(self.wrong(key, format!("a number for each of {n_layers} layers"), found));
        }
        Ok(Some(list.into_iter().map(|n| n as usize).collect()))
    }

    /// Of each of `n_layers` layers, whether its window is bounded: a list, or the number of layers of
    /// which the last sees everything, `period` where the file has neither.
    ///
    /// # Errors
    /// If there are more or fewer in the list, or it is neither.
    pub fn sliding_layers(&self, n_layers: usize, period: usize) -> Result<Vec<bool>, Error> {
        let key = "attention.sliding_window_pattern";
        let full = self.key(key)?;
        let metadata = self.gguf.metadata();
        if metadata.get(&full).is_none_or(|value| value.as_array().is_none()) {
            return match self.opt_usize(key)?.unwrap_or(period) {
                0 => Err(self.wrong(key, "a number of layers", "0")),
                period => Ok((1..=n_layers).map(|l| !l.is_multiple_of(period)).collect()),
            };
        }
        let list = metadata.bool_array(&full)?.unwrap_or_default();
        if list.len() != n_layers {
            let found = format!("a list of {}", list.len());
            return Err(self.wrong(key, format!("a value for each of {n_layers} layers"), found));
        }
        Ok(list)
    }

    /// A whole number that may be given per layer, which then must all agree.
    ///
    /// # Errors
    /// If the layers differ, or it is no whole number.
    pub fn opt_uniform(&self, key: &str) -> Result<Option<usize>, Error> {
        let full = self.key(key)?;
        let metadata = self.gguf.metadata();
        if metadata.get(&full).is_none_or(|value| value.as_array().is_none()) {
            return self.opt_usize(key);
        }
        let per_layer = metadata.u32_array(&full)?.unwrap_or_default();
        match per_layer.split_first() {
            Some((first, rest)) if rest.iter().all(|n| n == first) => Ok(Some(*first as usize)),
            _ => Err(self.unsupported(format!("`{full}` that differs between layers"))),
        }
    }

    /// A number.
    ///
    /// # Errors
    /// If it is missing or no number.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        self.opt_f32(key)?.ok_or_else(|| self.wrong(key, "a number", "nothing"))
    }

    /// A number that may be missing.
    ///
    /// # Errors
    /// If it is no number.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        Ok(self.gguf.metadata().f32(&self.key(key)?)?)
    }

    /// A truth value, `default` when missing.
    ///
    /// # Errors
    /// If it is neither true nor false.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, Error> {
        Ok(self.gguf.metadata().bool(&self.key(key)?)?.unwrap_or(default))
    }

    /// Truth values of each of `n_layers` layers, which may be missing.
    ///
    /// # Errors
    /// If there are more or fewer, or they are neither true nor false.
    pub fn opt_bools(&self, key: &str, n_layers: usize) -> Result<Option<Vec<bool>>, Error> {
        let Some(list) = self.gguf.metadata().bool_array(&self.key(key)?)? else { return Ok(None) };
        if list.len() != n_layers {
            let found = format!("a list of {}", list.len());
            return Err(self.wrong(key, format!("one of each of {n_layers} layers"), found));
        }
        Ok(Some(list))
    }

    /// A list of numbers that may be missing.
    ///
    /// # Errors
    /// If it is no list of numbers.
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        Ok(self.gguf.metadata().f32_array(&self.key(key)?)?)
    }

    /// A string that may be missing.
    ///
    /// # Errors
    /// If it is no string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>, Error> {
        Ok(self.gguf.metadata().str(&self.key(key)?)?)
    }

    /// The number of tokens in the vocabulary.
    ///
    /// # Errors
    /// If the file has neither a token list nor a size.
    pub fn vocab_size(&self) -> Result<usize, Error> {
        // The embedding is the authority: it may be padded past the token list.
        let embedding = self.gguf.tensors().iter().find(|t| t.name == "token_embd.weight");
        if let Some(&[rows, _]) = embedding.map(|t| t.shape.as_slice()) {
            return Ok(rows);
        }
        self.usize("vocab_size")
    }
}
