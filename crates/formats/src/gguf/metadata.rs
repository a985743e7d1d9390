//! The metadata of a GGUF file: entries in file order, and typed getters whose
//! errors name the file and the key.

use std::collections::HashMap;
use std::path::PathBuf;

use super::array::{Array, StrArray};
use super::value::Value;
use crate::Error;
use crate::error::Fault;

/// The metadata of a GGUF file.
///
/// Getters return `Ok(None)` for a missing key, and an error for a value of another type. Integer getters
/// accept integers of any width whose value fits; float getters accept `f32` and `f64`.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    path: PathBuf,
    entries: Vec<(String, Value)>,
    by_key: HashMap<Box<str>, usize>,
}

impl Metadata {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    /// Adds an entry; an error if the key exists.
    pub(crate) fn insert(&mut self, key: &str, value: Value) -> Result<(), Fault> {
        if self.by_key.contains_key(key) {
            return Err(Fault::new("a key once", "it twice"));
        }
        self.by_key.insert(key.into(), self.entries.len());
        self.entries.push((key.into(), value));
        Ok(())
    }

    /// Sets a key, replacing its value if it exists.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.by_key.get(key) {
            Some(&i) => self.entries[i].1 = value,
            None => {
                self.by_key.insert(key.into(), self.entries.len());
                self.entries.push((key.into(), value));
            }
        }
    }

    /// Removes a key; returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.by_key.remove(key)?;
        self.by_key.values_mut().filter(|i| **i > at).for_each(|i| *i -= 1);
        Some(self.entries.remove(at).1)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values, in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key).map(|&i| &self.entries[i].1)
    }

    /// The value of a key, converted by `convert`, which returns `None` for other types and for numbers out of
    /// range.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(x) => Ok(Some(x)),
            None => Err(Fault::new(expected, value.describe()).in_key(&self.path, key)),
        }
    }

    /// An integer that fits `T`.
    fn int<T: TryFrom<i128>>(&self, key: &str, expected: &str) -> Result<Option<T>, Error> {
        self.typed(key, expected, |value| T::try_from(value.as_int()?).ok())
    }

    /// The elements of an array, each converted by `convert`.
    fn elements<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Error> {
        let array = self.typed(key, expected, Value::as_array)?;
        let Some(array) = array else { return Ok(None) };
        array.decode(expected, convert).map(Some).map_err(|e| e.in_key(&self.path, key))
    }

    /// An integer.
    ///
    /// # Errors
    /// If the value is not an integer or does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.int(key, "an integer that fits u32")
    }

    /// An integer.
    ///
    /// # Errors
    /// If the value is not an integer or does not fit.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, Error> {
        self.int(key, "an integer that fits i32")
    }

    /// An integer.
    ///
    /// # Errors
    /// If the value is not an integer or does not fit.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.int(key, "an integer that fits u64")
    }

    /// A float.
    ///
    /// # Errors
    /// If the value is not a float.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a float", Value::as_f32)
    }

    /// A boolean.
    ///
    /// # Errors
    /// If the value is not a boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a bool", Value::as_bool)
    }

    /// A string.
    ///
    /// # Errors
    /// If the value is not a string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", Value::as_str)
    }

    /// The strings of an array, without copying them.
    ///
    /// # Errors
    /// If the value is not an array of strings.
    pub fn str_array(&self, key: &str) -> Result<Option<StrArray<'_>>, Error> {
        self.typed(key, "an array of strings", |value| value.as_array().and_then(Array::strs))
    }

    /// The floats of an array.
    ///
    /// # Errors
    /// If the value is not an array of floats.
    pub fn f32_array(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.elements(key, "an array of floats", Value::as_f32)
    }

    /// The integers of an array.
    ///
    /// # Errors
    /// If the value is not an array of integers, or one does not fit.
    pub fn u32_array(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        let expected = "an array of integers that fit u32";
        self.elements(key, expected, |value| u32::try_from(value.as_int()?).ok())
    }

    /// The integers of an array.
    ///
    /// # Errors
    /// If the value is not an array of integers, or one does not fit.
    pub fn i32_array(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        let expected = "an array of integers that fit i32";
        self.elements(key, expected, |value| i32::try_from(value.as_int()?).ok())
    }

    /// The booleans of an array.
    ///
    /// # Errors
    /// If the value is not an array of booleans.
    pub fn bool_array(&self, key: &str) -> Result<Option<Vec<bool>>, Error> {
        self.elements(key, "an array of bools", Value::as_bool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_set_and_removed() {
        let mut metadata = Metadata::new("m.gguf".into());
        for (key, n) in [("a", 1_u32), ("b", 2), ("c", 3)] {
            metadata.set(key, n);
        }
        metadata.set("b", 7_u32);
        assert_eq!(metadata.remove("a"), Some(Value::U32(1)));
        assert_eq!(metadata.remove("a"), None);
        metadata.set("d", 4_u32);
        let all: Vec<_> = metadata.iter().map(|(key, value)| (key, value.as_int())).collect();
        assert_eq!(all, [("b", Some(7)), ("c", Some(3)), ("d", Some(4))]);
        for (key, n) in [("b", 7), ("c", 3), ("d", 4)] {
            assert_eq!(metadata.u32(key).expect("a number"), Some(n), "{key}");
        }
    }

    #[test]
    fn getters_convert_or_name_file_and_key() {
        let mut metadata = Metadata::new("m.gguf".into());
        let entries: [(&str, Value); 7] = [
            ("u8", 200u8.into()),
            ("neg", (-1i64).into()),
            ("big", u64::MAX.into()),
            ("pi", 3.5f64.into()),
            ("yes", true.into()),
            ("ints", Array::from(&[1i16, -2][..]).into()),
            ("words", Array::from_strs(["a", "b"]).into()),
        ];
        for (key, value) in entries {
            metadata.insert(key, value).expect("no duplicates");
        }
        assert!(metadata.insert("u8", 1u8.into()).is_err());

        assert_eq!(metadata.u32("u8").expect("u32"), Some(200));
        assert_eq!(metadata.u32("absent").expect("u32"), None);
        assert_eq!(metadata.i32("neg").expect("i32"), Some(-1));
        assert_eq!(metadata.u64("big").expect("u64"), Some(u64::MAX));
        assert_eq!(metadata.f32("pi").expect("f32"), Some(3.5));
        assert_eq!(metadata.bool("yes").expect("bool"), Some(true));
        assert_eq!(metadata.i32_array("ints").expect("array"), Some(vec![1, -2]));
        let words = metadata.str_array("words").expect("array").expect("present");
        assert_eq!(words.get(1), "b");

        let check = |error: Option<Error>, text: &str| {
            assert_eq!(error.map(|e| e.to_string()).as_deref(), Some(text));
        };
        check(
            metadata.u32("neg").err(),
            "m.gguf: key 'neg': expected an integer that fits u32, found the i64 -1",
        );
        check(
            metadata.u32_array("ints").err(),
            "m.gguf: key 'ints': expected an array of integers that fit u32, found the i16 -2 as element 1",
        );
        check(
            metadata.i32_array("words").err(),
            "m.gguf: key 'words': expected an array of integers that fit i32, found a string as element 0",
        );
        check(
            metadata.str("words").err(),
            "m.gguf: key 'words': expected a string, found an array of 2 string",
        );
    }
}
