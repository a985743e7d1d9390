//! The members of a JSON object as places in its text, so that each is built once, by what reads it,
//! and the others never.
//!
//! A structure that is built of JSON may take a hundred times the memory of the text: `[0],` is four
//! bytes, and an array of one value. How many values a text has is therefore counted before
//! anything is built.

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Map, Value};
use std::ops::Range;

/// Members that hold token ids in lists that are read as numbers, not as values.
const ID_LISTS: [&str; 4] = ["input", "prompt", "stop_token_ids", "tokens"];

/// The members of an object, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Members {
    list: Vec<Member>,
    /// Values in all members, numbers in lists of ids included.
    n_values: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    name: String,
    value: Range<usize>,
}

/// A text that has more values than are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyValues;

impl Members {
    /// Splits an object; `None` if the text is not one, which a parser can tell more of.
    ///
    /// # Errors
    /// If it has more than `max_values` values, numbers in lists of token ids aside.
    pub(crate) fn split(text: &[u8], max_values: usize) -> Result<Option<Self>, TooManyValues> {
        let mut scan = Scan { text, at: 0, n_values: 0, n_built: 0, max_values };
        let Some(places) = scan.object()? else { return Ok(None) };
        let mut list = Vec::with_capacity(places.len());
        for (name, value) in places {
            let Ok(name) = serde_json::from_slice::<String>(&text[name]) else { return Ok(None) };
            // Even a value that nothing requests must be JSON.
            if serde_json::from_slice::<IgnoredAny>(&text[value.clone()]).is_err() {
                return Ok(None);
            }
            list.push(Member { name, value });
        }
        Ok(Some(Self { list, n_values: scan.n_values }))
    }

    /// Values in all members.
    pub(crate) fn n_values(&self) -> usize {
        self.n_values
    }

    /// The members with these names, built.
    pub(crate) fn pick(&self, text: &[u8], names: &[&str]) -> Result<Map<String, Value>, Error> {
        let picked = self.list.iter().filter(|member| names.contains(&member.name.as_str()));
        picked
            .map(|Member { name, value }| {
                Ok((name.clone(), serde_json::from_slice(&text[value.clone()])?))
            })
            .collect()
    }

    /// The object as a source of values for types, whose text this is.
    pub(crate) fn of<'a>(&'a self, text: &'a [u8]) -> Object<'a> {
        Object { members: self, text }
    }
}

/// Goes through the structure of a text. What it takes for a value is one only if a parser says so:
/// it does not look into strings and numbers, nor whether brackets match.
struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    n_values: usize,
    /// Without numbers in lists of ids.
    n_built: usize,
    max_values: usize,
}

type Places = Vec<(Range<usize>, Range<usize>)>;

impl Scan<'_> {
    fn object(&mut self) -> Result<Option<Places>, TooManyValues> {
        let mut places = Vec::new();
        if !self.takes(b'{') {
            return Ok(None);
        }
        if !self.takes(b'}') {
            loop {
                self.skip_blanks();
                let Some(name) = self.string() else { return Ok(None) };
                if !self.takes(b':') {
                    return Ok(None);
                }
                self.skip_blanks();
                let raw = &self.text[name.start + 1..name.end - 1];
                let is_ids = ID_LISTS.iter().any(|list| list.as_bytes() == raw);
                let start = self.at;
                self.value(is_ids)?;
                places.push((name, start..self.at));
                if self.takes(b'}') {
                    break;
                }
                if !self.takes(b',') {
                    return Ok(None);
                }
            }
        }
        self.skip_blanks();
        Ok((self.at == self.text.len()).then_some(places))
    }

    fn skip_blanks(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn takes(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        let takes = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(takes);
        takes
    }

    /// The place of a string with its quotes.
    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        if self.text.get(start) != Some(&b'"') {
            return None;
        }
        let mut at = start + 1;
        loop {
            match self.text.get(at)? {
                b'"' => break,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        self.at = at + 1;
        Some(start..self.at)
    }

    fn count(&mut self, is_built: bool) -> Result<(), TooManyValues> {
        self.n_values += 1;
        self.n_built += usize::from(is_built);
        if self.n_built > self.max_values { Err(TooManyValues) } else { Ok(()) }
    }

    /// Goes on to the end of a member's value: a comma or bracket that is not inside of it.
    fn value(&mut self, is_ids: bool) -> Result<(), TooManyValues> {
        let (start, mut depth, mut before) = (self.at, 0_usize, 0);
        // Each value begins the member, a list, or follows a comma.
        self.count(true)?;
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b'"' => {
                    if self.string().is_none() {
                        self.at = self.text.len();
                    }
                    before = b'"';
                    continue;
                }
                b'[' | b'{' => {
                    depth += 1;
                    self.count(true)?;
                }
                b',' if depth == 0 => break,
                // What follows a number of a list of ids is one as well, or is found by the next.
                b',' => self.count(!is_ids || !before.is_ascii_digit())?,
                b']' | b'}' if depth == 0 => break,
                b']' | b'}' => depth -= 1,
                _ => {}
            }
            if !byte.is_ascii_whitespace() {
                before = byte;
            }
            self.at += 1;
        }
        // Where there is no value, what stands before it is not given back.
        let value = &self.text[start..self.at];
        self.at = start + value.trim_ascii_end().len();
        Ok(())
    }
}

/// An object of which types read the members that they know; see [`Members::of`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object<'a> {
    members: &'a Members,
    text: &'a [u8],
}

impl<'de> serde::Deserializer<'de> for Object<'de> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Access {
            rest: self.members.list.iter(),
            text: self.text,
            known: Some(fields),
            value: None,
        })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Access {
            rest: self.members.list.iter(),
            text: self.text,
            known: None,
            value: None,
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Goes through the members that a type knows, or through all.
struct Access<'de> {
    rest: std::slice::Iter<'de, Member>,
    text: &'de [u8],
    known: Option<&'static [&'static str]>,
    value: Option<&'de [u8]>,
}

impl<'de> MapAccess<'de> for Access<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let known = self.known;
        let next =
            self.rest.find(|member| known.is_none_or(|names| names.contains(&&*member.name)));
        let Some(Member { name, value }) = next else { return Ok(None) };
        self.value = Some(&self.text[value.clone()]);
        let name = serde::de::value::BorrowedStrDeserializer::new(name);
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let value = self.value.take().unwrap_or_default();
        seed.deserialize(&mut serde_json::Deserializer::from_slice(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[test]
    fn members_are_found_in_every_object() {
        for text in [
            "{}",
            " { } ",
            r#"{"a": 1}"#,
            r#"{"a":[1,{"b":"}],"}],"c" : null , "d":"x\"y\\" }"#,
            "{\"\\u0061\": {\"x\": [[], {}]},\n\t\"a\": -1.5e3 }",
        ] {
            let members = Members::split(text.as_bytes(), 100).expect("few").expect(text);
            let names: Vec<&str> = members.list.iter().map(|m| m.name.as_str()).collect();
            let picked = members.pick(text.as_bytes(), &names).expect("values");
            let want: Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(Value::Object(picked), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_object_is_left_to_the_parser() {
        for text in [
            "",
            "[]",
            "7",
            "{",
            "{}x",
            "{} {}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a": }"#,
            r#"{"a": ,"b":1}"#,
            r#"{"a":1,}"#,
            r#"{a:1}"#,
            r#"{"a":[}"#,
            r#"{"a":[},"b":]}"#,
            r#"{"a":1 2}"#,
            r#"{"a":"x}"#,
            r#"{"a\x":1}"#,
            r#"{"a":1]"#,
            r#"{"a":"\"#,
            r#"{"a":tru}"#,
        ] {
            assert!(serde_json::from_str::<Map<String, Value>>(text).is_err(), "{text}");
            assert_eq!(Members::split(text.as_bytes(), 100), Ok(None), "{text}");
        }
    }

    /// How many values a value is, with itself.
    fn count(value: &Value) -> usize {
        1 + match value {
            Value::Array(list) => list.iter().map(count).sum(),
            Value::Object(map) => map.values().map(count).sum(),
            _ => 0,
        }
    }

    #[test]
    fn no_value_escapes_the_count() {
        for value in [
            json!({"a": [[0], [0], [[]]], "b": {"c": {"d": 1, "e": [1, 2, 3]}}}),
            json!({"a": "[,,,[{", "b": [], "c": [{}, {}]}),
        ] {
            let members = Members::split(value.to_string().as_bytes(), 1000).expect("few");
            let n = members.expect("an object").n_values();
            assert!(n >= count(&value) - 1 && n <= 2 * count(&value), "{value}: {n}");
        }
        let split = |value: &Value, max| Members::split(value.to_string().as_bytes(), max);
        let list = json!({"a": [0, 0, 0, 0, 0, 0, 0, 0]});
        assert_eq!(split(&list, 8), Err(TooManyValues));
        // Ids are numbers of four bytes, not values.
        let ids = json!({"prompt": [0, 0, 0, 0, 0, 0, 0, 0]});
        assert_eq!(split(&ids, 8).expect("few").expect("an object").n_values(), 9);
        for value in [json!(["a", "b", "c", "d", "e", "f", "g"]), json!([[1], [1], [1], [1], [1]])]
        {
            assert_eq!(split(&json!({"prompt": value}), 6), Err(TooManyValues), "{value}");
        }
    }

    #[test]
    fn types_read_what_they_know() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Known {
            #[serde(alias = "n")]
            number: Option<u32>,
            text: Option<String>,
        }
        let read = |text: &str| {
            let members = Members::split(text.as_bytes(), 100).expect("few").expect(text);
            Known::deserialize(members.of(text.as_bytes())).map_err(|error| error.to_string())
        };
        let known = |number, text: Option<&str>| Known { number, text: text.map(str::to_owned) };
        assert_eq!(read(r#"{"x": [1], "n": 7, "text": "t"}"#), Ok(known(Some(7), Some("t"))));
        assert_eq!(read(r#"{"number": null}"#), Ok(known(None, None)));
        let twice = read(r#"{"n": 1, "number": 2}"#).unwrap_err();
        assert!(twice.contains("duplicate field"), "{twice}");
    }
}
