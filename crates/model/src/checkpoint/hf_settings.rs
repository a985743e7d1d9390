//! config.json of a Hugging Face directory, read by type.

use super::unread::Asked;
use crate::Error;
use realizar_base::MAX_JSON;
use realizar_formats::read_regular;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The settings of a Hugging Face model.
///
/// Getters return an error that names the file and the key when a value is missing or of the wrong type. In the
/// settings that an architecture reads, keys that the file omits have the defaults of its class, so that what an
/// optional getter has no value for is null there.
#[derive(Debug, Clone)]
pub struct HfSettings {
    path: PathBuf,
    /// Dotted path of `map` inside the file, empty at the top.
    prefix: String,
    map: Map<String, Value>,
    /// Keys with the other names that the file has for them.
    aliases: Vec<(String, String)>,
    asked: Asked,
    /// They are those of a model's text part, beside others.
    pub(super) is_of_text: bool,
    /// The type of the model that has this text part.
    pub(super) outer_type: Option<String>,
    /// The type of the text part of a model that is not run by its text part.
    pub(super) text_type: Option<String>,
}

impl HfSettings {
    /// Reads config.json.
    ///
    /// # Errors
    /// If the file cannot be read or is not a JSON object.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let text = read_regular(path, MAX_JSON)
            .map_err(|source| Error::Io { path: path.to_owned(), source })?;
        let map = serde_json::from_slice(&text)
            .map_err(|source| Error::Json { path: path.to_owned(), source })?;
        Ok(Self::new(path.to_owned(), String::new(), map, Asked::default()))
    }

    fn new(path: PathBuf, prefix: String, map: Map<String, Value>, asked: Asked) -> Self {
        let (is_of_text, outer_type, text_type) = (false, None, None);
        let aliases = Vec::new();
        Self { path, prefix, map, aliases, asked, is_of_text, outer_type, text_type }
    }

    /// The settings with `defaults` for keys that the file leaves out, as the
    /// model's class in transformers has them. A key that is null stays so.
    #[must_use]
    pub fn with_defaults<const N: usize>(&self, defaults: [(&str, Value); N]) -> Self {
        let mut settings = self.clone();
        for (key, value) in defaults {
            settings.map.entry(key).or_insert(value);
        }
        settings
    }

    /// The settings with those of `other` that are absent here, of the keys that `takes` names.
    pub(crate) fn with_missing_of(&self, other: &Self, takes: impl Fn(&str) -> bool) -> Self {
        let mut settings = self.clone();
        for (key, value) in other.map.iter().filter(|(key, _)| takes(key)) {
            other.pass_over(key);
            settings.map.entry(key).or_insert_with(|| value.clone());
        }
        settings
    }

    /// The settings with `value` for a key that is absent or null: what a class computes of others where a file has
    /// none.
    #[must_use]
    pub fn or_if_null(&self, key: &str, value: Value) -> Self {
        if self.has(key) { self.clone() } else { self.with_value(key, value) }
    }

    /// The settings with another value for a key.
    #[must_use]
    pub fn with_value(&self, key: &str, value: Value) -> Self {
        let mut settings = self.clone();
        settings.map.insert(key.to_owned(), value);
        settings
    }

    /// Moves the value of `alias`, if the file has it, to `key`.
    ///
    /// # Errors
    /// If the file has another value for `key`.
    pub(super) fn take_alias(&mut self, alias: &str, key: &str) -> Result<(), Error> {
        let Some(value) = self.map.get(alias) else { return Ok(()) };
        if let Some(own) = self.map.get(key).filter(|own| *own != value) {
            return Err(self.wrong(alias, format!("{own}, as `{key}` says")));
        }
        self.pass_over(alias);
        if let Some(value) = self.map.remove(alias) {
            self.map.insert(key.to_owned(), value);
            self.aliases.push((key.to_owned(), alias.to_owned()));
        }
        Ok(())
    }

    /// config.json's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The settings as the file has them.
    pub(super) fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// The dotted path of these settings inside the file, with a dot at its end unless it is empty.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What was requested so far.
    pub(super) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// The value, which from now on counts as requested.
    pub fn raw(&self, key: &str) -> Option<&Value> {
        self.pass_over(key);
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Counts a setting as asked for, whose value rightly has no effect.
    pub fn pass_over(&self, key: &str) {
        self.asked.add(format!("{}{key}", self.prefix));
    }

    /// Whether the key is present and not null.
    pub fn has(&self, key: &str) -> bool {
        self.raw(key).is_some()
    }

    /// Whether the key is present with the value null.
    pub fn is_null(&self, key: &str) -> bool {
        self.pass_over(key);
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// Whether there is neither a value for the key nor null.
    pub(crate) fn is_absent(&self, key: &str) -> bool {
        self.pass_over(key);
        !self.map.contains_key(key)
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The error for a key whose value is not as expected.
    pub fn wrong(&self, key: &str, expected: impl Into<String>) -> Error {
        self.pass_over(key);
        let found = self.map.get(key).map_or_else(|| "nothing".to_owned(), ToString::to_string);
        let alias = self.aliases.iter().find(|(name, _)| name == key).map(|(_, alias)| alias);
        let key = alias.map_or(key, String::as_str);
        let (path, key) = (self.path.clone(), format!("{}{key}", self.prefix));
        Error::Setting { path, key, expected: expected.into(), found }
    }

    /// An error for a feature that is not built.
    pub fn unsupported(&self, feature: impl Into<String>) -> Error {
        Error::Unsupported { path: self.path.clone(), feature: feature.into() }
    }

    /// An error for a value of a setting that is not one of those that are built.
    pub fn unsupported_value(&self, feature: impl Into<String>, supported: &[&str]) -> Error {
        let (path, supported) = (self.path.clone(), supported.join(", "));
        Error::UnsupportedValue { path, feature: feature.into(), supported }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.raw(key) {
            None => Ok(None),
            Some(value) => get(value).map(Some).ok_or_else(|| self.wrong(key, expected)),
        }
    }

    fn required<T>(&self, key: &str, expected: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.wrong(key, expected))
    }

    /// A string.
    ///
    /// # Errors
    /// If it is missing or no string.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        self.required(key, "a string", self.opt_str(key)?)
    }

    /// A string that may be missing.
    ///
    /// # Errors
    /// If it is no string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", Value::as_str)
    }

    /// A string, `default` when missing.
    ///
    /// # Errors
    /// If it is null or no string.
    pub fn str_or<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str, Error> {
        if self.is_absent(key) { Ok(default) } else { self.str(key) }
    }

    /// Whether the key is present with this text.
    pub fn text_is(&self, key: &str, text: &str) -> bool {
        self.raw(key).and_then(Value::as_str) == Some(text)
    }

    /// A string that may be missing, or a truth value, which counts as missing.
    ///
    /// # Errors
    /// If it is neither.
    pub(super) fn opt_str_or_bool(&self, key: &str) -> Result<Option<&str>, Error> {
        let value = self.typed(key, "a string, true or false", |v| {
            v.as_str().map(Some).or(v.is_boolean().then_some(None))
        })?;
        Ok(value.flatten())
    }

    /// A whole number.
    ///
    /// # Errors
    /// If it is missing or no whole number.
    pub fn usize(&self, key: &str) -> Result<usize, Error> {
        self.required(key, "a whole number", self.opt_usize(key)?)
    }

    /// A whole number, `default` when missing.
    ///
    /// # Errors
    /// If it is null or no whole number.
    pub fn usize_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        if self.is_absent(key) { Ok(default) } else { self.usize(key) }
    }

    /// A whole number that may be missing.
    ///
    /// # Errors
    /// If it is no whole number.
    pub fn opt_usize(&self, key: &str) -> Result<Option<usize>, Error> {
        self.typed(key, "a whole number", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    /// A number.
    ///
    /// # Errors
    /// If it is missing or no number.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        self.required(key, "a number", self.opt_f32(key)?)
    }

    /// A number, `default` when missing.
    ///
    /// # Errors
    /// If it is null or no number.
    pub fn f32_or(&self, key: &str, default: f32) -> Result<f32, Error> {
        if self.is_absent(key) { Ok(default) } else { self.f32(key) }
    }

    /// A number that may be missing.
    ///
    /// # Errors
    /// If it is no number.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a number", |v| v.as_f64().map(|x| x as f32))
    }

    /// A truth value; null is false, as in Python.
    ///
    /// # Errors
    /// If it is missing or neither true nor false.
    pub fn bool(&self, key: &str) -> Result<bool, Error> {
        if self.is_null(key) {
            return Ok(false);
        }
        let value = self.typed(key, "true or false", Value::as_bool)?;
        self.required(key, "true or false", value)
    }

    /// A truth value, `default` when missing; null is false, as in Python.
    ///
    /// # Errors
    /// If it is neither true nor false.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, Error> {
        let value = self.typed(key, "true or false", Value::as_bool)?;
        Ok(value.unwrap_or(default && !self.is_null(key)))
    }

    /// A list of whole numbers that may be missing.
    ///
    /// # Errors
    /// If it is no list of whole numbers.
    pub fn opt_usizes(&self, key: &str) -> Result<Option<Vec<usize>>, Error> {
        self.typed(key, "a list of whole numbers", |v| {
            let whole = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
            v.as_array()?.iter().map(whole).collect()
        })
    }

    /// A list of numbers that may be missing.
    ///
    /// # Errors
    /// If it is no list of numbers.
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.typed(key, "a list of numbers", |v| {
            v.as_array()?.iter().map(|x| x.as_f64().map(|x| x as f32)).collect()
        })
    }

    /// A list of strings that may be missing.
    ///
    /// # Errors
    /// If it is no list of strings.
    pub fn opt_strs(&self, key: &str) -> Result<Option<Vec<&str>>, Error> {
        self.typed(key, "a list of strings", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }

    /// An object that may be missing, as settings of their own.
    ///
    /// # Errors
    /// If it is no object.
    pub fn opt_object(&self, key: &str) -> Result<Option<Self>, Error> {
        let map = self.typed(key, "an object", Value::as_object)?.cloned();
        let prefix = format!("{}{key}.", self.prefix);
        let (path, asked) = (self.path.clone(), self.asked.clone());
        Ok(map.map(|map| Self::new(path, prefix, map, asked)))
    }
}
